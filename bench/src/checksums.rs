//! Measures what the CRC32C of messages costs (Jet §4.2.2), in four cases: messages have no checksum; the
//! reactor checks it; workers check it; checks are switched off at the receiver. The cases alternate, each
//! with a sender, a daemon and an application of its own. Another figure is the speed of computing a CRC
//! alone, of bytes that lie in the cache.
//!
//! A sender that uses checksums computes them, too, so a figure is the cost at both ends. Workers have no
//! cores of their own here: where there are two processors, they take the time of the sender, the daemon or
//! the application.

use crate::e2e::{DEPTH, LARGE_BYTES, Load, per_second};
use crate::report::{Bound, Row, pairwise};
use crate::rig::Rig;
use jet_wire::SLAB_BYTES;
use jet_wire::message::combine_crc32c;
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

/// Bytes that one sample sends in large messages, or computes CRCs of.
const SAMPLE_BYTES: usize = 1 << 30;
/// Number of small messages that one sample sends.
const MESSAGES: u64 = 400_000;

/// The cases: a name, the value of `read.checksums`, and whether messages carry a checksum.
const WAYS: [(&str, &str, bool); 4] = [
    ("no checksum", "inline", false),
    ("checked by the reactor", "inline", true),
    ("checked by a worker", "workers", true),
    ("switched off at the receiver", "off", true),
];

/// Runs the benchmark `checksums` over the named fabrics.
///
/// # Errors
/// An error of the rig or the system.
pub fn run(samples: u32, fabrics: &[&str]) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut rows = vec![
        Row::new("checksums", "CRC32C alone, 256 KiB", "GB/s", bare(samples, LARGE_BYTES), Bound::None),
        Row::new("checksums", "CRC32C alone, 4 KiB", "GB/s", bare(samples, SLAB_BYTES), Bound::None),
        Row::new("checksums", "putting two CRCs together", "ns", combining(samples), Bound::None),
    ];
    for fabric in fabrics {
        over(fabric, samples, &mut rows)?;
    }
    Ok(rows)
}

fn over(fabric: &str, samples: u32, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let mut rigs = Vec::with_capacity(WAYS.len());
    for (_, checksums, crc) in WAYS {
        let rig = Rig::start(fabric, true, &[format!("read.checksums={checksums}")])?;
        let mut load = Load::shaped(&rig, LARGE_BYTES, DEPTH, 32, crc)?;
        load.large(SAMPLE_BYTES / 8)?;
        load.small(MESSAGES / 8, SLAB_BYTES)?;
        rigs.push((rig, load));
    }
    let (mut large, mut small) = (vec![Vec::new(); WAYS.len()], vec![Vec::new(); WAYS.len()]);
    for _ in 0..samples {
        for (way, (_, load)) in rigs.iter_mut().enumerate() {
            large[way].push(load.large(SAMPLE_BYTES)?);
            small[way].push(load.small(MESSAGES, SLAB_BYTES)?);
        }
    }
    for (what, unit, rates) in [("256 KiB messages", "GB/s", large), ("4 KiB messages", "1/s", small)] {
        for (way, (who, ..)) in WAYS.iter().enumerate() {
            let metric = format!("{fabric}: {what}, {who}");
            rows.push(Row::new("checksums", &metric, unit, rates[way].clone(), Bound::None));
        }
        for (way, (who, ..)) in WAYS.iter().enumerate().skip(1) {
            let metric = format!("{fabric}: {what}, {who} / {}", WAYS[0].0);
            let ratios = pairwise(&rates[way], &rates[0]);
            rows.push(Row::new("checksums", &metric, "ratio", ratios, Bound::None));
        }
    }
    for ((who, checksums, crc), (rig, _)) in WAYS.iter().zip(&rigs) {
        #[allow(clippy::cast_precision_loss)] // below 2^53
        let checked = rig.status()?.reads.checked_bytes as f64 / 1e9;
        let asked = *crc && *checksums != "off";
        // Everything that was to be checked was checked, and nothing else.
        let bound = if asked { Bound::AtLeast(1.0) } else { Bound::AtMost(0.0) };
        rows.push(Row::exact("checksums", &format!("{fabric}: checked, {who}"), "GB", vec![checked], bound));
    }
    Ok(())
}

/// Measures how fast this processor computes the CRC of the same `bytes` bytes again and again, in GB/s.
fn bare(samples: u32, bytes: usize) -> Vec<f64> {
    let data = vec![7u8; bytes];
    let rounds = SAMPLE_BYTES / bytes;
    let sample = || {
        let start = Instant::now();
        for _ in 0..rounds {
            black_box(crc32c::crc32c(black_box(&data)));
        }
        per_second(rounds * bytes, start) / 1e9
    };
    (0..samples).map(|_| sample()).collect()
}

/// Measures how long it takes to combine the CRC of a fragment with that of the bytes before it, in
/// nanoseconds.
fn combining(samples: u32) -> Vec<f64> {
    const ROUNDS: u32 = 1_000_000;
    const FRAGMENT_BYTES: u32 = 256 << 10;
    let sample = || {
        let mut crc = 1;
        let start = Instant::now();
        for n in 0..ROUNDS {
            crc = combine_crc32c(black_box(crc), n, black_box(FRAGMENT_BYTES));
        }
        black_box(crc);
        1e9 / per_second(ROUNDS as usize, start)
    };
    (0..samples).map(|_| sample()).collect()
}

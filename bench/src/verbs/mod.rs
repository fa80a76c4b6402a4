//! Jet over verbs beside perftest, on one device, both ends of each on this host, in turns.
//!
//! * 256 KiB: `ib_read_bw` with 32 READs outstanding, and messages through sender, daemon and application.
//! * 4 KiB: `ib_send_bw --use-srq`, and small messages; Jet's carry a header of 128 bytes, so each is two packets at an
//!   MTU of 4096 where perftest's is one; 4224 bytes are measured beside it.
//! * 64 B: `ib_send_lat`, and the way from the sender to the application, which live in one thread beside the daemon's, as
//!   perftest has two.
//! * 200 connected senders of which 32 are active, beside 32.
//! * Two NICs without receiver and application: allocations and system calls a message while polling.
//!
//! It cannot see a wire, an RNIC, or cores of one's own: on soft-RoCE the kernel's own work on the same cores is most of
//! what is measured, and Jet's three processes share them where perftest's two do.

mod bare;
mod perftest;
mod syscalls;

use crate::connections::Crowd;
use crate::consumer::{Behaviour, Consumer};
use crate::e2e::Load;
use crate::report::{Bound, Row, median, pairwise};
use crate::rig::Rig;
use perftest::{Figure, Place};
use std::collections::BTreeMap;
use std::error::Error;
use std::net::IpAddr;
use std::process::{Command, Stdio};

const LARGE: usize = 256 << 10;
/// Enough for seconds on an emulated processor, and for a tenth of one on hardware.
const LARGE_MESSAGES: usize = 512;
const SMALL_MESSAGES: u64 = 8000;
const ROUND_TRIPS: usize = 4000;
const BARE_SENDS: u64 = 4096;
const BARE_READS: u64 = 256;
const CONNECTED: usize = 200;
const CROWD_MESSAGES: usize = 512;

/// Runs the benchmark, or the parts named.
///
/// # Errors
/// What the rig, perftest or the system says.
pub fn run(samples: u32, parts: &[String]) -> Result<Vec<Row>, Box<dyn Error>> {
    let (device, gid_index, address) = jet_fabric::verbs::local_addresses()?
        .into_iter()
        .next()
        .ok_or("no RDMA device has an address; docs/rdma.md says how to try it on soft-RoCE")?;
    let place = Place { device, gid_index, address };
    let fabric = format!("rdma:{}", std::net::SocketAddr::new(address, 0));
    let mut rows = Vec::new();
    let only = |name: &str| parts.is_empty() || parts.iter().any(|part| part == name);
    if only("throughput") {
        throughput(&place, &fabric, samples, &mut rows)?;
    }
    if only("latency") {
        latency(&place, &fabric, samples, &mut rows)?;
    }
    if only("connections") {
        crowd(&fabric, samples, &mut rows)?;
    }
    if only("counts") {
        counted(address, &mut rows)?;
    }
    Ok(rows)
}

fn row(metric: &str, unit: &'static str, samples: Vec<f64>, bound: Bound) -> Row {
    Row::new("verbs", metric, unit, samples, bound)
}

fn exact(metric: &str, unit: &'static str, samples: Vec<f64>, bound: Bound) -> Row {
    Row::exact("verbs", metric, unit, samples, bound)
}

fn throughput(place: &Place, fabric: &str, samples: u32, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    // perftest's receiver does not look at the bytes, so the application does not either.
    let rig = Rig::start(fabric, false, &[])?;
    let mut load = Load::connect(&rig)?;
    load.large(LARGE * 32)?;
    load.small(SMALL_MESSAGES / 8, 4096)?;
    let reads = LARGE_MESSAGES.to_string();
    let sends = SMALL_MESSAGES.to_string();
    let [mut bare_read, mut large, mut bare_send, mut bare_longer, mut small] = [const { Vec::new() }; 5];
    for _ in 0..samples {
        let options = ["-s", "262144", "-o", "32", "-t", "32", "-n", &reads];
        let mebibytes = perftest::run(place, "ib_read_bw", Figure::Bandwidth, &options)?;
        bare_read.push(mebibytes * 1_048_576.0 / 1e9);
        large.push(load.large(LARGE * LARGE_MESSAGES)?);
        for (bytes, into) in [("4096", &mut bare_send), ("4224", &mut bare_longer)] {
            let options = ["-s", bytes, "--use-srq", "-q", "1", "-n", &sends];
            into.push(1e6 * perftest::run(place, "ib_send_bw", Figure::MessageRate, &options)?);
        }
        small.push(load.small(SMALL_MESSAGES, 4096)?);
    }
    let (of_read, of_send, of_longer) =
        (pairwise(&large, &bare_read), pairwise(&small, &bare_send), pairwise(&small, &bare_longer));
    rows.push(row("ib_read_bw, 256 KiB, 32 outstanding", "GB/s", bare_read, Bound::None));
    rows.push(row("256 KiB messages", "GB/s", large, Bound::None));
    rows.push(row("256 KiB messages / ib_read_bw", "ratio", of_read, Bound::AtLeast(0.95)));
    rows.push(row("ib_send_bw --use-srq, 4096 B", "1/s", bare_send, Bound::None));
    rows.push(row("ib_send_bw --use-srq, 4224 B", "1/s", bare_longer, Bound::None));
    rows.push(row("4 KiB messages", "1/s", small, Bound::None));
    rows.push(row("4 KiB messages / ib_send_bw, 4096 B", "ratio", of_send, Bound::AtLeast(0.85)));
    rows.push(row("4 KiB messages / ib_send_bw, 4224 B", "ratio", of_longer, Bound::None));
    Ok(())
}

fn latency(place: &Place, fabric: &str, samples: u32, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    // As many threads look all the time as perftest has: the daemon's, and one that is sender and application.
    let spin = format!("reactor.spin_us_max={}", 100_000);
    let rig = Rig::start_daemon(fabric, &[spin])?;
    let mut app = Consumer::register(&rig.control_socket(), crate::rig::APP, Behaviour::default())?;
    let mut load = Load::connect(&rig)?;
    load.one_way(ROUND_TRIPS / 8, &mut app)?;
    let [mut bare, mut nics, mut jet, mut submission] = [const { Vec::new() }; 4];
    let trips = ROUND_TRIPS.to_string();
    for _ in 0..samples {
        bare.push(perftest::run(place, "ib_send_lat", Figure::Latency, &["-s", "64", "-n", &trips])?);
        nics.push(bare::half_round_trip(place.address, ROUND_TRIPS)?);
        let one_way = load.one_way(ROUND_TRIPS, &mut app)?;
        jet.push(one_way.arrived_ns / 1e3);
        submission.push(one_way.submitted_ns / 1e3);
    }
    let hand_over = hand_over(samples)?;
    let wire = 1.3 * median(&bare);
    let allowed = wire + median(&hand_over);
    rows.push(row("ib_send_lat, 64 B, one way", "us", bare, Bound::None));
    rows.push(row("hand-over, one way", "us", hand_over, Bound::None));
    rows.push(row("64 B and a header between two NICs, one way", "us", nics, Bound::AtMost(wire)));
    rows.push(row("submission of a 64 B message", "us", submission, Bound::None));
    rows.push(row("64 B message, from its submission to the application", "us", jet, Bound::AtMost(allowed)));
    Ok(())
}

/// What a hand-over takes one way, in microseconds. A process of its own measures it, because it pins itself.
fn hand_over(samples: u32) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(["handoff", "--json", "--samples", &samples.to_string()]).output()?;
    let rows = String::from_utf8(output.stdout)?;
    for line in rows.lines() {
        let row: serde_json::Value = serde_json::from_str(line)?;
        if row["metric"] == "session segment, one way" {
            let samples = row["samples"].as_array().ok_or("a row has samples")?;
            return Ok(samples.iter().filter_map(|span_ns| Some(span_ns.as_f64()? / 1e3)).collect());
        }
    }
    Err(format!("jet-bench handoff: {}", String::from_utf8_lossy(&output.stderr)).into())
}

fn crowd(fabric: &str, samples: u32, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    crate::connections::raise_descriptor_limit();
    let mut few = Crowd::gather(fabric, 32)?;
    let mut many = Crowd::gather(fabric, CONNECTED)?;
    few.send(CROWD_MESSAGES / 4)?;
    many.send(CROWD_MESSAGES / 4)?;
    let (mut alone, mut crowded) = (Vec::new(), Vec::new());
    for _ in 0..samples {
        few.answer();
        alone.push(few.send(CROWD_MESSAGES)?);
        many.answer();
        crowded.push(many.send(CROWD_MESSAGES)?);
    }
    let slabs = |crowd: &Crowd| -> Result<f64, Box<dyn Error>> {
        let status = crowd.status()?;
        status["pool"]["srq_limit"].as_f64().ok_or_else(|| "no pool.srq_limit in the status".into())
    };
    let memory = slabs(&many)? / slabs(&few)?;
    let ratios = pairwise(&crowded, &alone);
    rows.push(row("32 connected, 32 active", "GB/s", alone, Bound::None));
    rows.push(row("200 connected, 32 active", "GB/s", crowded, Bound::None));
    rows.push(row("200 connected / 32 connected", "ratio", ratios, Bound::AtLeast(0.9)));
    rows.push(row("SRQ memory, 200 connected / 32 connected", "ratio", vec![memory], Bound::AtMost(1.0)));
    Ok(())
}

/// A process of this binary does it, so that nothing else is counted.
fn counted(address: IpAddr, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["role", "verbs-bare", &address.to_string()]).stdin(Stdio::null());
    let counts = syscalls::count(&mut command)?;
    // Before the first mark, SENDs, READs, after the last.
    let [_, sends, reads, _] = &counts[..] else {
        return Err(format!("{} counts instead of 4", counts.len()).into());
    };
    #[allow(clippy::cast_precision_loss)] // thousands
    let each = |counts: &BTreeMap<u64, u64>, of: u64, doorbells: bool| {
        let is_doorbell = |number: u64| number == libc::SYS_write.cast_unsigned();
        let calls: u64 = counts
            .iter()
            .filter(|(number, _)| is_doorbell(**number) == doorbells)
            .map(|(_, count)| count)
            .sum();
        calls as f64 / of as f64
    };
    let bound = Bound::AtMost(0.99);
    rows.push(row(
        "system calls a SEND, but for doorbells",
        "calls",
        vec![each(sends, BARE_SENDS, false)],
        bound,
    ));
    rows.push(row(
        "doorbells a SEND (write; of soft-RoCE only)",
        "calls",
        vec![each(sends, BARE_SENDS, true)],
        bound,
    ));
    rows.push(row(
        "system calls a READ, but for doorbells",
        "calls",
        vec![each(reads, BARE_READS, false)],
        Bound::None,
    ));
    rows.push(row(
        "doorbells a READ (write; of soft-RoCE only)",
        "calls",
        vec![each(reads, BARE_READS, true)],
        Bound::None,
    ));
    let carried = bare::carry(address, BARE_SENDS, BARE_READS, || {})?;
    #[allow(clippy::cast_precision_loss)] // thousands
    for (what, allocations, of) in
        [("SEND", carried.send_allocations, carried.sends), ("READ", carried.read_allocations, carried.reads)]
    {
        let metric = format!("allocations a {what}");
        rows.push(exact(&metric, "count", vec![allocations as f64 / of as f64], Bound::AtMost(0.0)));
    }
    Ok(())
}

/// The counted process.
///
/// # Errors
/// What the NICs say.
pub fn live(address: IpAddr) -> Result<(), Box<dyn Error>> {
    bare::carry(address, BARE_SENDS, BARE_READS, syscalls::mark).map(drop)
}

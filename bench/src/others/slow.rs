//! Part `slow`: a fast sender's large messages beside one bad sender, which has 40 large messages outstanding
//! when the span begins, and keeps so many.
//!
//! At the end of each turn the bad sender is let go: the limit is lifted, or the stopped sender goes on. All
//! its messages must then be consumed, and every word of them is checked.

use super::bad_sender::{BadSender, Fault, Outstanding};
use super::good_sender::{GoodSender, Measured, Messages};
use super::stage::{BAD, Stage};
use super::{PartRows, Plan, milliseconds};
use crate::report::{Bound, Row, pairwise};
use std::error::Error;
use std::time::Duration;

/// Bytes of a large message, of good and of bad senders.
const LARGE_BYTES: usize = 1 << 20;
/// Messages of the good sender.
const GOOD: Messages = Messages { bytes: LARGE_BYTES, depth: 8, class: 0 };
/// Messages that a bad sender has outstanding.
const OUTSTANDING: usize = 40;
/// Length of a span alone.
const ALONE: Duration = Duration::from_millis(1000);
const ALONE_BRIEF: Duration = Duration::from_millis(60);
/// Length of a span beside, far longer than the longest stall that is allowed.
const BESIDE: Duration = Duration::from_millis(1500);
const BESIDE_BRIEF: Duration = Duration::from_millis(120);
/// Bound: the least share of its throughput alone that the good sender keeps.
const KEPT: f64 = 0.9;
/// Bound: the longest time between two of the good sender's ends, in ms.
const STALL_MS: f64 = 50.0;

/// A case: a bad sender, and the good sender's fabric.
struct Case {
    /// The good sender's fabric.
    good: &'static str,
    /// The bad sender's fabric.
    bad: &'static str,
    fault: Fault,
    depth: usize,
    words: &'static str,
}

impl Case {
    /// Returns all cases, the control last.
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for good in ["tcp", "shm"] {
            let mut add = |bad, depth, words, fault| cases.push(Self { good, bad, fault, depth, words });
            add("tcp", OUTSTANDING, "40 behind 100 KB/s", Fault::Behind(100_000));
            add("tcp", OUTSTANDING, "40 behind 1 MB/s", Fault::Behind(1_000_000));
            add("tcp", OUTSTANDING, "40 behind 10 MB/s", Fault::Behind(10_000_000));
            add("tcp", OUTSTANDING, "40 that come by a byte in 20 ms", Fault::Behind(50));
            add("tcp", OUTSTANDING, "40 of a stopped sender", Fault::Stopped);
            add("shm", OUTSTANDING, "40 of a sender over shm that is stopped", Fault::Stopped);
            add("tcp", 1, "1 behind 10 MB/s (control)", Fault::Behind(10_000_000));
        }
        cases
    }

    fn is_control(&self) -> bool {
        self.depth == 1
    }
}

/// Samples of one case.
#[derive(Default)]
struct Samples {
    alone: Vec<f64>,
    beside: Vec<f64>,
    stall_alone_ms: Vec<f64>,
    stall_ms: Vec<f64>,
    /// Processor time of the bad sender and its proxy, in percent of a core.
    taken_percent: Vec<f64>,
}

/// Returns GB/s.
fn gigabytes_per_s(measured: &Measured) -> f64 {
    #[allow(clippy::cast_precision_loss)] // a mebibyte
    let bytes = LARGE_BYTES as f64;
    measured.per_s() * bytes / 1e9
}

/// Runs the part `slow` of the benchmark `others`.
///
/// # Errors
/// An error of the rig or a sender.
pub fn run(plan: &Plan<'_>, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let mut stage = Stage::start(plan)?;
    let mut senders = [stage.good_sender("tcp", GOOD)?, stage.good_sender("shm", GOOD)?];
    for sender in &mut senders {
        sender.run(plan.run_size.of(ALONE, ALONE_BRIEF) / 4)?;
        sender.drain()?;
    }
    let mut cases: Vec<(Case, Samples)> =
        Case::all().into_iter().map(|case| (case, Samples::default())).collect();
    for _ in plan.turns("slow") {
        for (case, samples) in &mut cases {
            let good = &mut senders[usize::from(case.good == "shm")];
            turn(plan, &mut stage, good, case, samples)?;
        }
    }
    let mut part = PartRows { rows, name: "slow" };
    for good in ["tcp", "shm"] {
        let of_fabric = |of: fn(&Samples) -> &[f64]| -> Vec<f64> {
            let chosen = cases.iter().filter(|(case, _)| case.good == good);
            chosen.flat_map(|(_, samples)| of(samples)).copied().collect()
        };
        part.timed(&format!("{good}: 1 MiB messages alone"), "GB/s", of_fabric(|of| &of.alone), Bound::None);
        let metric = format!("{good}: longest stall alone");
        part.timed(&metric, "ms", of_fabric(|of| &of.stall_alone_ms), Bound::None);
        let metric = format!("{good}: a bad sender and its proxy beside, of a core");
        part.timed(&metric, "%", of_fabric(|of| &of.taken_percent), Bound::None);
        for (case, samples) in cases.iter().filter(|(case, _)| case.good == good) {
            let bound = |bound| if case.is_control() { Bound::None } else { bound };
            let name = format!("{good}: beside {}", case.words);
            let ratios = pairwise(&samples.beside, &samples.alone);
            part.timed(&format!("{name}: beside / alone"), "ratio", ratios, bound(Bound::AtLeast(KEPT)));
            let stalls = samples.stall_ms.clone();
            part.timed(&format!("{name}: longest stall"), "ms", stalls, bound(Bound::AtMost(STALL_MS)));
        }
    }
    for sender in senders {
        stage.dismiss(sender)?;
    }
    let bad_least: usize = cases.iter().map(|(case, samples)| case.depth * samples.beside.len()).sum();
    stage.finish(&mut part, bad_least as u64)
}

/// Measures one pair of spans, and lets the bad sender finish.
fn turn(
    plan: &Plan<'_>,
    stage: &mut Stage,
    good: &mut GoodSender,
    case: &Case,
    samples: &mut Samples,
) -> Result<(), Box<dyn Error>> {
    let outstanding = Outstanding { bytes: LARGE_BYTES, depth: case.depth, class: 0 };
    let mut bad = BadSender::start(&stage.rig, case.bad, BAD, outstanding)?;
    // The sender's window may still be what the last bad sender left of it.
    good.run(plan.run_size.of(ALONE, ALONE_BRIEF) / 4)?;
    let alone = good.run(plan.run_size.of(ALONE, ALONE_BRIEF))?;
    good.drain()?;
    bad.begin(&stage.rig, case.fault)?;
    let before = bad.processor_time()?;
    let beside = good.run(plan.run_size.of(BESIDE, BESIDE_BRIEF))?;
    let taken = bad.processor_time()?.saturating_sub(before);
    bad.relent()?;
    good.drain()?;
    stage.note_bad(&bad.finish()?);
    // The two good senders stay.
    stage.until_senders(2)?;
    samples.alone.push(gigabytes_per_s(&alone));
    samples.beside.push(gigabytes_per_s(&beside));
    samples.stall_alone_ms.push(milliseconds(alone.longest_gap));
    samples.stall_ms.push(milliseconds(beside.longest_gap));
    samples.taken_percent.push(taken.as_secs_f64() / beside.span.as_secs_f64() * 100.0);
    Ok(())
}

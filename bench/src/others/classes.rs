//! Part `classes`: messages of class 0, one at a time, beside a message of 1 GiB of class 3 that comes over a
//! slow link.
//!
//! Alone the sender of the long message is connected, and its proxy is there. At the end of each turn the
//! limit is lifted, and every word of the long message is checked. A brief run has a shorter long message.

use super::bad_sender::{BadSender, Fault, Outstanding};
use super::good_sender::{GoodSender, Messages};
use super::stage::{BAD, Stage};
use super::{PartRows, Plan, milliseconds};
use crate::report::{Bound, Row, median, pairwise};
use std::error::Error;
use std::time::{Duration, Instant};

/// The urgent messages.
const URGENT: Messages = Messages { bytes: 1 << 20, depth: 1, class: 0 };
/// Class of the long message: the least urgent one of four.
const LONG_CLASS: u8 = 3;
const LONG_BYTES: usize = 1 << 30;
const LONG_BYTES_BRIEF: usize = 32 << 20;
/// Urgent messages of which each sample is the median.
const COUNT: usize = 20;
const COUNT_BRIEF: usize = 3;
/// Time after which no further urgent message is sent for a sample. A message that has not ended by then
/// counts with the time until then.
const SPAN_MAX: Duration = Duration::from_secs(3);
const SPAN_MAX_BRIEF: Duration = Duration::from_millis(300);
/// Bound: an urgent message's time beside, over its time alone.
const LONGER: f64 = 2.0;

/// A case: the long message's rate, and the urgent messages' fabric.
struct Case {
    good: &'static str,
    bytes_per_s: u64,
    words: &'static str,
    alone_ms: Vec<f64>,
    beside_ms: Vec<f64>,
}

impl Case {
    fn new(good: &'static str, bytes_per_s: u64, words: &'static str) -> Self {
        Self { good, bytes_per_s, words, alone_ms: Vec::new(), beside_ms: Vec::new() }
    }
}

/// Runs the part `classes` of the benchmark `others`.
///
/// # Errors
/// An error of the rig or a sender.
pub fn run(plan: &Plan<'_>, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let mut stage = Stage::start(plan)?;
    let mut senders = [stage.good_sender("tcp", URGENT)?, stage.good_sender("shm", URGENT)?];
    let mut cases: Vec<Case> = ["tcp", "shm"]
        .into_iter()
        .flat_map(|good| [Case::new(good, 50_000_000, "50 MB/s"), Case::new(good, 10_000_000, "10 MB/s")])
        .collect();
    for sender in &mut senders {
        typical(plan, sender)?;
    }
    let long =
        Outstanding { bytes: plan.run_size.of(LONG_BYTES, LONG_BYTES_BRIEF), depth: 1, class: LONG_CLASS };
    for _ in plan.turns("classes") {
        for case in &mut cases {
            let good = &mut senders[usize::from(case.good == "shm")];
            let mut bad = BadSender::start(&stage.rig, "tcp", BAD, long)?;
            case.alone_ms.push(typical(plan, good)?);
            bad.begin(&stage.rig, Fault::Behind(case.bytes_per_s))?;
            case.beside_ms.push(typical(plan, good)?);
            bad.relent()?;
            good.drain()?;
            stage.note_bad(&bad.finish()?);
            stage.until_senders(2)?;
        }
    }
    let mut part = PartRows { rows, name: "classes" };
    for Case { good, words, alone_ms, beside_ms, .. } in &cases {
        let name = format!("{good}: 1 MiB of class 0 beside 1 GiB of class 3 behind {words}");
        let ratios = pairwise(beside_ms, alone_ms);
        part.timed(&format!("{name}: alone"), "ms", alone_ms.clone(), Bound::None);
        part.timed(&format!("{name}: beside"), "ms", beside_ms.clone(), Bound::None);
        part.timed(&format!("{name}: beside / alone"), "ratio", ratios, Bound::AtMost(LONGER));
    }
    for sender in senders {
        stage.dismiss(sender)?;
    }
    let bad_least: usize = cases.iter().map(|case| case.beside_ms.len()).sum();
    stage.finish(&mut part, bad_least as u64)
}

/// Returns the median time of some urgent messages, one at a time, in ms.
fn typical(plan: &Plan<'_>, good: &mut GoodSender) -> Result<f64, Box<dyn Error>> {
    let (begin, span_max) = (Instant::now(), plan.run_size.of(SPAN_MAX, SPAN_MAX_BRIEF));
    let mut times = Vec::new();
    while times.len() < plan.run_size.of(COUNT, COUNT_BRIEF)
        && let Some(left) = span_max.checked_sub(begin.elapsed())
    {
        times.push(milliseconds(good.one(left)?));
    }
    Ok(median(&times))
}

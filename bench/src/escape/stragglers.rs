//! Part `stragglers`: one slice in 25, and in another case one in ten, is held for longer than the other
//! slices, at full load.
//!
//! There are one application and two senders, with messages of 256 KiB, each delivered as one slice. Case A:
//! each slice is released at once. Case B: one in 25 (4 %, the paper's figure) stays pinned for a while, by
//! default for two and a half times the straggler threshold. Two more cases have no bound. In one, one slice
//! in ten is held. In the other, 4 % are held for so long that they would take up most of the pool. MEM_ESC
//! can replace far less than that.
//!
//! Memory traffic that escape adds is counted, not measured. A copied or spilled slab is written to memory
//! once and read from it once (2 x 4096 bytes). A replaced slab is written back once, when the cache gives
//! its lines to other data (4096 bytes).
//!
//! The application's own use of the stragglers is left out: here nothing reads them.

use super::feed::Depth;
use super::load::{DaemonState, HEALTHY, Load, Measured, mebibytes};
use super::{PartRows, Plan};
use crate::consumer::Behaviour;
use crate::pattern::Words;
use crate::report::{Bound, Row, pairwise};
use std::error::Error;
use std::time::Duration;

const SPAN: Duration = Duration::from_secs(1);
const WARM: Duration = Duration::from_millis(200);
/// Messages that each sender keeps in flight: as many unfinished ones as a daemon allows one sender. A held
/// slice keeps its message from ending, and so takes one of these places.
const DEPTH: Depth = Depth { large: 64, small: 0 };
const SENDERS: usize = 2;
/// Thousandths of the pool that stragglers hold in the case in which they take up most of the pool.
const MOST_PERMILLE: u32 = 850;

/// One comparison of held slices with none held.
struct Case {
    name: &'static str,
    one_in: u32,
    /// Time for which a straggler's slice is held; `None`: for so long that the held slices take up most of
    /// the pool.
    hold: Option<Duration>,
    bounded: bool,
}

/// Samples of one comparison of held slices with none held.
#[derive(Default)]
struct Samples {
    none: Vec<f64>,
    held: Vec<f64>,
    free: Vec<f64>,
    memory_mean: Vec<f64>,
    replaced: Vec<f64>,
    copied: Vec<f64>,
    traffic: Vec<f64>,
    signals: Vec<f64>,
    waited: Vec<f64>,
}

/// Runs the part `stragglers` of the benchmark `escape`.
///
/// # Errors
/// An error of the rig or the load.
pub fn run(plan: &Plan<'_>, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let hold = Some(plan.hold);
    let cases = [
        Case { name: "4 % held", one_in: 25, hold, bounded: true },
        Case { name: "10 % held", one_in: 10, hold, bounded: false },
        Case { name: "4 % held, most of the pool", one_in: 25, hold: None, bounded: false },
    ];
    for case in &cases {
        compare(plan, case, rows)?;
    }
    Ok(())
}

fn compare(plan: &Plan<'_>, case: &Case, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    // A daemon for each case: the most memory in use at once counts from the daemon's start.
    let mut load = Load::start(plan.fabric, plan.settings, 1, SENDERS, DEPTH, Words::FirstOfSlab)?;
    let warm = load.run(WARM, None)?;
    let hold = case.hold.unwrap_or_else(|| most_of_the_pool(&warm, case.one_in));
    let held = Behaviour { hold_one_in: case.one_in, hold, ..HEALTHY };
    let mut samples = Samples::default();
    // Cases without a bound get half the time.
    let turns = if case.bounded { plan.samples } else { plan.samples.div_ceil(2) };
    for turn in 1..=turns {
        plan.progress(&format!("stragglers, {} for {hold:?}: {turn} of {turns}", case.name));
        let none = load.run(SPAN, None)?;
        samples.none.push(none.gigabytes_per_s());
        samples.waited.push(none.waited_percent());
        load.consumers.iter_mut().for_each(|consumer| consumer.behave(held));
        // Runs until as many slices are held as will be.
        load.run(hold + WARM, None)?;
        let before = DaemonState::of(&load.rig)?;
        let measured = load.run(SPAN, None)?;
        samples.add(&measured, &before);
        load.consumers.iter_mut().for_each(|consumer| consumer.behave(HEALTHY));
        load.drain()?;
        load.until_whole(|_| {})?;
    }
    let memory_max = mebibytes(DaemonState::of(&load.rig)?.memory_used_max);
    let damaged = load.damaged();
    samples.rows(case, hold, memory_max, damaged, rows);
    Ok(())
}

/// Returns how long one slice in `one_in` must be held so that the held slices together take up most of the
/// pool, at the rate that `warm` measured.
fn most_of_the_pool(warm: &Measured, one_in: u32) -> Duration {
    let pool_bytes = 12u32 << 20;
    let held_bytes = f64::from(pool_bytes) * f64::from(MOST_PERMILLE) / 1000.0;
    let held_bytes_per_s = warm.gigabytes_per_s() * 1e9 / f64::from(one_in);
    Duration::from_secs_f64(held_bytes / held_bytes_per_s)
}

impl Samples {
    #[allow(clippy::cast_precision_loss)] // counts
    fn add(&mut self, measured: &Measured, before: &DaemonState) {
        let after = &measured.daemon_state;
        let span_s = measured.span.as_secs_f64();
        let copied_bytes = after.copied_bytes - before.copied_bytes;
        let spilled_bytes = (after.spilled - before.spilled) * 4096;
        let replaced = after.replaced - before.replaced;
        let traffic_bytes = 2 * (copied_bytes + spilled_bytes) + replaced * 4096;
        let slab_ms = after.memory_used_slab_ms - before.memory_used_slab_ms;
        self.held.push(measured.gigabytes_per_s());
        self.waited.push(measured.waited_percent());
        self.free.push(after.free as f64);
        self.memory_mean.push(slab_ms as f64 / (span_s * 1e3) * 4096.0 / 1_048_576.0);
        self.replaced.push(replaced as f64 / span_s);
        self.copied.push(copied_bytes as f64 / 4096.0 / span_s);
        self.traffic.push(traffic_bytes as f64 / span_s / 1e6);
        self.signals.push((after.signals - before.signals) as f64 / span_s);
    }

    #[allow(clippy::cast_precision_loss)] // none, it is hoped
    fn rows(self, case: &Case, hold: Duration, memory_max: f64, damaged: u64, rows: &mut Vec<Row>) {
        let bound = |bound: Bound| if case.bounded { bound } else { Bound::None };
        let ratios = pairwise(&self.held, &self.none);
        let mut part = PartRows { rows, name: format!("stragglers, {}", case.name) };
        part.timed("for how long", "ms", vec![super::load::milliseconds(hold)], Bound::None);
        part.timed("none held", "GB/s", self.none, Bound::None);
        part.timed("held", "GB/s", self.held, Bound::None);
        part.timed("held / none", "ratio", ratios, bound(Bound::AtLeast(0.95)));
        part.timed("daemon or load without a core", "%", self.waited, Bound::None);
        part.timed("free slabs at the end of the span", "slabs", self.free, Bound::None);
        part.timed("escape memory, mean", "MiB", self.memory_mean, bound(Bound::AtMost(1.0)));
        part.timed("escape memory, at most", "MiB", vec![memory_max], Bound::None);
        part.timed("slabs replaced", "1/s", self.replaced, Bound::None);
        part.timed("slabs copied", "1/s", self.copied, Bound::None);
        part.timed("memory traffic added", "MB/s", self.traffic, Bound::None);
        part.timed("congestion signals", "1/s", self.signals, Bound::None);
        part.exact("messages lost or damaged", "messages", vec![damaged as f64], Bound::AtMost(0.0));
    }
}

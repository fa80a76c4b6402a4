//! Part `cost`: measures the time that the escape controller itself takes, for an evaluation of Algorithm 1
//! with a thousand sessions and for every message.
//!
//! An evaluation is `begin` and `next` until no action is left, with the calls that carrying out an action
//! makes. Each evaluation is timed alone; its time includes the cost of reading the clock. The rows give the
//! median and the time that one in a hundred exceeds. Evaluations differ: when stragglers may be due, all
//! sessions are looked through, which not every evaluation does. The controller's clock is simulated, with 50
//! us between two evaluations as in the daemon. Meanwhile a run of every session is held and released every
//! 1.5 ms, beside the runs that the case holds.
//!
//! The controller's data stay in the cache; the cost after other programs have emptied the caches is not
//! measured.

use super::{BENCH, Plan};
use crate::report::{Bound, Row};
use hdrhistogram::Histogram;
use jet_escape::{Action, Escape, EscapeConfig, PoolView};
use std::hint::black_box;
use std::time::Instant;

const SESSIONS: u32 = 1000;
const SLOTS: u32 = 1024;
/// Slot, in every session, of the passing run, which is held for 1.5 ms and then released.
const PASSING: u16 = 0;
/// Evaluations after which a passing run is released and held anew: 1.5 ms, so that the run is no straggler.
/// Of a thousand sessions 33 release their passing run between two evaluations. An evaluation that looks for
/// stragglers passes these runs, too, 64 at most.
const PASSING_EVALUATIONS: u32 = 30;
/// Slabs of a passing run. With 33 runs between two evaluations the pool is used as quickly as at 200 Gbps.
const PASSING_SLABS: u32 = 9;
/// First slot of the runs that a session keeps holding.
const STAYING: u16 = 1;
/// Number of runs that the slow session keeps holding.
const STAYING_RUNS: u16 = 16;
const EVALUATION_NS: u64 = 50_000;
const EVALUATIONS: u32 = 4000;
/// Longest time that the histogram can hold, in nanoseconds; longer times count as this one.
const SPAN_NS_MAX: u64 = 1_000_000_000;
const CALLS: u32 = 1_000_000;
const POOL_SLABS: u32 = 3072;
/// Number of runs that become stragglers between two evaluations if 4 % of the runs at 200 Gbps do (Jet
/// §4.3).
const STRAGGLERS: u32 = 12;
/// A pool without an available slab: the pressure is danger.
const POOL_EMPTY: PoolView = PoolView { available_slabs: 0, total_slabs: POOL_SLABS, replaced_slabs: 0 };
/// A pool of which every slab is available.
const POOL_FREE: PoolView = PoolView { available_slabs: POOL_SLABS, ..POOL_EMPTY };
/// A pool without an available slab, where as many slabs are replaced as MEM_ESC allows.
const POOL_EMPTY_REPLACE_FULL: PoolView = PoolView { replaced_slabs: 256, ..POOL_EMPTY };

/// Case that is measured: the runs that sessions keep holding, beside their passing runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    /// No session keeps a run for longer than its passing run.
    NoStraggler,
    /// [`STRAGGLERS`] runs become stragglers before each evaluation, and are replaced in it.
    Replaced,
    /// Each session has a straggler, and there is no memory to replace it with. The straggler is less than
    /// half of what the session holds, so that no session is slow.
    AllStraggle,
    /// One session is slow, and all its runs are being read, so that none can be copied.
    Pinned,
}

/// Runs the part `cost` of the benchmark `escape`.
pub fn run(plan: &Plan<'_>, rows: &mut Vec<Row>) {
    plan.progress("cost");
    let cases = [
        ("no straggler", Case::NoStraggler),
        ("12 stragglers replaced", Case::Replaced),
        ("all straggle, no memory", Case::AllStraggle),
        ("one slow, all of it pinned", Case::Pinned),
    ];
    for (name, case) in cases {
        let (median, p99) = (0..plan.samples).map(|_| evaluations(case)).unzip();
        let name = format!("cost: evaluation, 1000 sessions, {name}");
        rows.push(Row::new(BENCH, &name, "ns", median, Bound::AtMost(2000.0)));
        rows.push(Row::new(BENCH, &format!("{name}, p99"), "ns", p99, Bound::None));
    }
    let (mut floor, mut quiet, mut held) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.samples {
        floor.push(bare_loop());
        quiet.push(no_pressure());
        held.push(hold_and_release());
    }
    rows.push(Row::new(BENCH, "cost: a loop that does nothing", "ns", floor, Bound::None));
    rows.push(Row::new(BENCH, "cost: evaluation without pressure", "ns", quiet, Bound::AtMost(20.0)));
    rows.push(Row::new(BENCH, "cost: hold and release of a run", "ns", held, Bound::None));
}

/// Returns the median time of a case's evaluations and the time that one in a hundred of them exceeds, in
/// nanoseconds.
fn evaluations(case: Case) -> (f64, f64) {
    let config = EscapeConfig::default();
    let mut escape = Escape::new(config, SESSIONS, SLOTS);
    let mut spans = Histogram::<u64>::new_with_max(SPAN_NS_MAX, 3).expect("sound bounds");
    let mut now_ns = 0;
    for session in 0..SESSIONS {
        match case {
            Case::AllStraggle => escape.hold(session, STAYING, 1, now_ns),
            Case::Pinned if session == SESSIONS / 2 => {
                (STAYING..STAYING + STAYING_RUNS).for_each(|slot| escape.hold(session, slot, 1, now_ns));
            }
            _ => {}
        }
        escape.hold(session, PASSING, PASSING_SLABS, now_ns);
    }
    let view = match case {
        Case::NoStraggler | Case::Replaced => POOL_EMPTY,
        Case::AllStraggle | Case::Pinned => POOL_EMPTY_REPLACE_FULL,
    };
    // Until the runs that stay have become stragglers. An evaluation counts a bounded number of them, and all
    // must be counted.
    let before = 100;
    for evaluation in 0..before + EVALUATIONS {
        now_ns += EVALUATION_NS;
        let first = evaluation % PASSING_EVALUATIONS;
        for session in (first..SESSIONS).step_by(PASSING_EVALUATIONS as usize) {
            escape.release(session, PASSING, PASSING_SLABS);
            escape.hold(session, PASSING, PASSING_SLABS, now_ns);
        }
        if case == Case::Replaced {
            // These runs are due when a straggler's time has passed. Then each is replaced, and its slot is
            // free again.
            for n in 0..STRAGGLERS {
                escape.hold((evaluation * STRAGGLERS + n) % SESSIONS, STAYING, 1, now_ns);
            }
        }
        let start = Instant::now();
        let actions = evaluate(&mut escape, now_ns, view);
        let span_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if evaluation < before {
            continue;
        }
        spans.saturating_record(span_ns);
        match case {
            Case::NoStraggler => assert_eq!(actions, Actions::default(), "nothing is to be done"),
            Case::Replaced => assert_eq!(actions.replaced, STRAGGLERS, "each straggler is replaced"),
            Case::AllStraggle => assert_eq!((actions.replaced, actions.copied, actions.marks), (0, 0, 1)),
            Case::Pinned => assert!(actions.copied > 0 && actions.marks == 1, "offered, and no use"),
        }
    }
    #[allow(clippy::cast_precision_loss)] // microseconds
    (spans.value_at_quantile(0.5) as f64, spans.value_at_quantile(0.99) as f64)
}

/// Counts of the actions of one evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Actions {
    replaced: u32,
    copied: u32,
    marks: u32,
}

fn evaluate(escape: &mut Escape, now_ns: u64, mut view: PoolView) -> Actions {
    let mut actions = Actions::default();
    if black_box(&mut *escape).begin(black_box(now_ns), black_box(view)) {
        while let Some(action) = escape.next(now_ns, view) {
            match black_box(action) {
                Action::Replace { session, slot, slabs } => {
                    escape.remove(session, slot);
                    view.replaced_slabs += slabs;
                    actions.replaced += 1;
                }
                // The application reads the run: no call follows, and the run is offered again after the
                // others.
                Action::Copy { .. } => actions.copied += 1,
                Action::Mark => actions.marks += 1,
            }
        }
    }
    actions
}

fn per_call(start: Instant) -> f64 {
    #[allow(clippy::cast_precision_loss)] // milliseconds
    let span_ns = start.elapsed().as_nanos() as f64;
    span_ns / f64::from(CALLS)
}

fn bare_loop() -> f64 {
    let start = Instant::now();
    for now_ns in 0..u64::from(CALLS) {
        black_box(now_ns);
    }
    per_call(start)
}

fn full() -> Escape {
    let mut escape = Escape::new(EscapeConfig::default(), SESSIONS, SLOTS);
    (0..SESSIONS).for_each(|session| escape.hold(session, PASSING, 1, 0));
    escape
}

fn no_pressure() -> f64 {
    let mut escape = full();
    let start = Instant::now();
    for now_ns in 0..u64::from(CALLS) {
        let acts = black_box(&mut escape).begin(black_box(now_ns), black_box(POOL_FREE));
        assert!(!black_box(acts), "there is no pressure");
    }
    per_call(start)
}

/// Returns the nanoseconds that the controller takes to note that a run is held and released. As at full
/// load, a session has a few runs at once, and releases the oldest first.
fn hold_and_release() -> f64 {
    let mut escape = full();
    let first = STAYING;
    let mut newest = first;
    (first..first + 8).for_each(|slot| escape.hold(1, slot, 1, 0));
    let start = Instant::now();
    for now_ns in 0..u64::from(CALLS) {
        black_box(&mut escape).release(1, newest, 1);
        black_box(&mut escape).hold(1, black_box(newest), 1, now_ns);
        newest = if newest == first + 7 { first } else { newest + 1 };
    }
    per_call(start)
}

//! Part `stall`: one of four applications stops reading for five seconds at full load.
//!
//! On one daemon the cases alternate. A: the faulty application is absent. B: the faulty application lives
//! and does not read. A again. B: SIGSTOP has stopped the faulty application. On a second daemon with
//! `escape.enabled = false`, in case C, the faulty application does not read. A span of B or C begins just
//! after the faulty application has stopped, with all its messages in flight. So moving its backlog out of
//! the pool is part of what is measured. Latency runs, at a sender, from the submission of a message to its
//! end.
//!
//! After the span the other applications rest, since at full load some of the pool is always held. The faulty
//! application continues and reads its backlog, of which every word is checked. In the end every message must
//! be consumed, nothing of the pool held, and escape memory empty. Two rows give the time of this recovery.
//! One, to which the bound applies, counts from the faulty application's continuing. The other counts from
//! the end of the faulty application's last message, and so leaves out the reading of 16 MiB.

use super::faulty_application::{FaultyApplication, Recovery, Stop};
use super::feed::{Depth, Latencies};
use super::load::{Load, Measured, mebibytes, milliseconds};
use super::{PartRows, Plan};
use crate::pattern::Words;
use crate::report::{Bound, Row, median, pairwise};
use std::error::Error;
use std::time::Duration;

/// Time for which the faulty application stops. This time is far longer than the straggler threshold (2 ms),
/// so that escape does all that it can. Most of the span then shows the other applications after escape has
/// acted.
const STOPPED: Duration = Duration::from_secs(5);
const STOPPED_BRIEF: Duration = Duration::from_millis(500);
/// Length of the spans of case A (no faulty application) and case C (no escape). A span has so many messages
/// of 256 KiB that dozens of them lie beyond p99.9.
const BASE: Duration = Duration::from_millis(1500);
const BASE_BRIEF: Duration = Duration::from_millis(200);
/// Messages that each sender keeps in flight: just enough for full load. More would wait in the senders'
/// queues and add latency that is not the receiver's.
const LARGE: Depth = Depth { large: 16, small: 0 };
/// Messages that each sender keeps in flight: the large ones of [`LARGE`], and small ones between them.
const MIXED: Depth = Depth { large: 16, small: 32 };

/// Lengths of the spans in a turn: `base` for cases A and C, `stopped` for case B.
struct Spans {
    base: Duration,
    stopped: Duration,
}

/// Samples of one way in which the faulty application stops.
#[derive(Default)]
struct Samples {
    absent: Figures,
    stopped: Figures,
    recoveries: Vec<Recovery>,
    memory: Vec<f64>,
    free: Vec<f64>,
    waited: Vec<f64>,
}

#[derive(Default)]
struct Figures {
    rate: Vec<f64>,
    p999_large_us: Vec<f64>,
    p999_small_us: Vec<f64>,
}

impl Figures {
    fn add(&mut self, measured: &Measured) {
        let Latencies { large, small } = &measured.latencies;
        #[allow(clippy::cast_precision_loss)] // microseconds
        let us = |ns: u64| ns as f64 / 1e3;
        self.rate.push(measured.gigabytes_per_s());
        self.p999_large_us.push(us(large.value_at_quantile(0.999)));
        if !small.is_empty() {
            self.p999_small_us.push(us(small.value_at_quantile(0.999)));
        }
    }
}

/// Runs the part `stall` of the benchmark `escape`.
///
/// # Errors
/// An error of the rig, the load or the system.
pub fn run(plan: &Plan<'_>, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    // A turn of this part takes fifteen seconds, so there are half as many.
    let turns = plan.samples.div_ceil(2);
    let spans =
        Spans { base: plan.run_size.of(BASE, BASE_BRIEF), stopped: plan.run_size.of(STOPPED, STOPPED_BRIEF) };
    let off = [plan.settings, &["escape.enabled=false".to_owned()]].concat();
    for (kind, depth) in [("256 KiB", LARGE), ("mixed", MIXED)] {
        let mut load = Load::start(plan.fabric, plan.settings, 3, 1, depth, Words::FirstOfSlab)?;
        let mut unescaped = Load::start(plan.fabric, &off, 3, 1, depth, Words::FirstOfSlab)?;
        load.run(spans.base / 4, None)?;
        let (mut not_reading, mut signal) = (Samples::default(), Samples::default());
        let mut without = Samples::default();
        // Mixed traffic serves comparison, and SIGSTOP differs only in the slices that the application holds.
        let ways: &mut [(Stop, &mut Samples)] =
            &mut [(Stop::NotReading, &mut not_reading), (Stop::Signal, &mut signal)];
        let ways = if kind == "mixed" { &mut ways[..1] } else { ways };
        for turn in 1..=turns {
            plan.progress(&format!("stall, {kind}: {turn} of {turns}"));
            for (stop, samples) in &mut *ways {
                let measured = load.run(spans.base, None)?;
                samples.absent.add(&measured);
                samples.waited.push(measured.waited_percent());
                stopped(&mut load, *stop, depth, spans.stopped, false, samples)?;
            }
            if kind != "mixed" {
                unescaped.run(spans.base / 4, None)?;
                unescaped.drain()?;
                without.absent.add(&unescaped.run(spans.base, None)?);
                stopped(&mut unescaped, Stop::NotReading, depth, spans.base, true, &mut without)?;
            }
        }
        load.drain()?;
        unescaped.drain()?;
        comparison(&format!("{kind}, one does not read"), &not_reading, true, rows);
        if kind != "mixed" {
            comparison(&format!("{kind}, one is SIGSTOPped"), &signal, true, rows);
            comparison(&format!("{kind}, without escape"), &without, false, rows);
        }
        let damaged = load.damaged() + unescaped.damaged();
        let mut part = PartRows { rows, name: format!("stall, {kind}") };
        #[allow(clippy::cast_precision_loss)] // a million, and none
        let (taken, damaged) = (vec![load.taken() as f64], vec![damaged as f64]);
        part.exact("the others' messages", "messages", taken, Bound::AtLeast(1.0));
        part.exact("the others' messages lost or damaged", "messages", damaged, Bound::AtMost(0.0));
    }
    Ok(())
}

/// Measures one span with the faulty application stopped, and its recovery. `starves`: the other applications
/// get no message meanwhile.
fn stopped(
    load: &mut Load,
    stop: Stop,
    depth: Depth,
    span: Duration,
    starves: bool,
    samples: &mut Samples,
) -> Result<(), Box<dyn Error>> {
    let mut faulty = FaultyApplication::start(&load.rig, depth)?;
    faulty.run_and_stop(load, stop)?;
    let measured = load.run(span, Some(&mut faulty.feed))?;
    samples.stopped.add(&measured);
    samples.waited.push(measured.waited_percent());
    #[allow(clippy::cast_precision_loss)] // some thousands
    samples.free.push(measured.daemon_state.free as f64);
    samples.memory.push(mebibytes(measured.daemon_state.memory_used));
    samples.recoveries.push(faulty.continue_reading(load, stop, starves)?);
    Ok(())
}

fn comparison(what: &str, samples: &Samples, bounded: bool, rows: &mut Vec<Row>) {
    let bound = |bound: Bound| if bounded { bound } else { Bound::None };
    let mut part = PartRows { rows, name: format!("stall, {what}") };
    let Samples { absent, stopped, recoveries, memory, free, waited } = samples;
    // One hiccup of the machine makes a p99.9, so each is compared with the median p99.9 of the spans with
    // the faulty application absent.
    let ratios = |of: &[f64], to: &[f64]| of.iter().map(|value| value / median(to)).collect::<Vec<f64>>();
    part.timed("three, the faulty application absent", "GB/s", absent.rate.clone(), Bound::None);
    part.timed("three, the faulty application stopped", "GB/s", stopped.rate.clone(), Bound::None);
    part.timed(
        "stopped / absent",
        "ratio",
        pairwise(&stopped.rate, &absent.rate),
        bound(Bound::AtLeast(0.9)),
    );
    for (size, of, to) in [
        ("256 KiB", &stopped.p999_large_us, &absent.p999_large_us),
        ("4 KiB", &stopped.p999_small_us, &absent.p999_small_us),
    ] {
        // Where the others starve, few of their messages end, and their latency is unknown.
        if to.is_empty() || !bounded {
            continue;
        }
        part.timed(&format!("p99.9 of {size}, absent"), "us", to.clone(), Bound::None);
        part.timed(&format!("p99.9 of {size}, stopped"), "us", of.clone(), Bound::None);
        part.timed(
            &format!("p99.9 of {size}, stopped / absent"),
            "ratio",
            ratios(of, to),
            bound(Bound::AtMost(2.0)),
        );
    }
    // Everything that the sender has in flight at the stop must arrive.
    #[allow(clippy::cast_precision_loss)] // dozens
    let backlog = super::faulty_application::DEPTH_LARGE as f64;
    part.timed("daemon or load without a core", "%", waited.clone(), Bound::None);
    part.timed("free slabs at the end of the stop", "slabs", free.clone(), Bound::None);
    part.timed("escape memory at the end of the stop", "MiB", memory.clone(), Bound::None);
    #[allow(clippy::cast_precision_loss)] // some thousands
    let count = |of: fn(&Recovery) -> u64| recoveries.iter().map(|one| of(one) as f64).collect::<Vec<f64>>();
    let span = |of: fn(&Recovery) -> Duration| {
        recoveries.iter().map(|one| milliseconds(of(one))).collect::<Vec<f64>>()
    };
    part.exact(
        "the faulty application's messages, every word checked",
        "messages",
        count(|one| one.messages),
        Bound::AtLeast(backlog),
    );
    part.exact(
        "the faulty application's messages lost or damaged",
        "messages",
        count(|one| one.damaged),
        Bound::AtMost(0.0),
    );
    part.timed("going on to its last message's end", "ms", span(|one| one.reading), Bound::None);
    part.timed(
        "going on to whole, no escape memory",
        "ms",
        span(|one| one.whole),
        bound(Bound::AtMost(100.0)),
    );
    part.timed(
        "its last end to whole, no escape memory",
        "ms",
        span(|one| one.whole_after_reading),
        Bound::None,
    );
}

//! Turns of the receivers. In a round each receiver has one turn, in an order that rotates. The first rounds
//! run a closed loop; the others run open loops, with loads that are the same for all receivers.
//!
//! In a closed loop the full depth of messages is always under way, so a tail latency there only repeats the
//! throughput. The loads of the open loop are shares of the slowest receiver's rate in the closed loop just
//! before. All receivers of a round are offered the same arrivals, at the same times.

use super::arrivals::Poisson;
use super::bare::{self, Ring};
use super::conventional::Most;
use super::counted::Counted;
use super::receivers::{Receiver, StartedReceiver};
use super::resident::CacheHitClassifier;
use super::traffic::{Shape, TurnFigures};
use super::{OTHERS_CORE, RECEIVERS_CORE};
use crate::report::median;
use jet_cat::CpuSet;
use std::error::Error;
use std::time::Duration;

/// Lengths of the parts of a run.
#[derive(Clone, Copy, Debug)]
pub struct Spans {
    /// Length of the measured part of a turn.
    pub turn: Duration,
    /// Length of the part of a turn just before the measured one, with the same load. At its start the cache
    /// still has the former receiver's bytes.
    pub settle: Duration,
    /// Length of the load that a receiver gets before its first turn.
    pub warm_up: Duration,
    /// Length of the load that the receiver [`Receiver::Following`] gets before its first turn: its footprint
    /// has to find its size.
    pub warm_up_following: Duration,
    /// Length of a turn of the bare loop.
    pub bare: Duration,
}

impl Spans {
    /// Lengths for a run whose figures are to be quoted.
    pub const FULL: Self = Self {
        turn: Duration::from_millis(1250),
        settle: Duration::from_millis(250),
        warm_up: Duration::from_millis(1000),
        warm_up_following: Duration::from_millis(5000),
        bare: Duration::from_millis(150),
    };
    /// Lengths for a brief run, which only shows that the benchmark works.
    pub const BRIEF: Self = Self {
        turn: Duration::from_millis(300),
        settle: Duration::from_millis(100),
        warm_up: Duration::from_millis(200),
        warm_up_following: Duration::from_millis(200),
        bare: Duration::from_millis(50),
    };
}

/// Conditions that all turns of a message size, with or without the antagonist, have in common.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// Messages that may be under way at once.
    pub shape: Shape,
    /// Rate of the antagonist, GB/s; `None`: there is no antagonist.
    pub antagonist: Option<f64>,
    /// Loads of the open loops, in percent of the slowest receiver's rate in a closed loop.
    pub loads: &'a [u32],
    /// Lengths of the parts of a run.
    pub spans: Spans,
}

/// The load that is offered in an open loop.
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    /// Load in percent of the slowest receiver's rate in the closed loop.
    pub percent: u32,
    /// The load in GB/s.
    pub gigabytes_per_s: f64,
}

/// One turn of one receiver.
pub struct Turn {
    /// Number of the round, from 0.
    pub round: usize,
    /// Number of the turn among those of its round and load, from 0.
    pub place: usize,
    /// The receiver whose turn it was.
    pub receiver: Receiver,
    /// Messages that may be under way at once.
    pub shape: Shape,
    /// Rate of the antagonist, GB/s; `None`: there was no antagonist.
    pub antagonist: Option<f64>,
    /// The load that was offered; `None`: a closed loop.
    pub offered: Option<Offered>,
    /// Figures that the senders measured.
    pub figures: TurnFigures,
    /// Length of an open loop's turn divided by the time until everything offered was consumed, at most 1.
    /// `None`: a closed loop.
    pub delivered: Option<f64>,
    /// Share, of the pages that the application read, that was in the cache after the turn; `None`: not known
    /// on this machine.
    pub resident: Option<f64>,
    /// MiB that the application read during the turn, each page counted once.
    pub touched_mib: f64,
    /// Misses of the last-level cache for each KiB that was consumed; `None`: not known on this machine.
    pub misses: Option<f64>,
    /// Most READs and most bytes of buffers in use at once, as a conventional receiver counts them; `None`:
    /// the receiver is Jet.
    pub most: Option<Most>,
    /// Processor time that all other receivers' processes spent during the turn, in microseconds.
    pub others_us: f64,
}

/// One turn of the bare loop.
pub struct Bare {
    /// Number of the round, from 0.
    pub round: usize,
    /// Shape of the receivers' load, whose message size and bytes the bare loop takes.
    pub shape: Shape,
    /// Rate of the antagonist, GB/s; `None`: there was no antagonist.
    pub antagonist: Option<f64>,
    /// Size of the ring that the loop goes through.
    pub ring: bare::Size,
    /// Rate of the bare loop, GB/s.
    pub gigabytes_per_s: f64,
}

/// All turns that the benchmark measured.
#[derive(Default)]
pub struct Measured {
    /// Turns of the receivers, in the order in which they were measured.
    pub turns: Vec<Turn>,
    /// Turns of the bare loop.
    pub bare: Vec<Bare>,
}

/// Gives every receiver a load for a while, so that its pool is in the cache and a footprint that follows the
/// load has found its size.
///
/// # Errors
/// An error of a receiver or a sender.
pub fn warm_up(receivers: &mut [StartedReceiver], spans: Spans) -> Result<(), Box<dyn Error>> {
    let _here = CpuSet::from_iter([OTHERS_CORE]).pin_thread()?;
    for one in receivers {
        let follows = one.receiver == Receiver::Following;
        one.continue_receivers()?;
        one.traffic.run(if follows { spans.warm_up_following } else { spans.warm_up })?;
        one.stop()?;
    }
    Ok(())
}

/// Runs all rounds of one message size, with or without the antagonist: first those of the closed loop, with
/// the bare loop's turns, then those of each load.
///
/// # Errors
/// An error of a receiver or a sender.
pub fn rounds(
    rounds: usize,
    setting: &Setting<'_>,
    classifier: Option<&CacheHitClassifier>,
    receivers: &mut [StartedReceiver],
    measured: &mut Measured,
) -> Result<(), Box<dyn Error>> {
    let from = measured.turns.len();
    for round in 0..rounds {
        for (place, receiver) in Receiver::order(round).into_iter().enumerate() {
            measured.turns.push(turn((round, place), receiver, None, setting, classifier, receivers)?);
        }
        bare_turn(round, setting, measured)?;
    }
    let slowest = slowest(&measured.turns[from..]);
    for round in 0..rounds {
        for (next, &percent) in setting.loads.iter().enumerate() {
            let offered = Offered { percent, gigabytes_per_s: slowest * f64::from(percent) / 100.0 };
            // Each load has another order than the load before it.
            for (place, receiver) in Receiver::order(round + next).into_iter().enumerate() {
                let turn = turn((round, place), receiver, Some(offered), setting, classifier, receivers)?;
                measured.turns.push(turn);
            }
        }
    }
    Ok(())
}

/// Returns the slowest receiver's rate in a closed loop, in GB/s. A receiver's rate is the median of its
/// turns.
pub fn slowest(closed: &[Turn]) -> f64 {
    let rate = |receiver: Receiver| {
        let turns = closed.iter().filter(|turn| turn.receiver == receiver);
        median(&turns.map(|turn| turn.figures.gigabytes_per_s).collect::<Vec<_>>())
    };
    Receiver::ALL.into_iter().map(rate).fold(f64::INFINITY, f64::min)
}

fn turn(
    (round, place): (usize, usize),
    receiver: Receiver,
    offered: Option<Offered>,
    setting: &Setting<'_>,
    classifier: Option<&CacheHitClassifier>,
    receivers: &mut [StartedReceiver],
) -> Result<Turn, Box<dyn Error>> {
    let &Setting { shape, antagonist, spans, .. } = setting;
    let others_before = others_time(receiver, receivers)?;
    let one =
        receivers.iter_mut().find(|one| one.receiver == receiver).ok_or("a receiver that was not started")?;
    one.continue_receivers()?;
    let (figures, misses, most) = {
        let _here = CpuSet::from_iter([OTHERS_CORE]).pin_thread()?;
        load(one, offered, shape, round, 0, spans.settle)?;
        one.most()?;
        one.touched.clear();
        let counted = Counted::start(one.driving_pid());
        let figures = load(one, offered, shape, round, 1, spans.turn)?;
        let misses = counted.ok().map(|mut counted| counted.misses()).transpose()?;
        (figures, misses, one.most()?)
    };
    one.stop()?;
    let pages = one.watched.read_pages(&one.touched);
    let touched = one.touched.bytes();
    let resident = match classifier {
        Some(classifier) => {
            let _there = CpuSet::from_iter([RECEIVERS_CORE]).pin_thread()?;
            classifier.resident(&one.watched, &pages)?
        }
        None => None,
    };
    let others = others_time(receiver, receivers)?.saturating_sub(others_before);
    let misses = misses.map(|misses| misses_per_kib(misses, &figures, shape));
    #[allow(clippy::cast_precision_loss)] // below 2^30
    let touched_mib = touched as f64 / 1_048_576.0;
    let others_us = others.as_secs_f64() * 1e6;
    // The last arrival is a little before the turn's end.
    let delivered = offered.map(|_| (spans.turn.as_secs_f64() / figures.elapsed.as_secs_f64()).min(1.0));
    Ok(Turn {
        round,
        place,
        receiver,
        shape,
        antagonist,
        offered,
        figures,
        delivered,
        resident,
        touched_mib,
        misses,
        most,
        others_us,
    })
}

fn others_time(receiver: Receiver, receivers: &[StartedReceiver]) -> std::io::Result<Duration> {
    receivers.iter().filter(|one| one.receiver != receiver).map(StartedReceiver::processor_time).sum()
}

/// Returns the cache misses for each KiB that was consumed in a turn. The turn ends with the last message's
/// end, a little after the last message was submitted.
#[allow(clippy::cast_precision_loss)] // a rate
fn misses_per_kib(misses: u64, figures: &TurnFigures, shape: Shape) -> f64 {
    let consumed_bytes = figures.messages * shape.message_bytes as u64;
    misses as f64 / (consumed_bytes as f64 / 1024.0)
}

/// Runs a turn's load for `span`: a closed loop, or an open loop with the load that is offered.
fn load(
    one: &mut StartedReceiver,
    offered: Option<Offered>,
    shape: Shape,
    round: usize,
    part: u64,
    span: Duration,
) -> Result<TurnFigures, Box<dyn Error>> {
    let Some(Offered { percent, gigabytes_per_s }) = offered else { return one.traffic.run(span) };
    // The seed is the same for all receivers of this round and load.
    let seed = (round as u64) << 16 | u64::from(percent) << 1 | part;
    #[allow(clippy::cast_precision_loss)] // a rate
    let messages_per_s = gigabytes_per_s * 1e9 / shape.message_bytes as f64;
    one.traffic.offer(Poisson::new(seed, messages_per_s, span, shape.connections))
}

fn bare_turn(round: usize, setting: &Setting<'_>, measured: &mut Measured) -> Result<(), Box<dyn Error>> {
    let &Setting { shape, antagonist, spans, .. } = setting;
    let _there = CpuSet::from_iter([RECEIVERS_CORE]).pin_thread()?;
    for ring in bare::Size::ALL {
        let mut loops = Ring::new(ring.bytes(shape), shape.message_bytes)?;
        loops.run(spans.bare);
        let gigabytes_per_s = loops.run(spans.bare);
        measured.bare.push(Bare { round, shape, antagonist, ring, gigabytes_per_s });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_divided_by_what_was_consumed_however_long_the_last_messages_took() {
        let shape = Shape { connections: 2, depth: 4, message_bytes: 4096 };
        let messages = 1000;
        for elapsed in [Duration::from_secs(1), Duration::from_secs(3)] {
            let figures = TurnFigures {
                messages,
                elapsed,
                gigabytes_per_s: 4.096e-3 / elapsed.as_secs_f64(),
                p50_us: 1.0,
                p99_us: 2.0,
                p999_us: 3.0,
                late_p999_us: 0.0,
            };
            let misses = misses_per_kib(8000, &figures, shape);
            assert!((misses - 2.0).abs() < 1e-9, "{misses} misses for each KiB, {elapsed:?}");
        }
    }
}

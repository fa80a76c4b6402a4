//! Makes the benchmark's rows from the turns that were measured.

use super::BOUND_BYTES;
use super::bare::Size;
use super::receivers::Receiver;
use super::traffic::Shape;
use super::turns::{Measured, Turn};
use crate::report::{Bound, Row, pairwise};
use crate::rig::reads_max;

/// Ratios of throughput: numerator, denominator, what the ratio shows, and its bound at 256 KiB beside the
/// antagonist.
const THROUGHPUTS: [(Receiver, Receiver, &str, Bound); 5] = [
    (Receiver::Jet, Receiver::Own, "", Bound::AtLeast(1.9)),
    (Receiver::Jet, Receiver::Shared, "", Bound::None),
    (Receiver::Jet, Receiver::Capped, ", what the cache gives", Bound::None),
    (Receiver::Capped, Receiver::Own, ", what the cap gives", Bound::None),
    (Receiver::Following, Receiver::Jet, "", Bound::AtLeast(1.1)),
];
/// Ratios of p99.9 at a load that is the same for both: numerator and denominator.
const TAILS: [(Receiver, Receiver); 4] = [
    (Receiver::Jet, Receiver::Own),
    (Receiver::Jet, Receiver::Shared),
    (Receiver::Jet, Receiver::Capped),
    (Receiver::Following, Receiver::Jet),
];
/// The load in percent at which the first ratio of [`TAILS`] has a bound, and the bound.
const TAIL_BOUND: (u32, f64) = (90, 0.5);

/// Returns the words with which the metrics of all rows of a message size, with or without the antagonist,
/// begin.
pub fn words(shape: Shape, antagonist: Option<f64>) -> String {
    let size = format!("{} KiB, {} x {}", shape.message_bytes >> 10, shape.connections, shape.depth);
    match antagonist {
        None => size,
        Some(0.0) => format!("{size}, memory hammered"),
        Some(rate) => format!("{size}, {rate} GB/s hammered"),
    }
}

/// Returns the rows of a message size, with or without the antagonist.
pub fn of_setting(shape: Shape, antagonist: Option<f64>, loads: &[u32], measured: &Measured) -> Vec<Row> {
    let is_bounded = antagonist.is_some() && shape.message_bytes == BOUND_BYTES;
    let these =
        |turn: &&Turn| turn.shape.message_bytes == shape.message_bytes && turn.antagonist == antagonist;
    let turns: Vec<&Turn> = measured.turns.iter().filter(these).collect();
    let mut rows = Rows { words: words(shape, antagonist), is_bounded, turns, rows: Vec::new() };
    rows.bare(shape, antagonist, measured);
    for receiver in Receiver::ALL {
        rows.of_receiver(receiver, None);
    }
    rows.throughputs();
    for &percent in loads {
        for receiver in Receiver::ALL {
            rows.of_receiver(receiver, Some(percent));
        }
        rows.tails(percent);
    }
    rows.exact(shape);
    rows.rows
}

struct Rows<'a> {
    words: String,
    /// Whether the benchmark's bounds apply to these rows: at 256 KiB beside the antagonist.
    is_bounded: bool,
    turns: Vec<&'a Turn>,
    rows: Vec<Row>,
}

impl Rows<'_> {
    fn push(&mut self, metric: &str, unit: &'static str, values: Vec<f64>, bound: Bound) {
        let bound = if self.is_bounded { bound } else { Bound::None };
        let metric = format!("{}{metric}", self.words);
        self.rows.push(Row::new("residency", &metric, unit, values, bound));
    }

    /// Returns the figure that `pick` takes from each of a receiver's turns at this load, in the order of
    /// rounds.
    fn of(&self, receiver: Receiver, load: Option<u32>, pick: &dyn Fn(&Turn) -> f64) -> Vec<f64> {
        let ours =
            |turn: &&&Turn| turn.receiver == receiver && turn.offered.map(|offered| offered.percent) == load;
        self.turns.iter().filter(ours).map(|turn| pick(turn)).collect()
    }

    fn bare(&mut self, shape: Shape, antagonist: Option<f64>, measured: &Measured) {
        let of = |size: Size| -> Vec<f64> {
            let these = measured.bare.iter().filter(|bare| {
                let same_shape = bare.shape.message_bytes == shape.message_bytes;
                bare.ring == size && same_shape && bare.antagonist == antagonist
            });
            these.map(|bare| bare.gigabytes_per_s).collect()
        };
        for size in Size::ALL {
            self.push(&format!(": bare loop, {}", size.name()), "GB/s", of(size), Bound::None);
        }
        let ratio = pairwise(&of(Size::Pool), &of(Size::Connections));
        self.push(": bare loop, 12 MiB / all connections' buffers", "ratio", ratio, Bound::None);
    }

    fn of_receiver(&mut self, receiver: Receiver, load: Option<u32>) {
        let name = match load {
            None => format!(": {}", receiver.name()),
            Some(percent) => format!(", offered {percent} %: {}", receiver.name()),
        };
        let mut figure = |what: &str, unit, pick: &dyn Fn(&Turn) -> f64, bound| {
            let values = self.of(receiver, load, pick);
            // A figure that is not known on this machine has no row.
            if !values.iter().any(|value| value.is_nan()) {
                self.push(&format!("{name}, {what}"), unit, values, bound);
            }
        };
        match load {
            None => figure("throughput", "GB/s", &|turn| turn.figures.gigabytes_per_s, Bound::None),
            Some(_) => {
                figure(
                    "delivered / offered",
                    "ratio",
                    &|turn| turn.delivered.unwrap_or(f64::NAN),
                    Bound::None,
                );
                figure("senders late by, p99.9", "us", &|turn| turn.figures.late_p999_us, Bound::None);
            }
        }
        figure("p50", "us", &|turn| turn.figures.p50_us, Bound::None);
        figure("p99", "us", &|turn| turn.figures.p99_us, Bound::None);
        figure("p99.9", "us", &|turn| turn.figures.p999_us, Bound::None);
        let is_pool = receiver == Receiver::Jet && load.is_none();
        let pool_bound = if is_pool { Bound::AtMost(12.0) } else { Bound::None };
        figure("memory touched in a turn", "MiB", &|turn| turn.touched_mib, pool_bound);
        figure("resident", "share", &|turn| turn.resident.unwrap_or(f64::NAN), Bound::None);
        figure("last-level misses a KiB", "count", &|turn| turn.misses.unwrap_or(f64::NAN), Bound::None);
    }

    fn throughputs(&mut self) {
        for (above, below, what, bound) in THROUGHPUTS {
            let rate: &dyn Fn(&Turn) -> f64 = &|turn| turn.figures.gigabytes_per_s;
            let ratios = pairwise(&self.of(above, None, rate), &self.of(below, None, rate));
            let metric = format!(": {} / {}, throughput{what}", above.letter(), below.letter());
            self.push(&metric, "ratio", ratios, bound);
        }
    }

    fn tails(&mut self, percent: u32) {
        for (above, below) in TAILS {
            let tail: &dyn Fn(&Turn) -> f64 = &|turn| turn.figures.p999_us;
            let ratios = pairwise(&self.of(above, Some(percent), tail), &self.of(below, Some(percent), tail));
            let has_bound = (above, below) == TAILS[0] && percent == TAIL_BOUND.0;
            let bound = if has_bound { Bound::AtMost(TAIL_BOUND.1) } else { Bound::None };
            let metric = format!(", offered {percent} %: {} / {}, p99.9", above.letter(), below.letter());
            self.push(&metric, "ratio", ratios, bound);
        }
    }

    /// Adds rows that hold on any machine, however busy it is.
    fn exact(&mut self, shape: Shape) {
        let of = |receiver: Receiver, pick: &dyn Fn(&Turn) -> f64| -> Vec<f64> {
            self.turns.iter().filter(|turn| turn.receiver == receiver).map(|turn| pick(turn)).collect()
        };
        let reads = |turn: &Turn| turn.most.map_or(f64::NAN, |most| f64::from(most.reads));
        let mut rows = Vec::new();
        // Small messages need no READs.
        if !shape.is_small() {
            let name = Receiver::Capped.name();
            let metric = format!("{}: {name}, most READs at once", self.words);
            let bound = Bound::AtMost(f64::from(reads_max()));
            rows.push(Row::exact("residency", &metric, "READs", of(Receiver::Capped, &reads), bound));
            let own = of(Receiver::Own, &reads).into_iter().fold(0.0, f64::max);
            let metric = format!("{}: {}, most READs at once", self.words, Receiver::Own.name());
            rows.push(Row::new("residency", &metric, "READs", vec![own], Bound::None));
        }
        // A stack goes through as much as is ever taken at once, a queue through all buffers.
        let gone_through = of(Receiver::Shared, &|turn| {
            let Some(most) = turn.most else { return f64::NAN };
            #[allow(clippy::cast_precision_loss)] // below 2^30
            let most_mib = most.buffer_bytes as f64 / 1_048_576.0;
            turn.touched_mib / most_mib
        });
        let metric =
            format!("{}: {}, memory touched / most in use at once", self.words, Receiver::Shared.name());
        rows.push(Row::exact("residency", &metric, "ratio", gone_through, Bound::AtMost(1.0)));
        let others: Vec<f64> = self.turns.iter().map(|turn| turn.others_us).collect();
        let metric = format!("{}: processor time of receivers out of their turn", self.words);
        rows.push(Row::exact("residency", &metric, "us", others, Bound::AtMost(0.0)));
        self.rows.extend(rows);
    }
}

#[cfg(test)]
mod tests;

//! The arrival times of messages in an open loop: a Poisson process, as many independent senders produce
//! together.
//!
//! The times do not depend on the receiver. If the receiver is late with one message, the next ones arrive
//! all the same. Each message is timed from its intended arrival.

use crate::pattern::scatter;
use crate::schedule::{Arrivals, Schedule};
use std::time::Duration;

/// The intended arrival of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Time of the intended arrival, in nanoseconds from the turn's start.
    pub at_ns: u64,
    /// Index of the connection on which the message arrives.
    pub connection: usize,
}

/// Iterator over the arrivals of a turn, one after the other. The same seed gives the same arrivals.
#[derive(Clone, Debug)]
pub struct Poisson {
    schedule: Schedule,
    span: Duration,
    connections: usize,
    /// Seed for the choice of connections. With the same seed as the times, the choice would depend on the
    /// times.
    seed: u64,
    number: u64,
}

impl Poisson {
    /// Makes the arrivals of `span` at `messages_per_s`. Each message arrives on one of `connections`
    /// connections, all equally likely.
    ///
    /// # Panics
    /// If the rate is not positive, or there is no connection.
    pub fn new(seed: u64, messages_per_s: f64, span: Duration, connections: usize) -> Self {
        assert!(messages_per_s > 0.0 && connections > 0, "{messages_per_s} a second on {connections}");
        let schedule = Schedule::new(messages_per_s, Arrivals::Poisson, seed);
        Self { schedule, span, connections, seed: scatter(!seed), number: 0 }
    }
}

impl Iterator for Poisson {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let due = self.schedule.due();
        if due >= self.span {
            return None;
        }
        self.schedule.advance();
        let drawn = scatter(self.seed ^ scatter(self.number));
        self.number += 1;
        let at_ns = u64::try_from(due.as_nanos()).expect("within the turn");
        // The upper half of the product is below the number of connections. Each connection is equally
        // likely, up to 2^-64 times their number.
        #[allow(clippy::cast_possible_truncation)] // below `connections`
        let connection = ((u128::from(drawn) * self.connections as u128) >> 64) as usize;
        Some(Arrival { at_ns, connection })
    }
}

#[cfg(test)]
#[allow(clippy::cast_precision_loss)] // counts and nanoseconds of a short span
mod tests {
    use super::*;

    const RATE: f64 = 20_000.0;
    const SPAN: Duration = Duration::from_secs(10);

    fn arrivals(seed: u64) -> Vec<Arrival> {
        Poisson::new(seed, RATE, SPAN, 32).collect()
    }

    #[test]
    fn gaps_have_the_mean_and_the_variance_of_a_poisson_process() {
        for seed in 1..=5 {
            let times: Vec<f64> = arrivals(seed).iter().map(|arrival| arrival.at_ns as f64).collect();
            let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let count = gaps.len() as f64;
            let mean = gaps.iter().sum::<f64>() / count;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count;
            // At least 6 standard errors, with 200,000 gaps.
            assert!((mean / (1e9 / RATE) - 1.0).abs() < 0.015, "seed {seed}: mean {mean}");
            assert!((variance / mean.powi(2) - 1.0).abs() < 0.04, "seed {seed}: variance {variance}");
            let longer = gaps.iter().filter(|gap| **gap > 3.0 * mean).count() as f64 / count;
            assert!((longer / (-3f64).exp() - 1.0).abs() < 0.1, "seed {seed}: {longer} beyond three means");
        }
    }

    #[test]
    fn windows_hold_counts_whose_variance_is_their_mean() {
        let mut counts = vec![0f64; 1000];
        for arrival in arrivals(7) {
            counts[usize::try_from(arrival.at_ns / 10_000_000).unwrap()] += 1.0;
        }
        let mean = counts.iter().sum::<f64>() / 1000.0;
        let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / 1000.0;
        assert!((mean - 200.0).abs() < 3.0, "{mean}");
        assert!((variance / mean - 1.0).abs() < 0.25, "{variance} beside {mean}");
    }

    #[test]
    fn connections_are_equally_likely_and_a_seed_says_all() {
        let first = arrivals(3);
        assert_eq!(first, arrivals(3));
        assert_ne!(first, arrivals(4));
        assert!(first.is_sorted_by_key(|arrival| arrival.at_ns));
        let mut of_each = [0f64; 32];
        first.iter().for_each(|arrival| of_each[arrival.connection] += 1.0);
        let mean = first.len() as f64 / 32.0;
        assert!(of_each.iter().all(|count| (count / mean - 1.0).abs() < 0.08), "{of_each:?}");
    }
}

//! When messages arrive in an open loop: a Poisson process, as of many senders that do not know of each other.
//!
//! It knows nothing of how the receiver fares: who is late with one message has the next ones coming all the same, and each is timed
//! from when it was to arrive.

use std::time::Duration;

/// One arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When, nanoseconds from the turn's start.
    pub at_ns: u64,
    /// On which connection.
    pub connection: usize,
}

/// All arrivals of a turn, one after the other: the same for the same seed.
#[derive(Clone, Debug)]
pub struct Poisson {
    random: Random,
    /// Nanoseconds from one arrival to the next, on average.
    gap_ns: f64,
    now_ns: f64,
    span_ns: f64,
    connections: usize,
}

impl Poisson {
    /// So many a second, for so long, on connections that are equally likely.
    ///
    /// # Panics
    /// Where the rate is not positive, or there is no connection.
    pub fn new(seed: u64, messages_per_s: f64, span: Duration, connections: usize) -> Self {
        assert!(messages_per_s > 0.0 && connections > 0, "{messages_per_s} a second on {connections}");
        Self {
            random: Random(seed),
            gap_ns: 1e9 / messages_per_s,
            now_ns: 0.0,
            span_ns: span.as_secs_f64() * 1e9,
            connections,
        }
    }
}

impl Iterator for Poisson {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        // The times between arrivals of a Poisson process are exponentially distributed.
        self.now_ns -= self.gap_ns * (1.0 - self.random.unit()).ln();
        if self.now_ns >= self.span_ns {
            return None;
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // within the turn
        let at_ns = self.now_ns as u64;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        // fewer than there are connections
        let connection = (self.random.unit() * self.connections as f64) as usize;
        Some(Arrival { at_ns, connection })
    }
}

/// `SplitMix64` (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 on, below 1.
    fn unit(&mut self) -> f64 {
        #[allow(clippy::cast_precision_loss)] // 53 bits are exact
        let bits = (self.next() >> 11) as f64;
        bits / (1u64 << 53) as f64
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
            // Of 200,000 gaps: 6 standard errors and more.
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

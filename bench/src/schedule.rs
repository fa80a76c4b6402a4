//! The times at which the messages of an open loop are due: at a rate, whether or not earlier messages have
//! ended.

use crate::pattern::scatter;
use std::time::Duration;

/// Distribution over time of an open loop's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrivals {
    /// Times at random, independent of each other, as from many users
    Poisson,
    /// Times at even distances
    Constant,
}

/// The due times of an open loop's messages, counted from the loop's beginning.
#[derive(Clone, Debug)]
pub struct Schedule {
    per_s: f64,
    arrivals: Arrivals,
    seed: u64,
    /// The next message's number.
    number: u64,
    /// The next message's due time, in seconds from the beginning.
    at_s: f64,
}

impl Schedule {
    /// Makes a schedule of `per_s` messages a second. The same seed gives the same due times.
    pub fn new(per_s: f64, arrivals: Arrivals, seed: u64) -> Self {
        let mut schedule = Self { per_s, arrivals, seed, number: 0, at_s: 0.0 };
        schedule.at_s = schedule.gap_s();
        schedule
    }

    /// Returns when the next message is due.
    pub fn due(&self) -> Duration {
        Duration::from_secs_f64(self.at_s)
    }

    /// Takes the next message off the schedule: the message after it becomes the next one.
    pub fn advance(&mut self) {
        self.number += 1;
        self.at_s += self.gap_s();
    }

    /// Returns how many messages are due before `end`, from the next one on. For [`Arrivals::Poisson`] the
    /// result is the expected number.
    pub fn left_before(&self, end: Duration) -> u64 {
        let span_s = end.as_secs_f64() - self.at_s;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a count; below zero is none
        let left = (span_s * self.per_s).ceil() as u64;
        left
    }

    fn gap_s(&self) -> f64 {
        match self.arrivals {
            Arrivals::Constant => 1.0 / self.per_s,
            Arrivals::Poisson => {
                // 53 bits of the number, above 0 and at most 1, so that the logarithm is finite.
                #[allow(clippy::cast_precision_loss)] // 53 bits
                let uniform =
                    ((scatter(self.seed ^ scatter(self.number)) >> 11) + 1) as f64 / (1u64 << 53) as f64;
                -uniform.ln() / self.per_s
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_arrivals_are_even() {
        let mut schedule = Schedule::new(4.0, Arrivals::Constant, 1);
        for quarter in 1..5 {
            assert_eq!(schedule.due(), Duration::from_millis(250 * quarter));
            schedule.advance();
        }
        // The times 1.25, 1.5 and 1.75: a message that is due at the end itself is not before it.
        assert_eq!(schedule.left_before(Duration::from_secs(2)), 3);
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread_and_are_the_same_again() {
        let gaps = |seed| {
            let mut schedule = Schedule::new(1000.0, Arrivals::Poisson, seed);
            let mut before = 0.0;
            (0..100_000)
                .map(|_| {
                    let at = schedule.due().as_secs_f64();
                    schedule.advance();
                    at - std::mem::replace(&mut before, at)
                })
                .collect::<Vec<f64>>()
        };
        let drawn = gaps(7);
        let mean = drawn.iter().sum::<f64>() / 1e5;
        let variance = drawn.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / 1e5;
        assert!((mean - 1e-3).abs() < 2e-5, "mean {mean}");
        // An exponential distribution's deviation is its mean.
        assert!((variance.sqrt() - 1e-3).abs() < 3e-5, "deviation {}", variance.sqrt());
        assert_eq!(drawn, gaps(7));
        assert_ne!(drawn, gaps(8));
    }
}

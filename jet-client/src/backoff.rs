//! Waits between attempts: the same ones for a sender that connects again, for a message that is sent again,
//! and for a session that registers again.

use std::time::Duration;

/// Waits between attempts: they double from `first` to `max`, and each is shortened by a random part, at most
/// a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backoff {
    /// Wait before the second attempt, at least a tenth of a millisecond. The first attempt is made at once.
    pub first: Duration,
    /// Longest wait between attempts.
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Backoff {
    pub(crate) const DEFAULT: Self = Self::new(Duration::from_millis(2), Duration::from_secs(1));

    /// Returns waits that double from `first` to `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max }
    }

    /// Returns the wait before attempt `attempt` (0 is the first). `seed` spreads the waits, so that senders
    /// that failed together do not come back together. The same seed gives the same waits.
    pub fn wait(&self, attempt: u32, seed: u64) -> Duration {
        Duration::from_nanos(Waits::from(*self).wait_ns(attempt, seed))
    }
}

/// Shortest wait between attempts before its random part, in nanoseconds.
const LEAST_NS: u64 = 100_000;

/// A [`Backoff`] in nanoseconds, as the protocol computes with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    first_ns: u64,
    pub max_ns: u64,
}

impl From<Backoff> for Waits {
    fn from(backoff: Backoff) -> Self {
        // Attempts without a pause would take a processor, and the other end's, for as long as they last.
        let of = |span| nanoseconds(span).max(LEAST_NS);
        Self { first_ns: of(backoff.first), max_ns: of(backoff.max) }
    }
}

impl Waits {
    /// Returns the wait before attempt `attempt`, see [`Backoff::wait`].
    pub(crate) fn wait_ns(self, attempt: u32, seed: u64) -> u64 {
        if attempt == 0 {
            return 0;
        }
        let full =
            self.first_ns.saturating_mul(1u64.checked_shl(attempt - 1).unwrap_or(u64::MAX)).min(self.max_ns);
        let half = full / 2;
        fastrand::Rng::with_seed(seed ^ u64::from(attempt)).u64(half..=full)
    }
}

/// Converts a span to nanoseconds. A span that is too long for the number becomes the greatest one.
pub(crate) fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_attempt_is_made_at_once_and_waits_double_up_to_the_limit() {
        let us = Duration::from_micros;
        let backoff = Backoff::new(us(1000), us(16_000));
        assert_eq!(backoff.wait(0, 7), Duration::ZERO);
        for (attempt, full) in [(1, 1000), (2, 2000), (3, 4000), (5, 16_000), (6, 16_000), (200, 16_000)] {
            let wait = backoff.wait(attempt, 7);
            assert!((us(full / 2)..=us(full)).contains(&wait), "attempt {attempt}: {wait:?}");
            assert_eq!(wait, backoff.wait(attempt, 7));
        }
        assert_ne!(backoff.wait(6, 1), backoff.wait(6, 2));
    }

    #[test]
    fn no_attempts_follow_each_other_without_a_pause() {
        let least = Duration::from_nanos(LEAST_NS);
        let wait = Backoff::new(Duration::ZERO, Duration::ZERO).wait(1, 7);
        assert!((least / 2..=least).contains(&wait), "{wait:?}");
    }

    #[test]
    fn waits_that_are_too_long_for_a_number_of_nanoseconds_are_as_long_as_it_can_say() {
        let longest = Duration::from_nanos(u64::MAX);
        let wait = Backoff::new(Duration::MAX, Duration::MAX).wait(200, 7);
        assert!((longest / 2..=longest).contains(&wait), "{wait:?}");
    }
}

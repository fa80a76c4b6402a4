//! Waits between repeated attempts of an action, each longer than the one before.

use backon::{BackoffBuilder, ExponentialBuilder};
use std::time::Duration;

/// Sequence of waits between attempts of an action. Each wait is twice as long as the one before, up to a
/// maximum.
#[derive(Debug)]
pub struct Backoff {
    spans: <ExponentialBuilder as BackoffBuilder>::Backoff,
    max: Duration,
}

impl Backoff {
    /// Creates a sequence of waits that begins with `first` and grows up to `max`.
    pub fn new(first: Duration, max: Duration) -> Self {
        let builder = ExponentialBuilder::new().with_min_delay(first).with_max_delay(max).with_factor(2.0);
        // Attempts are not limited in number: the callers give up by time.
        Self { spans: builder.without_max_times().build(), max }
    }

    /// Returns how long to wait before the next attempt.
    pub fn next_wait(&mut self) -> Duration {
        self.spans.next().unwrap_or(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_double_up_to_the_maximum_and_never_end() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(20), ms(100));
        // The library computes in floating point, and is a nanosecond off.
        let mut next_ms = || (backoff.next_wait() + Duration::from_micros(1)).as_millis();
        let first: Vec<_> = std::iter::repeat_with(&mut next_ms).take(5).collect();
        assert_eq!(first, [20, 40, 80, 100, 100]);
        assert_eq!(std::iter::repeat_with(next_ms).nth(10_000), Some(100));
    }
}

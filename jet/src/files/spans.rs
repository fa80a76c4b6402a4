//! Histogram of the spans that messages took. The spans of several senders can be put together.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest span that is recorded as it is, in nanoseconds: a minute, which is more than any retry takes.
/// Longer spans count as this one.
const SPAN_NS_MAX: u64 = 60_000_000_000;
/// Significant digits of the histogram: its buckets are at most 1 % wide.
const SIGNIFICANT_DIGITS: u8 = 2;

/// Histogram of spans in nanoseconds.
#[derive(Clone)]
pub struct Spans(Histogram<u64>);

/// Quantiles, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct Quantiles {
    pub p50: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

impl Default for Spans {
    fn default() -> Self {
        Self(
            Histogram::new_with_bounds(1, SPAN_NS_MAX, SIGNIFICANT_DIGITS).expect("constant bounds are good"),
        )
    }
}

impl Spans {
    /// Adds a span, in nanoseconds.
    pub fn add(&mut self, span_ns: u64) {
        self.0.saturating_record(span_ns.max(1));
    }

    /// Returns the quantiles of the spans.
    pub fn quantiles(&self) -> Quantiles {
        Quantiles {
            p50: self.0.value_at_quantile(0.5),
            p99: self.0.value_at_quantile(0.99),
            p999: self.0.value_at_quantile(0.999),
            max: self.0.max(),
        }
    }

    /// Returns all recorded spans, as (span in nanoseconds, count) pairs.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        self.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }

    /// Adds the spans that another histogram returned from [`Self::counts`].
    pub fn add_counts(&mut self, counts: &[(u64, u64)]) {
        for &(span_ns, count) in counts {
            self.0.saturating_record_n(span_ns.max(1), count);
        }
    }
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spans({}, {:?})", self.0.len(), self.quantiles())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_counted_put_together_is_what_one_counts() {
        let (mut whole, mut left, mut right) = (Spans::default(), Spans::default(), Spans::default());
        for span_ns in (1..2000u64).map(|n| n * n * 100) {
            whole.add(span_ns);
            if span_ns < 50_000_000 { left.add(span_ns) } else { right.add(span_ns) }
        }
        let mut sum = Spans::default();
        sum.add_counts(&left.counts());
        sum.add_counts(&right.counts());
        assert_eq!(sum.quantiles(), whole.quantiles());
        assert_ne!(sum.quantiles(), left.quantiles());
    }
}

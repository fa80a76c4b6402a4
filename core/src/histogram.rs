//! A histogram of spans: of fixed size, a few instructions to add to, with buckets 6 % wide.

const SUB_BITS: u32 = 4;
const BUCKETS: usize = 64 << SUB_BITS;

/// Counts of spans in nanoseconds.
#[derive(Clone)]
pub struct Histogram {
    counts: [u32; BUCKETS],
    max_ns: u64,
    spans: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], max_ns: 0, spans: 0 }
    }
}

impl core::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Histogram({} spans, max {} ns)", self.spans, self.max_ns)
    }
}

impl Histogram {
    /// Adds a span.
    #[inline]
    pub fn add(&mut self, span_ns: u64) {
        let bucket = &mut self.counts[bucket_of(span_ns)];
        *bucket = bucket.saturating_add(1);
        self.max_ns = self.max_ns.max(span_ns);
        self.spans += 1;
    }

    /// Returns the number of spans added.
    pub fn spans(&self) -> u64 {
        self.spans
    }

    /// Returns the longest span in nanoseconds.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Returns the quantiles for the given shares of all spans, in thousandths and in increasing order. A
    /// quantile is the span that such a share does not exceed, as the upper end of its bucket. All are 0
    /// where there are no spans. One pass finds all quantiles, since a status asks for those of every
    /// session.
    pub fn quantiles_ns<const N: usize>(&self, permilles: [u32; N]) -> [u64; N] {
        let mut spans_ns = [self.max_ns; N];
        let mut buckets = self.counts.iter().enumerate();
        let (mut seen, mut reached) = (0u64, 0);
        for (span_ns, permille) in spans_ns.iter_mut().zip(permilles) {
            let rank = (self.spans * u64::from(permille)).div_ceil(1000).max(1);
            while seen < rank
                && let Some((bucket, &count)) = buckets.next()
            {
                seen += u64::from(count);
                reached = bucket;
            }
            if seen >= rank {
                *span_ns = upper_end(reached).min(self.max_ns);
            }
        }
        spans_ns
    }
}

fn bucket_of(span_ns: u64) -> usize {
    if span_ns < 1 << SUB_BITS {
        return usize::try_from(span_ns).unwrap_or(0);
    }
    let exponent = 63 - span_ns.leading_zeros();
    let sub = (span_ns >> (exponent - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    (((exponent - SUB_BITS + 1) as usize) << SUB_BITS) + usize::try_from(sub).unwrap_or(0)
}

fn upper_end(bucket: usize) -> u64 {
    if bucket < 1 << SUB_BITS {
        return bucket as u64;
    }
    let shift = (bucket >> SUB_BITS) - 1;
    let sub = (bucket & ((1 << SUB_BITS) - 1)) as u64;
    (((1u64 << SUB_BITS) + sub + 1) << shift).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_bucket() {
        let mut histogram = Histogram::default();
        (1..=10_000u64).for_each(|n| histogram.add(n * 100));
        let got = histogram.quantiles_ns([500, 500, 990, 999]);
        for (got, exact) in got.into_iter().zip([500_000u64, 500_000, 990_000, 999_000]) {
            assert!(got >= exact && got <= exact + exact / 8, "{exact}: {got}");
        }
        assert_eq!(histogram.max_ns(), 1_000_000);
        assert_eq!(Histogram::default().quantiles_ns([500, 999]), [0, 0]);
        // All spans are in one bucket, which is every quantile's.
        let mut histogram = Histogram::default();
        histogram.add(7);
        assert_eq!(histogram.quantiles_ns([1, 500, 1000]), [7, 7, 7]);
        histogram.add(1_000_000);
        assert_eq!(histogram.quantiles_ns([500, 501]), [7, 1_000_000]);
    }

    #[test]
    fn every_span_has_a_bucket_that_holds_it() {
        for shift in 0..64 {
            for span in [1u64 << shift, (1u64 << shift) - 1, (1u64 << shift) | (1 << (shift / 2))] {
                let bucket = bucket_of(span);
                assert!(bucket < BUCKETS && upper_end(bucket) >= span, "{span}");
            }
        }
    }
}

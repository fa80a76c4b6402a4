//! Estimate of a region's resident share, which is the share that lies in the cache, from judged touches. The
//! module has no clock, touches no memory and does no I/O.

use serde::Serialize;

/// Judgement of a touch by its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Judged {
    /// A cache served the touch.
    Cached,
    /// Memory served the touch.
    Memory,
}

/// Error rates of judging touches, as counts of touches in the calibration, where it was known what served
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorRates {
    /// Touches of cached lines in the calibration.
    pub cached: u32,
    /// Touches of cached lines in the calibration that were judged to be in memory.
    pub cached_as_memory: u32,
    /// Touches of lines in memory in the calibration.
    pub memory: u32,
    /// Touches of lines in memory in the calibration that were judged to be cached.
    pub memory_as_cached: u32,
}

impl ErrorRates {
    /// Returns the share of cached touches that are judged to be in memory.
    pub fn cached_as_memory_share(&self) -> f64 {
        f64::from(self.cached_as_memory) / f64::from(self.cached.max(1))
    }

    /// Returns the share of touches of memory that are judged to be cached.
    pub fn memory_as_cached_share(&self) -> f64 {
        f64::from(self.memory_as_cached) / f64::from(self.memory.max(1))
    }
}

/// Share of a region that is in the cache, estimated from recent touches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Resident {
    /// Estimated share, 0 to 1, corrected for the calibration's error rates.
    pub share: f64,
    /// Lower end of the 95 % confidence interval.
    pub low: f64,
    /// Upper end of the 95 % confidence interval.
    pub high: f64,
    /// Number of touches that the estimate rests on.
    pub touches: u32,
    /// Number of these touches that were judged to be cached.
    pub judged_cached: u32,
}

/// Number of standard deviations within which 95 % of a normal distribution lie.
const Z: f64 = 1.959_964;

/// Lower limit for 1 minus both error rates, by which the estimate divides. A [`super::Calibration`] with
/// such error rates fails long before. The limit only prevents a division by 0 where error rates come from
/// elsewhere.
const INFORMATION_MIN: f64 = 0.05;

impl Resident {
    /// Estimates the resident share from so many touches; `None` where there were none.
    ///
    /// The share is that of Rogan and Gladen (1978): from the share that is judged cached it subtracts what
    /// memory contributes by error, and scales up for the hits that were missed. The interval is that of Lang
    /// and Reiczigel (2014), which also accounts for the limited number of touches behind the error rates.
    /// Neither accounts for rates that have changed since the calibration.
    pub fn estimate(touches: u32, judged_cached: u32, rates: &ErrorRates) -> Option<Self> {
        if touches == 0 {
            return None;
        }
        let seen = f64::from(judged_cached.min(touches)) / f64::from(touches);
        let miss = rates.memory_as_cached_share();
        let information = (1.0 - rates.cached_as_memory_share() - miss).max(INFORMATION_MIN);
        let share = ((seen - miss) / information).clamp(0.0, 1.0);
        let (low, high) = interval(f64::from(touches), seen, rates);
        Some(Self { share, low: low.min(share), high: high.max(share), touches, judged_cached })
    }

    /// Returns the share in thousandths, rounded.
    pub fn share_permille(&self) -> u32 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to 1000
        let permille = (self.share * 1000.0).round() as u32;
        permille
    }
}

/// Returns the interval of Lang and Reiczigel: a Wald interval around a value that is drawn towards the
/// middle by the method of Agresti and Coull.
fn interval(touches: f64, seen: f64, rates: &ErrorRates) -> (f64, f64) {
    let drawn = |wrong: u32, of: u32| {
        let of = f64::from(of) + 2.0;
        ((f64::from(wrong) + 1.0) / of, of)
    };
    let (cached_wrong, cached) = drawn(rates.cached_as_memory, rates.cached);
    let (memory_wrong, memory) = drawn(rates.memory_as_cached, rates.memory);
    let information = (1.0 - cached_wrong - memory_wrong).max(INFORMATION_MIN);

    let drawn_touches = touches + Z * Z;
    let drawn_seen = (touches * seen + Z * Z / 2.0) / drawn_touches;
    let share = ((drawn_seen - memory_wrong) / information).clamp(0.0, 1.0);

    let cached_doubt = cached_wrong * (1.0 - cached_wrong) / cached;
    let memory_doubt = memory_wrong * (1.0 - memory_wrong) / memory;
    let middle = share + 2.0 * Z * Z * (share * cached_doubt - (1.0 - share) * memory_doubt);
    let variance = drawn_seen * (1.0 - drawn_seen) / drawn_touches
        + share * share * cached_doubt
        + (1.0 - share) * (1.0 - share) * memory_doubt;
    let half = Z * variance.sqrt() / information;
    ((middle - half).clamp(0.0, 1.0), (middle + half).clamp(0.0, 1.0))
}

/// Judgements of the most recent touches, up to a fixed number, one bit each.
#[derive(Clone, Debug)]
pub struct Window {
    /// Ring of bits; a set bit means that the touch was judged to be cached.
    cached_bits: Box<[u64]>,
    size: u32,
    next: u32,
    touches: u32,
    judged_cached: u32,
    rates: ErrorRates,
}

impl Window {
    /// Makes a window of `size` touches, which are judged with the error rates `rates`. Later calls never
    /// allocate.
    ///
    /// # Panics
    /// Where `size` is 0.
    pub fn new(size: u32, rates: ErrorRates) -> Self {
        assert!(size > 0, "a window of 0 touches");
        let cached_bits = vec![0; size.div_ceil(64) as usize].into();
        Self { cached_bits, size, next: 0, touches: 0, judged_cached: 0, rates }
    }

    /// Records a touch. Where the window is full, the oldest touch is forgotten.
    #[inline]
    pub fn record(&mut self, judged: Judged) {
        let (word, bit) = (self.next as usize / 64, 1 << (self.next % 64));
        if self.touches == self.size {
            self.judged_cached -= u32::from(self.cached_bits[word] & bit != 0);
        } else {
            self.touches += 1;
        }
        match judged {
            Judged::Cached => {
                self.cached_bits[word] |= bit;
                self.judged_cached += 1;
            }
            Judged::Memory => self.cached_bits[word] &= !bit,
        }
        self.next = (self.next + 1) % self.size;
    }

    /// Estimates the resident share from the touches of the window; `None` before the first one.
    pub fn resident(&self) -> Option<Resident> {
        Resident::estimate(self.touches, self.judged_cached, &self.rates)
    }

    /// Forgets all touches. Later ones are judged with the error rates `rates`.
    pub fn restart(&mut self, rates: ErrorRates) {
        (self.next, self.touches, self.judged_cached) = (0, 0, 0);
        self.rates = rates;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const EXACT: ErrorRates =
        ErrorRates { cached: 4096, cached_as_memory: 0, memory: 4096, memory_as_cached: 0 };

    /// Coin flips from a seeded random generator.
    struct Coin(fastrand::Rng);

    impl Coin {
        fn flip(&mut self, probability: f64) -> bool {
            self.0.f64() < probability
        }

        fn count(&mut self, of: u32, probability: f64) -> u32 {
            (0..of).map(|_| u32::from(self.flip(probability))).sum()
        }
    }

    /// Simulates 1000 calibrations and readings of a region of which the share `truth` is resident. Returns
    /// how many of the intervals contain the truth.
    fn covered_permille(truth: f64, wrong: (f64, f64), touches: u32, calibration: u32) -> u32 {
        let mut coin = Coin(fastrand::Rng::with_seed(truth.to_bits() ^ u64::from(touches)));
        let covers = (0..1000).filter(|_| {
            let rates = ErrorRates {
                cached: calibration,
                cached_as_memory: coin.count(calibration, wrong.0),
                memory: calibration,
                memory_as_cached: coin.count(calibration, wrong.1),
            };
            let seen = coin.count(touches, truth * (1.0 - wrong.0) + (1.0 - truth) * wrong.1);
            let resident = Resident::estimate(touches, seen, &rates).unwrap();
            assert!(resident.low <= resident.share && resident.share <= resident.high);
            resident.low <= truth && truth <= resident.high
        });
        u32::try_from(covers.count()).unwrap()
    }

    #[test]
    fn the_interval_holds_the_truth_95_times_of_100() {
        for truth in [0.1, 0.3, 0.5, 0.8, 0.95] {
            for wrong in [(0.0, 0.0), (0.01, 0.002), (0.05, 0.1)] {
                for (touches, calibration) in [(200, 1000), (1000, 1000)] {
                    // With 1000 trials at 95 %, one standard deviation is 7.
                    let covered = covered_permille(truth, wrong, touches, calibration);
                    assert!((925..=985).contains(&covered), "{truth} {wrong:?} {touches}: {covered}");
                }
            }
        }
        // At 0 and 1 the interval is cut off, and contains the truth more often.
        for truth in [0.0, 0.005, 0.999, 1.0] {
            for wrong in [(0.0, 0.0), (0.05, 0.1)] {
                let covered = covered_permille(truth, wrong, 1000, 1000);
                assert!(covered >= 925, "{truth} {wrong:?}: {covered}");
            }
        }
    }

    #[test]
    fn errors_of_judgement_are_taken_out() {
        let rates = ErrorRates { cached: 1000, cached_as_memory: 100, memory: 1000, memory_as_cached: 50 };
        // With 60 % resident, 0.6 * 0.9 + 0.4 * 0.05 = 0.56 are judged cached.
        let resident = Resident::estimate(10_000, 5600, &rates).unwrap();
        assert!((resident.share - 0.6).abs() < 1e-9, "{resident:?}");
        assert!(resident.low > 0.56 && resident.high < 0.64, "{resident:?}");
        // Fewer than errors alone would give, and more than is possible: the share is 0 and 1.
        assert!(Resident::estimate(10_000, 100, &rates).unwrap().share.abs() < 1e-9);
        assert!((Resident::estimate(10_000, 9900, &rates).unwrap().share - 1.0).abs() < 1e-9);
    }

    #[test]
    fn rates_that_tell_nothing_still_give_a_number() {
        let rates = ErrorRates { cached: 10, cached_as_memory: 10, memory: 10, memory_as_cached: 10 };
        let resident = Resident::estimate(10, 5, &rates).unwrap();
        assert!((0.0..=1.0).contains(&resident.low) && (0.0..=1.0).contains(&resident.high));
        let none = ErrorRates { cached: 0, cached_as_memory: 0, memory: 0, memory_as_cached: 0 };
        assert!((Resident::estimate(10, 5, &none).unwrap().share - 0.5).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn a_window_is_its_last_touches(
            size in 1u32..300,
            touches in prop::collection::vec(any::<bool>(), 0..1000),
        ) {
            let mut window = Window::new(size, EXACT);
            let mut oracle = VecDeque::new();
            prop_assert_eq!(window.resident(), None);
            for cached in touches {
                window.record(if cached { Judged::Cached } else { Judged::Memory });
                oracle.push_back(cached);
                if oracle.len() > size as usize {
                    oracle.pop_front();
                }
                let resident = window.resident().unwrap();
                prop_assert_eq!(resident.touches as usize, oracle.len());
                prop_assert_eq!(
                    resident.judged_cached as usize,
                    oracle.iter().filter(|cached| **cached).count()
                );
            }
            window.restart(EXACT);
            prop_assert_eq!(window.resident(), None);
        }

        #[test]
        fn every_estimate_lies_in_its_interval_within_0_and_1(
            touches in 1u32..100_000,
            seen: u32,
            cached in 1u32..10_000,
            memory in 1u32..10_000,
            wrong: (u32, u32),
        ) {
            let rates = ErrorRates {
                cached,
                cached_as_memory: wrong.0 % (cached + 1),
                memory,
                memory_as_cached: wrong.1 % (memory + 1),
            };
            let resident = Resident::estimate(touches, seen % (touches + 1), &rates).unwrap();
            prop_assert!(0.0 <= resident.low && resident.low <= resident.share, "{:?}", resident);
            prop_assert!(resident.share <= resident.high && resident.high <= 1.0, "{:?}", resident);
        }

        #[test]
        fn more_hits_never_mean_less_resident(touches in 2u32..10_000, seen: u32) {
            let seen = seen % touches;
            let rates = ErrorRates { cached: 4096, cached_as_memory: 60, memory: 4096, memory_as_cached: 20 };
            let fewer = Resident::estimate(touches, seen, &rates).unwrap();
            let more = Resident::estimate(touches, seen + 1, &rates).unwrap();
            prop_assert!(fewer.share <= more.share);
        }
    }
}

//! Pace of touching: as fast as the budget allows while the region is not resident, and only fast enough to
//! keep the reading fresh once it is. The module has no clock: it takes costs and returns the next step.

use serde::Serialize;

/// Cost of a batch of touches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BatchCost {
    /// Number of touches.
    pub touches: u32,
    /// CPU time of the batch in nanoseconds.
    pub span_ns: u64,
}

/// Limits that [`Pace`] respects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PaceOptions {
    /// Most that touching may cost, including wake-ups, in thousandths of a core; 1 to 1000. The budget takes
    /// precedence over `rate_hz_min`.
    ///
    /// Default 10, which is 1 %: an operator does not notice it. At half a microsecond per touch it allows
    /// some 15,000 touches per second, which is all lines of a 12 MiB pool in 13 s.
    pub budget_permille: u32,
    /// Touches per second while the whole region is resident; at least 1.
    ///
    /// Default 1000: a window of 2048 touches then spans two seconds, for a tenth of the budget.
    pub rate_hz_min: u32,
    /// Touches per second while a quarter of the region or more is not resident; at least `rate_hz_min`.
    ///
    /// Default 100,000: 12 MiB in 2 s, where the budget allows it.
    pub rate_hz_max: u32,
    /// Cost of one wake-up beyond the thread's own CPU time, in nanoseconds: the timer's interrupt, leaving
    /// idle, and restoring what was displaced.
    ///
    /// Default 5 us, of the 20 to 30 us that a wake-up across cores takes in all.
    pub wake_ns: u64,
    /// Longest time that a batch is planned to keep its core, in nanoseconds.
    ///
    /// Default 50 us: on a machine with few cores a message may have to wait that long.
    pub batch_span_ns_max: u64,
}

impl Default for PaceOptions {
    /// Returns options for 1 % of a core. Each field's documentation gives the reason for its value.
    fn default() -> Self {
        Self {
            budget_permille: 10,
            rate_hz_min: 1000,
            rate_hz_max: 100_000,
            wake_ns: 5_000,
            batch_span_ns_max: 50_000,
        }
    }
}

/// Error: options of [`PaceOptions`] that cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PaceError {
    /// The budget is 0, or more than a whole core.
    #[error("the warmer's budget_permille is {found}, but must be 1 to 1000: thousandths of a core")]
    Budget {
        /// Budget in thousandths of a core.
        found: u32,
    },
    /// The lower rate is 0, or above the upper one.
    #[error(
        "the warmer's rate_hz_min is {min} and rate_hz_max {max}: the first must be 1 or more and not above \
         the second"
    )]
    Rates {
        /// Lower rate, in touches per second.
        min: u32,
        /// Upper rate, in touches per second.
        max: u32,
    },
}

impl PaceOptions {
    /// Checks that the options fit together.
    ///
    /// # Errors
    /// [`PaceError`] says what must hold.
    pub fn check(&self) -> Result<(), PaceError> {
        if !(1..=1000).contains(&self.budget_permille) {
            return Err(PaceError::Budget { found: self.budget_permille });
        }
        if self.rate_hz_min == 0 || self.rate_hz_min > self.rate_hz_max {
            return Err(PaceError::Rates { min: self.rate_hz_min, max: self.rate_hz_max });
        }
        Ok(())
    }
}

/// Next action of a warmer: a pause, then a batch of touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Shortest time to sleep, in nanoseconds.
    pub pause_ns: u64,
    /// Number of lines to touch after the pause; at least 1.
    pub touches: u32,
}

/// Assumed cost of a touch before any was measured, in nanoseconds.
const TOUCH_NS_FIRST: u64 = 1_000;

/// Longest planned time between two batches, in nanoseconds. At a low rate batches become smaller rather than
/// rarer, so that the reading stays fresh.
const PERIOD_NS_MAX: u64 = 1_000_000_000;

/// Divisor for the share of the region whose absence calls for the full rate: a quarter.
const EAGER_DIVISOR: u64 = 4;

/// Control of the rate of touching by the costs and the residency that were measured.
///
/// After each batch comes a pause, long enough that batch, wake-up and pause together stay within the budget.
/// So the budget holds over any span, up to one batch, however the costs vary.
#[derive(Clone, Debug)]
pub struct Pace {
    options: PaceOptions,
    /// Cost of a touch in nanoseconds, smoothed over some 8 batches.
    touch_ns: u64,
}

impl Pace {
    /// Makes a pace with these options.
    ///
    /// # Errors
    /// [`PaceError`], as for [`PaceOptions::check`].
    pub fn new(options: PaceOptions) -> Result<Self, PaceError> {
        options.check()?;
        Ok(Self { options, touch_ns: TOUCH_NS_FIRST })
    }

    /// Returns the first step: a small batch without a pause, since the cost of a touch is not known yet.
    pub fn first(&self) -> Step {
        Step { pause_ns: 0, touches: self.batch(self.options.rate_hz_min) }
    }

    /// Returns the step after a batch that cost `last`, with `overhead_ns` of the thread's CPU time around
    /// it. `resident_permille` is the resident share in thousandths; `None` means that it is not known yet,
    /// and counts as 0.
    pub fn next(&mut self, last: BatchCost, overhead_ns: u64, resident_permille: Option<u32>) -> Step {
        let each_ns = last.span_ns / u64::from(last.touches.max(1));
        // A batch that was interrupted must not shorten the next ones for long.
        let each_ns = each_ns.clamp(1, self.touch_ns.saturating_mul(8));
        self.touch_ns = (self.touch_ns * 7 + each_ns).div_ceil(8);

        // A period consists of the batch, the overhead and the pause. It must be long enough for the budget
        // and for the wanted rate.
        let spent_ns = last.span_ns.saturating_add(overhead_ns);
        let charge_ns = spent_ns.saturating_add(self.options.wake_ns);
        let afford_ns = charge_ns.saturating_mul(1000).div_ceil(u64::from(self.options.budget_permille));
        let rate_hz = self.rate_hz(resident_permille);
        let wanted_ns = u64::from(last.touches).saturating_mul(1_000_000_000) / u64::from(rate_hz);
        let pause_ns = afford_ns.max(wanted_ns).saturating_sub(spent_ns);
        Step { pause_ns, touches: self.batch(rate_hz) }
    }

    /// Returns the wanted touches per second, regardless of their cost.
    fn rate_hz(&self, resident_permille: Option<u32>) -> u32 {
        let missing = 1000 - u64::from(resident_permille.unwrap_or(0).min(1000));
        let eager = (missing * EAGER_DIVISOR).min(1000);
        let (min, max) = (self.options.rate_hz_min, self.options.rate_hz_max);
        let more = u64::from(max - min) * eager / 1000;
        min + u32::try_from(more).expect("not above rate_hz_max")
    }

    /// Returns the size of a batch: as many touches as fit into the longest batch, or as fall into the
    /// longest period at this rate, whichever is less; at least 1.
    fn batch(&self, rate_hz: u32) -> u32 {
        let in_span = self.options.batch_span_ns_max / self.touch_ns;
        let in_period = u64::from(rate_hz).saturating_mul(PERIOD_NS_MAX) / 1_000_000_000;
        u32::try_from(in_span.min(in_period).max(1)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs a number of batches with the given costs of touches and overheads, in turns. Returns the totals.
    fn simulate(options: PaceOptions, costs: &[(u64, u64)], permille: Option<u32>, steps: u32) -> Totals {
        let mut pace = Pace::new(options).unwrap();
        let mut step = pace.first();
        let mut totals = Totals::default();
        for (touch_ns, overhead_ns) in costs.iter().cycle().take(steps as usize) {
            assert!(step.touches >= 1);
            let span_ns = touch_ns * u64::from(step.touches);
            totals.elapsed_ns += step.pause_ns + span_ns + overhead_ns;
            totals.charged_ns += span_ns + overhead_ns + options.wake_ns;
            totals.largest_ns = totals.largest_ns.max(span_ns + overhead_ns + options.wake_ns);
            totals.touches += u64::from(step.touches);
            step = pace.next(BatchCost { touches: step.touches, span_ns }, *overhead_ns, permille);
        }
        totals
    }

    #[derive(Default, Debug)]
    struct Totals {
        elapsed_ns: u64,
        charged_ns: u64,
        largest_ns: u64,
        touches: u64,
    }

    impl Totals {
        fn rate_hz(&self) -> u64 {
            self.touches * 1_000_000_000 / self.elapsed_ns
        }
    }

    proptest! {
        #[test]
        fn the_budget_holds_whatever_touches_cost(
            budget_permille in 1u32..=1000,
            costs in prop::collection::vec((1u64..200_000, 0u64..100_000), 1..20),
            permille in prop::option::of(0u32..=1000),
        ) {
            let options = PaceOptions { budget_permille, ..PaceOptions::default() };
            let totals = simulate(options, &costs, permille, 300);
            let allowed_ns = totals.elapsed_ns * u64::from(budget_permille) / 1000 + totals.largest_ns;
            prop_assert!(totals.charged_ns <= allowed_ns, "{:?} allowed {}", totals, allowed_ns);
        }

        #[test]
        fn touching_goes_on_as_fast_as_the_budget_allows(
            touch_ns in 50u64..5_000, overhead_ns in 0u64..50_000, budget_permille in 5u32..=500,
            permille in prop::option::of(0u32..=1000),
        ) {
            let options = PaceOptions { budget_permille, ..PaceOptions::default() };
            let totals = simulate(options, &[(touch_ns, overhead_ns)], permille, 300);
            // Cost and yield of a batch of full length.
            let batch = (options.batch_span_ns_max / touch_ns).max(1);
            let charge_ns = batch * touch_ns + overhead_ns + options.wake_ns;
            let affordable_hz = batch * u64::from(budget_permille) * 1_000_000 / charge_ns;
            let wanted_hz = affordable_hz.min(u64::from(options.rate_hz_min));
            prop_assert!(totals.rate_hz() >= wanted_hz / 2, "{:?} wanted {}", totals, wanted_hz);
            prop_assert!(totals.rate_hz() <= u64::from(options.rate_hz_max) * 11 / 10, "{:?}", totals);
        }
    }

    #[test]
    fn a_region_that_is_not_resident_is_touched_faster() {
        let rate = |permille| simulate(PaceOptions::default(), &[(400, 8_000)], permille, 1000).rate_hz();
        assert!((950..=1050).contains(&rate(Some(1000))), "{}", rate(Some(1000)));
        // At 400 ns per touch, 1 % of a core would give 25,000 touches without the wake-ups.
        let eager = rate(Some(750));
        assert!((15_000..25_000).contains(&eager), "{eager}");
        assert_eq!((rate(Some(0)), rate(None)), (eager, eager));
        let between = rate(Some(980));
        assert!((5_000..=10_000).contains(&between), "{between}");
    }

    #[test]
    fn a_batch_is_as_long_as_it_may_be_and_a_low_rate_makes_it_small() {
        let mut pace = Pace::new(PaceOptions::default()).unwrap();
        let mut step = pace.first();
        for _ in 0..100 {
            let span_ns = 500 * u64::from(step.touches);
            step = pace.next(BatchCost { touches: step.touches, span_ns }, 5_000, Some(0));
        }
        assert!((90..=100).contains(&step.touches), "{step:?}");
        // A batch with an interruption of 10 ms costs one long pause, and at most halves the next batches.
        let step = pace.next(BatchCost { touches: 100, span_ns: 10_000_000 }, 5_000, Some(0));
        assert!(step.pause_ns > 900_000_000 && step.touches >= 45, "{step:?}");

        let slow = PaceOptions { rate_hz_min: 3, rate_hz_max: 3, ..PaceOptions::default() };
        assert_eq!(Pace::new(slow).unwrap().first().touches, 3);
    }

    #[test]
    fn options_that_cannot_work_are_refused_with_their_values() {
        let refused = |options: PaceOptions| Pace::new(options).unwrap_err().to_string();
        let options = PaceOptions::default();
        assert!(refused(PaceOptions { budget_permille: 0, ..options }).contains("budget_permille is 0"));
        assert!(
            refused(PaceOptions { budget_permille: 1001, ..options })
                .contains("is 1001, but must be 1 to 1000")
        );
        let rates = refused(PaceOptions { rate_hz_min: 9, rate_hz_max: 8, ..options });
        assert!(rates.contains("rate_hz_min is 9 and rate_hz_max 8"), "{rates}");
        assert!(Pace::new(PaceOptions { rate_hz_min: 0, ..options }).is_err());
    }
}

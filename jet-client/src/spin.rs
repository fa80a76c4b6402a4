//! Spinning before sleeping, for as long as it pays.
//!
//! Waking a sleeper costs 20-30 us across cores, a spinner about 0.2 us. So spin first; but spinning that was
//! in vain took a core from somebody. The budget halves where spinning found nothing, and grows to twice what
//! it took to find something.
//!
//! That alone is a trap: where both ends sleep, what each waits for takes a wake-up of the other, longer than
//! a short budget, and neither spins ever again. So one wait in a few tries the longest spin, which is longer
//! than a wake-up: it finds what comes, and its end is awake when the other's next word is due.

use std::time::{Duration, Instant};

const BUDGET_MIN: Duration = Duration::from_micros(1);
/// One of so many waits that follow each other in vain tries the longest spin.
const VAIN_PER_TRIAL: u32 = 16;
/// Looks between two readings of the clock. A yield follows each: who is waited for may have only this core,
/// and a sender's looks are long, so that sixty-four of them take as long as several messages.
const LOOKS_PER_READING: u32 = 16;

/// The longest spin where nothing else is said: longer than waking somebody takes.
pub(crate) const SPIN_MAX: Duration = Duration::from_micros(50);

/// An adaptive spin budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    budget: Duration,
    max: Duration,
    /// Waits in vain since one that was not.
    vain: u32,
}

impl Spin {
    pub(crate) fn new(max: Duration) -> Self {
        Self { budget: max, max, vain: 0 }
    }

    /// Looks again and again while the budget lasts, or what is left of the wait, where that is limited.
    pub(crate) fn until<T>(
        &mut self,
        left: Option<Duration>,
        mut look: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if self.max.is_zero() {
            return None;
        }
        let is_trial = self.vain % VAIN_PER_TRIAL == VAIN_PER_TRIAL - 1;
        let budget = if is_trial { self.max } else { self.budget }.min(left.unwrap_or(Duration::MAX));
        let start = Instant::now();
        let mut spent = Duration::ZERO;
        loop {
            for _ in 0..LOOKS_PER_READING {
                if let Some(found) = look() {
                    self.pays(spent);
                    return Some(found);
                }
                std::hint::spin_loop();
            }
            spent = start.elapsed();
            if spent >= budget {
                self.vain = self.vain.wrapping_add(1);
                self.budget = (self.budget / 2).max(BUDGET_MIN.min(self.max));
                return None;
            }
            rustix::thread::sched_yield();
        }
    }

    /// Spinning for so long found something.
    fn pays(&mut self, spent: Duration) {
        self.vain = 0;
        self.budget = self.budget.max(spent.saturating_mul(2)).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_shrinks_when_in_vain_and_grows_when_it_pays() {
        let max = Duration::from_micros(8);
        let mut spin = Spin::new(max);
        assert_eq!(spin.until(None, || None::<()>), None);
        assert_eq!(spin.budget, max / 2);
        (0..8).for_each(|_| assert_eq!(spin.until(None, || None::<()>), None));
        assert_eq!(spin.budget, BUDGET_MIN);
        spin.pays(Duration::from_micros(3));
        assert_eq!(spin.budget, Duration::from_micros(6));
        spin.pays(Duration::from_micros(2));
        assert_eq!(spin.budget, Duration::from_micros(6));
        spin.pays(Duration::from_micros(5));
        assert_eq!(spin.budget, max);
    }

    #[test]
    fn a_wait_after_many_in_vain_tries_the_longest_spin() {
        let max = Duration::from_millis(20);
        let mut spin = Spin::new(max);
        let trial = |spin: &mut Spin| {
            let start = Instant::now();
            assert_eq!(spin.until(None, || None::<()>), None);
            start.elapsed() >= max
        };
        // The first has the whole budget as well; later ones have less and less, whatever the machine adds.
        assert!(trial(&mut spin));
        (1..VAIN_PER_TRIAL - 1).for_each(|_| assert_eq!(spin.until(None, || None::<()>), None));
        assert!(spin.budget < max / 100);
        assert!(trial(&mut spin));
    }

    #[test]
    fn no_spin_is_longer_than_the_wait() {
        let mut spin = Spin::new(Duration::MAX);
        assert_eq!(spin.until(Some(Duration::from_millis(1)), || None::<()>), None);
        assert_eq!(spin.until(None, || Some(1)), Some(1));
    }

    #[test]
    fn a_budget_of_nothing_looks_never() {
        assert_eq!(Spin::new(Duration::ZERO).until(None, || Some(1)), None);
    }
}

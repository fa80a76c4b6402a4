//! Spinning before sleeping, for as long as it pays.
//!
//! Waking a sleeper costs 20-30 us across cores, a spinner about 0.2 us. So spin first; but spinning that was in vain
//! took a core from somebody. The budget doubles when spinning found something and halves when it did not.

use std::time::{Duration, Instant};

const BUDGET_MIN: Duration = Duration::from_micros(1);
/// Looks between two readings of the clock.
const LOOKS_PER_READING: u32 = 16;
/// Readings between two yields: both ends may share one core.
const READINGS_PER_YIELD: u32 = 4;

/// An adaptive spin budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    budget: Duration,
    max: Duration,
}

impl Spin {
    pub(crate) fn new(max: Duration) -> Self {
        Self { budget: max, max }
    }

    /// Looks again and again while the budget lasts.
    pub(crate) fn until<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if self.max.is_zero() {
            return None;
        }
        let start = Instant::now();
        let mut readings = 0;
        loop {
            for _ in 0..LOOKS_PER_READING {
                if let Some(found) = look() {
                    self.budget = (self.budget * 2).min(self.max);
                    return Some(found);
                }
                std::hint::spin_loop();
            }
            if start.elapsed() >= self.budget {
                self.budget = (self.budget / 2).max(BUDGET_MIN.min(self.max));
                return None;
            }
            readings += 1;
            if readings % READINGS_PER_YIELD == 0 {
                rustix::thread::sched_yield();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_shrinks_when_in_vain_and_grows_when_it_pays() {
        let max = Duration::from_micros(8);
        let mut spin = Spin::new(max);
        assert_eq!(spin.until(|| None::<()>), None);
        assert_eq!(spin.budget, max / 2);
        (0..8).for_each(|_| assert_eq!(spin.until(|| None::<()>), None));
        assert_eq!(spin.budget, BUDGET_MIN);
        assert_eq!(spin.until(|| Some(3)), Some(3));
        assert_eq!(spin.budget, BUDGET_MIN * 2);
    }

    #[test]
    fn a_budget_of_nothing_looks_never() {
        assert_eq!(Spin::new(Duration::ZERO).until(|| Some(1)), None);
    }
}

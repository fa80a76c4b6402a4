//! Adaptive spinning before a sleep.
//!
//! Waking a sleeper on another core costs 20-30 us, and a spinner about 0.2 us. So a wait spins first. But
//! spinning in vain takes a core from other threads. The budget for spinning halves when spinning found
//! nothing. It grows to twice the time that spinning took to find something.
//!
//! That rule alone fails where both ends sleep. Each end then waits for a wake-up of the other end, which
//! takes longer than a short budget, and neither end would ever spin again. So every few waits one wait tries
//! the longest spin, which is longer than a wake-up. It finds what arrives, and this end is awake when the
//! next message is due.

use std::time::{Duration, Instant};

const BUDGET_MIN: Duration = Duration::from_micros(1);
/// Number of waits in vain, one after another, of which one tries the longest spin.
const VAIN_PER_TRIAL: u32 = 16;
/// Polls between two readings of the clock. The thread yields after each reading, because the thread that it
/// waits for may have only this core. Few polls, because a sender's polls are long: sixty-four of them take
/// as long as several messages.
const POLLS_PER_READING: u32 = 16;

/// Default of the longest spin: longer than waking a thread takes.
pub(crate) const SPIN_MAX: Duration = Duration::from_micros(50);

/// An adaptive budget for spinning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    budget: Duration,
    max: Duration,
    /// Waits in vain since the last wait whose spinning found something.
    vain: u32,
}

impl Spin {
    pub(crate) fn new(max: Duration) -> Self {
        Self { budget: max, max, vain: 0 }
    }

    /// Returns the longest spin.
    pub(crate) fn max(&self) -> Duration {
        self.max
    }

    /// Calls `poll` again and again until it finds something. Stops when the budget is spent, or after `left`
    /// where the wait has a limit.
    pub(crate) fn until<T>(
        &mut self,
        left: Option<Duration>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if self.max.is_zero() {
            return None;
        }
        let is_trial = self.vain % VAIN_PER_TRIAL == VAIN_PER_TRIAL - 1;
        let budget = if is_trial { self.max } else { self.budget }.min(left.unwrap_or(Duration::MAX));
        let start = Instant::now();
        let mut spent = Duration::ZERO;
        loop {
            for _ in 0..POLLS_PER_READING {
                if let Some(found) = poll() {
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

    /// Notes that spinning for `spent` found something.
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
        // The first wait has the whole budget as well. Later waits have less and less, whatever delays the
        // machine adds.
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

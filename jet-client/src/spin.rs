//! Spinning before a sleep, with the thread's clock and its core.

use crate::backoff::nanoseconds;
use jet_fabric::give_way::GiveWay;
use jet_fabric::spin_budget::SpinBudget;
use std::time::{Duration, Instant};

/// Longest spin of a future: while it spins, its thread runs no other task.
#[cfg(feature = "tokio")]
pub(crate) const FUTURE_SPIN_MAX: Duration = Duration::from_micros(50);

/// Default of the longest spin: several times what waking a thread takes. That is 20 to 30 us on a machine of
/// one's own, and 50 us or more in a virtual machine. Each wait in vain halves the budget. So where nothing
/// comes in time, one wait of sixteen spins so long.
pub(crate) const SPIN_MAX: Duration = Duration::from_micros(200);

/// Spinning for an adaptive time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    budget: SpinBudget,
    max: Duration,
    give_way: GiveWay,
}

impl Spin {
    pub(crate) fn new(max: Duration) -> Self {
        Self { budget: SpinBudget::new(nanoseconds(max)), max, give_way: GiveWay::default() }
    }

    /// Returns the longest spin.
    pub(crate) fn max(&self) -> Duration {
        self.max
    }

    /// Calls `poll` again and again until it finds something: once at least. Stops when the budget is spent,
    /// or after `left` where the wait has a limit.
    pub(crate) fn until<T>(
        &mut self,
        left: Option<Duration>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        // What is there already takes no reading of the clock. It says nothing of spinning, either: it may be
        // there because this thread slept.
        if let Some(found) = poll() {
            return Some(found);
        }
        if self.max.is_zero() {
            return None;
        }
        let budget_ns = self.budget.ns().min(left.map_or(u64::MAX, nanoseconds));
        let start = Instant::now();
        let now_ns = || nanoseconds(start.elapsed());
        let mut spent_ns = 0;
        self.give_way.begin(0);
        loop {
            if self.give_way.found_nothing() {
                let polled_ns = now_ns();
                if polled_ns >= budget_ns {
                    self.budget.was_in_vain();
                    return None;
                }
                // The thread that this one waits for may have only this core.
                spent_ns = self.give_way.give(polled_ns, now_ns);
            }
            if let Some(found) = poll() {
                self.budget.pays(spent_ns);
                return Some(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_spin_is_longer_than_the_wait() {
        let mut spin = Spin::new(Duration::MAX);
        assert_eq!(spin.until(Some(Duration::from_millis(1)), || None::<()>), None);
        assert_eq!(spin.until(None, || Some(1)), Some(1));
    }

    #[test]
    fn what_was_there_at_once_says_nothing_of_spinning() {
        let max = Duration::from_micros(200);
        let mut spin = Spin::new(max);
        let mut longest_ns = 0;
        // As where this thread sleeps for each message: it spins in vain, and finds what woke it.
        for wait in 0..100 {
            assert_eq!(spin.until(None, || None::<()>), None);
            assert_eq!(spin.until(None, || Some(())), Some(()));
            if wait >= 10 {
                longest_ns = longest_ns.max(spin.budget.ns());
            }
        }
        assert_eq!(longest_ns, nanoseconds(max), "a wait now and then tries the longest spin");
    }

    #[test]
    fn a_budget_of_nothing_looks_once() {
        let mut looks = 0;
        let mut look = |_| {
            looks += 1;
            None::<()>
        };
        assert_eq!(Spin::new(Duration::ZERO).until(None, || look(())), None);
        assert_eq!(looks, 1);
    }
}

//! Spinning before a sleep, with the thread's clock and its core.

use crate::backoff::nanoseconds;
use jet_fabric::give_way::GiveWay;
use jet_fabric::spin_budget::SpinBudget;
use std::time::{Duration, Instant};

/// Default of the longest spin: longer than waking a thread takes.
pub(crate) const SPIN_MAX: Duration = Duration::from_micros(50);

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
        let budget_ns = self.budget.ns().min(left.map_or(u64::MAX, nanoseconds));
        let start = Instant::now();
        let mut spent_ns = 0;
        loop {
            loop {
                if let Some(found) = poll() {
                    self.give_way.found_something();
                    self.budget.pays(spent_ns);
                    return Some(found);
                }
                if self.give_way.found_nothing() {
                    break;
                }
                std::hint::spin_loop();
            }
            let polled_ns = nanoseconds(start.elapsed());
            if polled_ns >= budget_ns {
                self.give_way.found_something();
                self.budget.was_in_vain();
                return None;
            }
            // The thread that this one waits for may have only this core.
            rustix::thread::sched_yield();
            let batch_ns = polled_ns - spent_ns;
            spent_ns = nanoseconds(start.elapsed());
            self.give_way.gave_way(batch_ns, spent_ns - polled_ns);
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
    fn a_budget_of_nothing_looks_never() {
        assert_eq!(Spin::new(Duration::ZERO).until(None, || Some(1)), None);
    }
}

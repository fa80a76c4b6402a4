//! How long a thread spins before it sleeps.
//!
//! Waking a sleeper on another core costs 20-30 us, and a spinner about 0.2 us. So a wait spins first. But
//! spinning in vain takes a core from other threads. The budget for spinning halves when spinning found
//! nothing. It grows to twice the time that spinning took to find something.
//!
//! That rule alone fails where both ends sleep. Each end then waits for a wake-up of the other end, which
//! takes longer than a short budget, and neither end would ever spin again. So every few waits one wait tries
//! the longest spin, which is longer than a wake-up. It finds what arrives, and this end is awake when the
//! next message is due.

/// Shortest budget, if a thread may spin at all.
const NS_MIN: u64 = 1_000;
/// Number of waits in vain, one after another, of which one tries the longest spin.
const VAIN_PER_TRIAL: u32 = 16;

/// An adaptive budget for spinning, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct SpinBudget {
    ns: u64,
    max_ns: u64,
    /// Waits in vain since the last wait whose spinning found something.
    vain: u32,
}

impl SpinBudget {
    /// Makes a budget of at most `max_ns`, and at first of as much. With 0 nothing ever spins.
    pub fn new(max_ns: u64) -> Self {
        Self { ns: max_ns, max_ns, vain: 0 }
    }

    /// Returns the budget of the next wait.
    #[inline]
    pub fn ns(&self) -> u64 {
        let is_trial = self.vain % VAIN_PER_TRIAL == VAIN_PER_TRIAL - 1;
        if is_trial { self.max_ns } else { self.ns }
    }

    /// Notes that spinning for `spent_ns` found something.
    #[inline]
    pub fn pays(&mut self, spent_ns: u64) {
        self.vain = 0;
        self.ns = self.ns.max(spent_ns.saturating_mul(2)).min(self.max_ns);
    }

    /// Notes that a wait's budget was spent in vain.
    pub fn was_in_vain(&mut self) {
        self.vain = self.vain.wrapping_add(1);
        self.ns = (self.ns / 2).max(NS_MIN.min(self.max_ns));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_shrinks_when_in_vain_and_grows_when_it_pays() {
        let mut budget = SpinBudget::new(8_000);
        assert_eq!(budget.ns(), 8_000);
        budget.was_in_vain();
        assert_eq!(budget.ns(), 4_000);
        (0..8).for_each(|_| budget.was_in_vain());
        assert_eq!(budget.ns(), NS_MIN);
        budget.pays(3_000);
        assert_eq!(budget.ns(), 6_000);
        budget.pays(2_000);
        assert_eq!(budget.ns(), 6_000);
        budget.pays(5_000);
        assert_eq!(budget.ns(), 8_000);
    }

    #[test]
    fn a_wait_after_many_in_vain_tries_the_longest_spin() {
        let mut budget = SpinBudget::new(50_000);
        for _ in 0..3 {
            let budgets: Vec<_> = (0..VAIN_PER_TRIAL)
                .map(|_| {
                    let ns = budget.ns();
                    budget.was_in_vain();
                    ns
                })
                .collect();
            assert_eq!(budgets[VAIN_PER_TRIAL as usize - 1], 50_000);
            assert!(budgets[7..VAIN_PER_TRIAL as usize - 1].iter().all(|ns| *ns == NS_MIN), "{budgets:?}");
        }
    }

    #[test]
    fn a_budget_of_nothing_stays_nothing() {
        let mut budget = SpinBudget::new(0);
        budget.pays(5);
        budget.was_in_vain();
        (0..20).for_each(|_| budget.was_in_vain());
        assert_eq!(budget.ns(), 0);
    }
}

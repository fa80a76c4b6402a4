//! Words by which a thread that is about to sleep and a thread that has work for it never miss each other.
//!
//! A thread that is about to sleep announces it, and then checks once more whether there is work. A thread
//! that has work shows it, and then checks whether the other sleeps. Each has a `SeqCst` fence between its
//! two steps (label *sleep*). So at least one of the two sees the other, whatever orderings the work itself
//! is shown with. How a thread is woken (a doorbell, `unpark`) is up to the user. A wake-up must not be lost
//! if it comes before the sleep.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The word of one sleeper. It may lie in shared memory: any bit pattern is valid. A hostile peer that writes
/// it can only cause a wake-up too many or too few, of itself or of this end's peer.
#[repr(transparent)]
#[derive(Debug)]
pub struct Sleeper(AtomicU32);

impl Sleeper {
    /// Creates the word of a sleeper that is awake: no thread needs to wake it.
    pub fn awake() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Creates the word of a sleeper that is to be woken for the first work that comes.
    pub fn asleep() -> Self {
        Self(AtomicU32::new(1))
    }

    /// Announces that the sleeper is about to sleep and must be woken. It must check once more for work after
    /// this, and sleep only if there is none.
    #[inline]
    pub fn sleeps(&self) {
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // label: sleep
    }

    /// Withdraws the sleeper's announcement, because it searches for work itself.
    #[inline]
    pub fn is_up(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns whether the sleeper must be woken now. The waker calls it after it has shown work. It returns
    /// `true` once for each sleep.
    #[inline]
    pub fn must_be_woken(&self) -> bool {
        fence(Ordering::SeqCst); // label: sleep
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Relaxed) != 0
    }
}

/// The word of up to 64 sleepers that do the same work, one bit each. One party wakes them.
#[derive(Debug)]
pub struct Sleepers(AtomicU64);

impl Sleepers {
    /// The most sleepers that can be told apart.
    pub const MAX: usize = 64;

    /// Creates the word with all sleepers awake.
    pub fn awake() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Announces that sleeper `who` is about to sleep. It must check once more for work after this, and sleep
    /// only if there is none.
    ///
    /// # Panics
    /// Panics if `who` is [`Self::MAX`] or more.
    pub fn sleeps(&self, who: usize) {
        self.0.fetch_or(bit(who), Ordering::Relaxed);
        fence(Ordering::SeqCst); // label: sleep
    }

    /// Withdraws the announcement of sleeper `who`, because it searches for work itself.
    ///
    /// # Panics
    /// Panics if `who` is [`Self::MAX`] or more.
    pub fn is_up(&self, who: usize) {
        self.0.fetch_and(!bit(who), Ordering::Relaxed);
    }

    /// Returns the sleeper to wake for one piece of work; `None` if none sleeps. The waker calls it after it
    /// has shown the work. It names each sleeper once for each sleep.
    #[inline]
    pub fn to_wake(&self) -> Option<usize> {
        fence(Ordering::SeqCst); // label: sleep
        let sleeping = self.0.load(Ordering::Relaxed);
        if sleeping == 0 {
            return None;
        }
        let first = sleeping.trailing_zeros() as usize;
        self.0.fetch_and(!bit(first), Ordering::Relaxed);
        Some(first)
    }
}

fn bit(who: usize) -> u64 {
    assert!(who < Sleepers::MAX, "sleeper {who}, but at most {} can be told apart", Sleepers::MAX);
    1 << who
}

#[cfg(all(test, loom))]
mod loom;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_woken_once_a_sleep() {
        let one = Sleeper::awake();
        assert!(!one.must_be_woken());
        one.sleeps();
        assert!(one.must_be_woken() && !one.must_be_woken());
        one.sleeps();
        one.is_up();
        assert!(!one.must_be_woken());
        assert!(Sleeper::asleep().must_be_woken());
    }

    #[test]
    fn of_several_each_is_named_once() {
        let all = Sleepers::awake();
        assert_eq!(all.to_wake(), None);
        for who in [63, 0, 7] {
            all.sleeps(who);
        }
        all.is_up(0);
        assert_eq!([all.to_wake(), all.to_wake(), all.to_wake()], [Some(7), Some(63), None]);
    }
}

//! Words by which whoever is about to sleep and whoever has something for it never miss each other.
//!
//! Who sleeps says so, and then looks once more whether there is something; who has something shows it, and
//! then looks who sleeps. Each has a `SeqCst` fence between its two steps (label *sleep*), so that one of the
//! two sees the other, whatever orderings the thing itself is shown with. How somebody is woken (a doorbell,
//! `unpark`) is the user's; it must not be lost where it comes before the sleep.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// The word of one that sleeps. May lie in shared memory: any bit pattern is one of its values, and a
/// stranger that writes it can only cause a wake-up too many or too few, of itself or of this end's peer.
#[repr(transparent)]
#[derive(Debug)]
pub struct Sleeper(AtomicU32);

impl Sleeper {
    /// One that is awake: nobody needs to wake it.
    pub fn awake() -> Self {
        Self(AtomicU32::new(0))
    }

    /// One that is to be woken for the first thing that comes.
    pub fn asleep() -> Self {
        Self(AtomicU32::new(1))
    }

    /// Who sleeps: "wake me from now on". Look once more for something to do after this, and sleep only if
    /// there is nothing.
    #[inline]
    pub fn sleeps(&self) {
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // label: sleep
    }

    /// Who slept: "I look by myself".
    #[inline]
    pub fn is_up(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Who has shown something: whether it must wake the other now. Says so once a sleep.
    #[inline]
    pub fn must_be_woken(&self) -> bool {
        fence(Ordering::SeqCst); // label: sleep
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Relaxed) != 0
    }
}

/// Up to 64 that sleep and do the same work, one bit each. One party wakes them.
#[derive(Debug)]
pub struct Sleepers(AtomicU64);

impl Sleepers {
    /// How many can be told apart.
    pub const MAX: usize = 64;

    /// All of them awake.
    pub fn awake() -> Self {
        Self(AtomicU64::new(0))
    }

    /// This one is about to sleep. It looks once more for something to do after this, and sleeps only if
    /// there is nothing.
    ///
    /// # Panics
    /// Where `who` is [`Self::MAX`] or more.
    pub fn sleeps(&self, who: usize) {
        self.0.fetch_or(bit(who), Ordering::Relaxed);
        fence(Ordering::SeqCst); // label: sleep
    }

    /// This one looks by itself.
    ///
    /// # Panics
    /// As for [`Self::sleeps`].
    pub fn is_up(&self, who: usize) {
        self.0.fetch_and(!bit(who), Ordering::Relaxed);
    }

    /// Who has shown one thing to do: whom to wake for it, if they all but sleep. Names each once a sleep.
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

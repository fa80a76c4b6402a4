//! Threads and tasks that share an end and sleep until something comes.
//!
//! Whoever finds what another one waits for wakes it. Waking may run foreign code, and the end is locked
//! meanwhile. So those who are to be woken are only noted here, and woken when the lock was given back.

use std::cell::{Cell, RefCell};
use std::task::Waker;

/// One that sleeps.
struct Sleeper<W> {
    number: u64,
    wants: W,
    waker: Waker,
    is_thread: bool,
}

/// All who sleep now.
pub(crate) struct Sleepers<W> {
    asleep: RefCell<Vec<Sleeper<W>>>,
    any: Cell<bool>,
    /// Whether there is anything in `due` or `done`.
    any_left: Cell<bool>,
    /// Those who are to be woken.
    due: RefCell<Vec<Waker>>,
    /// Wakers that are of no use any more. Dropping them may run foreign code as well.
    done: RefCell<Vec<Waker>>,
}

impl<W> Default for Sleepers<W> {
    fn default() -> Self {
        Self {
            asleep: RefCell::default(),
            any: Cell::new(false),
            any_left: Cell::new(false),
            due: RefCell::default(),
            done: RefCell::default(),
        }
    }
}

impl<W: PartialEq> Sleepers<W> {
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.get()
    }

    /// Notes that the one with this number sleeps. It must not sleep already.
    pub(super) fn put(&self, number: u64, wants: W, waker: Waker, is_thread: bool) {
        self.asleep.borrow_mut().push(Sleeper { number, wants, waker, is_thread });
        self.any.set(true);
    }

    /// Notes that the one with this number does not sleep any more. Returns `false` where it was woken, or
    /// did not sleep.
    pub(super) fn take(&self, number: u64) -> bool {
        let taken = self.take_where(|sleeper| sleeper.number == number);
        let Some(sleeper) = taken else { return false };
        self.done.borrow_mut().push(sleeper.waker);
        self.any_left.set(true);
        true
    }

    /// Wakes one that waits for this; of several the one that fell asleep last, whose caches are warm.
    #[inline]
    pub(crate) fn wake_one(&self, wants: W) {
        if self.any() {
            self.wake_where(|sleeper| sleeper.wants == wants);
        }
    }

    /// Wakes the one that has waited longest for this.
    pub(crate) fn wake_oldest(&self, wants: W) {
        let oldest = self.asleep.borrow().iter().find(|sleeper| sleeper.wants == wants).map(|it| it.number);
        if let Some(oldest) = oldest {
            self.wake_where(|sleeper| sleeper.number == oldest);
        }
    }

    /// Wakes each one that waits for this.
    pub(crate) fn wake_each(&self, wants: W) {
        while self.wake_where(|sleeper| sleeper.wants == wants).is_some() {}
    }

    /// Wakes one thread. Returns its number; `None`: no thread sleeps.
    pub(super) fn wake_thread(&self) -> Option<u64> {
        self.wake_where(|sleeper| sleeper.is_thread)
    }

    /// Wakes all.
    #[cold]
    pub(crate) fn wake_all(&self) {
        while self.wake_where(|_| true).is_some() {}
    }

    /// Takes those who are to be woken, and the wakers that are to be dropped, where there are any.
    #[inline]
    pub(super) fn take_left(&self) -> Option<(Vec<Waker>, Vec<Waker>)> {
        self.any_left.take().then(|| (self.due.take(), self.done.take()))
    }

    fn wake_where(&self, is_wanted: impl Fn(&Sleeper<W>) -> bool) -> Option<u64> {
        let Sleeper { number, waker, .. } = self.take_where(is_wanted)?;
        self.due.borrow_mut().push(waker);
        self.any_left.set(true);
        Some(number)
    }

    fn take_where(&self, is_wanted: impl Fn(&Sleeper<W>) -> bool) -> Option<Sleeper<W>> {
        let mut asleep = self.asleep.borrow_mut();
        let at = asleep.iter().rposition(is_wanted)?;
        let taken = asleep.remove(at);
        self.any.set(!asleep.is_empty());
        Some(taken)
    }
}

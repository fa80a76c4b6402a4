//! Tasks of one thread that sleep on one session.
//!
//! They share the session's sleeping word, its doorbell and its ring. A task that reads a delivery may have
//! read what another task waits for. A task that clears the doorbell may have cleared it for another one. So
//! the sleeping tasks are woken then, and poll themselves.

use super::session::Session;
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::Waker;

/// The tasks that sleep now.
#[derive(Default)]
pub(super) struct SleepingTasks {
    wakers: RefCell<Vec<(u64, Waker)>>,
    any: Cell<bool>,
    /// Number of the next sleep of a task.
    numbers: Cell<u64>,
    /// Whether a task watches the session's own descriptor. A runtime registers each descriptor only once.
    is_watched: Cell<bool>,
}

impl SleepingTasks {
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.get()
    }

    /// Wakes all tasks. Each task learns from [`Sleep::is_over`] that it has to poll.
    #[cold]
    pub(super) fn wake(&self) {
        self.any.set(false);
        // Waking may run another task's code, so the list is not borrowed meanwhile.
        loop {
            let waker = self.wakers.borrow_mut().pop();
            let Some((_, waker)) = waker else { return };
            waker.wake();
        }
    }

    fn put(&self, number: u64, waker: &Waker) {
        let mut wakers = self.wakers.borrow_mut();
        match wakers.iter_mut().find(|(known, _)| *known == number) {
            Some((_, known)) => known.clone_from(waker),
            None => wakers.push((number, waker.clone())),
        }
        self.any.set(true);
    }

    fn take(&self, number: u64) {
        let mut wakers = self.wakers.borrow_mut();
        wakers.retain(|(known, _)| *known != number);
        self.any.set(!wakers.is_empty());
    }
}

/// A task's sleep, which ends when this value is dropped.
pub(super) struct Sleep<'s> {
    tasks: &'s SleepingTasks,
    number: u64,
    begun: Cell<bool>,
}

impl<'s> Sleep<'s> {
    pub(super) fn new(tasks: &'s SleepingTasks) -> Self {
        let number = tasks.numbers.get();
        tasks.numbers.set(number + 1);
        Self { tasks, number, begun: Cell::new(false) }
    }

    /// Whether another task woke this one since it began to sleep.
    pub(super) fn is_over(&self) -> bool {
        self.begun.get() && !self.tasks.wakers.borrow().iter().any(|(number, _)| *number == self.number)
    }

    /// Begins to sleep: `waker` wakes the task.
    pub(super) fn begin(&self, waker: &Waker) {
        self.begun.set(true);
        self.tasks.put(self.number, waker);
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        self.tasks.take(self.number);
    }
}

/// The session's descriptor for one task to watch: the session's own, or a copy where another task watches
/// that one.
pub(super) enum Watched<'s> {
    Own(&'s Session),
    Copy(OwnedFd),
}

impl<'s> Watched<'s> {
    pub(super) fn new(session: &'s Session) -> io::Result<Self> {
        if session.sleepers.is_watched.replace(true) {
            return Ok(Self::Copy(session.as_fd().try_clone_to_owned()?));
        }
        Ok(Self::Own(session))
    }
}

impl AsFd for Watched<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(session) => session.as_fd(),
            Self::Copy(copy) => copy.as_fd(),
        }
    }
}

impl AsRawFd for Watched<'_> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if let Self::Own(session) = self {
            session.sleepers.is_watched.set(false);
        }
    }
}

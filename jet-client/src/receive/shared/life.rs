//! One life of a shared session: the session with one daemon, from its registration to its end.
//!
//! The lock is held for single steps only: to take a message or a slice, to give one back, to fall asleep.
//! Nobody sleeps or spins while holding it.

#[cfg(feature = "tokio")]
use super::watch::Watch;
use crate::receive::error::ReceiveError;
use crate::receive::session::Session;
use crate::receive::wait::wait_for_one_of;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

pub(super) struct Life {
    state: Mutex<State>,
    /// The session's descriptor, to be waited for without the lock.
    fd: OwnedFd,
    /// Wakes the thread that waits for the descriptor, where another one read what it waits for.
    nudge: Arc<Nudge>,
    /// Number of the next wait.
    numbers: AtomicU64,
}

pub(super) struct State {
    pub session: Session,
    /// The one thread that waits for the session's descriptor. The other threads wait to be woken by it.
    pub leader: Option<u64>,
    /// The watch for the session's descriptor, on behalf of all tasks that wait.
    #[cfg(feature = "tokio")]
    pub watch: Option<Watch>,
}

impl Life {
    pub(super) fn new(session: Session) -> io::Result<Self> {
        Ok(Self {
            fd: session.as_fd().try_clone_to_owned()?,
            nudge: Arc::new(Nudge::new()?),
            numbers: AtomicU64::new(0),
            state: Mutex::new(State {
                session,
                leader: None,
                #[cfg(feature = "tokio")]
                watch: None,
            }),
        })
    }

    #[inline]
    pub(super) fn lock(&self) -> Locked<'_> {
        // What a panic under the lock may have left half done, an unshared session would have kept as well.
        Locked(Some(self.state.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Returns a number that tells this wait from others.
    pub(super) fn next_number(&self) -> u64 {
        // Relaxed is enough: only uniqueness matters.
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a waker for the thread that waits for the descriptor.
    pub(super) fn leaders_waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.nudge))
    }

    /// Sleeps as the leader: until the daemon rings or hangs up, somebody nudges, or `left` is over.
    pub(super) fn sleep(&self, left: Option<Duration>) -> Result<(), ReceiveError> {
        wait_for_one_of(&[self.fd.as_fd(), self.nudge.0.as_fd()], left).map_err(ReceiveError::Wait)?;
        self.nudge.clear();
        Ok(())
    }

    /// Returns another descriptor for the session's.
    #[cfg(feature = "tokio")]
    pub(super) fn clone_fd(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

impl State {
    /// Shows the daemon what was given back, where nobody is about to look and would show it.
    #[inline]
    pub(super) fn show_if_nobody_looks(&self) {
        if self.session.sleepers.any() {
            self.session.show_releases();
        }
    }
}

/// The state of a life, locked. Those who are to be woken are woken after the lock was given back.
pub(super) struct Locked<'l>(Option<MutexGuard<'l, State>>);

impl Deref for Locked<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        self.0.as_ref().expect("locked until it is dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("locked until it is dropped")
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(state) = self.0.take() else { return };
        let due = state.session.sleepers.take_due();
        drop(state);
        for waker in due {
            waker.wake();
        }
    }
}

/// An event that a thread can wait for beside other descriptors.
struct Nudge(OwnedFd);

impl Nudge {
    fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    fn clear(&self) {
        // It fails where nobody nudged.
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl Wake for Nudge {
    fn wake(self: Arc<Self>) {
        // It fails only where 2^64 - 2 nudges wait already.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }
}

//! The lock around a shared end, and what belongs to the end's sleep.

use super::End;
#[cfg(feature = "tokio")]
use super::watch::Watch;
use crate::spin::Spin;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

/// An end that threads and tasks share.
pub(crate) struct Hub<E: End> {
    state: Mutex<State<E>>,
    /// Wakes the thread that waits for the descriptor, where another one found what it waits for.
    nudge: Arc<Nudge>,
    /// Number of the next wait.
    numbers: AtomicU64,
}

/// An end, and those who use it.
pub(crate) struct State<E: End> {
    pub end: E,
    /// The one thread that waits for the descriptor. The other threads wait to be woken by it.
    pub(super) leader: Option<u64>,
    /// Time by which the leader looks, if nothing comes, as [`End::due_ns`] says it.
    pub(super) leader_due_ns: Option<u64>,
    /// The watches for the descriptor, on behalf of all tasks that wait.
    #[cfg(feature = "tokio")]
    pub(super) watches: Vec<Watch>,
    pub(super) spin: Spin,
    nudge: Arc<Nudge>,
    /// Copy of the end's descriptor, to be waited for without the lock, and the number of the original.
    descriptor: Option<(Arc<OwnedFd>, u32)>,
}

impl<E: End> Hub<E> {
    pub(crate) fn new(end: E, spin_max: Duration) -> io::Result<Self> {
        let nudge = Arc::new(Nudge::new()?);
        Ok(Self {
            nudge: Arc::clone(&nudge),
            numbers: AtomicU64::new(0),
            state: Mutex::new(State {
                end,
                leader: None,
                leader_due_ns: None,
                #[cfg(feature = "tokio")]
                watches: Vec::new(),
                spin: Spin::new(spin_max),
                nudge,
                descriptor: None,
            }),
        })
    }

    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, E> {
        // What a panic under the lock may have left half done, an end that is not shared would have kept as
        // well.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { state: Some(state) }
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

    /// Sleeps as the leader: until the descriptor is readable, somebody nudges, or `left` is over.
    pub(super) fn sleep(&self, descriptor: &OwnedFd, left: Option<Duration>) -> io::Result<()> {
        // A span that the system cannot express counts as no limit.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let of = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        match poll(&mut [of(descriptor.as_fd()), of(self.nudge.0.as_fd())], left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        self.nudge.clear();
        Ok(())
    }
}

impl<E: End> State<E> {
    /// Returns the number of runtimes that watch.
    #[cfg(all(test, feature = "tokio"))]
    pub(super) fn watches(&self) -> usize {
        self.watches.len()
    }

    /// Prepares the end for those who sleep on, and arranges with them when they look.
    #[cold]
    fn leave_prepared(&mut self) {
        if std::thread::panicking() {
            return self.end.sleepers().wake_all();
        }
        self.end.prepare_for_others();
        if !E::HAS_TIMES {
            return;
        }
        let due_ns = self.end.due_ns();
        if self.leader.is_some() && is_earlier(due_ns, self.leader_due_ns) {
            self.leader_due_ns = due_ns;
            self.nudge.ring();
        }
        #[cfg(feature = "tokio")]
        super::watch::arrange(self, due_ns);
    }

    /// Returns the copy of the end's descriptor, and the number of the original.
    pub(super) fn descriptor(&mut self) -> io::Result<(Arc<OwnedFd>, u32)> {
        let (original, number) = self.end.descriptor();
        if let Some((copy, known)) = &self.descriptor
            && *known == number
        {
            return Ok((Arc::clone(copy), number));
        }
        let copy = Arc::new(original.try_clone_to_owned()?);
        self.descriptor = Some((Arc::clone(&copy), number));
        Ok((copy, number))
    }
}

/// The state of a hub, locked. Those who are to be woken are woken after the lock was given back, and what
/// nobody hears of is dropped then.
pub(crate) struct Locked<'h, E: End> {
    /// There until it is dropped.
    state: Option<MutexGuard<'h, State<E>>>,
}

impl<E: End> Deref for Locked<'_, E> {
    type Target = State<E>;

    #[inline]
    fn deref(&self) -> &State<E> {
        self.state.as_ref().expect("locked until it is dropped")
    }
}

impl<E: End> DerefMut for Locked<'_, E> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State<E> {
        self.state.as_mut().expect("locked until it is dropped")
    }
}

impl<E: End> Drop for Locked<'_, E> {
    #[inline]
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        if state.end.sleepers().any() {
            state.leave_prepared();
        }
        let left = state.end.sleepers().take_left();
        let unheard = state.end.take_unheard();
        drop(state);
        drop(unheard);
        if let Some((due, done)) = left {
            drop(done);
            due.into_iter().for_each(Waker::wake);
        }
    }
}

/// Whether one time comes before another, where `None` is never.
fn is_earlier(due_ns: Option<u64>, arranged_ns: Option<u64>) -> bool {
    due_ns.is_some_and(|due| arranged_ns.is_none_or(|arranged| due < arranged))
}

/// An event that a thread can wait for beside other descriptors.
struct Nudge(OwnedFd);

impl Nudge {
    fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    fn ring(&self) {
        // It fails only where 2^64 - 2 nudges wait already.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        // It fails where nobody nudged.
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl Wake for Nudge {
    fn wake(self: Arc<Self>) {
        self.ring();
    }
}

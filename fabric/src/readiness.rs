//! Readiness of a NIC: one descriptor that wakes a sleeping NIC, made of an epoll of all its sockets and a
//! timer.

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Descriptors that one call of [`Readiness::poll`] reports, at most. The next call reports the rest.
pub(crate) const READY_MAX: usize = 64;

/// Token of the epoll's own timer. Callers of [`Readiness::add`] must use other numbers.
pub(crate) const TIMER: u64 = 0;

/// Buffer for the ready descriptors that one call of [`Readiness::poll`] finds.
pub(crate) type Ready = [Event; READY_MAX];

/// Makes an empty buffer for [`Readiness::poll`].
pub(crate) fn none_ready() -> Ready {
    [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; READY_MAX]
}

/// An epoll and its timer.
#[derive(Debug)]
pub(crate) struct Readiness {
    epoll: OwnedFd,
    timer: OwnedFd,
    timer_is_set: bool,
}

impl Readiness {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let this = Self { epoll, timer, timer_is_set: false };
        this.add(this.timer.as_fd(), TIMER, EventFlags::IN)?;
        Ok(this)
    }

    /// Watches a descriptor until it is removed. [`Self::poll`] reports the token when it finds the
    /// descriptor ready.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, token: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(token), flags)?)
    }

    /// Watches a descriptor until [`Self::forget`], without a token that tells it from others.
    #[cfg(feature = "verbs")]
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(u64::MAX), EventFlags::IN)?)
    }

    /// Undoes [`Self::watch`].
    #[cfg(feature = "verbs")]
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) {
        // A descriptor that was closed is no longer watched, so deleting it may fail.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Changes the events for which a watched descriptor is watched.
    pub(crate) fn modify(&self, fd: BorrowedFd<'_>, token: u64, flags: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(token), flags)?)
    }

    /// Stops watching a descriptor.
    ///
    /// # Panics
    /// Where the descriptor is not watched.
    pub(crate) fn remove(&self, fd: BorrowedFd<'_>) {
        epoll::delete(&self.epoll, fd).expect("a watched descriptor is removed once");
    }

    /// Fills the buffer with the descriptors that are ready now, and returns how many there are. It does not
    /// wait.
    pub(crate) fn poll(&self, ready: &mut Ready) -> usize {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, &mut ready[..], Some(&at_once)) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => panic!("an epoll of this NIC fails: {error}"),
        }
    }

    /// Sets the timer, which makes the epoll ready after `wait`. `None` switches the timer off.
    pub(crate) fn set_timer(&mut self, wait: Option<Duration>) {
        if wait.is_none() && !self.timer_is_set {
            return;
        }
        self.timer_is_set = wait.is_some();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A value of zero would disarm the timer, so a wait that is over becomes one of a nanosecond.
        let value = wait.map_or(zero, |wait| {
            Timespec::try_from(wait.max(Duration::from_nanos(1))).expect("waits are seconds, not ages")
        });
        let spec = Itimerspec { it_interval: zero, it_value: value };
        // Setting a timer also clears its readiness.
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &spec).expect("a timer of this NIC is set");
    }

    /// Returns the descriptor that a sleeping user waits on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

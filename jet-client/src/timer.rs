//! A timer that a task can wait for beside other descriptors, even if its runtime has no timers.

use rustix::fs::Timespec;
use rustix::io::read;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Shortest span that can be set; zero would disarm the timer.
const LEAST: Duration = Duration::from_nanos(1);
const NEVER: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A timer descriptor, which is readable when its time is over.
#[derive(Debug)]
pub(crate) struct Timer(Arc<OwnedFd>);

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(Arc::new(timerfd_create(TimerfdClockId::Monotonic, flags)?)))
    }

    /// Sets the timer, whose descriptor becomes readable after `left`; `None`: never.
    pub(crate) fn set(&self, left: Option<Duration>) -> io::Result<()> {
        // A span that the timer cannot express counts as no limit.
        let left = left.and_then(|left| Timespec::try_from(left.max(LEAST)).ok());
        let once = Itimerspec { it_interval: NEVER, it_value: left.unwrap_or(NEVER) };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }

    /// Makes the descriptor unreadable until the timer is set again.
    pub(crate) fn clear(&self) {
        // It fails where the time is not over.
        let _ = read(&self.0, &mut [0; 8]);
    }

    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0)
    }
}

//! A timer that a task can wait for beside a NIC, even if its runtime has no timers.

use super::error::WaitError;
use rustix::fs::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Shortest span that can be set; zero would disarm the timer.
const LEAST: Duration = Duration::from_nanos(1);

/// A timer descriptor, made when the timer is first set.
#[derive(Debug, Default)]
pub(super) struct Timer(Option<OwnedFd>);

impl Timer {
    /// Returns a descriptor that becomes readable after `left`. None where there is no limit.
    pub(super) fn set(&mut self, left: Option<Duration>) -> Result<Option<BorrowedFd<'_>>, WaitError> {
        // A span that the timer cannot express counts as no limit.
        let Some(left) = left.and_then(|left| Timespec::try_from(left.max(LEAST)).ok()) else {
            return Ok(None);
        };
        let failed = |error: rustix::io::Errno| WaitError::System(error.into());
        if self.0.is_none() {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            self.0 = Some(timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?);
        }
        let Some(timer) = &self.0 else { return Ok(None) };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: left };
        timerfd_settime(timer, TimerfdTimerFlags::empty(), &once).map_err(failed)?;
        Ok(Some(timer.as_fd()))
    }
}

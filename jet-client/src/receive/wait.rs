//! Waiting on a session: first by spinning, then by sleeping on the doorbell and the control connection.

use super::error::{HoldsAll, ReceiveError};
use super::message::Message;
use super::session::Session;
use jet_wire::segment::Notice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

impl Session {
    /// Waits for the next message to begin to arrive.
    ///
    /// # Errors
    /// [`ReceiveError`], final for the session except for [`ReceiveError::HoldsAll`].
    pub fn receive(&self) -> Result<Message<'_>, ReceiveError> {
        self.wait_for(None, || self.look())?.unwrap_or(Err(ReceiveError::NotYet))
    }

    /// Waits for the next message to begin to arrive, at most for `timeout`.
    ///
    /// # Errors
    /// [`ReceiveError::NotYet`]: the time ran out. Otherwise as [`Self::receive`].
    pub fn receive_timeout(&self, timeout: Duration) -> Result<Message<'_>, ReceiveError> {
        self.wait_for(Some(timeout), || self.look())?.unwrap_or(Err(ReceiveError::NotYet))
    }

    fn look(&self) -> Option<Result<Message<'_>, ReceiveError>> {
        arrived(self.try_receive())
    }

    /// Prepares to sleep, for an application with an event loop of its own. Call it after
    /// [`Self::try_receive`] and every message's `try_next` had nothing more.
    ///
    /// `true`: all released slices were given back, and something that arrives wakes the application. Wait
    /// until the session's descriptor is readable, then poll. `false`: something waits, or was read since the
    /// last call. So poll once more, every message too: what one poll reads may be for a message that was
    /// polled before.
    ///
    /// Whoever uses the session after `true` calls this function again before it sleeps.
    ///
    /// # Errors
    /// [`ReceiveError`], final for the session.
    pub fn prepare_sleep(&self) -> Result<bool, ReceiveError> {
        // What was read already wakes nobody any more. If nothing was read since the last call, each message
        // was polled after the last read.
        let read = self.deliveries_read.get();
        let is_all_seen = self.read_before.replace(read) == read;
        Ok(is_all_seen && !self.table.has_ready() && self.prepare_sleep_on_ring()?)
    }

    /// Shows the daemon what was given back, and sets the sleeping word. `false`: a delivery waits.
    pub(super) fn prepare_sleep_on_ring(&self) -> Result<bool, ReceiveError> {
        self.check()?;
        self.show_releases();
        let sleep = {
            let mut end = self.end.borrow_mut();
            end.deliveries.advance();
            end.deliveries.prepare_sleep()
        };
        self.asleep.set(sleep);
        Ok(sleep)
    }

    /// Returns what the application holds, where nothing more arrives before it gives something back. For an
    /// application with an event loop of its own. [`Self::receive`] and [`Message::next`] report this as an
    /// error.
    pub fn holds_all(&self) -> Option<HoldsAll> {
        if !self.is_well() {
            // Nobody waits for it any more.
            return None;
        }
        // Slices that were given back, but not shown to the daemon yet, count as given back.
        self.show_releases();
        self.end.borrow().notice().map(|notice| self.held(notice))
    }

    /// Checks before a sleep whether the wait would be in vain: the daemon put a notice that the application
    /// holds all that it may. Each notice is reported once.
    ///
    /// `others_may_release`: another thread or task may give something back meanwhile. Then only a lasting
    /// notice is reported.
    ///
    /// `reported_before` is the notice that was reported before this wait began. So each of several waits
    /// gets the error, and a wait that begins after it does not get the same error again.
    pub(super) fn check_held(
        &self,
        others_may_release: bool,
        reported_before: Option<Notice>,
    ) -> Result<(), ReceiveError> {
        let notice = self.end.borrow().notice().filter(|notice| notice.lasting || !others_may_release);
        match notice {
            Some(newest) if notice != reported_before => {
                self.reported_notice.set(notice);
                self.clear_sleep();
                Err(ReceiveError::HoldsAll(self.held(newest)))
            }
            _ => Ok(()),
        }
    }

    fn held(&self, notice: Notice) -> HoldsAll {
        HoldsAll { limit: notice.limit, held_bytes: self.table.held_bytes() }
    }

    /// Calls `poll` until it finds something. Returns `None` where the time ran out.
    pub(super) fn wait_for<T>(
        &self,
        timeout: Option<Duration>,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, ReceiveError> {
        let reported_before = self.reported_notice.get();
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if let Some(found) = self.spin_for(left, &mut poll) {
                return Ok(Some(found));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if self.prepare_sleep_on_ring()? {
                self.check_held(false, reported_before)?;
                self.stats.sleeps.set(self.stats.sleeps.get() + 1);
                self.sleep(left)?;
            }
        }
    }

    fn spin_for<T>(&self, left: Option<Duration>, poll: impl FnMut() -> Option<T>) -> Option<T> {
        let mut spin = self.spin.get();
        let found = spin.until(left, poll);
        self.spin.set(spin);
        found
    }

    fn sleep(&self, left: Option<Duration>) -> Result<(), ReceiveError> {
        // A span that the system cannot express counts as no limit.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(&self.as_fd(), PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(ReceiveError::Wait(io::Error::from(error))),
        }
    }
}

/// Returns what a look found, or `None` where a wait goes on.
#[inline]
pub(super) fn arrived<T, E: MayComeLater>(looked: Result<T, E>) -> Option<Result<T, E>> {
    match looked {
        Err(error) if error.is_not_yet() => None,
        found => Some(found),
    }
}

/// An error that may say no more than that something has not arrived yet.
pub(super) trait MayComeLater {
    fn is_not_yet(&self) -> bool;
}

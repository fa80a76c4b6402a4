//! Waiting on a session: first by spinning, then by sleeping on the doorbell and the control connection.

use super::error::{HoldsAll, ReceiveError};
use super::message::Message;
use super::session::Session;
#[cfg(feature = "tokio")]
use super::tasks::{Sleep, Watched};
use jet_wire::segment::Notice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::AsFd;
#[cfg(feature = "tokio")]
use std::task::Poll;
use std::time::{Duration, Instant};

impl Session {
    /// Waits for the next message to begin to arrive, at most for `timeout` (`None`: without limit). Returns
    /// `None` where the time ran out.
    ///
    /// # Errors
    /// [`ReceiveError`], final for the session except for [`ReceiveError::HoldsAll`].
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<Message<'_>>, ReceiveError> {
        self.wait_for(timeout, || self.try_receive().transpose())?.transpose()
    }

    /// Waits for the next message to begin to arrive. Cancelling the future loses nothing.
    ///
    /// The future borrows the session and is therefore not `Send`: run it with `block_on` or in a `LocalSet`.
    ///
    /// # Errors
    /// The errors of [`Self::receive`]. Another task may be about to give something back, so
    /// [`ReceiveError::HoldsAll`] is returned only where no task gave anything back for more than ten
    /// seconds.
    #[cfg(feature = "tokio")]
    pub async fn receive_async(&self) -> Result<Message<'_>, ReceiveError> {
        self.wait_for_async(|| self.try_receive().transpose()).await?
    }

    /// Prepares to sleep, for an application with an event loop of its own. Call it after
    /// [`Self::try_receive`] and every message's `try_next` had nothing more.
    ///
    /// `true`: all released slices were given back, and something that arrives wakes the application. Wait
    /// until the session's descriptor is readable, then poll. `false`: something waits, or was read since the
    /// last call. So poll once more, every message too: what one poll reads may be for a message that was
    /// polled before.
    ///
    /// A session has one event loop, and no tasks beside it. Whoever uses the session after `true` calls this
    /// function again before it sleeps.
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

    fn prepare_sleep_on_ring(&self) -> Result<bool, ReceiveError> {
        self.check()?;
        self.show_releases();
        let sleep = {
            let mut end = self.end.borrow_mut();
            end.deliveries.advance();
            end.deliveries.prepare_sleep()
        };
        self.asleep.set(sleep);
        if !sleep {
            // The sleeping word is not set any more, although other tasks may sleep on it: they have to poll.
            self.wake_tasks();
        }
        Ok(sleep)
    }

    /// Returns what the application holds, where nothing more arrives before it gives something back. For an
    /// application with an event loop of its own, and for tasks. [`Self::receive`] and [`Message::next`]
    /// report this as an error.
    pub fn holds_all(&self) -> Option<HoldsAll> {
        // Slices that were given back, but not shown to the daemon yet, count as given back.
        self.show_releases();
        self.end.borrow().notice().map(|notice| self.held(notice))
    }

    /// Checks before a sleep whether the wait would be in vain: the daemon put a notice that the application
    /// holds all that it may. Each notice is reported once.
    ///
    /// `others_may_release`: another task may give something back meanwhile. Then only a lasting notice is
    /// reported.
    ///
    /// `reported_before` is the notice that was reported before this wait began. So each of several waiting
    /// tasks gets the error, and a wait that begins after it does not get the same error again.
    fn check_held(
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
        if let Some(found) = poll() {
            return Ok(Some(found));
        }
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
            if let Some(found) = poll() {
                return Ok(Some(found));
            }
        }
    }

    /// Waits like [`Self::wait_for`], as a future and without limit.
    #[cfg(feature = "tokio")]
    pub(super) async fn wait_for_async<T>(
        &self,
        mut poll: impl FnMut() -> Option<T>,
    ) -> Result<T, ReceiveError> {
        use tokio::io::{Interest, unix::AsyncFd};
        let reported_before = self.reported_notice.get();
        loop {
            let read = self.deliveries_read.get();
            if let Some(found) = poll() {
                return Ok(found);
            }
            if let Some(found) = self.spin_for(None, &mut poll) {
                return Ok(found);
            }
            if self.deliveries_read.get() != read {
                continue;
            }
            if self.prepare_sleep_on_ring()? {
                self.check_held(true, reported_before)?;
                self.stats.sleeps.set(self.stats.sleeps.get() + 1);
                let watched = Watched::new(self).map_err(ReceiveError::Wait)?;
                // The registration is made for each sleep, so that a session is not bound to a runtime.
                // SAFETY: the descriptor stays open: a copy is the registration's own, and the session
                // outlives it.
                let fd = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) }
                    .map_err(|error| ReceiveError::Wait(error.into()))?;
                let sleep = Sleep::new(&self.sleepers);
                std::future::poll_fn(|context| {
                    // Another task of this thread may have read the delivery that this task waits for, and
                    // cleared the doorbell.
                    if sleep.is_over() {
                        return Poll::Ready(Ok(()));
                    }
                    sleep.begin(context.waker());
                    fd.poll_read_ready(context).map_ok(drop)
                })
                .await
                .map_err(ReceiveError::Wait)?;
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
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(&self.as_fd(), PollFlags::IN)], left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(ReceiveError::Wait(io::Error::from(error))),
        }
    }
}

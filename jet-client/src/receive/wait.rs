//! Waiting: spin, then sleep on the doorbell and the control connection.

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
    /// Waits for the next message to begin to arrive, without limit or at most so long. `None`: not in time.
    ///
    /// # Errors
    /// [`ReceiveError`], final for the session but for [`ReceiveError::HoldsAll`].
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<Message<'_>>, ReceiveError> {
        self.wait_for(timeout, || self.try_receive().transpose())?.transpose()
    }

    /// Waits for the next message to begin to arrive. Cancelling it loses nothing.
    ///
    /// The future borrows the session and is therefore not `Send`: run it with `block_on` or in a `LocalSet`.
    ///
    /// # Errors
    /// As [`Self::receive`]. Another task may be about to give something back: [`ReceiveError::HoldsAll`]
    /// comes only when none did for more than ten seconds.
    #[cfg(feature = "tokio")]
    pub async fn receive_async(&self) -> Result<Message<'_>, ReceiveError> {
        self.wait_for_async(|| self.try_receive().transpose()).await?
    }

    /// For an event loop of the application's own, after [`Self::try_receive`] and every message's `try_next`
    /// had nothing more: gives everything released back and asks to be woken. `true`: wait until the
    /// session's descriptor is readable, then poll; `false`: something came meanwhile, poll now.
    ///
    /// # Errors
    /// [`ReceiveError`], final for the session.
    pub fn prepare_sleep(&self) -> Result<bool, ReceiveError> {
        // What `flush` read may be for a message that the application looked at before.
        let read = self.flush_read.replace(false);
        Ok(!read && !self.table.has_ready() && self.prepare_sleep_on_ring()?)
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
            // The word is taken back, for tasks as well that sleep on it.
            self.let_tasks_look();
        }
        Ok(sleep)
    }

    /// Whether nothing more comes before the application gives something back. For an event loop of the
    /// application's own, and tasks: those that wait by [`Self::receive`] and [`Message::next`] are told.
    pub fn holds_all(&self) -> Option<HoldsAll> {
        // What was given back and not shown yet counts.
        self.show_releases();
        self.end.borrow().notice().map(|notice| self.held(notice))
    }

    /// About to sleep: says once for each notice of the daemon's that this is in vain. Who cannot give
    /// anything back while it waits is told at once, others by what lasts. `told_before`: what the
    /// application had been told of when this wait began. So each of several tasks that wait is told, and who
    /// asks again is not.
    fn check_held(&self, others_may_release: bool, told_before: Option<Notice>) -> Result<(), ReceiveError> {
        let notice = self.end.borrow().notice().filter(|notice| notice.lasting || !others_may_release);
        match notice {
            Some(told) if notice != told_before => {
                self.told.set(notice);
                self.awake();
                Err(ReceiveError::HoldsAll(self.held(told)))
            }
            _ => Ok(()),
        }
    }

    fn held(&self, notice: Notice) -> HoldsAll {
        HoldsAll { limit: notice.limit, held_bytes: self.table.held_bytes() }
    }

    /// Looks until `look` finds something; `None` where the time ran out.
    pub(super) fn wait_for<T>(
        &self,
        timeout: Option<Duration>,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>, ReceiveError> {
        if let Some(found) = look() {
            return Ok(Some(found));
        }
        let told_before = self.told.get();
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if let Some(found) = self.spin_for(left, &mut look) {
                return Ok(Some(found));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if self.prepare_sleep_on_ring()? {
                self.check_held(false, told_before)?;
                self.stats.sleeps.set(self.stats.sleeps.get() + 1);
                self.sleep(left)?;
            }
            if let Some(found) = look() {
                return Ok(Some(found));
            }
        }
    }

    /// As [`Self::wait_for`], without limit.
    #[cfg(feature = "tokio")]
    pub(super) async fn wait_for_async<T>(
        &self,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T, ReceiveError> {
        use tokio::io::{Interest, unix::AsyncFd};
        let told_before = self.told.get();
        loop {
            let read = self.deliveries_read.get();
            if let Some(found) = look() {
                return Ok(found);
            }
            if let Some(found) = self.spin_for(None, &mut look) {
                return Ok(found);
            }
            if self.deliveries_read.get() != read {
                continue;
            }
            if self.prepare_sleep_on_ring()? {
                self.check_held(true, told_before)?;
                self.stats.sleeps.set(self.stats.sleeps.get() + 1);
                let watched = Watched::new(self).map_err(ReceiveError::Wait)?;
                // Made for each sleep, so that a session is bound to no runtime.
                // SAFETY: the descriptor stays open: a copy is the registration's own, and the session
                // outlives it.
                let fd = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) }
                    .map_err(|error| ReceiveError::Wait(error.into()))?;
                let sleep = Sleep::new(&self.sleepers);
                std::future::poll_fn(|context| {
                    // Another task of this thread may have read what this one waits for, and silenced the
                    // doorbell.
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

    fn spin_for<T>(&self, left: Option<Duration>, look: impl FnMut() -> Option<T>) -> Option<T> {
        let mut spin = self.spin.get();
        let found = spin.until(left, look);
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

//! Waiting: spin, then sleep on the doorbell and the control connection.

use super::error::ReceiveError;
use super::message::Message;
use super::session::Session;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::AsFd;
#[cfg(feature = "tokio")]
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

impl Session {
    /// Waits for the next message to begin to arrive, without limit or at most so long. `None`: not in time.
    ///
    /// # Errors
    /// [`ReceiveError`], final for the session.
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<Message<'_>>, ReceiveError> {
        self.wait_for(timeout, || self.try_receive().transpose())?.transpose()
    }

    /// Waits for the next message to begin to arrive. Cancelling it loses nothing.
    ///
    /// The future borrows the session and is therefore not `Send`: run it with `block_on` or in a `LocalSet`.
    ///
    /// # Errors
    /// [`ReceiveError`], final for the session.
    #[cfg(feature = "tokio")]
    pub async fn receive_async(&self) -> Result<Message<'_>, ReceiveError> {
        self.wait_for_async(|| self.try_receive().transpose()).await?
    }

    /// For an event loop of the application's own, after [`Self::try_receive`] and every message's `try_next` had
    /// nothing more: gives everything released back and asks to be woken. `true`: wait until the session's descriptor
    /// is readable, then poll; `false`: something came meanwhile, poll now.
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
        let mut end = self.end.borrow_mut();
        end.deliveries.advance();
        let sleep = end.deliveries.prepare_sleep();
        self.asleep.set(sleep);
        Ok(sleep)
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
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(found) = self.spin_for(&mut look) {
                return Ok(Some(found));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if self.prepare_sleep_on_ring()? {
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
        loop {
            let read = self.deliveries_read.get();
            if let Some(found) = look() {
                return Ok(found);
            }
            if let Some(found) = self.spin_for(&mut look) {
                return Ok(found);
            }
            if self.deliveries_read.get() != read {
                continue;
            }
            if self.prepare_sleep_on_ring()? {
                self.stats.sleeps.set(self.stats.sleeps.get() + 1);
                // Made for each sleep, so that a session is bound to no runtime.
                // SAFETY: the borrowed descriptor stays open, because the session outlives the registration.
                let fd = unsafe { AsyncFd::register_with_interest(self.as_fd(), Interest::READABLE) }
                    .map_err(|error| ReceiveError::Wait(error.into()))?;
                std::future::poll_fn(|context| {
                    // Another task of this thread may have read what this one waits for, and silenced the doorbell.
                    if self.deliveries_read.get() != read {
                        return Poll::Ready(Ok(()));
                    }
                    self.wait_with_others(context.waker());
                    fd.poll_read_ready(context).map_ok(drop)
                })
                .await
                .map_err(ReceiveError::Wait)?;
            }
        }
    }

    #[cfg(feature = "tokio")]
    fn wait_with_others(&self, waker: &Waker) {
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        self.tasks_wait.set(true);
    }

    /// Something was read: tasks that wait look again.
    #[cfg(feature = "tokio")]
    #[cold]
    pub(super) fn wake_tasks(&self) {
        self.tasks_wait.set(false);
        // Waking may run another task's code: the list is not borrowed meanwhile.
        loop {
            let waker = self.wakers.borrow_mut().pop();
            let Some(waker) = waker else { return };
            waker.wake();
        }
    }

    fn spin_for<T>(&self, look: impl FnMut() -> Option<T>) -> Option<T> {
        let mut spin = self.spin.get();
        let found = spin.until(look);
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

//! A session that threads and tasks share, with messages and slices that belong to whoever holds them.

mod life;
mod message;
mod slice;
mod waiting;
#[cfg(feature = "tokio")]
mod watch;

use super::error::{ReceiveError, RegisterError};
use super::session::{RegisterOptions, Session, SessionStats};
use super::sleepers::Wants;
use super::wait::arrived;
#[cfg(feature = "tokio")]
use futures_core::Stream;
use life::Life;
pub use message::OwnedMessage;
#[cfg(feature = "tokio")]
pub use message::OwnedSlices;
pub use slice::OwnedSlice;
use std::fmt;
#[cfg(feature = "tokio")]
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::Duration;
#[cfg(feature = "tokio")]
use waiting::Wait;
use waiting::block;

/// A session that any number of threads and tasks use at once. Clones are handles of the same session.
///
/// Each message goes to one of those who wait. Its slices are `Send`, `Sync` and `'static`: they may be
/// handed to other threads, and return their slabs when they are dropped, wherever that is.
///
/// Every step takes a lock that is held for some ten nanoseconds. A program of one thread that wants to save
/// it uses a [`Session`].
///
/// The session ends when the last handle, message and slice is dropped.
#[derive(Clone)]
pub struct SharedSession {
    life: Arc<Life>,
}

impl SharedSession {
    /// Registers an application with the daemon of this host, like [`Session::register`].
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(options: &RegisterOptions) -> Result<Self, RegisterError> {
        Self::from_session(Session::register(options)?)
    }

    /// Shares a session.
    ///
    /// # Errors
    /// [`RegisterError::System`]: there are no descriptors left.
    pub fn from_session(session: Session) -> Result<Self, RegisterError> {
        Ok(Self { life: Arc::new(Life::new(session)?) })
    }

    /// Returns the daemon's number for this session, as `jet status` shows it.
    pub fn number(&self) -> u32 {
        self.life.lock().session.number()
    }

    /// Returns the session's counters.
    pub fn stats(&self) -> SessionStats {
        self.life.lock().session.stats()
    }

    /// Shows the daemon everything that was given back, now; see [`Session::flush`].
    pub fn flush(&self) {
        self.life.lock().session.flush();
    }

    /// Returns the next message, if one has begun to arrive.
    ///
    /// # Errors
    /// [`ReceiveError::NotYet`]: none has. Otherwise as [`Self::receive`].
    #[inline]
    pub fn try_receive(&self) -> Result<OwnedMessage, ReceiveError> {
        self.next_message(&self.life.lock().session)
    }

    /// Waits for the next message to begin to arrive.
    ///
    /// # Errors
    /// [`ReceiveError`], final for the session except for [`ReceiveError::HoldsAll`]. Another thread may be
    /// about to give something back, so that error is returned only where nothing was given back for more
    /// than ten seconds.
    pub fn receive(&self) -> Result<OwnedMessage, ReceiveError> {
        self.wait_for(None)
    }

    /// Waits for the next message to begin to arrive, at most for `timeout`.
    ///
    /// # Errors
    /// [`ReceiveError::NotYet`]: the time ran out. Otherwise as [`Self::receive`].
    pub fn receive_timeout(&self, timeout: Duration) -> Result<OwnedMessage, ReceiveError> {
        self.wait_for(Some(timeout))
    }

    fn wait_for(&self, timeout: Option<Duration>) -> Result<OwnedMessage, ReceiveError> {
        let look = |session: &Session| arrived(self.next_message(session));
        block(&self.life, Wants::Message, timeout, look)?.unwrap_or(Err(ReceiveError::NotYet))
    }

    #[inline]
    fn next_message(&self, session: &Session) -> Result<OwnedMessage, ReceiveError> {
        session.next_message().map(|index| OwnedMessage::new(&self.life, session, index))
    }

    /// Waits for the next message to begin to arrive, as a future. Cancelling it loses nothing.
    ///
    /// The runtime needs its I/O driver (`enable_io`), and no timers.
    ///
    /// # Errors
    /// As [`Self::receive`].
    #[cfg(feature = "tokio")]
    pub async fn receive_async(&self) -> Result<OwnedMessage, ReceiveError> {
        let mut wait = None;
        std::future::poll_fn(|context| self.poll_receive(&mut wait, context)).await
    }

    /// Returns the messages as a stream, which ends after an error that is final.
    #[cfg(feature = "tokio")]
    pub fn messages(&self) -> Messages {
        Messages { session: Some(self.clone()), wait: None }
    }

    #[cfg(feature = "tokio")]
    fn poll_receive(
        &self,
        wait: &mut Option<Wait>,
        context: &mut Context<'_>,
    ) -> Poll<Result<OwnedMessage, ReceiveError>> {
        if wait.is_none()
            && let Some(found) = arrived(self.try_receive())
        {
            return Poll::Ready(found);
        }
        let waiting = wait.get_or_insert_with(|| Wait::new(&self.life, Wants::Message));
        waiting.poll(context, |session| arrived(self.next_message(session))).map(|found| {
            *wait = None;
            found?
        })
    }
}

impl fmt::Debug for SharedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSession").field("number", &self.number()).finish_non_exhaustive()
    }
}

/// Stream of a session's messages.
#[cfg(feature = "tokio")]
#[derive(Debug)]
#[must_use = "a stream does nothing unless it is polled"]
pub struct Messages {
    /// The session, until the stream has ended.
    session: Option<SharedSession>,
    wait: Option<Wait>,
}

#[cfg(feature = "tokio")]
impl Stream for Messages {
    type Item = Result<OwnedMessage, ReceiveError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { session, wait } = &mut *self;
        let Some(receiving) = session else { return Poll::Ready(None) };
        let found = std::task::ready!(receiving.poll_receive(wait, context));
        // The application may give something back, and go on.
        if !matches!(found, Ok(_) | Err(ReceiveError::HoldsAll(_))) {
            *session = None;
        }
        Poll::Ready(Some(found))
    }
}

//! A session that threads and tasks share, with messages and slices that belong to whoever holds them.

mod end;
mod kept;
mod message;
mod returning;
mod slice;

use super::error::{HoldsAll, ReceiveError, RegisterError};
use super::session::{RegisterOptions, Session, SessionStats};
use super::wait::arrived;
use crate::shared::hub::Hub;
#[cfg(feature = "tokio")]
use crate::shared::wait::Wait;
use crate::shared::wait::block;
pub(super) use end::Wants;
#[cfg(feature = "tokio")]
use futures_core::Stream;
pub(super) use kept::Keeping;
pub use message::OwnedMessage;
#[cfg(feature = "tokio")]
pub use message::OwnedSlices;
#[cfg(feature = "tokio")]
use returning::Found;
use returning::{Outcome, Registration};
pub use slice::OwnedSlice;
use std::fmt;
#[cfg(feature = "tokio")]
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// One life of a shared session: the session with one daemon, from its registration to its end.
type Life = Hub<Session>;

/// A session that any number of threads and tasks use at once. Clones are handles of the same session.
///
/// Each message goes to one of those who wait. Its slices are `Send`, `Sync` and `'static`: they may be
/// handed to other threads, and return their slabs when they are dropped, wherever that is.
///
/// **It comes back.** When the daemon is gone, or drains, the session registers with the next one: whoever
/// waits for a message waits on, for as long as [`RegisterOptions::reconnect_for`] says. Slices of before
/// stay readable. Messages of before get no more slices, and what the application says of their ends is not
/// told any more: their senders send them again, marked [redelivered](OwnedMessage::redelivered).
///
/// Coming back begins when somebody receives; who only holds messages does not bring it about.
///
/// Every step takes a lock that is held for some ten nanoseconds. A program of one thread that wants to save
/// it uses a [`Session`], and so does an event loop: a shared session has no descriptor.
///
/// The session ends when the last handle, message and slice is dropped. A slice that is kept for long, in a
/// cache say, keeps the application's name registered, too.
#[derive(Clone)]
pub struct SharedSession {
    registration: Arc<Registration>,
}

impl SharedSession {
    /// Registers an application with the daemon of this host, like [`Session::register`]. Blocks until the
    /// daemon answers.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(options: &RegisterOptions) -> Result<Self, RegisterError> {
        Self::new(Session::register(options)?, Some(options.clone()))
    }

    /// Shares a session, which does not come back: how it was registered is not known. Messages and slices
    /// that were detached from it cannot be attached any more, so there should be none.
    ///
    /// # Errors
    /// [`RegisterError::System`]: there are no descriptors left.
    pub fn from_session(session: Session) -> Result<Self, RegisterError> {
        Self::new(session, None)
    }

    fn new(session: Session, options: Option<RegisterOptions>) -> Result<Self, RegisterError> {
        Ok(Self { registration: Arc::new(Registration::new(session, options)?) })
    }

    /// Returns the present daemon's number for this session, as `jet status` shows it.
    pub fn number(&self) -> u32 {
        self.registration.find().life.lock().end.number()
    }

    /// Returns the session's counters since it was last registered: they begin anew when it comes back.
    pub fn stats(&self) -> SessionStats {
        self.registration.find().life.lock().end.stats()
    }

    /// Shows the daemon everything that was given back, now; see [`Session::flush`].
    pub fn flush(&self) {
        self.registration.find().life.lock().end.flush();
    }

    /// Returns what the application holds, where nothing more arrives before it gives something back; see
    /// [`Session::holds_all`].
    pub fn holds_all(&self) -> Option<HoldsAll> {
        self.registration.find().life.lock().end.holds_all()
    }

    /// Returns the next message, if one has begun to arrive.
    ///
    /// # Errors
    /// [`ReceiveError::NotYet`]: none has, or the session is about to come back. Otherwise as
    /// [`Self::receive`].
    #[inline]
    pub fn try_receive(&self) -> Result<OwnedMessage, ReceiveError> {
        let found = self.registration.find();
        let error = match next_message(&found.life, &found.life.lock().end) {
            Err(error) if error.is_of_the_daemon() => error,
            received => return received,
        };
        self.registration.leave(&found, error)?;
        Err(ReceiveError::NotYet)
    }

    /// Waits for the next message to begin to arrive.
    ///
    /// # Errors
    /// [`ReceiveError`]. [`ReceiveError::NotBack`] and [`ReceiveError::HoldsAll`] are not final. Another
    /// thread may be about to give something back, so the latter is returned only where nothing was given
    /// back for more than ten seconds.
    pub fn receive(&self) -> Result<OwnedMessage, ReceiveError> {
        self.wait_until(None)
    }

    /// Waits for the next message to begin to arrive, at most for `timeout`.
    ///
    /// # Errors
    /// [`ReceiveError::NotYet`]: the time ran out. Otherwise as [`Self::receive`].
    pub fn receive_timeout(&self, timeout: Duration) -> Result<OwnedMessage, ReceiveError> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Result<OwnedMessage, ReceiveError> {
        loop {
            let found = self.registration.find();
            let look = |session: &mut Session| arrived(next_message(&found.life, session));
            let error = match block(&found.life, Wants::Message, deadline, look) {
                Ok(Some(Ok(message))) => return Ok(message),
                Ok(None) => return Err(ReceiveError::NotYet),
                Ok(Some(Err(error))) | Err(error) => error,
            };
            self.registration.leave(&found, error)?;
            if let Outcome::Pending = self.registration.wait(&found, deadline)? {
                return Err(ReceiveError::NotYet);
            }
        }
    }

    /// Waits for the next message to begin to arrive, as a future. Cancelling it loses nothing.
    ///
    /// The runtime needs its I/O driver (`enable_io`), and no timers. Before it sleeps the future spins, at
    /// most for [`RegisterOptions::spin_max`].
    ///
    /// # Errors
    /// As [`Self::receive`]; also where it has to wait and there is no tokio runtime.
    ///
    /// # Panics
    /// Where it has to wait in a tokio runtime without I/O (`enable_io`).
    #[cfg(feature = "tokio")]
    pub async fn receive_async(&self) -> Result<OwnedMessage, ReceiveError> {
        let mut wait = Receiving::Looks;
        std::future::poll_fn(|context| self.poll_receive(&mut wait, context)).await
    }

    /// Returns the messages as a stream, which ends after an error that is final
    /// ([`ReceiveError::is_final`]). Panics as [`Self::receive_async`] does.
    #[cfg(feature = "tokio")]
    pub fn messages(&self) -> Messages {
        Messages { session: Some(self.clone()), wait: Receiving::Looks }
    }

    #[cfg(feature = "tokio")]
    fn poll_receive(
        &self,
        wait: &mut Receiving,
        context: &mut Context<'_>,
    ) -> Poll<Result<OwnedMessage, ReceiveError>> {
        loop {
            let (found, received) = match wait {
                Receiving::Looks => {
                    let found = self.registration.find();
                    let looked = arrived(next_message(&found.life, &found.life.lock().end));
                    let Some(received) = looked else {
                        *wait = Receiving::Waits(Wait::new(&found.life, Wants::Message), found);
                        continue;
                    };
                    (found, received)
                }
                Receiving::Waits(waits, found) => {
                    let polled = waits.poll(context, |session| arrived(next_message(&found.life, session)));
                    (found.clone(), std::task::ready!(polled).flatten())
                }
                Receiving::Returns(found) => {
                    let outcome = self.registration.poll(found, context.waker());
                    if matches!(outcome, Ok(Outcome::Pending)) {
                        return Poll::Pending;
                    }
                    *wait = Receiving::Looks;
                    outcome?;
                    continue;
                }
            };
            *wait = Receiving::Looks;
            match received {
                Ok(message) => return Poll::Ready(Ok(message)),
                Err(error) => {
                    self.registration.leave(&found, error)?;
                    *wait = Receiving::Returns(found);
                }
            }
        }
    }
}

#[inline]
fn next_message(life: &Arc<Life>, session: &Session) -> Result<OwnedMessage, ReceiveError> {
    session.next_message().map(|index| OwnedMessage::new(life, session, index))
}

/// What a task that receives is about.
#[cfg(feature = "tokio")]
enum Receiving {
    Looks,
    Waits(Wait<Session>, Found),
    /// The life is over, and the session is to come back.
    Returns(Found),
}

impl fmt::Debug for SharedSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSession").field("number", &self.number()).finish_non_exhaustive()
    }
}

/// Stream of a session's messages.
#[cfg(feature = "tokio")]
#[must_use = "a stream does nothing unless it is polled"]
pub struct Messages {
    /// The session, until the stream has ended.
    session: Option<SharedSession>,
    wait: Receiving,
}

#[cfg(feature = "tokio")]
impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages").field("session", &self.session).finish_non_exhaustive()
    }
}

#[cfg(feature = "tokio")]
impl Stream for Messages {
    type Item = Result<OwnedMessage, ReceiveError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { session, wait } = &mut *self;
        let Some(receiving) = session else { return Poll::Ready(None) };
        let found = std::task::ready!(receiving.poll_receive(wait, context));
        if found.as_ref().is_err_and(ReceiveError::is_final) {
            *session = None;
        }
        Poll::Ready(Some(found))
    }
}

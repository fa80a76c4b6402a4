//! Calls: a message, and the reply to it.

use super::{SendHandle, SharedSender};
use crate::send::envelope::Envelope;
use crate::send::error::CallError;
#[cfg(doc)]
use crate::send::error::WaitError;
use crate::send::replies::Reply;
use crate::send::sender::Completion;
use jet_wire::message::AckStatus;
use std::time::{Duration, Instant};

impl SharedSender {
    /// Sends a small message, and waits for the reply to it. Waits for room, too, where as many messages as
    /// may be are without an end.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call<'e>(&self, envelope: impl Into<Envelope<'e>>, payload: &[u8]) -> Result<Reply, CallError> {
        self.call_until(envelope.into(), payload, None)
    }

    /// Calls like [`Self::call`], and waits at most for `timeout` ([`Duration::MAX`]: without limit). A
    /// message that was sent by then goes on, and its reply is dropped.
    ///
    /// # Errors
    /// [`CallError::Wait`] with [`WaitError::NotYet`]: the time ran out. Otherwise as [`Self::call`].
    pub fn call_timeout<'e>(
        &self,
        envelope: impl Into<Envelope<'e>>,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<Reply, CallError> {
        self.call_until(envelope.into(), payload, Instant::now().checked_add(timeout))
    }

    fn call_until(
        &self,
        envelope: Envelope<'_>,
        payload: &[u8],
        deadline: Option<Instant>,
    ) -> Result<Reply, CallError> {
        loop {
            match self.send_small(envelope.wants_reply(true), payload) {
                Err(error) if error.is_would_block() => self.wait_for_room(deadline)?,
                sent => return sent?.reply_until(deadline),
            }
        }
    }

    /// Calls like [`Self::call`], as a future. A message that was sent goes on where the future is dropped.
    ///
    /// # Errors
    /// As [`Self::call`]; also where it has to wait and there is no tokio runtime.
    ///
    /// # Panics
    /// Where it has to wait in a tokio runtime without I/O (`enable_io`).
    #[cfg(feature = "tokio")]
    pub async fn call_async<'e>(
        &self,
        envelope: impl Into<Envelope<'e>>,
        payload: &[u8],
    ) -> Result<Reply, CallError> {
        let envelope = envelope.into().wants_reply(true);
        loop {
            match self.send_small(envelope, payload) {
                Err(error) if error.is_would_block() => self.room_async().await?,
                sent => return reply_of(sent?.await?),
            }
        }
    }
}

impl SendHandle {
    /// Waits for the reply to the message, which must want one ([`Envelope::wants_reply`]). Dropping the
    /// reply makes its memory free.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn reply(self) -> Result<Reply, CallError> {
        self.reply_until(None)
    }

    fn reply_until(self, deadline: Option<Instant>) -> Result<Reply, CallError> {
        reply_of(self.wait_until(deadline)?)
    }

    /// Waits for the reply like [`Self::reply`], as a future.
    ///
    /// # Errors
    /// As [`Self::reply`]; also where it has to wait and there is no tokio runtime.
    ///
    /// # Panics
    /// Where it has to wait in a tokio runtime without I/O (`enable_io`).
    #[cfg(feature = "tokio")]
    pub async fn reply_async(self) -> Result<Reply, CallError> {
        reply_of(self.await?)
    }
}

/// Returns the reply that came with a message's end.
fn reply_of(end: Completion) -> Result<Reply, CallError> {
    match (end.status, end.reply) {
        (AckStatus::Consumed, Some(reply)) => Ok(reply),
        (AckStatus::Consumed, None) => Err(CallError::NoReply),
        (status, reply) => Err(CallError::Ended { status, reply }),
    }
}

//! Messages of a shared session.

use super::Life;
use super::Wants;
use super::kept::Kept;
use super::slice::OwnedSlice;
use crate::receive::error::{NotReplied, SliceError};
use crate::receive::message::Verdict;
use crate::receive::session::Session;
use crate::receive::wait::arrived;
#[cfg(feature = "tokio")]
use crate::shared::wait::Wait;
use crate::shared::wait::block;
#[cfg(feature = "tokio")]
use futures_core::Stream;
use std::fmt;
use std::num::NonZeroU32;
#[cfg(feature = "tokio")]
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A message of a [`SharedSession`](super::SharedSession). It belongs to whoever holds it: any thread or task
/// may take its slices and end it.
///
/// It ends like a [`Message`](crate::receive::Message): [`Self::consume`], [`Self::reject`], or, where it is
/// only dropped, consumed if all slices were taken. **Dropped earlier it is rejected for good**: its sender
/// does not send it again. A task that is aborted, or returns early with `?`, drops its message: end it
/// deliberately, or keep it outside of the task. Its sender hears the end after every slice was given back.
///
/// When the daemon is gone, nothing more of the message arrives ([`SliceError::Receive`]), and its end is not
/// told any more. Drop it then and receive on: the sender sends it again by way of the next daemon.
pub struct OwnedMessage {
    life: Kept,
    index: u32,
    tag: u64,
    sequence: u64,
    sender: u64,
    bytes: u64,
    redelivered: bool,
    wants_reply: bool,
    user_header: UserHeader,
    /// What the application decided, where it did.
    verdict: Option<Verdict>,
}

/// Where a message's user header lies in the session's table.
struct UserHeader {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the bytes do not change while the message lives, so any thread may read them.
unsafe impl Send for UserHeader {}
// SAFETY: as above.
unsafe impl Sync for UserHeader {}

impl OwnedMessage {
    pub(super) fn new(life: &Arc<Life>, session: &Session, index: u32) -> Self {
        let entry = session.table.message(index);
        let user_header = session.table.user_header(index);
        Self {
            life: Kept::new(life, session),
            index,
            tag: entry.tag.get(),
            sequence: entry.sequence.get(),
            sender: entry.sender.get(),
            bytes: entry.bytes.get(),
            redelivered: entry.redelivered.get(),
            wants_reply: entry.wants_reply.get(),
            user_header: UserHeader { first: NonNull::from(user_header).cast(), bytes: user_header.len() },
            verdict: None,
        }
    }

    /// Returns the number that the sender attached to the message.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns the sender's sequence number of the message. It counts from 1, and continues when the sender
    /// reconnects.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the sender's identity, which stays the same when the sender reconnects.
    pub fn sender(&self) -> u64 {
        self.sender
    }

    /// Whether the message was sent before: this application, or an earlier one of its name, may have seen
    /// it.
    pub fn redelivered(&self) -> bool {
        self.redelivered
    }

    /// Whether the sender has memory for a reply, see [`Self::reply`].
    pub fn wants_reply(&self) -> bool {
        self.wants_reply
    }

    /// Returns the length of the whole message, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the user header: at most 96 bytes of a small message, 256 of a large one.
    pub fn user_header(&self) -> &[u8] {
        let UserHeader { first, bytes } = self.user_header;
        // SAFETY: the life keeps the session's table, which does not move. Only the beginning of another
        // message writes the bytes, and none begins in this place before this message has ended.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), bytes) }
    }

    /// Returns the next slice, if it has arrived. `None`: all slices were given.
    ///
    /// Slices are given in the order of their arrival, which is not always the order of
    /// [`OwnedSlice::offset`].
    ///
    /// # Errors
    /// [`SliceError::NotYet`]: it has not arrived. Otherwise as [`Self::next`].
    #[inline]
    pub fn try_next(&mut self) -> Result<Option<OwnedSlice>, SliceError> {
        self.look(&self.life.lock().end)
    }

    /// Waits for the next slice. Returns `None` where all slices were given.
    ///
    /// Give each slice back as soon as it was used. A message may be larger than the pool. An application
    /// that keeps all of its slices until the last one arrives waits in vain, and gets
    /// [`SliceError::HoldsAll`]. Another thread may be about to give something back, so this error is
    /// returned only where nothing was given back for more than ten seconds.
    ///
    /// # Errors
    /// [`SliceError::Withdrawn`] where the rest will not arrive; [`SliceError::HoldsAll`];
    /// [`SliceError::Receive`] where the session ended.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator could not fail; the other forms are next_..."
    )]
    pub fn next(&mut self) -> Result<Option<OwnedSlice>, SliceError> {
        self.wait(None)
    }

    /// Waits for the next slice like [`Self::next`], at most for `timeout`.
    ///
    /// # Errors
    /// [`SliceError::NotYet`]: the time ran out. Otherwise as [`Self::next`].
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<OwnedSlice>, SliceError> {
        self.wait(Some(timeout))
    }

    /// Waits for the next slice like [`Self::next`], as a future. Cancelling it loses nothing.
    ///
    /// # Errors
    /// As [`Self::next`]; also where it has to wait and there is no tokio runtime.
    ///
    /// # Panics
    /// Where it has to wait in a tokio runtime without I/O (`enable_io`).
    #[cfg(feature = "tokio")]
    pub async fn next_async(&mut self) -> Result<Option<OwnedSlice>, SliceError> {
        let mut wait = None;
        std::future::poll_fn(|context| self.poll_next(&mut wait, context)).await
    }

    /// Returns the slices as a stream, which ends after the last one, or after an error other than
    /// [`SliceError::HoldsAll`]. Panics as [`Self::next_async`] does.
    #[cfg(feature = "tokio")]
    pub fn slices(&mut self) -> OwnedSlices<'_> {
        OwnedSlices { message: Some(self), wait: None }
    }

    /// Polls for the next slice. Where it has not arrived, `wait` becomes a wait that wakes the task.
    #[cfg(feature = "tokio")]
    fn poll_next(
        &self,
        wait: &mut Option<Wait<Session>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<OwnedSlice>, SliceError>> {
        let index = self.index;
        if wait.is_none()
            && let Some(found) = arrived(self.look(&self.life.lock().end))
        {
            return Poll::Ready(found);
        }
        let waiting =
            wait.get_or_insert_with(|| Wait::new(&self.life.arc(), Wants::Slice { message: index }));
        waiting.poll(context, |session| arrived(self.look(session))).map(|found| {
            *wait = None;
            found?
        })
    }

    pub(in crate::receive) fn wait(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Option<OwnedSlice>, SliceError> {
        let wants = Wants::Slice { message: self.index };
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if let Some(found) = arrived(self.look(&self.life.lock().end)) {
            return found;
        }
        let found = block(&self.life.arc(), wants, deadline, |session| arrived(self.look(session)))?;
        found.unwrap_or(Err(SliceError::NotYet))
    }

    /// Looks for the next slice, in the session that is locked.
    #[inline]
    fn look(&self, session: &Session) -> Result<Option<OwnedSlice>, SliceError> {
        let run = session.next_run(self.index)?;
        Ok(run.map(|run| OwnedSlice::new(self.life.again(session), run)))
    }

    /// Ends the message as consumed, as [`Message::consume`](crate::receive::Message::consume) does. Slices
    /// that were not taken are released unread.
    pub fn consume(self) {
        self.end(Verdict::Consumed);
    }

    /// Ends the message as rejected. Its sender hears the code (an errno, say).
    pub fn reject(self, code: NonZeroU32) {
        self.end(Verdict::Rejected(code));
    }

    /// Ends the message with a verdict; see [`Self::consume`] and [`Self::reject`].
    pub fn end(mut self, verdict: Verdict) {
        self.verdict = Some(verdict);
    }

    /// Ends the message as consumed, with a reply of at most 4096 bytes, which its sender hears with the end
    /// ([`Completion::reply`](crate::send::Completion::reply)). Slices that were not taken are released
    /// unread.
    ///
    /// Where the sender connects again before it has heard that, or the daemon is gone, the message comes
    /// again, marked [redelivered](Self::redelivered), and is to be replied to again. A message that is
    /// withdrawn before all of it came has no reply.
    ///
    /// # Errors
    /// [`NotReplied`], with the message: its sender wants none ([`Self::wants_reply`]), or the reply is too
    /// long.
    pub fn reply(self, reply: &[u8]) -> Result<(), NotReplied<Self>> {
        self.reply_as(Verdict::Consumed, reply)
    }

    /// Ends the message with a verdict and a reply, see [`Self::reply`].
    ///
    /// # Errors
    /// As [`Self::reply`].
    pub fn reply_as(self, verdict: Verdict, reply: &[u8]) -> Result<(), NotReplied<Self>> {
        let written = self.life.lock().end.write_reply(self.index, reply);
        if let Err(error) = written {
            return Err(NotReplied { error, message: self });
        }
        self.end(verdict);
        Ok(())
    }
}

impl Drop for OwnedMessage {
    #[inline]
    fn drop(&mut self) {
        let Self { life, index, verdict, .. } = self;
        life.give_back(|session| {
            match verdict {
                Some(verdict) => session.end_message(*index, verdict.code()),
                None => session.drop_message(*index),
            }
            session.show_what_is_waited_for();
        });
    }
}

impl fmt::Debug for OwnedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedMessage")
            .field("tag", &self.tag)
            .field("sender", &self.sender)
            .field("sequence", &self.sequence)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Stream of a message's slices.
#[cfg(feature = "tokio")]
#[derive(Debug)]
#[must_use = "a stream does nothing unless it is polled"]
pub struct OwnedSlices<'m> {
    /// The message, until the stream has ended.
    message: Option<&'m mut OwnedMessage>,
    wait: Option<Wait<Session>>,
}

#[cfg(feature = "tokio")]
impl Stream for OwnedSlices<'_> {
    type Item = Result<OwnedSlice, SliceError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { message, wait } = &mut *self;
        let Some(taken) = message else { return Poll::Ready(None) };
        let found = std::task::ready!(taken.poll_next(wait, context)).transpose();
        let goes_on = match &found {
            Some(Ok(_)) => true,
            // The application may give something back, and go on.
            Some(Err(error)) => matches!(error, SliceError::HoldsAll(_)),
            None => false,
        };
        if !goes_on {
            *message = None;
        }
        Poll::Ready(found)
    }
}

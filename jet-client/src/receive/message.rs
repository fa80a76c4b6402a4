//! A message of a session that arrived, or is arriving.

use super::error::{Fault, NotReplied, ReceiveError, SliceError};
use super::session::Session;
use super::slice::{Run, Slice};
use super::table::SlotState;
use super::wait::arrived;
use super::{REJECT_DROPPED, table};
use jet_wire::SLAB_BYTES;
use jet_wire::segment::{PinError, Place};
use std::fmt;
use std::mem::ManuallyDrop;
use std::num::NonZeroU32;
use std::time::Duration;

/// A message. A small one has arrived whole; a large one gives its slices as they arrive, while the rest is
/// still under way.
///
/// The message has exactly one end, which its sender hears only after every slice was released:
///
/// * dropped after all slices were taken: consumed;
/// * [`Self::reject`]: rejected, with the application's code;
/// * dropped earlier, or while panicking: rejected with [`REJECT_DROPPED`];
/// * [`Self::consume`]: consumed, whatever was taken. If not all of it has arrived, the end follows when the
///   rest has.
pub struct Message<'s> {
    session: &'s Session,
    index: u32,
}

/// The application's decision about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The application has what it needs.
    Consumed,
    /// The application refuses the message, with its own code (an errno, say).
    Rejected(NonZeroU32),
}

impl Verdict {
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Consumed => 0,
            Self::Rejected(code) => code.get(),
        }
    }
}

/// A message without its borrow of the session, to be kept elsewhere until [`Session::finish`].
///
/// A message that is never finished has no end before the session ends. Its sender then hears `AppGone`.
#[derive(Debug)]
#[must_use = "a detached message has no end until Session::finish"]
pub struct DetachedMessage {
    session: u64,
    index: u32,
}

impl<'s> Message<'s> {
    pub(super) fn new(session: &'s Session, index: u32) -> Self {
        Self { session, index }
    }

    fn entry(&self) -> &'s table::MessageEntry {
        self.session.table.message(self.index)
    }

    /// Returns the number that the sender attached to the message.
    pub fn tag(&self) -> u64 {
        self.entry().tag.get()
    }

    /// Returns the sender's sequence number of the message. It counts from 1, and continues when the sender
    /// reconnects.
    pub fn sequence(&self) -> u64 {
        self.entry().sequence.get()
    }

    /// Returns the sender's identity, which stays the same when the sender reconnects.
    pub fn sender(&self) -> u64 {
        self.entry().sender.get()
    }

    /// Whether the message was sent before: this application, or an earlier one of its name, may have seen
    /// it.
    pub fn redelivered(&self) -> bool {
        self.entry().redelivered.get()
    }

    /// Whether the sender has memory for a reply, see [`Self::reply`].
    pub fn wants_reply(&self) -> bool {
        self.entry().wants_reply.get()
    }

    /// Returns the length of the whole message, in bytes.
    pub fn bytes(&self) -> u64 {
        self.entry().bytes.get()
    }

    /// Returns the user header: at most 96 bytes of a small message, 256 of a large one.
    pub fn user_header(&self) -> &[u8] {
        self.session.table.user_header(self.index)
    }

    /// Returns the next slice, if it has arrived. `None`: all slices were given.
    ///
    /// Slices are given in the order of their arrival, which is not always the order of [`Slice::offset`].
    ///
    /// # Errors
    /// [`SliceError::NotYet`]: it has not arrived. Otherwise as [`Self::next`].
    #[inline]
    pub fn try_next(&mut self) -> Result<Option<Slice<'s>>, SliceError> {
        Ok(self.session.next_run(self.index)?.map(|run| Slice::new(self.session, run)))
    }

    /// Waits for the next slice. Returns `None` where all slices were given.
    ///
    /// Give each slice back as soon as it was used. A message may be larger than the pool. An application
    /// that keeps all of its slices until the last one arrives waits in vain, and gets
    /// [`SliceError::HoldsAll`].
    ///
    /// # Errors
    /// [`SliceError::Withdrawn`] where the rest will not arrive; [`SliceError::HoldsAll`];
    /// [`SliceError::Receive`] where the session ended.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator could not fail; the other forms are next_..."
    )]
    pub fn next(&mut self) -> Result<Option<Slice<'s>>, SliceError> {
        self.wait(None)
    }

    /// Waits for the next slice like [`Self::next`], at most for `timeout`.
    ///
    /// # Errors
    /// [`SliceError::NotYet`]: the time ran out. Otherwise as [`Self::next`].
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<Slice<'s>>, SliceError> {
        self.wait(Some(timeout))
    }

    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<Slice<'s>>, SliceError> {
        let session = self.session;
        session.wait_for(timeout, || arrived(self.try_next()))?.unwrap_or(Err(SliceError::NotYet))
    }

    /// Ends the message as consumed. Slices that were not taken are released unread.
    ///
    /// If not all of the message has arrived, the rest is released unread as it arrives, and the sender hears
    /// `Consumed` after the last of it. The next calls on the session do that: [`Session::receive`],
    /// [`Session::try_receive`], another message's [`Self::next`] and [`Self::try_next`], or
    /// [`Session::flush`]. An application that makes none of them keeps the rest's slabs from the pool.
    ///
    /// A message that is withdrawn meanwhile was not consumed: its sender hears why. Use [`Self::reject`] to
    /// have no more of the message sent.
    pub fn consume(self) {
        self.end(Verdict::Consumed);
    }

    /// Ends the message as rejected. Its sender hears the code (an errno, say).
    pub fn reject(self, code: NonZeroU32) {
        self.end(Verdict::Rejected(code));
    }

    /// Ends the message with a verdict; see [`Self::consume`] and [`Self::reject`].
    pub fn end(self, verdict: Verdict) {
        let message = ManuallyDrop::new(self);
        message.session.end_message(message.index, verdict.code());
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
        if let Err(error) = self.session.write_reply(self.index, reply) {
            return Err(NotReplied { error, message: self });
        }
        self.end(verdict);
        Ok(())
    }

    /// Gives up the message's borrow of the session; see [`DetachedMessage`].
    pub fn detach(self) -> DetachedMessage {
        let message = ManuallyDrop::new(self);
        DetachedMessage { session: message.session.identity, index: message.index }
    }
}

impl Drop for Message<'_> {
    #[inline]
    fn drop(&mut self) {
        self.session.drop_message(self.index);
    }
}

impl fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("tag", &self.tag())
            .field("sender", &self.sender())
            .field("sequence", &self.sequence())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Ends a detached message. Its slices may be given back before or after.
    ///
    /// # Panics
    /// Where the message belongs to another session.
    pub fn finish(&self, message: DetachedMessage, verdict: Verdict) {
        self.attach(message).end(verdict);
    }

    /// Binds a detached message to its session again.
    ///
    /// # Panics
    /// Where the message belongs to another session.
    pub fn attach(&self, message: DetachedMessage) -> Message<'_> {
        assert_eq!(message.session, self.identity, "the message belongs to another session");
        Message::new(self, message.index)
    }

    /// Takes the next run of a message, if it has arrived. `None`: all runs were taken.
    #[inline]
    pub(super) fn next_run(&self, index: u32) -> Result<Option<Run>, SliceError> {
        let message = self.table.message(index);
        self.check()?;
        loop {
            if let Some(corrupt) = message.withdrawn.get() {
                return Err(SliceError::Withdrawn { corrupt });
            }
            if let Some(slot) = self.table.take_run(index) {
                return self.take(slot, message).map(Some);
            }
            if message.complete.get() {
                return Ok(None);
            }
            if !self.demultiplex()? {
                self.after_empty_poll()?;
                return Err(SliceError::NotYet);
            }
        }
    }

    /// Pins the run in slot `index`, and finds its bytes.
    fn take(&self, index: u32, message: &table::MessageEntry) -> Result<Run, SliceError> {
        let slot = self.table.slot(index);
        let slices = slot.slices_left.get();
        let pinned = self.end.borrow().slot(index).map(|word| word.pin(slot.generation.get()));
        let place = match pinned {
            Some(Ok(place)) => place,
            // The daemon puts no other run there before this one is released.
            Some(Err(PinError::Stale)) => return Err(self.broken(Fault::Run { slot: index }).into()),
            Some(Err(PinError::Pinned)) | None => {
                return Err(self.broken(Fault::Pinned { slot: index }).into());
            }
        };
        let Some(bytes) = self.locate(place, slices) else {
            let Place { slab, escaped } = place;
            return Err(self.broken(Fault::Place { slot: index, slab, escaped, slices }).into());
        };
        slot.state.set(SlotState::Taken);
        message.runs_taken.set(message.runs_taken.get() + 1);
        let length = slot.bytes.get() as usize;
        debug_assert!(length <= usize::from(slices) * SLAB_BYTES);
        self.stats.slices.set(self.stats.slices.get() + 1);
        self.stats.bytes.set(self.stats.bytes.get() + length as u64);
        Ok(Run::new(bytes, length, slot.offset.get(), index, slices))
    }

    /// Ends a message as its handle is dropped: as consumed where all of it was taken, unless a panic drops
    /// it; otherwise as rejected.
    #[inline]
    pub(super) fn drop_message(&self, index: u32) {
        let message = self.table.message(index);
        let whole = message.complete.get() && message.head.get() == table::NONE;
        let consumed = whole && message.withdrawn.get().is_none() && !std::thread::panicking();
        self.end_message(index, if consumed { 0 } else { REJECT_DROPPED });
    }

    pub(super) fn broken(&self, fault: Fault) -> ReceiveError {
        self.break_down(fault);
        ReceiveError::Broken(fault)
    }
}

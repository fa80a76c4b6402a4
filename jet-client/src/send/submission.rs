//! Submission of messages: they are checked, and kept until their end because they may have to be sent again.

use super::buffer::SendBuffer;
use super::driver::Driver;
use super::envelope::Envelope;
use super::error::{BufferError, DeregisterError, NotGathered, NotSent, SendError};
use super::held::Held;
use super::memory::SendMemory;
use super::replies::Reply;
use crate::backoff::nanoseconds;
use jet_fabric::nic::RegisterError;
use jet_wire::SLAB_BYTES;
use jet_wire::message::{PIECES_MAX, REQUEST_INLINE_USER_HEADER_MAX, SMALL_USER_HEADER_MAX, USER_HEADER_MAX};
use std::fmt;

/// Names a message of a sender: the message's sequence number, counting from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A message that is kept until its end, because it may have to be sent again.
#[derive(Debug)]
pub(super) struct Pending {
    pub tag: u64,
    pub class: u8,
    pub large: bool,
    pub length: u64,
    pub crc32c: Option<u32>,
    pub submitted_ns: u64,
    pub held: Held,
    pub wants_reply: bool,
    /// The reply, once it is there.
    pub reply: Option<Reply>,
    pub user_header_bytes: usize,
    /// User header. A longer one (of a large message) lies in the message's place of the copy area.
    pub user_header: [u8; SMALL_USER_HEADER_MAX],
}

impl Pending {
    /// Value for a place without a message.
    pub(super) const NONE: Self = Self {
        tag: 0,
        class: 0,
        large: false,
        length: 0,
        crc32c: None,
        submitted_ns: 0,
        held: Held::Copied,
        wants_reply: false,
        reply: None,
        user_header_bytes: 0,
        user_header: [0; SMALL_USER_HEADER_MAX],
    };

    /// Returns the user header. For a user header that is sent as the payload it returns a filler of the same
    /// length, because only the length is needed.
    pub(super) fn header_or_filler(&self) -> &[u8] {
        const FILLER: [u8; USER_HEADER_MAX] = [0; USER_HEADER_MAX];
        self.user_header.get(..self.user_header_bytes).unwrap_or(&FILLER[..self.user_header_bytes])
    }
}

impl Driver {
    /// Whether messages that are submitted now carry a checksum, see [`super::Sender::sends_checksums`].
    pub fn sends_checksums(&self) -> bool {
        self.crc && self.protocol.receiver_checks()
    }

    /// Returns the checksum of a message that lies in these stretches, where it is to have one.
    #[inline]
    fn checksum<'a>(&mut self, stretches: impl IntoIterator<Item = &'a [u8]>) -> Option<u32> {
        let made = self.sends_checksums().then(|| stretches.into_iter().fold(0, crc32c::crc32c_append));
        self.unchecked += u64::from(self.crc && made.is_none());
        made
    }

    /// Returns a registered buffer of `bytes` bytes, see [`super::Sender::buffer`].
    ///
    /// # Errors
    /// [`BufferError`].
    pub fn buffer(&mut self, bytes: usize) -> Result<SendBuffer, BufferError> {
        self.buffers.get(self.nic.as_mut(), bytes)
    }

    /// Returns `count` registered buffers of `bytes` bytes each, see [`super::Sender::buffers`].
    ///
    /// # Errors
    /// [`BufferError`].
    pub fn buffers(&mut self, bytes: usize, count: usize) -> Result<Vec<SendBuffer>, BufferError> {
        self.buffers.get_row(self.nic.as_mut(), bytes, count)
    }

    /// Registers memory of the program, see [`super::Sender::register`].
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(&mut self, memory: &SendMemory) -> Result<(), RegisterError> {
        self.buffers.register(self.nic.as_mut(), memory)
    }

    /// Ends the registration of the program's memory, see [`super::Sender::deregister`].
    ///
    /// # Errors
    /// [`DeregisterError`].
    pub fn deregister(&mut self, memory: &SendMemory) -> Result<(), DeregisterError> {
        let in_flight = self.pending.iter().map(|pending| &pending.held);
        self.buffers.deregister(self.nic.as_mut(), memory, in_flight)
    }

    /// Submits a small message at the time `now_ns`, see [`super::Sender::send_small`].
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_small<'a>(
        &mut self,
        now_ns: u64,
        envelope: impl Into<Envelope<'a>>,
        payload: &[u8],
    ) -> Result<Ticket, SendError> {
        let envelope = envelope.into();
        let bytes = small_length(envelope.user_header, payload.len())?;
        self.check_replies(&envelope)?;
        let taken = self.protocol.submit_small(bytes, now_ns)?;
        self.copy_area.write(taken.0, 0, payload);
        let crc32c = self.checksum([payload]);
        let fields = Fields { envelope, large: false, length: u64::from(bytes), crc32c };
        Ok(self.accept(taken, now_ns, fields, Held::Copied))
    }

    /// Submits a small message out of a buffer at the time `now_ns`, see
    /// [`super::Sender::send_small_buffer`].
    ///
    /// # Errors
    /// [`NotSent`], with the buffer.
    pub fn send_small_buffer<'a>(
        &mut self,
        now_ns: u64,
        envelope: impl Into<Envelope<'a>>,
        buffer: SendBuffer,
    ) -> Result<Ticket, NotSent> {
        let envelope = envelope.into();
        let checked = self.check_buffer(&buffer).and_then(|()| {
            let bytes = small_length(envelope.user_header, buffer.len())?;
            self.check_replies(&envelope)?;
            Ok((self.protocol.submit_small(bytes, now_ns)?, self.checksum([&buffer[..]])))
        });
        let (taken, crc32c) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err(NotSent { error, buffer }),
        };
        let fields = Fields { envelope, large: false, length: buffer.len() as u64, crc32c };
        Ok(self.accept(taken, now_ns, fields, Held::Buffer(buffer)))
    }

    /// Submits a large message at the time `now_ns`, see [`super::Sender::send`].
    ///
    /// # Errors
    /// [`NotSent`], with the buffer.
    pub fn send<'a>(
        &mut self,
        now_ns: u64,
        envelope: impl Into<Envelope<'a>>,
        buffer: SendBuffer,
    ) -> Result<Ticket, NotSent> {
        let envelope = envelope.into();
        let checked = self.check_buffer(&buffer).and_then(|()| {
            if buffer.is_empty() {
                return Err(SendError::Empty);
            }
            self.check_large(&envelope)?;
            Ok((self.protocol.submit_large(buffer.len() as u64, now_ns)?, self.checksum([&buffer[..]])))
        });
        let (taken, crc32c) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err(NotSent { error, buffer }),
        };
        let fields = Fields { envelope, large: true, length: buffer.len() as u64, crc32c };
        Ok(self.accept(taken, now_ns, fields, Held::Buffer(buffer)))
    }

    /// Submits a large message that lies in several buffers at the time `now_ns`, see
    /// [`super::Sender::send_gathered`].
    ///
    /// # Errors
    /// [`NotGathered`], with the buffers.
    pub fn send_gathered<'a>(
        &mut self,
        now_ns: u64,
        envelope: impl Into<Envelope<'a>>,
        pieces: Vec<SendBuffer>,
    ) -> Result<Ticket, NotGathered> {
        let envelope = envelope.into();
        let checked = self.check_pieces(&pieces).and_then(|length| {
            self.check_large(&envelope)?;
            // One piece is a message like any other.
            let submitted = match pieces.len() {
                1 => self.protocol.submit_large(length, now_ns),
                _ => self.protocol.submit_gathered(length, now_ns),
            };
            Ok((length, submitted?))
        });
        let (length, taken) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err(NotGathered { error, pieces }),
        };
        let crc32c = self.checksum(pieces.iter().map(|piece| &piece[..]));
        let fields = Fields { envelope, large: true, length, crc32c };
        Ok(self.accept(taken, now_ns, fields, Held::Pieces(pieces)))
    }

    /// Submits bytes that others may have, too, at the time `now_ns`, see [`super::Sender::send_bytes`].
    ///
    /// # Errors
    /// [`SendError`].
    #[cfg(feature = "bytes")]
    pub fn send_bytes<'a>(
        &mut self,
        now_ns: u64,
        envelope: impl Into<Envelope<'a>>,
        bytes: &bytes::Bytes,
    ) -> Result<Ticket, SendError> {
        if bytes.len() <= SLAB_BYTES {
            return self.send_small(now_ns, envelope, bytes);
        }
        let envelope = envelope.into();
        self.check_large(&envelope)?;
        let held = self.buffers.find(bytes).ok_or(SendError::NotRegistered)?;
        let taken = self.protocol.submit_large(bytes.len() as u64, now_ns)?;
        let crc32c = self.checksum([&bytes[..]]);
        let fields = Fields { envelope, large: true, length: bytes.len() as u64, crc32c };
        Ok(self.accept(taken, now_ns, fields, Held::Bytes(held)))
    }

    /// Takes a message back, see [`super::Sender::cancel`].
    pub fn cancel(&mut self, ticket: Ticket) {
        self.protocol.cancel(ticket.0);
        self.transmit();
        self.ring();
    }

    fn check_buffer(&self, buffer: &SendBuffer) -> Result<(), SendError> {
        match self.buffers.key(buffer) {
            Some(_) => Ok(()),
            None if buffer.is_of_program() => Err(SendError::NotRegistered),
            None => Err(SendError::ForeignBuffer),
        }
    }

    /// Checks the pieces of a message, and returns its length.
    fn check_pieces(&self, pieces: &[SendBuffer]) -> Result<u64, SendError> {
        if !(1..=PIECES_MAX).contains(&pieces.len()) {
            return Err(SendError::Pieces { pieces: pieces.len() });
        }
        let mut length = 0;
        for (index, piece) in pieces.iter().enumerate() {
            self.check_buffer(piece)?;
            let is_last = index + 1 == pieces.len();
            let fits = u32::try_from(piece.len()).is_ok() && !piece.is_empty();
            if !fits || !(is_last || piece.len().is_multiple_of(SLAB_BYTES)) {
                return Err(SendError::Piece { index, bytes: piece.len() });
            }
            length += piece.len() as u64;
        }
        Ok(length)
    }

    /// Checks what a large message has beside its bytes.
    fn check_large(&self, envelope: &Envelope<'_>) -> Result<(), SendError> {
        let bytes = envelope.user_header.len();
        if bytes > USER_HEADER_MAX {
            return Err(SendError::UserHeader { bytes, max: USER_HEADER_MAX });
        }
        self.check_replies(envelope)
    }

    /// Checks that the sender takes replies, if a message wants one.
    fn check_replies(&self, envelope: &Envelope<'_>) -> Result<(), SendError> {
        if envelope.wants_reply && self.replies.is_none() { Err(SendError::NoReplies) } else { Ok(()) }
    }

    /// Keeps a message that the protocol has taken, by its place and its sequence number, and sends what may
    /// be sent.
    #[inline]
    fn accept(&mut self, taken: (u32, u64), now_ns: u64, fields: Fields<'_>, held: Held) -> Ticket {
        let (index, sequence) = taken;
        self.keep(index, now_ns, fields, held);
        self.transmit();
        Ticket(sequence)
    }

    fn keep(&mut self, index: u32, submitted_ns: u64, fields: Fields<'_>, held: Held) {
        let pending = &mut self.pending[index as usize];
        let Envelope { tag, user_header, class, wants_reply, deadline } = fields.envelope;
        if fields.large && user_header.len() > REQUEST_INLINE_USER_HEADER_MAX {
            self.copy_area.write(index, 0, user_header);
        }
        pending.tag = tag;
        pending.class = class;
        pending.large = fields.large;
        pending.length = fields.length;
        pending.crc32c = fields.crc32c;
        pending.submitted_ns = submitted_ns;
        pending.held = held;
        pending.wants_reply = wants_reply;
        pending.reply = None;
        pending.user_header_bytes = user_header.len();
        if let Some(kept) = pending.user_header.get_mut(..user_header.len()) {
            kept.copy_from_slice(user_header);
        }
        if let Some(deadline) = deadline {
            let deadline_ns = submitted_ns.saturating_add(nanoseconds(deadline));
            self.protocol.set_deadline(index, deadline_ns, submitted_ns);
        }
    }
}

struct Fields<'a> {
    envelope: Envelope<'a>,
    large: bool,
    length: u64,
    crc32c: Option<u32>,
}

fn small_length(user_header: &[u8], bytes: usize) -> Result<u32, SendError> {
    if user_header.len() > SMALL_USER_HEADER_MAX {
        return Err(SendError::UserHeader { bytes: user_header.len(), max: SMALL_USER_HEADER_MAX });
    }
    match u32::try_from(bytes) {
        Ok(length) if bytes <= SLAB_BYTES => Ok(length),
        _ => Err(SendError::NotSmall { bytes }),
    }
}

//! Submission of messages: they are checked, and kept until their end because they may have to be sent again.

use super::buffer::SendBuffer;
use super::driver::Driver;
use super::envelope::Envelope;
use super::error::{BufferError, NotSent, SendError};
use jet_wire::SLAB_BYTES;
use jet_wire::message::{REQUEST_INLINE_USER_HEADER_MAX, SMALL_USER_HEADER_MAX, USER_HEADER_MAX};
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
    pub buffer: Option<SendBuffer>,
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
        buffer: None,
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

    fn checksum(&mut self, payload: &[u8]) -> Option<u32> {
        let made = self.sends_checksums().then(|| crc32c::crc32c(payload));
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
        let (index, sequence) = self.protocol.submit_small(bytes, now_ns)?;
        self.copy_area.write(index, payload);
        let crc32c = self.checksum(payload);
        let fields = Fields { envelope, large: false, length: u64::from(bytes), crc32c };
        self.keep(index, now_ns, &fields, None);
        self.transmit();
        Ok(Ticket(sequence))
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
            Ok((self.protocol.submit_small(bytes, now_ns)?, self.checksum(&buffer)))
        });
        let ((index, sequence), crc32c) = match checked {
            Ok(taken) => taken,
            Err(error) => return Err(NotSent { error, buffer }),
        };
        let fields = Fields { envelope, large: false, length: buffer.len() as u64, crc32c };
        self.keep(index, now_ns, &fields, Some(buffer));
        self.transmit();
        Ok(Ticket(sequence))
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
        let user_header = envelope.user_header;
        let checked = self.check_buffer(&buffer).and_then(|()| {
            if buffer.is_empty() {
                return Err(SendError::Empty);
            }
            if user_header.len() > USER_HEADER_MAX {
                return Err(SendError::UserHeader { bytes: user_header.len(), max: USER_HEADER_MAX });
            }
            Ok((self.protocol.submit_large(buffer.len() as u64, now_ns)?, self.checksum(&buffer)))
        });
        let ((index, sequence), crc32c) = match checked {
            Ok(taken) => taken,
            Err(error) => return Err(NotSent { error, buffer }),
        };
        if user_header.len() > REQUEST_INLINE_USER_HEADER_MAX {
            self.copy_area.write(index, user_header);
        }
        let fields = Fields { envelope, large: true, length: buffer.len() as u64, crc32c };
        self.keep(index, now_ns, &fields, Some(buffer));
        self.transmit();
        Ok(Ticket(sequence))
    }

    fn check_buffer(&self, buffer: &SendBuffer) -> Result<(), SendError> {
        if self.buffers.owns(buffer) { Ok(()) } else { Err(SendError::ForeignBuffer) }
    }

    fn keep(&mut self, index: u32, submitted_ns: u64, fields: &Fields<'_>, buffer: Option<SendBuffer>) {
        let pending = &mut self.pending[index as usize];
        let Envelope { tag, user_header, class } = fields.envelope;
        pending.tag = tag;
        pending.class = class;
        pending.large = fields.large;
        pending.length = fields.length;
        pending.crc32c = fields.crc32c;
        pending.submitted_ns = submitted_ns;
        pending.buffer = buffer;
        pending.user_header_bytes = user_header.len();
        if let Some(kept) = pending.user_header.get_mut(..user_header.len()) {
            kept.copy_from_slice(user_header);
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

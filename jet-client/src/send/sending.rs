//! What a program gives a sender: memory, messages, and which of them it takes back.

use super::buffer::SendBuffer;
use super::envelope::Envelope;
use super::error::{BufferError, DeregisterError, NotGathered, NotSent, SendError};
use super::memory::SendMemory;
use super::sender::Sender;
use super::submission::Ticket;
use jet_fabric::nic::RegisterError;

impl Sender {
    /// Returns a registered buffer of `bytes` bytes.
    ///
    /// # Errors
    /// [`BufferError`].
    pub fn buffer(&mut self, bytes: usize) -> Result<SendBuffer, BufferError> {
        self.driver.buffer(bytes)
    }

    /// Returns `count` registered buffers of `bytes` bytes each, out of memory that is registered for them:
    /// call it once, for buffers that are used again and again. Registered memory stays until the sender is
    /// dropped. Where `bytes` is a power of two of 4096 or
    /// more, each buffer begins where the one before ends: together they are one range of memory.
    ///
    /// # Errors
    /// [`BufferError`].
    pub fn buffers(&mut self, bytes: usize, count: usize) -> Result<Vec<SendBuffer>, BufferError> {
        self.driver.buffers(bytes, count)
    }

    /// Registers memory of the program, so that its buffers can be sent ([`SendMemory::take`]). Only the
    /// first call for a memory does so, which is slow: call it at start. The memory stays registered until
    /// [`Self::deregister`], over reconnects, too.
    ///
    /// Over `shm:` the daemon takes up to 64 regions and 64 GiB of a sender, a region of the sender's own
    /// memory among them. It ends the connection of one that registers more, and says why
    /// ([`Self::take_failure`]): deregister something then.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(&mut self, memory: &SendMemory) -> Result<(), RegisterError> {
        self.driver.register(memory)
    }

    /// Ends the registration of memory of the program. Memory that is not registered is left alone.
    ///
    /// # Errors
    /// [`DeregisterError::InFlight`].
    pub fn deregister(&mut self, memory: &SendMemory) -> Result<(), DeregisterError> {
        self.driver.deregister(memory)
    }

    /// Sends a small message, in order with the small messages before it, unless one of them is sent again
    /// ([`super::SenderOptions::retry`]). It has at most 4096 bytes of payload, which are copied, and at most
    /// 96 bytes of user header. The envelope is a tag, or an [`Envelope`].
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_small<'a>(
        &mut self,
        envelope: impl Into<Envelope<'a>>,
        payload: &[u8],
    ) -> Result<Ticket, SendError> {
        self.driver.send_small(self.clock.now_ns(), envelope, payload)
    }

    /// Sends all bytes of a buffer, at most 4096, as a small message. The bytes are not copied where the NIC
    /// can do without. The buffer comes back with the completion.
    ///
    /// # Errors
    /// [`NotSent`], with the buffer.
    pub fn send_small_buffer<'a>(
        &mut self,
        envelope: impl Into<Envelope<'a>>,
        buffer: SendBuffer,
    ) -> Result<Ticket, NotSent> {
        self.driver.send_small_buffer(self.clock.now_ns(), envelope, buffer)
    }

    /// Sends all bytes of a buffer, at least one, as a large message in the envelope's class. The user header
    /// has at most 256 bytes. The receiver READs the buffer, which comes back with the completion. To send
    /// only the buffer's first bytes, call [`SendBuffer::set_length`] before.
    ///
    /// # Errors
    /// [`NotSent`], with the buffer.
    pub fn send<'a>(
        &mut self,
        envelope: impl Into<Envelope<'a>>,
        buffer: SendBuffer,
    ) -> Result<Ticket, NotSent> {
        self.driver.send(self.clock.now_ns(), envelope, buffer)
    }

    /// Sends a large message that lies in up to 16 buffers: its bytes are theirs, in order. All buffers but
    /// the last have a multiple of 4096 bytes, so that the receiver's memory is full and what it delivers is
    /// aligned. The receiver READs each from where it lies. They come back with the completion
    /// ([`Completion::pieces`](super::Completion::pieces)).
    ///
    /// A receiver of an older build knows no such messages. Where it is connected, the error is
    /// [`SubmitError::NoGather`](super::SubmitError::NoGather). Where it comes to be connected later, the
    /// message ends as [`AckStatus::Denied`](super::AckStatus::Denied), or as an earlier attempt ended after
    /// which an application may have consumed it.
    ///
    /// # Errors
    /// [`NotGathered`], with the buffers.
    pub fn send_gathered<'a>(
        &mut self,
        envelope: impl Into<Envelope<'a>>,
        pieces: Vec<SendBuffer>,
    ) -> Result<Ticket, NotGathered> {
        self.driver.send_gathered(self.clock.now_ns(), envelope, pieces)
    }

    /// Sends bytes that others may have, too: of up to 4096 a copy, as a small message, and more of them as a
    /// large message from where they lie. That is a part of a buffer (`Bytes::from(buffer)`), of this
    /// sender's own memory or of memory that it registered. They come back with the completion
    /// ([`Completion::bytes`](super::Completion::bytes)).
    ///
    /// # Errors
    /// [`SendError`]. [`SendError::NotRegistered`]: the bytes lie elsewhere. Copy them into a buffer.
    #[cfg(feature = "bytes")]
    pub fn send_bytes<'a>(
        &mut self,
        envelope: impl Into<Envelope<'a>>,
        bytes: &bytes::Bytes,
    ) -> Result<Ticket, SendError> {
        self.driver.send_bytes(self.clock.now_ns(), envelope, bytes)
    }

    /// Takes a message back: it is not sent any more, nor sent again. Every message has its one end all the
    /// same, and its buffer comes back with it:
    ///
    /// * [`super::AckStatus::Cancelled`]: no application consumed it. Of a large message that was being read,
    ///   one may have got a part, and was told that the rest will not come.
    /// * As it would have ended, where the application has all of it already, or its end was on its way. A
    ///   small message that was sent ends so: the application has it.
    /// * The end of its last attempt, where it was to be sent again ([`super::SenderOptions::retry`]).
    /// * `AppGone`, `Draining`, or [`super::AckStatus::PeerLost`] for a connection that ended: so did an
    ///   earlier attempt, and an application may have consumed the message.
    ///
    /// A message that has its end, and a ticket of no message, are left alone. A receiver that gives nothing
    /// back (an older one) reads a large message to its end.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.driver.cancel(ticket);
    }
}

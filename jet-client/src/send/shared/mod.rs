//! A sender that threads and tasks share, with a handle for each message's end.

mod call;
mod end;

use super::buffer::SendBuffer;
use super::envelope::Envelope;
use super::error::{
    BufferError, DeregisterError, NotGathered, NotSent, SendConnectError, SendError, WaitError,
};
use super::memory::SendMemory;
use super::options::SenderOptions;
use super::sender::{Completion, Sender, SenderStats};
use super::submission::Ticket;
use crate::shared::hub::Hub;
#[cfg(feature = "tokio")]
use crate::shared::wait::Wait;
use crate::shared::wait::block;
use end::Post;
pub(crate) use end::Wants;
use jet_fabric::nic::RegisterError;
use jet_wire::message::{ByeReason, WaitsFor};
use std::fmt;
#[cfg(feature = "tokio")]
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// A [`Sender`] that any number of threads and tasks use at once. Clones are handles of the same sender.
///
/// Sending gives a [`SendHandle`], by which one waits for the end of that message. Meanwhile others send, and
/// wait for theirs.
///
/// Whoever waits for an end does the work of all: it also takes the ends of others, and sends what waits for
/// credit. So somebody should wait, or send, while messages are in flight.
///
/// Each step takes a lock. Under it memory is registered ([`Self::buffer`]), checksums are made where the
/// options ask for them, and the name of a host is resolved when the sender connects: the others wait as
/// long.
///
/// Dropping the last handle of the sender and of its messages ends the connection, as dropping a [`Sender`]
/// does.
#[derive(Clone)]
pub struct SharedSender {
    hub: Arc<Hub<Post>>,
}

impl SharedSender {
    /// Connects to the receiver, like [`Sender::connect`].
    ///
    /// # Errors
    /// [`SendConnectError`].
    pub fn connect(options: &SenderOptions) -> Result<Self, SendConnectError> {
        Self::from_sender(Sender::connect(options)?)
    }

    /// Shares a sender. What it has sent before ends unheard.
    ///
    /// # Errors
    /// [`SendConnectError::System`]: there are no descriptors left.
    pub fn from_sender(sender: Sender) -> Result<Self, SendConnectError> {
        let spin_max = sender.spin_max();
        Ok(Self { hub: Arc::new(Hub::new(Post::new(sender), spin_max)?) })
    }

    /// Returns a registered buffer of `bytes` bytes.
    ///
    /// # Errors
    /// [`BufferError`].
    pub fn buffer(&self, bytes: usize) -> Result<SendBuffer, BufferError> {
        self.hub.lock().end.buffer(bytes)
    }

    /// Returns `count` registered buffers of `bytes` bytes each, as [`Sender::buffers`] does.
    ///
    /// # Errors
    /// [`BufferError`].
    pub fn buffers(&self, bytes: usize, count: usize) -> Result<Vec<SendBuffer>, BufferError> {
        self.hub.lock().end.buffers(bytes, count)
    }

    /// Registers memory of the program, as [`Sender::register`] does.
    ///
    /// # Errors
    /// [`RegisterError`].
    pub fn register(&self, memory: &SendMemory) -> Result<(), RegisterError> {
        self.hub.lock().end.register(memory)
    }

    /// Ends the registration of memory of the program, as [`Sender::deregister`] does.
    ///
    /// # Errors
    /// [`DeregisterError`].
    pub fn deregister(&self, memory: &SendMemory) -> Result<(), DeregisterError> {
        self.hub.lock().end.sender.deregister(memory)
    }

    /// Sends a small message, as [`Sender::send_small`] does.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_small<'e>(
        &self,
        envelope: impl Into<Envelope<'e>>,
        payload: &[u8],
    ) -> Result<SendHandle, SendError> {
        // Before the lock, because it may be anybody's code.
        let envelope = envelope.into();
        self.submit(|sender| sender.send_small(envelope, payload))
    }

    /// Sends a small message out of a buffer, as [`Sender::send_small_buffer`] does.
    ///
    /// # Errors
    /// [`NotSent`].
    pub fn send_small_buffer<'e>(
        &self,
        envelope: impl Into<Envelope<'e>>,
        buffer: SendBuffer,
    ) -> Result<SendHandle, NotSent> {
        // Before the lock, because it may be anybody's code.
        let envelope = envelope.into();
        self.submit(|sender| sender.send_small_buffer(envelope, buffer))
    }

    /// Sends a large message, as [`Sender::send`] does.
    ///
    /// # Errors
    /// [`NotSent`].
    pub fn send<'e>(
        &self,
        envelope: impl Into<Envelope<'e>>,
        buffer: SendBuffer,
    ) -> Result<SendHandle, NotSent> {
        // Before the lock, because it may be anybody's code.
        let envelope = envelope.into();
        self.submit(|sender| sender.send(envelope, buffer))
    }

    /// Sends a large message that lies in several buffers, as [`Sender::send_gathered`] does.
    ///
    /// # Errors
    /// [`NotGathered`].
    pub fn send_gathered<'e>(
        &self,
        envelope: impl Into<Envelope<'e>>,
        pieces: Vec<SendBuffer>,
    ) -> Result<SendHandle, NotGathered> {
        // Before the lock, because it may be anybody's code.
        let envelope = envelope.into();
        self.submit(|sender| sender.send_gathered(envelope, pieces))
    }

    /// Sends bytes that others may have, too, as [`Sender::send_bytes`] does.
    ///
    /// # Errors
    /// [`SendError`].
    #[cfg(feature = "bytes")]
    pub fn send_bytes<'e>(
        &self,
        envelope: impl Into<Envelope<'e>>,
        bytes: &bytes::Bytes,
    ) -> Result<SendHandle, SendError> {
        // Before the lock, because it may be anybody's code.
        let envelope = envelope.into();
        self.submit(|sender| sender.send_bytes(envelope, bytes))
    }

    /// Takes the ends that there are, which makes room, and submits a message.
    fn submit<E>(&self, send: impl FnOnce(&mut Sender) -> Result<Ticket, E>) -> Result<SendHandle, E> {
        let mut state = self.hub.lock();
        state.end.collect();
        let ticket = send(&mut state.end.sender)?;
        state.end.await_end(ticket);
        Ok(SendHandle {
            hub: Arc::clone(&self.hub),
            ticket,
            #[cfg(feature = "tokio")]
            wait: None,
        })
    }

    /// Waits until there is room for another message: fewer than [`SenderOptions::in_flight_max`] are without
    /// an end. Another thread may take the room first. Returns where the sender is closed, too: sending says
    /// so then.
    ///
    /// # Errors
    /// [`WaitError::System`]: the system refuses to wait.
    pub fn room(&self) -> Result<(), WaitError> {
        self.wait_for_room(None)
    }

    /// Waits until there is room like [`Self::room`], at most for `timeout` ([`Duration::MAX`]: without
    /// limit).
    ///
    /// # Errors
    /// [`WaitError::NotYet`]: there is none in time. Otherwise as [`Self::room`].
    pub fn room_timeout(&self, timeout: Duration) -> Result<(), WaitError> {
        self.wait_for_room(Instant::now().checked_add(timeout))
    }

    fn wait_for_room(&self, deadline: Option<Instant>) -> Result<(), WaitError> {
        let look = |post: &mut Post| post.has_room().then_some(());
        block(&self.hub, Wants::Room, deadline, look)?.ok_or(WaitError::NotYet)
    }

    /// Waits until there is room like [`Self::room`], as a future. Cancelling it loses nothing.
    ///
    /// # Errors
    /// As [`Self::room`]; also where it has to wait and there is no tokio runtime.
    ///
    /// # Panics
    /// Where it has to wait in a tokio runtime without I/O (`enable_io`).
    #[cfg(feature = "tokio")]
    pub async fn room_async(&self) -> Result<(), WaitError> {
        self.wait_async(Wants::Room, Post::has_room).await
    }

    /// Sends messages that were accepted and takes ends that have come, without waiting.
    pub fn flush(&self) {
        self.hub.lock().end.collect();
    }

    /// Waits until every message has its end, without limit. Who sends meanwhile keeps it waiting.
    ///
    /// # Errors
    /// [`WaitError::System`]: the system refuses to wait.
    pub fn drain(&self) -> Result<(), WaitError> {
        self.wait_until_drained(None)
    }

    /// Waits until every message has its end, at most for `timeout` ([`Duration::MAX`]: without limit).
    ///
    /// # Errors
    /// [`WaitError::NotYet`]: some have none in time. Otherwise as [`Self::drain`].
    pub fn drain_timeout(&self, timeout: Duration) -> Result<(), WaitError> {
        self.wait_until_drained(Instant::now().checked_add(timeout))
    }

    fn wait_until_drained(&self, deadline: Option<Instant>) -> Result<(), WaitError> {
        let look = |post: &mut Post| post.is_drained().then_some(());
        block(&self.hub, Wants::Drained, deadline, look)?.ok_or(WaitError::NotYet)
    }

    /// Waits until every message has its end like [`Self::drain`], as a future. Cancelling it loses nothing.
    ///
    /// # Errors
    /// As [`Self::drain`]; also where it has to wait and there is no tokio runtime.
    ///
    /// # Panics
    /// Where it has to wait in a tokio runtime without I/O (`enable_io`).
    #[cfg(feature = "tokio")]
    pub async fn drain_async(&self) -> Result<(), WaitError> {
        self.wait_async(Wants::Drained, Post::is_drained).await
    }

    /// Accepts no further messages of anybody, waits until every message has its end, and disconnects.
    /// Handles give their ends afterwards, too.
    ///
    /// # Errors
    /// [`WaitError::System`]: the system refuses to wait.
    pub fn close(&self) -> Result<(), WaitError> {
        self.close_until(None)
    }

    /// Closes the sender like [`Self::close`], and waits for it at most for `timeout` ([`Duration::MAX`]:
    /// without limit). Where that is too short, the sender stays closed for new messages, and disconnects
    /// while somebody waits for an end, or for its close, or when it is dropped.
    ///
    /// # Errors
    /// [`WaitError::NotYet`]: it is not closed in time. Otherwise as [`Self::close`].
    pub fn close_timeout(&self, timeout: Duration) -> Result<(), WaitError> {
        self.close_until(Instant::now().checked_add(timeout))
    }

    fn close_until(&self, deadline: Option<Instant>) -> Result<(), WaitError> {
        self.hub.lock().end.begin_to_close();
        let look = |post: &mut Post| post.is_closed().then_some(());
        block(&self.hub, Wants::Closed, deadline, look)?.ok_or(WaitError::NotYet)
    }

    /// Closes the sender like [`Self::close`], as a future. It accepts nothing more from the first poll on,
    /// also where the future is dropped before it ends.
    ///
    /// # Errors
    /// As [`Self::close`]; also where it has to wait and there is no tokio runtime.
    ///
    /// # Panics
    /// Where it has to wait in a tokio runtime without I/O (`enable_io`).
    #[cfg(feature = "tokio")]
    pub async fn close_async(&self) -> Result<(), WaitError> {
        self.hub.lock().end.begin_to_close();
        self.wait_async(Wants::Closed, Post::is_closed).await
    }

    #[cfg(feature = "tokio")]
    async fn wait_async(&self, wants: Wants, is_so: fn(&mut Post) -> bool) -> Result<(), WaitError> {
        if is_so(&mut self.hub.lock().end) {
            return Ok(());
        }
        let mut wait = Wait::new(&self.hub, wants);
        std::future::poll_fn(|context| wait.poll(context, |post| is_so(post).then_some(()))).await
    }

    /// Takes the reason why the newest attempt to connect failed; see [`Sender::take_failure`].
    pub fn take_failure(&self) -> Option<SendConnectError> {
        self.hub.lock().end.sender.take_failure()
    }

    /// Returns the reason that the receiver gave for ending the last connection; see [`Sender::farewell`].
    pub fn farewell(&self) -> Option<ByeReason> {
        self.hub.lock().end.sender.farewell()
    }

    /// Returns what the messages wait for at the receiver; see [`Sender::waits_for`].
    pub fn waits_for(&self) -> Option<WaitsFor> {
        self.hub.lock().end.sender.waits_for()
    }

    /// Whether messages that are sent now carry a checksum; see [`Sender::sends_checksums`].
    pub fn sends_checksums(&self) -> bool {
        self.hub.lock().end.sender.sends_checksums()
    }

    /// Whether the sender is connected.
    pub fn is_connected(&self) -> bool {
        self.hub.lock().end.sender.is_connected()
    }

    /// Returns the sender's identity, which the application sees with every message.
    pub fn id(&self) -> u64 {
        self.hub.lock().end.sender.id()
    }

    /// Returns the sender's counters.
    pub fn stats(&self) -> SenderStats {
        self.hub.lock().end.sender.stats()
    }
}

impl fmt::Debug for SharedSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSender").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// A message that was sent, by which one waits for its end.
///
/// With the feature `tokio` it is a future of the [`Completion`], which needs a runtime with I/O
/// (`enable_io`), and no timers. An end that is not taken is kept, with its buffer, until the handle is
/// dropped. Dropping the handle changes nothing for the message: it is sent and ends, unheard, and its
/// buffer is free again.
#[must_use = "without its handle nobody hears how the message ended"]
pub struct SendHandle {
    hub: Arc<Hub<Post>>,
    ticket: Ticket,
    #[cfg(feature = "tokio")]
    wait: Option<Wait<Post>>,
}

impl SendHandle {
    /// Returns the message's ticket.
    pub fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Takes the message back, as [`Sender::cancel`] does. Wait for its end as before.
    pub fn cancel(&self) {
        self.hub.lock().end.cancel(self.ticket);
    }

    /// Waits for the message's end.
    ///
    /// # Errors
    /// [`WaitError::System`]: the system refuses to wait.
    pub fn wait(self) -> Result<Completion, WaitError> {
        self.wait_until(None)
    }

    /// Waits for the message's end, at most for `timeout` ([`Duration::MAX`]: without limit).
    ///
    /// # Errors
    /// [`WaitError::NotYet`]: it has not ended in time; wait again. Otherwise as [`Self::wait`].
    ///
    /// # Panics
    /// Where the end was taken already.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Completion, WaitError> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    /// Returns the message's end, if it has ended.
    ///
    /// # Errors
    /// [`WaitError::NotYet`]: it has not.
    ///
    /// # Panics
    /// Where the end was taken already.
    pub fn try_wait(&mut self) -> Result<Completion, WaitError> {
        let ended = self.hub.lock().end.take_end(self.ticket);
        ended.map(first_taken).ok_or(WaitError::NotYet)
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Result<Completion, WaitError> {
        let ticket = self.ticket;
        let ended = block(&self.hub, Wants::End(ticket), deadline, |post| post.take_end(ticket))?;
        ended.map(first_taken).ok_or(WaitError::NotYet)
    }
}

#[cfg(feature = "tokio")]
impl Future for SendHandle {
    type Output = Result<Completion, WaitError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { hub, ticket, wait } = &mut *self;
        let ticket = *ticket;
        if wait.is_none()
            && let Some(ended) = hub.lock().end.take_end(ticket)
        {
            return Poll::Ready(Ok(first_taken(ended)));
        }
        let waits = wait.get_or_insert_with(|| Wait::new(hub, Wants::End(ticket)));
        let ended = std::task::ready!(waits.poll(context, |post| post.take_end(ticket)));
        *wait = None;
        Poll::Ready(ended.map(first_taken))
    }
}

/// Returns a message's end.
///
/// # Panics
/// Where it was taken before.
fn first_taken(ended: Option<Completion>) -> Completion {
    ended.expect("the end of this message was taken already")
}

impl Drop for SendHandle {
    fn drop(&mut self) {
        self.hub.lock().end.forget(self.ticket);
    }
}

impl fmt::Debug for SendHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendHandle").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

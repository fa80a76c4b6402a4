//! One sender's loop: it keeps messages of one size under way, as many as it is told, and hears their ends.
//! `e2e`, `stream`, `load` and what is built on them send by it; loads of many senders in one thread
//! (`connections`, `escape`, `residency`) have loops of their own.
//!
//! Who measures says by a [`Score`] when the next message goes, and is told of each end. So a fixed number of
//! messages, a fixed time and messages at fixed times are the same loop.

use jet_client::send::{
    AckStatus, BufferError, Completion, SendBuffer, SendConnectError, SendError, Sender, SenderOptions,
    Ticket, WaitError,
};
use jet_wire::SLAB_BYTES;
use std::time::{Duration, Instant};

/// Places that small messages are copied from: one after the other, as programs do that have more than one
/// message.
const SMALL_PLACES: usize = 32;
/// A wait ends after so long, so that the score is asked again.
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// So long before a message is due the loop looks at the clock instead of sleeping: longer than waking it
/// takes.
const AWAKE_BEFORE: Duration = Duration::from_micros(200);

/// Messages of a loop.
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    /// Bytes of each; up to 4096 they are small messages.
    pub bytes: usize,
    /// Under way at once, at most.
    pub depth: usize,
    /// What each is tagged with.
    pub tag: u64,
    /// Admission class of large ones.
    pub class: u8,
}

impl Messages {
    /// Whether their SENDs carry them.
    pub fn are_small(&self) -> bool {
        self.bytes <= SLAB_BYTES
    }
}

/// When the next message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// As soon as there is room.
    Now,
    /// At this time, or as soon after it as there is room.
    At(Instant),
    /// There is none.
    Never,
}

/// Who measures.
pub trait Score {
    /// When the next message goes, after so many. It is asked again and again for the same number.
    fn next(&mut self, sent: u64) -> Next;
    /// A message that was to go at a time went, so much after it.
    fn sent_late(&mut self, _ticket: Ticket, _late: Duration) {}
    /// A message was consumed.
    fn consumed(&mut self, completion: &Completion);
    /// Whether to wait no longer for those that have no end. Asked where none comes.
    fn gives_up(&mut self) -> bool {
        false
    }
}

/// So many messages, as fast as they go; nothing else is noted.
pub struct Count(pub u64);

impl Score for Count {
    #[inline]
    fn next(&mut self, sent: u64) -> Next {
        if sent < self.0 { Next::Now } else { Next::Never }
    }

    #[inline]
    fn consumed(&mut self, _completion: &Completion) {}
}

/// Why a loop ended early.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// A message was not taken.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The system refuses to wait.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// A message was not consumed.
    #[error("message {sequence}: {status}")]
    Ended {
        /// Which.
        sequence: u64,
        /// How it ended instead.
        status: AckStatus,
    },
}

/// Why there is no loop.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] SendConnectError),
    /// No memory to send from.
    #[error(transparent)]
    Buffer(#[from] BufferError),
}

/// A sender with its buffers.
pub struct SendLoop {
    sender: Sender,
    buffers: Vec<SendBuffer>,
    small: Vec<u8>,
    small_place: usize,
    in_flight: usize,
}

impl SendLoop {
    /// Connects, and takes so many buffers of so many bytes for large messages. The pages of all are there
    /// then.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn connect(options: SenderOptions, large_bytes: usize, large_max: usize) -> Result<Self, StartError> {
        let mut sender = Sender::connect(options)?;
        let mut buffers = Vec::with_capacity(large_max);
        for n in 0..large_max {
            let mut buffer = sender.buffer(large_bytes)?;
            buffer.fill(n.to_le_bytes()[0]);
            buffers.push(buffer);
        }
        Ok(Self { sender, buffers, small: vec![7; SMALL_PLACES * SLAB_BYTES], small_place: 0, in_flight: 0 })
    }

    /// The sender, for what no loop does.
    #[cfg(feature = "verbs")]
    pub fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// Messages that have no end.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Sends while the score says so and waits for all ends; gives the number of messages sent.
    ///
    /// # Errors
    /// [`LoopError`]; also a message that was not consumed.
    pub fn run(&mut self, messages: &Messages, score: &mut impl Score) -> Result<u64, LoopError> {
        let mut sent = 0;
        let mut next = score.next(sent);
        loop {
            while self.in_flight < messages.depth {
                let late = match next {
                    Next::Now => None,
                    Next::At(due) => {
                        let now = Instant::now();
                        if now < due {
                            break;
                        }
                        Some(now - due)
                    }
                    Next::Never => break,
                };
                let Some(ticket) = self.submit(messages)? else { break };
                if let Some(late) = late {
                    score.sent_late(ticket, late);
                }
                sent += 1;
                next = score.next(sent);
            }
            if self.in_flight == 0 && next == Next::Never {
                return Ok(sent);
            }
            let room = self.in_flight < messages.depth;
            if let Some(completion) = self.wait(next, room)? {
                self.take(completion, score)?;
                // A small message is soon sent: all ends that are there come first, so that as many SENDs go
                // together.
                while messages.are_small()
                    && let Some(completion) = self.sender.poll()
                {
                    self.take(completion, score)?;
                }
            } else {
                next = score.next(sent);
                if score.gives_up() {
                    return Ok(sent);
                }
            }
        }
    }

    /// Takes one; `None`: there is no room now.
    #[inline]
    fn submit(&mut self, messages: &Messages) -> Result<Option<Ticket>, LoopError> {
        let &Messages { bytes, tag, class, .. } = messages;
        let taken = if messages.are_small() {
            let from = self.small_place * bytes;
            let taken = self.sender.send_small(tag, b"", &self.small[from..from + bytes]);
            self.small_place = (self.small_place + 1) % SMALL_PLACES;
            taken
        } else {
            let Some(buffer) = self.buffers.pop() else { return Ok(None) };
            self.sender.send(tag, b"", buffer, bytes, class).map_err(|(error, buffer)| {
                self.buffers.push(buffer);
                error
            })
        };
        match taken {
            Ok(ticket) => {
                self.in_flight += 1;
                Ok(Some(ticket))
            }
            Err(error) if error.is_would_block() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The next end. Comes back without one after a while, and where a message is due that there is room for.
    fn wait(&mut self, next: Next, room: bool) -> Result<Option<Completion>, LoopError> {
        let Next::At(due) = next else { return Ok(self.sender.wait(Some(WAIT_SLICE))?) };
        if !room {
            return Ok(self.sender.wait(Some(WAIT_SLICE))?);
        }
        let left = due.saturating_duration_since(Instant::now());
        let Some(asleep) = left.checked_sub(AWAKE_BEFORE).filter(|asleep| !asleep.is_zero()) else {
            let ended = self.sender.poll();
            if ended.is_none() {
                // Who is waited for may have only this core.
                rustix::thread::sched_yield();
            }
            return Ok(ended);
        };
        let asleep = asleep.min(WAIT_SLICE);
        if self.in_flight == 0 {
            // There is nothing but the time to wait for.
            std::thread::sleep(asleep);
            return Ok(self.sender.poll());
        }
        Ok(self.sender.wait(Some(asleep))?)
    }

    #[inline]
    fn take(&mut self, completion: Completion, score: &mut impl Score) -> Result<(), LoopError> {
        self.in_flight -= 1;
        if completion.status != AckStatus::Consumed {
            return Err(LoopError::Ended { sequence: completion.ticket.0, status: completion.status });
        }
        score.consumed(&completion);
        self.buffers.extend(completion.buffer);
        Ok(())
    }
}

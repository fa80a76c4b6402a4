//! One sender's loop: keeps a number of messages of one size under way, and takes their ends. `e2e`,
//! `stream`, `load` and the benchmarks built on them send with this loop. Loads of many senders in one thread
//! (`connections`, `escape`, `residency`) have loops of their own.
//!
//! A [`Measurement`] says when the next message is to be sent, and is told of each end. So the same loop
//! sends a fixed number of messages, sends for a fixed time, or sends at fixed times.

use jet_client::send::{
    AckStatus, BufferError, Completion, Envelope, RetryPolicy, SendBuffer, SendConnectError, SendError,
    Sender, SenderOptions, Ticket, WaitError,
};
use jet_wire::SLAB_BYTES;
use std::time::{Duration, Instant};

/// Number of places from which small messages are copied in turn. Programs with more than one message also
/// copy from several places.
const SMALL_PLACES: usize = 32;
/// Limit of one wait, after which the measurement is asked again.
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// Time before a message is due for which the loop polls instead of sleeping. This time is longer than waking
/// up takes.
const AWAKE_BEFORE: Duration = Duration::from_micros(200);

/// The messages that a loop sends.
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    /// Bytes of each message; messages of up to 4096 bytes are small ones.
    pub bytes: usize,
    /// Limit of messages under way at once.
    pub depth: usize,
    /// Tag that every message carries.
    pub tag: u64,
    /// Admission class of large messages.
    pub class: u8,
}

impl Messages {
    /// Returns whether the messages are small: their SENDs carry them.
    pub fn are_small(&self) -> bool {
        self.bytes <= SLAB_BYTES
    }
}

/// Time at which the next message is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next message is sent as soon as there is room.
    Now,
    /// The next message is sent at this time, or as soon after it as there is room.
    At(Instant),
    /// No message is left to send.
    Never,
}

/// The measurement that a loop serves.
pub trait Measurement {
    /// Returns when the next message is to be sent, after `sent` messages. The loop may ask several times for
    /// the same number.
    fn next(&mut self, sent: u64) -> Next;
    /// Takes note that a message was sent after its due time, by `late`.
    fn sent_late(&mut self, _ticket: Ticket, _late: Duration) {}
    /// Takes note that a message was consumed.
    fn consumed(&mut self, completion: &Completion);
    /// Returns whether to stop waiting for messages without an end. The loop asks this when a wait brought no
    /// end.
    fn gives_up(&mut self) -> bool {
        false
    }
}

/// A measurement that sends this many messages as fast as possible, and notes nothing.
pub struct Count(pub u64);

impl Measurement for Count {
    #[inline]
    fn next(&mut self, sent: u64) -> Next {
        if sent < self.0 { Next::Now } else { Next::Never }
    }

    #[inline]
    fn consumed(&mut self, _completion: &Completion) {}
}

/// Reasons for which a sender's loop ends early.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The sender refused a message.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The system refuses to wait.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// A message was not consumed.
    #[error("message {sequence}: {status}")]
    Ended {
        /// The message's sequence number.
        sequence: u64,
        /// The status with which it ended.
        status: AckStatus,
    },
}

/// Reasons for which a sender's loop cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The sender could not connect.
    #[error(transparent)]
    Connect(#[from] SendConnectError),
    /// The sender has no memory for the buffers.
    #[error(transparent)]
    Buffer(#[from] BufferError),
}

/// Returns the retries of a benchmark's sender: only `Busy` is retried. A benchmark is told every other end
/// that is not `Consumed` at once, since waits for an application would falsify its figures.
pub fn busy_only() -> RetryPolicy {
    RetryPolicy::default().on_no_app(false).on_app_gone(false).on_draining(false)
}

/// Waits for the next message's end, at most for `timeout`. `None`: there is none in time, or nothing is in
/// flight.
///
/// # Errors
/// The system refuses to wait.
pub fn wait(sender: &mut Sender, timeout: Duration) -> Result<Option<Completion>, WaitError> {
    match sender.wait_timeout(timeout) {
        Err(WaitError::NotYet) => Ok(None),
        ended => ended,
    }
}

/// Converts a span to nanoseconds, as histograms count them.
#[inline]
pub fn nanoseconds(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Takes `count` buffers of `bytes` from a sender, and writes all their pages before anything is measured.
///
/// No byte is zero. A page of zeros may be a hole of its memory file. Over `shm:` a daemon reads such a page
/// by a call, several times as slowly as through its mapping, and a benchmark would measure that instead of
/// what data takes.
///
/// # Errors
/// The sender has no memory for a buffer.
pub fn written_buffers(
    sender: &mut Sender,
    bytes: usize,
    count: usize,
) -> Result<Vec<SendBuffer>, BufferError> {
    let written = |_| {
        let mut buffer = sender.buffer(bytes)?;
        buffer.fill(1);
        Ok(buffer)
    };
    (0..count).map(written).collect()
}

/// A sender with its buffers, whose loop sends messages.
pub struct SendLoop {
    sender: Sender,
    buffers: Vec<SendBuffer>,
    small: Vec<u8>,
    small_place: usize,
    in_flight: usize,
}

impl SendLoop {
    /// Connects a sender, and takes `large_max` buffers of `large_bytes` for large messages. All pages of
    /// these buffers are written.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn connect(options: SenderOptions, large_bytes: usize, large_max: usize) -> Result<Self, StartError> {
        let mut sender = Sender::connect(&options.retry(busy_only()))?;
        let buffers = written_buffers(&mut sender, large_bytes, large_max)?;
        Ok(Self { sender, buffers, small: vec![7; SMALL_PLACES * SLAB_BYTES], small_place: 0, in_flight: 0 })
    }

    /// Returns the sender, for calls that this loop does not make.
    #[cfg(feature = "verbs")]
    pub fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// Returns the number of messages that were submitted and have not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Sends messages until the measurement says [`Next::Never`], and waits for the ends of all messages.
    /// Returns the number of messages sent.
    ///
    /// # Errors
    /// [`LoopError`], also for a message that was not consumed.
    pub fn run(&mut self, messages: &Messages, measurement: &mut impl Measurement) -> Result<u64, LoopError> {
        let mut sent = 0;
        let mut next = measurement.next(sent);
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
                    measurement.sent_late(ticket, late);
                }
                sent += 1;
                next = measurement.next(sent);
            }
            if self.in_flight == 0 && next == Next::Never {
                return Ok(sent);
            }
            let room = self.in_flight < messages.depth;
            if let Some(completion) = self.wait(next, room)? {
                self.take(completion, measurement)?;
                // A small message is soon sent. All ends that have arrived come first, so that as many SENDs
                // go together.
                while messages.are_small()
                    && let Some(completion) = self.sender.poll()
                {
                    self.take(completion, measurement)?;
                }
            } else {
                next = measurement.next(sent);
                if measurement.gives_up() {
                    return Ok(sent);
                }
            }
        }
    }

    /// Submits one message. `None`: there is no room now.
    #[inline]
    fn submit(&mut self, messages: &Messages) -> Result<Option<Ticket>, LoopError> {
        let &Messages { bytes, tag, class, .. } = messages;
        let taken = if messages.are_small() {
            let from = self.small_place * bytes;
            let taken = self.sender.send_small(tag, &self.small[from..from + bytes]);
            self.small_place = (self.small_place + 1) % SMALL_PLACES;
            taken
        } else {
            let Some(mut buffer) = self.buffers.pop() else { return Ok(None) };
            buffer.set_length(bytes);
            self.sender.send(Envelope::new(tag).class(class), buffer).map_err(|not_sent| {
                self.buffers.push(not_sent.buffer);
                not_sent.error
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

    /// Waits for the next message's end. Returns without an end after [`WAIT_SLICE`], and when a message is
    /// due and there is room for it.
    fn wait(&mut self, next: Next, room: bool) -> Result<Option<Completion>, LoopError> {
        let Next::At(due) = next else { return Ok(wait(&mut self.sender, WAIT_SLICE)?) };
        if !room {
            return Ok(wait(&mut self.sender, WAIT_SLICE)?);
        }
        let left = due.saturating_duration_since(Instant::now());
        let Some(asleep) = left.checked_sub(AWAKE_BEFORE).filter(|asleep| !asleep.is_zero()) else {
            let ended = self.sender.poll();
            if ended.is_none() {
                // The daemon and the application may have only this core.
                rustix::thread::sched_yield();
            }
            return Ok(ended);
        };
        let asleep = asleep.min(WAIT_SLICE);
        if self.in_flight == 0 {
            // Nothing is in flight: only the time is waited for.
            std::thread::sleep(asleep);
            return Ok(self.sender.poll());
        }
        Ok(wait(&mut self.sender, asleep)?)
    }

    #[inline]
    fn take(&mut self, completion: Completion, measurement: &mut impl Measurement) -> Result<(), LoopError> {
        self.in_flight -= 1;
        if completion.status != AckStatus::Consumed {
            return Err(LoopError::Ended { sequence: completion.ticket.0, status: completion.status });
        }
        measurement.consumed(&completion);
        self.buffers.extend(completion.buffer);
        Ok(())
    }
}

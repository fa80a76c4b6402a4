//! The good sender, which is measured: it keeps messages outstanding and notes when they end. It runs in the
//! benchmark's own thread.

use super::LIMIT;
use super::bad_sender::Ends;
use crate::pattern::{self, Words};
use crate::send_loop::{busy_only, wait, written_buffers};
use jet_client::send::{Completion, Envelope, SendBuffer, Sender, SenderOptions};
use jet_fabric::Address;
use jet_wire::SLAB_BYTES;
use std::error::Error;
use std::time::{Duration, Instant};

/// Messages that a good sender sends.
#[derive(Clone, Copy, Debug)]
pub struct Messages {
    /// Bytes of each message; messages of up to 4096 bytes are small ones.
    pub bytes: usize,
    /// Messages that are outstanding at once.
    pub depth: usize,
    /// Admission class of large messages.
    pub class: u8,
}

/// Figures of one span, a measured stretch of time.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Messages that ended in the span.
    pub messages: u64,
    /// Length of the span.
    pub span: Duration,
    /// Longest time without an end: between two ends, before the first and after the last.
    pub longest_gap: Duration,
}

impl Measured {
    /// Returns how many messages ended in a second.
    pub fn per_s(&self) -> f64 {
        #[allow(clippy::cast_precision_loss)] // millions
        let messages = self.messages as f64;
        messages / self.span.as_secs_f64()
    }
}

/// A sender, and the ends of its messages.
pub struct GoodSender {
    sender: Sender,
    messages: Messages,
    free: Vec<SendBuffer>,
    small: Box<[u8; SLAB_BYTES]>,
    in_flight: usize,
    ends: Ends,
}

impl GoodSender {
    /// Connects a sender to an application of the daemon at `address`.
    ///
    /// # Errors
    /// The sender's error.
    pub fn connect(address: Address, app: &str, messages: Messages) -> Result<Self, Box<dyn Error>> {
        let Messages { bytes, depth, .. } = messages;
        let buffers = if bytes > SLAB_BYTES { depth } else { 0 };
        let options = SenderOptions::new(address, app)
            .in_flight_max(u32::try_from(depth)?)
            .region_bytes((buffers * bytes).max(SLAB_BYTES))
            .connect_timeout(LIMIT)
            .retry(busy_only());
        let mut sender = Sender::connect(&options)?;
        let free = written_buffers(&mut sender, bytes, buffers)?;
        let small = Box::new([0; SLAB_BYTES]);
        Ok(Self { sender, messages, free, small, in_flight: 0, ends: Ends::default() })
    }

    /// Returns the ends of all messages so far.
    pub fn ends(&self) -> Ends {
        self.ends
    }

    /// Submits one message. `false`: there is no room.
    fn submit(&mut self) -> Result<bool, Box<dyn Error>> {
        let Messages { bytes, depth, class } = self.messages;
        let (tag, id) = (self.ends.sent + 1, self.sender.id());
        let taken = if bytes <= SLAB_BYTES {
            if self.in_flight == depth {
                return Ok(false);
            }
            pattern::write(Words::FirstOfSlab, id, tag, &mut self.small[..bytes]);
            self.sender.send_small(tag, &self.small[..bytes])
        } else {
            let Some(mut buffer) = self.free.pop() else { return Ok(false) };
            pattern::write(Words::FirstOfSlab, id, tag, &mut buffer);
            self.sender.send(Envelope::new(tag).class(class), buffer).map_err(|not_sent| {
                self.free.push(not_sent.buffer);
                not_sent.error
            })
        };
        match taken {
            Ok(ticket) if ticket.0 == tag => {
                (self.ends.sent, self.in_flight) = (tag, self.in_flight + 1);
                Ok(true)
            }
            Ok(ticket) => Err(format!("message {tag} has the sequence {}", ticket.0).into()),
            Err(error) if error.is_would_block() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn take(&mut self, completion: Completion) {
        self.in_flight -= 1;
        self.ends.note(self.sender.id(), &completion, self.messages.bytes);
        self.free.extend(completion.buffer);
    }

    /// Keeps messages outstanding for `span`. Messages may be outstanding at its end.
    ///
    /// # Errors
    /// The sender's error.
    pub fn run(&mut self, span: Duration) -> Result<Measured, Box<dyn Error>> {
        let before = self.ends.consumed + self.ends.otherwise;
        let begin = Instant::now();
        let (mut last, mut longest_gap) = (begin, Duration::ZERO);
        let now = loop {
            while self.submit()? {}
            let now = Instant::now();
            let Some(left) = span.checked_sub(now - begin).filter(|left| !left.is_zero()) else { break now };
            let Some(completion) = wait(&mut self.sender, left)? else { continue };
            self.take(completion);
            let ended = Instant::now();
            longest_gap = longest_gap.max(ended - last);
            last = ended;
            // All ends that have arrived come first, so that as many messages go together.
            while let Some(completion) = self.sender.poll() {
                self.take(completion);
            }
        };
        let messages = self.ends.consumed + self.ends.otherwise - before;
        Ok(Measured { messages, span: now - begin, longest_gap: longest_gap.max(now - last) })
    }

    /// Sends one message while none is outstanding, and waits for its end, at most for `limit`. Returns how
    /// long that took. Where the message has not ended, that is `limit` or more.
    ///
    /// # Errors
    /// The sender's error.
    pub fn one(&mut self, limit: Duration) -> Result<Duration, Box<dyn Error>> {
        let before = Instant::now();
        if !self.submit()? {
            return Err("a sender with nothing outstanding has no room".into());
        }
        self.wait_for_all(limit)?;
        Ok(before.elapsed())
    }

    /// Sends nothing more, and waits until all messages have ended.
    ///
    /// # Errors
    /// The sender's error, or that it takes too long.
    pub fn drain(&mut self) -> Result<(), Box<dyn Error>> {
        if self.wait_for_all(LIMIT)? {
            return Ok(());
        }
        Err(format!("waited {LIMIT:?} for {} messages to end", self.in_flight).into())
    }

    /// Waits until all messages have ended, at most for `limit`. Returns whether they have.
    fn wait_for_all(&mut self, limit: Duration) -> Result<bool, Box<dyn Error>> {
        let deadline = Instant::now() + limit;
        while self.in_flight > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(completion) = wait(&mut self.sender, left)? else { return Ok(false) };
            self.take(completion);
        }
        Ok(true)
    }
}

//! A feed, one sender of a load: keeps a number of messages in flight, each filled with its own pattern, and
//! counts their ends.

use crate::pattern::{self, Words};
use crate::send_loop::{busy_only, nanoseconds, written_buffers};
use hdrhistogram::Histogram;
use jet_client::send::{AckStatus, SendBuffer, Sender, SenderOptions};
use jet_fabric::Address;
use jet_wire::SLAB_BYTES;
use std::error::Error;

/// Bytes of a large message: the receiver READs them as one fragment.
pub const LARGE_BYTES: usize = 256 << 10;
/// Limit of the ends that one call of [`Feed::take_ends`] takes, of large and small messages together.
const STEP_ENDS: u32 = 64;
/// Longest latency that a histogram can hold, a minute in nanoseconds; longer ones count as a minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Numbers of messages that a sender keeps in flight.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Number of messages of 256 KiB.
    pub large: usize,
    /// Number of messages of 4 KiB.
    pub small: usize,
}

/// Latencies from the submission of messages to their ends.
pub struct Latencies {
    /// Latencies of messages of 256 KiB, in nanoseconds.
    pub large: Histogram<u64>,
    /// Latencies of messages of 4 KiB, in nanoseconds.
    pub small: Histogram<u64>,
}

impl Latencies {
    /// Makes empty histograms for latencies.
    pub fn new() -> Self {
        let empty = || Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("sound bounds");
        Self { large: empty(), small: empty() }
    }
}

/// Counts of a sender's messages that have ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ends {
    /// Messages that were consumed.
    pub consumed: u64,
    /// Bytes of the consumed messages.
    pub bytes: u64,
    /// Sum of the consumed messages' fingerprints, see [`pattern::fingerprint`].
    pub fingerprint: u64,
    /// Messages that ended because their application was gone.
    pub gone: u64,
}

/// A sender, its buffers, and the ends of its messages.
pub struct Feed {
    sender: Sender,
    free: Vec<SendBuffer>,
    depth: Depth,
    words: Words,
    /// Number of messages submitted so far. A message's tag is its sequence number, which counts from 1.
    submitted: u64,
    small_in_flight: usize,
    ended: u64,
    ends: Ends,
    small: Box<[u8; SLAB_BYTES]>,
}

impl Feed {
    /// Connects a sender to an application of the daemon at `address`.
    ///
    /// # Errors
    /// The sender's error.
    pub fn connect(address: Address, app: &str, depth: Depth, words: Words) -> Result<Self, Box<dyn Error>> {
        let options = SenderOptions::new(address, app)
            .in_flight_max(u32::try_from((depth.large + depth.small).max(1))?)
            .region_bytes(depth.large.max(1) * LARGE_BYTES)
            .retry(busy_only());
        let mut sender = Sender::connect(&options)?;
        let free = written_buffers(&mut sender, LARGE_BYTES, depth.large)?;
        Ok(Self {
            sender,
            free,
            depth,
            words,
            submitted: 0,
            small_in_flight: 0,
            ended: 0,
            ends: Ends::default(),
            small: Box::new([0; SLAB_BYTES]),
        })
    }

    /// Returns the counts of the messages that ended.
    pub fn ends(&self) -> Ends {
        self.ends
    }

    /// Returns the number of messages that were submitted and have not ended.
    pub fn in_flight(&self) -> u64 {
        self.submitted - self.ended
    }

    /// Submits as many messages as there is room for.
    ///
    /// # Errors
    /// The sender's error.
    pub fn submit(&mut self) -> Result<(), Box<dyn Error>> {
        while let Some(mut buffer) = self.free.pop() {
            let tag = self.submitted + 1;
            pattern::write(self.words, self.sender.id(), tag, &mut buffer);
            let ticket = match self.sender.send(tag, buffer) {
                Ok(ticket) => ticket,
                Err(not_sent) if not_sent.is_would_block() => {
                    self.free.push(not_sent.buffer);
                    return Ok(());
                }
                Err(not_sent) => return Err(not_sent.into()),
            };
            self.note(ticket.0)?;
        }
        while self.small_in_flight < self.depth.small {
            let tag = self.submitted + 1;
            pattern::write(self.words, self.sender.id(), tag, self.small.as_mut());
            match self.sender.send_small(tag, self.small.as_ref()) {
                Ok(ticket) => self.note(ticket.0)?,
                Err(error) if error.is_would_block() => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            self.small_in_flight += 1;
        }
        Ok(())
    }

    fn note(&mut self, sequence: u64) -> Result<(), String> {
        self.submitted += 1;
        if sequence == self.submitted {
            Ok(())
        } else {
            Err(format!("message {} has the sequence {sequence}: its pattern is another's", self.submitted))
        }
    }

    /// Takes a bounded number of the ends that have arrived.
    ///
    /// # Errors
    /// The sender's error, or a message that ended in a way other than a load expects.
    pub fn take_ends(&mut self, mut latencies: Option<&mut Latencies>) -> Result<(), Box<dyn Error>> {
        for _ in 0..STEP_ENDS {
            let Some(completion) = self.sender.poll() else { break };
            self.ended += 1;
            let tag = completion.ticket.0;
            match completion.status {
                AckStatus::Consumed => {}
                AckStatus::AppGone | AckStatus::NoApp => self.ends.gone += 1,
                status => return Err(format!("message {tag} ended: {status}").into()),
            }
            let consumed = completion.status == AckStatus::Consumed;
            let large = completion.buffer.is_some();
            match completion.buffer {
                Some(buffer) => self.free.push(buffer),
                None => self.small_in_flight -= 1,
            }
            if consumed {
                if let Some(latencies) = latencies.as_deref_mut() {
                    let histogram = if large { &mut latencies.large } else { &mut latencies.small };
                    histogram.saturating_record(nanoseconds(completion.latency));
                }
                let bytes = if large { LARGE_BYTES } else { SLAB_BYTES };
                self.ends.consumed += 1;
                self.ends.bytes += bytes as u64;
                let fingerprint = pattern::fingerprint(self.sender.id(), tag);
                self.ends.fingerprint = self.ends.fingerprint.wrapping_add(fingerprint);
            }
        }
        Ok(())
    }
}

//! Traffic of correct senders. The bytes of a message follow from its tag and their offset, so that a
//! receiver can check each on its own.

use crate::rig::Rig;
use jet_client::receive::{Message, ReceiveError, Session};
use jet_client::send::{AckStatus, Completion, Envelope, SendError, Sender, Ticket};
use jet_fabric::Address;
use jet_test_support::random::Random;
use jet_test_support::waiting::WAIT_LIMIT;
use std::time::{Duration, Instant};

/// Returns the 8 bytes at `offset` (a multiple of 8) of the message with that tag.
fn word(tag: u64, offset: u64) -> [u8; 8] {
    (tag << 32 | offset >> 3).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// Fills a buffer with the bytes of the message with that tag.
pub fn fill(tag: u64, bytes: &mut [u8]) {
    for (offset, piece) in (0u64..).step_by(8).zip(bytes.chunks_mut(8)) {
        piece.copy_from_slice(&word(tag, offset)[..piece.len()]);
    }
}

/// Returns whether these are the message's bytes from `offset` (a multiple of 8) on.
pub fn fits(tag: u64, offset: u64, bytes: &[u8]) -> bool {
    (offset..).step_by(8).zip(bytes.chunks(8)).all(|(at, piece)| word(tag, at)[..piece.len()] == *piece)
}

/// Waits for the next message. The sender, of this thread, goes on meanwhile: it may wait for credit.
pub fn next<'s>(session: &'s Session, sender: &mut Sender) -> Message<'s> {
    until_received(|| session.receive_timeout(Duration::from_millis(1)), || sender.flush())
}

/// Waits for a message, and lets its sender go on meanwhile.
pub fn until_received<M>(receive: impl Fn() -> Result<M, ReceiveError>, mut go_on: impl FnMut()) -> M {
    let began = Instant::now();
    loop {
        match receive() {
            Ok(message) => return message,
            Err(ReceiveError::NotYet) => assert!(began.elapsed() < WAIT_LIMIT, "a message in time"),
            Err(error) => panic!("{error}"),
        }
        go_on();
    }
}

/// Sender of such messages, which are small or large by their length.
pub struct Traffic {
    pub sender: Sender,
    random: Random,
    next_tag: u64,
}

impl Traffic {
    pub fn new(address: &Address, app: &str, random: Random) -> Self {
        Self::over(Rig::sender(address, app), random)
    }

    /// Makes a sender to an application at each of a daemon's addresses.
    pub fn to_each(addresses: &[Address], app: &str, random: &mut Random) -> Vec<Self> {
        addresses.iter().map(|address| Self::new(address, app, random.fork())).collect()
    }

    pub fn over(sender: Sender, random: Random) -> Self {
        Self { sender, random, next_tag: 1 }
    }

    /// Sets the tag of the next message, so that no tag is another sender's.
    pub fn with_tags_from(self, next_tag: u64) -> Self {
        Self { next_tag, ..self }
    }

    /// Returns the tag of the next message.
    pub fn next_tag(&self) -> u64 {
        self.next_tag
    }

    /// Sends a message of this length.
    pub fn send(&mut self, bytes: usize) -> Result<Ticket, SendError> {
        let tag = self.next_tag;
        let ticket = if bytes <= jet_wire::SLAB_BYTES {
            let mut payload = [0; jet_wire::SLAB_BYTES];
            fill(tag, &mut payload[..bytes]);
            self.sender.send_small(Envelope::new(tag).user_header(b"small"), &payload[..bytes])?
        } else {
            let mut buffer = self.sender.buffer(bytes).expect("memory");
            fill(tag, &mut buffer);
            self.sender
                .send(Envelope::new(tag).user_header(b"large"), buffer)
                .map_err(|not_sent| not_sent.error)?
        };
        self.next_tag += 1;
        self.sender.flush();
        Ok(ticket)
    }

    /// Waits for the next end of a message, and panics if there is none in time.
    #[track_caller]
    pub fn end(&mut self) -> Completion {
        self.sender.wait_timeout(WAIT_LIMIT).expect("an end in time").expect("something is in flight")
    }

    /// Waits for the next `count` ends.
    #[track_caller]
    pub fn ends(&mut self, count: usize) -> Vec<AckStatus> {
        (0..count).map(|_| self.end().status).collect()
    }

    /// Sends small and large messages of random lengths, all of which must be consumed. The application
    /// consumes only messages that arrived byte for byte.
    #[track_caller]
    pub fn round(&mut self) {
        const SMALL: usize = 8;
        const LARGE: usize = 3;
        for _ in 0..SMALL {
            let bytes = self.random.size_below(4097);
            self.send(bytes).expect("taken");
        }
        for _ in 0..LARGE {
            let bytes = 4097 + self.random.size_below(600_000);
            self.send(bytes).expect("taken");
        }
        assert_eq!(self.ends(SMALL + LARGE), [AckStatus::Consumed; SMALL + LARGE]);
    }
}

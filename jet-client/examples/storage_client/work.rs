//! What the client sends: each message follows from the client's identity and the message's sequence number.
//! So a client that begins anew sends the same messages under the same numbers, and every block that it reads
//! says which message wrote it.

use crate::protocol::{BLOCK_BYTES, Request, WRITE_BLOCKS_MAX};
use std::ops::Range;

/// Who a client is, and which blocks of the store it writes and reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// Identity of the sender.
    pub id: u64,
    /// First of the blocks.
    pub first: u64,
    /// How many there are.
    pub blocks: u32,
}

/// What a block says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nobody wrote it.
    Zeros,
    /// This message of the client wrote it.
    WrittenBy { sequence: u64 },
    /// It is not what any message of this client wrote to this block.
    Wrong,
}

impl Client {
    /// Returns what the message with this number asks for: of four messages one reads, and of the others most
    /// are small.
    pub fn request(&self, sequence: u64) -> Request {
        let mut random = fastrand::Rng::with_seed(self.id ^ sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let blocks = match random.u32(..16) {
            0..4 => return Request::Read { block: self.first + random.u64(..u64::from(self.blocks)) },
            4..12 => 1,
            12..15 => random.u32(2..=32),
            _ => random.u32(33..=WRITE_BLOCKS_MAX),
        };
        let blocks = blocks.min(self.blocks);
        Request::Write { first: self.first + random.u64(..=u64::from(self.blocks - blocks)), blocks }
    }

    /// Returns the blocks that the message with this number writes, counted from the client's first one.
    pub fn writes(&self, sequence: u64) -> Range<usize> {
        match self.request(sequence) {
            Request::Write { first, blocks } => {
                let first = usize::try_from(first - self.first).expect("within the client's blocks");
                first..first + blocks as usize
            }
            _ => 0..0,
        }
    }

    /// Fills the blocks that the message with this number writes from `first` on.
    pub fn fill(&self, sequence: u64, first: u64, bytes: &mut [u8]) {
        for (block, bytes) in (first..).zip(bytes.chunks_exact_mut(BLOCK_BYTES)) {
            let mut random = self.bytes_of(sequence, block);
            for (word, place) in [self.id, sequence, block].into_iter().zip(bytes.chunks_exact_mut(8)) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            random.fill(&mut bytes[24..]);
        }
    }

    /// Returns which message wrote the bytes of a block.
    pub fn look(&self, block: u64, bytes: &[u8]) -> Content {
        if bytes.len() != BLOCK_BYTES {
            return Content::Wrong;
        }
        if bytes.iter().all(|&byte| byte == 0) {
            return Content::Zeros;
        }
        let sequence = u64::from_le_bytes(bytes[8..16].try_into().expect("eight"));
        let mut expected = vec![0; BLOCK_BYTES];
        self.fill(sequence, block, &mut expected);
        let number = block.checked_sub(self.first).and_then(|number| usize::try_from(number).ok());
        let is_its = number.is_some_and(|number| self.writes(sequence).contains(&number));
        if is_its && bytes == expected { Content::WrittenBy { sequence } } else { Content::Wrong }
    }

    fn bytes_of(&self, sequence: u64, block: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(self.id.rotate_left(32) ^ sequence.rotate_left(16) ^ block)
    }
}

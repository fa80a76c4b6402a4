//! What clients and the server say to each other: requests in user headers, replies, and codes of rejection.
//! All numbers are little-endian.

#![allow(dead_code, reason = "the server and the client each use a part")]

use std::fmt;
use std::num::NonZeroU32;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a block: the unit of writes and reads, and the longest reply that Jet passes on.
pub const BLOCK_BYTES: usize = 4096;
/// Blocks of the longest write (1 MiB).
pub const WRITE_BLOCKS_MAX: u32 = 256;

/// A request, as a message says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Writes the payload, which has so many bytes, to `blocks` blocks from `first` on. Reply: [`Written`].
    Write { first: u64, blocks: u32 },
    /// Reads a block. Reply: its bytes, zeros where nobody wrote it.
    Read { block: u64 },
    /// Asks about the store, and how many writes of this sender it has. Reply: [`Stat`].
    Stat { sender: u64 },
}

/// A request as it lies in the user header.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    operation: U32,
    blocks: U32,
    /// The first block, or the sender that is asked about.
    subject: U64,
}

const WRITE: u32 = 1;
const READ: u32 = 2;
const STAT: u32 = 3;

impl Request {
    /// Reads the request of a user header.
    ///
    /// # Errors
    /// [`Refusal::NoRequest`]: another length, or an operation that there is not.
    pub fn parse(user_header: &[u8]) -> Result<Self, Refusal> {
        let header = Header::ref_from_bytes(user_header).map_err(|_| Refusal::NoRequest)?;
        let subject = header.subject.get();
        match header.operation.get() {
            WRITE => Ok(Self::Write { first: subject, blocks: header.blocks.get() }),
            READ => Ok(Self::Read { block: subject }),
            STAT => Ok(Self::Stat { sender: subject }),
            _ => Err(Refusal::NoRequest),
        }
    }

    /// Returns the request as a user header.
    pub fn header(self) -> Header {
        let (operation, blocks, subject) = match self {
            Self::Write { first, blocks } => (WRITE, blocks, first),
            Self::Read { block } => (READ, 1, block),
            Self::Stat { sender } => (STAT, 0, sender),
        };
        Header { operation: operation.into(), blocks: blocks.into(), subject: subject.into() }
    }
}

/// Reply to a write: it is on the disk.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Written {
    /// The write's number among all writes of the store, from 1 on, in the order in which they took effect. A
    /// write that comes again gets the number that it got first.
    pub version: U64,
}

/// Reply to a question about the store.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Stat {
    /// Blocks of the store.
    pub blocks: U64,
    /// Number of the newest write.
    pub version: U64,
    /// Writes of the sender that was asked about which took effect.
    pub writes: U64,
}

/// Why the server rejects a message, with the code that its sender hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// The user header is no request.
    NoRequest = 1,
    /// The blocks are not all within the store, or they are more than a write may have.
    OutOfRange = 2,
    /// The payload does not have the length that the request says.
    WrongLength = 3,
    /// The disk is full.
    NoSpace = 4,
    /// More senders write than the server keeps account of.
    TooManyWriters = 5,
    /// The disk failed.
    Disk = 6,
    /// The message is more than 1024 behind the newest one of its sender. Whether it took effect is not known
    /// any more.
    TooOld = 7,
    /// The message did not come whole in time.
    TooSlow = 8,
}

impl Refusal {
    const ALL: [Self; 8] = [
        Self::NoRequest,
        Self::OutOfRange,
        Self::WrongLength,
        Self::NoSpace,
        Self::TooManyWriters,
        Self::Disk,
        Self::TooOld,
        Self::TooSlow,
    ];

    /// Returns the reason of a code that a sender heard.
    pub fn of_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| *refusal as u32 == code)
    }

    /// Returns the code that the sender hears.
    pub fn code(self) -> NonZeroU32 {
        NonZeroU32::new(self as u32).expect("codes begin with 1")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRequest => "the user header is no request; use the client of the same version",
            Self::OutOfRange => "the store has no such blocks, or they are too many for one write",
            Self::WrongLength => "the payload has another length than the request says",
            Self::NoSpace => "the server's disk is full; make room there",
            Self::TooManyWriters => "too many senders write; raise --writers of the server",
            Self::Disk => "the server's disk failed; its log says how",
            Self::TooOld => "the message is too old; does another client use this one's identity?",
            Self::TooSlow => "the message did not come whole in time",
        })
    }
}

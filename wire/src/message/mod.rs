//! Messages between hosts.
//!
//! Every SEND, in both directions, begins with a header of exactly [`HEADER_BYTES`]. The size is fixed
//! because an SRQ entry scatters by position: the first scatter entry takes the first 128 bytes (the header
//! area), the second takes what follows (a slab), so that a payload always lands page-aligned. 128 bytes are
//! two cache lines: 32 of fixed fields and 96 for the user header of a small message. 64 bytes would leave no
//! room for the 32-byte user header beside tag, sequence and checksum; 256 would double the header area (1024
//! entries: 128 KiB) for nothing.
//!
//! Kinds, and who sends them:
//!
//! | kind | sent by | view | payload after the header |
//! |---|---|---|---|
//! | [`Kind::Small`] | sender | [`SmallHeader`] | the message, 0 to 4096 bytes |
//! | [`Kind::Request`] | sender | [`RequestHeader`] | the user header, where it exceeds 64 bytes; the list of pieces |
//! | [`Kind::CreditReturn`] | sender | [`CreditReturn`] | none |
//! | [`Kind::Cancel`] | sender | [`CancelHeader`] | none |
//! | [`Kind::Ack`] | receiver | [`AckHeader`] | none |
//! | [`Kind::Reply`] | receiver | [`ReplyHeader`] | the reply, 0 to 4096 bytes |
//! | [`Kind::Credit`] | receiver | [`CreditHeader`] | none |
//! | [`Kind::Congestion`] | receiver | [`CongestionHeader`] | none |
//! | [`Kind::Bye`] | receiver | [`ByeHeader`] | none |
//!
//! The [`hello`] travels in the connection's private data, not in a SEND. In it the two ends say which
//! versions they speak. Every header of the connection has the version that they agree on, and is read by
//! that version's rules. `docs/wire.md` has the layout and the rules by which it changes.

mod checksum;
mod control;
mod end_counts;
pub mod hello;
mod parse;
mod payload;
mod pieces;
mod reply;
mod status;
mod version;

pub use checksum::combine_crc32c;
pub use control::{
    ACK_RANGES_MAX, AckHeader, AckRange, ByeHeader, ByeReason, CancelHeader, CongestionHeader, CreditHeader,
    CreditReturn, WaitsFor,
};
pub use end_counts::EndCounts;
pub use parse::{FromReceiver, FromSender, HeaderError, parse_from_receiver, parse_from_sender};
pub use payload::{RequestFields, RequestHeader, SmallFields, SmallHeader};
pub use pieces::{PIECE_BYTES, PIECES_BYTES_MAX, PIECES_MAX, Piece, check_pieces, pieces};
pub use reply::ReplyHeader;
pub use status::AckStatus;
pub use version::{FIRST_VERSION, Versions, WIRE_VERSION};

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header that every SEND begins with (the module's text says why 128).
pub const HEADER_BYTES: usize = 128;
/// The most user-header bytes that a small message carries.
pub const SMALL_USER_HEADER_MAX: usize = 96;
/// The most user-header bytes that a large message carries.
pub const USER_HEADER_MAX: usize = 256;
/// The most user-header bytes of a large message that fit beside the request's fields. A longer user header
/// is sent whole as the request's payload.
pub const REQUEST_INLINE_USER_HEADER_MAX: usize = 64;

/// Raw header bytes, aligned so that the checked views can be taken in place.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(64))]
pub struct HeaderBytes(pub [u8; HEADER_BYTES]);

impl HeaderBytes {
    /// A header of zeros, which is not valid (kind 0 does not exist).
    pub const ZERO: Self = Self([0; HEADER_BYTES]);

    /// Returns the version that the header states.
    #[inline]
    pub fn version(&self) -> u8 {
        self.0[0]
    }

    /// Sets the version to that of a connection. Headers are encoded as [`WIRE_VERSION`]. An earlier version
    /// has the same fields at the same places; the caller must use statuses that it knows
    /// ([`AckStatus::known_in`]).
    #[inline]
    pub fn set_version(&mut self, version: u8) {
        self.0[0] = version;
    }

    /// Returns whether the header says that it takes a message back. The rest of it may be wrong.
    #[inline]
    pub fn is_cancel(&self) -> bool {
        self.0[1] == Kind::Cancel as u8
    }

    /// Copies a header off the front of bytes that arrived; the bytes behind it are its payload.
    ///
    /// # Errors
    /// [`HeaderError::Truncated`] where there are fewer bytes than a header has.
    pub fn from_front(bytes: &[u8]) -> Result<Self, HeaderError> {
        let (front, _) = bytes.split_first_chunk().ok_or(HeaderError::Truncated { bytes: bytes.len() })?;
        Ok(Self(*front))
    }
}

/// The kind of a header. The value on the wire is the discriminant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A small message with its payload behind the header.
    Small = 1,
    /// The request for a large message: where it lies and how long it is.
    Request = 2,
    /// The acknowledgement: ends of messages.
    Ack = 3,
    /// A new credit limit, or a recall of unused credit.
    Credit = 4,
    /// The answer to a recall.
    CreditReturn = 5,
    /// The receiver's congestion signal: the sender is to cut its windows.
    Congestion = 6,
    /// The receiver's farewell before it disconnects, with the reason.
    Bye = 7,
    /// The end of one message, with the application's reply behind the header.
    Reply = 8,
    /// The sender takes one of its messages back.
    Cancel = 9,
}

/// The first eight bytes of every header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Prefix {
    /// Version that the two ends agreed on.
    pub version: u8,
    /// Number of the [`Kind`].
    pub kind: u8,
    /// Flags of the header, bits of [`flags`].
    pub flags: U16,
    /// User-header bytes (small, request) or number of ranges (ack); 0 elsewhere.
    pub count: U16,
    /// Zero. A reader refuses anything else, so that a later version can use the field for something that
    /// must be understood.
    pub reserved: U16,
}

impl Prefix {
    fn new(kind: Kind, flags: u16, count: u16) -> Self {
        Self {
            version: WIRE_VERSION,
            kind: kind as u8,
            flags: flags.into(),
            count: count.into(),
            reserved: 0.into(),
        }
    }
}

/// Bits of [`Prefix::flags`]. From version 2 on the lower eight must be understood, and unknown ones of the
/// upper eight are skipped.
pub mod flags {
    /// The `crc32c` field holds a CRC32C of the whole payload.
    pub const CRC32C: u16 = 1;
    /// The message was sent before on an earlier connection; the application may have seen it.
    pub const REDELIVERED: u16 = 2;
    /// The credit header is a recall: give back unused credit above the limit. Only on
    /// [`Kind::Credit`](super::Kind::Credit).
    pub const RECALL: u16 = 4;
    /// The sender has memory for a reply to the message. Only where both ends have
    /// [`REPLIES`](super::hello::features::REPLIES).
    pub const WANTS_REPLY: u16 = 8;
    /// Mask of the bits that are skipped where they are unknown, from version 2 on.
    pub const SKIPPED: u16 = 0xff00;
}

#[cfg(all(test, not(loom)))]
mod tests;

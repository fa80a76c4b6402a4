//! The session segment: memory that the daemon and one application share, read-write, besides the read-only
//! pool.
//!
//! One file holds, in this order:
//!
//! * a header that says where the rest lies,
//! * the delivery ring (daemon to application),
//! * the release ring (application to daemon),
//! * the notice,
//! * the slot words,
//! * cells for user headers that do not fit a descriptor,
//! * cells for replies, one of 4 KiB for each message number. The application writes the reply to a message
//!   into its cell before it finishes the message; the daemon copies it out.
//!
//! The daemon writes the header once; the application checks it once. After that the daemon reads only
//! release entries, ring indices, slot words, replies and the application's sleeper word from the segment. It
//! copies each entry and index once, and checks the copy. Of a reply it copies the bytes once, whatever they
//! are.

mod layout;
mod notice;
mod slot;

pub use layout::{
    AppEnd, DaemonEnd, SegmentError, SegmentHeader, SegmentLayout, SegmentShape, UserHeaderCell, app_end,
    daemon_end,
};
pub use notice::{HeldLimit, Notice, NoticeWord};
pub use slot::{PinError, Place, RelocateError, SlotWord};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most user-header bytes in a [`Delivery`] itself. A longer user header lies in the message's header
/// cell.
pub const DELIVERY_USER_HEADER_MAX: usize = 64;

/// Kinds of a [`Delivery`].
pub mod delivery_kind {
    /// A run of slices was delivered.
    pub const SLICES: u8 = 1;
    /// The rest of a message will not arrive, because its sender went away or took the message back, or the
    /// message is corrupt.
    pub const WITHDRAWN: u8 = 2;
}

/// Bits of [`Delivery::flags`].
pub mod delivery_flags {
    /// The first run of its message: tag and user header are valid.
    pub const FIRST: u8 = 1;
    /// The last run of its message.
    pub const LAST: u8 = 2;
    /// The sender sent this message before on an earlier connection.
    pub const REDELIVERED: u8 = 4;
    /// The message was withdrawn because it is corrupt; otherwise it was withdrawn because its sender went
    /// away, or took it back.
    pub const CORRUPT: u8 = 8;
    /// The sender has memory for a reply to the message.
    pub const WANTS_REPLY: u8 = 16;
}

/// A descriptor in the delivery ring: one run of consecutive slabs of one message. Two cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Delivery {
    /// Kind of the delivery, one of [`delivery_kind`].
    pub kind: u8,
    /// Flags of the delivery, bits of [`delivery_flags`].
    pub flags: u8,
    /// User-header bytes. More than [`DELIVERY_USER_HEADER_MAX`] of them lie in the message's header cell.
    pub user_header_bytes: u16,
    /// Slot of this run, named again at its release.
    pub slot: u32,
    /// Message number in this session.
    pub message: u32,
    /// Generation of the slot in the low half, that of the message in the high half.
    pub generations: u32,
    /// Offset of this run in the message, in bytes.
    pub offset: u64,
    /// Bytes of the whole message.
    pub message_bytes: u64,
    /// Bytes of this run.
    pub bytes: u32,
    /// First slab of this run.
    pub slab: u32,
    /// Word that the sending program gave.
    pub tag: u64,
    /// Number that the sender gave the message.
    pub sequence: u64,
    /// Identity of the sender, kept over its reconnects.
    pub sender: u64,
    /// User header, where it fits.
    pub user_header: [u8; DELIVERY_USER_HEADER_MAX],
}

const _: () = assert!(size_of::<Delivery>() == 128);

impl Delivery {
    /// Delivery of which every field is 0.
    pub const ZERO: Self = Self {
        kind: 0,
        flags: 0,
        user_header_bytes: 0,
        slot: 0,
        message: 0,
        generations: 0,
        offset: 0,
        message_bytes: 0,
        bytes: 0,
        slab: 0,
        tag: 0,
        sequence: 0,
        sender: 0,
        user_header: [0; DELIVERY_USER_HEADER_MAX],
    };

    /// Returns the slot's generation.
    pub fn slot_generation(&self) -> u16 {
        (self.generations & 0xffff) as u16
    }

    /// Returns the message's generation.
    pub fn message_generation(&self) -> u16 {
        (self.generations >> 16) as u16
    }

    /// Packs both generations into one word.
    pub fn pack_generations(slot: u16, message: u16) -> u32 {
        u32::from(slot) | u32::from(message) << 16
    }
}

/// Kinds of a [`Release`].
pub mod release_kind {
    /// Slices `first .. first + count` of the run in slot `index` are free.
    pub const SLICES: u8 = 1;
    /// Slices are free, like `SLICES`, and the application is done with the slot's message.
    pub const SLICES_AND_FINISH: u8 = 2;
    /// The application is done with message `index`.
    pub const FINISH: u8 = 3;
    /// The application is done with message `index`, and its reply is the first `first` bytes of the
    /// message's reply cell. Only for a message that was delivered with
    /// [`WANTS_REPLY`](super::delivery_flags::WANTS_REPLY).
    pub const REPLY: u8 = 4;
}

/// An entry in the release ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Release {
    /// Slot of the run; for `FINISH` and `REPLY` the message.
    pub index: u32,
    /// Generation of the slot or the message.
    pub generation: u16,
    /// First slice of the run to free; for `REPLY` the bytes of the reply.
    pub first: u16,
    /// Number of slices to free.
    pub count: u16,
    /// Kind of the release, one of [`release_kind`].
    pub kind: u8,
    /// Reserved byte: zero.
    pub reserved: u8,
    /// Code of a finish: 0 for consumed, else the code of the rejection.
    pub code: u32,
}

const _: () = assert!(size_of::<Release>() == 16);

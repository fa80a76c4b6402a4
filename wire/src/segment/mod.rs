//! The session segment: what the daemon and one application share, read-write, besides the read-only pool.
//!
//! One file holds, in this order: a header that says where the rest lies, the delivery ring (daemon to
//! application), the release ring (application to daemon), the notice, the slot words, and cells for user
//! headers that do not fit a descriptor. The daemon writes the header once; the application checks it once.
//! After that the daemon reads nothing from the segment but release entries and ring indices, each copied
//! once and checked.

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

/// The most user-header bytes that ride in a [`Delivery`] itself; a longer one lies in the message's header
/// cell.
pub const DELIVERY_USER_HEADER_MAX: usize = 64;

/// What a [`Delivery`] tells.
pub mod delivery_kind {
    /// A run of slices arrived.
    pub const SLICES: u8 = 1;
    /// The rest of a message will not come: its sender went away, or its checksum did not fit.
    pub const WITHDRAWN: u8 = 2;
}

/// Bits of [`Delivery::flags`].
pub mod delivery_flags {
    /// The first run of its message: tag and user header are valid.
    pub const FIRST: u8 = 1;
    /// The last run of its message.
    pub const LAST: u8 = 2;
    /// Its sender sent it before on an earlier connection.
    pub const REDELIVERED: u8 = 4;
    /// Withdrawn because the checksum did not fit (else because the sender went away).
    pub const CORRUPT: u8 = 8;
}

/// A descriptor in the delivery ring: one run of consecutive slabs of one message. Two cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Delivery {
    /// One of [`delivery_kind`].
    pub kind: u8,
    /// Bits of [`delivery_flags`].
    pub flags: u8,
    /// User-header bytes; where more than [`DELIVERY_USER_HEADER_MAX`] they lie in the message's header cell.
    pub user_header_bytes: u16,
    /// The slot of this run, named again at its release.
    pub slot: u32,
    /// The message, as an index of this session.
    pub message: u32,
    /// The slot's generation in the low half, the message's in the high half.
    pub generations: u32,
    /// Where in the message this run begins, in bytes.
    pub offset: u64,
    /// The whole message's bytes.
    pub message_bytes: u64,
    /// Bytes of this run.
    pub bytes: u32,
    /// Its first slab.
    pub slab: u32,
    /// The sender's word.
    pub tag: u64,
    /// The sender's number for the message.
    pub sequence: u64,
    /// The sender's identity, kept over its reconnects.
    pub sender: u64,
    /// The user header, where it fits.
    pub user_header: [u8; DELIVERY_USER_HEADER_MAX],
}

const _: () = assert!(size_of::<Delivery>() == 128);

impl Delivery {
    /// The slot's generation.
    pub fn slot_generation(&self) -> u16 {
        (self.generations & 0xffff) as u16
    }

    /// The message's generation.
    pub fn message_generation(&self) -> u16 {
        (self.generations >> 16) as u16
    }

    /// Both generations in one word.
    pub fn pack_generations(slot: u16, message: u16) -> u32 {
        u32::from(slot) | u32::from(message) << 16
    }
}

/// What a [`Release`] asks.
pub mod release_kind {
    /// Slices `first .. first + count` of the run in slot `index` are free.
    pub const SLICES: u8 = 1;
    /// As `SLICES`, and the application is done with the slot's message.
    pub const SLICES_AND_FINISH: u8 = 2;
    /// The application is done with message `index`.
    pub const FINISH: u8 = 3;
}

/// An entry in the release ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(8))]
pub struct Release {
    /// A slot, or a message for `FINISH`.
    pub index: u32,
    /// Its generation.
    pub generation: u16,
    /// First slice of the run.
    pub first: u16,
    /// Slices.
    pub count: u16,
    /// One of [`release_kind`].
    pub kind: u8,
    /// Zero.
    pub reserved: u8,
    /// With a finish: 0 consumed, else the code of the rejection.
    pub code: u32,
}

const _: () = assert!(size_of::<Release>() == 16);

//! The memory that the two ends of a connection share.
//!
//! Each direction has a ring of SENDs and places for staged payloads. Besides, each end has a few words for
//! faults, announcements and sleeping.
//!
//! The connecting end makes the memory, so its pages are the sender's and not the daemon's. A page is touched
//! when it is used first. "Up" is the direction from the connecting end to the accepting end.

use crate::memory::{Mapping, SharedMemory};
use crate::nic::{RegionError, Status};
use jet_wire::SLAB_BYTES;
use jet_wire::link::ConnectionWords;
use jet_wire::message::HEADER_BYTES;
use jet_wire::ring::{Consumer, Indices, Producer, RingCell};
use std::io;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Cells of each ring.
pub(super) const RING_CELLS: u32 = crate::soft::options::SENDS_PER_QP_MAX;
/// Most payload bytes that travel in the ring's own cell, beside the header.
pub(super) const BESIDE_BYTES: usize = 104;
/// Staged payloads that can be under way from the connecting end (a sender).
const STAGED_UP: u32 = 32;
/// Staged payloads that can be under way from the accepting end. They are few, since the daemon's SENDs are
/// headers.
const STAGED_DOWN: u32 = 8;

/// SEND in the ring: one contiguous write of 152 to 256 bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct SendItem {
    pub(super) place: SendPlace,
    pub(super) header: [u8; HEADER_BYTES],
    /// The payload, where it lies here. The rest is not written.
    pub(super) beside: [u8; BESIDE_BYTES],
}

/// Where the payload of a SEND in the ring lies.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct SendPlace {
    /// Place of the payload: one of the constants of [`source`].
    pub(super) source: u32,
    /// Length of the payload in bytes.
    pub(super) payload_bytes: u32,
    /// Key of the payload's region, where the payload is registered.
    pub(super) key: u32,
    pub(super) reserved: u32,
    /// Offset of the payload in its region, or the number of its staged place.
    pub(super) offset: u64,
}

/// Places where a SEND's payload can lie.
pub(super) mod source {
    /// Payload in the item itself, or an empty payload.
    pub(in super::super) const BESIDE: u32 = 0;
    /// Payload in a staged place of the link.
    pub(in super::super) const STAGED: u32 = 1;
    /// Payload in a region that the sending end registered.
    pub(in super::super) const REGISTERED: u32 = 2;
}

const _: () = assert!(size_of::<SendItem>() == 256);

/// Reason why an end gave the connection up, told to the other end in [`ConnectionWords`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Fault {
    /// Nothing failed: the end was asked to close.
    Closed = 1,
    /// A SEND was longer than its SRQ entry.
    Length = 2,
    /// A SEND's payload lies in no region of the end that posted it.
    PayloadKey = 3,
    /// A SEND found no SRQ entry for too long.
    RnrExhausted = 4,
    /// The SRQ entry's own memory was deregistered.
    Receiver = 5,
    /// A READ of the end that gives up lay outside what the other end has registered.
    RemoteAccess = 6,
    /// The peer broke the protocol.
    Protocol = 7,
    /// A region of the peer can be truncated. An end of an earlier version takes this and the faults below
    /// for a mere close.
    RegionNotSealed = 8,
    /// The peer has registered too many regions.
    RegionTooMany = 9,
    /// The peer has registered too many bytes.
    RegionTooLarge = 10,
    /// A region of the peer could not be read.
    RegionUnreadable = 11,
    /// The peer's process has its share of the places for regions.
    RegionShare = 12,
    /// All places for regions are taken.
    RegionsFull = 13,
}

/// Code of `IBV_WC_REM_OP_ERR`: the other end could not take a SEND, or not give a READ's bytes, for a reason
/// of its own.
pub(super) const REMOTE_OPERATION: u32 = 11;

impl Fault {
    fn from_word(word: u32) -> Option<Self> {
        [
            Self::Closed,
            Self::Length,
            Self::PayloadKey,
            Self::RnrExhausted,
            Self::Receiver,
            Self::RemoteAccess,
            Self::Protocol,
            Self::RegionNotSealed,
            Self::RegionTooMany,
            Self::RegionTooLarge,
            Self::RegionUnreadable,
            Self::RegionShare,
            Self::RegionsFull,
        ]
        .into_iter()
        .find(|fault| *fault as u32 == word)
    }

    /// Returns the status with which the failed SEND completes at the end that posted it. `None` where no
    /// SEND failed.
    pub(super) fn send_status(self) -> Option<Status> {
        match self {
            Self::Length => Some(Status::Length),
            Self::PayloadKey => Some(Status::LocalProtection),
            Self::RnrExhausted => Some(Status::RnrExhausted),
            Self::Receiver => Some(Status::Other(REMOTE_OPERATION)),
            Self::Closed
            | Self::RemoteAccess
            | Self::Protocol
            | Self::RegionNotSealed
            | Self::RegionTooMany
            | Self::RegionTooLarge
            | Self::RegionUnreadable
            | Self::RegionShare
            | Self::RegionsFull => None,
        }
    }

    /// Returns what is wrong with a region of the end that is told. `None` where the fault is another.
    pub(super) fn region_error(self) -> Option<RegionError> {
        match self {
            Self::RegionNotSealed => Some(RegionError::NotSealed),
            Self::RegionTooMany => Some(RegionError::TooMany),
            Self::RegionTooLarge => Some(RegionError::TooLarge),
            Self::RegionUnreadable => Some(RegionError::Unreadable),
            Self::RegionShare => Some(RegionError::Share),
            Self::RegionsFull => Some(RegionError::ReceiverFull),
            _ => None,
        }
    }
}

impl From<RegionError> for Fault {
    fn from(error: RegionError) -> Self {
        match error {
            RegionError::NotSealed => Self::RegionNotSealed,
            RegionError::TooMany => Self::RegionTooMany,
            RegionError::TooLarge => Self::RegionTooLarge,
            RegionError::Unreadable => Self::RegionUnreadable,
            RegionError::Share => Self::RegionShare,
            RegionError::ReceiverFull => Self::RegionsFull,
        }
    }
}

/// The two ends of a link, the shared memory of a connection over `shm:`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// End that made the link.
    Connecting,
    /// End that was asked to join the link.
    Accepting,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Connecting => Self::Accepting,
            Self::Accepting => Self::Connecting,
        }
    }

    fn words_offset(self) -> usize {
        match self {
            Self::Connecting => 0,
            Self::Accepting => size_of::<ConnectionWords>(),
        }
    }

    /// Offset of the ring in which this end sends.
    fn indices_offset(self) -> usize {
        2 * size_of::<ConnectionWords>()
            + match self {
                Self::Connecting => 0,
                Self::Accepting => size_of::<Indices>(),
            }
    }

    fn cells_offset(self) -> usize {
        CELLS_OFFSET
            + match self {
                Self::Connecting => 0,
                Self::Accepting => CELLS_BYTES,
            }
    }

    fn staged_offset(self) -> usize {
        STAGED_OFFSET
            + match self {
                Self::Connecting => 0,
                Self::Accepting => STAGED_UP as usize * SLAB_BYTES,
            }
    }

    fn staged_places(self) -> u32 {
        match self {
            Self::Connecting => STAGED_UP,
            Self::Accepting => STAGED_DOWN,
        }
    }
}

const CELLS_OFFSET: usize =
    (2 * size_of::<ConnectionWords>() + 2 * size_of::<Indices>()).next_multiple_of(1024);
const CELLS_BYTES: usize = RING_CELLS as usize * size_of::<SendItem>();
const STAGED_OFFSET: usize = (CELLS_OFFSET + 2 * CELLS_BYTES).next_multiple_of(SLAB_BYTES);

/// Bytes of a link's memory.
pub(super) const LINK_BYTES: usize = STAGED_OFFSET + (STAGED_UP + STAGED_DOWN) as usize * SLAB_BYTES;

// Bounded, so that 1,000 senders do not take much memory.
const _: () = assert!(LINK_BYTES <= 256 << 10);

#[derive(Debug)]
enum Memory {
    Made(SharedMemory),
    Mapped(Mapping),
}

/// End of a link: its memory, and its ends of the two rings.
pub(super) struct Link {
    memory: Memory,
    side: Side,
    /// Ring of the SENDs of this end.
    pub(super) outgoing: Producer<SendItem>,
    /// Ring of the SENDs of the other end.
    pub(super) incoming: Consumer<SendItem>,
}

impl Link {
    /// Makes a link, as its connecting end.
    pub(super) fn make() -> io::Result<Self> {
        let memory = SharedMemory::lazy("jet-link", LINK_BYTES)?;
        Ok(Self::at(Side::Connecting, Memory::Made(memory)))
    }

    /// Joins a link that another process made. `None` where the mapping has another size than a link.
    pub(super) fn join(mapping: Mapping) -> Option<Self> {
        (mapping.bytes() == LINK_BYTES).then(|| Self::at(Side::Accepting, Memory::Mapped(mapping)))
    }

    fn at(side: Side, memory: Memory) -> Self {
        let base = base(&memory);
        let indices = |side: Side| base.wrapping_add(side.indices_offset()).cast::<Indices>().cast_const();
        let cells =
            |side: Side| base.wrapping_add(side.cells_offset()).cast::<RingCell<SendItem>>().cast_const();
        // SAFETY: indices and cells lie within the mapping by the offsets above (its size is LINK_BYTES),
        // aligned because the base is a page; `memory` is kept beside the ends and outlives them. Each ring
        // has one producer (the end that it is named for) and one consumer (the other end), as each end of a
        // connection is made once. A hostile peer that adds more only harms what it may write anyway.
        let outgoing = unsafe { Producer::new(indices(side), cells(side), RING_CELLS) };
        // SAFETY: as above.
        let incoming = unsafe { Consumer::new(indices(side.other()), cells(side.other()), RING_CELLS) };
        Self { memory, side, outgoing, incoming }
    }

    /// Returns the memory file to pass to the other end. `None` where the other end made it.
    pub(super) fn file(&self) -> Option<&SharedMemory> {
        match &self.memory {
            Memory::Made(memory) => Some(memory),
            Memory::Mapped(_) => None,
        }
    }

    fn words(&self, side: Side) -> &ConnectionWords {
        let words = base(&self.memory).wrapping_add(side.words_offset()).cast::<ConnectionWords>();
        // SAFETY: within the mapping, aligned, valid for every bit pattern, and only accessed as atomics.
        unsafe { &*words }
    }

    /// Returns how many places this end has for staged payloads.
    pub(super) fn staged_places(&self) -> u32 {
        self.side.staged_places()
    }

    /// Returns the address of a staged place of this end, for a payload that is to be sent.
    pub(super) fn staged(&self, place: u32) -> *mut u8 {
        assert!(place < self.side.staged_places());
        base(&self.memory).wrapping_add(self.side.staged_offset() + place as usize * SLAB_BYTES)
    }

    /// Returns the address of a staged place of the other end, by the number in its SEND. `None` where there
    /// is no such place.
    pub(super) fn staged_by_peer(&self, place: u64) -> Option<*const u8> {
        let from = self.side.other();
        let place = usize::try_from(place).ok().filter(|place| *place < from.staged_places() as usize)?;
        Some(base(&self.memory).wrapping_add(from.staged_offset() + place * SLAB_BYTES).cast_const())
    }

    /// Tells the other end that this one gives up, and how many SENDs it took before.
    pub(super) fn set_fault(&self, fault: Fault, received: u32) {
        self.words(self.side).set_fault(fault as u32, received);
    }

    /// Returns whether the other end has left. `false`: what was copied of its memory before this call is
    /// from before it left.
    #[inline]
    pub(super) fn has_peer_left(&self) -> bool {
        self.words(self.side.other()).has_left()
    }

    /// Returns the fault with which the other end gave up, and how many SENDs it had taken. `None` where it
    /// has not given up.
    pub(super) fn peer_fault(&self) -> Option<(Fault, u32)> {
        let (fault, received) = self.words(self.side.other()).fault();
        Some((Fault::from_word(fault)?, received))
    }

    /// Tells the other end how many announcements this end has sent on the socket, or queued for it.
    pub(super) fn set_announced(&self, count: u32) {
        self.words(self.side).set_announced(count);
    }

    /// Returns how many announcements the other end says it has sent, or queued.
    #[inline]
    pub(super) fn peer_announced(&self) -> u32 {
        self.words(self.side.other()).announced()
    }

    /// Tells the other end that this end sleeps until its SENDs are taken. Check the ring once more after
    /// this call.
    pub(super) fn wait_for_room(&self) {
        self.words(self.side).room().sleeps();
    }

    /// Withdraws [`Self::wait_for_room`].
    pub(super) fn stop_waiting_for_room(&self) {
        self.words(self.side).room().is_up();
    }

    /// Whether the other end sleeps until its SENDs are taken. To be asked after advancing past SENDs.
    #[inline]
    pub(super) fn peer_waits_for_room(&self) -> bool {
        self.words(self.side.other()).room().must_be_woken()
    }
}

fn base(memory: &Memory) -> *mut u8 {
    match memory {
        Memory::Made(memory) => memory.base(),
        Memory::Mapped(mapping) => mapping.base(),
    }
}

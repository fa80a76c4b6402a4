//! The memory that two ends share: a ring of SENDs and staged payloads each way, and a few words for the
//! unusual.
//!
//! The connecting end makes it, so its pages are the sender's, not the daemon's; pages are touched when they
//! are used first. Up is from the connecting end to the accepting one.

use crate::memory::{Mapping, SharedMemory};
use crate::nic::Status;
use jet_wire::SLAB_BYTES;
use jet_wire::link::EndWords;
use jet_wire::message::HEADER_BYTES;
use jet_wire::ring::{Consumer, Indices, Producer, RingCell};
use std::io;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Cells of each ring.
pub(super) const RING_CELLS: u32 = crate::soft::options::SENDS_PER_QP_MAX;
/// The most payload bytes that travel in the ring's own cell, beside the header.
pub(super) const BESIDE_BYTES: usize = 104;
/// Staged payloads under way from the connecting end (a sender).
const STAGED_UP: u32 = 32;
/// From the accepting end: the daemon's SENDs are headers.
const STAGED_DOWN: u32 = 8;

/// A SEND as it stands in the ring: one contiguous write of 256 bytes, whatever it carries.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct SendItem {
    /// One of [`source`].
    pub(super) source: u32,
    /// Payload bytes.
    pub(super) payload_bytes: u32,
    /// The region's key, where the payload is registered.
    pub(super) key: u32,
    pub(super) reserved: u32,
    /// Offset in the region, or the staged place.
    pub(super) place: u64,
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) beside: [u8; BESIDE_BYTES],
}

/// Where a SEND's payload lies.
pub(super) mod source {
    /// In the item. So does a payload of no bytes.
    pub(in super::super) const BESIDE: u32 = 0;
    /// In a staged place of the link.
    pub(in super::super) const STAGED: u32 = 1;
    /// In a region that the sending end registered.
    pub(in super::super) const REGISTERED: u32 = 2;
}

const _: () = assert!(size_of::<SendItem>() == 256);

/// Why an end gave a connection up, told to the other end in [`EndWords`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Fault {
    /// Nothing failed: it was asked to.
    Closed = 1,
    /// A SEND was longer than its SRQ entry.
    Length = 2,
    /// A SEND's payload lies in no region of its poster.
    PayloadKey = 3,
    /// A SEND found no SRQ entry for too long.
    RnrExhausted = 4,
    /// The SRQ entry's own memory was deregistered.
    Receiver = 5,
    /// A READ of this peer's memory was outside what it registered.
    RemoteAccess = 6,
    /// The peer spoke out of turn.
    Protocol = 7,
}

/// `IBV_WC_REM_OP_ERR`: what verbs says where the other end could not take a SEND for a reason of its own.
const REMOTE_OPERATION: u32 = 11;

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
        ]
        .into_iter()
        .find(|fault| *fault as u32 == word)
    }

    /// How the SEND that met it completes at its poster.
    pub(super) fn send_status(self) -> Option<Status> {
        match self {
            Self::Length => Some(Status::Length),
            Self::PayloadKey => Some(Status::LocalProtection),
            Self::RnrExhausted => Some(Status::RnrExhausted),
            Self::Receiver => Some(Status::Other(REMOTE_OPERATION)),
            Self::Closed | Self::RemoteAccess | Self::Protocol => None,
        }
    }
}

/// Which end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Who made the link.
    Connecting,
    /// Who was asked.
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
            Self::Accepting => size_of::<EndWords>(),
        }
    }

    /// The ring in which this end sends.
    fn indices_offset(self) -> usize {
        2 * size_of::<EndWords>()
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

const CELLS_OFFSET: usize = (2 * size_of::<EndWords>() + 2 * size_of::<Indices>()).next_multiple_of(1024);
const CELLS_BYTES: usize = RING_CELLS as usize * size_of::<SendItem>();
const STAGED_OFFSET: usize = (CELLS_OFFSET + 2 * CELLS_BYTES).next_multiple_of(SLAB_BYTES);

/// Bytes of a link.
pub(super) const LINK_BYTES: usize = STAGED_OFFSET + (STAGED_UP + STAGED_DOWN) as usize * SLAB_BYTES;

// 1,000 senders must be cheap.
const _: () = assert!(LINK_BYTES <= 256 << 10);

#[derive(Debug)]
enum Memory {
    Made(SharedMemory),
    Mapped(Mapping),
}

/// One end of a link.
pub(super) struct Link {
    memory: Memory,
    side: Side,
    /// SENDs of this end.
    pub(super) outgoing: Producer<SendItem>,
    /// SENDs of the other end.
    pub(super) incoming: Consumer<SendItem>,
}

impl Link {
    /// Makes a link, as its connecting end.
    pub(super) fn make() -> io::Result<Self> {
        let memory = SharedMemory::lazy("jet-link", LINK_BYTES)?;
        Ok(Self::at(Side::Connecting, Memory::Made(memory)))
    }

    /// Takes part in a link that a stranger made; `None` where it has not the size of one.
    pub(super) fn join(mapping: Mapping) -> Option<Self> {
        (mapping.bytes() == LINK_BYTES).then(|| Self::at(Side::Accepting, Memory::Mapped(mapping)))
    }

    fn at(side: Side, memory: Memory) -> Self {
        let base = base(&memory);
        let indices = |side: Side| base.wrapping_add(side.indices_offset()).cast::<Indices>().cast_const();
        let cells =
            |side: Side| base.wrapping_add(side.cells_offset()).cast::<RingCell<SendItem>>().cast_const();
        // SAFETY: indices and cells lie within the mapping by the offsets above (its size is LINK_BYTES),
        // aligned because the base is a page; `memory` is kept beside the ends and outlives them; each ring
        // has one producer (the end that it is named for) and one consumer (the other), as each end of a
        // connection is made once. A hostile peer that adds more only harms what it may write anyway.
        let outgoing = unsafe { Producer::new(indices(side), cells(side), RING_CELLS) };
        // SAFETY: as above.
        let incoming = unsafe { Consumer::new(indices(side.other()), cells(side.other()), RING_CELLS) };
        Self { memory, side, outgoing, incoming }
    }

    /// The file to pass to the other end; none where the other end made it.
    pub(super) fn file(&self) -> Option<&SharedMemory> {
        match &self.memory {
            Memory::Made(memory) => Some(memory),
            Memory::Mapped(_) => None,
        }
    }

    fn words(&self, side: Side) -> &EndWords {
        let words = base(&self.memory).wrapping_add(side.words_offset()).cast::<EndWords>();
        // SAFETY: within the mapping, aligned, valid for every bit pattern, and only accessed as atomics.
        unsafe { &*words }
    }

    /// Places where this end stages payloads.
    pub(super) fn staged_places(&self) -> u32 {
        self.side.staged_places()
    }

    /// A place of this end, for a payload on its way out.
    pub(super) fn staged(&self, place: u32) -> *mut u8 {
        assert!(place < self.side.staged_places());
        base(&self.memory).wrapping_add(self.side.staged_offset() + place as usize * SLAB_BYTES)
    }

    /// A place of the other end, by the number that it sent; `None` where there is no such place.
    pub(super) fn staged_by_peer(&self, place: u64) -> Option<*const u8> {
        let from = self.side.other();
        let place = usize::try_from(place).ok().filter(|place| *place < from.staged_places() as usize)?;
        Some(base(&self.memory).wrapping_add(from.staged_offset() + place * SLAB_BYTES).cast_const())
    }

    /// Tells the other end that this one gives up, and how many SENDs it took before.
    pub(super) fn set_fault(&self, fault: Fault, received: u32) {
        self.words(self.side).set_fault(fault as u32, received);
    }

    /// What the other end said when it gave up, and how many SENDs it had taken.
    pub(super) fn peer_fault(&self) -> Option<(Fault, u32)> {
        let (fault, received) = self.words(self.side.other()).fault();
        Some((Fault::from_word(fault)?, received))
    }

    /// Says how many registrations and deregistrations are on the socket, or on their way there.
    pub(super) fn set_announced(&self, count: u32) {
        self.words(self.side).set_announced(count);
    }

    /// How many the other end says are there to take.
    #[inline]
    pub(super) fn peer_announced(&self) -> u32 {
        self.words(self.side.other()).announced()
    }

    /// Says that this end sleeps until its SENDs are taken. Look once more at the ring after this.
    pub(super) fn want_room(&self) {
        self.words(self.side).room().sleeps();
    }

    /// Takes [`Self::want_room`] back.
    pub(super) fn room_unwanted(&self) {
        self.words(self.side).room().is_up();
    }

    /// After advancing past SENDs: whether the other end sleeps until that.
    #[inline]
    pub(super) fn room_is_wanted(&self) -> bool {
        self.words(self.side.other()).room().must_be_woken()
    }
}

fn base(memory: &Memory) -> *mut u8 {
    match memory {
        Memory::Made(memory) => memory.base(),
        Memory::Mapped(mapping) => mapping.base(),
    }
}

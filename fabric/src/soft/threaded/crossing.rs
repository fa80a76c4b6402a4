//! Data that passes between a [`super::Threaded`]'s front and its NIC thread: posts, completions, send
//! buffers, slow calls.

use crate::address::Address;
use crate::memory::SharedMemory;
use crate::nic::{
    Access, Completion, ConnectError, Counters, Event, ListenError, MemoryKey, PostError, PrivateData, Qp,
    RegisterError, Sge, SrqEntry, Status, Work,
};
use crossbeam_queue::ArrayQueue;
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Kinds of [`Post`], and their fields.
pub(super) mod post_kind {
    /// SRQ entry: [`Post::number`](super::Post) is its id, `a` its header, `b` its slab. `count` is 0 without
    /// a slab.
    pub const SRQ: u16 = 1;
    /// SEND: `number` is the send buffer, `address` the length of the inline payload. With `count` 1, `a` is
    /// a registered payload.
    pub const SEND: u16 = 2;
    /// READ: `number` is the remote key, `count` the number of scatter entries. They are in `a`, `b`, and
    /// four in each of the cells that follow.
    pub const READ: u16 = 3;
    /// End of the QP.
    pub const DISCONNECT: u16 = 4;
}

/// Stretch of registered memory as plain words.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct RawSge {
    offset: u64,
    key: u32,
    bytes: u32,
}

impl RawSge {
    pub(super) fn new(sge: Sge) -> Self {
        Self { offset: sge.offset, key: sge.key.0, bytes: sge.bytes }
    }

    pub(super) fn get(self) -> Sge {
        Sge { key: MemoryKey(self.key), offset: self.offset, bytes: self.bytes }
    }
}

/// Cell of the post ring.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct Post {
    pub(super) kind: u16,
    pub(super) count: u16,
    pub(super) number: u32,
    pub(super) qp_index: u32,
    pub(super) qp_generation: u32,
    pub(super) id: u64,
    pub(super) address: u64,
    pub(super) a: RawSge,
    pub(super) b: RawSge,
}

/// Scatter entries in each cell behind a READ's first one.
pub(super) const SGES_PER_CELL: usize = 4;
/// Scatter entries in a READ's first cell.
pub(super) const SGES_IN_FIRST: usize = 2;

/// Cell of further scatter entries.
pub(super) type MoreSges = [RawSge; SGES_PER_CELL];

const _: () = assert!(size_of::<Post>() == size_of::<MoreSges>());

impl Post {
    pub(super) fn of_qp(kind: u16, qp: Qp) -> Self {
        Self { kind, qp_index: qp.index, qp_generation: qp.generation, ..Self::default() }
    }

    pub(super) fn of_srq(entry: &SrqEntry) -> Self {
        Self {
            kind: post_kind::SRQ,
            count: u16::from(entry.payload.is_some()),
            number: entry.id,
            a: RawSge::new(entry.header),
            b: entry.payload.map_or(RawSge::default(), RawSge::new),
            ..Self::default()
        }
    }

    pub(super) fn srq_entry(&self) -> SrqEntry {
        let payload = (self.count == 1).then(|| self.b.get());
        SrqEntry { id: self.number, header: self.a.get(), payload }
    }

    pub(super) fn qp(&self) -> Qp {
        Qp { index: self.qp_index, generation: self.qp_generation }
    }

    /// Makes a cell of four further scatter entries.
    pub(super) fn of_sges(sges: MoreSges) -> Self {
        zerocopy::transmute!(sges)
    }

    pub(super) fn sges(self) -> MoreSges {
        zerocopy::transmute!(self)
    }

    /// Returns how many cells a READ into so many stretches takes.
    pub(super) fn read_cells(sges: usize) -> usize {
        1 + sges.saturating_sub(SGES_IN_FIRST).div_ceil(SGES_PER_CELL)
    }
}

/// Cell of the completion ring.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct RawCompletion {
    id: u64,
    qp_index: u32,
    qp_generation: u32,
    payload_bytes: u32,
    code: u32,
    work: u32,
    status: u32,
}

impl RawCompletion {
    #[inline]
    pub(super) fn new(completion: &Completion) -> Self {
        let (work, id, payload_bytes) = match completion.work {
            Work::Receive { entry, payload_bytes } => (0, u64::from(entry), payload_bytes),
            Work::Send { id } => (1, id, 0),
            Work::Read { id } => (2, id, 0),
            Work::SrqFlush { entry } => (3, u64::from(entry), 0),
        };
        let (status, code) = match completion.status {
            Status::Success => (0, 0),
            Status::Flushed => (1, 0),
            Status::RemoteAccess => (2, 0),
            Status::LocalProtection => (3, 0),
            Status::Length => (4, 0),
            Status::RnrExhausted => (5, 0),
            Status::Other(code) => (6, code),
        };
        let Qp { index, generation } = completion.qp;
        Self { id, qp_index: index, qp_generation: generation, payload_bytes, code, work, status }
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // an SRQ entry's id was 32 bits before
    pub(super) fn get(self) -> Completion {
        let work = match self.work {
            0 => Work::Receive { entry: self.id as u32, payload_bytes: self.payload_bytes },
            1 => Work::Send { id: self.id },
            2 => Work::Read { id: self.id },
            _ => Work::SrqFlush { entry: self.id as u32 },
        };
        let status = match self.status {
            0 => Status::Success,
            1 => Status::Flushed,
            2 => Status::RemoteAccess,
            3 => Status::LocalProtection,
            4 => Status::Length,
            5 => Status::RnrExhausted,
            _ => Status::Other(self.code),
        };
        Completion { qp: Qp { index: self.qp_index, generation: self.qp_generation }, work, status }
    }
}

/// Buffer for one SEND's header and inline payload, on its way from the front to the thread.
#[repr(C, align(64))]
struct SendBuffer {
    header: HeaderBytes,
    inline: [u8; jet_wire::SLAB_BYTES],
}

/// Send buffers, which are passed between the two threads.
///
/// A buffer belongs to the front until its index is in the post ring. It belongs to the thread until its
/// index is in the ring of returned buffers. The rings' memory orderings make the bytes visible to the new
/// owner.
pub(super) struct SendBuffers(Box<[UnsafeCell<SendBuffer>]>);

// SAFETY: each buffer has one owner at a time, as the type's documentation says.
unsafe impl Sync for SendBuffers {}
// SAFETY: plain bytes.
unsafe impl Send for SendBuffers {}

impl SendBuffers {
    pub(super) fn new(count: u32) -> Self {
        let empty =
            || SendBuffer { header: HeaderBytes([0; HEADER_BYTES]), inline: [0; jet_wire::SLAB_BYTES] };
        Self((0..count).map(|_| UnsafeCell::new(empty())).collect())
    }

    /// Fills a buffer with a SEND's header and inline payload.
    ///
    /// # Safety
    /// The caller is the front and owns the buffer.
    pub(super) unsafe fn write(&self, index: u32, header: &HeaderBytes, inline: &[u8]) {
        // SAFETY: the caller owns the buffer.
        let buffer = unsafe { &mut *self.0[index as usize].get() };
        buffer.header = *header;
        buffer.inline[..inline.len()].copy_from_slice(inline);
    }

    /// Returns the header and inline payload in a buffer.
    ///
    /// # Safety
    /// The caller is the thread and owns the buffer for as long as it holds what this returns.
    pub(super) unsafe fn read(&self, index: u32, inline_bytes: usize) -> (&HeaderBytes, &[u8]) {
        // SAFETY: the caller owns the buffer, and nobody writes it meanwhile.
        let buffer = unsafe { &*self.0[index as usize].get() };
        (&buffer.header, &buffer.inline[..inline_bytes])
    }
}

/// Slow call that the thread carries out.
pub(super) enum Control {
    Register(Arc<SharedMemory>, Access),
    Deregister(MemoryKey),
    Listen(Address),
    StopListening,
    Connect(Address, PrivateData),
    Accept(Qp, PrivateData),
    Reject(Qp, PrivateData),
}

/// Answer to a slow call.
pub(super) enum Reply {
    /// Key of the memory, and the inner NIC's address of its first byte.
    Registered(Result<(MemoryKey, u64), RegisterError>),
    Listening(Result<Address, ListenError>),
    Connecting(Result<Qp, ConnectError>),
    Accepted(Result<(), PostError>),
    Done,
}

/// State that the front and the thread share.
pub(super) struct Shared {
    /// Events in their order, each with the number of completions that had been shown before it.
    pub(super) events: ArrayQueue<(u64, Event)>,
    /// Whether a slow call waits in the channel.
    pub(super) control_waiting: AtomicBool,
    /// Whether the front is gone.
    pub(super) stop: AtomicBool,
    /// Whether the thread panicked.
    pub(super) dead: AtomicBool,
    counters: [AtomicU64; 8],
}

impl Shared {
    pub(super) fn new(events: usize) -> Self {
        Self {
            events: ArrayQueue::new(events),
            control_waiting: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            counters: Default::default(),
        }
    }

    pub(super) fn store_counters(&self, counters: &Counters) {
        let Counters {
            receives,
            sends,
            reads,
            bytes_in,
            rnr,
            flushed,
            protocol_errors,
            networks_refused,
            ..
        } = *counters;
        let values = [receives, sends, reads, bytes_in, rnr, flushed, protocol_errors, networks_refused];
        for (place, value) in self.counters.iter().zip(values) {
            place.store(value, Ordering::Relaxed);
        }
    }

    pub(super) fn counters(&self) -> Counters {
        let [receives, sends, reads, bytes_in, rnr, flushed, protocol_errors, networks_refused] =
            std::array::from_fn(|index| self.counters[index].load(Ordering::Relaxed));
        Counters {
            receives,
            sends,
            reads,
            bytes_in,
            rnr,
            flushed,
            protocol_errors,
            networks_refused,
            // The other counters are those of devices.
            ..Counters::default()
        }
    }
}

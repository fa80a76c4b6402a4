//! Memory for replies: where they arrive, and where they wait for whoever sent the messages.
//!
//! A reply arrives behind its header in one of the few receive entries, which the receiver's next header
//! needs again. So it is copied, once, into memory of its own.

use super::driver::RECEIVE_ENTRIES;
use super::error::SendConnectError;
use jet_fabric::Nic;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{Access, MemoryKey, RegisterError, Sge};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A reply of an application to a message, of up to 4096 bytes.
///
/// Drop it when it was used: its memory then serves the next reply. A sender has such memory for one more
/// reply than messages may be without an end (1025 at most), so that one may be kept; what arrives while all
/// of it is kept is allocated.
pub struct Reply(Bytes);

enum Bytes {
    Place { place: Place, length: usize },
    Allocated(Box<[u8]>),
}

/// Memory for one reply, taken when the reply arrived. It is free again when this is dropped.
struct Place {
    number: u32,
    pool: Arc<Pool>,
}

/// Places for replies that arrived and were not dropped yet.
struct Pool {
    memory: SharedMemory,
    /// Free places. The last one that came free is used first.
    free: Mutex<Vec<u32>>,
}

/// Messages for whose replies a sender has places, at most.
const PLACES_MAX: u32 = 1024;

/// All memory for the replies to a sender's messages.
pub(super) struct Replies {
    pool: Arc<Pool>,
    /// Where replies arrive, 4 KiB for each receive entry.
    arrivals: Arc<SharedMemory>,
    key: MemoryKey,
}

impl Replies {
    /// Makes memory for as many replies as messages may be without an end, and for those that arrive.
    pub(super) fn new(nic: &mut dyn Nic, in_flight_max: u32) -> Result<Self, SendConnectError> {
        let places = in_flight_max.min(PLACES_MAX) + 1;
        let memory = SharedMemory::new("jet-replies", places as usize * SLAB_BYTES, false)?;
        let free = Mutex::new((0..places).rev().collect());
        let arrivals = usize::from(RECEIVE_ENTRIES) * SLAB_BYTES;
        let arrivals = Arc::new(SharedMemory::new("jet-arrivals", arrivals, false)?);
        let key = nic.register(&arrivals, Access::LocalWrite)?;
        Ok(Self { pool: Arc::new(Pool { memory, free }), arrivals, key })
    }

    /// Registers the memory with another NIC.
    pub(super) fn move_to(&mut self, nic: &mut dyn Nic) -> Result<(), RegisterError> {
        self.key = nic.register(&self.arrivals, Access::LocalWrite)?;
        Ok(())
    }

    /// Returns where the NIC puts what comes behind the header in a receive entry.
    pub(super) fn sge(&self, entry: u32) -> Sge {
        Sge { key: self.key, offset: u64::from(entry) * SLAB_BYTES as u64, bytes: SLAB_BYTES_U32 }
    }

    /// Takes the reply that is the first `bytes` bytes of what arrived in an entry, which must not have been
    /// posted again.
    pub(super) fn take(&self, entry: u32, bytes: usize) -> Reply {
        let at = entry as usize * SLAB_BYTES;
        assert!(bytes <= SLAB_BYTES && at + SLAB_BYTES <= self.arrivals.bytes(), "{bytes} bytes in {entry}");
        // SAFETY: within the mapping, as just checked. The NIC wrote the bytes before it completed the entry,
        // and leaves them alone until the entry is posted again.
        let arrived = unsafe { std::slice::from_raw_parts(self.arrivals.base().add(at), bytes) };
        let Some(number) = self.pool.lock().pop() else { return Reply(Bytes::Allocated(arrived.into())) };
        let place = Place { number, pool: Arc::clone(&self.pool) };
        // SAFETY: the place has 4096 bytes, and is this one's alone.
        unsafe { place.first().copy_from_nonoverlapping(arrived.as_ptr(), bytes) };
        Reply(Bytes::Place { place, length: bytes })
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        // A panic cannot leave the list half changed.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn first(&self) -> *mut u8 {
        // SAFETY: the place lies within the memory, which has as many places as there are numbers.
        unsafe { self.pool.memory.base().add(self.number as usize * SLAB_BYTES) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pool.lock().push(self.number);
    }
}

impl Deref for Reply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: the place is this reply's alone, mapped as long as the pool, and `length` bytes of it
            // were written.
            Bytes::Place { place, length } => unsafe { std::slice::from_raw_parts(place.first(), *length) },
            Bytes::Allocated(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Reply {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("bytes", &self.len()).finish_non_exhaustive()
    }
}

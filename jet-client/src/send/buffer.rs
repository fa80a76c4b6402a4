//! Registered send buffers: pieces of a few regions, used again and again.

use super::error::BufferError;
use jet_fabric::Nic;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{Access, MemoryKey, RegisterError, Sge};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const SMALLEST_LOG2: u32 = 12;
const CLASSES: usize = 52;

/// A piece of a sender's registered memory, to be filled and sent. The peer's NIC may READ it, and no other
/// process may write it.
///
/// It is a slice of as many bytes as were asked for, all of which are sent. [`Self::set_length`] changes
/// that number, up to [`Self::capacity`].
///
/// Dropping the buffer gives the memory back to its sender's pool, so that the next buffer needs no
/// registration.
pub struct SendBuffer {
    bytes: NonNull<u8>,
    length: usize,
    class: usize,
    offset: u64,
    region: Region,
    pool: Arc<FreeBuffers>,
}

// SAFETY: a buffer is the only way to its bytes in this process, and the region outlives it.
unsafe impl Send for SendBuffer {}
// SAFETY: through a shared reference the bytes can only be read.
unsafe impl Sync for SendBuffer {}

#[derive(Clone, Debug)]
struct Region {
    memory: Arc<SharedMemory>,
    /// Key of the region in the present NIC. Another NIC gives it another key.
    key: Arc<AtomicU32>,
}

impl Region {
    #[inline]
    fn key(&self) -> MemoryKey {
        // Relaxed: only the sender changes the key, and only the sender reads it.
        MemoryKey(self.key.load(Ordering::Relaxed))
    }
}

/// Free pieces by size class (log2 of the size).
#[derive(Debug)]
struct FreeBuffers(Mutex<Vec<Vec<(Region, u64)>>>);

/// Pool of a sender's buffers.
#[derive(Debug)]
pub(super) struct BufferPool {
    free: Arc<FreeBuffers>,
    region_bytes: usize,
    /// All regions, kept until the sender is dropped.
    regions: Vec<Region>,
    /// Region that pieces are cut from, and the number of bytes that are cut already.
    current: Option<(Region, usize)>,
}

impl BufferPool {
    pub(super) fn new(region_bytes: usize) -> Self {
        Self {
            free: Arc::new(FreeBuffers(Mutex::new(vec![Vec::new(); CLASSES]))),
            region_bytes,
            regions: Vec::new(),
            current: None,
        }
    }

    pub(super) fn get(&mut self, nic: &mut dyn Nic, bytes: usize) -> Result<SendBuffer, BufferError> {
        let piece = piece_of(bytes)?;
        let free = self.free.lock().get_mut(class_of(piece)).and_then(Vec::pop);
        let (region, offset) = match free {
            Some(piece) => piece,
            None => self.cut(nic, piece)?,
        };
        Ok(self.buffer(region, offset, bytes, piece))
    }

    /// Returns `count` buffers of `bytes` bytes each. Each begins where the one before ends, if `bytes` is a
    /// power of two of 4096 or more.
    pub(super) fn get_row(
        &mut self,
        nic: &mut dyn Nic,
        bytes: usize,
        count: usize,
    ) -> Result<Vec<SendBuffer>, BufferError> {
        let piece = piece_of(bytes)?;
        let all = piece.checked_mul(count).ok_or_else(|| too_much(bytes))?;
        let (region, offset) = self.cut(nic, all)?;
        let each = (0..count as u64).map(|at| offset + at * piece as u64);
        Ok(each.map(|offset| self.buffer(region.clone(), offset, bytes, piece)).collect())
    }

    fn buffer(&self, region: Region, offset: u64, bytes: usize, piece: usize) -> SendBuffer {
        let at = usize::try_from(offset).expect("offsets within mapped memory");
        // SAFETY: the piece lies within its region.
        let first = unsafe { region.memory.base().add(at) };
        let first = NonNull::new(first).expect("mapped memory is not at 0");
        let (class, pool) = (class_of(piece), Arc::clone(&self.free));
        SendBuffer { bytes: first, length: bytes, class, offset, region, pool }
    }

    fn cut(&mut self, nic: &mut dyn Nic, piece: usize) -> Result<(Region, u64), BufferError> {
        if let Some((region, used)) = &mut self.current
            && let Some(end) = used.checked_add(piece).filter(|end| *end <= region.memory.bytes())
        {
            let offset = *used as u64;
            *used = end;
            return Ok((region.clone(), offset));
        }
        let bytes = piece.max(self.region_bytes);
        let memory = SharedMemory::new("jet-send", bytes, true)
            .and_then(|memory| memory.seal_future_writes().map(|()| Arc::new(memory)))
            .map_err(|source| BufferError::Memory { bytes, source })?;
        let key = nic.register(&memory, Access::RemoteRead)?;
        let region = Region { memory, key: Arc::new(AtomicU32::new(key.0)) };
        self.regions.push(region.clone());
        // Further pieces are cut from the region that has more free bytes.
        if self
            .current
            .as_ref()
            .is_none_or(|(old, used)| old.memory.bytes() - used <= region.memory.bytes() - piece)
        {
            self.current = Some((region.clone(), piece));
        }
        Ok((region, 0))
    }

    /// Registers all regions with another NIC. Nothing of them may be in flight.
    pub(super) fn move_to(&mut self, nic: &mut dyn Nic) -> Result<(), RegisterError> {
        for region in &self.regions {
            let key = nic.register(&region.memory, Access::RemoteRead)?;
            region.key.store(key.0, Ordering::Relaxed);
        }
        Ok(())
    }

    pub(super) fn owns(&self, buffer: &SendBuffer) -> bool {
        Arc::ptr_eq(&self.free, &buffer.pool)
    }
}

/// Returns the size of the piece that is cut for a buffer: a power of two.
fn piece_of(bytes: usize) -> Result<usize, BufferError> {
    let piece = bytes.max(1 << SMALLEST_LOG2).checked_next_power_of_two();
    piece.filter(|piece| class_of(*piece) < CLASSES).ok_or_else(|| too_much(bytes))
}

fn class_of(piece: usize) -> usize {
    piece.trailing_zeros() as usize
}

fn too_much(bytes: usize) -> BufferError {
    BufferError::Memory { bytes, source: std::io::ErrorKind::OutOfMemory.into() }
}

impl FreeBuffers {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Vec<(Region, u64)>>> {
        // A panic cannot leave the list of free pieces half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SendBuffer {
    /// Returns the number of bytes that the buffer has room for: its length when it was made, rounded up to a
    /// power of two of 4096 or more.
    pub fn capacity(&self) -> usize {
        1 << self.class
    }

    /// Sets the number of bytes that are sent. Bytes beyond the old length hold what they held before, or
    /// zeros.
    ///
    /// # Panics
    /// Where `bytes` is greater than [`Self::capacity`], as slices do.
    pub fn set_length(&mut self, bytes: usize) {
        let capacity = self.capacity();
        assert!(bytes <= capacity, "length {bytes} is out of range for a buffer of capacity {capacity}");
        self.length = bytes;
    }

    pub(super) fn sge(&self, bytes: u32) -> Sge {
        Sge { key: self.region.key(), offset: self.offset, bytes }
    }

    pub(super) fn key(&self) -> MemoryKey {
        self.region.key()
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }
}

impl Deref for SendBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the piece is this buffer's alone, at least `length` long and zeroed or written before, also
        // beyond what earlier lengths were; it is sealed against writing by other processes, and NICs only
        // read it.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.length) }
    }
}

impl DerefMut for SendBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`. A buffer in flight is inside its sender, so no NIC was told to read this
        // one. A peer that READs it nevertheless may get any mixture of old and new bytes.
        unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for SendBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for SendBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for SendBuffer {
    fn drop(&mut self) {
        if let Some(class) = self.pool.lock().get_mut(self.class) {
            class.push((self.region.clone(), self.offset));
        }
    }
}

impl fmt::Debug for SendBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBuffer").field("bytes", &self.length).finish_non_exhaustive()
    }
}

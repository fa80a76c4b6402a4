//! Send buffers: pieces of a few registered regions, used again and again, or of the program's own memory.

use super::error::{BufferError, DeregisterError};
use super::held::Held;
use super::memory::{Arena, SendMemory};
use jet_fabric::Nic;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{Access, MemoryKey, RegisterError};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const SMALLEST_LOG2: u32 = 12;
/// Bytes of the first region, unless the first buffer is larger. The system takes about a millisecond for 2
/// or 3 MiB of fresh memory, for which a program's first message would wait.
const FIRST_REGION_BYTES: usize = 256 << 10;
const CLASSES: usize = 52;

/// A piece of memory to be filled and sent: of a sender's own registered memory, or of a [`SendMemory`]. The
/// peer's NIC may READ it, and no other process may write it.
///
/// It is a slice of as many bytes as were asked for, all of which are sent. [`Self::set_length`] changes
/// that number, up to [`Self::capacity`].
///
/// Dropping the buffer gives the memory back to where it is from, so that the next buffer needs no
/// registration.
pub struct SendBuffer {
    bytes: NonNull<u8>,
    length: usize,
    capacity: usize,
    offset: u64,
    origin: Origin,
}

/// Where a buffer is from.
enum Origin {
    /// A sender's own memory.
    Pool { region: Region, pool: Arc<FreeBuffers> },
    /// The program's memory.
    Arena(Arc<Arena>),
}

// SAFETY: a buffer is the only way to its bytes in this process, as whoever gave a file has promised
// (`SendMemory::from_file`), and the region outlives it.
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
    fn new(nic: &mut dyn Nic, memory: Arc<SharedMemory>) -> Result<Self, RegisterError> {
        let key = nic.register(&memory, Access::RemoteRead)?;
        Ok(Self { memory, key: Arc::new(AtomicU32::new(key.0)) })
    }

    /// Returns where in the region these bytes begin, if all of them lie in it.
    #[cfg(feature = "bytes")]
    fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let offset = bytes.as_ptr().addr().checked_sub(self.memory.base().addr())?;
        let end = offset.checked_add(bytes.len())?;
        (end <= self.memory.bytes()).then_some(offset as u64)
    }

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
    /// Bytes of a region, once as many are in use.
    region_bytes: usize,
    /// Whether regions are on huge pages, where there are enough.
    huge: bool,
    /// All regions of the sender's own memory, kept until the sender is dropped.
    regions: Vec<Region>,
    /// The program's memory, as far as it is registered.
    arenas: Vec<(Arc<Arena>, Region)>,
    /// Region that pieces are cut from, and the number of bytes that are cut already.
    current: Option<(Region, usize)>,
}

impl BufferPool {
    pub(super) fn new(region_bytes: usize) -> Self {
        Self {
            free: Arc::new(FreeBuffers(Mutex::new(vec![Vec::new(); CLASSES]))),
            region_bytes,
            huge: true,
            regions: Vec::new(),
            arenas: Vec::new(),
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
        let origin = Origin::Pool { region, pool: Arc::clone(&self.free) };
        SendBuffer { bytes: first, length: bytes, capacity: piece, offset, origin }
    }

    fn cut(&mut self, nic: &mut dyn Nic, piece: usize) -> Result<(Region, u64), BufferError> {
        if let Some((region, used)) = &mut self.current
            && let Some(end) = used.checked_add(piece).filter(|end| *end <= region.memory.bytes())
        {
            let offset = *used as u64;
            *used = end;
            return Ok((region.clone(), offset));
        }
        let bytes = piece.max(self.next_region_bytes());
        let memory = SharedMemory::new("jet-send", bytes, self.huge)
            .and_then(|memory| memory.seal_future_writes().map(|()| Arc::new(memory)))
            .map_err(|source| BufferError::Memory { bytes, source })?;
        let region = Region::new(nic, memory)?;
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

    /// Returns how large the next region is, if no larger buffer asks for it: as large as all before it, so
    /// that who needs little does not wait for much.
    fn next_region_bytes(&self) -> usize {
        let all = self.regions.iter().fold(0, |all: usize, region| all.saturating_add(region.memory.bytes()));
        all.max(FIRST_REGION_BYTES).min(self.region_bytes)
    }

    /// Registers the program's memory, where it is not registered yet.
    pub(super) fn register(&mut self, nic: &mut dyn Nic, memory: &SendMemory) -> Result<(), RegisterError> {
        let arena = memory.arena();
        if self.of_arena(arena).is_none() {
            let region = Region::new(nic, Arc::clone(arena.memory()))?;
            self.arenas.push((Arc::clone(arena), region));
        }
        Ok(())
    }

    /// Ends the registration of the program's memory, if it is registered. `in_flight`: what messages
    /// without a polled end lie in.
    pub(super) fn deregister<'a>(
        &mut self,
        nic: &mut dyn Nic,
        memory: &SendMemory,
        mut in_flight: impl Iterator<Item = &'a Held>,
    ) -> Result<(), DeregisterError> {
        let arena = memory.arena();
        let Some(place) = self.arenas.iter().position(|(known, _)| Arc::ptr_eq(known, arena)) else {
            return Ok(());
        };
        if in_flight.any(|held| held.is_of(arena)) {
            return Err(DeregisterError::InFlight);
        }
        let (_, region) = self.arenas.swap_remove(place);
        nic.deregister(region.key());
        Ok(())
    }

    /// Registers all regions with another NIC. Nothing of them may be in flight.
    pub(super) fn move_to(&mut self, nic: &mut dyn Nic) -> Result<(), RegisterError> {
        for region in self.regions.iter().chain(self.arenas.iter().map(|(_, region)| region)) {
            let key = nic.register(&region.memory, Access::RemoteRead)?;
            region.key.store(key.0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes it a pool whose regions are as long as it wants, on whatever host.
    #[cfg(test)]
    pub(super) fn on_small_pages(self) -> Self {
        Self { huge: false, ..self }
    }

    /// Returns the bytes of each region of the sender's own memory.
    #[cfg(test)]
    pub(super) fn region_sizes(&self) -> impl Iterator<Item = usize> {
        self.regions.iter().map(|region| region.memory.bytes())
    }

    fn of_arena(&self, arena: &Arc<Arena>) -> Option<&Region> {
        self.arenas.iter().find_map(|(known, region)| Arc::ptr_eq(known, arena).then_some(region))
    }

    /// Returns the key by which the NIC knows the buffer's memory. `None`: it does not know it, because the
    /// buffer is another sender's, or its memory was not registered.
    #[inline]
    pub(super) fn key(&self, buffer: &SendBuffer) -> Option<MemoryKey> {
        match &buffer.origin {
            Origin::Pool { region, pool } => Arc::ptr_eq(&self.free, pool).then(|| region.key()),
            Origin::Arena(arena) => self.of_arena(arena).map(Region::key),
        }
    }
}

/// Bytes of registered memory that others have, too.
#[cfg(feature = "bytes")]
#[derive(Debug)]
pub(super) struct SharedBytes {
    /// They keep the memory from being used again.
    bytes: bytes::Bytes,
    region: Region,
    offset: u64,
}

#[cfg(feature = "bytes")]
impl SharedBytes {
    pub(super) fn key(&self) -> MemoryKey {
        self.region.key()
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    pub(super) fn into_bytes(self) -> bytes::Bytes {
        self.bytes
    }

    pub(super) fn is_of(&self, arena: &Arc<Arena>) -> bool {
        Arc::ptr_eq(&self.region.memory, arena.memory())
    }
}

#[cfg(feature = "bytes")]
impl BufferPool {
    /// Finds bytes in registered memory. `None`: they do not lie there.
    pub(super) fn find(&self, bytes: &bytes::Bytes) -> Option<SharedBytes> {
        let mut regions = self.regions.iter().chain(self.arenas.iter().map(|(_, region)| region));
        let (region, offset) = regions.find_map(|region| Some((region, region.offset_of(bytes)?)))?;
        Some(SharedBytes { bytes: bytes.clone(), region: region.clone(), offset })
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
    /// Makes a buffer of a range that was taken.
    pub(super) fn of_arena(arena: &Arc<Arena>, range: Range<usize>) -> Self {
        // SAFETY: whoever took the range checked that it lies within the memory.
        let first = unsafe { arena.memory().base().add(range.start) };
        Self {
            bytes: NonNull::new(first).expect("mapped memory is not at 0"),
            length: range.len(),
            capacity: range.len(),
            offset: range.start as u64,
            origin: Origin::Arena(Arc::clone(arena)),
        }
    }

    /// Returns the number of bytes that the buffer has room for: its length when it was made. That of a
    /// sender's own memory is rounded up to a power of two of 4096 or more.
    pub fn capacity(&self) -> usize {
        self.capacity
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

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the buffer is of the program's memory, and not of a sender's.
    pub(super) fn is_of_program(&self) -> bool {
        matches!(self.origin, Origin::Arena(_))
    }

    pub(super) fn is_of(&self, arena: &Arc<Arena>) -> bool {
        matches!(&self.origin, Origin::Arena(own) if Arc::ptr_eq(own, arena))
    }
}

impl Deref for SendBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the piece is this buffer's alone, at least `length` long and zeroed or written before, also
        // beyond what earlier lengths were; it is sealed against writing by other processes, and NICs only
        // read it. For a program's file its maker has promised that nobody else writes the piece
        // (`SendMemory::from_file`).
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

/// The buffer's bytes, to be shared without a copy. A sender that knows the memory sends them, or a part of
/// them, from where they lie ([`super::Sender::send_bytes`]). The memory is given back with the last clone.
#[cfg(feature = "bytes")]
impl From<SendBuffer> for bytes::Bytes {
    fn from(buffer: SendBuffer) -> Self {
        Self::from_owner(buffer)
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
        match &self.origin {
            Origin::Pool { region, pool } => {
                if let Some(class) = pool.lock().get_mut(class_of(self.capacity)) {
                    class.push((region.clone(), self.offset));
                }
            }
            Origin::Arena(arena) => arena.give(usize::try_from(self.offset).expect("it was a usize")),
        }
    }
}

impl fmt::Debug for SendBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBuffer").field("bytes", &self.length).finish_non_exhaustive()
    }
}

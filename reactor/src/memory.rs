//! The memory that slabs lie in: the place of each slab, and the slabs that the hardware lost.

use crate::poison::{Poisoned, take_lost};
use jet_core::pool::Run;
use jet_fabric::memory::SharedMemory;
use jet_fabric::nic::{MemoryKey, Sge};
use jet_wire::SLAB_BYTES;
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use jet_wire::segment::Place;
use std::sync::Arc;

const HEADER_BYTES_U32: u32 = 128;
const _: () = assert!(HEADER_BYTES_U32 as usize == HEADER_BYTES);

/// The memory that the NIC fills. Nothing else writes to it: applications have read-only mappings, sealed so
/// that they cannot be made writable.
pub struct PoolMemory {
    /// Slabs of the pool.
    pub pool: Arc<SharedMemory>,
    /// Header areas, one for each SRQ entry.
    pub headers: Arc<SharedMemory>,
    /// Key by which the NIC knows the pool's slabs.
    pub pool_key: MemoryKey,
    /// Key by which the NIC knows the header areas.
    pub headers_key: MemoryKey,
}

/// Escape memory: memory outside the cache, for what escapes (Jet §4.3).
pub struct EscapeRegion {
    /// Slabs of escape memory.
    pub memory: Arc<SharedMemory>,
    /// Key by which the NIC knows escape memory.
    pub key: MemoryKey,
}

/// Memory for replies: slots of 4 KiB, from which the NIC sends.
pub struct ReplyMemory {
    /// The slots.
    pub memory: Arc<SharedMemory>,
    /// Key by which the NIC knows them.
    pub key: MemoryKey,
}

impl ReplyMemory {
    /// Returns the place of the first `bytes` bytes of a slot, in the NIC's terms.
    pub(crate) fn sge(&self, slot: u32, bytes: u32) -> Sge {
        Sge { key: self.key, offset: u64::from(slot) * SLAB_BYTES as u64, bytes }
    }

    /// Returns the address of a slot. The NIC reads it between the receiver's `send_reply` for it and the
    /// SEND's end, and nobody else uses it.
    ///
    /// # Panics
    /// Where the receiver names a slot that does not exist.
    pub(crate) fn slot(&self, slot: u32) -> *mut u8 {
        let at = slot as usize * SLAB_BYTES;
        assert!(at + SLAB_BYTES <= self.memory.bytes(), "slot {slot} does not exist");
        // SAFETY: within the mapping, as just checked.
        unsafe { self.memory.base().add(at) }
    }
}

/// Slabs that the hardware lost, and that are not used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostMemory {
    /// Number of bytes of the slabs that were lost.
    pub bytes: usize,
    /// Whether the slabs are the pool's; otherwise they are escape memory's.
    pub of_pool: bool,
}

/// All memory that slabs and headers lie in.
pub(crate) struct Memory {
    pool: PoolMemory,
    escape: Option<EscapeRegion>,
    pool_slabs: u32,
    escape_slabs: u32,
    /// Slabs that cannot be read or written any more, and that the receiver was not told of.
    poisoned: Vec<Run>,
    /// Lost memory that was not yet reported to the driver's caller.
    unreported_losses: Vec<LostMemory>,
}

impl Memory {
    /// Makes the memory of a receiver with this configuration. `escape` is none where escape memory is
    /// switched off, or could not be allocated.
    pub fn new(pool: PoolMemory, escape: Option<EscapeRegion>, config: &jet_core::Config) -> Self {
        let shape = config.escape_shape();
        Self {
            pool,
            escape,
            pool_slabs: config.pool_slabs,
            escape_slabs: shape.replace_slabs + shape.memory_slabs,
            poisoned: Vec::new(),
            unreported_losses: Vec::new(),
        }
    }

    /// Returns the header of a SEND that arrived in this entry. The entry must not have been posted again
    /// since.
    #[inline]
    pub fn header(&self, entry: u32) -> HeaderBytes {
        let headers = &self.pool.headers;
        let at = entry as usize * HEADER_BYTES;
        assert!(at + HEADER_BYTES <= headers.bytes(), "entry {entry} has no header area");
        // SAFETY: within a mapping that `self` keeps, as just checked; any bytes are a header. Header areas
        // are 128 bytes each in page-aligned memory. Applications do not map them.
        unsafe { headers.base().add(at).cast::<HeaderBytes>().read() }
    }

    /// Returns where the NIC puts the header of a SEND into this entry.
    #[inline]
    pub fn header_sge(&self, entry: u32) -> Sge {
        let offset = u64::from(entry) * u64::from(HEADER_BYTES_U32);
        Sge { key: self.pool.headers_key, offset, bytes: HEADER_BYTES_U32 }
    }

    /// Returns the place of the first `bytes` bytes of a run, in the NIC's terms.
    #[inline]
    pub fn sge(&self, run: Run, bytes: u32) -> Sge {
        let (key, slab) = match run.first.checked_sub(self.pool_slabs) {
            None => (self.pool.pool_key, run.first),
            Some(slab) => (self.escape().key, slab),
        };
        Sge { key, offset: u64::from(slab) * SLAB_BYTES as u64, bytes }
    }

    /// Returns escape memory. The receiver names slabs of it only after it was told that they exist.
    fn escape(&self) -> &EscapeRegion {
        self.escape.as_ref().expect("slabs of escape memory are used only where there is some")
    }

    /// Returns the address and length of the pool's mapping, and of escape memory's.
    #[cfg(test)]
    pub fn mappings(&self) -> [(usize, usize); 2] {
        [&self.pool.pool, &self.escape().memory].map(|memory| (memory.base() as usize, memory.bytes()))
    }

    /// Returns the address of a slab. The pool's slabs are numbered first, those of escape memory behind
    /// them.
    pub fn slab(&self, slab: u32) -> *mut u8 {
        self.run(Run { first: slab, count: 1 }, SLAB_BYTES)
    }

    /// Returns the address of a run. All of the run lies in one of the two memories, and has room for `bytes`
    /// bytes.
    ///
    /// # Panics
    /// Where the receiver names slabs that do not exist: nothing outside the two memories is ever read or
    /// written.
    #[inline]
    pub fn run(&self, run: Run, bytes: usize) -> *mut u8 {
        let (memory, index, slabs) = match run.first.checked_sub(self.pool_slabs) {
            None => (&self.pool.pool, run.first, self.pool_slabs as usize),
            Some(index) => (&self.escape().memory, index, self.escape_slabs as usize),
        };
        let (at, room) = (index as usize * SLAB_BYTES, run.count as usize * SLAB_BYTES);
        let end = at + room;
        assert!(
            bytes <= room && end <= slabs * SLAB_BYTES && end <= memory.bytes(),
            "{bytes} bytes of {run:?} are neither in the pool nor in escape memory"
        );
        // SAFETY: within the mapping, as just checked.
        unsafe { memory.base().add(at) }
    }

    /// Returns the first bytes of a run.
    ///
    /// # Safety
    /// Nothing writes the bytes while they are borrowed: the request that filled the run is completed, and
    /// the run is neither posted nor copied to.
    ///
    /// # Panics
    /// Where [`Self::run`] panics.
    #[inline]
    pub unsafe fn bytes(&self, run: Run, bytes: u32) -> &[u8] {
        let start = self.run(run, bytes as usize);
        // SAFETY: the run lies within one of the two mappings, which `self` keeps and no application can
        // write; the NIC and the workers do not write it, either.
        unsafe { std::slice::from_raw_parts(start, bytes as usize) }
    }

    /// Returns a slab's place in the terms of applications.
    #[inline]
    pub fn place(&self, slab: u32) -> Place {
        match slab.checked_sub(self.pool_slabs) {
            None => Place { slab, escaped: false },
            Some(index) => Place { slab: index, escaped: true },
        }
    }

    /// Takes a run of lost slabs that the receiver was not told of.
    #[inline]
    pub fn take_poisoned(&mut self) -> Option<Run> {
        self.poisoned.pop()
    }

    /// Takes a loss that the driver's caller was not told of.
    pub fn take_unreported_loss(&mut self) -> Option<LostMemory> {
        self.unreported_losses.pop()
    }

    /// Whether a slab is lost, and the receiver was not told of it yet.
    pub fn is_poisoned(&self, slab: u32) -> bool {
        self.poisoned.iter().any(|run| run.first <= slab && slab - run.first < run.count)
    }

    /// Notes the slabs of each page that was lost and replaced since the last call, by whichever thread.
    #[inline]
    pub fn note_lost(&mut self) {
        while let Some(page) = take_lost() {
            self.note_poisoned(page);
        }
    }

    /// Notes the slabs on a page as lost. The part of the page behind the last slab is ignored: it belongs to
    /// no slab, because mappings end on whole pages.
    #[cold]
    pub fn note_poisoned(&mut self, page: Poisoned) {
        let end = page.start.saturating_add(page.bytes);
        let escape = self.escape.as_ref().map(|escape| &escape.memory);
        let regions =
            [(Some(&self.pool.pool), 0, self.pool_slabs), (escape, self.pool_slabs, self.escape_slabs)];
        for (memory, first, slabs) in regions {
            let Some(memory) = memory else { continue };
            let base = memory.base() as usize;
            let used_bytes = (slabs as usize * SLAB_BYTES).min(memory.bytes());
            let (from, to) = (page.start.max(base), end.min(base + used_bytes));
            if from < to {
                let slab = |address: usize| {
                    u32::try_from((address - base) / SLAB_BYTES).expect("slabs are counted in 32 bits")
                };
                let count = slab(to - 1) - slab(from) + 1;
                self.poisoned.push(Run { first: first + slab(from), count });
                self.unreported_losses
                    .push(LostMemory { bytes: count as usize * SLAB_BYTES, of_pool: first == 0 });
            }
        }
    }
}

//! The memory that slabs lie in: where each is, and which of it the hardware lost.

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

/// The memory that the NIC fills. Nobody else writes there: applications have read-only mappings of it,
/// sealed against being made anything else.
pub struct PoolMemory {
    /// Slabs.
    pub pool: Arc<SharedMemory>,
    /// Header areas, one an SRQ entry.
    pub headers: Arc<SharedMemory>,
    /// The slabs' key.
    pub pool_key: MemoryKey,
    /// The header areas' key.
    pub headers_key: MemoryKey,
}

/// Memory outside the cache, for what escapes (Jet §4.3).
pub struct EscapeRegion {
    /// Its slabs.
    pub memory: Arc<SharedMemory>,
    /// Their key.
    pub key: MemoryKey,
}

/// Slabs that the hardware lost, and that are not used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostMemory {
    /// So many bytes.
    pub bytes: usize,
    /// Whether they are the pool's; else they are of escape memory.
    pub of_pool: bool,
}

/// Where everything lies.
pub(crate) struct Memory {
    pool: PoolMemory,
    escape: Option<EscapeRegion>,
    pool_slabs: u32,
    escape_slabs: u32,
    /// Slabs that cannot be read or written any more, and that the receiver was not told of.
    poisoned: Vec<Run>,
    /// The same, of which the driver's user was not told.
    untold: Vec<LostMemory>,
}

impl Memory {
    /// Memory of a receiver of this configuration; none of escape memory where it could not be had, or is
    /// off.
    pub fn new(pool: PoolMemory, escape: Option<EscapeRegion>, config: &jet_core::Config) -> Self {
        let shape = config.escape_shape();
        Self {
            pool,
            escape,
            pool_slabs: config.pool_slabs,
            escape_slabs: shape.replace_slabs + shape.memory_slabs,
            poisoned: Vec::new(),
            untold: Vec::new(),
        }
    }

    /// The header of a SEND that arrived in this entry, which was not posted again since.
    #[inline]
    pub fn header(&self, entry: u32) -> HeaderBytes {
        let headers = &self.pool.headers;
        let at = entry as usize * HEADER_BYTES;
        assert!(at + HEADER_BYTES <= headers.bytes(), "entry {entry} has no header area");
        // SAFETY: within a mapping that `self` keeps, as just checked; any bytes are a header. Header areas
        // are 128 bytes each in page-aligned memory. Applications do not map them.
        unsafe { headers.base().add(at).cast::<HeaderBytes>().read() }
    }

    /// Where the header of a SEND into this entry goes.
    #[inline]
    pub fn header_sge(&self, entry: u32) -> Sge {
        let offset = u64::from(entry) * u64::from(HEADER_BYTES_U32);
        Sge { key: self.pool.headers_key, offset, bytes: HEADER_BYTES_U32 }
    }

    /// A run, as the NIC is told of it.
    #[inline]
    pub fn sge(&self, run: Run, bytes: u32) -> Sge {
        let (key, slab) = match run.first.checked_sub(self.pool_slabs) {
            None => (self.pool.pool_key, run.first),
            Some(slab) => (self.escape().key, slab),
        };
        Sge { key, offset: u64::from(slab) * SLAB_BYTES as u64, bytes }
    }

    /// Escape memory, which the receiver names only after it was told that there is some.
    fn escape(&self) -> &EscapeRegion {
        self.escape.as_ref().expect("slabs of escape memory are used only where there is some")
    }

    /// First byte and bytes of the pool's mapping, and of escape memory's.
    #[cfg(test)]
    pub fn mappings(&self) -> [(usize, usize); 2] {
        [&self.pool.pool, &self.escape().memory].map(|memory| (memory.base() as usize, memory.bytes()))
    }

    /// Where a slab lies: the pool's are numbered first, those of escape memory behind them.
    pub fn slab(&self, slab: u32) -> *mut u8 {
        self.run(Run { first: slab, count: 1 }, SLAB_BYTES)
    }

    /// Where a run lies, all of which is in one of the two memories, and has room for so many bytes.
    ///
    /// # Panics
    /// Where the receiver names what is not there: nothing outside is ever read or written.
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

    /// The first bytes of a run.
    ///
    /// # Safety
    /// Nothing writes there while they are looked at: the request that filled the run is completed, and the
    /// run is neither posted nor copied to.
    ///
    /// # Panics
    /// As [`Self::run`].
    #[inline]
    pub unsafe fn bytes(&self, run: Run, bytes: u32) -> &[u8] {
        let start = self.run(run, bytes as usize);
        // SAFETY: the run lies within one of the two mappings, which `self` keeps and no application can
        // write; the NIC and the workers do not, either.
        unsafe { std::slice::from_raw_parts(start, bytes as usize) }
    }

    /// A slab's place, as applications are told of it.
    #[inline]
    pub fn place(&self, slab: u32) -> Place {
        match slab.checked_sub(self.pool_slabs) {
            None => Place { slab, escaped: false },
            Some(index) => Place { slab: index, escaped: true },
        }
    }

    /// Slabs that cannot be read or written any more.
    #[inline]
    pub fn take_poisoned(&mut self) -> Option<Run> {
        self.poisoned.pop()
    }

    /// The same, for whoever looks after the driver.
    pub fn take_untold(&mut self) -> Option<LostMemory> {
        self.untold.pop()
    }

    /// Whether a slab is lost, and the receiver was not told.
    pub fn is_poisoned(&self, slab: u32) -> bool {
        self.poisoned.iter().any(|run| run.first <= slab && slab - run.first < run.count)
    }

    /// Takes note of what was lost and replaced, whoever touched it.
    #[inline]
    pub fn note_lost(&mut self) {
        while let Some(page) = take_lost() {
            self.note_poisoned(page);
        }
    }

    /// The slabs on a page are lost. What of the page lies behind the last slab is nobody's: memory ends on a
    /// whole page.
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
                self.untold.push(LostMemory { bytes: count as usize * SLAB_BYTES, of_pool: first == 0 });
            }
        }
    }
}

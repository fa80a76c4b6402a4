//! Memory that a simulated NIC knows, and copies between such memories.

use crate::memory::SharedMemory;
use crate::nic::{Access, MemoryKey, RegisterError, Sge};
use jet_wire::message::{HEADER_BYTES, HeaderBytes};
use std::sync::Arc;

/// Address of the first byte of every region. Keys tell regions apart.
const ADDRESS: u64 = 0x10_0000_0000;
/// Low bits of a key that are the region's place in the table.
const PLACE_BITS: u32 = 12;

/// Why bytes cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoAccess;

#[derive(Debug)]
struct Region {
    key: u32,
    memory: Arc<SharedMemory>,
    access: Access,
}

/// Stretch of registered memory that was found to be there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    start: *mut u8,
    bytes: usize,
}

impl Stretch {
    /// Returns the bytes of the stretch.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Returns the first bytes of the stretch.
    pub fn first(self, bytes: usize) -> Self {
        Self { bytes: self.bytes.min(bytes), ..self }
    }

    /// Copies this stretch to the beginning of another, as far as both go. Returns how many bytes that were.
    pub fn copy_to(self, to: Self) -> usize {
        let bytes = self.bytes.min(to.bytes);
        // SAFETY: both lie in mappings that their NICs' tables keep, for stretches do not outlive the call in
        // which they were found. By the rules of `Nic` nobody uses memory that a request under way names.
        // The two may overlap.
        unsafe { std::ptr::copy(self.start, to.start, bytes) };
        bytes
    }

    /// Copies bytes to the beginning of the stretch, as far as they fit.
    pub fn fill(self, bytes: &[u8]) {
        let count = self.bytes.min(bytes.len());
        // SAFETY: as in `copy_to`; the bytes are a caller's own.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start, count) };
    }

    /// Appends the bytes of the stretch.
    pub fn append_to(self, bytes: &mut Vec<u8>) {
        // SAFETY: as in `copy_to`.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(self.start, self.bytes) });
    }

    /// Returns the stretch without its first bytes.
    pub fn after(self, bytes: usize) -> Self {
        let bytes = bytes.min(self.bytes);
        // SAFETY: within the stretch, or right behind it.
        Self { start: unsafe { self.start.add(bytes) }, bytes: self.bytes - bytes }
    }

    /// Writes a header to the beginning of the stretch.
    pub fn put_header(self, header: &HeaderBytes) {
        debug_assert!(self.bytes >= HEADER_BYTES);
        self.fill(&header.0);
    }
}

/// Regions of one NIC.
#[derive(Debug)]
pub(super) struct Regions {
    regions: Vec<Option<Region>>,
    max: usize,
    /// Registrations so far, so that no key is given out twice.
    count: u32,
}

impl Regions {
    pub fn new(max: u32) -> Self {
        Self { regions: Vec::new(), max: (max as usize).min(1 << PLACE_BITS), count: 0 }
    }

    pub fn register(
        &mut self,
        memory: &Arc<SharedMemory>,
        access: Access,
    ) -> Result<MemoryKey, RegisterError> {
        let place = self.regions.iter().position(Option::is_none).unwrap_or(self.regions.len());
        if place == self.max {
            return Err(RegisterError::TooMany { max: self.max });
        }
        self.count += 1;
        let key = (self.count << PLACE_BITS) | u32::try_from(place).expect("few regions");
        let region = Some(Region { key, memory: Arc::clone(memory), access });
        if place == self.regions.len() {
            self.regions.push(region);
        } else {
            self.regions[place] = region;
        }
        Ok(MemoryKey(key))
    }

    pub fn deregister(&mut self, key: MemoryKey) {
        let place = key.0 as usize & ((1 << PLACE_BITS) - 1);
        if let Some(region) = self.regions.get_mut(place) {
            region.take_if(|region| region.key == key.0);
        }
    }

    fn find(&self, key: u32) -> Result<&Region, NoAccess> {
        let place = key as usize & ((1 << PLACE_BITS) - 1);
        self.regions.get(place).and_then(Option::as_ref).filter(|region| region.key == key).ok_or(NoAccess)
    }

    /// Finds a stretch of local memory.
    pub fn local(&self, sge: &Sge) -> Result<Stretch, NoAccess> {
        stretch(&self.find(sge.key.0)?.memory, sge.offset, u64::from(sge.bytes))
    }

    /// Finds a stretch that a peer names.
    pub fn remote(&self, key: u32, address: u64, bytes: u64) -> Result<Stretch, NoAccess> {
        let region = self.find(key)?;
        if region.access != Access::RemoteRead {
            return Err(NoAccess);
        }
        stretch(&region.memory, address.checked_sub(ADDRESS).ok_or(NoAccess)?, bytes)
    }

    /// Returns the address that a peer writes to read from `offset` on.
    pub fn address(offset: u64) -> u64 {
        ADDRESS.wrapping_add(offset)
    }
}

fn stretch(memory: &SharedMemory, offset: u64, bytes: u64) -> Result<Stretch, NoAccess> {
    let end = offset.checked_add(bytes).ok_or(NoAccess)?;
    if end > memory.bytes() as u64 {
        return Err(NoAccess);
    }
    let (offset, bytes) =
        (usize::try_from(offset).or(Err(NoAccess))?, usize::try_from(bytes).or(Err(NoAccess))?);
    // SAFETY: within the mapping, as just checked.
    Ok(Stretch { start: unsafe { memory.base().add(offset) }, bytes })
}

//! Registered memory: its keys, bounds and addresses.

use crate::memory::SharedMemory;
use crate::nic::{Access, MemoryKey, RegisterError, Sge};
use crate::soft::options::REGION_INDEX_BITS;
use std::io;
use std::sync::Arc;

/// Registered region.
#[derive(Debug)]
pub(crate) struct Region {
    /// Key that names the region.
    pub(crate) key: MemoryKey,
    /// Memory of the region.
    pub(crate) memory: Arc<SharedMemory>,
    /// Access that peers have.
    pub(crate) access: Access,
}

/// Table of all regions.
#[derive(Debug)]
pub(crate) struct Regions {
    entries: Box<[Option<Region>]>,
}

impl Regions {
    pub(crate) fn new(max: u32) -> Self {
        Self { entries: (0..max).map(|_| None).collect() }
    }

    /// Registers memory, and returns its key.
    ///
    /// The key's low bits are the region's place. The other 20 are random, so that the key of an earlier
    /// region is not mistaken for this one.
    ///
    /// # Errors
    /// [`RegisterError`] where the table is full, or the system gives no random bits.
    pub(crate) fn register(
        &mut self,
        memory: &Arc<SharedMemory>,
        access: Access,
    ) -> Result<MemoryKey, RegisterError> {
        let max = self.entries.len();
        let index = self.entries.iter().position(Option::is_none).ok_or(RegisterError::TooMany { max })?;
        let random = random().map_err(|source| RegisterError::System { bytes: memory.bytes(), source })?;
        let index_bits = u32::try_from(index).expect("the table has at most 4096 places");
        let key = MemoryKey(random << REGION_INDEX_BITS | index_bits);
        self.entries[index] = Some(Region { key, memory: Arc::clone(memory), access });
        Ok(key)
    }

    /// Removes a region, and returns it. `None` where the key is not known.
    pub(crate) fn deregister(&mut self, key: MemoryKey) -> Option<Region> {
        let place = self.entries.get_mut(Self::index(key))?;
        place.take_if(|region| region.key == key)
    }

    fn index(key: MemoryKey) -> usize {
        (key.0 & ((1 << REGION_INDEX_BITS) - 1)) as usize
    }

    /// Returns the region of a key.
    #[inline]
    pub(crate) fn get(&self, key: MemoryKey) -> Option<&Region> {
        self.entries.get(Self::index(key))?.as_ref().filter(|region| region.key == key)
    }

    /// Returns the address of a stretch; `None` where it does not lie within one region.
    ///
    /// The address is valid for the stretch's bytes until the key is deregistered.
    #[inline]
    pub(crate) fn translate(&self, sge: Sge) -> Option<*mut u8> {
        let region = self.get(sge.key)?;
        within(sge.offset, sge.bytes, region.memory.bytes()).map(|offset| {
            // SAFETY: `offset` is within the region, or one past its end for an empty stretch, by `within`.
            unsafe { region.memory.base().add(offset) }
        })
    }

    /// Returns the local address for a peer's READ of `bytes` at `address` with `key`. `None` where the peer
    /// may not read there.
    #[inline]
    pub(crate) fn translate_remote(&self, key: u32, address: u64, bytes: u32) -> Option<*const u8> {
        let key = MemoryKey(key);
        self.get(key).filter(|region| region.access == Access::RemoteRead)?;
        self.translate(Sge { key, offset: address, bytes }).map(<*mut u8>::cast_const)
    }

    /// Returns every region that peers may read.
    pub(crate) fn remote(&self) -> impl Iterator<Item = &Region> {
        self.entries.iter().flatten().filter(|region| region.access == Access::RemoteRead)
    }
}

/// Returns `offset` as an index, if `offset + bytes` stays within `total`.
#[inline]
pub(crate) fn within(offset: u64, bytes: u32, total: usize) -> Option<usize> {
    let end = offset.checked_add(u64::from(bytes))?;
    if end > total as u64 { None } else { usize::try_from(offset).ok() }
}

fn random() -> io::Result<u32> {
    let mut bytes = [0u8; 4];
    // SAFETY: the buffer is ours and as long as given.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    // Requests of up to 256 bytes are never short.
    if got == 4 { Ok(u32::from_ne_bytes(bytes)) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Arc<SharedMemory> {
        Arc::new(SharedMemory::new("jet-test", 8192, false).unwrap())
    }

    #[test]
    fn only_stretches_within_a_region_translate() {
        let mut regions = Regions::new(4);
        let memory = memory();
        let key = regions.register(&memory, Access::LocalWrite).unwrap();
        let at = |offset, bytes| regions.translate(Sge { key, offset, bytes });
        assert_eq!(at(0, 8192), Some(memory.base()));
        assert_eq!(at(8192, 0), Some(memory.base().wrapping_add(8192)));
        assert_eq!(at(8192, 1), None);
        assert_eq!(at(1, 8192), None);
        assert_eq!(at(u64::MAX, 2), None);
        assert_eq!(regions.translate(Sge { key: MemoryKey(key.0 ^ 1 << 20), offset: 0, bytes: 1 }), None);
        assert_eq!(regions.translate(Sge { key: MemoryKey(key.0 | 0xfff), offset: 0, bytes: 1 }), None);
        assert_eq!(regions.translate_remote(key.0, 0, 1), None, "a peer may not read a local region");
    }

    #[test]
    fn a_key_dies_with_its_registration_and_is_not_made_again() {
        let mut regions = Regions::new(1);
        let memory = memory();
        let old = regions.register(&memory, Access::RemoteRead).unwrap();
        assert!(matches!(
            regions.register(&memory, Access::RemoteRead),
            Err(RegisterError::TooMany { max: 1 })
        ));
        assert!(regions.translate_remote(old.0, 4096, 4096).is_some());
        assert!(regions.deregister(MemoryKey(old.0 ^ 1 << 12)).is_none());
        assert!(regions.deregister(old).is_some());
        assert!(regions.deregister(old).is_none());
        assert!(regions.translate_remote(old.0, 0, 1).is_none());
        let keys: std::collections::HashSet<_> = (0..16)
            .map(|_| {
                let key = regions.register(&memory, Access::RemoteRead).unwrap();
                regions.deregister(key);
                key
            })
            .collect();
        assert!(keys.len() > 8, "20 random bits do not repeat this often");
    }
}

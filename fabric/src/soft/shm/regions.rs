//! Regions of one peer that are mapped in this process.

use crate::memory::{Mapping, Protection};
use crate::soft::tables::regions::within;
use rustix::fs::{SealFlags, fcntl_get_seals, fstatfs};
use std::os::fd::{AsFd, OwnedFd};

/// File system type of huge-page memory files: `HUGETLBFS_MAGIC`.
const HUGETLBFS: u64 = 0x9584_58f6;

/// Keys and mappings of a peer's regions. A peer has few regions, and mostly uses the same one again.
#[derive(Debug, Default)]
pub(super) struct PeerRegions {
    regions: Vec<(u32, Mapping)>,
    bytes: u64,
    last: usize,
}

/// Error of a region that is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// Whether a file may be mapped: its pages must not be able to go away under the mapping.
///
/// Holes in ordinary memory files read as zero. A hole that is punched into huge pages can end in SIGBUS,
/// unless writing by others is sealed off, which forbids punching.
pub(super) fn is_safe_to_map(file: &OwnedFd) -> bool {
    let huge = fstatfs(file).is_ok_and(|found| u64::try_from(found.f_type) == Ok(HUGETLBFS));
    let sealed = || fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::FUTURE_WRITE));
    !huge || sealed()
}

impl PeerRegions {
    /// Maps a region for reading.
    ///
    /// # Errors
    /// [`Refused`] where the key is known already, the peer would have too many regions or bytes, or the file
    /// is not safe to map.
    pub(super) fn add(
        &mut self,
        key: u32,
        file: &OwnedFd,
        regions_max: u32,
        bytes_max: u64,
    ) -> Result<(), Refused> {
        let known = self.regions.iter().any(|(known, _)| *known == key);
        if known || self.regions.len() >= regions_max as usize || !is_safe_to_map(file) {
            return Err(Refused);
        }
        let mapping = Mapping::map_received(file.as_fd(), Protection::Read, bytes_max - self.bytes)
            .map_err(|_| Refused)?;
        self.bytes += mapping.bytes() as u64;
        self.regions.push((key, mapping));
        Ok(())
    }

    /// Unmaps a region. `false` where the key is not known.
    pub(super) fn remove(&mut self, key: u32) -> bool {
        let Some(index) = self.regions.iter().position(|(known, _)| *known == key) else { return false };
        let (_, mapping) = self.regions.swap_remove(index);
        self.bytes -= mapping.bytes() as u64;
        true
    }

    /// Returns how many regions are mapped.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.regions.len()).expect("the limit is a u32")
    }

    /// Returns the address of a stretch of a region, valid until the region is removed. `None` where it is
    /// not within one.
    #[inline]
    pub(super) fn translate(&mut self, key: u32, address: u64, bytes: u32) -> Option<*const u8> {
        if self.regions.get(self.last).is_none_or(|(known, _)| *known != key) {
            self.last = self.regions.iter().position(|(known, _)| *known == key)?;
        }
        let mapping = &self.regions[self.last].1;
        within(address, bytes, mapping.bytes()).map(|offset| {
            // SAFETY: within the mapping, or one past its end for an empty stretch, by `within`.
            unsafe { mapping.base().add(offset).cast_const() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SharedMemory;

    fn file(memory: &SharedMemory) -> OwnedFd {
        memory.as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn stretches_are_bounded_and_keys_forgotten() {
        let memory = SharedMemory::new("jet-test", 8192, false).unwrap();
        let mut regions = PeerRegions::default();
        regions.add(1, &file(&memory), 2, 1 << 20).unwrap();
        regions.add(2, &file(&memory), 2, 1 << 20).unwrap();
        assert!(regions.translate(1, 0, 8192).is_some());
        assert!(regions.translate(2, 8191, 1).is_some());
        assert!(regions.translate(2, 8191, 2).is_none());
        assert!(regions.translate(2, u64::MAX, 2).is_none());
        assert!(regions.translate(3, 0, 1).is_none());
        assert!(regions.remove(1));
        assert!(!regions.remove(1));
        assert_eq!(regions.count(), 1);
        assert!(regions.translate(1, 0, 1).is_none());
        assert!(regions.translate(2, 0, 1).is_some());
    }

    #[test]
    fn too_many_too_large_and_unsealed_ones_are_refused() {
        let memory = SharedMemory::new("jet-test", 8192, false).unwrap();
        let mut regions = PeerRegions::default();
        regions.add(1, &file(&memory), 2, 12_288).unwrap();
        assert_eq!(regions.add(1, &file(&memory), 2, 1 << 20), Err(Refused), "a key twice");
        assert_eq!(regions.add(2, &file(&memory), 1, 1 << 20), Err(Refused), "one region too many");
        assert_eq!(regions.add(2, &file(&memory), 2, 12_288), Err(Refused), "4096 bytes too many");
        assert!(regions.remove(1));
        regions.add(2, &file(&memory), 2, 12_288).unwrap();
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let loose = rustix::fs::memfd_create("loose", flags).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert_eq!(regions.add(3, &loose, 3, 1 << 20), Err(Refused), "it can be truncated");
    }
}

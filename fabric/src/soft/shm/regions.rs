//! Regions of one peer's memory, as this end reads them.
//!
//! A region is a memory file of the peer. Two ways lead to its bytes:
//!
//! * by a call (`preadv`), which costs a system call for each access, and this process no memory. Each region
//!   begins so.
//! * through a mapping, which costs no system call. A page that the peer has not allocated would be charged to
//!   this process when it is touched, and stay with it. So only a region without holes is mapped, which also
//!   must be sealed against getting any ([`Mapping::map_filled`]).
//!
//! The check costs time for each page. So a region is checked when as many bytes of it were read by calls as
//! it has: then the check is cheap beside these reads, and a peer whose turns are few cannot make this end
//! check often.

use crate::memory::{FILLED_BYTES_MAX, MapError, Mapping, received_bytes};
use crate::nic::RegionError;
use crate::soft::tables::regions::within;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Most bytes of one peer's regions that are mapped.
///
/// However a peer gets rid of pages that were there when its region was mapped, touching them again costs
/// this process no more than this. (The kernel itself drops pages that were never written.)
const MAPPED_BYTES_MAX: usize = 16 << 20;
/// Largest region that may use up the last of [`MAPPED_BYTES_MAX`]. Small SENDs come from small regions, and
/// for them a call costs the most.
const SMALL_REGION_BYTES: usize = 4 << 20;

const _: () = assert!(FILLED_BYTES_MAX + SMALL_REGION_BYTES <= MAPPED_BYTES_MAX);

/// Pieces of memory that one call fills: a turn of 64 KiB in single slabs, of which the first and the last may
/// be parts.
pub(super) const PIECES_MAX: usize = 17;

/// Keys and memory of a peer's regions. A peer has few regions, and mostly uses the same one again.
#[derive(Debug, Default)]
pub(super) struct PeerRegions {
    regions: Vec<PeerRegion>,
    bytes: u64,
    /// Bytes of the regions that are mapped.
    mapped_bytes: usize,
    last: usize,
}

#[derive(Debug)]
struct PeerRegion {
    key: u32,
    bytes: usize,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    /// File that is read by calls.
    File {
        file: OwnedFd,
        /// Bytes that are still to be read before it is checked whether the file can be mapped.
        bytes_to_check: u64,
        /// Checks that failed. Each doubles the bytes until the next one.
        checks: u32,
    },
    /// Mapping of a region without holes. Its file is closed.
    Mapped(Mapping),
}

/// Place in a peer's region, valid until the peer's regions change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionPlace {
    region: usize,
    offset: usize,
}

impl RegionPlace {
    /// Returns the place so many bytes further on. All of these bytes must lie in the stretch that was
    /// translated.
    pub(super) fn skip(self, bytes: u32) -> Self {
        Self { offset: self.offset + bytes as usize, ..self }
    }
}

/// Piece of this process's memory that bytes are copied to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Address of the first byte.
    pub(super) to: *mut u8,
    /// Length in bytes.
    pub(super) bytes: u32,
}

impl Piece {
    /// Piece without bytes.
    pub(super) const EMPTY: Self = Self { to: std::ptr::null_mut(), bytes: 0 };
}

/// Error of bytes of a region that the system could not read: the hardware has lost them, say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unreadable;

impl From<MapError> for RegionError {
    fn from(error: MapError) -> Self {
        match error {
            MapError::NotSealed => Self::NotSealed,
            MapError::Size { .. } => Self::TooLarge,
            MapError::System(_) => Self::Unreadable,
        }
    }
}

impl PeerRegions {
    /// Takes a region. Nothing of it is mapped or read yet.
    ///
    /// # Errors
    /// [`RegionError`] where the key is known already, the peer would have too many regions or bytes, or the
    /// file can be truncated.
    pub(super) fn add(
        &mut self,
        key: u32,
        file: OwnedFd,
        regions_max: u32,
        bytes_max: u64,
    ) -> Result<(), RegionError> {
        let known = self.regions.iter().any(|region| region.key == key);
        if known || self.regions.len() >= regions_max as usize {
            return Err(RegionError::TooMany);
        }
        let bytes = received_bytes(file.as_fd(), bytes_max - self.bytes)?;
        self.bytes += bytes as u64;
        let memory = Memory::File { file, bytes_to_check: bytes as u64, checks: 0 };
        self.regions.push(PeerRegion { key, bytes, memory });
        Ok(())
    }

    /// Forgets a region. Returns whether its file was still open; `None` where the key is not known.
    pub(super) fn remove(&mut self, key: u32) -> Option<bool> {
        let index = self.regions.iter().position(|region| region.key == key)?;
        let region = self.regions.swap_remove(index);
        self.bytes -= region.bytes as u64;
        let is_open = matches!(region.memory, Memory::File { .. });
        if !is_open {
            self.mapped_bytes -= region.bytes;
        }
        Some(is_open)
    }

    /// Returns how many regions there are.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.regions.len()).expect("the limit is a u32")
    }

    /// Returns how many regions' files are open.
    pub(super) fn open_files(&self) -> u32 {
        let open = self.regions.iter().filter(|region| matches!(region.memory, Memory::File { .. }));
        u32::try_from(open.count()).expect("the limit is a u32")
    }

    /// Returns the place of a stretch of a region. `None` where it is not within one.
    #[inline]
    pub(super) fn translate(&mut self, key: u32, address: u64, bytes: u32) -> Option<RegionPlace> {
        if self.regions.get(self.last).is_none_or(|region| region.key != key) {
            self.last = self.regions.iter().position(|region| region.key == key)?;
        }
        let offset = within(address, bytes, self.regions[self.last].bytes)?;
        Some(RegionPlace { region: self.last, offset })
    }

    /// Copies the bytes from a place on into these pieces, one after the other.
    ///
    /// # Errors
    /// [`Unreadable`], where some pieces may have been written.
    ///
    /// # Panics
    /// Where there are more than [`PIECES_MAX`] pieces.
    ///
    /// # Safety
    /// The pieces are memory that may be written, and to which nobody has a reference. Together they are at
    /// most as long as the stretch that was translated.
    #[inline]
    pub(super) unsafe fn copy(&mut self, place: RegionPlace, pieces: &[Piece]) -> Result<(), Unreadable> {
        let Memory::Mapped(mapping) = &self.regions[place.region].memory else {
            // SAFETY: as the caller promises.
            return unsafe { self.read(place, pieces) };
        };
        // SAFETY: the stretch lies within the mapping, by `translate`. The peer may change its bytes
        // meanwhile: they are copied as they are, and not looked at. `copy_from` and not
        // `copy_from_nonoverlapping`: a NIC connected to itself may read a region into itself.
        unsafe {
            let mut from = mapping.base().add(place.offset).cast_const();
            for piece in pieces {
                piece.to.copy_from(from, piece.bytes as usize);
                from = from.add(piece.bytes as usize);
            }
        }
        Ok(())
    }

    /// Copies like [`Self::copy`], by a call.
    unsafe fn read(&mut self, place: RegionPlace, pieces: &[Piece]) -> Result<(), Unreadable> {
        let Memory::File { file, bytes_to_check, .. } = &mut self.regions[place.region].memory else {
            panic!("a mapped region is not read by calls")
        };
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES_MAX];
        let vectors = &mut vectors[..pieces.len()];
        for (vector, piece) in vectors.iter_mut().zip(pieces) {
            *vector = libc::iovec { iov_base: piece.to.cast(), iov_len: piece.bytes as usize };
        }
        // SAFETY: the pieces may be written, as the caller promises.
        let bytes = unsafe { read_all(file, vectors, place.offset)? };
        *bytes_to_check = bytes_to_check.saturating_sub(bytes as u64);
        Ok(())
    }

    /// Maps a place's region if it is time to check it, and it passes. Returns whether its file was closed.
    ///
    /// `may_check` is set to `false` by a check, and keeps another from being made.
    #[inline]
    pub(super) fn map_if_due(&mut self, place: RegionPlace, may_check: &mut bool) -> bool {
        match &self.regions[place.region].memory {
            Memory::File { bytes_to_check: 0, .. } if *may_check => {
                *may_check = false;
                self.check(place.region)
            }
            _ => false,
        }
    }

    #[cold]
    fn check(&mut self, index: usize) -> bool {
        let region = &mut self.regions[index];
        let Memory::File { file, bytes_to_check, checks } = &mut region.memory else { return false };
        let most = if region.bytes <= SMALL_REGION_BYTES { MAPPED_BYTES_MAX } else { FILLED_BYTES_MAX };
        let fits = self.mapped_bytes + region.bytes <= most;
        // Where the system does not answer, the region is read by calls as before.
        match fits.then(|| Mapping::map_filled(file.as_fd(), region.bytes)) {
            Some(Ok(Some(mapping))) => {
                self.mapped_bytes += region.bytes;
                region.memory = Memory::Mapped(mapping);
                true
            }
            _ => {
                *checks += 1;
                *bytes_to_check = (region.bytes as u64).saturating_mul(1 << (*checks).min(32));
                false
            }
        }
    }
}

/// Fills all of these vectors from an offset of a file on, and returns how many bytes that were.
///
/// # Safety
/// The vectors name memory that may be written, and to which nobody has a reference.
unsafe fn read_all(
    file: &OwnedFd,
    vectors: &mut [libc::iovec],
    offset: usize,
) -> Result<usize, Unreadable> {
    let (mut done, mut full) = (0, 0);
    loop {
        while vectors.get(full).is_some_and(|vector| vector.iov_len == 0) {
            full += 1;
        }
        let vectors = &mut vectors[full..];
        if vectors.is_empty() {
            return Ok(done);
        }
        let count = libc::c_int::try_from(vectors.len()).map_err(|_| Unreadable)?;
        let from = libc::off_t::try_from(offset + done).map_err(|_| Unreadable)?;
        // SAFETY: as the caller promises.
        let got = unsafe { libc::preadv(file.as_raw_fd(), vectors.as_ptr(), count, from) };
        match usize::try_from(got) {
            // The file cannot end here: it is sealed against shrinking.
            Ok(0) => return Err(Unreadable),
            Ok(got) => {
                done += got;
                skip(vectors, got);
            }
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(Unreadable),
        }
    }
}

/// Shortens vectors by bytes that were filled.
fn skip(vectors: &mut [libc::iovec], mut bytes: usize) {
    for vector in vectors {
        let part = vector.iov_len.min(bytes);
        // SAFETY: at most at the end of the vector's memory.
        vector.iov_base = unsafe { vector.iov_base.add(part) };
        vector.iov_len -= part;
        bytes -= part;
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
        regions.add(1, file(&memory), 2, 1 << 20).unwrap();
        regions.add(2, file(&memory), 2, 1 << 20).unwrap();
        assert!(regions.translate(1, 0, 8192).is_some());
        assert!(regions.translate(2, 8191, 1).is_some());
        assert!(regions.translate(2, 8191, 2).is_none());
        assert!(regions.translate(2, u64::MAX, 2).is_none());
        assert!(regions.translate(3, 0, 1).is_none());
        assert_eq!(regions.remove(1), Some(true));
        assert_eq!(regions.remove(1), None);
        assert_eq!(regions.count(), 1);
        assert!(regions.translate(1, 0, 1).is_none());
        assert!(regions.translate(2, 0, 1).is_some());
    }

    #[test]
    fn too_many_too_large_and_unsealed_ones_are_refused() {
        let memory = SharedMemory::new("jet-test", 8192, false).unwrap();
        let mut regions = PeerRegions::default();
        regions.add(1, file(&memory), 2, 12_288).unwrap();
        assert_eq!(regions.add(1, file(&memory), 2, 1 << 20), Err(RegionError::TooMany), "a key twice");
        assert_eq!(regions.add(2, file(&memory), 1, 1 << 20), Err(RegionError::TooMany), "one region too many");
        assert_eq!(regions.add(2, file(&memory), 2, 12_288), Err(RegionError::TooLarge), "4096 bytes too many");
        assert_eq!(regions.remove(1), Some(true));
        regions.add(2, file(&memory), 2, 12_288).unwrap();
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let loose = rustix::fs::memfd_create("loose", flags).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert_eq!(regions.add(3, loose, 3, 1 << 20), Err(RegionError::NotSealed), "it can be truncated");
    }
}

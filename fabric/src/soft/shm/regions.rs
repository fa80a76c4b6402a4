//! Regions of one peer's memory, as this end reads them.
//!
//! A region is a memory file of the peer, and may have holes: pages that were never written. Two ways lead to
//! its bytes:
//!
//! * by a call (`preadv`), which costs a system call and several times as long as a copy. For a hole the
//!   kernel gives zeros, and allocates nothing.
//! * through a mapping. Touching a hole would allocate a page, which the kernel charges to this process and
//!   not to the peer.
//!
//! So only pages of which it is known that they are no holes are read through the mapping. There is a proof
//! that no peer can forge, and that costs little: a byte that is not 0. A page that was read by a call and
//! had such a byte is there. It also stays there, where the file is sealed against shrinking and later
//! writing: the seals forbid to cut the file and to punch holes, and a page that was written is never dropped
//! by the kernel, only swapped out. A page of zeros may be a hole, and is read by calls until it has had
//! another byte.
//!
//! Neither way is free of waiting. Whoever reads a page that was swapped out waits for the disk. Mapping a
//! file and bringing in a page take locks of the kernel for short. What is avoided is the lock that a peer
//! can hold for as long as it likes.
//!
//! The kernel's own answers are no such proof. `st_blocks` also counts pages beyond the file's end.
//! `lseek(SEEK_HOLE)` waits for a lock, and no signal ends that wait. A peer holds the lock for seconds by
//! one `fallocate`, and for ever by a `write` from a buffer whose pages never come (userfaultfd). `cachestat`
//! also counts pages that an interrupted `fallocate` takes back. `mincore` says of a file which this process
//! may not write that every page is there.

use crate::memory::{MapError, Mapping, Protection, is_on_huge_pages, received_bytes, touch};
use crate::nic::RegionError;
use crate::soft::tables::region_places::{FilePlace, RegionPlace as Held};
use crate::soft::tables::regions::within;
use rustix::fs::{SealFlags, fcntl_get_seals};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Most bytes of one peer's regions that are mapped. The page tables for them take 2 MiB of this process's
/// memory, and [`Known`] 32 KiB.
const MAPPED_BYTES_MAX: u64 = 1 << 30;
/// Unit of which it is known whether it is a hole: the smallest page.
const PAGE_BYTES: usize = 4096;

/// Pieces of memory that one call fills: a turn of 64 KiB in single slabs, of which the first and the last
/// may be parts.
pub(super) const PIECES_MAX: usize = 17;

/// Keys and memory of a peer's regions. A peer has few regions, and mostly uses the same one again.
#[derive(Debug, Default)]
pub(super) struct PeerRegions {
    regions: Vec<PeerRegion>,
    bytes: u64,
    /// Bytes of the regions that are mapped, or will be.
    mapped_bytes: u64,
    last: usize,
}

#[derive(Debug)]
pub(super) struct PeerRegion {
    key: u32,
    bytes: usize,
    /// The region's memory file, with its place. `None` once all pages are known to be there.
    file: Option<(OwnedFd, FilePlace)>,
    way: Way,
    /// Whether the region counts among [`PeerRegions::mapped_bytes`].
    counts: bool,
    /// Given back when the fields above are dropped.
    _held: Held,
}

/// Way to the bytes of a region.
#[derive(Debug)]
enum Way {
    /// All is read by calls.
    Calls,
    /// The region is mapped when it is read for the first time. So a region that is registered, and taken
    /// back unread, costs no mapping.
    CallsAtFirst,
    /// Pages that are known to be there are read through the mapping, and others by calls.
    Mapped(Mapped),
}

/// Mapping of a region, and which of its pages may be touched.
#[derive(Debug)]
struct Mapped {
    mapping: Mapping,
    known: Known,
}

/// Pages of a region that are known to be there.
#[derive(Debug)]
struct Known {
    /// A bit for each page.
    pages: Box<[u64]>,
    /// Pages that are not known to be there.
    missing: usize,
}

impl Known {
    fn new(bytes: usize) -> Self {
        let missing = bytes.div_ceil(PAGE_BYTES);
        Self { pages: vec![0; missing.div_ceil(64)].into(), missing }
    }

    /// Whether all pages of a stretch are known to be there.
    #[inline]
    fn has(&self, offset: usize, bytes: usize) -> bool {
        let (mut page, end) = (offset / PAGE_BYTES, (offset + bytes).div_ceil(PAGE_BYTES));
        while page < end {
            let (shift, pages) = (page % 64, (end - page).min(64 - page % 64));
            let wanted = (u64::MAX >> (64 - pages)) << shift;
            if self.pages[page / 64] & wanted != wanted {
                return false;
            }
            page += pages;
        }
        true
    }

    /// Notes which pages are there, by bytes that were read from an offset on.
    fn learn(&mut self, mut offset: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let page = offset / PAGE_BYTES;
            let (found, rest) = bytes.split_at(bytes.len().min((page + 1) * PAGE_BYTES - offset));
            let (word, bit) = (&mut self.pages[page / 64], 1 << (page % 64));
            if *word & bit == 0 && !is_zero(found) {
                *word |= bit;
                self.missing -= 1;
            }
            offset += found.len();
            bytes = rest;
        }
    }
}

/// Whether all bytes are 0.
fn is_zero(bytes: &[u8]) -> bool {
    // In large steps, and within a step without branches, which is fast.
    bytes.chunks(256).all(|step| step.iter().fold(0, |all, byte| all | byte) == 0)
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
    /// Takes a region. Nothing of it is read yet.
    ///
    /// # Errors
    /// [`RegionError`] where the key is known already, the peer would have too many regions or bytes, or the
    /// file can be truncated. The file comes back with it.
    pub(super) fn add(
        &mut self,
        key: u32,
        file: OwnedFd,
        regions_max: u32,
        bytes_max: u64,
        places: (Held, FilePlace),
    ) -> Result<(), (RegionError, OwnedFd)> {
        let known = self.regions.iter().any(|region| region.key == key);
        if known || self.regions.len() >= regions_max as usize {
            return Err((RegionError::TooMany, file));
        }
        let bytes = match received_bytes(file.as_fd(), bytes_max - self.bytes) {
            Ok(bytes) => bytes,
            Err(error) => return Err((error.into(), file)),
        };
        let fits = self.mapped_bytes + bytes as u64 <= MAPPED_BYTES_MAX;
        let counts = fits && keeps_its_pages(&file);
        let way = if counts { Way::CallsAtFirst } else { Way::Calls };
        self.bytes += bytes as u64;
        self.mapped_bytes += if counts { bytes as u64 } else { 0 };
        let (held, of_file) = places;
        self.regions.push(PeerRegion { key, bytes, file: Some((file, of_file)), way, counts, _held: held });
        Ok(())
    }

    /// Forgets a region, and returns it. `None` where the key is not known.
    pub(super) fn remove(&mut self, key: u32) -> Option<PeerRegion> {
        let index = self.regions.iter().position(|region| region.key == key)?;
        let region = self.regions.swap_remove(index);
        self.bytes -= region.bytes as u64;
        self.mapped_bytes -= if region.counts { region.bytes as u64 } else { 0 };
        Some(region)
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
        let region = &mut self.regions[place.region];
        let bytes = pieces.iter().map(|piece| piece.bytes as usize).sum();
        match &region.way {
            Way::Mapped(mapped) if mapped.known.has(place.offset, bytes) => {
                // SAFETY: the stretch lies within the mapping, by `translate`. The peer may change its bytes
                // meanwhile: they are copied as they are, and not looked at. `copy_from` and not
                // `copy_from_nonoverlapping`: a NIC connected to itself may read a region into itself.
                unsafe {
                    let mut from = mapped.mapping.base().add(place.offset).cast_const();
                    for piece in pieces {
                        piece.to.copy_from(from, piece.bytes as usize);
                        from = from.add(piece.bytes as usize);
                    }
                }
                Ok(())
            }
            // SAFETY: as the caller promises.
            _ => unsafe { region.read(place.offset, pieces) },
        }
    }
}

impl PeerRegion {
    /// Copies like [`PeerRegions::copy`], by a call.
    unsafe fn read(&mut self, offset: usize, pieces: &[Piece]) -> Result<(), Unreadable> {
        let (file, _) = self.file.as_ref().expect("pages are missing, so the file is open");
        let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES_MAX];
        let vectors = &mut vectors[..pieces.len()];
        for (vector, piece) in vectors.iter_mut().zip(pieces) {
            *vector = libc::iovec { iov_base: piece.to.cast(), iov_len: piece.bytes as usize };
        }
        // SAFETY: the pieces may be written, as the caller promises.
        unsafe { read_all(file, vectors, offset)? };
        if matches!(self.way, Way::CallsAtFirst) {
            self.way = Mapped::new(file, self.bytes).map_or(Way::Calls, Way::Mapped);
        }
        let Way::Mapped(mapped) = &mut self.way else { return Ok(()) };
        let mut at = offset;
        for piece in pieces {
            // SAFETY: the piece was written, and nobody else has a reference to it or writes it.
            let found = unsafe { std::slice::from_raw_parts(piece.to.cast_const(), piece.bytes as usize) };
            mapped.known.learn(at, found);
            at += found.len();
        }
        if mapped.known.missing == 0 {
            self.file = None;
        }
        Ok(())
    }
}

/// Whether pages of a file that were written stay there whatever the peer does.
fn keeps_its_pages(file: &OwnedFd) -> bool {
    // Mapping a file on huge pages waits for its lock, and reserves pages.
    !is_on_huge_pages(file.as_fd())
        && fcntl_get_seals(file).is_ok_and(|seals| {
            seals.contains(SealFlags::SHRINK) && seals.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE)
        })
}

impl Mapped {
    /// Maps a region of so many bytes. `None` where the system does not map it: then it is read by calls.
    fn new(file: &OwnedFd, bytes: usize) -> Option<Self> {
        let mapping = Mapping::map_received(file.as_fd(), Protection::Read, bytes as u64).ok()?;
        mapping.forbid_huge_pages();
        Some(Self { mapping, known: Known::new(bytes) })
    }
}

/// Fills all of these vectors from an offset of a file on.
///
/// # Safety
/// The vectors name memory that may be written, and to which nobody has a reference.
unsafe fn read_all(file: &OwnedFd, vectors: &mut [libc::iovec], offset: usize) -> Result<(), Unreadable> {
    let (mut done, mut full, mut touched) = (0, 0, false);
    loop {
        while vectors.get(full).is_some_and(|vector| vector.iov_len == 0) {
            full += 1;
        }
        let vectors = &mut vectors[full..];
        if vectors.is_empty() {
            return Ok(());
        }
        let count = libc::c_int::try_from(vectors.len()).map_err(|_| Unreadable)?;
        let from = libc::off_t::try_from(offset + done).map_err(|_| Unreadable)?;
        // SAFETY: as the caller promises.
        let got = unsafe { libc::preadv(file.as_raw_fd(), vectors.as_ptr(), count, from) };
        match usize::try_from(got) {
            // The file cannot end here: it is sealed against shrinking.
            Ok(0) => return Err(Unreadable),
            Ok(got) => {
                (done, touched) = (done + got, false);
                skip(vectors, got);
            }
            Err(_) => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                // Memory of this process, not the peer's.
                Some(libc::EFAULT) if !touched => {
                    touched = true;
                    // SAFETY: as the caller promises.
                    unsafe { touch(vectors) };
                }
                _ => return Err(Unreadable),
            },
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
    use crate::soft::tables::region_places::RegionPlaces;
    use crate::source::Source;

    /// Places that are never scarce.
    fn places() -> (Held, FilePlace) {
        let mut places = RegionPlaces::new(2, 2);
        let source = places.of(Source::of_process(1, 0));
        places.take(&source).unwrap()
    }

    fn file(memory: &SharedMemory) -> OwnedFd {
        memory.as_fd().try_clone_to_owned().unwrap()
    }

    #[test]
    fn stretches_are_bounded_and_keys_forgotten() {
        let memory = SharedMemory::new("jet-test", 8192, false).unwrap();
        let mut regions = PeerRegions::default();
        regions.add(1, file(&memory), 2, 1 << 20, places()).unwrap();
        regions.add(2, file(&memory), 2, 1 << 20, places()).unwrap();
        assert!(regions.translate(1, 0, 8192).is_some());
        assert!(regions.translate(2, 8191, 1).is_some());
        assert!(regions.translate(2, 8191, 2).is_none());
        assert!(regions.translate(2, u64::MAX, 2).is_none());
        assert!(regions.translate(3, 0, 1).is_none());
        assert!(regions.remove(1).is_some());
        assert!(regions.remove(1).is_none());
        assert_eq!(regions.regions.len(), 1);
        assert!(regions.translate(1, 0, 1).is_none());
        assert!(regions.translate(2, 0, 1).is_some());
    }

    #[test]
    fn pages_are_known_by_any_byte_that_is_not_0_and_by_nothing_else() {
        let mut known = Known::new(200 * PAGE_BYTES + 1);
        assert_eq!(known.missing, 201);
        known.learn(0, &vec![0; 200 * PAGE_BYTES + 1]);
        assert_eq!(known.missing, 201);
        // From the middle of page 62 to the middle of page 66; page 64 is zeros.
        let (start, bytes) = (62 * PAGE_BYTES + 100, 4 * PAGE_BYTES);
        let mut found = vec![0; bytes];
        for at in [63 * PAGE_BYTES - 1, 63 * PAGE_BYTES, 65 * PAGE_BYTES + 4000, 66 * PAGE_BYTES + 99] {
            found[at - start] = 1;
        }
        known.learn(start, &found);
        known.learn(start, &found);
        assert_eq!(known.missing, 197);
        let pages = |first: usize, count: usize| (first * PAGE_BYTES, count * PAGE_BYTES);
        for ((offset, bytes), expected) in [
            (pages(62, 2), true),
            (pages(65, 2), true),
            (pages(62, 5), false),
            (pages(61, 2), false),
            (pages(66, 2), false),
            ((63 * PAGE_BYTES + 1, PAGE_BYTES - 1), true),
            ((63 * PAGE_BYTES + 1, PAGE_BYTES), false),
            ((64 * PAGE_BYTES, 0), true),
        ] {
            assert_eq!(known.has(offset, bytes), expected, "{bytes} bytes from {offset} on");
        }
        known.learn(0, &vec![1; 200 * PAGE_BYTES + 1]);
        assert!(known.missing == 0 && known.has(0, 200 * PAGE_BYTES + 1));
    }

    #[test]
    fn only_so_much_is_mapped_and_only_what_keeps_its_pages() {
        let file = |bytes: u64, seals| {
            let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create("jet-test", flags).unwrap();
            rustix::fs::ftruncate(&file, bytes).unwrap();
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | seals).unwrap();
            file
        };
        let mut regions = PeerRegions::default();
        let half = MAPPED_BYTES_MAX / 2;
        for (key, (bytes, seals, mapped)) in (0..).zip([
            (half, SealFlags::FUTURE_WRITE, true),
            (4096, SealFlags::GROW, false),
            (4096, SealFlags::WRITE, true),
            (half, SealFlags::FUTURE_WRITE, false),
            (half - 4096, SealFlags::FUTURE_WRITE, true),
            (4096, SealFlags::FUTURE_WRITE, false),
        ]) {
            regions.add(key, file(bytes, seals), 64, u64::MAX, places()).unwrap();
            assert_eq!(is_mapped_by_a_read(&mut regions, key), mapped, "{bytes} bytes with {seals:?}");
        }
        // What is taken back makes room.
        assert!(regions.remove(2).is_some());
        regions.add(9, file(4096, SealFlags::FUTURE_WRITE), 64, u64::MAX, places()).unwrap();
        assert!(is_mapped_by_a_read(&mut regions, 9));
    }

    /// Reads the first byte of a region, and returns whether the region is mapped then. Before, it is not.
    fn is_mapped_by_a_read(regions: &mut PeerRegions, key: u32) -> bool {
        let is_mapped = |regions: &PeerRegions| matches!(regions.regions.last().unwrap().way, Way::Mapped(_));
        assert!(!is_mapped(regions), "nothing of it was read yet");
        let place = regions.translate(key, 0, 1).unwrap();
        let mut byte = [0xffu8];
        // SAFETY: the piece is a byte of this function's, which has no reference to it meanwhile.
        unsafe { regions.copy(place, &[Piece { to: byte.as_mut_ptr(), bytes: 1 }]).unwrap() };
        assert_eq!(byte, [0]);
        is_mapped(regions)
    }

    /// Checks what [`keeps_its_pages`] relies on: that is the kernel's promise.
    #[test]
    fn nothing_can_be_punched_into_what_is_sealed() {
        use rustix::fs::{FallocateFlags, fallocate, fstat};
        let memory = SharedMemory::new("jet-test", 8192, false).unwrap();
        let blocks = || fstat(&memory).unwrap().st_blocks;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&memory, punch, 0, 4096).unwrap();
        assert_eq!(blocks(), 8, "without the seal it can");
        memory.seal_future_writes().unwrap();
        assert_eq!(fallocate(&memory, punch, 4096, 4096), Err(rustix::io::Errno::PERM));
        // SAFETY: memory of this test, which nobody reads.
        let removed = unsafe { libc::madvise(memory.base().add(4096).cast(), 4096, libc::MADV_REMOVE) };
        assert!(removed != 0 && blocks() == 8);
    }

    #[test]
    fn too_many_too_large_and_unsealed_ones_are_refused() {
        let memory = SharedMemory::new("jet-test", 8192, false).unwrap();
        let mut regions = PeerRegions::default();
        regions.add(1, file(&memory), 2, 12_288, places()).unwrap();
        assert_eq!(
            regions.add(1, file(&memory), 2, 1 << 20, places()).map_err(|(error, _)| error),
            Err(RegionError::TooMany),
            "a key twice"
        );
        assert_eq!(
            regions.add(2, file(&memory), 1, 1 << 20, places()).map_err(|(error, _)| error),
            Err(RegionError::TooMany),
            "one region too many"
        );
        assert_eq!(
            regions.add(2, file(&memory), 2, 12_288, places()).map_err(|(error, _)| error),
            Err(RegionError::TooLarge),
            "4096 bytes too many"
        );
        assert!(regions.remove(1).is_some());
        regions.add(2, file(&memory), 2, 12_288, places()).unwrap();
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let loose = rustix::fs::memfd_create("loose", flags).unwrap();
        rustix::fs::ftruncate(&loose, 4096).unwrap();
        assert_eq!(
            regions.add(3, loose, 3, 1 << 20, places()).map_err(|(error, _)| error),
            Err(RegionError::NotSealed),
            "it can be truncated"
        );
    }
}

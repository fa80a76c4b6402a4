//! Sealed memory files (memfd) and their mappings.

use super::node;
use super::room::Host;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs,
    ftruncate, memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

const HUGE_PAGE_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4096;
/// File system type of huge-page memory files: `HUGETLBFS_MAGIC`.
const HUGETLBFS: u64 = 0x9584_58f6;

/// Access that a mapping allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Reading only.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// Size of the pages that a region got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Ordinary pages of 4 KiB.
    Small,
    /// Huge pages of 2 MiB.
    Huge,
}

/// Reason why a region from another process was not mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The file could be truncated under the mapping.
    #[error("the memory file is not sealed against shrinking; its maker must seal it before passing it")]
    NotSealed,
    /// The file is empty, or larger than allowed.
    #[error("a memory file of {bytes} bytes is not accepted (1 to {max})")]
    Size {
        /// Size of the file in bytes.
        bytes: u64,
        /// Most bytes that are accepted.
        max: u64,
    },
    /// The system refused to map the file.
    #[error("cannot map a memory file: {0}")]
    System(#[from] io::Error),
}

/// Reason why a program's memory file does not become [`SharedMemory`]. The program is to blame, unless it is
/// `System`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdoptError {
    /// The file takes no seals, so somebody could truncate it under a mapping.
    #[error("the file takes no seals; make it by memfd_create with MFD_ALLOW_SEALING")]
    NoSeals,
    /// The file was sealed against writing, or against further seals, before it was given.
    #[error("the file was sealed against writing, or against further seals; give it before it is sealed")]
    Sealed,
    /// The file's length is no whole number of pages.
    #[error(
        "a memory file of {bytes} bytes is no whole number of pages; set its length by ftruncate to a \
             multiple of 4096 that is not 0"
    )]
    Size {
        /// Length of the file in bytes.
        bytes: u64,
    },
    /// The system refuses to map the file, or has no memory for all of it.
    #[error("cannot use the memory file: {0}")]
    System(#[from] io::Error),
}

/// Mapping of a memory file; it is unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory; the code that reads or writes through its pointer answers for races.
unsafe impl Send for Mapping {}
// SAFETY: as above; the methods only hand out the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn map(fd: BorrowedFd<'_>, bytes: usize, protection: Protection) -> io::Result<Self> {
        let prot = match protection {
            Protection::Read => ProtFlags::READ,
            Protection::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases no memory of this process.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, fd, 0)? };
        Ok(Self { base: NonNull::new(base.cast()).expect("the kernel maps nothing at 0"), bytes })
    }

    /// Maps a file that another process made and passed, after checking that it cannot be truncated.
    ///
    /// # Errors
    /// [`MapError`]; the process that passed the file is to blame unless it is `System`.
    pub fn map_received(
        fd: BorrowedFd<'_>,
        protection: Protection,
        bytes_max: u64,
    ) -> Result<Self, MapError> {
        let bytes = received_bytes(fd, bytes_max)?;
        Ok(Self::map(fd, bytes, protection)?)
    }

    /// Keeps the kernel from joining the mapping's pages to huge ones.
    ///
    /// It would fill holes for that, and charge the huge page to this process.
    pub fn forbid_huge_pages(&self) {
        // SAFETY: this is our mapping, and the advice changes none of its bytes.
        let advised = unsafe { madvise(self.base.as_ptr().cast(), self.bytes, Advice::LinuxNoHugepage) };
        // A kernel that never joins pages does not know the advice.
        let _ = advised;
    }

    /// Returns the address of the first byte, valid for [`Self::bytes`] bytes while the mapping lives.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the mapping's length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is our mapping, and nobody holds pointers into it longer than it lives.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Whether a memory file is on huge pages.
pub fn is_on_huge_pages(fd: BorrowedFd<'_>) -> bool {
    fstatfs(fd).is_ok_and(|found| u64::try_from(found.f_type) == Ok(HUGETLBFS))
}

/// Returns the length of a file that another process made and passed, after checking that it cannot be
/// truncated.
///
/// Only memory files have seals. A file of another kind, whose reads could wait for something, is therefore
/// refused as not sealed.
///
/// # Errors
/// [`MapError`]; the process that passed the file is to blame unless it is `System`.
pub fn received_bytes(fd: BorrowedFd<'_>, bytes_max: u64) -> Result<usize, MapError> {
    let seals = fcntl_get_seals(fd).map_err(|_| MapError::NotSealed)?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(MapError::NotSealed);
    }
    let found = fstat(fd).map_err(io::Error::from)?.st_size;
    match usize::try_from(found) {
        Ok(bytes) if bytes > 0 && bytes as u64 <= bytes_max => Ok(bytes),
        _ => Err(MapError::Size { bytes: u64::try_from(found).unwrap_or(0), max: bytes_max }),
    }
}

/// Memory of this process that can be registered with a NIC and passed to other processes.
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    mapping: Mapping,
    pages: Pages,
}

impl SharedMemory {
    /// Makes zeroed memory of at least `bytes`, with every page allocated and touched.
    ///
    /// The memory is on huge pages where `huge` asks for them and there are enough. It is sealed against
    /// shrinking and growing.
    ///
    /// # Errors
    /// What the system says: out of memory, beyond a control group's limit, or out of file descriptors.
    pub fn new(name: &str, bytes: usize, huge: bool) -> io::Result<Self> {
        Self::near(name, bytes, huge, None)
    }

    /// Makes memory like [`Self::new`], with its pages on a NUMA node as long as that has room.
    ///
    /// [`Self::bytes_elsewhere`] tells how much is on other nodes.
    ///
    /// # Errors
    /// Those of [`Self::new`], and that there is no such node.
    pub fn near(name: &str, bytes: usize, huge: bool, numa_node: Option<u32>) -> io::Result<Self> {
        Self::near_on(&Host::this(), name, bytes, huge, numa_node)
    }

    fn near_on(
        host: &Host<'_>,
        name: &str,
        bytes: usize,
        huge: bool,
        numa_node: Option<u32>,
    ) -> io::Result<Self> {
        let bytes = bytes.max(1);
        if huge && let Ok(memory) = Self::on_huge_pages(name, bytes, numa_node) {
            return Ok(memory);
        }
        let memory = Self::lazy_near(name, bytes, numa_node)?;
        memory.prepare_on(host, 0, memory.bytes(), 0)?;
        Ok(memory)
    }

    fn on_huge_pages(name: &str, bytes: usize, numa_node: Option<u32>) -> io::Result<Self> {
        let memory = Self::with_pages(name, rounded(bytes, HUGE_PAGE_BYTES)?, Pages::Huge)?;
        memory.prefer(numa_node)?;
        memory.allocate(0, memory.bytes())?;
        memory.touch(0, memory.bytes());
        Ok(memory)
    }

    /// Makes memory like [`Self::new`], on ordinary pages, of which none is touched yet. For memory that is
    /// large and rarely used in full.
    ///
    /// # Errors
    /// Those of [`Self::new`].
    pub fn lazy(name: &str, bytes: usize) -> io::Result<Self> {
        Self::lazy_near(name, bytes, None)
    }

    /// Makes memory like [`Self::lazy`], with its pages on a NUMA node as long as that has room.
    ///
    /// # Errors
    /// Those of [`Self::near`].
    pub fn lazy_near(name: &str, bytes: usize, numa_node: Option<u32>) -> io::Result<Self> {
        let memory = Self::with_pages(name, rounded(bytes.max(1), PAGE_BYTES)?, Pages::Small)?;
        memory.prefer(numa_node)?;
        Ok(memory)
    }

    /// Makes a program's memory file this process's shared memory. Its bytes stay what they are, and all of
    /// its pages are allocated.
    ///
    /// The file is sealed: nobody can change its length any more, or map it for writing. Mappings from
    /// before stay writable.
    ///
    /// # Errors
    /// [`AdoptError`]. The file can be given again then: at most its length is sealed.
    pub fn adopt(file: OwnedFd) -> Result<Self, AdoptError> {
        let seals = fcntl_get_seals(&file).map_err(|_| AdoptError::NoSeals)?;
        let forbidden = SealFlags::WRITE | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        if seals.intersects(forbidden) {
            // A file that takes no seals has the seal against further ones from the start.
            return Err(if seals == SealFlags::SEAL { AdoptError::NoSeals } else { AdoptError::Sealed });
        }
        let found = u64::try_from(fstat(&file).map_err(io::Error::from)?.st_size).unwrap_or(0);
        let bytes = usize::try_from(found).unwrap_or(0);
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(AdoptError::Size { bytes: found });
        }
        let pages = if is_on_huge_pages(file.as_fd()) { Pages::Huge } else { Pages::Small };
        let mapping = Mapping::map(file.as_fd(), bytes, Protection::ReadWrite)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).map_err(io::Error::from)?;
        let memory = Self { file, mapping, pages };
        if pages == Pages::Small {
            // What is allocated already needs no room. How much that is does not matter where all would fit.
            Host::this().check(bytes - memory.allocated_bytes()?.min(bytes), 0)?;
        }
        memory.allocate(0, bytes)?;
        // The last step: after it no other call takes the file.
        memory.seal_future_writes()?;
        Ok(memory)
    }

    fn allocated_bytes(&self) -> io::Result<usize> {
        const BLOCK_BYTES: u64 = 512;
        let blocks = u64::try_from(fstat(&self.file)?.st_blocks).unwrap_or(0);
        Ok(usize::try_from(blocks.saturating_mul(BLOCK_BYTES)).unwrap_or(usize::MAX))
    }

    /// Counts the bytes of this memory that lie on other NUMA nodes than `numa_node`. All of the memory must
    /// have been touched.
    ///
    /// # Errors
    /// What the system says.
    pub fn bytes_elsewhere(&self, numa_node: u32) -> io::Result<usize> {
        let page_bytes = if self.pages == Pages::Huge { HUGE_PAGE_BYTES } else { PAGE_BYTES };
        Ok(node::pages_elsewhere(&self.mapping, page_bytes, numa_node)? * page_bytes)
    }

    /// Makes later pages come from a NUMA node. No page of this memory may have been touched yet.
    fn prefer(&self, numa_node: Option<u32>) -> io::Result<()> {
        numa_node.map_or(Ok(()), |numa_node| node::prefer(&self.mapping, numa_node))
    }

    fn with_pages(name: &str, bytes: usize, pages: Pages) -> io::Result<Self> {
        let huge = if pages == Pages::Huge {
            MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB
        } else {
            MemfdFlags::empty()
        };
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge)?;
        ftruncate(&file, bytes as u64)?;
        let mapping = Mapping::map(file.as_fd(), bytes, Protection::ReadWrite)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok(Self { file, mapping, pages })
    }

    /// Allocates and touches the `bytes` bytes from offset `at` on. The memory must be on ordinary pages, and
    /// these bytes must not be in use yet.
    ///
    /// Without that, touching a page when memory has run out raises SIGBUS.
    ///
    /// # Errors
    /// What the system says. Where a control group's limit or the machine's memory is too small, the error
    /// contains a [`super::NoRoom`].
    ///
    /// # Panics
    /// Where the stretch is not within the memory.
    pub fn prepare(&self, at: usize, bytes: usize) -> io::Result<()> {
        self.prepare_leaving(at, bytes, 0)
    }

    /// Prepares memory like [`Self::prepare`], but only where `left` more bytes are still free after that.
    ///
    /// For memory that must leave room for more important uses.
    ///
    /// # Errors
    /// Those of [`Self::prepare`].
    ///
    /// # Panics
    /// Those of [`Self::prepare`].
    pub fn prepare_leaving(&self, at: usize, bytes: usize, left: usize) -> io::Result<()> {
        self.prepare_on(&Host::this(), at, bytes, left)
    }

    fn prepare_on(&self, host: &Host<'_>, at: usize, bytes: usize, left: usize) -> io::Result<()> {
        assert!(at.checked_add(bytes).is_some_and(|end| end <= self.bytes()), "{bytes} bytes from {at} on");
        // Huge pages are not checked, because these limits do not count them.
        host.check(bytes, left)?;
        self.allocate(at, bytes)?;
        self.touch(at, bytes);
        Ok(())
    }

    fn allocate(&self, at: usize, bytes: usize) -> io::Result<()> {
        loop {
            match fallocate(&self.file, FallocateFlags::empty(), at as u64, bytes as u64) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn touch(&self, at: usize, bytes: usize) {
        // SAFETY: within the mapping, whose bytes this does not change.
        let populated = unsafe { madvise(self.base().add(at).cast(), bytes, Advice::LinuxPopulateWrite) };
        // One call for all pages, where the kernel knows it (Linux 5.14). A trap for each page takes several
        // times as long.
        if populated.is_ok() {
            return;
        }
        for page in (at..at + bytes).step_by(PAGE_BYTES) {
            // SAFETY: within the mapping, of which nobody uses this part yet.
            unsafe { self.base().add(page).write_volatile(0) };
        }
    }

    /// Keeps everybody from mapping this file for writing from now on. This process's own mapping stays
    /// writable.
    ///
    /// A read-only descriptor alone would not suffice: it can be reopened for writing through /proc.
    ///
    /// # Errors
    /// What the system says; kernels before 5.1 do not know the seal.
    pub fn seal_future_writes(&self) -> io::Result<()> {
        Ok(fcntl_add_seals(&self.file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
    }

    /// Returns the address of the first byte, valid for [`Self::bytes`] bytes while this memory lives.
    pub fn base(&self) -> *mut u8 {
        self.mapping.base()
    }

    /// Returns the memory's length in bytes, a multiple of the page size.
    pub fn bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// Returns which pages the memory got.
    pub fn pages(&self) -> Pages {
        self.pages
    }
}

/// Rounds a length up to whole pages.
fn rounded(bytes: usize, page_bytes: usize) -> io::Result<usize> {
    bytes.checked_next_multiple_of(page_bytes).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::NoRoom;
    use super::super::room::tests::Pretended;
    use super::*;

    #[test]
    fn sealed_memory_cannot_shrink_and_is_mapped_by_others() {
        let memory = SharedMemory::new("jet-test", 10_000, false).unwrap();
        assert_eq!(memory.bytes(), 12_288);
        assert!(ftruncate(&memory, 4096).is_err());
        let other = Mapping::map_received(memory.as_fd(), Protection::Read, 1 << 20).unwrap();
        // SAFETY: both mappings live, and one thread reads after the other wrote.
        unsafe {
            memory.base().add(9000).write(7);
            assert_eq!(other.base().add(9000).read_volatile(), 7);
        }
    }

    #[test]
    fn memory_is_allocated_when_it_is_made_and_lazy_memory_when_it_is_prepared() {
        let blocks = |memory: &SharedMemory| fstat(memory).unwrap().st_blocks;
        let memory = SharedMemory::new("jet-test", 16 * PAGE_BYTES, false).unwrap();
        assert!(blocks(&memory) >= 16 * 8);
        let lazy = SharedMemory::lazy("jet-test", 16 * PAGE_BYTES).unwrap();
        assert_eq!(blocks(&lazy), 0);
        lazy.prepare(8 * PAGE_BYTES, 4 * PAGE_BYTES).unwrap();
        assert!((4 * 8..16 * 8).contains(&blocks(&lazy)), "{}", blocks(&lazy));
        // Memory that the file cannot hold is an error before anything is touched.
        assert!(lazy.allocate(16 * PAGE_BYTES, PAGE_BYTES).is_err());
    }

    #[test]
    fn what_there_is_no_room_for_is_not_taken() {
        let pretended = Pretended::new(16 << 20, "");
        let host = &pretended.host();
        let no_room = |result: io::Result<()>| {
            let error = result.expect_err("the group's limit is in the way");
            assert!(error.get_ref().is_some_and(|inner| inner.is::<NoRoom>()), "{error}");
        };
        let near = |bytes| SharedMemory::near_on(host, "jet-test", bytes, false, None).map(drop);
        near(1 << 20).unwrap();
        no_room(near(16 << 20));
        let lazy = SharedMemory::lazy("jet-test", 16 << 20).unwrap();
        no_room(lazy.prepare_on(host, 0, 16 << 20, 0));
        no_room(lazy.prepare_on(host, 0, 1 << 20, 15 << 20));
        assert_eq!(fstat(&lazy).unwrap().st_blocks, 0);
        lazy.prepare_on(host, 0, 1 << 20, 8 << 20).unwrap();
    }

    #[test]
    fn more_than_there_can_be_is_an_error() {
        for bytes in [usize::MAX, usize::MAX - PAGE_BYTES, 1 << 62, 1 << 50] {
            for huge in [false, true] {
                SharedMemory::new("jet-test", bytes, huge).expect_err("nobody has so much");
            }
        }
    }

    #[test]
    fn memory_lies_on_the_node_that_was_asked_for() {
        // Every host has node 0. The daemon's test in a guest with two nodes checks more.
        let memory = SharedMemory::near("jet-test", 16 * PAGE_BYTES, false, Some(0)).unwrap();
        assert_eq!(memory.bytes_elsewhere(0).unwrap(), 0);
        assert_eq!(memory.bytes_elsewhere(1).unwrap(), 16 * PAGE_BYTES);
        assert!(SharedMemory::near("jet-test", PAGE_BYTES, false, Some(900)).is_err());
    }

    #[test]
    fn after_the_seal_nobody_maps_for_writing() {
        let memory = SharedMemory::new("jet-test", 4096, false).unwrap();
        memory.seal_future_writes().unwrap();
        assert!(matches!(
            Mapping::map_received(memory.as_fd(), Protection::ReadWrite, 1 << 20),
            Err(MapError::System(_))
        ));
        assert!(Mapping::map_received(memory.as_fd(), Protection::Read, 1 << 20).is_ok());
        // SAFETY: our own mapping stays writable.
        unsafe { memory.base().write_volatile(1) };
    }

    #[test]
    fn a_programs_file_keeps_its_bytes_and_is_sealed() {
        let loose = |bytes| {
            let file = memfd_create("program", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, bytes).unwrap();
            file
        };
        let file = loose(3 * PAGE_BYTES as u64);
        rustix::io::pwrite(&file, b"as it was", PAGE_BYTES as u64).unwrap();
        let memory = SharedMemory::adopt(file.try_clone().unwrap()).unwrap();
        assert_eq!((memory.bytes(), memory.pages()), (3 * PAGE_BYTES, Pages::Small));
        // SAFETY: within the mapping, which nobody writes.
        let bytes = unsafe { std::slice::from_raw_parts(memory.base().add(PAGE_BYTES), 9) };
        assert_eq!(bytes, b"as it was");
        assert_eq!(memory.allocated_bytes().unwrap(), memory.bytes());
        assert!(ftruncate(&file, 0).is_err());
        let other = |protection| Mapping::map_received(file.as_fd(), protection, 1 << 20);
        assert!(other(Protection::ReadWrite).is_err());
        assert!(other(Protection::Read).is_ok());
        // A file is given once.
        assert!(matches!(SharedMemory::adopt(file), Err(AdoptError::Sealed)));

        let refused = |file| SharedMemory::adopt(file).expect_err("it cannot be used");
        for bytes in [0, 1, PAGE_BYTES as u64 + 1] {
            assert!(matches!(refused(loose(bytes)), AdoptError::Size { bytes: found } if found == bytes));
        }
        assert!(matches!(refused(memfd_create("bare", MemfdFlags::CLOEXEC).unwrap()), AdoptError::NoSeals));
        assert!(matches!(refused(tempfile::tempfile().unwrap().into()), AdoptError::NoSeals));
        for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SHRINK | SealFlags::SEAL] {
            let file = loose(PAGE_BYTES as u64);
            fcntl_add_seals(&file, seal).unwrap();
            assert!(matches!(refused(file), AdoptError::Sealed), "{seal:?}");
        }
    }

    #[test]
    fn an_unsealed_file_and_one_too_large_are_refused() {
        let loose = memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&loose, 4096).unwrap();
        assert!(matches!(
            Mapping::map_received(loose.as_fd(), Protection::Read, 1 << 20),
            Err(MapError::NotSealed)
        ));
        let memory = SharedMemory::new("jet-test", 8192, false).unwrap();
        let refused = Mapping::map_received(memory.as_fd(), Protection::Read, 4096);
        assert!(matches!(refused, Err(MapError::Size { bytes: 8192, max: 4096 })));
    }
}

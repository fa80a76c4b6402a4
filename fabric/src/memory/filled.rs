//! Whether a mapping of another process's memory file costs this process memory.
//!
//! Touching a hole of a memory file through a mapping allocates a page. The kernel charges that page to the
//! process that touched it, and not to the process that made the file. So a file is mapped only where it has
//! no holes, and cannot get any. Everything else is read by a call (`preadv`), for which the kernel allocates
//! nothing: holes read as zeros.
//!
//! How the kernel is asked for holes matters, since the other process may be hostile:
//!
//! * `st_blocks` also counts pages beyond the end of the file, so it does not show that there are no holes.
//! * `lseek(SEEK_HOLE)` waits for the file's lock. The other process can hold that lock for as long as it
//!   likes: it calls `write` with a buffer whose pages never come (userfaultfd).
//! * `cachestat` also counts pages that an unfinished `fallocate` takes back when it is interrupted.
//! * `mincore` waits for nobody, and counts pages only once they have content. To a process that may not write
//!   the file it says that every page is there. For this reason one page beyond the file's end is asked for,
//!   too, which cannot be there.

use super::Mapping;
use super::shared::Protection;
use rustix::fs::{SealFlags, fcntl_get_seals, fstatfs};
use std::io;
use std::os::fd::BorrowedFd;

/// File system type of huge-page memory files: `HUGETLBFS_MAGIC`.
const HUGETLBFS: u64 = 0x9584_58f6;
/// Pages that the kernel asks about in one step, and thus with one check of who asks: as many as a page has
/// bytes. More pages are not asked about, and a page has 4096 bytes at least.
const PAGES_AT_ONCE: usize = 4096;

/// Largest file that [`Mapping::map_filled`] maps, in bytes.
pub(crate) const FILLED_BYTES_MAX: usize = 12 << 20;

/// Whether a memory file is on huge pages.
pub(crate) fn is_on_huge_pages(fd: BorrowedFd<'_>) -> bool {
    fstatfs(fd).is_ok_and(|found| u64::try_from(found.f_type) == Ok(HUGETLBFS))
}

impl Mapping {
    /// Maps the first `bytes` bytes of a file that another process made, for reading, if touching them
    /// allocates nothing. `None` where it might.
    ///
    /// `bytes` must be the file's length. The mapping is a page longer; the bytes after the file's end must
    /// not be touched.
    ///
    /// The seals forbid the other process to remove a page (`F_SEAL_SHRINK`, `F_SEAL_FUTURE_WRITE`). The
    /// kernel itself still drops a page that was never written when its group's memory gets scarce. The
    /// caller limits by the mapping's size what that can cost.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn map_filled(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Option<Self>> {
        let page_bytes = rustix::param::page_size();
        let pages = bytes.div_ceil(page_bytes);
        if bytes > FILLED_BYTES_MAX || pages >= PAGES_AT_ONCE || is_on_huge_pages(fd) {
            return Ok(None);
        }
        // The seals come first: a page that is there afterwards stays.
        let seals = fcntl_get_seals(fd)?;
        if !seals.contains(SealFlags::SHRINK)
            || !seals.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE)
        {
            return Ok(None);
        }
        let mapping = Self::map(fd, (pages + 1) * page_bytes, Protection::Read)?;
        let mut there = [0u8; PAGES_AT_ONCE];
        // SAFETY: the mapping is ours and as long, and there is a byte for each of its pages.
        let result = unsafe {
            libc::mincore(mapping.base().cast(), (pages + 1) * page_bytes, there.as_mut_ptr())
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let is_there = |page: &u8| page & 1 == 1;
        let filled = there[..pages].iter().all(is_there) && !is_there(&there[pages]);
        Ok(filled.then_some(mapping))
    }
}

const _: () = assert!(FILLED_BYTES_MAX / 4096 < PAGES_AT_ONCE);

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{
        FallocateFlags, MemfdFlags, Mode, fallocate, fchmod, fcntl_add_seals, fstat, ftruncate, memfd_create,
    };
    use rustix::io::{Errno, pwrite};
    use std::os::fd::{AsFd, OwnedFd};

    const PAGE: usize = 4096;
    const BYTES: usize = 64 * PAGE;
    const SEALED: SealFlags = SealFlags::SHRINK.union(SealFlags::FUTURE_WRITE);

    /// Makes a file without any page.
    fn empty(bytes: usize) -> OwnedFd {
        let file = memfd_create("jet-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&file, bytes as u64).unwrap();
        file
    }

    fn write(file: &OwnedFd, at: usize, bytes: usize) {
        assert_eq!(pwrite(file, &vec![7; bytes], at as u64).unwrap(), bytes);
    }

    fn is_mapped(file: &OwnedFd, seals: SealFlags, bytes: usize) -> bool {
        fcntl_add_seals(file, seals).unwrap();
        let before = fstat(file).unwrap().st_blocks;
        let mapped = Mapping::map_filled(file.as_fd(), bytes).unwrap().is_some();
        assert_eq!(fstat(file).unwrap().st_blocks, before, "asking allocates nothing");
        mapped
    }

    #[test]
    fn what_has_no_holes_and_gets_none_is_mapped() {
        for bytes in [1, PAGE, PAGE + 1, BYTES, FILLED_BYTES_MAX] {
            let file = empty(bytes);
            write(&file, 0, bytes);
            fcntl_add_seals(&file, SEALED).unwrap();
            let mapping = Mapping::map_filled(file.as_fd(), bytes).unwrap().expect("it has no holes");
            // SAFETY: within the file, which nobody writes.
            assert_eq!(unsafe { mapping.base().add(bytes - 1).read() }, 7);
        }
    }

    #[test]
    fn one_hole_is_enough_not_to_be_mapped() {
        for hole in [0, 1, 31, 62, 63] {
            let file = empty(BYTES);
            (0..64).filter(|page| *page != hole).for_each(|page| write(&file, page * PAGE, PAGE));
            assert!(!is_mapped(&file, SEALED, BYTES), "page {hole}");
        }
    }

    #[test]
    fn pages_beyond_the_end_do_not_stand_in_for_holes() {
        let file = empty(BYTES);
        write(&file, 0, BYTES - 3 * PAGE);
        let beyond = (BYTES + 8 * PAGE) as u64;
        fallocate(&file, FallocateFlags::KEEP_SIZE, beyond, 3 * PAGE as u64).unwrap();
        assert_eq!(fstat(&file).unwrap().st_blocks * 512, BYTES as i64, "as many blocks as without holes");
        assert!(!is_mapped(&file, SEALED, BYTES));
    }

    #[test]
    fn pages_that_an_interrupted_fallocate_takes_back_do_not_count() {
        let file = empty(BYTES);
        fallocate(&file, FallocateFlags::empty(), 0, BYTES as u64).unwrap();
        assert_eq!(fstat(&file).unwrap().st_blocks * 512, BYTES as i64);
        assert!(!is_mapped(&file, SEALED, BYTES));
    }

    #[test]
    fn what_may_get_holes_later_is_not_mapped() {
        for seals in [SealFlags::SHRINK, SealFlags::FUTURE_WRITE, SealFlags::GROW] {
            let file = empty(BYTES);
            write(&file, 0, BYTES);
            assert!(!is_mapped(&file, seals, BYTES), "{seals:?}");
        }
        let file = empty(FILLED_BYTES_MAX + 1);
        write(&file, 0, FILLED_BYTES_MAX + 1);
        assert!(!is_mapped(&file, SEALED, FILLED_BYTES_MAX + 1), "too large");
    }

    #[test]
    fn nothing_can_be_punched_into_what_is_sealed() {
        let file = empty(BYTES);
        write(&file, 0, BYTES);
        let writable = Mapping::map(file.as_fd(), BYTES, Protection::ReadWrite).unwrap();
        fcntl_add_seals(&file, SEALED).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&file, punch, 0, BYTES as u64), Err(Errno::PERM));
        // SAFETY: our own mapping, which nobody reads.
        let removed = unsafe { libc::madvise(writable.base().cast(), BYTES, libc::MADV_REMOVE) };
        assert_ne!(removed, 0);
        assert_eq!(fstat(&file).unwrap().st_blocks * 512, BYTES as i64);
    }

    /// Checks a file that this process may not write: of such a file the kernel says that every page is
    /// there. Only root can become somebody else, so nothing is checked for other users.
    #[test]
    fn who_may_not_write_a_file_is_not_taken_in() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let file = empty(BYTES);
        fchmod(&file, Mode::empty()).unwrap();
        let somebody = 65_534;
        std::thread::spawn(move || {
            // SAFETY: changes the identity of this thread alone, in what it may do with files.
            unsafe { libc::syscall(libc::SYS_setfsuid, somebody) };
            let mapping = Mapping::map(file.as_fd(), BYTES, Protection::Read).unwrap();
            let mut there = [0u8; BYTES / PAGE];
            // SAFETY: the mapping is ours, and there is a byte for each page.
            let result = unsafe { libc::mincore(mapping.base().cast(), BYTES, there.as_mut_ptr()) };
            assert_eq!((result, there), (0, [1; BYTES / PAGE]), "it is a lie: there is no page");
            assert!(!is_mapped(&file, SEALED, BYTES));
        })
        .join()
        .unwrap();
    }
}

//! Memory regions that are touched, kept mapped as long as they are touched.

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::any::Any;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes that one touch covers: a cache line. Where lines are longer (128 bytes on some ARM cores), each is
/// touched twice a cycle.
pub const LINE_BYTES: usize = 64;

/// Unit of a region in bytes: the smallest page, so that the lines of a unit share an address translation.
pub const PAGE_BYTES: usize = 4096;

/// Lines of a page.
pub(super) const PAGE_LINES: usize = PAGE_BYTES / LINE_BYTES;

/// Error of taking or making a region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The memory contains no whole page.
    #[error(
        "a region of {bytes} bytes at {base:#x} has no whole page of {PAGE_BYTES} bytes in it: give one page \
         at least"
    )]
    TooSmall {
        /// Address of the memory.
        base: usize,
        /// Length of the memory in bytes.
        bytes: usize,
    },
    /// The system gave no memory.
    #[error("no memory for a region of {bytes} bytes: {error}")]
    System {
        /// Bytes that were asked for.
        bytes: usize,
        /// Error of the system call.
        error: io::Error,
    },
}

/// Memory that can be touched: the whole pages of a mapping, together with an owner that keeps the mapping
/// alive.
///
/// It is a pointer, a length and an owner instead of a trait. So there is one `unsafe` promise in one place,
/// no type that holds a region needs a generic parameter, and memory of any crate can be used.
#[derive(Clone)]
pub struct Region {
    base: NonNull<u8>,
    pages: usize,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("base", &self.base)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

// SAFETY: the memory is valid from any thread while `_keep`, which is Send, lives. Only reads whose value is
// thrown away go through the pointer.
unsafe impl Send for Region {}
// SAFETY: as for Send; `_keep` is Sync.
unsafe impl Sync for Region {}

impl Region {
    /// Takes the whole pages within `bytes` bytes from `base` on. `keep` keeps them mapped; in general it is
    /// the owner of the mapping.
    ///
    /// # Safety
    /// While `keep` lives, all of these bytes must stay mapped and readable: not unmapped, not protected,
    /// and, where a file is behind them, not truncated (a sealed memory file cannot be). Other code may write
    /// them at any time, in this process, in another process or from a device: the values that are read are
    /// thrown away.
    ///
    /// # Errors
    /// [`RegionError::TooSmall`].
    pub unsafe fn new(
        base: *const u8,
        bytes: usize,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, RegionError> {
        let too_small = RegionError::TooSmall { base: base.addr(), bytes };
        let skipped = base.addr().next_multiple_of(PAGE_BYTES) - base.addr();
        let pages = bytes.saturating_sub(skipped) / PAGE_BYTES;
        if pages == 0 {
            return Err(too_small);
        }
        // Still within the bytes, since a whole page of them follows.
        let first = base.wrapping_add(skipped).cast_mut();
        Ok(Self { base: NonNull::new(first).ok_or(too_small)?, pages, _keep: keep })
    }

    /// Allocates zeroed memory for measurements, rounded up to whole pages. Every page is present in memory.
    ///
    /// # Errors
    /// [`RegionError::System`].
    pub fn zeroed(bytes: usize) -> Result<Self, RegionError> {
        let own = Own::map(bytes.max(1).next_multiple_of(PAGE_BYTES))
            .map_err(|error| RegionError::System { bytes, error })?;
        let (base, bytes) = (own.base.as_ptr(), own.bytes);
        // SAFETY: the mapping is readable until `own` is dropped, and it is anonymous.
        unsafe { Self::new(base, bytes, Arc::new(own)) }
    }

    /// Returns the address of the first byte, which is at the start of a page.
    ///
    /// Whether it may be written depends on the memory's owner. Memory of [`Self::zeroed`] may be written.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the length in bytes, a multiple of [`PAGE_BYTES`].
    pub fn bytes(&self) -> usize {
        self.pages * PAGE_BYTES
    }

    /// Returns the length in pages of [`PAGE_BYTES`].
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Returns the length in lines of [`LINE_BYTES`].
    pub fn lines(&self) -> usize {
        self.pages * PAGE_LINES
    }

    /// Returns the address of a line's first byte.
    ///
    /// # Panics
    /// Where there is no such line.
    #[inline]
    pub(super) fn line(&self, line: usize) -> *const u8 {
        assert!(line < self.lines(), "line {line} of {}", self.lines());
        // SAFETY: the offset lies within the region, as just checked.
        unsafe { self.base.as_ptr().add(line * LINE_BYTES) }
    }
}

/// Anonymous private mapping, which is unmapped when it is dropped.
struct Own {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: `Own` only unmaps the memory; the address is otherwise used through `Region`.
unsafe impl Send for Own {}
// SAFETY: as for Send.
unsafe impl Sync for Own {}

impl Own {
    fn map(bytes: usize) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases no memory of this process.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )?
        };
        let own = Self { base: NonNull::new(base.cast()).expect("the kernel maps nothing at 0"), bytes };
        for offset in (0..bytes).step_by(PAGE_BYTES) {
            // A page that was never written may be mapped to the kernel's single page of zeroes.
            // SAFETY: the address is within the fresh mapping, which nobody else has yet.
            unsafe { own.base.as_ptr().add(offset).write_volatile(0) };
        }
        Ok(own)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and every `Region` in it holds this value.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_are_taken() {
        let whole = Region::zeroed(3 * PAGE_BYTES).unwrap();
        assert_eq!((whole.pages(), whole.lines(), whole.bytes()), (3, 192, 12_288));
        // SAFETY: the bytes are a part of a region, which a clone of it keeps alive.
        let part = |from: usize, bytes: usize| unsafe {
            Region::new(whole.base().wrapping_add(from), bytes, Arc::new(whole.clone()))
        };
        let inner = part(1, 3 * PAGE_BYTES - 2).unwrap();
        assert_eq!((inner.base().addr() - whole.base().addr(), inner.pages()), (PAGE_BYTES, 1));
        assert_eq!(part(0, 2 * PAGE_BYTES + 4095).unwrap().pages(), 2);
        for (from, bytes) in [(0, 4095), (1, 4096), (1, 8190), (0, 0)] {
            let refused = part(from, bytes).unwrap_err().to_string();
            assert!(refused.contains(&format!("a region of {bytes} bytes")), "{refused}");
        }
    }

    #[test]
    fn memory_lives_while_a_region_of_it_does() {
        let whole = Region::zeroed(2 * PAGE_BYTES).unwrap();
        // SAFETY: the bytes are a part of a region, which a clone of it keeps alive.
        let part = unsafe { Region::new(whole.base(), PAGE_BYTES, Arc::new(whole.clone())) }.unwrap();
        drop(whole);
        // SAFETY: `part` keeps the mapping alive.
        assert_eq!(unsafe { part.line(63).read_volatile() }, 0);
    }
}

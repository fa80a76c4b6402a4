//! Measures how much memory a receiver goes through: the receiver's application marks every page that it
//! reads.
//!
//! The marks lie in memory that both processes map. A mark is a byte, stored once for 4 KiB that are read.
//! The cost of marking is too small to show in a figure.

use crate::rig::path_for_children;
use jet_fabric::memory::{Mapping, Protection, SharedMemory};
use jet_wire::SLAB_BYTES;
use std::error::Error;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

/// Number of marks: one for each page of 512 MiB. A page's mark is found by its address, so that neighbours
/// never share one.
const MARKS: usize = 1 << 17;

/// The marks of the pages that were read, in the benchmark's process, which counts them.
pub struct Touched(SharedMemory);

/// The marks of the pages that were read, in the application's process, which makes them.
pub struct Marks(Mapping);

impl Touched {
    /// Makes the memory for marks, with no mark set.
    ///
    /// # Errors
    /// An error of the system.
    pub fn new() -> io::Result<Self> {
        SharedMemory::new("jet-touched", MARKS, false).map(Self)
    }

    /// Returns the path by which a child process opens the memory of the marks.
    pub fn path(&self) -> PathBuf {
        path_for_children(&self.0)
    }

    fn marks(&self) -> &[AtomicU8] {
        // SAFETY: the mapping has so many bytes and lives as long as `self`; everybody touches them as
        // atomics.
        unsafe { std::slice::from_raw_parts(self.0.base().cast(), MARKS) }
    }

    /// Clears all marks.
    pub fn clear(&self) {
        self.marks().iter().for_each(|mark| mark.store(0, Ordering::Relaxed));
    }

    /// Returns the marked pages among `pages` pages from `address` on, as ranges that are as long as
    /// possible.
    pub fn runs(&self, address: usize, pages: usize) -> Vec<Range<usize>> {
        let marks = self.marks();
        let first = address / SLAB_BYTES;
        let marked = |page: usize| marks[(first + page) % marks.len()].load(Ordering::Relaxed) != 0;
        let mut runs: Vec<Range<usize>> = Vec::new();
        for page in (0..pages).filter(|page| marked(*page)) {
            match runs.last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        runs
    }

    /// Returns the number of bytes of all marked pages.
    pub fn bytes(&self) -> usize {
        self.marks().iter().filter(|mark| mark.load(Ordering::Relaxed) != 0).count() * SLAB_BYTES
    }
}

impl Marks {
    /// Opens, in a child process, the marks that the parent process counts.
    ///
    /// # Errors
    /// An error of the system.
    pub fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Self(Mapping::map_received(file.as_fd(), Protection::ReadWrite, MARKS as u64)?))
    }

    /// Marks the pages in which `bytes` lies, because they are being read.
    pub fn mark(&self, bytes: &[u8]) {
        // SAFETY: as in `Touched::marks`; the mapping cannot be truncated.
        let marks: &[AtomicU8] = unsafe { std::slice::from_raw_parts(self.0.base().cast(), self.0.bytes()) };
        let first = bytes.as_ptr().addr();
        for page in first / SLAB_BYTES..(first + bytes.len()).div_ceil(SLAB_BYTES) {
            marks[page % marks.len()].store(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_count_once_however_often_they_are_read() {
        let touched = Touched::new().unwrap();
        let marks = Marks::open(&touched.path()).unwrap();
        let memory = SharedMemory::new("jet-test", 16 * SLAB_BYTES, false).unwrap();
        // SAFETY: the mapping has so many bytes, and nobody writes them.
        let bytes = unsafe { std::slice::from_raw_parts(memory.base(), 16 * SLAB_BYTES) };
        assert_eq!(touched.bytes(), 0);
        for _ in 0..3 {
            marks.mark(&bytes[SLAB_BYTES..3 * SLAB_BYTES]);
            marks.mark(&bytes[2 * SLAB_BYTES + 10..3 * SLAB_BYTES + 1]);
            marks.mark(&bytes[..0]);
        }
        assert_eq!(touched.bytes(), 3 * SLAB_BYTES);
        marks.mark(&bytes[15 * SLAB_BYTES..]);
        assert_eq!(touched.runs(memory.base().addr(), 16), [1..4, 15..16]);
        assert_eq!(touched.runs(memory.base().addr() + 2 * SLAB_BYTES, 14), [0..2, 13..14]);
        touched.clear();
        assert_eq!(touched.bytes(), 0);
    }
}

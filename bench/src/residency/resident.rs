//! The share of a receiver's buffers that is in the cache, judged for all receivers by the same code in the
//! same process.
//!
//! After a turn its receiver is stopped. Then lines of the pages that the application read in that turn are
//! touched in random order. Each touch is timed, as by the daemon's warmer (`jet_cat::residency`). The thread
//! that touches the lines runs on the receiver's core, since lines in a core's own cache look like memory
//! from another core. The daemon's own reading is not used: its warmer touches memory all the time to keep it
//! warm, and the other receivers have none.

use super::touched::Touched;
use jet_cat::residency::{Calibration, CalibrationOptions, Region, Resident, Warmer, WarmerOptions};
use jet_fabric::memory::{Mapping, Protection};
use jet_wire::SLAB_BYTES;
use std::error::Error;
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Number of touches of one reading. The reading's 95 % interval is 3 % wide at worst.
const TOUCHES: usize = 4096;

/// A receiver's buffers, mapped into this process as well as into the receiver's.
pub struct Watched {
    mapping: Arc<Mapping>,
    /// Address at which the receiver's application has mapped the buffers.
    address: usize,
}

impl Watched {
    /// Maps the memory file `name` that the process `owner` has open, and finds the address at which the
    /// process `application` has mapped it.
    ///
    /// # Errors
    /// The file is not found, or the system refuses.
    pub fn of(name: &str, owner: u32, application: u32) -> Result<Self, Box<dyn Error>> {
        let missing = |what: &str| format!("process {owner} or {application} {what} memory called {name}");
        let called = format!("/memfd:{name}");
        let open = fs::read_dir(format!("/proc/{owner}/fd"))?.flatten().map(|entry| entry.path());
        let is_it = |path: &std::path::PathBuf| {
            fs::read_link(path).is_ok_and(|to| to.to_string_lossy().split(' ').next() == Some(&called))
        };
        let file = File::open(open.into_iter().find(is_it).ok_or_else(|| missing("has no"))?)?;
        let mapping = Arc::new(Mapping::map_received(file.as_fd(), Protection::Read, u64::MAX)?);
        let maps = fs::read_to_string(format!("/proc/{application}/maps"))?;
        let address = address(&maps, &called).ok_or_else(|| missing("does not map"))?;
        // So that no timed touch meets a page that is not mapped in yet.
        for page in (0..mapping.bytes()).step_by(SLAB_BYTES) {
            // SAFETY: within the mapping, which cannot be truncated; what is read is thrown away.
            unsafe { mapping.base().add(page).read_volatile() };
        }
        Ok(Self { mapping, address })
    }

    /// Returns the pages of the buffers that the application has marked as read, as ranges of page numbers.
    pub fn read_pages(&self, touched: &Touched) -> Vec<Range<usize>> {
        touched.runs(self.address, self.mapping.bytes() / SLAB_BYTES)
    }

    fn region(&self, pages: &Range<usize>) -> Result<Region, Box<dyn Error>> {
        let keep: Arc<dyn std::any::Any + Send + Sync> = Arc::<Mapping>::clone(&self.mapping);
        // SAFETY: within the mapping, which is kept, stays readable and cannot be truncated.
        let region = unsafe {
            Region::new(self.mapping.base().add(pages.start * SLAB_BYTES), pages.len() * SLAB_BYTES, keep)
        };
        Ok(region?)
    }
}

/// Returns the address at which a process has mapped a memory file from the file's beginning.
fn address(maps: &str, called: &str) -> Option<usize> {
    let mut fields = maps.lines().map(|line| line.split_whitespace());
    let found = fields.find_map(|mut line| {
        let (range, offset) = (line.next()?, line.nth(1)?);
        (line.nth(2)? == called && offset.bytes().all(|digit| digit == b'0')).then_some(range)
    })?;
    usize::from_str_radix(found.split('-').next()?, 16).ok()
}

/// A classifier that tells from the time of a memory access whether the line was in the cache.
pub struct CacheHitClassifier {
    calibration: Calibration,
}

impl CacheHitClassifier {
    /// Measures on this core how long an access to a line in the cache takes, and one to a line in memory.
    ///
    /// # Errors
    /// The reason why the two cannot be told apart here.
    pub fn calibrate() -> Result<Self, Box<dyn Error>> {
        Ok(Self { calibration: Calibration::measure(CalibrationOptions::default())? })
    }

    /// Returns the share of `pages` that is in the cache; `None`: there are no pages.
    ///
    /// # Errors
    /// An error of the system.
    pub fn resident(&self, watched: &Watched, pages: &[Range<usize>]) -> Result<Option<f64>, Box<dyn Error>> {
        let all: usize = pages.iter().map(ExactSizeIterator::len).sum();
        let (mut before, mut touches, mut cached) = (0, 0, 0);
        for range in pages {
            // As many touches as the range's share of all pages.
            let upto = before + range.len();
            let count = u32::try_from(upto * TOUCHES / all - before * TOUCHES / all)?;
            before = upto;
            if count == 0 {
                continue;
            }
            let options = WarmerOptions { window_touches: count, warm_in: false, ..WarmerOptions::default() };
            let mut warmer = Warmer::calibrated(watched.region(range)?, self.calibration.clone(), options)?;
            warmer.touch_batch(count);
            if let Some(seen) = warmer.resident() {
                (touches, cached) = (touches + seen.touches, cached + seen.judged_cached);
            }
        }
        Ok(Resident::estimate(touches, cached, &self.calibration.rates).map(|resident| resident.share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::residency::touched::Marks;
    use jet_fabric::memory::SharedMemory;

    #[test]
    fn a_mapping_is_found_by_its_name_and_from_its_beginning() {
        let maps = "\
7f0000200000-7f0000400000 r--s 00200000 00:01 7   /memfd:jet-pool (deleted)
7f0000800000-7f0000900000 r--s 00000000 00:01 9   /memfd:jet-pool-2 (deleted)
7f0000000000-7f0000200000 r--s 00000000 00:01 7   /memfd:jet-pool (deleted)
7ffc00000000-7ffc00001000 rw-p 00000000 00:00 0   [stack]
";
        assert_eq!(address(maps, "/memfd:jet-pool"), Some(0x7f00_0000_0000));
        assert_eq!(address(maps, "/memfd:jet-buffers"), None);
    }

    #[test]
    fn what_is_watched_is_what_was_read() {
        let memory = SharedMemory::new("jet-test-watched", 64 * SLAB_BYTES, false).unwrap();
        let watched = Watched::of("jet-test-watched", std::process::id(), std::process::id()).unwrap();
        assert_ne!(watched.mapping.base(), memory.base());
        let touched = Touched::new().unwrap();
        let marks = Marks::open(&touched.path()).unwrap();
        // SAFETY: the mapping has so many bytes, and nobody writes them. It is the process's first of that
        // name or its second.
        let bytes = |first: usize, pages: usize| unsafe {
            let base = std::ptr::with_exposed_provenance::<u8>(watched.address);
            std::slice::from_raw_parts(base.add(first * SLAB_BYTES), pages * SLAB_BYTES)
        };
        marks.mark(bytes(3, 2));
        marks.mark(bytes(60, 4));
        assert_eq!(watched.read_pages(&touched), [3..5, 60..64]);
        assert!(Watched::of("jet-test-unknown", std::process::id(), std::process::id()).is_err());
    }
}

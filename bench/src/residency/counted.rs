//! What the processor counts of a receiver, where it counts anything.

use jet_cat::counters::{CacheCounters, CountersError};
use std::fs;

/// Counters of all threads that a process has.
pub struct Counted {
    threads: Vec<CacheCounters>,
}

impl Counted {
    /// From now on.
    ///
    /// # Errors
    /// Why nothing is counted.
    pub fn start(pid: u32) -> Result<Self, CountersError> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let threads = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
        let mut counted = Self { threads: Vec::new() };
        for thread in threads {
            let mut counters = CacheCounters::of_thread(thread)?;
            counters.start()?;
            counted.threads.push(counters);
        }
        Ok(counted)
    }

    /// Misses of the last-level cache since.
    ///
    /// # Errors
    /// Why that cannot be read.
    pub fn misses(&mut self) -> Result<u64, CountersError> {
        self.threads.iter_mut().map(|counters| Ok(counters.read()?.llc_misses)).sum()
    }
}

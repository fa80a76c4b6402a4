//! Counts a receiver's cache misses with the processor's hardware counters, where these are available.

use jet_cat::counters::{CacheCounters, CountersError};
use std::fs;

/// Hardware counters of the cache misses of all threads of a process.
pub struct Counted {
    threads: Vec<CacheCounters>,
}

impl Counted {
    /// Starts to count the cache misses of the process `pid`.
    ///
    /// # Errors
    /// The reason why nothing can be counted.
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

    /// Returns the misses of the last-level cache since the start.
    ///
    /// # Errors
    /// The reason why the counters cannot be read.
    pub fn misses(&mut self) -> Result<u64, CountersError> {
        self.threads.iter_mut().map(|counters| Ok(counters.read()?.llc_misses)).sum()
    }
}

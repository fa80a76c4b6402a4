//! Escape memory from the pool's view: which of its slabs are free, and which of those joined the pool (Jet
//! §4.3).

use super::runs::{FreeRuns, Run};

/// Slabs of escape memory; their numbers follow the pool's. Each is not ready, in reserve, free in the pool,
/// or in use.
#[derive(Debug)]
pub(super) struct EscapeMemory {
    /// Number of the first slab of escape memory, which is the pool's number of slabs.
    first: u32,
    slabs: u32,
    /// Number of slabs, from the first on, that are allocated and touched.
    ready: u32,
    /// Free slabs in reserve: they are not part of the pool.
    reserve: FreeRuns,
    /// Free slabs that are part of the pool for now.
    joined: FreeRuns,
    used_max: u32,
}

impl EscapeMemory {
    pub fn new(first: u32, slabs: u32) -> Self {
        Self {
            first,
            slabs,
            ready: 0,
            reserve: FreeRuns::none(slabs),
            joined: FreeRuns::none(slabs),
            used_max: 0,
        }
    }

    /// Makes the first `ready` slabs of escape memory usable.
    pub fn make_ready(&mut self, ready: u32) {
        let ready = ready.min(self.slabs);
        if ready > self.ready {
            self.reserve.give(Run { first: self.ready, count: ready - self.ready });
            self.ready = ready;
        }
    }

    pub fn slabs(&self) -> u32 {
        self.slabs
    }

    pub fn ready(&self) -> u32 {
        self.ready
    }

    /// Returns the slabs that can be taken from the reserve now.
    pub fn reserve(&self) -> u32 {
        self.reserve.free()
    }

    /// Returns the slabs that joined the pool and are free.
    #[inline]
    pub fn joined(&self) -> u32 {
        self.joined.free()
    }

    /// Returns the slabs that are in use or joined the pool.
    #[inline]
    pub fn used(&self) -> u32 {
        self.ready - self.reserve.free() - self.retired_unused()
    }

    pub fn used_max(&self) -> u32 {
        self.used_max
    }

    fn out(&mut self, run: Run) -> Run {
        self.used_max = self.used_max.max(self.used());
        Run { first: run.first + self.first, count: run.count }
    }

    fn local(&self, run: Run) -> Run {
        Run { first: run.first - self.first, count: run.count }
    }

    /// Takes up to `wanted` slabs out of the reserve, as one run.
    pub fn take(&mut self, wanted: u32) -> Option<Run> {
        let run = self.reserve.take(wanted)?;
        Some(self.out(run))
    }

    /// Gives slabs back to the reserve.
    pub fn give(&mut self, run: Run) {
        let local = self.local(run);
        self.reserve.give(local);
    }

    /// Lets up to `wanted` slabs of the reserve join the pool; returns how many joined.
    pub fn join(&mut self, wanted: u32) -> u32 {
        let mut joined = 0;
        while let Some(run) = self.reserve.take(wanted - joined) {
            self.joined.give(run);
            joined += run.count;
            self.used_max = self.used_max.max(self.used());
        }
        joined
    }

    /// Takes up to `wanted` free slabs out of the pool again, back into the reserve; returns how many left.
    pub fn leave(&mut self, wanted: u32) -> u32 {
        let mut left = 0;
        while let Some(run) = self.joined.take(wanted - left) {
            self.reserve.give(run);
            left += run.count;
        }
        left
    }

    /// Takes up to `wanted` free slabs that joined the pool, as one run, for use by the pool's shares.
    pub fn take_joined(&mut self, wanted: u32) -> Option<Run> {
        let run = self.joined.take(wanted)?;
        Some(self.out(run))
    }

    /// Retires these slabs: they are never used again, once they are given back.
    pub fn retire(&mut self, run: Run) {
        let local = self.local(run);
        self.reserve.retire(local);
        self.joined.retire(local);
    }

    /// Returns whether a slab of the run is retired.
    pub fn is_retired(&self, run: Run) -> bool {
        self.reserve.is_retired(self.local(run))
    }

    /// Returns the slabs that were retired and are not in use any more.
    pub fn retired_unused(&self) -> u32 {
        self.reserve.retired_unused() + self.joined.retired_unused()
    }

    /// Gives back slabs that joined the pool; they stay part of it.
    pub fn give_joined(&mut self, run: Run) {
        let local = self.local(run);
        self.joined.give(local);
    }

    /// Restarts the mark of the most slabs in use at once, from what is in use now.
    pub fn reset_used_max(&mut self) {
        self.used_max = self.used();
    }
}

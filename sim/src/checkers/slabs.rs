//! Slabs: each is somewhere, and nowhere twice.

use super::Checker;
use crate::scenario::Scenario;
use jet_core::Stats;

/// What the pool must have.
#[derive(Debug)]
pub struct Slabs {
    pool_slabs: u32,
}

impl Slabs {
    pub fn new(scenario: &Scenario) -> Self {
        Self { pool_slabs: scenario.config.pool_slabs }
    }
}

impl Checker for Slabs {
    fn name(&self) -> &'static str {
        "slabs"
    }

    fn look(&mut self, _now_ns: u64, stats: &Stats, is_settled: bool) -> Result<(), String> {
        let Stats { free_slabs, posted_slabs, pool_slabs, small_held_slabs, read_slabs, .. } = *stats;
        let known = free_slabs + posted_slabs + small_held_slabs + read_slabs;
        let Stats { quarantined_slabs, retired_slabs, .. } = *stats;
        if pool_slabs != self.pool_slabs || known > pool_slabs || retired_slabs > 0 {
            return Err(format!("of {} slabs there are {stats:?}", self.pool_slabs));
        }
        if is_settled && (free_slabs + posted_slabs != pool_slabs || quarantined_slabs > 0) {
            let lost = pool_slabs - free_slabs - posted_slabs;
            return Err(format!("{lost} slabs of {pool_slabs} did not come back: {stats:?}"));
        }
        Ok(())
    }
}

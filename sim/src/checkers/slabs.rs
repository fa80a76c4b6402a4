//! Slabs: each is somewhere, and nowhere twice.

use super::{Checker, Look};
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

    fn look(&mut self, look: &Look<'_>) -> Result<(), String> {
        let stats = look.stats;
        let Stats { free_slabs, posted_slabs, pool_slabs, small_held_slabs, read_slabs, .. } = *stats;
        let Stats { quarantined_slabs, retired_slabs, escape, .. } = *stats;
        if pool_slabs != self.pool_slabs || retired_slabs > 0 {
            return Err(format!("of {} slabs there are {stats:?}", self.pool_slabs));
        }
        if posted_slabs != look.nic_entries {
            let has = look.nic_entries;
            return Err(format!("the NIC has {has} entries, and {posted_slabs} slabs are posted: {stats:?}"));
        }
        // A straggler that was replaced is out of the budget, and its stand-in from escape memory is in it.
        let counted = free_slabs + posted_slabs + small_held_slabs + read_slabs + quarantined_slabs;
        let stand_ins = escape.memory_used.checked_sub(escape.copied_now + escape.spilled_now);
        let Some(budget) = stand_ins.map(|stand_ins| pool_slabs + stand_ins - escape.replaced_now) else {
            return Err(format!("more slabs of escape memory are held than are in use: {escape:?}"));
        };
        if counted != budget {
            return Err(format!("{counted} slabs are somewhere, and there are {budget}: {stats:?}"));
        }
        if look.is_settled && (free_slabs + posted_slabs != pool_slabs || quarantined_slabs > 0) {
            let lost = pool_slabs - free_slabs - posted_slabs;
            return Err(format!("{lost} slabs of {pool_slabs} did not come back: {stats:?}"));
        }
        Ok(())
    }
}

//! Escape memory: what is in use keeps to its purposes' sizes. What one session may hold before it is granted
//! nothing new is no bound: messages that have begun go on, and copies of what it holds do, too.

use super::{Checker, Look};
use crate::scenario::Scenario;

/// Sizes of escape memory, in slabs.
#[derive(Debug)]
pub struct EscapeMemory {
    all: u32,
    stand_ins: u32,
    memory: u32,
    copies_max: u32,
}

impl EscapeMemory {
    pub fn new(scenario: &Scenario) -> Self {
        let config = &scenario.config;
        let shape = config.escape_shape();
        Self {
            all: shape.replace_slabs + shape.memory_slabs,
            stand_ins: shape.replace_slabs,
            memory: shape.memory_slabs,
            copies_max: config.copies_max,
        }
    }
}

impl Checker for EscapeMemory {
    fn name(&self) -> &'static str {
        "escape memory"
    }

    fn look(&mut self, look: &Look<'_>) -> Result<(), String> {
        let escape = &look.stats.escape;
        let held = escape.copied_now + escape.spilled_now;
        let is_beyond = escape.memory_used > self.all
            || escape.replaced_now > self.stand_ins
            || held > self.memory
            || escape.copies_in_flight > self.copies_max;
        if is_beyond || escape.memory_retired > 0 {
            return Err(format!("more than there is: {escape:?}"));
        }
        Ok(())
    }
}

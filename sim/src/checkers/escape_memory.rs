//! Escape memory: what is in use keeps to its purposes' sizes, and to each session's share.

use super::{Checker, Look};
use crate::scenario::Scenario;
use jet_wire::SLAB_BYTES_U32;

/// Sizes of escape memory, in slabs.
#[derive(Debug)]
pub struct EscapeMemory {
    all: u32,
    stand_ins: u32,
    memory: u32,
    session: u32,
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
            // A session is granted nothing new at its limit; what was granted below it may pass it.
            session: config.session_memory_slabs
                + (config.reads_max + config.copies_max) * (config.fragment_bytes / SLAB_BYTES_U32),
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
        let greedy = look.sessions.iter().find(|session| session.memory_slabs > self.session);
        greedy.map_or(Ok(()), |session| Err(format!("a session has more than its share: {session:?}")))
    }
}

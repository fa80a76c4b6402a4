//! Escape memory: what is in use keeps to its purposes' sizes. What one session may hold before it is granted
//! nothing new is no bound: messages that have begun go on, and copies of what it holds do, too.
//!
//! What open sessions hold is part of what is in use, and stragglers are part of what a session holds.

use super::{Checker, Look};
use crate::scenario::Scenario;
use jet_core::SessionStats;

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
        let of_sessions = |count: fn(&SessionStats) -> u32| look.sessions.iter().map(count).sum::<u32>();
        let in_memory = of_sessions(|session| session.memory_slabs);
        let replaced = of_sessions(|session| session.replaced_slabs);
        if in_memory > held || replaced > escape.replaced_now {
            return Err(format!(
                "sessions have {in_memory} slabs in memory and {replaced} replaced: {escape:?}"
            ));
        }
        let is_wrong = |session: &&SessionStats| {
            session.straggler_slabs > session.held_slabs || (look.is_settled && session.held_slabs > 0)
        };
        match look.sessions.iter().find(is_wrong) {
            Some(session) => Err(format!("a session holds what is not there: {session:?}")),
            None => Ok(()),
        }
    }
}

//! Credit: senders that keep to it are not cut off for it, and find a receive entry for each SEND.

use super::Checker;
use crate::event::{Event, Fault};
use crate::scenario::Scenario;
use jet_core::Stats;

/// What may end a sender or a session.
#[derive(Debug)]
pub struct Credit {
    scribbles: bool,
    sessions_faulted: u64,
}

impl Credit {
    pub fn new(_scenario: &Scenario) -> Self {
        Self { scribbles: false, sessions_faulted: 0 }
    }
}

impl Checker for Credit {
    fn name(&self) -> &'static str {
        "credit"
    }

    fn note(&mut self, _now_ns: u64, event: &Event) -> Result<(), String> {
        self.scribbles |= *event == Event::Fault(Fault::Scribble);
        Ok(())
    }

    fn look(&mut self, _now_ns: u64, stats: &Stats, _is_settled: bool) -> Result<(), String> {
        if stats.peer_faults > 0 {
            return Err(format!("{} senders were cut off for breaking the rules", stats.peer_faults));
        }
        if stats.session_faults > self.sessions_faulted && !self.scribbles {
            return Err(format!("{} sessions were ended for what they released", stats.session_faults));
        }
        self.sessions_faulted = stats.session_faults;
        Ok(())
    }
}

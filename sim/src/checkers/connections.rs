//! Connections: where nothing fails, none ends. A receiver that runs never leaves a sender without a word for
//! so long that the sender gives the connection up, whatever fails.

use super::{Checker, Look};
use crate::event::Fault;
use crate::scenario::Scenario;

/// How many connections there may be, at most.
#[derive(Debug)]
pub struct Connections {
    most: Option<u64>,
    /// Whether senders' clocks may jump: a jump is as long as a receiver that says nothing.
    jumps: bool,
}

impl Connections {
    pub fn new(scenario: &Scenario) -> Self {
        // A slow sender may be disconnected for holding up others.
        let is_even = scenario.senders.iter().all(|sender| sender.bytes_per_us.is_none());
        let most = (scenario.faults.is_empty() && is_even).then_some(scenario.senders.len() as u64);
        Self { most, jumps: scenario.faults.contains(&Fault::SenderClockJump) }
    }
}

impl Checker for Connections {
    fn name(&self) -> &'static str {
        "connections"
    }

    fn look(&mut self, look: &Look<'_>) -> Result<(), String> {
        if look.receiver_timeouts > 0 && !self.jumps {
            return Err(format!("{} times a sender heard nothing for too long", look.receiver_timeouts));
        }
        match self.most {
            Some(most) if look.connections > most => Err(format!(
                "{} connections were made, and there are {most} senders: {:?}",
                look.connections, look.stats
            )),
            _ => Ok(()),
        }
    }
}

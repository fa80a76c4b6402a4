//! Connections: where nothing fails but applications, none ends. A receiver that runs never leaves a sender
//! without a word for so long that the sender gives the connection up, whatever fails. It always knows what
//! its senders wait for.

use super::{Checker, Look};
use crate::event::{Event, Fault};
use crate::scenario::Scenario;

/// How many connections there may be, at most.
#[derive(Debug)]
pub struct Connections {
    most: Option<u64>,
    /// Jumps of senders' clocks: one is as long as a receiver that says nothing.
    jumps: u64,
}

/// Returns whether nothing ends a connection in a scenario but its sender.
pub(super) fn all_last(scenario: &Scenario) -> bool {
    // A slow sender may be disconnected for holding up others.
    let is_even = scenario.senders.iter().all(|sender| sender.bytes_per_us.is_none());
    // Where there is no place for everybody, who is idle is sent away.
    let all_fit = scenario.senders.len() + scenario.cheats.len() <= scenario.config.peers_max as usize;
    // What applications do ends no connection.
    let ends_none = |fault: &Fault| matches!(fault, Fault::KillApplication | Fault::Scribble);
    scenario.faults.iter().all(ends_none) && is_even && all_fit
}

impl Connections {
    pub fn new(scenario: &Scenario) -> Self {
        let most = all_last(scenario).then_some(scenario.senders.len() as u64);
        Self { most, jumps: 0 }
    }
}

impl Checker for Connections {
    fn name(&self) -> &'static str {
        "connections"
    }

    fn note(&mut self, _now_ns: u64, event: &Event) -> Result<(), String> {
        self.jumps += u64::from(*event == Event::Fault(Fault::SenderClockJump));
        Ok(())
    }

    fn look(&mut self, look: &Look<'_>) -> Result<(), String> {
        if look.receiver_timeouts > self.jumps {
            let (timeouts, jumps) = (look.receiver_timeouts, self.jumps);
            return Err(format!(
                "{timeouts} times a sender heard nothing for too long, {jumps} clocks jumped"
            ));
        }
        // A jump is one of the nine checks of a timeout, and between two reasons there are three.
        if look.progress_timeouts * 6 > self.jumps {
            let (timeouts, jumps) = (look.progress_timeouts, self.jumps);
            return Err(format!(
                "{timeouts} times a sender was not told for too long what it waits for, {jumps} clocks jumped"
            ));
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

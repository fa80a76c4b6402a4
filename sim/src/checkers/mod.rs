//! Checkers: each watches one kind of promise, and says which event broke it.

mod congestion;
mod connections;
mod credit;
mod drained;
mod escape_memory;
mod fates;
mod order;
mod routing;
mod slabs;
mod starvation;
mod windows;

use crate::event::Event;
use crate::scenario::Scenario;
use jet_core::{PeerStats, SessionStats, Stats};
use jet_fabric::nic::Counters;
use std::fmt;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The checker that found it.
    pub checker: &'static str,
    /// Time, in nanoseconds.
    pub now_ns: u64,
    /// What was found.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { checker, now_ns, what } = self;
        write!(f, "{checker}, at {now_ns} ns: {what}")
    }
}

/// What a look at the receiver sees, between two of its turns.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    /// Time, in nanoseconds.
    pub now_ns: u64,
    /// Statistics of the receiver.
    pub stats: &'a Stats,
    /// Statistics of each connected sender.
    pub peers: &'a [PeerStats],
    /// Statistics of each open session.
    pub sessions: &'a [SessionStats],
    /// Counters of the receiver's NIC.
    pub nic: &'a Counters,
    /// READs that the receiver's NIC has under way.
    pub nic_reads: u32,
    /// Connections that senders made.
    pub connections: u64,
    /// Connections that senders ended because the receiver sent nothing for too long.
    pub receiver_timeouts: u64,
    /// The smallest share of its windows that a sender uses, in thousandths.
    pub window_permille: u32,
    /// Whether everything has ended.
    pub is_settled: bool,
}

/// Watches a promise.
pub trait Checker {
    /// Returns the checker's name.
    fn name(&self) -> &'static str;

    /// Looks at an event.
    ///
    /// # Errors
    /// What is wrong with it.
    fn note(&mut self, now_ns: u64, event: &Event) -> Result<(), String> {
        let _ = (now_ns, event);
        Ok(())
    }

    /// Looks at the receiver between two of its turns.
    ///
    /// # Errors
    /// What is wrong with it.
    fn look(&mut self, look: &Look<'_>) -> Result<(), String> {
        let _ = look;
        Ok(())
    }

    /// Says what is missing at the end.
    ///
    /// # Errors
    /// What is missing.
    fn end(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// Returns all checkers of a scenario.
pub fn all(scenario: &Scenario) -> Vec<Box<dyn Checker>> {
    vec![
        Box::new(fates::Fates::new(scenario)),
        Box::new(routing::Routing::default()),
        Box::new(order::Order::default()),
        Box::new(slabs::Slabs::new(scenario)),
        Box::new(windows::Windows::new(scenario)),
        Box::new(credit::Credit::new(scenario)),
        Box::new(escape_memory::EscapeMemory::new(scenario)),
        Box::new(starvation::Starvation::new(scenario)),
        Box::new(congestion::Congestion::new(scenario)),
        Box::new(connections::Connections::new(scenario)),
        Box::new(drained::Drained),
    ]
}

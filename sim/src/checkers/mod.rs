//! Checkers: each watches one kind of promise, and says which event broke it.

mod credit;
mod drained;
mod fates;
mod order;
mod routing;
mod slabs;
mod windows;

use crate::event::Event;
use crate::scenario::Scenario;
use jet_core::Stats;
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

    /// Looks at the receiver's statistics. `is_settled`: everything has ended.
    ///
    /// # Errors
    /// What is wrong with them.
    fn look(&mut self, now_ns: u64, stats: &Stats, is_settled: bool) -> Result<(), String> {
        let _ = (now_ns, stats, is_settled);
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
        Box::new(fates::Fates::default()),
        Box::new(routing::Routing::default()),
        Box::new(order::Order::default()),
        Box::new(slabs::Slabs::new(scenario)),
        Box::new(windows::Windows::new(scenario)),
        Box::new(credit::Credit::new(scenario)),
        Box::new(drained::Drained),
    ]
}

//! Everything that is seen of a simulation: the log, and the checkers.

use crate::checkers::{Checker, Failure, Look};
use crate::counts::Counts;
use crate::event::Event;
use crate::log::Log;

/// Sees everything that happens.
pub struct Observer {
    log: Log,
    counts: Counts,
    checkers: Vec<Box<dyn Checker>>,
    failure: Option<Failure>,
    now_ns: u64,
}

impl Observer {
    /// Makes an observer with these checkers.
    pub fn new(checkers: Vec<Box<dyn Checker>>) -> Self {
        Self { log: Log::new(), counts: Counts::default(), checkers, failure: None, now_ns: 0 }
    }

    /// Notes something that happened.
    pub fn note(&mut self, now_ns: u64, event: &Event) {
        self.now_ns = now_ns;
        self.log.add(now_ns, event);
        self.counts.add_event(event);
        for checker in &mut self.checkers {
            if let Err(what) = checker.note(now_ns, event) {
                self.failure.get_or_insert(Failure { checker: checker.name(), now_ns, what });
            }
        }
    }

    /// Looks at the receiver between two of its turns.
    pub fn look(&mut self, look: &Look<'_>) {
        let now_ns = look.now_ns;
        self.counts.add_look(look.stats);
        self.now_ns = now_ns;
        for checker in &mut self.checkers {
            if let Err(what) = checker.look(look) {
                self.failure.get_or_insert(Failure { checker: checker.name(), now_ns, what });
            }
        }
    }

    /// Lets the checkers say what is missing now that nothing more happens.
    pub fn end(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        for checker in &mut self.checkers {
            if let Err(what) = checker.end() {
                self.failure.get_or_insert(Failure { checker: checker.name(), now_ns, what });
            }
        }
    }

    /// Reports a failure that no checker found.
    pub fn fail(&mut self, checker: &'static str, what: String) {
        self.failure.get_or_insert(Failure { checker, now_ns: self.now_ns, what });
    }

    /// Returns the first failure.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Keeps so many of the last events.
    pub fn keep(&mut self, events: usize) {
        self.log.keep(events);
    }

    /// Returns what happened how often.
    pub fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// Returns the log.
    pub fn log(&self) -> &Log {
        &self.log
    }
}

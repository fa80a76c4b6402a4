//! Everything that is seen of a simulation: the log, and the checkers.

use crate::checkers::{Checkers, Failure, Look};
use crate::counts::Counts;
use crate::event::Event;
use crate::log::Log;

/// Sees everything that happens.
pub struct Observer {
    log: Log,
    counts: Counts,
    checkers: Checkers,
    failure: Option<Failure>,
    now_ns: u64,
    /// Sessions that were suspended at the last look.
    suspended: u32,
}

impl Observer {
    /// Makes an observer with these checkers.
    pub fn new(checkers: Checkers) -> Self {
        Self { log: Log::new(), counts: Counts::default(), checkers, failure: None, now_ns: 0, suspended: 0 }
    }

    /// Notes something that happened.
    pub fn note(&mut self, now_ns: u64, event: &Event) {
        self.now_ns = now_ns;
        self.log.add(now_ns, event);
        self.counts.add_event(event);
        self.checkers.note(now_ns, event, &mut self.failure);
    }

    /// Looks at the receiver between two of its turns.
    pub fn look(&mut self, look: &Look<'_>) {
        self.counts.add_look(look.stats);
        let before = std::mem::replace(&mut self.suspended, look.stats.escape.suspended_sessions);
        self.counts.add_many("sessions that go on", before.saturating_sub(self.suspended).into());
        self.now_ns = look.now_ns;
        self.checkers.look(look, &mut self.failure);
    }

    /// Lets the checkers say what is missing now that nothing more happens.
    pub fn end(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.checkers.end(now_ns, &mut self.failure);
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

//! Giving the core to others between polls, as Jet's own loops do.

use jet_fabric::Clock;
use jet_fabric::give_way::GiveWay;

/// Gives the core to others by the rule that Jet's waits have.
pub(super) struct Polite {
    give_way: GiveWay,
    clock: Clock,
}

impl Default for Polite {
    fn default() -> Self {
        Self { give_way: GiveWay::default(), clock: Clock::start() }
    }
}

impl Polite {
    /// Notes that a poll found nothing, and gives the core to others where it is time.
    pub(super) fn found_nothing(&mut self) {
        if self.give_way.found_nothing() {
            self.give_way.give(self.clock.now_ns(), || self.clock.now_ns());
        }
    }

    /// Notes that a poll found something.
    pub(super) fn found_something(&mut self) {
        self.give_way.found_something();
    }
}

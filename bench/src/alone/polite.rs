//! Giving the core to others between polls, as Jet's own loops do.

use crate::send_loop::nanoseconds;
use jet_fabric::give_way::GiveWay;
use std::time::Instant;

/// Gives the core to others by the rule that Jet's waits have.
#[derive(Default)]
pub(super) struct Polite {
    give_way: GiveWay,
    alone_since: Option<Instant>,
}

impl Polite {
    /// Notes that a poll found nothing, and gives the core to others where it is time.
    pub(super) fn found_nothing(&mut self) {
        if !self.give_way.found_nothing() {
            std::hint::spin_loop();
            return;
        }
        let polled = Instant::now();
        rustix::thread::sched_yield();
        let back = Instant::now();
        let batch = polled.saturating_duration_since(self.alone_since.unwrap_or(polled));
        self.give_way.gave_way(nanoseconds(batch), nanoseconds(back.saturating_duration_since(polled)));
        self.alone_since = Some(back);
    }

    /// Notes that a poll found something.
    pub(super) fn found_something(&mut self) {
        self.give_way.found_something();
        self.alone_since = None;
    }
}

//! Liveness: once nothing fails any more, everything ends in bounded time, and the pool is whole. Looks at
//! the simulation itself: what does not happen is no event.

use crate::simulation::Simulation;
use jet_escape::Pressure;

/// The checker's name.
const NAME: &str = "liveness";

impl Simulation {
    /// Reports that the time is over in which everything must end, if what happens next is later.
    pub(crate) fn check_time(&mut self, next_ns: u64) -> bool {
        let limit_ns = self.scenario.calm_ns.saturating_add(self.scenario.settle_ns);
        if next_ns > limit_ns {
            let states = self.states();
            self.observer.fail(NAME, format!("not everything ended in time:\n{states}"));
        }
        next_ns > limit_ns
    }

    /// Returns whether everything has ended: all senders are done, and the receiver has nothing left.
    pub(crate) fn is_settled(&mut self) -> bool {
        if !self.senders.iter().all(|sender| sender.process.is_done()) || !self.is_calm {
            return false;
        }
        let Some(process) = &self.receiver.process else { return false };
        let stats = process.stats();
        let is_empty = stats.messages == 0
            && stats.free_slabs + stats.posted_slabs == stats.pool_slabs
            && stats.quarantined_slabs == 0
            && stats.escape.memory_used == 0
            && stats.escape.copies_in_flight == 0
            && stats.in_flight_bytes == 0
            && stats.sends_left == process.sends_at_rest()
            && !process.marks_congestion();
        // A window grows again with time.
        let windows_are_full = self.senders.iter().all(|sender| sender.process.window_permille() == 1000);
        is_empty && windows_are_full && stats.pressure == Pressure::Ok
    }
}

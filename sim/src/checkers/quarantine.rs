//! Quarantine: nobody else gets what a process may still read, and no longer than that. Looks at the
//! simulation itself: what a process reads that has no session any more is no event.

use crate::simulation::Simulation;
use jet_wire::message::hello::AppName;

/// The checker's name.
const NAME: &str = "quarantine";
/// Nanoseconds for which slabs may stay in quarantine when it is over: copies that are under way end, and the
/// receiver may stand still.
const LATE_NS: u64 = 1_000_000_000;

impl Simulation {
    /// Compares the slabs in quarantine with those that processes without a session read.
    pub(crate) fn check_quarantine(&mut self) {
        let Self { receiver, observer, now_ns, ghosts, scenario, .. } = self;
        let Some(process) = &receiver.process else { return };
        // The receiver was not told yet of all that ended.
        if !process.gone.is_empty() {
            return;
        }
        let stats = process.stats();
        // Those of stragglers that were replaced are not in quarantine, and nobody else's either.
        let (read, kept) =
            (ghosts.slabs_of(process.pool()), stats.quarantined_slabs + stats.escape.replaced_now);
        if read > kept as usize {
            let what =
                format!("who is gone may still read {read} slabs of the pool, and {kept} are nobody's");
            observer.fail(NAME, what);
        }
        let late_ns = scenario.config.quarantine_ns + LATE_NS;
        let is_over = ghosts.last_gone_ns().is_some_and(|gone_ns| gone_ns + late_ns < *now_ns);
        if is_over && stats.quarantined_slabs > 0 {
            let what = format!("{} slabs are in quarantine long after it was over", stats.quarantined_slabs);
            observer.fail(NAME, what);
        }
    }

    /// Compares the bytes that processes without a session have read until now with those of their messages.
    pub(crate) fn check_ghosts(&mut self) {
        if self.ghosts.next_ns().is_some_and(|until_ns| until_ns <= self.now_ns)
            && let Some(what) = self.ghosts.check_until(self.now_ns)
        {
            self.observer.fail(NAME, what);
        }
    }

    /// Checks an application that got a session though `kept_slabs` slabs of its name are kept for a fault.
    /// Where processes are told apart, another one is not held back.
    pub(crate) fn check_registration(&mut self, app: AppName, kept_slabs: u32) {
        if kept_slabs > 0 && !self.scenario.tells_processes {
            let what =
                format!("a process of {app} has a session, and {app} has {kept_slabs} slabs for a fault");
            self.observer.fail(NAME, what);
        }
    }
}

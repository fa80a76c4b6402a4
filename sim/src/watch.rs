//! What the simulation looks at between the turns of its actors.

use crate::actors::NEVER;
use crate::checkers::Look;
use crate::simulation::Simulation;
use jet_core::{PeerStats, SessionStats};

/// Room for what a look collects, used again by the next one.
#[derive(Debug, Default)]
pub struct Collected {
    peers: Vec<PeerStats>,
    sessions: Vec<SessionStats>,
}

/// Nanoseconds for which slabs may stay in quarantine when it is over: copies that are under way end, and the
/// receiver may stand still.
const QUARANTINE_LATE_NS: u64 = 1_000_000_000;

impl Simulation {
    /// Lets the checkers look at the receiver.
    pub(crate) fn look(&mut self, is_settled: bool) {
        let Self { receiver, network, observer, senders, collected, now_ns, ghosts, scenario, .. } = self;
        let Some(process) = &receiver.process else { return };
        let Collected { peers, sessions } = collected;
        peers.clear();
        peers.extend(process.peers(*now_ns));
        sessions.clear();
        sessions.extend(process.sessions());
        let stats = process.stats();
        // Those of stragglers that were replaced are not in quarantine, and nobody else's either.
        let (read, kept) =
            (ghosts.slabs_of(process.pool()), stats.quarantined_slabs + stats.escape.replaced_now);
        if process.gone.is_empty() && read > kept as usize {
            let what =
                format!("who is gone may still read {read} slabs of the pool, and {kept} are nobody's");
            observer.fail("quarantine", what);
        }
        let late_ns = scenario.config.quarantine_ns + QUARANTINE_LATE_NS;
        let is_over = ghosts.last_gone_ns().is_some_and(|gone_ns| gone_ns + late_ns < *now_ns);
        if is_over && stats.quarantined_slabs > 0 && process.gone.is_empty() {
            let what = format!("{} slabs are in quarantine long after it was over", stats.quarantined_slabs);
            observer.fail("quarantine", what);
        }
        let windows = senders.iter().map(|sender| sender.process.window_permille());
        observer.look(&Look {
            now_ns: *now_ns,
            stats: &stats,
            peers,
            sessions,
            nic: &process.driver.counters(),
            nic_reads: network.reads_under_way(process.nic),
            nic_entries: network.entries_posted(process.nic),
            receiver_timeouts: senders.iter().map(|sender| sender.process.stats().receiver_timeouts).sum(),
            progress_timeouts: senders.iter().map(|sender| sender.process.stats().progress_timeouts).sum(),
            connections: senders.iter().map(|sender| sender.process.stats().connections).sum(),
            window_permille: windows.min().unwrap_or(1000),
            is_settled,
        });
    }

    /// Looks for parties that sleep though there is something for them. To be called when nobody runs for
    /// longer than it takes to wake up.
    pub(crate) fn check_sleepers(&mut self) {
        let Self { receiver, network, observer, senders, applications, now_ns, scenario, .. } = self;
        let soon_ns = *now_ns + scenario.wake_ns + scenario.turn_ns;
        let receiver_sleeps =
            receiver.is_asleep && receiver.at_ns > soon_ns && receiver.stalled_until_ns <= *now_ns;
        for application in applications.iter_mut() {
            let life = application.process.life();
            if application.at_ns > soon_ns && application.process.oversleeps() {
                observer.fail("wake-up", format!("{life:?} sleeps, and there is a delivery for it"));
            }
            if receiver_sleeps && application.process.has_unread_releases() {
                observer.fail("wake-up", format!("the receiver sleeps, and {life:?} released something"));
            }
        }
        if let Some(process) = &receiver.process
            && receiver_sleeps
            && (network.has_work(process.nic) || !process.gone.is_empty())
        {
            observer.fail("wake-up", "the receiver sleeps, and its NIC has something for it".to_owned());
        }
        if receiver_sleeps && receiver.process.as_ref().is_some_and(|process| process.driver.any_job_done()) {
            observer.fail("wake-up", "the receiver sleeps, and its workers have ended a job".to_owned());
        }
        for sender in senders.iter_mut() {
            if sender.has_begun && sender.at_ns > soon_ns && network.has_work(sender.process.nic()) {
                let id = sender.process.id();
                observer.fail("wake-up", format!("sender {id:x} sleeps, and its NIC has something for it"));
            }
        }
    }

    /// Reports that nobody runs any more, though not everything has ended.
    pub(crate) fn check_standstill(&mut self, next_ns: u64) -> bool {
        if next_ns < NEVER {
            return false;
        }
        let states = self.states();
        self.observer.fail("wake-up", format!("nobody runs any more, and something is left:\n{states}"));
        true
    }
}

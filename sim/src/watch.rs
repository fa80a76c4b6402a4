//! What the simulation looks at between the turns of its actors.

use crate::checkers::Look;
use crate::simulation::Simulation;
use jet_core::{PeerStats, SessionStats};

/// Room for what a look collects, used again by the next one.
#[derive(Debug, Default)]
pub struct Collected {
    peers: Vec<PeerStats>,
    sessions: Vec<SessionStats>,
}

impl Simulation {
    /// Lets the checkers look at the receiver.
    pub(crate) fn look(&mut self, is_settled: bool) {
        self.check_quarantine();
        let Self { receiver, network, observer, senders, collected, now_ns, .. } = self;
        let Some(process) = &receiver.process else { return };
        let Collected { peers, sessions } = collected;
        peers.clear();
        peers.extend(process.peers(*now_ns));
        sessions.clear();
        sessions.extend(process.sessions());
        let stats = process.stats();
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
}

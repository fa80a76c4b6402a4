//! Snapshots of the reactor's counts for the control plane. The reactor does not stop to fill a snapshot: in
//! each turn the reactor copies a few rows.
//!
//! There are two snapshots. While the reactor fills one, the control plane reads the other. The reactor and
//! the control plane exchange the two through the command queue and its answers, so they share no memory and
//! need no lock.

use super::Driver;
use jet_core::{PeerId, PeerStats, QuarantineStats, Receiver, SessionId, SessionStats, Stats};
use jet_fabric::nic::{Counters, Nic};
use tokio::sync::oneshot;

/// Limit of the session numbers, and of the sender numbers, that one turn of the reactor visits for a
/// snapshot. Most of the possible numbers are unused.
const NUMBERS: u32 = 512;
/// Limit of the sessions that one turn of the reactor copies to a snapshot. Copying one takes about half a
/// microsecond, mostly for its quantiles.
const SESSIONS: usize = 8;
/// Limit of the senders that one turn of the reactor copies to a snapshot. Copying one takes some
/// nanoseconds.
const PEERS: usize = 64;

/// Counts of the reactor at one time.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Nanoseconds since the reactor's start.
    pub uptime_ns: u64,
    /// Nanoseconds that the reactor's longest turn so far took.
    pub longest_turn_ns: u64,
    /// Whether the daemon is draining.
    pub draining: bool,
    /// Counts of the receiver.
    pub stats: Stats,
    /// Counts of the NIC.
    pub counters: Counters,
    /// Reason why there is no escape memory, or less than the configuration asks for.
    pub escape_error: Option<std::sync::Arc<str>>,
    /// Registered applications with their session numbers, in ascending order.
    pub sessions: Vec<(u32, SessionStats)>,
    /// Sessions in quarantine with their numbers, in ascending order. Quarantined sessions and registered
    /// applications never have the same number.
    pub quarantined: Vec<(u32, QuarantineStats)>,
    /// Connected senders with their numbers, in ascending order.
    pub peers: Vec<(u32, PeerStats)>,
}

impl Snapshot {
    /// Creates an empty snapshot with room for as many rows as the limits of sessions and senders allow, so
    /// that the reactor allocates nothing. Unused room is never touched, and so takes no memory.
    pub fn with_room(sessions_max: u32, peers_max: u32) -> Box<Self> {
        let (sessions, peers) = (sessions_max as usize, peers_max as usize);
        Box::new(Self {
            sessions: Vec::with_capacity(sessions),
            quarantined: Vec::with_capacity(sessions),
            peers: Vec::with_capacity(peers),
            ..Self::default()
        })
    }
}

/// A snapshot that the reactor is filling.
pub(super) struct Filling {
    snapshot: Box<Snapshot>,
    reply: oneshot::Sender<Box<Snapshot>>,
    /// Number of the next session to copy; `peer` is the number of the next sender.
    session: u32,
    peer: u32,
}

impl Filling {
    pub fn new(mut snapshot: Box<Snapshot>, reply: oneshot::Sender<Box<Snapshot>>) -> Self {
        snapshot.sessions.clear();
        snapshot.quarantined.clear();
        snapshot.peers.clear();
        Self { snapshot, reply, session: 0, peer: 0 }
    }

    /// Copies as many rows to the snapshot as one turn of the reactor may. Returns `Some` while rows are
    /// left. After the last row, copies the totals and sends the snapshot to the control plane.
    pub fn continue_filling<N: Nic>(
        mut self,
        now_ns: u64,
        longest_turn_ns: u64,
        driver: &Driver<N>,
        escape_error: Option<&std::sync::Arc<str>>,
    ) -> Option<Self> {
        let receiver = driver.receiver();
        if !self.copy_rows(now_ns, receiver) {
            return Some(self);
        }
        let Self { mut snapshot, reply, .. } = self;
        (snapshot.uptime_ns, snapshot.longest_turn_ns) = (now_ns, longest_turn_ns);
        snapshot.draining = receiver.is_draining();
        snapshot.stats = receiver.stats();
        snapshot.counters = driver.counters();
        snapshot.escape_error = escape_error.cloned();
        // The control plane may have stopped waiting.
        let _ = reply.send(snapshot);
        None
    }

    /// Copies as many rows to the snapshot as one turn of the reactor may. Returns whether all rows are
    /// copied.
    fn copy_rows(&mut self, now_ns: u64, receiver: &Receiver) -> bool {
        let Self { snapshot, session, peer, .. } = self;
        let config = receiver.config();
        let last = config.sessions_max.min(*session + NUMBERS);
        let enough = snapshot.sessions.len() + snapshot.quarantined.len() + SESSIONS;
        while *session < last && snapshot.sessions.len() + snapshot.quarantined.len() < enough {
            let id = SessionId(*session);
            snapshot.sessions.extend(receiver.session_stats(id).map(|stats| (id.0, stats)));
            snapshot.quarantined.extend(receiver.quarantine_stats(id).map(|stats| (id.0, stats)));
            *session += 1;
        }
        if *session < config.sessions_max {
            return false;
        }
        let last = config.peers_max.min(*peer + NUMBERS);
        let enough = snapshot.peers.len() + PEERS;
        while *peer < last && snapshot.peers.len() < enough {
            let id = PeerId(*peer);
            snapshot.peers.extend(receiver.peer_stats(now_ns, id).map(|stats| (id.0, stats)));
            *peer += 1;
        }
        *peer == config.peers_max
    }
}

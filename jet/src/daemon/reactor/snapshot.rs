//! What the reactor counts, copied for those who ask, without standing still for it: a few rows a turn.
//!
//! There are two snapshots. While the reactor fills one, the control plane reads the other. They change hands
//! through the command's queue and its answer, so nothing is shared and nobody waits with a lock.

use super::Driver;
use jet_core::{PeerId, PeerStats, QuarantineStats, Receiver, SessionId, SessionStats, Stats};
use jet_fabric::nic::{Counters, Nic};
use tokio::sync::oneshot;

/// Numbers of sessions and of senders that are looked at in a turn: most are nobody's.
const NUMBERS: u32 = 512;
/// Sessions that are copied in a turn: each takes about half a microsecond, most of it for its quantiles.
const SESSIONS: usize = 8;
/// Senders that are copied in a turn: each takes some nanoseconds.
const PEERS: usize = 64;

/// How things stand.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Since the reactor's start.
    pub uptime_ns: u64,
    /// Whether nothing new is taken.
    pub draining: bool,
    /// What the receiver counts.
    pub stats: Stats,
    /// What the NIC counts.
    pub counters: Counters,
    /// Why there is no escape memory, or less than was asked for.
    pub escape_error: Option<std::sync::Arc<str>>,
    /// Applications by their numbers.
    pub sessions: Vec<(u32, SessionStats)>,
    /// Sessions that are over, by their numbers, which are among those of applications.
    pub quarantined: Vec<(u32, QuarantineStats)>,
    /// Senders by their numbers.
    pub peers: Vec<(u32, PeerStats)>,
}

impl Snapshot {
    /// One with room for as many as there may be, so that the reactor allocates nothing. Memory that nobody
    /// uses is not touched.
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

/// A snapshot that is being filled.
pub(super) struct Filling {
    snapshot: Box<Snapshot>,
    reply: oneshot::Sender<Box<Snapshot>>,
    /// The next numbers to look at.
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

    /// Copies a turn's worth of rows. Gives itself back while there is more to do; else what is told of the
    /// whole is copied, too, and whoever asked has it.
    pub fn go_on<N: Nic>(
        mut self,
        now_ns: u64,
        driver: &Driver<N>,
        escape_error: Option<&std::sync::Arc<str>>,
    ) -> Option<Self> {
        let receiver = driver.receiver();
        if !self.copy_rows(receiver) {
            return Some(self);
        }
        let Self { mut snapshot, reply, .. } = self;
        snapshot.uptime_ns = now_ns;
        snapshot.draining = receiver.is_draining();
        snapshot.stats = receiver.stats();
        snapshot.counters = driver.counters();
        snapshot.escape_error = escape_error.cloned();
        // Whoever asked may be gone.
        let _ = reply.send(snapshot);
        None
    }

    /// Whether all rows are copied.
    fn copy_rows(&mut self, receiver: &Receiver) -> bool {
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
            snapshot.peers.extend(receiver.peer_stats(id).map(|stats| (id.0, stats)));
            *peer += 1;
        }
        *peer == config.peers_max
    }
}

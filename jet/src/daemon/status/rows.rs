//! Applications and senders one by one. There may be thousands of each, so they are told in pages: each fits a frame of the
//! control socket, and takes the reactor little time.

use jet_client::registration::RowsFrom;
use jet_core::{PeerId, PeerStats, QuarantineStats, Receiver, SessionId, SessionStats};
use serde::Serialize;

/// Applications in a page.
const SESSIONS: usize = 256;
/// Senders in a page.
const PEERS: usize = 1024;

/// A page.
#[derive(Clone, Debug, Serialize)]
pub struct Rows {
    /// Applications.
    pub sessions: Vec<SessionStatus>,
    /// Sessions that are over, and what they held.
    pub quarantined: Vec<QuarantineStatus>,
    /// Senders.
    pub peers: Vec<PeerStatus>,
    /// What comes in further pages.
    pub rest: RowsFrom,
}

impl Rows {
    /// The page that begins there.
    pub fn new(receiver: &Receiver, from: RowsFrom) -> Self {
        let config = receiver.config();
        // Both have a session's number: one page of numbers is about both.
        let (numbers, session) = page(from.session, config.sessions_max, SESSIONS, |n| {
            let id = SessionId(n);
            (receiver.session_stats(id).is_some() || receiver.quarantine_stats(id).is_some()).then_some(n)
        });
        let open = |&n: &u32| Some(SessionStatus::new(n, &receiver.session_stats(SessionId(n))?));
        let over = |&n: &u32| Some(QuarantineStatus::new(n, &receiver.quarantine_stats(SessionId(n))?));
        let sessions = numbers.iter().filter_map(open).collect();
        let quarantined = numbers.iter().filter_map(over).collect();
        let (peers, peer) = page(from.peer, config.peers_max, PEERS, |n| {
            Some(PeerStatus::new(n, &receiver.peer_stats(PeerId(n))?))
        });
        Self { sessions, quarantined, peers, rest: RowsFrom { session, peer } }
    }
}

/// At most so many rows, and the number of the one that comes after them.
fn page<T>(
    from: Option<u32>,
    end: u32,
    most: usize,
    row: impl Fn(u32) -> Option<T>,
) -> (Vec<T>, Option<u32>) {
    let mut rows = Vec::new();
    for n in from.unwrap_or(end)..end {
        let Some(row) = row(n) else { continue };
        if rows.len() == most {
            return (rows, Some(n));
        }
        rows.push(row);
    }
    (rows, None)
}

/// One application.
#[derive(Clone, Debug, Serialize)]
pub struct SessionStatus {
    /// Its number.
    pub session: u32,
    /// Its name.
    pub app: String,
    /// Its class.
    pub class: u8,
    /// Slabs that it holds, in the pool and in memory.
    pub held_slabs: u32,
    /// Of them: in the pool's budget for longer than the straggler threshold.
    pub straggler_slabs: u32,
    /// Of them: replaced in the pool.
    pub replaced_slabs: u32,
    /// Of them: copied to memory.
    pub copied_slabs: u32,
    /// Of them: in memory, copied or taken instead of waiting.
    pub memory_slabs: u32,
    /// Slabs replaced so far.
    pub replaced_total: u64,
    /// Slabs copied so far.
    pub copied_total: u64,
    /// Slabs taken from memory instead of waiting so far.
    pub memory_total: u64,
    /// Most of what it holds are stragglers.
    pub slow: bool,
    /// It is granted nothing new for now.
    pub suspended: bool,
    /// It may take memory instead of waiting.
    pub memory_instead_of_waiting: bool,
    /// Messages delivered to it.
    pub delivered_messages: u64,
    /// Bytes delivered to it.
    pub delivered_bytes: u64,
    /// Measured throughput.
    pub bytes_per_s: u64,
    /// From delivery to release.
    pub post_nic_ns: PostNicStatus,
    /// Messages that wait for its slots.
    pub backlog: u32,
    /// It holds all that it may while more waits for it.
    pub standstill: Option<StandstillStatus>,
}

/// A session that is over, and whose slabs are not back.
#[derive(Clone, Debug, Serialize)]
pub struct QuarantineStatus {
    /// Its number.
    pub session: u32,
    /// Its application's name.
    pub app: String,
    /// The application's process, where that can be told.
    pub pid: Option<u32>,
    /// Slabs that it held when it ended.
    pub held_slabs: u32,
    /// The same in bytes.
    pub held_bytes: u64,
    /// Its process may still read them: they come back when it closes its connection or ends. Otherwise time alone ends it.
    pub holder_lives: bool,
}

impl QuarantineStatus {
    /// From what the receiver counts.
    pub fn new(session: u32, stats: &QuarantineStats) -> Self {
        Self {
            session,
            app: stats.app.to_string(),
            pid: stats.process.map(|process| process.0),
            held_slabs: stats.held_slabs,
            held_bytes: u64::from(stats.held_slabs) * jet_wire::SLAB_BYTES as u64,
            holder_lives: stats.holder_lives,
        }
    }
}

/// An application that holds all that it may.
#[derive(Clone, Debug, Serialize)]
pub struct StandstillStatus {
    /// Key of the configuration whose limit it has reached.
    pub limit: &'static str,
    /// In words.
    pub why: String,
    /// For how long nothing came and nothing was given back.
    pub ms: u64,
}

/// Post-NIC time.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names say it
pub struct PostNicStatus {
    pub mean: u64,
    pub p50: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

/// One sender.
#[derive(Clone, Debug, Serialize)]
pub struct PeerStatus {
    /// Its number.
    pub peer: u32,
    /// Its identity.
    pub sender: String,
    /// The application that it sends to.
    pub app: String,
    /// SENDs that arrived.
    pub arrived: u64,
    /// Credit that it has.
    pub credit: u64,
    /// Messages without an end.
    pub unfinished: u32,
    /// READs that its connection takes at once, as the two NICs agreed; 0 until it stands.
    pub reads_max: u32,
}

impl PeerStatus {
    /// From what the receiver counts.
    pub fn new(peer: u32, stats: &PeerStats) -> Self {
        Self {
            peer,
            sender: format!("{:016x}", stats.sender),
            app: stats.app.to_string(),
            arrived: stats.arrived,
            credit: stats.credit,
            unfinished: stats.unfinished,
            reads_max: stats.reads_max,
        }
    }
}

impl SessionStatus {
    /// From what the receiver counts.
    pub fn new(session: u32, stats: &SessionStats) -> Self {
        let [p50, p99, p999, max] = stats.post_nic_quantiles_ns;
        Self {
            session,
            app: stats.app.to_string(),
            class: stats.class,
            held_slabs: stats.held_slabs,
            straggler_slabs: stats.straggler_slabs,
            replaced_slabs: stats.replaced_slabs,
            copied_slabs: stats.copied_slabs,
            memory_slabs: stats.memory_slabs,
            replaced_total: stats.replaced_total,
            copied_total: stats.copied_total,
            memory_total: stats.granted_total,
            slow: stats.slow,
            suspended: stats.barred,
            memory_instead_of_waiting: stats.takes_memory,
            delivered_messages: stats.delivered_messages,
            delivered_bytes: stats.delivered_bytes,
            bytes_per_s: stats.bytes_per_ms.saturating_mul(1000),
            post_nic_ns: PostNicStatus { mean: stats.post_nic_ns, p50, p99, p999, max },
            backlog: stats.backlog,
            standstill: stats.standstill.map(|standstill| StandstillStatus {
                limit: standstill.limit.key(),
                why: standstill.limit.to_string(),
                ms: standstill.span_ns / 1_000_000,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_client::registration::{ControlResponse, encode_frame};
    use jet_core::{ProcessId, StandstillStats};
    use jet_wire::message::hello::AppName;
    use jet_wire::segment::HeldLimit;
    use serde_json::json;

    #[test]
    fn pages_end_where_the_next_begins() {
        let even = |n: u32| n.is_multiple_of(2).then_some(n);
        assert_eq!(page(Some(0), 10, 3, even), (vec![0, 2, 4], Some(6)));
        assert_eq!(page(Some(6), 10, 3, even), (vec![6, 8], None));
        assert_eq!(page(Some(5), 10, 2, even), (vec![6, 8], None));
        assert_eq!(page(None, 10, 3, even), (vec![], None));
        assert_eq!(page(Some(99), 10, 3, even), (vec![], None));
    }

    #[test]
    fn the_longest_page_leaves_half_a_frame_for_everything_else() {
        let app = AppName::new(&"x".repeat(32)).unwrap();
        let session = SessionStats {
            app,
            class: u8::MAX,
            held_slabs: u32::MAX,
            delivered_messages: u64::MAX,
            delivered_bytes: u64::MAX,
            bytes_per_ms: u64::MAX,
            post_nic_ns: u64::MAX,
            post_nic_quantiles_ns: [u64::MAX; 4],
            backlog: u32::MAX,
            straggler_slabs: u32::MAX,
            replaced_slabs: u32::MAX,
            copied_slabs: u32::MAX,
            memory_slabs: u32::MAX,
            replaced_total: u64::MAX,
            copied_total: u64::MAX,
            granted_total: u64::MAX,
            slow: false,
            barred: false,
            takes_memory: false,
            standstill: Some(StandstillStats { limit: HeldLimit::Slots, span_ns: u64::MAX }),
        };
        let peer = PeerStats {
            sender: u64::MAX,
            app,
            arrived: u64::MAX,
            credit: u64::MAX,
            unfinished: u32::MAX,
            reads_max: u32::MAX,
        };
        let quarantine = QuarantineStats {
            app,
            process: Some(ProcessId(u32::MAX)),
            held_slabs: u32::MAX,
            holder_lives: false,
        };
        let row = |row: serde_json::Value| row.to_string().len();
        let session_row = json!(SessionStatus::new(u32::MAX, &session));
        assert!(
            row(json!(QuarantineStatus::new(u32::MAX, &quarantine))) < row(session_row),
            "it takes its place"
        );
        let answer = ControlResponse::StatusRows {
            quarantined: Vec::new(),
            sessions: vec![json!(SessionStatus::new(u32::MAX, &session)); SESSIONS],
            peers: vec![json!(PeerStatus::new(u32::MAX, &peer)); PEERS],
            rest: RowsFrom { session: Some(u32::MAX), peer: Some(u32::MAX) },
        };
        let bytes = encode_frame(&answer).unwrap().len();
        assert!(bytes < jet_client::registration::FRAME_BYTES_MAX / 2, "{bytes}");
    }

    #[test]
    fn a_sender_is_told_under_the_names_that_readers_look_for() {
        let stats = PeerStats {
            sender: 0xabc,
            app: AppName::new("store").unwrap(),
            arrived: 1,
            credit: 2,
            unfinished: 3,
            reads_max: 4,
        };
        let told = json!({
            "peer": 0, "sender": "0000000000000abc", "app": "store", "arrived": 1, "credit": 2, "unfinished": 3,
            "reads_max": 4,
        });
        assert_eq!(serde_json::to_value(PeerStatus::new(0, &stats)).unwrap(), told);
    }

    #[test]
    fn what_is_in_quarantine_is_told_under_the_names_that_readers_look_for() {
        let stats = QuarantineStats {
            app: AppName::new("store").unwrap(),
            process: Some(ProcessId(7)),
            held_slabs: 2,
            holder_lives: true,
        };
        let told = json!({
            "session": 0, "app": "store", "pid": 7, "held_slabs": 2, "held_bytes": 8192, "holder_lives": true,
        });
        assert_eq!(serde_json::to_value(QuarantineStatus::new(0, &stats)).unwrap(), told);
    }

    #[test]
    fn a_session_is_told_under_the_names_that_readers_look_for() {
        let stats = SessionStats {
            app: AppName::new("store").unwrap(),
            class: 1,
            held_slabs: 2,
            delivered_messages: 3,
            delivered_bytes: 4,
            bytes_per_ms: 5,
            post_nic_ns: 6,
            post_nic_quantiles_ns: [7, 8, 9, 10],
            backlog: 11,
            straggler_slabs: 12,
            replaced_slabs: 13,
            copied_slabs: 14,
            memory_slabs: 15,
            replaced_total: 16,
            copied_total: 17,
            granted_total: 18,
            slow: true,
            barred: false,
            takes_memory: true,
            standstill: Some(StandstillStats { limit: HeldLimit::Slots, span_ns: 19_000_000 }),
        };
        let told = json!({
            "session": 0, "app": "store", "class": 1, "held_slabs": 2, "straggler_slabs": 12, "replaced_slabs": 13,
            "copied_slabs": 14, "memory_slabs": 15, "replaced_total": 16, "copied_total": 17, "memory_total": 18,
            "slow": true, "suspended": false, "memory_instead_of_waiting": true, "delivered_messages": 3,
            "delivered_bytes": 4, "bytes_per_s": 5000, "backlog": 11,
            "standstill": {"limit": "session.slots", "why": HeldLimit::Slots.to_string(), "ms": 19},
            "post_nic_ns": {"mean": 6, "p50": 7, "p99": 8, "p999": 9, "max": 10},
        });
        assert_eq!(serde_json::to_value(SessionStatus::new(0, &stats)).unwrap(), told);
    }
}

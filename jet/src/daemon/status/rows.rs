//! Rows of the status: one for each application, session in quarantine, and sender. There may be thousands of
//! each, so they are sent in pages that fit a frame of the control socket.

use crate::daemon::peer_process::number_in;
use crate::daemon::reactor::Snapshot;
use jet_control::status::{
    PeerStatus, PostNicStatus, QuarantineStatus, Rows, RowsFrom, SessionStatus, ShareStatus, StandstillStatus,
};
use jet_core::{PeerStats, QuarantineStats, SessionStats};

/// Limits of a page of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    /// Limit of the page's rows of applications, and also of its rows of sessions in quarantine.
    pub sessions_max: usize,
    /// Limit of the page's rows of senders.
    pub peers_max: usize,
}

/// Limits of the first page of rows, which is part of the status itself and is meant for people to read.
pub(super) const FIRST: Page = Page { sessions_max: 32, peers_max: 20 };
/// Limits of each page of rows after the first.
pub(super) const FURTHER: Page = Page { sessions_max: 256, peers_max: 640 };

impl Page {
    /// Returns the page of rows that begins at `from`, and the numbers at which the next page begins.
    pub fn of(self, snapshot: &Snapshot, from: RowsFrom) -> Rows {
        let (sessions, next_session) = part(&snapshot.sessions, from.session, self.sessions_max);
        let (quarantined, next_quarantined) = part(&snapshot.quarantined, from.session, self.sessions_max);
        // Applications and sessions in quarantine share their numbers, so one number says where both
        // continue.
        let session = [next_session, next_quarantined].into_iter().flatten().min();
        let is_before = |number: u32| session.is_none_or(|session| number < session);
        let (peers, peer) = part(&snapshot.peers, from.peer, self.peers_max);
        Rows {
            sessions: sessions
                .iter()
                .filter(|row| is_before(row.0))
                .map(|(n, stats)| session_row(*n, stats))
                .collect(),
            quarantined: quarantined
                .iter()
                .filter(|row| is_before(row.0))
                .map(|(n, stats)| quarantine_row(*n, stats))
                .collect(),
            peers: peers.iter().map(|(n, stats)| peer_row(*n, stats)).collect(),
            rest: Some(RowsFrom { session, peer }),
        }
    }
}

/// Returns at most `most` of the rows whose numbers are `from` or higher, and the number of the first row
/// that was left out.
fn part<T>(rows: &[(u32, T)], from: Option<u32>, most: usize) -> (&[(u32, T)], Option<u32>) {
    let Some(from) = from else { return (&[], None) };
    let rest = &rows[rows.partition_point(|row| row.0 < from)..];
    (&rest[..rest.len().min(most)], rest.get(most).map(|row| row.0))
}

/// Builds the row of a session in quarantine from the receiver's counts.
fn quarantine_row(session: u32, stats: &QuarantineStats) -> QuarantineStatus {
    QuarantineStatus {
        session,
        app: stats.app.to_string(),
        pid: stats.process.and_then(number_in),
        held_slabs: stats.held_slabs,
        held_bytes: u64::from(stats.held_slabs) * jet_wire::SLAB_BYTES as u64,
        holder_lives: stats.holder_lives,
    }
}

/// Builds the row of a sender from the receiver's counts.
fn peer_row(peer: u32, stats: &PeerStats) -> PeerStatus {
    PeerStatus {
        peer,
        sender: format!("{:016x}", stats.sender),
        app: stats.app.to_string(),
        session: stats.session.map(|session| session.0),
        arrived: stats.arrived,
        credit: stats.credit,
        unfinished: stats.unfinished,
        reads_max: stats.share.reads_max,
        share: Some(ShareStatus {
            reads: stats.share.reads,
            in_flight_bytes: stats.share.in_flight_bytes,
            window_bytes: stats.share.window_bytes,
            bytes_per_s: stats.share.bytes_per_ms.saturating_mul(1000),
            usual_us: stats.share.usual_ns / 1000,
            silent_ms: stats.share.silent_ns / 1_000_000,
            oldest_ms: stats.oldest_read_ns / 1_000_000,
            slow: stats.share.slow,
        }),
    }
}

/// Builds the row of an application from the receiver's counts.
fn session_row(session: u32, stats: &SessionStats) -> SessionStatus {
    let [p50, p99, p999, max] = stats.post_nic_quantiles_ns;
    SessionStatus {
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
        memory_total: stats.spilled_total,
        slow: stats.slow,
        suspended: stats.suspended,
        memory_instead_of_waiting: stats.takes_memory,
        shares_name: stats.shares_name,
        senders: Some(stats.senders),
        delivered_messages: stats.delivered_messages,
        delivered_bytes: stats.delivered_bytes,
        bytes_per_s: stats.bytes_per_ms.saturating_mul(1000),
        post_nic_ns: PostNicStatus { mean: stats.post_nic_ns, p50, p99, p999, max },
        backlog: stats.backlog,
        standstill: stats.standstill.map(|standstill| StandstillStatus {
            limit: standstill.limit.key().to_owned(),
            why: standstill.limit.to_string(),
            ms: standstill.span_ns / 1_000_000,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_control::ControlResponse;
    use jet_control::frame::{FRAME_BYTES_MAX, encode_frame};
    use jet_core::{ProcessId, SessionId, ShareStats, StandstillStats};
    use jet_wire::message::hello::AppName;
    use jet_wire::segment::HeldLimit;
    use serde_json::json;

    fn session_stats() -> SessionStats {
        SessionStats {
            app: AppName::new("store").unwrap(),
            class: 1,
            held_slabs: 2,
            requests: 0,
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
            spilled_total: 18,
            slow: true,
            suspended: false,
            takes_memory: true,
            shares_name: true,
            senders: 19,
            standstill: Some(StandstillStats { limit: HeldLimit::Slots, span_ns: 19_000_000 }),
        }
    }

    fn peers(numbers: &[u32]) -> Vec<(u32, PeerStats)> {
        let stats = PeerStats {
            session: Some(SessionId(20)),
            sender: 1,
            app: AppName::new("store").unwrap(),
            arrived: 0,
            credit: 0,
            unfinished: 0,
            requests: 0,
            share: ShareStats::default(),
            oldest_read_ns: 0,
        };
        numbers.iter().map(|&number| (number, stats)).collect()
    }

    fn over(numbers: &[u32]) -> Vec<(u32, QuarantineStats)> {
        let stats = QuarantineStats {
            app: AppName::new("store").unwrap(),
            process: None,
            faulted: false,
            held_slabs: 1,
            holder_lives: false,
        };
        numbers.iter().map(|&number| (number, stats)).collect()
    }

    #[test]
    fn parts_end_where_the_next_begins() {
        let rows = peers(&[0, 2, 4, 6, 8]);
        let numbers = |from, most| {
            let (rows, next) = part(&rows, from, most);
            (rows.iter().map(|row| row.0).collect::<Vec<_>>(), next)
        };
        assert_eq!(numbers(Some(0), 3), (vec![0, 2, 4], Some(6)));
        assert_eq!(numbers(Some(6), 3), (vec![6, 8], None));
        assert_eq!(numbers(Some(5), 2), (vec![6, 8], None));
        assert_eq!(numbers(None, 3), (vec![], None));
        assert_eq!(numbers(Some(99), 3), (vec![], None));
    }

    #[test]
    fn every_row_is_in_one_page() {
        let sessions: Vec<_> = [1, 3, 4, 7, 9].map(|number| (number, session_stats())).into();
        let snapshot = Snapshot {
            sessions,
            quarantined: over(&[0, 2, 5, 6, 8, 11, 12]),
            peers: peers(&[3, 4, 5]),
            ..Snapshot::default()
        };
        for sessions_max in 1..8 {
            let page = Page { sessions_max, peers_max: 2 };
            let (mut found, mut peers) = (Vec::new(), Vec::new());
            let mut from = RowsFrom::START;
            while !from.is_nothing() {
                let rows = page.of(&snapshot, from);
                assert!(rows.sessions.len().max(rows.quarantined.len()) <= sessions_max);
                found.extend(rows.sessions.iter().map(|row| row.session));
                found.extend(rows.quarantined.iter().map(|row| row.session));
                peers.extend(rows.peers.iter().map(|row| row.peer));
                from = rows.rest.expect("a page says it");
            }
            found.sort_unstable();
            assert_eq!(found, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12], "{sessions_max}");
            assert_eq!(peers, [3, 4, 5]);
        }
    }

    #[test]
    fn the_longest_page_leaves_half_a_frame_for_everything_else() {
        let app = AppName::new(&"x".repeat(32)).unwrap();
        let session = SessionStats {
            app,
            class: u8::MAX,
            held_slabs: u32::MAX,
            requests: 0,
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
            spilled_total: u64::MAX,
            slow: false,
            suspended: false,
            takes_memory: false,
            shares_name: false,
            senders: u32::MAX,
            standstill: Some(StandstillStats { limit: HeldLimit::Slots, span_ns: u64::MAX }),
        };
        let peer = PeerStats {
            session: Some(SessionId(u32::MAX)),
            sender: u64::MAX,
            app,
            arrived: u64::MAX,
            credit: u64::MAX,
            unfinished: u32::MAX,
            requests: 0,
            share: ShareStats {
                reads: u32::MAX,
                reads_max: u32::MAX,
                in_flight_bytes: u64::MAX,
                window_bytes: u64::MAX,
                bytes_per_ms: u64::MAX,
                usual_ns: u64::MAX,
                silent_ns: u64::MAX,
                slow: false,
            },
            oldest_read_ns: u64::MAX,
        };
        let quarantine = QuarantineStats {
            app,
            process: Some(ProcessId(u32::MAX)),
            faulted: false,
            held_slabs: u32::MAX,
            holder_lives: false,
        };
        let row = |row: serde_json::Value| row.to_string().len();
        let one = json!(session_row(u32::MAX, &session));
        assert!(row(json!(quarantine_row(u32::MAX, &quarantine))) < row(one), "it takes its place");
        let answer = ControlResponse::StatusRows(Rows {
            quarantined: Vec::new(),
            sessions: vec![session_row(u32::MAX, &session); FURTHER.sessions_max],
            peers: vec![peer_row(u32::MAX, &peer); FURTHER.peers_max],
            rest: Some(RowsFrom { session: Some(u32::MAX), peer: Some(u32::MAX) }),
        });
        let bytes = encode_frame(&answer).unwrap().len();
        assert!(bytes < FRAME_BYTES_MAX / 2, "{bytes}");
    }

    #[test]
    fn a_sender_is_told_under_the_names_that_readers_look_for() {
        let stats = PeerStats {
            session: Some(SessionId(4)),
            sender: 0xabc,
            app: AppName::new("store").unwrap(),
            arrived: 1,
            credit: 2,
            unfinished: 3,
            requests: 0,
            share: ShareStats {
                reads: 5,
                reads_max: 4,
                in_flight_bytes: 6,
                window_bytes: 7,
                bytes_per_ms: 8,
                usual_ns: 9000,
                silent_ns: 10_000_000,
                slow: true,
            },
            oldest_read_ns: 11_000_000,
        };
        let told = json!({
            "peer": 0, "sender": "0000000000000abc", "app": "store", "session": 4, "arrived": 1, "credit": 2,
            "unfinished": 3, "reads_max": 4,
            "share": {
                "reads": 5, "in_flight_bytes": 6, "window_bytes": 7, "bytes_per_s": 8000, "usual_us": 9,
                "silent_ms": 10, "oldest_ms": 11, "slow": true,
            },
        });
        assert_eq!(serde_json::to_value(peer_row(0, &stats)).unwrap(), told);
    }

    #[test]
    fn what_is_in_quarantine_is_told_under_the_names_that_readers_look_for() {
        let stats = QuarantineStats {
            app: AppName::new("store").unwrap(),
            process: Some(ProcessId(7)),
            faulted: true,
            held_slabs: 2,
            holder_lives: true,
        };
        let told = json!({
            "session": 0, "app": "store", "pid": 7, "held_slabs": 2, "held_bytes": 8192, "holder_lives": true,
        });
        assert_eq!(serde_json::to_value(quarantine_row(0, &stats)).unwrap(), told);
    }

    #[test]
    fn a_session_is_told_under_the_names_that_readers_look_for() {
        let stats = session_stats();
        let told = json!({
            "session": 0, "app": "store", "class": 1, "held_slabs": 2, "straggler_slabs": 12,
            "replaced_slabs": 13, "copied_slabs": 14, "memory_slabs": 15, "replaced_total": 16,
            "copied_total": 17, "memory_total": 18,
            "slow": true, "suspended": false, "memory_instead_of_waiting": true, "shares_name": true,
            "senders": 19, "delivered_messages": 3,
            "delivered_bytes": 4, "bytes_per_s": 5000, "backlog": 11,
            "standstill": {"limit": "session.slots", "why": HeldLimit::Slots.to_string(), "ms": 19},
            "post_nic_ns": {"mean": 6, "p50": 7, "p99": 8, "p999": 9, "max": 10},
        });
        assert_eq!(serde_json::to_value(session_row(0, &stats)).unwrap(), told);
    }
}

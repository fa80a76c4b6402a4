//! The answers to `jet status`: made from the reactor's snapshots, and shared by all clients that ask at the
//! same time.

mod rows;
mod status_cache;

pub use status_cache::{Sources, StatusCache};

use super::reactor::Snapshot;
use jet_control::protocol::{Incarnation, PROTOCOL_VERSION};
use jet_control::status::{
    Checksums, CopiedStatus, EscapeMemoryStatus, EscapeStatus, EscapedStatus, FaultStatus, MessageStatus,
    NicStatus, Pages, PoolStatus, Pressure, ReadStatus, ReadsWaitFor, Rows, Status,
};
use jet_core::{EscapeStats, Stats};
use jet_fabric::nic::Counters;

/// Facts about this daemon that never change.
#[derive(Clone, Debug)]
pub struct About {
    /// Random number that tells this run of the daemon from other runs.
    pub incarnation: u64,
    /// Addresses on which the NIC listens.
    pub listen: Vec<String>,
    /// Size of the pool's pages.
    pub pages: Pages,
    /// The pool's NUMA node; none where the kernel chose.
    pub numa_node: Option<u32>,
    /// Whether the software NIC has a thread of its own.
    pub nic_thread: bool,
    /// Threads that make checksums.
    pub checksums: jet_core::Checksums,
    /// Limit of registered applications.
    pub sessions_max: u32,
    /// Limit of connected senders.
    pub peers_max: u32,
}

/// Builds the status from a snapshot, with the given page of rows. The fields `congestion`, `cache` and
/// `rdma` stay empty.
fn status(about: &About, snapshot: &Snapshot, rows: Rows) -> Status {
    let stats = &snapshot.stats;
    // Count the rows, not the receiver's numbers: applications and senders may have come or gone during
    // copying.
    let count = |rows: usize| u32::try_from(rows).unwrap_or(u32::MAX);
    Status {
        protocol: PROTOCOL_VERSION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        incarnation: Incarnation(about.incarnation),
        uptime_ms: snapshot.uptime_ns / 1_000_000,
        draining: snapshot.draining,
        listen: about.listen.clone(),
        pressure: pressure(stats.pressure),
        nic_thread: about.nic_thread,
        longest_turn_ns: Some(snapshot.longest_turn_ns),
        pool: pool(stats, about.pages, about.numa_node),
        reads: reads(stats, about.checksums),
        messages: messages(stats),
        ends: stats.ends,
        escape: escape(&stats.escape, snapshot.escape_error.as_deref()),
        congestion: Vec::new(),
        cache: None,
        rdma: None,
        faults: faults(stats),
        nic: nic(snapshot.counters),
        session_count: count(snapshot.sessions.len()),
        quarantined_count: count(snapshot.quarantined.len()),
        peer_count: count(snapshot.peers.len()),
        rows,
    }
}

/// Builds the status of the pool.
fn pool(stats: &Stats, pages: Pages, numa_node: Option<u32>) -> PoolStatus {
    PoolStatus {
        slabs: stats.pool_slabs,
        slab_bytes: jet_wire::SLAB_BYTES_U32,
        free: stats.free_slabs,
        posted: stats.posted_slabs,
        small_held: stats.small_held_slabs,
        read: stats.read_slabs,
        quarantined: stats.quarantined_slabs,
        retired: stats.retired_slabs,
        srq_limit: stats.srq_limit_slabs,
        high_water: stats.high_water_slabs,
        pages,
        numa_node,
        // The sum may exceed `pool_slabs`: a stand-in may still be posted after its straggler has come back.
        whole: stats.free_slabs + stats.posted_slabs + stats.retired_slabs >= stats.pool_slabs,
        line_moves: stats.line_moves,
    }
}

/// Builds the status of READs and checksums.
fn reads(stats: &Stats, checksums: jet_core::Checksums) -> ReadStatus {
    ReadStatus {
        checksums: match checksums {
            jet_core::Checksums::Inline => Checksums::Inline,
            jet_core::Checksums::Workers => Checksums::Workers,
            jet_core::Checksums::Off => Checksums::Off,
        },
        in_flight: stats.reads_in_flight,
        high_water: stats.reads_high_water,
        in_flight_bytes: stats.in_flight_bytes,
        checks_in_flight: stats.checks_in_flight,
        checked_bytes: stats.checked_bytes,
        footprint_window_bytes: stats.footprint_window_bytes,
        waiting: stats.waiting,
        running: stats.running,
        wait_for: match stats.reads_wait_for {
            jet_core::ReadsWaitFor::Nothing => ReadsWaitFor::Nothing,
            jet_core::ReadsWaitFor::Room => ReadsWaitFor::Room,
            jet_core::ReadsWaitFor::Window => ReadsWaitFor::Window,
            jet_core::ReadsWaitFor::Senders => ReadsWaitFor::Senders,
        },
    }
}

/// Builds the status of messages.
fn messages(stats: &Stats) -> MessageStatus {
    MessageStatus {
        known: stats.messages,
        small: stats.small_messages,
        large: stats.large_messages,
        delivered_bytes: stats.delivered_bytes,
        redelivered: stats.redelivered,
        replies: stats.replies,
        reply_bytes: u64::from(stats.reply_slots_used) * jet_wire::SLAB_BYTES as u64,
    }
}

/// Converts the pressure of the pool for the status.
fn pressure(pressure: jet_escape::Pressure) -> Pressure {
    match pressure {
        jet_escape::Pressure::Ok => Pressure::Ok,
        jet_escape::Pressure::Unsafe => Pressure::Unsafe,
        jet_escape::Pressure::Danger => Pressure::Danger,
    }
}

/// Builds the status of escape. `error` is the reason why escape memory is missing or short.
fn escape(stats: &EscapeStats, error: Option<&str>) -> EscapeStatus {
    EscapeStatus {
        enabled: stats.enabled,
        memory: EscapeMemoryStatus {
            slabs: stats.memory_slabs,
            ready: stats.memory_ready,
            used: stats.memory_used,
            used_max: stats.memory_used_max,
            used_slab_ms: stats.memory_used_slab_ms,
            retired: stats.memory_retired,
            error: error.map(str::to_owned),
        },
        replaced: EscapedStatus { now: stats.replaced_now, total: stats.replaced_total },
        copied: CopiedStatus {
            now: stats.copied_now,
            total: stats.copied_total,
            bytes: stats.copied_total * jet_wire::SLAB_BYTES as u64,
            pinned: stats.copies_pinned,
            failed: stats.copies_failed,
            in_flight: stats.copies_in_flight,
        },
        spills: EscapedStatus { now: stats.spilled_now, total: stats.spilled_total },
        evaluations: stats.evaluations,
        danger: stats.dangers,
        marks: stats.marks,
        signals: stats.signals,
        suspended: stats.suspended_sessions,
        straggler_us: stats.straggler_ns / 1000,
        stalled_ms: stats.stalled_ns / 1_000_000,
    }
}

/// Builds the counts of faults of senders and applications.
fn faults(stats: &Stats) -> FaultStatus {
    FaultStatus {
        peers: stats.peer_faults,
        unresponsive_peers: stats.unresponsive_peers,
        stalled_peers: stats.stalled_peers,
        sessions: stats.session_faults,
    }
}

/// Builds the NIC's counters for the status.
fn nic(counters: Counters) -> NicStatus {
    // Naming each counter makes the compiler report a new one that is not shown.
    let Counters {
        receives,
        sends,
        reads,
        bytes_in,
        rnr,
        flushed,
        protocol_errors,
        networks_refused,
        srq_limit_reached,
        drains_given_up,
        last_wqe_missed,
    } = counters;
    NicStatus {
        receives,
        sends,
        reads,
        bytes_in,
        rnr,
        flushed,
        protocol_errors,
        networks_refused,
        srq_limit_reached,
        drains_given_up,
        last_wqe_missed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn escape_is_told_under_the_names_that_readers_look_for() {
        let stats = EscapeStats {
            enabled: true,
            memory_slabs: 1,
            memory_ready: 2,
            memory_used: 3,
            memory_used_max: 4,
            memory_retired: 20,
            memory_used_slab_ms: 5,
            replaced_now: 6,
            replaced_total: 7,
            copied_now: 8,
            copied_total: 9,
            straggler_ns: 2_100_999,
            stalled_ns: 20_999_999,
            copies_pinned: 10,
            copies_failed: 11,
            copies_in_flight: 12,
            spilled_now: 13,
            spilled_total: 14,
            evaluations: 15,
            dangers: 16,
            marks: 17,
            signals: 18,
            suspended_sessions: 19,
        };
        let told = json!({
            "enabled": true,
            "memory": {
                "slabs": 1, "ready": 2, "used": 3, "used_max": 4, "used_slab_ms": 5, "retired": 20,
                "error": "no more",
            },
            "replaced": {"now": 6, "total": 7},
            "copied": {"now": 8, "total": 9, "bytes": 36_864, "pinned": 10, "failed": 11, "in_flight": 12},
            "spills": {"now": 13, "total": 14},
            "evaluations": 15, "danger": 16, "marks": 17, "signals": 18, "suspended": 19,
            "straggler_us": 2100, "stalled_ms": 20,
        });
        assert_eq!(serde_json::to_value(escape(&stats, Some("no more"))).unwrap(), told);
        let none = serde_json::to_value(escape(&EscapeStats::default(), None)).unwrap();
        assert!(none["memory"]["error"].is_null() && none["enabled"] == false, "{none}");
    }
}

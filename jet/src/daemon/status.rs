//! What `jet status` shows, as the daemon tells it.

mod rows;

pub use rows::{PeerStatus, PostNicStatus, QuarantineStatus, Rows, SessionStatus, StandstillStatus};

use super::cache::CacheStatus;
use super::congestion::ActuatorRow;
use super::rdma::RdmaStatus;
use jet_core::{Checksums, EndCounts, EscapeStats, Stats};
use jet_escape::Pressure;
use jet_fabric::nic::Counters;
use serde::Serialize;

/// The daemon's state and counters: one JSON object.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The daemon's version.
    pub version: &'static str,
    /// Its process.
    pub pid: u32,
    /// Changes with every start; hexadecimal, since JSON's numbers end at 2^53 for many readers.
    pub incarnation: String,
    /// Since its start.
    pub uptime_ms: u64,
    /// Whether it takes nothing new.
    pub draining: bool,
    /// Where it listens, ports resolved.
    pub listen: Vec<String>,
    /// `ok`, `unsafe` or `danger`.
    pub pressure: &'static str,
    /// Whether the software NIC has a thread of its own.
    pub nic_thread: bool,
    /// The pool.
    pub pool: PoolStatus,
    /// READs.
    pub reads: ReadStatus,
    /// Messages.
    pub messages: MessageStatus,
    /// Ends of messages.
    pub ends: EndStatus,
    /// Escape from pressure.
    pub escape: EscapeStatus,
    /// What marks congestion; the control plane adds it.
    pub congestion: Vec<ActuatorRow>,
    /// The pool's place in the last-level cache; the control plane adds it.
    pub cache: Option<CacheStatus>,
    /// The RDMA port, if the NIC has one; the control plane adds it.
    pub rdma: Option<RdmaStatus>,
    /// What others did wrong.
    pub faults: FaultStatus,
    /// The NIC's counters.
    pub nic: NicStatus,
    /// Applications altogether.
    pub session_count: u32,
    /// Senders altogether.
    pub peer_count: u32,
    /// Applications and senders one by one, the first of them.
    #[serde(flatten)]
    pub rows: Rows,
}

/// The pool, in slabs.
#[derive(Clone, Debug, Serialize)]
pub struct PoolStatus {
    /// All.
    pub slabs: u32,
    /// Bytes of one.
    pub slab_bytes: u32,
    /// Nobody's.
    pub free: u32,
    /// Posted to the SRQ.
    pub posted: u32,
    /// Holding small messages.
    pub small_held: u32,
    /// Holding READs and large messages.
    pub read: u32,
    /// Of dead applications.
    pub quarantined: u32,
    /// Out of use for good: the hardware lost them.
    pub retired: u32,
    /// What the SRQ share may use.
    pub srq_limit: u32,
    /// The most in use at once.
    pub high_water: u32,
    /// `small` or `huge`.
    pub pages: &'static str,
    /// The NUMA node that it was asked onto, if it was.
    pub numa_node: Option<u32>,
    /// Every slab that is not retired is free or posted.
    pub whole: bool,
    /// Times that the line between the shares moved.
    pub line_moves: u64,
}

/// READs.
#[derive(Clone, Debug, Serialize)]
pub struct ReadStatus {
    /// Now.
    pub in_flight: u32,
    /// The most at once.
    pub high_water: u32,
    /// Bytes now.
    pub in_flight_bytes: u64,
    /// Who makes checksums: `inline`, `workers` or `off`.
    pub checksums: &'static str,
    /// READs of those in flight that have arrived and are being checked by workers.
    pub checks_in_flight: u32,
    /// Bytes whose CRC32C was made, those of small messages too.
    pub checked_bytes: u64,
    /// How much of the READ share may be in use at once, where that follows the load.
    pub footprint_window_bytes: Option<u64>,
    /// Messages waiting for admission.
    pub waiting: u32,
    /// Messages being read.
    pub running: u32,
}

/// Messages.
#[derive(Clone, Debug, Serialize)]
pub struct MessageStatus {
    /// Without an end, or not let go of.
    pub known: u32,
    /// Small ones that arrived.
    pub small: u64,
    /// Large ones that were requested.
    pub large: u64,
    /// Payload that was delivered.
    pub delivered_bytes: u64,
    /// Messages marked redelivered.
    pub redelivered: u64,
}

/// Ends of messages.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names are those of `AckStatus`
pub struct EndStatus {
    pub consumed: u64,
    pub rejected: u64,
    pub busy: u64,
    pub no_app: u64,
    pub denied: u64,
    pub too_large: u64,
    pub corrupt: u64,
    pub app_gone: u64,
    pub draining: u64,
    pub peer_lost: u64,
}

/// Escape from pressure (Jet §4.3), in slabs unless a name says otherwise.
#[derive(Clone, Debug, Serialize)]
pub struct EscapeStatus {
    /// Whether anything is ever done.
    pub enabled: bool,
    /// Escape memory.
    pub memory: EscapeMemoryStatus,
    /// Held by stragglers and replaced in the pool.
    pub replaced: EscapedStatus,
    /// Copied to memory.
    pub copied: CopiedStatus,
    /// Taken from memory instead of waiting.
    pub memory_grants: EscapedStatus,
    /// Evaluations of Algorithm 1 under pressure.
    pub evaluations: u64,
    /// Times that the pool came into danger.
    pub danger: u64,
    /// Times that congestion was to be marked.
    pub marks: u64,
    /// Congestion signals sent to senders.
    pub signals: u64,
    /// Sessions that are granted nothing new for now.
    pub suspended: u32,
    /// What is held for so many microseconds is a straggler now: as configured, or longer where the pool takes as long to be
    /// used twice.
    pub straggler_us: u64,
    /// Milliseconds altogether for which the reactor did not get to look, beyond what it allows itself: not held against
    /// applications. Where it grows, others take its core, or the host the machine's.
    pub stalled_ms: u64,
}

/// Escape memory, in slabs.
#[derive(Clone, Debug, Serialize)]
pub struct EscapeMemoryStatus {
    /// All.
    pub slabs: u32,
    /// Allocated and touched.
    pub ready: u32,
    /// In use, or standing in for stragglers.
    pub used: u32,
    /// The most in use at once.
    pub used_max: u32,
    /// Slabs in use times the milliseconds that they were: divided by a span, the mean over it.
    pub used_slab_ms: u64,
    /// Out of use for good: the hardware lost them.
    pub retired: u32,
    /// Why there is none, or less than was asked for.
    pub error: Option<String>,
}

/// What escaped in one way, in slabs.
#[derive(Clone, Debug, Serialize)]
pub struct EscapedStatus {
    /// Now.
    pub now: u32,
    /// So far.
    pub total: u64,
}

/// Copies, in slabs.
#[derive(Clone, Debug, Serialize)]
pub struct CopiedStatus {
    /// Held in copies.
    pub now: u32,
    /// Copied so far.
    pub total: u64,
    /// The same in bytes: read once from the cache, written once to memory.
    pub bytes: u64,
    /// Copies not made, or thrown away, because the application reads the run.
    pub pinned: u64,
    /// Copies not made for want of memory or of somebody to make them.
    pub failed: u64,
    /// Under way.
    pub in_flight: u32,
}

impl EscapeStatus {
    /// From what the receiver counts.
    pub fn new(stats: &EscapeStats, error: Option<&str>) -> Self {
        Self {
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
            memory_grants: EscapedStatus { now: stats.granted_now, total: stats.granted_total },
            evaluations: stats.evaluations,
            danger: stats.dangers,
            marks: stats.marks,
            signals: stats.signals,
            suspended: stats.barred_sessions,
            straggler_us: stats.straggler_ns / 1000,
            stalled_ms: stats.stalled_ns / 1_000_000,
        }
    }
}

/// What others did wrong.
#[derive(Clone, Debug, Serialize)]
pub struct FaultStatus {
    /// Senders cut off.
    pub peers: u64,
    /// Senders parted with because they heard nothing for long while `limits.messages` was nearly used up.
    pub unresponsive_peers: u64,
    /// Sessions ended for what they released.
    pub sessions: u64,
}

/// The NIC's counters.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names are those of `Counters`
pub struct NicStatus {
    pub receives: u64,
    pub sends: u64,
    pub reads: u64,
    pub bytes_in: u64,
    pub rnr: u64,
    pub flushed: u64,
    pub protocol_errors: u64,
    pub srq_limit_reached: u64,
    pub drains_given_up: u64,
    pub last_wqe_missed: u64,
}

impl PoolStatus {
    /// From what the receiver counts.
    pub fn new(stats: &Stats, pages: &'static str, numa_node: Option<u32>) -> Self {
        Self {
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
            // More than all: what stands in for a straggler that came home is still posted.
            whole: stats.free_slabs + stats.posted_slabs + stats.retired_slabs >= stats.pool_slabs,
            line_moves: stats.line_moves,
        }
    }
}

impl ReadStatus {
    /// From what the receiver counts.
    pub fn new(stats: &Stats, checksums: Checksums) -> Self {
        let checksums = match checksums {
            Checksums::Inline => "inline",
            Checksums::Workers => "workers",
            Checksums::Off => "off",
        };
        Self {
            checksums,
            in_flight: stats.reads_in_flight,
            high_water: stats.reads_high_water,
            in_flight_bytes: stats.in_flight_bytes,
            checks_in_flight: stats.checks_in_flight,
            checked_bytes: stats.checked_bytes,
            footprint_window_bytes: stats.footprint_window_bytes,
            waiting: stats.waiting,
            running: stats.running,
        }
    }
}

impl MessageStatus {
    /// From what the receiver counts.
    pub fn new(stats: &Stats) -> Self {
        Self {
            known: stats.messages,
            small: stats.small_messages,
            large: stats.large_messages,
            delivered_bytes: stats.delivered_bytes,
            redelivered: stats.redelivered,
        }
    }
}

impl From<EndCounts> for EndStatus {
    fn from(ends: EndCounts) -> Self {
        let EndCounts {
            consumed,
            rejected,
            busy,
            no_app,
            denied,
            too_large,
            corrupt,
            app_gone,
            draining,
            peer_lost,
        } = ends;
        Self { consumed, rejected, busy, no_app, denied, too_large, corrupt, app_gone, draining, peer_lost }
    }
}

impl From<Counters> for NicStatus {
    fn from(counters: Counters) -> Self {
        let Counters {
            receives,
            sends,
            reads,
            bytes_in,
            rnr,
            flushed,
            protocol_errors,
            srq_limit_reached,
            drains_given_up,
            last_wqe_missed,
        } = counters;
        Self {
            receives,
            sends,
            reads,
            bytes_in,
            rnr,
            flushed,
            protocol_errors,
            srq_limit_reached,
            drains_given_up,
            last_wqe_missed,
        }
    }
}

/// The pressure's word.
pub fn pressure_word(pressure: Pressure) -> &'static str {
    match pressure {
        Pressure::Ok => "ok",
        Pressure::Unsafe => "unsafe",
        Pressure::Danger => "danger",
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
            granted_now: 13,
            granted_total: 14,
            evaluations: 15,
            dangers: 16,
            marks: 17,
            signals: 18,
            barred_sessions: 19,
        };
        let told = json!({
            "enabled": true,
            "memory": {"slabs": 1, "ready": 2, "used": 3, "used_max": 4, "used_slab_ms": 5, "retired": 20, "error": "no more"},
            "replaced": {"now": 6, "total": 7},
            "copied": {"now": 8, "total": 9, "bytes": 36_864, "pinned": 10, "failed": 11, "in_flight": 12},
            "memory_grants": {"now": 13, "total": 14},
            "evaluations": 15, "danger": 16, "marks": 17, "signals": 18, "suspended": 19,
            "straggler_us": 2100, "stalled_ms": 20,
        });
        assert_eq!(serde_json::to_value(EscapeStatus::new(&stats, Some("no more"))).unwrap(), told);
        let none = serde_json::to_value(EscapeStatus::new(&EscapeStats::default(), None)).unwrap();
        assert!(none["memory"]["error"].is_null() && none["enabled"] == false, "{none}");
    }
}

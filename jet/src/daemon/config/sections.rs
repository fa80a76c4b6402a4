//! The sections of the daemon's configuration. The defaults are the numbers that the Jet paper names, where
//! it names any.

use super::SLAB_BYTES;
use crate::values;
use jet_escape::EscapeConfig;
use jet_fabric::limits::Profile;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Sizes of the pool, and the kind of memory that the pool lies on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    /// Bytes of all slabs together. Default: 12 MiB.
    #[serde(deserialize_with = "values::bytes")]
    pub bytes: u64,
    /// Bytes of the SRQ share at the start, which is also the limit of what is posted to the SRQ. Default: 4
    /// MiB (1024 entries of 4 KiB).
    #[serde(deserialize_with = "values::bytes")]
    pub srq_bytes: u64,
    /// Bytes of the SRQ share that READs never take.
    #[serde(deserialize_with = "values::bytes")]
    pub srq_floor_bytes: u64,
    /// Number of SRQ entries posted beyond the credit of senders.
    pub srq_reserve_entries: u32,
    /// Use of 2 MiB pages: `auto` where there are free ones, `require` to fail where there are none, or
    /// `off`.
    pub huge_pages: HugePages,
    /// NUMA node for the pool, the pool's headers and escape memory. If not set, the RDMA device's node, if
    /// the device has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
}

/// Policy for huge pages under the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HugePages {
    /// Use huge pages where there are free ones.
    Auto,
    /// Do not start the daemon without huge pages.
    Require,
    /// Use ordinary pages.
    Off,
}

/// Limits of READs, and the choice of who makes checksums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Read {
    /// Limit in bytes of a fragment, which one READ fetches. Default: 256 KiB.
    #[serde(deserialize_with = "values::bytes")]
    pub fragment_bytes: u64,
    /// Limit of READs in flight. Default: 32.
    pub concurrency: u32,
    /// Limit in bytes of READs in flight. Default: 8 MiB.
    #[serde(deserialize_with = "values::bytes")]
    pub in_flight_bytes: u64,
    /// Limit of READs and bytes in flight of one sender, in percent of `concurrency` and `in_flight_bytes`.
    /// Default: 75.
    pub peer_share_percent: u32,
    /// Part of the READ share that messages may take up at a time.
    pub footprint: Footprint,
    /// Threads that make the CRC32C of messages that carry one.
    pub checksums: Checksums,
    /// Limit in bytes of a message's length.
    #[serde(deserialize_with = "values::bytes")]
    pub message_bytes_max: u64,
}

/// Threads that make the CRC32C of messages that carry one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checksums {
    /// The reactor makes all checksums.
    Inline,
    /// The threads of `escape.workers` make checksums of large messages, the reactor those of small ones.
    Workers,
    /// No thread makes checksums. The daemon tells senders so, and senders make none either.
    Off,
}

impl From<Checksums> for jet_core::Checksums {
    fn from(checksums: Checksums) -> Self {
        match checksums {
            Checksums::Inline => Self::Inline,
            Checksums::Workers => Self::Workers,
            Checksums::Off => Self::Off,
        }
    }
}

/// Part of the READ share that messages may take up at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Footprint {
    /// All of the READ share.
    Pool,
    /// As much of the READ share as the daemon finds that the load needs.
    Follow,
}

/// Order in which large messages are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admission {
    /// Number of classes of messages. Class 0 is the most urgent.
    pub classes: u8,
    /// Waiting time in milliseconds after which a message goes ahead of messages of more urgent classes.
    #[serde(deserialize_with = "values::milliseconds")]
    pub aging_ms: u64,
}

/// Limits of how many senders, applications and messages there are at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Limit of connected senders.
    pub peers: u32,
    /// Limit of registered applications.
    pub sessions: u32,
    /// Limit of messages that the daemon knows at once.
    pub messages: u32,
    /// Limit of unfinished large messages of one sender.
    pub requests_per_peer: u32,
    /// Limit of SENDs that one sender may have under way.
    pub credit_per_peer: u32,
    /// Bytes of memory for replies of applications, 4 KiB for each that is promised or under way. 0: senders
    /// are told that there are no replies. Default: 8 MiB.
    #[serde(deserialize_with = "values::bytes")]
    pub reply_bytes: u64,
    /// Limit of one sender's messages that have memory for a reply, or its promise. Default: 256.
    pub replies_per_peer: u32,
    /// Time in milliseconds after which a waiting sender that has heard nothing is told that its receiver is
    /// there. Default: 5 s.
    #[serde(deserialize_with = "values::milliseconds")]
    pub heartbeat_ms: u64,
}

/// Limits of an application's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Session {
    /// Limit of runs that are delivered to the application and not released.
    pub slots: u32,
    /// Limit of messages that are delivered to the application and not finished.
    pub messages: u32,
    /// Minimum time in milliseconds for which a dead application's slabs stay unused.
    #[serde(deserialize_with = "values::milliseconds")]
    pub quarantine_ms: u64,
    /// Time in milliseconds for which a name stays its user's after the last application that had it.
    #[serde(deserialize_with = "values::milliseconds")]
    pub name_kept_ms: u64,
}

/// Limits at which escape from pressure acts, and of the memory that escape may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Escape {
    /// Whether escape acts. If `false`, the daemon shows pressure and does nothing about it, for comparisons.
    pub enabled: bool,
    /// The paper's CACHE_SAFE, in thousandths of the pool. With fewer slabs free or posted, the daemon
    /// replaces stragglers and copies data of slow applications.
    pub safe_permille: u32,
    /// The paper's CACHE_DANGER, in thousandths of the pool. With fewer slabs free or posted, senders are
    /// slowed down.
    pub danger_permille: u32,
    /// Distance above `safe_permille` or `danger_permille`, in thousandths of the pool, at which that limit
    /// counts as crossed upwards.
    pub hysteresis_permille: u32,
    /// The paper's CREDIT: an application is slow if more than this many thousandths of the slabs that it
    /// holds are stragglers.
    pub credit_permille: u32,
    /// Time in microseconds after which a run that an application holds is a straggler. Where the pool is
    /// used slowly, the time is twice that in which all of the pool is used once, up to four times this
    /// value.
    #[serde(deserialize_with = "values::microseconds")]
    pub straggler_us: u64,
    /// The paper's MEM_ESC: bytes of escape memory that may stand in for stragglers. 0: no stragglers are
    /// replaced.
    #[serde(deserialize_with = "values::bytes")]
    pub replace_bytes: u64,
    /// Bytes of escape memory for copies of what slow applications hold, and for messages that take memory
    /// instead of waiting.
    #[serde(deserialize_with = "values::bytes")]
    pub memory_bytes: u64,
    /// Limit in bytes of the escape memory that one application holds. At the limit, nothing new is granted
    /// to the application until it releases some.
    #[serde(deserialize_with = "values::bytes")]
    pub session_memory_bytes: u64,
    /// Number of worker threads, which copy messages to escape memory, and make checksums if `read.checksums`
    /// says so. 0: delivered messages are not copied.
    pub workers: usize,
}

/// Settings of the reactor's thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reactor {
    /// Core to which the thread is pinned. If not set, the kernel chooses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// Longest time in microseconds that the reactor spins before it sleeps. The actual time adapts below
    /// that.
    #[serde(deserialize_with = "values::microseconds")]
    pub spin_us_max: u64,
}

/// Settings of the software NIC. Only `profile` concerns RDMA devices as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nic {
    /// Thread of the software NIC: `on`, `off` (the reactor's thread moves the bytes), or `auto` (on where
    /// there are more than two cores).
    pub thread: NicThread,
    /// Core to which the software NIC's thread is pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// Device whose limits the NIC keeps to, to see what Jet does on a device that is not at hand. An RDMA
    /// device keeps to these limits beside its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<NicProfile>,
}

/// A known device, whose limits the software NIC can keep to; the configuration writes its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicProfile(pub Profile);

impl Serialize for NicProfile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for NicProfile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// The RDMA device and its connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rdma {
    /// Name of the RDMA device. If not set, the device that has the first address of `listen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Number of the device's port. If not set, the first port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    /// Index of the GID that connections use, in the port's table of GIDs. If not set, the kernel's routes
    /// decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u8>,
    /// Type of service in the IP headers of packets that the daemon sends. If not set, the sender's request
    /// decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tos: Option<u8>,
    /// Time that an acknowledgement may take before its packet is sent again: 4.096 us x 2^n, where n is this
    /// value.
    pub ack_timeout: u8,
    /// Number of times that a packet is sent again before the connection ends.
    pub retry: u8,
    /// Time in milliseconds between two surveys of the port's state while the device reports no change.
    #[serde(deserialize_with = "values::milliseconds")]
    pub look_ms: u64,
}

/// Policy for whether the software NIC has a thread of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NicThread {
    /// The software NIC has a thread of its own where there are more than two cores.
    Auto,
    /// The software NIC has a thread of its own.
    On,
    /// The reactor's thread moves the software NIC's bytes.
    Off,
}

/// How the daemon stops.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// Time in milliseconds that a drain may take before the daemon stops anyway.
    #[serde(deserialize_with = "values::milliseconds")]
    pub drain_ms: u64,
}

impl Default for Pool {
    fn default() -> Self {
        let core = jet_core::Config::default();
        Self {
            bytes: u64::from(core.pool_slabs) * SLAB_BYTES,
            srq_bytes: u64::from(core.srq_slabs) * SLAB_BYTES,
            srq_floor_bytes: u64::from(core.srq_floor_slabs) * SLAB_BYTES,
            srq_reserve_entries: core.srq_reserve_entries,
            huge_pages: HugePages::Auto,
            numa_node: None,
        }
    }
}

impl Default for Read {
    fn default() -> Self {
        let core = jet_core::Config::default();
        Self {
            fragment_bytes: u64::from(core.fragment_bytes),
            concurrency: core.reads_max,
            in_flight_bytes: core.in_flight_bytes,
            peer_share_percent: core.peer_share_percent,
            footprint: Footprint::Pool,
            checksums: Checksums::Inline,
            message_bytes_max: core.message_bytes_max,
        }
    }
}

impl Default for Admission {
    fn default() -> Self {
        let core = jet_core::Config::default();
        Self { classes: core.classes, aging_ms: core.aging_ns / 1_000_000 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        let core = jet_core::Config::default();
        Self {
            peers: core.peers_max,
            sessions: core.sessions_max,
            messages: core.messages_max,
            requests_per_peer: core.requests_per_peer,
            credit_per_peer: core.credit_max,
            reply_bytes: 8 << 20,
            replies_per_peer: core.replies_per_peer,
            heartbeat_ms: core.heartbeat_ns / 1_000_000,
        }
    }
}

impl Default for Session {
    fn default() -> Self {
        let core = jet_core::Config::default();
        Self {
            slots: core.session_slots,
            messages: core.session_messages,
            quarantine_ms: core.quarantine_ns / 1_000_000,
            name_kept_ms: core.name_kept_ns / 1_000_000,
        }
    }
}

impl Default for Escape {
    fn default() -> Self {
        let core = jet_core::Config::default();
        let EscapeConfig { enabled, thresholds, replace_slabs_max, credit_permille, straggler_ns } =
            core.escape;
        Self {
            enabled,
            safe_permille: thresholds.safe_permille,
            danger_permille: thresholds.danger_permille,
            hysteresis_permille: thresholds.hysteresis_permille,
            credit_permille,
            straggler_us: straggler_ns / 1000,
            replace_bytes: u64::from(replace_slabs_max) * SLAB_BYTES,
            memory_bytes: u64::from(core.memory_slabs) * SLAB_BYTES,
            session_memory_bytes: u64::from(core.session_memory_slabs) * SLAB_BYTES,
            workers: 1,
        }
    }
}

impl Default for Reactor {
    fn default() -> Self {
        Self { cpu: None, spin_us_max: 100 }
    }
}

impl Default for Nic {
    fn default() -> Self {
        Self { thread: NicThread::Auto, cpu: None, profile: None }
    }
}

impl Default for Rdma {
    fn default() -> Self {
        Self {
            device: None,
            port: None,
            gid_index: None,
            tos: None,
            ack_timeout: 16,
            retry: 6,
            look_ms: 10_000,
        }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { drain_ms: 10_000 }
    }
}

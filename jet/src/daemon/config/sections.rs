//! The sections of the configuration, with their defaults: the paper's where it has any.

use super::{SLAB_BYTES, values};
use jet_escape::EscapeConfig;
use jet_fabric::limits::Profile;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The pool's sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    /// All slabs together: 12 MiB.
    #[serde(deserialize_with = "values::bytes")]
    pub bytes: u64,
    /// The SRQ share at first, and the most that is posted: 4 MiB (1024 entries of 4 KiB).
    #[serde(deserialize_with = "values::bytes")]
    pub srq_bytes: u64,
    /// What the SRQ share always keeps.
    #[serde(deserialize_with = "values::bytes")]
    pub srq_floor_bytes: u64,
    /// SRQ entries posted beyond the credit that senders have.
    pub srq_reserve_entries: u32,
    /// 2 MiB pages: `auto` takes them where there are any, `require` fails where there are none, `off`.
    pub huge_pages: HugePages,
    /// The NUMA node that the pool, its headers and escape memory lie on; none: the one of the RDMA device,
    /// if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
}

/// Whether the pool lies on huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HugePages {
    /// Where there are any.
    Auto,
    /// Or not at all.
    Require,
    /// Never.
    Off,
}

/// The READ windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Read {
    /// The largest fragment: 256 KiB.
    #[serde(deserialize_with = "values::bytes")]
    pub fragment_bytes: u64,
    /// READs at once: 32.
    pub concurrency: u32,
    /// Bytes of READs at once: 8 MiB.
    #[serde(deserialize_with = "values::bytes")]
    pub in_flight_bytes: u64,
    /// How much of the READ share may be in use.
    pub footprint: Footprint,
    /// Who makes the CRC32C of messages that carry one.
    pub checksums: Checksums,
    /// The longest message that is taken.
    #[serde(deserialize_with = "values::bytes")]
    pub message_bytes_max: u64,
}

/// Who makes the CRC32C of messages that carry one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Checksums {
    /// The reactor, on the way.
    Inline,
    /// The threads of `escape.workers`, for large messages; the reactor for small ones.
    Workers,
    /// Nobody: senders are told, and make none.
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

/// How much of the READ share may be in use at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Footprint {
    /// All of it.
    Pool,
    /// What the load is found to need.
    Follow,
}

/// The admission queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admission {
    /// Classes, 0 the most urgent.
    pub classes: u8,
    /// What waited this long goes ahead of more urgent classes.
    #[serde(deserialize_with = "values::milliseconds")]
    pub aging_ms: u64,
}

/// How many of what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connected senders.
    pub peers: u32,
    /// Registered applications.
    pub sessions: u32,
    /// Messages known at once.
    pub messages: u32,
    /// Unfinished large messages of one sender.
    pub requests_per_peer: u32,
    /// SENDs that one sender may have on the way.
    pub credit_per_peer: u32,
    /// A sender that waits for something hears this often that the receiver is there: 5 s.
    #[serde(deserialize_with = "values::milliseconds")]
    pub heartbeat_ms: u64,
}

/// An application's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Session {
    /// Runs delivered and not released.
    pub slots: u32,
    /// Messages delivered and not finished.
    pub messages: u32,
    /// How long a dead application's slabs stay unused.
    #[serde(deserialize_with = "values::milliseconds")]
    pub quarantine_ms: u64,
}

/// Escape from pressure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Escape {
    /// Off, pressure is shown and nothing is done about it: for comparisons.
    pub enabled: bool,
    /// CACHE_SAFE, in thousandths of the pool.
    pub safe_permille: u32,
    /// CACHE_DANGER, in thousandths of the pool.
    pub danger_permille: u32,
    /// How far above a line it counts as crossed on the way back.
    pub hysteresis_permille: u32,
    /// CREDIT: an application is slow when more than so many thousandths of what it holds are stragglers.
    pub credit_permille: u32,
    /// A slab that is held this long is a straggler; or for twice what the pool takes to be used once where
    /// that is longer, up to four times this.
    #[serde(deserialize_with = "values::microseconds")]
    pub straggler_us: u64,
    /// MEM_ESC: memory that may stand in for stragglers; 0 replaces none.
    #[serde(deserialize_with = "values::bytes")]
    pub replace_bytes: u64,
    /// Memory for copies of what slow applications hold, and for messages that take memory instead of
    /// waiting.
    #[serde(deserialize_with = "values::bytes")]
    pub memory_bytes: u64,
    /// An application that holds this much of it is granted nothing new before it releases.
    #[serde(deserialize_with = "values::bytes")]
    pub session_memory_bytes: u64,
    /// Threads that copy, and that make checksums where `read.checksums` says so; 0 copies nothing.
    pub workers: usize,
}

/// The reactor thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reactor {
    /// The core that it is pinned to; none: where the kernel puts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// The longest that it spins before it sleeps; adapts below that.
    #[serde(deserialize_with = "values::microseconds")]
    pub spin_us_max: u64,
}

/// The NIC: the software one, but for `profile`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nic {
    /// Whether the NIC has a thread of its own: `on`, `off` (the reactor's thread moves the bytes), or
    /// `auto`: on where there are more than two cores.
    pub thread: NicThread,
    /// The core that the NIC's thread is pinned to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// A device whose limits the NIC keeps to: to see what Jet does on one that is not at hand. An RDMA
    /// device keeps to them beside its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<NicProfile>,
}

/// A device by name.
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

/// The RDMA device, and its connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rdma {
    /// Its name; none: the one that has the first address of `listen`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its port; the first without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u8>,
    /// The GID whose address connections come to and leave from, by its index in the port's table; none: as
    /// the kernel routes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid_index: Option<u8>,
    /// The type of service of what the daemon sends, as in IP; none: as the sender has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tos: Option<u8>,
    /// How long an acknowledgement may take before its packet is sent again: 4.096 us x 2^this.
    pub ack_timeout: u8,
    /// How often it is sent again before the connection ends.
    pub retry: u8,
    /// Between two looks at the port that the device did not ask for, in milliseconds.
    #[serde(deserialize_with = "values::milliseconds")]
    pub look_ms: u64,
}

/// Whether the software NIC has a thread of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NicThread {
    /// On where there are more than two cores.
    Auto,
    /// It has.
    On,
    /// It has not.
    Off,
}

/// The end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// How long a drain may take before the daemon stops anyway.
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
        Self { cpu: None, spin_us_max: 50 }
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

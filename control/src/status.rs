//! The daemon's state and counters: the fields that `jet status` shows (docs/json.md).
//!
//! Slabs have `pool.slab_bytes` bytes. A count is since the daemon's start, unless it says otherwise.

mod cache;
mod pressure;
mod rdma;
mod rows;

pub use cache::{
    AdjustmentsStatus, CacheCounts, CacheDomainStatus, CacheStatus, CountersStatus, Occupancy,
    RegistersStatus, ReservationStatus, Reserve, ResidentShare, SettingStatus, WarmerReadings, WarmerStatus,
};
pub use jet_wire::message::EndCounts;
pub use pressure::{
    ActuatorState, ActuatorStatus, CopiedStatus, EscapeMemoryStatus, EscapeStatus, EscapedStatus, Pressure,
};
pub use rdma::{LinkLayer, PortState, RdmaListening, RdmaPath, RdmaStatus};
pub use rows::{
    PeerStatus, PostNicStatus, QuarantineStatus, Rows, RowsFrom, SessionStatus, ShareStatus, StandstillStatus,
};

use crate::protocol::Incarnation;
use serde::{Deserialize, Serialize};

/// Defines an enum whose variants are words in JSON. A word that is not among them is read as `Unknown`: a
/// newer daemon may have it.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$of:meta])* $word:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$of])* #[serde(rename = $text)] $word,)+
            /// Another word, which this build does not know.
            #[default]
            #[serde(other, rename = "unknown")]
            Unknown,
        }

        impl $name {
            /// Returns the word as it is written in JSON.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$word => $text,)+
                    Self::Unknown => "unknown",
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}
use words;

/// Status of the daemon as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's [`PROTOCOL_VERSION`](crate::protocol::PROTOCOL_VERSION).
    pub protocol: u32,
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Number that changes with every start of the daemon.
    pub incarnation: Incarnation,
    /// Milliseconds since the daemon's start.
    pub uptime_ms: u64,
    /// Whether the daemon drains: it takes nothing new.
    pub draining: bool,
    /// Addresses where the daemon listens, with resolved ports.
    pub listen: Vec<String>,
    /// Pressure on the pool: how full it is.
    pub pressure: Pressure,
    /// Whether the software NIC has a thread of its own.
    pub nic_thread: bool,
    /// Nanoseconds that the reactor's longest turn so far took. None: an earlier daemon of this version of
    /// the protocol, which does not measure it.
    pub longest_turn_ns: Option<u64>,
    /// Slabs of the pool, by their use.
    pub pool: PoolStatus,
    /// READs, and messages that wait for them.
    pub reads: ReadStatus,
    /// Messages, by kind and state.
    pub messages: MessageStatus,
    /// Number of messages for each end (consumed, rejected and so on).
    pub ends: EndCounts,
    /// Counters of escape from pressure.
    pub escape: EscapeStatus,
    /// Actuators, which are knobs of the NIC that mark congestion; a row each.
    pub congestion: Vec<ActuatorStatus>,
    /// The pool's place in the last-level cache.
    pub cache: Option<CacheStatus>,
    /// The RDMA port, if the NIC has one.
    pub rdma: Option<RdmaStatus>,
    /// Faults of senders and applications.
    pub faults: FaultStatus,
    /// Counters of the NIC.
    pub nic: NicStatus,
    /// Number of all registered applications.
    pub session_count: u32,
    /// Number of all sessions that are over and whose slabs are not back.
    pub quarantined_count: u32,
    /// Number of all connected senders.
    pub peer_count: u32,
    /// Rows for each application and each sender.
    #[serde(flatten)]
    pub rows: Rows,
}

words! {
    /// Kind of the pages that memory lies on.
    Pages {
        /// Pages of 4 KiB.
        Small = "small",
        /// Pages of 2 MiB.
        Huge = "huge",
    }
}

words! {
    /// Threads that make checksums.
    Checksums {
        /// The reactor's thread.
        Inline = "inline",
        /// Workers beside the reactor.
        Workers = "workers",
        /// None: no checksums are made.
        Off = "off",
    }
}

words! {
    /// What the READs of waiting messages wait for.
    ReadsWaitFor {
        /// No large message waits to be read.
        Nothing = "nothing",
        /// The pool has no room: applications have to give slabs back.
        Room = "room",
        /// READs or bytes in flight are all that there may be.
        Window = "window",
        /// The senders' own READs, whose windows are full.
        Senders = "senders",
    }
}

/// The pool, in slabs unless a name says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// All slabs of the pool.
    pub slabs: u32,
    /// Size of one slab, in bytes.
    pub slab_bytes: u32,
    /// Free slabs: in no use.
    pub free: u32,
    /// Slabs posted to the SRQ.
    pub posted: u32,
    /// Slabs that hold small messages.
    pub small_held: u32,
    /// Slabs that READs fill or large messages hold.
    pub read: u32,
    /// Slabs of dead applications, in quarantine.
    pub quarantined: u32,
    /// Slabs out of use for good, because the hardware lost them.
    pub retired: u32,
    /// The most slabs that the SRQ share may use.
    pub srq_limit: u32,
    /// The most slabs of the pool in use at once.
    pub high_water: u32,
    /// Kind of the pages that the pool lies on.
    pub pages: Pages,
    /// NUMA node that was asked for, if one was.
    pub numa_node: Option<u32>,
    /// Whether every slab that is not retired is free or posted.
    pub whole: bool,
    /// Number of times that the line between the SRQ share and the READ share moved.
    pub line_moves: u64,
}

/// READs, and the large messages that wait for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadStatus {
    /// READs in flight now.
    pub in_flight: u32,
    /// The most READs in flight at once.
    pub high_water: u32,
    /// Bytes of the READs in flight now.
    pub in_flight_bytes: u64,
    /// Threads that make checksums.
    pub checksums: Checksums,
    /// READs in flight that have arrived, and that workers check now.
    pub checks_in_flight: u32,
    /// Bytes whose CRC32C was made, including those of small messages.
    pub checked_bytes: u64,
    /// Bytes of the READ share that may be in use at once, where that limit follows the load.
    pub footprint_window_bytes: Option<u64>,
    /// Messages that wait for admission.
    pub waiting: u32,
    /// Messages that are being read.
    pub running: u32,
    /// What the next READ waits for.
    #[serde(default)]
    pub wait_for: ReadsWaitFor,
}

/// Counts of messages: those that are known now, and totals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MessageStatus {
    /// Messages that have no end, or whose record is still in use.
    pub known: u32,
    /// Small messages that arrived.
    pub small: u64,
    /// Large messages that were requested.
    pub large: u64,
    /// Bytes of payload that were delivered.
    pub delivered_bytes: u64,
    /// Messages that their senders marked redelivered.
    pub redelivered: u64,
    /// Replies that applications gave.
    #[serde(default)]
    pub replies: u64,
    /// Bytes of memory for replies that are promised to messages, or under way to senders.
    #[serde(default)]
    pub reply_bytes: u64,
}

/// Faults of senders and applications.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultStatus {
    /// Senders that were cut off because they sent what they must not send.
    pub peers: u64,
    /// Senders that were cut off because they took no acknowledgement, or delivered nothing, for long while
    /// others waited because of it.
    pub unresponsive_peers: u64,
    /// Senders that were cut off because their READs did not end for long, while others got nothing because
    /// of them. They are among `unresponsive_peers`.
    #[serde(default)]
    pub stalled_peers: u64,
    /// Sessions that were ended because they released what they must not release.
    pub sessions: u64,
}

/// Counters of the daemon's NIC.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NicStatus {
    /// SENDs that the NIC received.
    pub receives: u64,
    /// SENDs of the daemon that the peers' NICs took.
    pub sends: u64,
    /// READs that the NIC completed.
    pub reads: u64,
    /// Bytes that arrived by SENDs and READs.
    pub bytes_in: u64,
    /// Number of times that a SEND found no SRQ entry.
    pub rnr: u64,
    /// Requests that completed as flushed, because their connection ended before they were done.
    pub flushed: u64,
    /// Peers that were cut off for breaking the protocol.
    pub protocol_errors: u64,
    /// Connections that were not taken, because their host is in no network of `networks`. A daemon that
    /// knows nothing of networks says nothing.
    #[serde(default)]
    pub networks_refused: u64,
    /// Number of times that few SRQ entries were left, on devices that report it.
    pub srq_limit_reached: u64,
    /// Connections whose work the device did not give back in time. They were ended without it.
    pub drains_given_up: u64,
    /// Connections for which the device never reported that they take no SRQ entry any more.
    pub last_wqe_missed: u64,
}

impl FaultStatus {
    /// Returns each count with its name.
    pub fn counts(&self) -> [(&'static str, u64); 4] {
        // Naming each field makes the compiler report a new one that is not listed.
        let Self { peers, unresponsive_peers, stalled_peers, sessions } = *self;
        [
            ("peers", peers),
            ("unresponsive_peers", unresponsive_peers),
            ("stalled_peers", stalled_peers),
            ("sessions", sessions),
        ]
    }
}

impl NicStatus {
    /// Returns each count with its name.
    pub fn counts(&self) -> [(&'static str, u64); 11] {
        // Naming each field makes the compiler report a new one that is not listed.
        let Self {
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
        } = *self;
        [
            ("receives", receives),
            ("sends", sends),
            ("reads", reads),
            ("bytes_in", bytes_in),
            ("rnr", rnr),
            ("flushed", flushed),
            ("protocol_errors", protocol_errors),
            ("networks_refused", networks_refused),
            ("srq_limit_reached", srq_limit_reached),
            ("drains_given_up", drains_given_up),
            ("last_wqe_missed", last_wqe_missed),
        ]
    }
}

impl Status {
    /// Returns the application of this name, if it is registered.
    pub fn session(&self, app: &str) -> Option<&SessionStatus> {
        self.rows.sessions.iter().find(|session| session.app == app)
    }
}

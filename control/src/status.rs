//! The daemon's state and counters: what `jet status` shows, field by field (docs/json.md).
//!
//! Slabs are of `pool.slab_bytes`. A count is since the daemon's start, unless it says otherwise.

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
    PeerStatus, PostNicStatus, QuarantineStatus, Rows, RowsFrom, SessionStatus, StandstillStatus,
};

use serde::{Deserialize, Serialize};

/// Defines an enum of words. A word that is not among them reads as `Unknown`: a newer daemon may have it.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$of:meta])* $word:ident = $text:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$of])* #[serde(rename = $text)] $word,)+
            /// Another one, which this build does not know.
            #[default]
            #[serde(other, rename = "unknown")]
            Unknown,
        }

        impl $name {
            /// As it is written.
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

/// The daemon as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Changes with every start; hexadecimal, since JSON's numbers end at 2^53 for many readers.
    pub incarnation: String,
    /// Milliseconds since its start.
    pub uptime_ms: u64,
    /// Whether it takes nothing new.
    pub draining: bool,
    /// Where it listens, ports resolved.
    pub listen: Vec<String>,
    /// How full the pool is.
    pub pressure: Pressure,
    /// Whether the software NIC has a thread of its own.
    pub nic_thread: bool,
    /// The pool.
    pub pool: PoolStatus,
    /// READs.
    pub reads: ReadStatus,
    /// Messages.
    pub messages: MessageStatus,
    /// How many messages ended how.
    pub ends: EndCounts,
    /// Escape from pressure.
    pub escape: EscapeStatus,
    /// What marks congestion, a row an actuator.
    pub congestion: Vec<ActuatorStatus>,
    /// The pool's place in the last-level cache.
    pub cache: Option<CacheStatus>,
    /// The RDMA port, if the NIC has one.
    pub rdma: Option<RdmaStatus>,
    /// What others did wrong.
    pub faults: FaultStatus,
    /// The NIC's counters.
    pub nic: NicStatus,
    /// Applications altogether.
    pub session_count: u32,
    /// Sessions that are over and whose slabs are not back, altogether.
    #[serde(default)]
    pub quarantined_count: u32,
    /// Senders altogether.
    pub peer_count: u32,
    /// Applications and senders one by one.
    #[serde(flatten)]
    pub rows: Rows,
}

words! {
    /// The kind of pages that memory lies on.
    Pages {
        /// Of 4 KiB.
        Small = "small",
        /// Of 2 MiB.
        Huge = "huge",
    }
}

words! {
    /// Who makes checksums.
    Checksums {
        /// The reactor.
        Inline = "inline",
        /// Threads beside it.
        Workers = "workers",
        /// Nobody.
        Off = "off",
    }
}

/// The pool, in slabs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// The pages that it lies on.
    pub pages: Pages,
    /// The NUMA node that it was asked onto, if it was.
    pub numa_node: Option<u32>,
    /// Every slab that is not retired is free or posted.
    pub whole: bool,
    /// Times that the line between the shares moved.
    pub line_moves: u64,
}

/// READs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadStatus {
    /// Now.
    pub in_flight: u32,
    /// The most at once.
    pub high_water: u32,
    /// Bytes now.
    pub in_flight_bytes: u64,
    /// Who makes checksums.
    pub checksums: Checksums,
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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

/// What others did wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FaultStatus {
    /// Senders cut off.
    pub peers: u64,
    /// Senders parted with because they heard nothing for long while `limits.messages` was nearly used up.
    pub unresponsive_peers: u64,
    /// Sessions ended for what they released.
    pub sessions: u64,
}

/// The NIC's counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NicStatus {
    /// SENDs that arrived.
    pub receives: u64,
    /// SENDs that the NIC took.
    pub sends: u64,
    /// READs done.
    pub reads: u64,
    /// Bytes that SENDs and READs brought in.
    pub bytes_in: u64,
    /// Times that a SEND found no SRQ entry.
    pub rnr: u64,
    /// Requests that completed flushed.
    pub flushed: u64,
    /// Peers that were cut off for speaking out of turn.
    pub protocol_errors: u64,
    /// Times that few SRQ entries were left, on devices that tell.
    pub srq_limit_reached: u64,
    /// Connections whose work the device did not give back in time; they were ended without it.
    pub drains_given_up: u64,
    /// Connections of which the device never said that they take no SRQ entry any more.
    pub last_wqe_missed: u64,
}

impl Status {
    /// The application of such a name, if it is registered.
    pub fn session(&self, app: &str) -> Option<&SessionStatus> {
        self.rows.sessions.iter().find(|session| session.app == app)
    }
}

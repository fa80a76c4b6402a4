//! Status of the pool's place in the last-level cache.

use super::words;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

words! {
    /// Values of the configuration key `cache.reserve`: whether the daemon reserves cache.
    Reserve {
        /// Reserve cache where that is possible.
        Auto = "auto",
        /// Do not reserve cache.
        Off = "off",
        /// Reserve cache; where that fails, the daemon does not start.
        Require = "require",
    }
}

/// The pool's place in the last-level cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// Milliseconds since the values of this section were read. The daemon reads them about every second; it
    /// is longer while the kernel does not answer.
    pub age_ms: u64,
    /// Value of the configuration key `cache.reserve`.
    pub reserve: Reserve,
    /// Part of the cache that is reserved now.
    #[serde(flatten)]
    pub reservation: ReservationStatus,
    /// Processor registers for the ways of devices and for prefetchers.
    pub registers: RegistersStatus,
    /// Settings made through the kernel: the memory bandwidth of other groups, and the ways of devices.
    pub adjustments: AdjustmentsStatus,
    /// Counts of the processor for the reactor's thread.
    pub counters: CountersStatus,
    /// Share of the pool that is in the cache, as the warmer measures it.
    pub warmer: WarmerStatus,
}

/// Ways of the last-level cache that are reserved for the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationStatus {
    /// Reason why nothing is reserved, where that was asked for.
    pub reason: Option<String>,
    /// Name of the resctrl group; none where nothing is reserved.
    pub group: Option<String>,
    /// Whether the kernel refuses the reserved ways to other groups now. None where nothing is reserved, or
    /// where that cannot be read.
    pub exclusive: Option<bool>,
    /// Reserved part of each cache, and its use.
    pub domains: Vec<CacheDomainStatus>,
    /// Differences from what the daemon set up, each in words.
    pub faults: Vec<String>,
    /// Number of times that the daemon reserved again what was undone.
    pub reserved_again: u64,
}

/// Reserved part of one cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheDomainStatus {
    /// Id of the cache.
    pub domain: u32,
    /// Ways that were reserved for code and data, as a hexadecimal mask.
    pub reserved: String,
    /// Ways that the group has now, as the kernel reports them. None where that cannot be read.
    pub ways: Option<String>,
    /// Size of the ways that the group has now, in bytes.
    pub bytes: Option<u64>,
    /// Size of the group's lines in the cache, where the processor counts them.
    pub occupancy: Option<Occupancy>,
    /// Bytes a second to and from memory for the group's threads, over the last second or so.
    pub memory_bytes_per_s: Option<u64>,
}

/// Bytes of a cache that hold lines of a group's threads, or the reason why they are not known now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", from = "ReadOccupancy")]
pub enum Occupancy {
    /// Known number of bytes.
    Bytes(u64),
    /// The processor reported an error.
    Error,
    /// The processor has no value at the moment.
    Unavailable,
    /// No counter was assigned to the group.
    Unassigned,
    /// Another reason, which this build does not know.
    Unknown,
}

/// An occupancy as it is read. A daemon of another build may say more than this one knows of.
#[derive(Deserialize)]
#[serde(untagged)]
enum ReadOccupancy {
    Bytes { bytes: u64 },
    Word(String),
    Other(IgnoredAny),
}

impl From<ReadOccupancy> for Occupancy {
    fn from(read: ReadOccupancy) -> Self {
        match read {
            ReadOccupancy::Bytes { bytes } => Self::Bytes(bytes),
            ReadOccupancy::Word(word) => match word.as_str() {
                "error" => Self::Error,
                "unavailable" => Self::Unavailable,
                "unassigned" => Self::Unassigned,
                _ => Self::Unknown,
            },
            ReadOccupancy::Other(_) => Self::Unknown,
        }
    }
}

impl Occupancy {
    /// Returns the number of bytes, where it is known.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Error | Self::Unavailable | Self::Unassigned | Self::Unknown => None,
        }
    }
}

/// Outcome of a setting that the daemon changes only where it is configured and possible.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum SettingStatus {
    /// The setting was left as it was.
    #[default]
    Left,
    /// The configured value is set.
    Set,
    /// The configured value could not be set.
    Failed {
        /// Reason of the failure.
        reason: String,
    },
    /// Another state, which this build does not know.
    #[serde(other)]
    Unknown,
}

/// Processor registers for the ways of devices and for prefetchers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistersStatus {
    /// Outcome of setting the registers.
    #[serde(flatten)]
    pub setting: SettingStatus,
    /// Whether the registers still are as the daemon set them. None where that cannot be read, or where the
    /// daemon set none.
    pub stands: Option<bool>,
}

/// Memory bandwidth of other groups, and the ways of devices, as set through the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdjustmentsStatus {
    /// Outcome of changing these settings.
    #[serde(flatten)]
    pub setting: SettingStatus,
    /// Whether the settings still are as the daemon made them. None where that cannot be read, or where the
    /// daemon made none.
    pub stands: Option<bool>,
    /// Configured memory bandwidth by group.
    pub throttle: BTreeMap<String, u64>,
    /// Configured ways of devices: a hexadecimal mask, or `pool`.
    pub device_ways: Option<String>,
}

/// Hardware counters of the processor for the reactor's thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum CountersStatus {
    /// The counters are switched off.
    Off,
    /// The counters run, with these counts.
    Running(CacheCounts),
    /// The counters could not be set up.
    Failed {
        /// Reason of the failure.
        reason: String,
    },
    /// Another state, which this build does not know.
    #[serde(other)]
    Unknown,
}

/// Counts of the reactor's thread since the daemon's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCounts {
    /// Accesses that reached the last-level cache.
    pub llc_references: u64,
    /// Part of `llc_references` that missed the cache.
    pub llc_misses: u64,
    /// Reads that memory answered, where the processor counts them.
    pub memory_reads: Option<u64>,
    /// Part of `memory_reads` that another NUMA node's memory answered.
    pub remote_memory_reads: Option<u64>,
    /// Thousandths of the time in which the counters had hardware to count with. Below 1000 the counts are
    /// projected.
    pub counted_permille: u32,
}

/// State of the warmer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum WarmerStatus {
    /// The warmer is switched off.
    Off,
    /// The warmer is about to begin.
    Calibrating,
    /// The warmer runs, with these measurements.
    Running(WarmerReadings),
    /// The warmer cannot run.
    Failed {
        /// Reason of the failure.
        error: String,
    },
    /// Another state, which this build does not know.
    #[serde(other)]
    Unknown,
}

/// Measurements of the warmer, and its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WarmerReadings {
    /// Share of the pool that is in the cache, by the most recent touches. None before the first touches.
    pub resident: Option<ResidentShare>,
    /// All touches, without the reads that warm the pool in at start.
    pub touches: u64,
    /// Number of times that each line was touched.
    pub cycles: u64,
    /// Processor time that the warmer's thread has taken, in nanoseconds.
    pub cpu_ns: u64,
    /// Time since the warmer began to touch in batches, in nanoseconds.
    pub running_ns: u64,
    /// Processor time of the thread in the span of `running_ns`, in nanoseconds.
    pub running_cpu_ns: u64,
    /// Touches a second, over the last second or so.
    pub rate_hz: f64,
    /// Thousandths of a core that the warmer takes, over the last second or so.
    pub cost_permille: f64,
}

/// Share of the pool that is in the cache, estimated from recent touches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResidentShare {
    /// Share of the pool that is in the cache, 0 to 1.
    pub share: f64,
    /// Lower end of the 95 % confidence interval of the share.
    pub low: f64,
    /// Upper end of the 95 % confidence interval of the share.
    pub high: f64,
    /// Number of touches that the estimate rests on.
    pub touches: u32,
    /// Part of `touches` that was judged to be cached.
    pub judged_cached: u32,
}

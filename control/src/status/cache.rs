//! The pool's place in the last-level cache.

use super::words;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

words! {
    /// Whether cache is to be reserved.
    Reserve {
        /// Where it can be.
        Auto = "auto",
        /// No.
        Off = "off",
        /// Or the daemon does not start.
        Require = "require",
    }
}

/// The pool's place in the last-level cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// What was asked for.
    pub reserve: Reserve,
    /// What is reserved.
    #[serde(flatten)]
    pub reservation: ReservationStatus,
    /// Ways of devices, and prefetchers.
    pub registers: RegistersStatus,
    /// Other groups' bandwidth, and the ways of devices as the kernel tells them.
    pub adjustments: AdjustmentsStatus,
    /// What the processor counts.
    pub counters: CountersStatus,
    /// What of the pool is in the cache.
    pub warmer: WarmerStatus,
}

/// What is reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationStatus {
    /// Why nothing is reserved, where it was asked for.
    pub reason: Option<String>,
    /// The group; none where nothing is reserved.
    pub group: Option<String>,
    /// Whether the kernel refuses the ways to others now; none: nothing is reserved, or that cannot be read.
    pub exclusive: Option<bool>,
    /// What is reserved, and what of it is used.
    pub domains: Vec<CacheDomainStatus>,
    /// What is not as it was made, each in words.
    pub faults: Vec<String>,
    /// How often what was undone was reserved again.
    pub reserved_again: u64,
}

/// One cache's part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheDomainStatus {
    /// The cache's id.
    pub domain: u32,
    /// The ways that were reserved: a hexadecimal mask, of code and data.
    pub reserved: String,
    /// Those that the group has now, as the kernel says; none: that cannot be read.
    pub ways: Option<String>,
    /// Their bytes.
    pub bytes: Option<u64>,
    /// What the group's threads have in the cache, where the processor counts.
    pub occupancy: Option<Occupancy>,
    /// Bytes to and from memory on behalf of the group's threads, a second, since this was last asked for.
    pub memory_bytes_per_s: Option<u64>,
}

/// How much of a cache holds lines of a group's threads, or why that is not known now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Occupancy {
    /// Bytes.
    Bytes(u64),
    /// The processor reported an error.
    Error,
    /// The processor has none at the moment.
    Unavailable,
    /// No counter was assigned to the group.
    Unassigned,
    /// Another reason, which this build does not know.
    #[serde(other)]
    Unknown,
}

impl Occupancy {
    /// The number, where it is one.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Error | Self::Unavailable | Self::Unassigned | Self::Unknown => None,
        }
    }
}

/// What became of something that is set where that is configured and can be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum SettingStatus {
    /// It is as it was.
    #[default]
    Left,
    /// What is configured is set.
    Set,
    /// It could not be.
    Failed {
        /// Why.
        reason: String,
    },
    /// Another state, which this build does not know.
    #[serde(other)]
    Unknown,
}

/// The processor's registers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegistersStatus {
    /// What became of them.
    #[serde(flatten)]
    pub setting: SettingStatus,
    /// Whether they are still as they were set; none: that cannot be read, or nothing is.
    pub stands: Option<bool>,
}

/// Other groups' bandwidth, and the ways of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdjustmentsStatus {
    /// What became of them.
    #[serde(flatten)]
    pub setting: SettingStatus,
    /// Whether they are still as they were set; none: that cannot be read, or nothing is.
    pub stands: Option<bool>,
    /// What is configured: bandwidth by group.
    pub throttle: BTreeMap<String, u64>,
    /// What is configured: the ways of devices, a hexadecimal mask or `pool`.
    pub device_ways: Option<String>,
}

/// What the processor itself counts of the reactor's thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum CountersStatus {
    /// They are switched off.
    Off,
    /// They run.
    Running(CacheCounts),
    /// There are none.
    Failed {
        /// Why.
        reason: String,
    },
    /// Another state, which this build does not know.
    #[serde(other)]
    Unknown,
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCounts {
    /// Accesses that reached the last-level cache.
    pub llc_references: u64,
    /// Of these, those that it did not have.
    pub llc_misses: u64,
    /// Reads that memory answered, where the processor counts them.
    pub memory_reads: Option<u64>,
    /// Of these, those that another NUMA node's memory answered.
    pub remote_memory_reads: Option<u64>,
    /// Thousandths of the time for which the counters had hardware. Below 1000 the counts are projected.
    pub counted_permille: u32,
}

/// The warmer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum WarmerStatus {
    /// It is switched off.
    Off,
    /// It is about to begin.
    Calibrating,
    /// It runs.
    Running(WarmerReadings),
    /// It cannot.
    Failed {
        /// Why.
        error: String,
    },
    /// Another state, which this build does not know.
    #[serde(other)]
    Unknown,
}

/// What the warmer found, and what it cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WarmerReadings {
    /// What of the pool is in the cache, by the most recent touches; none before the first ones.
    pub resident: Option<ResidentShare>,
    /// Touches made in all, but for warming in.
    pub touches: u64,
    /// How often each line was touched.
    pub cycles: u64,
    /// Time on a core that the thread took in all, nanoseconds.
    pub cpu_ns: u64,
    /// Time since it began touching in batches, nanoseconds.
    pub running_ns: u64,
    /// Of that, its time on a core, nanoseconds.
    pub running_cpu_ns: u64,
    /// Touches a second, over the last second or so.
    pub rate_hz: f64,
    /// Thousandths of a core, over the last second or so.
    pub cost_permille: f64,
}

/// The share of the pool that is in the cache, as far as recent touches tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResidentShare {
    /// The share, 0 to 1.
    pub share: f64,
    /// It is not lower (95 %).
    pub low: f64,
    /// It is not higher (95 %).
    pub high: f64,
    /// How many touches this rests on.
    pub touches: u32,
    /// Of these, judged to be cached.
    pub judged_cached: u32,
}

//! What `jet status` shows of the cache.

use super::setting::{Setting, SettingStatus};
use super::{CacheConfig, DeviceWays, Reserve};
use jet_cat::adjustments::Adjustments;
use jet_cat::counters::{CacheCounters, CacheCounts};
use jet_cat::plan::{DomainPlan, l3_ways};
use jet_cat::resctrl::{Count, DomainId, Mode, WayMask};
use jet_cat::reservation::Reservation;
use jet_cat::residency::Readings;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Instant;

/// The pool's place in the last-level cache.
#[derive(Clone, Debug, Serialize)]
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
#[derive(Clone, Debug, Default, Serialize)]
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

/// The processor's registers.
#[derive(Clone, Debug, Serialize)]
pub struct RegistersStatus {
    /// What became of them.
    #[serde(flatten)]
    pub setting: SettingStatus,
    /// Whether they are still as they were set; none: that cannot be read, or nothing is.
    pub stands: Option<bool>,
}

/// Other groups' bandwidth, and the ways of devices.
#[derive(Clone, Debug, Serialize)]
pub struct AdjustmentsStatus {
    /// What became of them.
    #[serde(flatten)]
    pub setting: SettingStatus,
    /// Whether they are still as they were set; none: that cannot be read, or nothing is.
    pub stands: Option<bool>,
    /// What is configured: bandwidth by group.
    pub throttle: BTreeMap<String, u64>,
    /// What is configured: the ways of devices.
    pub device_ways: Option<DeviceWays>,
}

impl AdjustmentsStatus {
    pub(super) fn of(adjustments: &Setting<Adjustments>, config: &CacheConfig) -> Self {
        Self {
            setting: adjustments.status(),
            stands: adjustments.get().and_then(|adjustments| adjustments.stands().ok()),
            throttle: config.throttle.clone(),
            device_ways: config.device_ways,
        }
    }
}

/// What the processor itself counts of the reactor's thread.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum CountersStatus {
    /// They are switched off.
    Off,
    /// They run.
    Running {
        /// Since the start.
        #[serde(flatten)]
        counts: CacheCounts,
    },
    /// There are none.
    Failed {
        /// Why.
        reason: String,
    },
}

impl CountersStatus {
    pub(super) fn of(counting: &mut Setting<CacheCounters>) -> Self {
        match counting {
            Setting::Left => Self::Off,
            Setting::Failed(reason) => Self::Failed { reason: reason.clone() },
            Setting::Set(counters) => match counters.read() {
                Ok(counts) => Self::Running { counts },
                Err(error) => Self::Failed { reason: error.to_string() },
            },
        }
    }
}

/// One cache's part.
#[derive(Clone, Debug, Serialize)]
pub struct CacheDomainStatus {
    /// The cache's id.
    pub domain: DomainId,
    /// The ways that were reserved: a hexadecimal mask, of code and data.
    pub reserved: String,
    /// Those that the group has now, as the kernel says; none: that cannot be read.
    pub ways: Option<String>,
    /// Their bytes.
    pub bytes: Option<u64>,
    /// Bytes of the cache that hold lines of the group's threads, where the processor counts.
    pub occupancy: Option<Count>,
    /// Bytes to and from memory on behalf of the group's threads, a second, since this was last asked for.
    pub memory_bytes_per_s: Option<u64>,
}

/// The warmer.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum WarmerStatus {
    /// It is switched off.
    Off,
    /// It is about to begin.
    Calibrating,
    /// It runs.
    Running {
        /// What it found, and what it cost.
        #[serde(flatten)]
        readings: Readings,
    },
    /// It cannot.
    Failed {
        /// Why.
        error: String,
    },
}

/// What was counted when it was last asked for.
#[derive(Default)]
pub(super) struct Bandwidth {
    last: BTreeMap<DomainId, (Instant, u64)>,
}

impl Bandwidth {
    /// Bytes a second since the last time; none the first time, and where a count has begun anew.
    fn per_second(&mut self, domain: DomainId, total: Option<Count>) -> Option<u64> {
        let (now, bytes) = (Instant::now(), total?.bytes()?);
        let (before, had) = self.last.insert(domain, (now, bytes))?;
        let span_ms = u64::try_from((now - before).as_millis()).unwrap_or(u64::MAX).max(1);
        Some(bytes.checked_sub(had)?.saturating_mul(1000) / span_ms)
    }
}

/// Whether the group is exclusive now.
pub(super) fn is_exclusive(reservation: &Reservation) -> Option<bool> {
    let mode = reservation.resctrl().group(&reservation.plan().group).mode().ok()?;
    Some(mode == Mode::Exclusive)
}

/// What a reservation has in each domain. What cannot be read at the moment is none.
pub(super) fn domains(reservation: &Reservation, bandwidth: &mut Bandwidth) -> Vec<CacheDomainStatus> {
    let plan = reservation.plan();
    let resctrl = reservation.resctrl();
    let counts = resctrl.counts(&plan.group).unwrap_or_default();
    let found = resctrl.group(&plan.group).schemata().map(|schemata| l3_ways(&schemata)).ok();
    let of_domain = |planned: &DomainPlan| {
        let counts = counts.get(&planned.domain).copied().unwrap_or_default();
        let ways = found.as_ref().map(|found| {
            let ways = found.values().filter_map(|ways| ways.get(&planned.domain));
            ways.fold(WayMask::EMPTY, |all, ways| all | *ways)
        });
        let way_bytes = planned.bytes / u64::from(planned.ways.count().max(1));
        CacheDomainStatus {
            domain: planned.domain,
            reserved: planned.ways.to_string(),
            ways: ways.map(|ways| ways.to_string()),
            bytes: ways.map(|ways| way_bytes * u64::from(ways.count())),
            occupancy: counts.occupancy,
            memory_bytes_per_s: bandwidth.per_second(planned.domain, counts.total),
        }
    };
    plan.domains.iter().map(of_domain).collect()
}

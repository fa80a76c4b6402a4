//! The cache's part of `jet status`.

use super::setting::Setting;
use super::{CacheConfig, Reserve};
use jet_cat::adjustments::Adjustments;
use jet_cat::counters::{CacheCounters, CacheCounts};
use jet_cat::plan::{DomainPlan, l3_ways};
use jet_cat::resctrl::{Count, DomainId, Mode, WayMask};
use jet_cat::reservation::Reservation;
use jet_cat::residency::{Readings, Resident};
use jet_control::status::{
    self as shown, AdjustmentsStatus, CacheDomainStatus, CountersStatus, Occupancy, ResidentShare,
    WarmerReadings,
};
use std::collections::BTreeMap;
use std::time::Instant;

/// Converts the configured `cache.reserve` to the type that the status has for it.
pub(super) fn reserve(reserve: Reserve) -> shown::Reserve {
    match reserve {
        Reserve::Auto => shown::Reserve::Auto,
        Reserve::Off => shown::Reserve::Off,
        Reserve::Require => shown::Reserve::Require,
    }
}

/// Builds the status of resctrl groups' memory bandwidth and of the ways that devices fill.
pub(super) fn adjustments(adjustments: &Setting<Adjustments>, config: &CacheConfig) -> AdjustmentsStatus {
    AdjustmentsStatus {
        setting: adjustments.status(),
        stands: adjustments.get().and_then(|adjustments| adjustments.is_in_effect().ok()),
        throttle: config.throttle.clone(),
        device_ways: config.device_ways.map(String::from),
    }
}

/// Reads the processor's counters of the reactor's thread for the status.
pub(super) fn counters(counting: &mut Setting<CacheCounters>) -> CountersStatus {
    match counting {
        Setting::Left => CountersStatus::Off,
        Setting::Failed(reason) => CountersStatus::Failed { reason: reason.clone() },
        Setting::Set(counters) => match counters.read() {
            Ok(counts) => CountersStatus::Running(counted(counts)),
            Err(error) => CountersStatus::Failed { reason: error.to_string() },
        },
    }
}

fn counted(counts: CacheCounts) -> shown::CacheCounts {
    // Naming each count makes the compiler report a new one that is not shown.
    let CacheCounts { llc_references, llc_misses, memory_reads, remote_memory_reads, counted_permille } =
        counts;
    shown::CacheCounts { llc_references, llc_misses, memory_reads, remote_memory_reads, counted_permille }
}

/// Converts the warmer's measurements and its cost for the status.
pub(super) fn readings(readings: Readings) -> WarmerReadings {
    let Readings { resident, touches, cycles, cpu_ns, running_ns, running_cpu_ns, rate_hz, cost_permille } =
        readings;
    let resident = resident.map(|Resident { share, low, high, touches, judged_cached }| ResidentShare {
        share,
        low,
        high,
        touches,
        judged_cached,
    });
    WarmerReadings { resident, touches, cycles, cpu_ns, running_ns, running_cpu_ns, rate_hz, cost_permille }
}

fn occupancy(count: Count) -> Occupancy {
    match count {
        Count::Bytes(bytes) => Occupancy::Bytes(bytes),
        Count::Error => Occupancy::Error,
        Count::Unavailable => Occupancy::Unavailable,
        Count::Unassigned => Occupancy::Unassigned,
    }
}

/// Memory traffic in bytes, as counted at the last reading of the status, and the time of that reading.
#[derive(Default)]
pub(super) struct Bandwidth {
    last: BTreeMap<DomainId, (Instant, u64)>,
}

impl Bandwidth {
    /// Returns bytes per second since the last call; `None` at the first call, and if the count has
    /// restarted.
    fn per_second(&mut self, domain: DomainId, total: Option<Count>) -> Option<u64> {
        let (now, bytes) = (Instant::now(), total?.bytes()?);
        let (before, had) = self.last.insert(domain, (now, bytes))?;
        let span_ms = u64::try_from((now - before).as_millis()).unwrap_or(u64::MAX).max(1);
        Some(bytes.checked_sub(had)?.saturating_mul(1000) / span_ms)
    }
}

/// Whether the reservation's resctrl group is exclusive now; `None` if the group's mode cannot be read.
pub(super) fn is_exclusive(reservation: &Reservation) -> Option<bool> {
    let mode = reservation.resctrl().group(&reservation.plan().group).mode().ok()?;
    Some(mode == Mode::Exclusive)
}

/// Returns the state of a reservation in each cache. Values that cannot be read at the moment are absent.
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
            occupancy: counts.occupancy.map(occupancy),
            memory_bytes_per_s: bandwidth.per_second(planned.domain, counts.total),
        }
    };
    plan.domains.iter().map(of_domain).collect()
}

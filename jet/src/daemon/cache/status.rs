//! What `jet status` shows of the cache.

use super::Reserve;
use jet_cat::resctrl::{Count, DomainId};
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
    /// Why nothing is reserved, where it was asked for.
    pub reason: Option<String>,
    /// The group; none where nothing is reserved.
    pub group: Option<String>,
    /// Whether the kernel refuses the ways to others.
    pub exclusive: bool,
    /// What is reserved, and what of it is used.
    pub domains: Vec<CacheDomainStatus>,
    /// Ways of devices, and prefetchers.
    pub registers: RegistersStatus,
    /// What of the pool is in the cache.
    pub warmer: WarmerStatus,
}

/// What became of the processor's registers.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum RegistersStatus {
    /// They are as they were.
    Left,
    /// What is configured is set.
    Set,
    /// It could not be.
    Failed {
        /// Why.
        reason: String,
    },
}

/// One cache's part.
#[derive(Clone, Debug, Serialize)]
pub struct CacheDomainStatus {
    /// The cache's id.
    pub domain: DomainId,
    /// The ways, a hexadecimal mask.
    pub ways: String,
    /// Their bytes.
    pub bytes: u64,
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

/// What a reservation has in each domain. What cannot be read at the moment is left out.
pub(super) fn domains(reservation: &Reservation, bandwidth: &mut Bandwidth) -> Vec<CacheDomainStatus> {
    let plan = reservation.plan();
    let counts = reservation.resctrl().counts(&plan.group).unwrap_or_default();
    let of_domain = |planned: &jet_cat::plan::DomainPlan| {
        let counts = counts.get(&planned.domain).copied().unwrap_or_default();
        CacheDomainStatus {
            domain: planned.domain,
            ways: planned.ways.to_string(),
            bytes: planned.bytes,
            occupancy: counts.occupancy,
            memory_bytes_per_s: bandwidth.per_second(planned.domain, counts.total),
        }
    };
    plan.domains.iter().map(of_domain).collect()
}

//! Rows of `jet status` about the last-level cache.

use crate::text;
use jet_control::status::{
    AdjustmentsStatus, CacheDomainStatus, CacheStatus, CountersStatus, RegistersStatus, ReservationStatus,
    SettingStatus, WarmerStatus,
};
use std::time::Duration;

/// Share of the pool in the cache below which an idle page says that this is no fault.
const LITTLE: f64 = 0.5;

/// Returns rows on the part of the last-level cache that is reserved, and on how much of the pool is in the
/// cache. `idle`: nothing of the pool is in use.
pub(super) fn rows(cache: &CacheStatus, idle: bool) -> Vec<(&'static str, String)> {
    let mut rows = reservation(&cache.reservation);
    // Reserved ways keep the pool in the cache also while nothing arrives.
    let may_leave = idle && cache.reservation.domains.is_empty();
    rows.push(("  resident", resident(&cache.warmer, may_leave)));
    rows.extend(registers(&cache.registers).map(|line| ("  registers", line)));
    rows.extend(adjustments(&cache.adjustments).map(|line| ("  adjusted", line)));
    rows.extend(counted(&cache.counters).map(|line| ("  counted", line)));
    rows.push(("  as of", format!("{:.1} s ago", Duration::from_millis(cache.age_ms).as_secs_f64())));
    rows
}

fn reservation(reservation: &ReservationStatus) -> Vec<(&'static str, String)> {
    let mut lines: Vec<String> = reservation.domains.iter().map(domain).collect();
    if let Some(first) = lines.first_mut() {
        let share = match reservation.exclusive {
            Some(true) => "exclusive",
            Some(false) => "shareable",
            None => "which is not there now",
        };
        let group = reservation.group.as_deref().unwrap_or("?");
        *first = format!("group {group}, {share}; {first}");
    }
    if lines.is_empty() {
        lines.push(match &reservation.reason {
            Some(reason) => format!("none reserved: {reason}"),
            None => "none reserved (cache.reserve = \"off\")".to_owned(),
        });
    }
    let mut rows: Vec<_> = ["cache"].into_iter().chain(std::iter::repeat("")).zip(lines).collect();
    rows.extend(reservation.faults.iter().map(|fault| ("  amiss", fault.clone())));
    if reservation.reserved_again > 0 {
        rows.push(("  reserved again", format!("{} times", reservation.reserved_again)));
    }
    rows
}

fn domain(domain: &CacheDomainStatus) -> String {
    let reserved = &domain.reserved;
    let mut line = format!("domain {}: ways {}", domain.domain, domain.ways.as_ref().unwrap_or(reserved));
    match &domain.ways {
        None => line.push_str(" (cannot be read now)"),
        Some(ways) if ways != reserved => line.push_str(&format!(", where {reserved} were reserved")),
        Some(_) => line.push_str(&format!(" ({})", text::bytes(domain.bytes.unwrap_or_default()))),
    }
    if let Some(bytes) = domain.occupancy.and_then(|occupancy| occupancy.bytes()) {
        line.push_str(&format!(", {} occupied", text::bytes(bytes)));
    }
    if let Some(rate) = domain.memory_bytes_per_s {
        line.push_str(&format!(", {}/s to and from memory", text::bytes(rate)));
    }
    line
}

/// Describes how much of the pool is in the cache. `may_leave`: nothing keeps the pool there now.
fn resident(warmer: &WarmerStatus, may_leave: bool) -> String {
    match warmer {
        WarmerStatus::Running(readings) => match readings.resident {
            Some(resident) => format!(
                "{:.0} % of the pool ({:.0} to {:.0} %, by {} touches){}, at {:.2} % of a core",
                100.0 * resident.share,
                100.0 * resident.low,
                100.0 * resident.high,
                resident.touches,
                if may_leave && resident.share < LITTLE { ", which is normal while it is idle" } else { "" },
                readings.cost_permille / 10.0,
            ),
            None => "not measured yet".to_owned(),
        },
        WarmerStatus::Calibrating => "not measured yet".to_owned(),
        WarmerStatus::Failed { error } => error.clone(),
        WarmerStatus::Off => "not measured (cache.warm = false)".to_owned(),
        WarmerStatus::Unknown => "in a state that this build does not know".to_owned(),
    }
}

fn registers(registers: &RegistersStatus) -> Option<String> {
    setting(&registers.setting, || {
        match registers.stands {
            Some(false) => "set, and somebody has changed them",
            Some(true) | None => "as configured",
        }
        .to_owned()
    })
}

fn adjustments(adjustments: &AdjustmentsStatus) -> Option<String> {
    setting(&adjustments.setting, || {
        let throttle = adjustments.throttle.iter();
        let mut parts: Vec<_> =
            throttle.map(|(group, value)| format!("bandwidth of {group} {value}")).collect();
        parts.extend(adjustments.device_ways.iter().map(|ways| format!("ways of devices {ways}")));
        if adjustments.stands == Some(false) {
            parts.push("which another tool has changed".to_owned());
        }
        parts.join(", ")
    })
}

/// Describes the outcome of a setting that the configuration may ask for. Returns `None` if the setting was
/// left as it was, and the text of `set` if the configured value is set.
fn setting(setting: &SettingStatus, set: impl FnOnce() -> String) -> Option<String> {
    match setting {
        SettingStatus::Left => None,
        SettingStatus::Set => Some(set()),
        SettingStatus::Failed { reason } => Some(format!("not set: {reason}")),
        SettingStatus::Unknown => Some("in a state that this build does not know".to_owned()),
    }
}

fn counted(counters: &CountersStatus) -> Option<String> {
    let CountersStatus::Running(counts) = counters else { return None };
    let (all, missed) = (counts.llc_references, counts.llc_misses);
    #[allow(clippy::cast_precision_loss)] // a share
    let share = 100.0 * missed as f64 / all.max(1) as f64;
    Some(format!("{all} accesses of the reactor, {share:.1} % missed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::status::page::rows_of;
    use jet_control::status::{CacheCounts, Occupancy, Reserve, ResidentShare, WarmerReadings};

    fn nothing() -> CacheStatus {
        CacheStatus {
            age_ms: 400,
            reserve: Reserve::Auto,
            reservation: ReservationStatus::default(),
            registers: RegistersStatus::default(),
            adjustments: AdjustmentsStatus::default(),
            counters: CountersStatus::Off,
            warmer: WarmerStatus::Off,
        }
    }

    #[test]
    fn where_nothing_is_reserved_it_says_why() {
        let off = [
            "cache|none reserved (cache.reserve = \"off\")",
            "  resident|not measured (cache.warm = false)",
            "  as of|0.4 s ago",
        ];
        assert_eq!(rows_of(rows(&nothing(), true)), off);
        let reservation = ReservationStatus { reason: Some("no resctrl".to_owned()), ..Default::default() };
        let failed = WarmerStatus::Failed { error: "too busy".to_owned() };
        let without = CacheStatus { reservation, warmer: failed, ..nothing() };
        assert_eq!(
            rows_of(rows(&without, true)),
            ["cache|none reserved: no resctrl", "  resident|too busy", "  as of|0.4 s ago"]
        );
    }

    #[test]
    fn what_is_reserved_is_told_with_what_is_amiss() {
        let domain = |ways: Option<&str>| CacheDomainStatus {
            domain: 0,
            reserved: "3e0".to_owned(),
            ways: ways.map(str::to_owned),
            bytes: ways.map(|_| 1 << 20),
            occupancy: Some(Occupancy::Bytes(4096)),
            memory_bytes_per_s: None,
        };
        let reservation = ReservationStatus {
            group: Some("jet".to_owned()),
            exclusive: Some(true),
            domains: vec![domain(Some("3e0")), domain(Some("1")), domain(None)],
            faults: vec!["somebody took ways".to_owned()],
            reserved_again: 2,
            ..Default::default()
        };
        let resident = ResidentShare { share: 0.5, low: 0.25, high: 0.75, touches: 9, judged_cached: 4 };
        let readings =
            WarmerReadings { resident: Some(resident), cost_permille: 1.5, ..WarmerReadings::default() };
        let status = CacheStatus {
            reservation,
            registers: RegistersStatus { setting: SettingStatus::Set, stands: Some(false) },
            adjustments: AdjustmentsStatus {
                setting: SettingStatus::Set,
                stands: Some(false),
                throttle: [("others".to_owned(), 10)].into(),
                device_ways: Some("3".to_owned()),
            },
            counters: CountersStatus::Running(CacheCounts {
                llc_references: 200,
                llc_misses: 50,
                ..CacheCounts::default()
            }),
            warmer: WarmerStatus::Running(readings),
            ..nothing()
        };
        assert_eq!(
            rows_of(rows(&status, true)),
            [
                "cache|group jet, exclusive; domain 0: ways 3e0 (1.00 MiB), 4.00 KiB occupied",
                "|domain 0: ways 1, where 3e0 were reserved, 4.00 KiB occupied",
                "|domain 0: ways 3e0 (cannot be read now), 4.00 KiB occupied",
                "  amiss|somebody took ways",
                "  reserved again|2 times",
                "  resident|50 % of the pool (25 to 75 %, by 9 touches), at 0.15 % of a core",
                "  registers|set, and somebody has changed them",
                "  adjusted|bandwidth of others 10, ways of devices 3, which another tool has changed",
                "  counted|200 accesses of the reactor, 25.0 % missed",
                "  as of|0.4 s ago",
            ]
        );
    }

    #[test]
    fn a_pool_that_left_the_cache_while_idle_frightens_nobody() {
        let line = |share, idle, domains| {
            let resident = ResidentShare { share, low: share, high: share, touches: 9, judged_cached: 0 };
            let readings = WarmerReadings { resident: Some(resident), ..WarmerReadings::default() };
            let reservation = ReservationStatus { domains, ..Default::default() };
            let warmer = WarmerStatus::Running(readings);
            let rows = rows_of(rows(&CacheStatus { reservation, warmer, ..nothing() }, idle));
            rows.into_iter().find(|row| row.starts_with("  resident|")).unwrap()
        };
        let normal = |line: String| line.contains(", which is normal while it is idle, at");
        assert!(normal(line(0.0, true, vec![])));
        assert!(!normal(line(0.0, false, vec![])), "data is in it");
        assert!(!normal(line(0.0, true, vec![CacheDomainStatus::default()])), "ways are reserved for it");
        assert!(!normal(line(0.9, true, vec![])), "it is there");
    }
}

//! The rows about the last-level cache.

use super::{number, word};
use crate::commands::text;
use serde_json::Value;

/// What is reserved of the last-level cache, and what of the pool is in it.
pub(super) fn rows(status: &Value) -> Vec<(&'static str, String)> {
    let n = |pointer: &str| number(status, pointer);
    let domains = status.pointer("/cache/domains").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let line = |domain: &Value| {
        let (reserved, ways) = (word(domain, "/reserved"), domain.pointer("/ways").and_then(Value::as_str));
        let mut line = format!("domain {}: ways {}", number(domain, "/domain"), ways.unwrap_or(reserved));
        match ways {
            None => line.push_str(" (cannot be read now)"),
            Some(ways) if ways != reserved => {
                line.push_str(&format!(", where {reserved} were reserved"));
            }
            Some(_) => line.push_str(&format!(" ({})", text::bytes(number(domain, "/bytes")))),
        }
        if let Some(bytes) = domain.pointer("/occupancy/bytes").and_then(Value::as_u64) {
            line.push_str(&format!(", {} occupied", text::bytes(bytes)));
        }
        if let Some(rate) = domain.pointer("/memory_bytes_per_s").and_then(Value::as_u64) {
            line.push_str(&format!(", {}/s to and from memory", text::bytes(rate)));
        }
        line
    };
    let mut lines: Vec<String> = domains.iter().map(line).collect();
    if let Some(first) = lines.first_mut() {
        let share = match status.pointer("/cache/exclusive").and_then(Value::as_bool) {
            Some(true) => "exclusive",
            Some(false) => "shareable",
            None => "which is not there now",
        };
        *first = format!("group {}, {share}; {first}", word(status, "/cache/group"));
    }
    if lines.is_empty() {
        lines.push(match status.pointer("/cache/reason").and_then(Value::as_str) {
            Some(reason) => format!("none reserved: {reason}"),
            None => "none reserved (cache.reserve = \"off\")".to_owned(),
        });
    }
    let mut rows: Vec<_> = ["cache"].into_iter().chain(std::iter::repeat("")).zip(lines).collect();
    let faults = status.pointer("/cache/faults").and_then(Value::as_array).into_iter().flatten();
    rows.extend(faults.filter_map(Value::as_str).map(|fault| ("  amiss", fault.to_owned())));
    if n("/cache/reserved_again") > 0 {
        rows.push(("  reserved again", format!("{} times", n("/cache/reserved_again"))));
    }
    let share = |pointer: &str| 100.0 * status.pointer(pointer).and_then(Value::as_f64).unwrap_or_default();
    let resident = match word(status, "/cache/warmer/state") {
        "running" if n("/cache/warmer/resident/touches") > 0 => format!(
            "{:.0} % of the pool ({:.0} to {:.0} %, by {} touches), at {:.2} % of a core",
            share("/cache/warmer/resident/share"),
            share("/cache/warmer/resident/low"),
            share("/cache/warmer/resident/high"),
            n("/cache/warmer/resident/touches"),
            share("/cache/warmer/cost_permille") / 1000.0,
        ),
        "failed" => word(status, "/cache/warmer/error").to_owned(),
        "off" => "not measured (cache.warm = false)".to_owned(),
        _ => "not measured yet".to_owned(),
    };
    rows.push(("  resident", resident));
    if word(status, "/cache/registers/state") != "left" {
        let registers = match status.pointer("/cache/registers/stands").and_then(Value::as_bool) {
            Some(false) => "set, and somebody has changed them",
            _ => "as configured",
        };
        rows.push(("  registers", setting(status, "/cache/registers", registers.to_owned())));
    }
    if word(status, "/cache/adjustments/state") != "left" {
        let throttle = status.pointer("/cache/adjustments/throttle").and_then(Value::as_object);
        let mut parts: Vec<String> = throttle
            .into_iter()
            .flatten()
            .map(|(group, value)| format!("bandwidth of {group} {value}"))
            .collect();
        if let Some(ways) = status.pointer("/cache/adjustments/device_ways").and_then(Value::as_str) {
            parts.push(format!("ways of devices {ways}"));
        }
        if status.pointer("/cache/adjustments/stands").and_then(Value::as_bool) == Some(false) {
            parts.push("which another tool has changed".to_owned());
        }
        rows.push(("  adjusted", setting(status, "/cache/adjustments", parts.join(", "))));
    }
    if word(status, "/cache/counters/state") == "running" {
        let (all, missed) = (n("/cache/counters/llc_references"), n("/cache/counters/llc_misses"));
        #[allow(clippy::cast_precision_loss)] // a share
        let share = 100.0 * missed as f64 / all.max(1) as f64;
        rows.push(("  counted", format!("{all} accesses of the reactor, {share:.1} % missed")));
    }
    rows
}

/// What became of something that is set where that is configured.
fn setting(status: &Value, pointer: &str, set: String) -> String {
    match word(status, &format!("{pointer}/state")) {
        "set" => set,
        _ => format!("not set: {}", word(status, &format!("{pointer}/reason"))),
    }
}

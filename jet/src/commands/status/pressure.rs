//! The rows about pressure: what was done against it, and how the NIC's own actuators stand.

use super::{number, word};
use crate::commands::text;
use serde_json::Value;

/// What was done about pressure so far, and the memory for it.
pub(super) fn escape(status: &Value, slab_bytes: u64) -> Vec<(&'static str, String)> {
    let n = |pointer: &str| number(status, pointer);
    if status.pointer("/escape/enabled").and_then(Value::as_bool) != Some(true) {
        return vec![("escape", "off (escape.enabled = false)".to_owned())];
    }
    let mut actions = format!(
        "{} slabs replaced, {} copied, {} granted from memory, {} signals to senders; {} times in danger",
        n("/escape/replaced/total"),
        n("/escape/copied/total"),
        n("/escape/memory_grants/total"),
        n("/escape/signals"),
        n("/escape/danger"),
    );
    match n("/escape/suspended") {
        0 => {}
        1 => actions.push_str("; 1 application suspended now"),
        many => actions.push_str(&format!("; {many} applications suspended now")),
    }
    if n("/escape/stalled_ms") > 0 {
        actions.push_str(&format!(
            "; {} ms in which it did not get to look, not held against applications",
            n("/escape/stalled_ms")
        ));
    }
    let mut rows = vec![("escape", actions)];
    let copies: Vec<String> = [
        ("/escape/copied/in_flight", "under way"),
        ("/escape/copied/pinned", "in vain: the application was reading"),
        ("/escape/copied/failed", "not begun: no memory, or nobody to copy"),
    ]
    .into_iter()
    .filter(|&(pointer, _)| n(pointer) > 0)
    .map(|(pointer, what)| format!("{} {what}", n(pointer)))
    .collect();
    if !copies.is_empty() {
        rows.push(("  copies", copies.join("; ")));
    }
    rows.push(("  memory", escape_memory(status, slab_bytes)));
    rows
}

fn escape_memory(status: &Value, slab_bytes: u64) -> String {
    let n = |pointer: &str| number(status, pointer);
    let bytes = |pointer: &str| text::bytes(n(pointer) * slab_bytes);
    let mut out = format!(
        "{} in use, {} at most so far, of {}",
        bytes("/escape/memory/used"),
        bytes("/escape/memory/used_max"),
        bytes("/escape/memory/slabs")
    );
    if n("/escape/memory/ready") < n("/escape/memory/slabs") {
        out.push_str(&format!(" ({} ready)", bytes("/escape/memory/ready")));
    }
    if let Some(error) = status.pointer("/escape/memory/error").and_then(Value::as_str) {
        out.push_str("; ");
        out.push_str(error);
    }
    out
}

/// A row for each actuator: what became of it, its values or why it does not work, and how often it acted.
pub(super) fn congestion(status: &Value) -> Vec<(&'static str, String)> {
    let actuators = status.pointer("/congestion").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if actuators.is_empty() {
        return vec![("congestion", "no actuators".to_owned())];
    }
    let lines = actuators.iter().map(|actuator| {
        let mut line = format!("{} {}", word(actuator, "/name"), word(actuator, "/state"));
        if let Some(detail) =
            actuator.pointer("/detail").and_then(Value::as_str).filter(|text| !text.is_empty())
        {
            line.push_str(&format!(": {detail}"));
        }
        let counts =
            ["lowered", "restored", "failed"].map(|count| (count, number(actuator, &format!("/{count}"))));
        if counts.iter().any(|&(_, times)| times > 0) {
            let [lowered, restored, failed] = counts.map(|(count, times)| format!("{count} {times}"));
            line.push_str(&format!(" ({lowered}, {restored}, {failed} times)"));
        }
        line
    });
    ["congestion"].into_iter().chain(std::iter::repeat("")).zip(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::status::page::rows_of;

    #[test]
    fn escape_says_what_it_did_and_the_memory_that_it_takes() {
        let quiet = serde_json::json!({"escape": {"enabled": true,
            "memory": {"slabs": 8448, "ready": 8448, "used": 0, "used_max": 0, "error": null}}});
        let none =
            "0 slabs replaced, 0 copied, 0 granted from memory, 0 signals to senders; 0 times in danger";
        assert_eq!(
            rows_of(escape(&quiet, 4096)),
            [format!("escape|{none}"), "  memory|0 B in use, 0 B at most so far, of 33.0 MiB".to_owned()]
        );
        let busy = serde_json::json!({"escape": {"enabled": true, "suspended": 1, "danger": 2, "signals": 40, "stalled_ms": 12,
            "replaced": {"now": 1, "total": 77}, "copied": {"total": 99, "in_flight": 3, "pinned": 5, "failed": 6},
            "memory_grants": {"now": 0, "total": 64},
            "memory": {"slabs": 8448, "ready": 256, "used": 256, "used_max": 512, "error": "no more"}}});
        assert_eq!(
            rows_of(escape(&busy, 4096)),
            [
                "escape|77 slabs replaced, 99 copied, 64 granted from memory, 40 signals to senders; 2 times in \
                 danger; 1 application suspended now; 12 ms in which it did not get to look, not held against applications",
                "  copies|3 under way; 5 in vain: the application was reading; 6 not begun: no memory, or nobody to copy",
                "  memory|1.00 MiB in use, 2.00 MiB at most so far, of 33.0 MiB (1.00 MiB ready); no more",
            ]
        );
        let off = serde_json::json!({"escape": {"enabled": false}});
        assert_eq!(rows_of(escape(&off, 4096)), ["escape|off (escape.enabled = false)"]);
    }

    #[test]
    fn each_actuator_has_a_row() {
        let status = serde_json::json!({"congestion": [
            {"name": "soft", "state": "ready", "detail": "a message", "lowered": 0, "restored": 0, "failed": 0},
            {"name": "roce_np", "state": "lowered", "detail": "cnps 50 -> 0", "lowered": 3, "restored": 2, "failed": 1},
            {"name": "pcie_cong", "state": "unsupported", "detail": "it can only be observed"},
        ]});
        assert_eq!(
            rows_of(congestion(&status)),
            [
                "congestion|soft ready: a message",
                "|roce_np lowered: cnps 50 -> 0 (lowered 3, restored 2, failed 1 times)",
                "|pcie_cong unsupported: it can only be observed",
            ]
        );
        assert_eq!(rows_of(congestion(&serde_json::json!({}))), ["congestion|no actuators"]);
    }
}

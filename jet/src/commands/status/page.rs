//! A status on one page, for people.

use super::{cache, is_whole, number, pressure, rdma, word};
use crate::commands::text;
use serde_json::Value;
use std::time::Duration;

/// Sessions that the table lists.
const SESSIONS_SHOWN: usize = 100;
/// Senders that the table lists.
const PEERS_SHOWN: usize = 20;

/// All of it.
pub(super) fn page(status: &Value) -> String {
    let n = |pointer: &str| number(status, pointer);
    let slab_bytes = n("/pool/slab_bytes");
    let slabs = |pointer: &str| format!("{} ({})", n(pointer), text::bytes(n(pointer) * slab_bytes));
    let listen: Vec<_> = status
        .pointer("/listen")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let draining = status.pointer("/draining").and_then(Value::as_bool) == Some(true);
    let mut out = format!(
        "jetd {} (pid {}), up {:.1} s{}, pressure {}, listening on {}\n",
        word(status, "/version"),
        n("/pid"),
        Duration::from_millis(n("/uptime_ms")).as_secs_f64(),
        if draining { ", draining" } else { "" },
        word(status, "/pressure"),
        if listen.is_empty() { "nothing".to_owned() } else { listen.join(", ") },
    );
    let mut rows = vec![
        (
            "pool",
            format!(
                "{} slabs of {} on {} pages{}, {}",
                n("/pool/slabs"),
                text::bytes(slab_bytes),
                word(status, "/pool/pages"),
                status
                    .pointer("/pool/numa_node")
                    .and_then(Value::as_u64)
                    .map_or_else(String::new, |node| format!(" of node {node}")),
                if is_whole(status) { "whole" } else { "in use" }
            ),
        ),
        ("  free", slabs("/pool/free")),
        ("  posted", format!("{} of at most {}", slabs("/pool/posted"), n("/pool/srq_limit"))),
        ("  small messages", slabs("/pool/small_held")),
        ("  large messages", slabs("/pool/read")),
        ("  quarantined", slabs("/pool/quarantined")),
        ("  high water", slabs("/pool/high_water")),
        (
            "READs",
            format!(
                "{} in flight ({}), {} at most so far; {} messages wait, {} run",
                n("/reads/in_flight"),
                text::bytes(n("/reads/in_flight_bytes")),
                n("/reads/high_water"),
                n("/reads/waiting"),
                n("/reads/running")
            ),
        ),
        (
            "  checksums",
            format!(
                "{}: {} checked, {} READs with workers",
                word(status, "/reads/checksums"),
                text::bytes(n("/reads/checked_bytes")),
                n("/reads/checks_in_flight")
            ),
        ),
        (
            "  footprint",
            match status.pointer("/reads/footprint_window_bytes").and_then(Value::as_u64) {
                Some(bytes) => format!("follows the load: {} at most in use", text::bytes(bytes)),
                None => "what the pool has".to_owned(),
            },
        ),
        (
            "messages",
            format!(
                "{} small, {} large, {} delivered, {} redelivered, {} without an end",
                n("/messages/small"),
                n("/messages/large"),
                text::bytes(n("/messages/delivered_bytes")),
                n("/messages/redelivered"),
                n("/messages/known")
            ),
        ),
    ];
    let retired = n("/pool/retired") + n("/escape/memory/retired");
    if retired > 0 {
        let lost = text::bytes(retired * slab_bytes);
        rows.push(("lost memory", format!("{retired} slabs ({lost}): the hardware lost them, see dmesg")));
    }
    rows.extend(pressure::escape(status, slab_bytes));
    rows.extend(pressure::congestion(status));
    rows.extend(cache::rows(status));
    rows.extend(rdma::rows(status));
    rows.extend([
        ("ends", members(status, "/ends")),
        ("faults", members(status, "/faults")),
        ("nic", members(status, "/nic")),
    ]);
    out.push_str(&text::rows(&rows));
    let sessions = status.pointer("/sessions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if !sessions.is_empty() {
        let lines: Vec<_> = sessions.iter().take(SESSIONS_SHOWN).map(session_line).collect();
        out.push_str(&text::table(
            &[
                "application",
                "session",
                "class",
                "messages",
                "bytes",
                "rate",
                "held",
                "stragglers",
                "replaced",
                "copied",
                "memory",
                "backlog",
                "post-NIC p50",
                "p99",
                "p99.9",
            ],
            &lines,
        ));
        if sessions.len() > SESSIONS_SHOWN {
            out.push_str(&format!("  and {} more applications\n", sessions.len() - SESSIONS_SHOWN));
        }
    }
    let quarantined = status.pointer("/quarantined").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if !quarantined.is_empty() {
        let lines: Vec<_> = quarantined.iter().take(SESSIONS_SHOWN).map(quarantine_line).collect();
        out.push_str(&text::table(&["in quarantine", "process", "held", "comes back"], &lines));
        if quarantined.len() > SESSIONS_SHOWN {
            out.push_str(&format!("  and {} more in quarantine\n", quarantined.len() - SESSIONS_SHOWN));
        }
    }
    let peers = status.pointer("/peers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if !peers.is_empty() {
        let lines: Vec<_> = peers.iter().take(PEERS_SHOWN).map(peer_line).collect();
        out.push_str(&text::table(&["sender", "peer", "to", "arrived", "credit", "unfinished"], &lines));
        if peers.len() > PEERS_SHOWN {
            out.push_str(&format!("  and {} more senders\n", peers.len() - PEERS_SHOWN));
        }
    }
    out
}

/// What is unusual about a session, behind its name.
fn escape_words(session: &Value) -> String {
    let is = |pointer: &str| session.pointer(pointer).and_then(Value::as_bool) == Some(true);
    let stands = session.pointer("/standstill/why").and_then(Value::as_str);
    let words: Vec<_> = [("/slow", "slow"), ("/suspended", "suspended")]
        .into_iter()
        .filter(|(pointer, _)| is(pointer))
        .map(|(_, word)| word.to_owned())
        .chain(stands.map(|why| format!("stands still: {why}")))
        .collect();
    if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) }
}

/// The members of an object that are not zero.
fn members(status: &Value, pointer: &str) -> String {
    let members: Vec<_> = status
        .pointer(pointer)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(_, value)| value.as_u64() != Some(0))
        .map(|(name, value)| format!("{} {value}", name.replace('_', " ")))
        .collect();
    if members.is_empty() { "none".to_owned() } else { members.join(", ") }
}

#[allow(clippy::cast_precision_loss)] // a figure of four digits
fn session_line(session: &Value) -> Vec<String> {
    let n = |pointer: &str| number(session, pointer);
    vec![
        format!("{}{}", word(session, "/app"), escape_words(session)),
        n("/session").to_string(),
        n("/class").to_string(),
        n("/delivered_messages").to_string(),
        text::bytes(n("/delivered_bytes")),
        text::rate(n("/bytes_per_s") as f64),
        n("/held_slabs").to_string(),
        n("/straggler_slabs").to_string(),
        format!("{} of {}", n("/replaced_slabs"), n("/replaced_total")),
        format!("{} of {}", n("/copied_slabs"), n("/copied_total")),
        n("/memory_slabs").to_string(),
        n("/backlog").to_string(),
        text::span_ns(n("/post_nic_ns/p50")),
        text::span_ns(n("/post_nic_ns/p99")),
        text::span_ns(n("/post_nic_ns/p999")),
    ]
}

fn quarantine_line(row: &Value) -> Vec<String> {
    let lives = row.pointer("/holder_lives").and_then(Value::as_bool) == Some(true);
    let held = number(row, "/held_bytes");
    vec![
        word(row, "/app").to_owned(),
        row.pointer("/pid")
            .and_then(Value::as_u64)
            .map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
        text::bytes(held),
        if lives && held > 0 { "when the process ends" } else { "by itself" }.to_owned(),
    ]
}

fn peer_line(peer: &Value) -> Vec<String> {
    let n = |pointer: &str| number(peer, pointer);
    vec![
        word(peer, "/sender").to_owned(),
        n("/peer").to_string(),
        word(peer, "/app").to_owned(),
        n("/arrived").to_string(),
        n("/credit").to_string(),
        n("/unfinished").to_string(),
    ]
}

/// Rows as text, for tests.
#[cfg(test)]
pub(super) fn rows_of(rows: Vec<(&'static str, String)>) -> Vec<String> {
    rows.into_iter().map(|(name, value)| format!("{name}|{value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_shown_whole_and_names_what_is_not_zero() {
        let status = serde_json::json!({
            "version": "1", "pid": 7, "uptime_ms": 1500, "draining": false, "listen": ["tcp:h:1"], "pressure": "ok",
            "pool": {"slabs": 3072, "slab_bytes": 4096, "free": 3072, "whole": true, "pages": "small", "high_water": 256},
            "ends": {"consumed": 5, "rejected": 0},
            "escape": {"enabled": true, "replaced": {"now": 1, "total": 77}, "copied": {"total": 99}, "signals": 3,
                "memory": {"slabs": 8448, "ready": 256, "used": 256, "used_max": 512, "error": "no more"}},
            "congestion": [{"name": "soft", "state": "ready"},
                {"name": "roce_np", "state": "unsupported", "detail": "no such interface"}],
            "sessions": [{"session": 1, "app": "store", "post_nic_ns": {"p50": 186_000}, "slow": true,
                "standstill": {"limit": "pool.bytes", "why": "no room (pool.bytes)", "ms": 1500},
                "replaced_slabs": 4, "replaced_total": 5}],
            "quarantined": [{"session": 2, "app": "broken", "pid": 4711, "held_bytes": 4096, "holder_lives": true}],
            "peers": [{"peer": 1, "sender": "00ff", "app": "store"}],
        });
        let text = page(&status);
        for part in [
            "up 1.5 s",
            "whole",
            "256 (1.00 MiB)",
            "consumed 5",
            "store (slow, stands still: no room (pool.bytes))",
            "186 us",
            "broken",
            "4711",
            "when the process ends",
            "00ff",
            "tcp:h:1",
            "77 slabs replaced, 99 copied",
            "3 signals",
            "1.00 MiB in use, 2.00 MiB at most so far, of 33.0 MiB",
            "1.00 MiB ready",
            "no more",
            "soft ready\n",
            "roce_np unsupported: no such interface\n",
            "4 of 5",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("rejected"), "{text}");
        assert!(is_whole(&status));
    }
}

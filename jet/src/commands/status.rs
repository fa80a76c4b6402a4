//! `jet status`.

use super::{fail, print, print_json, seconds, text};
use jet_client::registration::{
    CONTROL_SOCKET, ControlConnection, ControlError, ControlRequest, ControlResponse,
};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between two looks with --wait-whole.
const LOOK: Duration = Duration::from_millis(20);
/// Senders that the table lists.
const PEERS_SHOWN: usize = 20;

/// Shows the state and the counters of this host's daemon.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  jet status
  jet status --json | jq .pool
  jet status --wait-whole 5      exit code 1 where slabs are still out after 5 s")]
pub(super) struct Args {
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET)]
    control_socket: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Wait, at most so long, until every slab of the pool is free or posted.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    wait_whole: Option<Duration>,
}

/// Why there is no status.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    /// No answer.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Another answer.
    #[error("the daemon gives no status: {0}")]
    Refused(String),
}

/// Asks a daemon.
pub(crate) fn ask(control_socket: &Path) -> Result<Value, StatusError> {
    let mut connection = ControlConnection::connect(control_socket)?;
    match connection.request(&ControlRequest::Status)? {
        (ControlResponse::Status { status }, _) => Ok(status),
        (ControlResponse::Error { message, .. }, _) => Err(StatusError::Refused(message)),
        _ => Err(StatusError::Refused(
            "it answers another question; use the same build of Jet at both ends".to_owned(),
        )),
    }
}

/// A number in a status, 0 where there is none.
pub(crate) fn number(status: &Value, pointer: &str) -> u64 {
    status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// Whether no slab is held.
pub(crate) fn is_whole(status: &Value) -> bool {
    status.pointer("/pool/whole").and_then(Value::as_bool) == Some(true)
}

pub(super) fn run(args: &Args) -> ExitCode {
    let deadline = args.wait_whole.map(|wait| Instant::now() + wait);
    let status = loop {
        let status = match ask(&args.control_socket) {
            Ok(status) => status,
            Err(error) => return fail(error),
        };
        match deadline {
            Some(deadline) if !is_whole(&status) && Instant::now() < deadline => {
                // The daemon tells nobody when a slab comes back, so look again.
                std::thread::sleep(LOOK);
            }
            _ => break status,
        }
    };
    if args.json {
        print_json(&status);
    } else {
        print(&human(&status));
    }
    if deadline.is_some() && !is_whole(&status) {
        return fail(format_args!(
            "{} slabs are held by large and {} by small messages, {} by dead applications",
            number(&status, "/pool/read"),
            number(&status, "/pool/small_held"),
            number(&status, "/pool/quarantined")
        ));
    }
    ExitCode::SUCCESS
}

fn word<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("?")
}

fn human(status: &Value) -> String {
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
    rows.extend(escape(status, slab_bytes));
    rows.extend(congestion(status));
    rows.extend(cache(status));
    rows.extend([
        ("ends", members(status, "/ends")),
        ("faults", members(status, "/faults")),
        ("nic", members(status, "/nic")),
    ]);
    out.push_str(&text::rows(&rows));
    let sessions = status.pointer("/sessions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if !sessions.is_empty() {
        let lines: Vec<_> = sessions.iter().map(session_line).collect();
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
    }
    let peers = status.pointer("/peers").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if !peers.is_empty() {
        let lines: Vec<_> = peers.iter().take(PEERS_SHOWN).map(peer_line).collect();
        out.push_str(&text::table(&["sender", "peer", "to", "arrived", "credit", "unfinished"], &lines));
        let all = usize::try_from(n("/peer_count")).unwrap_or(usize::MAX).max(peers.len());
        if all > PEERS_SHOWN {
            out.push_str(&format!("  and {} more senders\n", all - PEERS_SHOWN));
        }
    }
    out
}

/// What was done about pressure so far, and the memory for it.
fn escape(status: &Value, slab_bytes: u64) -> Vec<(&'static str, String)> {
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
fn congestion(status: &Value) -> Vec<(&'static str, String)> {
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

/// What is reserved of the last-level cache, and what of the pool is in it.
fn cache(status: &Value) -> Vec<(&'static str, String)> {
    let n = |pointer: &str| number(status, pointer);
    let domains = status.pointer("/cache/domains").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let line = |domain: &Value| {
        let (reserved, ways) = (word(domain, "/reserved"), domain.pointer("/ways").and_then(Value::as_str));
        let mut line = format!("domain {}: ways {}", number(domain, "/domain"), ways.unwrap_or(reserved));
        match ways {
            None => line.push_str(" (cannot be read now)"),
            Some(ways) if ways != reserved => {
                line.push_str(&format!(", where {reserved} were reserved: another tool has changed them"));
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
            None => "of which nothing can be read now",
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

/// What is unusual about a session, behind its name.
fn escape_words(session: &Value) -> String {
    let is = |pointer: &str| session.pointer(pointer).and_then(Value::as_bool) == Some(true);
    let words: Vec<_> = [("/slow", "slow"), ("/suspended", "suspended")]
        .into_iter()
        .filter(|(pointer, _)| is(pointer))
        .map(|(_, word)| word)
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
                "replaced_slabs": 4, "replaced_total": 5}],
            "peers": [{"peer": 1, "sender": "00ff", "app": "store"}],
        });
        let text = human(&status);
        for part in [
            "up 1.5 s",
            "whole",
            "256 (1.00 MiB)",
            "consumed 5",
            "store (slow)",
            "186 us",
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

    fn rows_of(rows: Vec<(&'static str, String)>) -> Vec<String> {
        rows.into_iter().map(|(name, value)| format!("{name}|{value}")).collect()
    }

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

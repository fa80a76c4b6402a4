//! Page that shows a daemon's status to people.

use super::{cache, pressure, rdma};
use crate::text;
use jet_control::status::{
    MessageStatus, PeerStatus, PoolStatus, QuarantineStatus, ReadStatus, ReadsWaitFor, SessionStatus,
    ShareStatus, Status,
};
use std::time::Duration;

/// Limit of rows that a table of the page lists. The first page of rows, which a daemon sends with its
/// status, has fewer.
const SHOWN: usize = 100;

/// Columns of the table of applications.
pub(super) const SESSIONS: &[&str] = &[
    "application",
    "session",
    "senders",
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
];

/// Columns of the table of sessions in quarantine.
pub(super) const QUARANTINED: &[&str] = &["in quarantine", "process", "held", "comes back"];

/// Columns of the table of senders.
pub(super) const PEERS: &[&str] = &[
    "sender",
    "peer",
    "to",
    "session",
    "arrived",
    "credit",
    "unfinished",
    "READs",
    "in flight",
    "window",
    "rate",
    "oldest READ",
];

/// Formats a status as text: a head, rows of names and values, and tables.
pub(super) fn page(status: &Status) -> String {
    let mut out = head(status);
    let slab_bytes = u64::from(status.pool.slab_bytes);
    let mut rows = pool(&status.pool);
    rows.extend(reads(&status.reads));
    rows.push(("messages", messages(&status.messages)));
    if let Some(longest_ns) = status.longest_turn_ns {
        rows.push(("longest turn", format!("{} of the reactor, so far", text::span_ns(longest_ns))));
    }
    let retired = u64::from(status.pool.retired) + u64::from(status.escape.memory.retired);
    if retired > 0 {
        let lost = text::bytes(retired * slab_bytes);
        rows.push(("lost memory", format!("{retired} slabs ({lost}): the hardware lost them, see dmesg")));
    }
    rows.extend(pressure::escape(&status.escape, slab_bytes));
    rows.extend(pressure::congestion(&status.congestion));
    let idle = status.pool.whole;
    rows.extend(status.cache.iter().flat_map(|cache| cache::rows(cache, idle)));
    rows.extend(status.rdma.iter().flat_map(rdma::rows));
    rows.extend([
        ("ends", counts(status.ends.counts())),
        ("faults", counts(status.faults.counts())),
        ("nic", counts(status.nic.counts())),
    ]);
    out.push_str(&text::rows(&rows));
    let listed = &status.rows;
    let sessions = Table { head: SESSIONS, more: "more applications" };
    sessions.put(&mut out, &listed.sessions, status.session_count, session_line);
    let quarantined = Table { head: QUARANTINED, more: "more in quarantine" };
    quarantined.put(&mut out, &listed.quarantined, status.quarantined_count, quarantine_line);
    let peers = Table { head: PEERS, more: "more senders" };
    peers.put(&mut out, &listed.peers, status.peer_count, peer_line);
    out.push_str("(jet status --legend: what each line and column means)\n");
    out
}

/// Table of applications, sessions in quarantine or senders. Lists only the first rows.
struct Table {
    head: &'static [&'static str],
    more: &'static str,
}

impl Table {
    /// Appends the first [`SHOWN`] of `rows` to `out`, one line each, and the number of rows that are not
    /// listed. `count` is the number of all rows that the daemon has, sent or not.
    fn put<T>(&self, out: &mut String, rows: &[T], count: u32, line: fn(&T) -> Vec<String>) {
        if rows.is_empty() {
            return;
        }
        let lines: Vec<_> = rows.iter().take(SHOWN).map(line).collect();
        out.push_str(&text::table(self.head, &lines));
        let more = (count as usize).max(rows.len()) - lines.len();
        if more > 0 {
            out.push_str(&format!("  and {more} {}\n", self.more));
        }
    }
}

fn head(status: &Status) -> String {
    format!(
        "jetd {} (pid {}), up {:.1} s{}, pressure {}, listening on {}\n",
        status.version,
        status.pid,
        Duration::from_millis(status.uptime_ms).as_secs_f64(),
        if status.draining { ", draining" } else { "" },
        status.pressure,
        if status.listen.is_empty() { "nothing".to_owned() } else { status.listen.join(", ") },
    )
}

fn pool(pool: &PoolStatus) -> Vec<(&'static str, String)> {
    let slab_bytes = u64::from(pool.slab_bytes);
    let slabs = |slabs: u32| format!("{slabs} ({})", text::bytes(u64::from(slabs) * slab_bytes));
    let all = format!(
        "{} slabs of {} on {} pages{}, {}",
        pool.slabs,
        text::bytes(slab_bytes),
        pool.pages,
        pool.numa_node.map_or_else(String::new, |node| format!(" of node {node}")),
        if pool.whole { "whole" } else { "in use" }
    );
    vec![
        ("pool", all),
        ("  free", slabs(pool.free)),
        ("  posted", format!("{} of at most {}", slabs(pool.posted), pool.srq_limit)),
        ("  small messages", slabs(pool.small_held)),
        ("  large messages", slabs(pool.read)),
        ("  quarantined", slabs(pool.quarantined)),
        ("  high water", slabs(pool.high_water)),
    ]
}

fn reads(reads: &ReadStatus) -> Vec<(&'static str, String)> {
    let waits_for = match reads.wait_for {
        ReadsWaitFor::Nothing | ReadsWaitFor::Unknown => "",
        ReadsWaitFor::Room => ", for room in the pool",
        ReadsWaitFor::Window => ", for READs in flight to end",
        ReadsWaitFor::Senders => ", for what senders have under way",
    };
    let in_flight = format!(
        "{} in flight ({}), {} at most so far; {} messages wait{waits_for}, {} run",
        reads.in_flight,
        text::bytes(reads.in_flight_bytes),
        reads.high_water,
        reads.waiting,
        reads.running
    );
    let checksums = format!(
        "{}: {} checked, {} READs with workers",
        reads.checksums,
        text::bytes(reads.checked_bytes),
        reads.checks_in_flight
    );
    let footprint = match reads.footprint_window_bytes {
        Some(bytes) => format!("follows the load: {} at most in use", text::bytes(bytes)),
        None => "what the pool has".to_owned(),
    };
    vec![("READs", in_flight), ("  checksums", checksums), ("  footprint", footprint)]
}

fn messages(messages: &MessageStatus) -> String {
    format!(
        "{} small, {} large, {} delivered, {} redelivered, {} replies, {} without an end",
        messages.small,
        messages.large,
        text::bytes(messages.delivered_bytes),
        messages.redelivered,
        messages.replies,
        messages.known
    )
}

/// Returns the counts that are not zero, each with its name, as one text.
fn counts(counts: impl IntoIterator<Item = (&'static str, u64)>) -> String {
    let counts: Vec<_> = counts
        .into_iter()
        .filter(|&(_, count)| count > 0)
        .map(|(name, count)| format!("{} {count}", name.replace('_', " ")))
        .collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

/// Describes the unusual states of a session, in parentheses, as they follow the session's name on the page.
/// Returns an empty string if there are none.
fn unusual(session: &SessionStatus) -> String {
    let words: Vec<_> = [(session.slow, "slow"), (session.suspended, "suspended")]
        .into_iter()
        .filter(|&(is_so, _)| is_so)
        .map(|(_, word)| word.to_owned())
        .chain(session.standstill.iter().map(|standstill| format!("stands still: {}", standstill.why)))
        .collect();
    if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) }
}

#[allow(clippy::cast_precision_loss)] // a figure of four digits
fn session_line(session: &SessionStatus) -> Vec<String> {
    vec![
        format!("{}{}", session.app, unusual(session)),
        session.session.to_string(),
        session.senders.map_or_else(|| "-".to_owned(), |senders| senders.to_string()),
        session.class.to_string(),
        session.delivered_messages.to_string(),
        text::bytes(session.delivered_bytes),
        text::rate(session.bytes_per_s as f64),
        session.held_slabs.to_string(),
        session.straggler_slabs.to_string(),
        format!("{} of {}", session.replaced_slabs, session.replaced_total),
        format!("{} of {}", session.copied_slabs, session.copied_total),
        session.memory_slabs.to_string(),
        session.backlog.to_string(),
        text::span_ns(session.post_nic_ns.p50),
        text::span_ns(session.post_nic_ns.p99),
        text::span_ns(session.post_nic_ns.p999),
    ]
}

fn quarantine_line(row: &QuarantineStatus) -> Vec<String> {
    vec![
        row.app.clone(),
        row.pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
        text::bytes(row.held_bytes),
        if row.holder_lives && row.held_bytes > 0 { "when the process ends" } else { "by itself" }.to_owned(),
    ]
}

fn peer_line(peer: &PeerStatus) -> Vec<String> {
    vec![
        peer.sender.clone(),
        peer.peer.to_string(),
        peer.app.clone(),
        peer.session.map_or_else(|| "-".to_owned(), |session| session.to_string()),
        peer.arrived.to_string(),
        peer.credit.to_string(),
        peer.unfinished.to_string(),
    ]
    .into_iter()
    .chain(share_cells(peer.share.as_ref()))
    .collect()
}

/// Formats what a sender has in flight; a daemon that does not tell it is shown with dashes.
#[allow(clippy::cast_precision_loss)] // a figure of four digits
fn share_cells(share: Option<&ShareStatus>) -> [String; 5] {
    let Some(share) = share else { return ["-"; 5].map(str::to_owned) };
    let slow = if share.slow && share.reads > 0 { " (slow)" } else { "" };
    [
        format!("{}{slow}", share.reads),
        text::bytes(share.in_flight_bytes),
        text::bytes(share.window_bytes),
        if share.bytes_per_s > 0 { text::rate(share.bytes_per_s as f64) } else { "-".to_owned() },
        if share.reads > 0 {
            text::span_ns(share.oldest_ms.saturating_mul(1_000_000))
        } else {
            "-".to_owned()
        },
    ]
}

/// Formats rows as text, for tests. The legend must have each of them.
#[cfg(test)]
pub(super) fn rows_of(rows: Vec<(&'static str, String)>) -> Vec<String> {
    for (name, value) in &rows {
        let explained = name.is_empty() || super::legend::explains(name);
        assert!(explained, "the legend does not say what {name:?} means: {value}");
    }
    rows.into_iter().map(|(name, value)| format!("{name}|{value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_control::status::{EndCounts, Pages, PostNicStatus, Pressure, StandstillStatus};

    #[test]
    fn a_status_is_shown_whole_and_names_what_is_not_zero() {
        let mut status = Status {
            version: "1".to_owned(),
            pid: 7,
            uptime_ms: 1500,
            listen: vec!["tcp:h:1".to_owned()],
            pressure: Pressure::Ok,
            longest_turn_ns: Some(1_234_000),
            pool: PoolStatus {
                slabs: 3072,
                slab_bytes: 4096,
                free: 3072,
                whole: true,
                pages: Pages::Small,
                high_water: 256,
                numa_node: Some(1),
                ..Default::default()
            },
            ends: EndCounts { consumed: 5, ..Default::default() },
            ..Default::default()
        };
        status.rows.sessions.push(SessionStatus {
            session: 1,
            app: "store".to_owned(),
            post_nic_ns: PostNicStatus { p50: 186_000, ..Default::default() },
            slow: true,
            standstill: Some(StandstillStatus {
                limit: "pool.bytes".to_owned(),
                why: "no room (pool.bytes)".to_owned(),
                ms: 1500,
            }),
            replaced_slabs: 4,
            replaced_total: 5,
            ..Default::default()
        });
        status.rows.quarantined.push(QuarantineStatus {
            session: 2,
            app: "broken".to_owned(),
            pid: Some(4711),
            held_bytes: 4096,
            holder_lives: true,
            ..Default::default()
        });
        let peer = |peer| PeerStatus { peer, sender: format!("{peer:04x}"), ..Default::default() };
        status.rows.peers = (0..=100).map(peer).collect();
        // The daemon has more senders than it sent rows for.
        status.peer_count = 4096;
        let text = page(&status);
        for part in [
            "jetd 1 (pid 7), up 1.5 s, pressure ok, listening on tcp:h:1\n",
            "3072 slabs of 4.00 KiB on small pages of node 1, whole",
            "256 (1.00 MiB)",
            "1.23 ms of the reactor, so far\n",
            "consumed 5\n",
            "store (slow, stands still: no room (pool.bytes))",
            "186 us",
            "broken",
            "4711",
            "when the process ends",
            "0063",
            "and 3996 more senders",
            "4 of 5",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("rejected") && !text.contains("0064"), "{text}");
        let named = |rows| rows_of(rows).len();
        let all = named(pool(&status.pool)) + named(reads(&status.reads));
        assert_eq!(all, 10);
        for line in ["messages", "longest turn", "lost memory", "ends", "faults", "nic"] {
            assert!(crate::commands::status::legend::explains(line), "{line}");
        }
    }
}

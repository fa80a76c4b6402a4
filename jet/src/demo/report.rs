//! Results of the demo's runs, and the table that shows them.

use super::verify::Differences;
use crate::files::receiving::ReceiveReport;
use crate::files::sending::SendReport;
use crate::files::spans::{Quantiles, Spans};
use crate::text;
use jet_control::status::Status;
use serde::Serialize;

/// Results of the demo's run over one fabric: one column of the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct RunResult {
    pub fabric: String,
    pub senders: u64,
    pub files: u64,
    pub bytes: u64,
    pub messages: u64,
    pub seconds: f64,
    pub bytes_per_s: f64,
    pub latency_ns: Quantiles,
    pub post_nic_ns: Quantiles,
    pub pool_bytes: u64,
    pub pool_high_water_bytes: u64,
    pub pool_whole: bool,
    pub reads_high_water: u64,
    pub refused: u64,
    pub retried: u64,
    pub redelivered: u64,
    pub bytes_direct: u64,
    pub bytes_buffered: u64,
    pub engine: String,
    pub mismatches: u64,
    pub mismatches_named: Vec<String>,
}

impl RunResult {
    /// Puts together the results of a run from the reports of senders and receiver, the daemon's status after
    /// everything was delivered, the number of files that were compared, and their differences.
    #[allow(clippy::cast_precision_loss)] // a figure of four digits
    pub(super) fn new(
        fabric: &str,
        seconds: f64,
        senders: &[SendReport],
        received: &ReceiveReport,
        status: &Status,
        (files, differences): (u64, Differences),
    ) -> Self {
        let mut latency = Spans::default();
        for sender in senders {
            latency.add_counts(&sender.latency_counts);
        }
        let sum = |figure: fn(&SendReport) -> u64| senders.iter().map(figure).sum();
        let post_nic = status.rows.sessions.first().map(|session| session.post_nic_ns).unwrap_or_default();
        let slab_bytes = u64::from(status.pool.slab_bytes);
        let bytes: u64 = sum(|sender| sender.bytes);
        Self {
            fabric: fabric.to_owned(),
            senders: senders.len() as u64,
            files,
            bytes,
            messages: sum(|sender| sender.messages),
            seconds,
            bytes_per_s: bytes as f64 / seconds.max(1e-9),
            latency_ns: latency.quantiles(),
            post_nic_ns: Quantiles {
                p50: post_nic.p50,
                p99: post_nic.p99,
                p999: post_nic.p999,
                max: post_nic.max,
            },
            pool_bytes: u64::from(status.pool.slabs) * slab_bytes,
            pool_high_water_bytes: u64::from(status.pool.high_water) * slab_bytes,
            pool_whole: status.pool.whole,
            reads_high_water: u64::from(status.reads.high_water),
            refused: sum(|sender| sender.refused),
            retried: sum(|sender| sender.retried),
            redelivered: status.messages.redelivered,
            bytes_direct: received.received.bytes_direct,
            bytes_buffered: received.received.bytes_buffered,
            engine: received.engine.clone(),
            mismatches: differences.count,
            mismatches_named: differences.named,
        }
    }

    pub(super) fn has_passed(&self) -> bool {
        self.mismatches == 0 && self.pool_whole
    }
}

/// Formats the table of results, with a line for each figure and a column for each fabric.
pub(super) fn table(rows: &[RunResult]) -> String {
    type Figure = (&'static str, fn(&RunResult) -> String);
    let figures: [Figure; 16] = [
        ("files, each checked by hash", |row| row.files.to_string()),
        ("files or names that differ", |row| row.mismatches.to_string()),
        ("bytes", |row| text::bytes(row.bytes)),
        ("messages", |row| row.messages.to_string()),
        ("throughput", |row| text::rate(row.bytes_per_s)),
        ("time", |row| format!("{:.2} s", row.seconds)),
        ("latency p50 / p99 / p99.9", |row| quantiles(row.latency_ns)),
        ("post-NIC p50 / p99 / p99.9", |row| quantiles(row.post_nic_ns)),
        ("pool high water", |row| {
            format!("{} of {}", text::bytes(row.pool_high_water_bytes), text::bytes(row.pool_bytes))
        }),
        ("pool whole at the end", |row| if row.pool_whole { "yes" } else { "no" }.to_owned()),
        ("READs at once, at most", |row| row.reads_high_water.to_string()),
        ("refused / retried", |row| format!("{} / {}", row.refused, row.retried)),
        ("redelivered", |row| row.redelivered.to_string()),
        ("written with", |row| row.engine.clone()),
        ("  O_DIRECT from the slabs", |row| text::bytes(row.bytes_direct)),
        ("  through the page cache", |row| text::bytes(row.bytes_buffered)),
    ];
    let lines: Vec<Vec<String>> = figures
        .iter()
        .map(|(name, figure)| std::iter::once((*name).to_owned()).chain(rows.iter().map(figure)).collect())
        .collect();
    let head: Vec<&str> = std::iter::once("").chain(rows.iter().map(|row| row.fabric.as_str())).collect();
    text::table(&head, &lines)
}

fn quantiles(spans: Quantiles) -> String {
    [spans.p50, spans.p99, spans.p999].map(text::span_ns).join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::receiving::Received;
    use jet_control::status::{PoolStatus, PostNicStatus, ReadStatus, SessionStatus};

    #[test]
    fn senders_are_put_together() {
        let sender = |span_ns: u64| SendReport {
            files: 2,
            bytes: 10,
            messages: 3,
            refused: 1,
            latency_counts: vec![(span_ns, 3)],
            ..Default::default()
        };
        let mut status = Status {
            pool: PoolStatus { slabs: 3, slab_bytes: 4096, high_water: 2, whole: true, ..Default::default() },
            reads: ReadStatus { high_water: 9, ..Default::default() },
            ..Default::default()
        };
        let post_nic_ns = PostNicStatus { p50: 7, ..Default::default() };
        status.rows.sessions.push(SessionStatus { post_nic_ns, ..Default::default() });
        let received = ReceiveReport {
            received: Received { bytes_direct: 12, bytes_buffered: 8, ..Default::default() },
            engine: "io_uring".to_owned(),
            ..Default::default()
        };
        let row = RunResult::new(
            "shm",
            2.0,
            &[sender(1000), sender(9000)],
            &received,
            &status,
            (4, Differences::default()),
        );
        assert_eq!((row.files, row.bytes, row.refused, row.reads_high_water), (4, 20, 2, 9));
        assert_eq!((row.pool_high_water_bytes, row.post_nic_ns.p50), (8192, 7));
        assert!(row.latency_ns.p50 < 1100 && row.latency_ns.p99 > 8900, "{:?}", row.latency_ns);
        assert!(row.has_passed() && table(&[row]).contains("io_uring"));
    }
}

//! Reports of a sender.

use crate::files::spans::{Quantiles, Spans};
use jet_wire::message::EndCounts;
use serde::{Deserialize, Serialize};

/// Limit of the failures that are kept one by one. Further failures are only counted.
const FAILURES_MAX: usize = 1000;

/// File or directory that was not sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Path at the sender, in printable form.
    pub path: String,
    /// Reason of the failure, and what to change.
    pub error: String,
}

/// Counts of what was sent so far.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Files that have their names at the receiver.
    pub files: u64,
    /// Directories that were sent.
    pub directories: u64,
    /// Files and directories that were not sent.
    pub failed: u64,
    /// Files and directories that were found and never tried, because sending stopped before.
    pub not_tried: u64,
    /// Symbolic links, devices, sockets and pipes, which were left out.
    pub skipped: u64,
    /// Bytes of files that were consumed.
    pub bytes: u64,
    /// Bytes of holes, of which only the offset and the length are sent.
    pub hole_bytes: u64,
    /// Number of times that files were sent again from their beginning.
    pub files_again: u64,
    /// Messages that have ended, in whatever way.
    pub messages: u64,
    /// Seconds since the start.
    pub seconds: f64,
    /// Spans from the submission of a message to its end.
    pub latency: Spans,
    /// Counts of the ends of messages, by kind.
    pub ends: EndCounts,
    /// Messages that were sent again because a connection ended.
    pub redelivered: u64,
    /// Messages that were sent again because of the end that they had.
    pub retried: u64,
    /// Messages that were sent without the checksum that was asked for.
    pub unchecked: u64,
    /// First failures, each with its path and reason.
    pub failures: Vec<Failure>,
    /// Reason why sending stopped before everything was tried, if it did.
    pub stopped: Option<String>,
}

impl Sent {
    pub(super) fn add_failure(&mut self, failure: Failure) {
        self.failed += 1;
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(failure);
        }
    }

    /// Returns whether all files and directories that were found were sent.
    pub fn is_complete(&self) -> bool {
        self.failed == 0 && self.not_tried == 0 && self.stopped.is_none()
    }

    /// Returns the number of files and directories that were to be sent.
    pub fn total(&self) -> u64 {
        self.files + self.directories + self.failed + self.not_tried
    }

    /// Returns the report that `jet send --json` prints. `to` and `app` name the receiver; `proof` is the
    /// kind of hash.
    pub fn report(&self, to: String, app: String, proof: String) -> SendReport {
        SendReport {
            to,
            app,
            files: self.files,
            directories: self.directories,
            failed: self.failed,
            not_tried: self.not_tried,
            total: self.total(),
            skipped: self.skipped,
            bytes: self.bytes,
            hole_bytes: self.hole_bytes,
            sent_again: self.files_again,
            proof,
            messages: self.messages,
            seconds: self.seconds,
            bytes_per_s: self.bytes_per_s(),
            latency_ns: self.latency.quantiles(),
            latency_counts: self.latency.counts(),
            ends: self.ends,
            refused: self.ends.refused(),
            redelivered: self.redelivered,
            retried: self.retried,
            unchecked: self.unchecked,
            failures: self.failures.clone(),
            stopped: self.stopped.clone(),
        }
    }

    /// Returns the bytes sent per second, or 0 before any time has passed.
    pub fn bytes_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / self.seconds } else { 0.0 }
    }
}

/// Report that `jet send --json` prints (docs/json.md).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SendReport {
    /// Address where the receiver's daemon listens, as it was given.
    pub to: String,
    /// Name of the application at the receiver.
    pub app: String,
    /// Files that have their names at the receiver.
    pub files: u64,
    /// Directories that were sent.
    pub directories: u64,
    /// Files and directories that were not sent.
    pub failed: u64,
    /// Files and directories that were found and never tried, because sending stopped before.
    pub not_tried: u64,
    /// Sum of `files`, `directories`, `failed` and `not_tried`.
    pub total: u64,
    /// Symbolic links, devices, sockets and pipes, which were left out.
    pub skipped: u64,
    /// Bytes of files that were consumed.
    pub bytes: u64,
    /// Bytes of holes, of which only the offset and the length are sent.
    pub hole_bytes: u64,
    /// Number of times that files were sent again from their beginning.
    pub sent_again: u64,
    /// Kind of hash that files were proven with: `fast`, `blake3` or `off`.
    pub proof: String,
    /// Messages that have ended, in whatever way.
    pub messages: u64,
    /// Seconds since the start.
    pub seconds: f64,
    /// Bytes sent per second.
    pub bytes_per_s: f64,
    /// Quantiles of the spans from the submission of a message to its end, in nanoseconds.
    pub latency_ns: Quantiles,
    /// Counts of these spans: each span in nanoseconds, and the number of messages that took it.
    pub latency_counts: Vec<(u64, u64)>,
    /// Counts of the ends of messages, by kind.
    pub ends: EndCounts,
    /// Number of ends that are not `consumed`.
    pub refused: u64,
    /// Messages that were sent again because a connection ended.
    pub redelivered: u64,
    /// Messages that were sent again because of the end that they had.
    pub retried: u64,
    /// Messages that were sent without the checksum that was asked for.
    pub unchecked: u64,
    /// First failures, each with its path and reason.
    pub failures: Vec<Failure>,
    /// Reason why sending stopped before everything was tried, if it did.
    pub stopped: Option<String>,
}

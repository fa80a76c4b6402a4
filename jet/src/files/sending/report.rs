//! What was sent.

use crate::files::spans::{Quantiles, Spans};
use jet_wire::message::EndCounts;
use serde::{Deserialize, Serialize};

/// Failures that are kept one by one.
const FAILURES_MAX: usize = 1000;

/// A file that was not sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Where it is, printable.
    pub path: String,
    /// Why, and what to change.
    pub error: String,
}

/// What was sent so far.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Files that have their names at the receiver.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Files and directories that were not sent.
    pub failed: u64,
    /// Files and directories that were found and never tried, because sending stopped before.
    pub not_tried: u64,
    /// Symbolic links, devices, sockets, pipes.
    pub skipped: u64,
    /// Bytes that were consumed.
    pub bytes: u64,
    /// Bytes of holes, of which nothing but their length travels.
    pub hole_bytes: u64,
    /// How often files were sent again from their beginning.
    pub files_again: u64,
    /// Messages that have their end.
    pub messages: u64,
    /// Since the start.
    pub seconds: f64,
    /// From the submission of a message to its end.
    pub latency: Spans,
    /// Ends of messages.
    pub ends: EndCounts,
    /// Messages that were sent again because a connection ended.
    pub redelivered: u64,
    /// Messages that were sent again because of their end.
    pub retried: u64,
    /// Messages that went without the checksum that was asked for.
    pub unchecked: u64,
    /// The first failures, one by one.
    pub failures: Vec<Failure>,
    /// Why not everything was tried, if so.
    pub stopped: Option<String>,
}

impl Sent {
    pub(super) fn add_failure(&mut self, failure: Failure) {
        self.failed += 1;
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(failure);
        }
    }

    /// Whether everything that is a file or a directory was sent.
    pub fn is_complete(&self) -> bool {
        self.failed == 0 && self.not_tried == 0 && self.stopped.is_none()
    }

    /// Every file and directory that was to be sent.
    pub fn total(&self) -> u64 {
        self.files + self.directories + self.failed + self.not_tried
    }

    /// What `jet send --json` prints.
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

    /// Bytes a second.
    pub fn bytes_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / self.seconds } else { 0.0 }
    }
}

/// What `jet send --json` prints (docs/json.md).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SendReport {
    /// Where the receiver's daemon listens, as it was given.
    pub to: String,
    /// The application there.
    pub app: String,
    /// Files that have their names at the receiver.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Files and directories that were not sent.
    pub failed: u64,
    /// Files and directories that were found and never tried, because sending stopped before.
    pub not_tried: u64,
    /// The four before together.
    pub total: u64,
    /// Symbolic links, devices, sockets, pipes: left out.
    pub skipped: u64,
    /// Bytes that were consumed.
    pub bytes: u64,
    /// Bytes of holes, of which nothing but their length travels.
    pub hole_bytes: u64,
    /// How often files were sent again from their beginning.
    pub sent_again: u64,
    /// `fast`, `blake3` or `off`.
    pub proof: String,
    /// Messages that have their end.
    pub messages: u64,
    /// Since the start.
    pub seconds: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// From the submission of a message to its end.
    pub latency_ns: Quantiles,
    /// The same one by one: spans in nanoseconds, and how many messages took each.
    pub latency_counts: Vec<(u64, u64)>,
    /// How many messages ended how.
    pub ends: EndCounts,
    /// All ends together that are not `consumed`.
    pub refused: u64,
    /// Messages that were sent again because a connection ended.
    pub redelivered: u64,
    /// Messages that were sent again because of their end.
    pub retried: u64,
    /// Messages that went without the checksum that was asked for.
    pub unchecked: u64,
    /// The first failures, one by one.
    pub failures: Vec<Failure>,
    /// Why not everything was tried, if so.
    pub stopped: Option<String>,
}

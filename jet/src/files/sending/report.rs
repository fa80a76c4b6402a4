//! What was sent.

use crate::files::spans::Spans;
use jet_client::send::AckStatus;
use serde::Serialize;

/// Failures that are kept one by one.
const FAILURES_MAX: usize = 1000;

/// A file that was not sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Where it is, printable.
    pub path: String,
    /// Why, and what to change.
    pub error: String,
}

/// Ends of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // the names are those of `AckStatus`
pub struct Ends {
    pub consumed: u64,
    pub rejected: u64,
    pub busy: u64,
    pub no_app: u64,
    pub denied: u64,
    pub too_large: u64,
    pub corrupt: u64,
    pub app_gone: u64,
    pub draining: u64,
    pub peer_lost: u64,
}

impl Ends {
    pub(super) fn count(&mut self, status: AckStatus) {
        *match status {
            AckStatus::Consumed => &mut self.consumed,
            AckStatus::Rejected(_) => &mut self.rejected,
            AckStatus::Busy => &mut self.busy,
            AckStatus::NoApp => &mut self.no_app,
            AckStatus::Denied => &mut self.denied,
            AckStatus::TooLarge => &mut self.too_large,
            AckStatus::Corrupt => &mut self.corrupt,
            AckStatus::AppGone => &mut self.app_gone,
            AckStatus::Draining => &mut self.draining,
            AckStatus::PeerLost => &mut self.peer_lost,
        } += 1;
    }

    /// All that are not `consumed`.
    pub fn refused(&self) -> u64 {
        self.rejected
            + self.busy
            + self.no_app
            + self.denied
            + self.too_large
            + self.corrupt
            + self.app_gone
            + self.draining
            + self.peer_lost
    }
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
    pub ends: Ends,
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

    /// Bytes a second.
    pub fn bytes_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 / self.seconds } else { 0.0 }
    }
}

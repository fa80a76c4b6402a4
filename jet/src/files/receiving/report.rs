//! Reports of a receiver.

use serde::{Deserialize, Serialize};

/// Counts of everything that a receiver received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Files that took their names.
    pub files: u64,
    /// Directories that were received.
    pub directories: u64,
    /// Messages that were consumed.
    pub messages: u64,
    /// Bytes that were written to files.
    pub bytes: u64,
    /// Bytes that were written with `O_DIRECT`, from the slabs to the device.
    pub bytes_direct: u64,
    /// Bytes that were written through the page cache.
    pub bytes_buffered: u64,
    /// Messages that were rejected, except those whose path was unknown, or whose part was gone or not whole.
    pub rejected: u64,
    /// Messages that were rejected because their part was gone or not whole: their senders send the file
    /// again.
    pub lost: u64,
    /// Files that were read again and found to be what their senders read.
    pub proven: u64,
    /// Messages that were marked redelivered.
    pub redelivered: u64,
    /// Messages that began to arrive and of which the rest did not arrive.
    pub withdrawn: u64,
    /// Files that their senders gave up.
    pub abandoned: u64,
    /// Slices that were held on purpose, as [`super::Options::slow`] says.
    pub held: u64,
}

/// Report that `jet recv --json` prints (docs/json.md).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReceiveReport {
    /// Counts of everything that was received.
    #[serde(flatten)]
    pub received: Received,
    /// Name of the application that received.
    pub app: String,
    /// Class of the application.
    pub class: u8,
    /// Whether the application takes escape memory instead of waiting.
    pub memory: bool,
    /// The `--slow` option as text, if the receiver was slow on purpose.
    pub slow: Option<String>,
    /// Seconds since the start.
    pub seconds: f64,
    /// Bytes received per second.
    pub bytes_per_s: f64,
    /// Means by which files were written: `io_uring` or `pwrite`.
    pub engine: String,
    /// Reason why io_uring cannot be used, if it was tried in vain.
    pub io_uring_refused: Option<String>,
    /// Reason why `O_DIRECT` cannot be used, if it was tried in vain.
    pub direct_refused: Option<String>,
    /// Whether files are on stable storage before they are acknowledged.
    pub fsync: bool,
    /// Number of registrations of the application.
    pub sessions: u64,
    /// Reason of the end: `stopped`, `count`, `idle` or `failed`.
    pub ended: String,
}

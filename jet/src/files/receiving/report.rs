//! What was received.

use serde::{Deserialize, Serialize};

/// What was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Received {
    /// Files that took their names.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Messages that were consumed.
    pub messages: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Of these with `O_DIRECT`, from the slabs to the device.
    pub bytes_direct: u64,
    /// Of these through the page cache.
    pub bytes_buffered: u64,
    /// Messages that were rejected, beside those whose senders send again what was lost.
    pub rejected: u64,
    /// Messages whose part was gone or not whole: their senders send the file again.
    pub lost: u64,
    /// Files that were read again to prove what an earlier receiver wrote.
    pub proven: u64,
    /// Messages that were marked redelivered.
    pub redelivered: u64,
    /// Messages whose rest did not come.
    pub withdrawn: u64,
    /// Files that their senders gave up.
    pub abandoned: u64,
    /// Slices that were held on purpose, see [`super::Options::slow`].
    pub held: u64,
}

/// What `jet recv --json` prints (docs/json.md).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReceiveReport {
    /// What was received.
    #[serde(flatten)]
    pub received: Received,
    /// The application's name.
    pub app: String,
    /// Its class.
    pub class: u8,
    /// Whether it takes memory instead of waiting.
    pub memory: bool,
    /// How it is slow on purpose.
    pub slow: Option<String>,
    /// Since the start.
    pub seconds: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// What wrote: `io_uring` or `pwrite`.
    pub engine: String,
    /// Why io_uring cannot be used, if it was tried in vain.
    pub io_uring_refused: Option<String>,
    /// Why `O_DIRECT` cannot be used, if it was tried in vain.
    pub direct_refused: Option<String>,
    /// Whether files are on stable storage before they are acknowledged.
    pub fsync: bool,
    /// How often it registered.
    pub sessions: u64,
    /// `stopped`, `count`, `idle` or `failed`.
    pub ended: String,
}

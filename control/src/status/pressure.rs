//! Pressure on the pool, and what is done about it (Jet §4.3).

use super::words;
use serde::{Deserialize, Serialize};

words! {
    /// How full the pool is.
    Pressure {
        /// There is room.
        Ok = "ok",
        /// There is little: what is held too long escapes.
        Unsafe = "unsafe",
        /// There is hardly any: senders are slowed down, too.
        Danger = "danger",
    }
}

/// Escape from pressure, in slabs unless a name says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscapeStatus {
    /// Whether anything is ever done.
    pub enabled: bool,
    /// Escape memory.
    pub memory: EscapeMemoryStatus,
    /// Held by stragglers and replaced in the pool.
    pub replaced: EscapedStatus,
    /// Copied to memory.
    pub copied: CopiedStatus,
    /// Taken from memory instead of waiting.
    pub memory_grants: EscapedStatus,
    /// Evaluations of Algorithm 1 under pressure.
    pub evaluations: u64,
    /// Times that the pool came into danger.
    pub danger: u64,
    /// Times that congestion was to be marked.
    pub marks: u64,
    /// Congestion signals sent to senders.
    pub signals: u64,
    /// Sessions that are granted nothing new for now.
    pub suspended: u32,
    /// What is held for so many microseconds is a straggler now: as configured, or longer where the pool
    /// takes as long to be used twice.
    pub straggler_us: u64,
    /// Milliseconds altogether for which the reactor did not get to look, beyond what it allows itself: not
    /// held against applications. Where it grows, others take its core, or the host the machine's.
    pub stalled_ms: u64,
}

/// Escape memory, in slabs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscapeMemoryStatus {
    /// All.
    pub slabs: u32,
    /// Allocated and touched.
    pub ready: u32,
    /// In use, or standing in for stragglers.
    pub used: u32,
    /// The most in use at once.
    pub used_max: u32,
    /// Slabs in use times the milliseconds that they were: divided by a span, the mean over it.
    pub used_slab_ms: u64,
    /// Out of use for good: the hardware lost them.
    pub retired: u32,
    /// Why there is none, or less than was asked for.
    pub error: Option<String>,
}

/// What escaped in one way, in slabs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscapedStatus {
    /// Now.
    pub now: u32,
    /// So far.
    pub total: u64,
}

/// Copies, in slabs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedStatus {
    /// Held in copies.
    pub now: u32,
    /// Copied so far.
    pub total: u64,
    /// The same in bytes: read once from the cache, written once to memory.
    pub bytes: u64,
    /// Copies not made, or thrown away, because the application reads the run.
    pub pinned: u64,
    /// Copies not made for want of memory or of somebody to make them.
    pub failed: u64,
    /// Under way.
    pub in_flight: u32,
}

words! {
    /// How an actuator stands.
    ActuatorState {
        /// It works, and is as it was found.
        Ready = "ready",
        /// It is lowered.
        Lowered = "lowered",
        /// It does not work here.
        Unsupported = "unsupported",
        /// It could not be lowered or restored.
        Failed = "failed",
    }
}

/// One of the NIC's own knobs that mark congestion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActuatorStatus {
    /// Its name.
    pub name: String,
    /// How it stands.
    pub state: ActuatorState,
    /// What it is and its values, or why it does not work.
    pub detail: String,
    /// Times that it was lowered.
    pub lowered: u64,
    /// Times that it was restored.
    pub restored: u64,
    /// Times that either failed.
    pub failed: u64,
}

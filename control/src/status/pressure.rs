//! Status of the pressure on the pool, and of escape (Jet §4.3).

use super::words;
use serde::{Deserialize, Serialize};

words! {
    /// Pressure on the pool: how full it is.
    Pressure {
        /// The pool has room.
        Ok = "ok",
        /// The pool has little room: data that applications hold too long escapes.
        Unsafe = "unsafe",
        /// The pool has hardly any room: senders are slowed down, too.
        Danger = "danger",
    }
}

/// Counters of escape, in slabs unless a name says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscapeStatus {
    /// Whether the daemon acts on pressure at all.
    pub enabled: bool,
    /// Use of escape memory.
    pub memory: EscapeMemoryStatus,
    /// Slabs that stragglers hold, and that were replaced in the pool.
    pub replaced: EscapedStatus,
    /// Slabs that were copied to escape memory.
    pub copied: CopiedStatus,
    /// Slabs of escape memory that messages took instead of waiting.
    pub spills: EscapedStatus,
    /// Number of times that the escape algorithm (the paper's Algorithm 1) was evaluated because of pressure
    /// on the pool.
    pub evaluations: u64,
    /// Number of times that the pool came into danger.
    pub danger: u64,
    /// Number of times that congestion was to be marked.
    pub marks: u64,
    /// Congestion signals sent to senders.
    pub signals: u64,
    /// Sessions that are granted nothing new for now.
    pub suspended: u32,
    /// The straggler's time now, in microseconds: a run that is held longer is a straggler. It is the
    /// configured time, or longer where a turn of the pool takes longer.
    pub straggler_us: u64,
    /// Milliseconds altogether by which turns of the reactor began too late, beyond what the reactor allows
    /// itself. This time does not count as held by applications. Where it grows, other programs take the
    /// reactor's core, or the host takes the virtual machine's.
    pub stalled_ms: u64,
}

/// Escape memory, in slabs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscapeMemoryStatus {
    /// All slabs of escape memory.
    pub slabs: u32,
    /// Slabs of escape memory that are allocated and touched, so that they can be used.
    pub ready: u32,
    /// Slabs of escape memory that are in use, or that stand in for stragglers' slabs.
    pub used: u32,
    /// The most slabs of escape memory in use at once.
    pub used_max: u32,
    /// Sum over all used slabs of the milliseconds of their use. Its growth divided by a span is the mean
    /// number of used slabs over that span.
    pub used_slab_ms: u64,
    /// Slabs of escape memory out of use for good, because the hardware lost them.
    pub retired: u32,
    /// Reason why there is no escape memory, or less than was asked for.
    pub error: Option<String>,
}

/// Slabs that escaped in one way (replaced, or taken instead of waiting).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EscapedStatus {
    /// Slabs that are escaped now.
    pub now: u32,
    /// Slabs that escaped so far.
    pub total: u64,
}

/// Copies to escape memory, in slabs unless a name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedStatus {
    /// Slabs held in copies now.
    pub now: u32,
    /// Slabs copied so far.
    pub total: u64,
    /// Bytes copied so far: each is read once from the cache, and written once to memory.
    pub bytes: u64,
    /// Copies that were not made, or were thrown away, because the application reads the run.
    pub pinned: u64,
    /// Copies that were not made because memory or a worker was lacking, or because the hardware lost memory.
    pub failed: u64,
    /// Copies under way now.
    pub in_flight: u32,
}

words! {
    /// State of an actuator.
    ActuatorState {
        /// The actuator works, and has the value that it was found with.
        Ready = "ready",
        /// The actuator is lowered, so that congestion is marked earlier.
        Lowered = "lowered",
        /// The actuator does not work on this host.
        Unsupported = "unsupported",
        /// The actuator could not be lowered or restored.
        Failed = "failed",
    }
}

/// Status of an actuator: a knob of the NIC's own that marks congestion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActuatorStatus {
    /// Name of the actuator.
    pub name: String,
    /// State of the actuator.
    pub state: ActuatorState,
    /// Description of the actuator and its values, or the reason why it does not work.
    pub detail: String,
    /// Number of times that the actuator was lowered.
    pub lowered: u64,
    /// Number of times that the actuator was restored.
    pub restored: u64,
    /// Number of times that lowering or restoring failed.
    pub failed: u64,
}

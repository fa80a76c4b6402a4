//! What a NIC's user would like to have of a device.

/// Which completion queues a NIC has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionQueues {
    /// One, with a place for all that can complete.
    One,
    /// One for SRQ entries, and others for what QPs post: each with places for all that its QPs may have
    /// under way.
    Apart,
}

/// What a NIC's user would like to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wants {
    /// Connections. Fewer will do.
    pub qps: u32,
    /// SRQ entries: all of them, or the NIC is not made.
    pub srq_entries: u32,
    /// READs under way altogether.
    pub reads: u32,
    /// READs under way on one QP; fewer will do, but not none. 0: this end makes none.
    pub reads_per_qp: u32,
    /// READs of a peer that are answered at once on one QP; fewer will do, but not none. 0: this end answers
    /// none.
    pub reads_answered_per_qp: u32,
    /// SENDs under way altogether. Fewer will do.
    pub sends: u32,
    /// SENDs under way on one QP. Fewer will do.
    pub sends_per_qp: u32,
    /// Scatter entries of one READ. Fewer will do.
    pub scatter: u32,
    /// Work requests of the NIC's own on each QP: a probe.
    pub probes_per_qp: u32,
    /// Where all that completes.
    pub completion_queues: CompletionQueues,
}

/// What Jet's own users want: what becomes of them on devices that are not at hand is tested by these, and
/// that these are what they want is tested where they are.
impl Wants {
    /// A daemon of the defaults, on a NIC in software: 4 MiB of SRQ, 32 READs, 4,096 peers and an eighth
    /// more, 12 control messages and a farewell to each.
    pub const SOFTWARE_DAEMON: Self = Self {
        qps: 4624,
        srq_entries: 1024,
        reads: 32,
        reads_per_qp: 32,
        reads_answered_per_qp: 0,
        sends: 32_832,
        sends_per_qp: 13,
        scatter: 64,
        probes_per_qp: 0,
        completion_queues: CompletionQueues::One,
    };

    /// The same on verbs.
    pub const VERBS_DAEMON: Self = Self {
        reads_per_qp: 16,
        scatter: 19,
        probes_per_qp: 1,
        completion_queues: CompletionQueues::Apart,
        ..Self::SOFTWARE_DAEMON
    };
    /// A sender, on a NIC in software: one connection, a few that come or go, and 64 receive entries.
    pub const SOFTWARE_SENDER: Self = Self {
        qps: 4,
        srq_entries: 64,
        reads: 1,
        reads_per_qp: 0,
        reads_answered_per_qp: 256,
        sends: 959,
        sends_per_qp: 128,
        ..Self::SOFTWARE_DAEMON
    };

    /// The same on verbs.
    pub const VERBS_SENDER: Self = Self {
        reads_answered_per_qp: 255,
        sends: 512,
        scatter: 19,
        probes_per_qp: 1,
        completion_queues: CompletionQueues::Apart,
        ..Self::SOFTWARE_SENDER
    };
}

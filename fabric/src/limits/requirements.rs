//! Requirements of a NIC's user: what the NIC should get from its device.

/// Number and use of a NIC's completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionQueues {
    /// Single queue, with a place for all that can complete.
    One,
    /// Separate queues: one for SRQ entries, others for what QPs post. Each of the others has places for all
    /// that its QPs can have under way.
    Apart,
}

/// Requirements of a NIC's user. The NIC accepts less where a field says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// Connections. Fewer will do.
    pub qps: u32,
    /// SRQ entries. The NIC is not made with fewer.
    pub srq_entries: u32,
    /// READs under way on all QPs together.
    pub reads: u32,
    /// READs under way on one QP. Fewer will do, but not none. 0 means that this end makes no READs.
    pub reads_per_qp: u32,
    /// READs of the peer that one QP answers at once. Fewer will do, but not none. 0 means that this end
    /// answers no READs.
    pub reads_answered_per_qp: u32,
    /// SENDs under way on all QPs together. Fewer will do.
    pub sends: u32,
    /// SENDs under way on one QP. Fewer will do.
    pub sends_per_qp: u32,
    /// Scatter entries of one READ. Fewer will do.
    pub scatter: u32,
    /// Work requests of the NIC's own on each QP: a probe.
    pub probes_per_qp: u32,
    /// Completion queues on which the NIC's work completes.
    pub completion_queues: CompletionQueues,
}

/// Requirements of Jet's daemon and sender.
///
/// Tests here derive limits from these constants for devices that are not at hand. Tests beside each user
/// check that the constants are what that user asks for.
impl Requirements {
    /// Requirements of a daemon with the default configuration, on a software NIC.
    ///
    /// 4 MiB of SRQ, 32 READs, 4,096 peers and an eighth more, 12 control messages and a farewell to each
    /// peer.
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

    /// Requirements of a daemon with the default configuration, on verbs.
    pub const VERBS_DAEMON: Self = Self {
        reads_per_qp: 16,
        scatter: 19,
        probes_per_qp: 1,
        completion_queues: CompletionQueues::Apart,
        ..Self::SOFTWARE_DAEMON
    };
    /// Requirements of a sender on a software NIC: one connection, a few that come or go, and 64 SRQ entries.
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

    /// Requirements of a sender on verbs.
    pub const VERBS_SENDER: Self = Self {
        reads_answered_per_qp: 255,
        sends: 512,
        scatter: 19,
        probes_per_qp: 1,
        completion_queues: CompletionQueues::Apart,
        ..Self::SOFTWARE_SENDER
    };
}

//! Scenario of a simulation: everything that is chosen before it begins, drawn from one seed.

mod draw;

use crate::cheat::CheatPlan;
use crate::event::Fault;
use jet_core::Config;
use jet_fabric::limits::{CompletionQueues, Profile, Requirements};
use jet_fabric::sim::{Conditions, SimOptions};

/// What an application does with its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Habit {
    /// It reads each run at once, and gives it back.
    Fast,
    /// It takes a time for each run.
    Slow,
    /// It reads nothing for a long time now and then.
    Stalling,
    /// It reads one message after the other, and leaves what comes of later ones.
    OneByOne,
    /// It gives nothing of a message back before it has all of it.
    Collecting,
    /// It holds what it reads for long, so that nobody may move it.
    Pinning,
    /// It holds what half of the senders send for long, and gives the others' back at once.
    Choosy,
    /// It writes what it reads to a disk: writes end in any order, some of them late, and some of them fail.
    Disk,
}

/// Plan of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplicationPlan {
    /// Number of its name: several applications may have the same. Then one of them has it at a time, or they
    /// share it.
    pub name: u32,
    /// Whether it shares its name with others that do, too.
    pub shares_name: bool,
    /// What it does with its messages.
    pub habit: Habit,
    /// Nanoseconds that it takes for a run.
    pub run_ns: u64,
    /// Runs that it reads at once, at most. 0: it stops, and reads nothing before the calm.
    pub parallel: u32,
    /// Nanoseconds between its giving a message's last slices back and its finishing the message, at most.
    pub late_ns: u64,
    /// Of a thousand messages, how many it rejects.
    pub rejects_permille: u32,
    /// Whether its messages may take escape memory instead of waiting.
    pub takes_memory: bool,
    /// Its admission class.
    pub class: u8,
    /// Whether it breaks its session, in each of its lives before the calm.
    pub breaks: bool,
    /// Whether it never registers.
    pub is_absent: bool,
}

impl ApplicationPlan {
    /// Returns whether it gives back at once what it gets.
    pub fn is_fast(&self) -> bool {
        self.habit == Habit::Fast && self.run_ns == 0 && self.late_ns == 0 && self.parallel > 0
    }

    /// Returns whether it gives nothing back before the calm.
    pub fn stops(&self) -> bool {
        self.parallel == 0
    }
}

/// Plan of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderPlan {
    /// Number of the application's name that it sends to.
    pub app: u32,
    /// Messages that it sends.
    pub messages: u64,
    /// Messages that it has outstanding.
    pub depth: u32,
    /// Of a thousand messages, how many are large ones.
    pub large_permille: u32,
    /// Bytes of a large message, at most.
    pub large_bytes: u64,
    /// Bytes of a small message, at most.
    pub small_bytes: u32,
    /// Admission class of its large messages.
    pub class: u8,
    /// Whether its messages carry a checksum.
    pub checksums: bool,
    /// Whether ends that may pass are tried again.
    pub retries: bool,
    /// Nanoseconds for which it tries ends that may pass again, and connections.
    pub patience_ns: u64,
    /// Nanoseconds without a word of the receiver after which it gives the connection up. Three of the
    /// receiver's heartbeats at least.
    pub receiver_timeout_ns: u64,
    /// Device of its host.
    pub profile: Profile,
    /// Bytes that leave its host in a microsecond, where that is slower than the network.
    pub bytes_per_us: Option<u64>,
    /// Whether it closes its connection when its messages have their ends.
    pub leaves: bool,
    /// Whether half of its messages want replies.
    pub wants_replies: bool,
    /// Whether it takes some of its messages back.
    pub takes_back: bool,
}

/// What a scenario is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anything may happen.
    Anything,
    /// Nothing but the senders' number and a slow one of them holds anything up.
    Contended,
    /// Nothing but an application that stops holds anything up.
    Stopped,
}

/// Everything that is chosen before a simulation begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Seed that the rest is drawn from, and all that happens by chance.
    pub seed: u64,
    /// What it is about.
    pub kind: Kind,
    /// The network.
    pub conditions: Conditions,
    /// Device of the receiver's host.
    pub profile: Profile,
    /// Numbers of the receiver.
    pub config: Config,
    /// Nanoseconds that a turn of any thread takes, at most.
    pub turn_ns: u64,
    /// Nanoseconds until a thread that was woken runs, at most.
    pub wake_ns: u64,
    /// Nanoseconds that a copy or a checksum takes, at most.
    pub job_ns: u64,
    /// Whether the receiver can tell applications' processes apart.
    pub tells_processes: bool,
    /// Applications.
    pub applications: Vec<ApplicationPlan>,
    /// Senders.
    pub senders: Vec<SenderPlan>,
    /// Senders that break the rules.
    pub cheats: Vec<CheatPlan>,
    /// Faults that may be caused.
    pub faults: Vec<Fault>,
    /// Faults that are caused, at most.
    pub faults_max: u32,
    /// Mean nanoseconds between two faults.
    pub fault_ns: u64,
    /// Time of the last fault, in nanoseconds. After it all applications are fast.
    pub calm_ns: u64,
    /// Nanoseconds after that time within which everything must have ended.
    pub settle_ns: u64,
}

impl Scenario {
    /// Returns whether messages may end as busy because there is no memory for replies to them: a sender has
    /// more under way than it may have replies, or all of them have so many that shares count.
    pub fn has_few_replies(&self) -> bool {
        let Config { reply_slots, replies_per_peer, .. } = self.config;
        let depth = self.senders.iter().map(|sender| sender.depth).max().unwrap_or(0);
        // Of n senders of one host to one application, each has a quarter of the slots, divided by n + 1.
        let senders = u32::try_from(self.senders.len()).unwrap_or(u32::MAX);
        let needed = senders.saturating_add(3).saturating_mul(depth).saturating_mul(4);
        reply_slots > 0 && (replies_per_peer < depth || reply_slots < needed)
    }

    /// Returns the options of the receiver's NIC.
    pub fn receiver_nic(&self) -> SimOptions {
        let config = &self.config;
        let requirements = Requirements {
            qps: config.peers_max + config.peers_max / 8 + 16,
            srq_entries: config.srq_slabs,
            reads: config.reads_max,
            reads_per_qp: config.reads_max.min(16),
            reads_answered_per_qp: 0,
            sends: config.sends_max,
            sends_per_qp: config.sends_per_peer_max(),
            scatter: 64,
            probes_per_qp: 0,
            completion_queues: CompletionQueues::Apart,
        };
        SimOptions::new(self.profile, requirements)
    }

    /// Returns the options of a sender's NIC.
    pub fn sender_nic(plan: &SenderPlan) -> SimOptions {
        let requirements = Requirements { probes_per_qp: 0, ..Requirements::VERBS_SENDER };
        let SenderPlan { profile, bytes_per_us, .. } = *plan;
        SimOptions { bytes_per_us, keeps_headers: true, ..SimOptions::new(profile, requirements) }
    }
}

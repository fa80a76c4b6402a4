//! What the receiver counts, as plain values.

use crate::effects::ProcessId;
use jet_escape::Pressure;
use jet_wire::message::EndCounts;
use jet_wire::message::hello::AppName;
use jet_wire::segment::HeldLimit;

/// The receiver as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Slabs in the pool.
    pub pool_slabs: u32,
    /// Slabs that nobody uses.
    pub free_slabs: u32,
    /// Slabs posted to the SRQ.
    pub posted_slabs: u32,
    /// Slabs that hold small messages.
    pub small_held_slabs: u32,
    /// Slabs of READs in flight and of large messages.
    pub read_slabs: u32,
    /// Slabs in quarantine.
    pub quarantined_slabs: u32,
    /// Slabs that are out of use for good, because the system cannot read them any more.
    pub retired_slabs: u32,
    /// Slabs that the SRQ share may use now.
    pub srq_limit_slabs: u32,
    /// The most slabs in use at once.
    pub high_water_slabs: u32,
    /// Times that the line between the shares moved.
    pub line_moves: u64,
    /// READs in flight, and those that are being checked.
    pub reads_in_flight: u32,
    /// The most READs in flight at once.
    pub reads_high_water: u32,
    /// Bytes of READs in flight, and of those that are being checked.
    pub in_flight_bytes: u64,
    /// READs of them that have arrived and are being checked by workers.
    pub checks_in_flight: u32,
    /// Bytes whose checksum was made.
    pub checked_bytes: u64,
    /// How much of the READ share may be in use at once, where that follows the load.
    pub footprint_window_bytes: Option<u64>,
    /// Messages waiting for admission.
    pub waiting: u32,
    /// Messages being read.
    pub running: u32,
    /// Messages known.
    pub messages: u32,
    /// Connected senders.
    pub peers: u32,
    /// Open sessions.
    pub sessions: u32,
    /// Small messages that arrived.
    pub small_messages: u64,
    /// Large messages that were requested.
    pub large_messages: u64,
    /// Payload bytes that were delivered.
    pub delivered_bytes: u64,
    /// Messages that came marked redelivered.
    pub redelivered: u64,
    /// Peers cut off for what they sent.
    pub peer_faults: u64,
    /// Peers parted with because they heard nothing for long while messages' records were wanted.
    pub unresponsive_peers: u64,
    /// Sessions ended for what they released.
    pub session_faults: u64,
    /// Ends of messages.
    pub ends: EndCounts,
    /// The pool's pressure.
    pub pressure: Pressure,
    /// What was done about it.
    pub escape: EscapeStats,
}

/// Escape, in slabs unless a name says otherwise (Jet §4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EscapeStats {
    /// Whether anything is ever done.
    pub enabled: bool,
    /// Escape memory altogether.
    pub memory_slabs: u32,
    /// Of it: allocated and touched.
    pub memory_ready: u32,
    /// Of it: in use, or standing in for stragglers.
    pub memory_used: u32,
    /// The most in use at once.
    pub memory_used_max: u32,
    /// Slabs of it that are out of use for good.
    pub memory_retired: u32,
    /// Slabs in use times the milliseconds that they were: divided by a span, the mean over it.
    pub memory_used_slab_ms: u64,
    /// Held by stragglers and replaced, now.
    pub replaced_now: u32,
    /// Replaced so far.
    pub replaced_total: u64,
    /// Held in copies, now.
    pub copied_now: u32,
    /// Copied so far.
    pub copied_total: u64,
    /// What is held for as long is a straggler now.
    pub straggler_ns: u64,
    /// For how long altogether the receiver was not called when it was to be: not held against applications.
    pub stalled_ns: u64,
    /// Copies begun in vain, or not begun, because the application reads the run.
    pub copies_pinned: u64,
    /// Copies that could not be begun or failed: no memory, no room for the job.
    pub copies_failed: u64,
    /// Copies under way.
    pub copies_in_flight: u32,
    /// Taken from memory instead of waiting, held now (of small messages too, while they wait for a slot).
    pub granted_now: u32,
    /// Taken from memory instead of waiting so far.
    pub granted_total: u64,
    /// Evaluations of Algorithm 1 under pressure.
    pub evaluations: u64,
    /// Times that the pool came into danger.
    pub dangers: u64,
    /// Times that congestion was to be marked.
    pub marks: u64,
    /// Congestion signals sent to senders.
    pub signals: u64,
    /// Sessions that are granted nothing new for now.
    pub suspended_sessions: u32,
}

/// How a session stands that holds all that it may, while more waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandstillStats {
    /// What it has used up.
    pub limit: HeldLimit,
    /// For how long nothing came and nothing was given back.
    pub span_ns: u64,
}

/// A session that is over, and whose slabs are in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuarantineStats {
    /// Its application's name.
    pub app: AppName,
    /// Whose it was, where that can be told.
    pub process: Option<ProcessId>,
    /// Slabs that it held when it ended.
    pub held_slabs: u32,
    /// Its application may live on, and read them: they come back when it lets go.
    pub holder_lives: bool,
}

/// One session.
#[derive(Clone, Copy, Debug)]
pub struct SessionStats {
    /// Its application's name.
    pub app: AppName,
    /// Its class.
    pub class: u8,
    /// Slabs that it holds.
    pub held_slabs: u32,
    /// Messages delivered to it.
    pub delivered_messages: u64,
    /// Bytes delivered to it.
    pub delivered_bytes: u64,
    /// Measured throughput.
    pub bytes_per_ms: u64,
    /// Measured post-NIC time, mean; less what the receiver was not called for, as stragglers are counted.
    pub post_nic_ns: u64,
    /// Median, 99 % and 99.9 % of it, and the longest.
    pub post_nic_quantiles_ns: [u64; 4],
    /// Messages that wait for its slots.
    pub backlog: u32,
    /// Of what it holds: over the straggler threshold, and in the cache's budget.
    pub straggler_slabs: u32,
    /// Of what it holds: replaced in the pool.
    pub replaced_slabs: u32,
    /// Of what it holds: copied to memory.
    pub copied_slabs: u32,
    /// Of what it holds: in memory, copied or taken instead of waiting.
    pub memory_slabs: u32,
    /// Replaced so far.
    pub replaced_total: u64,
    /// Copied so far.
    pub copied_total: u64,
    /// Taken from memory instead of waiting so far.
    pub granted_total: u64,
    /// Most of what it holds are stragglers (Jet §4.3: CREDIT).
    pub slow: bool,
    /// It is granted nothing new for now.
    pub suspended: bool,
    /// It may take memory instead of waiting.
    pub takes_memory: bool,
    /// It holds all that it may, and was told so.
    pub standstill: Option<StandstillStats>,
}

/// One sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStats {
    /// Its identity.
    pub sender: u64,
    /// Its application's name.
    pub app: AppName,
    /// SENDs that arrived from it.
    pub arrived: u64,
    /// Credit that it has not used.
    pub credit: u64,
    /// Its messages without an end.
    pub unfinished: u32,
    /// READs that its connection takes at once; 0 until it stands.
    pub reads_max: u32,
}

//! Statistics of the receiver, as plain values.

use crate::effects::{ProcessId, SessionId};
use jet_escape::Pressure;
use jet_wire::message::EndCounts;
use jet_wire::message::hello::AppName;
use jet_wire::segment::HeldLimit;

/// Statistics of the receiver as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Slabs that the pool has.
    pub pool_slabs: u32,
    /// Slabs of the pool that are free.
    pub free_slabs: u32,
    /// Slabs posted to the SRQ.
    pub posted_slabs: u32,
    /// Slabs that hold small messages.
    pub small_held_slabs: u32,
    /// Slabs of READs in flight and of large messages.
    pub read_slabs: u32,
    /// Slabs in quarantine.
    pub quarantined_slabs: u32,
    /// Slabs that are out of use for good, because they cannot be read any more.
    pub retired_slabs: u32,
    /// Slabs that the SRQ share may use now.
    pub srq_limit_slabs: u32,
    /// The most slabs in use at once, since the start or the last reset.
    pub high_water_slabs: u32,
    /// Times that the line between the SRQ share and the READ share moved.
    pub line_moves: u64,
    /// READs in flight, and those that are being checked.
    pub reads_in_flight: u32,
    /// The most READs in flight at once, since the start or the last reset.
    pub reads_high_water: u32,
    /// Bytes of READs in flight, and of those that are being checked.
    pub in_flight_bytes: u64,
    /// READs that have arrived and are being checked by workers.
    pub checks_in_flight: u32,
    /// Bytes whose checksum was made.
    pub checked_bytes: u64,
    /// Bytes of the READ share that may be in use at once, where the footprint follows the load.
    pub footprint_window_bytes: Option<u64>,
    /// Messages that wait for admission, or are deferred with a suspended session.
    pub waiting: u32,
    /// Messages that are being read.
    pub running: u32,
    /// What the next READ waits for.
    pub reads_wait_for: ReadsWaitFor,
    /// Messages that the receiver has records of.
    pub messages: u32,
    /// Senders that are connected.
    pub peers: u32,
    /// SENDs that the receiver may still post to senders that have one under way. Each sender's first one is
    /// not counted here.
    pub sends_left: u32,
    /// Credit that senders have and have not used, of those that sent lately.
    pub credit: u64,
    /// Times that a sender answered nothing for so long that its credit left [`credit`](Self::credit) until
    /// the sender sends again.
    pub credit_lapses: u64,
    /// Sessions that are open.
    pub sessions: u32,
    /// Small messages that arrived.
    pub small_messages: u64,
    /// Large messages that were requested.
    pub large_messages: u64,
    /// Payload bytes that were delivered.
    pub delivered_bytes: u64,
    /// Messages that were marked redelivered when they arrived.
    pub redelivered: u64,
    /// Replies that applications gave.
    pub replies: u64,
    /// Slots for replies that are used, or promised to messages.
    pub reply_slots_used: u32,
    /// Peers that were disconnected because what they sent broke the rules.
    pub peer_faults: u64,
    /// Peers that were disconnected because they took or delivered nothing for long, while others waited
    /// because of it.
    pub unresponsive_peers: u64,
    /// Of these, peers whose READs did not end for long while others got nothing because of them.
    pub stalled_peers: u64,
    /// Sessions that were ended because they released what they must not.
    pub session_faults: u64,
    /// Ends of messages, by kind.
    pub ends: EndCounts,
    /// The pool's pressure.
    pub pressure: Pressure,
    /// Counters and state of the escape.
    pub escape: EscapeStats,
}

/// Statistics of the escape (Jet §4.3), in slabs unless a name says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EscapeStats {
    /// Whether the escape is switched on.
    pub enabled: bool,
    /// Slabs of escape memory altogether.
    pub memory_slabs: u32,
    /// Slabs of escape memory that are allocated and touched.
    pub memory_ready: u32,
    /// Slabs of escape memory that are in use, or stand in for stragglers.
    pub memory_used: u32,
    /// The most slabs of escape memory in use at once, since the start or the last reset.
    pub memory_used_max: u32,
    /// Slabs of escape memory that are out of use for good.
    pub memory_retired: u32,
    /// Slabs of escape memory in use, each times the milliseconds for which it was in use. The growth over a
    /// span of time, divided by that span, is the mean in use.
    pub memory_used_slab_ms: u64,
    /// Slabs that stragglers hold and that are replaced now.
    pub replaced_now: u32,
    /// Slabs of stragglers that were replaced so far.
    pub replaced_total: u64,
    /// Slabs of escape memory that hold copies now. That includes copies under way, and small messages that
    /// wait for a slot.
    pub copied_now: u32,
    /// Slabs copied to escape memory so far.
    pub copied_total: u64,
    /// Nanoseconds after which a held run counts as a straggler now.
    pub straggler_ns: u64,
    /// Nanoseconds altogether in which the receiver was not called though it was due. They do not count
    /// against applications.
    pub stalled_ns: u64,
    /// Copies that were not begun, or were in vain, because the application reads the run.
    pub copies_pinned: u64,
    /// Copies that could not be begun, or failed: no escape memory, no room for the job, or memory that is
    /// lost.
    pub copies_failed: u64,
    /// Copies under way.
    pub copies_in_flight: u32,
    /// Slabs of escape memory that were taken instead of waiting for room in the pool, and are held now.
    pub spilled_now: u32,
    /// Slabs of escape memory that were taken instead of waiting for room in the pool, so far.
    pub spilled_total: u64,
    /// Evaluations of Algorithm 1 under pressure.
    pub evaluations: u64,
    /// Times that the pool's pressure became danger.
    pub dangers: u64,
    /// Times that congestion was to be marked.
    pub marks: u64,
    /// Congestion signals sent to senders.
    pub signals: u64,
    /// Sessions that are suspended now.
    pub suspended_sessions: u32,
}

/// The standstill of a session: it holds all that it may, while more waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandstillStats {
    /// The limit that the session has reached.
    pub limit: HeldLimit,
    /// Nanoseconds in which nothing arrived and nothing was given back.
    pub span_ns: u64,
}

/// An ended session whose slabs are in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuarantineStats {
    /// Name of its application.
    pub app: AppName,
    /// Process of its application, where that can be told.
    pub process: Option<ProcessId>,
    /// Whether the session was ended for what its application did.
    pub faulted: bool,
    /// Slabs that the session held when it ended.
    pub held_slabs: u32,
    /// Whether the application may still be alive and read those slabs. They come back when the application
    /// lets go of them.
    pub holder_lives: bool,
}

/// Statistics of one session.
#[derive(Clone, Copy, Debug)]
pub struct SessionStats {
    /// Name of its application.
    pub app: AppName,
    /// Class of the session, 0 the most urgent.
    pub class: u8,
    /// Slabs that the session holds.
    pub held_slabs: u32,
    /// Requests for large messages of the session that have no end yet.
    pub requests: u32,
    /// Messages delivered to the session.
    pub delivered_messages: u64,
    /// Bytes delivered to the session.
    pub delivered_bytes: u64,
    /// Measured throughput in bytes per millisecond.
    pub bytes_per_ms: u64,
    /// Mean of the measured post-NIC time in nanoseconds. Time in which the receiver was not called is left
    /// out, as it is for stragglers.
    pub post_nic_ns: u64,
    /// Median, 99 % and 99.9 % of the post-NIC time, and the longest, in nanoseconds.
    pub post_nic_quantiles_ns: [u64; 4],
    /// Small messages that wait for a slot or a number of the session.
    pub backlog: u32,
    /// Slabs of the cache's budget that the session's stragglers hold.
    pub straggler_slabs: u32,
    /// Slabs that the session holds and that were replaced in the pool.
    pub replaced_slabs: u32,
    /// Slabs that the session holds as copies in escape memory.
    pub copied_slabs: u32,
    /// Slabs of escape memory that the session holds: copies, and slabs taken instead of waiting for room in
    /// the pool.
    pub memory_slabs: u32,
    /// Slabs of the session that were replaced, so far.
    pub replaced_total: u64,
    /// Slabs of the session that were copied, so far.
    pub copied_total: u64,
    /// Slabs of escape memory that the session took instead of waiting for room in the pool, so far.
    pub spilled_total: u64,
    /// Whether most of what the session holds are stragglers (Jet §4.3: CREDIT).
    pub slow: bool,
    /// Whether the session is granted nothing new for now.
    pub suspended: bool,
    /// Whether the session's messages may take escape memory instead of waiting for room in the pool.
    pub takes_memory: bool,
    /// Whether the session shares its name with others.
    pub shares_name: bool,
    /// Senders whose messages go to the session, or are to go to it next.
    pub senders: u32,
    /// Standstill of the session, if its application was told of one.
    pub standstill: Option<StandstillStats>,
}

/// What the READs of waiting messages wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadsWaitFor {
    /// No large message waits to be read.
    #[default]
    Nothing,
    /// The pool has no room: applications have to give slabs back.
    Room,
    /// READs or bytes in flight are all that there may be.
    Window,
    /// The senders' own READs, whose windows are full.
    Senders,
}

/// State of one peer's share of READs and bytes in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareStats {
    /// READs of the peer's memory in flight.
    pub reads: u32,
    /// The most READs that the peer's connection takes at once; 0 until it is established.
    pub reads_max: u32,
    /// Bytes of READs in flight.
    pub in_flight_bytes: u64,
    /// The most bytes of READs in flight that the peer may have now.
    pub window_bytes: u64,
    /// Rate at which the peer delivered lately, while READs were in flight; 0 before the first one ended.
    pub bytes_per_ms: u64,
    /// Nanoseconds from a READ's posting to its end, as a moving average; 0 before the first one ended.
    pub usual_ns: u64,
    /// Nanoseconds since a READ of the peer ended, while others are in flight; 0 without any.
    pub silent_ns: u64,
    /// Whether the peer counts as slow: it delivered nothing yet, takes long for a READ, or has stalled.
    pub slow: bool,
}

/// Statistics of one sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStats {
    /// Identity that the sender gave.
    pub sender: u64,
    /// Name of the application that the sender's messages are for.
    pub app: AppName,
    /// Session that the sender's messages go to; `None`: no session has the name.
    pub session: Option<SessionId>,
    /// SENDs that arrived from the sender.
    pub arrived: u64,
    /// Credit that the sender has not used.
    pub credit: u64,
    /// Messages of the sender that have no end yet.
    pub unfinished: u32,
    /// Requests of the sender for large messages that have no end yet.
    pub requests: u32,
    /// The sender's share of READs and bytes in flight.
    pub share: ShareStats,
    /// Nanoseconds since the oldest READ in flight was posted; 0 without any.
    pub oldest_read_ns: u64,
}

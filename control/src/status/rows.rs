//! Status of each application and each sender. There may be thousands of each, so the rows are sent in pages
//! that each fit a frame.

use serde::{Deserialize, Serialize};

/// A page of a status: rows for applications, ended sessions and senders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    /// Rows of the registered applications.
    pub sessions: Vec<SessionStatus>,
    /// Sessions that are over, and the slabs that they still hold.
    pub quarantined: Vec<QuarantineStatus>,
    /// Rows of the connected senders.
    pub peers: Vec<PeerStatus>,
    /// Rows that follow in further pages. None where these rows are complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rest: Option<RowsFrom>,
}

/// Rows of a status that are still to be sent: those from these numbers on. None: no rows of that kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsFrom {
    /// Number of the first session whose row is still to be sent.
    pub session: Option<u32>,
    /// Number of the first peer whose row is still to be sent.
    pub peer: Option<u32>,
}

impl RowsFrom {
    /// Request for all rows, from the first ones on.
    pub const START: Self = Self { session: Some(0), peer: Some(0) };

    /// Whether no rows are left to be sent.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }

    /// Whether fewer rows are left than `before` says, so that further requests come to an end.
    pub(crate) fn is_after(self, before: Self) -> bool {
        let is_after =
            |now: Option<u32>, before: Option<u32>| now.is_none() || (before.is_some() && now > before);
        is_after(self.session, before.session) && is_after(self.peer, before.peer)
    }
}

/// Status of one application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Number of the session.
    pub session: u32,
    /// Name of the application.
    pub app: String,
    /// Admission class of the application.
    pub class: u8,
    /// Slabs that the application holds, in the pool and in escape memory.
    pub held_slabs: u32,
    /// Part of `held_slabs`: slabs of stragglers, runs that have counted in the pool for longer than the
    /// straggler's time.
    pub straggler_slabs: u32,
    /// Part of `held_slabs`: slabs that escape memory has replaced in the pool.
    pub replaced_slabs: u32,
    /// Part of `held_slabs`: copied to escape memory.
    pub copied_slabs: u32,
    /// Part of `held_slabs`: in escape memory, copied or taken instead of waiting.
    pub memory_slabs: u32,
    /// Slabs of the application that were replaced in the pool so far.
    pub replaced_total: u64,
    /// Slabs of the application that were copied to escape memory so far.
    pub copied_total: u64,
    /// Slabs of escape memory taken instead of waiting so far.
    pub memory_total: u64,
    /// Whether most of what the application holds are stragglers.
    pub slow: bool,
    /// Whether the session is granted nothing new for now.
    pub suspended: bool,
    /// Whether the application's messages may take escape memory instead of waiting.
    pub memory_instead_of_waiting: bool,
    /// Whether the application shares its name with other sessions.
    #[serde(default)]
    pub shares_name: bool,
    /// Senders whose messages go to the application, or are to go to it next. `None` from a daemon that does
    /// not tell it.
    #[serde(default)]
    pub senders: Option<u32>,
    /// Messages delivered to the application.
    pub delivered_messages: u64,
    /// Bytes delivered to the application.
    pub delivered_bytes: u64,
    /// Measured throughput, in bytes a second.
    pub bytes_per_s: u64,
    /// Post-NIC time: from delivery to release.
    pub post_nic_ns: PostNicStatus,
    /// Messages that wait for the session's slots.
    pub backlog: u32,
    /// The application's standstill: it holds all that it may while more waits for it.
    pub standstill: Option<StandstillStatus>,
}

/// A session that is over, and whose slabs are not back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantineStatus {
    /// Number of the session.
    pub session: u32,
    /// Name of the session's application.
    pub app: String,
    /// Process id of the application, where it is known.
    pub pid: Option<u32>,
    /// Slabs that the session held when it ended.
    pub held_slabs: u32,
    /// Bytes that the session held when it ended.
    pub held_bytes: u64,
    /// Whether the application's process may still read the slabs. Then they come back when it closes its
    /// connection or ends. Otherwise they come back after a time.
    pub holder_lives: bool,
}

/// Standstill of an application that holds all that it may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandstillStatus {
    /// Configuration key whose limit the application has reached.
    pub limit: String,
    /// Text that describes the limit.
    pub why: String,
    /// Milliseconds for which nothing arrived and nothing was given back.
    pub ms: u64,
}

/// Distribution of the post-NIC time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct PostNicStatus {
    pub mean: u64,
    pub p50: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

/// Status of one sender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Number of the peer.
    pub peer: u32,
    /// Identity of the sender, as hexadecimal text.
    pub sender: String,
    /// Application that the sender sends to.
    pub app: String,
    /// Number of the session that the sender's messages go to. `None`: no application has the name, or the
    /// daemon does not tell it.
    #[serde(default)]
    pub session: Option<u32>,
    /// SENDs that arrived from the sender.
    pub arrived: u64,
    /// Credit that the sender has: SENDs that it may still send.
    pub credit: u64,
    /// Messages of the sender that have no end yet.
    pub unfinished: u32,
    /// READs that the connection takes at once, as the two NICs agreed. 0 until the connection is set up.
    pub reads_max: u32,
    /// What the sender has in flight, and what it may have. `None` from a daemon that does not tell it.
    #[serde(default)]
    pub share: Option<ShareStatus>,
}

/// Share of READs and bytes in flight that one sender has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareStatus {
    /// READs of the sender's memory in flight.
    pub reads: u32,
    /// Bytes of these READs.
    pub in_flight_bytes: u64,
    /// The most bytes that the sender may have in flight now.
    pub window_bytes: u64,
    /// Bytes in a second that the sender delivered lately, while READs were in flight. 0: none ended yet.
    pub bytes_per_s: u64,
    /// Microseconds that a READ of the sender usually takes. 0: none ended yet.
    pub usual_us: u64,
    /// Milliseconds for which no READ of the sender ended although some are in flight.
    pub silent_ms: u64,
    /// Milliseconds for which the oldest READ of the sender is in flight.
    #[serde(default)]
    pub oldest_ms: u64,
    /// Whether the sender counts as slow: nothing of it has arrived yet, its READs take long, or it stopped
    /// delivering.
    pub slow: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_to_an_end_where_fewer_are_left_each_time() {
        let rest = |session, peer| RowsFrom { session, peer };
        let start = RowsFrom::START;
        assert!(rest(Some(1), Some(1)).is_after(start) && rest(None, None).is_after(start));
        assert!(rest(None, Some(7)).is_after(rest(None, Some(6))));
        for still in [rest(Some(0), Some(1)), rest(Some(1), Some(0)), start] {
            assert!(!still.is_after(start), "{still:?}");
        }
        assert!(!rest(Some(9), None).is_after(rest(None, Some(3))), "what was told comes again");
    }
}

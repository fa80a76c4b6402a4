//! Applications and senders one by one. There may be thousands of each, so they are told in pages: each fits
//! a frame.

use serde::{Deserialize, Serialize};

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rows {
    /// Applications.
    pub sessions: Vec<SessionStatus>,
    /// Sessions that are over, and what they held.
    #[serde(default)]
    pub quarantined: Vec<QuarantineStatus>,
    /// Senders.
    pub peers: Vec<PeerStatus>,
    /// What comes in further pages; none: this is no page, but all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<RowsFrom>,
}

/// Which rows of a status are still to be told: all from these numbers on, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsFrom {
    /// Sessions.
    pub session: Option<u32>,
    /// Senders.
    pub peer: Option<u32>,
}

impl RowsFrom {
    /// All of them.
    pub const START: Self = Self { session: Some(0), peer: Some(0) };

    /// Whether nothing is left to be told.
    pub fn is_nothing(self) -> bool {
        self == Self::default()
    }

    /// Whether this is less than what `before` says, and so comes to an end.
    pub(crate) fn is_after(self, before: Self) -> bool {
        let is_after =
            |now: Option<u32>, before: Option<u32>| now.is_none() || (before.is_some() && now > before);
        is_after(self.session, before.session) && is_after(self.peer, before.peer)
    }
}

/// One application.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its number.
    pub session: u32,
    /// Its name.
    pub app: String,
    /// Its class.
    pub class: u8,
    /// Slabs that it holds, in the pool and in memory.
    pub held_slabs: u32,
    /// Of them: in the pool's budget for longer than the straggler threshold.
    pub straggler_slabs: u32,
    /// Of them: replaced in the pool.
    pub replaced_slabs: u32,
    /// Of them: copied to memory.
    pub copied_slabs: u32,
    /// Of them: in memory, copied or taken instead of waiting.
    pub memory_slabs: u32,
    /// Slabs replaced so far.
    pub replaced_total: u64,
    /// Slabs copied so far.
    pub copied_total: u64,
    /// Slabs taken from memory instead of waiting so far.
    pub memory_total: u64,
    /// Most of what it holds are stragglers.
    pub slow: bool,
    /// It is granted nothing new for now.
    pub suspended: bool,
    /// It may take memory instead of waiting.
    pub memory_instead_of_waiting: bool,
    /// Messages delivered to it.
    pub delivered_messages: u64,
    /// Bytes delivered to it.
    pub delivered_bytes: u64,
    /// Measured throughput.
    pub bytes_per_s: u64,
    /// From delivery to release.
    pub post_nic_ns: PostNicStatus,
    /// Messages that wait for its slots.
    pub backlog: u32,
    /// It holds all that it may while more waits for it.
    pub standstill: Option<StandstillStatus>,
}

/// A session that is over, and whose slabs are not back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantineStatus {
    /// Its number.
    pub session: u32,
    /// Its application's name.
    pub app: String,
    /// The application's process, where that can be told.
    pub pid: Option<u32>,
    /// Slabs that it held when it ended.
    pub held_slabs: u32,
    /// The same in bytes.
    pub held_bytes: u64,
    /// Its process may still read them: they come back when it closes its connection or ends. Otherwise time
    /// alone ends it.
    pub holder_lives: bool,
}

/// An application that holds all that it may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandstillStatus {
    /// Key of the configuration whose limit it has reached.
    pub limit: String,
    /// In words.
    pub why: String,
    /// For how many milliseconds nothing came and nothing was given back.
    pub ms: u64,
}

/// Post-NIC time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names say it
pub struct PostNicStatus {
    pub mean: u64,
    pub p50: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
}

/// One sender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its number.
    pub peer: u32,
    /// Its identity.
    pub sender: String,
    /// The application that it sends to.
    pub app: String,
    /// SENDs that arrived.
    pub arrived: u64,
    /// Credit that it has.
    pub credit: u64,
    /// Messages without an end.
    pub unfinished: u32,
    /// READs that its connection takes at once, as the two NICs agreed; 0 until it stands.
    pub reads_max: u32,
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

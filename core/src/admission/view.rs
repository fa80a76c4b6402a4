//! What admission is told of others, as values.

use jet_escape::Pressure;

/// What a session has, and what it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// Its message that began to arrive first and is not complete: its application waits for it.
    pub oldest_incomplete: Option<u32>,
    /// Slots that are neither in use nor kept for READs in flight, and those kept.
    pub slots_left: u32,
    pub promised_slots: u32,
    /// It has slots for a fragment, whatever its runs, and a message number.
    pub has_room_for_fragment: bool,
    /// Small messages wait for its slots.
    pub has_backlog: bool,
    /// Its messages may take memory instead of waiting.
    pub takes_memory: bool,
    /// It holds as much memory as one session may.
    pub holds_its_memory: bool,
    /// Slabs that it holds in the cache, and what of them escaped.
    pub held_in_cache: u32,
    pub escaped_slabs: u32,
    /// Most of what it holds are stragglers.
    pub is_slow: bool,
    /// Measured throughput and post-NIC time.
    pub bytes_per_ms: u64,
    pub post_nic_ns: u64,
}

impl Claim {
    /// Whether anything was delivered to the session and not released, or is being read for it.
    pub fn holds_anything(&self) -> bool {
        self.promised_slots + self.escaped_slabs + self.held_in_cache > 0
    }
}

/// Who answers while a grant is decided.
pub(crate) trait View {
    /// How a session stands.
    fn session(&self, session: u32) -> Claim;
    /// The pool's pressure.
    fn pressure(&self) -> Pressure;
    /// Slabs that the SRQ share is about to need.
    fn srq_needed(&self) -> u32;
}

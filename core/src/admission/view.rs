//! What admission is told of others.

use jet_escape::Pressure;

/// Who answers while a grant is decided, each question by itself: most decisions need few of the answers.
pub(crate) trait View {
    /// The session's message that began to arrive first and is not complete: its application waits for it.
    fn oldest_incomplete(&self, session: u32) -> Option<u32>;
    /// Its slots that are neither in use nor kept for READs in flight.
    fn slots_left(&self, session: u32) -> u32;
    /// Whether it has slots for a fragment, whatever its runs, and a message number.
    fn has_room_for_fragment(&self, session: u32) -> bool;
    /// Whether small messages wait for its slots.
    fn has_backlog(&self, session: u32) -> bool;
    /// Whether its messages may take memory instead of waiting.
    fn takes_memory(&self, session: u32) -> bool;
    /// Whether it holds as much memory as one session may.
    fn holds_its_memory(&self, session: u32) -> bool;
    /// Slabs of the cache that it holds.
    fn held_in_cache(&self, session: u32) -> u32;
    /// Whether anything was delivered to it and not released, or is being read for it.
    fn holds_anything(&self, session: u32) -> bool;
    /// Whether most of what it holds are stragglers.
    fn is_slow(&self, session: u32) -> bool;
    /// Its measured throughput.
    fn bytes_per_ms(&self, session: u32) -> u64;
    /// Its measured post-NIC time.
    fn post_nic_ns(&self, session: u32) -> u64;
    /// The pool's pressure.
    fn pressure(&self) -> Pressure;
    /// Slabs that the SRQ share is about to need.
    fn srq_needed(&self) -> u32;
}

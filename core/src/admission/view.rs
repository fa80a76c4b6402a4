//! Questions that admission asks about sessions and the pool.

use jet_escape::Pressure;

/// Answers to admission's questions while it decides a grant. Each question is a method of its own, for most
/// decisions need few of the answers.
pub(crate) trait View {
    /// Returns the session's message that began to arrive first and is not complete. The application waits
    /// for it.
    fn oldest_incomplete(&self, session: u32) -> Option<u32>;
    /// Returns the session's slots that are neither in use nor kept for READs in flight.
    fn slots_left(&self, session: u32) -> u32;
    /// Returns whether the session has slots for a fragment even if each slab is a run of its own.
    fn has_slots_for_fragment(&self, session: u32) -> bool;
    /// Returns whether the session has a message number that is neither in use nor kept for a message of
    /// which something is being read.
    fn has_number(&self, session: u32) -> bool;
    /// Returns whether small messages wait for the session's slots or message numbers.
    fn has_backlog(&self, session: u32) -> bool;
    /// Returns whether the session's messages may take escape memory instead of waiting for room in the pool.
    fn takes_memory(&self, session: u32) -> bool;
    /// Returns whether the session holds as much escape memory as one session may.
    fn holds_its_memory(&self, session: u32) -> bool;
    /// Returns the slabs of the cache that the session holds.
    fn held_in_cache(&self, session: u32) -> u32;
    /// Returns whether anything delivered to the session is not released, or anything is being read for it.
    fn holds_anything(&self, session: u32) -> bool;
    /// Returns whether anything is being read for the session.
    fn awaits_reads(&self, session: u32) -> bool;
    /// Returns whether a sender of the session that is chosen has no credit, for the session withholds it.
    fn refuses_credit_to(&self, session: u32, is_chosen: impl Fn(u32) -> bool) -> bool;
    /// Returns for how many nanoseconds the session's application has given nothing back.
    fn gives_nothing_back_ns(&self, session: u32) -> u64;
    /// Returns whether the session's application has ever given something back.
    fn has_given_back(&self, session: u32) -> bool;
    /// Returns whether most of what the session holds are stragglers.
    fn is_slow(&self, session: u32) -> bool;
    /// Returns the session's measured throughput in bytes per millisecond.
    fn bytes_per_ms(&self, session: u32) -> u64;
    /// Returns the session's measured post-NIC time in nanoseconds.
    fn post_nic_ns(&self, session: u32) -> u64;
    /// Returns how many sessions are open.
    fn open_sessions(&self) -> u32;
    /// Returns the pool's pressure.
    fn pressure(&self) -> Pressure;
    /// Returns the slabs that the SRQ share is about to need: for posted entries, held messages, and credit
    /// that senders have.
    fn srq_needed(&self) -> u32;
}

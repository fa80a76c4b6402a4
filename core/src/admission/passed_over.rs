//! Peers that were passed over for want of room, as of their sessions.
//!
//! Where the pool has little room, only the message that an application waits for is read, so its senders are
//! read a message at a time. When that message ends, whoever comes first begins the next one. Turns alone do
//! not say who that is: they go round among all sessions meanwhile, and one peer could come too late each
//! time. So of the peers of a session that were passed over, the one that was read longest ago comes first.

use super::policy::GrantPolicy;
use super::{Admission, View};

impl<P: GrantPolicy> Admission<P> {
    /// Notes that a peer could have nothing read in its turn.
    pub(super) fn passes_over(&mut self, class: usize, peer: u32) {
        let queue = &self.queues[class];
        if queue.running_of(peer) == 0 || self.shares.reads(peer) > 0 {
            // It is deferred with its session, or waits for its own READs.
            return;
        }
        let session = queue.session_of(peer);
        let first = self.passed_over(session, class);
        if first.is_none_or(|first| queue.read_ns(peer) < queue.read_ns(first)) {
            self.suspensions[session as usize].pass_over(class, peer);
        }
    }

    /// Returns whether the peer's next message waits for the one of another peer that was passed over: where
    /// nothing arrives at their session.
    #[inline]
    pub(super) fn is_behind_another(&self, class: usize, peer: u32, view: &impl View) -> bool {
        let session = self.queues[class].session_of(peer);
        self.suspensions[session as usize].passed_over(class).is_some()
            && view.oldest_incomplete(session).is_none()
            && self.passed_over(session, class).is_some_and(|first| first != peer)
    }

    /// Returns the peer of a session that was passed over, and comes first, while it takes turns.
    pub(super) fn passed_over(&self, session: u32, class: usize) -> Option<u32> {
        let queue = &self.queues[class];
        self.suspensions[session as usize].passed_over(class).filter(|&first| {
            queue.running_of(first) > 0 && queue.session_of(first) == session && !self.reading.is_out(first)
        })
    }
}

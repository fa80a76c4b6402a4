//! Peers that were passed over for want of room, as of their sessions.
//!
//! Where the pool has little room, only the message that an application waits for is read, so its senders are
//! read a message at a time. When that message ends, whoever comes first begins the next one. Turns alone do
//! not say who that is: they go round among all sessions meanwhile, and one peer could come too late each
//! time. So of the peers of a session that were passed over, the one that was read longest ago comes first.
//! Classes age for all sessions together, and others of the class may have the turns that the class gets so.
//! So a class of the session that is overdue comes before the session's more urgent ones, too.

use super::policy::GrantPolicy;
use super::turns::Place;
use super::{Admission, View};
use crate::messages::Messages;

impl<P: GrantPolicy> Admission<P> {
    /// Returns whether the peer was passed over and comes first of its session.
    pub(super) fn comes_first(&self, class: usize, peer: u32) -> bool {
        let session = self.queues[class].session_of(peer);
        self.suspensions[session as usize].passed_over(class) == Some(peer)
    }

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

    /// Moves the peers of a class before a place, which cannot use their turns now, behind the others. Of
    /// each session, the one that was passed over and comes first stays in front. Otherwise the same few
    /// peers could be in front each time that there is room, and the others only between these times.
    #[cold]
    pub(super) fn move_behind_others(&mut self, class: usize, place: Place) {
        let suspensions = &self.suspensions;
        self.queues[class].move_behind_others(place, |peer, session| {
            suspensions[session as usize].passed_over(class) == Some(peer)
        });
    }

    /// Returns whether the peer's message waits for the one of another peer that was passed over: where
    /// nothing arrives at their session, or where that one is of a class that is overdue. What has begun to
    /// arrive goes on.
    #[inline]
    pub(super) fn is_behind_another(
        &self,
        message: u32,
        messages: &Messages,
        now_ns: u64,
        view: &impl View,
    ) -> bool {
        let session = messages[message].session;
        self.suspensions[session as usize].any_passed_over()
            && self.is_behind_another_of(session, message, messages, now_ns, view)
    }

    fn is_behind_another_of(
        &self,
        session: u32,
        message: u32,
        messages: &Messages,
        now_ns: u64,
        view: &impl View,
    ) -> bool {
        let (peer, class) = (messages[message].peer, messages[message].class());
        let nothing_arrives = view.oldest_incomplete(session).is_none();
        (nothing_arrives && self.passed_over(session, class).is_some_and(|first| first != peer))
            || ((nothing_arrives || !messages.has_begun(message))
                && self.is_behind_another_class(session, class, now_ns, view))
    }

    /// Returns whether a peer of another class was passed over that is overdue, and waits for longer.
    fn is_behind_another_class(&self, session: u32, class: usize, now_ns: u64, view: &impl View) -> bool {
        let suspension = &self.suspensions[session as usize];
        let waits_since = |class| (suspension.since_ns(class), class);
        (0..self.queues.len()).any(|other| {
            waits_since(other) < waits_since(class)
                && self.passed_over(session, other).is_some()
                && self.is_overdue(session, other, now_ns, view)
        })
    }

    /// Returns the peer of a session that was passed over, and comes first, while it takes turns.
    pub(super) fn passed_over(&self, session: u32, class: usize) -> Option<u32> {
        let queue = &self.queues[class];
        self.suspensions[session as usize].passed_over(class).filter(|&first| {
            queue.running_of(first) > 0 && queue.session_of(first) == session && !self.reading.is_out(first)
        })
    }
}

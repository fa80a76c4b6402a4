//! Peers whose READs do not end while others wait: which of them is disconnected.
//!
//! What is posted stays counted until it ends, and no peer can take back a READ. So a peer that is silent may
//! keep what others need for ever. It is disconnected where
//!
//! 1. such peers have half of all READs or bytes, or leave no room for a fragment, and anybody waits;
//! 2. all READs of slow peers, or of new ones, are of such peers, and others of the kind wait;
//! 3. nothing else is read for its session, and other peers of the session wait: for room in the pool, or for
//!    an application that gives nothing back because it waits for the rest of a message.
//!
//! By the second and third rule one peer leaves at a time, for it may be enough.

use super::policy::GrantPolicy;
use super::shares::Standing;
use super::{Admission, View};
use crate::messages::Messages;
use crate::time::TurnTime;

/// Nanoseconds without anything given back after which an application counts as one that waits for the rest
/// of a message. One that works gives something back.
const STOPPED_NS: u64 = 4_000_000_000;

impl<P: GrantPolicy> Admission<P> {
    /// Notes which peers have stalled. Returns a peer to disconnect, the one of those meant that stalled
    /// first. `is_leaving` says which peers are being disconnected already.
    pub fn tick(
        &mut self,
        time: TurnTime,
        is_leaving: impl Fn(u32) -> bool,
        messages: &Messages,
        view: &impl View,
    ) -> Option<u32> {
        let now_ns = time.stall_free_ns;
        self.shares.tick(now_ns);
        for &peer in self.shares.busy() {
            self.reading.set_standing(peer, self.shares.standing(peer));
        }
        if self.shares.are_stalled_for_long(now_ns) && self.is_anybody_waiting(now_ns, messages, view) {
            return self.shares.longest_stalled(now_ns, |peer| !is_leaving(peer));
        }
        [Standing::New, Standing::Slow]
            .into_iter()
            .find_map(|kind| self.holds_up_its_kind(kind, now_ns, &is_leaving))
            .or_else(|| self.holds_up_its_session(now_ns, is_leaving, messages, view))
    }

    /// Returns whether a peer has something to read and waits for none of its own READs.
    fn is_anybody_waiting(&mut self, now_ns: u64, messages: &Messages, view: &impl View) -> bool {
        let reading = &self.reading;
        self.queues.iter_mut().any(|queue| queue.has_head(|peer| reading.is_out(peer)))
            || self.any_waits_after_slow()
            || self.reviewed.iter().any(|&session| {
                self.waits_for_reads(session, |_| false, messages, view)
                    || self.waits_for_credit(session, now_ns, view)
            })
    }

    /// Returns a peer of the kind that holds up others of it.
    fn holds_up_its_kind(
        &mut self,
        kind: Standing,
        now_ns: u64,
        is_leaving: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let goes_on = |&peer: &u32| {
            self.is_of(kind, peer) && (!self.shares.is_silent(peer, now_ns) || is_leaving(peer))
        };
        if self.shares.busy().iter().any(goes_on) || !self.waits_after_slow(kind) {
            return None;
        }
        self.shares.longest_stalled(now_ns, |peer| self.is_of(kind, peer))
    }

    /// Returns a peer that holds up others of its session.
    fn holds_up_its_session(
        &self,
        now_ns: u64,
        is_leaving: impl Fn(u32) -> bool,
        messages: &Messages,
        view: &impl View,
    ) -> Option<u32> {
        self.shares.longest_stalled(now_ns, |peer| {
            let session = self.shares.session_of(peer);
            let is_of_session = |other: &&u32| self.shares.session_of(**other) == session;
            let mut busy = self.shares.busy().iter().filter(is_of_session);
            busy.all(|&other| self.shares.is_silent(other, now_ns) && !is_leaving(other))
                && self.has_peers_waiting(session, now_ns, messages, view)
        })
    }

    /// Returns whether peers of the session wait for READs of others: passed over, deferred with the session,
    /// or without credit.
    fn has_peers_waiting(&self, session: u32, now_ns: u64, messages: &Messages, view: &impl View) -> bool {
        let is_silent = |peer| self.shares.is_silent(peer, now_ns);
        (0..self.queues.len()).any(|class| self.passed_over(session, class).is_some())
            || (self.waits_for_reads(session, is_silent, messages, view)
                && (!self.is_suspended_for_its_application(session) || is_stopped(session, view)))
            || self.waits_for_credit(session, now_ns, view)
    }

    /// Returns whether messages of the session are deferred that wait for READs of other peers: for the
    /// slots or the room that these READs have. What waits for its application alone does not count, nor do
    /// the peers that `is_nobody` names.
    fn waits_for_reads(
        &self,
        session: u32,
        is_nobody: impl Fn(u32) -> bool,
        messages: &Messages,
        view: &impl View,
    ) -> bool {
        let is_waiting = |peer| !self.reading.is_out(peer) && !is_nobody(peer);
        (view.awaits_reads(session) || !self.is_suspended_for_its_application(session))
            && self.deferred.iter().any(|deferred| deferred.has_any_of(session, is_waiting, messages))
    }

    /// Returns whether peers of the session get no credit for it while its application waits for the rest of
    /// a message: what it holds comes back with that.
    fn waits_for_credit(&self, session: u32, now_ns: u64, view: &impl View) -> bool {
        view.awaits_reads(session)
            && is_stopped(session, view)
            && view.refuses_credit_to(session, |peer| !self.shares.is_silent(peer, now_ns))
    }
}

/// Returns whether the session's application has given nothing back for long.
fn is_stopped(session: u32, view: &impl View) -> bool {
    view.gives_nothing_back_ns(session) >= STOPPED_NS
}

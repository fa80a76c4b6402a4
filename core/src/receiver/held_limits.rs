//! The limit that a session has reached while more waits for it.
//!
//! Where the pool has no room, another session may be the cause, and its release ends that. A session that
//! waits for such a release is not told that it stands still, for its application would give up its message
//! for nothing. The session that holds the most is told.

use super::Receiver;
use crate::admission::{GrantPolicy, View};
use crate::effects::Effects;
use crate::standstill::Progress;
use jet_escape::Pressure;
use jet_wire::segment::HeldLimit;

impl<P: GrantPolicy> Receiver<P> {
    /// Checks whether an open session stands still: it holds all that it may while more waits.
    pub(super) fn check_standstill(
        &mut self,
        now_ns: u64,
        session: u32,
        most_held_slabs: u32,
        effects: &mut impl Effects,
    ) {
        let numbers_used = self.delivery.numbers_used(session);
        if numbers_used == 0 && !self.standstills.was_reported(session) {
            // The session has nothing: this skips most of many sessions.
            return;
        }
        let delivered = self.delivery.delivered(session);
        let progress = Progress {
            held_slabs: self.escape.held_slabs(session),
            numbers_used,
            delivered_messages: delivered.messages,
            delivered_bytes: delivered.bytes,
        };
        let comes = self.delivery.promised_slots(session) > 0;
        let limit = if comes { None } else { self.limit_reached(session, most_held_slabs) };
        self.standstills.check(self.stall_free_ns(now_ns), session, progress, limit, effects);
    }

    /// Returns the limit that the session has reached, if it holds something and more waits for it.
    pub(super) fn limit_reached(&self, session: u32, most_held_slabs: u32) -> Option<HeldLimit> {
        let delivery = &self.delivery;
        if delivery.numbers_used(session) == 0 {
            return None;
        }
        let is_awaited = delivery.oldest_incomplete(session).is_some()
            || delivery.backlog(session) > 0
            || self.admission.has_queued(session);
        if !is_awaited {
            let limit =
                if self.keeps_too_many_records(session) { HeldLimit::Records } else { HeldLimit::Small };
            return self.suspends_its_senders(session).then_some(limit);
        }
        if delivery.numbers_left(session) == 0 {
            return Some(HeldLimit::Messages);
        }
        let view = mechanisms_of!(self);
        if !view.holds_anything(session) {
            None
        } else if !view.has_slots_for_fragment(session) {
            Some(HeldLimit::Slots)
        } else if view.holds_its_memory(session) {
            Some(HeldLimit::Memory)
        } else if view.held_in_cache(session) >= most_held_slabs
            && (self.admission.has_no_room_for(session, &self.pool, &view)
                || view.pressure() == Pressure::Danger)
        {
            // In danger nothing more of a message comes that its application keeps.
            Some(HeldLimit::Pool)
        } else {
            None
        }
    }

    /// Returns the most slabs of the pool that one session holds.
    ///
    /// Where the pool is full, the session that holds so many is told to give something back. There is always
    /// such a session, and none could give back more. A fixed share of the pool would not serve: of three
    /// sessions that hold a third each, none has more than half, and all would wait for ever. The slabs in
    /// quarantine count as if one session held them, for no application can give them back. Sessions that
    /// hold less wait for the end of the quarantine.
    pub(super) fn most_held_slabs(&self) -> u32 {
        self.escape.most_held_in_cache().max(self.pool.quarantined())
    }

    /// Notes the sessions that have senders which were refused credit. Once a tick: there may be thousands of
    /// such senders, and hundreds of sessions that ask.
    pub(super) fn note_refused_sessions(&mut self) {
        self.refused_sessions.clear();
        for &peer in self.credit.refused() {
            if let Some(session) = self.registry.session_of(peer) {
                self.refused_sessions.insert(session);
            }
        }
    }

    /// Returns whether senders wait for credit that is withheld because of what the session holds.
    fn suspends_its_senders(&self, session: u32) -> bool {
        self.refused_sessions.contains(session) && self.withholds_credit(session)
    }
}

//! What a session has used up, while more waits for it.
//!
//! Where the pool has no room, that may be another one's doing, whose release ends it. Who waits for that is
//! not told that it stands still: it would give up its message for nothing. Told is who holds the most.

use super::Receiver;
use crate::admission::{GrantPolicy, View};
use crate::effects::Effects;
use crate::standstill::Standing;
use jet_wire::segment::HeldLimit;

impl<P: GrantPolicy> Receiver<P> {
    /// Looks whether an open session stands still.
    pub(super) fn look_for_standstill(
        &mut self,
        now_ns: u64,
        session: u32,
        most_held_slabs: u32,
        effects: &mut impl Effects,
    ) {
        let numbers_used = self.delivery.numbers_used(session);
        if numbers_used == 0 && !self.standstills.was_told(session) {
            // It has nothing: so most of many are passed over.
            return;
        }
        let delivered = self.delivery.delivered(session);
        let standing = Standing {
            held_slabs: self.escape.held_slabs(session),
            numbers_used,
            delivered_messages: delivered.messages,
            delivered_bytes: delivered.bytes,
        };
        let comes = self.delivery.promised_slots(session) > 0;
        let limit = if comes { None } else { self.limit_reached(session, most_held_slabs) };
        self.standstills.look(self.attended_ns(now_ns), session, standing, limit, effects);
    }

    /// What the session has used up, where it holds something and more waits for it.
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
        let view = look_at!(self);
        if !view.holds_anything(session) {
            None
        } else if !view.has_room_for_fragment(session) {
            Some(HeldLimit::Slots)
        } else if view.holds_its_memory(session) {
            Some(HeldLimit::Memory)
        } else if view.held_in_cache(session) >= most_held_slabs
            && self.admission.has_no_room_for(session, &self.pool, &view)
        {
            Some(HeldLimit::Pool)
        } else {
            None
        }
    }

    /// The most slabs of the pool that one session holds.
    ///
    /// Where the pool is full, who holds so many is told to give something back. There is always such a one,
    /// and none can give back more. A share of the pool would not do in place of that: of three that hold a
    /// third each, none has more than half, and all would wait for ever. What is in quarantine counts as if
    /// one held it, for nobody is there who could give it back: those that hold less wait for its end.
    pub(super) fn most_held_slabs(&self) -> u32 {
        self.escape.most_held_in_cache().max(self.pool.quarantined())
    }

    /// Whether senders wait for credit that they do not get because of what the session holds.
    fn suspends_its_senders(&self, session: u32) -> bool {
        let is_its_sender = |&peer: &u32| self.registry.session_of(peer) == Some(session);
        self.withholds_credit(session) && self.credit.suspended().iter().any(is_its_sender)
    }
}

//! Handling of small messages (Jet §4.1.1), in order: a message arrives in its slab, is checked, and
//! delivered; or it waits for a slot first. The release and the end follow in `release` and `settle`.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::delivery::{HeaderBytes, Part, UserHeader};
use crate::effects::{CopyFailed, Effects};
use crate::index::NONE;
use crate::messages::{MessageState, Small};
use crate::pool::{Run, Share};
use jet_wire::message::{AckStatus, SmallHeader};
use jet_wire::planted;

pub(super) const RECORD_IN_RESERVE: &str = "each entry that is posted has a record in reserve";

impl<P: GrantPolicy> Receiver<P> {
    #[inline]
    pub(super) fn small(
        &mut self,
        now_ns: u64,
        peer: u32,
        slab: u32,
        small: &SmallHeader,
        effects: &mut impl Effects,
    ) {
        let payload_bytes = small.payload_bytes.get();
        self.stats.small_messages += 1;
        self.stats.redelivered += u64::from(small.redelivered());
        let (sender, session) = self.registry.sender(peer);
        let session = session.unwrap_or(NONE);
        let refused = if self.draining {
            Some(AckStatus::Draining)
        } else if session == NONE || (planted!(AppForgotten) && small.sequence.get().is_multiple_of(64)) {
            Some(AckStatus::NoApp)
        } else if self.is_slab_lost(slab) || !self.checks.small_fits(small, slab, effects) {
            Some(AckStatus::Corrupt)
        } else if !self.may_have_small(session, 0) || self.keeps_too_many_records(session) {
            Some(AckStatus::Busy)
        } else {
            None
        };
        let wants_reply = small.wants_reply() && self.outbox.takes_replies(peer);
        let message = self.messages.add_small(&Small {
            redelivered: small.redelivered(),
            wants_reply,
            peer,
            session,
            sequence: small.sequence.get(),
            sender,
            tag: small.tag.get(),
            length: u64::from(payload_bytes),
        });
        let message = message.expect(RECORD_IN_RESERVE);
        self.outbox.begin(peer);
        let refused =
            if wants_reply { self.promise_reply((peer, session), message, refused) } else { refused };
        if let Some(status) = refused {
            self.give_small(slab);
            self.fail(message, status);
            return;
        }
        if !self.delivery.takes_small_now(session, &self.slots) {
            self.backlog(now_ns, message, slab, small, effects);
            return;
        }
        let bytes = HeaderBytes::in_place(&small.user_header, small.user_header().len());
        let user_header = UserHeader::Arrived(bytes);
        self.deliver_small(now_ns, message, (slab, Share::Srq), user_header, effects);
    }

    /// Returns whether the session may have another small message, whose slab is not posted any more, and
    /// `further` ones beside it.
    #[inline]
    pub(super) fn may_have_small(&self, session: u32, further: u32) -> bool {
        let available = (self.pool.free() + self.srq.posted()).saturating_sub(further);
        self.admission.may_have_small(available, &self.pool, || {
            let held = self.escape.held_in_cache(session) + self.delivery.backlog(session);
            (held, self.releases.has_given_back(session))
        })
    }

    /// Delivers a small message. The session must have a slot and a message number.
    #[inline(always)] // on every message's way
    fn deliver_small(
        &mut self,
        now_ns: u64,
        message: u32,
        (slab, share): (u32, Share),
        user_header: UserHeader<'_>,
        effects: &mut impl Effects,
    ) {
        let bytes = u32::try_from(self.messages[message].length).expect("small");
        let run = Run { first: slab, count: 1 };
        let part = Part {
            run,
            offset: 0,
            bytes,
            share,
            cached_in_budget: self.pool.is_cached_in_budget(run, share),
        };
        self.deliver(now_ns, message, part, user_header, effects);
    }

    /// Delivers one run to its session. The session must have a slot, and a message number if this is the
    /// message's first run.
    #[inline(always)] // on every message's way
    pub(super) fn deliver(
        &mut self,
        now_ns: u64,
        message: u32,
        part: Part,
        user_header: UserHeader<'_>,
        effects: &mut impl Effects,
    ) {
        debug_assert!(!self.pool.is_retired(part.run), "{part:?} is lost");
        let session = self.messages[message].session;
        let tables = (&mut self.messages, &mut self.slots);
        let slot = self.delivery.deliver(message, part, user_header, tables, effects);
        let stall_free_ns = super::stall_free_ns(now_ns, self.stalled_ns);
        self.escape.hold(session, slot, part.run.count, part.share, part.cached_in_budget, stall_free_ns);
    }

    /// Puts a small message into the backlog of its session, which is suspended until it has slots.
    #[cold]
    fn backlog(
        &mut self,
        now_ns: u64,
        message: u32,
        slab: u32,
        small: &SmallHeader,
        effects: &mut impl Effects,
    ) {
        let session = self.messages[message].session;
        let bytes = small.payload_bytes.get();
        let demand = self.demand();
        let kept = self.escape.keep_in_memory(session, (slab, bytes), demand, &mut self.pool, effects);
        let kept = match kept {
            Ok(kept) => kept,
            Err(failed) => {
                self.mark(now_ns, effects);
                if failed == CopyFailed::Source {
                    self.give_small(slab);
                    self.fail(message, AckStatus::Corrupt);
                    return;
                }
                None
            }
        };
        let record = &mut self.messages[message];
        record.state = match kept {
            Some(slab) => MessageState::Backlogged { slab, share: Share::Copied },
            None => MessageState::Backlogged { slab, share: Share::Srq },
        };
        self.messages.keep_user_header(message, small.user_header());
        self.delivery.push_backlog(message, &mut self.messages);
        let view = mechanisms_of!(self);
        self.admission.suspend(session, &view);
    }

    /// Delivers small messages that waited for slots or numbers, as far as these have come free.
    pub(super) fn deliver_backlog(&mut self, now_ns: u64, session: u32, effects: &mut impl Effects) {
        while self.delivery.has_room_for_small(session, &self.slots) {
            let Some(message) = self.delivery.pop_backlog(session, &mut self.messages) else { return };
            let place = self.messages[message].state.leave_backlog();
            self.deliver_small(now_ns, message, place, UserHeader::Kept, effects);
        }
    }

    /// Frees the slab of a small message that waited for a slot and does not wait any more.
    pub(super) fn drop_backlogged(&mut self, message: u32) {
        let record = &mut self.messages[message];
        let (slab, share) = record.state.leave_backlog();
        if record.session != NONE {
            self.escape.give_up(record.session, 1, share);
        }
        self.pool.give(Run { first: slab, count: 1 }, share);
    }
}

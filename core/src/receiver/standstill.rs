//! Applications that hold all that they may, while more waits for them.
//!
//! An application may keep what it gets until it has all of a message. One that does so with a message larger than the
//! pool waits for what can never come, and so does one that keeps more messages than it may. So it is told, as is the
//! operator: which limit, and that something has to be given back.
//!
//! Where the pool has no room, that may be another one's doing, whose release ends it. Who waits for that is not told: it
//! would give up its message for nothing. Told is who holds the most.
//!
//! Who only is slow looks the same for a while. What tells them apart is time in which nothing was given back and
//! nothing came, though none of it was on its way.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{Effects, SessionId, Standstill, StandstillStage};
use crate::message::NONE;
use crate::stats::StandstillStats;
use jet_wire::segment::HeldLimit;

/// A session that stood still for so long hears of it. Longer than any READ or queue takes while nobody is in the way.
const STANDSTILL_NS: u64 = 1_000_000_000;
/// It hears of it again so long after.
const RENEWAL_NS: u64 = 10_000_000_000;

/// What changes whenever something comes to a session, or comes back from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Standing {
    held_slabs: u32,
    free_numbers: usize,
    delivered_messages: u64,
    delivered_bytes: u64,
}

/// Since when a session stands still.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stillness {
    standing: Standing,
    /// By the clock of what applications hold: since when, and the last look.
    since_ns: u64,
    seen_ns: u64,
    told: u16,
    limit: Option<HeldLimit>,
}

impl StandstillStage {
    /// That of a session which was told so often before.
    fn after(told: u16) -> Self {
        match told {
            0 => Self::First,
            1 => Self::Lasting,
            _ => Self::Again,
        }
    }
}

impl<P: GrantPolicy> Receiver<P> {
    /// Looks whether an open session stands still.
    pub(super) fn look_for_standstill(
        &mut self,
        now_ns: u64,
        session: u32,
        most_held_slabs: u32,
        effects: &mut impl Effects,
    ) {
        let owner = &self.sessions[session as usize];
        if owner.still.told == 0 && owner.free_messages.len() == owner.messages.len() {
            // It has nothing: so most of many are passed over.
            return;
        }
        let attended_ns = self.attended_ns(now_ns);
        let standing = Standing {
            held_slabs: self.held_slabs(session),
            free_numbers: owner.free_messages.len(),
            delivered_messages: owner.delivered_messages,
            delivered_bytes: owner.delivered_bytes,
        };
        let limit =
            if owner.promised_slots == 0 { self.limit_reached(session, most_held_slabs) } else { None };
        let owner = &mut self.sessions[session as usize];
        let still = &mut owner.still;
        if limit.is_none() || still.standing != standing {
            let was_told = still.told > 0;
            *still = Stillness { standing, since_ns: attended_ns, seen_ns: attended_ns, told: 0, limit };
            if was_told {
                effects.tell_standstill(SessionId(session), None);
            }
            return;
        }
        (still.limit, still.seen_ns) = (limit, attended_ns);
        let due_ns = STANDSTILL_NS + u64::from(still.told) * RENEWAL_NS;
        if let Some(limit) = limit
            && attended_ns.saturating_sub(still.since_ns) >= due_ns
        {
            let standstill = Standstill { limit, stage: StandstillStage::after(still.told) };
            still.told = still.told.saturating_add(1);
            effects.tell_standstill(SessionId(session), Some(standstill));
        }
    }

    /// How a session stands that was told that it stands still.
    pub(super) fn standstill(&self, session: u32) -> Option<StandstillStats> {
        let still = &self.sessions[session as usize].still;
        // As the last look saw it: a stall that is noted after that is no part of it.
        let span_ns = still.seen_ns.saturating_sub(still.since_ns);
        let told = still.limit.filter(|_| still.told > 0);
        told.map(|limit| StandstillStats { limit, span_ns })
    }

    /// Slabs that a session holds, wherever they lie.
    pub(super) fn held_slabs(&self, session: u32) -> u32 {
        let now = &self.sessions[session as usize].now;
        self.escape.held_slabs(session) + now.replaced + now.memory()
    }

    /// What the session has used up, where it holds something and more waits for it.
    pub(super) fn limit_reached(&self, session: u32, most_held_slabs: u32) -> Option<HeldLimit> {
        let owner = &self.sessions[session as usize];
        if owner.free_messages.len() == owner.messages.len() {
            return None;
        }
        let queued = owner.queued.iter().any(|queued| queued.waiting + queued.parked.len() > 0);
        if owner.incomplete.0 == NONE && owner.backlog.len() == 0 && !queued {
            let limit =
                if self.keeps_too_many_records(session) { HeldLimit::Records } else { HeldLimit::Small };
            return self.bars_its_senders(session).then_some(limit);
        }
        if owner.numbers_left() == 0 {
            return Some(HeldLimit::Messages);
        }
        if self.holds_anything(session) {
            return self.limit_of_slabs(session, most_held_slabs);
        }
        None
    }

    fn limit_of_slabs(&self, session: u32, most_held_slabs: u32) -> Option<HeldLimit> {
        let owner = &self.sessions[session as usize];
        if !owner.has_room_for_fragment(self.fragment_slabs()) {
            Some(HeldLimit::Slots)
        } else if self.holds_its_memory(session) {
            Some(HeldLimit::Memory)
        } else if self.pool_is_full_for(session) && self.escape.held_slabs(session) >= most_held_slabs {
            Some(HeldLimit::Pool)
        } else {
            None
        }
    }

    /// The most slabs of the pool that one session holds.
    ///
    /// Where the pool is full, who holds so many is told to give something back. There is always such a one, and none can
    /// give back more. A share of the pool would not do in place of that: of three that hold a third each, none has more than
    /// half, and all would wait for ever. What is in quarantine counts as if one held it, for nobody is there who could give
    /// it back: those that hold less wait for its end.
    pub(super) fn most_held_slabs(&self) -> u32 {
        let held = (0..self.config.sessions_max).map(|session| self.escape.held_slabs(session));
        held.max().unwrap_or(0).max(self.pool.quarantined())
    }

    fn pool_is_full_for(&self, session: u32) -> bool {
        if self.config.escape.enabled {
            self.lacks_room(session)
        } else {
            self.pool.read_room_max(self.srq_needed()) < self.fragment_slabs()
        }
    }

    /// Whether senders wait for credit that they do not get because of what the session holds.
    fn bars_its_senders(&self, session: u32) -> bool {
        let is_its_sender = |&peer: &u32| self.registry.session_of(peer) == Some(session);
        self.is_barred_to_senders(session) && self.credit.barred().iter().any(is_its_sender)
    }
}

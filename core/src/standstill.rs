//! Applications that hold all that they may, while more waits for them.
//!
//! An application may keep what it gets until it has all of a message. One that does so with a message larger
//! than the pool waits for what can never come, and so does one that keeps more messages than it may. So it
//! is told, as is the operator: which limit, and that something has to be given back.
//!
//! Who only is slow looks the same for a while. What tells them apart is time in which nothing was given back
//! and nothing came, though none of it was on its way.

use crate::effects::{Commands, SessionId, Standstill, StandstillStage};
use crate::stats::StandstillStats;
use alloc::boxed::Box;
use alloc::vec;
use jet_wire::segment::HeldLimit;

/// A session that stood still for so long hears of it. Longer than any READ or queue takes while nobody is in
/// the way.
const STANDSTILL_NS: u64 = 1_000_000_000;
/// It hears of it again so long after.
const RENEWAL_NS: u64 = 10_000_000_000;

/// What changes whenever something comes to a session, or comes back from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub held_slabs: u32,
    pub numbers_used: u32,
    pub delivered_messages: u64,
    pub delivered_bytes: u64,
}

/// Since when a session stands still.
#[derive(Clone, Copy, Debug, Default)]
struct Stillness {
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

/// Which sessions stand still.
#[derive(Debug)]
pub(crate) struct Standstills {
    sessions: Box<[Stillness]>,
}

impl Standstills {
    /// None does.
    pub fn new(sessions: u32) -> Self {
        Self { sessions: vec![Stillness::default(); sessions as usize].into_boxed_slice() }
    }

    /// Whether a session was told, and not yet that it is over.
    pub fn was_told(&self, session: u32) -> bool {
        self.sessions[session as usize].told > 0
    }

    /// A look at an open session, which has used up `limit` while more waits for it that is not on its way.
    pub fn look(
        &mut self,
        attended_ns: u64,
        session: u32,
        standing: Standing,
        limit: Option<HeldLimit>,
        effects: &mut impl Commands,
    ) {
        let still = &mut self.sessions[session as usize];
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
    pub fn stats(&self, session: u32) -> Option<StandstillStats> {
        let still = &self.sessions[session as usize];
        // As the last look saw it: a stall that is noted after that is no part of it.
        let span_ns = still.seen_ns.saturating_sub(still.since_ns);
        let told = still.limit.filter(|_| still.told > 0);
        told.map(|limit| StandstillStats { limit, span_ns })
    }

    /// Ready for another application.
    pub fn reset(&mut self, session: u32) {
        self.sessions[session as usize] = Stillness::default();
    }
}

//! Standstills: applications that hold all that they may, while more waits for them.
//!
//! An application may keep what it gets until it has all of a message. If the message is larger than the
//! pool, it waits for something that can never arrive. So does an application that keeps more messages than
//! it may. Jet tells the application and the operator which limit was reached, and that something has to be
//! given back.
//!
//! An application that is merely slow looks the same for a while. Time tells them apart: in a standstill
//! nothing is given back and nothing arrives, and nothing is on its way.

use crate::effects::{Commands, SessionId, Standstill, StandstillStage};
use crate::stats::StandstillStats;
use alloc::boxed::Box;
use alloc::vec;
use jet_wire::segment::HeldLimit;

/// Nanoseconds of standstill after which the session's application is told of it. That is longer than any
/// READ or queue takes while nothing blocks it.
const STANDSTILL_NS: u64 = 1_000_000_000;
/// Nanoseconds after which an application is told again that its session stands still.
const RENEWAL_NS: u64 = 10_000_000_000;

/// Values of which one changes whenever something arrives for a session, or comes back from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    pub held_slabs: u32,
    pub numbers_used: u32,
    pub delivered_messages: u64,
    pub delivered_bytes: u64,
}

/// The standstill of one session: since when it lasts, and how often the application was told.
#[derive(Clone, Copy, Debug, Default)]
struct StandstillState {
    progress: Progress,
    /// Begin of the standstill, by the clock that measures how long applications hold runs.
    since_ns: u64,
    /// Time of the last check of the session, by the clock that measures how long applications hold runs.
    seen_ns: u64,
    told: u16,
    limit: Option<HeldLimit>,
}

impl StandstillStage {
    /// Returns the stage for a session that was told `told` times before.
    fn after(told: u16) -> Self {
        match told {
            0 => Self::First,
            1 => Self::Lasting,
            _ => Self::Again,
        }
    }
}

/// The standstills of all sessions.
#[derive(Debug)]
pub(crate) struct Standstills {
    sessions: Box<[StandstillState]>,
}

impl Standstills {
    /// Creates the state of sessions of which none stands still.
    pub fn new(sessions: u32) -> Self {
        Self { sessions: vec![StandstillState::default(); sessions as usize].into_boxed_slice() }
    }

    /// Returns whether the session's application was told of a standstill, and not yet that it is over.
    pub fn was_reported(&self, session: u32) -> bool {
        self.sessions[session as usize].told > 0
    }

    /// Checks an open session, and tells its application of a standstill that lasts or that is over. `limit`:
    /// what the session has used up while more waits for it that is not on its way.
    pub fn check(
        &mut self,
        stall_free_ns: u64,
        session: u32,
        progress: Progress,
        limit: Option<HeldLimit>,
        effects: &mut impl Commands,
    ) {
        let state = &mut self.sessions[session as usize];
        if limit.is_none() || state.progress != progress {
            let was_reported = state.told > 0;
            *state =
                StandstillState { progress, since_ns: stall_free_ns, seen_ns: stall_free_ns, told: 0, limit };
            if was_reported {
                effects.report_standstill(SessionId(session), None);
            }
            return;
        }
        (state.limit, state.seen_ns) = (limit, stall_free_ns);
        let due_ns = STANDSTILL_NS + u64::from(state.told) * RENEWAL_NS;
        if let Some(limit) = limit
            && stall_free_ns.saturating_sub(state.since_ns) >= due_ns
        {
            let standstill = Standstill { limit, stage: StandstillStage::after(state.told) };
            state.told = state.told.saturating_add(1);
            effects.report_standstill(SessionId(session), Some(standstill));
        }
    }

    /// Returns the session's standstill, if its application was told of one.
    pub fn stats(&self, session: u32) -> Option<StandstillStats> {
        let state = &self.sessions[session as usize];
        // Up to the last check: a stall that is noted later is not part of the span.
        let span_ns = state.seen_ns.saturating_sub(state.since_ns);
        let told = state.limit.filter(|_| state.told > 0);
        told.map(|limit| StandstillStats { limit, span_ns })
    }

    /// Makes the session's number ready for another application.
    pub fn reset(&mut self, session: u32) {
        self.sessions[session as usize] = StandstillState::default();
    }
}

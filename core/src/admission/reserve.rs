//! The reserve: slabs of the pool that sessions leave to each other, so that none of them can keep all.
//!
//! A session that gives back what it gets may use the pool but for the reserve: the slabs of two fragments,
//! and two slabs for each session that may be registered. Two kinds of messages may use the reserve, too: the
//! first message of an application that holds nothing, and the message that its application waits for, if
//! the application gave back all that it got of it. What such a message gets of the reserve is a loan. An
//! application that reads gives it back soon. One that has stopped keeps it, and the next one that stops
//! keeps another. So a loan is at most a quarter of what is left of the fragments, and two slabs once these
//! are gone. Each session has one loan at most, so there is always something left, however many applications
//! have stopped.
//!
//! Small messages take slabs that were posted before anybody knew whose messages would come. Once the free
//! and the posted slabs are no more than the SRQ's floor and the reserve, a session may hold an eighth of
//! what is left of them beyond the floor. Further small messages of it end `Busy`, and their slabs are free
//! at once.
//!
//! An application that dies leaves its slabs to the quarantine, and belongs to no session any more. While the
//! quarantine has more than an eighth of the pool, a session that has given nothing back yet has no more than
//! a loan, and no more small messages than if little were left. So nobody fills the quarantine by dying again
//! and again.

use super::policy::GrantPolicy;
use super::{Admission, View};
use crate::config::Config;
use crate::messages::Messages;
use crate::pool::Pool;
use jet_wire::SLAB_BYTES_U32;

/// Slabs of the reserve that are kept for each session, and the least loan.
const PER_SESSION: u32 = 2;
/// Part of what is left of the fragments in reserve that one loan may take.
const LOAN_PART: u32 = 4;
/// Part of what is left that one session's small messages may take where little is left.
const SMALL_PART: u32 = 8;
/// Part of the pool that the quarantine may have before it bounds new sessions.
const QUARANTINE_PART: u32 = 8;

/// Sizes of the reserve, in slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reserve {
    fragment: u32,
    /// Slabs for sessions, beyond the fragments.
    for_sessions: u32,
    srq_floor: u32,
    /// Free and posted slabs down to which any session may have small messages.
    little: u32,
    /// Slabs of the quarantine up to which it bounds nobody.
    quarantine: u32,
}

impl Reserve {
    /// Returns the sizes for a receiver with this configuration; `None` where the escape is off.
    pub fn of(config: &Config) -> Option<Self> {
        let Config { pool_slabs, srq_slabs, sessions_max, srq_floor_slabs, .. } = *config;
        let read_share = pool_slabs - srq_slabs;
        let fragment = config.fragment_bytes / SLAB_BYTES_U32;
        config
            .escape
            .enabled
            .then(|| Self::new((pool_slabs, read_share), fragment, sessions_max, srq_floor_slabs))
    }

    /// Returns the sizes for a pool of `total` slabs, of which `read_share` are not configured for the SRQ,
    /// and so many sessions.
    fn new((total, read_share): (u32, u32), fragment: u32, sessions: u32, srq_floor: u32) -> Self {
        // In a small pool the reserve would leave too little for what it is kept for. A fragment beside it
        // must fit the READ share, or nobody would ever have more than a loan.
        let spare = read_share.saturating_sub(3 * fragment);
        let for_sessions = sessions.saturating_mul(PER_SESSION).min(total / 16).min(spare);
        let little = (srq_floor + 2 * fragment + for_sessions).min(total / 4);
        Self { fragment, for_sessions, srq_floor, little, quarantine: total / QUARANTINE_PART }
    }

    /// Returns the slabs that a session leaves to others.
    #[inline]
    pub fn slabs(&self) -> u32 {
        2 * self.fragment + self.for_sessions
    }

    /// Returns the free slabs that the SRQ share leaves to READs: the reserve, or less in a small pool.
    pub fn read_floor(&self, total: u32) -> u32 {
        self.slabs().min(self.fragment.max(total / 8))
    }

    /// Returns the most slabs that a READ may take of the reserve, of which so many are left.
    fn loan(&self, left: u32) -> u32 {
        let of_fragments = left.saturating_sub(self.for_sessions) / LOAN_PART;
        of_fragments.max(PER_SESSION.min(left)).min(self.fragment)
    }

    /// Returns whether any session may have small messages, as many as it likes. `available`: free and posted
    /// slabs.
    #[inline]
    pub fn has_much(&self, available: u32, pool: &Pool) -> bool {
        available > self.little && pool.quarantined() <= self.quarantine
    }

    /// Returns whether a session that holds `held` slabs may have a small message where little is left, or
    /// the quarantine has much. `has_given_back`: it has released something.
    pub fn may_have_small(&self, held: u32, available: u32, has_given_back: bool) -> bool {
        if available > self.little && has_given_back {
            return true;
        }
        held < (available.saturating_sub(self.srq_floor) / SMALL_PART).max(1)
    }
}

/// What a READ may take of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// A whole fragment.
    Plenty,
    /// A loan of so many slabs at most.
    Loan(u32),
    /// Nothing now.
    Nothing,
}

impl<P: GrantPolicy> Admission<P> {
    /// Returns what the next READ of a message may take, of `room` slabs that READs may take now.
    pub(super) fn room_for(
        &self,
        message: u32,
        room: u32,
        (messages, pool): (&Messages, &Pool),
        view: &impl View,
    ) -> Room {
        let session = messages[message].session;
        let has_room = room >= self.room_left_by(session, pool, view);
        if has_room && self.is_within_window(pool) && !self.is_bounded_by_quarantine(session, pool, view) {
            return Room::Plenty;
        }
        if !self.may_borrow(message, messages, view) {
            return Room::Nothing;
        }
        match &self.reserve {
            // A message beyond the footprint window lacks no slabs.
            Some(reserve) if !has_room || pool.quarantined() > reserve.quarantine => {
                Room::Loan(reserve.loan(room))
            }
            _ => Room::Plenty,
        }
    }

    /// Returns whether the quarantine has so much that the session, which has given nothing back, may not
    /// have more than a loan.
    #[inline]
    pub(super) fn is_bounded_by_quarantine(&self, session: u32, pool: &Pool, view: &impl View) -> bool {
        self.reserve.is_some_and(|reserve| pool.quarantined() > reserve.quarantine)
            && !view.has_given_back(session)
    }

    /// Returns whether the message may use the slabs that are kept in reserve. Two kinds of messages may: the
    /// message that its application waits for, if the application gave back all that it got of it; and the
    /// first message of an application that holds nothing. An application that has something to read does not
    /// need the reserve.
    fn may_borrow(&self, message: u32, messages: &Messages, view: &impl View) -> bool {
        let record = &messages[message];
        match view.oldest_incomplete(record.session) {
            None => self.reserve.is_none() || !view.holds_anything(record.session),
            Some(oldest) if oldest == message => {
                self.reserve.is_none() || (record.held == 0 && record.reads == 0)
            }
            Some(_) => false,
        }
    }

    /// Returns the slabs that a session leaves free in the pool when it holds more than half of the pool: an
    /// eighth, or 0 where the escape is off. Such a session may stop giving back, which is known only when
    /// its runs are stragglers.
    pub(super) fn room_left_by_most(&self, pool: &Pool) -> u32 {
        if self.reserve.is_some() { pool.total() / 8 } else { 0 }
    }

    /// Returns the slabs that a session leaves free in the pool.
    #[inline]
    pub(super) fn room_left_by(&self, session: u32, pool: &Pool, view: &impl View) -> u32 {
        let reserve = self.reserve_slabs();
        let holds_most = view.held_in_cache(session) > pool.total() / 2;
        if holds_most { reserve.max(self.room_left_by_most(pool)) } else { reserve }
    }

    /// Returns the slabs of the reserve. With the escape off, two fragments' slabs are kept for messages that
    /// their applications wait for.
    #[inline]
    pub(super) fn reserve_slabs(&self) -> u32 {
        self.reserve.map_or(2 * self.fragment_slabs(), |reserve| reserve.slabs())
    }

    /// Returns whether the session may have another small message. `available`: free and posted slabs.
    /// `held`: slabs that the session holds, and small messages that wait for its slots.
    #[inline]
    pub fn may_have_small(&self, available: u32, pool: &Pool, held: impl FnOnce() -> (u32, bool)) -> bool {
        match &self.reserve {
            Some(reserve) if !reserve.has_much(available, pool) => {
                let (held, has_given_back) = held();
                reserve.may_have_small(held, available, has_given_back)
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// The default pool: 3,072 slabs, fragments of 64, 64 sessions, an SRQ floor of 128.
    fn reserve() -> Reserve {
        Reserve::new((3072, 2048), 64, 64, 128)
    }

    #[test]
    fn each_of_all_sessions_gets_a_loan_and_keeps_it_and_the_first_ones_are_no_fragment() {
        let (reserve, mut left, mut loans) = (reserve(), reserve().slabs(), Vec::new());
        for _ in 0..64 {
            let loan = reserve.loan(left);
            assert!(loan > 0, "after {loans:?}");
            left -= loan;
            loans.push(loan);
        }
        assert!(loans.is_sorted_by(|a, b| a >= b) && loans[0] == 32 && loans[63] == 2, "{loans:?}");
    }

    #[test]
    fn a_session_that_keeps_small_messages_is_bounded_where_little_is_left() {
        let reserve = reserve();
        let mut available = 1000;
        let mut held_by = Vec::new();
        for _ in 0..64 {
            let mut held = 0;
            while available > reserve.little || reserve.may_have_small(held, available, true) {
                (held, available) = (held + 1, available - 1);
            }
            held_by.push(held);
        }
        assert!(held_by.iter().all(|held| *held > 0), "{held_by:?}");
        assert!(available >= 64, "{available} slabs are left beside {held_by:?}");
    }

    #[test]
    fn a_small_pool_keeps_most_of_itself() {
        for total in [8, 64, 192, 256] {
            let reserve = Reserve::new((total, total * 2 / 3), 16, 64, 8);
            assert!(reserve.for_sessions <= total / 16 && reserve.little <= total / 4);
            assert!(reserve.read_floor(total) <= 16.max(total / 8));
        }
    }
}

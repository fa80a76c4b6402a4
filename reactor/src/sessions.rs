//! The applications' rings: deliveries to each session, wake-ups, and which session a number stands for.

use crate::application::{Application, NewSession, SessionTicket};
use jet_core::{ReleaseError, SessionEnd, SessionId, Standstill, StandstillStage};
use jet_fabric::memory::SharedMemory;
use jet_wire::segment::{
    DELIVERY_USER_HEADER_MAX, DaemonEnd, Delivery, Notice, Place, Release, SlotWord, delivery_kind,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// An open session.
struct Session<A> {
    segment: DaemonEnd,
    application: A,
    /// Whether something was delivered, or a notice was put, since the last publish.
    dirty: bool,
    /// Whether its delivery ring turned out to be broken. Then it is shown nothing more.
    is_faulted: bool,
    /// Number of the last notice, which tells notices apart.
    notices: u16,
    /// Mapping of the segment, kept for as long as `segment` points into it.
    _memory: Arc<SharedMemory>,
}

/// The rings of all sessions.
pub(crate) struct Sessions<A> {
    sessions: Box<[Option<Session<A>>]>,
    /// Ticket of each number's newest session; 0: no session had the number yet.
    tickets: Box<[u64]>,
    next_ticket: u64,
    open: Vec<u32>,
    dirty: Vec<u32>,
    /// Open sessions whose rings turned out to be broken, in that order.
    faulted: VecDeque<SessionId>,
    /// Bytes delivered to all sessions together, also to those that are closed now.
    delivered_bytes: u64,
}

impl<A: Application> Sessions<A> {
    /// Makes a table without open sessions, for at most `sessions_max` of them.
    pub fn new(sessions_max: u32) -> Self {
        let max = sessions_max as usize;
        Self {
            sessions: (0..max).map(|_| None).collect(),
            tickets: vec![0; max].into(),
            next_ticket: 1,
            open: Vec::with_capacity(max),
            dirty: Vec::with_capacity(max),
            faulted: VecDeque::with_capacity(max),
            delivered_bytes: 0,
        }
    }

    /// Adds a session under the number that the receiver gave it.
    pub fn attach(&mut self, session: SessionId, new: NewSession<A>) -> SessionTicket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.sessions[session.0 as usize] = Some(Session {
            segment: new.segment,
            application: new.application,
            dirty: false,
            is_faulted: false,
            notices: 0,
            _memory: new.memory,
        });
        self.tickets[session.0 as usize] = ticket;
        self.open.push(session.0);
        SessionTicket { session, ticket }
    }

    /// Returns whether no later session has got the number of this ticket's session, which may be open or
    /// over.
    pub fn has_had(&self, ticket: SessionTicket) -> bool {
        self.tickets[ticket.session.0 as usize] == ticket.ticket
    }

    /// Returns the number of the session at `position` in the list of open sessions.
    #[inline]
    pub fn nth(&self, position: usize) -> Option<SessionId> {
        self.open.get(position).map(|&session| SessionId(session))
    }

    fn get(&mut self, session: SessionId) -> Option<&mut Session<A>> {
        self.sessions[session.0 as usize].as_mut()
    }

    /// Returns the application of an open session.
    pub fn application(&mut self, session: SessionId) -> Option<&mut A> {
        self.get(session).map(|session| &mut session.application)
    }

    /// Takes the session's next release entry. `None`: there is none, or the session is closed. An error
    /// means that the ring is broken.
    #[inline]
    pub fn next_release(&mut self, session: SessionId) -> Option<Result<Release, ReleaseError>> {
        let session = self.get(session)?;
        session.segment.releases.pop().map_err(|_| ReleaseError::Ring).transpose()
    }

    /// Frees the cells of the release entries that were taken, so that the application can write them again.
    #[inline]
    pub fn took_releases(&mut self, session: SessionId) {
        if let Some(session) = self.get(session) {
            session.segment.releases.advance();
        }
    }

    /// Returns the [`SlotWord`] of a session's slot, by which the application pins the slot's run. Returns
    /// `None` where the session is closed, or has no such slot.
    #[inline]
    pub fn slot(&self, session: SessionId, slot: u32) -> Option<SlotWord<'_>> {
        self.sessions[session.0 as usize].as_ref().and_then(|session| session.segment.slot(slot))
    }

    /// Returns the address of a message's reply cell in the session's segment.
    pub fn reply_cell(&self, session: SessionId, message: u32) -> Option<*const u8> {
        self.sessions[session.0 as usize].as_ref()?.segment.reply_cell(message)
    }

    /// Writes a delivery, whose run lies at `place`, into the session's delivery ring. The application sees
    /// it after [`Self::publish`].
    pub fn deliver(&mut self, session: SessionId, delivery: &Delivery, place: Place, user_header: &[u8]) {
        let Some(to) = self.sessions[session.0 as usize].as_mut() else { return };
        if to.is_faulted {
            // A delivery is missing. What came after it would be read in its place.
            return;
        }
        if user_header.len() > DELIVERY_USER_HEADER_MAX {
            to.segment.write_user_header(delivery.message, user_header);
        }
        if delivery.bytes > 0 || delivery.kind == delivery_kind::SLICES {
            let slot = to.segment.slot(delivery.slot).expect("the receiver's slots are the segment's");
            slot.publish(delivery.slot_generation(), place);
        }
        // The number of slots bounds the deliveries that an honest application leaves in the ring. So a full
        // ring counts as broken, just like an impossible index.
        if to.segment.deliveries.push(*delivery).is_err() {
            to.is_faulted = true;
            self.faulted.push_back(session);
        }
        if !to.dirty {
            to.dirty = true;
            self.dirty.push(session.0);
        }
        self.delivered_bytes += u64::from(delivery.bytes);
    }

    /// Returns the bytes that were delivered to all sessions together, also to those that are closed now.
    pub fn delivered_bytes(&self) -> u64 {
        self.delivered_bytes
    }

    /// Closes a session, and reports the end to its application.
    pub fn close(&mut self, session: SessionId, end: SessionEnd) {
        // Those that are left keep their order, in which their releases are taken: a new session comes last,
        // so that applications which come and break their sessions hold up no older one.
        self.open.retain(|&open| open != session.0);
        // It may have ended for another reason, and the number may be another's next.
        self.faulted.retain(|&faulted| faulted != session);
        if let Some(closed) = self.sessions[session.0 as usize].take() {
            closed.application.ended(end);
        }
    }

    /// Reports to an application that its session stands still, or (`None`) no longer does: by a notice in
    /// its segment, and by [`Application::stands_still`].
    pub fn report_standstill(&mut self, session: SessionId, standstill: Option<Standstill>) {
        let Some(told) = self.sessions[session.0 as usize].as_mut() else { return };
        told.notices = told.notices.wrapping_add(1);
        let (number, releases) = (told.notices, told.segment.releases.taken());
        told.segment.put_notice(standstill.map(|Standstill { limit, stage }| Notice {
            limit,
            lasting: stage != StandstillStage::First,
            number,
            releases,
        }));
        told.application.stands_still(standstill);
        if !told.dirty {
            told.dirty = true;
            self.dirty.push(session.0);
        }
    }

    /// Whether there are open sessions whose delivery rings turned out to be broken.
    #[inline]
    pub fn has_faulted(&self) -> bool {
        !self.faulted.is_empty()
    }

    /// Takes the open session whose delivery ring was the first that turned out to be broken.
    pub fn take_faulted(&mut self) -> Option<SessionId> {
        self.faulted.pop_front()
    }

    /// Shows applications what was delivered, and wakes those that sleep.
    #[inline]
    pub fn publish(&mut self) {
        while let Some(session) = self.dirty.pop() {
            let Some(session) = self.sessions[session as usize].as_mut() else { continue };
            session.dirty = false;
            if session.is_faulted {
                continue;
            }
            session.segment.deliveries.publish();
            if session.segment.deliveries.wake_needed() {
                session.application.wake();
            }
        }
    }

    /// Sets the mark "about to sleep" in the release ring of every session. Returns `false` where a session
    /// has releases waiting; then no session keeps the mark.
    pub fn prepare_sleep(&mut self) -> bool {
        for position in 0..self.open.len() {
            let Some(session) = self.sessions[self.open[position] as usize].as_mut() else { continue };
            if !session.segment.releases.prepare_sleep() {
                self.wake_up_first(position);
                return false;
            }
        }
        true
    }

    /// Takes the mark "about to sleep" back in every session.
    pub fn wake_up(&mut self) {
        self.wake_up_first(self.open.len());
    }

    fn wake_up_first(&mut self, count: usize) {
        for position in 0..count {
            if let Some(session) = self.sessions[self.open[position] as usize].as_mut() {
                session.segment.releases.awake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_core::Registration;
    use jet_wire::message::hello::AppName;
    use jet_wire::segment::{SegmentLayout, SegmentShape, daemon_end};

    struct Nobody;

    impl Application for Nobody {
        fn wake(&mut self) {}

        fn stands_still(&mut self, _standstill: Option<Standstill>) {}

        fn ended(self, _end: SessionEnd) {}
    }

    fn session(shape: SegmentShape) -> NewSession<Nobody> {
        let bytes = SegmentLayout::new(shape).total_bytes();
        let memory = Arc::new(SharedMemory::new("test-session", bytes, false).unwrap());
        // SAFETY: the mapping is zeroed and page-aligned, and the session keeps it as long as this end. There
        // is no other.
        let segment = unsafe { daemon_end(memory.base(), memory.bytes(), shape) }.unwrap();
        let app = AppName::new("store").unwrap();
        let application = Nobody;
        NewSession { registration: Registration::new(app), segment, memory, application }
    }

    #[test]
    fn a_broken_ring_is_its_own_sessions_and_of_no_later_one_with_its_number() {
        let (shape, number) = (SegmentShape::new(8, 8), SessionId(0));
        let mut sessions = Sessions::new(1);
        sessions.attach(number, session(shape));
        let withdrawn = Delivery { kind: delivery_kind::WITHDRAWN, ..Delivery::ZERO };
        for _ in 0..=shape.delivery_cells {
            assert!(!sessions.has_faulted());
            sessions.deliver(number, &withdrawn, Place { slab: 0, escaped: false }, b"");
        }
        assert!(sessions.has_faulted());
        // It ends for another reason, before its turn comes.
        sessions.close(number, SessionEnd::Gone);
        sessions.attach(number, session(shape));
        assert!(!sessions.has_faulted() && sessions.take_faulted().is_none());
    }
}

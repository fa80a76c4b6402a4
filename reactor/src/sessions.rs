//! Applications' rings: what is delivered to each, who is to be woken, and whose session a number stands for.

use crate::application::{Application, NewSession, SessionTicket};
use jet_core::{ReleaseError, SessionEnd, SessionId, Standstill, StandstillStage};
use jet_fabric::memory::SharedMemory;
use jet_wire::segment::{
    DELIVERY_USER_HEADER_MAX, DaemonEnd, Delivery, Notice, Place, Release, SlotWord, delivery_kind,
};
use std::sync::Arc;

/// One application.
struct Session<A> {
    segment: DaemonEnd,
    application: A,
    /// Delivered to, or told something, since the last publish.
    dirty: bool,
    /// Tells its notices apart.
    notices: u16,
    /// Keeps the segment mapped.
    _memory: Arc<SharedMemory>,
}

/// Every session's rings.
pub(crate) struct Sessions<A> {
    sessions: Box<[Option<Session<A>>]>,
    /// The ticket of each number's newest session; 0: none had it yet.
    tickets: Box<[u64]>,
    next_ticket: u64,
    open: Vec<u32>,
    dirty: Vec<u32>,
    faulted: Vec<SessionId>,
}

impl<A: Application> Sessions<A> {
    /// None is open, of so many.
    pub fn new(sessions_max: u32) -> Self {
        let max = sessions_max as usize;
        Self {
            sessions: (0..max).map(|_| None).collect(),
            tickets: vec![0; max].into(),
            next_ticket: 1,
            open: Vec::with_capacity(max),
            dirty: Vec::with_capacity(max),
            faulted: Vec::with_capacity(max),
        }
    }

    /// Lets an application in under the number that the receiver gave it.
    pub fn attach(&mut self, session: SessionId, new: NewSession<A>) -> SessionTicket {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.sessions[session.0 as usize] = Some(Session {
            segment: new.segment,
            application: new.application,
            dirty: false,
            notices: 0,
            _memory: new.memory,
        });
        self.tickets[session.0 as usize] = ticket;
        self.open.push(session.0);
        SessionTicket { session, ticket }
    }

    /// Whether a session is, or was, the newest of its number.
    pub fn has_had(&self, ticket: SessionTicket) -> bool {
        self.tickets[ticket.session.0 as usize] == ticket.ticket
    }

    /// The number of the n-th open session.
    #[inline]
    pub fn nth(&self, position: usize) -> Option<SessionId> {
        self.open.get(position).map(|&session| SessionId(session))
    }

    fn get(&mut self, session: SessionId) -> Option<&mut Session<A>> {
        self.sessions[session.0 as usize].as_mut()
    }

    /// An open session's application.
    pub fn application(&mut self, session: SessionId) -> Option<&mut A> {
        self.get(session).map(|session| &mut session.application)
    }

    /// What a session gave back next; `None`: nothing, or it is closed.
    #[inline]
    pub fn next_release(&mut self, session: SessionId) -> Option<Result<Release, ReleaseError>> {
        let session = self.get(session)?;
        session.segment.releases.pop().map_err(|_| ReleaseError::Ring).transpose()
    }

    /// What was taken of its releases makes room for more.
    #[inline]
    pub fn took_releases(&mut self, session: SessionId) {
        if let Some(session) = self.get(session) {
            session.segment.releases.advance();
        }
    }

    /// A slot of an open session.
    #[inline]
    pub fn slot(&self, session: SessionId, slot: u32) -> Option<SlotWord<'_>> {
        self.sessions[session.0 as usize].as_ref().and_then(|session| session.segment.slot(slot))
    }

    /// Writes a delivery, which lies at `place`.
    pub fn deliver(&mut self, session: SessionId, delivery: &Delivery, place: Place, user_header: &[u8]) {
        let Some(to) = self.sessions[session.0 as usize].as_mut() else { return };
        if user_header.len() > DELIVERY_USER_HEADER_MAX {
            to.segment.write_user_header(delivery.message, user_header);
        }
        if delivery.bytes > 0 || delivery.kind == delivery_kind::SLICES {
            let slot = to.segment.slot(delivery.slot).expect("the receiver's slots are the segment's");
            slot.publish(delivery.slot_generation(), place);
        }
        // Slots bound what an honest application can have unread, so a full ring is as broken as a wild
        // index.
        if to.segment.deliveries.push(*delivery).is_err() && !self.faulted.contains(&session) {
            self.faulted.push(session);
        }
        if !to.dirty {
            to.dirty = true;
            self.dirty.push(session.0);
        }
    }

    /// The session is over.
    pub fn close(&mut self, session: SessionId, end: SessionEnd) {
        self.open.retain(|&open| open != session.0);
        if let Some(closed) = self.sessions[session.0 as usize].take() {
            closed.application.ended(end);
        }
    }

    /// Tells an application, and whoever looks after it, that it stands still, or that this is over.
    pub fn tell_standstill(&mut self, session: SessionId, standstill: Option<Standstill>) {
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

    /// A session whose delivery ring turned out to be broken.
    pub fn take_faulted(&mut self) -> Option<SessionId> {
        self.faulted.pop()
    }

    /// Shows applications what was delivered and wakes those that sleep.
    #[inline]
    pub fn publish(&mut self) {
        while let Some(session) = self.dirty.pop() {
            let Some(session) = self.sessions[session as usize].as_mut() else { continue };
            session.dirty = false;
            session.segment.deliveries.publish();
            if session.segment.deliveries.wake_needed() {
                session.application.wake();
            }
        }
    }

    /// Every session says "about to sleep". `false`: one of them has releases waiting, and none says it.
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

    /// Takes "about to sleep" back.
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

//! Sessions that are granted nothing new for a while, so that nobody sits on the pool at others' cost.
//!
//! A session is barred while its application is slow (Jet §4.3: most of what it holds are stragglers) and the pool is
//! under pressure, while it holds all the memory that one session may, while it has no slots left, and while it has
//! something to read and the pool no room but what is reserved. Its waiting messages then wait in lists of their own
//! instead of at the head of their queues, and where it is its own application's doing its senders get no further
//! credit. What its application waits for (see `order`) still comes: a bar never holds up the message that would end it.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::config::CLASSES_MAX;
use crate::message::{MessageList, NONE, State};
use jet_escape::Pressure;

impl<P: GrantPolicy> Receiver<P> {
    /// Whether the session is to get nothing new now.
    pub(super) fn is_to_be_barred(&self, session: u32) -> bool {
        self.is_stuck(session) || self.lacks_room(session)
    }

    /// Whether that is its own application's doing, so that its senders are to hold back, too.
    fn is_stuck(&self, session: u32) -> bool {
        let owner = &self.sessions[session as usize];
        owner.backlog.head().is_some()
            || !owner.has_room_for_fragment(self.fragment_slabs())
            || (self.config.escape.enabled
                && (self.holds_its_memory(session)
                    || (self.escape.pressure() != Pressure::Ok && self.escape.is_slow(session))))
    }

    /// It holds as much memory as one session may.
    pub(super) fn holds_its_memory(&self, session: u32) -> bool {
        self.config.escape.enabled
            && self.config.memory_slabs > 0
            && self.sessions[session as usize].now.memory() >= self.config.session_memory_slabs
    }

    /// From now on.
    pub(super) fn bar(&mut self, session: u32) {
        let stuck = self.is_stuck(session);
        let owner = &mut self.sessions[session as usize];
        owner.stuck = stuck;
        if !owner.barred {
            owner.barred = true;
            self.barred_sessions.push(session);
        }
    }

    /// A message that runs waits from now on, until its session is no longer barred.
    pub(super) fn park_running(&mut self, message: u32) {
        let class = usize::from(self.messages[message].class);
        self.queues[class].running.take_one(&mut self.messages, message);
        self.leave_running(message);
        self.park(message);
    }

    fn park(&mut self, message: u32) {
        let record = &mut self.messages[message];
        record.state = State::Parked;
        let (session, class) = (record.session as usize, usize::from(record.class));
        self.sessions[session].parked[class].push(&mut self.messages, message);
    }

    /// The class's first waiting message whose session is not barred; the others go to their sessions' lists.
    pub(super) fn first_waiting(&mut self, class: usize) -> Option<u32> {
        while let Some(message) = self.queues[class].waiting.head() {
            if self.may_go_on(message) {
                return Some(message);
            }
            let session = self.messages[message].session;
            self.bar(session);
            self.queues[class].waiting.pop(&self.messages);
            self.park(message);
        }
        None
    }

    /// Looks at the barred sessions again: at those for which nothing speaks any more, and at messages whose turn it has
    /// become to be what their application waits for.
    pub(super) fn review_barred(&mut self, now_ns: u64) {
        let mut position = 0;
        while let Some(&session) = self.barred_sessions.get(position) {
            if self.sessions[session as usize].barred && self.is_to_be_barred(session) {
                let stuck = self.is_stuck(session);
                let owner = &mut self.sessions[session as usize];
                if core::mem::replace(&mut owner.stuck, stuck) && !stuck {
                    self.feed_barred();
                }
                self.unpark_awaited(session);
                position += 1;
            } else {
                self.barred_sessions.swap_remove(position);
                self.unbar(now_ns, session);
            }
        }
    }

    fn unbar(&mut self, now_ns: u64, session: u32) {
        let owner = &mut self.sessions[session as usize];
        (owner.barred, owner.stuck) = (false, false);
        for class in 0..CLASSES_MAX {
            let parked =
                core::mem::replace(&mut self.sessions[session as usize].parked[class], MessageList::EMPTY);
            let mut next = parked.head();
            while let Some(message) = next {
                let record = &mut self.messages[message];
                record.state = State::Waiting;
                // It waited for its own application: that gives it no claim over others.
                record.since_ns = now_ns;
                next = (record.next != NONE).then_some(record.next);
            }
            self.queues[class].waiting.prepend(&mut self.messages, parked);
        }
        self.feed_barred();
    }

    fn unpark_awaited(&mut self, session: u32) {
        let awaited = self.sessions[session as usize].incomplete.0;
        if awaited == NONE || self.messages[awaited].state != State::Parked || !self.may_go_on(awaited) {
            return;
        }
        let class = usize::from(self.messages[awaited].class);
        self.sessions[session as usize].parked[class].take_out(&mut self.messages, |m| m == awaited);
        self.messages[awaited].state = State::Waiting;
        let mut alone = MessageList::EMPTY;
        alone.push(&mut self.messages, awaited);
        self.queues[class].waiting.prepend(&mut self.messages, alone);
    }

    /// Messages that wait for their sessions to be no longer barred.
    pub(super) fn parked(&self) -> u32 {
        let lists = self.sessions.iter().flat_map(|session| session.parked.iter());
        lists.map(MessageList::len).sum()
    }
}

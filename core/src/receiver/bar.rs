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
        owner.was_stuck = stuck || (owner.barred && owner.was_stuck);
        owner.barred = true;
        if !core::mem::replace(&mut owner.reviewed, true) {
            self.reviewed_sessions.push(session);
        }
        self.waits_for_room |= !stuck;
    }

    /// A request waits in the queue of its class, or behind those of its session that have no place there yet.
    pub(super) fn enqueue(&mut self, message: u32) {
        let class = usize::from(self.messages[message].class);
        let owner = &mut self.sessions[self.messages[message].session as usize];
        if owner.queued[class].parked.len() > 0 {
            self.messages[message].state = State::Parked;
            owner.queued[class].parked.push(&mut self.messages, message);
        } else {
            owner.queued[class].waiting += 1;
            self.queues[class].waiting.push(&mut self.messages, message);
        }
    }

    /// The head of a class's queue leaves it.
    pub(super) fn pop_waiting(&mut self, class: usize) {
        if let Some(message) = self.queues[class].waiting.pop(&self.messages) {
            self.sessions[self.messages[message].session as usize].queued[class].waiting -= 1;
        }
    }

    /// A message that runs waits from now on, until its session is no longer barred: before those that never ran, for
    /// what it was admitted for is still its due.
    pub(super) fn park_running(&mut self, message: u32) {
        let class = usize::from(self.messages[message].class);
        self.queues[class].running.take_one(&mut self.messages, message);
        self.leave_running(message);
        self.messages[message].state = State::Parked;
        let owner = &mut self.sessions[self.messages[message].session as usize];
        owner.queued[class].parked.push_front(&mut self.messages, message);
        if owner.queued[class].parked_last == NONE {
            owner.queued[class].parked_last = message;
        }
    }

    /// A message that has just left the queue of its class waits with its session, before those that follow it.
    fn park(&mut self, message: u32) {
        let record = &mut self.messages[message];
        record.state = State::Parked;
        let class = usize::from(record.class);
        let owner = &mut self.sessions[record.session as usize];
        let last = core::mem::replace(&mut owner.queued[class].parked_last, message);
        if last == NONE {
            owner.queued[class].parked.push_front(&mut self.messages, message);
        } else {
            owner.queued[class].parked.insert_after(&mut self.messages, last, message);
        }
    }

    /// A parked message leaves its session's list.
    pub(super) fn take_parked(&mut self, message: u32) {
        let class = usize::from(self.messages[message].class);
        let owner = &mut self.sessions[self.messages[message].session as usize];
        owner.queued[class].parked.take_one(&mut self.messages, message);
        if owner.queued[class].parked_last == message {
            owner.queued[class].parked_last = NONE;
        }
    }

    /// The class's first waiting message whose session is not barred; the others go to their sessions' lists.
    pub(super) fn first_waiting(&mut self, class: usize) -> Option<u32> {
        while let Some(message) = self.queues[class].waiting.head() {
            if self.may_go_on(message) {
                return Some(message);
            }
            self.bar(self.messages[message].session);
            self.pop_waiting(class);
            self.park(message);
        }
        None
    }

    /// Looks at the barred sessions again: at those for which nothing speaks any more, and at messages whose turn it has
    /// become to be what their application waits for. What was parked goes back a few at a time: so a session that is
    /// barred and not in turns costs the same however much waits for it.
    pub(super) fn review_sessions(&mut self, now_ns: u64) {
        self.waits_for_room = false;
        let mut position = 0;
        while let Some(&session) = self.reviewed_sessions.get(position) {
            let owner = &self.sessions[session as usize];
            if self.registry.is_open(session) && owner.barred && self.is_to_be_barred(session) {
                self.keep_barred(session);
                position += 1;
                continue;
            }
            self.unbar(now_ns, session);
            self.unpark(now_ns, session);
            let owner = &mut self.sessions[session as usize];
            if owner.has_parked() {
                position += 1;
            } else {
                owner.reviewed = false;
                self.reviewed_sessions.swap_remove(position);
            }
        }
    }

    fn keep_barred(&mut self, session: u32) {
        let stuck = self.is_stuck(session);
        let owner = &mut self.sessions[session as usize];
        owner.was_stuck |= stuck;
        self.waits_for_room |= !stuck && owner.has_parked();
        if core::mem::replace(&mut owner.stuck, stuck) && !stuck {
            self.credit.feed_barred();
        }
        self.unpark_awaited(session);
    }

    /// The first of what was parked goes back to the heads of the queues: what had begun to arrive, and what follows it.
    fn unbar(&mut self, now_ns: u64, session: u32) {
        let owner = &mut self.sessions[session as usize];
        owner.stuck = false;
        if !core::mem::take(&mut owner.barred) {
            return;
        }
        for class in 0..CLASSES_MAX {
            self.sessions[session as usize].queued[class].parked_last = NONE;
            let back = self.split_parked(now_ns, session, class);
            self.queues[class].waiting.prepend(&mut self.messages, back);
        }
        self.credit.feed_barred();
    }

    /// What is left goes to the ends of the queues, where none of the session's waits there any more: what others asked
    /// for meanwhile goes first.
    fn unpark(&mut self, now_ns: u64, session: u32) {
        for class in 0..CLASSES_MAX {
            if self.sessions[session as usize].queued[class].waiting == 0 {
                let back = self.split_parked(now_ns, session, class);
                self.queues[class].waiting.append(&mut self.messages, back);
            }
        }
    }

    /// The first parked messages of a class, no more than could run at once. They wait again.
    fn split_parked(&mut self, now_ns: u64, session: u32, class: usize) -> MessageList {
        let owner = &mut self.sessions[session as usize];
        let queued = &mut owner.queued[class];
        let back = queued.parked.split_front(&mut self.messages, self.config.reads_max);
        queued.waiting += back.len();
        let mut next = back.head();
        while let Some(message) = next {
            let record = &mut self.messages[message];
            record.state = State::Waiting;
            if owner.was_stuck {
                // It waited for its own application: that gives it no claim over others.
                record.since_ns = now_ns;
            }
            next = (record.next != NONE).then_some(record.next);
        }
        back
    }

    fn unpark_awaited(&mut self, session: u32) {
        let awaited = self.sessions[session as usize].incomplete.0;
        if awaited == NONE || self.messages[awaited].state != State::Parked || !self.may_go_on(awaited) {
            return;
        }
        self.take_parked(awaited);
        let class = usize::from(self.messages[awaited].class);
        self.messages[awaited].state = State::Waiting;
        self.sessions[session as usize].queued[class].waiting += 1;
        self.queues[class].waiting.push_front(&mut self.messages, awaited);
    }

    /// Sessions that are barred now.
    pub(super) fn barred(&self) -> u32 {
        let is_open = |session: &u32| self.registry.is_open(*session);
        let barred =
            self.registry.numbers().filter(is_open).filter(|&session| self.sessions[session as usize].barred);
        u32::try_from(barred.count()).unwrap_or(NONE)
    }

    /// Messages that wait for their sessions to be no longer barred.
    pub(super) fn parked(&self) -> u32 {
        let queued = self.sessions.iter().flat_map(|session| session.queued.iter());
        queued.map(|queued| queued.parked.len()).sum()
    }
}

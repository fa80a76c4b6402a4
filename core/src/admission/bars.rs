//! Sessions that are granted nothing new for a while, so that nobody sits on the pool at others' cost.
//!
//! A session is barred while its application is slow (Jet §4.3: most of what it holds are stragglers) and the pool is
//! under pressure, while it holds all the memory that one session may, while it has no slots left, and while it has
//! something to read and the pool no room but what is reserved. Its waiting messages then wait in lists of their own
//! instead of at the head of their queues, and where it is its own application's doing its senders get no further
//! credit. What its application waits for still comes: a bar never holds up the message that would end it.
//!
//! What is asked for each READ is inlined whatever the compiler thinks of its size: what one question loads, the next has already.
//! Together a twentieth of what a message of 256 KiB costs that is given back at once (`jet-bench -- core`).

use super::policy::GrantPolicy;
use super::{Admission, View};
use crate::config::CLASSES_MAX;
use crate::index::NONE;
use crate::messages::{Life, MessageList, Messages};
use crate::pool::Pool;
use alloc::boxed::Box;
use jet_escape::Pressure;

/// A session's messages of one class that were not admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    /// How many are in the class's queue.
    pub waiting: u32,
    /// The others: they wait until the session is no longer barred, or until their class's queue has a place for them.
    pub parked: MessageList,
    /// Of them: the last that came out of its class's queue since the session was barred. The next one goes behind it.
    parked_last: u32,
}

impl Queued {
    const NOTHING: Self = Self { waiting: 0, parked: MessageList::EMPTY, parked_last: NONE };
}

/// How one session stands.
#[derive(Clone, Debug)]
pub(super) struct Bar {
    /// Nothing new is granted to it.
    barred: bool,
    /// That is its own application's doing.
    stuck: bool,
    /// It was so at some time since it was barred.
    was_stuck: bool,
    /// It is in the list of sessions that are barred or have parked messages.
    reviewed: bool,
    /// Its messages that were not admitted, by class. Apart, so that what every message passes lies close together.
    pub queued: Box<[Queued; CLASSES_MAX]>,
}

impl Default for Bar {
    fn default() -> Self {
        Self {
            barred: false,
            stuck: false,
            was_stuck: false,
            reviewed: false,
            queued: Box::new([Queued::NOTHING; CLASSES_MAX]),
        }
    }
}

impl Bar {
    fn has_parked(&self) -> bool {
        self.queued.iter().any(|queued| queued.parked.len() > 0)
    }

    /// Nothing of it waits.
    pub fn forget_queued(&mut self) {
        *self.queued = [Queued::NOTHING; CLASSES_MAX];
    }
}

impl<P: GrantPolicy> Admission<P> {
    /// Whether the message may have READs now. What its application waits for may, though its session is to be barred:
    /// always where all that came of it was given back. One that did not is as slow as it seems: it leaves the reserve to
    /// the others, and stops where the pool is in danger.
    #[inline(always)] // see the file's head
    pub(super) fn may_go_on(&self, message: u32, messages: &Messages, pool: &Pool, view: &impl View) -> bool {
        let record = &messages[message];
        let session = record.session;
        if view.oldest_incomplete(session) != Some(message) {
            return !self.is_to_be_barred(session, pool, view);
        }
        let is_awaited = record.held == 0 && record.reads == 0;
        view.slots_left(session) > 0
            && (is_awaited || (!self.lacks_room(session, pool, view) && view.pressure() != Pressure::Danger))
    }

    /// Whether the session is to get nothing new now.
    #[inline(always)] // see the file's head
    fn is_to_be_barred(&self, session: u32, pool: &Pool, view: &impl View) -> bool {
        self.is_stuck_now(session, view) || self.lacks_room(session, pool, view)
    }

    /// Whether that is its own application's doing, so that its senders are to hold back, too.
    #[inline(always)] // see the file's head
    fn is_stuck_now(&self, session: u32, view: &impl View) -> bool {
        view.has_backlog(session)
            || !view.has_room_for_fragment(session)
            || view.holds_its_memory(session)
            || (self.limits.leaves_room && view.pressure() != Pressure::Ok && view.is_slow(session))
    }

    /// Whether the session has something to read, and the pool no room for more that is its own.
    #[inline(always)] // see the file's head
    fn lacks_room(&self, session: u32, pool: &Pool, view: &impl View) -> bool {
        // A bar for this is lifted only when there is room for more than one fragment.
        let slack = if self.bars[session as usize].barred { self.fragment_slabs() } else { 0 };
        self.limits.leaves_room
            && view.holds_anything(session)
            && pool.read_room_max(view.srq_needed()) < self.room_left_by(session, pool, view) + slack
            && !(view.takes_memory(session) && pool.memory_room() >= self.fragment_slabs())
    }

    /// Whether the pool has no room for more that is the session's own, whether it leaves any to others or not.
    pub fn has_no_room_for(&self, session: u32, pool: &Pool, view: &impl View) -> bool {
        if self.limits.leaves_room {
            self.lacks_room(session, pool, view)
        } else {
            pool.read_room_max(view.srq_needed()) < self.fragment_slabs()
        }
    }

    /// The session gets nothing new from now on.
    pub fn bar(&mut self, session: u32, view: &impl View) {
        let stuck = self.is_stuck_now(session, view);
        let bar = &mut self.bars[session as usize];
        bar.stuck = stuck;
        bar.was_stuck = stuck || (bar.barred && bar.was_stuck);
        bar.barred = true;
        if !core::mem::replace(&mut bar.reviewed, true) {
            self.reviewed.push(session);
        }
        self.waits_for_room |= !stuck;
    }

    /// A request waits in the queue of its class, or behind those of its session that have no place there yet.
    pub fn enqueue(&mut self, message: u32, messages: &mut Messages) {
        let class = messages[message].class();
        let queued = &mut self.bars[messages[message].session as usize].queued[class];
        if queued.parked.len() > 0 {
            messages[message].life = Life::Parked;
            queued.parked.push(messages, message);
        } else {
            messages[message].life = Life::Waiting;
            queued.waiting += 1;
            self.queues[class].waiting.push(messages, message);
        }
    }

    /// The head of a class's queue leaves it.
    pub(super) fn pop_waiting(&mut self, class: usize, messages: &Messages) {
        if let Some(message) = self.queues[class].waiting.pop(messages) {
            self.bars[messages[message].session as usize].queued[class].waiting -= 1;
        }
    }

    /// A message that runs waits from now on, until its session is no longer barred: before those that never ran, for
    /// what it was admitted for is still its due.
    pub(super) fn park_running(&mut self, message: u32, messages: &mut Messages) {
        let class = messages[message].class();
        self.queues[class].running.take_one(messages, message);
        self.leave_running(message, messages);
        messages[message].life = Life::Parked;
        let queued = &mut self.bars[messages[message].session as usize].queued[class];
        queued.parked.push_front(messages, message);
        if queued.parked_last == NONE {
            queued.parked_last = message;
        }
    }

    /// A message that has just left the queue of its class waits with its session, before those that follow it.
    fn park(&mut self, message: u32, messages: &mut Messages) {
        let record = &mut messages[message];
        record.life = Life::Parked;
        let queued = &mut self.bars[record.session as usize].queued[record.class()];
        let last = core::mem::replace(&mut queued.parked_last, message);
        if last == NONE {
            queued.parked.push_front(messages, message);
        } else {
            queued.parked.insert_after(messages, last, message);
        }
    }

    /// A parked message leaves its session's list.
    pub(super) fn take_parked(&mut self, message: u32, messages: &mut Messages) {
        let record = &messages[message];
        let queued = &mut self.bars[record.session as usize].queued[record.class()];
        queued.parked.take_one(messages, message);
        if queued.parked_last == message {
            queued.parked_last = NONE;
        }
    }

    /// The class's first waiting message whose session is not barred; the others go to their sessions' lists.
    pub(super) fn first_waiting(
        &mut self,
        class: usize,
        messages: &mut Messages,
        pool: &Pool,
        view: &impl View,
    ) -> Option<u32> {
        while let Some(message) = self.queues[class].waiting.head() {
            if self.may_go_on(message, messages, pool, view) {
                return Some(message);
            }
            self.bar(messages[message].session, view);
            self.pop_waiting(class, messages);
            self.park(message, messages);
        }
        None
    }

    /// Looks at the barred sessions again: at those for which nothing speaks any more, and at messages whose turn it has
    /// become to be what their application waits for. What was parked goes back a few at a time: so a session that is
    /// barred and not in turns costs the same however much waits for it. `true`: senders that were refused credit may ask
    /// again.
    pub fn review(
        &mut self,
        now_ns: u64,
        is_open: impl Fn(u32) -> bool,
        (messages, pool): (&mut Messages, &Pool),
        view: &impl View,
    ) -> bool {
        self.waits_for_room = false;
        let mut frees_senders = false;
        let mut position = 0;
        while let Some(&session) = self.reviewed.get(position) {
            if is_open(session)
                && self.bars[session as usize].barred
                && self.is_to_be_barred(session, pool, view)
            {
                frees_senders |= self.keep_barred(session, messages, pool, view);
                position += 1;
                continue;
            }
            frees_senders |= self.unbar(now_ns, session, messages);
            self.unpark(now_ns, session, messages);
            let bar = &mut self.bars[session as usize];
            if bar.has_parked() {
                position += 1;
            } else {
                bar.reviewed = false;
                self.reviewed.swap_remove(position);
            }
        }
        frees_senders
    }

    fn keep_barred(&mut self, session: u32, messages: &mut Messages, pool: &Pool, view: &impl View) -> bool {
        let stuck = self.is_stuck_now(session, view);
        let bar = &mut self.bars[session as usize];
        bar.was_stuck |= stuck;
        self.waits_for_room |= !stuck && bar.has_parked();
        let frees_senders = core::mem::replace(&mut bar.stuck, stuck) && !stuck;
        self.unpark_awaited(session, messages, pool, view);
        frees_senders
    }

    /// The first of what was parked goes back to the heads of the queues: what had begun to arrive, and what follows it.
    fn unbar(&mut self, now_ns: u64, session: u32, messages: &mut Messages) -> bool {
        let bar = &mut self.bars[session as usize];
        bar.stuck = false;
        if !core::mem::take(&mut bar.barred) {
            return false;
        }
        for class in 0..CLASSES_MAX {
            self.bars[session as usize].queued[class].parked_last = NONE;
            let back = self.split_parked(now_ns, session, class, messages);
            self.queues[class].waiting.prepend(messages, back);
        }
        true
    }

    /// What is left goes to the ends of the queues, where none of the session's waits there any more: what others asked
    /// for meanwhile goes first.
    fn unpark(&mut self, now_ns: u64, session: u32, messages: &mut Messages) {
        for class in 0..CLASSES_MAX {
            if self.bars[session as usize].queued[class].waiting == 0 {
                let back = self.split_parked(now_ns, session, class, messages);
                self.queues[class].waiting.append(messages, back);
            }
        }
    }

    /// The first parked messages of a class, no more than could run at once. They wait again.
    fn split_parked(
        &mut self,
        now_ns: u64,
        session: u32,
        class: usize,
        messages: &mut Messages,
    ) -> MessageList {
        let bar = &mut self.bars[session as usize];
        let queued = &mut bar.queued[class];
        let back = queued.parked.split_front(messages, self.limits.reads_max);
        queued.waiting += back.len();
        let mut next = back.head();
        while let Some(message) = next {
            let record = &mut messages[message];
            record.life = Life::Waiting;
            if bar.was_stuck {
                // It waited for its own application: that gives it no claim over others.
                record.since_ns = now_ns;
            }
            next = (record.next != NONE).then_some(record.next);
        }
        back
    }

    fn unpark_awaited(&mut self, session: u32, messages: &mut Messages, pool: &Pool, view: &impl View) {
        let Some(awaited) = view.oldest_incomplete(session) else { return };
        if messages[awaited].life != Life::Parked || !self.may_go_on(awaited, messages, pool, view) {
            return;
        }
        self.take_parked(awaited, messages);
        let class = messages[awaited].class();
        messages[awaited].life = Life::Waiting;
        self.bars[session as usize].queued[class].waiting += 1;
        self.queues[class].waiting.push_front(messages, awaited);
    }

    /// Whether the session gets nothing new.
    pub fn is_barred(&self, session: u32) -> bool {
        self.bars[session as usize].barred
    }

    /// Whether that is its own application's doing.
    #[inline]
    pub fn is_stuck(&self, session: u32) -> bool {
        self.bars[session as usize].stuck
    }

    /// Whether sessions are to be looked at again.
    #[inline]
    pub fn is_reviewing(&self) -> bool {
        !self.reviewed.is_empty()
    }

    /// Whether messages of the session wait for their turn.
    pub fn has_queued(&self, session: u32) -> bool {
        let queued = &self.bars[session as usize].queued;
        queued.iter().any(|queued| queued.waiting + queued.parked.len() > 0)
    }

    /// Whether a session is barred because the pool has no room for what waits.
    #[inline]
    pub fn waits_for_room(&self) -> bool {
        self.waits_for_room
    }

    /// Ready for another application.
    pub fn reset(&mut self, session: u32) {
        let bar = &mut self.bars[session as usize];
        (bar.barred, bar.stuck, bar.was_stuck) = (false, false, false);
        bar.forget_queued();
    }
}

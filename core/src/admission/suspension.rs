//! Suspension of sessions: a suspended session is granted nothing new for a while, so that no session keeps
//! the pool at the others' cost.
//!
//! A session is suspended in four cases:
//!
//! * its application is slow (Jet §4.3: most of what it holds are stragglers) and the pool is under pressure;
//! * it holds all the memory that one session may hold;
//! * it has no slots, or no message numbers left;
//! * it has something to read, and the pool has no room but what is reserved.
//!
//! Its waiting messages are then deferred to lists of their own, and no longer wait at the heads of their
//! queues. Where its own application is the cause, its senders get no further credit. The message that its
//! application waits for still arrives: a suspension never holds up the message that would end it. Where only
//! numbers are missing, all that has begun to arrive goes on.
//!
//! What is called for each READ is short of instructions, and of places: the code of a message's whole way
//! fits the instruction cache of 32 KiB only just. So what is asked twice for each READ is one function that
//! is not inlined, its parts are, and what happens seldom is marked cold (`jet-bench -- core`).

use super::policy::GrantPolicy;
use super::{Admission, View};
use crate::config::CLASSES_MAX;
use crate::messages::{MessageList, MessageState, Messages};
use crate::pool::Pool;
use alloc::boxed::Box;
use jet_escape::Pressure;

/// The suspension of one session.
#[derive(Clone, Debug, Default)]
pub(super) struct Suspension {
    /// Whether the session is granted nothing new.
    suspended: bool,
    /// Whether the session's own application is the cause of the suspension.
    for_its_application: bool,
    /// Whether the session is in the list of those that are suspended, or have deferred messages or such that
    /// `begun` counts.
    reviewed: bool,
    /// Number of messages that wait for admission and had begun to arrive before they were deferred.
    begun: u32,
    /// The classes, one bit each, in which a peer was passed over: one look tells that mostly there is none.
    passed_over_classes: u8,
    /// What the session has of each class. Boxed so that the fields that every message reads lie close
    /// together.
    classes: Box<[OfClass; CLASSES_MAX]>,
}

/// What a session has of one class.
#[derive(Clone, Copy, Debug, Default)]
struct OfClass {
    /// Time since when the session has had something of the class to read and was granted nothing of it.
    since_ns: u64,
    /// Messages in the class's queue that wait for admission, of peers that take turns.
    waiting: u32,
    /// The same, of peers out of turn.
    waiting_out: u32,
    /// Messages that are being read, and have something left to read.
    running: u32,
    /// The peer that was passed over and comes first ([`super::passed_over`]).
    passed_over: Option<u32>,
}

impl OfClass {
    /// Returns the count of messages that wait of peers in turn, or out of turn.
    #[inline]
    fn waiting_of(&mut self, is_out: bool) -> &mut u32 {
        if is_out { &mut self.waiting_out } else { &mut self.waiting }
    }
}

impl Suspension {
    /// Returns the peer of a class that was noted as passed over and has had nothing read since.
    #[inline]
    pub fn passed_over(&self, class: usize) -> Option<u32> {
        self.classes[class].passed_over
    }

    /// Returns whether a peer of any class was passed over and has had nothing read since.
    #[inline]
    pub fn any_passed_over(&self) -> bool {
        self.passed_over_classes != 0
    }

    /// Notes the peer of a class that was passed over and comes first.
    pub fn pass_over(&mut self, class: usize, peer: u32) {
        self.classes[class].passed_over = Some(peer);
        self.passed_over_classes |= 1 << class;
    }

    /// Returns since when the session has had something of the class to read and was granted nothing of it,
    /// in nanoseconds.
    pub fn since_ns(&self, class: usize) -> u64 {
        self.classes[class].since_ns
    }

    /// Forgets all messages of the session that wait.
    pub fn forget_waiting(&mut self) {
        *self.classes = Default::default();
        (self.begun, self.passed_over_classes) = (0, 0);
    }
}

impl<P: GrantPolicy> Admission<P> {
    /// Returns whether the message may have READs now. The message that its application waits for may, even
    /// where its session is to be suspended, if the application gave back all that arrived of it. If it gave
    /// back less, its message needs room beyond the reserve, and gets no READ while the pool is in danger.
    #[inline(never)] // see the file's head
    pub(super) fn may_continue(
        &self,
        message: u32,
        messages: &Messages,
        pool: &Pool,
        view: &impl View,
    ) -> bool {
        let record = &messages[message];
        let session = record.session;
        if view.oldest_incomplete(session) != Some(message) {
            // What is being read keeps a number from its first READ on.
            let numbered = record.app_state.is_open() || record.reads > 0;
            return !(self.holds_up(session, numbered, view) || self.lacks_room(session, pool, view));
        }
        let is_awaited = record.held == 0 && record.reads == 0;
        view.slots_left(session) > 0
            && (is_awaited || (!self.lacks_room(session, pool, view) && view.pressure() != Pressure::Danger))
    }

    /// Returns whether the session is to be granted nothing new now.
    #[inline(always)] // see the file's head
    fn is_to_be_suspended(&self, session: u32, pool: &Pool, view: &impl View) -> bool {
        self.is_due_to_its_application(session, view) || self.lacks_room(session, pool, view)
    }

    /// Returns whether the session's own application is the cause of its suspension, so that its senders are
    /// to wait, too.
    #[inline(always)] // see the file's head
    fn is_due_to_its_application(&self, session: u32, view: &impl View) -> bool {
        self.holds_up(session, false, view)
    }

    /// Returns whether the session's own application holds up a message. One that has its message number,
    /// for it began to arrive, goes on while there is none for others.
    #[inline(always)] // see the file's head
    fn holds_up(&self, session: u32, numbered: bool, view: &impl View) -> bool {
        (if view.has_number(session) { view.has_backlog(session) } else { !numbered })
            || !view.has_slots_for_fragment(session)
            || view.holds_its_memory(session)
            || (self.reserve.is_some() && view.pressure() != Pressure::Ok && view.is_slow(session))
    }

    /// Returns whether the session has something to read while the pool has no room that the session may use.
    #[inline(always)] // see the file's head
    fn lacks_room(&self, session: u32, pool: &Pool, view: &impl View) -> bool {
        // A suspension for lack of room ends only when there is room for more than one fragment.
        let slack = if self.suspensions[session as usize].suspended { self.fragment_slabs() } else { 0 };
        self.reserve.is_some()
            && view.holds_anything(session)
            && (pool.read_room_max(view.srq_needed()) < self.room_left_by(session, pool, view) + slack
                || self.is_bounded_by_quarantine(session, pool, view))
            && !(view.takes_memory(session) && pool.memory_room() >= self.fragment_slabs())
    }

    /// Returns whether the pool has too little room for the session's next fragment. With the rule that
    /// sessions leave room to others, that room is subtracted.
    pub fn has_no_room_for(&self, session: u32, pool: &Pool, view: &impl View) -> bool {
        if self.reserve.is_some() {
            self.lacks_room(session, pool, view)
        } else {
            pool.read_room_max(view.srq_needed()) < self.fragment_slabs()
        }
    }

    /// Suspends the session.
    pub fn suspend(&mut self, session: u32, view: &impl View) {
        let for_its_application = self.is_due_to_its_application(session, view);
        let suspension = &mut self.suspensions[session as usize];
        suspension.for_its_application = for_its_application;
        suspension.suspended = true;
        if !core::mem::replace(&mut suspension.reviewed, true) {
            self.reviewed.push(session);
        }
        self.waits_for_room |= !for_its_application;
    }

    /// Puts a request into the queue of its class, or behind deferred ones of its session that have no place
    /// there yet.
    pub fn enqueue(&mut self, now_ns: u64, message: u32, messages: &mut Messages) {
        let (peer, class) = (messages[message].peer, messages[message].class());
        let session = messages[message].session;
        if self.shares.was_refused(peer) && !self.queues.iter().any(|queue| queue.has_messages_of(peer)) {
            // That was for another message, which is gone.
            self.shares.forget_refusal(peer);
        }
        if self.deferred[class].len(session) > 0 {
            messages[message].state = MessageState::Deferred;
            self.deferred[class].push(message, messages);
        } else {
            messages[message].state = MessageState::Waiting;
            let of_class = &mut self.suspensions[session as usize].classes[class];
            if of_class.waiting + of_class.waiting_out + of_class.running == 0 {
                of_class.since_ns = now_ns;
            }
            *of_class.waiting_of(self.reading.is_out(peer)) += 1;
            self.queues[class].wait_from(now_ns);
            self.queues[class].push_waiting(message, messages);
            self.offer_one_with_messages(class, peer);
        }
    }

    /// Counts a message that waits for admission again.
    fn count_waiting(&mut self, message: u32, messages: &mut Messages) {
        let begun = u32::from(messages.transfer(message).requested > 0);
        let record = &messages[message];
        let suspension = &mut self.suspensions[record.session as usize];
        *suspension.classes[record.class()].waiting_of(self.reading.is_out(record.peer)) += 1;
        suspension.begun += begun;
    }

    /// Counts that a message does not wait for admission any more.
    #[inline]
    fn uncount_waiting(&mut self, message: u32, messages: &mut Messages) {
        let begun = u32::from(messages.transfer(message).requested > 0);
        let record = &messages[message];
        let suspension = &mut self.suspensions[record.session as usize];
        *suspension.classes[record.class()].waiting_of(self.reading.is_out(record.peer)) -= 1;
        suspension.begun -= begun;
    }

    /// Counts a peer's messages that wait for admission among those of peers out of turn, or of peers that
    /// take turns.
    pub(super) fn count_waiting_as(&mut self, is_out: bool, peer: u32) {
        for (class, queue) in self.queues.iter().enumerate() {
            let (session, count) = queue.waiting_of(peer);
            if count == 0 {
                continue;
            }
            let of_class = &mut self.suspensions[session as usize].classes[class];
            *of_class.waiting_of(!is_out) -= count;
            *of_class.waiting_of(is_out) += count;
        }
    }

    /// Counts a message of the session that is read from now on.
    #[inline]
    pub(super) fn count_running(&mut self, session: u32, class: usize) {
        self.suspensions[session as usize].classes[class].running += 1;
    }

    /// Counts that a message of the session is not read any more, or that all of it was requested.
    #[inline]
    pub(super) fn uncount_running(&mut self, session: u32, class: usize) {
        self.suspensions[session as usize].classes[class].running -= 1;
    }

    /// Takes a message out of those that wait for admission.
    pub(super) fn take_waiting(&mut self, message: u32, messages: &mut Messages) {
        self.uncount_waiting(message, messages);
        let class = messages[message].class();
        self.queues[class].take_waiting(message, messages);
    }

    /// Takes a peer's first message out of its class's queue.
    #[inline]
    pub(super) fn pop_waiting(&mut self, class: usize, peer: u32, messages: &mut Messages) {
        if let Some(message) = self.queues[class].pop_waiting(peer, messages) {
            self.uncount_waiting(message, messages);
        }
    }

    /// Defers a running message until its session is no longer suspended. It goes before the deferred
    /// messages that were never admitted.
    pub(super) fn defer_running(&mut self, message: u32, messages: &mut Messages) {
        let class = messages[message].class();
        self.queues[class].take_running(message, messages);
        self.uncount_running(messages[message].session, class);
        self.leave_running(message, messages);
        messages[message].state = MessageState::Deferred;
        let has_read = self.has_read_since_resumed(message, messages);
        self.deferred[class].push_running(message, has_read, messages);
    }

    /// Defers a message that has just left the queue of its class. It goes before the session's later
    /// deferred messages.
    fn defer(&mut self, message: u32, messages: &mut Messages) {
        messages[message].state = MessageState::Deferred;
        let has_read = self.has_read_since_resumed(message, messages);
        self.deferred[messages[message].class()].push_waiting(message, has_read, messages);
    }

    /// Returns whether anything was read of the message's peer, in its class, since its session went on.
    fn has_read_since_resumed(&self, message: u32, messages: &Messages) -> bool {
        let record = &messages[message];
        let read = self.queues[record.class()].last_read(record.peer);
        self.deferred[record.class()].is_since(read, record.session)
    }

    /// Takes a deferred message out of its session's line.
    pub(super) fn take_deferred(&mut self, message: u32, messages: &mut Messages) {
        self.deferred[messages[message].class()].take_one(message, messages);
    }

    fn has_deferred(&self, session: u32) -> bool {
        self.deferred.iter().any(|deferred| deferred.len(session) > 0)
    }

    /// Returns the class's next message to admit, and its peer. Messages before it whose sessions may not
    /// have anything now are deferred with their sessions. Peers of which enough messages of the class are
    /// being read are passed over until the last READ of one of these is posted.
    pub(super) fn first_waiting(
        &mut self,
        class: usize,
        messages: &mut Messages,
        pool: &Pool,
        view: &impl View,
    ) -> Option<(u32, u32)> {
        loop {
            let reading = &self.reading;
            let is_new = |peer| reading.is_new(peer, class);
            let peer = self.queues[class].next_admission(|peer| reading.is_out(peer), is_new)?;
            let message = self.queues[class].first_waiting(peer)?;
            if !self.may_continue(message, messages, pool, view) {
                self.suspend(messages[message].session, view);
                self.pop_waiting(class, peer, messages);
                self.defer(message, messages);
            } else if !self.shares.may_read_beside(self.queues[class].running_of(peer), peer)
                && (self.is_long(messages[message].length) || !self.reading.is_new(peer, class))
            {
                // Long messages do not hold up a short one.
                self.queues[class].put_off_admission(peer);
            } else {
                return Some((peer, message));
            }
        }
    }

    /// Reviews the suspended sessions. Sessions without a reason to be suspended are resumed. Messages that
    /// their applications have come to wait for return to the queues. Deferred messages go back a few at a
    /// time, so the cost of alternating suspensions does not depend on how many wait. Returns whether senders
    /// that were refused credit may ask again.
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
                && self.suspensions[session as usize].suspended
                && self.is_to_be_suspended(session, pool, view)
            {
                frees_senders |= self.keep_suspended(session, (messages, pool), view);
                position += 1;
                continue;
            }
            frees_senders |= self.resume(session, now_ns, messages, view);
            self.requeue_deferred(session, messages);
            self.read_on_awaited(session, messages, pool, view);
            if self.has_deferred(session) || self.suspensions[session as usize].begun > 0 {
                position += 1;
            } else {
                self.suspensions[session as usize].reviewed = false;
                self.reviewed.swap_remove(position);
            }
        }
        frees_senders
    }

    fn keep_suspended(
        &mut self,
        session: u32,
        (messages, pool): (&mut Messages, &Pool),
        view: &impl View,
    ) -> bool {
        let for_its_application = self.is_due_to_its_application(session, view);
        self.waits_for_room |= !for_its_application && self.has_deferred(session);
        let suspension = &mut self.suspensions[session as usize];
        let frees_senders = core::mem::replace(&mut suspension.for_its_application, for_its_application)
            && !for_its_application;
        self.read_on_awaited(session, messages, pool, view);
        frees_senders
    }

    /// Resumes a session: the first of its deferred messages wait again, before others of their peers. These
    /// are the messages that had begun to arrive, and the ones behind them. The first message of a peer that
    /// was passed over has the next turn of its class, and so has the first one of a class that is overdue.
    /// Returns whether the session was suspended.
    fn resume(&mut self, session: u32, now_ns: u64, messages: &mut Messages, view: &impl View) -> bool {
        let suspension = &mut self.suspensions[session as usize];
        suspension.for_its_application = false;
        if !core::mem::take(&mut suspension.suspended) {
            return false;
        }
        for class in 0..self.queues.len() {
            let passed_over = self.deferred[class].take_passed_over(session, messages);
            self.deferred[class].resume(session);
            let mut back = self.deferred[class].take_turns(session, self.limits.reads_max, messages);
            let is_overdue = self.is_overdue(session, class, now_ns, view);
            let first = passed_over.or_else(|| if is_overdue { back.pop(messages) } else { None });
            if let Some(first) = first {
                let since_ns = self.suspensions[session as usize].since_ns(class);
                self.read_first(first, is_overdue.then_some(since_ns), messages, view);
            }
            let mut reversed = MessageList::EMPTY;
            while let Some(message) = back.pop(messages) {
                // Whose message is the first one also has the first turn.
                self.expect(class, messages[message].peer);
                reversed.push_front(messages, message);
            }
            // Each goes before those of its peer that wait, so the last one goes first.
            while let Some(message) = reversed.pop(messages) {
                self.requeue(message, true, messages);
            }
        }
        true
    }

    /// Returns whether the session was granted nothing of a class for so long that it comes before others of
    /// the class. Where the class ages, another session's message may have its turn each time, for this one
    /// is suspended then, or has a message read that must end first. And after that its more urgent messages
    /// take the room. There is one aging bound for each open session, so all of them together have at most
    /// one more fragment in each.
    pub(super) fn is_overdue(&self, session: u32, class: usize, now_ns: u64, view: &impl View) -> bool {
        let since_ns = self.suspensions[session as usize].since_ns(class);
        let bounds = 1 + u64::from(view.open_sessions());
        now_ns.saturating_sub(since_ns) > self.policy.aging_ns().saturating_mul(bounds)
    }

    /// Gives a deferred message, which is in no list any more, the next turn in its class. `since_ns`: the
    /// class has waited since then for it.
    fn read_first(&mut self, message: u32, since_ns: Option<u64>, messages: &mut Messages, view: &impl View) {
        let (peer, class) = (messages[message].peer, messages[message].class());
        if self.reading.is_out(peer) {
            self.requeue(message, true, messages);
            return;
        }
        let footprint_bytes = self.first_footprint(message, messages, view);
        self.begin_reading(message, false, footprint_bytes, messages);
        match since_ns {
            Some(since_ns) => self.queues[class].give_turn(peer, self.limits.fragment_bytes, since_ns),
            None => self.queues[class].put_before_its_session(peer, self.limits.fragment_bytes),
        }
    }

    /// Notes that the session was granted a READ of a peer's message, of a class.
    #[inline]
    pub(super) fn was_granted(&mut self, session: u32, class: usize, peer: u32, now_ns: u64) {
        let suspension = &mut self.suspensions[session as usize];
        let of_class = &mut suspension.classes[class];
        of_class.since_ns = now_ns;
        if of_class.passed_over == Some(peer) {
            of_class.passed_over = None;
            suspension.passed_over_classes &= !(1 << class);
        }
    }

    /// Puts a message back among those of its peer that wait for admission. Its class has waited meanwhile: a
    /// session that is suspended again and again for want of room would otherwise never age.
    fn requeue(&mut self, message: u32, first: bool, messages: &mut Messages) {
        let class = messages[message].class();
        self.count_waiting(message, messages);
        messages[message].state = MessageState::Waiting;
        if first {
            self.queues[class].push_waiting_first(message, messages);
        } else {
            self.queues[class].push_waiting(message, messages);
        }
        self.offer(class, messages[message].peer);
    }

    /// Puts the rest of the deferred messages at the ends of the queues where none of the session's waits any
    /// more. What other sessions requested meanwhile goes first.
    fn requeue_deferred(&mut self, session: u32, messages: &mut Messages) {
        for class in 0..self.queues.len() {
            // Those of peers out of turn hold up nobody.
            if self.suspensions[session as usize].classes[class].waiting > 0 {
                continue;
            }
            let mut back = self.deferred[class].take_turns(session, self.limits.reads_max, messages);
            while let Some(message) = back.pop(messages) {
                self.requeue(message, false, messages);
            }
        }
    }

    /// Reads on the message that the session's application waits for, if it is not being read. The messages
    /// that are may wait for what only its end gives back, so it waits for no place among them.
    fn read_on_awaited(&mut self, session: u32, messages: &mut Messages, pool: &Pool, view: &impl View) {
        let Some(awaited) = view.oldest_incomplete(session) else { return };
        let state = messages[awaited].state;
        if !matches!(state, MessageState::Deferred | MessageState::Waiting)
            || !self.may_continue(awaited, messages, pool, view)
        {
            return;
        }
        if state == MessageState::Deferred {
            self.take_deferred(awaited, messages);
        } else {
            self.take_waiting(awaited, messages);
        }
        let footprint_bytes = self.first_footprint(awaited, messages, view);
        self.begin_reading(awaited, false, footprint_bytes, messages);
    }

    /// Returns whether the session is suspended.
    pub fn is_suspended(&self, session: u32) -> bool {
        self.suspensions[session as usize].suspended
    }

    /// Returns whether the session is suspended because of its own application.
    #[inline]
    pub fn is_suspended_for_its_application(&self, session: u32) -> bool {
        self.suspensions[session as usize].for_its_application
    }

    /// Returns whether any session is suspended, or still has deferred messages.
    #[inline]
    pub fn is_reviewing(&self) -> bool {
        !self.reviewed.is_empty()
    }

    /// Returns whether messages of the session wait for admission.
    pub fn has_queued(&self, session: u32) -> bool {
        self.has_deferred(session)
            || self.suspensions[session as usize].classes.iter().any(|of| of.waiting + of.waiting_out > 0)
    }

    /// Returns whether a session is suspended because the pool has no room for what waits.
    #[inline]
    pub fn waits_for_room(&self) -> bool {
        self.waits_for_room
    }

    /// Makes the session's number ready for another application.
    pub fn reset(&mut self, session: u32) {
        let suspension = &mut self.suspensions[session as usize];
        (suspension.suspended, suspension.for_its_application) = (false, false);
        suspension.forget_waiting();
    }
}

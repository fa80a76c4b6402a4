//! Which fragment is read next: class by class as the policy says, and of a class the peer whose turn it is.

use super::policy::{GrantPolicy, QueueHead};
use super::reading::Out;
use super::reserve::Room;
use super::shares::{InFlight, Turn, Unproven};
use super::turns::{ClassQueue, Place};
use super::{Admission, View};
use crate::config::CLASSES_MAX;
use crate::index::NONE;
use crate::messages::Messages;
use crate::pool::{Pool, Share};
use crate::stats::ReadsWaitFor;
use crate::time::TurnTime;
use jet_escape::Pressure;
use jet_wire::SLAB_BYTES_U32;

/// Permission to read one fragment of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub message: u32,
    /// Share that the fragment's slabs are taken from: [`Share::Read`] or [`Share::Spilled`].
    pub share: Share,
    /// Slabs that the fragment may take, at least one.
    pub slabs: u32,
    /// The most bytes to read into those slabs.
    pub bytes: u32,
}

impl<P: GrantPolicy> Admission<P> {
    /// Decides the next grant, class by class as the policy says; `None` when no message can be read now.
    pub fn next(
        &mut self,
        time: TurnTime,
        reads_in_use: u32,
        (messages, pool): (&mut Messages, &mut Pool),
        view: &impl View,
    ) -> Option<Grant> {
        (self.waits_for, self.is_kept_for_one) = (ReadsWaitFor::Senders, false);
        self.after_slow.begin_turn(time.now_ns);
        if !self.queues.iter().any(ClassQueue::has_unread) {
            return None;
        }
        // Who is sent there in this turn does not return in it.
        let returns = !self.after_slow.is_empty() || self.shares.chosen().is_some();
        let mut unproven = self.shares.unproven();
        if returns {
            self.begin_returns(&mut unproven, time, reads_in_use, pool);
        }
        loop {
            let grant = self.next_in_turn(time, reads_in_use, (messages, pool), view);
            if grant.is_some() || !returns || !self.return_after_slow(&mut unproven, time, reads_in_use, pool)
            {
                return grant;
            }
        }
    }

    /// Begins to decide where peers wait for READs of slow peers. These return to their turns one by one,
    /// while there is room.
    #[cold]
    fn begin_returns(&mut self, unproven: &mut Unproven, time: TurnTime, reads_in_use: u32, pool: &Pool) {
        self.choose_for_the_last(time);
        self.return_after_slow(unproven, time, reads_in_use, pool);
    }

    #[inline(always)] // on every READ's way
    fn next_in_turn(
        &mut self,
        time: TurnTime,
        reads_in_use: u32,
        (messages, pool): (&mut Messages, &mut Pool),
        view: &impl View,
    ) -> Option<Grant> {
        loop {
            let heads = self.queue_heads();
            let class = usize::from(self.policy.next_class(&heads, time.now_ns)?);
            // New messages are admitted first, while the concurrency window has room. So 32 short ones run
            // side by side, and one long one does not hold the others up.
            self.admit_all(class, messages, pool, view);
            if let Some(grant) = self.turn(class, time, reads_in_use, (messages, pool), view) {
                return Some(grant);
            }
            if self.queues[class].has_head(|peer| self.reading.is_out(peer)) {
                return self.next_of_others(class, time, reads_in_use, (messages, pool), view);
            }
            // Every peer of the class went out of turn: another class may go on.
        }
    }

    /// Decides the next grant while the policy's class waits for room that only running messages can give
    /// back: those of other classes go on.
    #[inline(never)] // else the code of a turn would be on every READ's way twice
    fn next_of_others(
        &mut self,
        class: usize,
        time: TurnTime,
        reads_in_use: u32,
        (messages, pool): (&mut Messages, &mut Pool),
        view: &impl View,
    ) -> Option<Grant> {
        (0..self.queues.len()).filter(|&other| other != class).find_map(|other| {
            self.admit_all(other, messages, pool, view);
            self.turn(other, time, reads_in_use, (messages, pool), view)
        })
    }

    /// Returns the classes that have something to read, and since when each of them was granted nothing.
    #[inline(always)] // on every READ's way
    fn queue_heads(&mut self) -> [Option<QueueHead>; CLASSES_MAX] {
        let mut heads = [None; CLASSES_MAX];
        for (class, queue) in (0u8..).zip(self.queues.iter_mut()) {
            if queue.has_head(|peer| self.reading.is_out(peer)) {
                heads[usize::from(class)] = Some(QueueHead { class, since_ns: queue.since_ns });
            }
        }
        heads
    }

    /// Grants the next fragment of the class's peer whose turn it is, if there is room for it.
    fn turn(
        &mut self,
        class: usize,
        time: TurnTime,
        reads_in_use: u32,
        (messages, pool): (&mut Messages, &mut Pool),
        view: &impl View,
    ) -> Option<Grant> {
        let wanted = self.reserve_slabs().max(self.room_left_by_most(pool));
        let mut room = pool.read_room(wanted, view.srq_needed());
        let in_flight = InFlight { reads: reads_in_use, bytes: self.in_flight_bytes };
        // Those that could not use their turns. Who comes first of its session stays in front and does not
        // count, so admission looks at one of each session more.
        let mut passed = 0;
        // Those before it cannot use their turns now, and keep them.
        let mut place = Place::FRONT;
        // Each peer twice, for its turn may begin with the first visit.
        for _ in 0..2 * self.queues[class].turns() {
            if passed > 2 * self.limits.reads_max && reads_in_use > self.shares.unproven_reads() {
                // The others have their turns when a READ ends. Who comes next stays in front.
                if !self.is_kept_for_one {
                    self.move_behind_others(class, place);
                }
                return None;
            }
            let Some(peer) = self.queues[class].turn_at(place, |peer| self.reading.is_out(peer)) else {
                break;
            };
            let Some(first) = self.queues[class].first_running(peer) else { break };
            let first_bytes = self.fragment_of(first, messages);
            if !self.queues[class].may_use(place, first_bytes, self.limits.fragment_bytes) {
                continue;
            }
            let next = self.next_to_read(class, peer, room, messages, pool, view);
            let next =
                next.filter(|&(message, ..)| !self.is_behind_another(message, messages, time.now_ns, view));
            let Some((message, share, most)) = next else {
                passed += u32::from(!self.comes_first(class, peer));
                self.passes_over(class, peer);
                self.waits_for = ReadsWaitFor::Room;
                place = self.queues[class].keep_turn(place);
                continue;
            };
            let most_bytes = u64::from(most * SLAB_BYTES_U32).min(self.shares.read_bytes_max(peer));
            let fragment_bytes =
                if message == first { first_bytes } else { self.fragment_of(message, messages) };
            let mut bytes = fragment_bytes.min(u32::try_from(most_bytes).unwrap_or(u32::MAX));
            match self.shares.turn(peer, u64::from(bytes), time.stall_free_ns, in_flight) {
                Turn::Now if !self.is_kept_for_one => {}
                Turn::Part(most_bytes) if !self.is_kept_for_one => {
                    bytes = bytes.min(u32::try_from(most_bytes).unwrap_or(u32::MAX));
                }
                Turn::AfterOwn => {
                    self.leave_turns(peer, Out::Own);
                    continue;
                }
                Turn::AfterSlow => {
                    self.refuse(peer);
                    continue;
                }
                turn @ (Turn::Now | Turn::Part(_) | Turn::Next | Turn::AfterAny) => {
                    self.is_kept_for_one |= turn == Turn::Next;
                    self.waits_for = ReadsWaitFor::Window;
                    place = self.queues[class].keep_turn(place);
                    passed += u32::from(!self.comes_first(class, peer));
                    continue;
                }
            }
            let slabs = bytes.div_ceil(SLAB_BYTES_U32);
            let room_left = if share == Share::Spilled { pool.memory_room() } else { room };
            // A shorter fragment is better than none, but only where nothing else under way will give room
            // back soon.
            if room_left < slabs && (room_left == 0 || reads_in_use > self.shares.unproven_reads()) {
                self.waits_for = ReadsWaitFor::Room;
                place = self.queues[class].keep_turn(place);
                passed += u32::from(!self.comes_first(class, peer));
                if share == Share::Read {
                    // What there is waits until it is enough, and is not for shorter fragments of others.
                    room = 0;
                }
                continue;
            }
            // Until something has arrived, nothing of it changes.
            if messages[message].arrived > 0 && !messages.transfer(message).in_memory {
                let footprint = self.next_footprint(message, messages);
                self.set_footprint(message, footprint, messages);
            }
            // Each run will need a slot.
            let slots = view.slots_left(messages[message].session);
            return Some(Grant { message, share, slabs: slabs.min(room_left).min(slots), bytes });
        }
        None
    }

    /// Returns the bytes of a message's next fragment. It ends with the piece that it lies in.
    #[inline]
    fn fragment_of(&self, message: u32, messages: &Messages) -> u32 {
        let unread = messages.next_to_read(message);
        u32::try_from(unread.bytes.min(u64::from(self.limits.fragment_bytes))).expect("at most a fragment")
    }

    /// Returns the peer's message of the class that is to be read next, the share of its fragment, and the
    /// most slabs that it may have. The share is the cache, or escape memory for a session that takes it
    /// instead of waiting (Jet §5). Messages that may not go on now are deferred, and their sessions
    /// suspended.
    fn next_to_read(
        &mut self,
        class: usize,
        peer: u32,
        room: u32,
        messages: &mut Messages,
        pool: &Pool,
        view: &impl View,
    ) -> Option<(u32, Share, u32)> {
        let pressed = view.pressure() != Pressure::Ok;
        let mut next = self.queues[class].first_running(peer);
        while let Some(message) = next {
            let following = messages[message].next;
            next = (following != NONE).then_some(following);
            if !self.may_continue(message, messages, pool, view) {
                self.suspend(messages[message].session, view);
                self.defer_running(message, messages);
                continue;
            }
            let session = messages[message].session;
            let slabs = self.fragment_of(message, messages).div_ceil(SLAB_BYTES_U32);
            let in_memory = messages.transfer(message).in_memory;
            let plenty = room >= self.room_left_by(session, pool, view);
            // A low class leaves the cache to the others as soon as it is scarce.
            let prefers_memory =
                view.takes_memory(session) && (!plenty || (pressed && class > 0) || in_memory);
            if prefers_memory && pool.memory_room() >= slabs {
                return Some((message, Share::Spilled, self.fragment_slabs()));
            }
            match self.room_for(message, room, (messages, pool), view) {
                Room::Plenty => return Some((message, Share::Read, self.fragment_slabs())),
                Room::Loan(slabs) if slabs > 0 => return Some((message, Share::Read, slabs)),
                Room::Loan(_) | Room::Nothing => {}
            }
        }
        None
    }
}

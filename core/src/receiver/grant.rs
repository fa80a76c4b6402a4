//! READs: admission, fragments, completion (Jet §3.2 steps 2 to 4, §4.1.2).

use super::order::Turn;
use super::settle::{Part, UserHeader};
use super::{ClassQueue, Receiver};
use crate::admission::{GrantPolicy, QueueHead, footprint_bytes};
use crate::config::{CLASSES_MAX, FRAGMENT_SLABS_MAX};
use crate::effects::{Effects, PeerId, ReadId, Remote};
use crate::message::{MessageList, NONE, State};
use crate::pool::{Run, Share};
use crate::session::Queued;
use jet_wire::message::{AckStatus, ByeReason};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};

impl<P: GrantPolicy> Receiver<P> {
    /// Posts READs while the windows and the pool have room, class by class as the policy says.
    pub(super) fn grant(&mut self, now_ns: u64, effects: &mut impl Effects) {
        while self.reads.any_free() {
            let heads = self.queue_heads();
            let Some(class) = self.policy.next_class(&heads, now_ns) else { return };
            let head = self.queues[usize::from(class)].head();
            if self.serve(now_ns, class, effects) || self.queues[usize::from(class)].head() != head {
                // A READ was posted, a message admitted, or what could not go on was parked: another look.
                continue;
            }
            // The class of choice waits for room that only running messages can give back: let those go on.
            if !(0..CLASSES_MAX)
                .any(|other| other != usize::from(class) && self.read_next(now_ns, other, effects))
            {
                return;
            }
        }
    }

    fn queue_heads(&self) -> [Option<QueueHead>; CLASSES_MAX] {
        let mut heads = [None; CLASSES_MAX];
        for (class, head) in (0u8..).zip(heads.iter_mut()) {
            let queue = &self.queues[usize::from(class)];
            *head =
                queue.head().map(|message| QueueHead { class, since_ns: self.messages[message].since_ns });
        }
        heads
    }

    /// Gives one READ to the class, or admits its next message. `false`: neither is possible now.
    fn serve(&mut self, now_ns: u64, class: u8, effects: &mut impl Effects) -> bool {
        let class = usize::from(class);
        // New messages first, while the concurrency window has room: so that 32 short ones run side by side and one
        // long one does not hold the others up.
        if self.admit(class) {
            return true;
        }
        self.queues[class].running.len() > 0 && self.read_next(now_ns, class, effects)
    }

    /// Admits the head of the class's queue if its footprint fits and the concurrency window has room.
    fn admit(&mut self, class: usize) -> bool {
        let Some(head) = self.queues[class].waiting.head() else { return false };
        if self.running >= self.config.reads_max && !self.is_oldest(head) {
            return false;
        }
        let Some(message) = self.first_waiting(class) else { return false };
        // What began to arrive was admitted before. Those that run may wait for what only its end gives back.
        let goes_on = self.is_oldest(message);
        if self.running >= self.config.reads_max && !goes_on {
            return false;
        }
        let record = &self.messages[message];
        let owner = &self.sessions[record.session as usize];
        let mut footprint =
            footprint_bytes(record.length, self.config.fragment_bytes, owner.bytes_per_ms, owner.post_nic_ns);
        let takes_memory = self.registry.takes_memory(record.session);
        let fits = self.running == 0 || goes_on || self.footprint_bytes + footprint <= self.footprint_room();
        if !fits {
            if !takes_memory || self.pool.memory_room() < self.fragment_slabs() {
                return false;
            }
            // Memory instead of waiting (Jet §5): nothing of it will be in the cache.
            footprint = 0;
        }
        self.pop_waiting(class);
        self.messages[message].state = State::Running;
        let transfer = self.messages.transfer(message);
        transfer.running = true;
        transfer.in_memory = !fits;
        transfer.footprint_bytes = footprint;
        self.footprint_bytes += footprint;
        self.running += 1;
        self.queues[class].running.push(&mut self.messages, message);
        true
    }

    pub(super) fn fragment_slabs(&self) -> u32 {
        self.config.fragment_bytes / SLAB_BYTES_U32
    }

    /// What the READ share can hold beside what delivered messages hold already.
    fn footprint_room(&self) -> u64 {
        let srq = self.pool.srq_used().max(self.config.srq_floor_slabs);
        let in_flight_slabs = u32::try_from(self.in_flight_bytes.div_ceil(SLAB_BYTES as u64)).unwrap_or(NONE);
        let delivered = self.pool.read_used().saturating_sub(in_flight_slabs) + self.pool.quarantined();
        u64::from(self.pool.total().saturating_sub(srq + delivered)) * SLAB_BYTES as u64
    }

    /// Posts the next fragment of the class's message whose turn it is.
    fn read_next(&mut self, now_ns: u64, class: usize, effects: &mut impl Effects) -> bool {
        if self.queues[class].running.len() == 0 {
            return false;
        }
        let fragment_slabs = self.fragment_slabs();
        // Beyond what one fragment takes, another stays in reserve, and one session leaves more to others; see `order`.
        let wanted = (2 * fragment_slabs).max(self.room_left_by_most());
        let room = self.pool.read_room(wanted, self.srq_needed());
        let Some(Turn { message, share }) = self.next_to_read(class, room) else { return false };
        let left = self.messages[message].length - self.messages.transfer(message).requested;
        let bytes =
            u32::try_from(left.min(u64::from(self.config.fragment_bytes))).expect("at most a fragment");
        if self.in_flight_bytes + u64::from(bytes) > self.config.in_flight_bytes {
            return false;
        }
        let slabs = bytes.div_ceil(SLAB_BYTES_U32);
        let room = if share == Share::Granted { self.pool.memory_room() } else { room };
        // A shorter fragment is better than none, but only where nothing else is on the way to give room back.
        if room < slabs && (room == 0 || self.reads.in_use() > 0) {
            return false;
        }
        let session = self.messages[message].session as usize;
        // Each run will need a slot; see `next_to_read`.
        let slots = self.sessions[session].slots_left();
        let Some(read) = self.reads.add() else { return false };
        let taken = self.take_runs(read, slabs.min(room).min(slots), share);
        if taken == 0 {
            // Memory that is there, but not next to each other: wait.
            self.reads.remove(read);
            return false;
        }
        let bytes = bytes.min(taken.saturating_mul(SLAB_BYTES_U32));
        let transfer = self.messages.transfer(message);
        let offset = transfer.requested;
        transfer.requested += u64::from(bytes);
        let remote = Remote { address: transfer.address + offset, key: transfer.key };
        let record = &mut self.messages[message];
        let entry = &mut self.reads[read];
        entry.message = message;
        entry.offset = offset;
        entry.bytes = bytes;
        entry.delivered = 0;
        entry.share = share;
        entry.in_flight = true;
        record.reads += 1;
        record.since_ns = now_ns;
        let owner = &mut self.sessions[session];
        owner.promised_slots += u32::try_from(entry.run_count).unwrap_or(NONE);
        if share == Share::Granted {
            owner.now.granted += taken;
            owner.escaped.granted += u64::from(taken);
            self.stats.escape.granted_total += u64::from(taken);
        }
        let peer = PeerId(record.peer);
        self.peers[record.peer as usize].reads += 1;
        let more = offset + u64::from(bytes) < record.length;
        if !record.app_open && !self.messages.transfer(message).numbered {
            self.messages.transfer(message).numbered = true;
            self.sessions[session].promised_numbers += 1;
        }
        self.queues[class].running.take_one(&mut self.messages, message);
        if more {
            self.queues[class].running.push(&mut self.messages, message);
        } else {
            self.messages[message].state = State::Settling;
        }
        self.in_flight_bytes += u64::from(bytes);
        self.stats.reads_high_water = self.stats.reads_high_water.max(self.reads.in_use());
        let entry = &self.reads[read];
        effects.post_read(peer, ReadId(read), remote, bytes, &entry.runs[..entry.run_count]);
        true
    }

    /// Slabs that the SRQ share is about to need.
    pub(super) fn srq_needed(&self) -> u32 {
        let posted = u32::try_from(self.credit.total())
            .unwrap_or(NONE)
            .saturating_add(self.config.srq_reserve_entries);
        posted.saturating_add(self.small_held_slabs())
    }

    /// Fills the READ's runs with up to `slabs` slabs, contiguous ones first; returns how many there are.
    fn take_runs(&mut self, read: u32, slabs: u32, share: Share) -> u32 {
        let scatter_max = self.config.scatter_max.min(FRAGMENT_SLABS_MAX) as usize;
        let entry = &mut self.reads[read];
        entry.run_count = 0;
        let mut taken = 0;
        while taken < slabs && entry.run_count < scatter_max {
            let wanted = slabs - taken;
            let run = if share == Share::Granted {
                self.pool.take_memory(wanted, share)
            } else {
                self.pool.take_read(wanted)
            };
            let Some(run) = run else { break };
            entry.runs[entry.run_count] = run;
            entry.run_count += 1;
            taken += run.count;
        }
        taken
    }

    /// A READ ended. `ok`: its bytes are there. A READ that failed takes its connection with it, so
    /// [`Self::handle_peer_lost`] follows; `refused` says that the peer's key or length was at fault.
    pub fn handle_read_done(
        &mut self,
        now_ns: u64,
        read: ReadId,
        ok: bool,
        refused: bool,
        effects: &mut impl Effects,
    ) {
        let read = read.0;
        let entry = &mut self.reads[read];
        assert!(entry.in_flight && entry.message != NONE, "READ {read} ended but was not in flight");
        entry.in_flight = false;
        let message = entry.message;
        let record = &self.messages[message];
        if record.peer != NONE {
            self.peers[record.peer as usize].reads -= 1;
        }
        if record.peer != NONE && refused {
            self.expel(record.peer, ByeReason::BadMemory, effects);
        } else if record.peer != NONE && !ok {
            // The connection is ending; there is nobody to speak to.
            self.ends.leave(record.peer);
        }
        let record = &self.messages[message];
        if !ok || self.is_unwanted(message) {
            if !ok && record.failure.is_none() && !record.finished {
                self.unlink(message);
                self.withdraw(message, false, effects);
                self.messages[message].failure = Some(AckStatus::PeerLost);
            }
            self.drop_read_of(now_ns, read, effects);
            return;
        }
        self.check_read(now_ns, read, effects);
    }

    /// Drops a READ, and delivers what may have waited for the number that its message gave back.
    pub(super) fn drop_read_of(&mut self, now_ns: u64, read: u32, effects: &mut impl Effects) {
        let session = self.messages[self.reads[read].message].session;
        self.drop_read(read);
        if session != NONE {
            self.deliver_backlog(now_ns, session, effects);
        }
    }

    /// Delivers a READ's runs. Its session has the slots and the number: they were kept for it when it was posted.
    pub(super) fn deliver_read(&mut self, now_ns: u64, read: u32, effects: &mut impl Effects) {
        let message = self.reads[read].message;
        let mut before = 0;
        while self.reads[read].delivered < self.reads[read].run_count {
            let entry = &mut self.reads[read];
            let run = entry.runs[entry.delivered];
            entry.delivered += 1;
            let bytes = (run.count * SLAB_BYTES_U32).min(entry.bytes - before);
            let offset = entry.offset + u64::from(before);
            let part = Part { run, offset, bytes, share: entry.share };
            before += bytes;
            let record = &self.messages[message];
            let app_open = record.app_open;
            let owner = &mut self.sessions[record.session as usize];
            owner.promised_slots -= 1;
            if app_open {
                self.deliver(now_ns, message, part, UserHeader::NONE, effects);
            } else {
                owner.promised_numbers -= 1;
                self.messages.transfer(message).numbered = false;
                let (kept, used) = self.messages.user_header(message);
                self.deliver(now_ns, message, part, UserHeader::in_place(&kept, used), effects);
            }
        }
        self.leave_reads(read);
        self.read_ended(message);
    }

    /// The READ's slabs that were not delivered come back; they were never shown to anybody.
    fn drop_read(&mut self, read: u32) {
        let entry = &self.reads[read];
        let (message, share) = (entry.message, entry.share);
        let dropped = entry.delivered..entry.run_count;
        let session = self.messages[message].session;
        if session != NONE {
            let owner = &mut self.sessions[session as usize];
            owner.promised_slots -= u32::try_from(dropped.len()).unwrap_or(NONE);
            if share == Share::Granted {
                owner.now.granted -= entry.runs[dropped.clone()].iter().map(|run| run.count).sum::<u32>();
            }
        }
        for index in dropped {
            self.pool.give(self.reads[read].runs[index], share);
        }
        self.leave_reads(read);
        self.read_ended(message);
    }

    /// The READ's place is free. Its bytes counted as in flight until now: while they were checked, too.
    fn leave_reads(&mut self, read: u32) {
        self.in_flight_bytes -= u64::from(self.reads[read].bytes);
        self.reads.remove(read);
    }

    fn read_ended(&mut self, message: u32) {
        let record = &mut self.messages[message];
        record.reads -= 1;
        let session = record.session;
        let unseen = record.reads == 0 && !record.app_open;
        if unseen && core::mem::take(&mut self.messages.transfer(message).numbered) && session != NONE {
            self.sessions[session as usize].promised_numbers -= 1;
        }
        let record = &self.messages[message];
        if record.reads == 0 && record.state == State::Settling {
            self.leave_running(message);
        }
        self.settle(message);
    }

    /// The message no longer counts among those being read.
    pub(super) fn leave_running(&mut self, message: u32) {
        let transfer = self.messages.transfer(message);
        let footprint = core::mem::take(&mut transfer.footprint_bytes);
        if core::mem::take(&mut transfer.running) {
            self.footprint_bytes -= footprint;
            self.running -= 1;
        }
    }

    /// Takes a message out of whatever list it waits in; no further READ is posted for it.
    pub(super) fn unlink(&mut self, message: u32) {
        let record = &self.messages[message];
        let class = usize::from(record.class);
        match record.state {
            State::Waiting => {
                self.sessions[record.session as usize].queued[class].waiting -= 1;
                self.queues[class].waiting.take_out(&mut self.messages, |m| m == message);
            }
            State::Running => self.queues[class].running.take_out(&mut self.messages, |m| m == message),
            State::Parked => self.take_parked(message),
            State::Backlogged => {
                let session = record.session as usize;
                self.sessions[session].backlog.take_out(&mut self.messages, |m| m == message);
                let (slab, share) = self.take_backlogged_slab(message);
                self.pool.give(Run { first: slab, count: 1 }, share);
            }
            State::Free | State::Settling => return,
        }
        self.unlinked(message);
    }

    fn unlinked(&mut self, message: u32) {
        self.messages[message].state = State::Settling;
        if self.messages[message].reads == 0 {
            self.leave_running(message);
        }
    }

    /// [`Self::unlink`] for all messages of a session, in one pass over the queues.
    pub(super) fn unlink_all(&mut self, session: u32) {
        for class in 0..CLASSES_MAX {
            let queue = core::mem::replace(&mut self.queues[class], ClassQueue::EMPTY);
            self.queues[class].waiting = self.without_session(queue.waiting, session);
            self.queues[class].running = self.without_session(queue.running, session);
            while let Some(message) = self.sessions[session as usize].queued[class].parked.pop(&self.messages)
            {
                self.unlinked(message);
            }
        }
        *self.sessions[session as usize].queued = [Queued::NOTHING; CLASSES_MAX];
        while let Some(message) = self.sessions[session as usize].backlog.pop(&self.messages) {
            let (slab, share) = self.take_backlogged_slab(message);
            self.pool.give(Run { first: slab, count: 1 }, share);
            self.unlinked(message);
        }
    }

    fn without_session(&mut self, mut list: MessageList, session: u32) -> MessageList {
        let mut rest = MessageList::EMPTY;
        while let Some(message) = list.pop(&self.messages) {
            if self.messages[message].session == session {
                self.unlinked(message);
            } else {
                rest.push(&mut self.messages, message);
            }
        }
        rest
    }
}

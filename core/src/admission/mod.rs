//! Admission: who goes next, and how much of it (Jet §3.2 step 2, §4.1.2). Decided here and nowhere else.
//!
//! Large messages wait in queues by class. One is admitted when its footprint fits the pool and the
//! concurrency window has room; then it takes turns with the others of its class, a fragment each. What comes
//! out is a [`Grant`]: which message, from which share, how many slabs. Posting the READ is the receiver's.
//!
//! Parts of several messages arrive side by side. An application may take its messages one after the other:
//! it then waits for the next part of the message that began to arrive first, while parts of later ones lie
//! unread and hold slabs and slots. So that it never waits for ever, the oldest incomplete message of a
//! session has a reserve that later ones do not touch: a fragment's slabs, a fragment's slots. What it gets
//! from the reserve its application reads and gives back, so one reserve of slabs serves all sessions. READs
//! end by themselves and need none.
//!
//! What a peer, a session or later a tenant may have is asked at two places only: [`Admission::next`], which
//! hands out turns, and the [`View`] that it is given, which says what a session holds.

mod footprint;
mod policy;
mod suspension;
mod view;

pub(crate) use footprint::Footprint;
pub use policy::{GrantPolicy, QueueHead, StrictWithAging};
pub(crate) use view::View;

use crate::config::{CLASSES_MAX, Config};
use crate::index::NONE;
use crate::messages::{Life, MessageList, Messages};
use crate::pool::{Pool, Share};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use footprint::footprint_bytes;
use jet_escape::Pressure;
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use suspension::Suspension;

/// A message's turn to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub message: u32,
    /// [`Share::Read`] or [`Share::Granted`].
    pub share: Share,
    /// Slabs that there are for it, at least one.
    pub slabs: u32,
    /// The most bytes that are to be read into them.
    pub bytes: u32,
}

/// Work of one class: messages that wait, and those that are being read.
#[derive(Clone, Copy, Debug)]
struct ClassQueue {
    waiting: MessageList,
    running: MessageList,
}

impl ClassQueue {
    const EMPTY: Self = Self { waiting: MessageList::EMPTY, running: MessageList::EMPTY };

    /// What its turn is about: what runs, else what waits.
    fn head(&self) -> Option<u32> {
        self.running.head().or_else(|| self.waiting.head())
    }
}

/// What of one sender's large messages is under way.
#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    /// READs of its memory in flight, and how many its connection takes.
    reads: u32,
    reads_max: u32,
    /// Requests without an end.
    requests: u32,
}

/// What is configured.
#[derive(Clone, Copy, Debug)]
struct Limits {
    reads_max: u32,
    fragment_bytes: u32,
    in_flight_bytes: u64,
    srq_floor_slabs: u32,
    /// Whether sessions leave room to others.
    leaves_room: bool,
}

/// Who waits, who is being read, and who goes next.
#[derive(Debug)]
pub(crate) struct Admission<P> {
    policy: P,
    limits: Limits,
    queues: [ClassQueue; CLASSES_MAX],
    /// Messages that are being read, and what they are expected to hold.
    running: u32,
    footprint_bytes: u64,
    in_flight_bytes: u64,
    /// How much of the READ share may be in use, where that follows the load.
    following: Option<Footprint>,
    /// Slabs that stragglers held when they were counted last.
    straggler_slabs: u32,
    connections: Box<[Connection]>,
    suspensions: Box<[Suspension]>,
    /// Sessions that are suspended, or have deferred messages left.
    reviewed: Vec<u32>,
    /// A session is suspended because the pool has no room for what waits.
    waits_for_room: bool,
}

impl<P: GrantPolicy> Admission<P> {
    /// Nothing waits.
    pub fn new(config: &Config, policy: P) -> Self {
        let following = config.footprint_follows.then(|| {
            let least = 2 * u64::from(config.fragment_bytes);
            Footprint::new(least, u64::from(config.pool_slabs) * SLAB_BYTES as u64)
        });
        Self {
            policy,
            limits: Limits {
                reads_max: config.reads_max,
                fragment_bytes: config.fragment_bytes,
                in_flight_bytes: config.in_flight_bytes,
                srq_floor_slabs: config.srq_floor_slabs,
                leaves_room: config.escape.enabled,
            },
            queues: [ClassQueue::EMPTY; CLASSES_MAX],
            running: 0,
            footprint_bytes: 0,
            in_flight_bytes: 0,
            following,
            straggler_slabs: 0,
            connections: vec![Connection::default(); config.peers_max as usize].into_boxed_slice(),
            suspensions: (0..config.sessions_max).map(|_| Suspension::default()).collect(),
            reviewed: Vec::with_capacity(config.sessions_max as usize),
            waits_for_room: false,
        }
    }

    /// Slabs of a fragment.
    pub fn fragment_slabs(&self) -> u32 {
        self.limits.fragment_bytes / SLAB_BYTES_U32
    }

    /// Whether a message waits for its turn, or has one.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.running > 0 || self.queues.iter().any(|queue| queue.waiting.len() > 0)
    }

    /// Who goes next, class by class as the policy says; `None`: nobody can now.
    pub fn next(
        &mut self,
        now_ns: u64,
        reads_in_use: u32,
        (messages, pool): (&mut Messages, &mut Pool),
        view: &impl View,
    ) -> Option<Grant> {
        loop {
            let heads = self.queue_heads(messages);
            let class = usize::from(self.policy.next_class(&heads, now_ns)?);
            let head = self.queues[class].head();
            // New messages first, while the concurrency window has room: so that 32 short ones run side by
            // side and one long one does not hold the others up.
            if self.admit(class, messages, pool, view) {
                continue;
            }
            if let Some(grant) = self.turn(class, reads_in_use, messages, pool, view) {
                return Some(grant);
            }
            if self.queues[class].head() != head {
                // What could not go on was deferred: another look.
                continue;
            }
            // The class of choice waits for room that only running messages can give back: let those go on.
            return (0..CLASSES_MAX)
                .filter(|&other| other != class)
                .find_map(|other| self.turn(other, reads_in_use, messages, pool, view));
        }
    }

    fn queue_heads(&self, messages: &Messages) -> [Option<QueueHead>; CLASSES_MAX] {
        let mut heads = [None; CLASSES_MAX];
        for (class, head) in (0u8..).zip(heads.iter_mut()) {
            let queue = &self.queues[usize::from(class)];
            *head = queue.head().map(|message| QueueHead { class, since_ns: messages[message].since_ns });
        }
        heads
    }

    /// Admits the head of the class's queue if its footprint fits and the concurrency window has room.
    fn admit(&mut self, class: usize, messages: &mut Messages, pool: &Pool, view: &impl View) -> bool {
        let is_oldest = |message: u32, messages: &Messages| {
            view.oldest_incomplete(messages[message].session) == Some(message)
        };
        let is_full = self.running >= self.limits.reads_max;
        let Some(head) = self.queues[class].waiting.head() else { return false };
        if is_full && !is_oldest(head, messages) {
            return false;
        }
        let Some(message) = self.first_waiting(class, messages, pool, view) else { return false };
        // What began to arrive was admitted before. Those that run may wait for what only its end gives back.
        let goes_on = is_oldest(message, messages);
        if is_full && !goes_on {
            return false;
        }
        let record = &messages[message];
        let session = record.session;
        let mut footprint = footprint_bytes(
            record.length,
            self.limits.fragment_bytes,
            view.bytes_per_ms(session),
            view.post_nic_ns(session),
        );
        let fits =
            self.running == 0 || goes_on || self.footprint_bytes + footprint <= self.footprint_room(pool);
        if !fits {
            if !view.takes_memory(session) || pool.memory_room() < self.fragment_slabs() {
                return false;
            }
            // Memory instead of waiting (Jet §5): nothing of it will be in the cache.
            footprint = 0;
        }
        self.pop_waiting(class, messages);
        messages[message].life = Life::Running;
        let transfer = messages.transfer(message);
        transfer.running = true;
        transfer.in_memory = !fits;
        transfer.footprint_bytes = footprint;
        self.footprint_bytes += footprint;
        self.running += 1;
        self.queues[class].running.push(messages, message);
        true
    }

    /// What the READ share can hold beside what delivered messages hold already.
    fn footprint_room(&self, pool: &Pool) -> u64 {
        let srq = pool.srq_used().max(self.limits.srq_floor_slabs);
        let in_flight_slabs = u32::try_from(self.in_flight_bytes.div_ceil(SLAB_BYTES as u64)).unwrap_or(NONE);
        let delivered = pool.read_used().saturating_sub(in_flight_slabs) + pool.quarantined();
        u64::from(pool.total().saturating_sub(srq + delivered)) * SLAB_BYTES as u64
    }

    /// The next fragment of the class's message whose turn it is, if there is room for it.
    fn turn(
        &mut self,
        class: usize,
        reads_in_use: u32,
        messages: &mut Messages,
        pool: &mut Pool,
        view: &impl View,
    ) -> Option<Grant> {
        if self.queues[class].running.len() == 0 {
            return None;
        }
        // Beyond what one fragment takes, another stays in reserve, and one session leaves more to others.
        let wanted = (2 * self.fragment_slabs()).max(self.room_left_by_most(pool));
        let room = pool.read_room(wanted, view.srq_needed());
        let (message, share) = self.next_to_read(class, room, messages, pool, view)?;
        let left = messages[message].length - messages.transfer(message).requested;
        let bytes =
            u32::try_from(left.min(u64::from(self.limits.fragment_bytes))).expect("at most a fragment");
        if self.in_flight_bytes + u64::from(bytes) > self.limits.in_flight_bytes {
            return None;
        }
        let slabs = bytes.div_ceil(SLAB_BYTES_U32);
        let room = if share == Share::Granted { pool.memory_room() } else { room };
        // A shorter fragment is better than none, but only where nothing else is on the way to give room
        // back.
        if room < slabs && (room == 0 || reads_in_use > 0) {
            return None;
        }
        // Each run will need a slot.
        let slots = view.slots_left(messages[message].session);
        Some(Grant { message, share, slabs: slabs.min(room).min(slots), bytes })
    }

    /// The class's running message whose turn it is, and where its fragment goes: to the cache, or to memory
    /// for those that take it instead of waiting (Jet §5). What may not go on now waits elsewhere, with its
    /// session.
    fn next_to_read(
        &mut self,
        class: usize,
        room: u32,
        messages: &mut Messages,
        pool: &Pool,
        view: &impl View,
    ) -> Option<(u32, Share)> {
        let pressed = view.pressure() != Pressure::Ok;
        let within_window = self.is_within_window(pool);
        let mut next = self.queues[class].running.head();
        while let Some(message) = next {
            let following = messages[message].next;
            next = (following != NONE).then_some(following);
            if !self.may_go_on(message, messages, pool, view) {
                self.suspend(messages[message].session, view);
                self.defer_running(message, messages);
                continue;
            }
            // As many READs as its connection takes are in flight: the next that ends makes room.
            let connection = &self.connections[messages[message].peer as usize];
            if connection.reads >= connection.reads_max {
                continue;
            }
            let record = &messages[message];
            let (session, length) = (record.session, record.length);
            let transfer = messages.transfer(message);
            let left = (length - transfer.requested).div_ceil(SLAB_BYTES as u64);
            let left = u32::try_from(left).unwrap_or(NONE);
            let in_memory = transfer.in_memory;
            let plenty = room >= self.room_left_by(session, pool, view);
            // A low class leaves the cache to the others as soon as it is scarce.
            let prefers_memory =
                view.takes_memory(session) && (!plenty || (pressed && class > 0) || in_memory);
            if prefers_memory && pool.memory_room() >= left.min(self.fragment_slabs()) {
                return Some((message, Share::Granted));
            }
            if (plenty && within_window) || self.may_use_reserve(message, messages, view) {
                return Some((message, Share::Read));
            }
        }
        None
    }

    /// Whether the message may use what is reserved. What its application waits for, if it gave back all that
    /// it got of it; or the first of an application that holds nothing. Who has something to read does not
    /// need the reserve.
    fn may_use_reserve(&self, message: u32, messages: &Messages, view: &impl View) -> bool {
        let record = &messages[message];
        match view.oldest_incomplete(record.session) {
            None => !self.limits.leaves_room || !view.holds_anything(record.session),
            Some(oldest) if oldest == message => {
                !self.limits.leaves_room || (record.held == 0 && record.reads == 0)
            }
            Some(_) => false,
        }
    }

    /// What is left in the pool by a session that holds more than half of it: an eighth, for it may be about
    /// to sit on what it holds, which is known only when its runs are stragglers.
    fn room_left_by_most(&self, pool: &Pool) -> u32 {
        if self.limits.leaves_room { pool.total() / 8 } else { 0 }
    }

    fn room_left_by(&self, session: u32, pool: &Pool, view: &impl View) -> u32 {
        let holds_most = view.held_in_cache(session) > pool.total() / 2;
        let reserve = 2 * self.fragment_slabs();
        if holds_most { reserve.max(self.room_left_by_most(pool)) } else { reserve }
    }

    /// Whether another fragment fits the window that follows the load. What stragglers hold is no part of
    /// what the load needs, and comes back in its own time.
    fn is_within_window(&self, pool: &Pool) -> bool {
        let Some(window_bytes) = self.following.as_ref().and_then(Footprint::window_bytes) else {
            return true;
        };
        let used = pool.read_used().saturating_sub(self.straggler_slabs) + self.fragment_slabs();
        u64::from(used) * SLAB_BYTES as u64 <= window_bytes
    }

    /// The READ of a grant was posted, of so many bytes. It is the next one's turn.
    pub fn posted(&mut self, now_ns: u64, message: u32, bytes: u32, messages: &mut Messages) {
        let transfer = messages.transfer(message);
        transfer.requested += u64::from(bytes);
        let requested = transfer.requested;
        let record = &mut messages[message];
        record.reads += 1;
        record.since_ns = now_ns;
        let more = requested < record.length;
        if !more {
            record.life = Life::Settling;
        }
        self.connections[record.peer as usize].reads += 1;
        let running = &mut self.queues[record.class()].running;
        running.take_one(messages, message);
        if more {
            running.push(messages, message);
        }
        self.in_flight_bytes += u64::from(bytes);
    }

    /// A READ of the peer's memory ended.
    pub fn read_ended(&mut self, peer: u32) {
        self.connections[peer as usize].reads -= 1;
    }

    /// A READ's place is free. Its bytes counted as in flight until now: while they were checked, too.
    pub fn left(&mut self, bytes: u32) {
        self.in_flight_bytes -= u64::from(bytes);
    }

    /// The message no longer counts among those being read.
    pub fn leave_running(&mut self, message: u32, messages: &mut Messages) {
        let transfer = messages.transfer(message);
        let footprint = core::mem::take(&mut transfer.footprint_bytes);
        if core::mem::take(&mut transfer.running) {
            self.footprint_bytes -= footprint;
            self.running -= 1;
        }
    }

    /// Takes a message out of whatever queue it waits in; no further READ is posted for it.
    pub fn unlink(&mut self, message: u32, messages: &mut Messages) {
        let record = &messages[message];
        let class = record.class();
        match record.life {
            Life::Waiting => {
                self.suspensions[record.session as usize].queued[class].waiting -= 1;
                self.queues[class].waiting.take_out(messages, |waits| waits == message);
            }
            Life::Running => self.queues[class].running.take_out(messages, |runs| runs == message),
            Life::Deferred => self.take_deferred(message, messages),
            _ => return,
        }
        self.unlinked(message, messages);
    }

    fn unlinked(&mut self, message: u32, messages: &mut Messages) {
        messages[message].life = Life::Settling;
        if messages[message].reads == 0 {
            self.leave_running(message, messages);
        }
    }

    /// [`Self::unlink`] for all messages of a session, in one pass over the queues.
    pub fn unlink_session(&mut self, session: u32, messages: &mut Messages) {
        for class in 0..CLASSES_MAX {
            let queue = core::mem::replace(&mut self.queues[class], ClassQueue::EMPTY);
            self.queues[class].waiting = self.without_session(queue.waiting, session, messages);
            self.queues[class].running = self.without_session(queue.running, session, messages);
            while let Some(message) = self.suspensions[session as usize].queued[class].deferred.pop(messages)
            {
                self.unlinked(message, messages);
            }
        }
        self.suspensions[session as usize].forget_queued();
    }

    fn without_session(
        &mut self,
        mut list: MessageList,
        session: u32,
        messages: &mut Messages,
    ) -> MessageList {
        let mut rest = MessageList::EMPTY;
        while let Some(message) = list.pop(messages) {
            if messages[message].session == session {
                self.unlinked(message, messages);
            } else {
                rest.push(messages, message);
            }
        }
        rest
    }

    /// A sender was let in.
    pub fn join(&mut self, peer: u32) {
        self.connections[peer as usize] = Connection::default();
    }

    /// Its connection takes so many READs at once.
    pub fn set_reads_max(&mut self, peer: u32, reads_max: u32) {
        self.connections[peer as usize].reads_max = reads_max;
    }

    /// READs that its connection takes at once; 0 until it stands.
    pub fn reads_max(&self, peer: u32) -> u32 {
        self.connections[peer as usize].reads_max
    }

    /// READs of its memory in flight.
    pub fn reads(&self, peer: u32) -> u32 {
        self.connections[peer as usize].reads
    }

    /// Its requests for large messages without an end.
    pub fn requests(&self, peer: u32) -> u32 {
        self.connections[peer as usize].requests
    }

    /// It asks for another large message.
    pub fn begin_request(&mut self, peer: u32) {
        self.connections[peer as usize].requests += 1;
    }

    /// One of its large messages has its end.
    pub fn end_request(&mut self, peer: u32) {
        self.connections[peer as usize].requests -= 1;
    }

    /// Bytes of what was delivered came back.
    #[inline]
    pub fn released(&mut self, bytes: u64) {
        if let Some(following) = &mut self.following {
            following.released(bytes);
        }
    }

    /// The grants of a turn are made.
    #[inline]
    pub fn look(&mut self, now_ns: u64) {
        if let Some(following) = &mut self.following {
            // What is deferred with its session is left to read, too.
            let hungry = !self.reviewed.is_empty() || self.queues.iter().any(|queue| queue.head().is_some());
            following.look(now_ns, hungry);
        }
    }

    /// Stragglers were counted; they hold so many slabs.
    pub fn set_straggler_slabs(&mut self, slabs: impl FnOnce() -> u32) {
        if self.following.is_some() {
            self.straggler_slabs = slabs();
        }
    }

    /// How much of the READ share may be in use at once, where that follows the load.
    pub fn window_bytes(&self) -> Option<u64> {
        self.following.as_ref().map(Footprint::standing_bytes)
    }

    /// Messages that are being read.
    pub fn running(&self) -> u32 {
        self.running
    }

    /// Bytes of READs in flight, and of those that are being checked.
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Messages that wait for their turn, or for their sessions to be no longer suspended.
    pub fn waiting(&self) -> u32 {
        let deferred = self
            .suspensions
            .iter()
            .flat_map(|suspension| suspension.queued.iter())
            .map(|queued| queued.deferred.len());
        self.queues.iter().map(|queue| queue.waiting.len()).chain(deferred).sum()
    }
}

#[cfg(test)]
impl<P: GrantPolicy> Admission<P> {
    /// From now on no more of the READ share is in use than that.
    pub fn follow(&mut self, footprint: Footprint) {
        self.following = Some(footprint);
    }
}

//! Admission: decides which message is read next, and how much of it (Jet §3.2 step 2, §4.1.2). No other
//! module decides that.
//!
//! Large messages wait in queues by class. A message is admitted when its footprint fits the pool and the
//! concurrency window has room. Then it takes turns with the other running messages of its class, one
//! fragment each. The result is a [`Grant`]: which message, from which share, how many slabs. The receiver
//! posts the READ.
//!
//! Parts of several messages arrive side by side. An application may take its messages one after the other.
//! Then it waits for the next part of the message that began to arrive first, while parts of later messages
//! lie unread and hold slabs and slots. So that it never waits for ever, the oldest incomplete message of a
//! session has a reserve that later messages do not touch: a fragment's slabs and a fragment's slots. The
//! application reads what arrives through the reserve and gives it back, so one reserve of slabs serves all
//! sessions. READs need no reserve, for each of them ends without the application.
//!
//! Two places alone say what a peer, a session or later a tenant may have. They are [`Admission::next`],
//! which hands out turns, and the [`View`] passed to it, which says what a session holds.

mod footprint_window;
mod policy;
mod suspension;
mod view;

pub(crate) use footprint_window::FootprintWindow;
pub use policy::{GrantPolicy, QueueHead, StrictWithAging};
pub(crate) use view::View;

use crate::config::{CLASSES_MAX, Config};
use crate::index::NONE;
use crate::messages::{MessageList, MessageState, Messages};
use crate::pool::{Pool, Share};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use footprint_window::footprint_bytes;
use jet_escape::Pressure;
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use suspension::Suspension;

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

/// Messages of one class: those that wait for admission, and those that are being read.
#[derive(Clone, Copy, Debug)]
struct ClassQueue {
    waiting: MessageList,
    running: MessageList,
}

impl ClassQueue {
    const EMPTY: Self = Self { waiting: MessageList::EMPTY, running: MessageList::EMPTY };

    /// Returns the message whose turn it is: the first running one, else the first waiting one.
    fn head(&self) -> Option<u32> {
        self.running.head().or_else(|| self.waiting.head())
    }
}

/// READs and requests of one sender that are under way.
#[derive(Clone, Copy, Debug, Default)]
struct Connection {
    /// READs of the sender's memory that are in flight.
    reads: u32,
    /// The most READs that the sender's connection takes at once.
    reads_max: u32,
    /// Requests of the sender for large messages that have no end yet.
    requests: u32,
}

/// Limits from the configuration.
#[derive(Clone, Copy, Debug)]
struct Limits {
    reads_max: u32,
    fragment_bytes: u32,
    in_flight_bytes: u64,
    srq_floor_slabs: u32,
    /// Whether a session that holds more than half of the pool leaves an eighth of the pool to the others.
    leaves_room: bool,
}

/// Admission's state: which messages wait, which are being read, and which sessions are suspended.
#[derive(Debug)]
pub(crate) struct Admission<P> {
    policy: P,
    limits: Limits,
    queues: [ClassQueue; CLASSES_MAX],
    /// Number of messages that are being read.
    running: u32,
    /// Bytes of the pool that the messages being read are expected to take up.
    footprint_bytes: u64,
    in_flight_bytes: u64,
    /// Footprint window that bounds the READ share's use; `None` where the configuration does not let it
    /// follow the load.
    following: Option<FootprintWindow>,
    /// Slabs that stragglers held at the last count.
    straggler_slabs: u32,
    connections: Box<[Connection]>,
    suspensions: Box<[Suspension]>,
    /// Sessions that are suspended, or still have deferred messages.
    reviewed: Vec<u32>,
    /// Whether a session is suspended because the pool has no room for what waits.
    waits_for_room: bool,
}

impl<P: GrantPolicy> Admission<P> {
    /// Creates an admission in which nothing waits.
    pub fn new(config: &Config, policy: P) -> Self {
        let following = config.footprint_follows.then(|| {
            let least = 2 * u64::from(config.fragment_bytes);
            FootprintWindow::new(least, u64::from(config.pool_slabs) * SLAB_BYTES as u64)
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

    /// Returns the slabs of a full fragment.
    pub fn fragment_slabs(&self) -> u32 {
        self.limits.fragment_bytes / SLAB_BYTES_U32
    }

    /// Returns whether any message waits for admission or is being read.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.running > 0 || self.queues.iter().any(|queue| queue.waiting.len() > 0)
    }

    /// Decides the next grant, class by class as the policy says; `None` when no message can be read now.
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
            // New messages are admitted first, while the concurrency window has room. So 32 short ones run
            // side by side, and one long one does not hold the others up.
            if self.admit(class, messages, pool, view) {
                continue;
            }
            if let Some(grant) = self.turn(class, reads_in_use, messages, pool, view) {
                return Some(grant);
            }
            if self.queues[class].head() != head {
                // The head could not continue and was deferred: try the next one.
                continue;
            }
            // The policy's class waits for room that only running messages can give back: those of other
            // classes go on.
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

    /// Admits the head of the class's queue if its footprint fits and the concurrency window has room (fewer
    /// than `reads_max` messages are being read). Returns whether it did.
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
        // A message that began to arrive was admitted before. The running ones may wait for what only its end
        // gives back.
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
            // The message takes escape memory instead of waiting (Jet §5), so none of it will be in the
            // cache.
            footprint = 0;
        }
        self.pop_waiting(class, messages);
        messages[message].state = MessageState::Running;
        let transfer = messages.transfer(message);
        transfer.running = true;
        transfer.in_memory = !fits;
        transfer.footprint_bytes = footprint;
        self.footprint_bytes += footprint;
        self.running += 1;
        self.queues[class].running.push(messages, message);
        true
    }

    /// Returns the bytes that the READ share can hold beside what delivered messages hold already.
    fn footprint_room(&self, pool: &Pool) -> u64 {
        let srq = pool.srq_used().max(self.limits.srq_floor_slabs);
        let in_flight_slabs = u32::try_from(self.in_flight_bytes.div_ceil(SLAB_BYTES as u64)).unwrap_or(NONE);
        let delivered = pool.read_used().saturating_sub(in_flight_slabs) + pool.quarantined();
        u64::from(pool.total().saturating_sub(srq + delivered)) * SLAB_BYTES as u64
    }

    /// Grants the next fragment of the class's message whose turn it is, if there is room for it.
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
        // Beyond one fragment's slabs, another fragment's stay in reserve, and one session leaves more to the
        // others.
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
        let room = if share == Share::Spilled { pool.memory_room() } else { room };
        // A shorter fragment is better than none, but only where nothing else under way will give room back.
        if room < slabs && (room == 0 || reads_in_use > 0) {
            return None;
        }
        // Each run will need a slot.
        let slots = view.slots_left(messages[message].session);
        Some(Grant { message, share, slabs: slabs.min(room).min(slots), bytes })
    }

    /// Returns the class's running message whose turn it is, and the share of its fragment: the cache, or
    /// escape memory for a session that takes it instead of waiting (Jet §5). Messages that may not go on now
    /// are deferred, and their sessions suspended.
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
            if !self.may_continue(message, messages, pool, view) {
                self.suspend(messages[message].session, view);
                self.defer_running(message, messages);
                continue;
            }
            // As many READs as the connection takes are in flight: the next one that ends makes room.
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
                return Some((message, Share::Spilled));
            }
            if (plenty && within_window) || self.may_use_reserve(message, messages, view) {
                return Some((message, Share::Read));
            }
        }
        None
    }

    /// Returns whether the message may use the slabs that are kept in reserve. Two kinds of messages may: the
    /// message that its application waits for, if the application gave back all that it got of it; and the
    /// first message of an application that holds nothing. An application that has something to read does not
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

    /// Returns the slabs that a session leaves free in the pool when it holds more than half of the pool: an
    /// eighth, or 0 where the escape is off. Such a session may stop giving back, which is known only when
    /// its runs are stragglers.
    fn room_left_by_most(&self, pool: &Pool) -> u32 {
        if self.limits.leaves_room { pool.total() / 8 } else { 0 }
    }

    fn room_left_by(&self, session: u32, pool: &Pool, view: &impl View) -> u32 {
        let holds_most = view.held_in_cache(session) > pool.total() / 2;
        let reserve = 2 * self.fragment_slabs();
        if holds_most { reserve.max(self.room_left_by_most(pool)) } else { reserve }
    }

    /// Returns whether another fragment of the READ share fits the footprint window. Stragglers' slabs do not
    /// count: the load does not need them, and they come back at their own time.
    fn is_within_window(&self, pool: &Pool) -> bool {
        let Some(window_bytes) = self.following.as_ref().and_then(FootprintWindow::window_bytes) else {
            return true;
        };
        let used = pool.read_used().saturating_sub(self.straggler_slabs) + self.fragment_slabs();
        u64::from(used) * SLAB_BYTES as u64 <= window_bytes
    }

    /// Counts the READ that was posted for a grant, of `bytes` bytes. The next message of the class then has
    /// its turn.
    pub fn posted(&mut self, now_ns: u64, message: u32, bytes: u32, messages: &mut Messages) {
        let transfer = messages.transfer(message);
        transfer.requested += u64::from(bytes);
        let requested = transfer.requested;
        let record = &mut messages[message];
        record.reads += 1;
        record.since_ns = now_ns;
        let more = requested < record.length;
        if !more {
            record.state = MessageState::Settling;
        }
        self.connections[record.peer as usize].reads += 1;
        let running = &mut self.queues[record.class()].running;
        running.take_one(messages, message);
        if more {
            running.push(messages, message);
        }
        self.in_flight_bytes += u64::from(bytes);
    }

    /// Counts the end of a READ: one less of the peer's memory is in flight.
    pub fn read_ended(&mut self, peer: u32) {
        self.connections[peer as usize].reads -= 1;
    }

    /// Subtracts a READ's bytes from the bytes in flight, once the READ's place in the table is free. Until
    /// then they count, also while they are checked.
    pub fn left(&mut self, bytes: u32) {
        self.in_flight_bytes -= u64::from(bytes);
    }

    /// Takes the message out of the count of those being read.
    pub fn leave_running(&mut self, message: u32, messages: &mut Messages) {
        let transfer = messages.transfer(message);
        let footprint = core::mem::take(&mut transfer.footprint_bytes);
        if core::mem::take(&mut transfer.running) {
            self.footprint_bytes -= footprint;
            self.running -= 1;
        }
    }

    /// Takes a message out of the queue or list it waits in; no further READ is posted for it.
    pub fn unlink(&mut self, message: u32, messages: &mut Messages) {
        let record = &messages[message];
        let class = record.class();
        match record.state {
            MessageState::Waiting => {
                self.suspensions[record.session as usize].queued[class].waiting -= 1;
                self.queues[class].waiting.take_out(messages, |waits| waits == message);
            }
            MessageState::Running => self.queues[class].running.take_out(messages, |runs| runs == message),
            MessageState::Deferred => self.take_deferred(message, messages),
            _ => return,
        }
        self.unlinked(message, messages);
    }

    fn unlinked(&mut self, message: u32, messages: &mut Messages) {
        messages[message].state = MessageState::Settling;
        if messages[message].reads == 0 {
            self.leave_running(message, messages);
        }
    }

    /// Takes all messages of a session out of the queues, in one pass over them. Like [`Self::unlink`] for
    /// each.
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

    /// Resets the counts of READs and requests of a sender that was let in.
    pub fn join(&mut self, peer: u32) {
        self.connections[peer as usize] = Connection::default();
    }

    /// Sets how many READs the peer's connection takes at once.
    pub fn set_reads_max(&mut self, peer: u32, reads_max: u32) {
        self.connections[peer as usize].reads_max = reads_max;
    }

    /// Returns how many READs the peer's connection takes at once; 0 until it is established.
    pub fn reads_max(&self, peer: u32) -> u32 {
        self.connections[peer as usize].reads_max
    }

    /// Returns the READs of the peer's memory in flight.
    pub fn reads(&self, peer: u32) -> u32 {
        self.connections[peer as usize].reads
    }

    /// Returns the peer's requests for large messages that have no end yet.
    pub fn requests(&self, peer: u32) -> u32 {
        self.connections[peer as usize].requests
    }

    /// Counts another request of the peer for a large message.
    pub fn begin_request(&mut self, peer: u32) {
        self.connections[peer as usize].requests += 1;
    }

    /// Counts the end of one of the peer's large messages.
    pub fn end_request(&mut self, peer: u32) {
        self.connections[peer as usize].requests -= 1;
    }

    /// Counts bytes of delivered messages that were released.
    #[inline]
    pub fn released(&mut self, bytes: u64) {
        if let Some(following) = &mut self.following {
            following.released(bytes);
        }
    }

    /// Tells the footprint window, after the grants of a turn, whether something is left to read.
    #[inline]
    pub fn check_load(&mut self, now_ns: u64) {
        if let Some(following) = &mut self.following {
            // Messages that are deferred with their session are left to read, too.
            let has_more_to_read =
                !self.reviewed.is_empty() || self.queues.iter().any(|queue| queue.head().is_some());
            following.check(now_ns, has_more_to_read);
        }
    }

    /// Stores how many slabs stragglers hold now, where the footprint follows the load.
    pub fn set_straggler_slabs(&mut self, slabs: impl FnOnce() -> u32) {
        if self.following.is_some() {
            self.straggler_slabs = slabs();
        }
    }

    /// Returns the bytes of the READ share that may be in use at once, where the footprint follows the load.
    pub fn window_bytes(&self) -> Option<u64> {
        self.following.as_ref().map(FootprintWindow::current_bytes)
    }

    /// Returns the number of messages that are being read.
    pub fn running(&self) -> u32 {
        self.running
    }

    /// Returns the bytes of READs in flight, and of those that are being checked.
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Returns the number of messages that wait for admission, or are deferred with a suspended session.
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
    /// Replaces the footprint window, which bounds the READ share's use.
    pub fn follow(&mut self, window: FootprintWindow) {
        self.following = Some(window);
    }
}

//! Admission: decides which message is read next, and how much of it (Jet §3.2 step 2, §4.1.2). No other
//! module decides that.
//!
//! Large messages wait in queues by class and peer. A message is admitted when its footprint fits the pool
//! and the concurrency window has room. Then it is read, a fragment at a time: the peers of a class take
//! turns (`turns`), and so do the messages of a peer. What a peer may have in flight is its share (`shares`).
//! The result is a [`Grant`]: which message, from which share of the pool, how many slabs. The receiver posts
//! the READ.
//!
//! Parts of several messages arrive side by side. An application may take its messages one after the other.
//! Then it waits for the next part of the message that began to arrive first, while parts of later messages
//! lie unread and hold slabs and slots. So that it never waits for ever, the oldest incomplete message of a
//! session has a reserve that later messages do not touch: a fragment's slabs and a fragment's slots. The
//! application reads what arrives through the reserve and gives it back, so one reserve of slabs serves all
//! sessions. READs need no reserve, for each of them ends without the application.
//!
//! Three places alone say what a peer, a session or later a tenant may have: `shares` (READs and bytes in
//! flight), `requests` (records of messages), and the [`View`] passed to [`Admission::next`], which says what
//! a session holds.

mod after_slow;
mod deferred;
mod footprint;
mod footprint_window;
mod grant;
mod hold_ups;
mod passed_over;
mod peers;
mod policy;
mod reading;
mod requests;
mod reserve;
mod shares;
mod suspension;
mod turns;
mod view;

pub(crate) use footprint_window::FootprintWindow;
pub(crate) use grant::Grant;
pub use policy::{GrantPolicy, QueueHead, StrictWithAging};
pub(crate) use reserve::Reserve;
pub(crate) use view::View;

use crate::config::Config;
use crate::messages::{MessageState, Messages};
use crate::pool::Pool;
use crate::stats::ReadsWaitFor;
use after_slow::AfterSlow;
use alloc::boxed::Box;
use alloc::vec::Vec;
use deferred::Deferred;
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use reading::{Out, Reading};
use requests::Requests;
use shares::Shares;
use suspension::Suspension;
use turns::ClassQueue;

/// Limits from the configuration.
#[derive(Clone, Copy, Debug)]
struct Limits {
    reads_max: u32,
    fragment_bytes: u32,
    srq_floor_slabs: u32,
    /// Length up to which an application can collect a message.
    long_bytes: u64,
}

/// Admission's state: which messages wait, which are being read, and which sessions are suspended.
#[derive(Debug)]
pub(crate) struct Admission<P> {
    policy: P,
    limits: Limits,
    /// What sessions leave to each other; `None` where the escape is off.
    reserve: Option<Reserve>,
    /// Messages by class.
    queues: Box<[ClassQueue]>,
    /// Messages of suspended sessions, by class.
    deferred: Box<[Deferred]>,
    shares: Shares,
    requests: Requests,
    /// Messages that are being read.
    reading: Reading,
    after_slow: AfterSlow,
    /// Bytes of READs in flight, and of those being checked.
    in_flight_bytes: u64,
    /// Footprint window that bounds the READ share's use; `None` where the configuration does not let it
    /// follow the load.
    following: Option<FootprintWindow>,
    /// Slabs that stragglers held at the last count.
    straggler_slabs: u32,
    suspensions: Box<[Suspension]>,
    /// Sessions that are suspended, or still have deferred messages.
    reviewed: Vec<u32>,
    /// Whether a session is suspended because the pool has no room for what waits.
    waits_for_room: bool,
    /// What the next READ waits for.
    waits_for: ReadsWaitFor,
    /// Whether the bytes that are free in the present turn are kept for one READ, until they are enough.
    is_kept_for_one: bool,
}

impl<P: GrantPolicy> Admission<P> {
    /// Creates an admission in which nothing waits.
    pub fn new(config: &Config, policy: P) -> Self {
        let following = config.footprint_follows.then(|| {
            let least = 2 * u64::from(config.fragment_bytes);
            FootprintWindow::new(least, u64::from(config.pool_slabs) * SLAB_BYTES as u64)
        });
        let peers = config.peers_max;
        Self {
            policy,
            limits: Limits {
                reads_max: config.reads_max,
                fragment_bytes: config.fragment_bytes,
                srq_floor_slabs: config.srq_floor_slabs,
                long_bytes: u64::from(config.pool_slabs) * SLAB_BYTES as u64 / 2,
            },
            queues: (0..config.classes).map(|_| ClassQueue::new(peers)).collect(),
            deferred: (0..config.classes).map(|_| Deferred::new(config.sessions_max, peers)).collect(),
            reserve: Reserve::of(config),
            shares: Shares::new(config),
            requests: Requests::new(
                peers,
                config.requests_per_peer,
                config.sessions_max,
                config.messages_max,
            ),
            reading: Reading::new(peers),
            after_slow: AfterSlow::new(config.classes, peers),
            in_flight_bytes: 0,
            following,
            straggler_slabs: 0,
            suspensions: (0..config.sessions_max).map(|_| Suspension::default()).collect(),
            reviewed: Vec::with_capacity(config.sessions_max as usize),
            waits_for_room: false,
            waits_for: ReadsWaitFor::Nothing,
            is_kept_for_one: false,
        }
    }

    /// Returns the slabs of a full fragment.
    pub fn fragment_slabs(&self) -> u32 {
        self.limits.fragment_bytes / SLAB_BYTES_U32
    }

    /// Returns whether any message waits for admission or is being read.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.reading.messages() > 0 || self.queues.iter().any(|queue| queue.waiting() > 0)
    }

    /// Admits the class's messages, as many as may be read side by side.
    #[inline(always)] // on every READ's way, and mostly nothing waits
    fn admit_all(&mut self, class: usize, messages: &mut Messages, pool: &Pool, view: &impl View) {
        while self.queues[class].waiting() > 0 && self.admit(class, messages, pool, view) {}
    }

    /// Admits the class's next message if its footprint fits and the concurrency window has room: fewer than
    /// `reads_max` messages of this class and more urgent ones are being read, not counting long ones and
    /// those of peers out of turn. Where nothing is being read of the message's peer in the class, or only
    /// long messages, it is admitted all the same, for others' messages may be endless. Where only such
    /// messages are being read, it is admitted whatever they take up. Returns whether one was admitted.
    fn admit(&mut self, class: usize, messages: &mut Messages, pool: &Pool, view: &impl View) -> bool {
        let Some((peer, message)) = self.first_waiting(class, messages, pool, view) else { return false };
        if !self.reading.is_new(peer, class)
            && self.reading.in_turn(class) >= self.limits.reads_max
            && self.queues[class].next_turn(|peer| self.reading.is_out(peer)).is_some()
        {
            return false;
        }
        let footprint = self.first_footprint(message, messages, view);
        // Of a slow peer's message nothing counts but what is in the pool.
        let fits = !self.reading.has_counted(class)
            || self.reading.is_slow(peer)
            || self.reading.footprint_bytes(class) + footprint <= self.footprint_room(pool);
        let session = messages[message].session;
        if !fits && (!view.takes_memory(session) || pool.memory_room() < self.fragment_slabs()) {
            self.waits_for = ReadsWaitFor::Room;
            return false;
        }
        self.pop_waiting(class, peer, messages);
        // A message that takes escape memory instead of waiting (Jet §5) will not be in the cache at all.
        self.begin_reading(message, !fits, if fits { footprint } else { 0 }, messages);
        true
    }

    /// Makes a message one of those that are being read; it is in no list.
    fn begin_reading(
        &mut self,
        message: u32,
        in_memory: bool,
        footprint_bytes: u64,
        messages: &mut Messages,
    ) {
        messages[message].state = MessageState::Running;
        let (peer, class) = (messages[message].peer, messages[message].class());
        let transfer = messages.transfer(message);
        debug_assert!(!transfer.running, "message {message} is being read already");
        transfer.running = true;
        transfer.in_memory = in_memory;
        transfer.footprint_bytes = footprint_bytes;
        let in_pool_bytes = transfer.counted_in_pool_bytes();
        let is_long = self.is_long(messages[message].length);
        self.reading.begin(peer, class, is_long, (footprint_bytes, in_pool_bytes));
        self.queues[class].push_running(message, messages);
        self.count_running(messages[message].session, class);
        self.offer_one_with_messages(class, peer);
    }

    /// Lists a peer among those that take turns in a class, or among those that wait for READs of slow peers,
    /// as far as it has messages of the class.
    #[inline(always)] // mostly there is none: the test is on each READ's way several times
    fn offer(&mut self, class: usize, peer: u32) {
        if self.queues[class].has_messages_of(peer) {
            self.offer_one_with_messages(class, peer);
        }
    }

    /// Lists a peer as [`Self::offer`] does. The peer has messages of the class.
    #[inline]
    fn offer_one_with_messages(&mut self, class: usize, peer: u32) {
        match self.reading.out(peer) {
            None => self.queues[class].offer(peer, self.reading.is_new(peer, class)),
            Some(Out::Own) => {}
            Some(Out::Slow) => self.after_slow.push(self.shares.standing(peer), class, peer),
        }
    }

    /// Lists the peer among those that take turns. The caller adds a message of the peer at once.
    fn expect(&mut self, class: usize, peer: u32) {
        match self.reading.out(peer) {
            None => self.queues[class].expect(peer, self.reading.is_new(peer, class)),
            Some(Out::Own) => {}
            Some(Out::Slow) => self.after_slow.push(self.shares.standing(peer), class, peer),
        }
    }

    /// Takes a peer out of its turns.
    fn leave_turns(&mut self, peer: u32, out: Out) {
        if !self.reading.is_out(peer) {
            self.count_waiting_as(true, peer);
        }
        self.reading.leave_turns(peer, out);
    }

    /// Lets a peer take turns again, in all classes.
    fn return_to_turns(&mut self, peer: u32) {
        if self.reading.return_to_turns(peer) {
            self.count_waiting_as(false, peer);
            for (class, queue) in self.queues.iter_mut().enumerate() {
                queue.offer(peer, self.reading.is_new(peer, class));
            }
        }
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

    /// Takes the message out of the count of those being read.
    pub fn leave_running(&mut self, message: u32, messages: &mut Messages) {
        let transfer = messages.transfer(message);
        let in_pool_bytes = transfer.counted_in_pool_bytes();
        if !core::mem::replace(&mut transfer.running, false) {
            return;
        }
        let footprint_bytes = core::mem::take(&mut transfer.footprint_bytes);
        let (peer, class) = (messages[message].peer, messages[message].class());
        let is_long = self.is_long(messages[message].length);
        self.reading.end(peer, class, is_long, (footprint_bytes, in_pool_bytes));
        // If it was the peer's last one, the peer's next message is admitted before those of others.
        self.offer(class, peer);
    }

    /// Takes a message out of the queue or list it waits in; no further READ is posted for it.
    pub fn unlink(&mut self, message: u32, messages: &mut Messages) {
        let record = &messages[message];
        let class = record.class();
        match record.state {
            MessageState::Waiting => {
                let peer = record.peer;
                self.take_waiting(message, messages);
                // The peer may have waited with this message for others of its own.
                self.offer(class, peer);
            }
            MessageState::Running => {
                self.uncount_running(record.session, class);
                self.queues[class].take_running(message, messages);
            }
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

    /// Takes the deferred messages of a session out of their lists. Like [`Self::unlink`] for each, without a
    /// search.
    pub fn unlink_deferred(&mut self, session: u32, messages: &mut Messages) {
        for class in 0..self.queues.len() {
            let mut all = self.deferred[class].take_all(session, messages);
            while let Some(message) = all.pop(messages) {
                self.unlinked(message, messages);
            }
        }
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
                !self.reviewed.is_empty() || self.queues.iter().any(ClassQueue::has_messages);
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
        self.reading.messages()
    }

    /// Returns the bytes of READs in flight, and of those that are being checked.
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Returns the number of messages that wait for admission, or are deferred with a suspended session.
    pub fn waiting(&self) -> u32 {
        let deferred = self.deferred.iter().map(Deferred::all);
        self.queues.iter().map(ClassQueue::waiting).chain(deferred).sum()
    }
}

#[cfg(test)]
impl<P: GrantPolicy> Admission<P> {
    /// Replaces the footprint window, which bounds the READ share's use.
    pub fn follow(&mut self, window: FootprintWindow) {
        self.following = Some(window);
    }
}

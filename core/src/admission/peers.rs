//! What admission counts of peers: READs posted and ended, requests, and peers that hold others up.

use super::Admission;
use super::policy::GrantPolicy;
use super::reading::Out;
use super::shares::Standing;
use crate::index::NONE;
use crate::messages::{MessageState, Messages};
use crate::pool::Share;
use crate::stats::{ReadsWaitFor, ShareStats};
use crate::time::TurnTime;

impl<P: GrantPolicy> Admission<P> {
    /// Begins the counts of a sender that was let in.
    pub fn join(&mut self, now_ns: u64, peer: u32) {
        self.shares.join(peer);
        self.requests.forget_peer(peer);
        self.reading.join(peer);
        self.queues.iter_mut().for_each(|queue| queue.join(now_ns, peer));
    }

    /// Notes that a peer is heard: it said hello, or its NIC took a SEND.
    #[inline]
    pub fn hear(&mut self) {
        self.shares.hear();
    }

    /// Sets how many READs the peer's connection takes at once.
    pub fn set_reads_max(&mut self, peer: u32, reads_max: u32) {
        self.shares.set_reads_max(peer, reads_max);
        self.return_to_turns(peer);
    }

    /// Returns the READs of the peer's memory in flight.
    #[inline]
    pub fn reads(&self, peer: u32) -> u32 {
        self.shares.reads(peer)
    }

    /// Returns the peer's share of READs and bytes in flight.
    pub fn share(&self, peer: u32, stall_free_ns: u64) -> ShareStats {
        self.shares.stats(peer, stall_free_ns)
    }

    /// Returns the peer's requests for large messages that have no end yet.
    #[inline]
    pub fn requests(&self, peer: u32) -> u32 {
        self.requests.of_peer(peer)
    }

    /// Counts that the peer takes a message back. Returns `false` if it takes back more than it may.
    pub fn use_cancel(&mut self, peer: u32) -> bool {
        self.requests.use_cancel(peer)
    }

    /// Returns the peer's large message without an end that has this sequence number: the first that came.
    pub fn request_of(&self, peer: u32, sequence: u64, messages: &Messages) -> Option<u32> {
        self.requests.find(peer, |message| messages[message].sequence == sequence)
    }

    /// Returns the requests for large messages of a session that have no end yet.
    pub fn requests_of_session(&self, session: u32) -> u32 {
        self.requests.of_session(session)
    }

    /// Returns whether the peer may have another request for a session. `left`: records that are left for
    /// large messages.
    #[inline]
    pub fn may_request(&self, peer: u32, session: u32, left: u32) -> bool {
        self.requests.may_begin(peer, session, left)
    }

    /// Counts another request of the peer for a large message. `session`: `NONE` if it is for none.
    #[inline]
    pub fn begin_request(&mut self, message: u32, peer: u32, session: u32, messages: &mut Messages) {
        self.requests.begin(message, peer, session);
        messages.transfer(message).request_of = (session != NONE).then_some(session);
    }

    /// Counts the end of one of the peer's large messages. `peer`: `NONE` if the peer is gone.
    #[inline]
    pub fn end_request(&mut self, message: u32, peer: u32, messages: &mut Messages) {
        self.leave_session(message, messages);
        if peer != NONE {
            self.requests.end(message, peer);
        }
    }

    /// Counts a large message no longer among its session's requests.
    #[inline]
    pub fn leave_session(&mut self, message: u32, messages: &mut Messages) {
        if let Some(session) = messages.transfer(message).request_of.take() {
            self.requests.leave_session(session);
        }
    }

    /// Notes that there are as many READs as there may be.
    pub fn all_reads_in_use(&mut self) {
        self.waits_for = ReadsWaitFor::Window;
    }

    /// Returns what the next READ waits for.
    pub fn waits_for(&self) -> ReadsWaitFor {
        let is_idle = !self.has_work();
        if !self.reviewed.is_empty() && (is_idle || self.waits_for == ReadsWaitFor::Senders) {
            // The messages of suspended sessions wait for their applications.
            ReadsWaitFor::Room
        } else if is_idle {
            ReadsWaitFor::Nothing
        } else {
            self.waits_for
        }
    }

    /// Counts the READ of `bytes` bytes that was posted for a grant, into slabs of a share. The next message
    /// of the class then has its turn.
    #[inline]
    pub fn posted(
        &mut self,
        time: TurnTime,
        message: u32,
        (bytes, share): (u32, Share),
        messages: &mut Messages,
    ) {
        let transfer = messages.transfer(message);
        transfer.requested += u64::from(bytes);
        let requested = transfer.requested;
        let in_pool_bytes = if share == Share::Read { u64::from(bytes) } else { 0 };
        transfer.in_pool_bytes += in_pool_bytes;
        let counts = transfer.counts_in_pool();
        let record = &mut messages[message];
        record.reads += 1;
        let (peer, class, more) = (record.peer, record.class(), requested < record.length);
        let session = record.session;
        if !more {
            record.state = MessageState::Settling;
            self.uncount_running(session, class);
        }
        if self.shares.posted((peer, session), u64::from(bytes), time.stall_free_ns) {
            self.note_standing(peer);
        }
        self.was_granted(session, class, peer, time.now_ns);
        let queue = &mut self.queues[class];
        queue.take_running(message, messages);
        if more {
            queue.push_running(message, messages);
        }
        queue.used(peer, bytes, time.now_ns, self.deferred[class].resumed());
        if !more {
            // The peer may have another message read side by side.
            self.offer(class, peer);
        }
        self.in_flight_bytes += u64::from(bytes);
        if counts {
            self.reading.posted(peer, in_pool_bytes);
        }
        self.count_under_way(message, messages);
    }

    /// Subtracts a READ's bytes from the bytes in flight, once the READ's place in the table is free. Until
    /// then they count, also while they are checked.
    #[inline]
    pub fn left(&mut self, message: u32, (bytes, share): (u32, Share), messages: &mut Messages) {
        self.in_flight_bytes -= u64::from(bytes);
        let transfer = messages.transfer(message);
        let in_pool_bytes = if share == Share::Read { u64::from(bytes) } else { 0 };
        transfer.in_pool_bytes -= in_pool_bytes;
        if transfer.counts_in_pool() {
            self.reading.left(messages[message].peer, in_pool_bytes);
        }
        self.count_under_way(message, messages);
    }

    /// Counts the end of a READ of `bytes` bytes that was posted at `posted_ns`: one less of the peer's
    /// memory is in flight. `ok`: the bytes arrived.
    #[inline]
    pub fn read_ended(&mut self, time: TurnTime, peer: u32, bytes: u32, posted_ns: u64, ok: bool) {
        let change = self.shares.ended(peer, u64::from(bytes), posted_ns, time.stall_free_ns, ok);
        if change.standing {
            self.note_standing(peer);
        }
        match self.reading.out(peer) {
            Some(out) => self.end_wait(peer, out),
            // More of its messages may be read side by side.
            None if change.has_grown => (0..self.queues.len()).for_each(|class| self.offer(class, peer)),
            None => {}
        }
    }

    /// Lets a peer out of turn, one of whose READs has ended, return to its turns, unless others wait.
    #[cold]
    fn end_wait(&mut self, peer: u32, out: Out) {
        let standing = self.shares.standing(peer);
        match out {
            // Its place is for whoever of its kind has waited longest.
            Out::Own if standing != Standing::Prompt && self.after_slow.has_any(standing) => {
                self.wait_after_slow(peer);
            }
            Out::Slow if standing != Standing::Prompt => {}
            _ => self.return_to_turns(peer),
        }
    }

    /// Counts the peer's messages as those of a peer of its standing.
    #[cold]
    fn note_standing(&mut self, peer: u32) {
        self.reading.set_standing(peer, self.shares.standing(peer));
    }
}

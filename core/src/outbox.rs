//! Ends and signs of life for senders: how their messages ended, and that the receiver is there.
//!
//! A sender's ends wait as ranges of consecutive sequence numbers, as many as one header carries. Further
//! ends wait in their messages' records. One list has all peers to which the next flush is to send something.

use crate::effects::{Commands, PeerId};
use crate::messages::{MessageList, MessageState, Messages};
use crate::time::TurnTime;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use jet_wire::message::hello::features;
use jet_wire::message::{ACK_RANGES_MAX, AckHeader, AckRange, AckStatus, HeaderBytes, ReplyHeader};

/// Ends that one header tells at least.
#[allow(clippy::cast_possible_truncation)] // a few
const RANGES_OF_HEADER: u32 = ACK_RANGES_MAX as u32;

/// Nanoseconds between two congestion signals to one sender. The first one takes a few round trips to have an
/// effect.
const SIGNAL_NS: u64 = 1_000_000;
/// Nanoseconds without a completed SEND after which a sender whose ends wait counts as unresponsive. READs do
/// not take that long.
const UNRESPONSIVE_NS: u64 = 5_000_000_000;

/// Nanoseconds in which a peer without unfinished messages was sent nothing, after which it is idle.
const IDLE_NS: u64 = 1_000_000_000;

/// The state of a peer's connection, as far as it matters to what may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// There is no connection.
    Gone,
    /// The connection is being made: nothing can be sent on it yet.
    Asked,
    /// The driver reported the connection as established.
    Established,
    /// The connection is ending: nothing from its sender counts any more, and nothing is sent to it.
    /// `was_established`: whether the connection was established before.
    Leaving { was_established: bool },
    /// The connection is gone. What it leaves behind is forgotten at the next flush.
    Lost,
}

/// The state of what was sent to one peer, and of what is still to be sent to it.
#[derive(Clone, Copy, Debug)]
struct PeerOutbox {
    link: Link,
    /// Version of the wire format on the connection.
    version: u8,
    /// Whether the peer is in the list of those to which the next flush sends what is due.
    dirty: bool,
    /// Bits of the features that both ends of the connection have.
    features: u32,
    /// Time when the last congestion signal was sent to the peer.
    signalled_ns: u64,
    /// SENDs to the peer that have not completed.
    sends_in_flight: u32,
    /// The most SENDs to the peer that may be under way: no more than the receive entries that the peer has.
    sends_max: u32,
    /// Time when something was last sent to the peer.
    last_sent: TurnTime,
    /// Messages of the peer that have no end yet.
    unfinished: u32,
    ranges: [AckRange; ACK_RANGES_MAX],
    range_count: usize,
    /// Ended messages that found no room in `ranges`. Their records keep their ends.
    overflow: MessageList,
    /// Ended messages that have replies. Their records keep their ends.
    replies: MessageList,
    /// Whether the last ends that were sent came with a reply.
    replied_last: bool,
}

impl PeerOutbox {
    const GONE: Self = Self {
        link: Link::Gone,
        version: 0,
        dirty: false,
        features: 0,
        signalled_ns: 0,
        sends_in_flight: 0,
        sends_max: 0,
        last_sent: TurnTime { now_ns: 0, stall_free_ns: 0 },
        unfinished: 0,
        ranges: [AckRange { first: 0, count: 0, status: AckStatus::Consumed }; ACK_RANGES_MAX],
        range_count: 0,
        overflow: MessageList::EMPTY,
        replies: MessageList::EMPTY,
        replied_last: false,
    };

    /// Returns whether the peer takes one more SEND. `left`: SENDs beyond the first of each peer that are
    /// left for all of them. A peer has no more of these than it leaves to the others. Its first SEND is
    /// always possible, so that a peer which waits has one under way whose end it hears of.
    #[inline]
    fn may_send_to(&self, left: u32) -> bool {
        let own = self.sends_in_flight;
        self.link == Link::Established && own < self.sends_max && (own == 0 || own - 1 < left)
    }

    /// Returns the ends that wait in records.
    fn ends_waiting(&self) -> u32 {
        self.overflow.len() + self.replies.len()
    }

    /// Adds an end to the pending ranges. Returns `false` if they are full, or ends wait in the overflow
    /// list, which go first.
    #[inline(always)] // on every message's way
    fn takes_end(&mut self, sequence: u64, status: AckStatus) -> bool {
        self.overflow.len() == 0 && self.add_end(sequence, status)
    }

    /// Adds an end to the pending ranges, in the form that the peer's version knows. Returns `false` if they
    /// are full.
    #[inline(always)] // on every message's way
    fn add_end(&mut self, sequence: u64, status: AckStatus) -> bool {
        let status = status.known_in(self.version);
        if let Some(last) = self.range_count.checked_sub(1).map(|last| &mut self.ranges[last])
            && last.status == status
            && last.first.wrapping_add(u64::from(last.count)) == sequence
            && last.count < u16::MAX
        {
            last.count += 1;
            return true;
        }
        if self.range_count == ACK_RANGES_MAX {
            return false;
        }
        self.ranges[self.range_count] = AckRange { first: sequence, count: 1, status };
        self.range_count += 1;
        true
    }
}

/// Pending headers to all peers: ends of messages, congestion signals, heartbeats.
#[derive(Debug)]
pub(crate) struct Outbox {
    peers: Box<[PeerOutbox]>,
    dirty: Vec<u32>,
    /// SENDs beyond the first of each peer that may still be under way, for all peers together.
    sends_left: u32,
    /// Ends that wait in message records, of all peers together.
    untold: u32,
    heartbeat_ns: u64,
    /// Time of the next search for peers that are due a heartbeat.
    next_heartbeat_ns: u64,
    /// Time of the receiver's last flush, by two clocks.
    turn_time: TurnTime,
}

impl Outbox {
    /// Creates the state for `peers` peers, to which together at most `sends_max` SENDs may be under way. A
    /// peer that waits, and was sent nothing for `heartbeat_ns`, is to be sent a heartbeat.
    pub fn new(peers: u32, sends_max: u32, heartbeat_ns: u64) -> Self {
        Self {
            peers: vec![PeerOutbox::GONE; peers as usize].into_boxed_slice(),
            dirty: Vec::with_capacity(peers as usize),
            sends_left: sends_max.saturating_sub(peers),
            untold: 0,
            heartbeat_ns,
            next_heartbeat_ns: 0,
            turn_time: TurnTime::default(),
        }
    }

    #[inline]
    fn of_peer(&self, peer: u32) -> &PeerOutbox {
        &self.peers[peer as usize]
    }

    #[inline]
    fn of_peer_mut(&mut self, peer: u32) -> &mut PeerOutbox {
        &mut self.peers[peer as usize]
    }

    /// Sets the time that counts for whatever is sent from now on.
    #[inline]
    pub fn set_turn_time(&mut self, turn_time: TurnTime) {
        self.turn_time = turn_time;
    }

    /// Returns the time of the receiver's last flush, without that of its stalls.
    pub fn flushed_stall_free_ns(&self) -> u64 {
        self.turn_time.stall_free_ns
    }

    /// Returns the time of the receiver's last flush.
    #[inline]
    pub fn flushed_ns(&self) -> u64 {
        self.turn_time.now_ns
    }

    /// Begins the state of a peer that was let in, with this version of the wire format and these features.
    pub fn join(&mut self, peer: u32, sends_max: u32, features: u32, version: u8) {
        let last_sent = self.turn_time;
        *self.of_peer_mut(peer) =
            PeerOutbox { link: Link::Asked, version, sends_max, features, last_sent, ..PeerOutbox::GONE };
    }

    /// Marks the peer's connection as established. The next flush sends the peer what is due.
    pub fn mark_established(&mut self, peer: u32) {
        let outbox = self.of_peer_mut(peer);
        outbox.link = match outbox.link {
            Link::Leaving { .. } => Link::Leaving { was_established: true },
            Link::Lost => Link::Lost,
            Link::Gone | Link::Asked | Link::Established => Link::Established,
        };
        self.mark_dirty(peer);
    }

    /// Marks the peer's connection as ending: nothing from the peer counts any more. Returns `false` if that
    /// is so already, or there is no connection.
    pub fn leave(&mut self, peer: u32) -> bool {
        let outbox = self.of_peer_mut(peer);
        let was_established = match outbox.link {
            Link::Gone | Link::Lost | Link::Leaving { .. } => return false,
            Link::Asked => false,
            Link::Established => true,
        };
        outbox.link = Link::Leaving { was_established };
        true
    }

    /// Drops the ends that wait for a peer that is gone. They count as told. Calls `forget` for those that
    /// have replies.
    pub fn drop_ends(&mut self, peer: u32, messages: &mut Messages, mut forget: impl FnMut(u32)) {
        loop {
            let outbox = self.of_peer_mut(peer);
            let (message, has_reply) = match outbox.overflow.pop(messages) {
                Some(message) => (message, false),
                None => match outbox.replies.pop(messages) {
                    Some(message) => (message, true),
                    None => return,
                },
            };
            if has_reply {
                forget(message);
            }
            self.untold -= 1;
            messages.forget_sender(message);
            messages.mark_acknowledged(message);
        }
    }

    /// Notes that the peer's connection is gone. Returns `false` if it was before.
    pub fn lose(&mut self, peer: u32) -> bool {
        let outbox = self.of_peer_mut(peer);
        let was_connected = !matches!(outbox.link, Link::Gone | Link::Lost);
        if was_connected {
            outbox.link = Link::Lost;
        }
        was_connected
    }

    /// Frees the indices of lost peers for other senders.
    pub fn forget(&mut self, peers: &[u32]) {
        self.dirty.retain(|&dirty| self.peers[dirty as usize].link != Link::Lost);
        for &peer in peers {
            let gone = core::mem::replace(self.of_peer_mut(peer), PeerOutbox::GONE);
            self.sends_left += gone.sends_in_flight.saturating_sub(1);
        }
    }

    /// Returns the state of the peer's connection.
    pub fn link(&self, peer: u32) -> Link {
        self.of_peer(peer).link
    }

    /// Returns whether the peer has a connection, established or not.
    pub fn is_connected(&self, peer: u32) -> bool {
        !matches!(self.of_peer(peer).link, Link::Gone | Link::Lost)
    }

    /// Returns whether the peer's connection is gone, and something of it is left.
    pub fn is_lost(&self, peer: u32) -> bool {
        self.of_peer(peer).link == Link::Lost
    }

    /// Returns the version of the wire format on the peer's connection.
    pub fn version(&self, peer: u32) -> u8 {
        self.of_peer(peer).version
    }

    /// Returns the version of the wire format in which the peer's headers are written. `None`: there is no
    /// connection, or it is ending, so that nothing from the peer counts.
    #[inline]
    pub fn receive_version(&self, peer: u32) -> Option<u8> {
        let outbox = self.of_peer(peer);
        matches!(outbox.link, Link::Asked | Link::Established).then_some(outbox.version)
    }

    /// Returns whether the peer's connection is established and takes one more SEND.
    #[inline]
    pub fn may_send_to(&self, peer: u32) -> bool {
        self.of_peer(peer).may_send_to(self.sends_left)
    }

    /// Marks the peer for the next flush. Code that every message passes through tests `dirty` itself first,
    /// to save the call: nearly always it is set.
    #[inline]
    pub fn mark_dirty(&mut self, peer: u32) {
        let outbox = self.of_peer_mut(peer);
        if outbox.link != Link::Gone && !outbox.dirty {
            outbox.dirty = true;
            self.dirty.push(peer);
        }
    }

    /// Takes the next peer that was marked for the flush. The peer that was marked last comes first.
    #[inline]
    pub fn next_dirty(&mut self) -> Option<u32> {
        let peer = self.dirty.pop()?;
        self.of_peer_mut(peer).dirty = false;
        Some(peer)
    }

    /// Counts a message that arrived from the peer, and marks the peer for the next flush. The message's end
    /// is to be sent to the peer.
    #[inline(always)] // on every message's way
    pub fn begin(&mut self, peer: u32) {
        let outbox = self.of_peer_mut(peer);
        outbox.unfinished += 1;
        if !outbox.dirty {
            self.mark_dirty(peer);
        }
    }

    /// Records that one of the peer's small messages was consumed. `false`: nothing was recorded, because its
    /// record has to keep the end until there is room.
    #[inline(always)] // on every message's way
    pub fn end_small(&mut self, peer: u32, sequence: u64) -> bool {
        let outbox = &mut self.peers[peer as usize];
        if !outbox.takes_end(sequence, AckStatus::Consumed) {
            return false;
        }
        outbox.unfinished -= 1;
        if !outbox.dirty {
            self.mark_dirty(peer);
        }
        true
    }

    /// Records the end of one of the peer's messages.
    pub fn end(&mut self, peer: u32, message: u32, status: AckStatus, messages: &mut Messages) {
        let outbox = &mut self.peers[peer as usize];
        outbox.unfinished -= 1;
        let record = &mut messages[message];
        if outbox.takes_end(record.sequence, status) {
            record.state.mark_acknowledged();
        } else {
            record.state = MessageState::Ended(status);
            outbox.overflow.push(messages, message);
            self.untold += 1;
        }
        if !outbox.dirty {
            self.mark_dirty(peer);
        }
    }

    /// Records the end of one of the peer's messages that has a reply.
    pub fn end_with_reply(&mut self, peer: u32, message: u32, status: AckStatus, messages: &mut Messages) {
        messages[message].state = MessageState::Ended(status);
        let outbox = self.of_peer_mut(peer);
        outbox.unfinished -= 1;
        outbox.replies.push(messages, message);
        self.untold += 1;
        if !self.of_peer(peer).dirty {
            self.mark_dirty(peer);
        }
    }

    /// Returns whether the peer takes replies.
    #[inline]
    pub fn takes_replies(&self, peer: u32) -> bool {
        self.of_peer(peer).features & features::REPLIES != 0
    }

    /// Returns whether the peer may take messages back.
    pub fn may_cancel(&self, peer: u32) -> bool {
        self.of_peer(peer).features & features::CANCEL != 0
    }

    /// Returns whether the peer's messages may lie in several pieces.
    pub fn may_gather(&self, peer: u32) -> bool {
        self.of_peer(peer).features & features::GATHER != 0
    }

    /// Returns the peer's next message whose end goes with a reply, where it is a reply's turn: other ends
    /// and replies take turns.
    #[inline]
    pub fn next_reply(&self, peer: u32) -> Option<u32> {
        let outbox = self.of_peer(peer);
        if outbox.range_count > 0 && outbox.replied_last { None } else { outbox.replies.head() }
    }

    /// Sends the end of the peer's next message that has a reply, with the first `bytes` bytes of a slot.
    pub fn reply(
        &mut self,
        peer: u32,
        credit_limit: u64,
        (slot, bytes): (u32, u32),
        messages: &mut Messages,
        effects: &mut impl Commands,
    ) {
        let outbox = self.of_peer_mut(peer);
        outbox.replied_last = true;
        let Some(message) = outbox.replies.pop(messages) else { return };
        let record = &messages[message];
        let MessageState::Ended(status) = record.state else {
            unreachable!("a message that waits with its reply keeps its end")
        };
        let mut header = ReplyHeader::encode(credit_limit, record.sequence, status, bytes);
        self.untold -= 1;
        self.count_send(peer, &mut header);
        effects.send_reply(PeerId(peer), &header, slot, bytes);
        messages.mark_acknowledged(message);
    }

    /// Returns the ends that wait in message records because their peers did not take earlier ones.
    pub fn untold_ends(&self) -> u32 {
        self.untold
    }

    /// Returns how many further ends of the peer need no record to wait in, even if no two of them make one
    /// range and the peer takes nothing more: those that headers tell which may still be sent. None where
    /// ends wait in records already.
    pub fn ends_without_records(&self, peer: u32) -> u32 {
        let outbox = self.of_peer(peer);
        let headers = if outbox.overflow.len() > 0 {
            0
        } else {
            outbox.sends_max.saturating_sub(outbox.sends_in_flight)
        };
        // Each end may need a header of its own where it comes with a reply.
        let ends = if outbox.features & features::REPLIES == 0 { RANGES_OF_HEADER } else { 1 };
        headers.saturating_sub(outbox.replies.len()).saturating_mul(ends)
    }

    /// Returns whether ends wait to be sent to the peer, with replies or without.
    #[inline]
    pub fn has_ends(&self, peer: u32) -> bool {
        let outbox = self.of_peer(peer);
        outbox.range_count > 0 || outbox.replies.len() > 0
    }

    /// Sends the waiting ends to the peer, with the limit of its credit. The ends that waited in message
    /// records become the next ranges.
    pub fn acknowledge(
        &mut self,
        peer: u32,
        credit_limit: u64,
        messages: &mut Messages,
        effects: &mut impl Commands,
    ) {
        let outbox = self.of_peer_mut(peer);
        outbox.replied_last = false;
        let count = core::mem::take(&mut outbox.range_count);
        let header = AckHeader::encode(credit_limit, &outbox.ranges[..count]);
        self.send(peer, &header, effects);
        let outbox = &mut self.peers[peer as usize];
        while let Some(message) = outbox.overflow.head() {
            let record = &messages[message];
            let MessageState::Ended(status) = record.state else {
                unreachable!("a message in the overflow list keeps its end")
            };
            if !outbox.add_end(record.sequence, status) {
                return;
            }
            let popped = outbox.overflow.pop(messages);
            self.untold -= 1;
            debug_assert_eq!(popped, Some(message), "the head is what is popped");
            messages.mark_acknowledged(message);
        }
    }

    /// Sends a header to a peer in the version of its connection. [`Self::may_send_to`] must be true of the
    /// peer.
    pub fn send(&mut self, peer: u32, header: &HeaderBytes, effects: &mut impl Commands) {
        let mut header = *header;
        self.count_send(peer, &mut header);
        effects.send(PeerId(peer), &header);
    }

    /// Counts a SEND to a peer, and gives its header the version of the connection.
    #[inline]
    fn count_send(&mut self, peer: u32, header: &mut HeaderBytes) {
        let last_sent = self.turn_time;
        let outbox = self.of_peer_mut(peer);
        outbox.sends_in_flight += 1;
        let is_first = outbox.sends_in_flight == 1;
        outbox.last_sent = last_sent;
        header.set_version(outbox.version);
        self.sends_left -= u32::from(!is_first);
    }

    /// Counts a SEND to the peer that the NIC has completed.
    pub fn sent(&mut self, peer: u32) {
        let outbox = self.of_peer_mut(peer);
        // A farewell is not counted.
        let Some(left) = outbox.sends_in_flight.checked_sub(1) else { return };
        outbox.sends_in_flight = left;
        self.sends_left += u32::from(left > 0);
    }

    /// Returns the SENDs that may be posted beside the first of each peer.
    pub fn sends_left(&self) -> u32 {
        self.sends_left
    }

    /// Returns whether it is time to search for peers that wait and were sent nothing for long. That is so
    /// once per heartbeat.
    pub fn is_heartbeat_due(&mut self, now_ns: u64) -> bool {
        let due = now_ns >= self.next_heartbeat_ns;
        if due {
            self.next_heartbeat_ns = now_ns + self.heartbeat_ns;
        }
        due
    }

    /// Returns whether the peer may be sent something, and was sent nothing for the time of a heartbeat.
    pub fn is_overdue(&self, peer: u32, now_ns: u64) -> bool {
        let outbox = self.of_peer(peer);
        self.may_send_to(peer) && now_ns.saturating_sub(outbox.last_sent.now_ns) >= self.heartbeat_ns
    }

    /// Returns whether heartbeats to the peer say what it waits for.
    pub fn is_told_what_it_waits_for(&self, peer: u32) -> bool {
        self.of_peer(peer).features & features::WAITS_FOR != 0
    }

    /// Returns whether the peer waits for the end of a message.
    pub fn waits(&self, peer: u32) -> bool {
        self.unfinished(peer) > 0
    }

    /// Returns the number of the peer's messages that have no end yet.
    pub fn unfinished(&self, peer: u32) -> u32 {
        self.of_peer(peer).unfinished
    }

    /// Returns, of the unresponsive peers, the one with the most ends waiting in message records.
    pub fn most_unresponsive(&self, stall_free_ns: u64) -> Option<u32> {
        let is_unresponsive = |outbox: &PeerOutbox| {
            matches!(outbox.link, Link::Asked | Link::Established)
                && !outbox.may_send_to(self.sends_left)
                && outbox.ends_waiting() > 0
                && stall_free_ns.saturating_sub(outbox.last_sent.stall_free_ns) >= UNRESPONSIVE_NS
        };
        (0u32..)
            .zip(self.peers.iter())
            .filter(|(_, outbox)| is_unresponsive(outbox))
            .max_by_key(|(_, outbox)| outbox.ends_waiting())
            .map(|(peer, _)| peer)
    }

    /// Returns, of the peers that `is_meant` chooses and that are without unfinished messages and were sent
    /// nothing for long, the one that has been so for longest.
    pub fn longest_idle(&self, now_ns: u64, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        self.longest_quiet(|peer| {
            let outbox = self.of_peer(peer);
            outbox.unfinished == 0
                && now_ns.saturating_sub(outbox.last_sent.now_ns) >= IDLE_NS
                && is_meant(peer)
        })
    }

    /// Returns, of the peers that `is_meant` chooses, the one that was sent nothing for longest.
    pub fn longest_quiet(&self, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        let stands =
            |(peer, outbox): &(u32, &PeerOutbox)| outbox.link == Link::Established && is_meant(*peer);
        let standing = (0u32..).zip(self.peers.iter()).filter(stands);
        standing.min_by_key(|(_, outbox)| outbox.last_sent.now_ns).map(|(peer, _)| peer)
    }

    /// Returns how many connections are ending.
    pub fn leaving(&self) -> u32 {
        let leaving = self.peers.iter().filter(|outbox| matches!(outbox.link, Link::Leaving { .. }));
        u32::try_from(leaving.count()).expect("fewer than peers")
    }

    /// Returns whether every end was sent to its sender.
    pub fn all_acknowledged(&self) -> bool {
        let is_done = |outbox: &PeerOutbox| outbox.range_count == 0 && outbox.ends_waiting() == 0;
        self.peers.iter().all(|outbox| outbox.link == Link::Gone || is_done(outbox))
    }

    /// Returns whether the peer may be sent a congestion signal now.
    pub fn may_signal(&self, peer: u32, now_ns: u64) -> bool {
        let outbox = self.of_peer(peer);
        outbox.features & features::CONGESTION != 0
            && self.may_send_to(peer)
            && now_ns.saturating_sub(outbox.signalled_ns) >= SIGNAL_NS
    }

    /// Sends a congestion signal to the peer.
    pub fn signal(&mut self, peer: u32, now_ns: u64, header: &HeaderBytes, effects: &mut impl Commands) {
        self.of_peer_mut(peer).signalled_ns = now_ns;
        self.send(peer, header, effects);
    }
}

#[cfg(test)]
impl Outbox {
    /// Returns the SENDs to the peer that have not completed.
    pub fn sends_in_flight(&self, peer: u32) -> u32 {
        self.of_peer(peer).sends_in_flight
    }
}

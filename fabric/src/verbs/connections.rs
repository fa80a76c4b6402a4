//! The table of connections: the state of each, and the work in its send queue.

use super::completion_queue::Mark;
use super::connection_manager::{ConnectionId, ReadDepth};
use super::queue_pair::QueuePair;
use super::send_completions::{Seat, SendCompletions};
use crate::nic::{DisconnectReason, PrivateData, Qp};
use std::time::Instant;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The place is free.
    Free,
    /// The address and the route to the peer are being resolved.
    Resolving,
    /// The peer was asked whether it accepts.
    Connecting,
    /// The user was asked whether to accept.
    Requested,
    /// The user accepted; the peer has not confirmed yet.
    Accepting,
    /// The connection is ready for work.
    Connected,
    /// The user ended the connection; posted SENDs may still be taken.
    Farewell,
    /// The QP is in the error state, and its work completes as flushed.
    Draining,
    /// The connection's QP and identifier are being destroyed.
    Leaving,
    /// The connection ended; its last event waits to be polled.
    Ended,
}

/// Event that ends a connection for its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FinalEvent {
    /// The connection was disconnected.
    Disconnected,
    /// The other end refused the connection, with this private data.
    Rejected(PrivateData),
    /// No event: the user refused the connection.
    Nothing,
}

/// Work in a place of the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    /// A SEND, with the places of its copied header and payload. A SEND in one stretch has only a payload's
    /// place.
    Send { header: u32, payload: u32 },
    /// A READ of so many bytes.
    Read { bytes: u32 },
    /// A WRITE of no bytes, which the user does not see.
    Probe,
}

/// Value that stands for no place.
pub(super) const NOWHERE: u32 = u32::MAX;

/// Work in the send queue, oldest first. Positions are never reset, and wrap.
#[derive(Debug, Default)]
struct SendQueue {
    entries: Box<[(u64, Option<Posted>)]>,
    head: u32,
    tail: u32,
}

impl SendQueue {
    fn place(&self, position: u32) -> usize {
        position as usize & (self.entries.len() - 1)
    }

    /// Makes room for so much work.
    fn reserve(&mut self, entries: u32) {
        let entries = entries.next_power_of_two() as usize;
        if self.entries.len() != entries {
            self.entries = vec![(0, None); entries].into();
        }
        (self.head, self.tail) = (0, 0);
    }

    fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    #[inline]
    fn push(&mut self, id: u64, posted: Posted) -> u32 {
        let position = self.tail;
        let place = self.place(position);
        self.entries[place] = (id, Some(posted));
        self.tail = position.wrapping_add(1);
        position
    }

    /// Takes the oldest work: its position, id, and kind.
    #[inline]
    fn pop(&mut self) -> Option<(u32, u64, Posted)> {
        if self.is_empty() {
            return None;
        }
        let position = self.head;
        let (id, posted) = self.entries[self.place(position)];
        self.head = position.wrapping_add(1);
        posted.map(|posted| (position, id, posted))
    }
}

/// Connection of a NIC on verbs.
#[derive(Debug)]
pub(super) struct Connection {
    generation: u32,
    pub state: State,
    pub pair: Option<QueuePair>,
    pub id: Option<ConnectionId>,
    /// Whether the QP, the identifier or both are with an order for slow calls that is being carried out. The
    /// connection ends only after the outcome.
    pub has_order: bool,
    /// Whether the connection is to end after the outcome of its order, for [`Self::reason`].
    pub ends: bool,
    /// Number of the QP, as long as completions of it may arrive.
    pub qp_number: Option<u32>,
    /// Seat in a completion queue, where work that this end posts completes.
    pub seat: Option<Seat>,
    pub inline_bytes: u32,
    /// Whether the user has polled the event that the connection is ready.
    pub announced: bool,
    pub reason: Option<DisconnectReason>,
    /// Event for the user at the connection's end.
    pub final_event: FinalEvent,
    pub sends: u32,
    pub reads: u32,
    /// READs that may be outstanding, as both ends agreed.
    pub reads_max: u32,
    queue: SendQueue,
    /// First and last of the connection's gathered requests that the device does not have yet.
    pub gathered: Option<(usize, usize)>,
    /// Time when the connection gives up what it waits for.
    pub deadline: Option<Instant>,
    /// Time when the connection stops waiting for the device to report that it takes no SRQ entry any more.
    pub last_wqe_deadline: Option<Instant>,
    /// Whether the connection's QP takes no SRQ entry any more.
    pub takes_no_more_entries: bool,
    /// Moments of two completion queues, that of SRQ entries and that of the connection's posted work.
    ///
    /// They were taken when the QP took its last SRQ entry, or was destroyed with work left.
    pub settles_after: (Mark, Mark),
    /// Number of checks in a row that found the connection with work that does not end.
    pub stalled: u32,
    /// Whether the device said that the QP takes no SRQ entry any more.
    pub took_last_entry: bool,
    /// Payload of the path's longest packet in bytes, while the connection counts as ready.
    pub path: Option<u32>,
    /// Whether the connection is among those that are counted and probed.
    pub is_counted: bool,
    /// READs that the peer makes and answers.
    pub peer_reads: ReadDepth,
    /// Private data that this end sends when it asks or accepts.
    pub private_data: PrivateData,
    /// Whether anything happened on the connection since the last check for probing.
    pub is_active: bool,
    /// Whether the connection is in the NIC's list of those that wait for something.
    pub is_timed: bool,
}

impl Connection {
    fn new() -> Self {
        Self {
            generation: 0,
            state: State::Free,
            pair: None,
            id: None,
            has_order: false,
            ends: false,
            qp_number: None,
            seat: None,
            inline_bytes: 0,
            announced: false,
            reason: None,
            final_event: FinalEvent::Disconnected,
            sends: 0,
            reads: 0,
            reads_max: 0,
            queue: SendQueue::default(),
            gathered: None,
            deadline: None,
            last_wqe_deadline: None,
            takes_no_more_entries: false,
            settles_after: (Mark::default(), Mark::default()),
            stalled: 0,
            took_last_entry: false,
            path: None,
            is_counted: false,
            peer_reads: ReadDepth::MOST,
            private_data: PrivateData::new(&[]).expect("nothing is short enough"),
            is_active: true,
            is_timed: false,
        }
    }

    /// Returns the connection's QP and identifier.
    ///
    /// # Panics
    /// Where the connection does not have both.
    pub fn parts(&mut self) -> (&mut QueuePair, &ConnectionId) {
        self.pair.as_mut().zip(self.id.as_ref()).expect("a QP and an identifier")
    }

    /// Whether all posted work has completed.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the position of the newest work in the send queue.
    pub fn newest(&self) -> u32 {
        self.queue.tail.wrapping_sub(1)
    }

    /// Puts work into the send queue, and returns its position. Its completion queue is polled from now on.
    #[inline]
    pub fn post(&mut self, id: u64, posted: Posted, completions: &mut SendCompletions) -> u32 {
        if self.queue.is_empty() {
            completions.begin(self.seat.expect("a connection that posts has a queue pair"));
        }
        self.queue.push(id, posted)
    }

    /// Takes the oldest work, which has completed: its position, id, and kind.
    #[inline]
    pub fn take_oldest(&mut self, completions: &mut SendCompletions) -> Option<(u32, u64, Posted)> {
        let oldest = self.queue.pop()?;
        if self.queue.is_empty() {
            completions.end(self.seat.expect("a connection keeps its place until its work is back"));
        }
        Some(oldest)
    }
}

/// Table of all connections. The place that was freed last is used next.
#[derive(Debug)]
pub(super) struct Connections {
    entries: Box<[Connection]>,
    free: Vec<u32>,
}

impl Connections {
    pub fn new(max: u32) -> Self {
        Self { entries: (0..max).map(|_| Connection::new()).collect(), free: (0..max).rev().collect() }
    }

    /// Takes a place, with a send queue of so many entries. `None` where all places are taken.
    pub fn take(&mut self, state: State, queue: u32) -> Option<Qp> {
        let index = self.free.pop()?;
        let entry = &mut self.entries[index as usize];
        let generation = entry.generation.wrapping_add(1);
        let mut queue_of_old = std::mem::take(&mut entry.queue);
        queue_of_old.reserve(queue);
        let is_timed = entry.is_timed;
        *entry = Connection { generation, state, queue: queue_of_old, is_timed, ..Connection::new() };
        Some(Qp { index, generation })
    }

    /// Gives a place back; its QP is stale from now on.
    pub fn release(&mut self, qp: Qp) {
        let entry = self.get_mut(qp).expect("a connection is released once");
        let has_nothing = entry.pair.is_none() && entry.id.is_none() && entry.seat.is_none();
        let is_over = has_nothing && !entry.has_order && entry.queue.is_empty();
        assert!(is_over, "a connection is released after its end");
        entry.state = State::Free;
        self.free.push(qp.index);
    }

    /// Returns the connection; `None` where the QP is stale.
    #[inline]
    pub fn get_mut(&mut self, qp: Qp) -> Option<&mut Connection> {
        self.entries
            .get_mut(qp.index as usize)
            .filter(|entry| entry.state != State::Free && entry.generation == qp.generation)
    }

    /// Returns the connection at a place, with its handle.
    #[inline]
    pub fn at(&mut self, index: u32) -> (Qp, &mut Connection) {
        let entry = &mut self.entries[index as usize];
        (Qp { index, generation: entry.generation }, entry)
    }

    /// Whether there are any connections.
    #[cfg(test)]
    pub fn any(&self) -> bool {
        self.free.len() < self.entries.len()
    }

    pub fn indices(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.entries.len()).expect("connections are few")
    }
}

/// Packs a connection's handle into the number that its identifier carries; see [`from_context`]. It is never
/// 0, the number of a listening identifier.
pub(super) fn to_context(qp: Qp) -> u64 {
    (u64::from(qp.generation) << 32) | u64::from(qp.index + 1)
}

/// Returns the handle of the connection that an identifier belongs to; `None` for a listening one.
pub(super) fn from_context(context: u64) -> Option<Qp> {
    let index = (context & u64::from(u32::MAX)).checked_sub(1)?;
    Some(Qp { index: u32::try_from(index).ok()?, generation: u32::try_from(context >> 32).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_reused_makes_the_old_handle_stale() {
        let mut connections = Connections::new(1);
        let first = connections.take(State::Resolving, 4).unwrap();
        assert!(connections.take(State::Resolving, 4).is_none());
        assert_eq!(from_context(to_context(first)), Some(first));
        connections.release(first);
        assert!(connections.get_mut(first).is_none());
        let second = connections.take(State::Resolving, 4).unwrap();
        assert_ne!(first, second);
        assert!(connections.get_mut(first).is_none() && connections.get_mut(second).is_some());
        assert_eq!(from_context(0), None);
    }

    #[test]
    fn work_leaves_the_send_queue_as_it_came_though_positions_wrap() {
        let mut queue = SendQueue::default();
        queue.reserve(4);
        (queue.head, queue.tail) = (u32::MAX - 1, u32::MAX - 1);
        for round in 0..10u64 {
            for id in 0..4 {
                queue.push(round * 4 + id, Posted::Read { bytes: 1 });
            }
            for id in 0..4 {
                assert_eq!(queue.pop().map(|(_, id, _)| id), Some(round * 4 + id));
            }
            assert!(queue.pop().is_none());
        }
    }
}

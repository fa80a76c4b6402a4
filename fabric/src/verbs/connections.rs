//! The table of connections: where each stands, and the work that its send queue holds.

use super::completion_queue::Mark;
use super::connection_manager::{ConnectionId, ReadDepth};
use super::queue_pair::QueuePair;
use super::send_completions::{Seat, SendCompletions};
use crate::nic::{DisconnectReason, PrivateData, Qp};
use std::time::Instant;

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The place is free.
    Free,
    /// The way to the peer is being found.
    Resolving,
    /// The peer was asked.
    Connecting,
    /// The user was asked.
    Requested,
    /// The user accepted; the peer does not know yet.
    Accepting,
    /// It stands.
    Connected,
    /// The user ended it; posted SENDs may still be taken.
    Farewell,
    /// The QP is in the error state; its work comes back.
    Draining,
    /// What it has of RDMA CM and of the device is being destroyed.
    Leaving,
    /// Its last event waits to be polled.
    Ended,
}

/// What the user hears of a connection at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Last {
    /// That it was disconnected.
    Disconnected,
    /// That the other end refused it, and what it said.
    Rejected(PrivateData),
    /// Nothing: the user refused it.
    Nothing,
}

/// What a place in the send queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    /// A SEND; where its header was put, and its payload where that was copied. One of one stretch lies with
    /// the payloads.
    Send { header: u32, payload: u32 },
    /// A READ of so many bytes.
    Read { bytes: u32 },
    /// A WRITE of no bytes, of which the user does not know.
    Probe,
}

/// No place.
pub(super) const NOWHERE: u32 = u32::MAX;

/// Work in the send queue, oldest first. Positions count on for ever, and wrap.
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

    /// Room for so many.
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

    /// Takes the oldest: its position, id, and what it is.
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

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    generation: u32,
    pub state: State,
    pub pair: Option<QueuePair>,
    pub id: Option<ConnectionId>,
    /// One of the two, or both, are with an order that is carried out. What would end it waits until they are
    /// back.
    pub is_away: bool,
    /// It is to end when they are back, for [`Self::reason`].
    pub ends: bool,
    /// The QP's number, as long as completions of it may come.
    pub qp_number: Option<u32>,
    /// Where its QP completes what this end posts.
    pub seat: Option<Seat>,
    pub inline_bytes: u32,
    /// The user knows that it stands: it has polled the event.
    pub announced: bool,
    pub reason: Option<DisconnectReason>,
    /// What its user hears at its end, where that is not that it was disconnected.
    pub last: Last,
    pub sends: u32,
    pub reads: u32,
    /// READs that there may be: what both ends agreed on.
    pub reads_max: u32,
    queue: SendQueue,
    /// The first and the last of its requests that were gathered and not given to the device.
    pub gathered: Option<(usize, usize)>,
    /// When it gives up what it waits for.
    pub deadline: Option<Instant>,
    /// When it no longer waits for the device's word that it takes no SRQ entry any more.
    pub last_wqe_deadline: Option<Instant>,
    /// No SRQ entry will be taken any more.
    pub quiet: bool,
    /// What the completion queues had given when it became quiet, or when its QP was destroyed with work:
    /// that of arrivals, and its own.
    pub quiet_since: (Mark, Mark),
    /// Looks that found it with work that does not end.
    pub stalled: u32,
    /// The device said that its QP takes no SRQ entry any more.
    pub took_last_entry: bool,
    /// The payload of its longest packet, while it counts as one that stands.
    pub path: Option<u32>,
    /// It is among those that stand, which are counted and probed.
    pub is_counted: bool,
    /// What the peer said of READs.
    pub peer_reads: ReadDepth,
    /// What this end says when it asks, or accepts.
    pub said: PrivateData,
    /// Something happened since it was last looked at whether it should be probed.
    pub is_active: bool,
    /// It is in the NIC's list of those that wait for something.
    pub is_timed: bool,
}

impl Connection {
    fn new() -> Self {
        Self {
            generation: 0,
            state: State::Free,
            pair: None,
            id: None,
            is_away: false,
            ends: false,
            qp_number: None,
            seat: None,
            inline_bytes: 0,
            announced: false,
            reason: None,
            last: Last::Disconnected,
            sends: 0,
            reads: 0,
            reads_max: 0,
            queue: SendQueue::default(),
            gathered: None,
            deadline: None,
            last_wqe_deadline: None,
            quiet: false,
            quiet_since: (Mark::default(), Mark::default()),
            stalled: 0,
            took_last_entry: false,
            path: None,
            is_counted: false,
            peer_reads: ReadDepth::MOST,
            said: PrivateData::new(&[]).expect("nothing is short enough"),
            is_active: true,
            is_timed: false,
        }
    }

    /// Its QP and its identifier, both of which it has from being made to its end.
    ///
    /// # Panics
    /// Before that, and after.
    pub fn parts(&mut self) -> (&mut QueuePair, &ConnectionId) {
        self.pair.as_mut().zip(self.id.as_ref()).expect("a QP and an identifier")
    }

    /// Whether all work that was posted came back.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// The position of the newest work.
    pub fn newest(&self) -> u32 {
        self.queue.tail.wrapping_sub(1)
    }

    /// Puts work into the send queue: its position. Something may complete from now on.
    #[inline]
    pub fn post(&mut self, id: u64, posted: Posted, completions: &mut SendCompletions) -> u32 {
        if self.queue.is_empty() {
            completions.begin(self.seat.expect("a connection that posts has a queue pair"));
        }
        self.queue.push(id, posted)
    }

    /// Takes the oldest work, which completed: its position, id, and what it is.
    #[inline]
    pub fn take_oldest(&mut self, completions: &mut SendCompletions) -> Option<(u32, u64, Posted)> {
        let oldest = self.queue.pop()?;
        if self.queue.is_empty() {
            completions.end(self.seat.expect("a connection keeps its place until its work is back"));
        }
        Some(oldest)
    }
}

/// All of them. Places are reused last-used-first.
#[derive(Debug)]
pub(super) struct Connections {
    entries: Box<[Connection]>,
    free: Vec<u32>,
}

impl Connections {
    pub fn new(max: u32) -> Self {
        Self { entries: (0..max).map(|_| Connection::new()).collect(), free: (0..max).rev().collect() }
    }

    /// Takes a place, for a send queue of so many; `None` where all are taken.
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

    /// Gives a place back; the QP is stale from now on.
    pub fn release(&mut self, qp: Qp) {
        let entry = self.get_mut(qp).expect("a connection is released once");
        let has_nothing = entry.pair.is_none() && entry.id.is_none() && entry.seat.is_none();
        let is_over = has_nothing && !entry.is_away && entry.queue.is_empty();
        assert!(is_over, "a connection is released after its end");
        entry.state = State::Free;
        self.free.push(qp.index);
    }

    /// The connection, unless it is stale.
    #[inline]
    pub fn get_mut(&mut self, qp: Qp) -> Option<&mut Connection> {
        self.entries
            .get_mut(qp.index as usize)
            .filter(|entry| entry.state != State::Free && entry.generation == qp.generation)
    }

    /// The one at a place, with its handle.
    #[inline]
    pub fn at(&mut self, index: u32) -> (Qp, &mut Connection) {
        let entry = &mut self.entries[index as usize];
        (Qp { index, generation: entry.generation }, entry)
    }

    /// Whether there are any.
    #[cfg(test)]
    pub fn any(&self) -> bool {
        self.free.len() < self.entries.len()
    }

    pub fn indices(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.entries.len()).expect("connections are few")
    }
}

/// What an identifier carries of its connection; see [`from_context`]. Never that of a listening one, which
/// is 0.
pub(super) fn to_context(qp: Qp) -> u64 {
    (u64::from(qp.generation) << 32) | u64::from(qp.index + 1)
}

/// The connection that an identifier belongs to.
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

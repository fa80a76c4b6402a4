//! What is under way in a network, in the order of its times.

use super::queue_pair::End;
use crate::nic::Status;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Something that happens at one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A connection request arrives at the NIC that listens. `from`: the end that asks.
    Asked { from: End },
    /// The answer to the end's connection request arrives: the other end accepted.
    Accepted,
    /// The answer to the end's connection request arrives: the other end refused, or nobody listens.
    Refused { by_user: bool },
    /// The other end knows that this end accepted it.
    Ready,
    /// The end must have been set up by now.
    SetUpLate,
    /// A request of the other end arrives: its number in the other end's send queue.
    Request { number: u64 },
    /// The outcome of one of this end's requests arrives.
    Outcome { number: u64, status: Status },
    /// SENDs that found no SRQ entry are tried again.
    TryAgain,
    /// The end waited long enough for its last SENDs to be taken.
    FarewellLate,
    /// The other end hung up.
    HungUp,
    /// The end notices that nothing comes from the other one.
    Silent,
    /// The work of an end that ended is flushed.
    Flush,
    /// The device takes no SRQ entry for an end any more.
    LastWqe,
    /// A device that was frozen goes on.
    Thaw,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at_ns: u64,
    /// Order of what happens at the same time.
    order: (u32, u64),
    end: End,
    what: What,
}

impl Entry {
    fn key(&self) -> (u64, (u32, u64)) {
        (self.at_ns, self.order)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The heap's greatest entry is the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// All that is under way.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    heap: BinaryHeap<Entry>,
    /// Entries so far.
    count: u64,
}

impl Schedule {
    /// Adds something. `chance` orders what happens at the same time; what has the same chance happens in the
    /// order in which it was added.
    pub fn add(&mut self, at_ns: u64, chance: u32, end: End, what: What) {
        self.count += 1;
        self.heap.push(Entry { at_ns, order: (chance, self.count), end, what });
    }

    /// Returns the time of what happens next.
    pub fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|entry| entry.at_ns)
    }

    /// Takes what happens next, if it is due, with its time.
    pub fn take_due(&mut self, now_ns: u64) -> Option<(u64, End, What)> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.heap.pop().map(|Entry { at_ns, end, what, .. }| (at_ns, end, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Qp;

    #[test]
    fn what_is_due_comes_in_the_order_of_its_times_and_then_of_its_chance() {
        let mut schedule = Schedule::default();
        let end = |index| End { nic: 0, qp: Qp { index, generation: 1 } };
        let added = [(5, 1), (3, 9), (5, 0), (3, 9), (9, 0)];
        for (index, (at_ns, chance)) in (0..).zip(added) {
            schedule.add(at_ns, chance, end(index), What::Ready);
        }
        assert_eq!(schedule.next_ns(), Some(3));
        let mut due = std::iter::from_fn(|| schedule.take_due(5).map(|(at, end, _)| (at, end.qp.index)));
        assert_eq!(due.by_ref().collect::<Vec<_>>(), [(3, 1), (3, 3), (5, 2), (5, 0)]);
        assert_eq!(schedule.next_ns(), Some(9));
    }
}

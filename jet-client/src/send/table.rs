//! The messages that have no reported end: their entries, their queues, and an index from a sequence number
//! to its message.

use jet_wire::message::AckStatus;

const NONE: u32 = u32::MAX;

/// State of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// The message waits to be sent.
    Queued,
    /// The message was sent on this connection, and has no end yet.
    Sent,
    /// The message had an end that is retried, and waits for the time of the retry.
    Waiting,
    /// The message has its end, which was not polled yet.
    Ended,
}

/// Entry of a message without a reported end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub state: State,
    pub generation: u32,
    pub sequence: u64,
    pub bytes: u64,
    pub large: bool,
    /// Whether the message lies in several pieces.
    pub gathered: bool,
    pub redelivered: bool,
    /// Whether the SEND has not completed: the NIC may still read the payload.
    pub send_pending: bool,
    /// End of the message. It may arrive before the SEND completes.
    pub end: Option<AckStatus>,
    pub submitted_ns: u64,
    pub retry_at_ns: u64,
    pub failures: u32,
    /// End of an earlier attempt after which an application may have consumed the message: the first one of
    /// `PeerLost` (its connection ended), `AppGone` and `Draining`.
    pub seen: Option<AckStatus>,
    /// End of the last attempt, where the message was sent again because of it.
    pub failure: Option<AckStatus>,
    /// Time by which the message is taken back; `u64::MAX`: none.
    pub deadline_ns: u64,
    /// Whether the message was taken back: it is not sent again.
    pub taken_back: bool,
    /// Whether the receiver is still to be told that the message was taken back.
    pub cancel_queued: bool,
    next: u32,
    previous: u32,
}

/// A first-in-first-out list through [`Entry::next`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
}

impl Queue {
    pub(super) const EMPTY: Self = Self { head: NONE, tail: NONE };

    pub(super) fn front(self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }
}

/// Table of the messages without a reported end. Its size is fixed at construction.
#[derive(Debug)]
pub(super) struct Table {
    entries: Box<[Entry]>,
    /// Free entries. The last one that was freed is used first, so that few entries are touched at low load.
    free: Vec<u32>,
    /// Index by sequence number: a hash table with open addressing and linear probing, at most half full.
    /// Holds (sequence, entry), with `NONE` for a free place.
    places: Box<[(u64, u32)]>,
    scratch: Vec<u32>,
}

impl Table {
    pub(super) fn new(messages: u32) -> Self {
        let free_entry = Entry {
            state: State::Free,
            generation: 0,
            sequence: 0,
            bytes: 0,
            large: false,
            gathered: false,
            redelivered: false,
            send_pending: false,
            end: None,
            submitted_ns: 0,
            retry_at_ns: 0,
            failures: 0,
            seen: None,
            failure: None,
            deadline_ns: u64::MAX,
            taken_back: false,
            cancel_queued: false,
            next: NONE,
            previous: NONE,
        };
        Self {
            entries: vec![free_entry; messages as usize].into_boxed_slice(),
            free: (0..messages).rev().collect(),
            places: vec![(0, NONE); (2 * messages as usize).next_power_of_two()].into_boxed_slice(),
            scratch: Vec::with_capacity(messages as usize),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn used(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &Entry {
        &self.entries[index as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut Entry {
        &mut self.entries[index as usize]
    }

    /// Returns the entry at `index`, if it is in use and still has this generation.
    pub(super) fn checked(&self, index: u32, generation: u32) -> Option<&Entry> {
        self.entries
            .get(index as usize)
            .filter(|entry| entry.generation == generation && entry.state != State::Free)
    }

    pub(super) fn insert(&mut self, sequence: u64, bytes: u64, large: bool, now_ns: u64) -> Option<u32> {
        let index = self.free.pop()?;
        let entry = self.get_mut(index);
        *entry = Entry {
            state: State::Queued,
            generation: entry.generation.wrapping_add(1),
            sequence,
            bytes,
            large,
            gathered: false,
            redelivered: false,
            send_pending: false,
            end: None,
            submitted_ns: now_ns,
            retry_at_ns: 0,
            failures: 0,
            seen: None,
            failure: None,
            deadline_ns: u64::MAX,
            taken_back: false,
            cancel_queued: false,
            next: NONE,
            previous: NONE,
        };
        let mut place = self.home(sequence);
        while self.places[place].1 != NONE {
            place = (place + 1) & (self.places.len() - 1);
        }
        self.places[place] = (sequence, index);
        Some(index)
    }

    pub(super) fn remove(&mut self, index: u32) {
        let sequence = self.get(index).sequence;
        let mask = self.places.len() - 1;
        let mut hole = self.home(sequence);
        while self.places[hole] != (sequence, index) {
            assert!(self.places[hole].1 != NONE, "message {sequence} is in the table and not in the index");
            hole = (hole + 1) & mask;
        }
        // Moves back the entries that probing would no longer find beyond the hole.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let (found, entry) = self.places[at];
            if entry == NONE {
                break;
            }
            let from_home = at.wrapping_sub(self.home(found)) & mask;
            if from_home >= (at.wrapping_sub(hole) & mask) {
                self.places[hole] = (found, entry);
                hole = at;
            }
        }
        self.places[hole] = (0, NONE);
        self.get_mut(index).state = State::Free;
        self.free.push(index);
    }

    #[inline]
    pub(super) fn find(&self, sequence: u64) -> Option<u32> {
        let mut place = self.home(sequence);
        loop {
            match self.places[place] {
                (_, NONE) => return None,
                (found, index) if found == sequence => return Some(index),
                _ => place = (place + 1) & (self.places.len() - 1),
            }
        }
    }

    /// Returns the first place to probe for a sequence number, by Fibonacci hashing. The low bits alone would
    /// put consecutive sequences side by side. Everything in flight would be one cluster, and each removal at
    /// its front would walk to its end.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the middle bits are what is wanted
    fn home(&self, sequence: u64) -> usize {
        (sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.places.len() - 1)
    }

    #[inline]
    pub(super) fn push_back(&mut self, queue: &mut Queue, index: u32) {
        let entry = self.get_mut(index);
        (entry.previous, entry.next) = (queue.tail, NONE);
        if queue.head == NONE {
            queue.head = index;
            entry.previous = NONE;
        } else {
            self.get_mut(queue.tail).next = index;
        }
        queue.tail = index;
    }

    #[inline]
    pub(super) fn push_front(&mut self, queue: &mut Queue, index: u32) {
        let entry = self.get_mut(index);
        (entry.previous, entry.next) = (NONE, queue.head);
        if queue.head == NONE {
            queue.tail = index;
        } else {
            self.get_mut(queue.head).previous = index;
        }
        queue.head = index;
    }

    /// Takes the first message of a queue. Whether it has a predecessor is not written: the head says it.
    #[inline]
    pub(super) fn pop_front(&mut self, queue: &mut Queue) -> Option<u32> {
        let index = queue.front()?;
        queue.head = self.get(index).next;
        Some(index)
    }

    /// Takes a message out of the queue that it is in.
    pub(super) fn take_out(&mut self, queue: &mut Queue, index: u32) {
        let Entry { next, previous, .. } = *self.get(index);
        if queue.head == index {
            queue.head = next;
        } else {
            self.get_mut(previous).next = next;
        }
        if queue.tail == index {
            queue.tail = previous;
        } else {
            self.get_mut(next).previous = previous;
        }
    }

    /// Builds the queue of all queued messages of a kind, in the order of their sequence numbers. It is slow,
    /// and called rarely: after a connection was lost, or when a retry is due.
    pub(super) fn queue_again(&mut self, large: bool) -> Queue {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        scratch.extend(self.indices().filter(|&index| {
            let entry = self.get(index);
            entry.state == State::Queued && entry.large == large
        }));
        scratch.sort_unstable_by_key(|&index| self.get(index).sequence);
        let mut queue = Queue::EMPTY;
        for &index in &scratch {
            self.push_back(&mut queue, index);
        }
        self.scratch = scratch;
        queue
    }

    /// Returns the indices of all entries, used or free.
    pub(super) fn indices(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.entries.len()).expect("made of a u32")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn the_index_finds_what_a_hash_map_finds(
            steps in prop::collection::vec((any::<bool>(), 1u64..40), 0..300),
        ) {
            let mut table = Table::new(8);
            let mut oracle = HashMap::new();
            for (insert, sequence) in steps {
                if insert && !oracle.contains_key(&sequence) {
                    let placed = table.insert(sequence, 1, false, 0);
                    prop_assert_eq!(placed.is_some(), oracle.len() < 8);
                    if let Some(index) = placed {
                        oracle.insert(sequence, index);
                    }
                } else if let Some(index) = oracle.remove(&sequence) {
                    table.remove(index);
                }
                for sequence in 1..40 {
                    prop_assert_eq!(table.find(sequence), oracle.get(&sequence).copied());
                }
                prop_assert_eq!(table.used(), oracle.len());
            }
        }
    }
}

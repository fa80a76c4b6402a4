//! Outstanding READs with their scatter lists, in one table, so that posting allocates nothing.

use crate::nic::{Qp, ReadRequest, Sge};
use crate::soft::options::SCATTER_MAX;

/// Value that stands for no slot.
const NONE: u32 = u32::MAX;

/// READ that was posted and has not completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    /// Connection of the READ.
    pub(crate) qp: Qp,
    /// User's number for the request.
    pub(crate) id: u64,
    /// Address of the bytes at the peer.
    pub(crate) address: u64,
    /// Peer's key of the memory.
    pub(crate) key: u32,
    /// Bytes of the whole READ.
    pub(crate) bytes: u32,
    /// Bytes that have been written here already.
    pub(crate) done: u32,
    scatter: [Sge; SCATTER_MAX],
    used: u32,
    /// Index of the scatter entry that the next byte goes to.
    entry: u32,
    entry_done: u32,
    next: u32,
}

impl Read {
    /// Returns the next stretch of memory to write, at most `bytes_max` long. `None` where the READ is
    /// complete.
    ///
    /// Scatter entries that are neighbours in memory are joined to one stretch.
    #[inline]
    pub(crate) fn next_stretch(&self, bytes_max: u32) -> Option<Sge> {
        let mut entries = self.scatter.get(self.entry as usize..self.used as usize)?.iter();
        let first = entries.next()?;
        let mut stretch = Sge {
            key: first.key,
            offset: first.offset + u64::from(self.entry_done),
            bytes: first.bytes - self.entry_done,
        };
        while stretch.bytes < bytes_max
            && let Some(next) = entries.next()
            && next.key == stretch.key
            && next.offset == stretch.offset + u64::from(stretch.bytes)
        {
            // The sum of the whole list fits into a `u32`: it was checked before posting.
            stretch.bytes += next.bytes;
        }
        stretch.bytes = stretch.bytes.min(bytes_max);
        Some(stretch)
    }

    /// Forgets what was written, because it is not valid.
    pub(crate) fn begin_anew(&mut self) {
        (self.done, self.entry, self.entry_done) = (0, 0, 0);
        self.advance(0);
    }

    /// Counts bytes that were written at [`Self::next_stretch`].
    #[inline]
    pub(crate) fn advance(&mut self, bytes: u32) {
        self.done += bytes;
        self.entry_done += bytes;
        while self.entry < self.used && self.entry_done >= self.scatter[self.entry as usize].bytes {
            self.entry_done -= self.scatter[self.entry as usize].bytes;
            self.entry += 1;
        }
    }
}

/// List of one QP's READs, oldest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadList {
    head: u32,
    tail: u32,
}

impl Default for ReadList {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

impl ReadList {
    /// Returns the slot of the oldest READ.
    #[inline]
    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }
}

/// Table of all READs.
#[derive(Debug)]
pub(crate) struct Reads {
    slots: Box<[Read]>,
    free: Vec<u32>,
}

impl Reads {
    pub(crate) fn new(max: u32) -> Self {
        let nowhere = Sge { key: crate::nic::MemoryKey(0), offset: 0, bytes: 0 };
        let empty = Read {
            qp: Qp { index: 0, generation: 0 },
            id: 0,
            address: 0,
            key: 0,
            bytes: 0,
            done: 0,
            scatter: [nowhere; SCATTER_MAX],
            used: 0,
            entry: 0,
            entry_done: 0,
            next: NONE,
        };
        Self { slots: vec![empty; max as usize].into(), free: (0..max).rev().collect() }
    }

    /// Takes a slot for a request whose scatter list was checked. `None` where all slots are taken.
    pub(crate) fn take(&mut self, qp: Qp, request: &ReadRequest<'_>, bytes: u32) -> Option<u32> {
        let slot = self.free.pop()?;
        let read = &mut self.slots[slot as usize];
        (read.qp, read.id, read.address, read.key) = (qp, request.id, request.address, request.key);
        (read.bytes, read.done, read.entry, read.entry_done, read.next) = (bytes, 0, 0, 0, NONE);
        read.scatter[..request.scatter.len()].copy_from_slice(request.scatter);
        read.used = u32::try_from(request.scatter.len()).expect("at most 64 scatter entries");
        // Skips leading empty entries.
        read.advance(0);
        Some(slot)
    }

    /// Gives a slot back.
    pub(crate) fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Returns the READ in a slot.
    #[inline]
    pub(crate) fn get(&self, slot: u32) -> &Read {
        &self.slots[slot as usize]
    }

    /// Returns the READ in a slot, for changes.
    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Read {
        &mut self.slots[slot as usize]
    }

    /// Appends a slot to a QP's list.
    pub(crate) fn append(&mut self, list: &mut ReadList, slot: u32) {
        match list.tail {
            NONE => list.head = slot,
            tail => self.slots[tail as usize].next = slot,
        }
        list.tail = slot;
    }

    /// Removes the oldest slot from a QP's list. The slot stays taken until [`Self::release`].
    pub(crate) fn pop(&mut self, list: &mut ReadList) -> Option<u32> {
        let slot = list.front()?;
        list.head = self.slots[slot as usize].next;
        if list.head == NONE {
            list.tail = NONE;
        }
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::MemoryKey;

    #[test]
    fn a_scatter_list_is_walked_in_bounded_stretches() {
        let mut reads = Reads::new(2);
        let sge = |offset, bytes| Sge { key: MemoryKey(1), offset, bytes };
        let scatter = [sge(0, 0), sge(100, 10), sge(50, 0), sge(200, 3), sge(203, 2), sge(205, 1)];
        let qp = Qp { index: 0, generation: 1 };
        let request = ReadRequest { id: 7, address: 0, key: 1, scatter: &scatter };
        let slot = reads.take(qp, &request, 16).unwrap();
        let mut walked = Vec::new();
        while let Some(stretch) = reads.get(slot).next_stretch(4) {
            walked.push((stretch.offset, stretch.bytes));
            reads.get_mut(slot).advance(stretch.bytes);
        }
        assert_eq!(walked, [(100, 4), (104, 4), (108, 2), (200, 4), (204, 2)]);
        assert_eq!(reads.get(slot).done, 16);
    }

    #[test]
    fn lists_keep_their_order_and_slots_come_back() {
        let mut reads = Reads::new(3);
        let qp = Qp { index: 0, generation: 1 };
        let mut list = ReadList::default();
        for round in 0..4 {
            for id in 0..3 {
                let request = ReadRequest { id: round * 10 + id, address: 0, key: 1, scatter: &[] };
                let slot = reads.take(qp, &request, 0).unwrap();
                reads.append(&mut list, slot);
            }
            assert!(reads.take(qp, &ReadRequest { id: 0, address: 0, key: 1, scatter: &[] }, 0).is_none());
            for id in 0..3 {
                let slot = reads.pop(&mut list).unwrap();
                assert_eq!(reads.get(slot).id, round * 10 + id);
                reads.release(slot);
            }
            assert!(reads.pop(&mut list).is_none());
        }
    }
}

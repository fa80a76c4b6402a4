//! Order of one connection's READs: that in which they were posted, and that in which the peer answers those
//! that it was asked for. It does not know where their bytes go.

use std::collections::VecDeque;

/// How far a READ is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The peer does not know of it.
    Waiting,
    /// The peer was asked for its bytes.
    Asked,
    /// The peer pushes its bytes.
    Promised,
    /// Its bytes are here.
    Here,
}

#[derive(Clone, Copy, Debug)]
struct Posted {
    slot: u32,
    stage: Stage,
}

/// READs of one connection, by their slots. They complete in the order in which they were posted.
#[derive(Debug)]
pub(super) struct ReadQueue {
    /// In the order in which they were posted.
    posted: VecDeque<Posted>,
    waiting: usize,
    /// Those that the peer was asked for, in the order in which it answers.
    asked: VecDeque<u32>,
    /// READs that were answered since the connection began.
    answered: u64,
}

impl ReadQueue {
    pub(super) fn new(reads_max: usize) -> Self {
        let (posted, asked) = (VecDeque::with_capacity(reads_max), VecDeque::with_capacity(reads_max));
        Self { posted, waiting: 0, asked, answered: 0 }
    }

    /// Begins with a new connection.
    pub(super) fn begin(&mut self) {
        assert!(self.is_empty(), "a connection's work completes with it");
        self.answered = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    pub(super) fn post(&mut self, slot: u32) {
        self.posted.push_back(Posted { slot, stage: Stage::Waiting });
        self.waiting += 1;
    }

    /// Whether there are READs of which the peer does not know.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Returns the first READ from this place on of which the peer does not know, with its place.
    pub(super) fn waiting_from(&self, place: usize) -> Option<(usize, u32)> {
        if self.waiting == 0 {
            return None;
        }
        let mut later = self.posted.iter().enumerate().skip(place);
        let found = later.find(|(_, posted)| posted.stage == Stage::Waiting);
        found.map(|(at, posted)| (at, posted.slot))
    }

    /// Returns the READs that the peer was asked for.
    pub(super) fn asked(&self) -> impl Iterator<Item = u32> {
        self.asked.iter().copied()
    }

    fn set(&mut self, slot: u32, stage: Stage) {
        // What changes is the first one, or among the last ones.
        let is_first = self.posted.front().is_some_and(|posted| posted.slot == slot);
        let posted = if is_first {
            self.posted.front_mut()
        } else {
            self.posted.iter_mut().rev().find(|posted| posted.slot == slot)
        };
        let posted = posted.expect("it was posted");
        let before = std::mem::replace(&mut posted.stage, stage);
        self.waiting -= usize::from(before == Stage::Waiting);
        self.waiting += usize::from(stage == Stage::Waiting);
    }

    /// Notes that the peer is asked for a READ's bytes. Returns the READ's place in the order of those.
    pub(super) fn ask(&mut self, slot: u32) -> u64 {
        self.set(slot, Stage::Asked);
        self.asked.push_back(slot);
        self.answered + self.asked.len() as u64 - 1
    }

    /// Notes that the peer pushes a READ's bytes.
    pub(super) fn promise(&mut self, slot: u32) {
        self.set(slot, Stage::Promised);
    }

    /// Notes that the peer does not push a READ's bytes after all.
    pub(super) fn take_back(&mut self, slot: u32) {
        self.set(slot, Stage::Waiting);
    }

    /// Returns the slot of the READ that the peer answers now, and its place in the order of those that it
    /// was asked for.
    #[inline]
    pub(super) fn answered_now(&self) -> Option<(u32, u64)> {
        Some((*self.asked.front()?, self.answered))
    }

    /// Notes that the bytes of a READ are here.
    pub(super) fn arrived(&mut self, slot: u32) {
        if self.asked.front() == Some(&slot) {
            self.asked.pop_front();
            self.answered += 1;
        }
        self.set(slot, Stage::Here);
    }

    /// Removes the oldest READ if it is done.
    pub(super) fn pop_done(&mut self) -> Option<u32> {
        self.posted.front().filter(|posted| posted.stage == Stage::Here)?;
        self.posted.pop_front().map(|posted| posted.slot)
    }

    /// Removes the oldest READ.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let posted = self.posted.pop_front()?;
        if self.posted.is_empty() {
            self.asked.clear();
            self.waiting = 0;
        }
        Some(posted.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the oldest READ of which the peer does not know.
    fn first(reads: &ReadQueue) -> Option<u32> {
        reads.waiting_from(0).map(|(_, slot)| slot)
    }

    #[test]
    fn reads_are_done_in_the_order_in_which_they_were_posted() {
        let mut reads = ReadQueue::new(4);
        [10, 11, 12, 13].into_iter().for_each(|slot| reads.post(slot));
        assert_eq!((first(&reads), reads.answered_now(), reads.pop_done()), (Some(10), None, None));
        reads.promise(10);
        assert_eq!((reads.ask(11), first(&reads)), (0, Some(12)));
        reads.promise(12);
        assert_eq!((reads.ask(13), first(&reads), reads.answered_now()), (1, None, Some((11, 0))));
        reads.arrived(12);
        reads.arrived(11);
        assert_eq!((reads.pop_done(), reads.answered_now()), (None, Some((13, 1))), "10 comes first");
        // Its bytes were not valid, so it is asked for behind the others.
        reads.take_back(10);
        assert_eq!((first(&reads), reads.ask(10), reads.answered_now()), (Some(10), 2, Some((13, 1))));
        reads.arrived(13);
        assert_eq!((reads.pop_done(), reads.answered_now()), (None, Some((10, 2))));
        reads.arrived(10);
        let done: Vec<u32> = std::iter::from_fn(|| reads.pop_done()).collect();
        assert_eq!(done, [10, 11, 12, 13]);
        reads.begin();
        reads.post(1);
        assert_eq!(reads.ask(1), 0, "a new connection counts anew");
    }

    #[test]
    fn nothing_of_a_queue_that_was_emptied_is_asked_for() {
        let mut reads = ReadQueue::new(4);
        [1, 2, 3].into_iter().for_each(|slot| reads.post(slot));
        reads.ask(1);
        let all: Vec<u32> = std::iter::from_fn(|| reads.pop()).collect();
        assert_eq!((all, first(&reads), reads.answered_now()), (vec![1, 2, 3], None, None));
        reads.begin();
    }
}

//! Replies: which of them have memory, and whose they are.
//!
//! Each reply needs 4 KiB of memory of the receiver, from when its application gives it until the NIC has
//! sent it. That memory is promised to a message when it arrives, so an application's reply never waits for
//! it. A message for which there is none left ends as busy.
//!
//! The peers of a source together have no more promises and replies than they leave to other sources, and a
//! peer has at most so many, and no more than it leaves to others of its source. A session leaves as many
//! promises: what its senders do not take is not its fault. So an application that does not reply, and a host
//! whose senders take nothing, keep their share, and leave some to the next one. A peer with a reply that it
//! has not taken for long is disconnected when little is left.

use crate::index::NONE;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// What a message has of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    None,
    Promised,
    /// The reply is in this slot.
    Given {
        slot: u32,
        bytes: u32,
    },
}

/// The memory of all replies, by slots of 4 KiB.
#[derive(Debug)]
pub(crate) struct Replies {
    per_peer: u32,
    /// Free slots. The last one that came free is used first.
    free: Vec<u32>,
    /// Free slots that are promised.
    promised: u32,
    /// Promises and slots of each peer.
    of_peer: Box<[u32]>,
    /// Promises and slots of the peers of each source.
    of_source: Box<[u32]>,
    /// Source of each peer.
    source_of: Box<[u32]>,
    /// Promises of each session.
    of_session: Box<[u32]>,
    of_message: Box<[Reply]>,
    /// Session that counts what a message has.
    session_of: Box<[u32]>,
    slots: Box<[Slot]>,
}

/// What is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Nothing, or a reply whose message has slices that are still held.
    Unended,
    /// A reply that its peer may take since then.
    Ended { peer: u32, since_ns: u64 },
    /// A reply that is being sent to its peer, which may take it since then.
    Sent { peer: u32, since_ns: u64 },
}

impl Replies {
    /// Creates the tables for so many slots, of which one peer has at most `per_peer`.
    pub fn new(slots: u32, per_peer: u32, (peers, sessions, messages): (u32, u32, u32)) -> Self {
        Self {
            per_peer,
            free: (0..slots).rev().collect(),
            promised: 0,
            of_peer: vec![0; peers as usize].into_boxed_slice(),
            of_source: vec![0; peers as usize].into_boxed_slice(),
            source_of: vec![0; peers as usize].into_boxed_slice(),
            of_session: vec![0; sessions as usize].into_boxed_slice(),
            of_message: vec![Reply::None; messages as usize].into_boxed_slice(),
            session_of: vec![NONE; messages as usize].into_boxed_slice(),
            slots: vec![Slot::Unended; slots as usize].into_boxed_slice(),
        }
    }

    /// Returns whether there is memory for replies at all.
    pub fn are_offered(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Returns how many slots are promised or used.
    pub fn used(&self) -> u32 {
        u32::try_from(self.slots.len() - self.free.len()).unwrap_or(NONE) + self.promised
    }

    fn left(&self) -> u32 {
        u32::try_from(self.free.len()).unwrap_or(NONE) - self.promised
    }

    /// Returns whether little is left.
    pub fn are_short(&self) -> bool {
        self.are_offered() && self.left() as usize * 4 < self.slots.len()
    }

    /// Returns, of the peers that `is_meant` chooses and that could have taken a reply of theirs so long ago,
    /// the one that has most.
    pub fn slowest(&self, now_ns: u64, span_ns: u64, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        let slow = self.slots.iter().filter_map(|slot| match *slot {
            Slot::Ended { peer, since_ns } | Slot::Sent { peer, since_ns } => {
                (now_ns.saturating_sub(since_ns) >= span_ns && is_meant(peer)).then_some(peer)
            }
            Slot::Unended => None,
        });
        slow.max_by_key(|&peer| self.of_peer[peer as usize])
    }

    /// Notes of which source a peer is, by its number. The peer has no promises.
    pub fn join(&mut self, peer: u32, source: u32) {
        self.source_of[peer as usize] = source;
    }

    /// Promises memory for the reply to a peer's message for a session. Returns `false` if the peer, its
    /// source, or the session has its share.
    pub fn promise(&mut self, peer: u32, session: u32, message: u32) -> bool {
        let left = self.left();
        let (own, of_session) = (&mut self.of_peer[peer as usize], &mut self.of_session[session as usize]);
        let of_source = &mut self.of_source[self.source_of[peer as usize] as usize];
        if *of_source >= left || *of_session >= left {
            return false;
        }
        // Another peer of the source could have as many again, and the source would still leave as much.
        let left_to_source = (left - *of_source).div_ceil(2);
        if *own >= self.per_peer.min(left_to_source) {
            return false;
        }
        *own += 1;
        *of_source += 1;
        *of_session += 1;
        self.promised += 1;
        self.session_of[message as usize] = session;
        self.of_message[message as usize] = Reply::Promised;
        true
    }

    /// Returns the slot for the reply to a message. `None`: nothing is promised, because its sender is gone
    /// or heard its end already.
    pub fn give(&mut self, message: u32, bytes: u32) -> Option<u32> {
        if self.of_message[message as usize] != Reply::Promised {
            return None;
        }
        let slot = self.free.pop()?;
        self.promised -= 1;
        self.of_message[message as usize] = Reply::Given { slot, bytes };
        // The application has done its part. What its peer does not take counts for the peer alone.
        self.leave_session(message);
        Some(slot)
    }

    /// Returns whether the message has its reply.
    pub fn has(&self, message: u32) -> bool {
        matches!(self.of_message[message as usize], Reply::Given { .. })
    }

    /// Notes that a message has ended: its peer may take its reply from now on.
    pub fn end(&mut self, peer: u32, message: u32, now_ns: u64) {
        if let Reply::Given { slot, .. } = self.of_message[message as usize] {
            self.slots[slot as usize] = Slot::Ended { peer, since_ns: now_ns };
        }
    }

    /// Forgets the reply to a peer's message, or its promise: nobody will hear it.
    pub fn forget(&mut self, peer: u32, message: u32) {
        match core::mem::replace(&mut self.of_message[message as usize], Reply::None) {
            Reply::None => return,
            Reply::Promised => {
                self.promised -= 1;
                self.leave_session(message);
            }
            Reply::Given { slot, .. } => self.free_slot(slot),
        }
        self.leave_peer(peer);
    }

    fn free_slot(&mut self, slot: u32) {
        self.slots[slot as usize] = Slot::Unended;
        self.free.push(slot);
    }

    fn leave_peer(&mut self, peer: u32) {
        self.of_peer[peer as usize] -= 1;
        self.of_source[self.source_of[peer as usize] as usize] -= 1;
    }

    fn leave_session(&mut self, message: u32) {
        let session = core::mem::replace(&mut self.session_of[message as usize], NONE);
        self.of_session[session as usize] -= 1;
    }

    /// Takes the reply to a message that has ended to send it: its slot, and its bytes. The slot is used
    /// until [`Self::sent`] or [`Self::lose`].
    pub fn send(&mut self, message: u32) -> Option<(u32, u32)> {
        let Reply::Given { slot, bytes } = self.of_message[message as usize] else { return None };
        let Slot::Ended { peer, since_ns } = self.slots[slot as usize] else { return None };
        self.of_message[message as usize] = Reply::None;
        self.slots[slot as usize] = Slot::Sent { peer, since_ns };
        Some((slot, bytes))
    }

    /// Frees a slot whose reply the NIC has sent to the peer. One that is not the peer's stays as it is.
    pub fn sent(&mut self, peer: u32, slot: u32) {
        let sent_to = match self.slots.get(slot as usize) {
            Some(&Slot::Sent { peer, .. }) => peer,
            _ => NONE,
        };
        if sent_to == peer {
            self.free_slot(slot);
            self.leave_peer(peer);
        }
    }

    /// Frees the slots whose replies were being sent to a peer that is gone.
    pub fn lose(&mut self, peer: u32) {
        if self.of_peer[peer as usize] == 0 {
            return;
        }
        for slot in 0..u32::try_from(self.slots.len()).unwrap_or(NONE) {
            self.sent(peer, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each peer is the only one of its source, and each message of a session of its own.
    fn of_strangers(slots: u32, per_peer: u32, peers: u32) -> Replies {
        let mut replies = Replies::new(slots, per_peer, (peers, 64, 64));
        (0..peers).for_each(|peer| replies.join(peer, peer));
        replies
    }

    /// Has a peer ask for eight promises. Returns how many it has got.
    fn promised(replies: &mut Replies, peer: u32) -> usize {
        let mut messages = peer * 8..peer * 8 + 8;
        messages.by_ref().filter(|&message| replies.promise(peer, message, message)).count()
    }

    #[test]
    fn peers_sources_and_sessions_have_their_shares_and_leave_some_to_the_next_one() {
        let mut replies = of_strangers(16, 6, 8);
        let of_each = [0, 1, 2, 3, 4].map(|peer| promised(&mut replies, peer));
        assert_eq!((of_each, replies.used()), ([4, 3, 3, 2, 1], 13), "a third of what there is, each");
        assert!(replies.are_short());
        (0..8).for_each(|message| replies.forget(0, message));
        assert_eq!((replies.used(), promised(&mut replies, 0)), (9, 2), "of what is left, a third");
        let mut replies = of_strangers(64, 3, 1);
        assert_eq!(promised(&mut replies, 0), 3, "no more than a peer may have");
        // However many peers a source has, half is left to others.
        let mut replies = of_strangers(16, 16, 8);
        (0..6).for_each(|peer| replies.join(peer, 0));
        let of_each = [0, 1, 2, 3, 4, 5].map(|peer| promised(&mut replies, peer));
        assert_eq!((of_each, replies.used()), ([4, 2, 1, 1, 0, 0], 8));
        assert!(!replies.are_short());
        assert_eq!(promised(&mut replies, 6), 2);
        let mut replies = of_strangers(8, 8, 8);
        let of_one = (0..8).filter(|&message| replies.promise(message, 0, message)).count();
        let of_next = (0..8).filter(|&message| replies.promise(message, 1, 8 + message)).count();
        assert_eq!((of_one, of_next), (4, 2), "whoever the senders are");
        // Replies that were given and that nobody takes are no promises of the session any more.
        assert!((0..4).all(|message| replies.give(message, 1).is_some()));
        assert!(replies.promise(5, 0, 4) && !replies.promise(6, 1, 10));
    }

    #[test]
    fn who_takes_each_of_its_replies_late_is_slow() {
        let mut replies = of_strangers(16, 4, 4);
        // Two of each are given. The first peer's second one waits for a slice that is held, and the next
        // peer's are under way.
        for (peer, since_ns) in [(0, 100), (1, 200), (2, 300)] {
            for message in [peer * 8, peer * 8 + 1] {
                assert!(replies.promise(peer, message, message) && replies.give(message, 1).is_some());
                if message != 1 {
                    replies.end(peer, message, since_ns);
                }
            }
        }
        let (slot, _) = replies.send(8).unwrap();
        assert!(replies.promise(2, 18, 18));
        let slowest = |replies: &Replies, now_ns| replies.slowest(now_ns, 1000, |peer| peer != 3);
        assert_eq!([1099, 1100, 1199].map(|now_ns| slowest(&replies, now_ns)), [None, Some(0), Some(0)]);
        assert_eq!(slowest(&replies, 1300), Some(2), "it has most");
        assert_eq!(replies.slowest(1300, 1000, |peer| peer == 1), Some(1));
        replies.sent(1, slot);
        replies.forget(1, 9);
        replies.forget(0, 0);
        assert_eq!(replies.slowest(9999, 1000, |peer| peer < 2), None, "what is held is not late");
        assert_eq!(replies.send(1), None, "nor sent");
    }

    #[test]
    fn each_slot_comes_back_once() {
        let mut replies = Replies::new(8, 4, (2, 1, 8));
        (0..2).for_each(|peer| replies.join(peer, 1 - peer));
        assert!(replies.promise(0, 0, 1) && replies.promise(1, 0, 2));
        assert_eq!(replies.give(3, 10), None, "it was promised nothing");
        let slot = replies.give(1, 10).unwrap();
        assert_eq!(replies.give(1, 10), None, "it has one");
        assert!(replies.has(1) && !replies.has(2));
        assert_eq!(replies.send(1), None, "its message has slices");
        replies.end(0, 1, 0);
        replies.end(1, 2, 0);
        assert_eq!(replies.send(1), Some((slot, 10)));
        assert_eq!((replies.send(1), replies.send(2), replies.used()), (None, None, 2));
        replies.sent(1, slot);
        assert_eq!(replies.used(), 2, "it is another's");
        replies.sent(0, slot);
        replies.sent(0, slot);
        assert_eq!(replies.used(), 1);
        let slot = replies.give(2, 4096).unwrap();
        replies.end(1, 2, 0);
        replies.send(2);
        replies.lose(0);
        assert_eq!(replies.used(), 1, "it is another's");
        replies.lose(1);
        replies.sent(1, slot);
        let counted = (&*replies.of_peer, &*replies.of_source, &*replies.of_session);
        assert_eq!(counted, (&[0, 0][..], &[0, 0][..], &[0][..]));
        assert_eq!((replies.used(), replies.free.len()), (0, 8));
    }
}

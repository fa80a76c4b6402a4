//! Replies: which of them have memory, and whose they are.
//!
//! Each reply needs 4 KiB of memory of the receiver, from when its application gives it until the NIC has
//! sent it. That memory is promised to a message when it arrives, so an application's reply never waits for
//! it. A message for which there is none left ends as busy.
//!
//! A peer has at most so many promises and replies, and no more than it leaves to others. So has a session,
//! of promises: what its senders do not take is not its fault. So an application that does not reply, and a
//! peer that takes nothing, keep their share, and leave some to the next one. A peer that takes nothing is
//! disconnected when little is left.

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
    /// Promises of each session.
    of_session: Box<[u32]>,
    of_message: Box<[Reply]>,
    /// Session that counts what a message has.
    session_of: Box<[u32]>,
    /// Peer to which a slot's reply is being sent.
    sent_to: Box<[u32]>,
}

impl Replies {
    /// Creates the tables for so many slots, of which one peer has at most `per_peer`.
    pub fn new(slots: u32, per_peer: u32, (peers, sessions, messages): (u32, u32, u32)) -> Self {
        Self {
            per_peer,
            free: (0..slots).rev().collect(),
            promised: 0,
            of_peer: vec![0; peers as usize].into_boxed_slice(),
            of_session: vec![0; sessions as usize].into_boxed_slice(),
            of_message: vec![Reply::None; messages as usize].into_boxed_slice(),
            session_of: vec![NONE; messages as usize].into_boxed_slice(),
            sent_to: vec![NONE; slots as usize].into_boxed_slice(),
        }
    }

    /// Returns whether there is memory for replies at all.
    pub fn are_offered(&self) -> bool {
        !self.sent_to.is_empty()
    }

    /// Returns how many slots are promised or used.
    pub fn used(&self) -> u32 {
        u32::try_from(self.sent_to.len() - self.free.len()).unwrap_or(NONE) + self.promised
    }

    fn left(&self) -> u32 {
        u32::try_from(self.free.len()).unwrap_or(NONE) - self.promised
    }

    /// Returns whether little is left.
    pub fn are_short(&self) -> bool {
        self.are_offered() && self.left() as usize * 4 < self.sent_to.len()
    }

    /// Returns, of the peers that `is_meant` chooses, the one that has most.
    pub fn peer_with_most(&self, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        let peers = (0u32..).zip(self.of_peer.iter()).filter(|&(peer, &own)| own > 0 && is_meant(peer));
        peers.max_by_key(|(_, own)| **own).map(|(peer, _)| peer)
    }

    /// Promises memory for the reply to a peer's message for a session. Returns `false` if the peer, or the
    /// session, has its share.
    pub fn promise(&mut self, peer: u32, session: u32, message: u32) -> bool {
        let left = self.left();
        let (own, of_session) = (&mut self.of_peer[peer as usize], &mut self.of_session[session as usize]);
        if *own >= self.per_peer.min(left) || *of_session >= left {
            return false;
        }
        *own += 1;
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

    /// Forgets the reply to a peer's message, or its promise: nobody will hear it.
    pub fn forget(&mut self, peer: u32, message: u32) {
        match core::mem::replace(&mut self.of_message[message as usize], Reply::None) {
            Reply::None => return,
            Reply::Promised => {
                self.promised -= 1;
                self.leave_session(message);
            }
            Reply::Given { slot, .. } => self.free.push(slot),
        }
        self.of_peer[peer as usize] -= 1;
    }

    fn leave_session(&mut self, message: u32) {
        let session = core::mem::replace(&mut self.session_of[message as usize], NONE);
        self.of_session[session as usize] -= 1;
    }

    /// Takes the reply to a peer's message to send it: its slot, and its bytes. The slot is used until
    /// [`Self::sent`] or [`Self::lose`].
    pub fn send(&mut self, peer: u32, message: u32) -> Option<(u32, u32)> {
        let Reply::Given { slot, bytes } = self.of_message[message as usize] else { return None };
        self.of_message[message as usize] = Reply::None;
        self.sent_to[slot as usize] = peer;
        Some((slot, bytes))
    }

    /// Frees a slot whose reply the NIC has sent to the peer. One that is not the peer's stays as it is.
    pub fn sent(&mut self, peer: u32, slot: u32) {
        if self.sent_to.get(slot as usize) == Some(&peer) {
            self.sent_to[slot as usize] = NONE;
            self.of_peer[peer as usize] -= 1;
            self.free.push(slot);
        }
    }

    /// Frees the slots whose replies were being sent to a peer that is gone.
    pub fn lose(&mut self, peer: u32) {
        if self.of_peer[peer as usize] == 0 {
            return;
        }
        for slot in 0..u32::try_from(self.sent_to.len()).unwrap_or(NONE) {
            self.sent(peer, slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_and_sessions_have_their_shares_and_leave_some_to_the_next_one() {
        // Each message is of a session of its own, but for the last ones.
        let mut replies = Replies::new(8, 6, (4, 32, 32));
        let promised = |replies: &mut Replies, peer: u32| {
            let mut messages = peer * 8..peer * 8 + 8;
            messages.by_ref().filter(|&message| replies.promise(peer, message, message)).count()
        };
        assert_eq!(promised(&mut replies, 0), 4, "half");
        assert_eq!(promised(&mut replies, 1), 2, "half of the rest");
        assert!(!replies.are_short());
        assert_eq!(promised(&mut replies, 2), 1);
        assert!(replies.are_short());
        assert_eq!(promised(&mut replies, 3), 1);
        assert_eq!((replies.used(), replies.peer_with_most(|peer| peer != 0)), (8, Some(1)));
        (0..8).for_each(|message| replies.forget(0, message));
        assert_eq!((replies.used(), promised(&mut replies, 3)), (4, 2), "it has as many as it leaves");
        let mut replies = Replies::new(32, 3, (1, 32, 32));
        assert_eq!(promised(&mut replies, 0), 3, "no more than a peer may have");
        let mut replies = Replies::new(8, 8, (8, 2, 16));
        let of_one = (0..8).filter(|&message| replies.promise(message, 0, message)).count();
        let of_next = (0..8).filter(|&message| replies.promise(message, 1, 8 + message)).count();
        assert_eq!((of_one, of_next), (4, 2), "whoever the senders are");
        // Replies that were given and that nobody takes are no promises of the session any more.
        assert!((0..4).all(|message| replies.give(message, 1).is_some()));
        assert!(replies.promise(5, 0, 4) && !replies.promise(6, 1, 10));
    }

    #[test]
    fn each_slot_comes_back_once() {
        let mut replies = Replies::new(4, 4, (2, 1, 8));
        assert!(replies.promise(0, 0, 1) && replies.promise(1, 0, 2));
        assert_eq!(replies.give(3, 10), None, "it was promised nothing");
        let slot = replies.give(1, 10).unwrap();
        assert_eq!(replies.give(1, 10), None, "it has one");
        assert!(replies.has(1) && !replies.has(2));
        assert_eq!(replies.send(0, 1), Some((slot, 10)));
        assert_eq!((replies.send(0, 1), replies.send(1, 2), replies.used()), (None, None, 2));
        replies.sent(1, slot);
        assert_eq!(replies.used(), 2, "it is another's");
        replies.sent(0, slot);
        replies.sent(0, slot);
        assert_eq!(replies.used(), 1);
        let slot = replies.give(2, 4096).unwrap();
        replies.send(1, 2);
        replies.lose(0);
        assert_eq!(replies.used(), 1, "it is another's");
        replies.lose(1);
        replies.sent(1, slot);
        let counted = (&*replies.of_peer, &*replies.of_session);
        assert_eq!((replies.used(), replies.free.len(), counted), (0, 4, (&[0, 0][..], &[0][..])));
    }
}

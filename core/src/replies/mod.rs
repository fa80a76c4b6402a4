//! Replies: which of them have memory, and whose they are.
//!
//! Each reply needs 4 KiB of memory of the receiver, from when its application gives it until the NIC has
//! sent it. That memory is promised to a message when it arrives, so an application's reply never waits for
//! it. A message for which there is none left ends as busy.
//!
//! An application that does not reply keeps promises. A peer that takes nothing keeps replies of messages
//! that have ended. Each of them keeps a share and leaves all others together as much:
//!
//! * an application's session has no more promises than are left for others;
//! * the peers of one source that send to one application have no more, promises and replies, than they leave
//!   to other sources of what that session may still have;
//! * a peer has no more than it leaves to others like it, and at most a number that is configured.
//!
//! Where little is left, or a peer was refused a promise for what peers keep, a slow peer is disconnected:
//! one of its replies was posted to its connection long ago, or has waited for that for even longer.

mod groups;

use crate::effects::SourceId;
use crate::index::NONE;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use groups::Groups;
use jet_wire::message::hello::AppName;

/// Nanoseconds for which a SEND with a reply is under way, after which its peer is slow. READs do not take
/// that long.
const SEND_NS_MAX: u64 = 5_000_000_000;
/// Nanoseconds for which a reply waits for other SENDs to its peer, after which the peer is slow. One that
/// takes a reply every 100 ms, and has 256 of them waiting, is not.
const WAIT_NS_MAX: u64 = 30_000_000_000;

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
    /// Promises and slots of each group of peers.
    of_group: Box<[u32]>,
    groups: Groups,
    /// Promises of each session, and replies whose messages have not ended.
    of_session: Box<[u32]>,
    of_message: Box<[Reply]>,
    /// Session that counts what a message has.
    session_of: Box<[u32]>,
    slots: Box<[Slot]>,
    /// Whether a promise was refused, since somebody asked, for what peers keep.
    was_refused: bool,
    /// Slow replies of each peer, while they are counted.
    slow_of_peer: Box<[u32]>,
}

/// What is in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Nothing, or a reply whose message has not ended: slices of it are held, say.
    Unended,
    /// A reply of a message that ended then, and which waits until it is sent to its peer.
    Ended { peer: u32, since_ns: u64 },
    /// A reply that was posted to its peer's connection then.
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
            of_group: vec![0; peers as usize].into_boxed_slice(),
            groups: Groups::new(peers),
            was_refused: false,
            slow_of_peer: vec![0; peers as usize].into_boxed_slice(),
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

    /// Returns whether slow peers keep memory that others want: little is left, or a promise was refused for
    /// what peers keep, since the last call.
    pub fn are_wanted(&mut self) -> bool {
        let were_refused = core::mem::take(&mut self.was_refused);
        were_refused || (self.are_offered() && self.left() as usize * 4 < self.slots.len())
    }

    /// Returns, of the peers that `is_meant` chooses, the one that has most replies that it is slow to take.
    pub fn slowest(&mut self, now_ns: u64, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        self.slow_of_peer.fill(0);
        let mut slowest = None;
        let mut most = 0;
        for slot in &self.slots {
            let (peer, since_ns, limit_ns) = match *slot {
                Slot::Unended => continue,
                Slot::Ended { peer, since_ns } => (peer, since_ns, WAIT_NS_MAX),
                Slot::Sent { peer, since_ns } => (peer, since_ns, SEND_NS_MAX),
            };
            if now_ns.saturating_sub(since_ns) < limit_ns || !is_meant(peer) {
                continue;
            }
            let slow = &mut self.slow_of_peer[peer as usize];
            *slow += 1;
            if *slow > most {
                (most, slowest) = (*slow, Some(peer));
            }
        }
        slowest
    }

    /// Notes where a peer comes from, and for which application.
    pub fn join(&mut self, peer: u32, source: SourceId, app: AppName) {
        debug_assert_eq!(self.of_peer[peer as usize], 0, "who had its place before left nothing");
        self.groups.join(peer, source, app);
    }

    /// Notes that a peer's place is free. Its promises and replies were forgotten.
    pub fn leave(&mut self, peer: u32) {
        debug_assert_eq!(self.of_peer[peer as usize], 0, "all of it was forgotten");
        self.groups.leave(peer);
    }

    /// Promises memory for the reply to a peer's message for a session. Returns `false` if the peer, its
    /// group, or the session has its share.
    pub fn promise(&mut self, peer: u32, session: u32, message: u32) -> bool {
        let left = self.left();
        let Some(group) = self.groups.of(peer) else { return false };
        let (of_peer, of_session) =
            (&mut self.of_peer[peer as usize], &mut self.of_session[session as usize]);
        let of_group = &mut self.of_group[group];
        // Each may have half of what is left to those that it is one of, and all others together as much.
        let left_to_session = left.saturating_sub(*of_session);
        let left_to_group = left_to_session.div_ceil(2).saturating_sub(*of_group);
        let left_to_peer = left_to_group.div_ceil(2).min(self.per_peer);
        if *of_peer >= left_to_peer {
            // Neither an application that does not reply, nor a sender's own number, is the fault of peers.
            self.was_refused |= left_to_session > 0 && *of_peer < self.per_peer;
            return false;
        }
        *of_peer += 1;
        *of_group += 1;
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
        Some(slot)
    }

    /// Returns whether the message has its reply.
    pub fn has(&self, message: u32) -> bool {
        matches!(self.of_message[message as usize], Reply::Given { .. })
    }

    /// Notes that a message has ended: its peer may have its reply from now on. What the peer does not take
    /// counts for the peer alone.
    pub fn end(&mut self, peer: u32, message: u32, now_ns: u64) {
        if let Reply::Given { slot, .. } = self.of_message[message as usize] {
            self.slots[slot as usize] = Slot::Ended { peer, since_ns: now_ns };
            self.leave_session(message);
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
            Reply::Given { slot, .. } => {
                if self.slots[slot as usize] == Slot::Unended {
                    self.leave_session(message);
                }
                self.free_slot(slot);
            }
        }
        self.leave_peer(peer);
    }

    fn free_slot(&mut self, slot: u32) {
        self.slots[slot as usize] = Slot::Unended;
        self.free.push(slot);
    }

    fn leave_peer(&mut self, peer: u32) {
        self.of_peer[peer as usize] -= 1;
        if let Some(group) = self.groups.of(peer) {
            self.of_group[group] -= 1;
        }
    }

    fn leave_session(&mut self, message: u32) {
        let session = core::mem::replace(&mut self.session_of[message as usize], NONE);
        self.of_session[session as usize] -= 1;
    }

    /// Takes the reply to a message that has ended to send it: its slot, and its bytes. The slot is used
    /// until [`Self::sent`] or [`Self::lose`].
    pub fn send(&mut self, message: u32, now_ns: u64) -> Option<(u32, u32)> {
        let Reply::Given { slot, bytes } = self.of_message[message as usize] else { return None };
        let Slot::Ended { peer, .. } = self.slots[slot as usize] else { return None };
        self.of_message[message as usize] = Reply::None;
        self.slots[slot as usize] = Slot::Sent { peer, since_ns: now_ns };
        Some((slot, bytes))
    }

    /// Frees a slot whose reply the NIC has sent to the peer. One that is not the peer's stays as it is.
    pub fn sent(&mut self, peer: u32, slot: u32) {
        if matches!(self.slots.get(slot as usize), Some(&Slot::Sent { peer: to, .. }) if to == peer) {
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

    const SECOND_NS: u64 = 1_000_000_000;

    /// Lets peers in, of so many for each source, that send to one application.
    fn of_sources(slots: u32, per_peer: u32, peers: u32, of_each: u32) -> Replies {
        let mut replies = Replies::new(slots, per_peer, (peers, 64, 128));
        let app = AppName::new("store").unwrap();
        (0..peers).for_each(|peer| replies.join(peer, SourceId((peer / of_each).into()), app));
        replies
    }

    /// Has a peer ask for 16 promises of a session. Returns how many it has got.
    fn promised(replies: &mut Replies, peer: u32, session: u32) -> usize {
        let mut messages = peer * 16..peer * 16 + 16;
        messages.by_ref().filter(|&message| replies.promise(peer, session, message)).count()
    }

    /// Has the application reply to all that it was asked, so that it is for the peers to take that.
    fn end_all(replies: &mut Replies) {
        for message in 0..128 {
            if replies.give(message, 1).is_some() {
                replies.end(message / 16, message, 0);
            }
        }
    }

    #[test]
    fn an_application_that_does_not_reply_leaves_half_to_others_for_the_same_sources() {
        let mut replies = Replies::new(64, 64, (8, 2, 128));
        for peer in 0..8 {
            let app = AppName::new(if peer < 7 { "hung" } else { "good" }).unwrap();
            replies.join(peer, SourceId(u128::from(peer) % 7), app);
        }
        let of_hung: usize = (0..7).map(|peer| promised(&mut replies, peer, 0)).sum();
        assert!((24..=32).contains(&of_hung), "{of_hung}");
        assert!(promised(&mut replies, 7, 1) >= 4);
    }

    #[test]
    fn a_source_leaves_others_as_much_of_an_application_and_a_peer_others_of_its_source() {
        let mut replies = of_sources(64, 64, 8, 4);
        let of_each = [0, 1, 2, 3].map(|peer| promised(&mut replies, peer, 0));
        assert_eq!(of_each, [8, 4, 2, 1]);
        assert_eq!(promised(&mut replies, 4, 0), 5, "of the next source");
        // So it is with what was given, and that nobody takes.
        let mut replies = of_sources(64, 64, 8, 4);
        for peer in 0..4 {
            promised(&mut replies, peer, 0);
            end_all(&mut replies);
        }
        assert_eq!(replies.of_session[0], 0);
        assert!((16..=22).contains(&replies.used()), "{}", replies.used());
        assert!(promised(&mut replies, 4, 0) >= 4);
        let mut replies = of_sources(64, 3, 1, 1);
        assert_eq!(promised(&mut replies, 0, 0), 3, "no more than a peer may have");
    }

    #[test]
    fn a_reply_whose_message_has_slices_counts_for_its_application() {
        let mut replies = of_sources(64, 64, 8, 1);
        for _ in 0..4 {
            for peer in 0..8 {
                promised(&mut replies, peer, 0);
            }
            for message in 0..128 {
                replies.give(message, 1);
            }
        }
        assert!(replies.used() <= 32, "it leaves half: {}", replies.used());
        assert!(replies.of_session[0] == replies.used());
        (0..8).for_each(|peer| (0..16).for_each(|at| replies.forget(peer, peer * 16 + at)));
        assert_eq!((replies.used(), replies.of_session[0], replies.promised), (0, 0, 0));
    }

    #[test]
    fn who_is_slow_with_most_replies_is_slowest() {
        let mut replies = of_sources(64, 8, 4, 1);
        for peer in 0..3 {
            for message in [peer * 16, peer * 16 + 1, peer * 16 + 2] {
                assert!(replies.promise(peer, 0, message) && replies.give(message, 1).is_some());
            }
        }
        // The first has one under way, the next one two, and the last one three that wait.
        replies.end(0, 0, 0);
        let (slot, _) = replies.send(0, SECOND_NS).unwrap();
        for message in [16, 17] {
            replies.end(1, message, 0);
            replies.send(message, 2 * SECOND_NS).unwrap();
        }
        (32..35).for_each(|message| replies.end(2, message, 0));
        let at = |replies: &mut Replies, seconds| replies.slowest(seconds * SECOND_NS, |peer| peer != 3);
        assert_eq!([5, 6, 7].map(|seconds| at(&mut replies, seconds)), [None, Some(0), Some(1)]);
        assert_eq!([29, 30].map(|seconds| at(&mut replies, seconds)), [Some(1), Some(2)]);
        assert_eq!(replies.slowest(60 * SECOND_NS, |peer| peer == 0), Some(0));
        replies.sent(0, slot);
        assert_eq!(replies.slowest(60 * SECOND_NS, |peer| peer == 0), None, "what is held is not late");
        assert_eq!(replies.send(1, 0), None, "nor sent");
    }

    #[test]
    fn each_slot_comes_back_once() {
        let mut replies = Replies::new(32, 4, (2, 1, 8));
        let app = AppName::new("store").unwrap();
        (0..2).for_each(|peer| replies.join(peer, SourceId(7), app));
        assert!(replies.promise(0, 0, 1) && replies.promise(1, 0, 2));
        assert_eq!(replies.give(3, 10), None, "it was promised nothing");
        let slot = replies.give(1, 10).unwrap();
        assert_eq!(replies.give(1, 10), None, "it has one");
        assert!(replies.has(1) && !replies.has(2));
        assert_eq!(replies.send(1, 0), None, "its message has slices");
        replies.end(0, 1, 0);
        replies.end(1, 2, 0);
        assert_eq!(replies.send(1, 0), Some((slot, 10)));
        assert_eq!((replies.send(1, 0), replies.send(2, 0), replies.used()), (None, None, 2));
        replies.sent(1, slot);
        assert_eq!(replies.used(), 2, "it is another's");
        replies.sent(0, slot);
        replies.sent(0, slot);
        assert_eq!(replies.used(), 1);
        let slot = replies.give(2, 4096).unwrap();
        replies.end(1, 2, 0);
        replies.send(2, 0);
        replies.lose(0);
        assert_eq!(replies.used(), 1, "it is another's");
        replies.lose(1);
        replies.sent(1, slot);
        let counted = (&*replies.of_peer, &*replies.of_group, &*replies.of_session);
        assert_eq!(counted, (&[0, 0][..], &[0, 0][..], &[0][..]));
        assert_eq!((replies.used(), replies.free.len()), (0, 32));
    }
}

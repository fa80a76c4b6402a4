//! Deferred messages of one class: those whose sessions are suspended, and those that wait behind them.
//!
//! When a session goes on, its deferred messages go back to their queue a few at a time. First go those that
//! had begun to arrive, for they hold slabs. The others go one of each peer in turn, however many a peer has:
//! otherwise a peer that asks for much would fill the session alone, again and again. A peer of which nothing
//! was read before the session was suspended again has not had its turn: it returns to the front.

use crate::index::NONE;
use crate::messages::{MessageList, Messages};
use alloc::boxed::Box;
use alloc::vec;

/// Number that no suspension has.
const NEVER: u64 = 0;

/// One peer's deferred messages of which nothing was read. A peer's messages all go to one session.
#[derive(Clone, Copy, Debug)]
struct PeerLine {
    messages: MessageList,
    /// The last of them that left its class's queue since the session was suspended, and which suspension
    /// that was. The next one that leaves goes behind it.
    last: (u32, u64),
    /// The suspension in which the peer returned to the front of the line, and whether it is among those of
    /// which a message was being read.
    in_front: (u64, bool),
    /// The peers before and after this one in the session's line.
    before: u32,
    after: u32,
}

/// One session's deferred messages.
#[derive(Clone, Copy, Debug)]
struct SessionLine {
    /// Messages that had begun to arrive.
    begun: MessageList,
    /// The last of them, as in [`PeerLine::last`].
    last: (u32, u64),
    /// First and last of the peers that have others.
    peers: (u32, u32),
    /// The last of the peers that returned to the front, and in which suspension: first those of which a
    /// message was being read, then the others.
    front: [(u32, u64); 2],
    /// Messages of all peers.
    len: u32,
    /// Number of the suspension. No two suspensions have the same, whatever their sessions.
    suspension: u64,
}

/// The deferred messages of one class.
#[derive(Debug)]
pub(super) struct Deferred {
    sessions: Box<[SessionLine]>,
    peers: Box<[PeerLine]>,
    /// Number that the next suspension gets.
    next_suspension: u64,
}

impl Deferred {
    /// Makes a table in which nothing is deferred.
    pub fn new(sessions: u32, peers: u32) -> Self {
        let none = (NONE, 0);
        let session = |suspension| SessionLine {
            begun: MessageList::EMPTY,
            last: none,
            peers: (NONE, NONE),
            front: [none; 2],
            len: 0,
            suspension,
        };
        let peer = PeerLine {
            messages: MessageList::EMPTY,
            last: none,
            in_front: (NEVER, false),
            before: NONE,
            after: NONE,
        };
        Self {
            sessions: (1..=u64::from(sessions)).map(session).collect(),
            peers: vec![peer; peers as usize].into_boxed_slice(),
            next_suspension: u64::from(sessions) + 1,
        }
    }

    /// Returns how many messages of a session are deferred.
    #[inline]
    pub fn len(&self, session: u32) -> u32 {
        self.sessions[session as usize].len
    }

    /// Returns whether any message of a session is deferred whose peer is chosen.
    pub fn has_any_of(&self, session: u32, is_chosen: impl Fn(u32) -> bool, messages: &Messages) -> bool {
        let line = &self.sessions[session as usize];
        let listed = |first: u32| (first != NONE).then_some(first);
        let mut begun = core::iter::successors(line.begun.head(), |message| listed(messages[*message].next));
        let mut peers =
            core::iter::successors(listed(line.peers.0), |peer| listed(self.peers[*peer as usize].after));
        begun.any(|message| is_chosen(messages[message].peer)) || peers.any(is_chosen)
    }

    /// Returns how many messages are deferred.
    pub fn all(&self) -> u32 {
        self.sessions.iter().map(|session| session.len).sum()
    }

    /// Notes that a session goes on: what leaves its queue after this belongs to another suspension.
    pub fn resume(&mut self, session: u32) {
        self.sessions[session as usize].suspension = self.next_suspension;
        self.next_suspension += 1;
    }

    /// Returns the present time, counted in sessions that went on.
    #[inline]
    pub fn resumed(&self) -> u64 {
        self.next_suspension
    }

    /// Returns whether a time is after the one at which a session last went on.
    pub fn is_since(&self, resumed: u64, session: u32) -> bool {
        resumed > self.sessions[session as usize].suspension
    }

    /// Adds a request that was never in its queue, behind the others of its peer.
    pub fn push(&mut self, message: u32, messages: &mut Messages) {
        let peer = messages[message].peer;
        self.peers[peer as usize].messages.push(messages, message);
        self.added(message, messages);
    }

    /// Adds a message that was being read, before all others. `has_read`: something was read of its peer
    /// since the session went on.
    pub fn push_running(&mut self, message: u32, has_read: bool, messages: &mut Messages) {
        let (list, last, suspension) = self.place(message, messages);
        list.push_front(messages, message);
        if last.0 == NONE || last.1 != suspension {
            *last = (message, suspension);
        }
        self.returned(message, (has_read, true), messages);
    }

    /// Adds a message that has just left its queue: behind those that left it before since the session was
    /// suspended, and before those that were deferred earlier. `has_read`: something was read of its peer
    /// since the session went on.
    pub fn push_waiting(&mut self, message: u32, has_read: bool, messages: &mut Messages) {
        let (list, last, suspension) = self.place(message, messages);
        match core::mem::replace(last, (message, suspension)) {
            (before, of) if before != NONE && of == suspension => {
                list.insert_after(messages, before, message);
            }
            _ => list.push_front(messages, message),
        }
        self.returned(message, (has_read, false), messages);
    }

    /// Takes one message out.
    pub fn take_one(&mut self, message: u32, messages: &mut Messages) {
        let (list, last, suspension) = self.place(message, messages);
        list.take_one(messages, message);
        if last.0 == message {
            *last = (NONE, suspension);
        }
        self.taken(message, messages);
    }

    /// Takes the first message of the peer that was passed over in the session's present suspension, if there
    /// is one: it returned to the front of the line.
    pub fn take_passed_over(&mut self, session: u32, messages: &mut Messages) -> Option<u32> {
        let SessionLine { peers: (peer, _), suspension, .. } = self.sessions[session as usize];
        if peer == NONE || self.peers[peer as usize].in_front.0 != suspension {
            return None;
        }
        self.take_turn(session, messages)
    }

    /// Takes the first message of the first peer, and puts the peer at the end of the line.
    fn take_turn(&mut self, session: u32, messages: &Messages) -> Option<u32> {
        let peer = self.sessions[session as usize].peers.0;
        if peer == NONE {
            return None;
        }
        let message = self.peers[peer as usize].messages.pop(messages).expect("a listed peer has messages");
        self.sessions[session as usize].len -= 1;
        self.unlist(session, peer);
        self.list(session, peer);
        Some(message)
    }

    /// Takes all messages of a session that is over.
    pub fn take_all(&mut self, session: u32, messages: &mut Messages) -> MessageList {
        self.resume(session);
        self.take_turns(session, u32::MAX, messages)
    }

    /// Takes the first messages of a session, `most` at most: those that had begun, and then one of each peer
    /// in turn.
    pub fn take_turns(&mut self, session: u32, most: u32, messages: &mut Messages) -> MessageList {
        let line = &mut self.sessions[session as usize];
        let mut taken = line.begun.split_front(messages, most);
        line.len -= taken.len();
        while taken.len() < most
            && let Some(message) = self.take_turn(session, messages)
        {
            taken.push(messages, message);
        }
        taken
    }

    /// Returns the list that a message belongs to, what left it last, and the number of the suspension.
    fn place(&mut self, message: u32, messages: &mut Messages) -> (&mut MessageList, &mut (u32, u64), u64) {
        let (session, peer) = (messages[message].session, messages[message].peer);
        let line = &mut self.sessions[session as usize];
        if messages.transfer(message).requested > 0 {
            (&mut line.begun, &mut line.last, line.suspension)
        } else {
            let of_peer = &mut self.peers[peer as usize];
            (&mut of_peer.messages, &mut of_peer.last, line.suspension)
        }
    }

    /// Lists a message that returned. Where its peer has not had its turn, the peer goes to the front: but
    /// not for a message that had begun to arrive, for these go first anyway. Otherwise who has begun many
    /// would begin another one before others begin their first.
    fn returned(&mut self, message: u32, (has_read, was_running): (bool, bool), messages: &mut Messages) {
        if !has_read && messages.transfer(message).requested == 0 {
            self.put_in_front(messages[message].session, messages[message].peer, was_running);
        }
        self.added(message, messages);
    }

    fn added(&mut self, message: u32, messages: &Messages) {
        let (session, peer) = (messages[message].session, messages[message].peer);
        self.sessions[session as usize].len += 1;
        self.list(session, peer);
    }

    fn taken(&mut self, message: u32, messages: &Messages) {
        let (session, peer) = (messages[message].session, messages[message].peer);
        self.sessions[session as usize].len -= 1;
        if self.peers[peer as usize].messages.len() == 0 {
            self.unlist(session, peer);
        }
    }

    fn is_listed(&self, session: u32, peer: u32) -> bool {
        self.sessions[session as usize].peers.0 == peer || self.peers[peer as usize].before != NONE
    }

    /// Puts a peer that has messages at the end of its session's line, if it is not in it.
    fn list(&mut self, session: u32, peer: u32) {
        if self.peers[peer as usize].messages.len() == 0 || self.is_listed(session, peer) {
            return;
        }
        let last = self.sessions[session as usize].peers.1;
        self.list_after(session, last, peer);
    }

    /// Puts a peer that has messages before the others of its session's line, but behind those that were put
    /// there in the same suspension. Peers of which a message was being read had come before those others.
    fn put_in_front(&mut self, session: u32, peer: u32, was_running: bool) {
        let suspension = self.sessions[session as usize].suspension;
        let line = &self.peers[peer as usize];
        let is_there = line.in_front.0 == suspension && (line.in_front.1 || !was_running);
        if line.messages.len() == 0 || is_there {
            return;
        }
        self.unlist(session, peer);
        let front = &mut self.sessions[session as usize].front;
        let [running, waiting] = front.map(|(last, of)| if of == suspension { last } else { NONE });
        let before = if was_running || waiting == NONE { running } else { waiting };
        front[usize::from(!was_running)] = (peer, suspension);
        self.list_after(session, before, peer);
        self.peers[peer as usize].in_front = (suspension, was_running);
    }

    /// Puts a peer that is in no line behind another one; `NONE`: before all others.
    fn list_after(&mut self, session: u32, before: u32, peer: u32) {
        let ends = &mut self.sessions[session as usize].peers;
        let after = if before == NONE {
            core::mem::replace(&mut ends.0, peer)
        } else {
            core::mem::replace(&mut self.peers[before as usize].after, peer)
        };
        if after == NONE {
            ends.1 = peer;
        } else {
            self.peers[after as usize].before = peer;
        }
        let line = &mut self.peers[peer as usize];
        (line.before, line.after) = (before, after);
    }

    /// Takes a peer out of its session's line, if it is in it.
    fn unlist(&mut self, session: u32, peer: u32) {
        if !self.is_listed(session, peer) {
            return;
        }
        let line = &mut self.peers[peer as usize];
        let (before, after) = (line.before, line.after);
        (line.before, line.after, line.in_front) = (NONE, NONE, (NEVER, false));
        let SessionLine { peers: ends, front, .. } = &mut self.sessions[session as usize];
        for (last, _) in front.iter_mut().filter(|(last, _)| *last == peer) {
            // Those before it were put in front, too.
            *last = before;
        }
        if before == NONE {
            ends.0 = after;
        } else {
            self.peers[before as usize].after = after;
        }
        if after == NONE {
            ends.1 = before;
        } else {
            self.peers[after as usize].before = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Adds a message of a peer to a session.
    fn message(messages: &mut Messages, session: u32, peer: u32, requested: u64) -> u32 {
        let message = messages.add().unwrap();
        (messages[message].session, messages[message].peer) = (session, peer);
        messages.transfer(message).requested = requested;
        message
    }

    fn take(deferred: &mut Deferred, session: u32, most: u32, messages: &mut Messages) -> Vec<u32> {
        let mut taken = deferred.take_turns(session, most, messages);
        core::iter::from_fn(|| taken.pop(messages)).collect()
    }

    #[test]
    fn who_asks_for_much_does_not_go_before_the_others() {
        let (mut messages, mut deferred) = (Messages::new(32), Deferred::new(1, 3));
        let of = |peer, count, messages: &mut Messages| -> Vec<u32> {
            (0..count).map(|_| message(messages, 0, peer, 0)).collect()
        };
        let (much, two, one) = (of(0, 10, &mut messages), of(1, 2, &mut messages), of(2, 1, &mut messages));
        much.iter().chain(&two).chain(&one).for_each(|message| deferred.push(*message, &mut messages));
        assert_eq!(take(&mut deferred, 0, 4, &mut messages), [much[0], two[0], one[0], much[1]]);
        // The turns go on where they stood.
        assert_eq!(take(&mut deferred, 0, 3, &mut messages), [two[1], much[2], much[3]]);
        assert_eq!((deferred.len(0), deferred.all()), (6, 6));
    }

    #[test]
    fn who_was_passed_over_keeps_its_place_however_often_the_session_is_suspended() {
        let (mut messages, mut deferred) = (Messages::new(32), Deferred::new(1, 4));
        for peer in 0..3 {
            for _ in 0..8 {
                let added = message(&mut messages, 0, peer, 0);
                deferred.push(added, &mut messages);
            }
        }
        let alone = message(&mut messages, 0, 3, 0);
        deferred.push(alone, &mut messages);
        // Each time the first one alone is read, and the others are deferred again.
        let mut read = Vec::new();
        for _ in 0..8 {
            deferred.resume(0);
            let mut back = take(&mut deferred, 0, 8, &mut messages).into_iter();
            let first = messages[back.next().unwrap()].peer;
            back.for_each(|other| {
                deferred.push_waiting(other, messages[other].peer == first, &mut messages);
            });
            read.push(first);
        }
        assert_eq!(read, [0, 1, 2, 3, 0, 1, 2, 0], "in turn, with one message or with eight");
    }

    #[test]
    fn what_had_begun_goes_first_whoever_it_is_of() {
        let (mut messages, mut deferred) = (Messages::new(8), Deferred::new(1, 2));
        let new = message(&mut messages, 0, 0, 0);
        let [first, second] = [(); 2].map(|()| message(&mut messages, 0, 1, 4096));
        deferred.push(new, &mut messages);
        deferred.push_waiting(first, true, &mut messages);
        deferred.push_waiting(second, true, &mut messages);
        assert_eq!(take(&mut deferred, 0, 8, &mut messages), [first, second, new]);
    }

    #[test]
    fn what_leaves_the_queue_keeps_its_order_and_goes_before_what_was_there() {
        let (mut messages, mut deferred) = (Messages::new(8), Deferred::new(2, 1));
        let all: Vec<_> = (0..4).map(|_| message(&mut messages, 0, 0, 0)).collect();
        deferred.push(all[3], &mut messages);
        deferred.push_running(all[0], true, &mut messages);
        deferred.push_waiting(all[1], true, &mut messages);
        deferred.push_waiting(all[2], true, &mut messages);
        let mut taken = deferred.take_all(0, &mut messages);
        assert_eq!(core::iter::from_fn(|| taken.pop(&messages)).collect::<Vec<_>>(), all);
        // The peer goes to another session: nothing goes behind what it had in the first one.
        all.iter().for_each(|message| messages[*message].session = 1);
        deferred.push(all[3], &mut messages);
        deferred.push_waiting(all[0], true, &mut messages);
        assert_eq!(take(&mut deferred, 1, 8, &mut messages), [all[0], all[3]]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_comes_twice(
            ops in prop::collection::vec((0..6u8, 0..2u32, 0..4u32, 0..3u32), 1..120),
        ) {
            let (mut messages, mut deferred) = (Messages::new(128), Deferred::new(2, 8));
            let mut there: [Vec<u32>; 2] = [Vec::new(), Vec::new()];
            for (op, session, peer, count) in ops {
                let known = &mut there[session as usize];
                // A peer's messages all go to one session.
                let peer = 2 * peer + session;
                match op {
                    0..=2 => {
                        let added = message(&mut messages, session, peer, u64::from(op > 0 && count == 0));
                        match op {
                            0 => deferred.push(added, &mut messages),
                            1 => deferred.push_running(added, count == 1, &mut messages),
                            _ => deferred.push_waiting(added, count == 1, &mut messages),
                        }
                        known.push(added);
                    }
                    3 if !known.is_empty() => {
                        let taken = known.swap_remove(count as usize % known.len());
                        deferred.take_one(taken, &mut messages);
                    }
                    4 => {
                        deferred.resume(session);
                        for taken in take(&mut deferred, session, count, &mut messages) {
                            let place = known.iter().position(|message| *message == taken);
                            prop_assert!(place.is_some(), "{taken} was not there");
                            known.swap_remove(place.unwrap());
                        }
                    }
                    _ => {}
                }
                prop_assert_eq!(deferred.len(session) as usize, there[session as usize].len());
            }
            for session in [0, 1] {
                let mut rest = take(&mut deferred, session, u32::MAX, &mut messages);
                rest.sort_unstable();
                there[session as usize].sort_unstable();
                prop_assert_eq!(&rest, &there[session as usize]);
            }
        }
    }
}

//! Records of large messages: how many requests a peer and a session may have.
//!
//! Records are few, and a message has one until its end. The peers of one session could have them all, and
//! then other sessions' requests would be refused. So a session has at most as many as are left to the
//! others, and a peer at most half of what is left. What is left shrinks as it is used: one
//! session gets half of the records, each of two a third, and there are always some for a newcomer. A peer
//! without any request may have one as long as there are records.

use crate::index::NONE;
use alloc::boxed::Box;
use alloc::vec;

/// Requests that a peer may have, whatever is left.
const PEER_REQUESTS_MIN: u32 = 4;

/// Requests for large messages that have no end yet, by peer and by session.
#[derive(Debug)]
pub(super) struct Requests {
    of_peers: Box<[OfPeer]>,
    /// Requests that a peer may have, and messages that it may take back at once.
    per_peer: u32,
    of_sessions: Box<[u32]>,
    /// Neighbours of each record among the requests of its peer.
    neighbours: Box<[Neighbours]>,
}

/// The requests of one peer, in the order in which they came.
#[derive(Clone, Copy, Debug)]
struct OfPeer {
    count: u32,
    /// Messages that the peer may still take back: one for each request of whose end it may not have heard.
    cancels_left: u32,
    oldest: u32,
    newest: u32,
}

#[derive(Clone, Copy, Debug)]
struct Neighbours {
    older: u32,
    newer: u32,
}

impl OfPeer {
    const NONE: Self = Self { count: 0, cancels_left: 0, oldest: NONE, newest: NONE };
}

impl Requests {
    /// Creates the requests of so many peers, each with `per_peer` of them at most, and sessions, for records
    /// below `messages`.
    pub fn new(peers: u32, per_peer: u32, sessions: u32, messages: u32) -> Self {
        let alone = Neighbours { older: NONE, newer: NONE };
        Self {
            of_peers: vec![OfPeer::NONE; peers as usize].into_boxed_slice(),
            per_peer,
            of_sessions: vec![0; sessions as usize].into_boxed_slice(),
            neighbours: vec![alone; messages as usize].into_boxed_slice(),
        }
    }

    /// Returns the peer's requests that have no end yet.
    #[inline]
    pub fn of_peer(&self, peer: u32) -> u32 {
        self.of_peers[peer as usize].count
    }

    /// Counts that the peer takes a message back. Returns `false` if it takes back more than it may have
    /// requests. A peer that keeps to its limit never has more requests without an end that it knows, and not
    /// taken back, than it has left here: a request adds one to both, unless both are at the limit.
    pub fn use_cancel(&mut self, peer: u32) -> bool {
        let left = &mut self.of_peers[peer as usize].cancels_left;
        let may = *left > 0;
        *left = left.saturating_sub(1);
        may
    }

    /// Returns the peer's oldest request that is the one looked for. It looks at no more than a peer may
    /// have.
    pub fn find(&self, peer: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let mut message = self.of_peers[peer as usize].oldest;
        while message != NONE {
            if is_it(message) {
                return Some(message);
            }
            message = self.neighbours[message as usize].newer;
        }
        None
    }

    /// Returns the session's requests that have no end yet.
    pub fn of_session(&self, session: u32) -> u32 {
        self.of_sessions[session as usize]
    }

    /// Returns whether the peer may have another request for this session. `left`: records that are left for
    /// large messages.
    #[inline]
    pub fn may_begin(&self, peer: u32, session: u32, left: u32) -> bool {
        let of_peer = self.of_peer(peer);
        if of_peer == 0 {
            return left > 0;
        }
        let of_session = self.of_sessions.get(session as usize).copied().unwrap_or(0);
        of_session < left && of_peer < (left / 2).max(PEER_REQUESTS_MIN)
    }

    /// Counts a request. `session`: `NONE` if it is for no session.
    #[inline]
    pub fn begin(&mut self, message: u32, peer: u32, session: u32) {
        let of_peer = &mut self.of_peers[peer as usize];
        of_peer.count += 1;
        of_peer.cancels_left = (of_peer.cancels_left + 1).min(self.per_peer);
        let older = core::mem::replace(&mut of_peer.newest, message);
        if older == NONE {
            of_peer.oldest = message;
        } else {
            self.neighbours[older as usize].newer = message;
        }
        self.neighbours[message as usize] = Neighbours { older, newer: NONE };
        if session != NONE {
            self.of_sessions[session as usize] += 1;
        }
    }

    /// Counts the end of one of the peer's requests.
    #[inline]
    pub fn end(&mut self, message: u32, peer: u32) {
        let Neighbours { older, newer } = self.neighbours[message as usize];
        let of_peer = &mut self.of_peers[peer as usize];
        of_peer.count -= 1;
        if older == NONE {
            of_peer.oldest = newer;
        } else {
            self.neighbours[older as usize].newer = newer;
        }
        if newer == NONE {
            of_peer.newest = older;
        } else {
            self.neighbours[newer as usize].older = older;
        }
    }

    /// Counts that a session has one request less: the request ended, or the session did.
    #[inline]
    pub fn leave_session(&mut self, session: u32) {
        self.of_sessions[session as usize] -= 1;
    }

    /// Forgets the requests of a peer that is gone.
    pub fn forget_peer(&mut self, peer: u32) {
        self.of_peers[peer as usize] = OfPeer::NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Has peers ask in turns for one session until none of `records` is given any more. Returns how many
    /// each has.
    fn asked_in_turns(peers: u32, records: u32) -> [u32; 3] {
        let mut requests = Requests::new(3, 64, 1, records);
        let mut left = records;
        loop {
            let before = left;
            for peer in 0..peers {
                if requests.may_begin(peer, 0, left) {
                    left -= 1;
                    requests.begin(left, peer, 0);
                }
            }
            if left == before {
                return [0, 1, 2].map(|peer| requests.of_peer(peer));
            }
        }
    }

    #[test]
    fn one_peer_has_half_of_what_is_left_and_a_session_all_of_it() {
        // Each of them has half as many as are left then, and all together no more than are left.
        assert_eq!(asked_in_turns(1, 96), [32, 0, 0]);
        assert_eq!(asked_in_turns(2, 96), [24, 24, 0]);
        assert_eq!(asked_in_turns(3, 96), [16, 16, 16]);
        assert_eq!(asked_in_turns(1, 7), [4, 0, 0], "a few are for anybody, up to the session's");
    }

    #[test]
    fn who_has_none_may_have_the_last_one() {
        let mut requests = Requests::new(2, 64, 1, 10);
        (0..10).for_each(|message| requests.begin(message, 0, 0));
        assert!(!requests.may_begin(0, 0, 1) && requests.may_begin(1, 0, 1));
        assert!(!requests.may_begin(1, 0, 0));
    }

    proptest! {
        #[test]
        fn a_peers_requests_are_found_in_the_order_in_which_they_came(
            steps in prop::collection::vec((any::<bool>(), 0u32..2, 0usize..8), 0..200),
        ) {
            let mut requests = Requests::new(2, 64, 1, 8);
            let mut model = [Vec::new(), Vec::new()];
            for (begins, peer, which) in steps {
                let free = (0..8).find(|message| model.iter().all(|of_peer| !of_peer.contains(message)));
                let of_peer = &mut model[peer as usize];
                match free {
                    Some(message) if begins => {
                        requests.begin(message, peer, 0);
                        of_peer.push(message);
                    }
                    _ if which < of_peer.len() => requests.end(of_peer.remove(which), peer),
                    _ => {}
                }
                for (peer, of_peer) in (0..).zip(&model) {
                    let found = core::cell::RefCell::new(Vec::new());
                    let none = requests.find(peer, |message| {
                        found.borrow_mut().push(message);
                        false
                    });
                    prop_assert_eq!((none, &*found.borrow()), (None, of_peer));
                    prop_assert_eq!(requests.of_peer(peer) as usize, of_peer.len());
                    let last = requests.find(peer, |message| Some(&message) == of_peer.last());
                    prop_assert_eq!(last.as_ref(), of_peer.last());
                }
            }
        }
    }
}

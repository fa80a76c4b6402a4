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
    of_peers: Box<[u32]>,
    of_sessions: Box<[u32]>,
}

impl Requests {
    pub fn new(peers: u32, sessions: u32) -> Self {
        let zeros = |count: u32| vec![0; count as usize].into_boxed_slice();
        Self { of_peers: zeros(peers), of_sessions: zeros(sessions) }
    }

    /// Returns the peer's requests that have no end yet.
    #[inline]
    pub fn of_peer(&self, peer: u32) -> u32 {
        self.of_peers[peer as usize]
    }

    /// Returns the session's requests that have no end yet.
    pub fn of_session(&self, session: u32) -> u32 {
        self.of_sessions[session as usize]
    }

    /// Returns whether the peer may have another request for this session. `left`: records that are left for
    /// large messages.
    #[inline]
    pub fn may_begin(&self, peer: u32, session: u32, left: u32) -> bool {
        let of_peer = self.of_peers[peer as usize];
        if of_peer == 0 {
            return left > 0;
        }
        let of_session = self.of_sessions.get(session as usize).copied().unwrap_or(0);
        of_session < left && of_peer < (left / 2).max(PEER_REQUESTS_MIN)
    }

    /// Counts a request. `session`: `NONE` if it is for no session.
    #[inline]
    pub fn begin(&mut self, peer: u32, session: u32) {
        self.of_peers[peer as usize] += 1;
        if session != NONE {
            self.of_sessions[session as usize] += 1;
        }
    }

    /// Counts the end of one of the peer's requests.
    #[inline]
    pub fn end(&mut self, peer: u32) {
        self.of_peers[peer as usize] -= 1;
    }

    /// Counts that a session has one request less: the request ended, or the session did.
    #[inline]
    pub fn leave_session(&mut self, session: u32) {
        self.of_sessions[session as usize] -= 1;
    }

    /// Forgets the requests of a peer that is gone.
    pub fn forget_peer(&mut self, peer: u32) {
        self.of_peers[peer as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has peers ask in turns for one session until none of `records` is given any more. Returns how many
    /// each has.
    fn asked_in_turns(peers: u32, records: u32) -> [u32; 3] {
        let mut requests = Requests::new(3, 1);
        let mut left = records;
        loop {
            let before = left;
            for peer in 0..peers {
                if requests.may_begin(peer, 0, left) {
                    requests.begin(peer, 0);
                    left -= 1;
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
        let mut requests = Requests::new(2, 1);
        (0..10).for_each(|_| requests.begin(0, 0));
        assert!(!requests.may_begin(0, 0, 1) && requests.may_begin(1, 0, 1));
        assert!(!requests.may_begin(1, 0, 0));
    }
}

//! Turns of the peers of one class. Peers take turns, however many messages each of them has: the turns are
//! of equal bytes (deficit round robin). Within its turn a peer's messages go one after the other.
//!
//! A peer that cannot use its turn now keeps it, and those behind it go on. If it lost its turn instead, the
//! turns would come round with each event, and somebody could be passed over each time that there is room for
//! it. Only where very many cannot use theirs, they go behind the others, but for one of each session
//! ([`super::passed_over`]).

mod ring;

use crate::index::NONE;
use crate::messages::{MessageList, Messages};
use alloc::boxed::Box;
use alloc::vec;
pub(super) use ring::{Place, Ring};

/// One peer's messages of a class.
#[derive(Clone, Copy, Debug)]
struct PeerQueue {
    /// Messages that wait for admission.
    waiting: MessageList,
    /// Messages that are being read, in the order of their turns.
    running: MessageList,
    /// Session that the messages go to: it is one for all of a peer's.
    session: u32,
    /// Bytes that the peer may still have read in its turn.
    deficit_bytes: u32,
    /// Time of the last READ, counted in sessions that went on ([`super::deferred::Deferred::resumed`]).
    last_read: u64,
    /// Time of the last READ, or when the peer joined.
    read_ns: u64,
}

/// The messages of one class, by peer.
#[derive(Debug)]
pub(super) struct ClassQueue {
    peers: Box<[PeerQueue]>,
    /// Peers with messages that wait for admission. A peer may be listed that has none any more, or is out of
    /// turn: it is dropped when it comes first.
    admissions: Ring,
    /// Of these, the peers of which no message of the class is being read. They go first. As in `admissions`,
    /// some of them may have to be dropped.
    newcomers: Ring,
    /// Peers with messages that are being read. As in `admissions`, some of them may have to be dropped.
    turns: Ring,
    /// Messages that wait for admission.
    waiting: u32,
    /// Messages that are being read, and have something left to read.
    running: u32,
    /// Time since when the class has had something to read and was granted nothing.
    pub since_ns: u64,
}

impl ClassQueue {
    pub fn new(peers: u32) -> Self {
        let empty = PeerQueue {
            waiting: MessageList::EMPTY,
            running: MessageList::EMPTY,
            session: NONE,
            deficit_bytes: 0,
            last_read: 0,
            read_ns: 0,
        };
        Self {
            peers: vec![empty; peers as usize].into_boxed_slice(),
            admissions: Ring::new(peers),
            newcomers: Ring::new(peers),
            turns: Ring::new(peers),
            waiting: 0,
            running: 0,
            since_ns: 0,
        }
    }

    /// Returns the number of messages that wait for admission.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Returns whether the class has something to read. Peers out of turn may have it.
    #[inline]
    pub fn has_messages(&self) -> bool {
        (self.turns.len() > 0 && self.running > 0) || self.waiting > 0
    }

    /// Returns whether any message waits for admission, or has something left to read.
    #[inline]
    pub fn has_unread(&self) -> bool {
        self.waiting + self.running > 0
    }

    /// Returns whether the peer has messages that wait for admission, or have something left to read.
    #[inline]
    pub fn has_messages_of(&self, peer: u32) -> bool {
        let queue = &self.peers[peer as usize];
        queue.waiting.len() > 0 || queue.running.len() > 0
    }

    /// Returns how many messages of the peer are being read, and have something left to read.
    #[inline]
    pub fn running_of(&self, peer: u32) -> u32 {
        self.peers[peer as usize].running.len()
    }

    /// Notes that a message comes. If it is the only one, the class waits from now on.
    #[inline]
    pub fn wait_from(&mut self, now_ns: u64) {
        if !self.has_unread() {
            self.since_ns = now_ns;
        }
    }

    /// Returns how many peers are in the list of those with messages being read.
    #[inline]
    pub fn turns(&self) -> u32 {
        self.turns.len()
    }

    /// Returns whether a peer has its turn, or waits for an admission. `is_out` says which peers are out of
    /// turn.
    #[inline]
    pub fn has_head(&mut self, is_out: impl Fn(u32) -> bool) -> bool {
        self.has_unread()
            && (self.next_turn(&is_out).is_some()
                || Self::first(&mut self.admissions, &self.peers, is_out).is_some())
    }

    /// Returns the peer whose turn it is.
    #[inline]
    pub fn next_turn(&mut self, is_out: impl Fn(u32) -> bool) -> Option<u32> {
        self.turn_at(Place::FRONT, is_out)
    }

    /// Returns the peer whose turn it is behind those that keep theirs: the first one behind a place.
    #[inline]
    pub fn turn_at(&mut self, place: Place, is_out: impl Fn(u32) -> bool) -> Option<u32> {
        loop {
            let peer = self.turns.at(place)?;
            if self.peers[peer as usize].running.len() > 0 && !is_out(peer) {
                return Some(peer);
            }
            self.turns.take(place);
        }
    }

    /// Returns the peer whose next message is to be admitted. `is_new` says of which peers no message of the
    /// class is being read.
    #[inline]
    pub fn next_admission(
        &mut self,
        is_out: impl Fn(u32) -> bool,
        is_new: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        Self::first(&mut self.newcomers, &self.peers, |peer| is_out(peer) || !is_new(peer))
            .or_else(|| Self::first(&mut self.admissions, &self.peers, is_out))
    }

    /// Returns the first peer of a list that has a message to admit. Peers before it are dropped.
    #[inline]
    fn first(list: &mut Ring, peers: &[PeerQueue], is_dropped: impl Fn(u32) -> bool) -> Option<u32> {
        loop {
            let peer = list.head()?;
            if peers[peer as usize].waiting.len() > 0 && !is_dropped(peer) {
                return Some(peer);
            }
            list.pop();
        }
    }

    /// Returns the peer's message that waits first.
    #[inline]
    pub fn first_waiting(&self, peer: u32) -> Option<u32> {
        self.peers[peer as usize].waiting.head()
    }

    /// Returns the peer's message that is read next.
    #[inline]
    pub fn first_running(&self, peer: u32) -> Option<u32> {
        self.peers[peer as usize].running.head()
    }

    /// Lists the peer among those that take turns, as far as it has messages. `is_new`: no message of the
    /// class is being read of it.
    #[inline]
    pub fn offer(&mut self, peer: u32, is_new: bool) {
        let queue = &self.peers[peer as usize];
        let is_running = queue.running.len() > 0;
        if queue.waiting.len() > 0 {
            self.expect(peer, is_new);
        }
        if is_running {
            self.turns.push(peer);
        }
    }

    /// Lists the peer among those with messages that wait for admission. The caller adds one at once.
    #[inline]
    pub fn expect(&mut self, peer: u32, is_new: bool) {
        self.admissions.push(peer);
        if is_new {
            self.newcomers.push(peer);
        }
    }

    /// Puts a message behind those of its peer that wait. The caller offers the peer.
    #[inline]
    pub fn push_waiting(&mut self, message: u32, messages: &mut Messages) {
        let (peer, session) = (messages[message].peer, messages[message].session);
        let queue = &mut self.peers[peer as usize];
        queue.session = session;
        queue.waiting.push(messages, message);
        self.waiting += 1;
    }

    /// Puts a message before those of its peer that wait. The caller offers the peer.
    #[inline]
    pub fn push_waiting_first(&mut self, message: u32, messages: &mut Messages) {
        let (peer, session) = (messages[message].peer, messages[message].session);
        let queue = &mut self.peers[peer as usize];
        queue.session = session;
        queue.waiting.push_front(messages, message);
        self.waiting += 1;
    }

    /// Takes the peer's first waiting message. The next peer's message is admitted then.
    #[inline]
    pub fn pop_waiting(&mut self, peer: u32, messages: &Messages) -> Option<u32> {
        let waiting = &mut self.peers[peer as usize].waiting;
        let message = waiting.pop(messages)?;
        let has_more = waiting.len() > 0;
        self.waiting -= 1;
        if self.waiting == 0 {
            self.empty_admissions();
        } else if self.admissions.head() == Some(peer) {
            self.admissions.pop();
            if has_more {
                self.admissions.push(peer);
            }
        }
        Some(message)
    }

    /// Takes the peer, whose next message was to be admitted, out of those that wait for admissions until it
    /// is offered again.
    #[inline]
    pub fn put_off_admission(&mut self, peer: u32) {
        for list in [&mut self.newcomers, &mut self.admissions] {
            if list.head() == Some(peer) {
                list.pop();
            }
        }
    }

    /// Takes a message out of those that wait.
    #[inline]
    pub fn take_waiting(&mut self, message: u32, messages: &mut Messages) {
        let peer = messages[message].peer;
        self.peers[peer as usize].waiting.take_one(messages, message);
        self.waiting -= 1;
        if self.waiting == 0 {
            self.empty_admissions();
        }
    }

    /// Drops all peers from the lists of those with messages that wait for admission, once none waits.
    #[inline]
    fn empty_admissions(&mut self) {
        while self.admissions.pop().is_some() {}
        while self.newcomers.pop().is_some() {}
    }

    /// Begins to read a message. The caller offers the peer.
    #[inline]
    pub fn push_running(&mut self, message: u32, messages: &mut Messages) {
        let (peer, session) = (messages[message].peer, messages[message].session);
        let queue = &mut self.peers[peer as usize];
        queue.session = session;
        queue.running.push(messages, message);
        self.running += 1;
    }

    /// Takes a message out of those being read.
    #[inline]
    pub fn take_running(&mut self, message: u32, messages: &mut Messages) {
        let peer = messages[message].peer;
        self.peers[peer as usize].running.take_one(messages, message);
        self.running -= 1;
    }

    /// Returns the place behind a peer that keeps its turn.
    #[inline]
    pub fn keep_turn(&self, place: Place) -> Place {
        self.turns.behind(place)
    }

    /// Moves the peers before a place behind all others. `stays` says of a peer and its session whether the
    /// peer stays in front.
    pub fn move_behind_others(&mut self, place: Place, stays: impl Fn(u32, u32) -> bool) {
        let peers = &self.peers;
        self.turns.move_to_end(place, |peer| stays(peer, peers[peer as usize].session));
    }

    /// Gives the next turn to a peer, for a fragment. The class has waited since `since_ns` for it.
    pub fn give_turn(&mut self, peer: u32, fragment_bytes: u32, since_ns: u64) {
        self.turns.remove(peer);
        self.turns.insert(Place::FRONT, peer);
        self.allow(peer, fragment_bytes);
        self.since_ns = self.since_ns.min(since_ns);
    }

    /// Puts a peer before the others of its session that take turns, for a fragment.
    pub fn put_before_its_session(&mut self, peer: u32, fragment_bytes: u32) {
        let session = self.peers[peer as usize].session;
        self.turns.remove(peer);
        let mut place = Place::FRONT;
        while let Some(other) = self.turns.at(place)
            && self.peers[other as usize].session != session
        {
            place = self.turns.behind(place);
        }
        self.turns.insert(place, peer);
        self.allow(peer, fragment_bytes);
    }

    /// Lets a peer have a fragment read in its next turn.
    fn allow(&mut self, peer: u32, fragment_bytes: u32) {
        let queue = &mut self.peers[peer as usize];
        queue.deficit_bytes = queue.deficit_bytes.max(fragment_bytes);
    }

    /// Returns how many messages of the peer wait for admission, and the session that they go to.
    pub fn waiting_of(&self, peer: u32) -> (u32, u32) {
        let queue = &self.peers[peer as usize];
        (queue.session, queue.waiting.len())
    }

    /// Returns the session that the peer's messages go to.
    #[inline]
    pub fn session_of(&self, peer: u32) -> u32 {
        self.peers[peer as usize].session
    }

    /// Begins anew with a peer's number. Who comes anew was not read longest ago.
    pub fn join(&mut self, now_ns: u64, peer: u32) {
        let queue = &mut self.peers[peer as usize];
        (queue.last_read, queue.read_ns) = (0, now_ns);
    }

    /// Returns whether the peer behind a place may have so many bytes read in its turn. If not, its turn is
    /// over, and it may have a fragment more in its next one. A peer that is alone always may.
    #[inline]
    pub fn may_use(&mut self, place: Place, bytes: u32, fragment_bytes: u32) -> bool {
        let Some(peer) = self.turns.at(place) else { return false };
        let queue = &mut self.peers[peer as usize];
        if queue.deficit_bytes >= bytes || self.turns.len() == 1 {
            return true;
        }
        queue.deficit_bytes += fragment_bytes;
        self.turns.take(place);
        self.turns.push(peer);
        false
    }

    /// Returns when a READ of the peer was last posted, counted in sessions that went on.
    pub fn last_read(&self, peer: u32) -> u64 {
        self.peers[peer as usize].last_read
    }

    /// Returns when a READ of the peer was last posted, or when the peer joined.
    pub fn read_ns(&self, peer: u32) -> u64 {
        self.peers[peer as usize].read_ns
    }

    /// Counts bytes that the peer has read in its turn. `resumed`: the time, counted in sessions that went
    /// on.
    #[inline]
    pub fn used(&mut self, peer: u32, bytes: u32, now_ns: u64, resumed: u64) {
        let queue = &mut self.peers[peer as usize];
        (queue.last_read, queue.read_ns) = (resumed, now_ns);
        queue.deficit_bytes = queue.deficit_bytes.saturating_sub(bytes);
        if queue.running.len() == 0 {
            // A peer without anything to read saves nothing up for later.
            queue.deficit_bytes = 0;
            if self.turns.head() == Some(peer) {
                self.turns.pop();
            }
        }
        self.since_ns = now_ns;
    }
}

#[cfg(test)]
impl ClassQueue {
    /// Checks the counts against the lists, and that each peer with messages has its turns. `is_out`: whether
    /// a peer is out of turn.
    pub fn check(&self, is_out: impl Fn(u32) -> bool) {
        let sum = |list: fn(&PeerQueue) -> &MessageList| self.peers.iter().map(|peer| list(peer).len()).sum();
        assert_eq!((self.waiting, self.running), (sum(|peer| &peer.waiting), sum(|peer| &peer.running)));
        for (peer, queue) in (0u32..).zip(&self.peers).filter(|(peer, _)| !is_out(*peer)) {
            // A peer that was put off is offered again when the last of what is being read is posted.
            let is_listed = self.admissions.has(peer) || queue.running.len() > 0;
            assert!(queue.waiting.len() == 0 || is_listed, "{peer} waits and is in no list");
            assert!(queue.running.len() == 0 || self.turns.has(peer), "{peer} is read and has no turns");
        }
    }
}

#[cfg(test)]
mod tests;

//! Counts of the messages that are being read, by peer: how many there are, and their footprint.
//!
//! Three kinds of messages are counted apart, so that they hold nobody up. The messages of a peer that is out
//! of turn do not count against the concurrency window, for they wait for their own peer. The messages of a
//! slow peer have no footprint beyond what lies in the pool, for little of them comes at a time. A message
//! that is too long to be collected has a footprint, but no other message waits for its end: it does not
//! count against the concurrency window, and is no reason to wait for room.

use super::shares::Standing;
use crate::config::CLASSES_MAX;
use alloc::boxed::Box;
use alloc::vec;

/// The reason why a peer is out of turn: its messages are in no list of those that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Out {
    /// One of its own READs has to end first, or its connection is not established.
    Own,
    /// One of the READs of slow peers has to end first.
    Slow,
}

/// A peer's messages that are being read.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    out: Option<Out>,
    is_slow: bool,
    /// Number of the messages, by class.
    messages: [u32; CLASSES_MAX],
    /// Number of those that are not long, by class.
    short: [u32; CLASSES_MAX],
    /// Their footprint, by class.
    footprint_bytes: [u64; CLASSES_MAX],
    /// Bytes of their READs in the READ share, in flight or being checked.
    in_pool_bytes: u64,
}

impl Peer {
    /// Returns whether the peer's footprint counts.
    #[inline]
    fn has_footprint(&self) -> bool {
        !self.is_slow && self.out != Some(Out::Slow)
    }
}

/// Messages whose footprint counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counted {
    /// Number of those that are not long, by class.
    short: [u32; CLASSES_MAX],
    footprint_bytes: [u64; CLASSES_MAX],
    in_pool_bytes: u64,
}

/// The messages that are being read.
#[derive(Debug)]
pub(super) struct Reading {
    peers: Box<[Peer]>,
    messages: u32,
    /// Messages that are not long, of peers that are not out of turn, by class.
    in_turn: [u32; CLASSES_MAX],
    counted: Counted,
}

impl Reading {
    pub fn new(peers: u32) -> Self {
        Self {
            peers: vec![Peer::default(); peers as usize].into_boxed_slice(),
            messages: 0,
            in_turn: [0; CLASSES_MAX],
            counted: Counted::default(),
        }
    }

    /// Begins the counts of a peer that was let in.
    pub fn join(&mut self, peer: u32) {
        let state = &mut self.peers[peer as usize];
        debug_assert_eq!(state.messages, [0; CLASSES_MAX], "peer {peer} had a predecessor");
        debug_assert_eq!(state.in_pool_bytes, 0, "peer {peer} had a predecessor");
        *state = Peer::default();
    }

    /// Returns the number of messages that are being read.
    #[inline]
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// Returns the number of messages of the class and more urgent ones that count against the concurrency
    /// window: those being read that are not long, of peers that are not out of turn. Messages of lower
    /// classes hold up no others.
    #[inline]
    pub fn in_turn(&self, class: usize) -> u32 {
        self.in_turn[..=class].iter().sum()
    }

    /// Returns whether any message of the class is being read whose footprint counts, and which will end soon
    /// enough to wait for it.
    #[inline]
    pub fn has_counted(&self, class: usize) -> bool {
        self.counted.short[class] > 0
    }

    /// Returns the footprint of the messages of the class and more urgent ones that are being read.
    #[inline]
    pub fn footprint_bytes(&self, class: usize) -> u64 {
        self.counted.footprint_bytes[..=class].iter().sum()
    }

    /// Returns the footprint of a peer's messages that are being read, and the lowest class of these. 0 where
    /// it counts already, or would not count in turn.
    pub fn uncounted_footprint(&self, peer: u32) -> (u64, usize) {
        let state = &self.peers[peer as usize];
        let lowest = state.messages.iter().rposition(|&messages| messages > 0).unwrap_or(0);
        if state.is_slow || state.has_footprint() {
            (0, lowest)
        } else {
            (state.footprint_bytes.iter().sum(), lowest)
        }
    }

    /// Returns the bytes of the READs of messages whose footprint counts, as far as they take up the READ
    /// share: the footprint has these, too. READs into escape memory take nothing up there, and those of
    /// messages that are deferred, or that take escape memory, are in no footprint.
    #[inline]
    pub fn counted_bytes(&self) -> u64 {
        self.counted.in_pool_bytes
    }

    /// Returns whether no message of the class is being read of the peer, or only long ones.
    #[inline]
    pub fn is_new(&self, peer: u32, class: usize) -> bool {
        self.peers[peer as usize].short[class] == 0
    }

    /// Returns whether the peer delivers slowly, or not at all.
    #[inline]
    pub fn is_slow(&self, peer: u32) -> bool {
        self.peers[peer as usize].is_slow
    }

    /// Returns whether the peer is out of turn, and why.
    #[inline]
    pub fn out(&self, peer: u32) -> Option<Out> {
        self.peers[peer as usize].out
    }

    #[inline]
    pub fn is_out(&self, peer: u32) -> bool {
        self.out(peer).is_some()
    }

    /// Counts a message of the peer that is read from now on. `is_long`: it is too long to be collected.
    /// `in_pool_bytes`: bytes of its READs in the READ share, in flight or being checked; 0 if it has no
    /// footprint.
    #[inline]
    pub fn begin(
        &mut self,
        peer: u32,
        class: usize,
        is_long: bool,
        (footprint_bytes, in_pool_bytes): (u64, u64),
    ) {
        let state = &mut self.peers[peer as usize];
        let short = u32::from(!is_long);
        self.messages += 1;
        state.messages[class] += 1;
        state.short[class] += short;
        state.footprint_bytes[class] += footprint_bytes;
        state.in_pool_bytes += in_pool_bytes;
        self.in_turn[class] += if state.out.is_none() { short } else { 0 };
        if state.has_footprint() {
            self.counted.short[class] += short;
            self.counted.footprint_bytes[class] += footprint_bytes;
            self.counted.in_pool_bytes += in_pool_bytes;
        }
    }

    /// Counts a message of the peer that is not read any more.
    #[inline]
    pub fn end(
        &mut self,
        peer: u32,
        class: usize,
        is_long: bool,
        (footprint_bytes, in_pool_bytes): (u64, u64),
    ) {
        let state = &mut self.peers[peer as usize];
        let short = u32::from(!is_long);
        self.messages -= 1;
        state.messages[class] -= 1;
        state.short[class] -= short;
        state.footprint_bytes[class] -= footprint_bytes;
        state.in_pool_bytes -= in_pool_bytes;
        self.in_turn[class] -= if state.out.is_none() { short } else { 0 };
        if state.has_footprint() {
            self.counted.short[class] -= short;
            self.counted.footprint_bytes[class] -= footprint_bytes;
            self.counted.in_pool_bytes -= in_pool_bytes;
        }
    }

    /// Counts that the footprint of one of the peer's messages has changed.
    #[inline]
    pub fn change_footprint(&mut self, peer: u32, class: usize, before_bytes: u64, bytes: u64) {
        let state = &mut self.peers[peer as usize];
        let counts = state.has_footprint();
        let of_peer = &mut state.footprint_bytes[class];
        *of_peer = *of_peer - before_bytes + bytes;
        if counts {
            let counted = &mut self.counted.footprint_bytes[class];
            *counted = *counted - before_bytes + bytes;
        }
    }

    /// Counts a READ of one of the messages that was posted, into the READ share.
    #[inline]
    pub fn posted(&mut self, peer: u32, bytes: u64) {
        let state = &mut self.peers[peer as usize];
        state.in_pool_bytes += bytes;
        if state.has_footprint() {
            self.counted.in_pool_bytes += bytes;
        }
    }

    /// Counts that such a READ has left its place in the table.
    #[inline]
    pub fn left(&mut self, peer: u32, bytes: u64) {
        let state = &mut self.peers[peer as usize];
        state.in_pool_bytes -= bytes;
        if state.has_footprint() {
            self.counted.in_pool_bytes -= bytes;
        }
    }

    /// Notes how the peer delivers.
    #[inline]
    pub fn set_standing(&mut self, peer: u32, standing: Standing) {
        let is_slow = matches!(standing, Standing::Slow | Standing::Silent);
        if self.peers[peer as usize].is_slow != is_slow {
            self.change(peer, |state| state.is_slow = is_slow);
        }
    }

    /// Takes a peer out of its turns.
    #[inline]
    pub fn leave_turns(&mut self, peer: u32, out: Out) {
        self.change(peer, |state| state.out = Some(out));
    }

    /// Lets a peer take turns again. Returns whether it was out of turn.
    #[inline]
    pub fn return_to_turns(&mut self, peer: u32) -> bool {
        let was_out = self.is_out(peer);
        if was_out {
            self.change(peer, |state| state.out = None);
        }
        was_out
    }

    /// Changes why a peer is out of turn, or whether it is slow, and with it what counts of the peer.
    #[cold]
    fn change(&mut self, peer: u32, change: impl FnOnce(&mut Peer)) {
        let state = &mut self.peers[peer as usize];
        let (was_out, counted_before) = (state.out.is_some(), state.has_footprint());
        change(state);
        let (is_out, counts) = (state.out.is_some(), state.has_footprint());
        if was_out != is_out {
            for (sum, part) in self.in_turn.iter_mut().zip(state.short) {
                *sum = if is_out { *sum - part } else { *sum + part };
            }
        }
        if counts == counted_before {
            return;
        }
        let apply = |sum: u64, part: u64| if counts { sum + part } else { sum - part };
        for (sum, part) in self.counted.short.iter_mut().zip(state.short) {
            *sum = if counts { *sum + part } else { *sum - part };
        }
        for (sum, part) in self.counted.footprint_bytes.iter_mut().zip(state.footprint_bytes) {
            *sum = apply(*sum, part);
        }
        self.counted.in_pool_bytes = apply(self.counted.in_pool_bytes, state.in_pool_bytes);
    }
}

#[cfg(test)]
impl Reading {
    /// Returns whether the peer's footprint counts.
    pub fn has_footprint(&self, peer: u32) -> bool {
        self.peers[peer as usize].has_footprint()
    }

    /// Checks what is counted of all peers against what is counted of each.
    pub fn check_sums(&self) {
        let mut sums = Self::new(0);
        for peer in &self.peers {
            for class in 0..CLASSES_MAX {
                sums.messages += peer.messages[class];
                if peer.out.is_none() {
                    sums.in_turn[class] += peer.short[class];
                }
                if peer.has_footprint() {
                    sums.counted.short[class] += peer.short[class];
                    sums.counted.footprint_bytes[class] += peer.footprint_bytes[class];
                }
            }
            if peer.has_footprint() {
                sums.counted.in_pool_bytes += peer.in_pool_bytes;
            }
        }
        let all = (sums.messages, sums.in_turn, sums.counted);
        assert_eq!(all, (self.messages, self.in_turn, self.counted));
    }
}

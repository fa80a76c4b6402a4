//! The last sixteenth of READs and bytes in flight: it is kept for those that deliver most.
//!
//! Many peers may each deliver a little, and then freeze with one READ each, all at once. So who has nothing
//! in flight gets one of the last READs only if it has delivered lately a quarter of what the best one has.
//!
//! Others may keep all but these in flight for ever, and who gets nothing delivers less and less. So a peer
//! that has waited for an aging bound is chosen, one at a time, and has no other before its READ has ended.
//! Those that deliver most have none of the last READs before it has had one, as long as a READ is in flight
//! that will end soon. Half of what is kept, and a READ and a fragment of it at least, is not for chosen
//! peers either: they may freeze, too.

use super::{InFlight, Peer, Shares, Standing, Turn};

/// Part of what the best peer delivered lately that others must have delivered for the last READs.
const BEST_PART: u64 = 4;
/// Part of what the best peer delivered that is forgotten with each tick in which anything is delivered.
const BEST_TICKS: u64 = 64;

/// Who may have the last READs.
#[derive(Debug)]
pub(super) struct Last {
    /// The most bytes that a peer delivered lately, as [`Peer::delivered_bytes`].
    best_bytes: u64,
    /// The peer that has waited too long, until its READ has ended.
    chosen: Option<u32>,
}

impl Last {
    pub fn new() -> Self {
        Self { best_bytes: 0, chosen: None }
    }

    /// Notes what a peer has delivered.
    #[inline]
    pub fn delivered(&mut self, peer: &Peer) {
        self.best_bytes = self.best_bytes.max(peer.delivered_bytes);
    }

    /// Notes that a tick has passed in which something was delivered.
    pub fn forget_some(&mut self) {
        self.best_bytes -= self.best_bytes / BEST_TICKS;
    }

    /// Notes that a READ of a peer has ended. A chosen one had none before the one that it was chosen for.
    #[inline]
    pub fn ended_of(&mut self, peer: u32) {
        self.chosen = self.chosen.filter(|&chosen| chosen != peer);
    }

    /// Returns whether the peer has delivered lately a good part of what the best one has.
    #[inline]
    fn has_among_best(&self, peer: &Peer) -> bool {
        peer.delivered_bytes.saturating_mul(BEST_PART) >= self.best_bytes
    }
}

impl Shares {
    /// Returns whether the peer, which is prompt and has nothing in flight, may have a READ beside these.
    pub fn may_have_the_last(&self, peer: u32, all: InFlight) -> bool {
        let is_left = all.bytes + self.limits.fragment_bytes <= self.limits.bytes;
        is_left
            && (!self.limits.are_nearly_full(all, self.limits.fragment_bytes)
                || self.last.has_among_best(&self.peers[peer as usize]))
    }

    /// Decides whether a prompt peer that has nothing in flight may have one of the last READs.
    pub(super) fn turn_for_the_last(&mut self, peer: u32, bytes: u64, now_ns: u64, all: InFlight) -> Turn {
        let state = &mut self.peers[peer as usize];
        if self.last.chosen == Some(peer) {
            if !self.limits.are_full_but_for_the_best(all, bytes) {
                return Turn::Now;
            }
            // Shorter READs than its own would take what it waits for: they are not among the last ones.
            let lacks_bytes = !self.limits.are_full_but_for_the_best(InFlight { bytes: 0, ..all }, bytes);
            let ends_soon = !self.limits.are_full_but_for_the_best(self.unproven.all(), bytes);
            return if lacks_bytes && ends_soon { Turn::Next } else { Turn::AfterAny };
        }
        if !self.last.has_among_best(state) {
            state.refuse(bytes, now_ns);
            return Turn::AfterSlow;
        }
        let chosen_waits = self.last.chosen.is_some_and(|chosen| self.reads(chosen) == 0);
        let ends_soon = all.reads > self.unproven.all().reads;
        if chosen_waits && ends_soon { Turn::AfterAny } else { Turn::Now }
    }

    /// Returns since when a peer has been refused a READ, and has had none; `now_ns` where it was not.
    pub fn refused_since_ns(&self, peer: u32, now_ns: u64) -> u64 {
        self.peers[peer as usize].refused.map_or(now_ns, |refused| refused.since_ns)
    }

    /// Returns whether who has been refused a READ since then waits too long.
    pub fn is_too_long(&self, since_ns: u64, now_ns: u64) -> bool {
        now_ns.saturating_sub(since_ns) > self.limits.aging_ns
    }

    /// Forgets what a peer was refused: it has nothing to read any more.
    #[inline]
    pub fn forget_refusal(&mut self, peer: u32) {
        self.peers[peer as usize].refused = None;
    }

    /// Returns whether a peer was refused a READ, and has had none since.
    #[inline]
    pub fn was_refused(&self, peer: u32) -> bool {
        self.peers[peer as usize].refused.is_some()
    }

    /// Returns the peer that was chosen for one of the last READs, until that READ has ended.
    #[inline]
    pub fn chosen(&self) -> Option<u32> {
        self.last.chosen
    }

    /// Chooses a peer for one of the last READs.
    pub fn choose(&mut self, peer: u32) {
        self.last.chosen = Some(peer);
    }

    /// Takes the choice back unless the peer delivers soon, and `waits` or has its READ in flight.
    pub fn review_chosen(&mut self, waits: impl Fn(u32) -> bool) {
        self.last.chosen = self
            .last
            .chosen
            .filter(|&peer| self.standing(peer) == Standing::Prompt && (self.reads(peer) > 0 || waits(peer)));
    }
}

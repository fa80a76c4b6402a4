//! The share of each peer: how many READs and bytes of one sender may be in flight.
//!
//! READs and bytes in flight are limited for all peers together. A READ that was posted counts until it ends,
//! and a slow peer's takes long. Without shares, one slow peer would soon have all of them. So each peer has
//! a window of bytes, which follows what the peer delivers:
//!
//! * A peer that has delivered nothing yet has one READ at a time, of 64 KiB at most. So it is soon known
//!   whether it delivers, also of a peer behind a slow link.
//! * The window of the others is their rate times [`HORIZON_NS`], or times twice their round trip if that is
//!   longer. It is at least one fragment, so that a slow peer goes on, and at most the configured share, so
//!   that a peer that stops delivering leaves room for the others.
//! * A peer has stalled when a READ is in flight and none ended for [`STALL_NS`], or for four times its usual
//!   span. It is granted no further READ before one ends. Honest pauses cost nothing else.
//!
//! A peer is prompt if its READs usually end within [`PROMPT_NS`] and it has not stalled. The others are
//! slow, or new: they have delivered nothing yet. Many of these together would still hold everything, with
//! one fragment each. So slow peers together have at most five eighths of READs and bytes, new ones as much,
//! and both together three quarters. Of all READs and bytes, the last eighth is for peers that have nothing
//! in flight. So there is always some room for a prompt peer, and it is not for long that one takes it. Slow
//! and new peers leave each other some.
//!
//! A peer whose round trip is longer than half of [`PROMPT_NS`] is slow, however well it delivers: it has an
//! eighth of the READs.
//!
//! The last sixteenth is for those that deliver most, and for who has waited long ([`last`]).
//!
//! Peers that have stalled for long are disconnected where they hold others up. For that a peer's silence
//! counts only while the receiver hears anybody: a READ brings its bytes, a peer's NIC takes a SEND, or
//! somebody says hello. What arrives is answered with SENDs. Where nothing of that happens for [`HEARD_NS`],
//! it may be the receiver's own network that is out, and no peer is to blame; after [`OUTAGE_NS`] of it all
//! peers' times begin anew. It may also be that stalled peers have all READs and nobody says anything: so a
//! silence of [`STALL_NS_LIMIT`] counts in any case.
//!
//! Times are of the clock that stands still while nobody calls the receiver: a peer is not slow because the
//! receiver was.

mod last;
mod limits;

use crate::config::Config;
use crate::index::NONE;
use crate::stats::ShareStats;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use jet_wire::{SLAB_BYTES, planted};
use last::Last;
use limits::Limits;
pub(super) use limits::{InFlight, Unproven};

/// Nanoseconds of a peer's deliveries that may be in flight: a window is what the peer delivers in that time.
/// It is long enough for a host that does something else for a moment.
const HORIZON_NS: u64 = 20_000_000;
/// Nanoseconds of the longest horizon. Twice a peer's round trip counts up to that, so a peer that delays
/// everything has no larger window for it.
const HORIZON_NS_MAX: u64 = 200_000_000;
/// Nanoseconds within which the READs of a prompt peer usually end. A peer that fills its window needs
/// [`HORIZON_NS`] for a READ, for the READs before it are delivered first.
const PROMPT_NS: u64 = 2 * HORIZON_NS;
/// Nanoseconds without a READ's end after which a peer with READs in flight has stalled, at the least.
const STALL_NS: u64 = 2_000_000;
/// Usual spans without a READ's end after which a peer has stalled.
const STALL_SPANS: u64 = 4;
/// Nanoseconds for which a stalled peer is waited for, at the least, while others have something to read.
const STALL_NS_MAX: u64 = 4_000_000_000;
/// The same for a peer that has delivered nothing yet, and was asked for [`FIRST_BYTES`] at most, where such
/// peers have half of everything. It counts also while nobody is heard, for such a peer loses nothing: it has
/// hardly begun.
const SILENT_NS_MAX: u64 = 1_500_000_000;
/// Nanoseconds after which a stalled peer is waited for no longer, however slow it has been, and whether or
/// not anything came from others.
const STALL_NS_LIMIT: u64 = 30_000_000_000;
/// Nanoseconds for which the receiver is sure to hear, after it has heard anybody.
const HEARD_NS: u64 = 1_000_000_000;
/// Nanoseconds in which nobody was heard after which peers that are silent have all of their time again. It
/// is longer than the usual time between two heartbeats, which may be all that is heard.
const OUTAGE_NS: u64 = 10_000_000_000;
/// Nanoseconds of deliveries that a rate is measured over. Older ones count half.
const RATE_NS: u64 = 50_000_000;
/// Bytes at which older deliveries count half, too, so that no product overflows.
const RATE_BYTES: u64 = 1 << 30;

/// Bytes of the READ of a peer that has delivered nothing yet, at most.
const FIRST_BYTES: u64 = 64 << 10;

/// Whether a peer may have another READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The peer may have it.
    Now,
    /// One of the peer's own READs has to end first.
    AfterOwn,
    /// One of the READs of slow peers has to end first.
    AfterSlow,
    /// A READ of any peer has to end first.
    AfterAny,
    /// A READ of any peer has to end first, and the bytes that are free by then are for this one.
    Next,
    /// The peer may have a part of it now, of so many bytes at most.
    Part(u64),
}

/// How a peer delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing has ended yet, and nothing takes long.
    New,
    /// Nothing has ended yet, and its READ takes long.
    Silent,
    /// Its READs end soon.
    Prompt,
    /// Its READs take long, or it has stalled.
    Slow,
}

/// What the end of a READ has changed for its peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// Whether the peer's standing is another.
    pub standing: bool,
    /// Whether its window has grown.
    pub has_grown: bool,
}

/// What a peer has in flight, and what it delivered lately.
#[derive(Clone, Copy, Debug)]
struct Peer {
    reads: u32,
    /// The most READs that the peer's connection takes at once.
    reads_max: u32,
    bytes: u64,
    /// The most bytes that may be in flight.
    window_bytes: u64,
    /// Bytes that were delivered lately, and the nanoseconds in which READs were in flight meanwhile.
    delivered_bytes: u64,
    delivered_ns: u64,
    /// Time up to which the nanoseconds above are counted.
    counted_ns: u64,
    /// Nanoseconds from a READ's posting to its end, as a moving average. 0: none has ended yet.
    usual_ns: u64,
    /// The fewest nanoseconds from a READ's posting to its end.
    round_ns: u64,
    /// Time when the last READ ended, or when the first of those in flight was posted.
    progress_ns: u64,
    /// Nanoseconds since then in which the receiver heard anybody, as of the last tick.
    silent_while_heard_ns: u64,
    /// How the peer delivered when it was last looked at. What it has in flight counts as that of such peers.
    standing: Standing,
    /// Place of the peer in the list of those with READs in flight.
    busy: u32,
    /// Session that the last READ was posted for.
    session: u32,
    /// The READ that the peer was refused for want of READs or bytes, with nothing in flight.
    refused: Option<Refused>,
}

/// A READ that a peer was refused.
#[derive(Clone, Copy, Debug)]
struct Refused {
    since_ns: u64,
    bytes: u64,
}

impl Peer {
    fn new(fragment_bytes: u64) -> Self {
        Self {
            reads: 0,
            reads_max: 0,
            bytes: 0,
            window_bytes: fragment_bytes,
            delivered_bytes: 0,
            delivered_ns: 0,
            counted_ns: 0,
            usual_ns: 0,
            round_ns: u64::MAX,
            progress_ns: 0,
            silent_while_heard_ns: 0,
            standing: Standing::New,
            busy: 0,
            session: NONE,
            refused: None,
        }
    }

    /// Notes that the peer was refused a READ. Returns since when it has been.
    fn refuse(&mut self, bytes: u64, now_ns: u64) -> u64 {
        let refused = self.refused.get_or_insert(Refused { since_ns: now_ns, bytes });
        refused.bytes = refused.bytes.min(bytes);
        refused.since_ns
    }

    /// Returns whether a READ of the peer has ended since it joined.
    #[inline]
    fn is_measured(&self) -> bool {
        self.usual_ns > 0
    }

    /// Returns for how many nanoseconds nothing has come though READs are in flight.
    #[inline]
    fn silent_ns(&self, now_ns: u64) -> u64 {
        if self.reads == 0 { 0 } else { now_ns.saturating_sub(self.progress_ns) }
    }

    #[inline]
    fn has_stalled(&self, now_ns: u64) -> bool {
        self.silent_ns(now_ns) > STALL_NS.max(self.usual_ns.saturating_mul(STALL_SPANS))
    }

    /// Returns whether the peer stalled so long ago that it may be disconnected where such peers have half of
    /// everything.
    fn has_stalled_long(&self, now_ns: u64) -> bool {
        (!self.is_measured() && self.silent_ns(now_ns) > SILENT_NS_MAX) || self.is_silent(now_ns)
    }

    /// Returns whether nothing has come of the peer's READs in flight for long, while anybody was heard.
    fn is_silent(&self, now_ns: u64) -> bool {
        let silent_ns = self.silent_ns(now_ns);
        let span_ns = self.usual_ns.saturating_mul(STALL_SPANS).clamp(STALL_NS_MAX, STALL_NS_LIMIT);
        silent_ns > STALL_NS_LIMIT || (silent_ns > span_ns && self.silent_while_heard_ns > span_ns)
    }

    #[inline]
    fn standing_at(&self, now_ns: u64) -> Standing {
        match (self.is_measured(), self.has_stalled(now_ns) || self.usual_ns > PROMPT_NS) {
            (true, true) => Standing::Slow,
            (true, false) => Standing::Prompt,
            (false, true) => Standing::Silent,
            (false, false) => Standing::New,
        }
    }

    /// Counts bytes that were delivered, and how long that took.
    #[inline]
    fn measure(&mut self, bytes: u64, span_ns: u64, now_ns: u64, limits: &Limits) {
        // At least one, for 0 says that nothing was measured.
        let span_ns = span_ns.max(1);
        self.round_ns = self.round_ns.min(span_ns);
        self.usual_ns = if self.is_measured() { (self.usual_ns * 7 + span_ns).div_ceil(8) } else { span_ns };
        self.delivered_ns += now_ns.saturating_sub(self.counted_ns);
        self.counted_ns = now_ns;
        self.delivered_bytes += bytes;
        while self.delivered_ns > RATE_NS || self.delivered_bytes > RATE_BYTES {
            self.delivered_ns /= 2;
            self.delivered_bytes /= 2;
        }
        let horizon_ns = self.round_ns.saturating_mul(2).clamp(HORIZON_NS, HORIZON_NS_MAX);
        // Most windows are the least or the most that they may be, and so there is seldom a division.
        let (product, span_ns) = (self.delivered_bytes * horizon_ns, self.delivered_ns.max(1));
        self.window_bytes = if product >= limits.peer_bytes.saturating_mul(span_ns) {
            limits.peer_bytes
        } else if product <= limits.fragment_bytes * span_ns {
            limits.fragment_bytes
        } else {
            product / span_ns
        };
    }
}

/// The shares of all peers.
#[derive(Debug)]
pub(super) struct Shares {
    limits: Limits,
    peers: Box<[Peer]>,
    /// Peers with READs in flight.
    busy: Vec<u32>,
    unproven: Unproven,
    last: Last,
    /// Whether a READ brought its bytes since the last tick.
    delivers: bool,
    /// Whether anybody was heard since the last tick.
    hears: bool,
    /// Time of the last tick before which somebody was heard.
    heard_ns: u64,
    /// Time of the last tick.
    ticked_ns: u64,
}

impl Shares {
    pub fn new(config: &Config) -> Self {
        let limits = Limits::new(config);
        Self {
            limits,
            peers: vec![Peer::new(limits.fragment_bytes); config.peers_max as usize].into_boxed_slice(),
            busy: Vec::with_capacity(config.reads_max as usize),
            unproven: Unproven::NOTHING,
            last: Last::new(),
            delivers: false,
            hears: false,
            heard_ns: 0,
            ticked_ns: 0,
        }
    }

    /// Begins the share of a peer that was let in.
    pub fn join(&mut self, peer: u32) {
        self.peers[peer as usize] = Peer::new(self.limits.fragment_bytes);
    }

    pub fn set_reads_max(&mut self, peer: u32, reads_max: u32) {
        self.peers[peer as usize].reads_max = reads_max;
    }

    /// Returns the most bytes that the peer's next READ may have.
    #[inline]
    pub fn read_bytes_max(&self, peer: u32) -> u64 {
        let is_new = self.limits.shared && !self.peers[peer as usize].is_measured();
        if is_new { FIRST_BYTES.min(self.limits.fragment_bytes) } else { self.limits.fragment_bytes }
    }

    /// Returns the READs of the peer in flight.
    #[inline]
    pub fn reads(&self, peer: u32) -> u32 {
        self.peers[peer as usize].reads
    }

    /// Returns the bytes of the peer's READs in flight.
    #[cfg(test)]
    pub fn bytes(&self, peer: u32) -> u64 {
        self.peers[peer as usize].bytes
    }

    /// Returns the most bytes that the peer may have in flight.
    #[inline]
    pub fn window_bytes(&self, peer: u32) -> u64 {
        if self.limits.shared { self.peers[peer as usize].window_bytes } else { self.limits.bytes }
    }

    /// Returns whether another of the peer's messages of a class may be read beside `messages` of them, not
    /// counting those whose last READ was posted: as many may as its window has fragments, and always two, so
    /// that a long one does not hold up a short one. With more, parts of several messages would lie unread in
    /// the pool while the application waits for the rest of the first.
    #[inline]
    pub fn may_read_beside(&self, messages: u32, peer: u32) -> bool {
        messages < self.limits.reads
            && (messages < 2
                || (u64::from(messages) + 1) * self.limits.fragment_bytes <= self.window_bytes(peer))
    }

    /// Returns what peers that are not prompt have in flight.
    #[inline]
    pub fn unproven(&self) -> Unproven {
        self.unproven
    }

    /// Returns whether a peer of the kind may have a fragment beside these, and counts one.
    #[inline]
    pub fn take_of(&self, unproven: &mut Unproven, kind: Standing) -> bool {
        let is_free = !unproven.is_full(kind, self.limits.fragment_bytes, &self.limits);
        if is_free {
            unproven.add(kind, 1, self.limits.fragment_bytes);
        }
        is_free
    }

    /// Returns the READs in flight of peers that are not prompt.
    #[inline]
    pub fn unproven_reads(&self) -> u32 {
        self.unproven.all().reads
    }

    /// Returns whether peers that stalled long ago have half of the READs or bytes, or leave no room for a
    /// fragment.
    pub fn are_stalled_for_long(&self, now_ns: u64) -> bool {
        let stalled = self.busy.iter().map(|&peer| &self.peers[peer as usize]);
        let stalled = stalled.filter(|peer| peer.has_stalled_long(now_ns));
        let all = stalled.fold(InFlight::NOTHING, |all, peer| InFlight {
            reads: all.reads + peer.reads,
            bytes: all.bytes + peer.bytes,
        });
        let leaves_a_fragment = all.bytes + self.limits.fragment_bytes <= self.limits.bytes;
        all.reads >= self.limits.reads.div_ceil(2)
            || all.bytes >= self.limits.bytes.div_ceil(2)
            || (all.bytes > 0 && !leaves_a_fragment)
    }

    /// Decides whether the peer may have a READ of `bytes` bytes now.
    #[inline]
    pub fn turn(&mut self, peer: u32, bytes: u64, now_ns: u64, all: InFlight) -> Turn {
        let limits = &self.limits;
        let state = &self.peers[peer as usize];
        if state.reads >= state.reads_max {
            return Turn::AfterOwn;
        }
        if planted!(UnmeasuredWaits) && !state.is_measured() && all.reads > 0 {
            return Turn::AfterAny;
        }
        let is_left = all.bytes + bytes <= limits.bytes;
        if !limits.shared {
            return if is_left { Turn::Now } else { self.turn_for_bytes(peer, bytes, now_ns, all) };
        }
        let standing = state.standing_at(now_ns);
        let is_prompt = standing == Standing::Prompt;
        let has_own = state.reads > 0;
        if has_own {
            let reads_max = match (state.is_measured(), is_prompt) {
                (false, _) => 1,
                (true, false) => (limits.reads / 8).max(1).min(limits.peer_reads),
                (true, true) => limits.peer_reads,
            };
            if state.reads >= reads_max
                || state.bytes + bytes > state.window_bytes
                || state.has_stalled(now_ns)
            {
                return Turn::AfterOwn;
            }
            if all.reads + limits.reads / 8 >= limits.reads
                || all.bytes + bytes + limits.bytes / 8 > limits.bytes
            {
                return Turn::AfterAny;
            }
        } else if is_prompt && limits.are_nearly_full(all, bytes) {
            let turn = self.turn_for_the_last(peer, bytes, now_ns, all);
            if turn != Turn::Now {
                return turn;
            }
        }
        if self.unproven.is_full(standing, bytes, &self.limits) {
            return if has_own { Turn::AfterOwn } else { Turn::AfterSlow };
        }
        if is_left { Turn::Now } else { self.turn_for_bytes(peer, bytes, now_ns, all) }
    }

    /// Decides what the peer waits for while there are too few bytes for its READ. Shorter READs of others
    /// could take what is free each time, so it comes next where prompt peers have the bytes. For a slow
    /// peer's READ nobody else is to wait: after an aging bound it has a part of its own READ, of what is
    /// free.
    fn turn_for_bytes(&mut self, peer: u32, bytes: u64, now_ns: u64, all: InFlight) -> Turn {
        let state = &mut self.peers[peer as usize];
        if state.reads > 0 {
            return Turn::AfterAny;
        }
        let since_ns = state.refuse(bytes, now_ns);
        if self.unproven.all().bytes + bytes <= self.limits.bytes {
            return Turn::Next;
        }
        let part_bytes = self.limits.bytes.saturating_sub(all.bytes) / SLAB_BYTES as u64 * SLAB_BYTES as u64;
        let has_aged = now_ns.saturating_sub(since_ns) > self.limits.aging_ns;
        if has_aged && part_bytes > 0 { Turn::Part(part_bytes) } else { Turn::AfterAny }
    }

    /// Counts a READ that was posted for a session. Returns whether the peer's standing has changed.
    #[inline]
    pub fn posted(&mut self, (peer, session): (u32, u32), bytes: u64, now_ns: u64) -> bool {
        let has_changed = self.classify(peer, now_ns);
        let state = &mut self.peers[peer as usize];
        state.session = session;
        // A part is not what it was refused.
        state.refused = state.refused.filter(|refused| bytes < refused.bytes);
        if state.reads == 0 {
            (state.progress_ns, state.counted_ns) = (now_ns, now_ns);
            state.busy = u32::try_from(self.busy.len()).expect("fewer than READs");
            self.busy.push(peer);
        }
        state.reads += 1;
        state.bytes += bytes;
        self.unproven.add(state.standing, 1, bytes);
        has_changed
    }

    /// Counts a READ that ended. `posted_ns`: when it was posted. A READ that failed says nothing about the
    /// peer's rate.
    #[inline]
    pub fn ended(&mut self, peer: u32, bytes: u64, posted_ns: u64, now_ns: u64, ok: bool) -> Change {
        let state = &mut self.peers[peer as usize];
        let window_bytes = state.window_bytes;
        state.reads -= 1;
        state.bytes -= bytes;
        self.unproven.subtract(state.standing, 1, bytes);
        if ok {
            (self.hears, self.delivers) = (true, true);
            state.measure(bytes, now_ns.saturating_sub(posted_ns), now_ns, &self.limits);
            self.last.delivered(state);
        }
        state.progress_ns = now_ns;
        let has_grown = state.window_bytes > window_bytes;
        if state.reads == 0 {
            let place = state.busy as usize;
            self.busy.swap_remove(place);
            if let Some(&moved) = self.busy.get(place) {
                self.peers[moved as usize].busy = u32::try_from(place).expect("fewer than READs");
            }
        }
        self.last.ended_of(peer);
        Change { standing: self.classify(peer, now_ns), has_grown: self.limits.shared && has_grown }
    }

    /// Notes that a peer is heard: it said hello, or its NIC took a SEND.
    #[inline]
    pub fn hear(&mut self) {
        self.hears = true;
    }

    /// Notes which peers with READs in flight have stalled, and for how long anybody was heard meanwhile. To
    /// be called now and then: no event says it.
    pub fn tick(&mut self, now_ns: u64) {
        let before_ns = core::mem::replace(&mut self.ticked_ns, now_ns);
        let unheard_ns = now_ns.saturating_sub(self.heard_ns);
        let begins_anew = self.hears && unheard_ns >= OUTAGE_NS;
        if core::mem::take(&mut self.hears) {
            self.heard_ns = now_ns;
        }
        let hears = now_ns.saturating_sub(self.heard_ns) < HEARD_NS;
        let heard_ns = if hears { now_ns.saturating_sub(before_ns).min(HEARD_NS) } else { 0 };
        if core::mem::take(&mut self.delivers) {
            self.last.forget_some();
        }
        for place in 0..self.busy.len() {
            let peer = self.busy[place];
            let state = &mut self.peers[peer as usize];
            let goes_on = state.progress_ns < before_ns && !begins_anew;
            state.silent_while_heard_ns = if goes_on { state.silent_while_heard_ns + heard_ns } else { 0 };
            self.classify(peer, now_ns);
        }
    }

    /// Returns the peers with READs in flight.
    pub fn busy(&self) -> &[u32] {
        &self.busy
    }

    /// Returns how the peer delivered when it was last looked at.
    #[inline]
    pub fn standing(&self, peer: u32) -> Standing {
        if self.limits.shared { self.peers[peer as usize].standing } else { Standing::Prompt }
    }

    /// Notes the peer's standing. Returns whether it has changed.
    #[inline]
    fn classify(&mut self, peer: u32, now_ns: u64) -> bool {
        let state = &self.peers[peer as usize];
        let now = state.standing_at(now_ns);
        let has_changed = now != state.standing;
        if has_changed {
            self.reclassify(peer, now);
        }
        has_changed
    }

    /// Counts what the peer has in flight as that of peers of another standing.
    #[cold]
    fn reclassify(&mut self, peer: u32, standing: Standing) {
        let state = &mut self.peers[peer as usize];
        let before = core::mem::replace(&mut state.standing, standing);
        self.unproven.subtract(before, state.reads, state.bytes);
        self.unproven.add(standing, state.reads, state.bytes);
    }

    /// Returns, of the peers that stalled long ago, the one that stalled first, among those that `is_meant`
    /// chooses.
    pub fn longest_stalled(&self, now_ns: u64, is_meant: impl Fn(u32) -> bool) -> Option<u32> {
        let silent_ns = |&peer: &u32| self.peers[peer as usize].silent_ns(now_ns);
        let is_meant = |&peer: &u32| self.peers[peer as usize].has_stalled_long(now_ns) && is_meant(peer);
        self.busy.iter().copied().filter(is_meant).max_by_key(silent_ns)
    }

    /// Returns whether nothing has come of the peer's READs in flight for long, while anybody was heard. A
    /// peer of which nothing was measured has as much time for its first READ as others have.
    pub fn is_silent(&self, peer: u32, now_ns: u64) -> bool {
        self.peers[peer as usize].is_silent(now_ns)
    }

    /// Returns the session that the peer's last READ was posted for.
    pub fn session_of(&self, peer: u32) -> u32 {
        self.peers[peer as usize].session
    }

    pub fn stats(&self, peer: u32, now_ns: u64) -> ShareStats {
        let state = &self.peers[peer as usize];
        ShareStats {
            reads: state.reads,
            reads_max: state.reads_max,
            in_flight_bytes: state.bytes,
            window_bytes: self.window_bytes(peer),
            bytes_per_ms: state.delivered_bytes * 1_000_000 / state.delivered_ns.max(1),
            usual_ns: state.usual_ns,
            silent_ns: state.silent_ns(now_ns),
            slow: state.standing_at(now_ns) != Standing::Prompt,
        }
    }
}

#[cfg(test)]
mod tests;

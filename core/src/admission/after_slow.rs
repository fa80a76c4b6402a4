//! Peers out of turn because slow or new peers have all that they may have. A peer returns to its turns when
//! one of those READs has ended.
//!
//! There are two kinds of them: new peers, which have delivered nothing yet, and slow ones. New peers return
//! first: most of them are not slow, and the first READ tells. Beside them prompt peers may wait that deliver
//! little, while all READs but the last are in flight: they return before slow ones, once there are others,
//! or when they have waited for an aging bound. Each kind has READs that the other cannot have, so none of
//! them waits for ever. Of one kind the policy says which class goes first, by how long each class has waited
//! here. Within a class it is the slow peer that has waited longest, and in turns the new peer that has
//! waited longest and the one that came last. So hundreds of new peers that answer nothing do not hold up one
//! that comes after them. A peer whose own READ has ended goes behind those that wait.
//!
//! What a new peer has yet to deliver may take up more than the pool has room for. Then it waits for the
//! room, but one returns whenever none has for [`CROWDED_NS`]. What slow peers have yet to deliver does not
//! count.

use super::Admission;
use super::policy::{GrantPolicy, QueueHead};
use super::reading::Out;
use super::shares::{InFlight, Standing, Unproven};
use crate::config::CLASSES_MAX;
use crate::pool::Pool;
use crate::time::TurnTime;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;

/// The kinds of peers, in the order of their return.
const KINDS: [Standing; 3] = [Standing::New, Standing::Prompt, Standing::Slow];
/// Nanoseconds after which a peer returns though the pool has no room for what it has yet to deliver.
const CROWDED_NS: u64 = 10_000_000;

/// Returns the kind among which peers of the standing wait.
#[inline]
fn kind_of(standing: Standing) -> Standing {
    if standing == Standing::Silent { Standing::New } else { standing }
}

/// Peers of one kind and class, in the order in which they came.
#[derive(Debug)]
struct Line {
    /// A peer may be listed that does not wait any more, or waits as one of the other kind by now: it is
    /// dropped when it comes first.
    peers: VecDeque<u32>,
    /// Which peers are in it.
    has: Box<[bool]>,
    /// Whether the one that came last returns next.
    last_is_next: bool,
    /// Time when a peer last returned, or the line began.
    since_ns: u64,
}

impl Line {
    fn new(peers: u32) -> Self {
        Self {
            peers: VecDeque::with_capacity(peers as usize),
            has: vec![false; peers as usize].into_boxed_slice(),
            last_is_next: false,
            since_ns: 0,
        }
    }

    /// Puts a peer at the end, if it is not in the line. Returns whether it was put there.
    fn push(&mut self, peer: u32) -> bool {
        let is_added = !core::mem::replace(&mut self.has[peer as usize], true);
        if is_added {
            self.peers.push_back(peer);
        }
        is_added
    }

    /// Returns the peer that returns next.
    fn next(&self) -> Option<u32> {
        if self.last_is_next { self.peers.back() } else { self.peers.front() }.copied()
    }

    /// Puts the peer that has waited longest at the end.
    fn rotate(&mut self) {
        self.peers.rotate_left(1.min(self.peers.len()));
    }

    /// Takes the peer that returns next out of the line.
    fn pop(&mut self) {
        let peer = if self.last_is_next { self.peers.pop_back() } else { self.peers.pop_front() };
        if let Some(peer) = peer {
            self.has[peer as usize] = false;
        }
    }
}

/// Waiting peers of one kind.
#[derive(Debug)]
struct Waiting {
    /// Peers by class of their messages.
    lines: Box<[Line]>,
    /// Peers in the lines, counted in each of them.
    listed: u32,
    /// Time when a peer of the kind last returned.
    returned_ns: u64,
}

/// The waiting peers.
#[derive(Debug)]
pub(super) struct AfterSlow {
    new: Waiting,
    prompt: Waiting,
    slow: Waiting,
    /// Time of the present turn.
    now_ns: u64,
    /// Whether a peer was sent here in the present turn, for want of READs.
    refused: bool,
}

impl AfterSlow {
    pub fn new(classes: u8, peers: u32) -> Self {
        let lines = || (0..classes).map(|_| Line::new(peers)).collect();
        let waiting = || Waiting { lines: lines(), listed: 0, returned_ns: 0 };
        Self { new: waiting(), prompt: waiting(), slow: waiting(), now_ns: 0, refused: false }
    }

    #[inline]
    fn of(&mut self, kind: Standing) -> &mut Waiting {
        match kind {
            Standing::New | Standing::Silent => &mut self.new,
            Standing::Prompt => &mut self.prompt,
            Standing::Slow => &mut self.slow,
        }
    }

    /// Begins a turn of admission.
    #[inline]
    pub fn begin_turn(&mut self, now_ns: u64) {
        (self.now_ns, self.refused) = (now_ns, false);
    }

    /// Returns whether no peer is listed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.new.listed + self.prompt.listed + self.slow.listed == 0
    }

    /// Returns whether any peer of the kind is listed.
    #[inline]
    pub fn has_any(&self, kind: Standing) -> bool {
        match kind {
            Standing::New | Standing::Silent => self.new.listed > 0,
            Standing::Slow => self.slow.listed > 0,
            Standing::Prompt => self.prompt.listed > 0,
        }
    }

    /// Lists a peer that waits with messages of the class.
    #[inline]
    pub fn push(&mut self, kind: Standing, class: usize, peer: u32) {
        let now_ns = self.now_ns;
        let waiting = self.of(kind);
        let line = &mut waiting.lines[class];
        if line.peers.is_empty() {
            line.since_ns = now_ns;
        }
        waiting.listed += u32::from(line.push(peer));
    }
}

impl<P: GrantPolicy> Admission<P> {
    /// Lets one peer that waits for READs of slow peers take turns again, if there is room for its READ.
    pub(super) fn return_after_slow(
        &mut self,
        unproven: &mut Unproven,
        time: TurnTime,
        reads_in_use: u32,
        pool: &Pool,
    ) -> bool {
        if self.after_slow.refused {
            return false;
        }
        for kind in KINDS {
            if !self.after_slow.has_any(kind) {
                continue;
            }
            let heads = self.heads_after_slow(kind);
            let Some(class) = self.policy.next_class(&heads, time.now_ns) else { continue };
            let line = &self.after_slow.of(kind).lines[usize::from(class)];
            let Some(peer) = line.next() else { continue };
            if !self.may_return(peer, kind, time, pool) {
                continue;
            }
            let all = InFlight { reads: reads_in_use, bytes: self.in_flight_bytes };
            let has_place = match kind {
                Standing::Prompt => self.shares.may_have_the_last(peer, all),
                _ => self.shares.take_of(unproven, kind),
            };
            if !has_place {
                if kind == Standing::Prompt {
                    // One behind it may be among the best by now.
                    self.after_slow.prompt.lines[usize::from(class)].rotate();
                }
                continue;
            }
            let waiting = self.after_slow.of(kind);
            let line = &mut waiting.lines[usize::from(class)];
            line.pop();
            line.last_is_next = kind == Standing::New && !line.last_is_next;
            line.since_ns = time.now_ns;
            waiting.listed -= 1;
            waiting.returned_ns = time.now_ns;
            self.return_to_turns(peer);
            return true;
        }
        false
    }

    /// Chooses a prompt peer that has waited for one of the last READs for an aging bound, unless one is
    /// chosen that has yet to have it.
    pub(super) fn choose_for_the_last(&mut self, time: TurnTime) {
        let (reading, queues) = (&self.reading, &self.queues);
        let waits = |peer| !reading.is_out(peer) && queues.iter().any(|queue| queue.running_of(peer) > 0);
        self.shares.review_chosen(waits);
        if self.shares.chosen().is_some() || self.after_slow.prompt.listed == 0 {
            return;
        }
        // Of the first ones of all classes, who has waited longest. The lines move on, so each of them comes
        // first at some time.
        let heads = self.heads_after_slow(Standing::Prompt);
        let waiting = heads.iter().flatten().filter_map(|head| {
            let class = usize::from(head.class);
            let peer = self.after_slow.prompt.lines[class].next()?;
            Some((self.shares.refused_since_ns(peer, time.stall_free_ns), class, peer))
        });
        let Some((since_ns, class, peer)) = waiting.min() else { return };
        if self.shares.is_too_long(since_ns, time.stall_free_ns) {
            self.after_slow.prompt.lines[class].pop();
            self.after_slow.prompt.listed -= 1;
            self.return_to_turns(peer);
            self.shares.choose(peer);
        }
    }

    /// Returns whether the pool has room for what the peer has yet to deliver, or none of its kind has
    /// returned for long.
    fn may_return(&mut self, peer: u32, kind: Standing, time: TurnTime, pool: &Pool) -> bool {
        let (footprint_bytes, class) = self.reading.uncounted_footprint(peer);
        footprint_bytes == 0
            || self.reading.footprint_bytes(class) + footprint_bytes <= self.footprint_room(pool)
            || time.now_ns.saturating_sub(self.after_slow.of(kind).returned_ns) >= CROWDED_NS
    }

    /// Returns the classes in which peers of the kind wait. Peers in front that do not are dropped.
    fn heads_after_slow(&mut self, kind: Standing) -> [Option<QueueHead>; CLASSES_MAX] {
        let mut heads = [None; CLASSES_MAX];
        let Waiting { lines, listed, .. } = self.after_slow.of(kind);
        let lines = lines.iter_mut();
        for (((class, head), line), queue) in (0u8..).zip(&mut heads).zip(lines).zip(&self.queues) {
            while let Some(peer) = line.next() {
                if self.reading.out(peer) == Some(Out::Slow)
                    && kind_of(self.shares.standing(peer)) == kind
                    && queue.has_messages_of(peer)
                {
                    *head = Some(QueueHead { class, since_ns: line.since_ns });
                    break;
                }
                line.pop();
                *listed -= 1;
            }
        }
        heads
    }

    /// Returns whether any peer waits.
    pub(super) fn any_waits_after_slow(&mut self) -> bool {
        KINDS.into_iter().any(|kind| self.waits_after_slow(kind))
    }

    /// Returns whether any peer of the kind waits.
    pub(super) fn waits_after_slow(&mut self, kind: Standing) -> bool {
        self.heads_after_slow(kind).iter().any(Option::is_some)
    }

    /// Returns whether a peer is of the kind.
    pub(super) fn is_of(&self, kind: Standing, peer: u32) -> bool {
        kind_of(self.shares.standing(peer)) == kind
    }

    /// Takes a peer out of its turns until one of the READs of slow peers has ended.
    pub(super) fn wait_after_slow(&mut self, peer: u32) {
        self.leave_turns(peer, Out::Slow);
        // Its kind stays while it waits: a new one has nothing in flight, and who is measured is never new.
        for class in 0..self.queues.len() {
            if self.queues[class].has_messages_of(peer) {
                self.after_slow.push(self.shares.standing(peer), class, peer);
            }
        }
    }

    /// Takes a peer out of its turns that was not given a READ. Nobody else returns in this turn.
    pub(super) fn refuse(&mut self, peer: u32) {
        self.after_slow.refused = true;
        self.wait_after_slow(peer);
    }
}

#[cfg(test)]
impl<P: GrantPolicy> Admission<P> {
    /// Checks what is counted of peers, and that each peer with messages is in a list that is looked at.
    pub fn check(&mut self, peers: u32) {
        self.reading.check_sums();
        for class in 0..self.queues.len() {
            self.queues[class].check(|peer| self.reading.is_out(peer));
            let waits = |peer: &u32| self.reading.out(*peer) == Some(Out::Slow);
            for peer in (0..peers).filter(waits).filter(|&peer| self.queues[class].has_messages_of(peer)) {
                let standing = self.shares.standing(peer);
                assert!(
                    self.after_slow.of(standing).lines[class].has[peer as usize],
                    "{peer} of {standing:?}"
                );
            }
        }
    }
}

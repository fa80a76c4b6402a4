//! Peers out of turn because slow peers have all that they may have. Each of them has nothing in flight, and
//! returns to its turns when a READ of a slow peer has ended.
//!
//! Peers that have delivered nothing yet return before slow ones: most of them are not slow, and the first
//! READ tells. Of each kind the policy says which class goes first.

use super::Admission;
use super::policy::{GrantPolicy, QueueHead};
use super::reading::Out;
use super::shares::{Standing, UnprovenRoom};
use super::turns::Ring;
use crate::config::CLASSES_MAX;
use crate::time::TurnTime;
use alloc::boxed::Box;

/// The kinds of peers that are not prompt, in the order of their return.
const KINDS: [Standing; 2] = [Standing::New, Standing::Slow];

/// Waiting peers of one kind.
#[derive(Debug)]
struct Waiting {
    /// Peers by class of their messages. A peer may be listed that does not wait any more: it is dropped when
    /// it comes first.
    rings: Box<[Ring]>,
    /// Peers in the rings, counted in each of them.
    listed: u32,
    /// Time when a peer of the kind with nothing in flight last got a READ, or none was known to wait.
    since_ns: u64,
}

/// The waiting peers.
#[derive(Debug)]
pub(super) struct AfterSlow {
    new: Waiting,
    slow: Waiting,
}

impl AfterSlow {
    pub fn new(classes: u8, peers: u32) -> Self {
        let rings = || (0..classes).map(|_| Ring::new(peers)).collect();
        let waiting = || Waiting { rings: rings(), listed: 0, since_ns: 0 };
        Self { new: waiting(), slow: waiting() }
    }

    #[inline]
    fn of(&mut self, kind: Standing) -> &mut Waiting {
        if kind == Standing::New { &mut self.new } else { &mut self.slow }
    }

    /// Lists a peer that waits with messages of the class.
    #[inline]
    pub fn push(&mut self, kind: Standing, class: usize, peer: u32) {
        let waiting = self.of(kind);
        waiting.listed += u32::from(waiting.rings[class].push(peer));
    }

    /// Notes that a peer of the kind that had nothing in flight got a READ.
    #[inline]
    pub fn granted(&mut self, kind: Standing, stall_free_ns: u64) {
        if kind != Standing::Prompt {
            self.of(kind).since_ns = stall_free_ns;
        }
    }

    /// Notes that what the peers wait for will come.
    pub fn begin_anew(&mut self, stall_free_ns: u64) {
        (self.new.since_ns, self.slow.since_ns) = (stall_free_ns, stall_free_ns);
    }
}

impl<P: GrantPolicy> Admission<P> {
    /// Lets one peer that waits for READs of slow peers take turns again, if there is room for its READ.
    pub(super) fn return_after_slow(&mut self, room: &mut UnprovenRoom, time: TurnTime) -> bool {
        for kind in KINDS {
            if room.of(kind) == 0 || self.after_slow.of(kind).listed == 0 {
                continue;
            }
            let heads = self.heads_after_slow(kind);
            let Some(class) = self.policy.next_class(&heads, time.now_ns) else { continue };
            let waiting = self.after_slow.of(kind);
            let Some(peer) = waiting.rings[usize::from(class)].pop() else { continue };
            waiting.listed -= 1;
            room.take(kind);
            self.return_to_turns(peer);
            return true;
        }
        false
    }

    /// Returns the classes in which peers of the kind wait. Peers in front that do not are dropped.
    fn heads_after_slow(&mut self, kind: Standing) -> [Option<QueueHead>; CLASSES_MAX] {
        let mut heads = [None; CLASSES_MAX];
        let Waiting { rings, listed, .. } = self.after_slow.of(kind);
        let rings = rings.iter_mut();
        for (((class, head), ring), queue) in (0u8..).zip(&mut heads).zip(rings).zip(&self.queues) {
            while let Some(peer) = ring.head() {
                if self.reading.out(peer) == Some(Out::Slow) && queue.has_messages_of(peer) {
                    *head = Some(QueueHead { class, since_ns: queue.since_ns });
                    break;
                }
                ring.pop();
                *listed -= 1;
            }
        }
        heads
    }

    /// Returns whether a peer has waited for `span_ns` while no other of its kind got a READ. To be called
    /// now and then, for it notes when nobody waits.
    pub(super) fn waits_after_slow(&mut self, span_ns: u64, stall_free_ns: u64) -> bool {
        KINDS.into_iter().fold(false, |waits, kind| {
            let is_anybody = self.heads_after_slow(kind).iter().any(Option::is_some);
            let since_ns = &mut self.after_slow.of(kind).since_ns;
            if !is_anybody {
                *since_ns = stall_free_ns;
            }
            waits || stall_free_ns.saturating_sub(*since_ns) >= span_ns
        })
    }

    /// Takes a peer out of its turns until one of the READs of slow peers has ended.
    pub(super) fn wait_after_slow(&mut self, peer: u32) {
        self.reading.leave_turns(peer, Out::Slow);
        for class in 0..self.queues.len() {
            if self.queues[class].has_messages_of(peer) {
                self.after_slow.push(self.shares.standing(peer), class, peer);
            }
        }
    }
}

//! Credit: how many SENDs each sender may have on the way, so that the SRQ is never overrun.
//!
//! Outstanding credit of active senders never exceeds what the SRQ share can have posted. A sender's credit follows its
//! rate: it doubles while the sender uses it up, halves while it does not, and what an idle sender still has above one
//! is called back. The one credit that an idle sender keeps lies outside the budget: the entries of
//! `srq_reserve_entries` stand for those that wake, and when more wake at once their NICs wait (RNR) for a moment.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{Effects, PeerId};
use crate::message::NONE;
use jet_wire::message::{ACK_RANGES_MAX, AckHeader, CreditHeader, HeaderBytes};

/// Credit of a sender that does nothing.
const CREDIT_FLOOR: u32 = 1;
/// Credit that a sender begins with, where there is any left.
const CREDIT_INITIAL: u32 = 8;
/// Ticks without a SEND after which unused credit is called back.
const IDLE_TICKS: u32 = 2;
/// Ticks after which a recall without an answer is given up: the sender's program does something else. Its credit then
/// counts as an idle sender's, outside the budget, until it wakes; else a few of them would starve everybody.
const RECALL_TICKS: u32 = 10;

impl<P: GrantPolicy> Receiver<P> {
    /// Slabs that small messages can have: posted, and held.
    fn credit_slabs(&self) -> u32 {
        self.pool.srq_limit_max().min(self.config.srq_slabs)
    }

    /// Credit that active senders may have altogether: what the SRQ share can have posted, and there are records for, less the
    /// reserve.
    fn credit_usable(&self) -> u64 {
        let small_held = self.pool.srq_used() - self.srq.posted();
        let slabs = self.credit_slabs().saturating_sub(small_held);
        u64::from(slabs.min(self.records_left()).saturating_sub(self.config.srq_reserve_entries))
    }

    fn credit_budget(&self) -> u64 {
        self.credit_usable().saturating_sub(self.credits)
    }

    /// What each active sender may have at most, so that none takes it all.
    fn credit_share(&self) -> u64 {
        (self.credit_usable() / (self.active_peers.len() as u64).max(1)).max(u64::from(CREDIT_FLOOR))
    }

    /// Credit for a sender that connects; it counts as active if it got more than the floor.
    pub(super) fn first_credit(&mut self, peer: u32) -> u64 {
        let first = u64::from(CREDIT_INITIAL.min(self.config.credit_max)).min(self.credit_budget());
        let record = &mut self.peers[peer as usize];
        record.active = first > u64::from(CREDIT_FLOOR);
        record.credit_limit = first.max(u64::from(CREDIT_FLOOR));
        record.credit_target = CREDIT_INITIAL.min(self.config.credit_max);
        if record.active {
            self.credits += record.credit_limit;
            self.active_peers.push(peer);
        }
        record.credit_limit
    }

    /// One SEND of this sender arrived and used one credit. `false`: it had none.
    #[inline]
    pub(super) fn use_credit(&mut self, peer: u32) -> bool {
        let record = &mut self.peers[peer as usize];
        if record.arrived >= record.credit_limit {
            return false;
        }
        record.arrived += 1;
        if record.active {
            self.credits -= 1;
        } else {
            // It wakes: what it still has counts in the budget from now on.
            self.credits += record.outstanding();
            record.active = true;
            record.recall_ticks = 0;
            self.active_peers.push(peer);
        }
        record.idle_ticks = 0;
        true
    }

    /// A sender is gone.
    pub(super) fn drop_credit(&mut self, peer: u32) {
        let record = &self.peers[peer as usize];
        let outstanding = record.outstanding();
        if record.active {
            self.credits -= outstanding;
        }
    }

    /// The answer to a recall. `false`: it claims what cannot be.
    pub(super) fn credit_returned(&mut self, peer: u32, limit: u64) -> bool {
        let record = &mut self.peers[peer as usize];
        if !record.recalling || limit < record.arrived || limit > record.credit_limit {
            return false;
        }
        record.recalling = false;
        self.credits -= record.credit_limit - limit;
        record.credit_limit = limit;
        self.mark_dirty(peer);
        true
    }

    /// A sender that used all its credit before the recall reached it has none left to answer with: that is the answer.
    pub(super) fn end_recall_if_used_up(&mut self, peer: u32) {
        let record = &mut self.peers[peer as usize];
        if record.recalling && record.outstanding() == 0 {
            record.recalling = false;
        }
    }

    /// Whether its messages are for a session that gets nothing new, or that holds so many already that the SRQ share
    /// would not do for the others.
    #[inline]
    fn is_barred_sender(&self, peer: u32) -> bool {
        let session = self.apps[self.peers[peer as usize].app as usize].session;
        session != NONE && self.is_barred_to_senders(session)
    }

    /// See [`Self::is_barred_sender`].
    #[inline]
    pub(super) fn is_barred_to_senders(&self, session: u32) -> bool {
        let owner = &self.sessions[session as usize];
        owner.stuck
            || owner.slots_used() >= self.credit_slabs() / 4 * 3
            || self.keeps_too_many_records(session)
    }

    /// Nothing, until its session is no longer barred.
    #[cold]
    fn refuse_credit(&mut self, peer: u32) -> u64 {
        let record = &mut self.peers[peer as usize];
        if record.outstanding() == 0 && !record.hungry {
            record.hungry = true;
            self.barred_peers.push(peer);
        }
        0
    }

    /// A session is no longer barred: the senders that waited for that ask again.
    pub(super) fn feed_barred(&mut self) {
        self.hungry_peers.append(&mut self.barred_peers);
    }

    /// What the sender should get now, within the budget.
    fn grant_credit(&mut self, peer: u32) -> u64 {
        if self.is_barred_sender(peer) {
            return self.refuse_credit(peer);
        }
        let budget = self.credit_budget();
        let share = self.credit_share();
        let record = &mut self.peers[peer as usize];
        if record.recalling {
            return 0;
        }
        let outstanding = record.outstanding();
        if record.active
            && outstanding * 2 < u64::from(record.credit_target)
            && record.arrived > record.arrived_at_tick
        {
            record.credit_target = (record.credit_target * 2).min(self.config.credit_max);
        }
        let wanted = u64::from(record.credit_target).min(share).saturating_sub(outstanding);
        // Not each single one: a limit moves when it is worth a message, or rides on an acknowledgement.
        let mut grant = wanted.min(budget);
        if outstanding == 0 && grant < u64::from(CREDIT_FLOOR) && self.srq.posted() > 0 {
            // Who sits on the SRQ share must not silence the others: each has what an idle sender has, and while too many
            // use it their NICs wait.
            grant = u64::from(CREDIT_FLOOR);
        }
        if grant > 0 {
            record.credit_limit += grant;
            if record.active {
                self.credits += grant;
            }
        } else if outstanding == 0 && !record.hungry {
            record.hungry = true;
            self.hungry_peers.push(peer);
        }
        grant
    }

    /// Senders without credit are looked at again now that some may be left. The dirty list is a stack: what is pushed
    /// last, the sender that waited longest, is served first.
    pub(super) fn feed_hungry(&mut self) {
        if self.hungry_peers.is_empty() || (self.credit_budget() == 0 && self.srq.posted() == 0) {
            return;
        }
        while let Some(peer) = self.hungry_peers.pop() {
            self.peers[peer as usize].hungry = false;
            self.mark_dirty(peer);
        }
    }

    /// Sends a peer what it is due: ends of its messages, and credit.
    pub(super) fn speak_to(&mut self, peer: u32, effects: &mut impl Effects) {
        loop {
            let record = &self.peers[peer as usize];
            if !record.may_hear() {
                return;
            }
            // With exactly half left there is time: an acknowledgement is likely to come by and take credit along. A sender
            // of one message after the other would else be sent both for each.
            let outstanding = record.outstanding();
            let wants_credit = outstanding == 0 || outstanding * 2 < u64::from(record.credit_target);
            let has_ranges = record.has_ranges();
            let granted = if wants_credit || has_ranges { self.grant_credit(peer) } else { 0 };
            let record = &mut self.peers[peer as usize];
            if !has_ranges {
                if granted > 0 {
                    let header = CreditHeader::encode(record.credit_limit, false);
                    self.say(peer, &header, effects);
                }
                return;
            }
            let (ranges, count) = record.take_ranges();
            debug_assert!(count <= ACK_RANGES_MAX, "ranges fill one header");
            let header = AckHeader::encode(record.limit_to_tell(), &ranges[..count]);
            self.say(peer, &header, effects);
            self.refill_ranges(peer);
        }
    }

    /// Sends a header to a peer that may hear it.
    pub(super) fn say(&mut self, peer: u32, header: &HeaderBytes, effects: &mut impl Effects) {
        let record = &mut self.peers[peer as usize];
        record.sends_in_flight += 1;
        record.spoken_ns = self.flushed_ns;
        record.spoken_attended_ns = self.flushed_attended_ns;
        effects.send(PeerId(peer), header);
    }

    /// Tells peers that wait, and that nothing was said to for a while, that the receiver is there. What they are told
    /// is the credit that they know of.
    pub(super) fn reassure(&mut self, now_ns: u64, effects: &mut impl Effects) {
        if now_ns < self.next_heartbeat_ns {
            return;
        }
        self.next_heartbeat_ns = now_ns + self.config.heartbeat_ns;
        for peer in 0..self.config.peers_max {
            let record = &self.peers[peer as usize];
            let was_told = now_ns.saturating_sub(record.spoken_ns) < self.config.heartbeat_ns;
            if record.may_hear() && record.waits() && !was_told {
                let header = CreditHeader::encode(record.limit_to_tell(), false);
                self.say(peer, &header, effects);
            }
        }
    }

    /// Moves ends that waited in message records into the ranges that were just sent.
    fn refill_ranges(&mut self, peer: u32) {
        while let Some(message) = self.peers[peer as usize].overflow.head() {
            let (sequence, status) = (self.messages[message].sequence, self.messages[message].failure);
            let status = status.expect("a message in the overflow list keeps its end");
            if !self.peers[peer as usize].add_end(sequence, status) {
                return;
            }
            let popped = self.peers[peer as usize].overflow.pop(&self.messages);
            debug_assert_eq!(popped, Some(message), "the head is what is popped");
            self.messages[message].acked = true;
            self.free_if_settled(message);
        }
    }

    /// A SEND to the peer was taken by its NIC.
    pub fn handle_sent(&mut self, peer: PeerId) {
        let record = &mut self.peers[peer.0 as usize];
        record.sends_in_flight = record.sends_in_flight.saturating_sub(1);
        if record.has_ranges() || record.outstanding() == 0 {
            self.mark_dirty(peer.0);
        }
    }

    /// Looks at the active senders only: what a thousand idle ones have does not change with time.
    pub(super) fn decay_credit(&mut self, effects: &mut impl Effects) {
        let mut position = 0;
        while let Some(&index) = self.active_peers.get(position) {
            if self.decay_one(index, effects) {
                position += 1;
            } else {
                self.active_peers.swap_remove(position);
            }
        }
    }

    /// `false`: the sender is idle from now on.
    fn decay_one(&mut self, index: u32, effects: &mut impl Effects) -> bool {
        let record = &mut self.peers[index as usize];
        let arrived = record.arrived - record.arrived_at_tick;
        record.arrived_at_tick = record.arrived;
        if arrived * 4 < u64::from(record.credit_target) {
            record.credit_target = (record.credit_target / 2).max(CREDIT_FLOOR);
        }
        if arrived > 0 {
            record.idle_ticks = 0;
            return true;
        }
        record.idle_ticks = record.idle_ticks.saturating_add(1);
        let outstanding = record.outstanding();
        if record.recalling {
            record.recall_ticks = record.recall_ticks.saturating_add(1);
            if record.recall_ticks < RECALL_TICKS {
                return true;
            }
            record.active = false;
            self.credits -= outstanding;
            return false;
        }
        if !record.stands {
            // There is no asking it yet. One that takes long to connect counts as one that does not answer.
            if record.idle_ticks < RECALL_TICKS {
                return true;
            }
            record.active = false;
            self.credits -= outstanding;
            return false;
        }
        if record.leaving || record.idle_ticks < IDLE_TICKS {
            return true;
        }
        if outstanding == 0 {
            self.mark_dirty(index);
        } else if outstanding <= u64::from(CREDIT_FLOOR) {
            record.active = false;
            record.credit_target = CREDIT_FLOOR;
            self.credits -= outstanding;
            return false;
        } else if record.may_hear() {
            // The answer itself is a SEND and uses one.
            record.recalling = true;
            record.credit_target = CREDIT_FLOOR;
            let keep = record.arrived + 1 + u64::from(CREDIT_FLOOR);
            record.recall_limit = keep;
            record.recall_ticks = 0;
            self.say(index, &CreditHeader::encode(keep, true), effects);
        }
        true
    }
}

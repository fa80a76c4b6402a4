//! Heartbeats: what a sender hears of a receiver that has nothing to tell it.
//!
//! A sender that waits learns from a heartbeat that the receiver lives, and what its messages wait for. The
//! receiver gives a reason only for what it sees at that moment. If it sees none, a message was forgotten,
//! and a sender that hears of no reason for long connects again.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::Effects;
use jet_wire::message::{CreditHeader, WaitsFor};

impl<P: GrantPolicy> Receiver<P> {
    /// Sends a heartbeat to each peer that waits and was sent nothing for `limits.heartbeat_ms`. The header
    /// repeats the credit that they know.
    pub(super) fn send_heartbeats(&mut self, now_ns: u64, effects: &mut impl Effects) {
        if !self.outbox.is_heartbeat_due(now_ns) {
            return;
        }
        for peer in 0..self.config.peers_max {
            let waits = self.outbox.waits(peer) || self.credit.outstanding(peer) == 0;
            if waits && self.outbox.is_overdue(peer, now_ns) {
                let told = self.outbox.is_told_what_it_waits_for(peer);
                let waits_for = if told { self.waits_for(peer) } else { None };
                let limit = self.credit.limit_to_send(peer);
                self.outbox.send(peer, &CreditHeader::encode_heartbeat(limit, waits_for), effects);
            }
        }
    }

    /// Returns what the peer's messages wait for, or its next message where it has no credit.
    fn waits_for(&self, peer: u32) -> Option<WaitsFor> {
        if self.admission.reads(peer) > 0 {
            return Some(WaitsFor::Reads);
        }
        if self.registry.session_of(peer).is_some_and(|session| self.keeps_something(session)) {
            return Some(WaitsFor::Application);
        }
        // A small message that has arrived waits for its application alone.
        if self.admission.requests(peer) == 0 && self.credit.outstanding(peer) > 0 {
            return None;
        }
        if self.reads.in_use() > 0 {
            return Some(WaitsFor::Turn);
        }
        let is_in_use = self.small_held_slabs() > 0
            || self.pool.read_used() > 0
            || self.pool.memory() > 0
            || self.pool.quarantined() > 0
            || self.registry.numbers().any(|session| self.keeps_something(session));
        is_in_use.then_some(WaitsFor::Room)
    }

    /// Returns whether the session's application has slices, or messages of which it gave back all slices and
    /// that it has not finished, or small messages wait for it.
    fn keeps_something(&self, session: u32) -> bool {
        self.slots.used(session) > 0
            || self.delivery.numbers_used(session) > 0
            || self.delivery.backlog(session) > 0
    }
}

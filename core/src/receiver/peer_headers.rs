//! Headers sent to peers: ends and credit after each batch, and farewells.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::credit::{Decay, Reachability, Room};
use crate::effects::{Effects, PeerId};
use crate::outbox::Link;
use jet_wire::message::{ByeHeader, ByeReason, CreditHeader};
use jet_wire::planted;

/// Small messages for which there must be room before a session's senders get credit for one. Without it,
/// the slab of a message that was just refused would be the room for the next one.
const CREDIT_MARGIN: u32 = 16;

impl<P: GrantPolicy> Receiver<P> {
    /// Sends the ends and the credit that are due, to all peers that were marked for this flush.
    pub(super) fn send_headers(&mut self, effects: &mut impl Effects) {
        if self.credit.any_without_credit() {
            let room = self.credit_room();
            while let Some(peer) = self.credit.next_without_credit(room) {
                self.outbox.mark_dirty(peer);
            }
        }
        while let Some(peer) = self.outbox.next_dirty() {
            self.send_headers_to(peer, effects);
        }
    }

    /// Sends a peer what is due: ends of its messages, and credit.
    fn send_headers_to(&mut self, peer: u32, effects: &mut impl Effects) {
        if self.registry.is_moving(peer) && !self.outbox.waits(peer) {
            self.registry.finish_move(peer);
        }
        while self.outbox.may_send_to(peer) {
            let has_ends = self.outbox.has_ends(peer);
            let issued = if has_ends || self.credit.needs_credit(peer) { self.issue_credit(peer) } else { 0 };
            if has_ends {
                self.send_ends(peer, effects);
                continue;
            }
            if issued > 0 {
                let header = CreditHeader::encode(self.credit.limit(peer), false);
                self.outbox.send(peer, &header, effects);
            }
            return;
        }
    }

    /// Sends one header with ends of the peer's messages: one with its reply, or as many as a header has.
    fn send_ends(&mut self, peer: u32, effects: &mut impl Effects) {
        let limit = self.credit.limit_to_send(peer);
        let next = self.outbox.next_reply(peer);
        let replied =
            next.and_then(|message| self.replies.send(message, self.outbox.flushed_stall_free_ns()));
        match replied {
            Some(place) => self.outbox.reply(peer, limit, place, &mut self.messages, effects),
            None => self.outbox.acknowledge(peer, limit, &mut self.messages, effects),
        }
    }

    /// Gives the peer the credit that it should have now; returns how much that is.
    fn issue_credit(&mut self, peer: u32) -> u64 {
        if planted!(BarredForEver) && self.credit.refused().contains(&peer) {
            return 0;
        }
        if self.registry.is_moving(peer) {
            // It asks again when the last of its messages has its end.
            return 0;
        }
        let session = self.registry.session_of(peer);
        if session.is_some_and(|session| self.withholds_credit(session)) {
            self.credit.refuse(peer);
            return 0;
        }
        let most = self.most_credit(peer);
        if most == 0 {
            // It asks again when it has taken what it was sent.
            return 0;
        }
        let room = self.credit_room();
        self.credit.issue(peer, room, most)
    }

    /// Returns the most credit that a peer may have. While many ends wait in records because their peers do
    /// not take them, nobody gets credit whose ends may have to wait so, too: otherwise a few that take
    /// nothing would use up the records of all.
    fn most_credit(&self, peer: u32) -> u32 {
        if self.too_many_ends_wait() { self.outbox.ends_without_records(peer) } else { u32::MAX }
    }

    /// Returns the credit that active senders may have altogether. That is what the SRQ share can have
    /// posted, and what there are records for, less the entries reserved for senders that wake.
    pub(super) fn credit_room(&self) -> Room {
        let slabs = self.credit_slabs().saturating_sub(self.small_held_slabs());
        let usable = slabs.min(self.records_left()).saturating_sub(self.config.srq_reserve_entries);
        Room { usable: u64::from(usable), posted: self.srq.posted() > 0 }
    }

    /// Returns the slabs that small messages can have: posted, and held.
    fn credit_slabs(&self) -> u32 {
        self.pool.srq_limit_max().min(self.config.srq_slabs)
    }

    /// Returns the slabs that hold small messages.
    #[inline]
    pub(super) fn small_held_slabs(&self) -> u32 {
        self.pool.srq_used() - self.srq.posted()
    }

    /// Returns whether senders get no credit for a session. That is so if the session is suspended for its
    /// application. It is also so if the session holds so many messages that the SRQ share, the pool, or the
    /// records would not suffice for the other sessions.
    #[inline]
    pub(super) fn withholds_credit(&self, session: u32) -> bool {
        self.admission.is_suspended_for_its_application(session)
            || self.holds_most_of_the_srq_share(session)
            || !self.may_have_small(session, CREDIT_MARGIN)
            || self.keeps_too_many_records(session)
    }

    /// Returns whether the session holds at least three quarters of the SRQ share. A session that holds
    /// nothing never does, however small the share is.
    #[inline]
    fn holds_most_of_the_srq_share(&self, session: u32) -> bool {
        let held = u64::from(self.slots.used(session));
        held > 0 && held * 4 >= u64::from(self.credit_slabs()) * 3
    }

    /// Handles a SEND to the peer that its NIC has taken.
    pub fn handle_sent(&mut self, peer: PeerId) {
        self.admission.hear();
        self.outbox.sent(peer.0);
        if self.outbox.has_ends(peer.0) || self.credit.outstanding(peer.0) == 0 {
            self.outbox.mark_dirty(peer.0);
        }
    }

    /// Applies a tick to the credit of all active senders: credit that they do not use is recalled with time.
    pub(super) fn decay_credit(&mut self, effects: &mut impl Effects) {
        let mut position = 0;
        while let Some(peer) = self.credit.active_at(position) {
            let reachability = match self.outbox.link(peer) {
                Link::Gone | Link::Lost | Link::Asked | Link::Leaving { was_established: false } => {
                    Reachability::NotYet
                }
                Link::Leaving { was_established: true } => Reachability::NoMore,
                Link::Established => Reachability::Established { may_send: self.outbox.may_send_to(peer) },
            };
            position += 1;
            match self.credit.decay(position - 1, reachability) {
                Decay::Stays => {}
                Decay::Asks => self.outbox.mark_dirty(peer),
                Decay::Recalled { limit } => {
                    self.outbox.send(peer, &CreditHeader::encode(limit, true), effects);
                }
                Decay::Idle | Decay::Lapsed => position -= 1,
            }
        }
    }

    /// Sends a peer a farewell and ends its connection; the driver reports the loss.
    pub(super) fn expel(&mut self, peer: u32, reason: ByeReason, effects: &mut impl Effects) {
        self.expel_for(peer, reason, None, effects);
    }

    /// Expels a peer like [`Self::expel`]. `message` is the sequence number of the message that is the
    /// reason.
    pub(super) fn expel_for(
        &mut self,
        peer: u32,
        reason: ByeReason,
        message: Option<u64>,
        effects: &mut impl Effects,
    ) {
        if !self.outbox.leave(peer) {
            return;
        }
        self.stats.peer_faults += u64::from(!matches!(reason, ByeReason::Draining | ByeReason::Unresponsive));
        self.stats.unresponsive_peers += u64::from(reason == ByeReason::Unresponsive);
        let mut header = ByeHeader::encode(reason);
        header.set_version(self.outbox.version(peer));
        effects.send(PeerId(peer), &header);
        effects.disconnect(PeerId(peer), reason, message);
    }

    /// Sends a farewell to every peer, at the end of a drain.
    pub fn disconnect_all(&mut self, effects: &mut impl Effects) {
        for peer in 0..self.config.peers_max {
            self.expel(peer, ByeReason::Draining, effects);
        }
    }
}

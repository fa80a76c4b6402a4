//! Limits on the records of messages, so that every message that arrives has one.
//!
//! Each posted SRQ entry has a record in reserve, and credit promises no more entries than there are records.
//! So whatever arrives has a record, in which its end waits until its sender hears it. No sender is cut off
//! because others used the records up.
//!
//! Records in use have limits. Requests for large messages leave the last records to small messages. A
//! session that keeps more than its share of records, while they are scarce, is sent nothing more. While ends
//! that their senders do not take use more than a quarter of the records, no sender gets credit with which it
//! could add to them, and senders that hear nothing for long are disconnected. They keep their messages, and
//! send them again.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::Effects;
use crate::index::NONE;
use crate::outbox::Link;
use jet_wire::message::ByeReason;

impl<P: GrantPolicy> Receiver<P> {
    /// Returns the records that are not in use.
    #[inline]
    pub(super) fn records_left(&self) -> u32 {
        u32::try_from(self.messages.available()).unwrap_or(NONE)
    }

    /// Returns the records that are neither in use nor in reserve for posted entries.
    #[inline]
    pub(super) fn records_unreserved(&self) -> u32 {
        self.records_left().saturating_sub(self.srq.posted())
    }

    /// Returns the records that are left for large messages. The last ones are for small messages, whose
    /// number the credit bounds.
    pub(super) fn records_for_large(&self) -> u32 {
        self.records_left().saturating_sub(self.config.srq_slabs)
    }

    /// Returns whether the session keeps more messages than its share while records are scarce.
    #[inline]
    pub(super) fn keeps_too_many_records(&self, session: u32) -> bool {
        let half = self.config.messages_max / 2;
        self.messages.available() < half as usize
            && self.records_of(session) > half / self.registry.open_count().max(1)
    }

    /// Returns the messages that a session has, and those that wait for its slots.
    fn records_of(&self, session: u32) -> u32 {
        self.delivery.numbers_used(session) + self.delivery.backlog(session)
    }

    /// Returns whether more than a quarter of the records is in use by ends that their peers do not take.
    #[inline]
    pub(super) fn too_many_ends_wait(&self) -> bool {
        self.outbox.untold_ends() > self.config.messages_max / 4
    }

    /// Disconnects one unresponsive peer when many ends wait in records, or when only the records for small
    /// messages are left, and large ones are refused: the one with the most ends waiting. Where little memory
    /// for replies is left, it disconnects a peer that has not taken one of its replies for long, whatever
    /// else it takes. Time in which the receiver was not called does not count as silence of the peer, whose
    /// NIC may have taken everything.
    pub(super) fn disconnect_unresponsive(&mut self, now_ns: u64, effects: &mut impl Effects) {
        // Not one at a time: whoever leaves again and again would hold up what others want.
        if self.replies.are_wanted() {
            let stall_free_ns = self.stall_free_ns(now_ns);
            let stands = |peer: u32| self.outbox.link(peer) == Link::Established;
            if let Some(peer) = self.replies.slowest(stall_free_ns, stands) {
                self.expel(peer, ByeReason::Unresponsive, effects);
            }
        }
        if self.records_left() > self.config.srq_slabs && !self.too_many_ends_wait() {
            return;
        }
        if let Some(peer) = self.outbox.most_unresponsive(self.stall_free_ns(now_ns)) {
            self.expel(peer, ByeReason::Unresponsive, effects);
        }
    }

    /// Disconnects peers whose READs have not ended for long while others wait ([`Admission::tick`]).
    ///
    /// [`Admission::tick`]: crate::admission::Admission::tick
    pub(super) fn disconnect_stalled(&mut self, now_ns: u64, effects: &mut impl Effects) {
        let time = self.turn_time(now_ns);
        for _ in 0..self.config.reads_max {
            let is_leaving = |peer| matches!(self.outbox.link(peer), Link::Leaving { .. });
            let view = mechanisms_of!(self);
            let stalled = self.admission.tick(time, is_leaving, &self.messages, &view);
            let Some(peer) = stalled else { return };
            self.stats.stalled_peers += 1;
            self.expel(peer, ByeReason::Unresponsive, effects);
        }
    }
}

//! Records of messages: who may have how many, so that none that arrives is without one.
//!
//! Each posted SRQ entry has a record in reserve, and credit promises no more of them than there are. So
//! whatever arrives has a record, in which its end waits until its sender hears it: nobody is cut off because
//! others used them up.
//!
//! What uses them up has limits. Requests for large messages leave the last ones to small messages. A session
//! that keeps more than its share of them, while they are scarce, is sent nothing more. And who is told how
//! its messages ended, and hears nothing for long, is parted with when there are hardly any left: it keeps
//! its messages, and sends them again.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::Effects;
use crate::index::NONE;
use jet_wire::message::ByeReason;

impl<P: GrantPolicy> Receiver<P> {
    /// Records that nobody uses.
    #[inline]
    pub(super) fn records_left(&self) -> u32 {
        u32::try_from(self.messages.available()).unwrap_or(NONE)
    }

    /// Records that are neither in use nor in reserve for posted entries.
    #[inline]
    pub(super) fn records_unreserved(&self) -> u32 {
        self.records_left().saturating_sub(self.srq.posted())
    }

    /// Whether the session keeps more messages than its share while records are scarce.
    #[inline]
    pub(super) fn keeps_too_many_records(&self, session: u32) -> bool {
        let half = self.config.messages_max / 2;
        self.records_left() < half && self.records_of(session) > half / self.registry.open_count().max(1)
    }

    /// Messages that a session has, and that wait for its slots.
    fn records_of(&self, session: u32) -> u32 {
        self.delivery.numbers_used(session) + self.delivery.backlog(session)
    }

    /// Where only the records for small messages are left, and large ones are refused: parts with the peer
    /// that has the most ends waiting, and has heard nothing for long. Time in which nobody looked is none:
    /// its NIC may have taken everything.
    pub(super) fn part_with_the_unresponsive(&mut self, now_ns: u64, effects: &mut impl Effects) {
        if self.records_left() > self.config.srq_slabs {
            return;
        }
        if let Some(peer) = self.ends.most_unresponsive(self.attended_ns(now_ns)) {
            self.expel(peer, ByeReason::Unresponsive, effects);
        }
    }
}

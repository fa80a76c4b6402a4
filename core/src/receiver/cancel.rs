//! Messages that their senders take back.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::Effects;
use jet_wire::message::{AckStatus, ByeReason};
use jet_wire::planted;

impl<P: GrantPolicy> Receiver<P> {
    /// Handles a header by which a peer takes one of its messages back.
    #[cold]
    pub(super) fn handle_cancel(&mut self, peer: u32, sequence: u64, effects: &mut impl Effects) {
        if !self.outbox.may_cancel(peer) {
            self.expel(peer, ByeReason::Malformed, effects);
        } else if self.admission.use_cancel(peer) {
            self.cancel(peer, sequence, effects);
        } else {
            self.expel(peer, ByeReason::CreditExceeded, effects);
        }
    }

    /// Takes a peer's large message back, unless all of it has reached its application or its end is decided.
    /// READs of it that are under way end first. Small messages reach their applications as they arrive, so
    /// none is found here.
    fn cancel(&mut self, peer: u32, sequence: u64, effects: &mut impl Effects) {
        let Some(message) = self.admission.request_of(peer, sequence, &self.messages) else { return };
        let record = &self.messages[message];
        let has_arrived = record.arrived == record.length && !planted!(CancelledWhenWhole);
        if record.is_decided() || has_arrived {
            return;
        }
        self.unlink(message);
        self.withdraw(message, false, effects);
        self.fail(message, AckStatus::Cancelled);
    }
}

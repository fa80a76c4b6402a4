//! Memory that the hardware lost (a machine check, Jet §4.3): its slabs leave for good, and the messages in it end.
//!
//! It shows when a run is copied or checked. What lies in it can be had neither here nor by its application, and its sender
//! still has it: the message ends as corrupt, and what of it the application has not seen is withdrawn.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{Effects, ReadId};
use crate::message::NONE;
use crate::pool::Run;
use jet_wire::message::AckStatus;

impl<P: GrantPolicy> Receiver<P> {
    /// These slabs of the pool, or of escape memory, cannot be read or written any more. To be told before the end of the
    /// copy or the check that found it.
    pub fn handle_poisoned(&mut self, run: Run) {
        self.pool.retire(run);
    }

    /// A check that [`Effects::begin_check`] began is over, and came to nothing: the READ's bytes cannot be read.
    pub fn handle_check_failed(&mut self, now_ns: u64, read: ReadId, effects: &mut impl Effects) {
        let message = self.reads[read.0].message;
        assert!(message != NONE, "{read:?} was checked but is not");
        self.end_unreadable(message, effects);
        // Unwanted now, so that no checksum is looked at. Those before it in the message are waited for.
        self.handle_checked(now_ns, read, 0, effects);
    }

    /// Ends a message some of whose bytes cannot be read.
    #[cold]
    pub(super) fn end_unreadable(&mut self, message: u32, effects: &mut impl Effects) {
        if self.is_unwanted(message) || self.messages[message].ended {
            return;
        }
        self.unlink(message);
        self.withdraw(message, true, effects);
        self.fail(message, AckStatus::Corrupt);
    }
}

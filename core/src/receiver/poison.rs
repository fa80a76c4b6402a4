//! Memory that the hardware lost (a machine check, Jet §4.3): its slabs leave for good, and the messages in
//! it end.
//!
//! A loss shows when somebody touches the memory: a copy or a check, the NIC, or the warmer. A reader that is
//! guarded against it finds zeros there, or what the NIC wrote since, while the application finds neither. So
//! nothing that lies there is ever delivered, copied or reported as consumed. Every message with bytes there
//! ends as corrupt as soon as the loss is known. A message that arrives later, in a slab that was posted
//! before, ends as corrupt when it arrives. Its sender still has it.
//!
//! Messages that the application has already are withdrawn, too. The application may be reading such a
//! message, or be done with it, which the receiver cannot see. The kernel ends the application where it reads
//! lost memory. On kernels before 5.16 the application reads zeros there, so a release must not count as
//! proof that it found its message. Only messages that it finished before stay finished.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::Effects;
use crate::index::NONE;
use crate::messages::MessageState;
use crate::pool::Run;
use alloc::vec::Vec;
use jet_wire::message::AckStatus;

impl<P: GrantPolicy> Receiver<P> {
    /// Handles slabs of the pool, or of escape memory, that cannot be read or written any more. They are
    /// never used again, and every message with bytes there ends. The driver must report them before anything
    /// that ended since: a copy, a check, a READ or a SEND.
    pub fn handle_poisoned(&mut self, run: Run, effects: &mut impl Effects) {
        self.pool.retire(run);
        for message in self.messages_in(run) {
            self.end_unreadable(message, effects);
        }
    }

    /// Returns the messages whose bytes lie in these slabs, or are on their way there. It searches all slots,
    /// READs and messages.
    fn messages_in(&self, lost: Run) -> Vec<u32> {
        let lies_there = |run: Run| {
            let end = |run: Run| run.first.saturating_add(run.count);
            run.first < end(lost) && lost.first < end(run)
        };
        let mut found = Vec::new();
        for session in self.registry.numbers().filter(|&session| self.registry.is_open(session)) {
            self.slots.for_each_held(session, |message, run| {
                if lies_there(run) {
                    found.push(message);
                }
            });
        }
        for read in (0..self.config.reads_max).map(|read| &self.reads[read]) {
            if read.message != NONE && read.runs[..read.run_count].iter().any(|&run| lies_there(run)) {
                found.push(read.message);
            }
        }
        found.extend(self.messages.indices().filter(|&message| match self.messages[message].state {
            MessageState::Backlogged { slab, .. } => lies_there(Run { first: slab, count: 1 }),
            _ => false,
        }));
        found
    }

    /// Ends a message of which some bytes cannot be read.
    #[cold]
    pub(super) fn end_unreadable(&mut self, message: u32, effects: &mut impl Effects) {
        if self.messages[message].is_discarded() || self.messages[message].state.is_over() {
            return;
        }
        self.unlink(message);
        self.withdraw(message, true, effects);
        self.fail(message, AckStatus::Corrupt);
    }
}

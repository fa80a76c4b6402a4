//! Memory that the hardware lost (a machine check, Jet §4.3): its slabs leave for good, and the messages in
//! it end.
//!
//! It shows when anybody touches it: a copy or a check, the NIC, the warmer. Whoever is not guarded finds
//! zeros there from then on, or what the NIC wrote since, while the application finds neither. So nothing
//! that lies there is ever delivered, copied or called consumed: every message with bytes there ends as
//! corrupt as soon as the loss is known, and one that comes later, into a slab that was posted before, when
//! it arrives. Its sender still has it.
//!
//! What the application has already is withdrawn, too. It may be reading it, or be through with it: that is
//! not to be seen from here. The system ends it where it reads what is lost. On kernels before 5.16 it reads
//! zeros there, so that a release must not count as proof that it found its message. Only what it called
//! finished before stays finished.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::Effects;
use crate::index::NONE;
use crate::messages::Life;
use crate::pool::Run;
use alloc::vec::Vec;
use jet_wire::message::AckStatus;

impl<P: GrantPolicy> Receiver<P> {
    /// These slabs of the pool, or of escape memory, cannot be read or written any more: they are never used
    /// again, and every message with bytes there ends. To be told before whatever ended since: a copy or a
    /// check, a READ or a SEND.
    pub fn handle_poisoned(&mut self, run: Run, effects: &mut impl Effects) {
        self.pool.retire(run);
        for message in self.messages_in(run) {
            self.end_unreadable(message, effects);
        }
    }

    /// The messages of which bytes lie in these slabs, or are on their way there. Looks at everything there
    /// is.
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
        found.extend(self.messages.indices().filter(|&message| match self.messages[message].life {
            Life::Backlogged { slab, .. } => lies_there(Run { first: slab, count: 1 }),
            _ => false,
        }));
        found
    }

    /// Ends a message some of whose bytes cannot be read.
    #[cold]
    pub(super) fn end_unreadable(&mut self, message: u32, effects: &mut impl Effects) {
        if self.messages[message].is_unwanted() || self.messages[message].life.is_over() {
            return;
        }
        self.unlink(message);
        self.delivery.withdraw(message, true, &mut self.messages, effects);
        self.fail(message, AckStatus::Corrupt);
    }
}

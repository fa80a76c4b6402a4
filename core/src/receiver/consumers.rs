//! Several sessions that share a name: senders move between them, and ask for credit again.

use super::Receiver;
use crate::admission::GrantPolicy;

impl<P: GrantPolicy> Receiver<P> {
    /// Moves senders between the sessions that share a name ([`Registry::spread`]).
    ///
    /// [`Registry::spread`]: crate::registry::Registry::spread
    pub(super) fn spread_senders(&mut self, now_ns: u64) {
        self.registry.spread(now_ns, |peer| self.outbox.waits(peer));
        self.ask_those_that_stay();
    }

    /// Lets senders ask for credit that were to move, and are not any more.
    pub(super) fn ask_those_that_stay(&mut self) {
        while let Some(peer) = self.registry.next_that_may_have_credit() {
            if self.outbox.is_connected(peer) {
                self.outbox.mark_dirty(peer);
            }
        }
    }
}

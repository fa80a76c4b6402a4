//! Running the escape: evaluates Algorithm 1, ends copies, and marks congestion to senders.
//!
//! Marking sends signals to the senders of slow sessions, or to all senders where no session is slow. It also
//! has the NIC mark congestion earlier where the NIC can.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{CopyId, Effects};
use crate::escape::{Demand, Step};
use jet_escape::Pressure;
use jet_wire::message::CongestionHeader;

/// Window that a congestion signal asks for, in thousandths of the current one: half.
const SIGNAL_PERMILLE: u32 = 500;
/// The most senders that are sent a congestion signal in one evaluation of Algorithm 1.
const SIGNALS_MAX: usize = 64;
/// The most senders that one evaluation of Algorithm 1 checks for a congestion signal. The next evaluation
/// continues with the rest.
const CHECKED_MAX: usize = 4 * SIGNALS_MAX;

impl<P: GrantPolicy> Receiver<P> {
    /// Handles that the first `ready_slabs` slabs of escape memory are allocated and touched: they may be
    /// used now.
    pub fn handle_escape_memory(&mut self, ready_slabs: u32) {
        self.pool.make_ready(ready_slabs);
    }

    /// Returns the demand on the pool that its free slabs do not show.
    #[inline]
    pub(super) fn demand(&self) -> Demand {
        Demand { posted: self.srq.posted(), waits_for_room: self.admission.waits_for_room() }
    }

    /// Returns the pool's pressure now.
    pub(super) fn read_pressure(&self) -> Pressure {
        self.escape.read_pressure(&self.pool, self.demand())
    }

    /// Evaluates Algorithm 1, if it is time.
    #[inline]
    pub(super) fn run_escape(&mut self, now_ns: u64, effects: &mut impl Effects) {
        let (stall_free_ns, demand) = (self.stall_free_ns(now_ns), self.demand());
        if self.escape.begin(now_ns, stall_free_ns, &self.pool, demand, effects) {
            self.evaluate(now_ns, effects);
        }
    }

    #[cold]
    fn evaluate(&mut self, now_ns: u64, effects: &mut impl Effects) {
        let (stall_free_ns, demand) = (self.stall_free_ns(now_ns), self.demand());
        loop {
            let tables = (&mut self.pool, &mut self.slots);
            match self.escape.continue_run(now_ns, stall_free_ns, demand, tables, effects) {
                Step::Mark => self.mark(now_ns, effects),
                Step::Done => return,
            }
        }
    }

    /// Handles the end of a copy. `ok`: the bytes were copied, but count only if neither place was lost
    /// meanwhile. `ok` is false if one of the places cannot be read or written. The driver reports each loss
    /// before, to [`Self::handle_poisoned`].
    pub fn handle_copied(&mut self, now_ns: u64, id: CopyId, ok: bool, effects: &mut impl Effects) {
        let is_open = |session: u32| self.registry.is_open(session);
        let tables = (&mut self.pool, &mut self.slots);
        let copied = self.escape.end_copy(now_ns, (id, ok), is_open, tables, effects);
        if copied.slot_is_free {
            self.deliver_backlog(now_ns, copied.session, effects);
        }
        if copied.marks {
            self.mark(now_ns, effects);
        }
    }

    pub(super) fn mark(&mut self, now_ns: u64, effects: &mut impl Effects) {
        self.escape.mark(effects);
        if !self.config.signals {
            return;
        }
        let mut checks = self.credit.active_count().min(CHECKED_MAX);
        let any_slow = self.escape.any_slow();
        let mut signalled = 0;
        while checks > 0 && signalled < SIGNALS_MAX {
            checks -= 1;
            self.signal_cursor =
                if self.signal_cursor + 1 < self.credit.active_count() { self.signal_cursor + 1 } else { 0 };
            let Some(peer) = self.credit.active_at(self.signal_cursor) else { return };
            let is_slow =
                || self.registry.session_of(peer).is_some_and(|session| self.escape.is_slow(session));
            if !self.outbox.may_signal(peer, now_ns) || (any_slow && !is_slow()) {
                continue;
            }
            signalled += 1;
            self.escape.count_signal();
            self.outbox.signal(peer, now_ns, &CongestionHeader::encode(SIGNAL_PERMILLE), effects);
        }
    }
}

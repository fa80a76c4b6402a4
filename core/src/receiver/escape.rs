//! Escape: carries out what Algorithm 1 says (Jet §4.3).
//!
//! Replace is bookkeeping in the pool. Copies are made by the driver, and are over when it says so: until then neither the
//! slot nor the slabs of either place are used for anything else, whatever the application does meanwhile. Marking speaks
//! to the senders of slow sessions, or to all where none is slow, and has the NIC mark earlier where it can.

use super::Receiver;
use crate::admission::GrantPolicy;
use crate::effects::{Copy, CopyFailed, CopyId, CopyRefused, Effects, SessionId};
use crate::message::NONE;
use crate::pool::{Run, Share};
use jet_escape::{Action, PoolView, Pressure};
use jet_wire::message::CongestionHeader;

/// Between two evaluations under pressure: with 1,000 sessions an evaluation costs 2 us, so at most 4 % of a core.
const EVALUATION_NS: u64 = 50_000;
/// Between two evaluations when nothing else happens: a fraction of the time that makes a straggler.
const IDLE_EVALUATION_NS: u64 = 500_000;
/// What a signal says: halve your window.
const SIGNAL_PERMILLE: u32 = 500;
/// Senders signalled in one evaluation.
const SIGNALS_MAX: usize = 64;

/// Senders looked at in one evaluation; the cursor goes on with the others.
const LOOKS_MAX: usize = 4 * SIGNALS_MAX;

/// How much escape memory was in use for how long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MemoryMeter {
    used: u32,
    since_ns: u64,
    slab_us: u64,
}

impl MemoryMeter {
    pub fn note(&mut self, now_ns: u64, used: u32) {
        let span_us = now_ns.saturating_sub(self.since_ns) / 1000;
        self.slab_us += u64::from(self.used) * span_us;
        self.since_ns += span_us * 1000;
        self.used = used;
        if used == 0 {
            self.since_ns = now_ns;
        }
    }

    pub fn slab_ms(&self) -> u64 {
        self.slab_us / 1000
    }
}

impl<P: GrantPolicy> Receiver<P> {
    /// The first so many slabs of escape memory are allocated and touched; they may be used from now on.
    pub fn handle_escape_memory(&mut self, ready_slabs: u32) {
        self.pool.make_ready(ready_slabs);
    }

    /// The slabs as Algorithm 1 sees them. Where the SRQ share is scarcer than the pool as a whole, it is what counts:
    /// its slabs are all that small messages have.
    #[inline]
    fn pool_view(&self) -> PoolView {
        let total = self.pool.total();
        let mut available = self.pool.free() + self.srq.posted();
        let small_held = self.small_held_slabs();
        let share = self.config.srq_slabs;
        if small_held * 2 > share {
            let left = u64::from(share.saturating_sub(small_held)) * u64::from(total) / u64::from(share);
            available = available.min(u32::try_from(left).unwrap_or(NONE));
        }
        if self.waits_for_room {
            // Danger is for a pool that is used up; this is one that others hold, or have posted.
            let safe = u64::from(total) * u64::from(self.config.escape.thresholds.safe_permille);
            available = available.min(u32::try_from(safe.saturating_sub(1) / 1000).unwrap_or(NONE));
        }
        // Escape memory that is not there counts as used: then copying is next.
        let replaced_slabs = self.pool.replaced_or_missing(self.config.escape.replace_slabs_max);
        PoolView { available_slabs: available, total_slabs: total, replaced_slabs }
    }

    /// The pressure now.
    pub(super) fn read_pressure(&self) -> Pressure {
        let view = self.pool_view();
        let before = self.escape.pressure();
        self.config.escape.thresholds.read(before, view.available_slabs, view.total_slabs)
    }

    /// Evaluates Algorithm 1, if it is time.
    #[inline]
    pub(super) fn relieve(&mut self, now_ns: u64, effects: &mut impl Effects) {
        let used = self.pool.escape_used();
        if used != self.meter.used {
            self.meter.note(now_ns, used);
        }
        if now_ns < self.next_evaluation_ns {
            return;
        }
        let before = self.escape.pressure();
        let under_pressure = self.escape.begin(self.attended_ns(now_ns), self.pool_view());
        if under_pressure || before != Pressure::Ok || self.marking {
            self.evaluate(now_ns, under_pressure, before, effects);
        }
    }

    #[cold]
    fn evaluate(&mut self, now_ns: u64, under_pressure: bool, before: Pressure, effects: &mut impl Effects) {
        let pressure = self.escape.pressure();
        self.stats.escape.dangers += u64::from(pressure == Pressure::Danger && before != Pressure::Danger);
        if pressure == Pressure::Ok && core::mem::take(&mut self.marking) {
            effects.mark(false);
        }
        if !under_pressure {
            return;
        }
        self.stats.escape.evaluations += 1;
        self.next_evaluation_ns = now_ns + EVALUATION_NS;
        let attended_ns = self.attended_ns(now_ns);
        while let Some(action) = self.escape.next(attended_ns, self.pool_view()) {
            match action {
                Action::Replace { session, slot, .. } => self.replace(session, slot),
                // As many as there may be are under way: the end of one is when to go on.
                Action::Copy { .. } if self.free_copies.is_empty() => break,
                Action::Copy { session, slot, .. } => self.begin_copy(session, slot, effects),
                // Copies under way are yet to show what they free.
                Action::Mark if self.free_copies.len() < self.copies.len() => {}
                Action::Mark => self.mark(now_ns, effects),
            }
        }
        let used = self.pool.escape_used();
        self.meter.note(now_ns, used);
    }

    fn replace(&mut self, session: u32, slot: u16) {
        let owner = &mut self.sessions[session as usize];
        let entry = &mut owner.slots[usize::from(slot)];
        let held = entry.held;
        let count = held.count_ones();
        // Where slices were released already, the rest need not be one run.
        let run = Run { first: entry.run.first, count };
        // Without escape memory (none could be had, or stand-ins are still in use) the straggler stays, and is offered
        // again in the next evaluation.
        if entry.copying || !self.pool.replace(run, entry.share) {
            return;
        }
        (entry.share, entry.plain) = (Share::Replaced, false);
        owner.now.replaced += count;
        owner.escaped.replaced += u64::from(count);
        self.stats.escape.replaced_total += u64::from(count);
        self.escape.remove(session, slot);
    }

    fn begin_copy(&mut self, session: u32, slot: u16, effects: &mut impl Effects) {
        let owner = &self.sessions[session as usize];
        let entry = &owner.slots[usize::from(slot)];
        if entry.held != entry.all() {
            // Slices of it were taken, so it is being read.
            self.stats.escape.copies_pinned += 1;
            return;
        }
        let from = entry.run;
        if self.pool.is_retired(from) {
            // There is nothing left that could be copied.
            self.stats.escape.copies_failed += 1;
            return;
        }
        let generation = entry.generation;
        let Some(id) = self.free_copies.pop() else { return };
        let to = match self.pool.take_memory(from.count, Share::Copied) {
            Some(to) if to.count == from.count => to,
            short => {
                if let Some(run) = short {
                    self.pool.give(run, Share::Copied);
                }
                self.free_copies.push(id);
                self.stats.escape.copies_failed += 1;
                return;
            }
        };
        let copy =
            Copy { id: CopyId(id), session: SessionId(session), slot: u32::from(slot), generation, from, to };
        match effects.begin_copy(&copy) {
            Ok(()) => {
                self.copies[id as usize] = Some(copy);
                let owner = &mut self.sessions[session as usize];
                let entry = &mut owner.slots[usize::from(slot)];
                (entry.copying, entry.plain) = (true, false);
                owner.copies += 1;
                self.escape.copying(session, slot);
            }
            Err(refused) => {
                self.pool.give(to, Share::Copied);
                self.free_copies.push(id);
                match refused {
                    CopyRefused::Pinned => self.stats.escape.copies_pinned += 1,
                    CopyRefused::NoRoom => self.stats.escape.copies_failed += 1,
                }
            }
        }
    }

    /// A copy is over. `ok`: the bytes are there, unless one of the two places was lost meanwhile, as
    /// [`Self::handle_poisoned`] was told; else one of them cannot be read or written, as it was told, too.
    pub fn handle_copied(&mut self, now_ns: u64, id: CopyId, ok: bool, effects: &mut impl Effects) {
        let copy = self.copies[id.0 as usize].take().expect("only a copy that was begun ends");
        self.free_copies.push(id.0);
        // Others may wait for the place in the queue.
        self.next_evaluation_ns = self.next_evaluation_ns.min(now_ns);
        let Copy { session: SessionId(session), slot, from, to, .. } = copy;
        // Whoever copied may have found zeros, or have written where nobody else can read.
        let ok = ok && !self.pool.is_retired(from) && !self.pool.is_retired(to);
        let owner = &mut self.sessions[session as usize];
        owner.copies -= 1;
        let is_open = self.registry.is_open(session);
        let entry = &mut owner.slots[slot as usize];
        entry.copying = false;
        if !is_open {
            // The application died meanwhile: what it held is in quarantine.
            self.pool.give(to, Share::Copied);
            return;
        }
        let number = u16::try_from(slot).expect("below session_slots");
        if ok && entry.held == entry.all() && effects.relocate(&copy) {
            let share = core::mem::replace(&mut entry.share, Share::Copied);
            entry.run = to;
            owner.now.copied += to.count;
            owner.escaped.copied += u64::from(to.count);
            self.stats.escape.copied_total += u64::from(to.count);
            self.escape.remove(session, number);
            self.pool.give(from, share);
            return;
        }
        if ok {
            self.stats.escape.copies_pinned += 1;
        } else {
            self.stats.escape.copies_failed += 1;
        }
        self.pool.give(to, Share::Copied);
        self.escape.not_copied(session, number);
        // What was released meanwhile comes back now.
        let owner = &mut self.sessions[session as usize];
        let entry = &mut owner.slots[slot as usize];
        let released = entry.all() & !entry.held;
        let share = entry.share;
        entry.plain = self.pool.is_plain(from, share);
        for_each_stretch(released, from.first, |run| self.pool.give(run, share));
        if entry.held == 0 {
            entry.message = NONE;
            owner.free_slots.push(number);
            self.deliver_backlog(now_ns, session, effects);
        }
        if !ok {
            // Jet §4.3: "Data copy does not work because of exceptions."
            self.mark(now_ns, effects);
        }
    }

    fn mark(&mut self, now_ns: u64, effects: &mut impl Effects) {
        self.stats.escape.marks += 1;
        if !core::mem::replace(&mut self.marking, true) {
            effects.mark(true);
        }
        if !self.config.signals {
            return;
        }
        let is_slow = |receiver: &Self, peer: u32| {
            receiver.registry.session_of(peer).is_some_and(|session| receiver.escape.is_slow(session))
        };
        let mut looks = self.credit.active_count().min(LOOKS_MAX);
        let any_slow = (0..self.config.sessions_max).any(|session| self.escape.is_slow(session));
        let mut signalled = 0;
        while looks > 0 && signalled < SIGNALS_MAX {
            looks -= 1;
            self.signal_cursor =
                if self.signal_cursor + 1 < self.credit.active_count() { self.signal_cursor + 1 } else { 0 };
            let Some(peer) = self.credit.active_at(self.signal_cursor) else { return };
            if !self.ends.may_signal(peer, now_ns) || (any_slow && !is_slow(self, peer)) {
                continue;
            }
            signalled += 1;
            self.stats.escape.signals += 1;
            let header = CongestionHeader::encode(SIGNAL_PERMILLE);
            self.ends.signal(peer, now_ns, &header, effects);
        }
    }

    /// When Algorithm 1 is to be evaluated though nothing happens: runs become stragglers by waiting.
    pub(super) fn next_idle_evaluation_ns(&self) -> Option<u64> {
        (self.config.escape.enabled && (self.waits_for_room || self.escape.pressure() != Pressure::Ok))
            .then_some(self.ends.spoke_ns() + IDLE_EVALUATION_NS)
    }

    /// A small message that has to wait for a slot goes to memory where the cache is scarce: its SRQ slab is free again.
    ///
    /// # Errors
    /// [`CopyFailed::Source`]: it cannot be read.
    pub(super) fn keep_in_memory(
        &mut self,
        now_ns: u64,
        session: u32,
        slab: u32,
        bytes: u32,
        effects: &mut impl Effects,
    ) -> Result<Option<u32>, CopyFailed> {
        let wanted = self.config.escape.enabled && !self.holds_its_memory(session);
        if !wanted || self.read_pressure() == Pressure::Ok {
            return Ok(None);
        }
        let Some(run) = self.pool.take_memory(1, Share::Copied) else { return Ok(None) };
        if let Err(failed) = effects.copy_slab(slab, run.first, bytes) {
            self.stats.escape.copies_failed += 1;
            self.pool.give(run, Share::Copied);
            self.mark(now_ns, effects);
            return if failed == CopyFailed::Source { Err(failed) } else { Ok(None) };
        }
        self.stats.escape.copied_total += 1;
        self.sessions[session as usize].now.copied += 1;
        self.sessions[session as usize].escaped.copied += 1;
        self.give_small(slab);
        Ok(Some(run.first))
    }
}

/// The stretches of set bits, as runs from `first` on.
pub(super) fn for_each_stretch(bits: u64, first: u32, mut each: impl FnMut(Run)) {
    let mut left = bits;
    let mut at = 0;
    while left != 0 {
        let gap = left.trailing_zeros();
        left >>= gap;
        at += gap;
        let count = left.trailing_ones();
        each(Run { first: first + at, count });
        left = left.checked_shr(count).unwrap_or(0);
        at += count;
    }
}

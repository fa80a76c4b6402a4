//! Escape: carries out what Algorithm 1 decides (Jet §4.3).
//!
//! Replacing is bookkeeping in the pool. Copies are made by the driver, which reports their end. Until then
//! neither the slot nor the slabs of either place are used for anything else, whatever the application does
//! meanwhile. This module does not know which senders to signal: it returns [`Step::Mark`], and the receiver
//! signals them.

use crate::config::Config;
use crate::effects::{Commands, CopyFailed, CopyId, CopyRefused, EscapeCopy, Questions, SessionId};
use crate::index::NONE;
use crate::pool::{Pool, Run, Share};
use crate::slots::Slots;
use crate::stats::EscapeStats;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use jet_escape::{Action, Escape as Algorithm, PoolView, Pressure, Thresholds};

/// Nanoseconds between two evaluations of Algorithm 1 under pressure. With 1,000 sessions an evaluation costs
/// 2 us, so at most 4 % of a core.
const EVALUATION_NS: u64 = 50_000;
/// Nanoseconds between two evaluations of Algorithm 1 when nothing else happens: a fraction of the
/// straggler's time.
const IDLE_EVALUATION_NS: u64 = 500_000;

/// A meter of how much escape memory was in use for how long.
#[derive(Clone, Copy, Debug, Default)]
struct MemoryMeter {
    used: u32,
    since_ns: u64,
    slab_us: u64,
}

impl MemoryMeter {
    fn note(&mut self, now_ns: u64, used: u32) {
        let span_us = now_ns.saturating_sub(self.since_ns) / 1000;
        self.slab_us += u64::from(self.used) * span_us;
        self.since_ns += span_us * 1000;
        self.used = used;
        if used == 0 {
            self.since_ns = now_ns;
        }
    }
}

/// Slabs of a session's messages that escape has moved or replaced, one count for each kind of action.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Escaped<N> {
    pub copied: N,
    pub replaced: N,
    /// Slabs of escape memory that were taken instead of waiting for room in the pool.
    pub spilled: N,
}

impl Escaped<u32> {
    /// Returns the slabs that lie in escape memory.
    #[inline]
    pub fn memory(&self) -> u32 {
        self.copied + self.spilled
    }

    /// Subtracts released slabs from the count of their share.
    fn give(&mut self, slabs: u32, share: Share) {
        match share {
            Share::Copied => self.copied -= slabs,
            Share::Spilled => self.spilled -= slabs,
            Share::Replaced => self.replaced -= slabs,
            Share::Srq | Share::Read => {}
        }
    }
}

/// Slabs of one session that escape has moved or replaced, and the copies of its runs that are under way.
#[derive(Clone, Copy, Debug, Default)]
struct SessionEscape {
    /// Slabs that escaped, of the runs that the session holds now and of what is being read for it.
    now: Escaped<u32>,
    so_far: Escaped<u64>,
    /// Copies of the session's runs under way.
    copies: u32,
}

/// Demand on the pool that its free slabs do not show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// Slabs that are posted to the SRQ.
    pub posted: u32,
    /// Whether a session is granted nothing because the pool has no room for what waits. That is pressure,
    /// however many slabs are posted.
    pub waits_for_room: bool,
}

/// Request that an evaluation of Algorithm 1 makes to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Congestion is to be marked. More steps may follow.
    Mark,
    /// Nothing more is to be done now.
    Done,
}

/// Result of a copy that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub session: u32,
    /// Whether the run's slot became free, because the application holds nothing of the run any more.
    pub slot_is_free: bool,
    /// Whether congestion is to be marked. Jet §4.3: "Data copy does not work because of exceptions."
    pub marks: bool,
}

/// Algorithm 1 of Jet §4.3, and what is needed to carry out its actions.
#[derive(Debug)]
pub(crate) struct Escape {
    algorithm: Algorithm,
    enabled: bool,
    thresholds: Thresholds,
    replace_slabs_max: u32,
    srq_slabs: u32,
    /// The most slabs of escape memory that one session may hold; `None` where no limit applies.
    session_memory_slabs: Option<u32>,
    sessions: Box<[SessionEscape]>,
    next_evaluation_ns: u64,
    copies: Box<[Option<EscapeCopy>]>,
    free_copies: Vec<u32>,
    meter: MemoryMeter,
    /// Whether the NIC marks congestion earlier than it usually does.
    marking: bool,
    counts: EscapeStats,
}

impl Escape {
    /// Creates an escape where nothing is held and nothing is scarce.
    pub fn new(config: &Config) -> Self {
        let has_limit = config.escape.enabled && config.memory_slabs > 0;
        Self {
            algorithm: Algorithm::new(config.escape, config.sessions_max, config.session_slots),
            enabled: config.escape.enabled,
            thresholds: config.escape.thresholds,
            replace_slabs_max: config.escape.replace_slabs_max,
            srq_slabs: config.srq_slabs,
            session_memory_slabs: has_limit.then_some(config.session_memory_slabs),
            sessions: vec![SessionEscape::default(); config.sessions_max as usize].into_boxed_slice(),
            next_evaluation_ns: 0,
            copies: vec![None; config.copies_max as usize].into_boxed_slice(),
            free_copies: (0..config.copies_max).rev().collect(),
            meter: MemoryMeter::default(),
            marking: false,
            counts: EscapeStats::default(),
        }
    }

    #[inline]
    fn owner(&mut self, session: u32) -> &mut SessionEscape {
        &mut self.sessions[session as usize]
    }

    /// Notes a run that was delivered.
    #[inline]
    pub fn hold(
        &mut self,
        session: u32,
        slot: u16,
        slabs: u32,
        share: Share,
        cached_in_budget: bool,
        stall_free_ns: u64,
    ) {
        self.algorithm.hold(session, slot, slabs, stall_free_ns);
        if !cached_in_budget && !share.in_budget() {
            // The run lies in memory already, so there is nothing to escape from: only the time is kept.
            self.algorithm.remove(session, slot);
        }
    }

    /// Returns the time since when a slot's run has been held.
    #[inline]
    pub fn since_ns(&self, session: u32, slot: u16) -> u64 {
        self.algorithm.since_ns(session, slot)
    }

    /// Notes slabs of the cache that were released. Returns the time since when their run has been held.
    #[inline]
    pub fn release(&mut self, session: u32, slot: u16, slabs: u32) -> u64 {
        self.algorithm.release(session, slot, slabs)
    }

    /// Notes released slabs of a run that escaped, lies in a stand-in, or is being copied.
    #[cold]
    pub fn release_escaped(&mut self, session: u32, slot: u16, slabs: u32, share: Share) {
        if share.in_budget() {
            self.algorithm.release(session, slot, slabs);
        } else {
            self.owner(session).now.give(slabs, share);
        }
    }

    /// Notes slabs of escape memory that a READ of the session takes instead of waiting.
    pub fn spill(&mut self, session: u32, slabs: u32) {
        let owner = self.owner(session);
        owner.now.spilled += slabs;
        owner.so_far.spilled += u64::from(slabs);
        self.counts.spilled_total += u64::from(slabs);
    }

    /// Notes slabs of escape memory that come back without having been delivered.
    pub fn give_up(&mut self, session: u32, slabs: u32, share: Share) {
        self.owner(session).now.give(slabs, share);
    }

    /// Returns the pressure at the last evaluation.
    #[inline]
    pub fn pressure(&self) -> Pressure {
        self.algorithm.pressure()
    }

    /// Returns whether most of what the session holds are stragglers.
    #[inline]
    pub fn is_slow(&self, session: u32) -> bool {
        self.algorithm.is_slow(session)
    }

    /// Returns whether any session is slow.
    pub fn any_slow(&self) -> bool {
        (0u32..).zip(self.sessions.iter()).any(|(session, _)| self.is_slow(session))
    }

    /// Returns the slabs of the cache that the session holds.
    #[inline]
    pub fn held_in_cache(&self, session: u32) -> u32 {
        self.algorithm.held_slabs(session)
    }

    /// Returns the slabs that the session holds, wherever they lie.
    pub fn held_slabs(&self, session: u32) -> u32 {
        let now = &self.sessions[session as usize].now;
        self.algorithm.held_slabs(session) + now.replaced + now.memory()
    }

    /// Returns the most slabs of the cache that any one session holds.
    pub fn most_held_in_cache(&self) -> u32 {
        let held = (0u32..).zip(self.sessions.iter()).map(|(session, _)| self.held_in_cache(session));
        held.max().unwrap_or(0)
    }

    /// Returns the slabs of the cache that the session's stragglers hold.
    pub fn straggler_slabs(&self, session: u32) -> u32 {
        self.algorithm.straggler_slabs(session)
    }

    /// Returns the slabs of the cache that all stragglers hold.
    pub fn all_straggler_slabs(&self) -> u32 {
        (0u32..).zip(self.sessions.iter()).map(|(session, _)| self.straggler_slabs(session)).sum()
    }

    /// Returns the straggler's time now, in nanoseconds: a run held for longer is a straggler.
    pub fn straggler_ns(&self) -> u64 {
        self.algorithm.straggler_ns()
    }

    /// Returns how many slabs of the runs that the session holds now were copied, replaced or spilled.
    #[inline]
    pub fn escaped(&self, session: u32) -> Escaped<u32> {
        self.sessions[session as usize].now
    }

    /// Returns how many slabs of the session were copied, replaced or spilled since it was opened.
    pub fn escaped_so_far(&self, session: u32) -> Escaped<u64> {
        self.sessions[session as usize].so_far
    }

    /// Returns whether the session holds as much escape memory as one session may.
    #[inline]
    pub fn holds_its_memory(&self, session: u32) -> bool {
        self.session_memory_slabs.is_some_and(|most| self.sessions[session as usize].now.memory() >= most)
    }

    /// Returns whether copies of the session's runs are under way.
    pub fn is_copying(&self, session: u32) -> bool {
        self.sessions[session as usize].copies > 0
    }

    /// Notes that the session is over.
    pub fn close(&mut self, session: u32) {
        self.algorithm.close(session);
    }

    /// Makes the session's number ready for another application.
    pub fn reset(&mut self, session: u32) {
        let owner = self.owner(session);
        (owner.now, owner.so_far) = (Escaped::default(), Escaped::default());
    }

    /// Counts stragglers and the use of escape memory, once per tick.
    pub fn tick(&mut self, now_ns: u64, stall_free_ns: u64, pool: &Pool) {
        self.algorithm.count_stragglers(stall_free_ns);
        self.meter.note(now_ns, pool.escape_used());
    }

    /// Returns the slabs as Algorithm 1 sees them. Where the SRQ share is scarcer than the pool as a whole,
    /// the SRQ share counts: small messages have no other slabs.
    #[inline]
    fn view(&self, pool: &Pool, demand: Demand) -> PoolView {
        let total = pool.total();
        let mut available = pool.free() + demand.posted;
        let small_held = pool.srq_used() - demand.posted;
        let share = self.srq_slabs;
        if small_held * 2 > share {
            let left = u64::from(share.saturating_sub(small_held)) * u64::from(total) / u64::from(share);
            available = available.min(u32::try_from(left).unwrap_or(NONE));
        }
        if demand.waits_for_room {
            // Danger is for a pool that is used up. This pool has slabs that other sessions hold, or that are
            // posted.
            let safe = u64::from(total) * u64::from(self.thresholds.safe_permille);
            available = available.min(u32::try_from(safe.saturating_sub(1) / 1000).unwrap_or(NONE));
        }
        // Escape memory that is not there counts as used, so that Algorithm 1 copies next.
        let replaced_slabs = pool.replaced_or_missing(self.replace_slabs_max);
        PoolView { available_slabs: available, total_slabs: total, replaced_slabs }
    }

    /// Returns the pressure now.
    pub fn read_pressure(&self, pool: &Pool, demand: Demand) -> Pressure {
        let view = self.view(pool, demand);
        self.thresholds.read(self.pressure(), view.available_slabs, view.total_slabs)
    }

    /// Begins an evaluation of Algorithm 1, if it is time. Returns whether there are steps to take.
    #[inline]
    pub fn begin(
        &mut self,
        now_ns: u64,
        stall_free_ns: u64,
        pool: &Pool,
        demand: Demand,
        effects: &mut (impl Commands + Questions),
    ) -> bool {
        let used = pool.escape_used();
        if used != self.meter.used {
            self.meter.note(now_ns, used);
        }
        if now_ns < self.next_evaluation_ns {
            return false;
        }
        let before = self.pressure();
        let under_pressure = self.algorithm.begin(stall_free_ns, self.view(pool, demand));
        (under_pressure || before != Pressure::Ok || self.marking)
            && self.begin_evaluation(now_ns, under_pressure, before, effects)
    }

    #[cold]
    fn begin_evaluation(
        &mut self,
        now_ns: u64,
        under_pressure: bool,
        before: Pressure,
        effects: &mut (impl Commands + Questions),
    ) -> bool {
        let pressure = self.pressure();
        self.counts.dangers += u64::from(pressure == Pressure::Danger && before != Pressure::Danger);
        if pressure == Pressure::Ok && core::mem::take(&mut self.marking) {
            effects.mark(false);
        }
        if under_pressure {
            self.counts.evaluations += 1;
            self.next_evaluation_ns = now_ns + EVALUATION_NS;
        }
        under_pressure
    }

    /// Continues an evaluation of Algorithm 1 until the caller has to do something, or the evaluation is
    /// over.
    pub fn continue_run(
        &mut self,
        now_ns: u64,
        stall_free_ns: u64,
        demand: Demand,
        (pool, slots): (&mut Pool, &mut Slots),
        effects: &mut (impl Commands + Questions),
    ) -> Step {
        while let Some(action) = self.algorithm.next(stall_free_ns, self.view(pool, demand)) {
            match action {
                Action::Replace { session, slot, .. } => self.replace(session, slot, pool, slots),
                // As many copies as there may be are under way: the evaluation continues when one ends.
                Action::Copy { .. } if self.free_copies.is_empty() => break,
                Action::Copy { session, slot, .. } => self.begin_copy(session, slot, pool, slots, effects),
                // It is not known yet what the copies under way will free.
                Action::Mark if self.free_copies.len() < self.copies.len() => {}
                Action::Mark => return Step::Mark,
            }
        }
        self.meter.note(now_ns, pool.escape_used());
        Step::Done
    }

    fn replace(&mut self, session: u32, slot: u16, pool: &mut Pool, slots: &mut Slots) {
        let held = slots.movable_run(session, slot);
        // Where slices were released already, the rest need not be one run.
        let run = Run { first: held.run.first, count: held.held_slabs };
        // Without escape memory (none was available, or stand-ins are still in use) the straggler stays, and
        // is offered again in the next evaluation.
        if held.copying || !pool.replace(run, held.share) {
            return;
        }
        slots.replaced(session, slot);
        let owner = self.owner(session);
        owner.now.replaced += run.count;
        owner.so_far.replaced += u64::from(run.count);
        self.counts.replaced_total += u64::from(run.count);
        self.algorithm.remove(session, slot);
    }

    fn begin_copy(
        &mut self,
        session: u32,
        slot: u16,
        pool: &mut Pool,
        slots: &mut Slots,
        effects: &mut (impl Commands + Questions),
    ) {
        let held = slots.movable_run(session, slot);
        if !held.whole {
            // Slices of the run were released, so the application is reading it.
            self.counts.copies_pinned += 1;
            return;
        }
        let from = held.run;
        if pool.is_retired(from) {
            // Nothing is left that could be copied.
            self.counts.copies_failed += 1;
            return;
        }
        let Some(id) = self.free_copies.pop() else { return };
        let to = match pool.take_memory(from.count, Share::Copied) {
            Some(to) if to.count == from.count => to,
            short => {
                if let Some(run) = short {
                    pool.give(run, Share::Copied);
                }
                self.free_copies.push(id);
                self.counts.copies_failed += 1;
                return;
            }
        };
        let copy = EscapeCopy {
            id: CopyId(id),
            session: SessionId(session),
            slot: u32::from(slot),
            generation: held.generation,
            from,
            to,
        };
        match effects.begin_copy(&copy) {
            Ok(()) => {
                self.copies[id as usize] = Some(copy);
                slots.begin_copy(session, slot);
                self.owner(session).copies += 1;
                self.algorithm.copying(session, slot);
            }
            Err(refused) => {
                pool.give(to, Share::Copied);
                self.free_copies.push(id);
                match refused {
                    CopyRefused::Pinned => self.counts.copies_pinned += 1,
                    CopyRefused::NoRoom => self.counts.copies_failed += 1,
                }
            }
        }
    }

    /// Ends a copy. `ok`: the bytes were copied. `is_open`: tells whether a session is open; slabs that an
    /// ended session held are in quarantine.
    pub fn end_copy(
        &mut self,
        now_ns: u64,
        (id, ok): (CopyId, bool),
        is_open: impl FnOnce(u32) -> bool,
        (pool, slots): (&mut Pool, &mut Slots),
        effects: &mut (impl Commands + Questions),
    ) -> Copied {
        let copy = self.copies[id.0 as usize].take().expect("only a copy that was begun ends");
        self.free_copies.push(id.0);
        // Other runs may wait for the copy's place.
        self.next_evaluation_ns = self.next_evaluation_ns.min(now_ns);
        let EscapeCopy { session: SessionId(session), from, to, .. } = copy;
        let slot = u16::try_from(copy.slot).expect("below session_slots");
        // The worker that copied may have found zeros, or have written where nobody else can read.
        let ok = ok && !pool.is_retired(from) && !pool.is_retired(to);
        self.owner(session).copies -= 1;
        slots.end_copy(session, slot);
        let nothing = Copied { session, slot_is_free: false, marks: false };
        if !is_open(session) {
            pool.give(to, Share::Copied);
            return nothing;
        }
        let held = slots.movable_run(session, slot);
        if ok && held.whole && effects.relocate(&copy) {
            slots.moved(session, slot, to);
            let owner = self.owner(session);
            owner.now.copied += to.count;
            owner.so_far.copied += u64::from(to.count);
            self.counts.copied_total += u64::from(to.count);
            self.algorithm.remove(session, slot);
            pool.give(from, held.share);
            return nothing;
        }
        if ok {
            self.counts.copies_pinned += 1;
        } else {
            self.counts.copies_failed += 1;
        }
        pool.give(to, Share::Copied);
        self.algorithm.not_copied(session, slot);
        // What was released meanwhile comes back now.
        let cached_in_budget = pool.is_cached_in_budget(from, held.share);
        let slot_is_free = slots.stays(session, slot, cached_in_budget, |run| pool.give(run, held.share));
        Copied { slot_is_free, marks: !ok, ..nothing }
    }

    /// Counts a mark of congestion, and has the NIC mark congestion earlier unless it does so already.
    pub fn mark(&mut self, effects: &mut (impl Commands + Questions)) {
        self.counts.marks += 1;
        if !core::mem::replace(&mut self.marking, true) {
            effects.mark(true);
        }
    }

    /// Counts a congestion signal that was sent.
    pub fn count_signal(&mut self) {
        self.counts.signals += 1;
    }

    /// Returns when Algorithm 1 is to be evaluated if nothing else happens: runs become stragglers by
    /// waiting. `None` while that is not needed.
    pub fn next_idle_evaluation_ns(&self, flushed_ns: u64, waits_for_room: bool) -> Option<u64> {
        (self.enabled && (waits_for_room || self.pressure() != Pressure::Ok))
            .then_some(flushed_ns + IDLE_EVALUATION_NS)
    }

    /// Moves a small message that has to wait for a slot to escape memory, where the cache is scarce; its
    /// slab comes back. Returns the slab of escape memory, or `None` if the message stays.
    ///
    /// # Errors
    /// [`CopyFailed`], upon which congestion is to be marked. [`CopyFailed::Source`]: the message cannot be
    /// read.
    pub fn keep_in_memory(
        &mut self,
        session: u32,
        (slab, bytes): (u32, u32),
        demand: Demand,
        pool: &mut Pool,
        effects: &mut (impl Commands + Questions),
    ) -> Result<Option<u32>, CopyFailed> {
        let wanted = self.enabled && !self.holds_its_memory(session);
        if !wanted || self.read_pressure(pool, demand) == Pressure::Ok {
            return Ok(None);
        }
        let Some(run) = pool.take_memory(1, Share::Copied) else { return Ok(None) };
        if let Err(failed) = effects.copy_slab(slab, run.first, bytes) {
            self.counts.copies_failed += 1;
            pool.give(run, Share::Copied);
            return Err(failed);
        }
        self.counts.copied_total += 1;
        let owner = self.owner(session);
        owner.now.copied += 1;
        owner.so_far.copied += 1;
        pool.give(Run { first: slab, count: 1 }, Share::Srq);
        Ok(Some(run.first))
    }

    /// Returns the counters, and the current state of escape memory.
    pub fn stats(&self, pool: &Pool) -> EscapeStats {
        EscapeStats {
            enabled: self.enabled,
            memory_slabs: pool.escape_slabs(),
            memory_ready: pool.escape_ready(),
            memory_used: pool.escape_used(),
            memory_used_max: pool.escape_used_max(),
            memory_retired: pool.retired_unused().1,
            memory_used_slab_ms: self.meter.slab_us / 1000,
            replaced_now: pool.replaced(),
            copied_now: pool.copied(),
            straggler_ns: self.straggler_ns(),
            spilled_now: pool.spilled(),
            copies_in_flight: u32::try_from(self.copies.len() - self.free_copies.len()).unwrap_or(NONE),
            ..self.counts
        }
    }
}

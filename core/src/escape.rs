//! Escape: carries out what Algorithm 1 says (Jet §4.3).
//!
//! Replace is bookkeeping in the pool. Copies are made by the driver, and are over when it says so: until
//! then neither the slot nor the slabs of either place are used for anything else, whatever the application
//! does meanwhile. Whom congestion is marked to is not known here: that is said as a value.

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

/// Between two evaluations under pressure: with 1,000 sessions an evaluation costs 2 us, so at most 4 % of a
/// core.
const EVALUATION_NS: u64 = 50_000;
/// Between two evaluations when nothing else happens: a fraction of the time that makes a straggler.
const IDLE_EVALUATION_NS: u64 = 500_000;

/// How much escape memory was in use for how long.
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

/// Slabs of a session's messages that escaped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Escaped<N> {
    pub copied: N,
    pub replaced: N,
    /// Taken from memory instead of waiting.
    pub granted: N,
}

impl Escaped<u32> {
    /// In memory.
    #[inline]
    pub fn memory(&self) -> u32 {
        self.copied + self.granted
    }

    /// So many were released.
    fn give(&mut self, slabs: u32, share: Share) {
        match share {
            Share::Copied => self.copied -= slabs,
            Share::Granted => self.granted -= slabs,
            Share::Replaced => self.replaced -= slabs,
            Share::Srq | Share::Read => {}
        }
    }
}

/// What escaped of one session.
#[derive(Clone, Copy, Debug, Default)]
struct SessionEscape {
    /// Of that which it holds, and of what is being read for it.
    now: Escaped<u32>,
    so_far: Escaped<u64>,
    /// Copies of its runs under way.
    copies: u32,
}

/// What the pool is scarce of, beside free slabs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// Slabs that are posted.
    pub posted: u32,
    /// A session is granted nothing because the pool has no room for what waits: pressure, however many slabs
    /// are posted.
    pub waits_for_room: bool,
}

/// What an evaluation wants of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Congestion is to be marked. There may be more to do.
    Mark,
    /// Nothing more now.
    Done,
}

/// How a copy ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub session: u32,
    /// The slot came free: nothing is held of it any more.
    pub slot_is_free: bool,
    /// Congestion is to be marked. Jet §4.3: "Data copy does not work because of exceptions."
    pub marks: bool,
}

/// Algorithm 1 carried out.
#[derive(Debug)]
pub(crate) struct Escape {
    algorithm: Algorithm,
    enabled: bool,
    thresholds: Thresholds,
    replace_slabs_max: u32,
    srq_slabs: u32,
    /// Slabs of memory that one session may hold; `None`: no limit is looked at.
    session_memory_slabs: Option<u32>,
    sessions: Box<[SessionEscape]>,
    next_evaluation_ns: u64,
    copies: Box<[Option<EscapeCopy>]>,
    free_copies: Vec<u32>,
    meter: MemoryMeter,
    /// The NIC marks earlier than it usually does.
    marking: bool,
    counts: EscapeStats,
}

impl Escape {
    /// Nothing is held, and nothing scarce.
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

    /// A run was delivered.
    #[inline]
    pub fn hold(&mut self, session: u32, slot: u16, slabs: u32, share: Share, plain: bool, attended_ns: u64) {
        self.algorithm.hold(session, slot, slabs, attended_ns);
        if !plain && !share.in_budget() {
            // In memory already: nothing to escape from, only the time is kept.
            self.algorithm.remove(session, slot);
        }
    }

    /// Since when a slot's run is held.
    #[inline]
    pub fn since_ns(&self, session: u32, slot: u16) -> u64 {
        self.algorithm.since_ns(session, slot)
    }

    /// Slabs of the cache came back.
    #[inline]
    pub fn release(&mut self, session: u32, slot: u16, slabs: u32) {
        self.algorithm.release(session, slot, slabs);
    }

    /// Slabs came back of a run that escaped, lies in a slab that stands in for another, or is being copied.
    #[cold]
    pub fn release_escaped(&mut self, session: u32, slot: u16, slabs: u32, share: Share) {
        if share.in_budget() {
            self.algorithm.release(session, slot, slabs);
        } else {
            self.owner(session).now.give(slabs, share);
        }
    }

    /// Slabs of memory were taken for a READ of the session instead of waiting.
    pub fn grant(&mut self, session: u32, slabs: u32) {
        let owner = self.owner(session);
        owner.now.granted += slabs;
        owner.so_far.granted += u64::from(slabs);
        self.counts.granted_total += u64::from(slabs);
    }

    /// Slabs of memory came back that were never delivered.
    pub fn give_up(&mut self, session: u32, slabs: u32, share: Share) {
        self.owner(session).now.give(slabs, share);
    }

    /// The pressure when it was read last.
    #[inline]
    pub fn pressure(&self) -> Pressure {
        self.algorithm.pressure()
    }

    /// Whether most of what the session holds are stragglers.
    #[inline]
    pub fn is_slow(&self, session: u32) -> bool {
        self.algorithm.is_slow(session)
    }

    /// Whether any session is slow.
    pub fn any_slow(&self) -> bool {
        (0u32..).zip(self.sessions.iter()).any(|(session, _)| self.is_slow(session))
    }

    /// Slabs of the cache that the session holds.
    #[inline]
    pub fn held_in_cache(&self, session: u32) -> u32 {
        self.algorithm.held_slabs(session)
    }

    /// Slabs that it holds, wherever they lie.
    pub fn held_slabs(&self, session: u32) -> u32 {
        let now = &self.sessions[session as usize].now;
        self.algorithm.held_slabs(session) + now.replaced + now.memory()
    }

    /// The most slabs of the cache that one session holds.
    pub fn most_held_in_cache(&self) -> u32 {
        let held = (0u32..).zip(self.sessions.iter()).map(|(session, _)| self.held_in_cache(session));
        held.max().unwrap_or(0)
    }

    /// Slabs of the cache that its stragglers hold.
    pub fn straggler_slabs(&self, session: u32) -> u32 {
        self.algorithm.straggler_slabs(session)
    }

    /// Slabs of the cache that all stragglers hold.
    pub fn all_straggler_slabs(&self) -> u32 {
        (0u32..).zip(self.sessions.iter()).map(|(session, _)| self.straggler_slabs(session)).sum()
    }

    /// What is held for as long is a straggler now.
    pub fn straggler_ns(&self) -> u64 {
        self.algorithm.straggler_ns()
    }

    /// What escaped of that which the session holds.
    #[inline]
    pub fn escaped(&self, session: u32) -> Escaped<u32> {
        self.sessions[session as usize].now
    }

    /// What escaped of the session so far.
    pub fn escaped_so_far(&self, session: u32) -> Escaped<u64> {
        self.sessions[session as usize].so_far
    }

    /// It holds as much memory as one session may.
    #[inline]
    pub fn holds_its_memory(&self, session: u32) -> bool {
        self.session_memory_slabs.is_some_and(|most| self.sessions[session as usize].now.memory() >= most)
    }

    /// Whether copies of its runs are under way.
    pub fn is_copying(&self, session: u32) -> bool {
        self.sessions[session as usize].copies > 0
    }

    /// The session is over.
    pub fn close(&mut self, session: u32) {
        self.algorithm.close(session);
    }

    /// Ready for another application.
    pub fn reset(&mut self, session: u32) {
        let owner = self.owner(session);
        (owner.now, owner.so_far) = (Escaped::default(), Escaped::default());
    }

    /// A tick passed.
    pub fn tick(&mut self, now_ns: u64, attended_ns: u64, pool: &Pool) {
        self.algorithm.count_stragglers(attended_ns);
        self.meter.note(now_ns, pool.escape_used());
    }

    /// The slabs as Algorithm 1 sees them. Where the SRQ share is scarcer than the pool as a whole, it is
    /// what counts: its slabs are all that small messages have.
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
            // Danger is for a pool that is used up; this is one that others hold, or have posted.
            let safe = u64::from(total) * u64::from(self.thresholds.safe_permille);
            available = available.min(u32::try_from(safe.saturating_sub(1) / 1000).unwrap_or(NONE));
        }
        // Escape memory that is not there counts as used: then copying is next.
        let replaced_slabs = pool.replaced_or_missing(self.replace_slabs_max);
        PoolView { available_slabs: available, total_slabs: total, replaced_slabs }
    }

    /// The pressure now.
    pub fn read_pressure(&self, pool: &Pool, demand: Demand) -> Pressure {
        let view = self.view(pool, demand);
        self.thresholds.read(self.pressure(), view.available_slabs, view.total_slabs)
    }

    /// Begins an evaluation of Algorithm 1, if it is time. `true`: there are steps to take.
    #[inline]
    pub fn begin(
        &mut self,
        now_ns: u64,
        attended_ns: u64,
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
        let under_pressure = self.algorithm.begin(attended_ns, self.view(pool, demand));
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

    /// Goes on with an evaluation until somebody else is wanted, or it is over.
    pub fn go_on(
        &mut self,
        now_ns: u64,
        attended_ns: u64,
        demand: Demand,
        (pool, slots): (&mut Pool, &mut Slots),
        effects: &mut (impl Commands + Questions),
    ) -> Step {
        while let Some(action) = self.algorithm.next(attended_ns, self.view(pool, demand)) {
            match action {
                Action::Replace { session, slot, .. } => self.replace(session, slot, pool, slots),
                // As many as there may be are under way: the end of one is when to go on.
                Action::Copy { .. } if self.free_copies.is_empty() => break,
                Action::Copy { session, slot, .. } => self.begin_copy(session, slot, pool, slots, effects),
                // Copies under way are yet to show what they free.
                Action::Mark if self.free_copies.len() < self.copies.len() => {}
                Action::Mark => return Step::Mark,
            }
        }
        self.meter.note(now_ns, pool.escape_used());
        Step::Done
    }

    fn replace(&mut self, session: u32, slot: u16, pool: &mut Pool, slots: &mut Slots) {
        let held = slots.movable(session, slot);
        // Where slices were released already, the rest need not be one run.
        let run = Run { first: held.run.first, count: held.held_slabs };
        // Without escape memory (none could be had, or stand-ins are still in use) the straggler stays, and
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
        let held = slots.movable(session, slot);
        if !held.whole {
            // Slices of it were taken, so it is being read.
            self.counts.copies_pinned += 1;
            return;
        }
        let from = held.run;
        if pool.is_retired(from) {
            // There is nothing left that could be copied.
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

    /// A copy is over. `ok`: the bytes are there. `is_open`: whether its session is; what one held that is
    /// over is in quarantine.
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
        // Others may wait for the place in the queue.
        self.next_evaluation_ns = self.next_evaluation_ns.min(now_ns);
        let EscapeCopy { session: SessionId(session), from, to, .. } = copy;
        let slot = u16::try_from(copy.slot).expect("below session_slots");
        // Whoever copied may have found zeros, or have written where nobody else can read.
        let ok = ok && !pool.is_retired(from) && !pool.is_retired(to);
        self.owner(session).copies -= 1;
        slots.end_copy(session, slot);
        let nothing = Copied { session, slot_is_free: false, marks: false };
        if !is_open(session) {
            pool.give(to, Share::Copied);
            return nothing;
        }
        let held = slots.movable(session, slot);
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
        let plain = pool.is_plain(from, held.share);
        let slot_is_free = slots.stays(session, slot, plain, |run| pool.give(run, held.share));
        Copied { slot_is_free, marks: !ok, ..nothing }
    }

    /// Congestion is marked: the NIC is told where it does not do so already.
    pub fn mark(&mut self, effects: &mut (impl Commands + Questions)) {
        self.counts.marks += 1;
        if !core::mem::replace(&mut self.marking, true) {
            effects.mark(true);
        }
    }

    /// A congestion signal was sent.
    pub fn count_signal(&mut self) {
        self.counts.signals += 1;
    }

    /// When Algorithm 1 is to be evaluated though nothing happens: runs become stragglers by waiting.
    pub fn next_idle_evaluation_ns(&self, flushed_ns: u64, waits_for_room: bool) -> Option<u64> {
        (self.enabled && (waits_for_room || self.pressure() != Pressure::Ok))
            .then_some(flushed_ns + IDLE_EVALUATION_NS)
    }

    /// A small message that has to wait for a slot goes to memory where the cache is scarce, and its slab
    /// comes back; where it lies then, if it does.
    ///
    /// # Errors
    /// [`CopyFailed`], upon which congestion is to be marked. [`CopyFailed::Source`]: it cannot be read.
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

    /// What was counted, and how things stand.
    pub fn stats(&self, pool: &Pool) -> EscapeStats {
        EscapeStats {
            enabled: self.enabled,
            memory_slabs: pool.escape_slabs(),
            memory_ready: pool.escape_ready(),
            memory_used: pool.escape_used(),
            memory_used_max: pool.escape_used_max(),
            memory_retired: pool.gone().1,
            memory_used_slab_ms: self.meter.slab_us / 1000,
            replaced_now: pool.replaced(),
            copied_now: pool.copied(),
            straggler_ns: self.straggler_ns(),
            granted_now: pool.granted(),
            copies_in_flight: u32::try_from(self.copies.len() - self.free_copies.len()).unwrap_or(NONE),
            ..self.counts
        }
    }
}

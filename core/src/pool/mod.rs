//! The pool: its slabs, and the line between the SRQ share and the READ share (Jet §4.1.3).
//!
//! Slabs belong to no share by address: a share is a count. The SRQ share covers slabs that are posted or
//! hold a small message. The READ share covers slabs that a READ fills or a large message holds. The line
//! moves towards the share that does not use its part, in favour of the one that needs more. It never takes
//! the SRQ share below its floor, for control messages must always land.
//!
//! The *budget* is what both shares have together. It is the pool's own slabs, less those that were replaced
//! because a straggler holds them, plus as many of escape memory that joined for them (Jet §4.3). The budget
//! stays the pool's number of slabs, with one exception. When a straggler's slabs were given back while its
//! stand-in is still in use, the budget is larger until the stand-in is free.

mod escape_memory;
mod runs;

use escape_memory::EscapeMemory;
pub use runs::{FreeRuns, Run};

/// The share that a slab counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Slabs posted to the SRQ, or holding a small message.
    Srq,
    /// Slabs filled by a READ, or holding part of a large message.
    Read,
    /// Slabs of a straggler that was replaced: they are out of the budget.
    Replaced,
    /// Slabs of escape memory that hold a copy: they are out of the budget.
    Copied,
    /// Slabs of escape memory that were taken instead of waiting for room in the pool: they are out of the
    /// budget.
    Spilled,
}

impl Share {
    /// Returns whether the share is part of the budget.
    #[inline]
    pub fn in_budget(self) -> bool {
        matches!(self, Self::Srq | Self::Read)
    }

    /// Returns whether the share counts towards the escape memory that a session may hold.
    pub fn is_memory(self) -> bool {
        matches!(self, Self::Copied | Self::Spilled)
    }
}

/// Sizes of escape memory, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EscapeShape {
    /// Slabs that may stand in for stragglers (Jet §4.3: MEM_ESC).
    pub replace_slabs: u32,
    /// Slabs for copies, and for messages that take escape memory instead of waiting.
    pub memory_slabs: u32,
}

/// The pool's slabs, and how they are shared.
#[derive(Debug)]
pub struct Pool {
    runs: FreeRuns,
    total: u32,
    srq_floor: u32,
    srq_configured: u32,
    /// Free slabs that the SRQ share leaves to READs, once it has the slabs of its own floor.
    read_floor: u32,
    /// Slabs that the SRQ share may use: the line between the two shares.
    srq_limit: u32,
    srq_used: u32,
    read_used: u32,
    quarantined: u32,
    high_water: u32,
    line_moves: u64,
    escape: EscapeMemory,
    /// Slabs that the SRQ share and the READ share have together.
    budget: u32,
    replaced: u32,
    copied: u32,
    spilled: u32,
    memory_max: u32,
    /// Whether any slab, of the pool or of escape memory, is retired. While none is, no run is searched for
    /// retired slabs.
    has_retired: bool,
}

impl Pool {
    /// Creates a pool of `total` slabs. The SRQ share has `srq` of them at first, and `srq_floor` always.
    pub fn new(total: u32, srq: u32, srq_floor: u32, escape: EscapeShape) -> Self {
        Self {
            runs: FreeRuns::new(total),
            total,
            srq_floor,
            srq_configured: srq,
            read_floor: 0,
            srq_limit: srq,
            srq_used: 0,
            read_used: 0,
            quarantined: 0,
            high_water: 0,
            line_moves: 0,
            escape: EscapeMemory::new(total, escape.replace_slabs + escape.memory_slabs),
            budget: total,
            replaced: 0,
            copied: 0,
            spilled: 0,
            memory_max: escape.memory_slabs,
            has_retired: false,
        }
    }

    /// Makes the SRQ share leave so many free slabs to READs, once it has the slabs of its own floor. Posted
    /// slabs stay posted until somebody sends. Senders that wait for READs may send nothing.
    pub fn with_read_floor(self, slabs: u32) -> Self {
        Self { read_floor: slabs, ..self }
    }

    /// Makes the first `escape_slabs` slabs of escape memory usable.
    pub fn make_ready(&mut self, escape_slabs: u32) {
        self.escape.make_ready(escape_slabs);
    }

    /// Returns the slabs that the SRQ may take now, up to `wanted`. For that it moves the line between the
    /// shares into what the READ share does not use. Above the configured line this is a loan:
    /// [`Self::read_room`] takes it back as soon as the SRQ share gives slabs back. The SRQ may take `kept`
    /// of the slabs whatever is left for READs. Beyond `kept` and its floor it takes no stand-ins, for posted
    /// slabs stay in use until somebody sends.
    pub fn srq_room(&mut self, wanted: u32, kept: u32) -> u32 {
        let (free, of_the_cache) = (self.free(), self.runs.free());
        let to_floor = self.srq_floor.saturating_sub(self.srq_used);
        let spared = free.saturating_sub(self.read_floor).min(of_the_cache);
        let room = wanted.min(free).min(spared.max(to_floor).max(kept));
        let below_line = self.srq_limit.saturating_sub(self.srq_used);
        if room <= below_line {
            return room;
        }
        let unused = self.total.saturating_sub(self.srq_limit + self.read_used + self.quarantined);
        let raised = unused.min(room - below_line);
        if raised > 0 {
            self.srq_limit += raised;
            self.line_moves += 1;
        }
        below_line + raised
    }

    /// Takes up to `most` slabs for the SRQ as one run, which the caller posts from its end on. The caller
    /// must have asked [`Self::srq_room`].
    #[inline]
    pub fn take_srq(&mut self, most: u32) -> Option<Run> {
        // A stand-in for a straggler is taken only if there is nothing else.
        let run = self.runs.take_loose(most).or_else(|| self.escape.take_joined(most))?;
        self.srq_used += run.count;
        self.note_use();
        Some(run)
    }

    /// Returns the slabs that READs may take now, after moving the line between the shares where the SRQ
    /// share can spare some. `srq_needed` is what the SRQ share is about to need: posted entries, held
    /// messages, and credit that senders have.
    pub fn read_room(&mut self, wanted: u32, srq_needed: u32) -> u32 {
        let limit = self.total - self.srq_limit;
        let room = limit.saturating_sub(self.read_used + self.quarantined);
        if room >= wanted {
            return room.min(self.free());
        }
        let keep = self.line_at_least(srq_needed);
        let spare = self.srq_limit.saturating_sub(keep).min(wanted - room);
        if spare > 0 {
            self.srq_limit -= spare;
            self.line_moves += 1;
        }
        (room + spare).min(self.free())
    }

    /// Returns the fewest slabs that the line between the shares may leave to the SRQ share: what that share
    /// is about to need. Where that leaves READs less than their floor, the line may leave only what the SRQ
    /// share uses.
    fn line_at_least(&self, srq_needed: u32) -> u32 {
        let used = self.srq_used.max(self.srq_floor);
        let most = self.total.saturating_sub(self.read_used + self.quarantined + self.read_floor);
        srq_needed.min(most).max(used)
    }

    /// Returns the most that [`Self::read_room`] would find, without moving the line between the shares.
    pub fn read_room_max(&self, srq_needed: u32) -> u32 {
        let line = self.line_at_least(srq_needed).min(self.srq_limit);
        self.total.saturating_sub(line + self.read_used + self.quarantined).min(self.free())
    }

    /// Takes up to `wanted` slabs for a READ as one run. The caller must have asked [`Self::read_room`].
    #[inline]
    pub fn take_read(&mut self, wanted: u32) -> Option<Run> {
        // Stand-ins for stragglers are taken first: they are soon given back, and may then leave the pool
        // when the stragglers' slabs come back.
        let run = if self.escape.joined() == 0 {
            self.runs.take(wanted)
        } else {
            self.escape.take_joined(wanted).or_else(|| self.runs.take(wanted))
        }?;
        self.read_used += run.count;
        self.note_use();
        Some(run)
    }

    /// Returns the slabs of escape memory that are left for copies and for messages that take memory instead
    /// of waiting.
    pub fn memory_room(&self) -> u32 {
        (self.memory_max - self.memory()).min(self.escape.reserve())
    }

    /// Takes up to `wanted` slabs of escape memory as one run, for [`Share::Copied`] or [`Share::Spilled`].
    pub fn take_memory(&mut self, wanted: u32, share: Share) -> Option<Run> {
        let run = self.escape.take(wanted.min(self.memory_room()))?;
        match share {
            Share::Copied => self.copied += run.count,
            Share::Spilled => self.spilled += run.count,
            Share::Srq | Share::Read | Share::Replaced => unreachable!("these are not taken from memory"),
        }
        Some(run)
    }

    /// Takes a straggler's slabs out of the budget; as many slabs of escape memory join the pool (Jet §4.3).
    /// Returns `false`, with nothing changed, if there is too little escape memory.
    pub fn replace(&mut self, run: Run, share: Share) -> bool {
        if self.escape.reserve() < run.count {
            return false;
        }
        self.count_out(run.count, share);
        self.replaced += run.count;
        self.budget -= run.count;
        self.budget += self.escape.join(self.total.saturating_sub(self.budget));
        true
    }

    fn count_out(&mut self, slabs: u32, share: Share) {
        match share {
            Share::Srq => self.srq_used -= slabs,
            Share::Read => self.read_used -= slabs,
            Share::Replaced => self.replaced -= slabs,
            Share::Copied => self.copied -= slabs,
            Share::Spilled => self.spilled -= slabs,
        }
    }

    /// Returns whether the run lies in the pool's own slabs, and counts in the pool's budget.
    #[inline]
    pub fn is_cached_in_budget(&self, run: Run, share: Share) -> bool {
        share.in_budget() && run.first < self.total
    }

    /// Gives back slabs that are the pool's own and count in the pool's budget. It is inlined whatever the
    /// compiler thinks of its size, for every message passes through it.
    #[inline(always)]
    pub fn give_cached(&mut self, run: Run, share: Share) {
        debug_assert!(self.is_cached_in_budget(run, share), "{run:?} of {share:?}");
        match share {
            Share::Srq => self.srq_used -= run.count,
            _ => self.read_used -= run.count,
        }
        self.runs.give(run);
    }

    /// Gives slabs back that count in `share`, wherever they lie.
    #[inline]
    pub fn give(&mut self, run: Run, share: Share) {
        if self.is_cached_in_budget(run, share) {
            self.give_cached(run, share);
        } else {
            self.give_escaped(run, share);
        }
    }

    /// Gives back a run of escape memory, or one that escape memory replaced.
    #[cold]
    fn give_escaped(&mut self, run: Run, share: Share) {
        self.count_out(run.count, share);
        self.put_back(run, share.in_budget());
    }

    fn put_back(&mut self, run: Run, in_budget: bool) {
        match (run.first < self.total, in_budget) {
            (true, true) => self.runs.give(run),
            (true, false) => {
                // The straggler's slabs are back in the pool.
                self.runs.give(run);
                self.budget += run.count;
            }
            (false, true) => self.escape.give_joined(run),
            (false, false) => {
                self.escape.give(run);
                // Where the straggler was itself a stand-in, its own stand-in stays, for the straggler that
                // the first one stood in for.
            }
        }
        let excess = self.budget.saturating_sub(self.total);
        if excess > 0 {
            self.budget -= self.escape.leave(excess);
        }
    }

    /// Retires slabs that cannot be read or written any more: they are not used again, once they are given
    /// back. From then on they count as a part of the budget that is never free. Numbers in the run that are
    /// no slabs are ignored.
    pub fn retire(&mut self, run: Run) {
        let (of_pool, of_escape_memory) = self.by_memory(run);
        self.runs.retire(of_pool);
        self.escape.retire(of_escape_memory);
        self.has_retired = true;
    }

    /// Returns whether a slab of the run is retired. It costs one comparison while no slab is retired, for it
    /// is called for every message.
    #[inline]
    pub fn is_retired(&self, run: Run) -> bool {
        self.has_retired && self.has_retired_of(run)
    }

    #[cold]
    fn has_retired_of(&self, run: Run) -> bool {
        let (of_pool, of_escape_memory) = self.by_memory(run);
        self.runs.is_retired(of_pool) || self.escape.is_retired(of_escape_memory)
    }

    /// Splits a run into its slabs of the pool and its slabs of escape memory, which are numbered behind the
    /// pool's.
    fn by_memory(&self, run: Run) -> (Run, Run) {
        let end = run.first.saturating_add(run.count);
        let between = |first: u32, end: u32| Run { first, count: end.saturating_sub(first) };
        (between(run.first, end.min(self.total)), between(run.first.max(self.total), end))
    }

    /// Returns the numbers of retired slabs that are not in use any more: of the pool, and of escape memory.
    pub fn retired_unused(&self) -> (u32, u32) {
        (self.runs.retired_unused(), self.escape.retired_unused())
    }

    /// Puts slabs of an ended session into quarantine. They stay out of use until
    /// [`Self::release_quarantined`].
    pub fn quarantine(&mut self, run: Run, share: Share) {
        if share.in_budget() {
            self.count_out(run.count, share);
            self.quarantined += run.count;
        }
    }

    /// Ends the quarantine of slabs. `share` is the share that they counted in before.
    pub fn release_quarantined(&mut self, run: Run, share: Share) {
        if share.in_budget() {
            self.quarantined -= run.count;
            self.put_back(run, true);
        } else {
            self.give(run, share);
        }
    }

    /// Moves the line between the shares back towards its configured place, as far as the slabs that it
    /// passes over are not in use.
    pub fn restore_line(&mut self) {
        let wanted = self.srq_configured;
        let before = self.srq_limit;
        if self.srq_limit < wanted {
            let room = self.total.saturating_sub(self.srq_limit + self.read_used + self.quarantined);
            self.srq_limit += room.min(wanted - self.srq_limit);
        } else if self.srq_limit > wanted {
            self.srq_limit = wanted.max(self.srq_used);
        }
        if self.srq_limit != before {
            self.line_moves += 1;
        }
    }

    #[inline]
    fn note_use(&mut self) {
        self.high_water = self.high_water.max(self.budget - self.free());
    }

    /// Returns the pool's number of slabs, without escape memory.
    #[inline]
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns the free slabs of the budget: the pool's, and those of escape memory that joined it.
    #[inline]
    pub fn free(&self) -> u32 {
        self.runs.free() + self.escape.joined()
    }

    /// Returns the slabs that the SRQ share may use now.
    pub fn srq_limit(&self) -> u32 {
        self.srq_limit
    }

    /// Returns the slabs that the SRQ share could use if the line between the shares went up as far as
    /// [`Self::srq_room`] lets it.
    pub fn srq_limit_max(&self) -> u32 {
        let unused = self.total.saturating_sub(self.read_used + self.quarantined);
        let may_take = (self.srq_used + self.runs.free()).max(self.srq_floor);
        self.srq_limit.max(unused.min(self.srq_configured)).min(may_take)
    }

    /// Returns the slabs that the SRQ share uses.
    #[inline]
    pub fn srq_used(&self) -> u32 {
        self.srq_used
    }

    /// Returns the slabs that the READ share uses.
    pub fn read_used(&self) -> u32 {
        self.read_used
    }

    /// Returns the slabs in quarantine.
    pub fn quarantined(&self) -> u32 {
        self.quarantined
    }

    /// Returns the slabs that the SRQ share and the READ share have together.
    pub fn budget(&self) -> u32 {
        self.budget
    }

    /// Returns the slabs that are out of the budget because their stragglers were replaced.
    #[inline]
    pub fn replaced(&self) -> u32 {
        self.replaced
    }

    /// Returns the slabs of escape memory that hold copies, or messages that took memory instead of waiting.
    pub fn memory(&self) -> u32 {
        self.copied + self.spilled
    }

    /// Returns the slabs of escape memory that hold copies, also copies under way.
    pub fn copied(&self) -> u32 {
        self.copied
    }

    /// Returns the slabs of escape memory that were taken instead of waiting for room in the pool.
    pub fn spilled(&self) -> u32 {
        self.spilled
    }

    /// Returns how many of the slabs for stand-ins (Jet §4.3: MEM_ESC) cannot be used, because they are in
    /// use already or not there.
    #[inline]
    pub fn replaced_or_missing(&self, replace_max: u32) -> u32 {
        self.replaced.max(replace_max.saturating_sub(self.escape.reserve()))
    }

    /// Returns the slabs of escape memory altogether.
    pub fn escape_slabs(&self) -> u32 {
        self.escape.slabs()
    }

    /// Returns the slabs of escape memory that are allocated and touched.
    pub fn escape_ready(&self) -> u32 {
        self.escape.ready()
    }

    /// Returns the slabs of escape memory that are in use or joined the pool.
    #[inline]
    pub fn escape_used(&self) -> u32 {
        self.escape.used()
    }

    /// Returns the most slabs of escape memory that were in use at once since the start or the last reset.
    pub fn escape_used_max(&self) -> u32 {
        self.escape.used_max()
    }

    /// Returns the most slabs that were in use at once since the start or the last reset.
    pub fn high_water(&self) -> u32 {
        self.high_water
    }

    /// Restarts the high-water marks from what is in use now.
    pub fn reset_high_water(&mut self) {
        self.high_water = self.budget - self.free();
        self.escape.reset_used_max();
    }

    /// Returns how often the line between the shares moved.
    pub fn line_moves(&self) -> u64 {
        self.line_moves
    }
}

#[cfg(test)]
mod tests;

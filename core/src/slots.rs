//! The table of delivered runs: which session holds which of them, slice by slice.

use crate::effects::ReleaseError;
use crate::index::NONE;
use crate::pool::{Run, Share};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use jet_wire::segment::Release;

/// A place for one delivered run.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Record of the run's message; `NONE` if the slot is empty.
    message: u32,
    generation: u16,
    share: Share,
    run: Run,
    /// Whether the run lies in the cache, counts in the pool's budget, and is not being copied. That is the
    /// usual case, in which releasing takes few steps.
    cached_and_idle: bool,
    /// Whether the run is being copied to memory. Until that is over neither the slot nor its slabs are used
    /// for anything else.
    copying: bool,
    /// One bit for each slice of the run that is not released.
    held: u64,
}

impl Slot {
    const EMPTY: Self = Self {
        message: NONE,
        generation: 0,
        share: Share::Srq,
        run: Run { first: 0, count: 0 },
        cached_and_idle: true,
        copying: false,
        held: 0,
    };

    /// Returns the bits of all slices of the run.
    fn all(&self) -> u64 {
        u64::MAX >> (64 - self.run.count)
    }

    /// Returns the bits of the slices whose slabs are in use. While the run is being copied that includes
    /// released slices.
    fn occupied(&self) -> u64 {
        if self.copying { self.all() } else { self.held }
    }
}

/// A slot that was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenSlot {
    pub slot: u16,
    pub generation: u16,
}

/// Slices that were released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReleasedSlices {
    pub message: u32,
    pub run: Run,
    pub share: Share,
    pub slot: u16,
    pub cached_and_idle: bool,
    /// Whether the run's slot can be used again.
    pub slot_is_free: bool,
    /// Slabs of the whole run if nothing of it is held any more; 0 while something is.
    pub emptied_slabs: u32,
}

/// A run that may be moved out of the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MovableRun {
    pub run: Run,
    pub generation: u16,
    pub share: Share,
    /// Whether no slice of the run was released.
    pub whole: bool,
    pub copying: bool,
    pub held_slabs: u32,
}

/// The slots of one session.
#[derive(Debug)]
struct SessionSlots {
    slots: Box<[Slot]>,
    free: Vec<u16>,
}

/// The slots of all sessions.
#[derive(Debug)]
pub(crate) struct Slots {
    sessions: Box<[SessionSlots]>,
}

impl Slots {
    /// Creates slots for `sessions` sessions, with `slots` slots each.
    pub fn new(sessions: u32, slots: u32) -> Self {
        let slots = u16::try_from(slots).expect("checked by Config::check");
        let session = || SessionSlots {
            slots: vec![Slot::EMPTY; usize::from(slots)].into_boxed_slice(),
            free: (0..slots).rev().collect(),
        };
        Self { sessions: (0..sessions).map(|_| session()).collect() }
    }

    /// Returns the number of free slots.
    #[inline]
    pub fn free(&self, session: u32) -> u32 {
        u32::try_from(self.sessions[session as usize].free.len()).unwrap_or(NONE)
    }

    /// Returns whether more than so many slots are free.
    #[inline]
    pub fn has_more_free_than(&self, session: u32, slots: u32) -> bool {
        self.sessions[session as usize].free.len() > slots as usize
    }

    /// Returns the number of runs that were delivered and are not wholly released.
    pub fn used(&self, session: u32) -> u32 {
        let owner = &self.sessions[session as usize];
        u32::try_from(owner.slots.len() - owner.free.len()).unwrap_or(NONE)
    }

    /// Takes a slot for a run that is delivered. The session must have a free slot.
    #[inline(always)] // on every message's way
    pub fn take(
        &mut self,
        session: u32,
        message: u32,
        run: Run,
        share: Share,
        cached_and_idle: bool,
    ) -> TakenSlot {
        let owner = &mut self.sessions[session as usize];
        let index = owner.free.pop().expect("the caller looked");
        let slot = &mut owner.slots[usize::from(index)];
        slot.generation = slot.generation.wrapping_add(1);
        slot.message = message;
        slot.run = run;
        slot.share = share;
        slot.held = u64::MAX >> (64 - run.count);
        slot.cached_and_idle = cached_and_idle;
        TakenSlot { slot: index, generation: slot.generation }
    }

    /// Releases slices that an application gives back.
    ///
    /// # Errors
    /// [`ReleaseError`] if the session does not hold them; nothing changed.
    #[inline(always)] // on every message's way
    pub fn release(&mut self, session: u32, release: &Release) -> Result<ReleasedSlices, ReleaseError> {
        let &Release { index, generation, first, count, .. } = release;
        let owner = &mut self.sessions[session as usize];
        let slot = owner.slots.get_mut(index as usize).ok_or(ReleaseError::Slot { slot: index })?;
        let number = u16::try_from(index).expect("below session_slots");
        if slot.message == NONE || slot.generation != generation {
            return Err(ReleaseError::NotHeld { slot: index });
        }
        let outside = ReleaseError::Slices { slot: index, first, count };
        if count == 0 || u32::from(first) + u32::from(count) > slot.run.count {
            return Err(outside);
        }
        let bits = (u64::MAX >> (64 - count)) << first;
        if slot.held & bits != bits {
            return Err(outside);
        }
        slot.held &= !bits;
        let emptied = slot.held == 0;
        // A run that is being copied stays where it is until that is over. Then its slabs and its slot come
        // back.
        let slot_is_free = emptied && (slot.cached_and_idle || !slot.copying);
        let released = ReleasedSlices {
            message: slot.message,
            run: Run { first: slot.run.first + u32::from(first), count: u32::from(count) },
            share: slot.share,
            slot: number,
            cached_and_idle: slot.cached_and_idle,
            slot_is_free,
            emptied_slabs: if emptied { slot.run.count } else { 0 },
        };
        if slot_is_free {
            slot.message = NONE;
            owner.free.push(number);
        }
        Ok(released)
    }

    /// Returns the run in a slot, for a caller that wants to move it. The slot must be in use.
    pub fn movable_run(&self, session: u32, slot: u16) -> MovableRun {
        let slot = &self.sessions[session as usize].slots[usize::from(slot)];
        MovableRun {
            run: slot.run,
            generation: slot.generation,
            share: slot.share,
            whole: slot.held == slot.all(),
            copying: slot.copying,
            held_slabs: slot.held.count_ones(),
        }
    }

    /// Notes that the run's slabs left the pool's budget, because the run was replaced; they stay where they
    /// are.
    pub fn replaced(&mut self, session: u32, slot: u16) {
        let slot = &mut self.sessions[session as usize].slots[usize::from(slot)];
        (slot.share, slot.cached_and_idle) = (Share::Replaced, false);
    }

    /// Notes that the run is being copied.
    pub fn begin_copy(&mut self, session: u32, slot: u16) {
        let slot = &mut self.sessions[session as usize].slots[usize::from(slot)];
        (slot.copying, slot.cached_and_idle) = (true, false);
    }

    /// Notes that the run's copy is over, whether it succeeded or not.
    pub fn end_copy(&mut self, session: u32, slot: u16) {
        self.sessions[session as usize].slots[usize::from(slot)].copying = false;
    }

    /// Notes that the run lies at `to` now, as a copy.
    pub fn moved(&mut self, session: u32, slot: u16, to: Run) {
        let slot = &mut self.sessions[session as usize].slots[usize::from(slot)];
        (slot.share, slot.run) = (Share::Copied, to);
    }

    /// Notes that the run stays where it is after a copy that did not move it. `back` gets the slabs that
    /// were released while it was being copied. Returns whether the slot can be used again.
    pub fn stays(&mut self, session: u32, number: u16, cached_and_idle: bool, back: impl FnMut(Run)) -> bool {
        let owner = &mut self.sessions[session as usize];
        let slot = &mut owner.slots[usize::from(number)];
        slot.cached_and_idle = cached_and_idle;
        for_each_stretch(slot.all() & !slot.held, slot.run.first, back);
        if slot.held > 0 {
            return false;
        }
        slot.message = NONE;
        owner.free.push(number);
        true
    }

    /// Returns the slabs that a session's runs occupy.
    pub fn occupied_slabs(&self, session: u32) -> u32 {
        let used = self.sessions[session as usize].slots.iter().filter(|slot| slot.message != NONE);
        used.map(|slot| slot.occupied().count_ones()).sum()
    }

    /// Calls `each` for every run of slabs that a session holds, with the record of its message.
    pub fn for_each_held(&self, session: u32, mut each: impl FnMut(u32, Run)) {
        for slot in self.sessions[session as usize].slots.iter().filter(|slot| slot.message != NONE) {
            for_each_stretch(slot.held, slot.run.first, |run| each(slot.message, run));
        }
    }

    /// Detains what a session's runs occupy when the session is over: `each` gets the slabs. All of them
    /// count as held until [`Self::reset`].
    pub fn detain(&mut self, session: u32, mut each: impl FnMut(Run, Share)) {
        for slot in self.sessions[session as usize].slots.iter_mut().filter(|slot| slot.message != NONE) {
            slot.held = slot.occupied();
            for_each_stretch(slot.held, slot.run.first, |run| each(run, slot.share));
        }
    }

    /// Makes the slots ready for another application: `each` gets the slabs that were held. Generations
    /// continue, so late releases of the former application fail.
    pub fn reset(&mut self, session: u32, mut each: impl FnMut(Run, Share)) {
        let owner = &mut self.sessions[session as usize];
        for slot in owner.slots.iter_mut().filter(|slot| slot.message != NONE) {
            for_each_stretch(slot.held, slot.run.first, |run| each(run, slot.share));
            slot.message = NONE;
        }
        owner.free.clear();
        owner.free.extend((0..u16::try_from(owner.slots.len()).unwrap_or(u16::MAX)).rev());
    }
}

/// Calls `each` for every group of consecutive set bits, as a run of slabs; bit 0 is slab `first`.
fn for_each_stretch(bits: u64, first: u32, mut each: impl FnMut(Run)) {
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

//! The shared receive queue: the slab of each posted entry, which no other table knows.

use crate::effects::Commands;
use crate::index::NONE;
use crate::pool::Pool;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// The entries of the SRQ.
#[derive(Debug)]
pub(crate) struct Srq {
    /// Slab of each posted entry.
    slabs: Box<[u32]>,
    free: Vec<u32>,
    posted: u32,
    /// Number of entries that are posted whatever slabs READs need: without them no sender can ask for a
    /// READ, nor give credit back.
    kept: u32,
}

impl Srq {
    /// Creates an SRQ with no entry posted. The pool always keeps `floor_slabs` slabs for it.
    pub fn new(entries: u32, floor_slabs: u32) -> Self {
        Self {
            slabs: vec![NONE; entries as usize].into_boxed_slice(),
            free: (0..entries).rev().collect(),
            posted: 0,
            kept: (floor_slabs / 8).max(1),
        }
    }

    /// Returns the number of posted entries.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.posted
    }

    /// Posts SRQ entries until `depth` of them are posted, as far as slabs and records suffice. Whatever
    /// arrives in an entry needs a record.
    pub fn top_up(&mut self, depth: u32, records: u32, pool: &mut Pool, effects: &mut impl Commands) {
        let entries = u32::try_from(self.free.len()).unwrap_or(NONE);
        let wanted = depth.saturating_sub(self.posted).min(entries).min(records);
        if wanted == 0 {
            return;
        }
        let kept = self.kept.saturating_sub(self.posted);
        let mut room = pool.srq_room(wanted, kept.min(wanted));
        while room > 0 {
            let Some(run) = pool.take_srq(room) else { return };
            room -= run.count;
            self.posted += run.count;
            for slab in (run.first..run.first + run.count).rev() {
                let entry = self.free.pop().expect("no more slabs were asked for than entries are free");
                self.slabs[entry as usize] = slab;
                effects.post_srq(entry, slab);
            }
        }
    }

    /// Completes an entry; returns its slab, which is no longer posted.
    #[inline]
    pub fn complete(&mut self, entry: u32) -> u32 {
        let slab = core::mem::replace(&mut self.slabs[entry as usize], NONE);
        assert!(slab != NONE, "SRQ entry {entry} completed but was not posted");
        self.free.push(entry);
        self.posted -= 1;
        slab
    }
}

//! Free slabs as runs: the last one used is taken first, contiguous where possible.
//!
//! Free slabs are kept as maximal runs with boundary tags: the first and the last slab of a run hold its
//! length. The runs are in lists by size class, newest first. A run is taken from the smallest class that
//! fits, and in that class the newest. That keeps both promises of Jet's design: the next slabs used are the
//! last ones used, so they are in the cache; and a READ gets few scatter entries. Every operation is O(1),
//! except a search over at most 32 classes' bits, which is one instruction.
//!
//! The run that was given last is kept aside. It grows as its neighbours are given, and slabs are taken from
//! it first. So the usual giving and taking touches no list at all.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// Consecutive slabs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// Number of the first slab.
    pub first: u32,
    /// Number of slabs.
    pub count: u32,
}

const NONE: u32 = u32::MAX;
const CLASSES: usize = 32;

#[derive(Clone, Copy)]
struct Tag {
    /// Length of the free run, in the tags of both its ends; 0 in all other slabs.
    count: u32,
    /// Next newer run in the list of the size class; valid in the tag of a listed run's first slab.
    newer: u32,
    /// Next older run in the list of the size class; valid in the tag of a listed run's first slab.
    older: u32,
}

/// The free slabs of a pool.
#[derive(Debug)]
pub struct FreeRuns {
    tags: Box<[Tag]>,
    newest: [u32; CLASSES],
    /// Set of the size classes that have a listed run: bit c stands for class c.
    classes: u32,
    free: u32,
    /// The free run that was given back last, in no list and without tags; empty where `count` is 0.
    recent: Run,
    /// One bit for each slab, set if the slab is never to be free again.
    retired: Box<[u64]>,
    /// Whether any slab is retired.
    has_retired: bool,
    /// Retired slabs that were given back, or were free when they were retired.
    retired_unused: u32,
}

impl core::fmt::Debug for Tag {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.count)
    }
}

fn class_of(count: u32) -> usize {
    (31 - count.leading_zeros()) as usize
}

impl FreeRuns {
    /// Creates `slabs` slabs, all of them free, as one run.
    pub fn new(slabs: u32) -> Self {
        let mut runs = Self::none(slabs);
        if slabs > 0 {
            runs.free = slabs;
            runs.insert(Run { first: 0, count: slabs });
        }
        runs
    }

    /// Creates `slabs` slabs, none of them free yet.
    pub fn none(slabs: u32) -> Self {
        let tags = vec![Tag { count: 0, newer: NONE, older: NONE }; slabs as usize].into_boxed_slice();
        Self {
            tags,
            newest: [NONE; CLASSES],
            classes: 0,
            free: 0,
            recent: Run::default(),
            retired: vec![0; slabs.div_ceil(u64::BITS) as usize].into_boxed_slice(),
            has_retired: false,
            retired_unused: 0,
        }
    }

    /// Retires slabs: they are never free again. Those that are in use are retired when they are given back.
    /// Numbers in the run beyond the last slab are ignored. The time grows with the number of free runs.
    pub fn retire(&mut self, run: Run) {
        let slabs = self.slabs_of(run);
        if slabs.is_empty() {
            return;
        }
        for slab in slabs {
            self.retired[(slab / u64::BITS) as usize] |= 1 << (slab % u64::BITS);
        }
        self.has_retired = true;
        let mut free = Vec::new();
        while let Some(run) = self.take(NONE) {
            free.push(run);
        }
        free.into_iter().for_each(|run| self.give(run));
    }

    /// Returns whether a slab of the run is retired.
    pub fn is_retired(&self, run: Run) -> bool {
        self.has_retired && self.slabs_of(run).any(|slab| self.is_slab_retired(slab))
    }

    /// Returns the slab numbers of a run, without those beyond the last slab.
    fn slabs_of(&self, run: Run) -> core::ops::Range<u32> {
        let slabs = u32::try_from(self.tags.len()).unwrap_or(NONE);
        run.first.min(slabs)..run.first.saturating_add(run.count).min(slabs)
    }

    fn is_slab_retired(&self, slab: u32) -> bool {
        self.retired[(slab / u64::BITS) as usize] & (1 << (slab % u64::BITS)) != 0
    }

    /// Returns the slabs that were retired and are not in use any more.
    pub fn retired_unused(&self) -> u32 {
        self.retired_unused
    }

    /// Gives back the slabs of a run that are not retired.
    #[cold]
    fn give_rest(&mut self, run: Run) {
        let mut first = run.first;
        let end = run.first + run.count;
        while first < end {
            let is_retired = self.is_slab_retired(first);
            let next = (first..end).find(|&slab| self.is_slab_retired(slab) != is_retired).unwrap_or(end);
            let part = Run { first, count: next - first };
            if is_retired {
                self.retired_unused += part.count;
            } else {
                self.give_whole(part);
            }
            first = next;
        }
    }

    /// Returns the number of free slabs.
    #[inline]
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Takes up to `most` slabs for a use that needs no contiguous ones. They come from the run that was
    /// given back last. If there is none, one slab of the smallest size class is taken. The caller uses the
    /// slabs from the run's end, where it grew last.
    #[inline]
    pub fn take_loose(&mut self, most: u32) -> Option<Run> {
        let count = most.min(self.recent.count);
        if count > 0 { self.take(count) } else { self.take_listed(most.min(1)) }
    }

    /// Takes `wanted` contiguous slabs, or a shorter run of the longest size class where none is that long.
    #[inline]
    pub fn take(&mut self, wanted: u32) -> Option<Run> {
        if self.recent.count >= wanted && wanted > 0 {
            // That is most often the end that grew last.
            self.recent.count -= wanted;
            self.free -= wanted;
            return Some(Run { first: self.recent.first + self.recent.count, count: wanted });
        }
        self.take_listed(wanted)
    }

    fn take_listed(&mut self, wanted: u32) -> Option<Run> {
        self.list_recent();
        if self.classes == 0 || wanted == 0 {
            return None;
        }
        let exact = class_of(wanted);
        // The newest run of the exact class may be too short; every run of a higher class is long enough.
        let newest = self.newest[exact];
        let found = if newest != NONE && self.tags[newest as usize].count >= wanted {
            newest
        } else {
            let higher = if exact + 1 < CLASSES { self.classes >> (exact + 1) << (exact + 1) } else { 0 };
            let class = if higher != 0 { higher.trailing_zeros() } else { 31 - self.classes.leading_zeros() };
            self.newest[class as usize]
        };
        let whole = Run { first: found, count: self.tags[found as usize].count };
        self.remove(whole);
        let count = wanted.min(whole.count);
        if whole.count > count {
            self.insert(Run { first: whole.first + count, count: whole.count - count });
        }
        self.free -= count;
        Some(Run { first: whole.first, count })
    }

    /// Gives a run back; it joins its free neighbours. Its retired slabs do not become free.
    ///
    /// # Panics
    /// Panics if a slab lies beyond the pool, or the run's ends are free already: a broken invariant of the
    /// caller.
    #[inline]
    pub fn give(&mut self, run: Run) {
        if self.has_retired { self.give_rest(run) } else { self.give_whole(run) }
    }

    #[inline(always)] // on every message's way
    fn give_whole(&mut self, run: Run) {
        // The usual case, small enough to be inlined: the given run begins where the recent one ends, or ends
        // where it begins.
        let Run { first, count } = run;
        let end = first + count;
        let behind = first == self.recent.first + self.recent.count;
        let before = end == self.recent.first;
        if (behind || before) && self.recent.count > 0 && count > 0 && self.are_taken(first, end) {
            self.free += count;
            self.recent.count += count;
            self.recent.first = if before { first } else { self.recent.first };
        } else {
            self.give_apart(run);
        }
    }

    /// Returns whether both ends of a run are slabs of this pool, and not ends of a free run.
    #[inline]
    fn are_taken(&self, first: u32, end: u32) -> bool {
        (end as usize) <= self.tags.len()
            && self.tags[first as usize].count == 0
            && self.tags[end as usize - 1].count == 0
    }

    #[cold]
    fn give_apart(&mut self, run: Run) {
        let Run { first, count } = run;
        let end = first + count;
        assert!(count > 0 && end as usize <= self.tags.len(), "slabs {first}..{end} are not of this pool");
        let recent_end = self.recent.first + self.recent.count;
        assert!(
            self.are_taken(first, end) && (end <= self.recent.first || first >= recent_end),
            "slabs {first}..{end} are free already"
        );
        self.free += count;
        self.list_recent();
        self.recent = run;
    }

    /// Puts the run that was given back last into the lists, joined with its free neighbours.
    fn list_recent(&mut self) {
        let Run { mut first, mut count } = core::mem::take(&mut self.recent);
        let end = first + count;
        if count == 0 {
            return;
        }
        if first > 0 {
            let before = self.tags[first as usize - 1].count;
            if before > 0 {
                self.remove(Run { first: first - before, count: before });
                first -= before;
                count += before;
            }
        }
        if (end as usize) < self.tags.len() {
            let behind = self.tags[end as usize].count;
            if behind > 0 {
                self.remove(Run { first: end, count: behind });
                count += behind;
            }
        }
        self.insert(Run { first, count });
    }

    #[inline]
    fn insert(&mut self, run: Run) {
        let class = class_of(run.count);
        let older = self.newest[class];
        if older != NONE {
            self.tags[older as usize].newer = run.first;
        }
        self.tags[(run.first + run.count - 1) as usize].count = run.count;
        self.tags[run.first as usize] = Tag { count: run.count, newer: NONE, older };
        self.newest[class] = run.first;
        self.classes |= 1 << class;
    }

    #[inline]
    fn remove(&mut self, run: Run) {
        let class = class_of(run.count);
        let Tag { newer, older, .. } = self.tags[run.first as usize];
        if older != NONE {
            self.tags[older as usize].newer = newer;
        }
        if newer != NONE {
            self.tags[newer as usize].older = older;
        } else {
            self.newest[class] = older;
            if older == NONE {
                self.classes &= !(1 << class);
            }
        }
        self.tags[run.first as usize].count = 0;
        self.tags[(run.first + run.count - 1) as usize].count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn the_last_given_is_the_first_taken() {
        let mut runs = FreeRuns::new(64);
        let all: Vec<u32> = (0..64).map(|_| runs.take(1).unwrap().first).collect();
        assert_eq!(runs.take(1).map(|run| run.first), None);
        for slab in [10, 30, 50] {
            runs.give(Run { first: all[slab], count: 1 });
        }
        assert_eq!(runs.take(1).map(|run| run.first), Some(all[50]));
        assert_eq!(runs.take(1).map(|run| run.first), Some(all[30]));
    }

    #[test]
    fn neighbours_join_and_a_long_run_is_found_again() {
        let mut runs = FreeRuns::new(128);
        let a = runs.take(64).unwrap();
        let b = runs.take(64).unwrap();
        for first in (a.first..a.first + 64).step_by(2).chain((a.first + 1..a.first + 64).step_by(2)) {
            runs.give(Run { first, count: 1 });
        }
        assert_eq!(runs.take(64), Some(a));
        runs.give(b);
        assert_eq!(runs.take(100), Some(b), "the longest there is");
    }

    #[test]
    #[should_panic(expected = "free already")]
    fn giving_twice_is_a_broken_invariant() {
        let mut runs = FreeRuns::new(8);
        let run = runs.take(2).unwrap();
        runs.give(run);
        runs.give(run);
    }

    #[test]
    fn what_is_retired_is_never_taken_again() {
        let mut runs = FreeRuns::new(100);
        let held = runs.take(40).unwrap();
        // Retires slabs that are held and slabs that are free.
        runs.retire(Run { first: held.first + 38, count: 4 });
        assert_eq!((runs.free(), runs.retired_unused()), (58, 2));
        assert!(runs.is_retired(held) && !runs.is_retired(Run { count: 38, ..held }));
        runs.give(held);
        assert_eq!((runs.free(), runs.retired_unused()), (96, 4));
        runs.retire(Run { first: held.first + 40, count: 1 });
        assert_eq!((runs.free(), runs.retired_unused()), (96, 4), "once");
        let mut left = Vec::new();
        while let Some(run) = runs.take(7) {
            left.extend(run.first..run.first + run.count);
        }
        assert_eq!(left.len(), 96);
        // Numbers that are no slabs are ignored, wherever the run begins and ends.
        for (first, count) in [(100, 1), (500, 64), (u32::MAX, 1), (0, 0), (100, u32::MAX)] {
            runs.retire(Run { first, count });
            assert!(!runs.is_retired(Run { first, count }));
        }
        runs.retire(Run { first: 99, count: u32::MAX });
        assert!(
            runs.is_retired(Run { first: 99, count: 1 }) && !runs.is_retired(Run { first: 98, count: 1 })
        );
        assert!(left.iter().all(|slab| !(held.first + 38..held.first + 42).contains(slab)), "{left:?}");
    }

    proptest! {
        #[test]
        fn no_slab_is_lost_or_taken_twice(
            ops in prop::collection::vec((any::<bool>(), 1u32..20, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut runs = FreeRuns::new(200);
            let mut free: BTreeSet<u32> = (0..200).collect();
            let mut held: Vec<Run> = Vec::new();
            for (take, wanted, pick) in ops {
                if take {
                    match runs.take(wanted) {
                        Some(run) => {
                            prop_assert!(run.count <= wanted);
                            for slab in run.first..run.first + run.count {
                                prop_assert!(free.remove(&slab), "slab {} was not free", slab);
                            }
                            held.push(run);
                        }
                        None => prop_assert!(free.is_empty()),
                    }
                } else if !held.is_empty() {
                    let run = held.swap_remove(pick.index(held.len()));
                    // The run is given back in two halves, to cut runs apart.
                    let half = run.count / 2;
                    if half > 0 {
                        runs.give(Run { first: run.first, count: half });
                    }
                    runs.give(Run { first: run.first + half, count: run.count - half });
                    free.extend(run.first..run.first + run.count);
                }
                prop_assert_eq!(runs.free() as usize, free.len());
            }
            for run in held.drain(..) {
                runs.give(run);
            }
            prop_assert_eq!(runs.take(200), Some(Run { first: 0, count: 200 }), "all joined into one again");
        }
    }
}

//! A model of the memory's contents. It catches a slab that is reused while somebody reads or copies it, and
//! bytes that an application would not find again.

use crate::effects::{CopyId, CopyRefused, EscapeCopy, ReadId};
use crate::pool::Run;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// The contents of memory, and the readers that rely on them.
#[derive(Default)]
pub(super) struct Memory {
    contents: BTreeMap<u32, u64>,
    written: u64,
    /// Delivered runs by session and slot: where they lie, and what their slabs must hold.
    places: BTreeMap<(u32, u32), (Run, Vec<u64>)>,
    /// Runs that their applications are reading.
    pub pinned: BTreeSet<(u32, u32)>,
    copies: VecDeque<EscapeCopy>,
    /// Runs of READs that are being checked.
    checks: BTreeMap<u32, Vec<Run>>,
    /// Whether the next copies are refused.
    pub no_room: bool,
    /// Slabs that the receiver knows to be lost: it must not use them again.
    pub lost: BTreeSet<u32>,
}

fn slabs(run: Run) -> impl Iterator<Item = u32> {
    run.first..run.first + run.count
}

fn overlap(a: Run, b: Run) -> bool {
    a.first < b.first + b.count && b.first < a.first + a.count
}

impl Memory {
    fn put(&mut self, slab: u32) {
        self.written += 1;
        self.contents.insert(slab, self.written);
    }

    fn assert_there(&self, run: Run, what: &str) {
        assert!(slabs(run).all(|slab| !self.lost.contains(&slab)), "{run:?} is {what}, and lost");
    }

    /// Overwrites a run, as a NIC may from now on. Nobody may rely on its contents.
    pub fn overwrite(&mut self, run: Run) {
        self.assert_there(run, "used");
        for ((session, slot), (held, _)) in &self.places {
            assert!(!overlap(*held, run), "{run:?} is used, but slot {slot} of session {session} lies there");
        }
        for copy in &self.copies {
            assert!(
                !overlap(copy.from, run) && !overlap(copy.to, run),
                "{run:?} is used, but is in {copy:?}"
            );
        }
        for (read, runs) in &self.checks {
            let clear = runs.iter().all(|checked| !overlap(*checked, run));
            assert!(clear, "{run:?} is used, but READ {read} is being checked there");
        }
        slabs(run).for_each(|slab| self.put(slab));
    }

    /// Notes that a worker reads these runs.
    pub fn begin_check(&mut self, read: ReadId, runs: &[Run]) {
        let before = self.checks.insert(read.0, runs.to_vec());
        assert!(before.is_none(), "{read:?} is being checked already");
    }

    /// Notes that the worker is done with the READ's runs.
    pub fn end_check(&mut self, read: ReadId) {
        self.checks.remove(&read.0).expect("it is being checked");
    }

    /// Delivers a run to an application.
    pub fn deliver(&mut self, session: u32, slot: u32, run: Run) {
        self.assert_there(run, "delivered");
        let contents = slabs(run).map(|slab| self.contents[&slab]).collect();
        let before = self.places.insert((session, slot), (run, contents));
        assert!(before.is_none(), "slot {slot} of session {session} is in use");
    }

    /// Takes a run back from the application, which must have found there what was delivered.
    pub fn release(&mut self, session: u32, slot: u32) {
        let (run, contents) = self.places.remove(&(session, slot)).expect("it was delivered");
        self.pinned.remove(&(session, slot));
        let found: Vec<u64> = slabs(run).map(|slab| self.contents[&slab]).collect();
        assert_eq!(found, contents, "what lies in slot {slot} of session {session}");
    }

    /// Forgets an ended session. Its application may read what it pinned only during the quarantine.
    pub fn close(&mut self, session: u32) {
        self.places.retain(|place, _| place.0 != session);
        self.pinned.retain(|place| place.0 != session);
    }

    /// Begins a copy, unless the run is pinned or copies are refused.
    pub fn begin_copy(&mut self, copy: &EscapeCopy) -> Result<(), CopyRefused> {
        if self.pinned.contains(&(copy.session.0, copy.slot)) {
            return Err(CopyRefused::Pinned);
        }
        if self.no_room {
            return Err(CopyRefused::NoRoom);
        }
        self.assert_there(copy.from, "copied");
        self.overwrite(copy.to);
        self.copies.push_back(*copy);
        Ok(())
    }

    /// Returns the copy under way that was begun first.
    pub fn oldest_copy(&self) -> EscapeCopy {
        *self.copies.front().expect("a copy is under way")
    }

    /// Returns the number of copies under way.
    pub fn copying(&self) -> usize {
        self.copies.len()
    }

    /// Ends the oldest copy; with `ok` its bytes are copied.
    pub fn finish_copy(&mut self, ok: bool) -> CopyId {
        let copy = self.copies.pop_front().expect("a copy is under way");
        if ok {
            self.copy(copy.from, copy.to);
        }
        copy.id
    }

    /// Copies the contents of one run to another.
    pub fn copy(&mut self, from: Run, to: Run) {
        for (from, to) in slabs(from).zip(slabs(to)) {
            self.contents.insert(to, self.contents[&from]);
        }
    }

    /// Moves an application's run to the copy's target, unless the run is pinned.
    pub fn relocate(&mut self, copy: &EscapeCopy) -> bool {
        self.assert_there(copy.from, "relocated");
        self.assert_there(copy.to, "relocated to");
        let place = (copy.session.0, copy.slot);
        if self.pinned.contains(&place) {
            return false;
        }
        let entry = self.places.get_mut(&place).expect("only what is held is relocated");
        assert_eq!(entry.0, copy.from);
        entry.0 = copy.to;
        true
    }

    /// Returns the first slab of a delivered run.
    pub fn place(&self, session: u32, slot: u32) -> u32 {
        self.places[&(session, slot)].0.first
    }
}

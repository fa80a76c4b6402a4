//! What lies where: catches a slab that is used for something else while somebody reads or copies it, and
//! bytes that an application would not find again.

use crate::effects::{CopyId, CopyRefused, EscapeCopy, ReadId};
use crate::pool::Run;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

/// The memory's contents, and who counts on them.
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
    /// The next copies are refused.
    pub no_room: bool,
    /// Slabs that the receiver knows to be lost: it is to use them for nothing any more.
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

    /// A NIC may write there from now on.
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

    /// Somebody reads those from now on.
    pub fn begin_check(&mut self, read: ReadId, runs: &[Run]) {
        let before = self.checks.insert(read.0, runs.to_vec());
        assert!(before.is_none(), "{read:?} is being checked already");
    }

    /// Nobody does any more.
    pub fn end_check(&mut self, read: ReadId) {
        self.checks.remove(&read.0).expect("it is being checked");
    }

    /// A run is shown to an application.
    pub fn deliver(&mut self, session: u32, slot: u32, run: Run) {
        self.assert_there(run, "delivered");
        let contents = slabs(run).map(|slab| self.contents[&slab]).collect();
        let before = self.places.insert((session, slot), (run, contents));
        assert!(before.is_none(), "slot {slot} of session {session} is in use");
    }

    /// The application gave the run back; it found there what was delivered.
    pub fn release(&mut self, session: u32, slot: u32) {
        let (run, contents) = self.places.remove(&(session, slot)).expect("it was delivered");
        self.pinned.remove(&(session, slot));
        let found: Vec<u64> = slabs(run).map(|slab| self.contents[&slab]).collect();
        assert_eq!(found, contents, "what lies in slot {slot} of session {session}");
    }

    /// The session is over; its application may go on reading what it pinned only through its quarantine.
    pub fn close(&mut self, session: u32) {
        self.places.retain(|place, _| place.0 != session);
        self.pinned.retain(|place| place.0 != session);
    }

    /// Starts a copy.
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

    /// The copy that was begun first of those under way.
    pub fn oldest_copy(&self) -> EscapeCopy {
        *self.copies.front().expect("a copy is under way")
    }

    /// Copies that are under way.
    pub fn copying(&self) -> usize {
        self.copies.len()
    }

    /// Ends the oldest copy.
    pub fn finish_copy(&mut self, ok: bool) -> CopyId {
        let copy = self.copies.pop_front().expect("a copy is under way");
        if ok {
            self.copy(copy.from, copy.to);
        }
        copy.id
    }

    /// Copies what lies there.
    pub fn copy(&mut self, from: Run, to: Run) {
        for (from, to) in slabs(from).zip(slabs(to)) {
            self.contents.insert(to, self.contents[&from]);
        }
    }

    /// Lets an application find its run elsewhere.
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

    /// Where a delivered run lies.
    pub fn place(&self, session: u32, slot: u32) -> u32 {
        self.places[&(session, slot)].0.first
    }
}

//! The pool: slabs, and the line between the SRQ share and the READ share (Jet §4.1.3).
//!
//! Slabs belong to no share by address; a share is a count. The SRQ share covers slabs that are posted or hold a small
//! message, the READ share those that a READ fills or a large message holds. The line moves to whoever needs it while
//! the other does not, and never takes the SRQ share below its floor: control messages must always land.

mod runs;

pub use runs::{FreeRuns, Run};

/// Who uses a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Posted to the SRQ, or holding a small message.
    Srq,
    /// Filled by a READ, or holding part of a large message.
    Read,
}

/// The pool's slabs and shares.
#[derive(Debug)]
pub struct Pool {
    runs: FreeRuns,
    total: u32,
    srq_floor: u32,
    srq_configured: u32,
    /// The line: slabs that the SRQ share may use.
    srq_limit: u32,
    srq_used: u32,
    read_used: u32,
    quarantined: u32,
    high_water: u32,
    line_moves: u64,
}

impl Pool {
    /// `total` slabs, `srq` of them for the SRQ at first, `srq_floor` always.
    pub fn new(total: u32, srq: u32, srq_floor: u32) -> Self {
        Self {
            runs: FreeRuns::new(total),
            total,
            srq_floor,
            srq_configured: srq,
            srq_limit: srq,
            srq_used: 0,
            read_used: 0,
            quarantined: 0,
            high_water: 0,
            line_moves: 0,
        }
    }

    /// Takes one slab for the SRQ; `None` where its share is used up and the READ share needs what it has.
    #[inline]
    pub fn take_srq(&mut self) -> Option<u32> {
        if self.srq_used >= self.srq_limit && !self.raise_line() {
            return None;
        }
        let slab = self.runs.take_one()?;
        self.srq_used += 1;
        self.note_use();
        Some(slab)
    }

    fn raise_line(&mut self) -> bool {
        // Up only into what the READ share does not use. Above the configured line this is a loan: `take_read` takes
        // it back as soon as the SRQ share lets go.
        if self.srq_limit + self.read_used + self.quarantined >= self.total {
            return false;
        }
        self.srq_limit += 1;
        self.line_moves += 1;
        true
    }

    /// Slabs that READs may take now, after moving the line where the SRQ share can spare some. `srq_needed` is what
    /// the SRQ share is about to need: posted entries, held messages, and credit that senders have.
    pub fn read_room(&mut self, wanted: u32, srq_needed: u32) -> u32 {
        let limit = self.total - self.srq_limit;
        let room = limit.saturating_sub(self.read_used + self.quarantined);
        if room >= wanted {
            return room.min(self.runs.free());
        }
        let keep = srq_needed.max(self.srq_used).max(self.srq_floor);
        let spare = self.srq_limit.saturating_sub(keep).min(wanted - room);
        if spare > 0 {
            self.srq_limit -= spare;
            self.line_moves += 1;
        }
        (room + spare).min(self.runs.free())
    }

    /// Takes up to `wanted` slabs for a READ as one run; the caller has asked [`Self::read_room`].
    #[inline]
    pub fn take_read(&mut self, wanted: u32) -> Option<Run> {
        let run = self.runs.take(wanted)?;
        self.read_used += run.count;
        self.note_use();
        Some(run)
    }

    /// Gives slabs back.
    #[inline]
    pub fn give(&mut self, run: Run, share: Share) {
        self.runs.give(run);
        match share {
            Share::Srq => self.srq_used -= run.count,
            Share::Read => self.read_used -= run.count,
        }
    }

    /// Slabs of a dead application stay out of use until [`Self::release_quarantined`].
    pub fn quarantine(&mut self, run: Run, share: Share) {
        match share {
            Share::Srq => self.srq_used -= run.count,
            Share::Read => self.read_used -= run.count,
        }
        self.quarantined += run.count;
    }

    /// The quarantine of these slabs is over.
    pub fn release_quarantined(&mut self, run: Run) {
        self.quarantined -= run.count;
        self.runs.give(run);
    }

    /// Moves the line back towards where it was configured, as far as nobody uses what it passes over.
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
        self.high_water = self.high_water.max(self.total - self.runs.free());
    }

    /// Slabs altogether.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Slabs that nobody uses.
    pub fn free(&self) -> u32 {
        self.runs.free()
    }

    /// Slabs that the SRQ share may use now.
    pub fn srq_limit(&self) -> u32 {
        self.srq_limit
    }

    /// Slabs that the SRQ share could use if the line went up as far as it can.
    pub fn srq_limit_max(&self) -> u32 {
        self.srq_limit
            .max(self.total.saturating_sub(self.read_used + self.quarantined).min(self.srq_configured))
    }

    /// Slabs that the SRQ share uses.
    pub fn srq_used(&self) -> u32 {
        self.srq_used
    }

    /// Slabs that the READ share uses.
    pub fn read_used(&self) -> u32 {
        self.read_used
    }

    /// Slabs in quarantine.
    pub fn quarantined(&self) -> u32 {
        self.quarantined
    }

    /// The most slabs that were in use at once since the start or the last reset.
    pub fn high_water(&self) -> u32 {
        self.high_water
    }

    /// Starts the high-water mark anew from what is in use now.
    pub fn reset_high_water(&mut self) {
        self.high_water = self.total - self.runs.free();
    }

    /// How often the line moved.
    pub fn line_moves(&self) -> u64 {
        self.line_moves
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_moves_to_who_needs_it_and_keeps_the_floor() {
        let mut pool = Pool::new(100, 40, 8);
        assert_eq!(pool.read_room(60, 0), 60);
        pool.take_read(60).unwrap();
        assert_eq!(pool.read_room(40, 0), 32, "the SRQ floor stays");
        pool.take_read(32).unwrap();
        assert_eq!(pool.read_room(1, 0), 0);
        let posted: u32 = (0..20).map_while(|_| pool.take_srq()).count().try_into().unwrap();
        assert_eq!(posted, 8);
        pool.give(Run { first: 0, count: 60 }, Share::Read);
        pool.restore_line();
        assert_eq!(pool.srq_limit(), 40);
        assert_eq!(pool.high_water(), 100);
    }

    #[test]
    fn the_srq_borrows_what_reads_leave() {
        let mut pool = Pool::new(100, 40, 8);
        let posted = (0..200).map_while(|_| pool.take_srq()).count();
        assert_eq!(posted, 100);
        assert_eq!(pool.read_room(10, 0), 0);
        pool.give(Run { first: 0, count: 70 }, Share::Srq);
        assert_eq!(pool.read_room(64, 0), 64, "a loan comes back as soon as it is let go");
    }

    #[test]
    fn quarantined_slabs_are_in_no_share_and_come_back() {
        let mut pool = Pool::new(10, 4, 2);
        let run = pool.take_read(5).unwrap();
        pool.quarantine(run, Share::Read);
        assert_eq!((pool.read_used(), pool.quarantined(), pool.free()), (0, 5, 5));
        assert_eq!(pool.read_room(6, 0), 3);
        pool.release_quarantined(run);
        assert_eq!((pool.quarantined(), pool.free()), (0, 10));
    }
}

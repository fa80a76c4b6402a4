//! What the store knows, in memory: where each block lies, which places are free, and of each sender what it
//! has seen.

use crate::protocol::{Refusal, WRITE_BLOCKS_MAX};
use jet_client::exactly_once::{SEQUENCE_SPAN, SeenWindow, Standing};
use std::collections::{BTreeMap, HashMap};

/// Places beside those that the blocks of a full store take: each of 64 writes at once has room.
pub const SPARE_PLACES: u32 = 64 * WRITE_BLOCKS_MAX;

/// Blocks that a store may have: 16 GiB. A new log has all of them, which is written at once.
pub const BLOCKS_MAX: u32 = 1 << 22;
/// Senders that may write, at most.
pub const WRITERS_MAX: usize = 16 << 10;

/// Places one after the other in the data file, each for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: u32,
    pub count: u32,
}

impl Run {
    pub fn places(self) -> impl Iterator<Item = u32> {
        self.first..self.first + self.count
    }
}

/// Where a block lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub place: u32,
    /// The write that put it there.
    pub version: u64,
}

/// What the store knows of a sender that writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    /// Its writes that took effect.
    pub seen: SeenWindow,
    /// What each of them within the window was replied to with, by its sequence number.
    pub versions: BTreeMap<u64, u64>,
    /// How many of its writes took effect.
    pub writes: u64,
}

impl Writer {
    /// Returns the version that a message's write got, if it took effect.
    ///
    /// # Errors
    /// [`Refusal::TooOld`]: that is not known any more.
    pub fn version_given(&self, sequence: u64) -> Result<Option<u64>, Refusal> {
        match self.seen.standing(sequence) {
            Standing::New => Ok(None),
            Standing::Seen => self.versions.get(&sequence).copied().map(Some).ok_or(Refusal::TooOld),
            Standing::TooOld => Err(Refusal::TooOld),
        }
    }

    /// Notes that a message's write took effect, which was not seen before.
    pub fn mark(&mut self, sequence: u64, version: u64) {
        assert!(self.seen.mark(sequence), "a write takes effect once");
        self.versions.insert(sequence, version);
        self.writes += 1;
        // What lies below the window had its end: nobody asks for it.
        let newest = *self.versions.last_key_value().expect("just inserted").0;
        while let Some(oldest) = self.versions.first_entry()
            && newest - oldest.key() >= SEQUENCE_SPAN
        {
            oldest.remove();
        }
    }
}

/// A write that takes effect: a message's data lies in `runs`, and belongs to the blocks from `first` on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub version: u64,
    pub sender: u64,
    pub sequence: u64,
    pub first: u32,
    pub runs: Vec<Run>,
}

/// What the store knows.
#[derive(Debug, PartialEq, Eq)]
pub struct Index {
    pub blocks: Vec<Option<Place>>,
    pub writers: HashMap<u64, Writer>,
    /// The newest write.
    pub version: u64,
    free: Free,
}

impl Index {
    /// Returns the index of a store that nobody has written to.
    pub fn new(blocks: u32) -> Self {
        let free = Free::new(blocks + SPARE_PLACES);
        let blocks = vec![None; usize::try_from(blocks).expect("a usize has 32 bits at least")];
        Self { blocks, writers: HashMap::new(), version: 0, free }
    }

    /// Returns the block's number, where the store has such a block.
    pub fn block(&self, block: u64) -> Result<u32, Refusal> {
        let number = u32::try_from(block).map_err(|_| Refusal::OutOfRange)?;
        if (number as usize) < self.blocks.len() { Ok(number) } else { Err(Refusal::OutOfRange) }
    }

    /// Returns the numbers of these blocks, where the store has them and a write may have so many.
    pub fn range(&self, first: u64, blocks: u32) -> Result<u32, Refusal> {
        if !(1..=WRITE_BLOCKS_MAX).contains(&blocks) {
            return Err(Refusal::OutOfRange);
        }
        self.block(first.saturating_add(u64::from(blocks) - 1))?;
        self.block(first)
    }

    /// Returns the version that a message's write got, if it took effect.
    ///
    /// # Errors
    /// [`Refusal::TooOld`]: that is not known any more.
    pub fn version_given(&self, sender: u64, sequence: u64) -> Result<Option<u64>, Refusal> {
        match self.writers.get(&sender) {
            Some(writer) => writer.version_given(sequence),
            None => Writer::default().version_given(sequence),
        }
    }

    /// Takes free places for so many blocks.
    pub fn take(&mut self, count: u32) -> Result<Vec<Run>, Refusal> {
        self.free.take(count).ok_or(Refusal::NoSpace)
    }

    /// Gives places back that hold nothing any more.
    pub fn give_back(&mut self, runs: &[Run]) {
        runs.iter().flat_map(|run| run.places()).for_each(|place| self.free.give_back(place));
    }

    /// Takes places that a record of the log names.
    pub fn claim(&mut self, place: u32) -> bool {
        self.free.claim(place)
    }

    /// Lets a write take effect. Its places are taken already; those of what it replaces become free.
    pub fn apply(&mut self, record: &Record) {
        let Record { version, sender, sequence, first, .. } = *record;
        let places = record.runs.iter().flat_map(|run| run.places());
        for (block, place) in self.blocks[first as usize..].iter_mut().zip(places) {
            if let Some(before) = block.replace(Place { place, version }) {
                self.free.give_back(before.place);
            }
        }
        self.writers.entry(sender).or_default().mark(sequence, version);
        self.version = version;
    }
}

/// Which places are free.
#[derive(Debug)]
struct Free {
    is_free: Vec<bool>,
    count: u32,
    /// Where one looks next: so places are used in turn, and writes get long runs.
    next: u32,
}

impl Free {
    fn new(count: u32) -> Self {
        Self { is_free: vec![true; count as usize], count, next: 0 }
    }

    fn take(&mut self, count: u32) -> Option<Vec<Run>> {
        if count > self.count {
            return None;
        }
        let mut runs: Vec<Run> = Vec::new();
        for _ in 0..count {
            while !self.is_free[self.next as usize] {
                self.step();
            }
            match runs.last_mut() {
                Some(run) if run.first + run.count == self.next => run.count += 1,
                _ => runs.push(Run { first: self.next, count: 1 }),
            }
            self.claim(self.next);
            self.step();
        }
        Some(runs)
    }

    fn step(&mut self) {
        self.next = (self.next + 1) % u32::try_from(self.is_free.len()).expect("they have numbers");
    }

    fn claim(&mut self, place: u32) -> bool {
        let Some(is_free) = self.is_free.get_mut(place as usize) else { return false };
        let was_free = std::mem::replace(is_free, false);
        self.count -= u32::from(was_free);
        was_free
    }

    fn give_back(&mut self, place: u32) {
        assert!(!std::mem::replace(&mut self.is_free[place as usize], true), "place {place} is free already");
        self.count += 1;
    }
}

impl PartialEq for Free {
    fn eq(&self, other: &Self) -> bool {
        // Where one looks next makes no difference.
        self.is_free == other.is_free
    }
}

impl Eq for Free {}

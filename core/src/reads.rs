//! The table of READs in flight.

use crate::config::FRAGMENT_SLABS_MAX;
use crate::index::NONE;
use crate::pool::{Pool, Run, Share};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// The READ of one fragment, from its grant until its runs are delivered.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub message: u32,
    pub offset: u64,
    pub bytes: u32,
    pub runs: [Run; FRAGMENT_SLABS_MAX as usize],
    pub run_count: usize,
    /// Time of the posting, by the clock that stands still while nobody calls the receiver.
    pub posted_ns: u64,
    /// Number of the READ's runs that were delivered already.
    pub delivered: usize,
    /// Share that the READ's slabs count in: the READ share, or escape memory.
    pub share: Share,
    /// Whether the NIC has not completed the READ yet.
    pub in_flight: bool,
    /// CRC32C of the READ's bytes, once a worker has made it.
    pub checked: Option<u32>,
    /// Next READ of the same message that workers check.
    pub next_check: Option<u32>,
}

/// The READs in flight, by index.
#[derive(Debug)]
pub(crate) struct Reads {
    records: Box<[Read]>,
    free: Vec<u32>,
}

impl Reads {
    pub fn new(capacity: u32) -> Self {
        let empty = Read {
            message: NONE,
            offset: 0,
            bytes: 0,
            runs: [Run::default(); FRAGMENT_SLABS_MAX as usize],
            run_count: 0,
            posted_ns: 0,
            delivered: 0,
            share: Share::Read,
            in_flight: false,
            checked: None,
            next_check: None,
        };
        Self {
            records: vec![empty; capacity as usize].into_boxed_slice(),
            free: (0..capacity).rev().collect(),
        }
    }

    pub fn any_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub fn in_use(&self) -> u32 {
        u32::try_from(self.records.len() - self.free.len()).unwrap_or(NONE)
    }

    pub fn add(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Fills the READ's runs with up to `slabs` slabs of a share, contiguous ones first, within the NIC's
    /// limit of scatter entries. Returns how many slabs it took.
    pub fn fill(&mut self, index: u32, slabs: u32, scatter_max: u32, share: Share, pool: &mut Pool) -> u32 {
        let scatter_max = scatter_max.min(FRAGMENT_SLABS_MAX) as usize;
        let entry = &mut self.records[index as usize];
        entry.run_count = 0;
        let mut taken = 0;
        while taken < slabs && entry.run_count < scatter_max {
            let wanted = slabs - taken;
            let run = if share == Share::Spilled {
                pool.take_memory(wanted, share)
            } else {
                pool.take_read(wanted)
            };
            let Some(run) = run else { break };
            entry.runs[entry.run_count] = run;
            entry.run_count += 1;
            taken += run.count;
        }
        taken
    }

    /// Returns the READs that the NIC has not completed.
    pub fn in_flight(&self) -> impl Iterator<Item = &Read> {
        self.records.iter().filter(|read| read.message != NONE && read.in_flight)
    }

    pub fn remove(&mut self, index: u32) {
        self.records[index as usize].message = NONE;
        self.free.push(index);
    }
}

impl core::ops::Index<u32> for Reads {
    type Output = Read;
    fn index(&self, index: u32) -> &Read {
        &self.records[index as usize]
    }
}

impl core::ops::IndexMut<u32> for Reads {
    fn index_mut(&mut self, index: u32) -> &mut Read {
        &mut self.records[index as usize]
    }
}

//! Measures two kinds of index table: the kind that `core`, `fabric` and `jet-client` have written by hand on
//! a message's way, and the crate `slab`.
//!
//! Both give the place that was freed last, so both are warm here. They differ in what an entry costs. A
//! table written by hand has all its entries from the start, and its user writes the few fields that change.
//! The crate moves the whole entry in and out.

use crate::report::{Bound, Row};
use slab::Slab;
use std::hint::black_box;
use std::time::Instant;

/// Entries of each table, as many as the daemon's messages at once.
const ENTRIES: usize = 1024;
/// Entries in use together: a batch of completions.
const BATCH: usize = 32;

/// Entry with the fields that every message changes, and others that few do.
#[derive(Clone, Copy)]
struct Entry<const REST: usize> {
    generation: u32,
    message: u32,
    rest: [u64; REST],
}

impl<const REST: usize> Entry<REST> {
    const EMPTY: Self = Self { generation: 0, message: 0, rest: [0; REST] };
}

/// Table with its entries in place and a stack of the free ones.
struct ByHand<const REST: usize> {
    entries: Box<[Entry<REST>]>,
    free: Vec<u32>,
}

impl<const REST: usize> ByHand<REST> {
    fn new() -> Self {
        let free = (0..u32::try_from(ENTRIES).expect("a small table")).rev().collect();
        Self { entries: vec![Entry::EMPTY; ENTRIES].into_boxed_slice(), free }
    }

    fn take(&mut self, message: u32) -> u32 {
        let index = self.free.pop().expect("a batch is smaller than the table");
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.message = message;
        index
    }

    fn give_back(&mut self, index: u32) -> u32 {
        self.free.push(index);
        self.entries[index as usize].message
    }
}

/// Nanoseconds for one entry that is taken and given back, by hand and by the crate.
#[allow(clippy::cast_precision_loss)] // spans of seconds have 2^30 ns
fn pair_ns<const REST: usize>(rounds: u32) -> [f64; 2] {
    let mut by_hand = ByHand::<REST>::new();
    let mut places = [0; BATCH];
    let start = Instant::now();
    for round in 0..rounds {
        for place in &mut places {
            *place = by_hand.take(black_box(round));
        }
        for &place in &places {
            black_box(by_hand.give_back(black_box(place)));
        }
    }
    let by_hand_ns = start.elapsed().as_nanos();
    let mut library = Slab::<Entry<REST>>::with_capacity(ENTRIES);
    let mut keys = [0; BATCH];
    let start = Instant::now();
    for round in 0..rounds {
        for key in &mut keys {
            *key = library.insert(Entry { message: black_box(round), ..Entry::EMPTY });
        }
        for &key in &keys {
            let entry = library.remove(black_box(key));
            black_box((entry.message, entry.generation, &entry.rest));
        }
    }
    let library_ns = start.elapsed().as_nanos();
    [by_hand_ns, library_ns].map(|span_ns| span_ns as f64 / f64::from(rounds) / BATCH as f64)
}

/// Runs the benchmark.
pub fn run(samples: u32) -> Vec<Row> {
    const ROUNDS: u32 = 100_000;
    let mut rows = Vec::new();
    let mut add = |bytes: &str, measure: fn(u32) -> [f64; 2]| {
        measure(ROUNDS / 10);
        let pairs: Vec<_> = (0..samples).map(|_| measure(ROUNDS)).collect();
        for (which, name) in ["by hand", "crate slab"].into_iter().enumerate() {
            let metric = format!("table of {bytes} entries, taken and given back, {name}");
            let span_ns = pairs.iter().map(|pair| pair[which]).collect();
            rows.push(Row::new("core", &metric, "ns", span_ns, Bound::None));
        }
    };
    add("40 B", pair_ns::<4>);
    add("200 B", pair_ns::<24>);
    add("600 B", pair_ns::<74>);
    rows
}

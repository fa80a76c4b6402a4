//! Measures two kinds of index table: the kind that `core`, `fabric` and `jet-client` have written by hand on
//! a message's way, and the crate `slab`.
//!
//! Both kinds of table hand out the place that was freed last, so that place is in the cache here. The kinds
//! differ in what an entry costs. A table written by hand has all its entries from the start. Its user writes
//! the few fields that change, as the READs of `core` do, or the whole entry, as the messages of a sender do.
//! The crate moves the whole entry in and out where the compiler cannot leave that out.

use crate::report::{Bound, Row};
use slab::Slab;
use std::hint::black_box;
use std::time::Instant;

/// Number of entries of each table, as many as the messages that the daemon has at once.
const ENTRIES: usize = 1024;
/// Number of entries in use together: as many as a batch of completions.
const BATCH: usize = 32;

/// Entry of a table: fields that every message changes, and `rest`, which few messages change.
#[derive(Clone, Copy)]
struct Entry<const REST: usize> {
    generation: u32,
    message: u32,
    rest: [u64; REST],
}

impl<const REST: usize> Entry<REST> {
    const EMPTY: Self = Self { generation: 0, message: 0, rest: [0; REST] };
}

/// Table as it is written by hand: all entries stay in place, beside a stack of the free entries' numbers.
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

    fn take_and_write_all(&mut self, message: u32) -> u32 {
        let index = self.free.pop().expect("a batch is smaller than the table");
        let entry = &mut self.entries[index as usize];
        *entry = Entry { generation: entry.generation.wrapping_add(1), message, rest: [0; REST] };
        black_box(entry);
        index
    }

    fn give_back(&mut self, index: u32) -> (u32, u64) {
        self.free.push(index);
        let entry = &self.entries[index as usize];
        (entry.message, entry.rest[0])
    }
}

/// Ways to take an entry and give it back, as the rows name them.
const WAYS: [&str; 4] =
    ["by hand, two fields", "by hand, all fields", "crate slab, two fields", "crate slab, all fields"];

/// Nanoseconds for one entry that is taken and given back, for each of [`WAYS`].
#[allow(clippy::cast_precision_loss)] // spans of seconds have 2^30 ns
fn ways_ns<const REST: usize>(rounds: u32) -> [f64; 4] {
    let mut by_hand = ByHand::<REST>::new();
    let mut places = [0; BATCH];
    let mut timed = |all: bool| {
        let start = Instant::now();
        for round in 0..rounds {
            for place in &mut places {
                let message = black_box(round);
                *place = if all { by_hand.take_and_write_all(message) } else { by_hand.take(message) };
            }
            for &place in &places {
                black_box(by_hand.give_back(black_box(place)));
            }
        }
        start.elapsed().as_nanos()
    };
    let by_hand_ns = [timed(false), timed(true)];
    let mut library = Slab::<Entry<REST>>::with_capacity(ENTRIES);
    let mut keys = [0; BATCH];
    let mut timed = |all: bool| {
        let start = Instant::now();
        for round in 0..rounds {
            for key in &mut keys {
                *key = library.insert(Entry { message: black_box(round), ..Entry::EMPTY });
                if all {
                    black_box(&mut library[*key]);
                }
            }
            for &key in &keys {
                let entry = library.remove(black_box(key));
                black_box((entry.message, entry.rest[0]));
            }
        }
        start.elapsed().as_nanos()
    };
    let library_ns = [timed(false), timed(true)];
    let [two, all] = by_hand_ns;
    let [library_two, library_all] = library_ns;
    [two, all, library_two, library_all].map(|span_ns| span_ns as f64 / f64::from(rounds) / BATCH as f64)
}

/// Runs the comparison of index tables.
pub fn run(samples: u32) -> Vec<Row> {
    const ROUNDS: u32 = 100_000;
    let mut rows = Vec::new();
    let mut add = |bytes: &str, measure: fn(u32) -> [f64; 4]| {
        measure(ROUNDS / 10);
        let measured: Vec<_> = (0..samples).map(|_| measure(ROUNDS)).collect();
        for (which, way) in WAYS.into_iter().enumerate() {
            let metric = format!("table of {bytes} entries, taken and given back, {way}");
            let span_ns = measured.iter().map(|ways| ways[which]).collect();
            rows.push(Row::new("core", &metric, "ns", span_ns, Bound::None));
        }
    };
    add("40 B", ways_ns::<4>);
    add("200 B", ways_ns::<24>);
    add("600 B", ways_ns::<74>);
    rows
}

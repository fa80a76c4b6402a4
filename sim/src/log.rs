//! The log of a simulation: a hash over all events, and the last of them.

use crate::event::Event;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

/// Events that are kept where nobody asks for more.
const KEPT: usize = 40;

/// A hash that is the same on every machine and in every run, unlike the standard library's.
#[derive(Clone, Copy, Debug)]
struct Digest(u64);

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number.cast_unsigned() as u64);
    }
}

/// Log of a simulation.
#[derive(Clone, Debug)]
pub struct Log {
    digest: Digest,
    count: u64,
    last: VecDeque<(u64, Event)>,
    kept: usize,
}

impl Log {
    /// Makes an empty log.
    pub fn new() -> Self {
        Self { digest: Digest(0), count: 0, last: VecDeque::with_capacity(KEPT), kept: KEPT }
    }

    /// Keeps so many of the last events, at least one.
    pub fn keep(&mut self, events: usize) {
        self.kept = events.max(1);
    }

    /// Adds an event.
    pub fn add(&mut self, now_ns: u64, event: &Event) {
        self.digest.write_u64(now_ns);
        event.hash(&mut self.digest);
        self.count += 1;
        if self.last.len() >= self.kept {
            self.last.pop_front();
        }
        self.last.push_back((now_ns, *event));
    }

    /// Returns the hash over all events and their times.
    pub fn hash(&self) -> u64 {
        self.digest.finish()
    }

    /// Returns the number of events.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the last events, with their times in nanoseconds.
    pub fn last(&self) -> impl Iterator<Item = &(u64, Event)> {
        self.last.iter()
    }
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}

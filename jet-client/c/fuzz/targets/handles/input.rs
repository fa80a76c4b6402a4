//! The input: letters for calls, digits for their arguments. So an input can be written by hand: the seeds
//! are texts.

use libfuzzer_sys::arbitrary::{Arbitrary, Unstructured};

/// A timeout without limit.
const FOREVER: i64 = -1;

pub struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    /// Returns the letter of the next call. Bytes that are no letters stand for some, or for none (space).
    pub fn letter(&mut self) -> Option<u8> {
        if self.0.is_empty() {
            return None;
        }
        let byte = u8::arbitrary(&mut self.0).unwrap_or(b' ');
        Some(b'`' + byte % 32)
    }

    /// Returns a number below 16, 8, 4 or 2. A digit of the text stands for itself, if it is below.
    pub fn digit(&mut self, below: u8) -> usize {
        self.0.int_in_range(0..=below - 1).map_or(0, usize::from)
    }

    /// Chooses by one digit.
    pub fn one_of<T: Copy, const N: usize>(&mut self, all: [T; N]) -> T {
        const { assert!(N.is_power_of_two() && N <= 16) };
        all[self.digit(N as u8)]
    }

    pub fn is_set(&mut self) -> bool {
        self.digit(2) == 1
    }

    /// Returns any number, of eight bytes.
    pub fn number(&mut self) -> u64 {
        u64::arbitrary(&mut self.0).unwrap_or(0)
    }

    /// Returns a timeout in nanoseconds. Only where a wait cannot last it may be without limit.
    pub fn timeout(&mut self, may_be_forever: bool) -> i64 {
        let chosen = self.one_of([0, 1, 1000, 50_000, 200_000, FOREVER, i64::MIN, 0]);
        if chosen < 0 && !may_be_forever { 0 } else { chosen }
    }
}

//! What the library lent under keys: messages, slices or buffers of one handle.

use crate::input::Input;
use std::collections::BTreeMap;

pub struct Lent<T> {
    pub held: BTreeMap<u64, T>,
    /// All keys so far, held or not.
    ever: Vec<u64>,
}

impl<T> Lent<T> {
    pub fn new() -> Self {
        Self { held: BTreeMap::new(), ever: Vec::new() }
    }

    /// Notes what was lent under a new key.
    pub fn insert(&mut self, key: u64, value: T) {
        assert_ne!(key, 0, "the key that names nothing");
        assert!(!self.ever.contains(&key), "key {key:#x} is lent a second time");
        self.ever.push(key);
        self.held.insert(key, value);
    }

    /// Chooses a key: one that is held, or was, or never was. `foreign`: keys of other handles.
    pub fn choose(&self, input: &mut Input<'_>, foreign: &[u64]) -> u64 {
        let digit = input.digit(16);
        let held = |at: usize| self.held.keys().nth(at % self.held.len().max(1)).copied();
        let of = |list: &[u64], at: usize| list.get(at % list.len().max(1)).copied();
        let found = match digit {
            0..=7 => held(digit).or_else(|| of(&self.ever, digit)),
            8 => Some(0),
            9 => Some(u64::MAX),
            10 | 11 => of(&self.ever, input.digit(16)),
            12 => of(foreign, input.digit(16)),
            // The key's place with another of its numbers, and the place beside.
            13 => held(0).map(|key| key ^ (1 << 32)),
            14 => held(0).map(|key| key + 1),
            _ => Some(input.number()),
        };
        found.unwrap_or(0)
    }
}

//! Table from a number that the device chose (a key, a QP's number) to a place in another table. It has a
//! fixed size, and never allocates.

/// Hash table with open addressing and linear probing, at most half full.
#[derive(Debug)]
pub(super) struct Lookup {
    slots: Box<[(u32, u32)]>,
    used: usize,
}

const EMPTY: u32 = u32::MAX;

impl Lookup {
    /// Makes a table that holds up to `entries` entries.
    pub fn new(entries: usize) -> Self {
        Self { slots: vec![(0, EMPTY); (2 * entries.max(2)).next_power_of_two()].into(), used: 0 }
    }

    fn home(&self, key: u32) -> usize {
        // Numbers of a device lie close together, so they are spread.
        (key.wrapping_mul(0x9e37_79b1) >> 7) as usize & (self.slots.len() - 1)
    }

    /// Returns the place that is stored under a number.
    #[inline]
    pub fn get(&self, key: u32) -> Option<u32> {
        let mut at = self.home(key);
        loop {
            let (of, place) = self.slots[at];
            if place == EMPTY {
                return None;
            }
            if of == key {
                return Some(place);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    /// Stores a place under a number that has none.
    pub fn insert(&mut self, key: u32, place: u32) {
        assert!(place != EMPTY && 2 * self.used < self.slots.len(), "the table was made for fewer");
        let mut at = self.home(key);
        while self.slots[at].1 != EMPTY {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = (key, place);
        self.used += 1;
    }

    /// Removes a number. Entries that had probed past its place move up.
    pub fn remove(&mut self, key: u32) {
        let mask = self.slots.len() - 1;
        let mut at = self.home(key);
        while self.slots[at].1 != EMPTY && self.slots[at].0 != key {
            at = (at + 1) & mask;
        }
        if self.slots[at].1 == EMPTY {
            return;
        }
        self.used -= 1;
        self.slots[at].1 = EMPTY;
        let mut next = (at + 1) & mask;
        while self.slots[next].1 != EMPTY {
            let (key, place) = std::mem::replace(&mut self.slots[next], (0, EMPTY));
            self.used -= 1;
            self.insert(key, place);
            next = (next + 1) & mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0u32..40, any::<bool>()), 0..200)) {
            let (mut lookup, mut model) = (Lookup::new(40), HashMap::new());
            for (at, (key, put)) in steps.into_iter().enumerate() {
                // Keys that share their home.
                let key = key << 20;
                let place = u32::try_from(at).unwrap();
                if put && !model.contains_key(&key) {
                    lookup.insert(key, place);
                    model.insert(key, place);
                } else if !put {
                    lookup.remove(key);
                    model.remove(&key);
                }
                for key in (0..40).map(|key| key << 20) {
                    prop_assert_eq!(lookup.get(key), model.get(&key).copied());
                }
            }
        }
    }
}

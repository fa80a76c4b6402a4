//! Keys: numbers by which the caller names slices, messages and buffers. Each use of a key checks that its
//! object still exists.

/// Table of the objects that are lent to the caller, by key. It grows to the most that was ever lent at once,
/// and allocates nothing after that.
#[derive(Debug)]
pub(crate) struct Keys<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    /// Number of objects that were in this entry; a key names one of them. It is never 0 in a key, so the key
    /// 0 names nothing.
    generation: u32,
    value: Option<T>,
}

impl<T> Keys<T> {
    pub fn with_capacity(capacity: usize) -> Self {
        Self { entries: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity) }
    }

    /// Lends an object, and returns its key.
    #[inline]
    pub fn insert(&mut self, value: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, value: None });
            u32::try_from(self.entries.len() - 1).expect("fewer are lent than 2^32")
        });
        let entry = &mut self.entries[index as usize];
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.value = Some(value);
        u64::from(entry.generation) << 32 | u64::from(index)
    }

    #[inline]
    fn entry(&mut self, key: u64) -> Option<(u32, &mut Entry<T>)> {
        #[allow(clippy::cast_possible_truncation)] // its two halves
        let (generation, index) = ((key >> 32) as u32, key as u32);
        let entry = self.entries.get_mut(index as usize)?;
        (entry.generation == generation && entry.value.is_some()).then_some((index, entry))
    }

    /// Takes an object back. `None` where the key names nothing.
    #[inline]
    pub fn take(&mut self, key: u64) -> Option<T> {
        let (index, entry) = self.entry(key)?;
        let value = entry.value.take();
        self.free.push(index);
        value
    }

    /// Passes an object to `work`, which returns the object or keeps it. An object that `work` keeps is taken
    /// from the table. Returns `None` where the key names nothing.
    #[inline]
    pub fn with_taken<R>(&mut self, key: u64, work: impl FnOnce(T) -> (Option<T>, R)) -> Option<R> {
        let (index, entry) = self.entry(key)?;
        let (back, result) = work(entry.value.take()?);
        match back {
            Some(value) => entry.value = Some(value),
            None => self.free.push(index),
        }
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        /// Compares the keys with a map: what is lent is there until it is taken, and then never again.
        #[test]
        fn as_a_map(steps in proptest::collection::vec((0u8..4, any::<prop::sample::Index>()), 0..400)) {
            let mut keys = Keys::with_capacity(2);
            let (mut model, mut ever): (HashMap<u64, u32>, Vec<u64>) = Default::default();
            for (count, (what, which)) in (0u32..).zip(steps) {
                let key = if ever.is_empty() { 0 } else { *which.get(&ever) };
                match what {
                    0 | 1 => {
                        let key = keys.insert(count);
                        prop_assert!(key != 0 && model.insert(key, count).is_none());
                        ever.push(key);
                    }
                    2 => prop_assert_eq!(keys.take(key), model.remove(&key)),
                    _ => {
                        let kept = count % 2 == 0;
                        let found = keys.with_taken(key, |value| (kept.then_some(value), value));
                        prop_assert_eq!(found, model.get(&key).copied());
                        if !kept {
                            model.remove(&key);
                        }
                    }
                }
            }
            for key in ever {
                prop_assert_eq!(keys.take(key), model.remove(&key));
            }
        }
    }
}

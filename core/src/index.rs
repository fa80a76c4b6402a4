//! Indices into the receiver's tables.

use alloc::boxed::Box;
use alloc::vec;

/// The absence of an index: the end of a list, or a peer or session that is gone.
pub(crate) const NONE: u32 = u32::MAX;

/// A set of indices of one table, in a bit for each.
#[derive(Clone, Debug)]
pub(crate) struct IndexSet(Box<[u64]>);

impl IndexSet {
    /// Creates an empty set for a table of `length` entries.
    pub fn new(length: u32) -> Self {
        Self(vec![0; (length as usize).div_ceil(64)].into_boxed_slice())
    }

    /// Takes all indices out.
    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// Puts an index in.
    pub fn insert(&mut self, index: u32) {
        self.0[index as usize / 64] |= 1 << (index % 64);
    }

    /// Returns whether the index is in the set.
    pub fn contains(&self, index: u32) -> bool {
        self.0[index as usize / 64] & 1 << (index % 64) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::IndexSet;
    use alloc::vec::Vec;

    #[test]
    fn a_set_has_what_was_put_in_until_it_is_cleared() {
        let mut set = IndexSet::new(130);
        for index in [0, 63, 64, 129] {
            set.insert(index);
        }
        assert_eq!((0..130).filter(|&index| set.contains(index)).collect::<Vec<_>>(), [0, 63, 64, 129]);
        set.clear();
        assert!((0..130).all(|index| !set.contains(index)));
    }
}

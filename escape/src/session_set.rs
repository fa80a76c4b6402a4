//! A set of sessions with one bit for each: a few words even for thousands.

use alloc::boxed::Box;
use alloc::vec;

#[derive(Debug)]
pub(crate) struct SessionSet(Box<[u64]>);

impl SessionSet {
    pub fn new(sessions: u32) -> Self {
        Self(vec![0; sessions.div_ceil(64) as usize].into_boxed_slice())
    }

    #[inline]
    pub fn contains(&self, session: u32) -> bool {
        self.0[(session / 64) as usize] >> (session % 64) & 1 == 1
    }

    #[inline]
    pub fn set(&mut self, session: u32, member: bool) {
        let word = &mut self.0[(session / 64) as usize];
        *word = *word & !(1 << (session % 64)) | u64::from(member) << (session % 64);
    }

    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// Returns the first member that is not in `without`, a set of the same size. The search begins at `from`
    /// and wraps.
    #[inline]
    pub fn next(&self, from: u32, without: &Self) -> Option<u32> {
        let words = self.0.len();
        let first = (from / 64) as usize;
        let (mut at, mut mask) = if first < words { (first, u64::MAX << (from % 64)) } else { (0, u64::MAX) };
        // One word more than the set has: the first word's lower bits come last.
        for _ in 0..=words {
            let found = self.0.get(at)? & !without.0[at] & mask;
            if found != 0 {
                return u32::try_from(at * 64).ok().map(|base| base + found.trailing_zeros());
            }
            mask = u64::MAX;
            at = if at + 1 < words { at + 1 } else { 0 };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_member_is_found_from_anywhere() {
        let mut set = SessionSet::new(130);
        let mut without = SessionSet::new(130);
        assert_eq!(set.next(0, &without), None);
        for member in [3, 70, 129] {
            set.set(member, true);
        }
        for (from, next) in [(0, 3), (3, 3), (4, 70), (71, 129), (129, 129), (130, 3), (192, 3), (5000, 3)] {
            assert_eq!(set.next(from, &without), Some(next), "from {from}");
        }
        without.set(129, true);
        assert_eq!(set.next(71, &without), Some(3));
        set.set(70, false);
        without.set(3, true);
        assert_eq!(set.next(71, &without), None);
        without.clear();
        // The only member lies in the first word, below where the search begins.
        set.set(129, false);
        assert_eq!(set.next(4, &without), Some(3));
        assert!(set.contains(3) && !set.contains(70));
    }

    #[test]
    fn an_empty_set_of_no_sessions_has_no_member() {
        let set = SessionSet::new(0);
        assert_eq!(set.next(0, &SessionSet::new(0)), None);
    }
}

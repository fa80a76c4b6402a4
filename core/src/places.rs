//! The places of senders, by source: whose senders go where there are as many as there may be.
//!
//! A source is a host, or a process of this one, and cannot be chosen by who connects. A source may have all
//! places while nobody else asks for one. Where all are taken, one that has fewer gets a place of one that
//! has more, until they have as many. The place is kept for it meanwhile: the senders of the others come back
//! at once, and are more.

use crate::effects::SourceId;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;

/// Nanoseconds for which places are kept for who was refused one. A sender tries again within it.
const KEPT_NS: u64 = 2_000_000_000;

/// A source that was refused a place, and has fewer than others.
#[derive(Clone, Copy, Debug)]
struct Refused {
    /// Places that it has.
    has: u32,
    until_ns: u64,
}

/// Who has the places of senders.
#[derive(Debug)]
pub(crate) struct Places {
    /// The source of each sender.
    sources: Box<[Option<SourceId>]>,
    /// How many places each source has.
    counts: BTreeMap<SourceId, u32>,
    refused: Option<Refused>,
}

impl Places {
    /// Creates as many places, of which nobody has one.
    pub fn new(places: u32) -> Self {
        Self {
            sources: vec![None; places as usize].into_boxed_slice(),
            counts: BTreeMap::new(),
            refused: None,
        }
    }

    /// Notes that a sender has a place.
    pub fn join(&mut self, peer: u32, source: SourceId) {
        self.sources[peer as usize] = Some(source);
        *self.counts.entry(source).or_insert(0) += 1;
    }

    /// Notes that a sender has left its place.
    pub fn leave(&mut self, peer: u32) {
        let Some(source) = self.sources[peer as usize].take() else { return };
        if let Some(count) = self.counts.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&source);
            }
        }
    }

    /// Returns how many places a source has.
    pub fn of(&self, source: SourceId) -> u32 {
        self.counts.get(&source).copied().unwrap_or(0)
    }

    /// Returns how many places the source of a sender has.
    pub fn of_source_of(&self, peer: u32) -> u32 {
        self.sources[peer as usize].map_or(0, |source| self.of(source))
    }

    /// Returns whether the places that are free, so many, are kept for a source with fewer.
    pub fn are_kept_from(&self, source: SourceId, free: u32, kept_max: u32, now_ns: u64) -> bool {
        free <= kept_max
            && self.refused.is_some_and(|refused| now_ns < refused.until_ns && self.of(source) > refused.has)
    }

    /// Notes that a source was refused a place. Returns the most places that any source has, where that is
    /// more than it should have beside this one.
    pub fn refuse(&mut self, source: SourceId, now_ns: u64) -> Option<u32> {
        let has = self.of(source);
        let most = self.counts.values().copied().max().filter(|&most| most >= has + 2)?;
        self.refused = Some(Refused { has, until_ns: now_ns.saturating_add(KEPT_NS) });
        Some(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_fewer_is_kept_a_place_for_a_while_and_until_all_have_as_many() {
        let mut places = Places::new(6);
        let [rich, poor, other] = [1, 2, 3].map(SourceId);
        (0..5).for_each(|peer| places.join(peer, rich));
        places.join(5, other);
        assert_eq!(places.refuse(rich, 0), None, "nobody has more");
        assert!(!places.are_kept_from(rich, 1, 4, 1));
        assert_eq!(places.refuse(poor, 10), Some(5));
        assert!(places.are_kept_from(rich, 1, 4, 11) && places.are_kept_from(other, 1, 4, 11));
        assert!(!places.are_kept_from(poor, 1, 4, 11), "they are for it");
        assert!(!places.are_kept_from(rich, 5, 4, 11), "there are enough");
        assert!(!places.are_kept_from(rich, 1, 4, 10 + KEPT_NS));
        for peer in 0..3 {
            places.leave(peer);
            places.join(peer, poor);
        }
        assert_eq!((places.of(rich), places.of(poor), places.of_source_of(5)), (2, 3, 1));
        assert_eq!(places.refuse(other, 20), Some(3));
        assert_eq!(places.refuse(rich, 20), None, "one more is no reason");
        (0..6).for_each(|peer| places.leave(peer));
        assert!(places.counts.is_empty());
    }
}

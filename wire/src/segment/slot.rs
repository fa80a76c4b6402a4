//! The slot word: it says who may touch a delivered run, and where the run lies.
//!
//! | bits | meaning |
//! |---|---|
//! | 48..64 | generation, so that the word of an earlier run is never taken for this one |
//! | 34 | live: a run is delivered in this slot |
//! | 33 | escaped: `place` counts slabs of escape memory, not of the pool |
//! | 32 | pinned: the application is reading; the daemon must not move it |
//! | 0..32 | place: the run's first slab |
//!
//! Orderings, by label: *place*: the daemon's Release in [`SlotWord::publish`] and [`SlotWord::relocate`]
//! pairs with the Acquire in [`SlotWord::pin`] (the bytes are there before the place is seen). *done*: the
//! application's Release in [`SlotWord::unpin`] pairs with the Acquire in [`SlotWord::relocate`] (it has read
//! before the daemon reuses).

use crate::sync::{AtomicU64, Ordering};

const PINNED: u64 = 1 << 32;
const ESCAPED: u64 = 1 << 33;
const LIVE: u64 = 1 << 34;

/// The place of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First slab of the run.
    pub slab: u32,
    /// Whether the slab is of escape memory, not of the pool.
    pub escaped: bool,
}

/// The reason why a slot could not be pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinError {
    /// The slot holds another run, or none was ever there.
    Stale,
    /// The slot is pinned already.
    Pinned,
}

/// The reason why a run could not be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelocateError {
    /// The application is reading the run.
    Pinned,
    /// The slot does not hold that run at that place (released, or the word was scribbled over).
    Stale,
}

/// The shared word of one slot.
#[derive(Clone, Copy)]
pub struct SlotWord<'a>(pub(super) &'a AtomicU64);

fn word(generation: u16, place: Place) -> u64 {
    u64::from(generation) << 48 | LIVE | if place.escaped { ESCAPED } else { 0 } | u64::from(place.slab)
}

#[allow(clippy::cast_possible_truncation)] // the low half is what is wanted
fn low_half(word: u64) -> u32 {
    word as u32
}

impl SlotWord<'_> {
    /// Publishes that a run lies here (daemon's side). It overwrites the word of the slot's former run, which
    /// was released; pins of that run now fail.
    #[inline]
    pub fn publish(self, generation: u16, place: Place) {
        self.put(word(generation, place)); // label: place
    }

    /// Pins the run to start reading (application's side). Until [`Self::unpin`] the run stays at the
    /// returned place.
    ///
    /// # Errors
    /// [`PinError`] if the slot holds another run, or is pinned already.
    #[inline]
    pub fn pin(self, generation: u16) -> Result<Place, PinError> {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            if seen >> 48 != u64::from(generation) || seen & LIVE == 0 {
                return Err(PinError::Stale);
            }
            if seen & PINNED != 0 {
                return Err(PinError::Pinned);
            }
            // label: place
            match self.0.compare_exchange_weak(seen, seen | PINNED, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    return Ok(Place { slab: low_half(seen), escaped: seen & ESCAPED != 0 });
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Returns whether the application is reading that run now, so that a copy of it would be thrown away
    /// (daemon's side). It is only a hint: what counts is the result of [`Self::relocate`] after the copy.
    /// Returns `false` where the slot holds another run, or none.
    #[inline]
    pub fn is_pinned(self, generation: u16) -> bool {
        // Nothing is read or reused because of this answer alone, so it orders nothing.
        let seen = self.0.load(Ordering::Relaxed);
        seen >> 48 == u64::from(generation) && seen & LIVE != 0 && seen & PINNED != 0
    }

    /// Unpins the run after reading (application's side). Does nothing where the slot is not pinned for that
    /// run.
    #[inline]
    pub fn unpin(self, generation: u16) {
        let seen = self.0.load(Ordering::Relaxed);
        if seen >> 48 == u64::from(generation) && seen & PINNED != 0 {
            // While the run is pinned no other party writes the word. But an application that has released
            // the run before may find the slot's next run here, so the word is compared.
            // label: done
            let _ = self.0.compare_exchange(seen, seen & !PINNED, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// Lets readers find the run at `to`, after it was copied there from `from` (daemon's side).
    ///
    /// # Errors
    /// [`RelocateError`]: the copy is to be thrown away and the run left where it is.
    pub fn relocate(self, generation: u16, from: Place, to: Place) -> Result<(), RelocateError> {
        let expected = word(generation, from);
        // labels: place, done
        match self.0.compare_exchange(expected, word(generation, to), Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            Err(found) if found == expected | PINNED && crate::planted!(PinIgnored) => {
                self.put(word(generation, to) | PINNED);
                Ok(())
            }
            Err(found) if found == expected | PINNED => Err(RelocateError::Pinned),
            Err(_) => Err(RelocateError::Stale),
        }
    }

    #[inline]
    fn put(self, word: u64) {
        #[cfg(not(loom))]
        self.0.store(word, Ordering::Release);
        // loom leaves a plain store and a racing compare-and-swap unordered, so that the swap could win over
        // a value that was overwritten already: no machine does that. As a swap the store takes its place in
        // the order.
        #[cfg(loom)]
        self.0.swap(word, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod loom;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const HERE: Place = Place { slab: 7, escaped: false };
    const THERE: Place = Place { slab: 3, escaped: true };

    #[test]
    fn a_pinned_run_stays_and_an_unpinned_one_moves() {
        let shared = AtomicU64::new(0);
        let slot = SlotWord(&shared);
        slot.publish(9, HERE);
        assert_eq!(slot.pin(9), Ok(HERE));
        assert_eq!(slot.pin(9), Err(PinError::Pinned));
        assert_eq!(slot.relocate(9, HERE, THERE), Err(RelocateError::Pinned));
        slot.unpin(9);
        assert_eq!(slot.relocate(9, HERE, THERE), Ok(()));
        assert_eq!(slot.pin(9), Ok(THERE));
    }

    #[test]
    fn a_stale_generation_pins_nothing_and_moves_nothing() {
        let shared = AtomicU64::new(0);
        let slot = SlotWord(&shared);
        slot.publish(9, HERE);
        assert_eq!(slot.pin(8), Err(PinError::Stale));
        assert_eq!(slot.relocate(8, HERE, THERE), Err(RelocateError::Stale));
        slot.publish(10, THERE);
        assert_eq!(slot.pin(9), Err(PinError::Stale));
        assert_eq!(slot.pin(10), Ok(THERE));
    }

    #[test]
    fn a_pin_is_seen_for_its_own_run_only() {
        let shared = AtomicU64::new(0);
        let slot = SlotWord(&shared);
        slot.publish(9, HERE);
        assert!(!slot.is_pinned(9));
        slot.pin(9).unwrap();
        assert!(slot.is_pinned(9));
        assert!(!slot.is_pinned(8), "another run's");
        slot.unpin(9);
        assert!(!slot.is_pinned(9));
        // A pin on a slot that holds nothing can only be scribbled.
        shared.store(9 << 48 | PINNED, Ordering::Relaxed);
        assert!(!slot.is_pinned(9));
    }

    #[test]
    fn a_scribbled_word_is_never_moved() {
        let shared = AtomicU64::new(u64::MAX);
        assert_eq!(SlotWord(&shared).relocate(1, HERE, THERE), Err(RelocateError::Stale));
    }
}

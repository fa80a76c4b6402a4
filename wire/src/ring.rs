//! A single-producer single-consumer ring between two parties that need not trust each other.
//!
//! Power-of-two capacity; free-running 32-bit indices, each on cache lines of its own. Each end keeps its own
//! index in private memory and never reads it back, so a peer that scribbles over the shared words can only
//! make this end report [`RingError`]; what is popped is copied out once, word by word, before anybody looks
//! at it.
//!
//! The pairs of orderings, by label:
//! * *items*: the producer's Release store of `tail` in [`Producer::publish`] pairs with the consumer's
//!   Acquire load in [`Consumer::pop`]: an item is written before it is seen.
//! * *room*: the consumer's Release store of `head` in [`Consumer::advance`] pairs with the producer's
//!   Acquire load in
//!   [`Producer::push`]: an item is read before its cell is written again.
//! * *sleep*: [`Producer::wake_needed`] and [`Consumer::prepare_sleep`] are the two sides of
//!   [`crate::sleep`].

use crate::sleep::Sleeper;
use crate::sync::{AtomicU32, Ordering, UnsafeCell};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What may travel in a ring: plain words, valid for every bit pattern, with a size that is a multiple of 8.
pub trait Item: Copy + FromBytes + IntoBytes + Immutable {}
impl<T: Copy + FromBytes + IntoBytes + Immutable> Item for T {}

/// A word alone on its pair of cache lines (the adjacent-line prefetcher fetches two).
#[repr(C, align(128))]
struct Padded<T>(T);

/// The shared indices of one ring.
#[repr(C)]
pub struct Indices {
    tail: Padded<AtomicU32>,
    head: Padded<AtomicU32>,
    consumer: Padded<Sleeper>,
}

#[cfg(test)]
impl Indices {
    /// As if `index` items had passed already.
    fn starting_at(index: u32) -> Self {
        let padded = |value| Padded(AtomicU32::new(value));
        Self { tail: padded(index), head: padded(index), consumer: Padded(Sleeper::awake()) }
    }
}

/// The peer wrote an index that cannot be: it is broken or hostile, and the ring is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingError {
    /// The index found.
    pub found: u32,
    /// This end's own index.
    pub own: u32,
    /// Cells of the ring.
    pub capacity: u32,
}

impl core::fmt::Display for RingError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { found, own, capacity } = self;
        write!(f, "the peer's ring index {found} is impossible beside {own} in a ring of {capacity}")
    }
}

impl core::error::Error for RingError {}

/// Why an item was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// Every cell holds an unread item.
    Full,
    /// The peer broke the ring.
    Broken(RingError),
}

/// A cell of a ring. Opaque: only the ends read and write it.
#[repr(transparent)]
pub struct RingCell<T>(UnsafeCell<T>);

/// The writing end.
pub struct Producer<T> {
    indices: *const Indices,
    cells: *const RingCell<T>,
    capacity: u32,
    tail: u32,
    published: u32,
    head: u32,
}

/// The reading end.
pub struct Consumer<T> {
    indices: *const Indices,
    cells: *const RingCell<T>,
    capacity: u32,
    head: u32,
    advanced: u32,
    tail: u32,
}

// SAFETY: an end is the sole owner of its side of the ring, whatever thread holds it; the shared words are
// atomics and the cells change hands by the labelled Release/Acquire pairs.
unsafe impl<T: Send> Send for Producer<T> {}
// SAFETY: as for the producer.
unsafe impl<T: Send> Send for Consumer<T> {}

fn check_capacity<T>(capacity: u32) {
    const {
        assert!(
            size_of::<T>().is_multiple_of(8) && size_of::<T>() > 0,
            "ring items are whole 64-bit \
        words"
        )
    }
    assert!(
        capacity.is_power_of_two() && capacity <= 1 << 30,
        "ring capacity {capacity} is no power of two up to 2^30"
    );
}

#[cfg(test)]
impl<T: Item> Producer<T> {
    /// The writing end of a ring made by [`Indices::starting_at`]; otherwise as [`Self::new`].
    unsafe fn starting_at(
        indices: *const Indices,
        cells: *const RingCell<T>,
        capacity: u32,
        index: u32,
    ) -> Self {
        check_capacity::<T>(capacity);
        Self { indices, cells, capacity, tail: index, published: index, head: index }
    }
}

#[cfg(test)]
impl<T: Item> Consumer<T> {
    /// The reading end of a ring made by [`Indices::starting_at`]; otherwise as [`Self::new`].
    unsafe fn starting_at(
        indices: *const Indices,
        cells: *const RingCell<T>,
        capacity: u32,
        index: u32,
    ) -> Self {
        check_capacity::<T>(capacity);
        Self { indices, cells, capacity, head: index, advanced: index, tail: index }
    }
}

impl<T: Item> Producer<T> {
    /// Takes the writing end of a ring whose indices are all zero.
    ///
    /// # Safety
    /// `indices` and `capacity` cells from `cells` are valid, 8-byte aligned, and stay mapped while this end
    /// lives; no other producer exists. The peer may write anything into them at any time.
    ///
    /// # Panics
    /// Where the capacity is no power of two.
    pub unsafe fn new(indices: *const Indices, cells: *const RingCell<T>, capacity: u32) -> Self {
        check_capacity::<T>(capacity);
        Self { indices, cells, capacity, tail: 0, published: 0, head: 0 }
    }

    fn indices(&self) -> &Indices {
        // SAFETY: valid while this end lives, by the contract of `new`.
        unsafe { &*self.indices }
    }

    /// Writes an item without showing it yet; [`Self::publish`] shows all that were written.
    ///
    /// # Errors
    /// [`PushError::Full`] where the consumer has not made room; [`PushError::Broken`] where its index is
    /// impossible.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), PushError> {
        if self.tail.wrapping_sub(self.head) == self.capacity {
            self.refresh().map_err(PushError::Broken)?;
            if self.tail.wrapping_sub(self.head) == self.capacity {
                return Err(PushError::Full);
            }
        }
        let index = self.tail & (self.capacity - 1);
        // SAFETY: `index < capacity`, and the cells are valid by the contract of `new`.
        let cell = unsafe { &*self.cells.add(index as usize) };
        cell.0.with_mut(|place| {
            // SAFETY: the consumer reads this cell only between our publishing it and its advance past it
            // (labels *items*, *room*); a hostile one that reads early gets whatever it gets.
            unsafe { place.write(item) }
        });
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Cells that can be written before the next look at the consumer's index would be needed, after one such
    /// look.
    ///
    /// # Errors
    /// [`RingError`] where the consumer's index is impossible.
    pub fn room(&mut self) -> Result<u32, RingError> {
        self.refresh()?;
        Ok(self.capacity - self.tail.wrapping_sub(self.head))
    }

    fn refresh(&mut self) -> Result<(), RingError> {
        let found = self.indices().head.0.load(Ordering::Acquire); // label: room
        // It only goes on, and never past what was shown.
        if found.wrapping_sub(self.head) > self.published.wrapping_sub(self.head) {
            return Err(RingError { found, own: self.tail, capacity: self.capacity });
        }
        self.head = found;
        Ok(())
    }

    /// Shows the consumer all that was pushed. Cheap when nothing was.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.tail {
            self.indices().tail.0.store(self.tail, Ordering::Release); // label: items
            self.published = self.tail;
        }
    }

    /// After [`Self::publish`]: whether the consumer sleeps and must be woken (by its doorbell). Says so once
    /// a sleep.
    #[inline]
    pub fn wake_needed(&mut self) -> bool {
        self.indices().consumer.0.must_be_woken()
    }

    /// Items that were ever shown, counted modulo 2^32.
    pub fn published(&self) -> u32 {
        self.published
    }

    /// Items that the consumer has not taken, as of the last look.
    pub fn unread(&mut self) -> Result<u32, RingError> {
        self.refresh()?;
        Ok(self.published.wrapping_sub(self.head))
    }
}

impl<T: Item> Consumer<T> {
    /// Takes the reading end of a ring.
    ///
    /// # Safety
    /// As for [`Producer::new`], and no other consumer exists.
    ///
    /// # Panics
    /// Where the capacity is no power of two.
    pub unsafe fn new(indices: *const Indices, cells: *const RingCell<T>, capacity: u32) -> Self {
        check_capacity::<T>(capacity);
        Self { indices, cells, capacity, head: 0, advanced: 0, tail: 0 }
    }

    fn indices(&self) -> &Indices {
        // SAFETY: valid while this end lives, by the contract of `new`.
        unsafe { &*self.indices }
    }

    /// Takes the oldest item, if there is one. Its cell is the producer's again after [`Self::advance`].
    ///
    /// # Errors
    /// [`RingError`] where the producer's index is impossible.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<T>, RingError> {
        if self.head == self.tail {
            let found = self.indices().tail.0.load(Ordering::Acquire); // label: items
            let unread = found.wrapping_sub(self.head);
            if unread == 0 {
                return Ok(None);
            }
            // The producer may be ahead of `advanced` by at most the capacity, and never goes back behind
            // `head`: an index between the two would make this end read four thousand million old cells.
            let room = self.capacity - self.head.wrapping_sub(self.advanced);
            if unread > room {
                return Err(RingError { found, own: self.head, capacity: self.capacity });
            }
            self.tail = found;
        }
        let index = self.head & (self.capacity - 1);
        // SAFETY: `index < capacity`, and the cells are valid by the contract of `new`.
        let cell = unsafe { &*self.cells.add(index as usize) };
        let item = cell.0.with(copy_once);
        self.head = self.head.wrapping_add(1);
        Ok(Some(item))
    }

    /// Gives the cells of everything popped back to the producer. Cheap when nothing was popped.
    #[inline]
    pub fn advance(&mut self) {
        if self.advanced != self.head {
            self.indices().head.0.store(self.head, Ordering::Release); // label: room
            self.advanced = self.head;
        }
    }

    /// Items that were ever taken, counted modulo 2^32.
    pub fn taken(&self) -> u32 {
        self.head
    }

    /// Whether nothing waits, by a fresh look at the producer's index.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail && self.indices().tail.0.load(Ordering::Acquire) == self.head // label: items
    }

    /// Says "about to sleep" and looks once more. `true`: the ring is empty and the producer will wake this
    /// end; `false`: items came meanwhile, do not sleep.
    pub fn prepare_sleep(&mut self) -> bool {
        self.indices().consumer.0.sleeps();
        if self.is_empty() {
            return true;
        }
        self.awake();
        false
    }

    /// Takes the "sleeping" word back after waking for whatever reason.
    pub fn awake(&mut self) {
        self.indices().consumer.0.is_up();
    }
}

/// Copies an item that its writer may be changing meanwhile: each word is read exactly once, so what the
/// caller checks is what the caller uses.
#[inline]
fn copy_once<T: Item>(place: *const T) -> T {
    let mut item = T::new_zeroed();
    let words = size_of::<T>() / 8;
    let (from, to) = (place.cast::<u64>(), (&raw mut item).cast::<u64>());
    for word in 0..words {
        // SAFETY: both places hold `words` whole words (checked by `check_capacity`), the cells are 8-byte
        // aligned by the contract of `new`, and volatile keeps the compiler from reading a word twice. `to`
        // may be less aligned.
        unsafe { to.add(word).write_unaligned(from.add(word).read_volatile()) };
    }
    item
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
pub(crate) mod loom;

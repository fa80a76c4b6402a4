//! A single-producer single-consumer ring between two parties that need not trust each other.
//!
//! The capacity is a power of two, and the 32-bit indices run freely, each on cache lines of its own. Each
//! end keeps its own index in private memory and never reads it back. So a peer that scribbles over the
//! shared words can only make this end report [`RingError`]. A popped item is copied out once, word by word,
//! before anything reads it; or its place is given out, and the caller does so ([`Consumer::pop_place`]). The
//! model checker sees no use of such a place: it checks the indices, which are the same for both forms.
//!
//! The pairs of orderings, by label:
//! * *items*: the producer's Release store of `tail` in [`Producer::publish`] pairs with the consumer's
//!   Acquire load in `Consumer::oldest_cell`: an item is written before it is seen.
//! * *room*: the consumer's Release store of `head` in [`Consumer::advance`] pairs with the producer's
//!   Acquire load in `Producer::refresh`: an item is read before its cell is written again.
//! * *sleep*: [`Producer::wake_needed`] and [`Consumer::prepare_sleep`] are the two sides of
//!   [`crate::sleep`].

use crate::sleep::Sleeper;
use crate::sync::{AtomicU32, Ordering, UnsafeCell};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type that may travel in a ring: plain words, valid for every bit pattern, with a size that is a multiple
/// of 8.
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
    /// Creates indices as if `index` items had passed already.
    fn starting_at(index: u32) -> Self {
        let padded = |value| Padded(AtomicU32::new(value));
        Self { tail: padded(index), head: padded(index), consumer: Padded(Sleeper::awake()) }
    }
}

/// An impossible index that the peer wrote. The peer is broken or hostile, and the ring is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingError {
    /// Index found.
    pub found: u32,
    /// Index of this end.
    pub own: u32,
    /// Number of cells of the ring.
    pub capacity: u32,
}

impl core::fmt::Display for RingError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { found, own, capacity } = self;
        write!(f, "the peer's ring index {found} is impossible beside {own} in a ring of {capacity}")
    }
}

impl core::error::Error for RingError {}

/// The reason why an item was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// Every cell holds an unread item.
    Full,
    /// The peer broke the ring.
    Broken(RingError),
}

/// A cell of a ring. It is opaque: only the two ends read and write it.
#[repr(transparent)]
pub struct RingCell<T>(UnsafeCell<T>);

/// The writing end of a ring.
pub struct Producer<T> {
    indices: *const Indices,
    cells: *const RingCell<T>,
    capacity: u32,
    tail: u32,
    published: u32,
    head: u32,
}

/// The reading end of a ring.
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
    /// Takes the writing end of a ring made by [`Indices::starting_at`]; otherwise like [`Self::new`].
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
    /// Takes the reading end of a ring made by [`Indices::starting_at`]; otherwise like [`Self::new`].
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
    /// Panics if the capacity is not a power of two.
    pub unsafe fn new(indices: *const Indices, cells: *const RingCell<T>, capacity: u32) -> Self {
        check_capacity::<T>(capacity);
        Self { indices, cells, capacity, tail: 0, published: 0, head: 0 }
    }

    fn indices(&self) -> &Indices {
        // SAFETY: valid while this end lives, by the contract of `new`.
        unsafe { &*self.indices }
    }

    /// Writes an item without showing it yet; [`Self::publish`] shows all items that were written.
    ///
    /// # Errors
    /// [`PushError::Full`] where the consumer has not made room; [`PushError::Broken`] where the consumer's
    /// index is impossible.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), PushError> {
        let cell = self.next_cell()?;
        cell.0.with_mut(|place| {
            // SAFETY: the consumer reads this cell only between our publishing it and its advance past it
            // (labels *items*, *room*); a hostile one that reads early gets whatever it gets.
            unsafe { place.write(item) }
        });
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Returns the place of a new item, which counts as pushed. The caller writes it before
    /// [`Self::publish`]. What it does not write there is of an earlier item. So an item need not be made
    /// elsewhere and copied, and only the part of it that is used is written. A hostile consumer may read it
    /// early.
    ///
    /// # Errors
    /// As [`Self::push`].
    #[inline]
    pub fn push_place(&mut self) -> Result<*mut T, PushError> {
        let place = self.next_cell()?.0.with_mut(|place| place);
        self.tail = self.tail.wrapping_add(1);
        Ok(place)
    }

    /// Returns the cell of the next item.
    #[inline]
    fn next_cell(&mut self) -> Result<&RingCell<T>, PushError> {
        if self.tail.wrapping_sub(self.head) == self.capacity {
            self.refresh().map_err(PushError::Broken)?;
            if self.tail.wrapping_sub(self.head) == self.capacity {
                return Err(PushError::Full);
            }
        }
        let index = self.tail & (self.capacity - 1);
        // SAFETY: `index < capacity`, and the cells are valid by the contract of `new`.
        Ok(unsafe { &*self.cells.add(index as usize) })
    }

    /// Reads the consumer's index, and returns how many cells can be written before it must be read again.
    ///
    /// # Errors
    /// [`RingError`] where the consumer's index is impossible.
    pub fn room(&mut self) -> Result<u32, RingError> {
        self.refresh()?;
        Ok(self.capacity - self.tail.wrapping_sub(self.head))
    }

    fn refresh(&mut self) -> Result<(), RingError> {
        let found = self.indices().head.0.load(Ordering::Acquire); // label: room
        // The index only increases, and never past what was shown.
        if found.wrapping_sub(self.head) > self.published.wrapping_sub(self.head) {
            return Err(RingError { found, own: self.tail, capacity: self.capacity });
        }
        self.head = found;
        Ok(())
    }

    /// Shows the consumer all items that were pushed. Costs little when there are none.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.tail {
            self.indices().tail.0.store(self.tail, Ordering::Release); // label: items
            self.published = self.tail;
        }
    }

    /// Returns, after [`Self::publish`], whether the consumer sleeps and must be woken by its doorbell.
    /// Returns `true` once for each sleep.
    #[inline]
    pub fn wake_needed(&mut self) -> bool {
        self.indices().consumer.0.must_be_woken()
    }

    /// Returns the number of items that were ever shown, modulo 2^32.
    pub fn published(&self) -> u32 {
        self.published
    }

    /// Reads the consumer's index, and returns how many shown items are not given back with
    /// [`Consumer::advance`] yet.
    ///
    /// # Errors
    /// [`RingError`] where the consumer's index is impossible.
    pub fn unread(&mut self) -> Result<u32, RingError> {
        self.refresh()?;
        Ok(self.published.wrapping_sub(self.head))
    }
}

impl<T: Item> Consumer<T> {
    /// Takes the reading end of a ring whose indices are all zero.
    ///
    /// # Safety
    /// The conditions of [`Producer::new`] hold, and no other consumer exists.
    ///
    /// # Panics
    /// Panics if the capacity is not a power of two.
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
        let Some(cell) = self.oldest_cell()? else { return Ok(None) };
        let item = cell.0.with(|place| {
            // SAFETY: a cell is 8-byte aligned and valid by the contract of `new`, and its item is whole
            // words (checked by `check_capacity`).
            unsafe { copy_once(place) }
        });
        self.head = self.head.wrapping_add(1);
        Ok(Some(item))
    }

    /// Takes the oldest item and returns its place, where it lies until [`Self::advance`]. So only the part
    /// of it that is used is read. A hostile producer may write there at any time: copy what is checked out
    /// by [`copy_once`], and look at nothing else.
    ///
    /// # Errors
    /// As [`Self::pop`].
    #[inline]
    pub fn pop_place(&mut self) -> Result<Option<*const T>, RingError> {
        let Some(cell) = self.oldest_cell()? else { return Ok(None) };
        let place = cell.0.with(|place| place);
        self.head = self.head.wrapping_add(1);
        Ok(Some(place))
    }

    /// Returns the cell of the oldest item, if there is one.
    #[inline]
    fn oldest_cell(&mut self) -> Result<Option<&RingCell<T>>, RingError> {
        if self.head == self.tail {
            let found = self.indices().tail.0.load(Ordering::Acquire); // label: items
            let unread = found.wrapping_sub(self.head);
            if unread == 0 {
                return Ok(None);
            }
            // The producer may be ahead of `advanced` by at most the capacity, and never goes back behind
            // `head`. An index between the two would make this end read four thousand million old cells.
            let room = self.capacity - self.head.wrapping_sub(self.advanced);
            if unread > room {
                return Err(RingError { found, own: self.head, capacity: self.capacity });
            }
            self.tail = found;
        }
        let index = self.head & (self.capacity - 1);
        // SAFETY: `index < capacity`, and the cells are valid by the contract of `new`.
        Ok(Some(unsafe { &*self.cells.add(index as usize) }))
    }

    /// Undoes the last [`Self::pop`] or [`Self::pop_place`] since [`Self::advance`]: its item is the oldest
    /// again. The producer, which may be hostile, can have changed the item when it is popped again.
    ///
    /// # Panics
    /// Where nothing was popped since then.
    pub fn put_back(&mut self) {
        assert!(self.head != self.advanced, "only what was popped is put back");
        self.head = self.head.wrapping_sub(1);
    }

    /// Gives the cells of everything popped back to the producer. Costs little when nothing was popped.
    #[inline]
    pub fn advance(&mut self) {
        if self.advanced != self.head {
            self.indices().head.0.store(self.head, Ordering::Release); // label: room
            self.advanced = self.head;
        }
    }

    /// Returns the number of items that were ever taken, modulo 2^32.
    pub fn taken(&self) -> u32 {
        self.head
    }

    /// Reads the producer's index, and returns whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.head == self.tail && self.indices().tail.0.load(Ordering::Acquire) == self.head // label: items
    }

    /// Announces that this end is about to sleep, and then checks once more for items. Returns `true` if the
    /// ring is empty: the producer will wake this end. Returns `false` if items arrived meanwhile: do not
    /// sleep.
    pub fn prepare_sleep(&mut self) -> bool {
        self.indices().consumer.0.sleeps();
        if self.is_empty() {
            return true;
        }
        self.awake();
        false
    }

    /// Takes the announcement of sleep back, after this end woke for whatever reason.
    pub fn awake(&mut self) {
        self.indices().consumer.0.is_up();
    }
}

/// Copies an item, or a part of it that is whole 64-bit words, while its writer may be changing it. Each word
/// is read exactly once, so the caller uses the same values that it checks.
///
/// # Safety
/// `place` is 8-byte aligned and readable as a `T`. Others may write there meanwhile.
#[inline]
pub unsafe fn copy_once<T: Item>(place: *const T) -> T {
    const { assert!(size_of::<T>().is_multiple_of(8), "what is copied is whole 64-bit words") }
    let mut item = T::new_zeroed();
    let words = size_of::<T>() / 8;
    let (from, to) = (place.cast::<u64>(), (&raw mut item).cast::<u64>());
    for word in 0..words {
        // SAFETY: both places hold `words` whole words, `from` is aligned by this function's contract, and
        // volatile keeps the compiler from reading a word twice. `to` may be less aligned.
        unsafe { to.add(word).write_unaligned(from.add(word).read_volatile()) };
    }
    item
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
pub(crate) mod loom;

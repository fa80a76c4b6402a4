//! Rings between two threads of one process: `jet-wire`'s ring, over heap memory that both ends keep alive.
//!
//! Both ends belong to this process, so a broken ring is a bug and panics; it is no error.

use jet_wire::ring::{Consumer, Indices, Item, Producer, PushError, RingCell};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

const OWN_RING: &str = "both ends of this ring are this process's own";

/// Heap memory of one ring: its indices and cells.
struct Memory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain memory; only the ring's two ends touch it, by the ring's protocol.
unsafe impl Send for Memory {}
// SAFETY: as above; `Memory` itself hands out nothing.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `heap_ring` with this layout, and both ends, which hold this memory, are gone.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Writing end of a ring on the heap.
pub struct HeapProducer<T> {
    end: Producer<T>,
    _memory: Arc<Memory>,
}

/// Reading end of a ring on the heap.
pub struct HeapConsumer<T> {
    end: Consumer<T>,
    _memory: Arc<Memory>,
}

/// Makes a ring of `capacity` cells, a power of two, and returns both ends. Only this call allocates.
///
/// # Panics
/// Where the capacity is no power of two up to 2^30.
pub fn heap_ring<T: Item>(capacity: u32) -> (HeapProducer<T>, HeapConsumer<T>) {
    let indices_bytes = size_of::<Indices>();
    let bytes = size_of::<RingCell<T>>() * capacity as usize + indices_bytes;
    let layout = Layout::from_size_align(bytes, align_of::<Indices>().max(align_of::<RingCell<T>>()).max(8))
        .expect("a ring is far smaller than the address space");
    // SAFETY: the layout is not empty.
    let Some(base) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
    let memory = Arc::new(Memory { base, layout });
    // SAFETY: the indices end on a multiple of their own alignment (128), which suffices for the cells behind
    // them; all within the allocation.
    let (indices, cells) =
        unsafe { (base.as_ptr().cast::<Indices>(), base.as_ptr().add(indices_bytes).cast::<RingCell<T>>()) };
    // SAFETY: zeroed, aligned, `capacity` cells long, kept alive by the `Arc` beside each end; each is taken
    // once.
    let (producer, consumer) =
        unsafe { (Producer::new(indices, cells, capacity), Consumer::new(indices, cells, capacity)) };
    (HeapProducer { end: producer, _memory: memory.clone() }, HeapConsumer { end: consumer, _memory: memory })
}

impl<T: Item> HeapProducer<T> {
    /// Writes an item without showing it to the other end yet. `false` where the ring is full.
    #[inline]
    #[must_use]
    pub fn push(&mut self, item: T) -> bool {
        match self.end.push(item) {
            Ok(()) => true,
            Err(PushError::Full) => false,
            Err(PushError::Broken(error)) => panic!("{error}; {OWN_RING}"),
        }
    }

    /// Returns how many cells are free.
    #[inline]
    pub fn room(&mut self) -> u32 {
        self.end.room().expect(OWN_RING)
    }

    /// Shows the other end all items that were pushed.
    #[inline]
    pub fn publish(&mut self) {
        self.end.publish();
    }

    /// Whether the other end sleeps and must be woken, to be asked after [`Self::publish`]. True at most once
    /// for each sleep.
    #[inline]
    pub fn wake_needed(&mut self) -> bool {
        self.end.wake_needed()
    }
}

impl<T: Item> HeapConsumer<T> {
    /// Takes the oldest item that the other end has shown.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        self.end.pop().expect(OWN_RING)
    }

    /// Gives the cells of all popped items back to the other end.
    #[inline]
    pub fn advance(&mut self) {
        self.end.advance();
    }

    /// Announces that this end is about to sleep, and checks once more for items. `false` where there are
    /// items by now.
    pub fn prepare_sleep(&mut self) -> bool {
        self.end.prepare_sleep()
    }

    /// Withdraws the announcement of [`Self::prepare_sleep`] after waking, whatever woke this end.
    pub fn awake(&mut self) {
        self.end.awake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_meet_and_either_may_go_first() {
        let (mut producer, mut consumer) = heap_ring::<[u64; 3]>(4);
        for round in 0..10u64 {
            (0..4).for_each(|item| assert!(producer.push([round, item, 7])));
            assert!(!producer.push([0; 3]), "four cells hold four items");
            producer.publish();
            (0..4).for_each(|item| assert_eq!(consumer.pop(), Some([round, item, 7])));
            assert_eq!(consumer.pop(), None);
            consumer.advance();
            assert_eq!(producer.room(), 4);
        }
        assert!(producer.push([1, 2, 3]));
        producer.publish();
        drop(producer);
        assert_eq!(consumer.pop(), Some([1, 2, 3]));
    }
}

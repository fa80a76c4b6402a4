//! How much memory the NIC takes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Allocator that counts the bytes in use.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static USED_MAX: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: usize) {
    let used = USED.fetch_add(bytes, Relaxed) + bytes;
    USED_MAX.fetch_max(used, Relaxed);
}

// SAFETY: all memory is the system allocator's; nothing is added to its answers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.dealloc(place, layout) }
    }
}

/// Runs `work`. Returns its value, by how many bytes more are in use after it, and the most meanwhile.
pub fn of<T>(work: impl FnOnce() -> T) -> (T, isize, isize) {
    let before = USED.load(Relaxed);
    USED_MAX.store(before, Relaxed);
    let value = work();
    let since = |bytes: &AtomicUsize| bytes.load(Relaxed).cast_signed() - before.cast_signed();
    (value, since(&USED), since(&USED_MAX))
}

//! How much memory a fuzzed call takes. The crate brings the allocator of the program that it is linked into.

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Runs `work`. Returns its value, by how many bytes more are in use after it, and the most meanwhile.
pub fn of<T>(work: impl FnOnce() -> T) -> (T, isize, isize) {
    let before = ALLOCATOR.current_usage();
    ALLOCATOR.reset_peak_usage();
    let value = work();
    let since = |bytes: usize| bytes.cast_signed() - before.cast_signed();
    (value, since(ALLOCATOR.current_usage()), since(ALLOCATOR.peak_usage()))
}

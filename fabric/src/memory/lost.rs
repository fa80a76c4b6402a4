//! Memory that the hardware lost, and that the kernel was to write.
//!
//! Where the hardware lost a page, a call of the kernel only returns `EFAULT`, while touching the page raises
//! a signal. A handler that watches the memory can then put another page in its place, and the call is tried
//! again. Without such a handler the process ends, as it would whenever it touched the page.

/// Smallest page size that there is, in bytes.
const PAGE_BYTES: usize = 4096;

/// Touches every page of the stretches.
///
/// # Safety
/// Every stretch is memory that this process may read.
#[cold]
pub(crate) unsafe fn touch(stretches: &[libc::iovec]) {
    for stretch in stretches {
        let start = stretch.iov_base.cast::<u8>().cast_const();
        let mut at = 0;
        while at < stretch.iov_len {
            // SAFETY: within the stretch.
            let place = unsafe { start.add(at) };
            // SAFETY: the caller guarantees that the memory may be read; the value is not used.
            unsafe { place.read_volatile() };
            at += PAGE_BYTES - place.addr() % PAGE_BYTES;
        }
    }
}

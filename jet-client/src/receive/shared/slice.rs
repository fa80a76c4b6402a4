//! Slices that belong to whoever holds them.

use super::kept::Kept;
use crate::receive::slice::Run;
use std::fmt;
use std::ops::Deref;

/// Bytes of a message like a [`Slice`](crate::receive::Slice), which any thread may read and keep. Dropping
/// it gives its slabs back.
///
/// Its bytes stay readable when the daemon is gone, and when the session has come back to another daemon.
///
/// With the feature `bytes` it becomes a [`bytes::Bytes`] without a copy.
pub struct OwnedSlice {
    life: Kept,
    run: Run,
}

impl OwnedSlice {
    pub(super) fn new(life: Kept, run: Run) -> Self {
        Self { life, run }
    }

    /// Returns the offset of the slice in its message, in bytes.
    pub fn offset(&self) -> u64 {
        self.run.offset
    }

    /// Returns the number of slabs that the slice keeps from the pool, or from escape memory.
    pub fn slabs(&self) -> usize {
        usize::from(self.run.count)
    }

    /// Splits the slice before its slab number `slabs` (4 KiB each, counted from 0), so that both parts are
    /// given back on their own.
    ///
    /// # Panics
    /// Unless `0 < slabs < self.slabs()`.
    pub fn split_at_slab(mut self, slabs: usize) -> (Self, Self) {
        self.run.assert_splits(slabs);
        let (head, tail) = std::mem::replace(&mut self.run, Run::NOTHING).split_at_slab(slabs);
        // The whole slice, which holds nothing any more, is dropped after this.
        let state = self.life.lock();
        let of = |run| Self { life: self.life.again(&state.end), run };
        (of(head), of(tail))
    }
}

impl Deref for OwnedSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the session checked that the run lies within the mapping of the pool or of escape memory,
        // which the life keeps. The slot is pinned and not released, so the daemon neither moves the run nor
        // lets its NIC write it.
        unsafe { std::slice::from_raw_parts(self.run.bytes.as_ptr(), self.run.length) }
    }
}

impl AsRef<[u8]> for OwnedSlice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for OwnedSlice {
    #[inline]
    fn drop(&mut self) {
        let Self { life, run } = self;
        life.give_back(|session| {
            if run.count > 0 {
                session.release_slices(run.slot, run.first, run.count);
                session.show_what_is_waited_for();
            }
        });
    }
}

impl fmt::Debug for OwnedSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedSlice")
            .field("offset", &self.run.offset)
            .field("bytes", &self.run.length)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "bytes")]
impl From<OwnedSlice> for bytes::Bytes {
    /// The slabs are given back when the last clone is dropped.
    fn from(slice: OwnedSlice) -> Self {
        Self::from_owner(slice)
    }
}

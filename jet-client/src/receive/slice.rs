//! Runs of a message's bytes, lent to the application.

use super::session::Session;
use jet_wire::SLAB_BYTES;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

/// Bytes of a message: a run of consecutive slabs, at most a fragment (256 KiB) long.
///
/// They lie where the NIC put them, in the daemon's pool; or in its escape memory, where the cache was scarce
/// and the daemon had the NIC put them there, or moved them before this slice was taken. Either way the first
/// byte of a slab is page-aligned. While it lives nobody writes the bytes and the daemon does not move them;
/// dropping it gives the slabs back. A run of several slabs can be given back in parts, see
/// [`Self::split_at_slab`] and [`Self::slices`].
pub struct Slice<'s> {
    session: &'s Session,
    run: Run,
}

/// A part of a delivered run.
#[derive(Debug)]
struct Run {
    bytes: NonNull<u8>,
    length: usize,
    /// Where in the message it begins, in bytes.
    offset: u64,
    slot: u32,
    first: u16,
    count: u16,
}

/// A slice without its borrow of the session: plain data that another thread, or io_uring, may hold.
///
/// Its bytes stay valid, and where they are, as those of a [`Slice`] do, until it comes back by
/// [`Session::release`] or the session is dropped. One that never comes back keeps its slabs from the daemon
/// until the session ends.
#[derive(Debug)]
#[must_use = "a detached slice keeps its slabs until Session::release"]
pub struct DetachedSlice {
    session: u64,
    run: Run,
}

// SAFETY: the pointer leads into a mapping that any thread may read; the slot is pinned, so nobody writes the
// bytes.
unsafe impl Send for DetachedSlice {}
// SAFETY: as above; there is nothing to change through a shared reference.
unsafe impl Sync for DetachedSlice {}

impl<'s> Slice<'s> {
    pub(super) fn new(
        session: &'s Session,
        bytes: NonNull<u8>,
        length: usize,
        offset: u64,
        slot: u32,
        count: u16,
    ) -> Self {
        Self { session, run: Run { bytes, length, offset, slot, first: 0, count } }
    }

    /// Where in the message it begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.run.offset
    }

    /// Slabs that it keeps from the pool, or from escape memory.
    pub fn slabs(&self) -> usize {
        usize::from(self.run.count)
    }

    /// Splits before the `slabs`-th slab (4 KiB each), so that both parts are given back on their own.
    ///
    /// # Panics
    /// Unless `0 < slabs < self.slabs()`.
    pub fn split_at_slab(self, slabs: usize) -> (Self, Self) {
        let all = self.slabs();
        assert!(0 < slabs && slabs < all, "cannot split {all} slabs before slab {slabs}");
        let whole = ManuallyDrop::new(self);
        let Run { bytes, length, offset, slot, first, count } = whole.run;
        let at = slabs * SLAB_BYTES;
        // Bounded by `count` above.
        let taken = u16::try_from(slabs).unwrap_or(count);
        // SAFETY: a run of more than `slabs` slabs is longer than `at`, so this stays within it.
        let rest = unsafe { bytes.add(at) };
        let head = Run { bytes, length: at, offset, slot, first, count: taken };
        let tail = Run {
            bytes: rest,
            length: length - at,
            offset: offset + at as u64,
            slot,
            first: first + taken,
            count: count - taken,
        };
        (Self { session: whole.session, run: head }, Self { session: whole.session, run: tail })
    }

    /// Slab by slab: each piece of at most 4 KiB is given back when it is dropped.
    pub fn slices(self) -> Slices<'s> {
        Slices { rest: Some(self) }
    }

    /// Lets go of the session's borrow; see [`DetachedSlice`].
    pub fn detach(self) -> DetachedSlice {
        let whole = ManuallyDrop::new(self);
        let Run { bytes, length, offset, slot, first, count } = whole.run;
        DetachedSlice {
            session: whole.session.identity,
            run: Run { bytes, length, offset, slot, first, count },
        }
    }
}

impl Deref for Slice<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `Message::try_next` checked that the run lies within the mapping of the pool or of escape
        // memory, which the borrowed session keeps. The slot is pinned and not released, so the daemon
        // neither moves the run nor lets its NIC write it.
        unsafe { std::slice::from_raw_parts(self.run.bytes.as_ptr(), self.run.length) }
    }
}

impl AsRef<[u8]> for Slice<'_> {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Slice<'_> {
    #[inline]
    fn drop(&mut self) {
        self.session.release_slices(self.run.slot, self.run.first, self.run.count);
    }
}

impl fmt::Debug for Slice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slice").field("offset", &self.run.offset).field("bytes", &self.run.length).finish()
    }
}

/// Gives a slice slab by slab.
#[derive(Debug)]
pub struct Slices<'s> {
    rest: Option<Slice<'s>>,
}

impl<'s> Iterator for Slices<'s> {
    type Item = Slice<'s>;

    fn next(&mut self) -> Option<Slice<'s>> {
        let rest = self.rest.take()?;
        if rest.slabs() == 1 {
            return Some(rest);
        }
        let (head, tail) = rest.split_at_slab(1);
        self.rest = Some(tail);
        Some(head)
    }
}

impl DetachedSlice {
    /// The first byte; page-aligned where the slice begins a slab, in the pool and in escape memory alike.
    pub fn as_ptr(&self) -> *const u8 {
        self.run.bytes.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.run.length
    }

    /// Whether it has none: a message of no bytes.
    pub fn is_empty(&self) -> bool {
        self.run.length == 0
    }

    /// Where in the message it begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.run.offset
    }

    /// The bytes.
    ///
    /// # Safety
    /// The session that gave the slice is not dropped while the bytes are borrowed.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: as in `Slice::deref`, with the session kept by the caller.
        unsafe { std::slice::from_raw_parts(self.run.bytes.as_ptr(), self.run.length) }
    }
}

impl Session {
    /// Gives a detached slice back.
    ///
    /// # Panics
    /// Where the slice is another session's.
    pub fn release(&self, slice: DetachedSlice) {
        drop(self.attach_slice(slice));
    }

    /// Binds a detached slice to its session again.
    ///
    /// # Panics
    /// Where the slice is another session's.
    pub fn attach_slice(&self, slice: DetachedSlice) -> Slice<'_> {
        assert_eq!(slice.session, self.identity, "the slice belongs to another session");
        Slice { session: self, run: slice.run }
    }
}

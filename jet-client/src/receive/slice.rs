//! Slices: runs of a message's bytes, lent to the application.

use super::session::Session;
use jet_wire::SLAB_BYTES;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;

/// Bytes of a message: a run of consecutive slabs, at most a fragment (256 KiB) long.
///
/// The bytes lie where the NIC put them: in the daemon's pool, or in its escape memory where the cache was
/// scarce. The daemon may also have moved them to escape memory before this slice was taken. The first byte
/// of a slab is page-aligned in either memory.
///
/// While the slice lives, nobody writes the bytes and the daemon does not move them. Dropping the slice gives
/// its slabs back. A slice of several slabs can be given back in parts, see [`Self::split_at_slab`] and
/// [`Self::into_slabs`].
pub struct Slice<'s> {
    session: &'s Session,
    run: Run,
}

/// A part of a delivered run.
#[derive(Debug)]
pub(super) struct Run {
    pub bytes: NonNull<u8>,
    pub length: usize,
    /// Offset of the first byte in the message, in bytes.
    pub offset: u64,
    pub slot: u32,
    pub first: u16,
    pub count: u16,
}

// SAFETY: the pointer leads into a mapping that any thread may read; the slot is pinned, so nobody writes the
// bytes.
unsafe impl Send for Run {}
// SAFETY: as above; there is nothing to change through a shared reference.
unsafe impl Sync for Run {}

impl Run {
    /// A run that was taken apart: nothing is to be given back.
    pub(super) const NOTHING: Self =
        Self { bytes: NonNull::dangling(), length: 0, offset: 0, slot: 0, first: 0, count: 0 };

    /// A run that was delivered in `slot`, with all of its `count` slabs.
    pub(super) fn new(bytes: NonNull<u8>, length: usize, offset: u64, slot: u32, count: u16) -> Self {
        Self { bytes, length, offset, slot, first: 0, count }
    }

    /// Checks, before a run is taken apart, that it can be split there.
    ///
    /// # Panics
    /// Unless `0 < slabs < count`.
    pub(super) fn assert_splits(&self, slabs: usize) {
        let all = usize::from(self.count);
        assert!(0 < slabs && slabs < all, "cannot split {all} slabs before slab {slabs}");
    }

    /// Splits the run before its slab number `slabs`, as [`Self::assert_splits`] allows.
    pub(super) fn split_at_slab(self, slabs: usize) -> (Self, Self) {
        let Self { bytes, length, offset, slot, first, count } = self;
        let at = slabs * SLAB_BYTES;
        // The conversion cannot fail: `slabs` is below `count`.
        let taken = u16::try_from(slabs).unwrap_or(count);
        debug_assert!(at < length);
        // SAFETY: a run of more than `slabs` slabs is longer than `at`, so this stays within it.
        let rest = unsafe { bytes.add(at) };
        let head = Self { bytes, length: at, offset, slot, first, count: taken };
        let tail = Self {
            bytes: rest,
            length: length - at,
            offset: offset + at as u64,
            slot,
            first: first + taken,
            count: count - taken,
        };
        (head, tail)
    }
}

/// A slice without its borrow of the session: plain data that another thread, or io_uring, may hold.
///
/// Its bytes stay valid, and in their place, like those of a [`Slice`], until it is given back by
/// [`Session::release`] or the session is dropped. A slice that is never given back keeps its slabs from the
/// daemon until the session ends.
#[derive(Debug)]
#[must_use = "a detached slice keeps its slabs until Session::release"]
pub struct DetachedSlice {
    session: u64,
    run: Run,
}

impl<'s> Slice<'s> {
    pub(super) fn new(session: &'s Session, run: Run) -> Self {
        Self { session, run }
    }

    /// Takes the run out, which is not given back.
    fn into_run(self) -> (&'s Session, Run) {
        let whole = ManuallyDrop::new(self);
        let Run { bytes, length, offset, slot, first, count } = whole.run;
        (whole.session, Run { bytes, length, offset, slot, first, count })
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
    pub fn split_at_slab(self, slabs: usize) -> (Self, Self) {
        self.run.assert_splits(slabs);
        let (session, run) = self.into_run();
        let (head, tail) = run.split_at_slab(slabs);
        (Self { session, run: head }, Self { session, run: tail })
    }

    /// Returns the slice slab by slab: each piece of at most 4 KiB is given back when it is dropped.
    pub fn into_slabs(self) -> Slabs<'s> {
        Slabs { rest: Some(self) }
    }

    /// Gives up the slice's borrow of the session; see [`DetachedSlice`].
    pub fn detach(self) -> DetachedSlice {
        let (session, run) = self.into_run();
        DetachedSlice { session: session.identity, run }
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

/// Iterator over a slice, slab by slab.
#[derive(Debug)]
pub struct Slabs<'s> {
    rest: Option<Slice<'s>>,
}

impl<'s> Iterator for Slabs<'s> {
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
    /// Returns the address of the first byte. It is page-aligned where the slice begins at a slab's
    /// beginning, in the pool and in escape memory alike.
    pub fn as_ptr(&self) -> *const u8 {
        self.run.bytes.as_ptr()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.run.length
    }

    /// Whether the slice has no bytes: the message is empty.
    pub fn is_empty(&self) -> bool {
        self.run.length == 0
    }

    /// Returns the offset of the slice in its message, in bytes.
    pub fn offset(&self) -> u64 {
        self.run.offset
    }

    /// Returns the bytes.
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
    /// Where the slice belongs to another session.
    pub fn release(&self, slice: DetachedSlice) {
        drop(self.attach_slice(slice));
    }

    /// Binds a detached slice to its session again.
    ///
    /// # Panics
    /// Where the slice belongs to another session.
    pub fn attach_slice(&self, slice: DetachedSlice) -> Slice<'_> {
        assert_eq!(slice.session, self.identity, "the slice belongs to another session");
        Slice { session: self, run: slice.run }
    }
}

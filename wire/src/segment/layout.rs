//! The layout of a session segment, and the two ends made from a mapping of it.

use super::{Delivery, Notice, NoticeWord, Release, SlotWord};
use crate::SLAB_BYTES;
use crate::message::USER_HEADER_MAX;
use crate::ring::{Consumer, Indices, Producer, RingCell};
use crate::sync::AtomicU64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

const MAGIC: u64 = u64::from_le_bytes(*b"JETsegm3");
const ALIGN: usize = 128;

/// The sizes of a segment's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentShape {
    /// The most runs that can be delivered and not yet released.
    pub slots: u32,
    /// The most messages that can be delivered and not yet finished.
    pub messages: u32,
    /// Cells of the delivery ring, a power of two, at least `slots + messages`.
    pub delivery_cells: u32,
    /// Cells of the release ring, a power of two.
    pub release_cells: u32,
}

impl SegmentShape {
    /// Returns the shape for so many slots and messages, with rings that an honest application never fills.
    ///
    /// # Panics
    /// Panics if either is 0 or above 65,536.
    pub fn new(slots: u32, messages: u32) -> Self {
        assert!(
            (1..=1 << 16).contains(&slots) && (1..=1 << 16).contains(&messages),
            "1 to 65,536 slots and messages"
        );
        Self {
            slots,
            messages,
            delivery_cells: (slots + messages).next_power_of_two(),
            release_cells: (2 * (slots + messages)).next_power_of_two(),
        }
    }

    fn is_sound(&self) -> bool {
        let small = |n: u32| (1..=1 << 16).contains(&n);
        let ring = |n: u32| n.is_power_of_two() && n <= 1 << 20;
        small(self.slots)
            && small(self.messages)
            && ring(self.delivery_cells)
            && ring(self.release_cells)
            && self.delivery_cells >= self.slots + self.messages
    }
}

/// The first bytes of the segment.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SegmentHeader {
    magic: u64,
    shape: SegmentShape,
    total_bytes: u64,
}

/// A cell for one message's user header.
pub type UserHeaderCell = [u8; USER_HEADER_MAX];

/// Byte offsets of the segment's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentLayout {
    shape: SegmentShape,
    delivery_indices: usize,
    delivery_cells: usize,
    release_indices: usize,
    release_cells: usize,
    notice: usize,
    slots: usize,
    user_headers: usize,
    replies: usize,
    total: usize,
}

/// The reason why a mapping does not hold a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SegmentError {
    /// The mapping is smaller than its own header says, or than a header.
    TooSmall {
        /// Bytes mapped.
        bytes: usize,
    },
    /// The mapping does not begin like a segment of this version.
    NotASegment,
}

impl core::fmt::Display for SegmentError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::TooSmall { bytes } => write!(f, "a session segment cannot have {bytes} bytes"),
            Self::NotASegment => {
                f.write_str("not a session segment of this version; use the same build at both ends")
            }
        }
    }
}

impl core::error::Error for SegmentError {}

impl SegmentLayout {
    /// Computes the layout of a shape.
    pub fn new(shape: SegmentShape) -> Self {
        let mut at = size_of::<SegmentHeader>();
        let mut take = |bytes: usize| {
            let start = at.next_multiple_of(ALIGN);
            at = start + bytes;
            start
        };
        let delivery_indices = take(size_of::<Indices>());
        let delivery_cells = take(shape.delivery_cells as usize * size_of::<Delivery>());
        let release_indices = take(size_of::<Indices>());
        let release_cells = take(shape.release_cells as usize * size_of::<Release>());
        let notice = take(size_of::<u64>());
        let slots = take(shape.slots as usize * size_of::<u64>());
        let user_headers = take(shape.messages as usize * size_of::<UserHeaderCell>());
        // On pages of their own: those that are never used take no memory.
        let replies = at.next_multiple_of(SLAB_BYTES);
        let total = replies + shape.messages as usize * SLAB_BYTES;
        Self {
            shape,
            delivery_indices,
            delivery_cells,
            release_indices,
            release_cells,
            notice,
            slots,
            user_headers,
            replies,
            total,
        }
    }

    /// Returns the bytes that the segment's file must have.
    pub fn total_bytes(&self) -> usize {
        self.total
    }

    /// Returns the bytes at the front that every message may use: all but the reply cells.
    pub fn used_bytes(&self) -> usize {
        self.replies
    }
}

struct Parts {
    base: *mut u8,
    layout: SegmentLayout,
}

/// The daemon's end of a session segment.
pub struct DaemonEnd {
    /// Delivery ring, to the application.
    pub deliveries: Producer<Delivery>,
    /// Release ring, from the application.
    pub releases: Consumer<Release>,
    parts: Parts,
}

/// The application's end of a session segment.
pub struct AppEnd {
    /// Delivery ring, from the daemon.
    pub deliveries: Consumer<Delivery>,
    /// Release ring, to the daemon.
    pub releases: Producer<Release>,
    parts: Parts,
}

// SAFETY: the ends hold pointers into a shared mapping that outlives them (contract of the constructors); all
// access through `Parts` is to atomics, or copies bytes that only the daemon writes.
unsafe impl Send for DaemonEnd {}
// SAFETY: as for the daemon's end.
unsafe impl Send for AppEnd {}

/// Makes a zeroed mapping a segment and takes the daemon's end.
///
/// # Safety
/// `base` points at `bytes` mapped, zeroed, page-aligned bytes that stay mapped while the end lives; this is
/// the only daemon's end.
///
/// # Errors
/// [`SegmentError::TooSmall`] where the mapping is too small for the shape.
pub unsafe fn daemon_end(
    base: *mut u8,
    bytes: usize,
    shape: SegmentShape,
) -> Result<DaemonEnd, SegmentError> {
    let layout = SegmentLayout::new(shape);
    if bytes < layout.total {
        return Err(SegmentError::TooSmall { bytes });
    }
    // SAFETY: the mapping is at least as long as a header and page-aligned.
    unsafe {
        base.cast::<SegmentHeader>().write(SegmentHeader {
            magic: MAGIC,
            shape,
            total_bytes: layout.total as u64,
        });
    }
    // SAFETY: the layout lies within `bytes`, each part aligned to 128; sole producer and consumer by
    // contract.
    let (deliveries, releases) = unsafe {
        (
            Producer::new(
                base.add(layout.delivery_indices).cast::<Indices>(),
                base.add(layout.delivery_cells).cast::<RingCell<Delivery>>(),
                shape.delivery_cells,
            ),
            Consumer::new(
                base.add(layout.release_indices).cast::<Indices>(),
                base.add(layout.release_cells).cast::<RingCell<Release>>(),
                shape.release_cells,
            ),
        )
    };
    Ok(DaemonEnd { deliveries, releases, parts: Parts { base, layout } })
}

/// Checks a mapping that the daemon passed on and takes the application's end.
///
/// # Safety
/// `base` points at `bytes` mapped, page-aligned bytes that stay mapped while the end lives; this is the only
/// application's end.
///
/// # Errors
/// [`SegmentError`] where the mapping is not a segment of this version.
pub unsafe fn app_end(base: *mut u8, bytes: usize) -> Result<AppEnd, SegmentError> {
    if bytes < size_of::<SegmentHeader>() {
        return Err(SegmentError::TooSmall { bytes });
    }
    // SAFETY: long enough, page-aligned, and every bit pattern is a valid header.
    let header = unsafe { base.cast::<SegmentHeader>().read_volatile() };
    if header.magic != MAGIC || !header.shape.is_sound() {
        return Err(SegmentError::NotASegment);
    }
    let layout = SegmentLayout::new(header.shape);
    if layout.total > bytes || header.total_bytes != layout.total as u64 {
        return Err(SegmentError::TooSmall { bytes });
    }
    // SAFETY: as in `daemon_end`.
    let (deliveries, releases) = unsafe {
        (
            Consumer::new(
                base.add(layout.delivery_indices).cast::<Indices>(),
                base.add(layout.delivery_cells).cast::<RingCell<Delivery>>(),
                header.shape.delivery_cells,
            ),
            Producer::new(
                base.add(layout.release_indices).cast::<Indices>(),
                base.add(layout.release_cells).cast::<RingCell<Release>>(),
                header.shape.release_cells,
            ),
        )
    };
    Ok(AppEnd { deliveries, releases, parts: Parts { base, layout } })
}

impl Parts {
    fn slot(&self, index: u32) -> Option<SlotWord<'_>> {
        if index >= self.layout.shape.slots {
            return None;
        }
        // SAFETY: within the slots' part, which is aligned; the mapping outlives `self`.
        let shared = unsafe { &*self.base.add(self.layout.slots + index as usize * 8).cast::<AtomicU64>() };
        Some(SlotWord(shared))
    }

    fn notice(&self) -> NoticeWord<'_> {
        // SAFETY: within the mapping, which outlives `self`, and aligned.
        NoticeWord(unsafe { &*self.base.add(self.layout.notice).cast::<AtomicU64>() })
    }

    fn user_header(&self, message: u32) -> Option<*mut UserHeaderCell> {
        let at = self.layout.user_headers + message as usize * size_of::<UserHeaderCell>();
        // SAFETY: within the user headers' part.
        (message < self.layout.shape.messages).then(|| unsafe { self.base.add(at).cast() })
    }

    /// Returns where a message's reply cell begins.
    fn reply(&self, message: u32) -> Option<*mut u8> {
        let at = self.layout.replies + message as usize * SLAB_BYTES;
        // SAFETY: within the replies' part.
        (message < self.layout.shape.messages).then(|| unsafe { self.base.add(at) })
    }
}

impl DaemonEnd {
    /// Returns a slot's word; `None` if the segment has no slot of that index.
    pub fn slot(&self, index: u32) -> Option<SlotWord<'_>> {
        self.parts.slot(index)
    }

    /// Writes or clears the notice for the application. The notice says that nothing more arrives before the
    /// application gives something back. All deliveries that were pushed are published first. The caller then
    /// wakes the application where [`Producer::wake_needed`] says so.
    pub fn put_notice(&mut self, notice: Option<Notice>) {
        self.parts.notice().put_behind(&mut self.deliveries, notice);
    }

    /// Writes a message's long user header, cut to [`USER_HEADER_MAX`] bytes. Returns `false` if the segment
    /// has no message of that number.
    pub fn write_user_header(&mut self, message: u32, user_header: &[u8]) -> bool {
        let Some(cell) = self.parts.user_header(message) else { return false };
        let used = user_header.len().min(USER_HEADER_MAX);
        // SAFETY: the cell has USER_HEADER_MAX bytes and does not overlap private memory; the application may
        // read it meanwhile only if it does not keep to its descriptors, and then only harms itself.
        unsafe { cell.cast::<u8>().copy_from_nonoverlapping(user_header.as_ptr(), used) };
        true
    }

    /// Returns the address of a message's reply cell, which has 4096 bytes; `None` if the segment has no
    /// message of that number. The application may write the bytes at any time, and they may be on a page
    /// that is not there: whoever reads them copies them once, and is ready for SIGBUS.
    pub fn reply_cell(&self, message: u32) -> Option<*const u8> {
        self.parts.reply(message).map(<*mut u8>::cast_const)
    }

    /// Returns the shape of the segment.
    pub fn shape(&self) -> SegmentShape {
        self.parts.layout.shape
    }
}

impl AppEnd {
    /// Returns a slot's word; `None` if the segment has no slot of that index.
    pub fn slot(&self, index: u32) -> Option<SlotWord<'_>> {
        self.parts.slot(index)
    }

    /// Returns the daemon's notice, if it still holds: nothing was released since, and everything delivered
    /// before is taken. To be called after [`Consumer::prepare_sleep`] found nothing.
    pub fn notice(&self) -> Option<Notice> {
        let notice = self.parts.notice().read()?;
        // This comes after the notice was read: what was delivered before it is in the ring by now.
        (notice.releases == self.releases.published() && self.deliveries.is_empty()).then_some(notice)
    }

    /// Copies a message's long user header; `None` if the segment has no message of that number.
    pub fn read_user_header(&self, message: u32) -> Option<UserHeaderCell> {
        // SAFETY: the cell is within the mapping and any bytes are valid.
        self.parts.user_header(message).map(|cell| unsafe { cell.read_volatile() })
    }

    /// Writes the reply to a message into its cell, before the message is finished. Returns `false`, and
    /// writes nothing, if the segment has no message of that number, or the reply is longer than 4096 bytes.
    pub fn write_reply(&mut self, message: u32, reply: &[u8]) -> bool {
        let Some(cell) = self.parts.reply(message).filter(|_| reply.len() <= SLAB_BYTES) else {
            return false;
        };
        // SAFETY: the cell has SLAB_BYTES bytes and does not overlap private memory. The daemon reads it only
        // after the message's release entry.
        unsafe { cell.copy_from_nonoverlapping(reply.as_ptr(), reply.len()) };
        true
    }

    /// Returns the shape of the segment.
    pub fn shape(&self) -> SegmentShape {
        self.parts.layout.shape
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::segment::DELIVERY_USER_HEADER_MAX;
    use std::vec;
    use std::vec::Vec;

    #[repr(C, align(4096))]
    #[derive(Clone, Copy)]
    struct Page([u8; 4096]);

    fn memory(shape: SegmentShape) -> Vec<Page> {
        vec![Page([0; 4096]); SegmentLayout::new(shape).total_bytes() / 4096]
    }

    #[test]
    fn both_ends_meet_in_the_same_memory() {
        let shape = SegmentShape::new(16, 8);
        let mut pages = memory(shape);
        let (base, bytes) = (pages.as_mut_ptr().cast::<u8>(), pages.len() * 4096);
        // SAFETY: the pages outlive both ends, and each is taken once.
        let (mut daemon, mut app) =
            unsafe { (daemon_end(base, bytes, shape).unwrap(), app_end(base, bytes).unwrap()) };
        let delivery = Delivery {
            kind: 1,
            flags: 3,
            user_header_bytes: 0,
            slot: 3,
            message: 2,
            generations: Delivery::pack_generations(5, 6),
            offset: 0,
            message_bytes: 64,
            bytes: 64,
            slab: 9,
            tag: 77,
            sequence: 1,
            sender: 4,
            user_header: [0; DELIVERY_USER_HEADER_MAX],
        };
        daemon.deliveries.push(delivery).unwrap();
        daemon.deliveries.publish();
        assert_eq!(app.deliveries.pop().unwrap(), Some(delivery));
        assert!(daemon.write_user_header(7, b"a long one"));
        assert!(!daemon.write_user_header(8, b"beyond the shape"));
        assert_eq!(&app.read_user_header(7).unwrap()[..10], b"a long one");
        assert!(app.slot(15).is_some() && app.slot(16).is_none());
        assert!(app.write_reply(7, &[7; SLAB_BYTES]) && app.write_reply(0, b"first"));
        // SAFETY: both cells have 4096 bytes.
        let read = |message| unsafe { daemon.reply_cell(message).unwrap().cast::<[u8; SLAB_BYTES]>().read() };
        assert_eq!((read(7), &read(0)[..6]), ([7; SLAB_BYTES], &b"first\0"[..]));
        assert!(!app.write_reply(8, b"beyond the shape") && daemon.reply_cell(8).is_none());
        assert!(!app.write_reply(0, &[1; SLAB_BYTES + 1]));
    }

    #[test]
    fn a_notice_holds_until_something_is_there_or_was_released() {
        use crate::segment::{HeldLimit, Notice, Release};
        use zerocopy::FromZeros;
        let mut pages = memory(SegmentShape::new(16, 8));
        let (base, bytes) = (pages.as_mut_ptr().cast::<u8>(), pages.len() * 4096);
        // SAFETY: the pages outlive both ends, and each is taken once.
        let (mut daemon, mut app) = unsafe {
            (daemon_end(base, bytes, SegmentShape::new(16, 8)).unwrap(), app_end(base, bytes).unwrap())
        };
        let notice = |releases| Notice { limit: HeldLimit::Pool, lasting: true, number: 3, releases };
        assert_eq!(app.notice(), None);
        daemon.put_notice(Some(notice(daemon.releases.taken())));
        assert_eq!(app.notice(), Some(notice(0)));
        // A run was delivered before the notice, and is not taken.
        daemon.deliveries.push(Delivery::new_zeroed()).unwrap();
        daemon.put_notice(Some(notice(daemon.releases.taken())));
        assert_eq!(app.notice(), None);
        assert!(app.deliveries.pop().unwrap().is_some());
        assert_eq!(app.notice(), Some(notice(0)));
        // A release is on its way: the notice is out of date until the daemon has the release and writes the
        // notice again.
        app.releases.push(Release::new_zeroed()).unwrap();
        app.releases.publish();
        assert_eq!(app.notice(), None);
        assert!(daemon.releases.pop().unwrap().is_some());
        daemon.put_notice(Some(notice(daemon.releases.taken())));
        assert_eq!(app.notice(), Some(notice(1)));
        daemon.put_notice(None);
        assert_eq!(app.notice(), None);
    }

    #[test]
    fn what_is_no_segment_is_refused() {
        let mut pages = memory(SegmentShape::new(16, 8));
        let (base, bytes) = (pages.as_mut_ptr().cast::<u8>(), pages.len() * 4096);
        // SAFETY: the pages outlive the ends.
        unsafe {
            assert_eq!(app_end(base, bytes).err(), Some(SegmentError::NotASegment));
            assert!(daemon_end(base, bytes, SegmentShape::new(16, 8)).is_ok());
            let short = bytes - 4096;
            assert_eq!(app_end(base, short).err(), Some(SegmentError::TooSmall { bytes: short }));
            assert_eq!(app_end(base, 16).err(), Some(SegmentError::TooSmall { bytes: 16 }));
            // The highest byte of `slots`: sixteen million times too many.
            base.add(11).write(0xff);
            assert_eq!(app_end(base, bytes).err(), Some(SegmentError::NotASegment));
        }
    }
}

//! Fuzzing of the session segment: one end is real, the other writes anything into the memory at any time.
//!
//! The real end must not panic, touch nothing outside of the segment, and come to an end: an index that
//! cannot be is an error, and no ring gives more items than it has cells without a new index. It pins, moves
//! and unpins only what the slot words say.

#![no_main]

use jet_wire::ring::{Consumer, Item, Producer, PushError};
use jet_wire::segment::{
    AppEnd, DaemonEnd, Delivery, HeldLimit, Notice, PinError, Place, Release, SegmentError, SegmentLayout,
    SegmentShape, SlotWord, app_end, daemon_end,
};
use libfuzzer_sys::arbitrary::{self, Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;

/// Largest segment of this program: pages.
const PAGES_MAX: usize = 16;
/// What lies before and behind the segment.
const GUARD: u8 = 0xc3;

#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; 4096]);

/// A segment's memory, with a page before and one behind it that nobody may touch.
struct Memory(Vec<Page>);

impl Memory {
    fn new(pages: usize) -> Self {
        let mut memory = vec![Page([0; 4096]); pages + 2];
        memory[0] = Page([GUARD; 4096]);
        memory[pages + 1] = Page([GUARD; 4096]);
        Self(memory)
    }

    fn bytes(&self) -> usize {
        (self.0.len() - 2) * 4096
    }

    fn base(&mut self) -> *mut u8 {
        // SAFETY: there is a page before and one behind.
        unsafe { self.0.as_mut_ptr().add(1).cast() }
    }

    /// Writes as the other process does, which asks nobody.
    fn scribble(&mut self, at: usize, bytes: &[u8]) {
        for (offset, byte) in bytes.iter().enumerate() {
            let at = (at + offset) % self.bytes();
            // SAFETY: within the segment. The ends use raw pointers and atomics there, on this thread.
            unsafe { self.base().add(at).write_volatile(*byte) };
        }
    }

    /// Returns the word at the place, as the other process sees it.
    fn word(&mut self, at: usize) -> u32 {
        // SAFETY: within the segment, and aligned.
        unsafe { self.base().add(at / 4 * 4 % self.bytes()).cast::<u32>().read_volatile() }
    }

    fn check(&self) {
        for page in [&self.0[0], &self.0[self.0.len() - 1]] {
            assert!(page.0.iter().all(|&byte| byte == GUARD), "memory beside the segment was written");
        }
    }
}

/// Places in the segment that matter more than others: indices and sleepers of both rings, notice, slots.
fn any_place(u: &mut Unstructured<'_>, shape: SegmentShape, bytes: usize) -> arbitrary::Result<usize> {
    let delivery_cells = shape.delivery_cells as usize * size_of::<Delivery>();
    let release_indices = 128 + 384 + delivery_cells;
    let release_cells = release_indices + 384;
    let notice = (release_cells + shape.release_cells as usize * size_of::<Release>()).next_multiple_of(128);
    let slots = notice + 128;
    Ok(match u.int_in_range(0..=9)? {
        at @ 0..=2 => 128 + 128 * at,
        at @ 3..=5 => release_indices + 128 * (at - 3),
        6 => notice,
        7 => slots + 8 * u.int_in_range(0..=shape.slots as usize - 1)?,
        8 => u.int_in_range(0..=40)?,
        _ => u.int_in_range(0..=bytes - 1)?,
    } % bytes)
}

/// Writes an index near what is there, a word of a slot, or anything.
fn scribble(u: &mut Unstructured<'_>, memory: &mut Memory, shape: SegmentShape) -> arbitrary::Result<()> {
    let at = any_place(u, shape, memory.bytes())?;
    match u.int_in_range(0..=3)? {
        0 => {
            let near = memory.word(at).wrapping_add(u.int_in_range(0..=40)?).wrapping_sub(4);
            memory.scribble(at / 4 * 4, &near.to_le_bytes());
        }
        1 => memory.scribble(at / 4 * 4, &u32::arbitrary(u)?.to_le_bytes()),
        2 => memory.scribble(at / 8 * 8, &u64::arbitrary(u)?.to_le_bytes()),
        _ => {
            let bytes = <&[u8]>::arbitrary(u)?;
            memory.scribble(at, &bytes[..bytes.len().min(200)]);
        }
    }
    Ok(())
}

/// Takes all that a ring has. The ring stays as it was after an error.
fn drain<T: Item>(ring: &mut Consumer<T>, capacity: u32, u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let mut popped = 0u32;
    loop {
        let before = ring.taken();
        match ring.pop() {
            Ok(Some(_)) => {
                popped += 1;
                assert!(popped <= capacity, "a ring of {capacity} cells gives more");
                assert_eq!(ring.taken(), before.wrapping_add(1));
                if u.ratio(1, 16)? {
                    ring.put_back();
                    assert_eq!(ring.taken(), before);
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                assert_eq!((error.own, error.capacity), (before, capacity));
                assert!(error.found.wrapping_sub(error.own) != 0);
                assert!(!error.to_string().is_empty());
                assert_eq!(ring.taken(), before);
                break;
            }
        }
    }
    if bool::arbitrary(u)? {
        ring.advance();
    }
    if u.ratio(1, 4)? && ring.prepare_sleep() {
        assert!(ring.is_empty());
        ring.awake();
    }
    Ok(())
}

/// Writes some items.
fn fill<T: Item>(ring: &mut Producer<T>, capacity: u32, item: T, count: u32) {
    let before = ring.published();
    let mut pushed = 0;
    while pushed < count {
        match ring.push(item) {
            Ok(()) => pushed += 1,
            Err(PushError::Full) => break,
            Err(PushError::Broken(error)) => {
                assert!(!error.to_string().is_empty());
                break;
            }
        }
    }
    assert!(pushed <= capacity, "a ring of {capacity} cells takes {pushed} items");
    ring.publish();
    assert_eq!(ring.published(), before.wrapping_add(pushed));
    match (ring.room(), ring.unread()) {
        (Ok(room), Ok(unread)) => assert!(room <= capacity && unread == capacity - room),
        (Err(error), _) | (_, Err(error)) => assert_eq!(error.capacity, capacity),
    }
    let _ = ring.wake_needed();
}

/// Uses a slot word as both ends do. The other end does not write meanwhile.
fn use_slot(u: &mut Unstructured<'_>, slot: SlotWord<'_>) -> arbitrary::Result<()> {
    let generation = u16::arbitrary(u)?;
    let mut place = || Ok(Place { slab: u32::arbitrary(u)?, escaped: bool::arbitrary(u)? });
    let (from, to) = (place()?, place()?);
    if bool::arbitrary(u)? {
        slot.publish(generation, from);
        assert_eq!(slot.pin(generation), Ok(from));
        assert!(slot.is_pinned(generation) && slot.relocate(generation, from, to).is_err());
        slot.unpin(generation);
        assert_eq!(slot.relocate(generation, from, to), Ok(()));
        return Ok(());
    }
    // Whatever is there.
    match slot.pin(generation) {
        Ok(place) => {
            assert!(slot.is_pinned(generation));
            assert_eq!(slot.pin(generation), Err(PinError::Pinned));
            assert!(slot.relocate(generation, place, to).is_err());
            slot.unpin(generation);
            assert!(!slot.is_pinned(generation));
        }
        Err(PinError::Stale) => {
            assert!(!slot.is_pinned(generation) && slot.relocate(generation, from, to).is_err());
        }
        Err(PinError::Pinned) => {
            assert!(slot.is_pinned(generation) && slot.relocate(generation, from, to).is_err());
        }
    }
    Ok(())
}

/// Uses a slot of an end, or one that it does not have.
fn use_any_slot<'a>(
    u: &mut Unstructured<'_>,
    shape: SegmentShape,
    slot_at: impl FnOnce(u32) -> Option<SlotWord<'a>>,
) -> arbitrary::Result<()> {
    let index = u.int_in_range(0..=shape.slots + 1)?;
    let slot = slot_at(index);
    assert_eq!(slot.is_some(), index < shape.slots);
    slot.map_or(Ok(()), |slot| use_slot(u, slot))
}

fn daemon_turn(u: &mut Unstructured<'_>, end: &mut DaemonEnd, shape: SegmentShape) -> arbitrary::Result<()> {
    match u.int_in_range(0..=4)? {
        0 => drain(&mut end.releases, shape.release_cells, u)?,
        1 => fill(&mut end.deliveries, shape.delivery_cells, Delivery::ZERO, u.int_in_range(0..=70)?),
        2 => use_any_slot(u, shape, |index| end.slot(index))?,
        3 => {
            let (message, header) = (u.int_in_range(0..=shape.messages + 1)?, <&[u8]>::arbitrary(u)?);
            let header = &header[..header.len().min(256)];
            assert_eq!(end.write_user_header(message, header), message < shape.messages);
        }
        _ => {
            let (lasting, number, releases) = Arbitrary::arbitrary(u)?;
            end.put_notice(Some(Notice { limit: HeldLimit::Slots, lasting, number, releases }));
        }
    }
    Ok(())
}

fn app_turn(u: &mut Unstructured<'_>, end: &mut AppEnd, shape: SegmentShape) -> arbitrary::Result<()> {
    const RELEASE: Release =
        Release { index: 0, generation: 0, first: 0, count: 1, kind: 1, reserved: 0, code: 0 };
    match u.int_in_range(0..=4)? {
        0 => drain(&mut end.deliveries, shape.delivery_cells, u)?,
        1 => fill(&mut end.releases, shape.release_cells, RELEASE, u.int_in_range(0..=140)?),
        2 => use_any_slot(u, shape, |index| end.slot(index))?,
        3 => {
            let message = u.int_in_range(0..=shape.messages + 1)?;
            assert_eq!(end.read_user_header(message).is_some(), message < shape.messages);
        }
        _ => {
            if let Some(notice) = end.notice() {
                assert!(!notice.limit.to_string().is_empty());
            }
        }
    }
    Ok(())
}

/// A segment that is made anew, with a real end and another that scribbles.
fn ends(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let shape = SegmentShape::new(u.int_in_range(1..=20)?, u.int_in_range(1..=12)?);
    let layout = SegmentLayout::new(shape);
    assert!(layout.total_bytes() <= PAGES_MAX * 4096);
    let mut memory = Memory::new(layout.total_bytes() / 4096);
    let (base, bytes) = (memory.base(), memory.bytes());
    // SAFETY: zeroed pages that outlive both ends, of which each is taken once.
    let mut daemon = unsafe { daemon_end(base, bytes, shape) }.expect("long enough");
    let is_daemon = bool::arbitrary(u)?;
    // SAFETY: as above.
    let mut app = unsafe { app_end(base, bytes) }.expect("just made");
    for _ in 0..100 {
        if u.is_empty() {
            break;
        }
        match u.int_in_range(0..=5)? {
            0 | 1 => scribble(u, &mut memory, shape)?,
            // Now and then the other end does what it ought to do.
            2 if is_daemon => app_turn(u, &mut app, shape)?,
            2 => daemon_turn(u, &mut daemon, shape)?,
            _ if is_daemon => daemon_turn(u, &mut daemon, shape)?,
            _ => app_turn(u, &mut app, shape)?,
        }
    }
    memory.check();
    Ok(())
}

/// A mapping that is said to be a segment.
fn mapping(bytes: &[u8]) {
    let mut memory = Memory::new(bytes.first().map_or(1, |pages| usize::from(*pages) % PAGES_MAX + 1));
    memory.scribble(0, bytes.get(1..).unwrap_or_default());
    let (base, length) = (memory.base(), memory.bytes());
    // SAFETY: pages that outlive the end.
    match unsafe { app_end(base, length) } {
        Ok(mut end) => {
            let mut u = Unstructured::new(bytes);
            for index in [0, 1, u32::from(u16::MAX), 1 << 16, u32::MAX] {
                if let Some(slot) = end.slot(index) {
                    let _ = slot.pin(1);
                    slot.unpin(1);
                }
                let _ = end.read_user_header(index);
            }
            let _ = end.notice();
            for _ in 0..3 {
                let _ = end.deliveries.pop().map_err(|error| error.to_string());
            }
            let capacity = end.shape().delivery_cells;
            let _ = drain(&mut end.deliveries, capacity, &mut u);
            let _ = end.releases.room();
        }
        Err(SegmentError::TooSmall { bytes }) => assert_eq!(bytes, length),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    memory.check();
}

fuzz_target!(|bytes: &[u8]| {
    match bytes.split_first() {
        Some((0, rest)) => {
            let _ = ends(&mut Unstructured::new(rest));
        }
        Some((_, rest)) => mapping(rest),
        None => {}
    }
});

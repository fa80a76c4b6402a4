use super::*;
use proptest::prelude::*;
use std::boxed::Box;
use std::collections::VecDeque;
use std::vec::Vec;

/// A ring on the heap, and both its ends.
struct Ring<T> {
    producer: Producer<T>,
    consumer: Consumer<T>,
    memory: Memory<T>,
}

struct Memory<T> {
    indices: Box<Indices>,
    _cells: Vec<RingCell<T>>,
}

// SAFETY: the cells are only touched through the two ends, by the ring's protocol.
unsafe impl<T: Send> Sync for Memory<T> {}

/// An item of several words, in which torn copies would show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Wide([u64; 4]);

impl Wide {
    fn of(value: u64) -> Self {
        Self([value, !value, value.rotate_left(17), value ^ 0x5555])
    }
}

fn ring<T: Item>(capacity: u32, start: u32) -> Ring<T> {
    let indices = Box::new(Indices::starting_at(start));
    let cells: Vec<_> = (0..capacity).map(|_| RingCell(UnsafeCell::new(T::new_zeroed()))).collect();
    // SAFETY: the boxed memory does not move and outlives the ends (fields drop in order); each end is taken
    // once.
    let (producer, consumer) = unsafe {
        (
            Producer::starting_at(&raw const *indices, cells.as_ptr(), capacity, start),
            Consumer::starting_at(&raw const *indices, cells.as_ptr(), capacity, start),
        )
    };
    Ring { producer, consumer, memory: Memory { indices, _cells: cells } }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push,
    Publish,
    Pop,
    PutBack,
    Advance,
    PrepareSleep,
    Awake,
    WakeNeeded,
    Count,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Push),
        3 => Just(Step::Publish),
        6 => Just(Step::Pop),
        1 => Just(Step::PutBack),
        3 => Just(Step::Advance),
        1 => Just(Step::PrepareSleep),
        1 => Just(Step::Awake),
        1 => Just(Step::WakeNeeded),
        1 => Just(Step::Count),
    ];
    prop::collection::vec(step, 0..400)
}

/// The expected state of a ring that one thread uses.
#[derive(Default)]
struct Oracle {
    hidden: VecDeque<u64>,
    shown: VecDeque<u64>,
    taken_and_held: VecDeque<u64>,
    sleeping: bool,
}

impl Oracle {
    fn cells_used(&self) -> usize {
        self.hidden.len() + self.shown.len() + self.taken_and_held.len()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_ring_behaves_as_a_queue(
        steps in steps(),
        capacity_log2 in 0u32..7,
        start in prop_oneof![Just(0u32), (u32::MAX - 80)..=u32::MAX, any::<u32>()],
    ) {
        let capacity = 1u32 << capacity_log2;
        let mut ring = ring::<Wide>(capacity, start);
        let mut oracle = Oracle::default();
        let mut next = 0u64;
        for step in steps {
            match step {
                Step::Push => {
                    let full = oracle.cells_used() == capacity as usize;
                    let expected = if full { Err(PushError::Full) } else { Ok(()) };
                    let pushed = if next.is_multiple_of(2) {
                        ring.producer.push(Wide::of(next))
                    } else {
                        // SAFETY: the cell is this end's to write until it is published.
                        ring.producer.push_place().map(|place| unsafe { place.write(Wide::of(next)) })
                    };
                    prop_assert_eq!(pushed, expected);
                    if !full {
                        oracle.hidden.push_back(next);
                    }
                    next += 1;
                }
                Step::Publish => {
                    ring.producer.publish();
                    oracle.shown.append(&mut oracle.hidden);
                }
                Step::Pop => {
                    let expected = oracle.shown.pop_front();
                    oracle.taken_and_held.extend(expected);
                    let popped = if next.is_multiple_of(2) {
                        ring.consumer.pop()
                    } else {
                        let place = ring.consumer.pop_place();
                        // SAFETY: the ring's cells are aligned, and live.
                        place.map(|place| place.map(|place| unsafe { copy_once(place) }))
                    };
                    prop_assert_eq!(popped, Ok(expected.map(Wide::of)));
                }
                Step::PutBack => {
                    if let Some(last) = oracle.taken_and_held.pop_back() {
                        ring.consumer.put_back();
                        oracle.shown.push_front(last);
                    }
                }
                Step::Advance => {
                    ring.consumer.advance();
                    oracle.taken_and_held.clear();
                }
                Step::PrepareSleep => {
                    oracle.sleeping = oracle.shown.is_empty();
                    prop_assert_eq!(ring.consumer.prepare_sleep(), oracle.sleeping);
                }
                Step::Awake => {
                    ring.consumer.awake();
                    oracle.sleeping = false;
                }
                Step::WakeNeeded => {
                    prop_assert_eq!(ring.producer.wake_needed(), oracle.sleeping);
                    oracle.sleeping = false;
                }
                Step::Count => {
                    prop_assert_eq!(ring.consumer.is_empty(), oracle.shown.is_empty());
                    let unread = oracle.shown.len() + oracle.taken_and_held.len();
                    prop_assert_eq!(ring.producer.unread().map(|unread| unread as usize), Ok(unread));
                    let room = capacity as usize - oracle.cells_used();
                    prop_assert_eq!(ring.producer.room().map(|room| room as usize), Ok(room));
                }
            }
        }
    }

    /// Checks that whatever the peer writes into the shared words gives an item, nothing, or an error. There
    /// are never more items than cells.
    #[test]
    fn a_scribbled_ring_is_an_error_and_never_more_than_its_cells(
        steps in prop::collection::vec((0u8..7, any::<u32>(), -70i32..70), 0..200),
        capacity_log2 in 0u32..7,
        start in prop_oneof![Just(0u32), (u32::MAX - 80)..=u32::MAX],
    ) {
        let capacity = 1u32 << capacity_log2;
        let mut ring = ring::<u64>(capacity, start);
        let (mut popped, mut pushed) = (0u32, 0u32);
        for (step, wild, near) in steps {
            let indices = &ring.memory.indices;
            match step {
                0 => indices.tail.0.store(wild, Ordering::Relaxed),
                1 => indices.head.0.store(wild, Ordering::Relaxed),
                2 => indices.tail.0.store(start.wrapping_add_signed(near), Ordering::Relaxed),
                3 => indices.head.0.store(start.wrapping_add_signed(near), Ordering::Relaxed),
                4 => {
                    let before = ring.consumer.head;
                    popped += u32::from(matches!(ring.consumer.pop(), Ok(Some(_))));
                    let room = capacity - before.wrapping_sub(ring.consumer.advanced);
                    prop_assert!(ring.consumer.tail.wrapping_sub(before) <= room);
                }
                5 => {
                    pushed += u32::from(ring.producer.push(7).is_ok());
                    prop_assert!(ring.producer.tail.wrapping_sub(ring.producer.head) <= capacity);
                }
                _ => {
                    let indices_before = ring.consumer.head;
                    let _ = ring.consumer.prepare_sleep();
                    prop_assert_eq!(ring.consumer.head, indices_before);
                    if let Ok(unread) = ring.producer.unread() {
                        prop_assert!(unread <= capacity);
                    }
                    if let Ok(room) = ring.producer.room() {
                        prop_assert!(room <= capacity);
                    }
                    // Nothing was advanced or published since the start, so neither end goes round twice.
                    prop_assert!(popped <= capacity && pushed <= capacity);
                }
            }
        }
        prop_assert!(popped <= capacity && pushed <= capacity);
    }
}

#[test]
fn an_index_that_goes_back_or_too_far_is_refused() {
    let mut ring = ring::<u64>(8, 100);
    for value in 0..5 {
        ring.producer.push(value).unwrap();
    }
    ring.producer.publish();
    for value in 0..5 {
        assert_eq!(ring.consumer.pop(), Ok(Some(value)));
    }
    // Back behind what was taken and not given back, back behind everything, and too far ahead.
    for found in [103, 99, 109, 100 + (1 << 31)] {
        ring.memory.indices.tail.0.store(found, Ordering::Relaxed);
        assert_eq!(ring.consumer.pop(), Err(RingError { found, own: 105, capacity: 8 }));
    }
    ring.memory.indices.tail.0.store(108, Ordering::Relaxed);
    assert!(ring.consumer.pop().unwrap().is_some());
    // The consumer cannot have taken items that were not shown.
    ring.producer.push(5).unwrap();
    for found in [106, 107, 99] {
        ring.memory.indices.head.0.store(found, Ordering::Relaxed);
        assert_eq!(ring.producer.unread(), Err(RingError { found, own: 106, capacity: 8 }));
        assert!(ring.producer.room().is_err());
    }
    ring.memory.indices.head.0.store(105, Ordering::Relaxed);
    assert_eq!(ring.producer.unread(), Ok(0));
}

#[test]
fn a_full_ring_with_a_broken_index_says_broken() {
    let mut ring = ring::<u64>(2, u32::MAX);
    ring.producer.push(1).unwrap();
    ring.producer.push(2).unwrap();
    ring.producer.publish();
    assert_eq!(ring.producer.push(3), Err(PushError::Full));
    ring.memory.indices.head.0.store(77, Ordering::Relaxed);
    assert_eq!(ring.producer.push(3), Err(PushError::Broken(RingError { found: 77, own: 1, capacity: 2 })));
}

#[test]
fn a_sleeper_is_woken_once() {
    let mut ring = ring::<u64>(4, 0);
    assert!(ring.consumer.prepare_sleep());
    ring.producer.push(1).unwrap();
    ring.producer.publish();
    assert!(ring.producer.wake_needed());
    assert!(!ring.producer.wake_needed());
    assert!(!ring.consumer.prepare_sleep(), "an item waits");
    assert!(!ring.producer.wake_needed(), "who stayed awake needs no wake");
}

#[test]
#[should_panic(expected = "no power of two")]
fn a_capacity_that_is_no_power_of_two_is_refused() {
    ring::<u64>(3, 0);
}

#[test]
fn two_threads_pass_everything_in_order() {
    const ITEMS: u64 = 50_000;
    for capacity in [1, 4, 64] {
        let Ring { mut producer, mut consumer, memory } = ring::<Wide>(capacity, u32::MAX - 10_000);
        std::thread::scope(|scope| {
            // The memory outlives the scope, and so both ends.
            let _memory = &memory;
            scope.spawn(move || {
                let mut next = 0;
                while next < ITEMS {
                    match producer.push(Wide::of(next)) {
                        Ok(()) => {
                            next += 1;
                            if next % 3 == 0 {
                                producer.publish();
                            }
                        }
                        Err(PushError::Full) => {
                            producer.publish();
                            std::thread::yield_now();
                        }
                        Err(PushError::Broken(error)) => panic!("{error}"),
                    }
                }
                producer.publish();
            });
            let mut expected = 0;
            while expected < ITEMS {
                match consumer.pop().expect("an honest peer") {
                    Some(item) => {
                        assert_eq!(item, Wide::of(expected));
                        expected += 1;
                        if expected % 5 == 0 {
                            consumer.advance();
                        }
                    }
                    None => {
                        consumer.advance();
                        std::thread::yield_now();
                    }
                }
            }
        });
    }
}

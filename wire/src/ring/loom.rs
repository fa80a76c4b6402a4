//! The ring under the model checker: every interleaving, and every value that the memory model lets a load
//! see.

use super::*;
use ::loom::sync::{Arc, Condvar, Mutex};
use ::loom::thread;
use std::vec::Vec;

pub(crate) struct Memory {
    indices: Indices,
    cells: Vec<RingCell<u64>>,
}

// SAFETY: the cells are touched by the ring's two ends only; loom checks that they keep apart.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

/// One end of a ring, and the memory that it lies in.
type End<T> = (T, Arc<Memory>);

/// Returns both ends of a ring, each with its own reference to the memory.
pub(crate) fn ring(capacity: u32, start: u32) -> (End<Producer<u64>>, End<Consumer<u64>>) {
    let cells = (0..capacity).map(|_| RingCell(UnsafeCell::new(0))).collect();
    let memory = Arc::new(Memory { indices: Indices::starting_at(start), cells });
    let indices = &raw const memory.indices;
    // SAFETY: whoever holds an end holds the memory too; each end is taken once.
    let (producer, consumer) = unsafe {
        (
            Producer::starting_at(indices, memory.cells.as_ptr(), capacity, start),
            Consumer::starting_at(indices, memory.cells.as_ptr(), capacity, start),
        )
    };
    ((producer, memory.clone()), (consumer, memory))
}

fn model(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(check);
}

/// Checks label *items*: an item that is seen was written before.
#[test]
fn loom_items_are_written_before_they_are_seen() {
    model(3, || {
        let ((mut producer, memory), (mut consumer, _held)) = ring(2, u32::MAX);
        let writer = thread::spawn(move || {
            let _memory = memory;
            producer.push(1).unwrap();
            producer.publish();
            producer.push(2).unwrap();
            producer.publish();
        });
        let mut expected = 1;
        while expected <= 2 {
            match consumer.pop().unwrap() {
                Some(item) => {
                    assert_eq!(item, expected);
                    expected += 1;
                }
                None => thread::yield_now(),
            }
        }
        writer.join().unwrap();
        assert!(consumer.is_empty());
    });
}

/// Checks label *room*: a cell is written again only after its item was read. loom's cells catch any overlap.
#[test]
fn loom_cells_are_read_before_they_are_written_again() {
    model(3, || {
        let ((mut producer, memory), (mut consumer, _held)) = ring(1, u32::MAX);
        let writer = thread::spawn(move || {
            let _memory = memory;
            let mut next = 1;
            while next <= 3 {
                match producer.push(next) {
                    Ok(()) => {
                        producer.publish();
                        next += 1;
                    }
                    Err(PushError::Full) => thread::yield_now(),
                    Err(PushError::Broken(error)) => panic!("{error}"),
                }
            }
        });
        let mut expected = 1;
        while expected <= 3 {
            match consumer.pop().unwrap() {
                Some(item) => {
                    assert_eq!(item, expected);
                    expected += 1;
                    consumer.advance();
                }
                None => thread::yield_now(),
            }
        }
        writer.join().unwrap();
    });
}

/// Checks label *sleep*: a consumer that sleeps is woken, whatever the interleaving. A lost wake-up is a
/// deadlock, which loom reports.
#[test]
fn loom_no_wake_up_is_lost() {
    model(3, || {
        let ((mut producer, memory), (mut consumer, _held)) = ring(2, 0);
        let bell = Arc::new((Mutex::new(false), Condvar::new()));
        let ringer = bell.clone();
        let writer = thread::spawn(move || {
            let _memory = memory;
            for item in 1..=2 {
                producer.push(item).unwrap();
                producer.publish();
                if producer.wake_needed() {
                    *ringer.0.lock().unwrap() = true;
                    ringer.1.notify_one();
                }
            }
        });
        let mut taken = 0;
        while taken < 2 {
            if consumer.pop().unwrap().is_some() {
                taken += 1;
            } else if consumer.prepare_sleep() {
                let mut rung = bell.0.lock().unwrap();
                while !*rung {
                    rung = bell.1.wait(rung).unwrap();
                }
                *rung = false;
                drop(rung);
                consumer.awake();
            }
        }
        writer.join().unwrap();
    });
}

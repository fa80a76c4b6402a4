//! The slot word under the model checker. A run that is being read never moves. A run that was moved is never
//! read at its old place. A place that is being copied is never used for anything else.

use super::*;
use crate::sync::UnsafeCell;
use ::loom::sync::Arc;
use ::loom::thread;

const POOL: Place = Place { slab: 0, escaped: false };
const ESCAPE: Place = Place { slab: 1, escaped: true };
const BYTES: u64 = 42;
const GARBAGE: u64 = 13;

/// A slot word, and the two places where its run can lie. loom's cells catch a read beside a write.
struct Shared {
    word: AtomicU64,
    slabs: [UnsafeCell<u64>; 2],
}

// SAFETY: the slabs are touched by the slot word's protocol only; loom checks it.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Self> {
        let slabs = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Arc::new(Self { word: AtomicU64::new(0), slabs })
    }

    fn slot(&self) -> SlotWord<'_> {
        SlotWord(&self.word)
    }

    fn read(&self, place: Place) -> u64 {
        // SAFETY: loom checks that nobody writes meanwhile.
        self.slabs[place.slab as usize].with(|slab| unsafe { *slab })
    }

    fn write(&self, place: Place, value: u64) {
        // SAFETY: loom checks that nobody reads or writes meanwhile.
        self.slabs[place.slab as usize].with_mut(|slab| unsafe { *slab = value });
    }

    /// Copies the run out, as the daemon does, and uses its slab for something else if the move succeeded.
    fn escape(&self, generation: u16) -> Result<(), RelocateError> {
        self.write(ESCAPE, self.read(POOL));
        self.slot().relocate(generation, POOL, ESCAPE)?;
        self.write(POOL, GARBAGE);
        Ok(())
    }

    /// Reads the run once, as the application does, if the run is there.
    fn receive(&self, generation: u16) -> Option<u64> {
        let place = self.slot().pin(generation).ok()?;
        let read = self.read(place);
        self.slot().unpin(generation);
        Some(read)
    }
}

#[test]
fn loom_what_is_read_never_moves() {
    ::loom::model(|| {
        let shared = Shared::new();
        let daemon = shared.clone();
        let daemon = thread::spawn(move || {
            daemon.write(POOL, BYTES);
            daemon.slot().publish(7, POOL);
            match daemon.escape(7) {
                Ok(()) | Err(RelocateError::Pinned) => {}
                Err(RelocateError::Stale) => panic!("it holds no other run"),
            }
        });
        for _ in 0..2 {
            if let Some(read) = shared.receive(7) {
                assert_eq!(read, BYTES);
            }
        }
        daemon.join().unwrap();
        assert_eq!(shared.receive(7), Some(BYTES));
    });
}

/// Checks a slot that is used again. The application unpins and tells the daemon, here by a flag with the
/// release ring's orderings. The daemon reuses the slab, and puts the next run in the same slot.
#[test]
fn loom_a_slot_used_again_is_never_read_as_the_run_before() {
    ::loom::model(|| {
        let shared = Shared::new();
        shared.write(POOL, BYTES);
        shared.slot().publish(7, POOL);
        let released = Arc::new(AtomicU64::new(0));
        let (app, tell) = (shared.clone(), released.clone());
        let app = thread::spawn(move || {
            let read = app.receive(7);
            tell.store(1, Ordering::Release);
            // A second pin of the same run, by an application that forgot that it released it.
            let late = app.slot().pin(7);
            (read, late.is_ok())
        });
        let moved = shared.escape(7);
        assert_ne!(moved, Err(RelocateError::Stale));
        let was_released = released.load(Ordering::Acquire) == 1;
        if was_released {
            shared.slot().publish(8, POOL);
            assert_eq!(shared.slot().relocate(7, POOL, ESCAPE), Err(RelocateError::Stale));
        }
        let (read, late) = app.join().unwrap();
        assert_eq!(read, Some(BYTES));
        assert!(was_released || late, "only a slot that is used again may refuse a pin");
        if was_released {
            assert_eq!(shared.slot().pin(7), Err(PinError::Stale));
            shared.slot().unpin(7);
            assert_eq!(shared.slot().pin(8), Ok(POOL));
        }
    });
}

/// Checks a late unpin, by an application that released a run while it had it pinned: the slot's next run is
/// left as it is.
#[test]
fn loom_a_late_unpin_leaves_the_next_run_as_it_is() {
    ::loom::model(|| {
        let shared = Shared::new();
        shared.slot().publish(7, POOL);
        let app = shared.clone();
        let app = thread::spawn(move || {
            if app.slot().pin(7).is_ok() {
                app.slot().unpin(7);
            }
        });
        shared.slot().publish(8, ESCAPE);
        app.join().unwrap();
        assert_eq!(shared.slot().pin(7), Err(PinError::Stale));
        assert_eq!(shared.slot().pin(8), Ok(ESCAPE));
    });
}

/// A flag that one thread sets once and another looks for. It stands for the release ring and the workers'
/// queue of completions.
struct Signal(AtomicU64);

impl Signal {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(0)))
    }

    fn set(&self) {
        self.0.store(1, Ordering::Release);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) == 1
    }
}

/// The daemon's knowledge of a run that a worker copies.
#[derive(Default)]
struct Moving {
    copied: bool,
    moved: bool,
    released: bool,
}

impl Moving {
    /// Takes the news of the copy's end and of the release in any order, as the daemon does, and reuses each
    /// slab as soon as it may. The slab copied from is free when the copy ended and the run moved away or was
    /// released. The slab copied to is free when the copy is thrown away or the moved run was released.
    fn take(&mut self, shared: &Shared, copied: bool, released: bool) {
        if released && !self.released {
            self.released = true;
            if self.copied {
                shared.write(if self.moved { ESCAPE } else { POOL }, GARBAGE);
            }
        }
        if copied && !self.copied {
            self.copied = true;
            if self.released {
                shared.write(POOL, GARBAGE);
                shared.write(ESCAPE, GARBAGE);
                return;
            }
            match shared.slot().relocate(7, POOL, ESCAPE) {
                Ok(()) => {
                    self.moved = true;
                    shared.write(POOL, GARBAGE);
                }
                Err(RelocateError::Pinned) => shared.write(ESCAPE, GARBAGE),
                Err(RelocateError::Stale) => panic!("only the daemon uses the slot again"),
            }
        }
    }

    fn is_over(&self) -> bool {
        self.copied && self.released
    }
}

/// Runs a worker that copies a run, an application that does `app` with the run and releases it, and the
/// daemon. The daemon learns of the copy's end and of the release in any order.
///
/// Threads are interrupted four times at most, which keeps the run at seconds. The checks hold without the
/// bound as well.
fn pin_against_move_against_release(app: fn(&Shared)) {
    let mut model = ::loom::model::Builder::new();
    model.preemption_bound = Some(4);
    model.check(move || {
        let shared = Shared::new();
        shared.write(POOL, BYTES);
        shared.slot().publish(7, POOL);
        let (copied, released) = (Signal::new(), Signal::new());
        let worker = {
            let (shared, copied) = (shared.clone(), copied.clone());
            thread::spawn(move || {
                shared.write(ESCAPE, shared.read(POOL));
                copied.set();
            })
        };
        let app = {
            let (shared, released) = (shared.clone(), released.clone());
            thread::spawn(move || {
                app(&shared);
                released.set();
            })
        };
        let mut moving = Moving::default();
        while !moving.is_over() {
            moving.take(&shared, copied.is_set(), released.is_set());
            thread::yield_now();
        }
        // The slot's next run is found where it is, and nobody has a place of the former one.
        shared.write(ESCAPE, BYTES + 1);
        shared.slot().publish(8, ESCAPE);
        worker.join().unwrap();
        app.join().unwrap();
        assert_eq!(shared.receive(7), None);
        assert_eq!(shared.receive(8), Some(BYTES + 1));
    });
}

#[test]
fn loom_a_run_is_read_while_it_is_copied_moved_and_released() {
    pin_against_move_against_release(|shared| assert_eq!(shared.receive(7), Some(BYTES)));
}

#[test]
fn loom_a_run_is_read_twice_and_may_move_in_between() {
    pin_against_move_against_release(|shared| {
        assert_eq!(shared.receive(7), Some(BYTES));
        assert_eq!(shared.receive(7), Some(BYTES));
    });
}

#[test]
fn loom_a_run_is_released_unread_while_it_is_copied() {
    pin_against_move_against_release(|_| {});
}

/// Checks that the daemon's look at the pin before a copy decides nothing: only the move decides how the copy
/// ends.
#[test]
fn loom_a_look_at_the_pin_decides_nothing_but_whether_to_try() {
    ::loom::model(|| {
        let shared = Shared::new();
        shared.write(POOL, BYTES);
        shared.slot().publish(7, POOL);
        let app = shared.clone();
        let app = thread::spawn(move || (app.receive(7), app.receive(7)));
        let moved = if shared.slot().is_pinned(7) { Err(RelocateError::Pinned) } else { shared.escape(7) };
        assert_ne!(moved, Err(RelocateError::Stale));
        assert_eq!(app.join().unwrap(), (Some(BYTES), Some(BYTES)));
        assert!(!shared.slot().is_pinned(7));
        let place = if moved.is_ok() { ESCAPE } else { POOL };
        assert_eq!(shared.slot().pin(7), Ok(place));
        assert!(shared.slot().is_pinned(7));
    });
}

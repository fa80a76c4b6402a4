//! Turns under the model checker. Two calls never have the object at once, each sees what the call before it
//! wrote, and nobody reaches or delays what belongs to another handle.

use super::*;
use crate::sync::{AtomicU32, UnsafeCell};
use ::loom::sync::Arc;
use ::loom::thread;

const KIND: u64 = 1;
const OTHER_KIND: u64 = 2;

/// An object behind what stands for its mutex. A mutex would order the calls by itself, and hide that the
/// word does not. This one orders nothing, and panics where a mutex would wait. loom reports two uses of the
/// cell that nothing orders.
struct Object {
    held: AtomicU32,
    value: UnsafeCell<Option<u32>>,
}

// SAFETY: the cell is used in turns only; loom checks that they keep apart.
unsafe impl Sync for Object {}
// SAFETY: as above.
unsafe impl Send for Object {}

/// A locked object.
struct Locked<'a>(&'a Object);

impl Object {
    fn lock(&self) -> Locked<'_> {
        let held = self.held.swap(1, Ordering::Relaxed);
        assert_eq!(held, 0, "the mutex is free for the call that has its turn");
        Locked(self)
    }
}

impl Locked<'_> {
    fn with<R>(&mut self, work: impl FnOnce(&mut Option<u32>) -> R) -> R {
        // SAFETY: loom checks that nobody else uses the cell meanwhile.
        self.0.value.with_mut(|value| work(unsafe { &mut *value }))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.held.store(0, Ordering::Relaxed);
    }
}

/// A place, and what the library for C does with a handle.
#[derive(Clone)]
struct Place(Arc<Turns<Object>>);

impl Place {
    /// A place that has a handle.
    fn with(value: u32) -> (Self, Owner) {
        let object = Object { held: AtomicU32::new(0), value: UnsafeCell::new(None) };
        let place = Self(Arc::new(Turns { word: AtomicU64::new(0), object }));
        let owner = place.insert(KIND, value).unwrap();
        (place, owner)
    }

    /// Makes a handle.
    fn insert(&self, kind: u64, value: u32) -> Option<Owner> {
        let mut turn = self.0.occupy(kind, Object::lock)?;
        let owner = turn.owner();
        let before = turn.object().with(|object| object.replace(value));
        assert_eq!(before, None, "the place was free");
        Some(owner)
    }

    /// Adds 1 to the object, and returns what was there.
    fn count(&self, owner: Owner) -> Result<u32, TurnError> {
        let mut turn = self.0.begin(owner, Object::lock)?;
        Ok(turn.object().with(|object| {
            let value = object.expect("a handle has its object");
            *object = Some(value + 1);
            value
        }))
    }

    /// Ends a handle.
    fn remove(&self, owner: Owner) -> Result<u32, TurnError> {
        let mut turn = self.0.begin(owner, Object::lock)?;
        let value = turn.object().with(Option::take).expect("a handle has its object");
        turn.vacate();
        Ok(value)
    }

    /// Does `calls` in a thread of its own.
    fn beside<R: 'static>(&self, calls: impl FnOnce(&Self) -> R + 'static) -> thread::JoinHandle<R> {
        let place = self.clone();
        thread::spawn(move || calls(&place))
    }
}

#[test]
fn loom_of_two_calls_each_has_its_turn_after_the_other_or_is_told_busy() {
    ::loom::model(|| {
        let (place, owner) = Place::with(10);
        let other = place.beside(move |place| place.count(owner));
        let both = (place.count(owner), other.join().unwrap());
        let busy = Err(TurnError::Busy);
        let may_be = [(Ok(10), Ok(11)), (Ok(11), Ok(10)), (Ok(10), busy), (busy, Ok(10))];
        assert!(may_be.contains(&both), "{both:?}");
        // Neither turn is left open.
        assert_eq!(place.count(owner), Ok(10 + u32::from(both.0.is_ok()) + u32::from(both.1.is_ok())));
    });
}

#[test]
fn loom_a_call_beside_the_removal_comes_before_it_or_is_refused() {
    ::loom::model(|| {
        let (place, owner) = Place::with(10);
        let user = place.beside(move |place| place.count(owner));
        let removed = place.remove(owner);
        let used = user.join().unwrap();
        match removed {
            Ok(10) => assert!(used.is_err(), "it was removed: {used:?}"),
            Ok(11) | Err(TurnError::Busy) => assert_eq!(used, Ok(10)),
            _ => panic!("{removed:?} beside {used:?}"),
        }
        let after = if removed.is_ok() { Err(TurnError::Stale) } else { Ok(11) };
        assert_eq!(place.count(owner), after);
    });
}

/// Checks calls with a handle that is removed meanwhile, and with the next one's generation and another kind.
#[test]
fn loom_a_stale_handle_never_reaches_the_next_object() {
    ::loom::model(|| {
        let (place, old) = Place::with(10);
        let foreign = Owner { generation: old.generation + 1, kind: OTHER_KIND };
        let stale = place.beside(move |place| (place.count(old), place.count(foreign)));
        let removed = place.remove(old);
        if removed.is_ok() {
            let new = place.insert(KIND, 20).expect("a removed handle's place is free");
            assert_eq!(place.count(new), Ok(20), "a stale call changed or delayed it");
        }
        let (of_old, of_foreign) = stale.join().unwrap();
        assert!(matches!(of_old, Ok(10) | Err(_)), "the next handle's object: {of_old:?}");
        assert_eq!(of_foreign, Err(TurnError::Stale));
    });
}

/// Checks two that search for a free place and come to one that is being freed.
#[test]
fn loom_of_two_that_search_one_gets_the_place() {
    ::loom::model(|| {
        let (place, old) = Place::with(10);
        let other = place.beside(|place| place.insert(OTHER_KIND, 30));
        assert_eq!(place.remove(old), Ok(10));
        let mine = place.insert(KIND, 20);
        let theirs = other.join().unwrap();
        let (owner, value) = match (mine, theirs) {
            (Some(mine), None) => (mine, 20),
            (None, Some(theirs)) => (theirs, 30),
            both => panic!("{both:?}"),
        };
        assert_eq!(place.count(owner), Ok(value));
    });
}

#[test]
fn loom_neither_stale_calls_nor_a_search_make_a_call_busy() {
    ::loom::model(|| {
        let (place, old) = Place::with(10);
        place.remove(old).unwrap();
        let owner = place.insert(KIND, 20).unwrap();
        let foreign = Owner { kind: OTHER_KIND, ..owner };
        let stale = place.beside(move |place| [old, foreign].map(|owner| place.count(owner)));
        let search = place.beside(|place| place.insert(KIND, 30));
        assert_eq!(place.count(owner), Ok(20));
        assert_eq!(stale.join().unwrap(), [Err(TurnError::Stale); 2]);
        assert_eq!(search.join().unwrap(), None);
    });
}

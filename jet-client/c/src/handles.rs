//! Handles: numbers that stand for senders and sessions. Each use of a handle checks that its object still
//! exists.
//!
//! A caller in C may free a handle twice, use a freed one, mix up kinds, or use one from two threads. No such
//! mistake may touch memory of another object, and none may wait. So each slot has a word that says which
//! handle it belongs to, and whether a call is using it. A call takes its turn by one compare-and-swap that
//! expects exactly the word of its handle. A compare-and-swap that fails changes nothing. So neither a stale
//! handle nor the search for a free slot ever delays another call.
//!
//! The word is a lock that is tried once, and no more: there is no second word that it must agree with, and
//! no loop tries again. It guards no memory. The object is in a mutex, which is free for the call that holds
//! the word.

use crate::code::{Code, Failure};
use std::any::Any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most handles at once.
const HANDLES: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 12;

/// Kind of object that a handle can stand for. `Send`, because a handle may be used by one thread after
/// another.
pub(crate) trait Kind: Send + 'static {
    /// Number that tells this kind from the others: 1 to 3.
    const KIND: u64;
    /// Type that a handle points to in C.
    type Opaque;
}

/// Value of the turn in a slot's word while no call is using the slot. The slot is free where its kind is
/// [`FREE`].
const IDLE: u64 = 0;
/// Value of the turn in a slot's word while a call is using the slot.
const BUSY: u64 = 1;
/// Value of the kind in a free slot's word.
const FREE: u64 = 0;

/// Makes a slot's word of the generation of its handle, the handle's kind, and its turn.
const fn word(generation: u64, kind: u64, turn: u64) -> u64 {
    generation << 3 | kind << 1 | turn
}

const fn generation_of(word: u64) -> u64 {
    word >> 3
}

struct Slot {
    /// The slot's [`word`]. While it is busy, only the call that made it busy changes it.
    word: AtomicU64,
    /// Object of the handle; `None` in a free slot. Poisoned where a panic left the object half changed.
    object: Mutex<Option<Box<dyn Any + Send>>>,
}

static SLOTS: [Slot; HANDLES] =
    [const { Slot { word: AtomicU64::new(word(0, FREE, IDLE)), object: Mutex::new(None) } }; HANDLES];
/// Slot where the next search for a free slot begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A call's turn in a slot, which ends when this is dropped.
struct Turn {
    slot: &'static Slot,
    /// Word that the slot gets when the turn ends.
    next: u64,
}

impl Turn {
    /// Begins a turn if the slot's word is `expected`; otherwise returns the word that was found.
    fn begin(slot: &'static Slot, expected: u64, busy: u64, next: u64) -> Result<Self, u64> {
        // Acquire: (turn) the call before has finished its work in this slot.
        slot.word.compare_exchange(expected, busy, Ordering::Acquire, Ordering::Relaxed)?;
        Ok(Self { slot, next })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Release: (turn) the object's mutex is free again before the slot is.
        self.slot.word.store(self.next, Ordering::Release);
    }
}

/// Puts an object into a free slot, and returns its handle.
///
/// # Errors
/// [`Code::Limit`]: there are too many handles.
pub(crate) fn insert<T: Kind>(object: T) -> Result<*mut T::Opaque, Failure> {
    let start = NEXT.fetch_add(1, Ordering::Relaxed);
    for index in (0..HANDLES).map(|step| start.wrapping_add(step) % HANDLES) {
        let slot = &SLOTS[index];
        let found = slot.word.load(Ordering::Relaxed);
        if found != word(generation_of(found), FREE, IDLE) {
            continue;
        }
        let generation = generation_of(found) + 1;
        let of_handle = |turn| word(generation, T::KIND, turn);
        // Another thread may have taken the slot first.
        let Ok(_turn) = Turn::begin(slot, found, of_handle(BUSY), of_handle(IDLE)) else { continue };
        *slot.object.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(object));
        let handle = usize::try_from(generation << INDEX_BITS).unwrap_or(usize::MAX) | index;
        return Ok(std::ptr::without_provenance_mut(handle));
    }
    Err(Code::Limit.into())
}

/// The object of a handle, locked for one call.
struct Place {
    // Fields are dropped in this order: the mutex is free before the turn ends.
    object: MutexGuard<'static, Option<Box<dyn Any + Send>>>,
    turn: Turn,
}

/// Locks the object of a handle. With `poisoned_too` also where a panic left the object half changed.
fn take<T: Kind>(handle: *mut T::Opaque, poisoned_too: bool) -> Result<Place, Failure> {
    let handle = handle.addr() as u64;
    let of_handle = |turn| word(handle >> INDEX_BITS, T::KIND, turn);
    // The index is masked, so it is within the table.
    let slot = &SLOTS[usize::try_from(handle).unwrap_or(0) % HANDLES];
    let turn = Turn::begin(slot, of_handle(IDLE), of_handle(BUSY), of_handle(IDLE))
        .map_err(|found| if found == of_handle(BUSY) { Code::Busy } else { Code::Handle })?;
    // Locking never waits: the call that had the turn before released the mutex first.
    let object = match slot.object.lock() {
        Ok(object) => object,
        Err(poisoned) if poisoned_too => poisoned.into_inner(),
        Err(_) => return Err(Code::Internal.into()),
    };
    Ok(Place { object, turn })
}

/// Calls `work` with the object of a handle.
pub(crate) fn with<T: Kind, R>(
    handle: *mut T::Opaque,
    work: impl FnOnce(&mut T) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let mut place = take::<T>(handle, false)?;
    let object = place.object.as_mut().and_then(|object| object.downcast_mut()).ok_or(Code::Handle)?;
    work(object)
}

/// Ends a handle, and returns its object.
pub(crate) fn remove<T: Kind>(handle: *mut T::Opaque) -> Result<Box<T>, Failure> {
    let mut place = take::<T>(handle, true)?;
    let object = place.object.take().ok_or(Code::Handle)?;
    // The object is gone, so the slot is free for the next one.
    place.turn.slot.object.clear_poison();
    place.turn.next = word(generation_of(place.turn.next), FREE, IDLE);
    drop(place);
    object.downcast().map_err(|_| Code::Handle.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{PoisonError, RwLock, RwLockReadGuard};

    /// Lock of the table, which is one for the whole process: no test makes a handle while another test fills
    /// the table.
    static TABLE: RwLock<()> = RwLock::new(());

    struct One(u32);
    struct Two;
    enum OpaqueOne {}
    enum OpaqueTwo {}

    impl Kind for One {
        const KIND: u64 = 1;
        type Opaque = OpaqueOne;
    }

    impl Kind for Two {
        const KIND: u64 = 2;
        type Opaque = OpaqueTwo;
    }

    fn beside_others() -> RwLockReadGuard<'static, ()> {
        TABLE.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn code<R>(result: Result<R, Failure>) -> String {
        result.map_or_else(|failure| format!("{failure:?}"), |_| String::new())
    }

    fn count(one: &mut One) -> Result<u32, Failure> {
        one.0 += 1;
        Ok(one.0)
    }

    #[test]
    fn what_was_freed_or_is_another_or_nothing_is_told() {
        let _table = beside_others();
        let one = insert(One(4)).unwrap();
        assert_eq!(with(one, count).unwrap(), 5);
        assert!(code(with::<Two, ()>(one.cast(), |_| Ok(()))).contains("Handle"), "another kind");
        for nothing in [0, 1, usize::MAX, 0xdead_beef_usize] {
            let nothing = std::ptr::without_provenance_mut(nothing);
            assert!(code(with::<One, _>(nothing, count)).contains("Handle"));
        }
        assert_eq!(remove::<One>(one).unwrap().0, 5);
        assert!(code(with(one, count)).contains("Handle"), "used after it was freed");
        assert!(code(remove::<One>(one)).contains("Handle"), "freed twice");
        let another = insert(One(0)).unwrap();
        assert_ne!(another, one);
        remove::<One>(another).unwrap();
    }

    #[test]
    fn one_thread_at_a_time() {
        let _table = beside_others();
        let one = insert(One(0)).unwrap();
        let address = one.addr();
        with::<One, ()>(one, |_| {
            let other = std::thread::spawn(move || {
                let one = std::ptr::without_provenance_mut(address);
                (code(with(one, count)), code(remove::<One>(one)))
            });
            let (used, freed) = other.join().unwrap();
            assert!(used.contains("Busy") && freed.contains("Busy"), "{used} {freed}");
            Ok(())
        })
        .unwrap();
        // Many threads at once: each call is carried out or refused as busy, so no count is lost or made
        // twice.
        let counted: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(move || {
                        let one: *mut OpaqueOne = std::ptr::without_provenance_mut(address);
                        (0..1000).map(|_| u32::from(with(one, count).is_ok())).sum::<u32>()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(remove::<One>(one).unwrap().0, counted);
    }

    #[test]
    fn what_a_panic_left_can_only_be_freed() {
        let _table = beside_others();
        let one = insert(One(0)).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| with::<One, ()>(one, |_| panic!("on purpose"))));
        assert!(panicked.is_err());
        assert!(code(with(one, count)).contains("Internal"));
        assert!(remove::<One>(one).is_ok());
        assert!(code(remove::<One>(one)).contains("Handle"));
    }

    /// Handles that one thread of the test makes and frees, while thousands of slots are in use.
    const MADE: usize = 30_000;
    /// Calls that a second thread of the test makes with freed handles. Living handles are used until both
    /// threads are done.
    const STALE_CALLS: usize = 10_000_000;

    #[test]
    fn nobody_is_told_busy_because_of_anothers_handle() {
        let _table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        let handle = |address: usize| -> *mut OpaqueOne { std::ptr::without_provenance_mut(address) };
        // Nearly all slots have had a handle before, and are in use: making a handle goes over many of them.
        let fill = || -> Vec<usize> { (0..HANDLES - 8).map(|_| insert(One(0)).unwrap().addr()).collect() };
        let drop_all = |all: &[usize]| all.iter().for_each(|one| drop(remove::<One>(handle(*one)).unwrap()));
        let old = fill();
        drop_all(&old);
        let living = fill();
        std::thread::scope(|scope| {
            let maker = scope.spawn(|| {
                for _ in 0..MADE {
                    remove::<One>(insert(One(0)).unwrap()).unwrap();
                }
            });
            let user_of_stale = scope.spawn(|| {
                for one in old.iter().cycle().take(STALE_CALLS) {
                    assert!(with(handle(*one), count).is_err());
                }
            });
            // Wherever one of the other threads is interrupted, all living handles are used before it
            // continues.
            for one in living.iter().cycle() {
                let used = with(handle(*one), count);
                assert!(used.is_ok(), "a living handle: {}", code(used));
                if maker.is_finished() && user_of_stale.is_finished() {
                    break;
                }
            }
        });
        drop_all(&living);
    }

    #[test]
    fn there_are_only_so_many() {
        let _table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        while let Ok(two) = insert(Two) {
            all.push(two);
        }
        assert!(all.len() > HANDLES / 2, "{}", all.len());
        assert!(code(insert(Two)).contains("Limit"));
        for two in all {
            remove::<Two>(two).unwrap();
        }
        remove::<Two>(insert(Two).unwrap()).unwrap();
    }
}

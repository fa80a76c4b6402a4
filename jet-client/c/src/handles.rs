//! Handles: numbers that stand for senders and sessions. Each use of a handle checks that its object still
//! exists.
//!
//! A caller in C may free a handle twice, use a freed one, mix up kinds, or use one from two threads. No such
//! mistake may touch memory of another object, and none may wait. So each slot of the table has its turns
//! ([`jet_wire::turn`]): a call takes its turn by one compare-and-swap, which fails with a wrong handle. The
//! object is in a mutex, which is free for the call that has its turn.

use crate::code::{Code, Failure};
use jet_wire::turn::{Owner, Turn, TurnError, Turns};
use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

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

/// Object of a handle; `None` in a free slot. Poisoned where a panic left the object half changed.
type Object = Mutex<Option<Box<dyn Any + Send>>>;

static SLOTS: [Turns<Object>; HANDLES] = [const { Turns::new(Mutex::new(None)) }; HANDLES];
/// Slot where the next search for a free slot begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Puts an object into a free slot, and returns its handle.
///
/// # Errors
/// [`Code::Limit`]: there are too many handles.
pub(crate) fn insert<T: Kind>(object: T) -> Result<*mut T::Opaque, Failure> {
    let start = NEXT.fetch_add(1, Ordering::Relaxed);
    for index in (0..HANDLES).map(|step| start.wrapping_add(step) % HANDLES) {
        let lock = |object: &'static Object| object.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut turn) = SLOTS[index].occupy(T::KIND, lock) else { continue };
        **turn.object() = Some(Box::new(object));
        let handle = usize::try_from(turn.owner().generation << INDEX_BITS).unwrap_or(usize::MAX) | index;
        return Ok(std::ptr::without_provenance_mut(handle));
    }
    Err(Code::Limit.into())
}

/// Begins a call's turn with a handle, and locks the object by `lock`. Locking never waits: the call that had
/// the turn before released the mutex first.
fn begin<T: Kind, G>(
    handle: *mut T::Opaque,
    lock: impl FnOnce(&'static Object) -> G,
) -> Result<Turn<'static, G>, Failure> {
    let handle = handle.addr() as u64;
    let owner = Owner { generation: handle >> INDEX_BITS, kind: T::KIND };
    // The index is masked, so it is within the table.
    let slot = &SLOTS[usize::try_from(handle).unwrap_or(0) % HANDLES];
    slot.begin(owner, lock).map_err(|error| match error {
        TurnError::Busy => Code::Busy.into(),
        TurnError::Stale => Code::Handle.into(),
    })
}

/// Calls `work` with the object of a handle.
pub(crate) fn with<T: Kind, R>(
    handle: *mut T::Opaque,
    work: impl FnOnce(&mut T) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let mut turn = begin::<T, _>(handle, Mutex::lock)?;
    let object = turn.object().as_mut().map_err(|_| Code::Internal)?;
    work(object.as_mut().and_then(|object| object.downcast_mut()).ok_or(Code::Handle)?)
}

/// Ends a handle, and returns its object.
pub(crate) fn remove<T: Kind>(handle: *mut T::Opaque) -> Result<Box<T>, Failure> {
    let mut turn = begin::<T, _>(handle, |object| {
        let locked = object.lock().unwrap_or_else(PoisonError::into_inner);
        // The object goes, also one that is half changed: the slot is free for the next one.
        object.clear_poison();
        locked
    })?;
    let object = turn.object().take().ok_or(Code::Handle)?;
    turn.vacate();
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

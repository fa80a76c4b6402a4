//! Handles: numbers that stand for senders and sessions, and say whether these still are.
//!
//! A caller in C may free twice, use what was freed, mix kinds up, or use one from two threads. None of that may touch memory
//! that is somebody else's, and none of it may wait: each slot has a mutex, which is tried and never waited for.

use crate::code::{Code, Failure};
use std::any::Any;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Handles at once.
const HANDLES: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 12;

/// What a handle can stand for. `Send`, because a handle may be used by one thread after another.
pub(crate) trait Kind: Send + 'static {
    /// Tells it from the others: 1 to 3.
    const KIND: u64;
    /// What C knows it as.
    type Opaque;
}

/// Whose turn it is in a slot: the generation of its handle, and what kind that is.
const fn tenant(generation: u64, kind: u64) -> u64 {
    generation << 2 | kind
}

struct Slot {
    /// The [`tenant`], or the last one. Written under the lock alone; read without it only to tell a handle that is in use
    /// from one that is another's or of old.
    tenant: AtomicU64,
    /// Nothing in a slot that is free. Poisoned where a panic left it halfway.
    object: Mutex<Option<Box<dyn Any + Send>>>,
}

static SLOTS: [Slot; HANDLES] =
    [const { Slot { tenant: AtomicU64::new(0), object: Mutex::new(None) } }; HANDLES];
/// Where the search for a free one begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Makes a handle.
pub(crate) fn insert<T: Kind>(object: T) -> Result<*mut T::Opaque, Failure> {
    let start = NEXT.fetch_add(1, Ordering::Relaxed);
    for index in (0..HANDLES).map(|step| start.wrapping_add(step) % HANDLES) {
        let slot = &SLOTS[index];
        // One that is in use is not free, and neither is one that a panic left.
        let Ok(mut place) = slot.object.try_lock() else { continue };
        if place.is_some() {
            continue;
        }
        let generation = (slot.tenant.load(Ordering::Relaxed) >> 2) + 1;
        slot.tenant.store(tenant(generation, T::KIND), Ordering::Relaxed);
        *place = Some(Box::new(object));
        let handle = usize::try_from(generation << INDEX_BITS).unwrap_or(usize::MAX) | index;
        return Ok(std::ptr::without_provenance_mut(handle));
    }
    Err(Code::Limit.into())
}

type Place = MutexGuard<'static, Option<Box<dyn Any + Send>>>;

/// The place of a handle, for this call alone. `poisoned_too`: also where a panic left it.
fn take<T: Kind>(handle: *mut T::Opaque, poisoned_too: bool) -> Result<(&'static Slot, Place), Failure> {
    let handle = handle.addr() as u64;
    let wanted = tenant(handle >> INDEX_BITS, T::KIND);
    // Masked, so within the table.
    let slot = &SLOTS[usize::try_from(handle).unwrap_or(0) % HANDLES];
    let is_its = || slot.tenant.load(Ordering::Relaxed) == wanted;
    let place = match slot.object.try_lock() {
        Ok(place) => place,
        Err(TryLockError::WouldBlock) => {
            return Err(if is_its() { Code::Busy } else { Code::Handle }.into());
        }
        Err(TryLockError::Poisoned(_)) if !is_its() => return Err(Code::Handle.into()),
        Err(TryLockError::Poisoned(poisoned)) if poisoned_too => poisoned.into_inner(),
        Err(TryLockError::Poisoned(_)) => return Err(Code::Internal.into()),
    };
    // Under the lock, so it stays.
    if is_its() && place.is_some() { Ok((slot, place)) } else { Err(Code::Handle.into()) }
}

/// Does something with what a handle stands for.
pub(crate) fn with<T: Kind, R>(
    handle: *mut T::Opaque,
    work: impl FnOnce(&mut T) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let (_, mut place) = take::<T>(handle, false)?;
    let object = place.as_mut().and_then(|object| object.downcast_mut()).ok_or(Code::Handle)?;
    work(object)
}

/// Ends a handle; what it stood for is the caller's.
pub(crate) fn remove<T: Kind>(handle: *mut T::Opaque) -> Result<Box<T>, Failure> {
    let (slot, mut place) = take::<T>(handle, true)?;
    let object = place.take().ok_or(Code::Handle)?;
    // Nothing is left halfway: the slot is free for the next one.
    slot.object.clear_poison();
    drop(place);
    object.downcast().map_err(|_| Code::Handle.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{PoisonError, RwLock, RwLockReadGuard};

    /// The table is one for the whole process: no test makes a handle while another fills it.
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
        // Many threads, each of which gets in or is told: nothing is counted twice or lost.
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

//! Handles: numbers that stand for senders and sessions, and say whether these still are.
//!
//! A caller in C may free twice, use what was freed, mix kinds up, or use one from two threads. None of that may touch memory
//! that is somebody else's, and none of it may need a lock: taking a handle is one compare-and-swap.

use crate::code::{Code, Failure};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Handles at once.
const HANDLES: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 12;

/// What a handle can stand for. `Send`, because a handle may be used by one thread after another.
pub(crate) trait Kind: Send {
    /// Tells it from the others: 1 to 3.
    const KIND: u64;
    /// What C knows it as.
    type Opaque;
}

const FREE: u64 = 0;
const IDLE: u64 = 1;
const BUSY: u64 = 2;
/// A panic left it halfway.
const POISONED: u64 = 3;

/// A slot's word: generation, kind and state.
const fn word(generation: u64, kind: u64, state: u64) -> u64 {
    generation << 4 | kind << 2 | state
}

struct Slot {
    word: AtomicU64,
    /// A `Box` of the kind that the word says; whoever made the word busy has it to himself.
    object: UnsafeCell<Option<NonNull<()>>>,
}

// SAFETY: the object is touched only by who made the word busy, and what it is may go from thread to thread (`Kind: Send`).
unsafe impl Sync for Slot {}

static SLOTS: [Slot; HANDLES] =
    [const { Slot { word: AtomicU64::new(0), object: UnsafeCell::new(None) } }; HANDLES];
/// Where the search for a free one begins.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Makes a handle.
pub(crate) fn insert<T: Kind>(object: T) -> Result<*mut T::Opaque, Failure> {
    let object = Box::new(object);
    let start = NEXT.fetch_add(1, Ordering::Relaxed);
    for index in (0..HANDLES).map(|step| start.wrapping_add(step) % HANDLES) {
        let slot = &SLOTS[index];
        let seen = slot.word.load(Ordering::Relaxed);
        let generation = (seen >> 4) + 1;
        let busy = word(generation, T::KIND, BUSY);
        // Acquire: with the Release of whoever freed it.
        let won = || slot.word.compare_exchange(seen, busy, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if seen & 3 == FREE && won() {
            // SAFETY: the word is busy, and was made so here.
            unsafe { *slot.object.get() = Some(NonNull::from(Box::leak(object)).cast()) };
            // Release: with the Acquire of `take`.
            slot.word.store(word(generation, T::KIND, IDLE), Ordering::Release);
            let handle = usize::try_from(generation << INDEX_BITS).unwrap_or(usize::MAX) | index;
            return Ok(std::ptr::without_provenance_mut(handle));
        }
    }
    Err(Code::Limit.into())
}

/// A handle that is in use by this call.
struct Taken {
    slot: &'static Slot,
    generation: u64,
    kind: u64,
    /// What the word becomes at the end.
    after: u64,
}

impl Taken {
    fn take<T: Kind>(handle: *mut T::Opaque, poisoned_too: bool) -> Result<Self, Failure> {
        let handle = handle.addr() as u64;
        let (generation, kind) = (handle >> INDEX_BITS, T::KIND);
        // Masked, so within the table.
        let slot = &SLOTS[usize::try_from(handle).unwrap_or(0) % HANDLES];
        let exchange = |from| {
            let busy = word(generation, kind, BUSY);
            // Acquire: with the Release of whoever used it before.
            slot.word.compare_exchange(
                word(generation, kind, from),
                busy,
                Ordering::Acquire,
                Ordering::Relaxed,
            )
        };
        match exchange(IDLE) {
            Ok(_) => Ok(Self { slot, generation, kind, after: IDLE }),
            Err(_) if generation == 0 => Err(Code::Handle.into()),
            Err(found) if found == word(generation, kind, BUSY) => Err(Code::Busy.into()),
            Err(found) if found == word(generation, kind, POISONED) => {
                if poisoned_too && exchange(POISONED).is_ok() {
                    Ok(Self { slot, generation, kind, after: POISONED })
                } else {
                    Err(Code::Internal.into())
                }
            }
            Err(_) => Err(Code::Handle.into()),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let state = if std::thread::panicking() && self.after == IDLE { POISONED } else { self.after };
        // Release: with the Acquire of the next one.
        self.slot.word.store(word(self.generation, self.kind, state), Ordering::Release);
    }
}

/// Does something with what a handle stands for.
pub(crate) fn with<T: Kind, R>(
    handle: *mut T::Opaque,
    work: impl FnOnce(&mut T) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let taken = Taken::take::<T>(handle, false)?;
    // SAFETY: the word is busy, and was made so here.
    let object = unsafe { &mut *taken.slot.object.get() };
    let object = object.ok_or(Code::Handle)?;
    // SAFETY: the word's kind says that it is a `Box<T>` of `insert`'s, which `remove` has not taken.
    work(unsafe { object.cast::<T>().as_mut() })
}

/// Ends a handle; what it stood for is the caller's.
pub(crate) fn remove<T: Kind>(handle: *mut T::Opaque) -> Result<Box<T>, Failure> {
    let mut taken = Taken::take::<T>(handle, true)?;
    // SAFETY: the word is busy, and was made so here.
    let object = unsafe { &mut *taken.slot.object.get() }.take().ok_or(Code::Handle)?;
    taken.after = FREE;
    drop(taken);
    // SAFETY: as in `with`; it was taken out of the slot.
    Ok(unsafe { Box::from_raw(object.cast::<T>().as_ptr()) })
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

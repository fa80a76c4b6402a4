//! Turns: a place for an object that the threads of one process use by handles, one call at a time. No call
//! waits, and a call with a handle that is not the object's, or no longer, reaches nothing.
//!
//! A place has a word that says which handle it belongs to, and whether a call is using it:
//!
//! | bits | meaning |
//! |---|---|
//! | 3..64 | generation: how many handles this place has had, so that no handle is taken for an earlier one |
//! | 1..3 | kind of the handle; 0: the place is free |
//! | 0 | busy: a call has its turn |
//!
//! A call takes its turn by one compare-and-swap that expects exactly the word of its handle. A
//! compare-and-swap that fails changes nothing. So neither a stale handle nor the search for a free place
//! ever delays another call.
//!
//! The word is a lock that is tried once, and no more: there is no second word that it must agree with, and
//! no loop tries again. It guards no memory. What it hands out, the user protects itself, by a mutex for
//! example. That mutex is free for the call that has the turn.
//!
//! Orderings, by label: *turn*: the Release at the end of a turn pairs with the Acquire at the beginning of
//! the next one (the call before has let go of the object).

use crate::sync::{AtomicU64, Ordering};

/// Value of the kind in a free place's word.
const FREE: u64 = 0;
/// The bit of a word that is set while a call has its turn.
const BUSY: u64 = 1;

/// What tells a handle from all other handles that its place has had or will have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// How many handles the place has had with this one.
    pub generation: u64,
    /// Kind of the handle: 1 to 3.
    pub kind: u64,
}

impl Owner {
    /// The place's word while no call has its turn.
    const fn idle(self) -> u64 {
        self.generation << 3 | self.kind << 1
    }
}

const fn generation_of(word: u64) -> u64 {
    word >> 3
}

/// The reason why a call has no turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnError {
    /// Another call with this handle has its turn.
    Busy,
    /// The place is free, or belongs to another handle.
    Stale,
}

/// A place for an object. `T` is what protects the object: only a call that has its turn reaches it.
#[derive(Debug)]
pub struct Turns<T> {
    /// The word of the place. While it is busy, only the call that made it busy changes it.
    word: AtomicU64,
    object: T,
}

impl<T> Turns<T> {
    /// Makes a free place that has had no handle.
    #[cfg(not(loom))]
    pub const fn new(object: T) -> Self {
        Self { word: AtomicU64::new(0), object }
    }

    /// Begins the turn of a call that makes a new handle of this kind here, and locks the object by `lock`.
    /// Returns `None` where the place is not free, or another call has just taken it.
    pub fn occupy<'a, G>(&'a self, kind: u64, lock: impl FnOnce(&'a T) -> G) -> Option<Turn<'a, G>> {
        let found = self.word.load(Ordering::Relaxed);
        let generation = generation_of(found);
        if found != (Owner { generation, kind: FREE }).idle() {
            return None;
        }
        self.try_turn(found, Owner { generation: generation + 1, kind }, lock).ok()
    }

    /// Begins the turn of a call with a handle, and locks the object by `lock`.
    ///
    /// # Errors
    /// [`TurnError`]: the call has no turn, and nothing was changed.
    pub fn begin<'a, G>(
        &'a self,
        owner: Owner,
        lock: impl FnOnce(&'a T) -> G,
    ) -> Result<Turn<'a, G>, TurnError> {
        self.try_turn(owner.idle(), owner, lock)
            .map_err(|found| if found == owner.idle() | BUSY { TurnError::Busy } else { TurnError::Stale })
    }

    /// Begins a turn if the word is `expected`; otherwise returns the word that was found. When the turn
    /// ends, the place belongs to `owner`.
    fn try_turn<'a, G>(
        &'a self,
        expected: u64,
        owner: Owner,
        lock: impl FnOnce(&'a T) -> G,
    ) -> Result<Turn<'a, G>, u64> {
        // label: turn
        self.word.compare_exchange(expected, owner.idle() | BUSY, Ordering::Acquire, Ordering::Relaxed)?;
        let busy = Busy { word: &self.word, owner };
        Ok(Turn { object: lock(&self.object), busy })
    }
}

/// A call's turn, which ends when this is dropped. It holds what locks the object.
#[derive(Debug)]
pub struct Turn<'a, G> {
    // Fields are dropped in this order: the object's lock is free before the turn ends.
    object: G,
    busy: Busy<'a>,
}

impl<G> Turn<'_, G> {
    /// Returns what `lock` gave.
    pub fn object(&mut self) -> &mut G {
        &mut self.object
    }

    /// Returns the handle that the place belongs to.
    pub fn owner(&self) -> Owner {
        self.busy.owner
    }

    /// Ends the turn and the handle: the place is free for the next one.
    pub fn vacate(mut self) {
        self.busy.owner.kind = FREE;
    }
}

/// A word that is busy until this is dropped.
#[derive(Debug)]
struct Busy<'a> {
    word: &'a AtomicU64,
    /// Handle that the place belongs to then.
    owner: Owner,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.word.store(self.owner.idle(), Ordering::Release); // label: turn
    }
}

#[cfg(all(test, loom))]
mod loom;

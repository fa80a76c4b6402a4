//! How messages and slices keep the life that they came from.
//!
//! Each of them is made and dropped under the life's lock. So they are counted by a plain number under that
//! lock, and not by one atomic addition and subtraction more for each. While any is there, the life keeps
//! itself.

use super::Life;
use crate::receive::session::Session;
use crate::shared::hub::Locked;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::Arc;

/// The messages and slices of a life that somebody has.
#[derive(Default)]
pub(crate) struct Keeping {
    count: Cell<u64>,
    /// The life itself, while `count` is not 0.
    life: RefCell<Option<Arc<Life>>>,
}

/// A lock, and the life that it is part of. The lock is dropped first.
struct DropsBefore<'h>(
    Locked<'h, Session>,
    #[expect(dead_code, reason = "it is only dropped")] Option<Arc<Life>>,
);

/// A life that a message or a slice keeps. Whoever has it gives it back by [`Self::give_back`].
pub(super) struct Kept(NonNull<Life>);

// SAFETY: it stands for an `Arc<Life>`, which is `Send` and `Sync`.
unsafe impl Send for Kept where Arc<Life>: Send {}
// SAFETY: as above.
unsafe impl Sync for Kept where Arc<Life>: Sync {}

impl Kept {
    /// Keeps a life, whose session is locked.
    #[inline]
    pub(super) fn new(life: &Arc<Life>, session: &Session) -> Self {
        let Keeping { count, life: itself } = &session.keeping;
        if count.get() == 0 {
            itself.replace(Some(Arc::clone(life)));
        }
        count.set(count.get() + 1);
        Self(NonNull::from(&**life))
    }

    /// Keeps the life once more, whose session is locked.
    #[inline]
    pub(super) fn again(&self, session: &Session) -> Self {
        // It is not 0: this one counts.
        session.keeping.count.set(session.keeping.count.get() + 1);
        Self(self.0)
    }

    #[inline]
    fn life(&self) -> &Life {
        // SAFETY: the life keeps itself while this one counts.
        unsafe { self.0.as_ref() }
    }

    /// Locks the life.
    #[inline]
    pub(super) fn lock(&self) -> Locked<'_, Session> {
        self.life().lock()
    }

    /// Returns the life, to wait on it.
    pub(super) fn arc(&self) -> Arc<Life> {
        self.lock().end.keeping.life.borrow().clone().expect("it keeps itself while this one counts")
    }

    /// Gives the life back, after `last` has used it. To be called once, when this one is dropped.
    ///
    /// The lock is part of the life, which may end at once when it was given back: another thread may drop
    /// the last one that keeps it. So nothing of the life is touched after the lock was given back, but for
    /// what the standard library's `Mutex` does with its address alone.
    #[inline]
    pub(super) fn give_back(&mut self, last: impl FnOnce(&Session)) {
        let state = self.life().lock();
        let Keeping { count, life } = &state.end.keeping;
        count.set(count.get() - 1);
        // Dropped after the lock, also where `last` panics.
        let itself = if count.get() == 0 { life.take() } else { None };
        let state = DropsBefore(state, itself);
        last(&state.0.end);
    }
}

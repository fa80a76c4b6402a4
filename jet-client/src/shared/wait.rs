//! Waiting on a shared end, as a thread or as a task.

use super::End;
use super::hub::Hub;
#[cfg(feature = "tokio")]
use super::watch;
#[cfg(feature = "tokio")]
use crate::spin::FUTURE_SPIN_MAX;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// One wait of a thread or a task. Dropping it ends the wait.
pub(crate) struct Wait<E: End> {
    hub: Arc<Hub<E>>,
    number: u64,
    wants: E::Wants,
    memory: E::Memory,
    /// Whether it slept, or is about to.
    slept: bool,
    /// The runtime that watches for it.
    #[cfg(feature = "tokio")]
    watched: Option<tokio::runtime::Id>,
}

/// What a thread does next.
enum Step<T> {
    Found(T),
    /// It waits for the descriptor, at most for so long.
    Lead(Arc<OwnedFd>, Option<Duration>),
    /// It waits to be woken.
    Follow,
}

/// Waits as a thread until `look` finds something, or until the deadline. Returns `None` where it did not.
///
/// # Errors
/// [`End::prepare_sleep`], [`End::settle`].
pub(crate) fn block<E: End, T>(
    hub: &Arc<Hub<E>>,
    wants: E::Wants,
    deadline: Option<Instant>,
    mut look: impl FnMut(&mut E) -> Option<T>,
) -> Result<Option<T>, E::Error> {
    if let Some(found) = look(&mut hub.lock().end) {
        return Ok(Some(found));
    }
    let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let mut wait = Wait::new(hub, wants);
    loop {
        if let Some(found) = wait.spin(left(), &mut look) {
            return Ok(Some(found));
        }
        let left = left();
        if left == Some(Duration::ZERO) {
            return Ok(None);
        }
        match wait.step(&mut look)? {
            Step::Found(found) => return Ok(Some(found)),
            Step::Lead(descriptor, at_most) => {
                let span = [left, at_most].into_iter().flatten().min();
                hub.sleep(&descriptor, span).map_err(E::refused)?;
            }
            Step::Follow => left.map_or_else(std::thread::park, std::thread::park_timeout),
        }
    }
}

impl<E: End> Wait<E> {
    pub(crate) fn new(hub: &Arc<Hub<E>>, wants: E::Wants) -> Self {
        let memory = hub.lock().end.begin_wait();
        Self {
            hub: Arc::clone(hub),
            number: hub.next_number(),
            wants,
            memory,
            slept: false,
            #[cfg(feature = "tokio")]
            watched: None,
        }
    }

    /// Spins, unless others sleep: one of them finds what comes, and each look would have to leave the end
    /// prepared for them.
    fn spin<T>(&self, left: Option<Duration>, look: &mut impl FnMut(&mut E) -> Option<T>) -> Option<T> {
        let mut spin = {
            let state = self.hub.lock();
            // It looks itself now.
            state.end.sleepers().take(self.number);
            if state.end.sleepers().any() {
                return None;
            }
            state.spin
        };
        let found = spin.until(left, || look(&mut self.hub.lock().end));
        self.hub.lock().spin = spin;
        found
    }

    /// Looks once more as a thread, and falls asleep where there is nothing.
    fn step<T>(&mut self, look: &mut impl FnMut(&mut E) -> Option<T>) -> Result<Step<T>, E::Error> {
        let hub = Arc::clone(&self.hub);
        let mut state = hub.lock();
        state.end.sleepers().take(self.number);
        if self.slept && state.leader == Some(self.number) {
            // The descriptor may be readable.
            state.end.settle()?;
        }
        self.slept = true;
        loop {
            if let Some(found) = look(&mut state.end) {
                return Ok(Step::Found(found));
            }
            state.end.check_wait(&self.memory)?;
            if state.leader.is_some_and(|leader| leader != self.number) {
                state.end.sleepers().put(self.number, self.wants, this_threads_waker(), true);
                state.end.note_sleep();
                return Ok(Step::Follow);
            }
            if !state.end.prepare_sleep()? {
                continue;
            }
            let (descriptor, _) = state.descriptor().map_err(E::refused)?;
            state.leader_due_ns = state.end.due_ns();
            let at_most = state.leader_due_ns.map(|due_ns| state.end.until(due_ns));
            state.end.sleepers().put(self.number, self.wants, hub.leaders_waker(), true);
            state.end.note_sleep();
            state.leader = Some(self.number);
            return Ok(Step::Lead(descriptor, at_most));
        }
    }

    /// Looks once more as a task, and falls asleep where there is nothing.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        mut look: impl FnMut(&mut E) -> Option<T>,
    ) -> Poll<Result<T, E::Error>> {
        if !self.slept
            && let Some(found) = self.spin(Some(FUTURE_SPIN_MAX), &mut look)
        {
            return Poll::Ready(Ok(found));
        }
        let (hub, waker) = (Arc::clone(&self.hub), context.waker().clone());
        let mut state = hub.lock();
        state.end.sleepers().take(self.number);
        self.slept = true;
        loop {
            if let Some(found) = look(&mut state.end) {
                return Poll::Ready(Ok(found));
            }
            state.end.check_wait(&self.memory)?;
            if watch::join(&mut state, &hub, &mut self.watched).map_err(E::refused)? {
                continue;
            }
            if !state.end.prepare_sleep()? {
                continue;
            }
            state.end.sleepers().put(self.number, self.wants, waker, false);
            state.end.note_sleep();
            return Poll::Pending;
        }
    }
}

impl<E: End> Drop for Wait<E> {
    fn drop(&mut self) {
        if !self.slept {
            return;
        }
        let mut state = self.hub.lock();
        let was_woken = !state.end.sleepers().take(self.number);
        if state.leader == Some(self.number) {
            state.leader = state.end.sleepers().wake_thread();
        }
        #[cfg(feature = "tokio")]
        watch::leave(&mut state, self.watched);
        if was_woken {
            // It may have been woken for what it did not take.
            state.end.hand_on(self.wants);
        }
    }
}

impl<E: End> fmt::Debug for Wait<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Returns a waker of the calling thread, which parks.
fn this_threads_waker() -> Waker {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    thread_local! {
        static WAKER: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    }
    WAKER.with(Waker::clone)
}

//! Waiting on a shared session, as a thread or as a task.
//!
//! One thread, the leader, waits for the session's descriptor. It wakes whoever waits for what it reads, and
//! hands the lead on when it leaves. Tasks do not lead: a task may be left unpolled for long. The runtime
//! watches the descriptor for them ([`super::watch`]).

use super::life::Life;
use crate::receive::error::ReceiveError;
use crate::receive::session::Session;
use crate::receive::sleepers::Wants;
use jet_wire::segment::Notice;
use std::fmt;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::{Context, Poll};
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// One wait of a thread or a task. Dropping it ends the wait.
pub(super) struct Wait {
    life: Arc<Life>,
    number: u64,
    wants: Wants,
    /// Notice that was reported before this wait began.
    reported_before: Option<Notice>,
    /// Whether it slept, or is about to.
    slept: bool,
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait").field("wants", &self.wants).finish_non_exhaustive()
    }
}

/// What a thread does next.
enum Step<T> {
    Found(T),
    /// It waits for the descriptor.
    Lead,
    /// It waits to be woken.
    Follow,
}

/// Waits as a thread until `look` finds something, or until the deadline. Returns `None` where it did not.
pub(super) fn block<T>(
    life: &Arc<Life>,
    wants: Wants,
    deadline: Option<Instant>,
    mut look: impl FnMut(&Session) -> Option<T>,
) -> Result<Option<T>, ReceiveError> {
    if let Some(found) = look(&life.lock().session) {
        return Ok(Some(found));
    }
    let left_until = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    let mut wait = Wait::new(life, wants);
    loop {
        if let Some(found) = wait.spin(left_until(), &mut look) {
            return Ok(Some(found));
        }
        let left = left_until();
        if left == Some(Duration::ZERO) {
            return Ok(None);
        }
        match wait.step(&mut look)? {
            Step::Found(found) => return Ok(Some(found)),
            Step::Lead => life.sleep(left)?,
            Step::Follow => left.map_or_else(std::thread::park, std::thread::park_timeout),
        }
    }
}

impl Wait {
    pub(super) fn new(life: &Arc<Life>, wants: Wants) -> Self {
        let reported_before = life.lock().session.reported_notice.get();
        Self { life: Arc::clone(life), number: life.next_number(), wants, reported_before, slept: false }
    }

    /// Spins, unless another thread leads: that one finds what comes.
    fn spin<T>(&self, left: Option<Duration>, look: &mut impl FnMut(&Session) -> Option<T>) -> Option<T> {
        let mut spin = {
            let state = self.life.lock();
            if state.leader.is_some_and(|leader| leader != self.number) {
                return None;
            }
            state.session.spin.get()
        };
        let found = spin.until(left, || look(&self.life.lock().session));
        self.life.lock().session.spin.set(spin);
        found
    }

    /// Looks once more as a thread, and falls asleep where there is nothing.
    fn step<T>(&mut self, look: &mut impl FnMut(&Session) -> Option<T>) -> Result<Step<T>, ReceiveError> {
        let life = Arc::clone(&self.life);
        let mut state = life.lock();
        state.session.sleepers.take(self.number);
        if self.slept && state.leader == Some(self.number) {
            // The descriptor may be readable.
            state.session.settle()?;
        }
        self.slept = true;
        loop {
            if let Some(found) = look(&state.session) {
                return Ok(Step::Found(found));
            }
            let session = &state.session;
            if state.leader.is_some_and(|leader| leader != self.number) {
                session.sleepers.put(self.number, self.wants, this_threads_waker(), true);
                session.stats.sleeps.set(session.stats.sleeps.get() + 1);
                return Ok(Step::Follow);
            }
            if session.prepare_sleep_on_ring()? {
                session.check_held(true, self.reported_before)?;
                session.sleepers.put(self.number, self.wants, life.leaders_waker(), true);
                session.stats.sleeps.set(session.stats.sleeps.get() + 1);
                state.leader = Some(self.number);
                return Ok(Step::Lead);
            }
        }
    }

    /// Looks once more as a task, and falls asleep where there is nothing.
    #[cfg(feature = "tokio")]
    pub(super) fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        mut look: impl FnMut(&Session) -> Option<T>,
    ) -> Poll<Result<T, ReceiveError>> {
        if !self.slept
            && let Some(found) = self.spin(None, &mut look)
        {
            return Poll::Ready(Ok(found));
        }
        let life = Arc::clone(&self.life);
        let mut state = life.lock();
        state.session.sleepers.take(self.number);
        self.slept = true;
        loop {
            if let Some(found) = look(&state.session) {
                return Poll::Ready(Ok(found));
            }
            if super::watch::ensure(&mut state, &life, self.number).map_err(ReceiveError::Wait)? {
                continue;
            }
            let session = &state.session;
            if session.prepare_sleep_on_ring()? {
                session.check_held(true, self.reported_before)?;
                session.sleepers.put(self.number, self.wants, context.waker().clone(), false);
                session.stats.sleeps.set(session.stats.sleeps.get() + 1);
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if !self.slept {
            return;
        }
        let mut state = self.life.lock();
        let was_woken = !state.session.sleepers.take(self.number);
        if state.leader == Some(self.number) {
            state.leader = state.session.sleepers.wake_thread();
        }
        #[cfg(feature = "tokio")]
        super::watch::leave(&mut state, self.number);
        if was_woken && self.wants == Wants::Message && state.session.table.has_ready() {
            // It was woken for a message that it did not take, or further messages came since.
            state.session.sleepers.wake_one(Wants::Message);
        }
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

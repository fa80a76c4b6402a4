//! Coming back to a new daemon when the old one is gone.
//!
//! Registering waits for an answer of the daemon, and between attempts. So a thread does it, which is there
//! only while the daemon is away. Whoever waits for a message meanwhile waits for this thread.

use super::Life;
use crate::receive::error::{ReceiveError, RegisterError};
use crate::receive::session::{RegisterOptions, Session};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Begins a life.
fn live(session: Session) -> io::Result<Life> {
    let spin_max = session.spin.get().max();
    Life::new(session, spin_max)
}

/// A registration, through one life after the other.
pub(super) struct Registration {
    /// How to register again. None: the session does not come back.
    options: Option<RegisterOptions>,
    state: Mutex<State>,
    /// Tells threads that a return has ended.
    ended: Condvar,
}

struct State {
    life: Arc<Life>,
    begun: Instant,
    /// Whether a thread tries to come back.
    returns: bool,
    /// Number of returns that failed.
    failures: u64,
    /// Why the last one failed.
    failure: Option<Arc<RegisterError>>,
    /// Whether nobody has heard of that yet.
    is_untold: bool,
    /// Tasks that wait for the return.
    wakers: Vec<Waker>,
}

/// A life, as it was found when somebody began to look or to wait.
#[derive(Clone)]
pub(super) struct Found {
    pub life: Arc<Life>,
    /// Number of returns that had failed by then. Who began before a failure hears of it.
    failures: u64,
}

/// What became of a return.
pub(super) enum Outcome {
    /// There is a new life.
    Back,
    /// The thread still tries.
    Pending,
}

impl Registration {
    pub(super) fn new(session: Session, options: Option<RegisterOptions>) -> io::Result<Self> {
        Ok(Self {
            options: options.filter(|options| !options.reconnect_for.is_zero()),
            state: Mutex::new(State {
                life: Arc::new(live(session)?),
                begun: Instant::now(),
                returns: false,
                failures: 0,
                failure: None,
                is_untold: false,
                wakers: Vec::new(),
            }),
            ended: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing here panics while it changes the state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present life.
    #[inline]
    pub(super) fn find(&self) -> Found {
        let state = self.lock();
        Found { life: Arc::clone(&state.life), failures: state.failures }
    }

    /// Begins to come back from a life, if its error is a reason to.
    ///
    /// # Errors
    /// The error, where it is none, or the session does not come back. [`ReceiveError::NotBack`], where a
    /// return has failed since, or nobody heard yet that it failed.
    pub(super) fn leave(self: &Arc<Self>, found: &Found, error: ReceiveError) -> Result<(), ReceiveError> {
        let Some(options) = self.options.as_ref().filter(|_| error.is_of_the_daemon()) else {
            return Err(error);
        };
        let mut state = self.lock();
        if matches!(state.outcome(found)?, Outcome::Back) || state.returns {
            return Ok(());
        }
        if let Some(failure) = state.failure.clone().filter(|_| std::mem::take(&mut state.is_untold)) {
            return Err(ReceiveError::NotBack(failure));
        }
        // Lives that end as soon as they begin do not follow each other without a pause.
        let is_at_once = state.begun.elapsed() > options.backoff.max;
        let (options, registration) = (options.clone(), Arc::downgrade(self));
        let thread = std::thread::Builder::new().name("jet-return".into());
        thread.spawn(move || come_back(&options, &registration, is_at_once)).map_err(ReceiveError::Wait)?;
        state.returns = true;
        Ok(())
    }

    /// Looks whether the return from a life has ended. If it has not, `waker` is woken when it has.
    ///
    /// # Errors
    /// [`ReceiveError::NotBack`].
    #[cfg(feature = "tokio")]
    pub(super) fn poll(&self, found: &Found, waker: &Waker) -> Result<Outcome, ReceiveError> {
        let mut state = self.lock();
        let outcome = state.outcome(found)?;
        if matches!(outcome, Outcome::Pending) && !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        Ok(outcome)
    }

    /// Waits until the return from a life has ended, or until the deadline.
    ///
    /// # Errors
    /// [`ReceiveError::NotBack`].
    pub(super) fn wait(&self, found: &Found, deadline: Option<Instant>) -> Result<Outcome, ReceiveError> {
        let mut state = self.lock();
        loop {
            let outcome = state.outcome(found)?;
            let span = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if matches!(outcome, Outcome::Back) || span == Some(Duration::ZERO) {
                return Ok(outcome);
            }
            state = match span {
                None => self.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(span) => self.ended.wait_timeout(state, span).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    fn end(&self, end: Result<Life, RegisterError>) {
        let wakers = {
            let mut state = self.lock();
            state.returns = false;
            match end {
                Ok(life) => (state.life, state.begun) = (Arc::new(life), Instant::now()),
                Err(error) => {
                    state.failures += 1;
                    state.failure = Some(Arc::new(error));
                    state.is_untold = true;
                }
            }
            std::mem::take(&mut state.wakers)
        };
        self.ended.notify_all();
        for waker in wakers {
            waker.wake();
        }
    }
}

impl State {
    fn outcome(&mut self, found: &Found) -> Result<Outcome, ReceiveError> {
        if !Arc::ptr_eq(&self.life, &found.life) {
            return Ok(Outcome::Back);
        }
        match &self.failure {
            Some(failure) if self.failures > found.failures => {
                self.is_untold = false;
                Err(ReceiveError::NotBack(Arc::clone(failure)))
            }
            _ => Ok(Outcome::Pending),
        }
    }
}

/// Registers again, as a thread of its own: until it succeeds, its time is over, or nobody wants it any more.
/// The first attempt is made at once, or after a wait.
fn come_back(options: &RegisterOptions, registration: &Weak<Registration>, is_at_once: bool) {
    let deadline = Instant::now().checked_add(options.reconnect_for);
    // The address differs from process to process, so applications do not all come back at the same moments.
    let seed = std::ptr::from_ref(options) as u64 ^ u64::from(std::process::id());
    let _ends = EndsOnPanic(registration);
    for attempt in u32::from(!is_at_once).. {
        if attempt > 0 {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let wait = options.backoff.wait(attempt, seed);
            std::thread::sleep(left.map_or(wait, |left| left.min(wait)));
        }
        if registration.strong_count() == 0 {
            return;
        }
        let registered = Session::register(options).and_then(|session| Ok(live(session)?));
        let Some(registration) = registration.upgrade() else { return };
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match registered {
            Err(error) if error.is_passing() && left != Some(Duration::ZERO) => {}
            end => return registration.end(end),
        }
    }
}

/// Tells those who wait where the thread that registers panics.
struct EndsOnPanic<'r>(&'r Weak<Registration>);

impl Drop for EndsOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(registration) = self.0.upgrade()
        {
            registration.end(Err(io::Error::other("a bug in Jet's client library").into()));
        }
    }
}

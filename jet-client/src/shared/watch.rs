//! The watches for a shared end's descriptor, on behalf of all tasks that wait: one by each runtime whose
//! tasks wait.
//!
//! What the runtime calls when the descriptor is readable is not a task, but the end itself. So it depends on
//! no task whether the others are woken: a task may be left unpolled for long. A task that was woken and is
//! not polled keeps what it was woken for, though, until it is polled or dropped.

use super::End;
use super::hub::{Hub, State};
use crate::timer::Timer;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::runtime::{Handle, Id};
use tokio::task::unconstrained;

pub(crate) struct Watch {
    /// The runtime that watches.
    runtime: Id,
    /// Number of waits of its tasks. The watch ends with the last one: a runtime without them may not run.
    waits: usize,
    /// The end's descriptor, and the number of the original.
    end: AsyncFd<Arc<OwnedFd>>,
    original: u32,
    /// Time by which it looks, if nothing comes, as [`End::due_ns`] says it.
    due_ns: Option<u64>,
    /// The timer for that, where the end has such times.
    timer: Option<(Timer, AsyncFd<Arc<OwnedFd>>)>,
    waker: Waker,
}

/// Has the present runtime watch for a wait, which is for `watched` so far. Returns `true` where a watch
/// began: something may have been found meanwhile.
///
/// # Errors
/// There is no runtime, or no descriptor is left.
pub(super) fn join<E: End>(
    state: &mut State<E>,
    hub: &Arc<Hub<E>>,
    watched: &mut Option<Id>,
) -> io::Result<bool> {
    let runtime = Handle::try_current().map_err(io::Error::other)?.id();
    if *watched != Some(runtime) {
        leave(state, watched.take());
    }
    let (descriptor, original) = state.descriptor()?;
    let known = state.watches.iter().position(|watch| watch.runtime == runtime);
    let begins = known.is_none_or(|at| state.watches[at].original != original);
    match known {
        Some(at) if begins => {
            state.watches[at].end = register(descriptor)?;
            state.watches[at].original = original;
        }
        Some(_) => {}
        None => {
            let end = register(descriptor)?;
            let timer = if E::HAS_TIMES {
                let timer = Timer::new()?;
                let watched = register(timer.descriptor())?;
                Some((timer, watched))
            } else {
                None
            };
            let waker = Waker::from(Arc::new(OnReady { hub: Arc::downgrade(hub), runtime }));
            state.watches.push(Watch { runtime, waits: 0, end, original, due_ns: None, timer, waker });
        }
    }
    if watched.replace(runtime).is_none()
        && let Some(watch) = state.watches.iter_mut().find(|watch| watch.runtime == runtime)
    {
        watch.waits += 1;
    }
    if begins {
        state.look_at_watch(runtime)?;
    }
    Ok(begins)
}

/// Ends the watch by a runtime with the last wait of its tasks.
pub(super) fn leave<E: End>(state: &mut State<E>, watched: Option<Id>) {
    let Some(at) = state.watches.iter().position(|watch| Some(watch.runtime) == watched) else { return };
    state.watches[at].waits = state.watches[at].waits.saturating_sub(1);
    if state.watches[at].waits == 0 {
        state.watches.swap_remove(at);
    }
}

/// Arranges with all watches that they look at this time.
pub(super) fn arrange<E: End>(state: &mut State<E>, due_ns: Option<u64>) {
    let State { end, watches, .. } = state;
    for watch in watches.iter_mut().filter(|watch| watch.due_ns != due_ns) {
        // A timer that cannot be set looks as soon as it can.
        let span = due_ns.map(|due_ns| end.until(due_ns));
        let is_set = watch.timer.as_ref().is_none_or(|(timer, _)| timer.set(span).is_ok());
        if is_set {
            watch.due_ns = due_ns;
        }
    }
}

fn register(fd: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: the registration has its share of the descriptor, which is open until the registration ends.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// Polls a descriptor, outside of the task's budget: where that is used up the runtime would call the waker
/// at once, which locks the hub, and the hub is locked.
fn poll_ready<'f>(
    fd: &'f AsyncFd<Arc<OwnedFd>>,
    waker: &Waker,
) -> Poll<io::Result<AsyncFdReadyGuard<'f, Arc<OwnedFd>>>> {
    let poll = std::future::poll_fn(|context| fd.poll_read_ready(context));
    pin!(unconstrained(poll)).poll(&mut Context::from_waker(waker))
}

impl<E: End> State<E> {
    /// Handles what the descriptor and the timer have, and has the runtime report what comes next.
    fn look_at_watch(&mut self, runtime: Id) -> io::Result<()> {
        let Self { end, watches, .. } = self;
        let Some(watch) = watches.iter_mut().find(|watch| watch.runtime == runtime) else { return Ok(()) };
        // An epoll descriptor, an eventfd, a socket's and a timer's descriptor can all be made unreadable, so
        // this ends.
        loop {
            let end_ready = poll_ready(&watch.end, &watch.waker);
            let timer = watch.timer.as_ref();
            let timer_ready = timer.map_or(Poll::Pending, |(_, watched)| poll_ready(watched, &watch.waker));
            if end_ready.is_pending() && timer_ready.is_pending() {
                return Ok(());
            }
            if let (Some((timer, _)), Poll::Ready(_)) = (timer, &timer_ready) {
                timer.clear();
                watch.due_ns = None;
            }
            // That the end is over is told to everybody who waits.
            let _ = end.settle();
            for ready in [end_ready, timer_ready] {
                if let Poll::Ready(ready) = ready {
                    ready?.clear_ready();
                }
            }
        }
    }
}

struct OnReady<E: End> {
    hub: Weak<Hub<E>>,
    runtime: Id,
}

impl<E: End> Wake for OnReady<E> {
    fn wake(self: Arc<Self>) {
        let Some(hub) = self.hub.upgrade() else { return };
        let mut state = hub.lock();
        if state.look_at_watch(self.runtime).is_err() {
            // The runtime ended, or the system refuses. Those who wait look themselves.
            state.watches.retain(|watch| watch.runtime != self.runtime);
            state.end.sleepers().wake_all();
        }
    }
}

//! The watch for a shared end's descriptor, on behalf of all tasks that wait.
//!
//! What the runtime calls when the descriptor is readable is not a task, but the end itself. So it depends on
//! no task whether the others are woken: a task may be left unpolled for long.

use super::End;
use super::hub::{Hub, State};
use crate::timer::Timer;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub(crate) struct Watch {
    /// Number of the wait whose runtime watches. The watch ends with it: its runtime may not run any longer.
    owner: u64,
    /// The end's descriptor, and the number of the original.
    end: AsyncFd<Arc<OwnedFd>>,
    original: u32,
    /// The timer for an end that has something to do at a time.
    timer: Option<(Timer, AsyncFd<Arc<OwnedFd>>)>,
    waker: Waker,
}

/// Makes a watch by the present runtime, if there is none. Returns `true` where it made one: something may
/// have been found meanwhile.
pub(super) fn ensure<E: End>(state: &mut State<E>, hub: &Arc<Hub<E>>, owner: u64) -> io::Result<bool> {
    let (descriptor, original) = state.descriptor()?;
    if state.watch.as_ref().is_some_and(|watch| watch.original == original) {
        return Ok(false);
    }
    state.watch = None;
    let end = register(descriptor)?;
    let waker = Waker::from(Arc::new(OnReady(Arc::downgrade(hub))));
    state.watch = Some(Watch { owner, end, original, timer: None, waker });
    state.look_at_watch()?;
    Ok(true)
}

/// Has the end settled after `at_most`, if nothing happens before.
pub(super) fn set_timer<E: End>(state: &mut State<E>, at_most: Option<Duration>) -> io::Result<()> {
    let Some(watch) = &mut state.watch else { return Ok(()) };
    match (&mut watch.timer, at_most) {
        (None, None) => return Ok(()),
        (Some((timer, _)), _) => timer.set(at_most)?,
        (None, Some(_)) => {
            let timer = Timer::new()?;
            timer.set(at_most)?;
            let watched = register(timer.descriptor())?;
            watch.timer = Some((timer, watched));
        }
    }
    let Some((_, watched)) = &watch.timer else { return Ok(()) };
    // Has the runtime report when it is over; if it is over already, the waker is called at once.
    if watched.poll_read_ready(&mut Context::from_waker(&watch.waker)).is_ready() {
        watch.waker.wake_by_ref();
    }
    Ok(())
}

fn register(fd: Arc<OwnedFd>) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: the registration has its share of the descriptor, which is open until the registration ends.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// Ends the watch where its owner leaves. The tasks that wait are woken, and the first of them watches.
pub(super) fn leave<E: End>(state: &mut State<E>, number: u64) {
    if state.watch.take_if(|watch| watch.owner == number).is_some() {
        state.end.sleepers().wake_tasks();
    }
}

impl<E: End> State<E> {
    /// Handles what the descriptor and the timer have, and has the runtime report what comes next.
    fn look_at_watch(&mut self) -> io::Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let mut context = Context::from_waker(&watch.waker);
        while let Poll::Ready(ready) = watch.end.poll_read_ready(&mut context) {
            let mut ready = ready?;
            // That the end is over is told to everybody who waits.
            let _ = self.end.settle();
            ready.clear_ready();
        }
        let Some((timer, watched)) = &watch.timer else { return Ok(()) };
        while let Poll::Ready(ready) = watched.poll_read_ready(&mut context) {
            let mut ready = ready?;
            timer.clear();
            let _ = self.end.settle();
            ready.clear_ready();
        }
        Ok(())
    }
}

struct OnReady<E: End>(Weak<Hub<E>>);

impl<E: End> Wake for OnReady<E> {
    fn wake(self: Arc<Self>) {
        let Some(hub) = self.0.upgrade() else { return };
        let mut state = hub.lock();
        if state.look_at_watch().is_err() {
            // The runtime ended. Those who wait in another one watch there.
            state.watch = None;
            state.end.sleepers().wake_tasks();
        }
    }
}

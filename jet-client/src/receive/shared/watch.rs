//! The watch for a session's descriptor, on behalf of all tasks that wait.
//!
//! What the runtime calls when the descriptor is readable is not a task, but the session itself. So it
//! depends on no task whether the others are woken: a task may be left unpolled for long.

use super::life::{Life, State};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub(super) struct Watch {
    /// Number of the wait whose runtime watches. The watch ends with it: its runtime may not run any longer.
    owner: u64,
    fd: AsyncFd<OwnedFd>,
    waker: Waker,
}

/// Makes a watch by the present runtime, if there is none. Returns `true` where it made one: deliveries may
/// have been read meanwhile.
pub(super) fn ensure(state: &mut State, life: &Arc<Life>, owner: u64) -> io::Result<bool> {
    if state.watch.is_some() {
        return Ok(false);
    }
    let fd = life.clone_fd()?;
    // SAFETY: the descriptor is the watch's own, and open until the registration ends.
    let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
    let waker = Waker::from(Arc::new(OnReady(Arc::downgrade(life))));
    state.watch = Some(Watch { owner, fd, waker });
    state.look_at_watch()?;
    Ok(true)
}

/// Ends the watch where its owner leaves. The tasks that wait are woken, and the first of them watches.
pub(super) fn leave(state: &mut State, number: u64) {
    if state.watch.take_if(|watch| watch.owner == number).is_some() {
        state.session.sleepers.wake_tasks();
    }
}

impl State {
    /// Handles what the descriptor has, and has the runtime report what comes next.
    fn look_at_watch(&mut self) -> io::Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let mut context = Context::from_waker(&watch.waker);
        while let Poll::Ready(ready) = watch.fd.poll_read_ready(&mut context) {
            let mut ready = ready?;
            // A fault is kept in the session's health, and everybody is woken.
            let _ = self.session.settle();
            ready.clear_ready();
        }
        Ok(())
    }
}

struct OnReady(Weak<Life>);

impl Wake for OnReady {
    fn wake(self: Arc<Self>) {
        let Some(life) = self.0.upgrade() else { return };
        let mut state = life.lock();
        if state.look_at_watch().is_err() {
            // The runtime ended. Those who wait in another one watch there.
            state.watch = None;
            state.session.sleepers.wake_tasks();
        }
    }
}

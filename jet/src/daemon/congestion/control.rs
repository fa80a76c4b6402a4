//! The owner of the actuators: a thread of its own, which carries out the reactor's newest wish.

use super::keeper::{Keeper, Rows};
use super::pace::{Pace, Step};
use super::{Congestion, CongestionConfig, JournalError};
use jet_control::status::ActuatorStatus;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

struct Shared {
    /// What the reactor wants.
    wish: AtomicBool,
    /// The end: restore, and nothing after that.
    stop: AtomicBool,
    rows: Rows,
}

/// Congestion control of the host's NIC. Dropped or [`shutdown`](Self::shutdown), it has restored all that it
/// lowered.
pub struct CongestionControl {
    shared: Arc<Shared>,
    thread: Thread,
    running: Mutex<Option<JoinHandle<()>>>,
}

/// Why there is no congestion control. An actuator that cannot be used is no reason: its row says why.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What an earlier daemon changed is not known.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// There can be no thread.
    #[error("cannot start the thread of congestion control: {0}")]
    Thread(io::Error),
}

/// The reactor's end: says what it wants, and goes on at once.
#[derive(Clone)]
pub struct Mark {
    shared: Arc<Shared>,
    thread: Thread,
}

/// The status' end: how the actuators stand. It keeps nothing alive.
#[derive(Clone)]
pub struct CongestionView {
    shared: Arc<Shared>,
}

impl CongestionControl {
    /// Undoes what an earlier daemon with this control socket left, probes what the configuration names, and
    /// starts the thread. To be called once the control socket is ours, before the reactor starts. Where
    /// tools hang, it takes some times `tool_timeout_ms`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(config: &CongestionConfig, control_socket: &Path) -> Result<Self, StartError> {
        Self::start_with(config, control_socket, Vec::new())
    }

    /// The same with further actuators, which come after the configured ones.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_with(
        config: &CongestionConfig,
        control_socket: &Path,
        others: Vec<Box<dyn Congestion>>,
    ) -> Result<Self, StartError> {
        let (keeper, recovery) = Keeper::open(config, control_socket, others)?;
        if recovery.found > 0 {
            tracing::warn!(
                "congestion: an earlier daemon left {} settings of the NIC lowered; {} of them are dealt \
                 with",
                recovery.found,
                recovery.found - recovery.pending.len()
            );
        }
        tell(&recovery.notes);
        let shared = Arc::new(Shared {
            wish: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            rows: Mutex::new(Vec::new()),
        });
        keeper.publish(&shared.rows);
        let pace = Pace::new(Duration::from_millis(config.hold_ms));
        let theirs = Arc::clone(&shared);
        let handle = std::thread::Builder::new()
            .name("jet-congestion".into())
            .spawn(move || carry_out(&theirs, keeper, pace))
            .map_err(StartError::Thread)?;
        Ok(Self { shared, thread: handle.thread().clone(), running: Mutex::new(Some(handle)) })
    }

    /// What the reactor holds.
    pub fn mark(&self) -> Mark {
        Mark { shared: Arc::clone(&self.shared), thread: self.thread.clone() }
    }

    /// What the status holds.
    pub fn view(&self) -> CongestionView {
        CongestionView { shared: Arc::clone(&self.shared) }
    }

    /// How the actuators stand now.
    pub fn rows(&self) -> Vec<ActuatorStatus> {
        self.view().rows()
    }

    /// Restores all and ends the thread; does nothing when it was done before. Takes as long as restoring:
    /// with a tool that hangs, some times `tool_timeout_ms`. What cannot be restored stays in the journal for
    /// the next start.
    pub fn shutdown(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(handle) = running else { return };
        self.shared.stop.store(true, Ordering::Release);
        handle.thread().unpark();
        if handle.join().is_err() {
            tracing::warn!("congestion: the thread stopped unexpectedly; the next start restores the NIC");
        }
    }
}

impl Drop for CongestionControl {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl CongestionView {
    /// One row an actuator, `soft` first. For the control plane, not the reactor: it takes a lock and
    /// allocates.
    pub fn rows(&self) -> Vec<ActuatorStatus> {
        self.shared.rows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Mark {
    /// Wants congestion signalled (`true`) or no more. Lock-free and without allocation; a system call only
    /// where the wish is new and the thread sleeps.
    #[inline]
    pub fn set(&self, on: bool) {
        // Only the reactor writes it, so that what it reads is its own last word.
        if self.shared.wish.load(Ordering::Relaxed) != on {
            self.shared.wish.store(on, Ordering::Release);
            self.thread.unpark();
        }
    }
}

fn carry_out(shared: &Shared, mut keeper: Keeper, mut pace: Pace) {
    let mut notes = Vec::new();
    loop {
        if shared.stop.load(Ordering::Acquire) {
            // No hold time at the end; and whatever failed before gets its last try.
            keeper.restore(&mut notes);
            keeper.publish(&shared.rows);
            tell(&notes);
            return;
        }
        let wish = shared.wish.load(Ordering::Acquire);
        // A wish or the end that comes after these two loads has unparked us: parking returns at once.
        match pace.step(Instant::now(), wish, keeper.has_pending()) {
            Step::Rest => std::thread::park(),
            Step::Wait(left) => std::thread::park_timeout(left),
            Step::Apply(on) => {
                if on {
                    keeper.lower(&mut notes);
                } else {
                    keeper.restore(&mut notes);
                }
                pace.applied(Instant::now(), on);
                keeper.publish(&shared.rows);
                tell(&notes);
                notes.clear();
            }
        }
    }
}

fn tell(notes: &[String]) {
    for note in notes {
        tracing::warn!("congestion: {note}");
    }
}

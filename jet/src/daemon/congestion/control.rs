//! The thread that owns the actuators, and carries out the reactor's newest wish.

use super::keeper::{ActuatorKeeper, Rows};
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
    /// Wish of the reactor: `true` if the NIC's settings are to be lowered.
    wish: AtomicBool,
    /// Request to restore all lowered settings and to end the thread.
    stop: AtomicBool,
    rows: Rows,
}

/// Congestion control of the host's NIC. Dropping this value, or [`shutdown`](Self::shutdown), restores all
/// settings that were lowered.
pub struct CongestionControl {
    shared: Arc<Shared>,
    thread: Thread,
    running: Mutex<Option<JoinHandle<()>>>,
}

/// Reason why congestion control does not start. An unusable actuator does not prevent the start: the
/// actuator's row in the status says why it cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal of an earlier daemon cannot be read, so its changes are unknown.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The system cannot start the thread of congestion control.
    #[error("cannot start the thread of congestion control: {0}")]
    Thread(io::Error),
}

/// The reactor's handle to congestion control: sets the reactor's wish without waiting for the thread that
/// carries it out.
#[derive(Clone)]
pub struct WishHandle {
    shared: Arc<Shared>,
    thread: Thread,
}

/// The status's handle to congestion control: reads the state of the actuators. The handle does not keep the
/// thread of congestion control running.
#[derive(Clone)]
pub struct CongestionView {
    shared: Arc<Shared>,
}

impl CongestionControl {
    /// Restores settings of the NIC that an earlier daemon with this control socket left lowered, probes the
    /// configured actuators, and starts the thread of congestion control.
    ///
    /// The daemon calls this function once it owns the control socket, and before the reactor starts. If
    /// external tools hang, the call takes several times `tool_timeout_ms`.
    ///
    /// # Errors
    /// Returns [`StartError`] if the journal cannot be read, or the thread cannot be started.
    pub fn start(config: &CongestionConfig, control_socket: &Path) -> Result<Self, StartError> {
        Self::start_with(config, control_socket, Vec::new())
    }

    /// Starts like [`Self::start`], with further actuators after the configured ones.
    ///
    /// # Errors
    /// Returns [`StartError`] if the journal cannot be read, or the thread cannot be started.
    pub fn start_with(
        config: &CongestionConfig,
        control_socket: &Path,
        others: Vec<Box<dyn Congestion>>,
    ) -> Result<Self, StartError> {
        let (keeper, recovery) = ActuatorKeeper::open(config, control_socket, others)?;
        if recovery.found > 0 {
            tracing::warn!(
                "congestion: an earlier daemon left {} settings of the NIC lowered; {} of them are dealt \
                 with",
                recovery.found,
                recovery.found - recovery.pending.len()
            );
        }
        log_notes(&recovery.notes);
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

    /// Returns a handle by which the reactor sets its wish.
    pub fn wish_handle(&self) -> WishHandle {
        WishHandle { shared: Arc::clone(&self.shared), thread: self.thread.clone() }
    }

    /// Returns a handle by which the status reads the state of the actuators.
    pub fn view(&self) -> CongestionView {
        CongestionView { shared: Arc::clone(&self.shared) }
    }

    /// Returns one row of the status for each actuator, with its present state.
    pub fn rows(&self) -> Vec<ActuatorStatus> {
        self.view().rows()
    }

    /// Restores all lowered settings and ends the thread; a second call does nothing. The call takes as long
    /// as restoring takes: several times `tool_timeout_ms` if a tool hangs. Settings that cannot be restored
    /// stay in the journal for the next start.
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
    /// Returns one row of the status for each actuator, `soft` first. The reactor must not call this
    /// function, because it takes a lock and allocates.
    pub fn rows(&self) -> Vec<ActuatorStatus> {
        self.shared.rows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl WishHandle {
    /// Sets the wish: `true` to signal congestion, `false` to stop. Takes no lock and allocates nothing.
    /// Makes a system call only if the wish is new and the thread of congestion control sleeps.
    #[inline]
    pub fn set(&self, on: bool) {
        // Only the reactor writes the wish, so it reads its own last value.
        if self.shared.wish.load(Ordering::Relaxed) != on {
            self.shared.wish.store(on, Ordering::Release);
            self.thread.unpark();
        }
    }
}

fn carry_out(shared: &Shared, mut keeper: ActuatorKeeper, mut pace: Pace) {
    let mut notes = Vec::new();
    loop {
        if shared.stop.load(Ordering::Acquire) {
            // At the end the hold time does not apply, and settings that could not be restored get a last
            // try.
            keeper.restore(&mut notes);
            keeper.publish(&shared.rows);
            log_notes(&notes);
            return;
        }
        let wish = shared.wish.load(Ordering::Acquire);
        // A wish or a stop that is stored after these two loads also unparks this thread, so parking returns
        // at once.
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
                log_notes(&notes);
                notes.clear();
            }
        }
    }
}

fn log_notes(notes: &[String]) {
    for note in notes {
        // A note about an actuator begins with its name: the notes of each are limited on their own.
        let actuator = note.split(':').next();
        tracing::warn!(kind = actuator, "congestion: {note}");
    }
}

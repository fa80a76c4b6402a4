//! The thread that keeps the pool warm, started beside everything else: its calibration takes a moment.

use super::status::readings;
use jet_cat::residency::{PaceOptions, Region, WarmerOptions, WarmerThread};
use jet_control::status::WarmerStatus;
use jet_fabric::memory::SharedMemory;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How far it is.
#[derive(Default)]
enum State {
    #[default]
    Off,
    Calibrating,
    Running(WarmerThread),
    Failed(String),
}

/// The warmer of a pool.
#[derive(Default)]
pub(super) struct Warm {
    state: Arc<Mutex<State>>,
    /// Dropped, it ends the thread that waits to try again.
    stop: Mutex<Option<Sender<()>>>,
}

/// Between two attempts, the first and the longest: on a host that is busy at the moment hits cannot be told
/// from memory.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Warm {
    pub fn start(&self, pool: &Arc<SharedMemory>, budget_permille: u32, cpu: Option<usize>) {
        let (pool, state) = (Arc::clone(pool), Arc::clone(&self.state));
        let (stop, stopped) = channel();
        *locked(&self.stop) = Some(stop);
        *locked(&state) = State::Calibrating;
        let begin = move || {
            let mut pause = RETRY_FIRST;
            let mut told = false;
            loop {
                match begin(&pool, budget_permille, cpu) {
                    // The daemon may have ended meanwhile; the warmer then ends with what it is put into.
                    Ok(thread) => {
                        *locked(&state) = State::Running(thread);
                        return;
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut told, true) {
                            tracing::warn!("the pool is not kept warm, and not measured, for now: {error}");
                        }
                        *locked(&state) = State::Failed(error);
                    }
                }
                if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                pause = (pause * 2).min(RETRY_MAX);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("jet-warm-start".to_owned()).spawn(begin) {
            *locked(&self.state) = State::Failed(error.to_string());
        }
    }

    pub fn status(&self) -> WarmerStatus {
        match &*locked(&self.state) {
            State::Off => WarmerStatus::Off,
            State::Calibrating => WarmerStatus::Calibrating,
            State::Running(thread) => WarmerStatus::Running(readings(thread.readings())),
            State::Failed(error) => WarmerStatus::Failed { error: error.clone() },
        }
    }
}

fn begin(pool: &Arc<SharedMemory>, budget_permille: u32, cpu: Option<usize>) -> Result<WarmerThread, String> {
    let keep: Arc<dyn std::any::Any + Send + Sync> = Arc::<SharedMemory>::clone(pool);
    // SAFETY: the mapping lives as long as the memory, which is kept; it is sealed against shrinking, and
    // stays readable.
    let region =
        unsafe { Region::new(pool.base(), pool.bytes(), keep) }.map_err(|error| error.to_string())?;
    let pace = PaceOptions { budget_permille, ..PaceOptions::default() };
    let options = WarmerOptions { pace, cpu, ..WarmerOptions::default() };
    WarmerThread::start(region, options).map_err(|error| error.to_string())
}

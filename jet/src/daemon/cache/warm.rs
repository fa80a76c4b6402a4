//! Starting the warmer, the thread that keeps the pool in the cache. A separate thread starts the warmer,
//! since the warmer's calibration takes a moment.

use super::status::readings;
use crate::backoff::Backoff;
use jet_cat::residency::{PaceOptions, Region, WarmerOptions, WarmerThread};
use jet_control::status::WarmerStatus;
use jet_fabric::memory::SharedMemory;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// State of the warmer.
enum State {
    Off,
    Calibrating,
    Running(WarmerThread),
    Failed(String),
}

/// The warmer of a pool.
pub(super) struct Warm {
    state: Arc<Mutex<State>>,
    /// Channel whose drop ends the thread that tries to start the warmer.
    stop: Mutex<Option<Sender<()>>>,
}

/// First pause between two attempts to start the warmer; the longest is [`RETRY_MAX`]. An attempt fails while
/// cache hits cannot be told from memory by their time, as on a busy host.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Warm {
    /// Creates the warmer, which [`Self::start`] starts if it is `wanted`.
    pub fn new(wanted: bool) -> Self {
        let state = if wanted { State::Calibrating } else { State::Off };
        Self { state: Arc::new(Mutex::new(state)), stop: Mutex::default() }
    }

    pub fn start(&self, pool: &Arc<SharedMemory>, budget_permille: u32, cpu: Option<usize>) {
        let (pool, state) = (Arc::clone(pool), Arc::clone(&self.state));
        let (stop, stopped) = channel();
        *locked(&self.stop) = Some(stop);
        let begin = move || {
            let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
            let mut told = false;
            loop {
                match begin(&pool, budget_permille, cpu) {
                    // If the daemon has ended meanwhile, dropping the state ends the warmer.
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
                if stopped.recv_timeout(backoff.next_wait()) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
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
    // SAFETY: the mapping lives as long as `SharedMemory`, which `keep` holds. The memory is sealed against
    // shrinking, and stays readable.
    let region =
        unsafe { Region::new(pool.base(), pool.bytes(), keep) }.map_err(|error| error.to_string())?;
    let pace = PaceOptions { budget_permille, ..PaceOptions::default() };
    let options = WarmerOptions { pace, cpu, ..WarmerOptions::default() };
    WarmerThread::start(region, options).map_err(|error| error.to_string())
}

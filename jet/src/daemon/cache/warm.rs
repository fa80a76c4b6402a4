//! The thread that keeps the pool warm, started beside everything else: its calibration takes a moment.

use super::status::WarmerStatus;
use jet_cat::residency::{PaceOptions, Region, WarmerOptions, WarmerThread};
use jet_fabric::memory::SharedMemory;
use std::sync::{Arc, Mutex, PoisonError};

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
}

impl Warm {
    pub fn start(&self, pool: &Arc<SharedMemory>, budget_permille: u32, cpu: Option<usize>) {
        let (pool, state) = (Arc::clone(pool), Arc::clone(&self.state));
        *state.lock().unwrap_or_else(PoisonError::into_inner) = State::Calibrating;
        let begin = {
            let state = Arc::clone(&state);
            move || {
                let found = match begin(&pool, budget_permille, cpu) {
                    Ok(thread) => State::Running(thread),
                    Err(error) => {
                        eprintln!("jetd: the pool is not kept warm, and not measured: {error}");
                        State::Failed(error)
                    }
                };
                // The daemon may have ended meanwhile; the thread then ends with what it is put into.
                *state.lock().unwrap_or_else(PoisonError::into_inner) = found;
            }
        };
        if let Err(error) = std::thread::Builder::new().name("jet-warm-start".to_owned()).spawn(begin) {
            *state.lock().unwrap_or_else(PoisonError::into_inner) = State::Failed(error.to_string());
        }
    }

    pub fn status(&self) -> WarmerStatus {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Off => WarmerStatus::Off,
            State::Calibrating => WarmerStatus::Calibrating,
            State::Running(thread) => WarmerStatus::Running { readings: thread.readings() },
            State::Failed(error) => WarmerStatus::Failed { error: error.clone() },
        }
    }
}

fn begin(pool: &Arc<SharedMemory>, budget_permille: u32, cpu: Option<usize>) -> Result<WarmerThread, String> {
    let keep: Arc<dyn std::any::Any + Send + Sync> = Arc::<SharedMemory>::clone(pool);
    // SAFETY: the mapping lives as long as the memory, which is kept; it is sealed against shrinking, and stays readable.
    let region =
        unsafe { Region::new(pool.base(), pool.bytes(), keep) }.map_err(|error| error.to_string())?;
    let pace = PaceOptions { budget_permille, ..PaceOptions::default() };
    let options = WarmerOptions { pace, cpu, ..WarmerOptions::default() };
    WarmerThread::start(region, options).map_err(|error| error.to_string())
}

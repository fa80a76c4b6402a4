//! The pool's place in the last-level cache: reserving ways for it, keeping it warm, and telling whether it is there.

mod config;
mod status;
mod warm;

pub use config::{CacheConfig, CacheConfigError, Reserve};
pub use status::{CacheDomainStatus, CacheStatus, WarmerStatus};

use jet_cat::resctrl::{GroupName, OpenError, Resctrl};
use jet_cat::reservation::{Reservation, ReserveError, ThreadError};
use jet_cat::topology::TopologyError;
use jet_fabric::memory::SharedMemory;
use status::Bandwidth;
use std::sync::{Arc, Mutex, PoisonError};
use warm::Warm;

/// Why no cache is reserved.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// There is no resctrl.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The caches cannot be told.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// It cannot be done.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// The section `[cache]`.
    #[error(transparent)]
    Config(#[from] CacheConfigError),
    /// This process's threads cannot join.
    #[error("cache is reserved, but the daemon's threads cannot use it: {0}")]
    Thread(#[from] ThreadError),
}

/// What the daemon does about the cache. Dropped, it puts everything back.
pub struct CacheControl {
    config: CacheConfig,
    reservation: Option<Reservation>,
    /// Why there is no reservation, where one was wished for.
    reason: Option<String>,
    warm: Warm,
    bandwidth: Mutex<Bandwidth>,
}

impl CacheControl {
    /// Reserves what the configuration asks for, for a pool near a NUMA node.
    ///
    /// # Errors
    /// [`CacheError`], where a reservation is required. Else it is said, and the daemon goes on without.
    pub fn start(config: &CacheConfig, pool_bytes: u64, numa_node: Option<u32>) -> Result<Self, CacheError> {
        let mut control = Self {
            config: config.clone(),
            reservation: None,
            reason: None,
            warm: Warm::default(),
            bandwidth: Mutex::default(),
        };
        let resctrl = Resctrl::find();
        if let Ok(resctrl) = &resctrl {
            recover(resctrl, config);
        }
        if config.reserve == Reserve::Off {
            return Ok(control);
        }
        let reserved = reserve(config, resctrl, pool_bytes, numa_node).and_then(|reservation| {
            // That its threads can join is tried before anything rests on it.
            reservation.add_thread(own_thread())?;
            leave(&reservation);
            Ok(reservation)
        });
        match reserved {
            Ok(reservation) => {
                eprint!("jetd: cache reserved: {}", reservation.plan());
                control.reservation = Some(reservation);
            }
            Err(error) if config.reserve == Reserve::Require => return Err(error),
            Err(error) => {
                eprintln!("jetd: no cache is reserved: {error}");
                control.reason = Some(error.to_string());
            }
        }
        Ok(control)
    }

    /// Threads that this makes are in the reservation's class: they inherit it from the one that makes them.
    pub fn inside<T>(&self, make: impl FnOnce() -> T) -> T {
        let Some(reservation) = &self.reservation else { return make() };
        if let Err(error) = reservation.add_thread(own_thread()) {
            eprintln!("jetd: threads are not in the reserved cache's class: {error}");
            return make();
        }
        let made = make();
        leave(reservation);
        made
    }

    /// Starts to warm the pool, and to measure. Does not wait for it. On the reactor's core, where that has one: what lies
    /// in another core's own cache cannot be told from memory.
    pub fn warm(&self, pool: &Arc<SharedMemory>, cpu: Option<usize>) {
        if self.config.warm {
            self.inside(|| self.warm.start(pool, self.config.warm_permille, cpu));
        }
    }

    /// An application's threads join, where that is configured. Those that it starts later inherit it.
    pub fn application(&self, process: i32) {
        let Some(reservation) = self.reservation.as_ref().filter(|_| self.config.applications) else {
            return;
        };
        let threads = std::fs::read_dir(format!("/proc/{process}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let thread = thread.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(Err(error)) = thread.map(|thread| reservation.add_thread(thread)) {
                eprintln!("jetd: an application's thread is not in the reserved cache's class: {error}");
            }
        }
    }

    /// What is reserved, what of it is used, and what of the pool is resident. Reads the kernel's files.
    pub fn status(&self) -> CacheStatus {
        let mut bandwidth = self.bandwidth.lock().unwrap_or_else(PoisonError::into_inner);
        CacheStatus {
            reserve: self.config.reserve,
            reason: self.reason.clone(),
            group: self.reservation.as_ref().map(|reservation| reservation.plan().group.to_string()),
            exclusive: self.reservation.as_ref().is_some_and(Reservation::is_exclusive),
            domains: self
                .reservation
                .as_ref()
                .map_or_else(Vec::new, |reservation| status::domains(reservation, &mut bandwidth)),
            warmer: self.warm.status(),
        }
    }
}

impl Drop for CacheControl {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take()
            && let Err(error) = reservation.restore()
        {
            eprintln!(
                "jetd: the reserved cache is not given back, which the next start tries again: {error}"
            );
        }
    }
}

fn own_thread() -> i32 {
    rustix::thread::gettid().as_raw_pid()
}

/// Back to the group that this thread came from: only from the default group are threads taken.
fn leave(reservation: &Reservation) {
    let default = GroupName::default_group();
    if let Err(error) = reservation.resctrl().group(&default).add_thread(own_thread()) {
        eprintln!("jetd: the control plane stays in the reserved cache's class: {error}");
    }
}

/// Puts back what processes that were killed had reserved, whatever this one is to do.
fn recover(resctrl: &Resctrl, config: &CacheConfig) {
    // Who never reserved anything has no such folder, and may not be allowed to make it.
    if !config.journals.is_dir() {
        return;
    }
    match jet_cat::reservation::recover(resctrl, &config.journals) {
        Ok(left) => left.iter().for_each(|left| eprintln!("jetd: {left}")),
        Err(error) => eprintln!("jetd: cannot look for cache that was left reserved: {error}"),
    }
}

fn reserve(
    config: &CacheConfig,
    resctrl: Result<Resctrl, OpenError>,
    pool_bytes: u64,
    numa_node: Option<u32>,
) -> Result<Reservation, CacheError> {
    let resctrl = resctrl?;
    let request = config.request_near(pool_bytes, numa_node)?;
    Ok(Reservation::make(&resctrl, &request, &config.journals, &mut |_| {})?)
}

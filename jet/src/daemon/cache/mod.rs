//! The pool's place in the last-level cache: reserving ways for it, keeping it warm, and telling whether it is there.

mod config;
mod status;
mod threads;
mod warm;

pub use config::{CacheConfig, CacheConfigError, Prefetchers, Reserve};
pub use status::{CacheDomainStatus, CacheStatus, RegistersStatus, WarmerStatus};

use jet_cat::registers::{self, SettingError, Settings, Wanted};
use jet_cat::resctrl::{OpenError, Resctrl};
use jet_cat::reservation::{Reservation, ReserveError, ThreadError};
use jet_cat::topology::{Topology, TopologyError};
use jet_fabric::memory::SharedMemory;
use rustix::thread::CpuSet;
use status::Bandwidth;
use std::sync::{Arc, Mutex, PoisonError};
use threads::{Application, cpus_near, leave, own_thread, stay_on};
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
    /// The processor's registers.
    #[error("cache.ddio_ways or cache.prefetchers: {0}")]
    Registers(#[from] SettingError),
    /// No core is named.
    #[error(
        "cache.prefetchers = \"off\" is for the cores of the reactor and the NIC: name them (reactor.cpu, nic.cpu)"
    )]
    NoCore,
    /// This process's threads cannot join.
    #[error("cache is reserved, but the daemon's threads cannot use it: {0}")]
    Thread(#[from] ThreadError),
}

/// What the daemon does about the cache. Dropped, it puts everything back.
pub struct CacheControl {
    config: CacheConfig,
    reservation: Option<Reservation>,
    /// The processors of the reserved caches, where there are others, too.
    cpus: Option<CpuSet>,
    /// Why there is no reservation, where one was wished for.
    reason: Option<String>,
    /// What else of the processor was set.
    registers: Option<Settings>,
    /// Why it was not, where that was wished for.
    registers_reason: Option<String>,
    warm: Warm,
    bandwidth: Mutex<Bandwidth>,
}

impl CacheControl {
    /// Reserves what the configuration asks for, for a pool near a NUMA node and threads on these cores.
    ///
    /// # Errors
    /// [`CacheError`], where a reservation is required. Else it is said, and the daemon goes on without.
    pub fn start(
        config: &CacheConfig,
        pool_bytes: u64,
        numa_node: Option<u32>,
        cores: &[usize],
    ) -> Result<Self, CacheError> {
        let mut control = Self {
            config: config.clone(),
            reservation: None,
            cpus: None,
            reason: None,
            registers: None,
            registers_reason: None,
            warm: Warm::default(),
            bandwidth: Mutex::default(),
        };
        let resctrl = Resctrl::find();
        if let Ok(resctrl) = &resctrl {
            recover(resctrl, config);
        }
        match set_registers(config, numa_node, cores) {
            Ok(registers) => control.registers = registers,
            Err(error) if config.reserve == Reserve::Require => return Err(error),
            Err(error) => {
                eprintln!("jetd: {error}");
                control.registers_reason = Some(error.to_string());
            }
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
                if let Some(reason) = reservation.not_exclusive() {
                    eprintln!("jetd: it is not exclusive: {reason}");
                }
                control.cpus = cpus_near(&reservation);
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

    /// Threads that this makes are in the reservation's class, and on processors of its caches: they inherit both from the one
    /// that makes them.
    pub fn inside<T>(&self, make: impl FnOnce() -> T) -> T {
        let Some(reservation) = &self.reservation else { return make() };
        if let Err(error) = reservation.add_thread(own_thread()) {
            eprintln!("jetd: threads are not in the reserved cache's class: {error}");
            return make();
        }
        let allowed = self.cpus.as_ref().and_then(stay_on);
        let made = make();
        if let Some(allowed) = allowed {
            // As it was before, which the system allowed.
            let _ = rustix::thread::sched_setaffinity(None, &allowed);
        }
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

    /// An application's threads join, where that is configured, until what this gives is dropped. Those that it starts later
    /// inherit it.
    pub fn application(&self, process: i32) -> Option<Application<'_>> {
        let reservation = self.reservation.as_ref().filter(|_| self.config.applications)?;
        Some(Application::join(reservation, process))
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
            registers: match (&self.registers, &self.registers_reason) {
                (Some(_), _) => RegistersStatus::Set,
                (None, Some(reason)) => RegistersStatus::Failed { reason: reason.clone() },
                (None, None) => RegistersStatus::Left,
            },
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
        if let Some(registers) = self.registers.take()
            && let Err(error) = registers.restore()
        {
            eprintln!(
                "jetd: the processor's registers are not put back, which the next start tries again: {error}"
            );
        }
    }
}

/// Sets what is configured beside resctrl; nothing by default.
fn set_registers(
    config: &CacheConfig,
    numa_node: Option<u32>,
    cores: &[usize],
) -> Result<Option<Settings>, CacheError> {
    if has_journals(config) && registers::recover(&config.journals)? {
        eprintln!("jetd: the processor's registers that were left set are put back");
    }
    let mut wanted = Wanted::default();
    if config.ddio_ways.is_none() && config.prefetchers == Prefetchers::Leave {
        return Ok(None);
    }
    let topology = Topology::of_host()?;
    if let Some(ways) = config.ddio_ways {
        let domains = config.domains_near(numa_node)?;
        let all = topology.domains.iter().map(|domain| domain.id);
        let domains = if domains.is_empty() { all.collect() } else { domains };
        wanted.ddio = domains.into_iter().map(|domain| (domain, ways)).collect();
    }
    if config.prefetchers == Prefetchers::Off {
        wanted.prefetchers_off = cores.iter().filter_map(|core| u32::try_from(*core).ok()).collect();
        if wanted.prefetchers_off.is_empty() {
            return Err(CacheError::NoCore);
        }
    }
    Ok(Some(Settings::make(&topology, &wanted, &config.journals)?))
}

/// Whether this user has journals. Who never reserved anything has none, and another user's are his business.
fn has_journals(config: &CacheConfig) -> bool {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    std::fs::metadata(&config.journals).is_ok_and(|found| found.is_dir() && found.uid() == own)
}

/// Puts back what processes that were killed had reserved, whatever this one is to do.
fn recover(resctrl: &Resctrl, config: &CacheConfig) {
    if !has_journals(config) {
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

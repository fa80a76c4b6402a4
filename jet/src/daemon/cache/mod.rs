//! The pool's place in the last-level cache: reserving ways for the pool, keeping the pool in the cache, and
//! measuring whether it is there.

mod config;
mod keeper;
pub(crate) mod published;
mod recovery;
mod setting;
mod status;
mod threads;
mod warm;

pub use config::{CacheConfig, CacheConfigError, DEFAULT_GROUP, DeviceWays, Prefetchers, Reserve};
pub use published::CacheView;
pub use recovery::{Recovered, RecoveryScope, recover};

use jet_cat::CpuSet;
use jet_cat::adjustments::{self, AdjustError, Adjustments};
use jet_cat::counters::CacheCounters;
use jet_cat::plan::Refusal;
use jet_cat::registers::{self, SettingError, Settings};
use jet_cat::resctrl::{DomainId, OpenError, Resctrl, WayMask};
use jet_cat::reservation::{Reservation, ReserveError, ThreadError};
use jet_cat::topology::{Topology, TopologyError};
use jet_control::status::{CacheStatus, RegistersStatus};
use jet_fabric::memory::SharedMemory;
use keeper::ReservationKeeper;
use published::StatusPublisher;
use setting::Setting;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use threads::{Application, cpus_near, leave, own_thread};
use warm::Warm;

/// Reason why no cache is reserved, or another setting of `[cache]` fails.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The kernel has no resctrl, or resctrl cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The host's caches cannot be read.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The reservation of cache fails.
    #[error("{error}{key}", error = .0, key = key_of(.0))]
    Reserve(#[from] ReserveError),
    /// The section `[cache]` is invalid.
    #[error(transparent)]
    Config(#[from] CacheConfigError),
    /// The processor's registers cannot be set.
    #[error("cache.ddio_ways or cache.prefetchers: {0}")]
    Registers(#[from] SettingError),
    /// The memory bandwidth of resctrl groups or the ways that devices fill cannot be set.
    #[error("cache.throttle or cache.device_ways: {0}")]
    Adjust(#[from] AdjustError),
    /// Devices are to fill the pool's ways, but no ways are reserved.
    #[error("cache.device_ways = \"pool\" gives devices the ways that are reserved, and none are")]
    NoPoolWays,
    /// Prefetchers are to be off, but neither the reactor nor the NIC is pinned to a core.
    #[error(
        "cache.prefetchers = \"off\" is for the cores of the reactor and the NIC: name them (reactor.cpu, \
         nic.cpu)"
    )]
    NoCore,
    /// This process's threads cannot join the reservation's resctrl group.
    #[error(
        "nothing is reserved, as the daemon's threads could not use it: {0}; start it from the default group \
         (echo PID > /sys/fs/resctrl/tasks)"
    )]
    Thread(#[from] ThreadError),
    /// A thread is pinned to a core of a cache in which nothing is reserved.
    #[error(
        "core {core} (reactor.cpu or nic.cpu) is none of the reserved caches': name one of {cpus}, or \
         another cache (cache.domains)"
    )]
    Core {
        /// Number of the core.
        core: usize,
        /// Cores of the reserved caches.
        cpus: CpuSet,
    },
    /// Devices are to fill ways that are reserved exclusively.
    #[error(
        "cache.device_ways has ways of the pool's, which are exclusive: let cache.exclusive be \"never\", or \
         name other ways"
    )]
    DeviceWaysExclusive,
}

/// Names the keys of the configuration that caused the refusal of a reservation.
fn key_of(error: &ReserveError) -> &'static str {
    let ReserveError::Refused(refusal) = error else { return "" };
    match refusal {
        Refusal::GroupExists { .. } => " (cache.group)",
        Refusal::NoDomain { .. } | Refusal::NoSize { .. } => " (cache.domains)",
        Refusal::TooLarge { .. } => " (cache.bytes, cache.slack_bytes, cache.others_ways_min)",
        Refusal::Groups { .. } => " (cache.bytes; cache.take_from_groups = true)",
        Refusal::Devices { .. } => " (cache.bytes; cache.placement = \"anywhere\")",
        Refusal::NothingLeft { .. } | Refusal::NotFound { .. } => " (cache.bytes, cache.others_ways_min)",
        Refusal::NotExclusive { .. } => " (cache.exclusive = \"prefer\")",
        Refusal::NoClass { .. } | Refusal::NotLocked { .. } => "",
    }
}

/// Control of the pool's place in the last-level cache. Dropping it undoes all changes of the cache.
pub struct CacheControl {
    /// The thread that reads the status. This field is before `changes`, so that the thread has ended when
    /// the changes are undone.
    publisher: StatusPublisher,
    changes: Arc<CacheChanges>,
}

/// Everything that the daemon changes about the cache. Dropping it undoes all changes.
struct CacheChanges {
    config: CacheConfig,
    reservation: ReservationKeeper,
    /// Processors of the reserved caches; `None` if every cache is reserved, or none.
    cpus: Option<CpuSet>,
    /// Settings of the processor's registers.
    registers: Setting<Settings>,
    /// Settings of resctrl other than the reservation.
    adjustments: Setting<Adjustments>,
    counters: Mutex<Setting<CacheCounters>>,
    warm: Warm,
}

impl CacheControl {
    /// Reserves cache as configured, for a pool near a NUMA node and threads pinned to `cores`.
    ///
    /// # Errors
    /// Returns [`CacheError`] if something that `[cache]` asks for fails, and `cache.reserve` is `require`.
    /// Otherwise failures are logged, and the daemon continues without what failed.
    pub fn start(
        config: &CacheConfig,
        pool_bytes: u64,
        numa_node: Option<u32>,
        cores: &[usize],
    ) -> Result<Self, CacheError> {
        let changes = Arc::new(CacheChanges::make(config, pool_bytes, numa_node, cores)?);
        let read = Arc::clone(&changes);
        Ok(Self { publisher: StatusPublisher::start(move || read.status()), changes })
    }

    /// Runs `make` inside the reservation's CAT class and on the processors of the reserved caches. Threads
    /// that `make` starts inherit both.
    pub fn inside<T>(&self, make: impl FnOnce() -> T) -> T {
        self.changes.inside(make)
    }

    /// Starts the warmer, which keeps the pool in the cache and measures how much of it is there; returns at
    /// once. The warmer runs on core `cpu` if the reactor is pinned there, since data in another core's
    /// private cache looks like memory.
    pub fn warm(&self, pool: &Arc<SharedMemory>, cpu: Option<usize>) {
        let changes = &self.changes;
        if changes.config.warm {
            changes.inside(|| changes.warm.start(pool, changes.config.warm_permille, cpu));
        }
    }

    /// Moves an application's threads into the reservation's CAT class until the returned value is dropped,
    /// if `cache.applications` is set. Threads that the application starts later inherit the class.
    pub fn application(&self, process: i32) -> Option<Application<'_>> {
        let changes = &*self.changes;
        if changes.config.applications { changes.reservation.application(process) } else { None }
    }

    /// Starts to count hits and misses of the calling thread in the last-level cache, where the processor
    /// can.
    pub fn count_this_thread(&self) {
        if !self.changes.config.counters {
            return;
        }
        let counting = CacheCounters::of_this_thread().and_then(|mut counters| {
            counters.start()?;
            Ok(counters)
        });
        *locked(&self.changes.counters) = match counting {
            Ok(counters) => Setting::Set(counters),
            // Most virtual machines have no counters: the status shows that, and the log does not.
            Err(error) => Setting::Failed(error.to_string()),
        };
        self.publisher.refresh();
    }

    /// Returns the cache's status as a thread of its own publishes it.
    pub fn view(&self) -> CacheView {
        self.publisher.view()
    }
}

impl CacheChanges {
    /// Makes the changes that `config` asks for, see [`CacheControl::start`].
    fn make(
        config: &CacheConfig,
        pool_bytes: u64,
        numa_node: Option<u32>,
        cores: &[usize],
    ) -> Result<Self, CacheError> {
        let mut changes = Self {
            config: config.clone(),
            reservation: ReservationKeeper::default(),
            cpus: None,
            registers: Setting::Left,
            adjustments: Setting::Left,
            counters: Mutex::default(),
            warm: Warm::new(config.warm),
        };
        recover_own(config);
        // If a later step ends the start, dropping undoes the earlier ones.
        let required = config.reserve == Reserve::Require;
        let registers = set_registers(config, numa_node, cores);
        changes.registers = Setting::of("the processor's registers stay as they are", registers, required)?;
        if required && !config.throttle.is_empty() {
            // Check before any cache is taken: impossible limits are found by reading alone.
            let wanted = adjustments::Wanted { bandwidth: config.throttled()?, ..Default::default() };
            adjustments::check(&Resctrl::find()?, &wanted)?;
        }
        let reserved = reserve(config, pool_bytes, numa_node);
        let reserved = Setting::of("no cache is reserved", reserved, required)?;
        changes.reservation = ReservationKeeper::holding(reserved, &config.journals);
        changes.cpus = changes.reservation.with(|reservation| {
            let reservation = reservation?;
            tracing::info!("cache reserved: {}", reservation.plan());
            if let Some(reason) = reservation.not_exclusive() {
                tracing::warn!("it is not exclusive: {reason}");
            }
            cpus_near(reservation)
        });
        match check_cores(changes.cpus.as_ref(), cores) {
            Err(error) if required => return Err(error),
            Err(error) => tracing::warn!("{error}"),
            Ok(()) => {}
        }
        let adjusted = changes.reservation.with(|reservation| adjust(config, numa_node, reservation));
        let failed = "bandwidth of groups and ways of devices stay as they are";
        changes.adjustments = Setting::of(failed, adjusted, required)?;
        changes.reservation.watch();
        Ok(changes)
    }

    fn inside<T>(&self, make: impl FnOnce() -> T) -> T {
        self.reservation.inside(|| {
            let pinning = self.cpus.as_ref().map(CpuSet::pin_thread).transpose();
            if let Err(error) = &pinning {
                tracing::warn!("this process may use no processor of the reserved cache: {error}");
            }
            make()
        })
    }

    /// Reads the cache's status: the reservation, its use, and how much of the pool is in the cache. Reads
    /// files of the kernel, and so may block.
    fn status(&self) -> CacheStatus {
        CacheStatus {
            age_ms: 0,
            reserve: status::reserve(self.config.reserve),
            reservation: self.reservation.status(),
            registers: RegistersStatus {
                setting: self.registers.status(),
                stands: self.registers.get().and_then(|registers| registers.is_in_effect().ok()),
            },
            adjustments: status::adjustments(&self.adjustments, &self.config),
            counters: status::counters(&mut locked(&self.counters)),
            warmer: self.warm.status(),
        }
    }
}

impl Drop for CacheChanges {
    /// Undoes all changes of the cache in reverse order, since devices may fill ways that are reserved.
    fn drop(&mut self) {
        self.adjustments.undo("bandwidth of groups and ways of devices are", Adjustments::restore);
        self.reservation.end();
        self.registers.undo("the processor's registers are", Settings::restore);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks that threads are pinned to processors of the reserved caches, if not every cache is reserved.
fn check_cores(cpus: Option<&CpuSet>, cores: &[usize]) -> Result<(), CacheError> {
    let Some(cpus) = cpus else { return Ok(()) };
    match cores.iter().find(|core| !u32::try_from(**core).is_ok_and(|core| cpus.contains(core))) {
        Some(&core) => Err(CacheError::Core { core, cpus: cpus.clone() }),
        None => Ok(()),
    }
}

/// Changes settings of resctrl other than the reservation, as configured. By default there are none.
fn adjust(
    config: &CacheConfig,
    numa_node: Option<u32>,
    reservation: Option<&Reservation>,
) -> Result<Option<Adjustments>, CacheError> {
    if config.throttle.is_empty() && config.device_ways.is_none() {
        return Ok(None);
    }
    let resctrl = Resctrl::find()?;
    let domains = config.domains_near(numa_node)?;
    let device_ways: BTreeMap<_, _> = match config.device_ways {
        None => BTreeMap::new(),
        Some(DeviceWays::Pool) => {
            let reserved = reservation.ok_or(CacheError::NoPoolWays)?.plan().domains.iter();
            reserved.map(|planned| (planned.domain, planned.ways)).collect()
        }
        Some(DeviceWays::Ways(ways)) => of_each(&domains, &Topology::of_host()?, ways),
    };
    if let Some(reservation) = reservation.filter(|reservation| reservation.is_exclusive()) {
        let planned = &reservation.plan().domains;
        let ways_of = |domain| device_ways.get(&domain).copied().unwrap_or(WayMask::EMPTY);
        if planned.iter().any(|planned| planned.ways.overlaps(ways_of(planned.domain))) {
            return Err(CacheError::DeviceWaysExclusive);
        }
    }
    let wanted = adjustments::Wanted {
        bandwidth: config.throttled()?,
        domains: (!domains.is_empty()).then_some(domains),
        device_ways,
    };
    Ok(Some(Adjustments::make(&resctrl, &wanted, &config.journals)?))
}

/// Returns a map with `ways` for each of `domains`, or for each cache of the host if `domains` is empty.
fn of_each(domains: &[DomainId], topology: &Topology, ways: WayMask) -> BTreeMap<DomainId, WayMask> {
    if domains.is_empty() {
        topology.domains.iter().map(|domain| (domain.id, ways)).collect()
    } else {
        domains.iter().map(|domain| (*domain, ways)).collect()
    }
}

/// Sets the processor's registers as configured. By default nothing is set.
fn set_registers(
    config: &CacheConfig,
    numa_node: Option<u32>,
    cores: &[usize],
) -> Result<Option<Settings>, CacheError> {
    let mut wanted = registers::Wanted::default();
    if config.ddio_ways.is_none() && config.prefetchers == Prefetchers::Leave {
        return Ok(None);
    }
    let topology = Topology::of_host()?;
    if let Some(ways) = config.ddio_ways {
        wanted.ddio = of_each(&config.domains_near(numa_node)?, &topology, ways);
    }
    if config.prefetchers == Prefetchers::Off {
        wanted.prefetchers_off = cores.iter().filter_map(|core| u32::try_from(*core).ok()).collect();
        if wanted.prefetchers_off.is_empty() {
            return Err(CacheError::NoCore);
        }
    }
    Ok(Some(Settings::make(&topology, &wanted, &config.journals)?))
}

/// Whether the user of this process owns the folder of journals. A user who never reserved cache has none,
/// and folders of other users are left alone.
fn has_journals(config: &CacheConfig) -> bool {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    std::fs::metadata(&config.journals).is_ok_and(|found| found.is_dir() && found.uid() == own)
}

/// Undoes cache changes of processes that were killed, whether this daemon reserves cache or not.
fn recover_own(config: &CacheConfig) {
    if !has_journals(config) {
        return;
    }
    match recover(&config.journals, RecoveryScope::Gone) {
        Ok(recovered) => recovered.iter().for_each(|left| tracing::info!("{left}")),
        Err(error) => tracing::warn!("cannot look for cache that was left reserved: {error}"),
    }
}

fn reserve(
    config: &CacheConfig,
    pool_bytes: u64,
    numa_node: Option<u32>,
) -> Result<Option<Reservation>, CacheError> {
    if config.reserve == Reserve::Off {
        return Ok(None);
    }
    let resctrl = Resctrl::find()?;
    let request = config.request_near(pool_bytes, numa_node)?;
    let reservation = Reservation::make(&resctrl, &request, &config.journals, &mut |_| {})?;
    // Test that threads can join before the daemon relies on it.
    let class = reservation.class();
    class.add_thread(own_thread())?;
    leave(&class);
    Ok(Some(reservation))
}

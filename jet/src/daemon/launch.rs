//! Starting the data path: the configured NIC, the memory that it uses, and the reactor's thread.

use super::cache::CacheControl;
use super::config::{HugePages, NicThread};
use super::congestion::WishHandle;
use super::control_socket::SOCKET_MODE;
use super::escape::{self, PrepareError, Sessions};
use super::rdma::RdmaView;
use super::reactor::{self, Command, CommandInbox, Commands, Driver, Epoll, Reactor, ReactorOptions};
use super::status::About;
use super::{Config, ConfigError, DaemonError, system};
use jet_control::status as shown;
use jet_core::{Checksums, Receiver};
use jet_fabric::Address;
use jet_fabric::limits::LimitError;
#[cfg(feature = "verbs")]
use jet_fabric::limits::NicLimits;
use jet_fabric::memory::{Pages, SharedMemory};
use jet_fabric::nic::{Access, Nic};
use jet_fabric::soft::threaded::{Threaded, ThreadedOptions};
use jet_fabric::soft::{SoftNic, SoftOptions};
#[cfg(feature = "verbs")]
use jet_fabric::verbs::{DeviceChoice, VerbsNic, VerbsOptions};
use jet_reactor::workers::Workers;
use jet_reactor::{EscapeRegion, Parts, PoolMemory, ReplyMemory, poison};
use jet_wire::message::HEADER_BYTES;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
#[cfg(feature = "verbs")]
use std::time::Duration;
use tokio::sync::oneshot;

/// Inputs for starting the data path.
pub(super) struct Launch<'a> {
    pub config: &'a Config,
    pub commands: &'a Arc<Commands>,
    pub inbox: CommandInbox,
    pub wish: WishHandle,
    /// Receives the result when the reactor's thread ends.
    pub ended: oneshot::Sender<Result<(), reactor::RunError>>,
}

impl Launch<'_> {
    /// Creates the NIC that the configuration asks for, and starts the reactor on this NIC.
    ///
    /// # Errors
    /// Returns [`DaemonError`] if the NIC cannot be created, its memory cannot be allocated, or a thread
    /// cannot be started.
    pub fn start(self) -> Result<Started, DaemonError> {
        let config = self.config;
        let options = sizes(config);
        #[cfg(feature = "verbs")]
        if let Some(Address::Rdma(text)) = config.addresses()?.first() {
            let nic = VerbsNic::new(verbs_options(config, text)?)?;
            tracing::info!("{}", what_it_has(nic.device(), nic.device_limits()));
            let cache = cache_near(config, &nic)?;
            let rdma = RdmaView::of(nic.watch());
            return Ok(Started { rdma, ..self.on(nic, false, cache)? });
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threaded = match config.nic.thread {
            NicThread::On => true,
            NicThread::Off => false,
            NicThread::Auto => cores > 2,
        };
        let mut nic = SoftNic::new(options).map_err(no_software_nic)?;
        nic.accept_from(config.networks()?);
        let cache = cache_near(config, &nic)?;
        if !threaded {
            return self.on(nic, false, cache);
        }
        let options = ThreadedOptions {
            cpu: config.nic.cpu,
            sends_max: sends_max(config),
            ..ThreadedOptions::default()
        };
        let nic = cache.inside(|| Threaded::new(nic, &options));
        self.on(nic.map_err(system("cannot start the NIC's thread"))?, true, cache)
    }

    /// Registers memory with the NIC, lets the NIC listen for senders, and starts the reactor's thread.
    fn on<N: Nic + 'static>(
        self,
        mut nic: N,
        nic_thread: bool,
        cache: CacheControl,
    ) -> Result<Started, DaemonError> {
        let Self { config, commands, inbox, wish, ended } = self;
        let numa_node = numa_node(config, &nic);
        let limits = nic.limits();
        let senders = senders_max(config.limits.peers, limits.qps_max);
        let core = jet_core::Config { peers_max: senders, ..config.core(limits.scatter_max)? };
        if senders < config.limits.peers {
            tracing::warn!(
                "limits.peers is {}, but the device has room for {} connections (docs/rdma.md): {senders} \
                 senders, and {} that tell who comes beyond so",
                config.limits.peers,
                limits.qps_max,
                limits.qps_max - senders
            );
        }
        let pool = pool_memory(config, numa_node)?;
        poison::install().map_err(system("cannot watch for memory that the hardware lost"))?;
        // SAFETY: the daemon keeps the pool until its process ends. Slabs are plain bytes, for which every
        // value is valid.
        unsafe { poison::watch(pool.base(), pool.bytes()) };
        let header_bytes = core.srq_slabs as usize * HEADER_BYTES;
        let headers = SharedMemory::near("jet-headers", header_bytes, false, numa_node)
            .map(Arc::new)
            .map_err(system("cannot get memory for the header area"))?;
        let pool_key = nic.register(&pool, Access::LocalWrite)?;
        let headers_key = nic.register(&headers, Access::LocalWrite)?;
        let escape = match escape_memory(&core, numa_node) {
            // SAFETY: as for the pool above: the region lives until the process ends, and its slabs are plain
            // bytes.
            Ok(region) => region.inspect(|region| unsafe { poison::watch(region.base(), region.bytes()) }),
            Err(error) => {
                // The receiver works without escape memory: Algorithm 1 then goes to its next stage. The log
                // and the status show the reason.
                tracing::warn!("{error}");
                let report = Command::EscapeMemory { ready_slabs: 0, error: Some(error.to_string()) };
                commands.send_blocking(report);
                None
            }
        };
        let escape_key =
            escape.as_ref().map(|region| nic.register(region, Access::LocalWrite)).transpose()?;
        let replies = reply_memory(&mut nic, &core, numa_node)?;
        pool.seal_future_writes()
            .map_err(system("cannot seal the pool against writing (Linux 5.1 or later is needed)"))?;
        let listen = listen_on(&mut nic, &config.addresses()?)?;
        let incarnation = incarnation().map_err(system("cannot get random bytes"))?;
        let receiver = Receiver::new(core, incarnation).map_err(ConfigError::from)?;
        let epoll = Epoll::new(&nic.wait_fd(), &inbox.bell).map_err(system("cannot make an epoll"))?;
        let bell = Arc::clone(commands);
        let checks_max = if core.checksums == Checksums::Workers { core.reads_max } else { 0 };
        let jobs_max = (core.copies_max + checks_max) as usize;
        let workers = cache
            .inside(|| Workers::start(config.escape.workers, jobs_max, move || bell.ring()))
            .map_err(system("cannot start the workers' threads"))?;
        let preparing = escape
            .as_ref()
            .map(|region| prepare_escape(region, config, commands))
            .transpose()
            .map_err(system("cannot start the thread that prepares escape memory"))?;
        let parts = Parts {
            nic,
            pool: PoolMemory { pool: Arc::clone(&pool), headers, pool_key, headers_key },
            escape: escape.clone().zip(escape_key).map(|(memory, key)| EscapeRegion { memory, key }),
            replies,
            workers,
            congestion: Box::new(move |on| wish.set(on)),
        };
        let driver = Driver::new(receiver, parts);
        let options = ReactorOptions {
            cpu: config.reactor.cpu,
            spin_ns_max: config.reactor.spin_us_max.saturating_mul(1000),
        };
        let reactor = std::thread::Builder::new().name("jet-reactor".into());
        let cache = Arc::new(cache);
        let counting = Arc::clone(&cache);
        let run = move || {
            counting.count_this_thread();
            // The control plane keeps the cache's control alive beyond this thread, and undoes the
            // reservation when the daemon ends.
            drop(counting);
            let result = Reactor::new(driver, inbox, epoll, options).run();
            // Sending fails only if the control plane is gone, shortly before the process ends.
            let _ = ended.send(result);
        };
        cache.inside(|| reactor.spawn(run)).map_err(system("cannot start the reactor's thread"))?;
        Ok(Started {
            cache,
            rdma: RdmaView::default(),
            about: About {
                incarnation,
                listen,
                pages: if pool.pages() == Pages::Huge { shown::Pages::Huge } else { shown::Pages::Small },
                numa_node,
                nic_thread,
                checksums: core.checksums,
                sessions_max: core.sessions_max,
                peers_max: core.peers_max,
            },
            pool,
            pool_slabs: core.pool_slabs,
            escape,
            _preparing: preparing,
        })
    }
}

/// The parts of the started data path that the control plane uses.
pub(super) struct Started {
    /// Control of the last-level cache. Dropping the last reference undoes all changes of the cache.
    pub cache: Arc<CacheControl>,
    pub rdma: RdmaView,
    pub pool: Arc<SharedMemory>,
    pub pool_slabs: u32,
    pub escape: Option<Arc<SharedMemory>>,
    /// The thread that prepares escape memory, which stops when this value is dropped, at the end of the
    /// daemon.
    _preparing: Option<escape::Preparing>,
    /// Facts about this daemon, which never change, for the status.
    pub about: About,
}

/// Converts an error of the software NIC; a limit that `nic.profile` sets becomes [`DaemonError::Profile`].
fn no_software_nic(source: io::Error) -> DaemonError {
    match source.get_ref().and_then(|inner| inner.downcast_ref::<LimitError>()) {
        Some(error) => DaemonError::Profile(*error),
        None => system("cannot make the software NIC")(source),
    }
}

/// Returns the limit of senders on a device that can have `connections` connections. A refused sender needs a
/// connection, too, until it knows of the refusal.
fn senders_max(peers: u32, connections: u32) -> u32 {
    let spare = (connections / 8).min(16);
    peers.min(connections - spare)
}

/// Returns the limit of SENDs under way from the daemon to all peers together: 8 for each peer and 64 more.
/// Few peers need all the SENDs that they may have.
pub(super) fn sends_max(config: &Config) -> u32 {
    config.limits.peers.saturating_mul(8).saturating_add(64)
}

/// Returns the sizes that a NIC needs for this configuration: connections, SRQ entries, READs, SENDs and
/// completions.
fn sizes(config: &Config) -> SoftOptions {
    let peers = config.limits.peers;
    let srq_entries = u32::try_from(config.pool.srq_bytes / jet_wire::SLAB_BYTES as u64).unwrap_or(u32::MAX);
    // Strangers of both transports leave most descriptors to senders and applications.
    let strangers = (crate::descriptors::limit() / 16).clamp(16, 1024);
    SoftOptions {
        qps_max: peers + peers / 8 + 16,
        strangers_max: u32::try_from(strangers).expect("at most 1024"),
        srq_entries_max: srq_entries,
        reads_max: config.read.concurrency,
        reads_per_qp_max: config.read.concurrency,
        // A daemon reads from senders; no peer reads from the daemon.
        reads_answered_per_qp_max: 0,
        sends_per_qp_max: jet_core::Config::default().sends_per_peer_max(),
        // Each SRQ entry, each READ and each SEND may have a completion in the queue.
        completions: srq_entries + config.read.concurrency + sends_max(config),
        profile: config.nic.profile.map(|profile| profile.0),
        ..SoftOptions::default()
    }
}

/// Describes, for the log, the sizes that the device allows a connection and a completion queue.
#[cfg(feature = "verbs")]
fn what_it_has(device: &str, limits: &NicLimits) -> String {
    let count = |number: u32, one: &str, more: &str| match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {more}"),
    };
    let reported = &limits.reported;
    format!(
        "{device}: {} and {} a connection, {}, {} a completion queue",
        count(reported.reads_per_qp_max, "READ", "READs"),
        count(reported.sends_per_qp_max, "SEND", "SENDs"),
        count(reported.scatter_max, "scatter entry", "scatter entries"),
        count(limits.shape.seats, "connection", "connections"),
    )
}

/// Returns the NUMA node for the pool and the reserved cache: the configured node, otherwise the NIC's.
fn numa_node<N: Nic>(config: &Config, nic: &N) -> Option<u32> {
    config.pool.numa_node.or(nic.limits().numa_node)
}

/// Starts control of the last-level cache near a NIC, for the cores to which the daemon's threads are pinned.
fn cache_near<N: Nic>(config: &Config, nic: &N) -> Result<CacheControl, DaemonError> {
    let cores: Vec<usize> = config.reactor.cpu.into_iter().chain(config.nic.cpu).collect();
    Ok(CacheControl::start(&config.cache, config.pool.bytes, numa_node(config, nic), &cores)?)
}

/// Returns the options of the verbs NIC that listens on `listen`.
///
/// # Errors
/// Returns [`DaemonError::System`] if the address cannot be resolved, where no device is named.
#[cfg(feature = "verbs")]
pub fn verbs_options(config: &Config, listen: &str) -> Result<VerbsOptions, DaemonError> {
    let defaults = match &config.rdma.device {
        Some(device) => VerbsOptions::on(DeviceChoice::Named {
            device: device.clone(),
            port: config.rdma.port.unwrap_or(1),
            gid_index: config.rdma.gid_index,
        }),
        None => VerbsOptions::reaching(listen).map_err(system("cannot resolve the address to listen on"))?,
    };
    let sizes = sizes(config);
    Ok(VerbsOptions {
        networks: config.networks()?,
        qps_max: sizes.qps_max,
        srq_entries_max: sizes.srq_entries_max,
        reads_max: sizes.reads_max,
        reads_per_qp_max: sizes.reads_per_qp_max.min(defaults.reads_per_qp_max),
        reads_answered_per_qp_max: sizes.reads_answered_per_qp_max,
        // A connection's queues keep a place for each SEND, used or not.
        sends_per_qp_max: sizes.sends_per_qp_max,
        sends_max: sends_max(config),
        numa_node: config.pool.numa_node,
        cpu: config.reactor.cpu,
        // Many connections come and go, and established ones must not wait for their set-up.
        set_up_thread: true,
        // A daemon sends headers, which need none, and replies, which are registered.
        inline_places: 1,
        // A sender that takes nothing keeps the places of its replies.
        one_stretch_places: u32::try_from(config.limits.reply_bytes / jet_wire::SLAB_BYTES as u64)
            .unwrap_or(u32::MAX)
            .min(config.limits.messages),
        profile: sizes.profile,
        tos: config.rdma.tos,
        ack_timeout: config.rdma.ack_timeout,
        retry: config.rdma.retry,
        survey_every: Duration::from_millis(config.rdma.look_ms),
        ..defaults
    })
}

/// Returns the memory for replies, registered with the NIC; none where there are to be no replies. No
/// application maps it.
fn reply_memory<N: Nic>(
    nic: &mut N,
    core: &jet_core::Config,
    numa_node: Option<u32>,
) -> Result<Option<ReplyMemory>, DaemonError> {
    if core.reply_slots == 0 {
        return Ok(None);
    }
    // The reactor must meet no page that is not there.
    let bytes = core.reply_slots as usize * jet_wire::SLAB_BYTES;
    let memory = SharedMemory::near("jet-replies", bytes, false, numa_node)
        .map(Arc::new)
        .map_err(system("cannot get memory for replies (limits.reply_bytes)"))?;
    let key = nic.register(&memory, Access::LocalWrite)?;
    Ok(Some(ReplyMemory { memory, key }))
}

fn pool_memory(config: &Config, numa_node: Option<u32>) -> Result<Arc<SharedMemory>, DaemonError> {
    let bytes = config.pool.bytes;
    let failed = |source| match numa_node {
        Some(node) => DaemonError::PoolNear { bytes, node, source },
        None => DaemonError::Pool { bytes, source },
    };
    let wanted = usize::try_from(bytes).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
    let huge = config.pool.huge_pages != HugePages::Off;
    let pool = SharedMemory::near("jet-pool", wanted, huge, numa_node).map_err(failed)?;
    if config.pool.huge_pages == HugePages::Require && pool.pages() != Pages::Huge {
        return Err(DaemonError::HugePages { needed: bytes.div_ceil(2 << 20) });
    }
    if let Some(node) = numa_node {
        match pool.bytes_elsewhere(node) {
            Ok(0) => {}
            Ok(elsewhere) => tracing::warn!(
                "{elsewhere} of the pool's {} bytes are not on NUMA node {node}, which has no room for them",
                pool.bytes()
            ),
            Err(error) => tracing::warn!("whether the pool is on NUMA node {node} cannot be told: {error}"),
        }
    }
    Ok(Arc::new(pool))
}

/// Creates the region of escape memory, without allocating any of its pages; `None` if the configuration
/// wants no escape memory.
fn escape_memory(
    core: &jet_core::Config,
    numa_node: Option<u32>,
) -> Result<Option<Arc<SharedMemory>>, PrepareError> {
    let shape = core.escape_shape();
    let wanted = (shape.replace_slabs + shape.memory_slabs) as usize * jet_wire::SLAB_BYTES;
    if wanted == 0 || !core.escape.enabled {
        return Ok(None);
    }
    let region = SharedMemory::lazy_near("jet-escape", wanted, numa_node).and_then(|region| {
        region.seal_future_writes()?;
        Ok(region)
    });
    region.map(|region| Some(Arc::new(region))).map_err(|source| PrepareError { ready: 0, wanted, source })
}

/// Allocates escape memory on a separate thread, and tells the reactor how many slabs are ready.
fn prepare_escape(
    region: &Arc<SharedMemory>,
    config: &Config,
    commands: &Arc<Commands>,
) -> io::Result<escape::Preparing> {
    let sessions = Sessions { shape: config.segment_shape(), max: config.limits.sessions };
    let commands = Arc::clone(commands);
    escape::prepare(Arc::clone(region), sessions, move |ready, error| {
        let error = error.map(|error| error.to_string());
        if let Some(error) = &error {
            tracing::warn!("{error}");
        }
        let ready_slabs = u32::try_from(ready / jet_wire::SLAB_BYTES).unwrap_or(u32::MAX);
        commands.send_blocking(Command::EscapeMemory { ready_slabs, error });
    })
}

/// Listens on each address. Returns each address as the NIC reports it, with the port that it took.
fn listen_on<N: Nic>(nic: &mut N, addresses: &[Address]) -> Result<Vec<String>, DaemonError> {
    let mut listen = Vec::new();
    for address in addresses {
        listen.push(nic.listen(address)?.to_string());
        if let Address::Shm(path) = address {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))
                .map_err(system("cannot set the mode of the NIC's socket"))?;
        }
    }
    Ok(listen)
}

/// Returns a random number that tells this run of the daemon from other runs.
fn incarnation() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_fabric::limits::Requirements;

    /// Tests elsewhere check devices against [`Requirements::SOFTWARE_DAEMON`] and
    /// [`Requirements::VERBS_DAEMON`], so these must equal what a daemon with the default configuration
    /// wants.
    #[test]
    fn a_daemon_of_the_defaults_wants_what_its_limits_were_derived_from() {
        let config = Config::default();
        assert_eq!(sizes(&config).requirements(), Requirements::SOFTWARE_DAEMON);
        #[cfg(feature = "verbs")]
        assert_eq!(
            verbs_options(&config, "192.0.2.10:7450").unwrap().requirements(),
            Requirements::VERBS_DAEMON
        );
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn what_the_configuration_says_of_connections_reaches_the_nic() {
        let mut config = Config::default();
        let of_nic = |config: &Config| {
            let options = verbs_options(config, "192.0.2.10:7450").unwrap();
            (options.tos, options.ack_timeout, options.retry, options.survey_every)
        };
        assert_eq!(of_nic(&config), (None, 16, 6, Duration::from_secs(10)));
        (config.rdma.tos, config.rdma.ack_timeout, config.rdma.retry) = (Some(104), 13, 4);
        config.rdma.look_ms = 250;
        assert_eq!(of_nic(&config), (Some(104), 13, 4, Duration::from_millis(250)));
    }

    #[cfg(feature = "verbs")]
    #[test]
    fn what_a_device_leaves_of_what_was_asked_for_is_told() {
        use jet_fabric::limits::Profile;
        let told = |profile: Profile, srq_entries| {
            let requirements = Requirements { srq_entries, ..Requirements::VERBS_DAEMON };
            what_it_has("mlx5_0", &NicLimits::derive(profile.attributes(), &requirements).unwrap())
        };
        assert_eq!(
            told(Profile::CONNECTX_6, 1024),
            "mlx5_0: 16 READs and 13 SENDs a connection, 19 scatter entries, 6 connections a completion queue"
        );
        assert_eq!(
            told(Profile::SMALLEST, 64),
            "mlx5_0: 1 READ and 13 SENDs a connection, 1 scatter entry, 10 connections a completion queue"
        );
    }
}

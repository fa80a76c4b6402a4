//! The daemon: one reactor thread for the data, one tokio runtime for everything else.

pub mod cache;
pub mod config;
pub mod congestion;
mod control;
pub mod escape;
mod reactor;
pub mod status;

pub use config::{Config, ConfigError};

use cache::{CacheControl, CacheError};
use config::{HugePages, NicThread};
use congestion::{CongestionControl, Mark};
use control::ControlContext;
use escape::{PrepareError, Workers};
use jet_core::Receiver;
use jet_fabric::Address;
use jet_fabric::memory::{Pages, SharedMemory};
use jet_fabric::nic::{Access, ListenError, Nic, RegisterError};
use jet_fabric::soft::threaded::{Threaded, ThreadedOptions};
use jet_fabric::soft::{SoftNic, SoftOptions};
#[cfg(feature = "verbs")]
use jet_fabric::verbs::{DeviceChoice, VerbsError, VerbsNic, VerbsOptions};
use jet_wire::message::HEADER_BYTES;
use jet_wire::segment::SegmentShape;
use reactor::{
    Command, CommandInbox, Commands, Epoll, EscapeHands, Hands, PoolMemory, Reactor, ReactorOptions,
};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// The daemon's arguments. What they set goes before the configuration file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DaemonArgs {
    /// Configuration file (TOML); without one the defaults hold, which are the paper's
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen here instead of where the configuration says: shm:/path/nic.sock or tcp:host:port; may be repeated
    #[arg(long, value_name = "ADDR")]
    pub listen: Vec<String>,
    /// Control socket instead of the configuration's [default: /run/jet/jetd.sock]
    #[arg(long, value_name = "PATH")]
    pub control_socket: Option<PathBuf>,
    /// Set one key of the configuration, as in --set pool.bytes=25165824; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// Print the configuration that would be used, as TOML, and exit
    #[arg(long)]
    pub print_config: bool,
}

/// Why the daemon did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is no good.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another daemon has the control socket.
    #[error("a daemon is running already on {}; stop it, or give this one another --control-socket", path.display())]
    Running {
        /// The socket.
        path: PathBuf,
    },
    /// Something else lies where the control socket is to be.
    #[error("{} exists and is no socket; move it away, or choose another --control-socket", path.display())]
    NoSocket {
        /// The file.
        path: PathBuf,
    },
    /// The control socket cannot be made.
    #[error("cannot make the control socket {}: {source}; its directory must exist and be writable (as root: \
             mkdir -p /run/jet), or choose another with --control-socket", path.display())]
    ControlSocket {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Cache was to be reserved.
    #[error("cache.reserve = \"require\": {0}")]
    Cache(#[from] CacheError),
    /// The actuators of congestion cannot be looked after.
    #[error(transparent)]
    Congestion(#[from] congestion::StartError),
    /// The NIC does not listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The pool cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// There is no NIC on verbs.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The pool cannot be had.
    #[error("cannot get {bytes} bytes of memory for the pool: {source}")]
    Pool {
        /// Bytes asked for.
        bytes: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The pool cannot be had on its NUMA node.
    #[error(
        "cannot get {bytes} bytes of memory for the pool on NUMA node {node}: {source}; the nodes are in \
         /sys/devices/system/node, and pool.numa_node names another"
    )]
    PoolNear {
        /// Bytes asked for.
        bytes: u64,
        /// The node.
        node: u32,
        /// What the system said.
        source: io::Error,
    },
    /// Huge pages were required and there are none.
    #[error(
        "pool.huge_pages = \"require\", but there are no {needed} free 2 MiB pages; \
             reserve them (sysctl vm.nr_hugepages={needed}) or set it to \"auto\""
    )]
    HugePages {
        /// Pages needed.
        needed: u64,
    },
    /// The system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// The reactor cannot be pinned.
    #[error("reactor.cpu = {cpu}: no such core, or this process may not use it; cores it may use: {allowed}")]
    Cpu {
        /// The core asked for.
        cpu: usize,
        /// Those there are.
        allowed: String,
    },
    /// The reactor ended before it was told to, and says why.
    #[error(transparent)]
    Run(#[from] reactor::RunError),
    /// The reactor ended before it was told to.
    #[error("the reactor stopped unexpectedly; its last words are above")]
    Reactor,
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |source| DaemonError::System { what, source }
}

impl DaemonArgs {
    /// The configuration that these arguments mean.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(&self) -> Result<Config, ConfigError> {
        let mut config = Config::load(self.config.as_deref(), &self.set)?;
        if !self.listen.is_empty() {
            config.listen.clone_from(&self.listen);
            config.addresses()?;
        }
        config.check_device()?;
        if let Some(path) = &self.control_socket {
            config.control_socket.clone_from(path);
        }
        Ok(config)
    }
}

/// Runs the daemon as its arguments say; errors go to standard error.
pub fn run_from_args(args: &DaemonArgs) -> ExitCode {
    let result = args.load().map_err(DaemonError::from).and_then(|config| {
        if args.print_config {
            let text = toml::to_string(&config).expect("a configuration is always TOML");
            print!("{text}");
            return Ok(());
        }
        run(&config)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("jetd: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the daemon until it is told to stop (SIGTERM, SIGINT, SIGHUP, or a drain by the tool).
///
/// # Errors
/// [`DaemonError`].
pub fn run(config: &Config) -> Result<(), DaemonError> {
    raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("cannot start the control plane"))?;
    runtime.block_on(govern(config))
}

/// Both sockets: the owner and the group.
const SOCKET_MODE: u32 = 0o660;

/// Control connections beside those of sessions: tools that ask.
const ASKERS_MAX: usize = 128;

/// Everything but the data: starts the reactor, serves the control socket, ends both.
async fn govern(config: &Config) -> Result<(), DaemonError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(system("cannot watch for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("cannot watch for SIGINT"))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(system("cannot watch for SIGHUP"))?;
    check_cpu(config.reactor.cpu)?;
    let listener = bind_control(&config.control_socket)?;
    let _socket = RemoveOnDrop::new(&config.control_socket);
    // Restores whatever it lowered when this function ends, however it ends.
    let congestion = CongestionControl::start(&config.congestion, &config.control_socket)?;
    let (commands, inbox) = Commands::new().map_err(system("cannot make the command queue"))?;
    let (drain, mut drains) = mpsc::channel(4);
    let (ended, mut reactor_ended) = oneshot::channel();
    let started = start_reactor(config, &commands, congestion.mark(), inbox, ended)?;
    let context = Arc::new(ControlContext {
        commands: Arc::clone(&commands),
        pool: started.pool,
        pool_slabs: started.pool_slabs,
        gives_memory: started.escape.is_some() && config.escape.memory_bytes > 0,
        escape: started.escape,
        congestion: congestion.view(),
        cache: Arc::clone(&started.cache),
        shape: SegmentShape::new(config.session.slots, config.session.messages),
        incarnation: started.incarnation,
        drain,
    });
    eprintln!(
        "jetd: listening on {}; control socket {}",
        started.listen.join(", "),
        config.control_socket.display()
    );
    started.cache.warm(&context.pool, config.reactor.cpu);
    let connections_max = config.limits.sessions as usize + ASKERS_MAX;
    let connections = Arc::new(Semaphore::new(connections_max));
    let mut draining = false;
    loop {
        let deadline_ms = tokio::select! {
            accepted = listener.accept() => {
                match accepted {
                    Ok((stream, _)) => match Arc::clone(&connections).try_acquire_owned() {
                        Ok(permit) => {
                            let context = Arc::clone(&context);
                            tokio::spawn(async move {
                                control::serve(context, stream).await;
                                drop(permit);
                            });
                        }
                        // Hung up at once: better than making everybody wait behind a crowd.
                        Err(_) => eprintln!("jetd: more than {connections_max} control connections; one is refused"),
                    },
                    Err(error) => {
                        // Out of descriptors, most likely: let those that are open finish first.
                        eprintln!("jetd: cannot accept a control connection: {error}");
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    }
                }
                continue;
            }
            _ = terminate.recv() => config.shutdown.drain_ms,
            _ = interrupt.recv() => config.shutdown.drain_ms,
            _ = hangup.recv() => config.shutdown.drain_ms,
            Some(deadline_ms) = drains.recv() => deadline_ms,
            result = &mut reactor_ended => {
                return match result {
                    Ok(Ok(())) if draining => Ok(()),
                    Ok(Err(source)) => Err(source.into()),
                    _ => Err(DaemonError::Reactor),
                };
            }
        };
        if draining {
            eprintln!("jetd: told twice; stopping at once");
            return Ok(());
        }
        eprintln!("jetd: draining, for at most {} s", deadline_ms.div_ceil(1000));
        draining = true;
        commands.send(Command::Drain { deadline_ms }).await;
    }
}

struct Started {
    /// Puts everything back when the last who knows of it lets go.
    cache: Arc<CacheControl>,
    pool: Arc<SharedMemory>,
    pool_slabs: u32,
    escape: Option<Arc<SharedMemory>>,
    /// Ends with the daemon.
    _preparing: Option<escape::Preparing>,
    listen: Vec<String>,
    incarnation: u64,
}

/// Makes the NIC that the configuration asks for, and starts the reactor on it.
fn start_reactor(
    config: &Config,
    commands: &Arc<Commands>,
    mark: Mark,
    inbox: CommandInbox,
    ended: oneshot::Sender<Result<(), reactor::RunError>>,
) -> Result<Started, DaemonError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threaded = match config.nic.thread {
        NicThread::On => true,
        NicThread::Off => false,
        NicThread::Auto => cores > 2,
    };
    let peers = config.limits.peers;
    let srq_entries = u32::try_from(config.pool.srq_bytes / jet_wire::SLAB_BYTES as u64).unwrap_or(u32::MAX);
    let options = SoftOptions {
        qps_max: peers + peers / 8 + 16,
        srq_entries_max: srq_entries,
        reads_max: config.read.concurrency,
        reads_per_qp_max: config.read.concurrency,
        // Every SRQ entry, every READ, and the few SENDs that each peer may have on the way.
        completions: srq_entries + config.read.concurrency + peers.saturating_mul(8) + 64,
        ..SoftOptions::default()
    };
    #[cfg(feature = "verbs")]
    if let Some(Address::Rdma(text)) = config.addresses()?.first() {
        let nic = verbs_nic(config, &options, text)?;
        let cache = CacheControl::start(
            &config.cache,
            config.pool.bytes,
            numa_node(config, &nic),
            &cores_of(config),
        )?;
        return launch(config, nic, false, cache, commands, mark, inbox, ended);
    }
    let nic = SoftNic::new(options).map_err(system("cannot make the software NIC"))?;
    let cache =
        CacheControl::start(&config.cache, config.pool.bytes, numa_node(config, &nic), &cores_of(config))?;
    if threaded {
        let options = ThreadedOptions {
            cpu: config.nic.cpu,
            sends_max: peers.saturating_mul(8) + 64,
            ..ThreadedOptions::default()
        };
        let nic =
            cache.inside(|| Threaded::new(nic, &options)).map_err(system("cannot start the NIC's thread"))?;
        launch(config, nic, true, cache, commands, mark, inbox, ended)
    } else {
        launch(config, nic, false, cache, commands, mark, inbox, ended)
    }
}

/// The cores that threads of the data are pinned to.
fn cores_of(config: &Config) -> Vec<usize> {
    config.reactor.cpu.into_iter().chain(config.nic.cpu).collect()
}

/// The node that the pool is to lie on, and near which its cache is.
fn numa_node<N: Nic>(config: &Config, nic: &N) -> Option<u32> {
    config.pool.numa_node.or(nic.limits().numa_node)
}

/// A NIC on verbs, of the sizes that the software NIC would have.
#[cfg(feature = "verbs")]
fn verbs_nic(config: &Config, sizes: &SoftOptions, listen: &str) -> Result<VerbsNic, DaemonError> {
    let defaults = match &config.rdma.device {
        Some(device) => VerbsOptions::on(DeviceChoice::Named {
            device: device.clone(),
            port: config.rdma.port.unwrap_or(1),
            gid_index: config.rdma.gid_index,
        }),
        None => VerbsOptions::reaching(listen).map_err(system("cannot resolve the address to listen on"))?,
    };
    Ok(VerbsNic::new(VerbsOptions {
        qps_max: sizes.qps_max,
        srq_entries_max: sizes.srq_entries_max,
        reads_max: sizes.reads_max,
        reads_per_qp_max: sizes.reads_per_qp_max,
        sends_max: sizes.completions - sizes.srq_entries_max - sizes.reads_max,
        // A daemon sends headers only.
        inline_places: 1,
        ..defaults
    })?)
}

/// Gives the NIC its memory, lets it listen, and starts the reactor's thread.
#[allow(clippy::too_many_arguments)] // each of another kind
fn launch<N: Nic + 'static>(
    config: &Config,
    mut nic: N,
    nic_thread: bool,
    cache: CacheControl,
    commands: &Arc<Commands>,
    mark: Mark,
    inbox: CommandInbox,
    ended: oneshot::Sender<Result<(), reactor::RunError>>,
) -> Result<Started, DaemonError> {
    let core = config.core(nic.limits().scatter_max)?;
    let numa_node = numa_node(config, &nic);
    let pool = pool_memory(config, numa_node)?;
    let header_bytes = core.srq_slabs as usize * HEADER_BYTES;
    let headers = SharedMemory::near("jet-headers", header_bytes, false, numa_node)
        .map(Arc::new)
        .map_err(system("cannot get memory for the header area"))?;
    let pool_key = nic.register(&pool, Access::LocalWrite)?;
    let headers_key = nic.register(&headers, Access::LocalWrite)?;
    let escape = match escape_memory(&core, numa_node) {
        Ok(region) => region,
        Err(error) => {
            // The receiver works without: Algorithm 1 goes to its next stage. Said here and in the status.
            eprintln!("jetd: {error}");
            let report = Command::EscapeMemory { ready_slabs: 0, error: Some(error.to_string()) };
            commands.send_blocking(report);
            None
        }
    };
    let escape_key = escape.as_ref().map(|region| nic.register(region, Access::LocalWrite)).transpose()?;
    pool.seal_future_writes()
        .map_err(system("cannot seal the pool against writing (Linux 5.1 or later is needed)"))?;
    let mut listen = Vec::new();
    for address in config.addresses()? {
        listen.push(nic.listen(&address)?.to_string());
        if let Address::Shm(path) = &address {
            // As the control socket: the owner and the group.
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))
                .map_err(system("cannot set the mode of the NIC's socket"))?;
        }
    }
    let incarnation = incarnation().map_err(system("cannot get random bytes"))?;
    let receiver = Receiver::new(core, incarnation).map_err(ConfigError::from)?;
    let epoll = Epoll::new(&nic.wait_fd(), &inbox.bell).map_err(system("cannot make an epoll"))?;
    let memory = PoolMemory { pool: Arc::clone(&pool), headers, pool_key, headers_key };
    let bell = Arc::clone(commands);
    let workers = cache
        .inside(|| Workers::start(config.escape.workers, core.copies_max as usize, move || bell.ring()))
        .map_err(system("cannot start the copying threads"))?;
    let preparing = escape
        .as_ref()
        .map(|region| {
            let commands = Arc::clone(commands);
            escape::prepare(Arc::clone(region), move |ready, error| {
                let error = error.map(|error| error.to_string());
                if let Some(error) = &error {
                    eprintln!("jetd: {error}");
                }
                let ready_slabs = u32::try_from(ready / jet_wire::SLAB_BYTES).unwrap_or(u32::MAX);
                commands.send_blocking(Command::EscapeMemory { ready_slabs, error });
            })
        })
        .transpose()
        .map_err(system("cannot start the thread that prepares escape memory"))?;
    let escape_hands = EscapeHands {
        memory: escape.clone().zip(escape_key),
        workers,
        congestion: Box::new(move |on| mark.set(on)),
    };
    let hands = Hands::new(nic, memory, escape_hands, &core, epoll);
    let options = ReactorOptions {
        cpu: config.reactor.cpu,
        spin_ns_max: config.reactor.spin_us_max.saturating_mul(1000),
        incarnation,
        listen: listen.clone(),
        pages: if pool.pages() == Pages::Huge { "huge" } else { "small" },
        numa_node,
        nic_thread,
    };
    let reactor = std::thread::Builder::new().name("jet-reactor".into());
    let run = move || {
        let result = Reactor::new(receiver, hands, inbox, options).run();
        // The control plane is gone only when the process is about to be.
        let _ = ended.send(result);
    };
    cache.inside(|| reactor.spawn(run)).map_err(system("cannot start the reactor's thread"))?;
    let cache = Arc::new(cache);
    Ok(Started {
        cache,
        pool,
        pool_slabs: core.pool_slabs,
        escape,
        _preparing: preparing,
        listen,
        incarnation,
    })
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
            Ok(elsewhere) => eprintln!(
                "jetd: {elsewhere} of the pool's {} bytes are not on NUMA node {node}, which has no room for them",
                pool.bytes()
            ),
            Err(error) => eprintln!("jetd: whether the pool is on NUMA node {node} cannot be told: {error}"),
        }
    }
    Ok(Arc::new(pool))
}

/// The region of escape memory, none of which is allocated yet; none where the configuration wants none.
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

fn incarnation() -> io::Result<u64> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Each sender costs a descriptor and each application four; take as many as the system allows.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Where this fails the limit stays; running out of descriptors is reported when it happens.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// A reactor that was to be pinned and is not would be a silent loss.
fn check_cpu(cpu: Option<usize>) -> Result<(), DaemonError> {
    let Some(cpu) = cpu else { return Ok(()) };
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if cores.iter().any(|core| core.id == cpu) {
        return Ok(());
    }
    let allowed: Vec<String> = cores.iter().map(|core| core.id.to_string()).collect();
    Err(DaemonError::Cpu { cpu, allowed: allowed.join(", ") })
}

/// Listens on the control socket: replaces a dead daemon's, respects a living one's.
fn bind_control(path: &Path) -> Result<UnixListener, DaemonError> {
    let failed = |source| DaemonError::ControlSocket { path: path.to_owned(), source };
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => return Err(DaemonError::Running { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // Connecting to an ordinary file is refused as well, and that is somebody's.
            if !std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
                return Err(DaemonError::NoSocket { path: path.to_owned() });
            }
            std::fs::remove_file(path).map_err(failed)?;
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Whoever may connect may read every message in the pool: the owner and the group.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
    Ok(listener)
}

/// Removes the control socket at the end, if it is still ours.
struct RemoveOnDrop {
    path: PathBuf,
    inode: Option<u64>,
}

impl RemoveOnDrop {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), inode: inode(path) }
    }
}

fn inode(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    std::fs::symlink_metadata(path).ok().map(|metadata| metadata.ino())
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if self.inode.is_some() && inode(&self.path) == self.inode {
            // Gone already is as good.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

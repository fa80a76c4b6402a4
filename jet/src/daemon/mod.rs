//! The daemon: a reactor thread moves the data, and a tokio runtime runs the control plane.

mod audit;
pub mod cache;
pub mod config;
pub mod congestion;
mod control;
mod control_socket;
mod drain;
pub mod escape;
mod launch;
mod peer_process;
pub mod rdma;
mod reactor;
pub mod rights;
pub mod status;

pub use config::{Config, ConfigError};
#[cfg(feature = "verbs")]
pub use launch::verbs_options;

use crate::log;
use crate::output::print;
use cache::CacheError;
use congestion::CongestionControl;
use control::places::{Places, Room, Source};
use control::{ControlContext, Entrance, log_made_room, refuse_connection};
use control_socket::{ADMIN_MODE, RemoveOnDrop, SOCKET_MODE};
use drain::{Asked, Drain};
use jet_fabric::advice::{Advised, advised};
use jet_fabric::limits::LimitError;
use jet_fabric::nic::{ListenError, RegisterError};
#[cfg(feature = "verbs")]
use jet_fabric::verbs::VerbsError;
use launch::Launch;
use rdma::RdmaLogger;
use reactor::{Command, Commands, Ringer};
use rights::{ReadRights, RightsKeeper, accounts};
use status::{Sources, StatusCache};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::net::unix::SocketAddr;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// The daemon's arguments, which override the configuration file.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct DaemonArgs {
    /// Configuration file (TOML); without one the defaults hold, which are the paper's
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Listen here instead of where the configuration says: shm:/path/nic.sock or tcp:host:port, or, in a
    /// build with verbs, rdma:host:port without the other two; may be repeated
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

/// Reason why the daemon did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Another daemon listens on the control socket.
    #[error("a daemon is running already on {}; stop it, or give this one another \
             --control-socket", path.display())]
    Running {
        /// Path of the control socket.
        path: PathBuf,
    },
    /// The control socket's path belongs to a file that is not a socket.
    #[error("{} exists and is no socket; move it away, or choose another --control-socket", path.display())]
    NoSocket {
        /// Path of that file.
        path: PathBuf,
    },
    /// The control socket cannot be created.
    #[error("cannot make the control socket {}: \
             {}", path.display(), Advised { error: source, otherwise: SOCKET_ADVICE })]
    ControlSocket {
        /// Path of the control socket.
        path: PathBuf,
        /// Error from the system.
        source: io::Error,
    },
    /// A setting that the section `[cache]` asks for failed, and `cache.reserve` is `require`.
    #[error("cache.reserve = \"require\": {0}")]
    Cache(#[from] CacheError),
    /// Congestion control cannot start.
    #[error(transparent)]
    Congestion(#[from] congestion::StartError),
    /// The NIC cannot listen on an address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The NIC cannot register the memory of the pool, its headers, or escape memory.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The device that `nic.profile` names lacks something that the software NIC needs.
    #[error("cannot make a software NIC that keeps to nic.profile: {}", config::error_text::of_profile(.0))]
    Profile(LimitError),
    /// The NIC on verbs cannot be created.
    #[cfg(feature = "verbs")]
    #[error("{}", config::error_text::of_verbs(.0))]
    Verbs(#[from] VerbsError),
    /// Memory for the pool cannot be allocated.
    #[error("cannot get {bytes} bytes of memory for the pool (pool.bytes): {source}")]
    Pool {
        /// Requested size of the pool.
        bytes: u64,
        /// Error from the system.
        source: io::Error,
    },
    /// The system cannot place the pool on its NUMA node.
    #[error(
        "cannot get {bytes} bytes of memory for the pool (pool.bytes) on NUMA node {node}: {source}; the \
         nodes are in /sys/devices/system/node, and pool.numa_node names another"
    )]
    PoolNear {
        /// Requested size of the pool.
        bytes: u64,
        /// Number of the NUMA node.
        node: u32,
        /// Error from the system.
        source: io::Error,
    },
    /// The configuration requires huge pages for the pool, and too few are free.
    #[error(
        "pool.huge_pages = \"require\", but there are no {needed} free 2 MiB pages; \
             reserve them (sysctl vm.nr_hugepages={needed}) or set it to \"auto\""
    )]
    HugePages {
        /// Number of 2 MiB pages that the pool needs.
        needed: u64,
    },
    /// A call to the system failed for which there is no error of its own.
    #[error("{what}: {}", advised(source))]
    System {
        /// Name of the action that failed, for the error's text.
        what: &'static str,
        /// Error from the system.
        source: io::Error,
    },
    /// The reactor's thread cannot be pinned to the configured core.
    #[error("reactor.cpu = {cpu}: no such core, or this process may not use it; cores it may use: {allowed}")]
    Cpu {
        /// Core that `reactor.cpu` names.
        cpu: usize,
        /// Cores that this process may use.
        allowed: String,
    },
    /// The reactor ended before it was told to, and gave a reason.
    #[error(transparent)]
    Run(#[from] reactor::RunError),
    /// The reactor ended before it was told to, without a reason. The daemon's last log lines may say more.
    #[error("the reactor stopped unexpectedly; the log lines before this one say why")]
    Reactor,
}

const SOCKET_ADVICE: &str = "its directory must exist and be writable (as root: mkdir -p /run/jet), or \
                             choose another with --control-socket";

fn system(what: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |source| DaemonError::System { what, source }
}

impl DaemonArgs {
    /// Loads the configuration: the file, then the overrides from these arguments.
    ///
    /// # Errors
    /// Returns [`ConfigError`] if the file cannot be read or a value is invalid.
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
        config.check_sockets()?;
        Ok(config)
    }
}

/// Runs the daemon with these arguments, or prints its configuration. Errors go to the log.
pub fn run_from_args(args: &DaemonArgs) -> ExitCode {
    let result = args.load().map_err(DaemonError::from).and_then(|config| {
        if args.print_config {
            print(&config.to_toml()?);
            return Ok(());
        }
        log::configure(&config.log);
        let args = args.clone();
        run(&config, Arc::new(move || Ok(args.load()?.rights)))
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the daemon until it is told to stop: by SIGTERM, SIGINT, SIGHUP, or `jet drain`. `read_rights` reads
/// the rights again, where an operator asks for that.
///
/// # Errors
/// Returns [`DaemonError`] if the daemon cannot start, or the reactor ends too early.
fn run(config: &Config, read_rights: ReadRights) -> Result<(), DaemonError> {
    // Each sender takes one descriptor, and each application four.
    crate::descriptors::raise_limit();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("cannot start the control plane"))?;
    let result = runtime.block_on(run_control_plane(config, read_rights));
    // A database of users that does not answer must not keep the daemon from ending.
    runtime.shutdown_background();
    result
}

/// Logs lines about the RDMA port. The first word of such a line stands for its kind: what happened to the
/// port, to an address or to a sender.
fn log_rdma(lines: &[String]) {
    for line in lines {
        let kind = line.split(' ').next();
        tracing::info!(kind, "{line}");
    }
}

/// Control connections closed for others after which accepting pauses.
const CLOSED_PER_PAUSE: u32 = 16;
/// Time for which accepting pauses.
const ACCEPT_PAUSE: Duration = Duration::from_millis(1);
/// Time until the next try after the system had nothing left for another control connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Runs the control plane: starts the reactor, serves the control socket, and ends both when the daemon
/// stops.
async fn run_control_plane(config: &Config, read_rights: ReadRights) -> Result<(), DaemonError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(system("cannot watch for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("cannot watch for SIGINT"))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(system("cannot watch for SIGHUP"))?;
    check_cpu(config.reactor.cpu)?;
    let rights = accounts::resolve(&config.rights).map_err(ConfigError::from)?;
    let admin_socket = config.admin_socket();
    let listener = control_socket::bind(&config.control_socket, SOCKET_MODE)?;
    let _socket = RemoveOnDrop::new(&config.control_socket);
    let admin_listener = control_socket::bind(&admin_socket, ADMIN_MODE)?;
    let _admin_socket = RemoveOnDrop::new(&admin_socket);
    // Dropping this restores the NIC's settings, whichever way this function returns.
    let congestion = CongestionControl::start(&config.congestion, &config.control_socket)?;
    let (commands, inbox) = Commands::new().map_err(system("cannot make the command queue"))?;
    let ringer = Ringer::start(config.limits.sessions).map_err(system("cannot start a thread"))?;
    let drain = Arc::new(Drain::new(Duration::from_millis(config.shutdown.drain_ms)));
    let (ended, mut reactor_ended) = oneshot::channel();
    let started =
        Launch { config, commands: &commands, inbox, wish: congestion.wish_handle(), ended }.start()?;
    tracing::info!(
        "listening on {}; control socket {}",
        started.about.listen.join(", "),
        config.control_socket.display()
    );
    let context = Arc::new(ControlContext {
        commands: Arc::clone(&commands),
        pool: started.pool,
        pool_slabs: started.pool_slabs,
        gives_memory: started.escape.is_some() && config.escape.memory_bytes > 0,
        escape: started.escape,
        ringer,
        cache: Arc::clone(&started.cache),
        shape: config.segment_shape(),
        incarnation: started.about.incarnation,
        status: StatusCache::start(Sources {
            commands: Arc::clone(&commands),
            about: started.about,
            congestion: congestion.view(),
            cache: started.cache.view(),
            rdma: started.rdma.clone(),
        }),
        drain: Arc::clone(&drain),
        rights: RightsKeeper::new(rights, read_rights),
        control_socket: config.control_socket.clone(),
        admin_socket,
    });
    let mut rdma = RdmaLogger::new(started.rdma);
    log_rdma(&rdma.changes());
    started.cache.warm(&context.pool, config.reactor.cpu);
    let mut door = Door::new(&context, Entrance::Applications);
    let mut admin_door = Door { others: Some(door.places.clone()), ..Door::new(&context, Entrance::Admin) };
    let (mut draining, mut interrupted) = (false, false);
    loop {
        tokio::select! {
            accepted = listener.accept() => door.open_to(accepted).await,
            accepted = admin_listener.accept() => admin_door.open_to(accepted).await,
            () = rdma.changed() => log_rdma(&rdma.changes()),
            _ = terminate.recv() => log_repeated_drain("SIGTERM", drain.ask(None)),
            _ = hangup.recv() => log_repeated_drain("SIGHUP", drain.ask(None)),
            _ = interrupt.recv() => {
                if std::mem::replace(&mut interrupted, true) {
                    tracing::info!("SIGINT a second time; stopping at once");
                    return Ok(());
                }
                log_repeated_drain("SIGINT", drain.ask(None));
            }
            left = drain.asked() => {
                let now = if std::mem::replace(&mut draining, true) { "now " } else { "" };
                tracing::info!("draining, {now}for at most {} s", whole_seconds(left));
                let deadline_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                commands.send(Command::Drain { deadline_ms }).await;
            }
            result = &mut reactor_ended => {
                return match result {
                    Ok(Ok(())) if draining => Ok(()),
                    Ok(Err(source)) => Err(source.into()),
                    _ => Err(DaemonError::Reactor),
                };
            }
        }
    }
}

/// Accepting of connections at one of the two sockets, which has places of its own.
struct Door {
    context: Arc<ControlContext>,
    entrance: Entrance,
    places: Places,
    /// Places at the other socket, where connections go for want of descriptors, too.
    others: Option<Places>,
    /// Connections closed for others since the last pause.
    closed: u32,
}

impl Door {
    fn new(context: &Arc<ControlContext>, entrance: Entrance) -> Self {
        Self { context: Arc::clone(context), entrance, places: Places::new(), others: None, closed: 0 }
    }

    /// Lets in whoever was accepted, and pauses where that is due.
    async fn open_to(&mut self, accepted: io::Result<(UnixStream, SocketAddr)>) {
        let pause = match accepted {
            Ok((stream, _)) => self.let_in(stream),
            Err(error) => Some(self.make_room(&error)),
        };
        // Waiting also lets connections end whose places were taken.
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }

    /// Gives a connection a place and serves it, or refuses it. Returns for how long accepting is to pause.
    fn let_in(&mut self, stream: UnixStream) -> Option<Duration> {
        let source = Source::of(&stream);
        let stream = Arc::new(stream);
        let entered = self.places.enter(Arc::clone(&stream) as _, source, Instant::now());
        match entered {
            Some((place, gone)) => {
                self.closed += u32::from(gone.is_some());
                gone.into_iter().for_each(log_made_room);
                tokio::spawn(control::serve(Arc::clone(&self.context), stream, place, self.entrance));
            }
            None => {
                self.closed += 1;
                refuse_connection(&stream, source);
            }
        }
        (self.closed >= CLOSED_PER_PAUSE).then(|| {
            self.closed = 0;
            ACCEPT_PAUSE
        })
    }

    /// Closes the connection that has been idle longest, after the system had no descriptor for another.
    fn make_room(&self, error: &io::Error) -> Duration {
        tracing::warn!("cannot accept a control connection: {}", advised(error));
        let now = Instant::now();
        let others = || self.others.as_ref().and_then(|others| others.make_room(now));
        match self.places.make_room(now).or_else(others) {
            Some(room) => {
                if let Room::MadeBy(gone) = room {
                    log_made_room(gone);
                }
                // The connections' tasks give the descriptors back.
                ACCEPT_PAUSE
            }
            None => ACCEPT_AGAIN,
        }
    }
}

/// Logs a signal that asked for a drain while the daemon was draining already.
fn log_repeated_drain(signal: &str, asked: Asked) {
    if asked.again {
        tracing::info!(
            "{signal} while draining, which goes on for at most {} s; SIGINT twice, or jet drain --deadline \
             0, stops at once",
            whole_seconds(asked.left)
        );
    }
}

fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

/// Checks that this process may use the core to which the reactor is to be pinned. Running unpinned would be
/// a silent loss of performance.
fn check_cpu(cpu: Option<usize>) -> Result<(), DaemonError> {
    let Some(cpu) = cpu else { return Ok(()) };
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    if cores.iter().any(|core| core.id == cpu) {
        return Ok(());
    }
    let allowed: Vec<String> = cores.iter().map(|core| core.id.to_string()).collect();
    Err(DaemonError::Cpu { cpu, allowed: allowed.join(", ") })
}

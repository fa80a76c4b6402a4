//! A rig, the receiver that is measured: the daemon and an application as processes of their own, started
//! from this binary.

use crate::alone::{self, PassArgs, StampingArgs};
use crate::connections::{self, IdleArgs};
use crate::consumer::{self, ConsumerArgs, Order, Reading, Report};
use crate::core_cost::{self, CountedArgs};
use crate::membw;
use crate::others::{bad_sender, crowd, proxy};
use crate::residency::conventional::{self, ConventionalArgs};
use crate::residency::touched::{Marks, Touched};
use jet::child_process::{ChildProcess, this_program};
use jet::daemon::DaemonArgs;
use jet_cat::CpuSet;
use jet_client::receive::{RegisterOptions, Session};
use jet_control::ControlConnection;
use jet_control::status::Status;
use jet_fabric::Address;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Name under which a rig's application registers.
pub const APP: &str = "bench";
/// Name of the fabric of a rig that listens over `shm:` and over `tcp:`.
pub const BOTH_FABRICS: &str = "shm and tcp";
/// File in the rig's folder that takes the daemon's log.
const LOG: &str = "jetd.log";
const START_LIMIT: Duration = Duration::from_secs(20);

/// Roles in which this binary runs as a process of a rig.
#[derive(clap::Subcommand)]
pub enum Role {
    /// The daemon
    Daemon(DaemonArgs),
    /// An application that receives messages
    App {
        /// The daemon's socket
        #[arg(long)]
        control_socket: PathBuf,
        /// Read the bytes of messages; otherwise only release them
        #[arg(long)]
        read: bool,
        /// The core that the application stays on
        #[arg(long)]
        core: Option<u32>,
        /// File in which the application marks the pages that it reads
        #[arg(long)]
        touched: Option<PathBuf>,
    },
    /// Connected senders that send nothing
    IdleSenders(IdleArgs),
    /// The receiver's state machine, in a process whose instructions are counted
    Counted(CountedArgs),
    /// Two connected NICs over verbs, in a process whose system calls are counted
    #[cfg(feature = "verbs")]
    VerbsBare {
        /// An IP address of the RDMA device
        address: std::net::IpAddr,
    },
    /// A receiver as RDMA applications are usually written
    Conventional(ConventionalArgs),
    /// A process that takes memory bandwidth
    Membw {
        #[command(flatten)]
        args: membw::Args,
        /// The core that the process stays on
        #[arg(long)]
        core: u32,
    },
    /// An application that holds slices, checks them, and stops reading on order
    Consumer(ConsumerArgs),
    /// A sender that keeps large messages outstanding
    BadSender(bad_sender::BadSenderArgs),
    /// What slows a sender down
    Proxy(proxy::ProxyArgs),
    /// Connections that behave badly
    Crowd(crowd::CrowdArgs),
    /// An application that notes when it has each message
    Stamping(StampingArgs),
    /// A process that passes a number on
    Pass(PassArgs),
}

/// Returns a daemon's default limit of READs at once (Jet §4.1).
pub fn reads_max() -> u32 {
    jet_core::Config::default().reads_max
}

/// Returns how many of these READs one sender may have at once.
pub fn reads_of_a_sender_max() -> u32 {
    reads_max() * jet_core::Config::default().peer_share_percent / 100
}

/// A daemon, and possibly an application. Both processes end when the rig is dropped.
pub struct Rig {
    // In the order in which they end: an application first, and the folder once nobody uses it.
    app: Option<ChildProcess>,
    daemon: ChildProcess,
    directory: tempfile::TempDir,
}

impl Rig {
    /// Starts a daemon that listens over `fabric` and an application, and waits until both are up. `read`:
    /// the application reads all bytes.
    ///
    /// # Errors
    /// An error of the system, or that they were not up in time.
    pub fn start(fabric: &str, read: bool, settings: &[String]) -> io::Result<Self> {
        Self::start_on(fabric, read, settings, None, None)
    }

    /// Starts a rig like [`Self::start`]. `core`: the core that the application stays on. `touched`: where
    /// the application marks what it reads.
    ///
    /// # Errors
    /// As of [`Self::start`].
    pub fn start_on(
        fabric: &str,
        read: bool,
        settings: &[String],
        core: Option<u32>,
        touched: Option<&Touched>,
    ) -> io::Result<Self> {
        let mut rig = Self::start_daemon(fabric, settings)?;
        let mut app = role("app")?;
        app.arg("--control-socket").arg(rig.control_socket());
        if read {
            app.arg("--read");
        }
        if let Some(core) = core {
            app.args(["--core", &core.to_string()]);
        }
        if let Some(touched) = touched {
            app.arg("--touched").arg(touched.path());
        }
        let mut app = ChildProcess::start(app)?;
        let up = wait_until(&mut app, || rig.status().is_ok_and(|status| status.session_count > 0));
        rig.app = Some(app);
        up.map(|()| rig)
    }

    /// Starts a rig without an application: a daemon that listens over `fabric`. Waits until the daemon is
    /// up.
    ///
    /// # Errors
    /// An error of the system, or that the daemon was not up in time, with the daemon's log.
    pub fn start_daemon(fabric: &str, settings: &[String]) -> io::Result<Self> {
        let directory = crate::interrupt::folder()?;
        let socket = directory.path().join("jetd.sock");
        let shm = format!("shm:{}", directory.path().join("nic.sock").display());
        let tcp = "tcp:127.0.0.1:0".to_owned();
        let listen = match fabric {
            "tcp" => vec![tcp],
            BOTH_FABRICS => vec![shm, tcp],
            address if address.starts_with("rdma:") => vec![address.to_owned()],
            _ => vec![shm],
        };
        let mut daemon = role("daemon")?;
        daemon.arg("--control-socket").arg(&socket).stderr(File::create(directory.path().join(LOG))?);
        for address in listen {
            daemon.arg("--listen").arg(address);
        }
        for setting in settings {
            daemon.arg("--set").arg(setting);
        }
        let mut rig = Self { app: None, daemon: ChildProcess::start(daemon)?, directory };
        let up = wait_until(&mut rig.daemon, || ControlConnection::connect(&socket).is_ok());
        match up {
            Ok(()) => Ok(rig),
            // The daemon's log says why.
            Err(error) => {
                let said = std::fs::read_to_string(rig.directory.path().join(LOG)).unwrap_or_default();
                Err(io::Error::new(error.kind(), format!("{error}\n{}", said.trim_end())))
            }
        }
    }

    /// Returns the path of the daemon's control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.directory.path().join("jetd.sock")
    }

    /// Asks the daemon for its status.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn status(&self) -> io::Result<Status> {
        let mut control = ControlConnection::connect(&self.control_socket()).map_err(io::Error::other)?;
        control.status().map_err(io::Error::other)
    }

    /// Returns the address that senders connect to.
    ///
    /// # Errors
    /// The daemon does not answer, or listens nowhere.
    pub fn address(&self) -> io::Result<Address> {
        let status = self.status()?;
        let text = status.listen.first().ok_or_else(|| io::Error::other("the daemon listens nowhere"))?;
        text.parse().map_err(io::Error::other)
    }

    /// Returns the address that senders over `fabric` connect to, `shm` or `tcp`.
    ///
    /// # Errors
    /// The daemon does not answer, or does not listen over `fabric`.
    pub fn address_over(&self, fabric: &str) -> io::Result<Address> {
        let status = self.status()?;
        let text = status.listen.iter().find(|text| text.split(':').next() == Some(fabric));
        let text =
            text.ok_or_else(|| io::Error::other(format!("the daemon does not listen over {fabric}")))?;
        text.parse().map_err(io::Error::other)
    }

    /// Returns the daemon's process id.
    pub fn daemon_pid(&self) -> u32 {
        self.daemon.id()
    }

    /// Returns the application's process id, if there is an application.
    pub fn app_pid(&self) -> Option<u32> {
        self.app.as_ref().map(ChildProcess::id)
    }

    /// Returns the processes of the rig, the daemon's first.
    pub fn processes(&self) -> impl Iterator<Item = &ChildProcess> {
        std::iter::once(&self.daemon).chain(&self.app)
    }
}

/// Starts a process that takes `rate` GB/s of memory bandwidth on a core.
///
/// # Errors
/// An error of the system.
pub fn start_membw(rate: f64, core: u32) -> io::Result<ChildProcess> {
    let mut command = role("membw")?;
    command.args([format!("--rate={rate}"), format!("--core={core}")]);
    ChildProcess::start(command)
}

/// An application as a process of its own, which stops reading on order. The process ends when this handle is
/// dropped.
pub struct ConsumerProcess {
    /// The application's process.
    pub child: ChildProcess,
    orders: ChildStdin,
    reports: ChildStdout,
}

impl ConsumerProcess {
    /// Starts an application's process and waits until the application is registered with the rig's daemon.
    ///
    /// # Errors
    /// An error of the system, or that the application did not register.
    pub fn start(rig: &Rig, app: &str, reading: Reading) -> io::Result<Self> {
        let reading = clap::ValueEnum::to_possible_value(&reading).expect("no value is skipped");
        let mut command = role("consumer")?;
        command
            .arg("--control-socket")
            .arg(rig.control_socket())
            .args(["--app", app, "--reading", reading.get_name(), "--side-by-side"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = ChildProcess::start(command)?;
        let (Some(orders), Some(reports)) = (child.take_stdin(), child.take_stdout()) else {
            unreachable!("both are pipes");
        };
        let mut process = Self { child, orders, reports };
        consumer::read_report(&mut process.reports)?;
        Ok(process)
    }

    /// Sends an order to the application's process and waits for its report.
    ///
    /// # Errors
    /// An error of the system, or that the process ended.
    pub fn order(&mut self, order: Order) -> io::Result<Report> {
        let mut line = serde_json::to_vec(&order)?;
        line.push(b'\n');
        self.orders.write_all(&line)?;
        consumer::read_report(&mut self.reports)
    }
}

/// Returns the path by which a child process opens a file of this process that has no name.
pub fn path_for_children(file: &impl AsFd) -> PathBuf {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_fd().as_raw_fd()).into()
}

/// Returns a command that runs this binary in a role, without standard input and output. The caller adds the
/// role's arguments.
///
/// # Errors
/// An error of the system.
pub fn role(name: &str) -> io::Result<Command> {
    let mut command = this_program()?;
    command.args(["role", name]).stdout(Stdio::null());
    Ok(command)
}

fn wait_until(child: &mut ChildProcess, mut ready: impl FnMut() -> bool) -> io::Result<()> {
    let deadline = Instant::now() + START_LIMIT;
    while !ready() {
        if let Some(status) = child.ended()? {
            return Err(io::Error::other(format!("a process of the rig ended at its start: {status}")));
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the daemon or the application did not come up",
            ));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Runs this process in a role until the role ends.
pub fn run_role(role: &Role) -> ExitCode {
    let result = match role {
        Role::Daemon(args) => return jet::daemon::run_from_args(args),
        Role::App { control_socket, read, core, touched } => {
            stay_on(*core).and_then(|()| application(control_socket.clone(), *read, touched.as_deref()))
        }
        Role::IdleSenders(args) => connections::run_role(args),
        Role::Counted(args) => {
            core_cost::run_role(args);
            Ok(())
        }
        Role::Conventional(args) => stay_on(args.core).and_then(|()| conventional::run_role(args)),
        Role::Membw { args, core } => stay_on(Some(*core)).and_then(|()| membw::run_role(*args)),
        Role::Consumer(args) => consumer::run_role(args),
        Role::BadSender(args) => bad_sender::run_role(args),
        Role::Proxy(args) => proxy::run_role(args),
        Role::Crowd(args) => crowd::run_role(args),
        Role::Stamping(args) => alone::run_stamping(args),
        Role::Pass(args) => alone::run_passing(args),
        #[cfg(feature = "verbs")]
        Role::VerbsBare { address } => crate::verbs::run_role(*address),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "jet-bench: application: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Keeps this process on the core `core`, if one is given.
///
/// # Errors
/// The system refuses.
fn stay_on(core: Option<u32>) -> Result<(), Box<dyn std::error::Error>> {
    let Some(core) = core else { return Ok(()) };
    let pinning = CpuSet::from_iter([core]).pin_thread();
    // For the life of the process.
    pinning.map(std::mem::forget).map_err(|error| format!("cannot run on core {core}: {error}").into())
}

fn application(
    control_socket: PathBuf,
    read: bool,
    touched: Option<&Path>,
) -> Result<(), Box<dyn std::error::Error>> {
    let marks = touched.map(Marks::open).transpose()?;
    let options = RegisterOptions::new(APP).control_socket(control_socket);
    let session = Session::register(&options)?;
    let mut sum = 0u64;
    loop {
        let mut message = session.receive()?;
        while let Some(slice) = message.next()? {
            if let Some(marks) = &marks {
                marks.mark(&slice);
            }
            if read {
                sum = sum.wrapping_add(read_all(&slice));
            }
        }
        std::hint::black_box(sum);
    }
}

/// Reads every byte once, as fast as the machine loads. Jet's application and the bare limit use the same
/// loop.
pub fn read_all(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
    rest.iter().fold(sum, |sum, &byte| sum.wrapping_add(u64::from(byte)))
}

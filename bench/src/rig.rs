//! A receiver to measure: the daemon and an application as processes of their own, started from this very binary.

use jet::daemon::DaemonArgs;
use jet_client::receive::{RegisterOptions, Session};
use jet_client::registration::{ControlConnection, ControlRequest, ControlResponse};
use jet_fabric::Address;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The application's name.
pub const APP: &str = "bench";
const START_LIMIT: Duration = Duration::from_secs(20);

/// What a process of the rig does.
#[derive(clap::Subcommand)]
pub enum Role {
    /// The daemon
    Daemon(DaemonArgs),
    /// An application that takes what comes
    App {
        /// The daemon's socket
        #[arg(long)]
        control_socket: PathBuf,
        /// Whether it reads the bytes, or only releases them
        #[arg(long)]
        read: bool,
    },
}

/// A daemon and an application. Both end when this is dropped.
pub struct Rig {
    directory: tempfile::TempDir,
    daemon: Child,
    app: Child,
}

impl Rig {
    /// Starts both and waits until they stand.
    ///
    /// # Errors
    /// What the system says, or that they did not come up in time.
    pub fn start(fabric: &str, read: bool, settings: &[String]) -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let socket = directory.path().join("jetd.sock");
        let listen = match fabric {
            "tcp" => "tcp:127.0.0.1:0".to_owned(),
            _ => format!("shm:{}", directory.path().join("nic.sock").display()),
        };
        let mut daemon = role();
        daemon
            .arg("daemon")
            .arg("--listen")
            .arg(listen)
            .arg("--control-socket")
            .arg(&socket)
            .stderr(Stdio::null());
        for setting in settings {
            daemon.arg("--set").arg(setting);
        }
        let daemon = daemon.spawn()?;
        let mut app = role();
        app.arg("app").arg("--control-socket").arg(&socket);
        if read {
            app.arg("--read");
        }
        let deadline = Instant::now() + START_LIMIT;
        wait_until(deadline, || ControlConnection::connect(&socket).is_ok())?;
        let rig = Self { directory, daemon, app: app.spawn()? };
        wait_until(deadline, || {
            rig.status().is_ok_and(|s| s["sessions"].as_array().is_some_and(|all| !all.is_empty()))
        })?;
        Ok(rig)
    }

    /// What the daemon says of itself.
    ///
    /// # Errors
    /// Where it does not answer.
    pub fn status(&self) -> io::Result<serde_json::Value> {
        let socket = self.directory.path().join("jetd.sock");
        let mut control = ControlConnection::connect(&socket).map_err(io::Error::other)?;
        match control.request(&ControlRequest::Status).map_err(io::Error::other)?.0 {
            ControlResponse::Status { status } => Ok(status),
            other => Err(io::Error::other(format!("unexpected answer: {other:?}"))),
        }
    }

    /// Where senders connect.
    ///
    /// # Errors
    /// Where the daemon does not answer.
    pub fn address(&self) -> io::Result<Address> {
        let status = self.status()?;
        let text = status["listen"][0].as_str().unwrap_or_default();
        text.parse().map_err(io::Error::other)
    }

    /// The daemon's process.
    pub fn daemon_pid(&self) -> u32 {
        self.daemon.id()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for child in [&mut self.app, &mut self.daemon] {
            // A child that ended by itself has been noticed by its silence already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// This binary again, in a role; it ends with this process.
fn role() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into()));
    command.arg("role").stdin(Stdio::null()).stdout(Stdio::null());
    // SAFETY: `prctl` is async-signal-safe and touches nothing of the parent.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command
}

fn wait_until(deadline: Instant, mut ready: impl FnMut() -> bool) -> io::Result<()> {
    while !ready() {
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

/// Lives a role.
pub fn live(role: &Role) -> ExitCode {
    let result = match role {
        Role::Daemon(args) => return jet::daemon::run_from_args(args),
        Role::App { control_socket, read } => application(control_socket.clone(), *read),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "jet-bench: application: {error}");
            ExitCode::FAILURE
        }
    }
}

fn application(control_socket: PathBuf, read: bool) -> Result<(), Box<dyn std::error::Error>> {
    let options = RegisterOptions { control_socket, ..RegisterOptions::new(APP) };
    let session = Session::register(&options)?;
    let mut sum = 0u64;
    while let Some(mut message) = session.receive(None)? {
        while let Some(slice) = message.next(None)? {
            if read {
                sum = sum.wrapping_add(read_all(&slice));
            }
        }
    }
    std::hint::black_box(sum);
    Ok(())
}

/// Reads every byte once, as fast as the machine loads: the same for Jet's application and for the bare limit.
pub fn read_all(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
    rest.iter().fold(sum, |sum, &byte| sum.wrapping_add(u64::from(byte)))
}

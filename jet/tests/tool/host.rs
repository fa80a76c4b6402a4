//! Host on which the tests run the tool: a daemon, receivers and senders, in a directory of the test's own.

use jet_control::status::Status;
use jet_test_support::daemon;
use jet_test_support::device::{device_address, source_for};
use jet_test_support::folder::Folder;
use jet_test_support::port::Port;
use jet_test_support::process::Process;
use jet_test_support::waiting::{PAUSE, until};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Path of the tool's binary.
const JET: &str = env!("CARGO_BIN_EXE_jet");

/// Host of a test: a directory with a daemon's sockets, trees and logs.
pub struct Host {
    pub folder: Folder,
    /// Reservation that keeps the port from other tests.
    _port: Option<Port>,
    listen: String,
}

impl Host {
    /// Makes a host whose daemon will listen on `fabric`: shm or tcp. Where the environment names an RDMA
    /// device, everything runs on verbs.
    pub fn new(fabric: &str) -> Self {
        let device = device_address();
        if device.is_none() && fabric == "shm" {
            return Self::on_shm();
        }
        let port = Port::take();
        let host = device.map_or_else(|| "tcp:127.0.0.1".to_owned(), |host| format!("rdma:{host}"));
        let listen = format!("{host}:{}", port.number());
        Self { folder: Folder::new(), _port: Some(port), listen }
    }

    /// Makes a host whose daemon will listen on `shm:`, whatever the environment names.
    pub fn on_shm() -> Self {
        let folder = Folder::new();
        let listen = format!("shm:{}", folder.join("nic.sock").display());
        Self { folder, _port: None, listen }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn address(&self) -> &str {
        &self.listen
    }

    pub fn control(&self) -> PathBuf {
        self.path("jetd.sock")
    }

    pub fn start(&self, arguments: &[&OsStr]) -> Process {
        self.start_with(arguments, |_| {})
    }

    /// Starts the tool after `prepare` changed the command.
    pub fn start_with(&self, arguments: &[&OsStr], prepare: impl FnOnce(&mut Command)) -> Process {
        let mut command = Command::new(JET);
        command.args(arguments);
        self.folder.start_with(&arguments[0].to_string_lossy(), command, prepare)
    }

    /// Starts a daemon and waits until it answers.
    pub fn daemon(&self) -> Process {
        self.daemon_with(&[])
    }

    /// Starts a daemon like [`Self::daemon`], with settings such as `read.checksums=off`.
    pub fn daemon_with(&self, settings: &[&str]) -> Process {
        self.daemon_prepared(settings, |_| {})
    }

    /// Starts a daemon like [`Self::daemon_with`], after `prepare` changed the command.
    pub fn daemon_prepared(&self, settings: &[&str], prepare: impl FnOnce(&mut Command)) -> Process {
        let control = self.control();
        let settings = [&["session.quarantine_ms=200"], settings].concat();
        let command = daemon::command(JET, &["daemon"], &control, &[&self.listen], &settings);
        let daemon = self.folder.start_with("daemon", command, prepare);
        daemon::wait_answer(&daemon, &control);
        daemon
    }

    /// Starts `jet recv --app store --out OUT --json` with more options, and waits until it is registered.
    pub fn recv(&self, out: &Path, options: &[&str]) -> Process {
        self.recv_with(out, options, |_| {})
    }

    pub fn recv_with(&self, out: &Path, options: &[&str], prepare: impl FnOnce(&mut Command)) -> Process {
        let recv = self.recv_unwatched(out, options, prepare);
        until("the receiver to register", || {
            assert!(recv.is_running(), "{} ended: {}", recv.id(), recv.stderr_text());
            self.status().filter(|status| !status.rows.sessions.is_empty())
        });
        recv
    }

    /// Starts `jet recv` like [`Self::recv_with`], without waiting.
    pub fn recv_unwatched(
        &self,
        out: &Path,
        options: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Process {
        let control = self.control();
        let os = OsStr::new;
        let mut arguments = vec![os("recv"), os("--app"), os("store"), os("--out"), out.as_os_str()];
        arguments.extend([os("--control-socket"), control.as_os_str(), os("--json")]);
        arguments.extend(options.iter().map(|option| os(option)));
        self.start_with(&arguments, prepare)
    }

    /// Starts `jet send` of these paths, with more options.
    pub fn send(&self, paths: &[&Path], options: &[&str]) -> Process {
        self.send_with(paths, options, |_| {})
    }

    pub fn send_with(
        &self,
        paths: &[&Path],
        options: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Process {
        let os = OsStr::new;
        let mut arguments =
            vec![os("send"), os("--to"), os(&self.listen), os("--app"), os("store"), os("--json")];
        let source = source_for(&self.listen.parse().expect("an address")).map(|source| source.to_string());
        if let Some(source) = &source {
            arguments.extend([os("--from"), os(source)]);
        }
        arguments.extend(options.iter().map(|option| os(option)));
        arguments.push(os("--"));
        arguments.extend(paths.iter().map(|path| path.as_os_str()));
        self.start_with(&arguments, prepare)
    }

    pub fn status(&self) -> Option<Status> {
        daemon::try_status(&self.control())
    }

    /// Waits until every slab is back in the pool.
    #[track_caller]
    pub fn wait_whole(&self) {
        daemon::wait_status(&self.control(), "the pool to be whole", || {}, |status| status.pool.whole);
    }

    /// Waits until the application holds slabs of large messages: in the pool, or moved out of it.
    #[track_caller]
    pub fn wait_held(&self) {
        until("the application to hold slabs", || self.holds().then_some(()));
    }

    /// Returns whether the application holds such slabs before the time is over.
    pub fn holds_within(&self, span: Duration) -> bool {
        let deadline = Instant::now() + span;
        while !self.holds() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
        true
    }

    fn holds(&self) -> bool {
        self.status().is_some_and(|status| {
            status.rows.sessions.first().is_some_and(|session| session.held_slabs > 0)
                && (status.pool.read > 0 || status.escape.memory.used > 0)
        })
    }
}

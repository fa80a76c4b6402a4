//! Real processes of the tool, in a directory of the test's own. Every wait is bounded and on a condition.

use jet_client::registration::ControlConnection;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take before the test fails. The demo over a lossy wire takes a minute in an emulated guest on a busy
/// host.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A process of the tool; dropping it kills it.
pub struct Jet {
    child: Child,
    out: PathBuf,
    log: PathBuf,
    ended: bool,
}

impl Jet {
    /// Stops it (SIGSTOP) and waits until it stands still, which is later than the signal.
    pub fn pause(&self) {
        use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
        self.signal(Signal::STOP);
        let stopped =
            waitid(WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED).expect("a child");
        assert!(stopped.is_some_and(|status| status.stopped()), "{stopped:?}");
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .expect("it runs");
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
        self.ended = true;
    }

    pub fn wait(&mut self) -> ExitStatus {
        let what = format!("{:?} to end", self.log);
        let status = until(&what, || self.child.try_wait().expect("a child"));
        self.ended = true;
        status
    }

    /// As [`Self::is_running`], and leaves its end to be waited for.
    pub fn runs(&self) -> bool {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(Pid::from_child(&self.child)), look).expect("a child").is_none()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    pub fn out_bytes(&self) -> Vec<u8> {
        fs::read(&self.out).expect("a file")
    }

    pub fn printed(&self) -> Value {
        let out = self.out_bytes();
        serde_json::from_slice(&out).unwrap_or_else(|error| panic!("{error}: {:?}\n{}", out, self.said()))
    }

    /// Waits for the end, which must be a good one, and gives what was printed.
    #[track_caller]
    pub fn succeed(mut self) -> Value {
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.said());
        self.printed()
    }

    /// Asks it to end and waits; gives what was printed.
    #[track_caller]
    pub fn stop(self) -> Value {
        self.signal(rustix::process::Signal::TERM);
        self.succeed()
    }
}

impl Drop for Jet {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.said());
        }
    }
}

/// The RDMA device that the tests are to run on, by its address.
fn device_address() -> Option<String> {
    let address = std::env::var("JET_RDMA_ADDRESS").ok()?;
    if cfg!(feature = "verbs") {
        return Some(address);
    }
    // Software NICs in its place would be a check of nothing that was asked for.
    panic!(
        "JET_RDMA_ADDRESS={address} names a device, and these tests were built without verbs: \
         cargo test -p jet --features verbs"
    );
}

/// What is seen on every fabric is seen on these: on the one device where one is named.
pub fn fabrics() -> &'static [&'static str] {
    if device_address().is_some() { &["rdma"] } else { &["shm", "tcp"] }
}

/// A tiny file system, unmounted when dropped.
pub struct TinyDisk(PathBuf);

impl TinyDisk {
    pub fn mount(at: &Path, kib: u32) -> Self {
        fs::create_dir_all(at).expect("a directory");
        let target = c_path(at);
        let size = CString::new(format!("size={kib}k")).expect("no zero byte");
        // SAFETY: all strings end with a zero byte and outlive the call.
        let mounted = unsafe {
            libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, size.as_ptr().cast())
        };
        let error = std::io::Error::last_os_error();
        assert_eq!(mounted, 0, "mount: {error}; it takes root, and in a container CAP_SYS_ADMIN");
        Self(at.to_owned())
    }
}

impl TinyDisk {
    pub fn make_read_only(&self) {
        let (target, flags) = (c_path(&self.0), libc::MS_REMOUNT | libc::MS_RDONLY);
        // SAFETY: all strings end with a zero byte and outlive the call.
        let mounted = unsafe {
            libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), flags, std::ptr::null())
        };
        assert_eq!(mounted, 0, "remount: {}", std::io::Error::last_os_error());
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let target = c_path(&self.0);
        // SAFETY: the path ends with a zero byte and outlives the call.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("no zero byte")
}

/// A host: a directory with a daemon's sockets, trees and logs.
pub struct Host {
    pub dir: tempfile::TempDir,
    /// Keeps the port from other tests.
    _port: Option<UnixListener>,
    listen: String,
    started: std::cell::Cell<u32>,
}

impl Host {
    /// `fabric` is shm or tcp; where an RDMA device is named, all of it runs on verbs.
    pub fn new(fabric: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let device = device_address();
        let (listen, _port) = match fabric {
            _ if device.is_some() => {
                let (port, lock) = own_port();
                (format!("rdma:{}:{port}", device.unwrap_or_default()), Some(lock))
            }
            "shm" => (format!("shm:{}", dir.path().join("nic.sock").display()), None),
            _ => {
                let (port, lock) = own_port();
                (format!("tcp:127.0.0.1:{port}"), Some(lock))
            }
        };
        Self { dir, _port, listen, started: std::cell::Cell::new(0) }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn address(&self) -> &str {
        &self.listen
    }

    pub fn control(&self) -> PathBuf {
        self.path("jetd.sock")
    }

    pub fn start(&self, arguments: &[&OsStr]) -> Jet {
        self.start_with(arguments, |_| {})
    }

    /// Starts the tool after `prepare` changed the command.
    pub fn start_with(&self, arguments: &[&OsStr], prepare: impl FnOnce(&mut Command)) -> Jet {
        let number = self.started.get();
        self.started.set(number + 1);
        let name = arguments[0].to_string_lossy().into_owned();
        let (out, log) =
            (self.path(&format!("{number}-{name}.out")), self.path(&format!("{number}-{name}.log")));
        let mut command = Command::new(env!("CARGO_BIN_EXE_jet"));
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(File::create(&out).expect("a file"))
            .stderr(File::create(&log).expect("a file"));
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(|| {
                Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?)
            });
        }
        prepare(&mut command);
        Jet { child: command.spawn().expect("the tool starts"), out, log, ended: false }
    }

    /// Starts a daemon and waits until it answers.
    pub fn daemon(&self) -> Jet {
        self.daemon_with(&[])
    }

    /// The same with settings, as in `read.checksums=off`.
    pub fn daemon_with(&self, settings: &[&str]) -> Jet {
        self.daemon_prepared(settings, |_| {})
    }

    /// The same after `prepare` changed the command.
    pub fn daemon_prepared(&self, settings: &[&str], prepare: impl FnOnce(&mut Command)) -> Jet {
        let control = self.control();
        let mut arguments = vec![
            OsStr::new("daemon"),
            OsStr::new("--listen"),
            OsStr::new(&self.listen),
            OsStr::new("--control-socket"),
            control.as_os_str(),
            OsStr::new("--set"),
            OsStr::new("session.quarantine_ms=200"),
        ];
        arguments.extend(settings.iter().flat_map(|setting| [OsStr::new("--set"), OsStr::new(setting)]));
        let mut daemon = self.start_with(&arguments, prepare);
        until("the daemon to answer", || {
            assert!(daemon.is_running(), "the daemon ended: {}", daemon.said());
            self.status()
        });
        daemon
    }

    /// Starts `jet recv --app store --out OUT --json` with more options and waits until it is registered.
    pub fn recv(&self, out: &Path, options: &[&str]) -> Jet {
        self.recv_with(out, options, |_| {})
    }

    pub fn recv_with(&self, out: &Path, options: &[&str], prepare: impl FnOnce(&mut Command)) -> Jet {
        let mut recv = self.recv_unwatched(out, options, prepare);
        let pid = recv.child.id();
        until("the receiver to register", || {
            assert!(recv.is_running(), "{pid} ended: {}", recv.said());
            self.status().filter(|status| !status["sessions"].as_array().expect("a list").is_empty())
        });
        recv
    }

    /// As [`Self::recv_with`], without waiting.
    pub fn recv_unwatched(&self, out: &Path, options: &[&str], prepare: impl FnOnce(&mut Command)) -> Jet {
        let control = self.control();
        let os = OsStr::new;
        let mut arguments = vec![os("recv"), os("--app"), os("store"), os("--out"), out.as_os_str()];
        arguments.extend([os("--control-socket"), control.as_os_str(), os("--json")]);
        arguments.extend(options.iter().map(|option| os(option)));
        self.start_with(&arguments, prepare)
    }

    /// Starts `jet send` of these paths.
    pub fn send(&self, paths: &[&Path], options: &[&str]) -> Jet {
        self.send_with(paths, options, |_| {})
    }

    pub fn send_with(&self, paths: &[&Path], options: &[&str], prepare: impl FnOnce(&mut Command)) -> Jet {
        let os = OsStr::new;
        let mut arguments =
            vec![os("send"), os("--to"), os(&self.listen), os("--app"), os("store"), os("--json")];
        let source = std::env::var("JET_RDMA_SOURCE").ok().filter(|_| self.listen.starts_with("rdma:"));
        if let Some(source) = &source {
            arguments.extend([os("--from"), os(source)]);
        }
        arguments.extend(options.iter().map(|option| os(option)));
        arguments.push(os("--"));
        arguments.extend(paths.iter().map(|path| path.as_os_str()));
        self.start_with(&arguments, prepare)
    }

    pub fn status(&self) -> Option<Value> {
        ControlConnection::connect(&self.control()).ok()?.status().ok()
    }

    /// Waits until every slab is back.
    #[track_caller]
    pub fn wait_whole(&self) {
        let mut last = Value::Null;
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            last = self.status().expect("the daemon answers");
            if last["pool"]["whole"] == true {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the pool is not whole: {last:#}");
    }

    /// Waits until the application holds slabs of large messages: in the pool, or moved out of it.
    pub fn wait_held(&self) {
        until("the application to hold slabs", || {
            self.status().filter(|status| {
                status["sessions"][0]["held_slabs"].as_u64() > Some(0)
                    && (status["pool"]["read"].as_u64() > Some(0)
                        || status["escape"]["memory"]["used"].as_u64() > Some(0))
            })
        });
    }
}

/// Looks until there is something, at most [`PATIENCE`] long.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A port for a daemon that is killed and started again: below those that the system gives out by itself, and kept from
/// other tests by an abstract socket of its name for as long as that lives.
fn own_port() -> (u16, UnixListener) {
    let first = 10_000 + u16::try_from(std::process::id() % 1000).expect("below 1000") * 20;
    (first..32_000)
        .chain(10_000..first)
        .find_map(|port| {
            let name = SocketAddr::from_abstract_name(format!("jet-test-port-{port}")).ok()?;
            let lock = UnixListener::bind_addr(&name).ok()?;
            std::net::TcpListener::bind(("127.0.0.1", port)).ok()?;
            Some((port, lock))
        })
        .expect("a free port")
}

/// Bytes that are nobody else's: every 8 of them say where they are.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let words =
        (0..length.div_ceil(8) as u64).map(|word| (seed << 40 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

/// Whether a file is one on its way.
pub fn is_part(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(jet::files::path::PART_PREFIX))
}

/// A tree with everything that is odd about trees; a few MiB.
pub fn odd_tree(root: &Path) {
    let write = |path: PathBuf, bytes: Vec<u8>| {
        fs::create_dir_all(path.parent().expect("below the root")).expect("a directory");
        fs::write(&path, bytes).expect("a file");
    };
    let sizes = [0, 1, 4095, 4096, 4097, 65_536, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 3_000_001];
    for (number, size) in sizes.into_iter().enumerate() {
        write(root.join(format!("sizes/{size}")), bytes(number as u64, size));
    }
    for (seed, number) in (100..).zip(0..200) {
        write(root.join(format!("small/{number:03}")), bytes(seed, (number * 37) % 4097));
    }
    let names: [&[u8]; 6] = [b"with space", b"new\nline", b"no \xff\xfe text", b"-rf", b"...", b"quote\"s'"];
    for name in names {
        write(root.join("odd").join(OsStr::from_bytes(name)), bytes(7, 50));
    }
    // Paths that fit no small header, no header at all, and nothing in them, one piece, or several.
    let long =
        (0..12).fold(root.join("long"), |path, level| path.join(format!("{level:02}-{}", "y".repeat(30))));
    for (name, size) in [("empty", 0), ("one", 10), ("large", 200_000), ("pieces", 2_500_000)] {
        write(long.join(name), bytes(9, size));
        write(root.join("x".repeat(100)).join(name), bytes(10, size));
    }
    fs::create_dir_all(root.join("empty/of/everything")).expect("a directory");
    fs::create_dir_all(root.join("y".repeat(150)).join("empty")).expect("a directory");
    std::os::unix::fs::symlink("sizes/1", root.join("link")).expect("a link");
    for (name, mode) in [("sizes/0", 0o400), ("sizes/1", 0o755), ("sizes/4096", 0o644), ("odd", 0o750)] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(mode)).expect("a mode");
    }
}

/// Large files, `count` of `bytes` each.
pub fn large_tree(root: &Path, count: u64, length: usize) {
    fs::create_dir_all(root).expect("a directory");
    for number in 0..count {
        fs::write(root.join(format!("{number:03}")), bytes(1000 + number, length)).expect("a file");
    }
}

/// Permission bits, and the content of a file as a hash.
pub type Entry = (u32, Option<blake3::Hash>);

/// Names, permission bits and contents of everything below a directory that is no link.
pub fn snapshot(root: &Path) -> BTreeMap<Vec<u8>, Entry> {
    snapshot_of(root, |_| true)
}

/// The same without files on their way, which others may remove meanwhile.
pub fn snapshot_named(root: &Path) -> BTreeMap<Vec<u8>, Entry> {
    snapshot_of(root, |path| !is_part(path))
}

fn snapshot_of(root: &Path, counts: impl Fn(&Path) -> bool) -> BTreeMap<Vec<u8>, Entry> {
    let mut entries = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if !counts(&path) {
                continue;
            }
            let metadata = fs::symlink_metadata(&path).expect("metadata");
            if metadata.is_symlink() {
                continue;
            }
            let hash = metadata.is_file().then(|| blake3::hash(&fs::read(&path).expect("a file")));
            let name = path.strip_prefix(root).expect("below").as_os_str().as_bytes().to_vec();
            entries.insert(name, (metadata.mode() & 0o777, hash));
            if metadata.is_dir() {
                pending.push(path);
            }
        }
    }
    entries
}

/// Both trees hold the same.
#[track_caller]
pub fn assert_same(sent: &Path, received: &Path) {
    let (sent, received) = (snapshot(sent), snapshot(received));
    let differ: Vec<_> = sent
        .keys()
        .chain(received.keys())
        .filter(|name| sent.get(*name) != received.get(*name))
        .map(|name| String::from_utf8_lossy(name))
        .collect();
    assert!(differ.is_empty(), "these differ: {differ:?}");
}

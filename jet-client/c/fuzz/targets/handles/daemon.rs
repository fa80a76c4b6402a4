//! The other end: a daemon with a small pool, in a process of its own, and what it says of the runs.
//!
//! The daemon is not in the fuzzer's process, since the fuzzer would count its code as covered, which depends
//! on time and not on the input, and its memory as the library's. It is this program again, which the
//! variable [`ROLE`] makes a daemon. It ends when its standard input does: with the fuzzer.

use jet::daemon::Config;
use jet_control::ControlConnection;
use jet_control::status::Status;
use std::ffi::CString;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "JET_FUZZ_DAEMON";
/// Classes of messages: the configuration's default.
pub const CLASSES: u8 = 4;
/// Longest message that the daemon accepts. It does not fit the room for READs, which is 128 KiB.
pub const MESSAGE_BYTES_MAX: usize = 144 << 10;
const SETTINGS: [&str; 18] = [
    "pool.bytes=655360",
    "pool.srq_bytes=524288",
    "pool.srq_floor_bytes=524288",
    "limits.credit_per_peer=32",
    "pool.huge_pages=\"off\"",
    "cache.reserve=\"off\"",
    "read.fragment_bytes=65536",
    "read.in_flight_bytes=131072",
    "read.message_bytes_max=147456",
    "limits.peers=256",
    "limits.sessions=256",
    "session.slots=128",
    "session.messages=8",
    "session.quarantine_ms=0",
    "escape.memory_bytes=1048576",
    "escape.session_memory_bytes=524288",
    "nic.thread=\"off\"",
    // The fuzzer has the processor while the daemon has nothing to do.
    "reactor.spin_us_max=0",
];
/// Longest time after which the daemon has noticed what a run freed.
const NOTICED_WITHIN: Duration = Duration::from_secs(4);

/// Runs the daemon, and does not return, where this process was started for that.
pub fn serve_if_asked() {
    if std::env::var_os(ROLE).is_some() {
        serve();
    }
}

fn serve() -> ! {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    let settings = SETTINGS.map(str::to_owned);
    let mut config = Config::load(None, &settings).expect("a configuration");
    config.control_socket = control_socket(&path);
    config.listen = vec![format!("shm:{}", path.join("nic.sock").display())];
    println!("{}", path.display());
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(folder);
        std::process::exit(0);
    });
    let ended = jet::daemon::run(&config);
    let _ = std::fs::remove_dir_all(path);
    ended.expect("a daemon that runs");
    std::process::exit(0);
}

fn control_socket(folder: &Path) -> PathBuf {
    folder.join("jetd.sock")
}

/// The daemon's process, as the fuzzer has it.
pub struct Daemon {
    process: Child,
    folder: PathBuf,
    /// Open descriptors of this process when no handle was alive.
    descriptors: Option<usize>,
}

impl Daemon {
    pub fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program's path"));
        command.env(ROLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a daemon's process");
        let mut folder = String::new();
        let said = process.stdout.as_mut().expect("a pipe");
        BufReader::new(said).read_line(&mut folder).expect("the daemon's folder");
        let mut daemon = Self { process, folder: folder.trim_end().into(), descriptors: None };
        // The daemon answers once it listens for senders, too.
        while ControlConnection::connect(&control_socket(&daemon.folder)).is_err() {
            let ended = daemon.process.try_wait().expect("a child");
            assert!(ended.is_none(), "the daemon ended: {ended:?}");
            std::thread::yield_now();
        }
        daemon.status();
        daemon
    }

    pub fn control_socket(&self) -> CString {
        text(&control_socket(&self.folder).display().to_string())
    }

    pub fn address(&self) -> CString {
        text(&format!("shm:{}", self.folder.join("nic.sock").display()))
    }

    /// Returns an address, or the path of a socket, where nobody listens.
    pub fn nobody(&self) -> (CString, CString) {
        let path = self.folder.join("nobody");
        (text(&format!("shm:{}", path.display())), text(&path.display().to_string()))
    }

    fn status(&self) -> Status {
        let mut control = ControlConnection::connect(&control_socket(&self.folder)).expect("the daemon");
        control.status().expect("the daemon's status")
    }

    /// Waits until the daemon knows that every handle was freed, and checks that nothing is left there or
    /// here.
    pub fn check_nothing_left(&mut self) {
        let deadline = Instant::now() + NOTICED_WITHIN;
        loop {
            let status = self.status();
            assert_eq!((status.faults.sessions, status.faults.peers), (0, 0), "the library broke a rule");
            let pool = &status.pool;
            let left = [
                ("sessions", status.session_count),
                ("sessions in quarantine", status.quarantined_count),
                ("senders", status.peer_count),
                ("messages", status.messages.known),
                ("READs", status.reads.in_flight),
                ("slabs", pool.slabs - pool.free - pool.posted),
            ];
            if left.iter().all(|(_, count)| *count == 0) {
                break;
            }
            assert!(Instant::now() < deadline, "the daemon still has {left:?}");
        }
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("a list").count();
        let before = *self.descriptors.get_or_insert(descriptors);
        assert_eq!(descriptors, before, "descriptors that are open");
        let mappings = std::fs::read_to_string("/proc/self/maps").expect("a list");
        let mapped = mappings.lines().find(|line| line.contains("memfd:jet-"));
        assert_eq!(mapped, None, "shared memory is still mapped");
    }
}

/// Returns a text as C has it.
pub fn text(text: &str) -> CString {
    CString::new(text).expect("no zero byte")
}

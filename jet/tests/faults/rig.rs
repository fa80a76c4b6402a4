//! A daemon in a directory of the test's own, and what a test asks of it.

use crate::children::Role;
use jet_client::registration::ControlConnection;
use jet_client::send::{Sender, SenderOptions};
use jet_fabric::Address;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process, set_parent_process_death_signal,
    setrlimit, waitid,
};
use serde_json::Value;
use std::cell::Cell;
use std::fs::{self, File};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take before the test fails: long enough for a machine that compiles something beside it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A daemon whose NIC has a thread of its own, whatever the machine; on two cores it has none of itself.
pub const NIC_THREAD: &str = "nic.thread='on'";
/// A daemon whose NIC has none.
pub const NO_NIC_THREAD: &str = "nic.thread='off'";

/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(2);

/// Looks until there is something, at most [`PATIENCE`] long.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(LOOK);
    }
}

/// A process of the test's; dropping it kills it. Its words are printed where the test fails.
pub struct Process {
    child: Child,
    log: PathBuf,
    ended: bool,
}

impl Process {
    fn start(mut command: Command, log: PathBuf) -> Self {
        let file = File::create(&log).expect("a file");
        command.stdin(Stdio::null()).stdout(file.try_clone().expect("a descriptor")).stderr(file);
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        Self { child: command.spawn().expect("the process starts"), log, ended: false }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Stops it (SIGSTOP) and waits until it stands still, which is later than the signal.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let which = WaitId::Pid(Pid::from_child(&self.child));
        let stopped = waitid(which, WaitIdOptions::STOPPED).expect("a child");
        assert!(stopped.is_some_and(|status| status.stopped()), "{stopped:?}");
    }

    /// As `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        self.ended = true;
    }

    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let status = until("a process to end", || self.child.try_wait().expect("a child"));
        self.ended = true;
        status
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended {
            // It may have ended on its own.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.said());
        }
    }
}

/// A child in a role of [`Role`], and what it reports.
pub struct Actor {
    pub process: Process,
    report: PathBuf,
}

impl Actor {
    /// The lines so far that are complete.
    pub fn report(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.report).unwrap_or_default();
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        text[..whole].lines().map(str::to_owned).collect()
    }

    /// Lines that begin with that word.
    pub fn reported(&self, word: &str) -> usize {
        self.report().iter().filter(|line| line.split(' ').next() == Some(word)).count()
    }

    /// Waits for so many lines that begin with that word.
    #[track_caller]
    pub fn wait_reported(&self, word: &str, count: usize) {
        until(word, || (self.reported(word) >= count).then_some(()));
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

/// Where the NIC's work is done: on a thread of its own and on the reactor's. An RDMA device does it itself, so there once.
pub fn nic_threads() -> &'static [&'static str] {
    const BOTH: [&str; 2] = [NO_NIC_THREAD, NIC_THREAD];
    if device_address().is_some() { &BOTH[..1] } else { &BOTH }
}

/// How many fabrics the tests run on: `shm:` and `tcp:`, or the RDMA device that is named.
pub fn fabric_count() -> usize {
    if device_address().is_some() { 1 } else { 2 }
}

/// Where senders leave from that go to this address, if another device was named for them.
pub fn source_for(address: &Address) -> Option<IpAddr> {
    let source = std::env::var("JET_RDMA_SOURCE").ok().filter(|_| matches!(address, Address::Rdma(_)))?;
    Some(source.parse().expect("JET_RDMA_SOURCE is an address"))
}

/// `JET_FAULTS_PROFILE=NAME`: every daemon's NIC keeps to that device's limits, and has the sizes that it takes.
fn profile_settings() -> Vec<String> {
    let Ok(name) = std::env::var("JET_FAULTS_PROFILE") else { return Vec::new() };
    let small: &[&str] = if name == "mean" { &SIZES_ON_MEAN } else { &[] };
    std::iter::once(format!("nic.profile={name}")).chain(small.iter().map(|&text| text.to_owned())).collect()
}

/// What fits a device that has 64 SRQ entries.
pub const SIZES_ON_MEAN: [&str; 4] = [
    "pool.srq_bytes=262144",
    "pool.srq_floor_bytes=262144",
    "pool.srq_reserve_entries=16",
    "limits.credit_per_peer=64",
];

/// A daemon with its directory.
pub struct Rig {
    settings: Vec<String>,
    /// The most address space that the daemon may have, in bytes.
    address_space: Option<u64>,
    daemon: Option<Process>,
    addresses: Vec<String>,
    started: Cell<u32>,
    /// Last, so that a process that is dropped can still say its last words.
    dir: tempfile::TempDir,
}

impl Rig {
    /// Starts a daemon with these keys of its configuration set, and waits until it answers. It listens on `shm:` and
    /// `tcp:`, or, where an RDMA device is named (docs/rdma.md), twice on that: for what is about two addresses of one
    /// daemon. What is to be seen on every fabric goes through [`Self::fabrics`].
    pub fn start(settings: &[&str]) -> Self {
        Self::start_as(None, settings, device_address().as_deref())
    }

    /// As [`Self::start`], with a daemon that may map so many bytes and no more.
    pub fn start_within(bytes: u64, settings: &[&str]) -> Self {
        Self::start_as(Some(bytes), settings, device_address().as_deref())
    }

    /// As [`Self::start`], on `shm:` and `tcp:` whatever device is named.
    pub fn start_on_software(settings: &[&str]) -> Self {
        Self::start_as(None, settings, None)
    }

    /// As [`Self::start`], on one address that is given.
    #[cfg(feature = "verbs")]
    pub fn start_at(address: &str, settings: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        Self::start_in(dir, None, settings, vec![address.to_owned()])
    }

    fn start_as(address_space: Option<u64>, settings: &[&str], device: Option<&str>) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let addresses = match device {
            Some(address) => vec![format!("rdma:{address}:0"); 2],
            None => {
                vec![format!("shm:{}", dir.path().join("nic.sock").display()), "tcp:127.0.0.1:0".to_owned()]
            }
        };
        Self::start_in(dir, address_space, settings, addresses)
    }

    fn start_in(
        dir: tempfile::TempDir,
        address_space: Option<u64>,
        settings: &[&str],
        addresses: Vec<String>,
    ) -> Self {
        let settings =
            profile_settings().into_iter().chain(settings.iter().map(|&text| text.to_owned())).collect();
        let mut rig = Self { settings, address_space, daemon: None, addresses, started: Cell::new(0), dir };
        rig.start_again();
        rig
    }

    /// What a daemon says that cannot start with these settings; on `tcp:`, whatever device is named.
    #[track_caller]
    pub fn refusal(settings: &[&str]) -> String {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_jetd"));
        command
            .arg("--control-socket")
            .arg(dir.path().join("jetd.sock"))
            .args(["--listen", "tcp:127.0.0.1:0"]);
        for setting in settings {
            command.args(["--set", setting]);
        }
        let mut daemon = Process::start(command, dir.path().join("jetd"));
        let status = daemon.wait();
        assert_eq!(status.code(), Some(1), "{settings:?}: {}", daemon.said());
        daemon.said()
    }

    /// Starts the daemon at the addresses that it had.
    pub fn start_again(&mut self) {
        assert!(self.daemon.is_none(), "one daemon at a time");
        self.daemon = Some(self.another_daemon(&self.control(), &self.addresses));
        let status = until("the daemon to answer", || {
            let daemon = self.daemon.as_mut().expect("just started");
            assert!(daemon.is_running(), "the daemon ended: {}", daemon.said());
            self.try_status()
        });
        let listen = status["listen"].as_array().expect("addresses");
        self.addresses = listen.iter().map(|text| text.as_str().expect("text").to_owned()).collect();
    }

    /// Starts a daemon beside this one.
    pub fn another_daemon(&self, control: &Path, addresses: &[String]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jetd"));
        command.arg("--control-socket").arg(control);
        for address in addresses {
            command.arg("--listen").arg(address);
        }
        for setting in &self.settings {
            command.arg("--set").arg(setting);
        }
        if let Some(bytes) = self.address_space {
            let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
            // SAFETY: one system call between fork and exec.
            unsafe { command.pre_exec(move || Ok(setrlimit(Resource::As, limit)?)) };
        }
        Process::start(command, self.log("jetd"))
    }

    fn log(&self, name: &str) -> PathBuf {
        let number = self.started.get();
        self.started.set(number + 1);
        self.path(&format!("{number}-{name}"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn control(&self) -> PathBuf {
        self.path("jetd.sock")
    }

    /// Where it listens, as text.
    pub fn listens(&self) -> &[String] {
        &self.addresses
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<Address> {
        self.addresses.iter().map(|text| text.parse().expect("an address")).collect()
    }

    /// An address of each fabric: of all that it listens on, those that are not the same device again.
    pub fn fabrics(&self) -> Vec<Address> {
        let mut addresses = self.addresses();
        addresses.truncate(fabric_count());
        addresses
    }

    pub fn daemon(&mut self) -> &mut Process {
        self.daemon.as_mut().expect("a daemon")
    }

    /// The daemon is no longer this rig's.
    pub fn take_daemon(&mut self) -> Process {
        self.daemon.take().expect("a daemon")
    }

    /// As `kill -9`.
    pub fn kill_daemon(&mut self) {
        self.take_daemon().kill();
    }

    /// Starts this binary again in a role.
    pub fn child(&self, role: Role, address: Option<&Address>, app: &str) -> Actor {
        let log = self.log(role.word());
        let report = log.with_extension("report");
        File::create(&report).expect("a file");
        let mut command = Command::new(std::env::current_exe().expect("this binary has a path"));
        command.args(["--exact", crate::children::CHILD_TEST, "--ignored", "--nocapture"]);
        command.envs(crate::children::environment(role, &self.control(), address, app, &report));
        Actor { process: Process::start(command, log), report }
    }

    /// Starts an application and waits until it is registered.
    #[track_caller]
    pub fn application(&self, role: Role, app: &str) -> Actor {
        let actor = self.child(role, None, app);
        actor.wait_reported("registered", 1);
        actor
    }

    /// A sender of this process, small so that many are possible.
    pub fn sender_options(address: &Address, app: &str) -> SenderOptions {
        SenderOptions {
            source: source_for(address),
            region_bytes: 1 << 20,
            connect_timeout: PATIENCE,
            reconnect_for: PATIENCE,
            ..SenderOptions::new(address.clone(), app)
        }
    }

    pub fn sender(address: &Address, app: &str) -> Sender {
        Sender::connect(Self::sender_options(address, app)).expect("the daemon lets it in")
    }

    pub fn try_status(&self) -> Option<Value> {
        ControlConnection::connect(&self.control()).ok()?.status().ok()
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        self.try_status().expect("the daemon answers")
    }

    /// What small messages have of the pool at first, which follows the SRQ that the NIC's device takes. To be asked before
    /// anything comes: the line between the shares moves then, and the limits of one application do not move with it.
    #[track_caller]
    pub fn srq_share_slabs(&self) -> u64 {
        number(&self.status(), "pool.srq_limit")
    }

    /// Waits until the status is as wished.
    #[track_caller]
    pub fn wait_status(&self, what: &str, wished: impl Fn(&Value) -> bool) -> Value {
        self.wait_status_while(|| {}, what, wished)
    }

    /// As [`Self::wait_status`]; what is to be done meanwhile is done before each look.
    #[track_caller]
    pub fn wait_status_while(
        &self,
        mut meanwhile: impl FnMut(),
        what: &str,
        wished: impl Fn(&Value) -> bool,
    ) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            meanwhile();
            let status = self.status();
            if wished(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}: {status:#}");
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until every slab is back and no message is known any more.
    #[track_caller]
    pub fn wait_whole(&self) -> Value {
        self.wait_status("the pool to be whole", |status| {
            let (pool, reads) = (&status["pool"], &status["reads"]);
            let zero = |value: &Value| value.as_u64() == Some(0);
            pool["whole"] == true
                && [&pool["quarantined"], &pool["read"], &pool["small_held"]].into_iter().all(zero)
                && [&reads["in_flight"], &reads["running"], &reads["waiting"]].into_iter().all(zero)
                && zero(&status["messages"]["known"])
        })
    }
}

/// A number of the status, by its path.
#[track_caller]
pub fn number(status: &Value, path: &str) -> u64 {
    let step = |value, key: &str| match key.parse::<usize>() {
        Ok(index) => Value::get(value, index).unwrap_or(&Value::Null),
        Err(_) => &value[key],
    };
    let value = path.split('.').fold(status, step);
    value.as_u64().unwrap_or_else(|| panic!("{path} in {status:#}"))
}

/// splitmix64.
pub struct Random(u64);

impl Random {
    /// Seeded for a test, or by `JET_FAULTS_SEED`; says with what.
    pub fn for_test(name: &str, seed: u64) -> Self {
        let seed = std::env::var("JET_FAULTS_SEED").ok().map_or(seed, |text| {
            text.parse().unwrap_or_else(|_| panic!("JET_FAULTS_SEED={text} is not a number"))
        });
        eprintln!("{name}: JET_FAULTS_SEED={seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Below `end`, as a size.
    pub fn size_below(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("below a usize")
    }

    /// Another generator that this one seeds.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }
}

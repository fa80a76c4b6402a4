//! Test rig: a daemon in a directory of the test's own, and the questions and waits of the tests.

use crate::children::Role;
use jet_client::receive::{RegisterOptions, Session};
use jet_client::send::{RetryPolicy, Sender, SenderOptions};
use jet_control::status::{CacheStatus, Status};
use jet_fabric::Address;
use jet_test_support::daemon;
use jet_test_support::device::{device_address, fabrics, source_for};
use jet_test_support::folder::Folder;
use jet_test_support::limits::limit;
use jet_test_support::process::Process;
use jet_test_support::random::Random;
use jet_test_support::waiting::{WAIT_LIMIT, until};
use rustix::process::Resource;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Path of the daemon's binary.
const JETD: &str = env!("CARGO_BIN_EXE_jetd");

/// Setting that gives the NIC a thread of its own on every machine. With two cores it has none by default.
pub const NIC_THREAD: &str = "nic.thread='on'";
/// Setting that gives the NIC no thread of its own.
pub const NO_NIC_THREAD: &str = "nic.thread='off'";

/// Child process in a role of [`Role`], and the file that it reports in.
pub struct Actor {
    pub process: Process,
    report: PathBuf,
}

impl Actor {
    /// Returns the complete lines that the child has reported so far.
    pub fn report(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.report).unwrap_or_default();
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        text[..whole].lines().map(str::to_owned).collect()
    }

    /// Returns how many reported lines begin with that word.
    pub fn reported(&self, word: &str) -> usize {
        self.report().iter().filter(|line| line.split(' ').next() == Some(word)).count()
    }

    /// Waits until at least `count` reported lines begin with that word.
    #[track_caller]
    pub fn wait_reported(&self, word: &str, count: usize) {
        until(word, || (self.reported(word) >= count).then_some(()));
    }
}

/// Returns the settings for where the NIC's work is done: on the reactor's thread, and on a thread of its
/// own. An RDMA device does its work itself, so there it is only one setting.
pub fn nic_threads() -> &'static [&'static str] {
    const BOTH: [&str; 2] = [NO_NIC_THREAD, NIC_THREAD];
    if device_address().is_some() { &BOTH[..1] } else { &BOTH }
}

/// Returns the settings that `JET_FAULTS_PROFILE=NAME` asks for. With it every daemon's NIC keeps to that
/// device's limits, and has the sizes that the device takes.
fn profile_settings() -> Vec<String> {
    let Ok(name) = std::env::var("JET_FAULTS_PROFILE") else { return Vec::new() };
    let small: &[&str] = if name == "smallest" { &SIZES_ON_SMALLEST } else { &[] };
    std::iter::once(format!("nic.profile={name}")).chain(small.iter().map(|&text| text.to_owned())).collect()
}

/// Settings whose sizes fit a device that has 64 SRQ entries.
pub const SIZES_ON_SMALLEST: [&str; 4] = [
    "pool.srq_bytes=262144",
    "pool.srq_floor_bytes=262144",
    "pool.srq_reserve_entries=16",
    "limits.credit_per_peer=64",
];

/// Daemon with its directory.
pub struct Rig {
    settings: Vec<String>,
    /// Limit of the daemon's process.
    limit: Option<(Resource, u64)>,
    daemon: Option<Process>,
    addresses: Vec<String>,
    /// Directory of the daemon. It is the last field, so that a process that is dropped can still write its
    /// last lines.
    folder: Folder,
}

impl Rig {
    /// Starts a daemon with these keys of its configuration set, and waits until it answers. It listens on
    /// `shm:` and `tcp:`. Where the environment names an RDMA device (docs/rdma.md), it listens twice on
    /// that, for tests that need two addresses of one daemon. Tests that check every fabric use
    /// [`Self::fabrics`].
    pub fn start(settings: &[&str]) -> Self {
        Self::start_as(None, settings, device_address().as_deref())
    }

    /// Starts a daemon like [`Self::start`], which may map so many bytes and no more.
    pub fn start_within(bytes: u64, settings: &[&str]) -> Self {
        Self::start_as(Some((Resource::As, bytes)), settings, device_address().as_deref())
    }

    /// Starts a daemon like [`Self::start_on_software`], which may have so many descriptors and no more.
    pub fn start_with_descriptors(count: u64, settings: &[&str]) -> Self {
        Self::start_as(Some((Resource::Nofile, count)), settings, None)
    }

    /// Starts a daemon like [`Self::start`], on `shm:` and `tcp:` whatever device the environment names.
    pub fn start_on_software(settings: &[&str]) -> Self {
        Self::start_as(None, settings, None)
    }

    /// Starts a daemon like [`Self::start`], on the given address alone.
    #[cfg(feature = "verbs")]
    pub fn start_at(address: &str, settings: &[&str]) -> Self {
        Self::start_in(Folder::new(), None, settings, vec![address.to_owned()])
    }

    fn start_as(limit: Option<(Resource, u64)>, settings: &[&str], device: Option<&str>) -> Self {
        let folder = Folder::new();
        let addresses = match device {
            Some(address) => vec![format!("rdma:{address}:0"); 2],
            None => {
                vec![format!("shm:{}", folder.join("nic.sock").display()), "tcp:127.0.0.1:0".to_owned()]
            }
        };
        Self::start_in(folder, limit, settings, addresses)
    }

    fn start_in(
        folder: Folder,
        limit: Option<(Resource, u64)>,
        settings: &[&str],
        addresses: Vec<String>,
    ) -> Self {
        let settings =
            profile_settings().into_iter().chain(settings.iter().map(|&text| text.to_owned())).collect();
        let mut rig = Self { settings, limit, daemon: None, addresses, folder };
        rig.start_again();
        rig
    }

    /// Starts a daemon that must refuse to start with these settings, and returns its output. It listens on
    /// `tcp:`, whatever device the environment names.
    #[track_caller]
    pub fn refusal(settings: &[&str]) -> String {
        Self::refusal_in(&Folder::new(), "tcp:127.0.0.1:0", settings, |_| {})
    }

    /// Starts a daemon that must refuse to start, like [`Self::refusal`], in a folder, on an address, and
    /// after `prepare` changed the command.
    #[track_caller]
    pub fn refusal_in(
        folder: &Folder,
        address: &str,
        settings: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> String {
        let command = daemon::command(JETD, &[], &folder.join("jetd.sock"), &[address], settings);
        let mut daemon = folder.start_with("jetd", command, prepare);
        let status = daemon.wait();
        assert_eq!(status.code(), Some(1), "{settings:?}: {}", daemon.stderr_text());
        daemon.stderr_text()
    }

    /// Starts the daemon again at the addresses that it had.
    pub fn start_again(&mut self) {
        assert!(self.daemon.is_none(), "one daemon at a time");
        let control = self.control();
        let daemon = self.daemon.insert(self.another_daemon(&control, &self.addresses));
        let status = daemon::wait_answer(daemon, &control);
        self.addresses = status.listen;
    }

    /// Starts another daemon with the same settings beside this one, and does not wait for it.
    pub fn another_daemon(&self, control: &Path, addresses: &[String]) -> Process {
        let mut command = daemon::command(JETD, &[], control, addresses, &self.settings);
        if let Some((resource, most)) = self.limit {
            limit(&mut command, resource, most);
        }
        self.folder.start("jetd", command)
    }

    /// Starts another program in the rig's directory.
    pub fn start_program(&self, name: &str, command: Command) -> Process {
        self.folder.start(name, command)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn control(&self) -> PathBuf {
        self.path("jetd.sock")
    }

    /// Returns the addresses where the daemon listens, as text.
    pub fn listens(&self) -> &[String] {
        &self.addresses
    }

    /// Returns the addresses where the daemon listens.
    pub fn addresses(&self) -> Vec<Address> {
        self.addresses.iter().map(|text| text.parse().expect("an address")).collect()
    }

    /// Returns one address of each fabric that the daemon listens on.
    pub fn fabrics(&self) -> Vec<Address> {
        let mut addresses = self.addresses();
        addresses.truncate(fabrics().len());
        addresses
    }

    pub fn daemon(&mut self) -> &mut Process {
        self.daemon.as_mut().expect("a daemon")
    }

    /// Takes the daemon's process out of the rig.
    pub fn take_daemon(&mut self) -> Process {
        self.daemon.take().expect("a daemon")
    }

    /// Kills the daemon, like `kill -9`.
    pub fn kill_daemon(&mut self) {
        self.take_daemon().kill();
    }

    /// Starts this binary again as a child in a role.
    pub fn child(&self, role: Role, address: Option<&Address>, app: &str) -> Actor {
        let path = self.folder.next(role.word());
        let report = path.with_extension("report");
        File::create(&report).expect("a file");
        let mut command = Command::new(std::env::current_exe().expect("this binary has a path"));
        command.args(["--exact", crate::children::CHILD_TEST, "--ignored", "--nocapture"]);
        command.envs(crate::children::environment(role, &self.control(), address, app, &report));
        Actor { process: Process::start(command, &path), report }
    }

    /// Starts an application and waits until it is registered.
    #[track_caller]
    pub fn application(&self, role: Role, app: &str) -> Actor {
        let actor = self.child(role, None, app);
        actor.wait_reported("registered", 1);
        actor
    }

    /// Returns options for a sender in this process, with little memory, so that many senders are possible.
    pub fn sender_options(address: &Address, app: &str) -> SenderOptions {
        // Of the ends that may pass, tests are told all but `Busy`.
        let retry = RetryPolicy::default().on_no_app(false).on_app_gone(false).on_draining(false);
        SenderOptions::new(address.clone(), app)
            .source(source_for(address))
            .region_bytes(1 << 20)
            .connect_timeout(WAIT_LIMIT)
            .reconnect_for(WAIT_LIMIT)
            .retry(retry)
    }

    /// Returns options for a sender in this process that tries for ever, whatever dies.
    pub fn lasting_options(address: &Address, app: &str) -> SenderOptions {
        Self::sender_options(address, app)
            .in_flight_max(16)
            .retry(RetryPolicy::all_for(Duration::MAX))
            .reconnect_for(Duration::MAX)
    }

    /// Registers an application of this process.
    #[track_caller]
    pub fn session(&self, app: &str) -> Session {
        Session::register(&RegisterOptions::new(app).control_socket(self.control())).expect("a daemon")
    }

    /// Registers the only application, as soon as its earlier life is over for the daemon.
    #[track_caller]
    pub fn session_again(&self, app: &str) -> Session {
        self.wait_status("the name to be free", |status| status.session_count == 0);
        self.session(app)
    }

    pub fn sender(address: &Address, app: &str) -> Sender {
        Sender::connect(&Self::sender_options(address, app)).expect("the daemon lets it in")
    }

    pub fn try_status(&self) -> Option<Status> {
        daemon::try_status(&self.control())
    }

    #[track_caller]
    pub fn status(&self) -> Status {
        self.try_status().expect("the daemon answers")
    }

    /// Returns how many slabs of the pool small messages have at first, which depends on the SRQ of the NIC's
    /// device. Must be asked before any message arrives. Later the line between the shares moves, and the
    /// limits of one application do not move with it.
    #[track_caller]
    pub fn srq_share_slabs(&self) -> u32 {
        self.status().pool.srq_limit
    }

    /// Waits until the status is as wished, and returns it.
    #[track_caller]
    pub fn wait_status(&self, what: &str, wished: impl Fn(&Status) -> bool) -> Status {
        self.wait_status_while(|| {}, what, wished)
    }

    /// Waits like [`Self::wait_status`], and calls `meanwhile` before each request.
    #[track_caller]
    pub fn wait_status_while(
        &self,
        meanwhile: impl FnMut(),
        what: &str,
        wished: impl Fn(&Status) -> bool,
    ) -> Status {
        daemon::wait_status(&self.control(), what, meanwhile, wished)
    }

    /// Waits until every slab is back and no message is known any more.
    #[track_caller]
    pub fn wait_whole(&self) -> Status {
        self.wait_status("the pool to be whole", |status| {
            let (pool, reads) = (&status.pool, &status.reads);
            pool.whole
                && pool.quarantined + pool.read + pool.small_held == 0
                && reads.in_flight + reads.running + reads.waiting == 0
                && status.messages.known == 0
        })
    }
}

/// Returns a random generator that is seeded for a test, or by `JET_FAULTS_SEED`, and prints the seed.
pub fn random_for(test: &str, seed: u64) -> Random {
    Random::seeded_by("JET_FAULTS_SEED", test, seed)
}

/// Returns the cache's part of a status.
#[track_caller]
pub fn cache(status: &Status) -> &CacheStatus {
    status.cache.as_ref().expect("every daemon tells it")
}

//! A daemon in a directory of the test's own, and what a test asks of it.

use crate::children::Role;
use jet_client::send::{Sender, SenderOptions};
use jet_control::status::{CacheStatus, Status};
use jet_fabric::Address;
use jet_test_support::daemon;
use jet_test_support::device::{device_address, fabrics, source_for};
use jet_test_support::folder::Folder;
use jet_test_support::limits::limit;
use jet_test_support::process::Process;
use jet_test_support::random::Random;
use jet_test_support::waiting::{PATIENCE, until};
use rustix::process::Resource;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The daemon.
const JETD: &str = env!("CARGO_BIN_EXE_jetd");

/// A daemon whose NIC has a thread of its own, whatever the machine; on two cores it has none of itself.
pub const NIC_THREAD: &str = "nic.thread='on'";
/// A daemon whose NIC has none.
pub const NO_NIC_THREAD: &str = "nic.thread='off'";

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

/// Where the NIC's work is done: on a thread of its own and on the reactor's. An RDMA device does it itself,
/// so there once.
pub fn nic_threads() -> &'static [&'static str] {
    const BOTH: [&str; 2] = [NO_NIC_THREAD, NIC_THREAD];
    if device_address().is_some() { &BOTH[..1] } else { &BOTH }
}

/// `JET_FAULTS_PROFILE=NAME`: every daemon's NIC keeps to that device's limits, and has the sizes that it
/// takes.
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
    /// Last, so that a process that is dropped can still say its last words.
    folder: Folder,
}

impl Rig {
    /// Starts a daemon with these keys of its configuration set, and waits until it answers. It listens on
    /// `shm:` and `tcp:`, or, where an RDMA device is named (docs/rdma.md), twice on that: for what is about
    /// two addresses of one daemon. What is to be seen on every fabric goes through [`Self::fabrics`].
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
        Self::start_in(Folder::new(), None, settings, vec![address.to_owned()])
    }

    fn start_as(address_space: Option<u64>, settings: &[&str], device: Option<&str>) -> Self {
        let folder = Folder::new();
        let addresses = match device {
            Some(address) => vec![format!("rdma:{address}:0"); 2],
            None => {
                vec![format!("shm:{}", folder.join("nic.sock").display()), "tcp:127.0.0.1:0".to_owned()]
            }
        };
        Self::start_in(folder, address_space, settings, addresses)
    }

    fn start_in(
        folder: Folder,
        address_space: Option<u64>,
        settings: &[&str],
        addresses: Vec<String>,
    ) -> Self {
        let settings =
            profile_settings().into_iter().chain(settings.iter().map(|&text| text.to_owned())).collect();
        let mut rig = Self { settings, address_space, daemon: None, addresses, folder };
        rig.start_again();
        rig
    }

    /// What a daemon says that cannot start with these settings; on `tcp:`, whatever device is named.
    #[track_caller]
    pub fn refusal(settings: &[&str]) -> String {
        Self::refusal_in(&Folder::new(), "tcp:127.0.0.1:0", settings, |_| {})
    }

    /// The same in a folder, on an address, after `prepare` changed the command.
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
        assert_eq!(status.code(), Some(1), "{settings:?}: {}", daemon.said());
        daemon.said()
    }

    /// Starts the daemon at the addresses that it had.
    pub fn start_again(&mut self) {
        assert!(self.daemon.is_none(), "one daemon at a time");
        let control = self.control();
        let daemon = self.daemon.insert(self.another_daemon(&control, &self.addresses));
        let status = daemon::wait_answer(daemon, &control);
        self.addresses = status.listen;
    }

    /// Starts a daemon beside this one.
    pub fn another_daemon(&self, control: &Path, addresses: &[String]) -> Process {
        let mut command = daemon::command(JETD, &[], control, addresses, &self.settings);
        if let Some(bytes) = self.address_space {
            limit(&mut command, Resource::As, bytes);
        }
        self.folder.start("jetd", command)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
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
        addresses.truncate(fabrics().len());
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

    pub fn try_status(&self) -> Option<Status> {
        daemon::try_status(&self.control())
    }

    #[track_caller]
    pub fn status(&self) -> Status {
        self.try_status().expect("the daemon answers")
    }

    /// What small messages have of the pool at first, which follows the SRQ that the NIC's device takes. To
    /// be asked before anything comes: the line between the shares moves then, and the limits of one
    /// application do not move with it.
    #[track_caller]
    pub fn srq_share_slabs(&self) -> u32 {
        self.status().pool.srq_limit
    }

    /// Waits until the status is as wished.
    #[track_caller]
    pub fn wait_status(&self, what: &str, wished: impl Fn(&Status) -> bool) -> Status {
        self.wait_status_while(|| {}, what, wished)
    }

    /// As [`Self::wait_status`]; what is to be done meanwhile is done before each look.
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

/// Seeded for a test, or by `JET_FAULTS_SEED`; says with what.
pub fn random_for(test: &str, seed: u64) -> Random {
    Random::seeded_by("JET_FAULTS_SEED", test, seed)
}

/// What a status tells of the cache.
#[track_caller]
pub fn cache(status: &Status) -> &CacheStatus {
    status.cache.as_ref().expect("every daemon tells it")
}

//! Tests of devices that vanish, links that break, and impossible settings of a device. They take the host's
//! devices apart, so they run in the guest only (deploy/vm/check). The guest names the script that repairs
//! the devices.

use crate::children::Role;
use crate::rig::{Rig, random_for};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, RetryPolicy, SendConnectError, Sender};
use jet_control::status::{PortState, RdmaStatus, Status};
use jet_test_support::folder::Folder;
use jet_test_support::limits::limit;
use jet_test_support::random::Random;
use jet_test_support::waiting::until;
use rustix::process::Resource;
use std::collections::HashSet;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time that a sender waits in an outage. The outages are shorter, although a device that vanishes
/// without notice is missed only after seconds.
const OUTAGE_MAX: Duration = Duration::from_secs(120);

/// Runs a command on the host, which must succeed.
#[track_caller]
fn host(command: &str) {
    let status = Command::new("bash").args(["-c", command]).status().expect("bash");
    assert!(status.success(), "{command}: {status}");
}

/// Guard that repairs the devices when a test ends, however it ends.
struct Devices;

impl Devices {
    fn there() -> Self {
        assert!(std::env::var_os("JET_RDMA_SOURCE").is_some(), "two devices are needed: deploy/vm/check");
        Self::restore();
        Self
    }

    /// Repairs all devices.
    fn restore() {
        Self::order(&["restore"]);
    }

    /// Takes the carrier from the sender's device (0) or the receiver's (1), as when a cable is pulled. The
    /// port of the switch goes down, and the interface keeps its address and its route.
    fn unplug(end: usize) {
        Self::order(&["unplug", &end.to_string()]);
    }

    /// Whether a new connection that is not Jet's reaches the sender's device (0) or the receiver's (1).
    fn hears(end: usize) -> bool {
        Self::ordered(&["hears", &end.to_string()]).success()
    }

    #[track_caller]
    fn order(arguments: &[&str]) {
        let status = Self::ordered(arguments);
        assert!(status.success(), "devices {arguments:?}: {status}");
    }

    fn ordered(arguments: &[&str]) -> ExitStatus {
        let script =
            std::env::var("JET_RDMA_DEVICES").expect("these tests run in the guest: deploy/vm/check");
        Command::new(&script).args(arguments).status().expect("the script runs")
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        let _ = Command::new("tc").args(["qdisc", "del", "dev", "v0", "root"]).output();
        let _ = Command::new("tc").args(["qdisc", "del", "dev", "v1", "root"]).output();
        Self::restore();
    }
}

/// Sender that never gives up, and the ends of its messages so far.
struct Load {
    traffic: Traffic,
    random: Random,
    sent: usize,
    ended: HashSet<u64>,
}

impl Load {
    fn new(rig: &Rig, mut random: Random) -> Self {
        let address = &rig.addresses()[0];
        let options = Rig::sender_options(address, "store")
            .retry(RetryPolicy::all_for(Duration::MAX))
            .reconnect_for(OUTAGE_MAX);
        let traffic = Traffic::over(Sender::connect(&options).expect("let in"), random.fork());
        Self { traffic, random, sent: 0, ended: HashSet::new() }
    }

    /// Sends small and large messages until `more` further ones have ended and `done` returns `true`. Each
    /// must be consumed, once.
    fn run_load(&mut self, more: usize, mut done: impl FnMut() -> bool) {
        let target = self.ended.len() + more;
        while self.ended.len() < target || !done() {
            while self.sent - self.ended.len() < 32 {
                let bytes = match self.random.below(4) {
                    0 => 4097 + self.random.size_below(1 << 20),
                    _ => self.random.size_below(4097),
                };
                self.traffic.send(bytes).expect("taken");
                self.sent += 1;
            }
            self.take_end();
        }
    }

    fn take_end(&mut self) {
        let end = self.traffic.sender.wait_timeout(OUTAGE_MAX).expect("an end in time");
        let end = end.expect("something is in flight");
        assert_eq!(end.status, AckStatus::Consumed);
        assert!(self.ended.insert(end.ticket.0), "message {} ended twice", end.ticket.0);
    }

    /// Waits for the ends of all messages in flight.
    fn finish(mut self) {
        while self.ended.len() < self.sent {
            self.take_end();
        }
        assert!(self.traffic.sender.poll().is_none(), "an end of nothing");
    }
}

/// Guard that sets the flag when dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs a load in a thread of its own while `what` does something to the devices. Messages must end before it
/// and after it.
fn under_load(rig: &mut Rig, name: &str, seed: u64, what: impl FnOnce(&mut Rig)) {
    let mut random = random_for(name, seed);
    let application = rig.application(Role::Consumer, "store");
    let mut load = Load::new(rig, random.fork());
    load.run_load(50, || true);
    let over = AtomicBool::new(false);
    let load = std::thread::scope(|scope| {
        let carried = scope.spawn(|| {
            load.run_load(50, || over.load(Ordering::Acquire));
            load.run_load(50, || true);
            load
        });
        {
            // The flag is set however `what` ends: otherwise this would wait for the load for ever.
            let _over = Over(&over);
            what(rig);
        }
        carried.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let sent = load.sent;
    load.finish();
    rig.wait_whole();
    assert_eq!(application.reported("wrong"), 0, "{:?}", application.report());
    assert!(application.reported("finished") >= sent, "{} of {sent}", application.reported("finished"));
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn the_receivers_device_is_removed_under_load() {
    let _devices = Devices::there();
    let mut rig = Rig::start(&[]);
    under_load(&mut rig, "receiver's device", 70, make_the_receivers_device_anew);
}

/// Removes the receiver's device, which ends the daemon, makes it anew, and starts the daemon again, as
/// systemd would.
fn make_the_receivers_device_anew(rig: &mut Rig) {
    // The command returns when the daemon has let go of the device.
    host("rdma link delete rxe1");
    let mut daemon = rig.take_daemon();
    assert_eq!(daemon.wait().code(), Some(1), "{}", daemon.stderr_text());
    assert!(daemon.stderr_text().contains("the RDMA device was removed"), "{}", daemon.stderr_text());
    Devices::restore();
    rig.start_again();
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn the_senders_device_is_removed_under_load() {
    let _devices = Devices::there();
    let mut rig = Rig::start(&[]);
    under_load(&mut rig, "sender's device", 71, |rig| {
        host("rdma link delete rxe0");
        rig.wait_status("the sender to be gone", |status| status.peer_count == 0);
        Devices::restore();
        rig.wait_status("the sender to be back", |status| status.peer_count == 1);
    });
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn the_senders_link_goes_down_and_comes_up_under_load() {
    link_goes_down_and_comes_up(0, 72);
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn the_receivers_link_goes_down_and_comes_up_under_load() {
    link_goes_down_and_comes_up(1, 73);
}

/// Takes the carrier of one end under load, and gives it back. Setting the interface down instead would also
/// remove its route. A soft-RoCE device that then sends for RDMA CM never receives again (docs/rdma.md), and
/// the test could show nothing.
fn link_goes_down_and_comes_up(end: usize, seed: u64) {
    let _devices = Devices::there();
    let mut rig = Rig::start(&[]);
    under_load(&mut rig, "link", seed, |rig| {
        Devices::unplug(end);
        // The daemon sees only its own port go down, not a sender's.
        if end == 1 {
            rig.wait_status("the port to be down", |status| rdma(status).state == PortState::Down);
        }
        rig.wait_status("the sender to be missed", |status| status.peer_count == 0);
        Devices::restore();
        rig.wait_status("the sender to be back", |status| status.peer_count == 1);
    });
    let status = rig.wait_status("the port to be active", |status| rdma(status).state == PortState::Active);
    assert_eq!(rdma(&status).downs, u64::from(end == 1));
    assert!(rig.daemon().is_running());
    let said = rig.daemon().stderr_text();
    assert_eq!(said.contains("rxe1 port 1 is down"), end == 1, "{said}");
    assert_eq!(said.contains("active again"), end == 1, "{said}");
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn the_receivers_address_goes_and_comes_back_under_load() {
    let _devices = Devices::there();
    let mut rig = Rig::start(&[]);
    let is_there = |status: &Status| rdma(status).listening[0].is_there;
    under_load(&mut rig, "address", 77, |rig| {
        host("ip address delete 10.9.0.2/32 dev v1");
        rig.wait_status("the address to be missed", |status| !is_there(status));
        Devices::restore();
        rig.wait_status("the address to be back", is_there);
        let said = rig.daemon().stderr_text();
        let address = rig.listens()[0].trim_start_matches("rdma:").to_owned();
        for words in ["is no address of rxe1 port 1 any more", &format!("listening on {address} again")] {
            assert!(said.contains(words), "{words}: {said}");
        }
        wait_for_the_sender(rig);
    });
    // A sender that was not connected before finds the daemon, too.
    let mut random = random_for("address", 78);
    let _application = rig.application(Role::Consumer, "late");
    for address in rig.addresses() {
        Traffic::new(&address, "late", random.fork()).round();
    }
}

/// Time after which a sender is looked for that is not back.
const BACK_MAX: Duration = Duration::from_secs(30);

/// Waits until the sender is connected again.
///
/// After its address was away, rxe of Linux 6.1 sometimes receives no message of RDMA CM any more, from any
/// program (docs/rdma.md). Where connections of another program do not reach the device either, this does
/// what helps an operator.
fn wait_for_the_sender(rig: &mut Rig) {
    let mut look_at = Some(Instant::now() + BACK_MAX);
    until("the sender to be back", || {
        if look_at.is_some_and(|at| at <= Instant::now()) {
            look_at = None;
            if !Devices::hears(1) {
                println!("nobody's connections reach rxe1: the device is made anew (docs/rdma.md)");
                make_the_receivers_device_anew(rig);
            }
        }
        (rig.status().peer_count == 1).then_some(())
    });
}

/// Setting that keeps the daemon from looking at the port within a test. Changes that it sees were then
/// reported by the device.
const NO_LOOK: &str = "rdma.look_ms=3600000";

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn what_the_device_says_of_its_link_is_heard_without_a_look() {
    let _devices = Devices::there();
    // Nobody is connected, because a new connection makes the daemon look at the port, too.
    let rig = Rig::start(&[NO_LOOK]);
    Devices::unplug(1);
    rig.wait_status("the port to be down", |status| rdma(status).state == PortState::Down);
    Devices::restore();
    rig.wait_status("the port to be active", |status| rdma(status).state == PortState::Active);
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn what_the_device_says_of_its_addresses_is_heard_without_a_look() {
    let _devices = Devices::there();
    let rig = Rig::start(&[NO_LOOK]);
    let is_there = |status: &Status| rdma(status).listening[0].is_there;
    host("ip address delete 10.9.0.2/32 dev v1");
    rig.wait_status("the address to be missed", |status| !is_there(status));
    Devices::restore();
    rig.wait_status("the address to be back", is_there);
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn all_addresses_are_those_of_one_device_and_new_ones_are_taken_in() {
    let _devices = Devices::there();
    let rig = Rig::start_at("rdma:0.0.0.0:7450", &["rdma.device='rxe1'"]);
    // Another daemon has the same port number on the other device.
    let other = Rig::start_at("rdma:0.0.0.0:7450", &["rdma.device='rxe0'"]);
    let at = |status: &Status| -> Vec<String> {
        rdma(status).listening.iter().map(|at| at.address.clone()).collect()
    };
    assert_eq!(at(&rig.status()), ["10.9.0.2:7450"]);
    assert_eq!(at(&other.status()), ["10.9.0.1:7450"]);
    let _application = rig.application(Role::Consumer, "store");
    let mut random = random_for("all addresses", 79);
    Traffic::new(&"rdma:10.9.0.2:7450".parse().unwrap(), "store", random.fork()).round();

    // One more address is added, with the routes from and to it (see deploy/vm/devices).
    host("ip address add 10.9.0.22/32 dev v1");
    host("ip route replace 10.9.0.22/32 dev v0 src 10.9.0.1 table 101");
    host("ip rule add pref 22 from 10.9.0.1 to 10.9.0.22 lookup 101");
    host("ip rule add pref 23 from 10.9.0.22 to 10.9.0.1 lookup 102");
    host("ip neighbour replace 10.9.0.22 lladdr $(cat /sys/class/net/v1/address) dev v0 nud permanent");
    rig.wait_status("the new address", |status| at(status).len() == 2);
    Traffic::new(&"rdma:10.9.0.22:7450".parse().unwrap(), "store", random.fork()).round();
    host("ip address delete 10.9.0.22/32 dev v1; ip rule delete pref 22; ip rule delete pref 23");
    // An address that was added after the start is forgotten when it is removed.
    rig.wait_status("it to be gone", |status| at(status) == ["10.9.0.2:7450"]);
}

/// Sets the MTU of an end's interface, in bytes. With 1500 RoCE has 1024 bytes of payload, with 4200 it has
/// 4096.
fn set_mtu(end: usize, bytes: u32) {
    host(&format!("ip link set v{end} mtu {bytes}"));
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn a_sender_whose_packets_are_too_long_is_refused_in_words() {
    let _devices = Devices::there();
    set_mtu(1, 1500);
    let mut rig = Rig::start(&[]);
    let said = rig.daemon().stderr_text();
    assert!(said.contains("takes 5 packets") && said.contains("ip link set dev v1 mtu 4200"), "{said}");
    assert_eq!(rdma(&rig.status()).packets_of_4_kib, 5);
    let error = Sender::connect(&Rig::sender_options(&rig.addresses()[0], "store")).err();
    assert!(matches!(error, Some(SendConnectError::Packets { .. })), "{error:?}");
    let status = rig.status();
    assert_eq!(rdma(&status).refused_for_packets, 1);
    assert_eq!(rdma(&status).refused_packet_bytes, 4096);
    let log = |rig: &mut Rig, words: &str| {
        until("the log", || rig.daemon().stderr_text().contains(words).then_some(()));
    };
    log(&mut rig, "a sender was refused: packets of 4096 bytes are longer");
    // The advice in the log helps.
    set_mtu(0, 1500);
    let _application = rig.application(Role::Consumer, "store");
    let mut random = random_for("long packets", 80);
    Traffic::new(&rig.addresses()[0], "store", random.fork()).round();
    let status = rig.status();
    assert_eq!(rdma(&status).packet_bytes_max, 1024);
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn a_sender_whose_packets_are_shorter_is_served_and_told_of() {
    let _devices = Devices::there();
    set_mtu(0, 1500);
    let mut rig = Rig::start(&[]);
    assert!(!rig.daemon().stderr_text().contains("takes 5 packets"), "{}", rig.daemon().stderr_text());
    let _application = rig.application(Role::Consumer, "store");
    let mut random = random_for("short packets", 81);
    let mut traffic = Traffic::new(&rig.addresses()[0], "store", random.fork());
    traffic.round();
    let status = rig.status();
    assert_eq!(rdma(&status).packet_bytes_max, 4096);
    assert_eq!(rdma(&status).paths[0].packet_bytes, 1024);
    assert_eq!(rdma(&status).paths[0].connections, 1);
    let words = "a sender's packets are of up to 1024 bytes, where rxe1 port 1 takes 4096";
    until("the log", || rig.daemon().stderr_text().contains(words).then_some(()));
    drop(traffic);
    rig.wait_status("nobody", |status| rdma(status).paths.is_empty());
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn a_changed_mtu_is_noticed_though_the_device_says_nothing() {
    let _devices = Devices::there();
    let mut rig = Rig::start(&[]);
    assert_eq!(rdma(&rig.status()).packet_bytes_max, 4096);
    set_mtu(1, 1500);
    rig.wait_status("shorter packets", |status| rdma(status).packet_bytes_max == 1024);
    until("the log", || rig.daemon().stderr_text().contains("so that it takes 2").then_some(()));
    set_mtu(1, 4200);
    rig.wait_status("longer packets", |status| rdma(status).packet_bytes_max == 4096);
    until("the log", || rig.daemon().stderr_text().contains("packets of up to 4096 bytes now").then_some(()));
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn one_packet_in_twenty_is_lost_for_ten_seconds() {
    let _devices = Devices::there();
    host("modprobe sch_netem");
    let mut rig = Rig::start(&[]);
    under_load(&mut rig, "loss", 75, |_| {
        for end in ["v0", "v1"] {
            host(&format!("tc qdisc add dev {end} root netem loss 5% limit 10000"));
        }
        let until_then = Instant::now() + Duration::from_secs(10);
        std::thread::sleep(until_then.saturating_duration_since(Instant::now()));
        for end in ["v0", "v1"] {
            host(&format!("tc qdisc del dev {end} root"));
        }
    });
}

/// Starts a daemon that must refuse to start, and returns its output.
#[track_caller]
fn refusal(address: &str, settings: &[&str], prepare: impl FnOnce(&mut Command)) -> String {
    let folder = Folder::new();
    // Any user may make a socket there, whoever the daemon runs as.
    host(&format!("chmod 777 {}", folder.path().display()));
    Rig::refusal_in(&folder, address, settings, prepare)
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn what_cannot_be_is_refused_in_words() {
    let _devices = Devices::there();
    let address = format!("rdma:{}:0", std::env::var("JET_RDMA_ADDRESS").expect("an address"));
    let cases: [(&str, &[&str], &str); 10] = [
        (&address, &["rdma.device='mlx5_9'"], "there is no RDMA device 'mlx5_9'; there are: rxe0, rxe1"),
        (&address, &["rdma.device='rxe1'", "rdma.gid_index=77"], "GID 77 of 'rxe1' port 1 is empty"),
        (&address, &["rdma.device='rxe1'", "rdma.gid_index=0"], "is a link-local address"),
        (&address, &["rdma.device='rxe1'", "rdma.port=2", "rdma.gid_index=1"], "is not in the table"),
        (&address, &["rdma.gid_index=1"], "name it as rdma.device"),
        ("rdma:192.0.2.77:0", &[], "no RDMA device reaches 192.0.2.77"),
        (&address, &["rdma.device='rxe1'", "rdma.port=2"], "'rxe1' has no port 2"),
        ("rdma:127.0.0.1:0", &[], "127.0.0.1 is no address of an RDMA device"),
        ("rdma:[::1]:0", &["rdma.device='rxe1'"], "::1 is no address of an RDMA device"),
        ("rdma:10.9.0.1:0", &["rdma.device='rxe1'"], "another RDMA device than rxe1"),
    ];
    for (address, settings, words) in cases {
        let said = refusal(address, settings, |_| {});
        assert!(said.contains(words), "{address} {settings:?}: {said}");
    }
    // This user may pin next to no memory.
    let said = refusal(&address, &[], |command| {
        command.uid(65534).gid(65534);
        limit(command, Resource::Memlock, 65536);
    });
    assert!(said.contains("memlock") && said.contains("ulimit -l"), "{said}");
    // Now there is no device at all.
    host("rdma link delete rxe0; rdma link delete rxe1");
    let said = refusal(&address, &[], |_| {});
    assert!(said.contains("there is no RDMA device") && said.contains("rdma link add"), "{said}");
    // A sender may wait for a device.
    let error = Sender::connect(&Rig::sender_options(&address.parse().expect("an address"), "store")).err();
    assert!(error.as_ref().is_some_and(SendConnectError::is_passing), "{error:?}");
}

#[test]
#[ignore = "takes the host's RDMA devices apart: deploy/vm/check device"]
fn a_gid_names_the_address_to_listen_on() {
    let _devices = Devices::there();
    let rig = Rig::start(&["rdma.device='rxe1'", "rdma.gid_index=1"]);
    assert!(rig.listens()[0].starts_with("rdma:10.9.0.2:"), "{:?}", rig.listens());
    let _application = rig.application(Role::Consumer, "store");
    let mut random = random_for("gid", 76);
    for address in rig.addresses() {
        Traffic::new(&address, "store", random.fork()).round();
    }
}

/// Returns the RDMA port's part of a status.
#[track_caller]
fn rdma(status: &Status) -> &RdmaStatus {
    status.rdma.as_ref().expect("the daemon is on a device")
}

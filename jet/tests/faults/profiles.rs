//! Tests of daemons and senders whose NICs have the limits of a device. On each device every message ends,
//! and the daemon says what a device lacks.
//!
//! Both ends keep to the profile, and a sender's device limits what it answers. On an RDMA device that the
//! environment names, the profile applies beside the device's own limits.

use crate::children::Role;
use crate::rig::{Actor, Rig, SIZES_ON_SMALLEST, nic_threads, random_for};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, SendConnectError, Sender};
use jet_fabric::Address;
use jet_fabric::limits::Profile;
use jet_fabric::nic::Nic;
use jet_fabric::soft::threaded::{Threaded, ThreadedOptions};
use jet_fabric::soft::{SoftNic, SoftOptions};
use jet_test_support::device::fabrics;
use jet_test_support::waiting::until;
use jet_wire::message::hello::Refusal;
use std::collections::HashMap;

/// Number of bytes that are sent on each device. A build for speed sends a gibibyte, and one for tests an
/// eighth of it. On an RDMA device that the environment names, most often a guest's, a build for tests sends
/// a quarter of that.
const BYTES: usize = if cfg!(debug_assertions) { 128 << 20 } else { 1 << 30 };
const MESSAGE_BYTES: usize = 8 << 20;

/// Profile with the lowest limits, and the sizes with which a daemon runs on it.
const SMALLEST: (Profile, &[&str]) = (Profile::SMALLEST, &SIZES_ON_SMALLEST);
const DEVICES: [(Profile, &[&str]); 3] = [(Profile::CONNECTX_6, &[]), (Profile::RXE, &[]), SMALLEST];

/// Starts a daemon with the profile and the sizes of a device.
fn daemon_on((profile, sizes): (Profile, &[&str]), thread: &str) -> Rig {
    let profile = format!("nic.profile={}", profile.name());
    Rig::start(&[&[profile.as_str(), thread], sizes].concat())
}

/// Makes a sender's NIC with this profile.
fn nic_of(profile: Profile, address: &Address) -> Box<dyn Nic> {
    #[cfg(feature = "verbs")]
    if let Address::Rdma(text) = address {
        use jet_fabric::verbs::{DeviceChoice, VerbsNic, VerbsOptions};
        let defaults = match jet_test_support::device::source_for(address) {
            Some(ip) => VerbsOptions { source: Some(ip), ..VerbsOptions::on(DeviceChoice::Reaching(ip)) },
            None => VerbsOptions::reaching(text).expect("an address"),
        };
        let options = VerbsOptions {
            profile: Some(profile),
            qps_max: 4,
            srq_entries_max: 64,
            reads_max: 1,
            reads_per_qp_max: 0,
            sends_max: 512,
            ..defaults
        };
        return Box::new(VerbsNic::new(options).expect("a device"));
    }
    let options = SoftOptions {
        profile: Some(profile),
        qps_max: 4,
        srq_entries_max: 64,
        reads_max: 1,
        reads_per_qp_max: 0,
        completions: 1024,
        ..SoftOptions::default()
    };
    let nic = SoftNic::new(options).expect("descriptors");
    match address {
        // The sending thread has no time to answer READs, so a thread does.
        Address::Tcp(_) => Box::new(Threaded::new(nic, &ThreadedOptions::default()).expect("a thread")),
        _ => Box::new(nic),
    }
}

/// Connects a sender over a NIC with this profile.
fn sender_on(profile: Profile, address: &Address, app: &str) -> Sender {
    let options = Rig::sender_options(address, app).in_flight_max(256);
    Sender::connect_with(&options, nic_of(profile, address)).expect("the daemon lets it in")
}

/// Sends messages of these sizes, at most `under_way_max` of them at once. Each must be consumed.
fn send_all(traffic: &mut Traffic, sizes: impl Iterator<Item = usize>, under_way_max: usize) {
    let mut under_way = HashMap::new();
    let end = |under_way: &mut HashMap<u64, usize>, traffic: &mut Traffic| {
        let end = traffic.end();
        let bytes = under_way.remove(&end.ticket.0).expect("an end of what was sent, once");
        assert_eq!(end.status, AckStatus::Consumed, "a message of {bytes} bytes");
    };
    for bytes in sizes {
        if under_way.len() == under_way_max {
            end(&mut under_way, traffic);
        }
        under_way.insert(traffic.send(bytes).expect("taken").0, bytes);
    }
    while !under_way.is_empty() {
        end(&mut under_way, traffic);
    }
}

#[test]
fn large_messages_mixed_with_small_ones_end_on_every_device() {
    const SMALL_BESIDE_EACH: usize = 20;
    let mut random = random_for("devices", 180);
    for device in DEVICES {
        for thread in nic_threads() {
            let rig = daemon_on(device, thread);
            let application = rig.application(Role::Consumer, "store");
            let mut sent = 0;
            for address in rig.fabrics() {
                let sender = sender_on(device.0, &address, "store");
                let mut traffic = Traffic::over(sender, random.fork()).with_tags_from(1 + sent as u64);
                let mut sizes = random.fork();
                // An RDMA device that the environment names is most often a guest's, whose processor is
                // emulated.
                let bytes = if cfg!(debug_assertions) && fabrics().len() == 1 { BYTES / 4 } else { BYTES };
                let large = bytes / MESSAGE_BYTES;
                let mixed =
                    (0..large * (1 + SMALL_BESIDE_EACH)).map(|at| match at % (1 + SMALL_BESIDE_EACH) {
                        0 => MESSAGE_BYTES,
                        _ => sizes.size_below(4097),
                    });
                send_all(&mut traffic, mixed, 4 * (1 + SMALL_BESIDE_EACH));
                sent += large * (1 + SMALL_BESIDE_EACH);
            }
            let status = rig.wait_whole();
            assert_eq!((status.faults.peers, application.reported("wrong")), (0, 0));
            application.wait_reported("finished", sent);
        }
    }
}

#[test]
fn nothing_hangs_on_the_mean_device_whatever_the_sizes() {
    const SENDERS: usize = 3;
    const MESSAGES: usize = 60;
    // These are the sizes that just fit a SEND, a slab, a fragment, and all that is read at once, and a byte
    // more or less.
    const EDGES: [usize; 12] =
        [0, 1, 4095, 4096, 4097, 8192, 262_143, 262_144, 262_145, 4 << 20, (4 << 20) + 1, 12 << 20];
    let mut random = random_for("smallest", 181);
    for thread in nic_threads() {
        let rig = daemon_on(SMALLEST, thread);
        let application = rig.application(Role::Consumer, "store");
        for address in rig.fabrics() {
            std::thread::scope(|scope| {
                for number in 0..SENDERS {
                    let (address, mut sizes, random) = (address.clone(), random.fork(), random.fork());
                    scope.spawn(move || {
                        let sender = sender_on(Profile::SMALLEST, &address, "store");
                        let mut traffic =
                            Traffic::over(sender, random).with_tags_from(((number as u64) << 20) + 1);
                        let any = (0..MESSAGES).map(|_| {
                            let most = [64, 4097, 300_000, 3 << 20][sizes.size_below(4)];
                            sizes.size_below(most)
                        });
                        send_all(&mut traffic, EDGES.into_iter().chain(any), 100);
                    });
                }
            });
        }
        let status = rig.wait_whole();
        assert_eq!((status.faults.peers, application.reported("wrong")), (0, 0));
    }
}

/// Asks for far more READs at once than any connection takes, each of one slab. READs beyond the depth wait
/// and are posted in their turn.
#[test]
fn messages_of_any_size_end_where_a_connection_takes_a_part_of_the_reads_that_one_needs() {
    const SETTINGS: [&str; 2] = ["read.concurrency=200", "read.fragment_bytes=4096"];
    // Numbers of fragments: few, about the READ depth of a device and of a software NIC, about
    // `read.concurrency`, and far beyond it.
    const FRAGMENTS: [usize; 12] = [2, 15, 16, 17, 31, 33, 127, 129, 199, 201, 1024, 2048];
    let mut random = random_for("short READs", 182);
    for (name, profile) in [("", None), ("nic.profile=connectx-6", Some(Profile::CONNECTX_6))] {
        for &thread in nic_threads() {
            let of_device: &[&str] = if name.is_empty() { &[] } else { &[name] };
            let rig = Rig::start(&[of_device, &[thread], &SETTINGS].concat());
            let application = rig.application(Role::Consumer, "store");
            let mut sent = 0;
            for address in rig.fabrics() {
                let sender = match profile {
                    None => Rig::sender(&address, "store"),
                    Some(profile) => sender_on(profile, &address, "store"),
                };
                let mut traffic = Traffic::over(sender, random.fork()).with_tags_from(1 + sent as u64);
                // The messages are sent one by one, and then all at once.
                let sizes = FRAGMENTS.map(|fragments| 4096 * fragments - random.size_below(2));
                send_all(&mut traffic, sizes.into_iter(), 1);
                send_all(&mut traffic, sizes.into_iter(), sizes.len());
                sent += 2 * sizes.len();
            }
            let status = rig.wait_whole();
            assert_eq!((status.faults.peers, application.reported("wrong")), (0, 0));
            application.wait_reported("finished", sent);
        }
    }
}

#[test]
fn the_depth_that_two_nics_agreed_on_is_told() {
    for (device, depth) in [(DEVICES[0], 16), (SMALLEST, 1)] {
        let mut rig = daemon_on(device, nic_threads()[0]);
        for address in rig.fabrics() {
            let sender = sender_on(device.0, &address, "store");
            rig.wait_status("the sender's depth", |status| {
                status.rows.peers.first().is_some_and(|peer| peer.reads_max == depth)
            });
            drop(sender);
            rig.wait_status("the sender to be gone", |status| status.peer_count == 0);
        }
        if fabrics().len() == 1 {
            let said = rig.daemon().stderr_text();
            let (reads, of) = (if depth == 1 { "READ" } else { "READs" }, "13 SENDs a connection");
            assert!(said.contains(&format!(": {depth} {reads} and {of}")), "{said}");
        }
    }
}

#[test]
fn a_daemon_that_asks_too_much_of_a_device_says_of_what_and_which_key_to_lower() {
    let cases: [(&[&str], &[&str]); 6] = [
        (
            &["nic.profile=smallest"],
            &["max_srq_wr of 64", "needs 1024", "pool.srq_bytes to 262144", "pool.srq_reserve_entries to 16"],
        ),
        (
            &[
                "nic.profile=smallest",
                "pool.srq_bytes=266240",
                "limits.credit_per_peer=64",
                "pool.srq_floor_bytes=262144",
                "pool.srq_reserve_entries=16",
            ],
            &["max_srq_wr of 64", "needs 65", "pool.srq_bytes to 262144"],
        ),
        (&["nic.profile=e810"], &["max_srq of 0", "leave nic.profile out"]),
        (&["nic.profile=ionic"], &["max_srq of 0", "leave nic.profile out"]),
        (
            &[
                "nic.profile=connectx-6",
                "pool.bytes=1073741824",
                "pool.srq_bytes=134217728",
                "limits.messages=40000",
            ],
            &["max_srq_wr of 32767", "needs 32768", "pool.srq_bytes to 134213632"],
        ),
        (
            &["nic.profile=connectx"],
            &["unknown profile 'connectx'", "connectx-6, e810, ionic, rxe, smallest"],
        ),
    ];
    for (settings, words) in cases {
        let said = Rig::refusal(settings);
        for word in words {
            assert!(said.contains(word), "{settings:?} without {word:?}: {said}");
        }
        assert!(!said.contains("panicked"), "{said}");
    }
}

/// Connects a sender with a message that its application keeps: a sender that is idle makes room for others
/// that come.
fn connect_and_keep_busy(
    address: &Address,
    senders: &mut Vec<Sender>,
    keeper: &Actor,
) -> Result<(), SendConnectError> {
    let mut sender = Sender::connect(&Rig::sender_options(address, "store"))?;
    sender.send_small(0, b"kept").expect("taken");
    senders.push(sender);
    until("the message", || {
        for sender in senders.iter_mut() {
            assert!(sender.poll().is_none(), "a message that is kept has no end");
        }
        (keeper.reported("begun") == senders.len()).then_some(())
    });
    Ok(())
}

/// Takes all places of a daemon on the mean device, and returns the senders.
fn take_all_places(address: &Address, keeper: &Actor) -> Vec<Sender> {
    let mut senders = Vec::new();
    let refused = loop {
        if let Err(error) = connect_and_keep_busy(address, &mut senders, keeper) {
            break error;
        }
    };
    // Of 64 connections 8 are kept for telling further senders that there is no room.
    assert_eq!(senders.len(), 56, "{address}");
    let refusal = matches!(refused, SendConnectError::Refused { refusal: Refusal::TooManyPeers, .. });
    assert!(refusal, "{refused}");
    senders
}

#[test]
fn who_comes_beyond_a_devices_connections_is_told_so() {
    for fabric in 0..fabrics().len() {
        let rig = daemon_on(SMALLEST, nic_threads()[0]);
        let keeper = rig.application(Role::Keeper, "store");
        let address = &rig.fabrics()[fabric];
        let mut senders = take_all_places(address, &keeper);
        for _ in 0..100 {
            let again = Sender::connect(&Rig::sender_options(address, "store")).err();
            assert!(matches!(again, Some(SendConnectError::Refused { .. })), "{again:?}");
        }
        // A connection that becomes free is used again.
        senders.pop();
        rig.wait_status("a place", |status| status.peer_count == 55);
        senders.push(Sender::connect(&Rig::sender_options(address, "store")).expect("let in"));
    }
}

/// A process that sends over `shm:` is another source than its host over `tcp:`. On an RDMA device there is
/// one fabric, and the test's host is one source.
#[test]
fn who_has_all_places_leaves_one_to_somebody_else_though_none_is_idle() {
    let rig = daemon_on(SMALLEST, nic_threads()[0]);
    let keeper = rig.application(Role::Keeper, "store");
    let [first, other] = &rig.fabrics()[..] else { return };
    let _senders = take_all_places(first, &keeper);
    until("a place for the other one", || {
        Sender::connect(&Rig::sender_options(other, "store")).map(|_| ()).ok()
    });
}

//! Tests of connections that say nothing, at the software NIC's addresses and at the control socket. They
//! hold up nobody, whether they stay or come back.

use crate::children::Role;
use crate::crowd::Crowd;
use crate::hand_session::HandSession;
use crate::rig::{Rig, nic_threads, random_for};
use crate::traffic::Traffic;
use jet_client::send::Sender;
use jet_control::{ControlConnection, ControlRequest, ControlResponse, ErrorCode};
use jet_fabric::Address;
use jet_test_support::waiting::{WAIT_LIMIT, until};
use rustix::net::{RecvFlags, recv};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// Silent connections of the promise.
const SILENT: usize = 384;
/// Senders that come, one after another. The median counts, as one of them may wait for a processor.
const SENDERS: usize = 9;
/// Longest time that a new sender may wait.
const DELAY_MAX: Duration = Duration::from_millis(100);

/// Lets senders come one after another, and returns the median of the times until each was let in.
fn delay_of_new_senders(address: &Address) -> Duration {
    let mut delays: Vec<_> = (0..SENDERS)
        .map(|_| {
            let begin = Instant::now();
            let _sender = Rig::sender(address, "store");
            begin.elapsed()
        })
        .collect();
    delays.sort_unstable();
    delays[SENDERS / 2]
}

#[test]
fn a_host_of_no_allowed_network_reaches_no_application() {
    for thread in nic_threads() {
        let rig = Rig::start_on_software(&[thread, "networks=['192.0.2.0/24', '2001:db8::/32']"]);
        let _application = rig.application(Role::Consumer, "store");
        let [shm, tcp] = &rig.addresses()[..] else { panic!("two addresses") };
        let refused = Sender::connect(&Rig::sender_options(tcp, "store").connect_timeout(DELAY_MAX));
        assert!(refused.is_err());
        let status = rig.wait_status("the count", |status| status.nic.networks_refused > 0);
        assert_eq!(status.peer_count, 0);
        // Who is on this host comes from no network.
        drop(Rig::sender(shm, "store"));
        let rig = Rig::start_on_software(&[thread, "networks=['192.0.2.0/24', '127.0.0.1']"]);
        drop(Rig::sender(&rig.addresses()[1], "store"));
        assert_eq!(rig.status().nic.networks_refused, 0);
    }
}

#[test]
fn networks_are_read_and_those_that_are_none_named() {
    let said = Rig::refusal(&["networks=['10.0.0.1/8']"]);
    assert!(said.contains("networks: '10.0.0.1/8' has bits that do not count; write 10.0.0.0/8"), "{said}");
}

#[test]
fn hundreds_of_silent_connections_hold_up_no_new_sender() {
    let mut random = random_for("silent", 40);
    for &threads in nic_threads() {
        let rig = Rig::start_on_software(&[threads]);
        let _application = rig.application(Role::Consumer, "store");
        for address in rig.addresses() {
            // The second crowd is more than its source's share: its connections are closed, and come back. It
            // also keeps a processor of the test's own busy, so the promise is for the first.
            for (count, delay_max) in [(SILENT, DELAY_MAX), (2 * SILENT, 5 * DELAY_MAX)] {
                let crowd = Crowd::at_nic(&address, count);
                if count > SILENT {
                    crowd.wait_for_more(count as u64);
                }
                let delay = delay_of_new_senders(&address);
                println!("{threads} {address}: {count} silent connections, {delay:?} for a new sender");
                assert!(delay <= delay_max, "{address}, {count} silent: {delay:?}");
                Traffic::new(&address, "store", random.fork()).round();
            }
        }
        rig.wait_whole();
    }
}

/// Runs `jet status` as a process of its own.
fn jet_status(rig: &Rig) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_jet"));
    let output = command.arg("status").arg("--control-socket").arg(rig.control()).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn hundreds_of_idle_control_connections_lock_out_nobody() {
    const IDLE: usize = 400;
    let begin = Instant::now();
    let mut rig = Rig::start_on_software(&["session.quarantine_ms=20"]);
    let before = HandSession::register(&rig.control(), "before");
    // From this process, so its share of the places is all that they get.
    let crowd = Crowd::at_control(&rig.control(), IDLE);
    for round in 0..5 {
        crowd.wait_for_more(IDLE as u64);
        jet_status(&rig);
        let application = rig.application(Role::Consumer, &format!("store-{round}"));
        // The process that has the crowd may lose the connection before it asks, and then tries again.
        until("an answer in the crowd", || rig.try_status());
        let name = format!("hand-{round}");
        let _session = until("a session", || HandSession::try_register(&rig.control(), &name).ok());
        drop(application);
    }
    let came_back = crowd.closed();
    drop(crowd);
    assert!(rig.status().session("before").is_some(), "a registered application keeps its connection");
    drop(before);
    // A line for each of them would fill the log: lines about one process are limited, and counted.
    let log = rig.daemon().stderr_text();
    let lines = log.lines().filter(|line| line.contains("was idle for")).count();
    println!("{came_back} connections came back, {lines} lines");
    // 8 in 10 s, and one more that counts the others.
    let most = 9 * (2 + usize::try_from(begin.elapsed().as_secs() / 10).unwrap());
    assert!((1..=most).contains(&lines), "{lines} lines for {came_back}");
}

/// Descriptors of a daemon that soon has no more: fewer than there are places for control connections.
const FEW_DESCRIPTORS: u64 = 128;

#[test]
fn idle_control_connections_give_the_last_descriptors_back() {
    let rig = Rig::start_with_descriptors(FEW_DESCRIPTORS, &[]);
    let (crowd, begin) = (Crowd::at_control(&rig.control(), 200), Instant::now());
    for _ in 0..5 {
        crowd.wait_for_more(200);
        jet_status(&rig);
    }
    // Nobody waits until the time of an idle connection is over, which is 30 s.
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

#[test]
fn silent_connections_give_the_last_descriptors_to_senders() {
    for at in 0..2 {
        let rig = Rig::start_with_descriptors(FEW_DESCRIPTORS, &[]);
        let address = &rig.addresses()[at];
        // Fewer than its source's share, which is 8 here, so only want of descriptors drives them away.
        let crowd = Crowd::once_at_nic(address, 4);
        let mut senders = Vec::new();
        let mut slowest = Duration::ZERO;
        while crowd.closed() == 0 {
            let begin = Instant::now();
            match Sender::connect(&Rig::sender_options(address, "store")) {
                Ok(sender) => senders.push(sender),
                // Only who comes when no silent connection is left to be driven away. The crowd hears of its
                // end by a thread that may wait for a processor.
                Err(_) => until("a silent connection is driven away", || (crowd.closed() > 0).then_some(())),
            }
            slowest = slowest.max(begin.elapsed());
            assert!(senders.len() < 128, "the daemon has so many descriptors");
        }
        println!("{address}: {} senders, the slowest after {slowest:?}", senders.len());
        // Nobody waits until the time of a silent connection is over, which is 5 s.
        assert!(slowest < Duration::from_millis(2500), "{slowest:?}");
        assert!(senders.len() > 16, "most descriptors are for senders");
    }
}

#[test]
fn who_is_idle_longest_is_told_why_it_goes() {
    let rig = Rig::start(&["limits.sessions=1"]);
    let connect = || UnixStream::connect(rig.control()).expect("the daemon listens");
    let mut first = ControlConnection::connect(&rig.control()).unwrap();
    let mut others: Vec<_> = (0..100).map(|_| connect()).collect();
    // Whoever asks is no longer the one that is idle longest.
    let mut asking = ControlConnection::connect(&rig.control()).unwrap();
    others.extend((0..26).map(|_| connect()));
    assert!(matches!(asking.look(), jet_control::connection::Look::Alive));
    asking.status().expect("a status");
    // With these, this process has 128 and two more connections.
    let second = others.remove(0);
    others.extend((0..2).map(|_| connect()));
    let ended = until("the first to be told", || match first.look() {
        jet_control::connection::Look::Ended { code, message } => Some((code, message)),
        jet_control::connection::Look::Alive => None,
        jet_control::connection::Look::Gone => panic!("it is told why"),
    });
    assert_eq!(ended.0, ErrorCode::TooManyConnections);
    assert!(ended.1.contains("idle longest") && ended.1.contains("256"), "{}", ended.1);
    assert!(first.request(&ControlRequest::Status).is_err(), "the daemon has hung up");
    second.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    // It is told when the last connection has been accepted, which may be later than the first is. Only then
    // does it ask.
    let (read, _) = recv(&second, &mut [0; 1][..], RecvFlags::PEEK).expect("it is told in time");
    assert_eq!(read, 1, "it is told why it goes");
    let mut second = ControlConnection::from_stream(second, WAIT_LIMIT).unwrap();
    let (answer, _) = second.request(&ControlRequest::Status).expect("its farewell");
    assert!(
        matches!(answer, ControlResponse::Error { code: ErrorCode::TooManyConnections, .. }),
        "{answer:?}"
    );
    asking.status().expect("it keeps its place");
}

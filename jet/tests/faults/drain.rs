//! Tests of a daemon that is told to stop. It finishes what it has, and its addresses are free for the next
//! daemon.

use crate::children::Role;
use crate::hand_session::HandSession;
use crate::rig::{Actor, Rig, random_for};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, RetryPolicy, SendConnectError, Sender};
use jet_control::protocol::admin_socket_beside;
use jet_control::{ControlConnection, ControlRequest, ControlResponse, ErrorCode};
use jet_fabric::Address;
use jet_test_support::random::Random;
use jet_test_support::waiting::until;
use jet_wire::message::ByeReason;
use rustix::process::Signal;

#[test]
fn told_to_stop_it_finishes_what_it_has_and_takes_nothing_new() {
    let mut random = random_for("drain", 50);
    let mut rig = Rig::start(&["shutdown.drain_ms=600000"]);
    let application = rig.application(Role::Consumer, "store");
    let addresses = rig.addresses();
    let mut senders: Vec<_> = addresses
        .iter()
        .map(|address| {
            let options = Rig::sender_options(address, "store").retry(RetryPolicy::NEVER);
            Traffic::over(Sender::connect(&options).expect("let in"), random.fork())
        })
        .collect();
    // The application is stopped, so that something is certain to be in flight.
    application.process.pause();
    for sender in &mut senders {
        for bytes in [100, 300_000, 2_000_000] {
            sender.send(bytes).unwrap();
        }
    }
    until("the messages to be there", || {
        senders.iter_mut().for_each(|sender| sender.sender.flush());
        (rig.status().messages.large == 4).then_some(())
    });
    rig.daemon().signal(Signal::TERM);
    rig.wait_status("it to drain", |status| status.draining);
    // The daemon takes no new message, sender or application.
    for sender in &mut senders {
        sender.send(10).unwrap();
        sender.send(10_000).unwrap();
        assert_eq!(sender.ends(2), [AckStatus::Draining; 2]);
    }
    for address in &addresses {
        let refused = Sender::connect(&Rig::sender_options(address, "store"));
        assert!(
            matches!(refused, Err(SendConnectError::Nobody { .. } | SendConnectError::Refused { .. })),
            "{refused:?}"
        );
    }
    let refused = HandSession::try_register(&rig.control(), "late").err().expect("nothing new");
    assert_eq!(refused.0, ErrorCode::Draining, "{refused:?}");
    assert!(rig.daemon().is_running());
    application.process.signal(Signal::CONT);
    for sender in &mut senders {
        assert_eq!(sender.ends(3), [AckStatus::Consumed; 3]);
    }
    until("the farewell", || {
        senders
            .iter_mut()
            .all(|sender| {
                sender.sender.flush();
                sender.sender.farewell() == Some(ByeReason::Draining)
            })
            .then_some(())
    });
    let status = rig.daemon().wait();
    assert_eq!(status.code(), Some(0), "{}", rig.daemon().stderr_text());
    if let Address::Shm(nic) = &addresses[0] {
        assert!(!nic.exists(), "its socket is removed");
    }
    assert!(!rig.control().exists(), "its socket is removed");
    assert_eq!(application.reported("finished"), 6);
    application.wait_reported("gone", 1);
}

#[test]
fn a_drain_that_takes_too_long_ends_all_the_same() {
    let mut random = random_for("late drain", 51);
    let mut rig = Rig::start(&["shutdown.drain_ms=50"]);
    let application = rig.application(Role::Consumer, "store");
    application.process.pause();
    let address = &rig.addresses()[1];
    let reconnect_for = std::time::Duration::from_millis(100);
    let options = Rig::sender_options(address, "store").reconnect_for(reconnect_for);
    let mut sender = Traffic::over(Sender::connect(&options).expect("let in"), random.fork());
    sender.send(1_000_000).unwrap();
    rig.wait_status("the message to be there", |status| status.messages.large == 1);
    rig.daemon().signal(Signal::TERM);
    assert_eq!(rig.daemon().wait().code(), Some(0));
    assert_eq!(sender.ends(1), [AckStatus::PeerLost]);
}

/// Asks for a drain, like `jet drain`. Returns the milliseconds that are left of it, and whether one was
/// under way already.
fn ask_for_drain(rig: &Rig, deadline_ms: Option<u64>) -> (u64, bool) {
    let mut connection =
        ControlConnection::connect(&admin_socket_beside(&rig.control())).expect("the daemon answers");
    match connection.request(&ControlRequest::Drain { deadline_ms }).expect("an answer").0 {
        ControlResponse::Draining { deadline_ms, again } => (deadline_ms, again),
        other => panic!("{other:?}"),
    }
}

/// Starts a daemon with a large message that its application has not consumed, because it is stopped.
fn with_something_to_finish(random: &mut Random, setting: &str) -> (Rig, Actor, Traffic) {
    let rig = Rig::start(&[setting]);
    let application = rig.application(Role::Consumer, "store");
    application.process.pause();
    let reconnect_for = std::time::Duration::from_millis(100);
    let options = Rig::sender_options(&rig.addresses()[1], "store").reconnect_for(reconnect_for);
    let mut sender = Traffic::over(Sender::connect(&options).expect("let in"), random.fork());
    sender.send(1_000_000).unwrap();
    rig.wait_status("the message to be there", |status| status.messages.large == 1);
    (rig, application, sender)
}

#[test]
fn a_drain_that_is_asked_for_again_goes_on_and_drops_nothing() {
    let mut random = random_for("drain again", 53);
    let (mut rig, application, mut sender) =
        with_something_to_finish(&mut random, "shutdown.drain_ms=600000");
    let (left_ms, again) = ask_for_drain(&rig, None);
    assert!(left_ms == 600_000 && !again, "{left_ms} {again}");
    let (left_ms, again) = ask_for_drain(&rig, None);
    assert!((1..=600_000).contains(&left_ms) && again, "{left_ms} {again}");
    for (signal, name) in [(Signal::TERM, "SIGTERM"), (Signal::HUP, "SIGHUP"), (Signal::INT, "SIGINT")] {
        rig.daemon().signal(signal);
        until(name, || rig.daemon().stderr_text().contains(&format!("{name} while draining")).then_some(()));
    }
    // Another deadline takes effect, whether it is sooner or later.
    assert_eq!(ask_for_drain(&rig, Some(900_000)), (900_000, true));
    let status = rig.status();
    assert!(status.draining && status.messages.known == 1, "{status:#?}");
    application.process.signal(Signal::CONT);
    assert_eq!(sender.ends(1), [AckStatus::Consumed]);
    assert_eq!(rig.daemon().wait().code(), Some(0), "{}", rig.daemon().stderr_text());
    assert_eq!(application.reported("finished"), 1);
}

#[test]
fn a_drain_is_cut_short_only_by_whoever_says_so() {
    let mut random = random_for("drain cut", 54);
    for at_once in ["a deadline of 0", "SIGINT twice"] {
        let (mut rig, _application, mut sender) =
            with_something_to_finish(&mut random, "shutdown.drain_ms=600000");
        rig.daemon().signal(Signal::TERM);
        rig.wait_status("it to drain", |status| status.draining);
        if at_once == "SIGINT twice" {
            rig.daemon().signal(Signal::INT);
            until("the first", || rig.daemon().stderr_text().contains("SIGINT while draining").then_some(()));
            rig.daemon().signal(Signal::INT);
        } else {
            assert_eq!(ask_for_drain(&rig, Some(0)), (0, true));
        }
        assert_eq!(rig.daemon().wait().code(), Some(0), "{at_once}: {}", rig.daemon().stderr_text());
        assert_eq!(sender.ends(1), [AckStatus::PeerLost], "{at_once}");
    }
}

#[test]
fn a_living_daemon_keeps_its_places_and_a_dead_ones_are_taken() {
    let mut random = random_for("places", 52);
    let mut rig = Rig::start(&[]);
    let application = rig.application(Role::Consumer, "store");
    let mut traffic = Traffic::to_each(&rig.addresses(), "store", &mut random);
    let all = rig.listens().to_vec();
    let elsewhere = rig.path("elsewhere.sock");
    let cases = [
        (rig.control(), &all[..], "is running already"),
        (elsewhere.clone(), &all[..1], "in use by a running process"),
        (elsewhere.clone(), &all[1..], "in use by a running process"),
    ];
    for (control, addresses, words) in cases {
        let mut second = rig.another_daemon(&control, addresses);
        assert_eq!(second.wait().code(), Some(1), "{words}: {}", second.stderr_text());
        assert!(second.stderr_text().contains(words), "{}", second.stderr_text());
        traffic.iter_mut().for_each(Traffic::round);
    }
    assert!(!elsewhere.exists(), "who could not start leaves nothing");
    // A file that is no socket is not removed.
    std::fs::write(&elsewhere, "mine").unwrap();
    let free = format!("shm:{}", rig.path("other-nic.sock").display());
    let mut second = rig.another_daemon(&elsewhere, &[free]);
    assert_eq!(second.wait().code(), Some(1), "{}", second.stderr_text());
    assert!(second.stderr_text().contains("is no socket"), "{}", second.stderr_text());
    assert_eq!(std::fs::read(&elsewhere).unwrap(), b"mine");
    let address = format!("shm:{}", elsewhere.display());
    let mut second = rig.another_daemon(&rig.path("third.sock"), &[address]);
    assert_eq!(second.wait().code(), Some(1), "{}", second.stderr_text());
    assert!(second.stderr_text().contains("it is no socket"), "{}", second.stderr_text());
    assert_eq!(std::fs::read(&elsewhere).unwrap(), b"mine");
    // A killed daemon leaves its files, and the next one replaces them.
    rig.kill_daemon();
    if let Address::Shm(nic) = &rig.addresses()[0] {
        assert!(nic.exists());
    }
    assert!(rig.control().exists());
    rig.start_again();
    application.wait_reported("registered", 2);
    traffic.iter_mut().for_each(Traffic::round);
    rig.wait_whole();
}

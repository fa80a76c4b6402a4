//! The daemon's own end: told to stop it finishes what it has, and its places are free for the next.

use crate::children::Role;
use crate::hand_session::HandSession;
use crate::rig::{Random, Rig, number, until};
use crate::traffic::Traffic;
use jet_client::registration::ErrorCode;
use jet_client::send::{AckStatus, RetryPolicy, SendConnectError, Sender, SenderOptions};
use jet_fabric::Address;
use jet_wire::message::ByeReason;
use rustix::process::Signal;

#[test]
fn told_to_stop_it_finishes_what_it_has_and_takes_nothing_new() {
    let mut random = Random::for_test("drain", 50);
    let mut rig = Rig::start(&["shutdown.drain_ms=600000"]);
    let application = rig.application(Role::Consumer, "store");
    let addresses = rig.addresses();
    let mut senders: Vec<_> = addresses
        .iter()
        .map(|address| {
            let options =
                SenderOptions { retry: RetryPolicy::NEVER, ..Rig::sender_options(address, "store") };
            Traffic::over(Sender::connect(options).expect("let in"), random.fork())
        })
        .collect();
    // Stopped, so that something is certain to be in flight.
    application.process.stop();
    for sender in &mut senders {
        for bytes in [100, 300_000, 2_000_000] {
            sender.send(bytes).unwrap();
        }
    }
    until("the messages to be there", || {
        senders.iter_mut().for_each(|sender| sender.sender.flush());
        (number(&rig.status(), "messages.large") == 4).then_some(())
    });
    rig.daemon().signal(Signal::TERM);
    rig.wait_status("it to drain", |status| status["draining"] == true);
    // Nothing new: no message, no sender, no application.
    for sender in &mut senders {
        sender.send(10).unwrap();
        sender.send(10_000).unwrap();
        assert_eq!(sender.ends(2), [AckStatus::Draining; 2]);
    }
    for address in &addresses {
        let refused = Sender::connect(Rig::sender_options(address, "store"));
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
    assert_eq!(status.code(), Some(0), "{}", rig.daemon().said());
    if let Address::Shm(nic) = &addresses[0] {
        assert!(!nic.exists(), "its socket is removed");
    }
    assert!(!rig.control().exists(), "its socket is removed");
    assert_eq!(application.reported("finished"), 6);
    application.wait_reported("gone", 1);
}

#[test]
fn a_drain_that_takes_too_long_ends_all_the_same() {
    let mut random = Random::for_test("late drain", 51);
    let mut rig = Rig::start(&["shutdown.drain_ms=50"]);
    let application = rig.application(Role::Consumer, "store");
    application.process.stop();
    let address = &rig.addresses()[1];
    let reconnect_for = std::time::Duration::from_millis(100);
    let options = SenderOptions { reconnect_for, ..Rig::sender_options(address, "store") };
    let mut sender = Traffic::over(Sender::connect(options).expect("let in"), random.fork());
    sender.send(1_000_000).unwrap();
    rig.wait_status("the message to be there", |status| number(status, "messages.large") == 1);
    rig.daemon().signal(Signal::TERM);
    assert_eq!(rig.daemon().wait().code(), Some(0));
    assert_eq!(sender.ends(1), [AckStatus::PeerLost]);
}

#[test]
fn a_living_daemon_keeps_its_places_and_a_dead_ones_are_taken() {
    let mut random = Random::for_test("places", 52);
    let mut rig = Rig::start(&[]);
    let application = rig.application(Role::Consumer, "store");
    let mut traffic: Vec<_> =
        rig.addresses().iter().map(|address| Traffic::new(address, "store", random.fork())).collect();
    let all = rig.listens().to_vec();
    let elsewhere = rig.path("elsewhere.sock");
    let cases = [
        (rig.control(), &all[..], "is running already"),
        (elsewhere.clone(), &all[..1], "in use by a running process"),
        (elsewhere.clone(), &all[1..], "in use by a running process"),
    ];
    for (control, addresses, words) in cases {
        let mut second = rig.another_daemon(&control, addresses);
        assert_eq!(second.wait().code(), Some(1), "{words}: {}", second.said());
        assert!(second.said().contains(words), "{}", second.said());
        traffic.iter_mut().for_each(Traffic::round);
    }
    assert!(!elsewhere.exists(), "who could not start leaves nothing");
    // A file that is no socket is nobody's to remove.
    std::fs::write(&elsewhere, "mine").unwrap();
    let free = format!("shm:{}", rig.path("other-nic.sock").display());
    let mut second = rig.another_daemon(&elsewhere, &[free]);
    assert_eq!(second.wait().code(), Some(1), "{}", second.said());
    assert!(second.said().contains("is no socket"), "{}", second.said());
    assert_eq!(std::fs::read(&elsewhere).unwrap(), b"mine");
    // A killed one leaves its files, which the next replaces.
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

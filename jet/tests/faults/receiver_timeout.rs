//! Tests of a receiver that shows no sign of life, which its senders must notice. A receiver whose
//! application only takes its time must not count as such.

use crate::children::Role;
use crate::rig::{Rig, random_for};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, Sender};
use jet_fabric::Address;
use jet_test_support::waiting::WAIT_LIMIT;
use rustix::process::Signal;
use std::time::{Duration, Instant};

const HEARTBEAT: &str = "limits.heartbeat_ms=100";

fn sender(address: &Address, receiver_timeout: Duration, reconnect_for: Duration) -> Sender {
    let options = Rig::sender_options(address, "store");
    let options = options.receiver_timeout(receiver_timeout).reconnect_for(reconnect_for);
    Sender::connect(&options).expect("let in")
}

/// Drives the sender until `wished` returns `true`.
#[track_caller]
fn drive(sender: &mut Sender, what: &str, mut wished: impl FnMut(&mut Sender) -> bool) {
    let deadline = Instant::now() + WAIT_LIMIT;
    while !wished(sender) {
        assert!(Instant::now() < deadline, "waited {WAIT_LIMIT:?} for {what}: {:?}", sender.stats());
        // Lets the sender work, and then waits for a moment.
        sender.flush();
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_application_that_takes_its_time_is_waited_for() {
    let rig = Rig::start(&[HEARTBEAT]);
    let _keeper = rig.application(Role::Keeper, "store");
    for address in rig.fabrics() {
        let mut sender = sender(&address, Duration::from_secs(3), WAIT_LIMIT);
        sender.send_small(0, b"kept").expect("taken");
        // The receiver's signs of life are counted for twice as long as the sender would have waited without
        // one.
        let words = sender.stats().nic.receives + 60;
        drive(&mut sender, "words of the receiver", |sender| sender.stats().nic.receives >= words);
        let stats = sender.stats().protocol;
        assert_eq!((stats.receiver_timeouts, stats.connections, stats.redelivered), (0, 1, 0));
    }
}

#[test]
fn a_receiver_that_stands_still_is_left_and_found_again() {
    let mut random = random_for("silence", 61);
    let mut rig = Rig::start(&[HEARTBEAT]);
    let _consumer = rig.application(Role::Consumer, "store");
    for address in rig.fabrics() {
        let sender = sender(&address, Duration::from_secs(1), WAIT_LIMIT);
        let mut traffic = Traffic::over(sender, random.fork());
        rig.daemon().pause();
        traffic.send(100).expect("taken");
        traffic.send(100_000).expect("taken");
        let noticed = |sender: &mut Sender| sender.stats().protocol.receiver_timeouts == 1;
        drive(&mut traffic.sender, "the silence to be noticed", noticed);
        rig.daemon().signal(Signal::CONT);
        assert_eq!(traffic.ends(2), [AckStatus::Consumed; 2]);
    }
}

#[test]
fn what_a_receiver_that_stands_still_was_sent_ends_as_lost() {
    let mut rig = Rig::start(&[HEARTBEAT]);
    let _keeper = rig.application(Role::Keeper, "store");
    let addresses = rig.fabrics();
    let senders = addresses.iter().map(|address| {
        let mut sender = sender(address, Duration::from_secs(1), Duration::from_secs(1));
        sender.send_small(0, b"sent").expect("taken");
        sender
    });
    let mut senders: Vec<_> = senders.collect();
    rig.daemon().pause();
    for sender in &mut senders {
        let mut ended = None;
        drive(sender, "the message's end", |sender| {
            ended = ended.take().or_else(|| sender.poll());
            ended.is_some()
        });
        assert_eq!(ended.map(|end| end.status), Some(AckStatus::PeerLost));
        assert_eq!(sender.stats().protocol.receiver_timeouts, 1);
    }
}

//! Tests of senders that are sent away: who has nothing to send stays away until it has something, and leaves
//! its place to others meanwhile.

use super::protocol::{MS, ack, connected, options, sent_and_completed, submit_small_ones, welcome};
use super::scripted_nic::{Script, ScriptedNic};
use crate::send::options::SenderOptions;
use crate::send::protocol::{Action, Protocol};
use crate::send::sender::Sender;
use jet_fabric::nic::PrivateData;
use jet_fabric::{Address, Event};
use jet_wire::message::{AckStatus, ByeHeader, ByeReason};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Lets the receiver send the sender away for a reason, and the connection end.
fn sent_away(protocol: &mut Protocol, reason: ByeReason) {
    protocol.handle_header(&ByeHeader::encode(reason), 0, 0);
    assert_eq!(protocol.poll_action(), Some(Action::Disconnect));
    protocol.handle_disconnected(0);
}

#[test]
fn who_has_nothing_to_send_connects_again_when_it_has() {
    let mut protocol = connected(options(), 100, 4);
    submit_small_ones(&mut protocol, 1);
    assert_eq!(sent_and_completed(&mut protocol), [1]);
    protocol.handle_header(&ack(100, 1, 1, AckStatus::Consumed), 0, 0);
    sent_away(&mut protocol, ByeReason::Draining);
    assert_eq!((protocol.poll_action(), protocol.poll_timeout()), (None, None));
    assert!(!protocol.has_given_up(), "it takes messages");
    submit_small_ones(&mut protocol, 1);
    assert_eq!(protocol.poll_action(), Some(Action::Connect));
    protocol.handle_connected(&welcome(100, 4), 0);
    assert_eq!(sent_and_completed(&mut protocol), [2]);
}

#[test]
fn who_has_something_to_send_or_lost_its_connection_connects_at_once() {
    for waits in [false, true] {
        let mut protocol = connected(options(), 100, 4);
        submit_small_ones(&mut protocol, usize::from(waits));
        if waits {
            sent_away(&mut protocol, ByeReason::Draining);
        } else {
            protocol.handle_disconnected(0);
        }
        assert_eq!(protocol.poll_action(), Some(Action::Connect), "{waits}");
        // What this connection was told says nothing of the attempts after it.
        protocol.handle_disconnected(MS);
        assert!(protocol.poll_action().is_some() || protocol.poll_timeout().is_some(), "{waits}");
    }
}

#[test]
fn who_rests_closes_without_a_connection() {
    let mut protocol = connected(options(), 100, 4);
    sent_away(&mut protocol, ByeReason::Draining);
    protocol.close();
    assert_eq!(protocol.poll_action(), None);
    assert!(protocol.is_closed());
}

/// Tests a connection of which the welcome, the farewell and the end are there at once.
#[test]
fn who_is_sent_away_at_once_has_connected() {
    let script = Arc::new(Mutex::new(Script {
        at_connect: Some(|script, qp| {
            let private_data = PrivateData::new(&welcome(100, 4).encode()).unwrap();
            script.events.push_back(Event::Connected { qp, private_data, reads_max: 0 });
            script.receive(qp, &ByeHeader::encode(ByeReason::Draining));
            script.lose(qp);
        }),
        ..Script::default()
    }));
    let address = Address::Rdma("receiver:7450".to_owned());
    let options =
        SenderOptions { connect_timeout: Duration::from_secs(2), ..SenderOptions::new(address, "app") };
    let sender = Sender::connect_with(&options, Box::new(ScriptedNic::new(&script))).unwrap();
    assert!(!sender.is_connected());
    assert_eq!(script.lock().unwrap().connects, 1);
}

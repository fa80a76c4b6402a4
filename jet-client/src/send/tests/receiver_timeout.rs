//! Tests of the protocol with a receiver that sends nothing.

use super::protocol::welcome;
use crate::send::options::ProtocolOptions;
use crate::send::protocol::{Action, Protocol, Transmit};
use jet_wire::message::CreditHeader;
use jet_wire::message::hello::Welcome;

const MS: u64 = 1_000_000;
const HEARTBEAT_MS: u16 = 100;

/// Returns a connected protocol whose timeout for the receiver is a second.
fn connected(heartbeat_ms: u16) -> Protocol {
    let mut protocol = Protocol::new(ProtocolOptions {
        in_flight_max: 8,
        receiver_timeout_ns: 1000 * MS,
        ..ProtocolOptions::default()
    });
    assert_eq!(protocol.poll_action(), Some(Action::Connect));
    protocol.handle_connected(&Welcome { heartbeat_ms, ..welcome(2, 4) }, 0);
    protocol
}

/// Sends what may be sent, and completes the SENDs. Returns which messages were marked redelivered.
fn sent(protocol: &mut Protocol, now_ns: u64) -> Vec<bool> {
    let mut marks = Vec::new();
    while let Some(transmit) = protocol.poll_transmit() {
        let Transmit::Message { id, redelivered, .. } = transmit else { panic!("{transmit:?}") };
        protocol.handle_send_completed(id, true, now_ns);
        marks.push(redelivered);
    }
    marks
}

/// Calls the protocol at each of its timeouts, up to a limit. Returns the time at which it asked to
/// disconnect.
fn left_at(protocol: &mut Protocol, until_ns: u64) -> Option<u64> {
    let mut told = None;
    while let Some(at) = protocol.poll_timeout().filter(|at| *at <= until_ns) {
        assert_ne!(told.replace(at), Some(at), "what was told is not asked for again");
        protocol.handle_timeout(at);
        if protocol.poll_action() == Some(Action::Disconnect) {
            return Some(at);
        }
    }
    None
}

#[test]
fn a_receiver_that_says_nothing_is_left_and_its_messages_go_again() {
    let mut protocol = connected(HEARTBEAT_MS);
    protocol.submit_small(1, 0).unwrap();
    assert_eq!(sent(&mut protocol, 0), [false]);
    let at = left_at(&mut protocol, 10_000 * MS).expect("noticed");
    assert!((1000 * MS..=1250 * MS).contains(&at), "{at}");
    assert_eq!(protocol.stats().receiver_timeouts, 1);
    protocol.handle_disconnected(at);
    assert_eq!(protocol.poll_action(), Some(Action::Connect));
    protocol.handle_connected(&welcome(2, 4), at);
    assert_eq!(sent(&mut protocol, at), [true]);
}

#[test]
fn credit_that_never_comes_is_noticed_too() {
    let mut protocol = connected(HEARTBEAT_MS);
    for _ in 0..3 {
        protocol.submit_small(1, 0).unwrap();
    }
    assert_eq!(sent(&mut protocol, 0).len(), 2, "there was credit for two");
    assert!(left_at(&mut protocol, 10_000 * MS).is_some());
}

#[test]
fn a_heartbeat_that_tells_nothing_new_is_a_word() {
    let mut protocol = connected(HEARTBEAT_MS);
    protocol.submit_small(1, 0).unwrap();
    sent(&mut protocol, 0);
    for round in 1..1000 {
        let now_ns = round * 100 * MS;
        assert_eq!(left_at(&mut protocol, now_ns), None);
        protocol.handle_header(&CreditHeader::encode(2, false), 0, now_ns);
    }
    assert_eq!(protocol.stats().receiver_timeouts, 0);
}

#[test]
fn without_anything_to_wait_for_time_is_not_asked_for() {
    let protocol = connected(HEARTBEAT_MS);
    assert_eq!(protocol.poll_timeout(), None);
}

#[test]
fn a_receiver_that_promised_no_heartbeat_is_waited_for() {
    let mut protocol = connected(0);
    protocol.submit_small(1, 0).unwrap();
    sent(&mut protocol, 0);
    assert_eq!(left_at(&mut protocol, u64::MAX), None);
}

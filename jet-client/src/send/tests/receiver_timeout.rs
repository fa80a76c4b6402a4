//! Tests of the protocol with a receiver that sends nothing, or nothing that moves on.

use super::protocol::welcome;
use crate::send::options::ProtocolOptions;
use crate::send::protocol::{Action, Protocol, Transmit};
use jet_wire::message::hello::{Welcome, features};
use jet_wire::message::{AckHeader, AckRange, AckStatus, CreditHeader, WaitsFor};
use std::time::Duration;

const MS: u64 = 1_000_000;
const HEARTBEAT_MS: u16 = 100;

/// Returns a connected protocol whose timeout for the receiver is a second.
fn connected(heartbeat_ms: u16) -> Protocol {
    let mut protocol = Protocol::new(ProtocolOptions {
        in_flight_max: 8,
        receiver_timeout: Duration::from_secs(1),
        ..ProtocolOptions::default()
    });
    assert_eq!(protocol.poll_action(), Some(Action::Connect));
    protocol.handle_connected(&Welcome { heartbeat_ms, ..told_reasons() }, 0);
    protocol
}

/// Returns the welcome of a receiver that says what senders wait for.
fn told_reasons() -> Welcome {
    Welcome { features: features::WAITS_FOR, ..welcome(2, 4) }
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

/// Ends the connection, and makes it again once the protocol asks for that. Returns `false` if it gives up
/// instead.
fn connects_again(protocol: &mut Protocol, now_ns: &mut u64) -> bool {
    protocol.handle_disconnected(*now_ns);
    while protocol.poll_action().is_none() && !protocol.has_given_up() {
        *now_ns = protocol.poll_timeout().expect("it tries again, or gives up");
        protocol.handle_timeout(*now_ns);
    }
    if protocol.has_given_up() {
        return false;
    }
    protocol.handle_connected(&Welcome { heartbeat_ms: HEARTBEAT_MS, ..told_reasons() }, *now_ns);
    true
}

/// Lets a receiver send a heartbeat every 100 ms, `rounds` times. Returns when the sender left it.
fn left_beside_heartbeats(
    protocol: &mut Protocol,
    begin_ns: u64,
    rounds: u64,
    waits_for: Option<WaitsFor>,
) -> Option<u64> {
    (1..=rounds).find_map(|round| {
        let now_ns = begin_ns + round * 100 * MS;
        let left_ns = left_at(protocol, now_ns);
        if left_ns.is_none() {
            protocol.handle_header(&CreditHeader::encode_heartbeat(2, waits_for), 0, now_ns);
        }
        left_ns
    })
}

#[test]
fn while_a_receiver_says_what_is_waited_for_it_is_waited_for() {
    let mut protocol = connected(HEARTBEAT_MS);
    protocol.submit_small(1, 0).unwrap();
    sent(&mut protocol, 0);
    assert_eq!(protocol.waits_for(), None);
    let reason = Some(WaitsFor::Application);
    assert_eq!(left_beside_heartbeats(&mut protocol, 0, 1000, reason), None);
    assert_eq!(protocol.waits_for(), reason);
    let ack = AckHeader::encode(4, &[AckRange { first: 1, count: 1, status: AckStatus::Consumed }]);
    protocol.handle_header(&ack, 0, 100_000 * MS);
    assert_eq!(protocol.waits_for(), None, "it waits for nothing");
    assert_eq!((protocol.stats().receiver_timeouts, protocol.stats().progress_timeouts), (0, 0));
}

#[test]
fn a_receiver_that_lives_and_has_no_reason_is_left_and_given_up_in_the_end() {
    let mut protocol = connected(HEARTBEAT_MS);
    protocol.submit_small(1, 0).unwrap();
    sent(&mut protocol, 0);
    let mut now_ns = 0;
    for attempt in 1..60 {
        let begin_ns = now_ns;
        now_ns = left_beside_heartbeats(&mut protocol, begin_ns, 100, None).expect("left");
        assert!((1000 * MS..=1350 * MS).contains(&(now_ns - begin_ns)), "{now_ns}");
        assert_eq!(protocol.stats().progress_timeouts, attempt);
        if !connects_again(&mut protocol, &mut now_ns) {
            break;
        }
        assert_eq!(sent(&mut protocol, now_ns), [true]);
    }
    assert!(protocol.has_given_up());
    assert_eq!(protocol.poll_end().map(|end| end.status), Some(AckStatus::PeerLost));
    assert!((30_000 * MS..35_000 * MS).contains(&now_ns), "reconnect_for is 30 s: {now_ns}");
    assert_eq!(protocol.stats().receiver_timeouts, 0, "it was heard all the time");
}

#[test]
fn a_wait_that_had_its_reasons_is_progress_however_it_ends() {
    let mut protocol = connected(HEARTBEAT_MS);
    protocol.submit_small(1, 0).unwrap();
    sent(&mut protocol, 0);
    let mut now_ns = 0;
    // Each time the application keeps the message for a minute, then the receiver stands still.
    for _ in 0..5 {
        assert_eq!(left_beside_heartbeats(&mut protocol, now_ns, 600, Some(WaitsFor::Application)), None);
        now_ns = left_at(&mut protocol, now_ns + 100_000 * MS).expect("left");
        let left_ns = now_ns;
        assert!(connects_again(&mut protocol, &mut now_ns), "it is given up");
        assert_eq!(now_ns, left_ns, "at once");
        assert_eq!(sent(&mut protocol, now_ns), [true]);
    }
    assert_eq!((protocol.stats().receiver_timeouts, protocol.stats().progress_timeouts), (5, 0));
}

#[test]
fn a_receiver_that_stopped_a_while_ago_is_silent_though_it_sent_a_heartbeat_before() {
    let mut protocol = connected(HEARTBEAT_MS);
    protocol.submit_small(1, 0).unwrap();
    sent(&mut protocol, 0);
    assert_eq!(left_beside_heartbeats(&mut protocol, 0, 3, None), None);
    assert!(left_at(&mut protocol, 10_000 * MS).is_some());
    assert_eq!((protocol.stats().receiver_timeouts, protocol.stats().progress_timeouts), (1, 0));
}

#[test]
fn a_receiver_that_stays_silent_on_each_connection_is_given_up() {
    let mut protocol = connected(HEARTBEAT_MS);
    protocol.submit_small(1, 0).unwrap();
    let mut now_ns = 0;
    for _ in 0..60 {
        sent(&mut protocol, now_ns);
        now_ns = left_at(&mut protocol, now_ns + 10_000 * MS).expect("left");
        if !connects_again(&mut protocol, &mut now_ns) {
            break;
        }
        // More credit comes late: that is no reason.
        assert_eq!(left_at(&mut protocol, now_ns + 1100 * MS), None);
        now_ns += 1100 * MS;
        protocol.handle_header(&CreditHeader::encode(4, false), 0, now_ns);
    }
    assert!(protocol.has_given_up());
}

#[test]
fn more_credit_is_a_word_without_a_reason() {
    let mut protocol = connected(HEARTBEAT_MS);
    protocol.submit_small(1, 0).unwrap();
    sent(&mut protocol, 0);
    for round in 1..100 {
        assert_eq!(left_at(&mut protocol, round * 900 * MS), None, "round {round}");
        protocol.handle_header(&CreditHeader::encode(2 + round, false), 0, round * 900 * MS);
    }
}

#[test]
fn of_a_receiver_that_never_says_what_is_waited_for_any_heartbeat_is_a_word() {
    let mut protocol = connected(HEARTBEAT_MS);
    protocol.handle_disconnected(0);
    assert_eq!(protocol.poll_action(), Some(Action::Connect));
    protocol.handle_connected(&Welcome { heartbeat_ms: HEARTBEAT_MS, ..welcome(2, 4) }, 0);
    protocol.submit_small(1, 0).unwrap();
    sent(&mut protocol, 0);
    assert_eq!(left_beside_heartbeats(&mut protocol, 0, 1000, None), None);
    assert_eq!((protocol.stats().receiver_timeouts, protocol.stats().progress_timeouts), (0, 0));
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

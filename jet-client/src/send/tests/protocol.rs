//! Tests of the protocol against a model of a receiver.

use crate::Backoff;
use crate::send::options::{ProtocolOptions, RetryPolicy};
use crate::send::protocol::{Action, CANCEL_ID, CREDIT_RETURN_ID, Protocol, SubmitError, Transmit};
use jet_wire::message::hello::{Refusal, Welcome, features};
use jet_wire::message::{
    AckHeader, AckRange, AckStatus, ByeHeader, ByeReason, CongestionHeader, CreditHeader, HeaderBytes,
    Versions,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

pub(super) const MS: u64 = 1_000_000;
pub(super) const MESSAGE_MAX: u64 = 1 << 20;

pub(super) fn options() -> ProtocolOptions {
    ProtocolOptions {
        sender_id: 5,
        in_flight_max: 8,
        sends_max: 6,
        window_bytes: 256 << 10,
        reconnect_for: Duration::from_secs(1),
        backoff: Backoff::new(Duration::from_millis(1), Duration::from_millis(8)),
        retry: RetryPolicy::NEVER,
        ..ProtocolOptions::default()
    }
}

pub(super) fn welcome(credit_limit: u64, requests_max: u32) -> Welcome {
    Welcome {
        versions: Versions::SUPPORTED,
        features: features::CANCEL,
        incarnation: 1,
        credit_limit,
        message_bytes_max: MESSAGE_MAX,
        requests_max,
        heartbeat_ms: 0,
    }
}

pub(super) fn connected(options: ProtocolOptions, credit: u64, requests_max: u32) -> Protocol {
    let mut protocol = Protocol::new(options);
    assert_eq!(protocol.poll_action(), Some(Action::Connect));
    assert_eq!(protocol.poll_action(), None);
    protocol.handle_connected(&welcome(credit, requests_max), 0);
    protocol
}

pub(super) fn submit_small_ones(protocol: &mut Protocol, count: usize) {
    for _ in 0..count {
        protocol.submit_small(1, 0).unwrap();
    }
}

pub(super) fn sent(protocol: &mut Protocol) -> Vec<(u64, u64, bool)> {
    std::iter::from_fn(|| protocol.poll_transmit())
        .map(|transmit| match transmit {
            Transmit::Message { id, sequence, redelivered, .. } => (id, sequence, redelivered),
            Transmit::CreditReturn { credit_limit } => panic!("a credit return to {credit_limit}"),
            Transmit::Cancel { sequence, .. } => panic!("{sequence} is taken back"),
        })
        .collect()
}

fn sequences(protocol: &mut Protocol) -> Vec<u64> {
    sent(protocol).into_iter().map(|(_, sequence, _)| sequence).collect()
}

/// Sends what may be sent, and completes the SENDs. Returns the sequence numbers.
pub(super) fn sent_and_completed(protocol: &mut Protocol) -> Vec<u64> {
    let sent = sent(protocol);
    sent.iter().for_each(|&(id, ..)| protocol.handle_send_completed(id, true, 0));
    sent.into_iter().map(|(_, sequence, _)| sequence).collect()
}

pub(super) fn ack(limit: u64, first: u64, count: u16, status: AckStatus) -> HeaderBytes {
    AckHeader::encode(limit, &[AckRange { first, count, status }])
}

pub(super) fn ends(protocol: &mut Protocol) -> Vec<(u64, AckStatus)> {
    std::iter::from_fn(|| protocol.poll_end()).map(|end| (end.sequence, end.status)).collect()
}

#[test]
fn messages_go_as_credit_allows_and_each_ends_once() {
    let mut protocol = connected(options(), 2, 4);
    for sequence in 1..=4 {
        assert_eq!(protocol.submit_small(10, 0).unwrap().1, sequence);
    }
    assert_eq!(sent_and_completed(&mut protocol), [1, 2]);
    protocol.handle_header(&ack(3, 1, 2, AckStatus::Consumed), 0, 0);
    protocol.handle_header(&ack(3, 1, 2, AckStatus::Consumed), 0, 0);
    protocol.handle_header(&ack(3, 4, 1, AckStatus::Consumed), 0, 0);
    assert_eq!(ends(&mut protocol), [(1, AckStatus::Consumed), (2, AckStatus::Consumed)]);
    assert_eq!(protocol.stats().acks_ignored, 3);
    assert_eq!(sent_and_completed(&mut protocol), [3]);
    protocol.handle_header(&CreditHeader::encode(9, false), 0, 0);
    assert_eq!(sent_and_completed(&mut protocol), [4]);
    // A range that is longer than the table still finds the messages in it.
    protocol.handle_header(&ack(9, 1, u16::MAX, AckStatus::Rejected(28)), 0, 0);
    assert_eq!(ends(&mut protocol), [(3, AckStatus::Rejected(28)), (4, AckStatus::Rejected(28))]);
    assert_eq!((protocol.in_flight(), protocol.unfinished()), (0, 0));
}

#[test]
fn an_end_waits_for_its_send_to_complete() {
    let mut protocol = connected(options(), 4, 4);
    protocol.submit_small(10, 0).unwrap();
    let (id, ..) = sent(&mut protocol)[0];
    protocol.handle_header(&ack(4, 1, 1, AckStatus::Consumed), 0, 0);
    assert_eq!(ends(&mut protocol), []);
    protocol.handle_send_completed(id, true, 0);
    protocol.handle_send_completed(id, true, 0);
    assert_eq!(ends(&mut protocol), [(1, AckStatus::Consumed)]);
}

#[test]
fn a_full_table_and_a_message_too_large_are_refused() {
    let mut protocol = Protocol::new(options());
    let (_, first) = protocol.submit_large(MESSAGE_MAX + 1, 0).unwrap();
    submit_small_ones(&mut protocol, 7);
    assert_eq!(protocol.submit_small(1, 0), Err(SubmitError::WouldBlock));
    assert_eq!(protocol.poll_action(), Some(Action::Connect));
    protocol.handle_connected(&welcome(100, 4), 0);
    assert_eq!(sequences(&mut protocol), [2, 3, 4, 5, 6, 7], "6 SENDs at once");
    assert_eq!(ends(&mut protocol), [(first, AckStatus::TooLarge)]);
    let too_large = SubmitError::TooLarge { bytes: MESSAGE_MAX + 1, max: MESSAGE_MAX };
    assert_eq!(protocol.submit_large(MESSAGE_MAX + 1, 0), Err(too_large));
}

#[test]
fn large_messages_wait_for_the_receivers_limit_and_the_window_and_small_ones_pass_them() {
    let mut protocol = connected(ProtocolOptions { sends_max: 100, ..options() }, 100, 2);
    for _ in 0..3 {
        protocol.submit_large(100 << 10, 0).unwrap();
    }
    protocol.submit_small(1, 0).unwrap();
    assert_eq!(sent_and_completed(&mut protocol), [1, 2, 4]);
    protocol.handle_header(&ack(100, 1, 1, AckStatus::Consumed), 0, 0);
    protocol.submit_large(MESSAGE_MAX, 0).unwrap();
    assert_eq!(sent_and_completed(&mut protocol), [3]);
    protocol.handle_header(&ack(100, 2, 1, AckStatus::Consumed), 0, 0);
    assert!(sent_and_completed(&mut protocol).is_empty(), "longer than what the window has left");
    protocol.handle_header(&ack(100, 3, 1, AckStatus::Consumed), 0, 0);
    assert_eq!(sent_and_completed(&mut protocol), [5], "alone it goes");
}

#[test]
fn a_recall_is_answered_by_what_was_sent_and_counts_itself() {
    let mut protocol = connected(options(), 10, 4);
    protocol.submit_small(1, 0).unwrap();
    assert_eq!(sent_and_completed(&mut protocol), [1]);
    protocol.handle_header(&CreditHeader::encode(0, true), 0, 0);
    protocol.submit_small(1, 0).unwrap();
    assert_eq!(protocol.poll_transmit(), Some(Transmit::CreditReturn { credit_limit: 2 }));
    assert_eq!(protocol.poll_transmit(), None, "nothing is left");
    protocol.handle_send_completed(CREDIT_RETURN_ID, true, 0);
    protocol.handle_header(&CreditHeader::encode(4, false), 0, 0);
    assert_eq!(sent_and_completed(&mut protocol), [2]);
    // The answer states the limit that the receiver asked for. Without unused credit there is no answer.
    protocol.handle_header(&CreditHeader::encode(9, false), 0, 0);
    protocol.handle_header(&CreditHeader::encode(5, true), 0, 0);
    assert_eq!(protocol.poll_transmit(), Some(Transmit::CreditReturn { credit_limit: 5 }));
    protocol.submit_small(1, 0).unwrap();
    assert_eq!(sent_and_completed(&mut protocol), [3]);
    protocol.handle_header(&CreditHeader::encode(5, true), 0, 0);
    assert_eq!(protocol.poll_transmit(), None);
}

#[test]
fn an_answer_to_a_recall_that_could_not_be_posted_gives_no_more_back_than_was_asked_for() {
    let mut protocol = connected(options(), 10, 4);
    protocol.handle_header(&CreditHeader::encode(2, true), 0, 0);
    let answer = Transmit::CreditReturn { credit_limit: 2 };
    for _ in 0..3 {
        assert_eq!(protocol.poll_transmit(), Some(answer));
        protocol.handle_not_sent(answer);
    }
    assert_eq!(protocol.poll_transmit(), Some(answer));
    // The receiver said so before it had the answer: it gives nothing back.
    protocol.handle_header(&CreditHeader::encode(2, false), 0, 0);
    submit_small_ones(&mut protocol, 3);
    assert_eq!(sent_and_completed(&mut protocol), [1]);
}

#[test]
fn who_submits_at_rest_has_something_to_do_before_it_may_sleep() {
    let mut protocol = connected(options(), 10, 4);
    protocol.handle_header(&ByeHeader::encode(ByeReason::Draining), 0, 0);
    assert_eq!(protocol.poll_action(), Some(Action::Disconnect));
    protocol.handle_disconnected(0);
    assert_eq!((protocol.poll_action(), protocol.has_action(), protocol.poll_timeout()), (None, false, None));
    // No time, and nothing at the NIC, says that this one has to connect.
    protocol.submit_small(1, 0).unwrap();
    assert!(protocol.has_action());
    assert_eq!((protocol.poll_action(), protocol.has_action()), (Some(Action::Connect), false));
}

#[test]
fn what_was_not_acknowledged_is_sent_again_in_order_and_marked() {
    let mut protocol = connected(options(), 3, 4);
    submit_small_ones(&mut protocol, 5);
    assert_eq!(sent_and_completed(&mut protocol), [1, 2, 3]);
    protocol.handle_header(&ack(3, 2, 1, AckStatus::Consumed), 0, 0);
    protocol.handle_disconnected(5);
    assert_eq!(protocol.poll_action(), Some(Action::Connect), "the first attempt is made at once");
    protocol.handle_connected(&welcome(100, 4), 5);
    let again: Vec<_> =
        sent(&mut protocol).into_iter().map(|(_, sequence, redelivered)| (sequence, redelivered)).collect();
    assert_eq!(again, [(1, true), (3, true), (4, false), (5, false)]);
    assert_eq!(protocol.stats().redelivered, 2);
}

#[test]
fn attempts_come_slower_and_end_with_peer_lost() {
    let mut protocol = connected(options(), 3, 4);
    protocol.submit_small(1, 0).unwrap();
    protocol.submit_large(5000, 0).unwrap();
    assert_eq!(sent_and_completed(&mut protocol), [1, 2]);
    let mut now_ns = 0;
    protocol.handle_disconnected(now_ns);
    let mut attempts = 0;
    while let Some(action) = protocol.poll_action() {
        assert_eq!(action, Action::Connect);
        attempts += 1;
        protocol.handle_disconnected(now_ns);
        if let Some(at) = protocol.poll_timeout() {
            assert!(at > now_ns && at - now_ns <= 8 * MS);
            now_ns = at;
            protocol.handle_timeout(now_ns);
        }
    }
    assert_eq!(now_ns, 1000 * MS);
    assert!((125..300).contains(&attempts), "{attempts}");
    assert_eq!(ends(&mut protocol), [(1, AckStatus::PeerLost), (2, AckStatus::PeerLost)]);
    // A further message makes the sender connect again.
    protocol.submit_small(1, now_ns).unwrap();
    assert_eq!(protocol.poll_action(), Some(Action::Connect));
}

#[test]
fn connections_that_bring_nothing_about_do_not_go_on_for_ever() {
    let mut protocol = Protocol::new(options());
    protocol.submit_large(10, 0).unwrap();
    let mut now_ns = 0;
    for _ in 0..10_000 {
        if protocol.poll_action() == Some(Action::Connect) {
            protocol.handle_connected(&welcome(8, 4), now_ns);
            assert_eq!(sent_and_completed(&mut protocol), [1]);
            protocol.handle_header(&ByeHeader::encode(ByeReason::BadMemory), 0, now_ns);
            assert_eq!(protocol.poll_action(), Some(Action::Disconnect));
            protocol.handle_disconnected(now_ns);
        }
        if let Some(at) = protocol.poll_timeout() {
            now_ns = at;
            protocol.handle_timeout(now_ns);
        }
    }
    assert_eq!(protocol.farewell(), Some(ByeReason::BadMemory));
    assert_eq!(ends(&mut protocol), [(1, AckStatus::PeerLost)]);
}

/// Tests the last attempt, which is made when the time is over. Its end may be reported while the attempt is
/// being left, and must not count as the end of an established connection.
#[test]
fn a_last_attempt_that_is_left_is_the_last() {
    let mut protocol = connected(options(), 100, 100);
    submit_small_ones(&mut protocol, 1);
    assert_eq!(sent_and_completed(&mut protocol), [1]);
    let mut now_ns = 10_000 * MS;
    protocol.handle_disconnected(now_ns);
    for _ in 0..10_000 {
        // Each attempt is refused, the last one a moment after the time is over.
        while let Some(action) = protocol.poll_action() {
            let is_answered = action == Action::Disconnect || now_ns < 11_000 * MS;
            if is_answered {
                protocol.handle_disconnected(now_ns);
            }
        }
        let Some(at) = protocol.poll_timeout() else { break };
        now_ns = now_ns.max(at);
        protocol.handle_timeout(now_ns);
    }
    assert_eq!(ends(&mut protocol), [(1, AckStatus::PeerLost)]);
    assert_eq!(now_ns, 11_000 * MS, "not later");
}

#[test]
fn a_refusal_for_good_gives_up_and_one_for_now_does_not() {
    let mut protocol = Protocol::new(options());
    protocol.submit_small(1, 0).unwrap();
    assert_eq!(protocol.poll_action(), Some(Action::Connect));
    protocol.handle_refused(Some(Refusal::Draining), 0);
    assert_eq!(protocol.poll_action(), Some(Action::Connect));
    protocol.handle_refused(Some(Refusal::Version(Versions::FIRST)), 0);
    assert_eq!(protocol.poll_action(), None);
    assert_eq!(ends(&mut protocol), [(1, AckStatus::PeerLost)]);
}

#[test]
fn a_header_that_cannot_be_read_ends_the_connection() {
    let mut protocol = connected(options(), 3, 4);
    protocol.handle_header(&HeaderBytes::ZERO, 0, 0);
    assert_eq!(protocol.stats().malformed, 1);
    assert_eq!(protocol.poll_action(), Some(Action::Disconnect));
    assert_eq!(protocol.poll_action(), None);
    protocol.submit_small(1, 0).unwrap();
    assert_eq!(protocol.poll_transmit(), None);
    protocol.handle_disconnected(1);
    assert_eq!(protocol.poll_action(), Some(Action::Connect));
}

#[test]
fn what_could_not_be_posted_keeps_its_place_and_its_credit() {
    let mut protocol = connected(options(), 2, 4);
    protocol.submit_small(1, 0).unwrap();
    protocol.submit_small(1, 0).unwrap();
    let transmit = protocol.poll_transmit().unwrap();
    protocol.handle_not_sent(transmit);
    assert_eq!(sent_and_completed(&mut protocol), [1, 2]);
    assert_eq!(protocol.stats().sends, 2);
}

#[test]
fn closing_lets_what_is_in_flight_end_first() {
    let mut protocol = connected(options(), 3, 4);
    protocol.submit_small(1, 0).unwrap();
    protocol.close();
    assert_eq!(protocol.submit_small(1, 0), Err(SubmitError::Closed));
    assert_eq!(sent_and_completed(&mut protocol), [1]);
    assert_eq!(protocol.poll_action(), None);
    protocol.handle_header(&ack(3, 1, 1, AckStatus::Consumed), 0, 0);
    assert_eq!(protocol.poll_action(), Some(Action::Disconnect));
    assert!(!protocol.is_closed());
    protocol.handle_disconnected(0);
    assert!(protocol.is_closed());
    assert_eq!(ends(&mut protocol), [(1, AckStatus::Consumed)]);
    assert_eq!((protocol.poll_action(), protocol.poll_timeout()), (None, None));
}

#[test]
fn numbers_begin_where_they_are_to_and_the_oldest_message_is_waited_for() {
    let mut protocol = connected(options().first_sequence(1 << 40).sequence_span(3), 100, 4);
    submit_small_ones(&mut protocol, 3);
    let first = 1 << 40;
    assert!(!protocol.has_room());
    assert_eq!(protocol.submit_small(1, 0), Err(SubmitError::WouldBlock));
    assert_eq!(sent_and_completed(&mut protocol), [first, first + 1, first + 2]);
    // Those after the oldest one make no room.
    protocol.handle_header(&ack(100, first + 1, 2, AckStatus::Consumed), 0, 0);
    assert_eq!(ends(&mut protocol).len(), 2);
    assert!(!protocol.has_room());
    assert_eq!(protocol.submit_small(1, 0), Err(SubmitError::WouldBlock));
    protocol.handle_header(&ack(100, first, 1, AckStatus::Consumed), 0, 0);
    assert!(!protocol.has_room(), "its end was not polled");
    assert_eq!(ends(&mut protocol).len(), 1);
    assert!(protocol.has_room());
    submit_small_ones(&mut protocol, 3);
    assert!(!protocol.has_room());
}

/// Model of a receiver that keeps the rules, in any order of events.
#[derive(Default)]
struct Receiver {
    up: bool,
    credit_limit: u64,
    arrived: u64,
    /// Limit that a recall under way asked for.
    recalls: Option<u64>,
    /// SENDs that have not completed.
    completing: Vec<u64>,
    /// Messages without an end: sequence number, and whether the message is large.
    open: BTreeMap<u64, bool>,
    /// Highest sequence number of a small message that arrived on this connection.
    small_on_connection: u64,
}

impl Receiver {
    /// Returns the limit that an acknowledgement tells.
    fn limit_to_send(&self) -> u64 {
        self.recalls.unwrap_or(self.credit_limit)
    }
}

struct World {
    protocol: Protocol,
    receiver: Receiver,
    now_ns: u64,
    large: HashMap<u64, bool>,
    /// Messages that an application may have seen.
    seen: BTreeSet<u64>,
    /// Messages that had an end which is retried: they have lost their place in the order.
    retried: BTreeSet<u64>,
    ends: BTreeMap<u64, AckStatus>,
    consumed: BTreeSet<u64>,
    /// Messages that were taken back: none of them is sent any more.
    taken_back: BTreeSet<u64>,
    /// Messages that have a deadline.
    limited: BTreeSet<u64>,
    submitted: u64,
    /// Number of the next SENDs that the NIC has no place for.
    refusals: usize,
    /// Whether some messages may wait to be sent again.
    retries: bool,
}

const REQUESTS_MAX: u32 = 3;

impl World {
    fn new(options: ProtocolOptions) -> Self {
        Self {
            retries: options.retry != RetryPolicy::NEVER,
            protocol: Protocol::new(options),
            receiver: Receiver::default(),
            now_ns: 0,
            large: HashMap::new(),
            seen: BTreeSet::new(),
            retried: BTreeSet::new(),
            ends: BTreeMap::new(),
            consumed: BTreeSet::new(),
            taken_back: BTreeSet::new(),
            limited: BTreeSet::new(),
            submitted: 0,
            refusals: 0,
        }
    }

    fn take_back(&mut self, choice: usize) {
        if self.submitted > 0 {
            let sequence = choice as u64 % self.submitted + 1;
            self.protocol.cancel(sequence);
            if !self.ends.contains_key(&sequence) {
                self.taken_back.insert(sequence);
            }
        }
    }

    fn submit(&mut self, large: bool, deadline: Option<u64>) {
        let taken = if large {
            self.protocol.submit_large(50 << 10, self.now_ns)
        } else {
            self.protocol.submit_small(100, self.now_ns)
        };
        if let Ok((index, sequence)) = taken {
            if let Some(span_ns) = deadline {
                self.protocol.set_deadline(index, self.now_ns + span_ns, self.now_ns);
                self.limited.insert(sequence);
            }
            self.submitted += 1;
            assert_eq!(sequence, self.submitted);
            self.large.insert(sequence, large);
        }
    }

    /// Carries out what the protocol asks for. Where the receiver is not `reachable`, attempts to connect
    /// fail.
    fn drive(&mut self, reachable: bool, credit: u64) {
        if self.protocol.poll_timeout().is_some_and(|at| at <= self.now_ns) {
            self.protocol.handle_timeout(self.now_ns);
        }
        while let Some(action) = self.protocol.poll_action() {
            match action {
                Action::Connect if reachable => {
                    self.receiver = Receiver { up: true, credit_limit: credit, ..Receiver::default() };
                    self.protocol.handle_connected(&welcome(credit, REQUESTS_MAX), self.now_ns);
                }
                Action::Connect => self.protocol.handle_disconnected(self.now_ns),
                Action::Disconnect => self.disconnect(),
            }
        }
        let mut is_refused = false;
        while !is_refused && let Some(transmit) = self.protocol.poll_transmit() {
            is_refused = self.refusals > 0;
            if is_refused {
                self.refusals -= 1;
                self.protocol.handle_not_sent(transmit);
            } else {
                self.arrive(transmit);
            }
        }
        if !is_refused {
            self.check_window();
        }
        while let Some(end) = self.protocol.poll_end() {
            let earlier = self.ends.insert(end.sequence, end.status);
            assert_eq!(earlier, None, "message {} ends twice", end.sequence);
            if end.status == AckStatus::Consumed {
                assert!(self.consumed.contains(&end.sequence), "{} was never consumed", end.sequence);
            }
            if end.status == AckStatus::Cancelled {
                let sequence = end.sequence;
                let was_asked = self.taken_back.contains(&sequence) || self.limited.contains(&sequence);
                assert!(was_asked, "nobody took {sequence} back");
                let may_be_seen = self.seen.contains(&sequence);
                assert!(self.large[&sequence] || !may_be_seen, "an application may have {sequence}");
                assert!(!self.consumed.contains(&sequence), "{sequence} was consumed");
            }
        }
    }

    /// Checks the window: it is 1 to 1000, grows again, and never holds back the only message that could be
    /// sent.
    fn check_window(&self) {
        let (permille, window) = (self.protocol.window_permille(), self.protocol.stats().window);
        assert!((1..=1000).contains(&permille), "a window of {permille}");
        assert!((1..=permille).contains(&window.least_permille), "{window:?} with a window of {permille}");
        assert!(window.cuts <= window.signals);
        assert_eq!(window.cuts > 0, window.least_permille < 1000, "{window:?}");
        assert!(permille == 1000 || self.protocol.poll_timeout().is_some(), "nothing brings {permille} back");
        let receiver = &self.receiver;
        let idle = receiver.open.is_empty() && receiver.completing.is_empty();
        if !self.retries && receiver.up && receiver.arrived < receiver.credit_limit && idle {
            assert_eq!(self.protocol.unfinished(), 0, "held by a window of {permille}");
        }
    }

    fn arrive(&mut self, transmit: Transmit) {
        let receiver = &mut self.receiver;
        assert!(receiver.up, "a SEND without a connection");
        receiver.arrived += u64::from(!matches!(transmit, Transmit::Cancel { .. }));
        assert!(receiver.arrived <= receiver.credit_limit, "credit exceeded");
        let (id, sequence, redelivered) = match transmit {
            Transmit::CreditReturn { credit_limit } => {
                let asked = receiver.recalls.take().expect("an answer that nobody asked for");
                assert!(credit_limit >= receiver.arrived && credit_limit <= receiver.credit_limit);
                // The receiver goes on saying what it asked for, and what it said last may arrive after this.
                assert!(credit_limit >= asked, "{credit_limit} is less than {asked}");
                receiver.credit_limit = credit_limit;
                receiver.completing.push(CREDIT_RETURN_ID);
                return;
            }
            Transmit::Cancel { sequence, .. } => {
                assert_eq!(receiver.open.get(&sequence), Some(&true), "only a large one can be given back");
                let was_asked = self.taken_back.contains(&sequence) || self.limited.contains(&sequence);
                assert!(was_asked, "nobody took {sequence} back");
                receiver.completing.push(CANCEL_ID);
                // Its application has every other one already.
                if sequence % 2 == 0 {
                    receiver.open.remove(&sequence);
                    let limit = receiver.limit_to_send();
                    let header = ack(limit, sequence, 1, AckStatus::Cancelled);
                    self.protocol.handle_header(&header, 0, self.now_ns);
                }
                return;
            }
            Transmit::Message { id, sequence, redelivered, .. } => (id, sequence, redelivered),
        };
        assert!(!self.taken_back.contains(&sequence), "{sequence} was taken back, and is sent");
        receiver.completing.push(id);
        let large = self.large[&sequence];
        assert_eq!(receiver.open.insert(sequence, large), None, "{sequence} is sent twice");
        let requests = receiver.open.values().filter(|&&large| large).count();
        assert!(requests <= REQUESTS_MAX as usize, "{requests} requests at once");
        if !self.seen.insert(sequence) {
            assert!(redelivered, "{sequence} may have been seen before and is not marked");
        }
        if !large && !self.retried.contains(&sequence) {
            assert!(sequence > receiver.small_on_connection, "small messages out of order");
            receiver.small_on_connection = sequence;
        }
    }

    fn end_one(&mut self, choice: usize, status: AckStatus, credit: u64) {
        let receiver = &mut self.receiver;
        if !receiver.up || receiver.open.is_empty() {
            return;
        }
        let sequence = *receiver.open.keys().nth(choice % receiver.open.len()).unwrap();
        receiver.open.remove(&sequence);
        self.retried.insert(sequence);
        match status {
            AckStatus::Consumed => drop(self.consumed.insert(sequence)),
            AckStatus::Busy | AckStatus::NoApp => drop(self.seen.remove(&sequence)),
            _ => {}
        }
        // A receiver raises no limit while it recalls credit.
        if receiver.recalls.is_none() {
            receiver.credit_limit += credit;
        }
        let limit = receiver.limit_to_send();
        self.protocol.handle_header(&ack(limit, sequence, 1, status), 0, self.now_ns);
    }

    fn recall(&mut self, choice: usize) {
        let receiver = &mut self.receiver;
        // Without unused credit there is nothing to recall.
        if receiver.up && receiver.recalls.is_none() && receiver.arrived < receiver.credit_limit {
            let keep = (receiver.arrived + 1 + choice as u64 % 3).min(receiver.credit_limit);
            receiver.recalls = Some(keep);
            self.protocol.handle_header(&CreditHeader::encode(keep, true), 0, self.now_ns);
        }
    }

    fn complete(&mut self, choice: usize) {
        if !self.receiver.completing.is_empty() {
            let at = choice % self.receiver.completing.len();
            let id = self.receiver.completing.swap_remove(at);
            self.protocol.handle_send_completed(id, true, self.now_ns);
        }
    }

    fn disconnect(&mut self) {
        if self.receiver.up {
            for id in std::mem::take(&mut self.receiver.completing) {
                self.protocol.handle_send_completed(id, false, self.now_ns);
            }
            self.receiver = Receiver::default();
            self.protocol.handle_disconnected(self.now_ns);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    /// Faults first, then a receiver that works: every message has exactly one end, and none waits for ever.
    #[test]
    fn every_message_ends_once(
        steps in prop::collection::vec((0u8..17, any::<u8>(), any::<bool>()), 1..300),
        retries in any::<bool>(),
    ) {
        let ms = Duration::from_millis;
        let retry = if retries { RetryPolicy::all_for(ms(50)) } else { RetryPolicy::NEVER };
        let mut world = World::new(options().retry(retry).reconnect_for(ms(40)));
        for (what, choice, flag) in steps {
            let (choice, credit) = (usize::from(choice), u64::from(choice % 5));
            match what {
                0..=3 => world.submit(flag, None),
                14 => world.submit(flag, Some(choice as u64 * MS / 8)),
                15 | 16 => world.take_back(choice),
                4 | 5 => world.end_one(choice, AckStatus::Consumed, credit),
                6 => {
                    let statuses = [
                        AckStatus::Busy, AckStatus::NoApp, AckStatus::AppGone, AckStatus::Draining,
                        AckStatus::Rejected(1), AckStatus::Denied,
                    ];
                    world.end_one(choice, statuses[choice % statuses.len()], credit);
                }
                7 => world.recall(choice),
                13 => world.refusals = choice % 4,
                8 | 9 => world.complete(choice),
                10 if flag => world.disconnect(),
                11 => {
                    // Mostly the signal that a receiver sends, in bursts of any length; now and then any
                    // other value.
                    let permille = if flag { 500 } else { u32::try_from(choice).unwrap() * 4 };
                    for _ in 0..choice % 12 {
                        let signal = CongestionHeader::encode(permille);
                        world.protocol.handle_header(&signal, 0, world.now_ns);
                    }
                }
                12 if choice < 16 => {
                    // Noise: no part of it may end a message twice, or count as credit.
                    let noise = ack(0, choice as u64, 7, AckStatus::TooLarge);
                    if !world.receiver.open.keys().any(|s| (choice as u64..choice as u64 + 7).contains(s)) {
                        world.protocol.handle_header(&noise, 0, world.now_ns);
                    }
                }
                _ => world.now_ns += choice as u64 * MS / 16,
            }
            world.drive(flag || choice % 3 == 0, credit);
        }
        // Liveness: the receiver is reachable, gives credit for all, and consumes every message.
        for step in 0..2000 {
            world.now_ns += MS;
            world.drive(true, 4);
            world.complete(step);
            world.end_one(step, AckStatus::Consumed, 2);
            if world.receiver.up
                && world.receiver.recalls.is_none()
                && world.receiver.arrived == world.receiver.credit_limit
            {
                world.receiver.credit_limit += 2;
                let credit = CreditHeader::encode(world.receiver.credit_limit, false);
                world.protocol.handle_header(&credit, 0, world.now_ns);
            }
            if world.protocol.in_flight() == 0 && step > 10 {
                break;
            }
        }
        world.drive(true, 4);
        prop_assert_eq!(world.ends.len() as u64, world.submitted);
        prop_assert_eq!(world.protocol.in_flight(), 0);
        // Without signals the windows are full again after 1000 ms.
        world.now_ns += 1000 * MS;
        world.drive(true, 4);
        prop_assert_eq!(world.protocol.window_permille(), 1000);
    }
}

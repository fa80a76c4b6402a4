//! Messages that are taken back, and deadlines.

use super::protocol::{
    MS, ack, connected, ends, options, sent, sent_and_completed, submit_small_ones, welcome,
};
use crate::Backoff;
use crate::send::options::{ProtocolOptions, RetryPolicy};
use crate::send::protocol::{CANCEL_ID, Protocol, Transmit};
use jet_wire::message::AckStatus;
use std::time::Duration;

/// Returns the messages that the receiver is told of next.
fn cancels(protocol: &mut Protocol) -> Vec<u64> {
    let told = std::iter::from_fn(|| protocol.poll_transmit()).map(|transmit| match transmit {
        Transmit::Cancel { sequence, .. } => sequence,
        other => panic!("{other:?}"),
    });
    told.collect()
}

/// Submits a large message, and sends it.
fn send_large(protocol: &mut Protocol, sequence: u64) {
    protocol.submit_large(1000, 0).unwrap();
    assert_eq!(sent_and_completed(protocol), [sequence]);
}

#[test]
fn what_was_not_sent_ends_at_once_and_those_behind_it_are_sent() {
    for taken_back in 1..=3 {
        let mut protocol = connected(options(), 0, 4);
        submit_small_ones(&mut protocol, 3);
        protocol.cancel(taken_back);
        assert_eq!(ends(&mut protocol), [(taken_back, AckStatus::Cancelled)]);
        submit_small_ones(&mut protocol, 1);
        protocol.handle_header(&ack(10, 90, 1, AckStatus::Consumed), 0, 0);
        let rest: Vec<_> = (1..=4).filter(|&sequence| sequence != taken_back).collect();
        assert_eq!(sent_and_completed(&mut protocol), rest, "in their order");
        assert_eq!(protocol.unfinished(), 3);
    }
}

#[test]
fn a_small_message_that_was_sent_ends_as_its_application_says() {
    let mut protocol = connected(options(), 10, 4);
    protocol.submit_small(1, 0).unwrap();
    assert_eq!(sent_and_completed(&mut protocol), [1]);
    protocol.cancel(1);
    assert_eq!((cancels(&mut protocol), ends(&mut protocol)), (vec![], vec![]));
    protocol.handle_header(&ack(10, 1, 1, AckStatus::Rejected(28)), 0, 0);
    assert_eq!(ends(&mut protocol), [(1, AckStatus::Rejected(28))]);
    // What has its end, and what never was, are left alone.
    for sequence in [0, 1, 2, u64::MAX] {
        protocol.cancel(sequence);
    }
    assert_eq!((protocol.in_flight(), ends(&mut protocol)), (0, vec![]));
}

#[test]
fn the_receiver_is_told_once_of_a_large_message_and_its_word_is_the_end() {
    for status in [AckStatus::Cancelled, AckStatus::Consumed, AckStatus::Busy] {
        let mut protocol = connected(ProtocolOptions { retry: RetryPolicy::default(), ..options() }, 10, 4);
        send_large(&mut protocol, 1);
        protocol.cancel(1);
        protocol.cancel(1);
        assert_eq!(cancels(&mut protocol), [1]);
        protocol.cancel(1);
        assert_eq!((cancels(&mut protocol), protocol.stats().cancels), (vec![], 1));
        protocol.handle_send_completed(CANCEL_ID, true, 0);
        assert_eq!(ends(&mut protocol), [], "the receiver may still read it");
        protocol.handle_header(&ack(10, 1, 1, status), 0, 0);
        assert_eq!(ends(&mut protocol), [(1, status)], "it is not sent again");
    }
}

#[test]
fn the_receiver_is_told_without_credit_and_not_of_what_ended_meanwhile() {
    let mut protocol = connected(options(), 3, 4);
    (1..=3).for_each(|sequence| send_large(&mut protocol, sequence));
    (1..=3).for_each(|sequence| protocol.cancel(sequence));
    protocol.handle_header(&ack(3, 2, 1, AckStatus::Consumed), 0, 0);
    protocol.submit_small(1, 0).unwrap();
    let first = protocol.poll_transmit().unwrap();
    protocol.handle_not_sent(first);
    assert_eq!(cancels(&mut protocol), [1, 3]);
    assert_eq!((protocol.stats().cancels, protocol.stats().sends), (2, 5));
    protocol.handle_header(&ack(4, 90, 1, AckStatus::Consumed), 0, 0);
    assert_eq!(sent_and_completed(&mut protocol), [4], "all credit is for messages");
}

#[test]
fn a_receiver_that_gives_nothing_back_is_told_of_nothing() {
    let mut protocol = Protocol::new(options());
    protocol.poll_action();
    protocol.handle_connected(&jet_wire::message::hello::Welcome { features: 0, ..welcome(10, 4) }, 0);
    send_large(&mut protocol, 1);
    protocol.cancel(1);
    assert!(cancels(&mut protocol).is_empty());
    protocol.handle_header(&ack(10, 1, 1, AckStatus::Consumed), 0, 0);
    assert_eq!(ends(&mut protocol), [(1, AckStatus::Consumed)]);
}

#[test]
fn what_waits_to_be_sent_again_ends_as_its_last_attempt_did() {
    let retry = RetryPolicy::all_for(Duration::from_secs(1));
    for status in [AckStatus::Busy, AckStatus::NoApp, AckStatus::AppGone, AckStatus::Draining] {
        for is_due in [false, true] {
            let mut protocol = connected(ProtocolOptions { retry, ..options() }, 1, 4);
            protocol.submit_small(1, 0).unwrap();
            assert_eq!(sent_and_completed(&mut protocol), [1]);
            protocol.handle_header(&ack(1, 1, 1, status), 0, 0);
            if is_due {
                // It is in the queue again, and there is no credit.
                protocol.handle_timeout(999 * MS);
            }
            protocol.cancel(1);
            assert_eq!(ends(&mut protocol), [(1, status)]);
        }
    }
}

#[test]
fn what_may_have_arrived_before_the_connection_ended_is_not_said_to_be_cancelled() {
    let mut protocol = connected(options(), 10, 4);
    send_large(&mut protocol, 1);
    protocol.submit_small(1, 0).unwrap();
    assert_eq!(sent_and_completed(&mut protocol), [2]);
    protocol.submit_small(1, 0).unwrap();
    // Taken back before the connection ends, and after.
    protocol.cancel(1);
    protocol.handle_disconnected(0);
    assert_eq!(ends(&mut protocol), [(1, AckStatus::PeerLost)], "it is not sent again");
    protocol.cancel(2);
    protocol.cancel(3);
    assert_eq!(ends(&mut protocol), [(2, AckStatus::PeerLost), (3, AckStatus::Cancelled)]);
    // The next connection knows nothing of it.
    protocol.handle_timeout(10 * MS);
    assert!(protocol.poll_action().is_some());
    protocol.handle_connected(&welcome(10, 4), 10 * MS);
    assert_eq!((sent(&mut protocol), protocol.in_flight()), (vec![], 0));
}

#[test]
fn a_receiver_does_not_know_what_became_of_a_message_at_the_one_before() {
    let mut protocol = connected(options(), 10, 4);
    send_large(&mut protocol, 1);
    protocol.handle_disconnected(0);
    protocol.handle_timeout(10 * MS);
    assert!(protocol.poll_action().is_some());
    protocol.handle_connected(&welcome(10, 4), 10 * MS);
    assert_eq!(sent_and_completed(&mut protocol), [1]);
    protocol.cancel(1);
    assert_eq!(cancels(&mut protocol), [1]);
    protocol.handle_header(&ack(10, 1, 1, AckStatus::Cancelled), 0, 10 * MS);
    assert_eq!(ends(&mut protocol), [(1, AckStatus::PeerLost)]);
}

#[test]
fn what_an_application_that_went_away_may_have_consumed_is_not_said_to_be_cancelled() {
    let retry = RetryPolicy::all_for(Duration::from_secs(1));
    for seen in [AckStatus::AppGone, AckStatus::Draining] {
        for later in [None, Some(AckStatus::Busy)] {
            let mut protocol = connected(ProtocolOptions { retry, ..options() }, 20, 4);
            send_large(&mut protocol, 1);
            let mut now_ns = 0;
            for status in [Some(seen), later].into_iter().flatten() {
                protocol.handle_header(&ack(20, 1, 1, status), 0, now_ns);
                now_ns = protocol.poll_timeout().unwrap();
                protocol.handle_timeout(now_ns);
                assert_eq!(sent_and_completed(&mut protocol), [1]);
            }
            protocol.cancel(1);
            assert_eq!(cancels(&mut protocol), [1]);
            protocol.handle_header(&ack(20, 1, 1, AckStatus::Cancelled), 0, now_ns);
            assert_eq!(ends(&mut protocol), [(1, seen)]);
        }
    }
}

#[test]
fn few_are_told_to_the_receiver_at_once() {
    let mut protocol = connected(options(), 20, 8);
    (1..=6).for_each(|sequence| send_large(&mut protocol, sequence));
    (1..=6).for_each(|sequence| protocol.cancel(sequence));
    assert_eq!(cancels(&mut protocol), [1, 2, 3, 4]);
    protocol.handle_send_completed(CANCEL_ID, true, 0);
    assert_eq!(cancels(&mut protocol), [5]);
    // The next connection begins anew, with those that have no end.
    protocol.handle_disconnected(0);
    assert_eq!(ends(&mut protocol).len(), 6);
    protocol.handle_timeout(10 * MS);
    assert!(protocol.poll_action().is_some());
    protocol.handle_connected(&welcome(20, 8), 10 * MS);
    (7..=12).for_each(|sequence| send_large(&mut protocol, sequence));
    (7..=12).for_each(|sequence| protocol.cancel(sequence));
    assert_eq!(cancels(&mut protocol), [7, 8, 9, 10]);
}

#[test]
fn what_the_nic_still_reads_ends_when_it_has_read_it() {
    let mut protocol = connected(options(), 10, 4);
    protocol.submit_large(1000, 0).unwrap();
    let [(id, 1, false)] = sent(&mut protocol)[..] else { panic!("not sent") };
    protocol.cancel(1);
    assert_eq!(cancels(&mut protocol), [1]);
    protocol.handle_header(&ack(10, 1, 1, AckStatus::Cancelled), 0, 0);
    assert_eq!(ends(&mut protocol), []);
    protocol.handle_send_completed(id, true, 0);
    assert_eq!(ends(&mut protocol), [(1, AckStatus::Cancelled)]);
}

#[test]
fn deadlines_are_kept_and_nothing_is_sent_after_them() {
    let mut protocol = connected(options(), 0, 4);
    let mut submit = |deadline_ns| {
        let (index, sequence) = protocol.submit_small(1, 5).unwrap();
        protocol.set_deadline(index, deadline_ns, 5);
        (sequence, protocol.poll_timeout())
    };
    // Over before it began; then the earliest one counts, and the last possible one is none.
    assert_eq!(submit(5), (1, None));
    assert_eq!(submit(9 * MS), (2, Some(9 * MS)));
    assert_eq!(submit(4 * MS), (3, Some(4 * MS)));
    assert_eq!(submit(20 * MS), (4, Some(4 * MS)));
    assert_eq!(submit(u64::MAX), (5, Some(4 * MS)));
    assert_eq!(ends(&mut protocol), [(1, AckStatus::Cancelled)]);
    protocol.handle_timeout(4 * MS - 1);
    assert_eq!(ends(&mut protocol), []);
    protocol.handle_timeout(4 * MS);
    assert_eq!(ends(&mut protocol), [(3, AckStatus::Cancelled)]);
    assert_eq!(protocol.poll_timeout(), Some(9 * MS));
    // What is sent in time may take longer.
    protocol.handle_header(&ack(10, 90, 1, AckStatus::Consumed), 0, 5 * MS);
    assert_eq!(sent_and_completed(&mut protocol), [2, 4, 5]);
    protocol.handle_timeout(30 * MS);
    assert_eq!((ends(&mut protocol), protocol.poll_timeout()), (vec![], None));
    protocol.handle_header(&ack(10, 2, 4, AckStatus::Consumed), 0, 31 * MS);
    let consumed = [2, 4, 5].map(|sequence| (sequence, AckStatus::Consumed));
    assert_eq!(ends(&mut protocol), consumed);
}

#[test]
fn the_receiver_is_told_of_a_large_message_whose_deadline_passed() {
    let mut protocol = connected(options(), 10, 4);
    let (index, _) = protocol.submit_large(1000, 0).unwrap();
    protocol.set_deadline(index, 3 * MS, 0);
    assert_eq!(sent_and_completed(&mut protocol), [1]);
    protocol.handle_timeout(3 * MS);
    assert_eq!(cancels(&mut protocol), [1]);
}

#[test]
fn deadlines_are_looked_for_once_a_millisecond_and_all_are_found() {
    let mut protocol = connected(ProtocolOptions { in_flight_max: 1000, ..options() }, 0, 4);
    for number in 0..1000 {
        let (index, _) = protocol.submit_small(1, 0).unwrap();
        protocol.set_deadline(index, MS + number * 1000, 0);
    }
    let mut looks = 0;
    while let Some(at_ns) = protocol.poll_timeout() {
        protocol.handle_timeout(at_ns);
        looks += 1;
    }
    assert_eq!((looks, ends(&mut protocol).len()), (2, 1000));
}

#[test]
fn deadlines_that_follow_each_other_closely_are_looked_for_no_more_often() {
    let mut protocol = connected(options(), 0, 4);
    let (mut now_ns, mut looks) = (0, 0);
    for _ in 0..1000 {
        let (index, _) = protocol.submit_small(1, now_ns).unwrap();
        protocol.set_deadline(index, now_ns + 10_000, now_ns);
        now_ns += 200_000;
        if protocol.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            protocol.handle_timeout(now_ns);
            looks += 1;
        }
        ends(&mut protocol);
    }
    assert!((150..=200).contains(&looks), "{looks} looks in 200 ms");
}

#[test]
fn a_wait_to_send_again_is_no_longer_than_the_deadline() {
    let backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(50));
    let retry = RetryPolicy { backoff, ..RetryPolicy::all_for(Duration::from_secs(1)) };
    let mut protocol = connected(ProtocolOptions { retry, ..options() }, 10, 4);
    let (index, _) = protocol.submit_small(1, 0).unwrap();
    protocol.set_deadline(index, 20 * MS, 0);
    assert_eq!(sent_and_completed(&mut protocol), [1]);
    protocol.handle_header(&ack(10, 1, 1, AckStatus::NoApp), 0, MS);
    assert_eq!(protocol.poll_timeout(), Some(20 * MS));
    protocol.handle_timeout(20 * MS);
    assert_eq!(ends(&mut protocol), [(1, AckStatus::NoApp)]);
}

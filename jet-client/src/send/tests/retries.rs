//! Tests of messages that are sent again because of their end.

use super::protocol::{MS, ack, connected, ends, options, sent, sent_and_completed};
use crate::Backoff;
use crate::send::options::{ProtocolOptions, RetryPolicy};
use jet_wire::message::AckStatus;
use std::time::Duration;

#[test]
fn ends_that_may_pass_are_retried_until_the_limit_and_then_told() {
    let retry = RetryPolicy {
        backoff: Backoff::new(Duration::from_millis(2), Duration::from_millis(4)),
        ..RetryPolicy::all_for(Duration::from_millis(20))
    };
    let mut protocol = connected(ProtocolOptions { retry, ..options() }, 100, 4);
    protocol.submit_small(1, 0).unwrap();
    let mut now_ns = 0;
    let statuses = [AckStatus::Busy, AckStatus::NoApp, AckStatus::AppGone, AckStatus::Draining];
    let mut marks = Vec::new();
    for status in statuses.into_iter().cycle() {
        let Some(&(id, _, redelivered)) = sent(&mut protocol).first() else { break };
        marks.push(redelivered);
        protocol.handle_send_completed(id, true, now_ns);
        protocol.handle_header(&ack(100, 1, 1, status), 0, now_ns);
        let Some(at) = protocol.poll_timeout() else { break };
        now_ns = at;
        protocol.handle_timeout(now_ns);
    }
    assert_eq!(now_ns, 20 * MS);
    assert_eq!(marks[..4], [false, false, false, true]);
    let ends = ends(&mut protocol);
    assert!(matches!(ends[..], [(1, status)] if statuses.contains(&status)), "{ends:?}");
    // Other ends are final at once.
    protocol.submit_small(1, now_ns).unwrap();
    assert_eq!(sent_and_completed(&mut protocol), [2]);
    protocol.handle_header(&ack(100, 2, 1, AckStatus::Denied), 0, now_ns);
    assert_eq!(self::ends(&mut protocol), [(2, AckStatus::Denied)]);
}

#[test]
fn by_default_every_end_that_may_pass_is_retried() {
    let options = ProtocolOptions { retry: RetryPolicy::default(), ..options() };
    // Each with whether the application may have seen the message.
    for (status, may_be_seen) in [
        (AckStatus::Busy, false),
        (AckStatus::NoApp, false),
        (AckStatus::AppGone, true),
        (AckStatus::Draining, true),
    ] {
        let mut protocol = connected(options, 100, 4);
        protocol.submit_small(1, 0).unwrap();
        assert_eq!(sent_and_completed(&mut protocol), [1]);
        // It is sent again also when its time is almost over, and not after that.
        let almost_ns = 30_000 * MS - 1;
        protocol.handle_header(&ack(100, 1, 1, status), 0, almost_ns);
        assert_eq!(ends(&mut protocol), [], "{status}");
        protocol.handle_timeout(30_000 * MS);
        let again = sent(&mut protocol);
        let [(id, 1, redelivered)] = again[..] else { panic!("{status}: {again:?}") };
        assert_eq!(redelivered, may_be_seen, "{status}");
        protocol.handle_send_completed(id, true, 30_000 * MS);
        protocol.handle_header(&ack(100, 1, 1, status), 0, 30_000 * MS);
        assert_eq!(ends(&mut protocol), [(1, status)]);
    }
}

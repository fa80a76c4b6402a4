//! Tests of messages that are consumed before all of them arrived.

use super::{Daemon, LONG, Run, check_slice, finish, nothing, pair, slices, slices_and_finish, small};
use crate::receive::{Fault, Message, ReceiveError, Session, SliceError, Verdict};
use jet_wire::SLAB_BYTES_U32;
use jet_wire::segment::delivery_flags as flags;
use std::time::Duration;

/// Returns one of the three runs of message 0, each of one slab.
fn part(slot: u32) -> Run {
    let flags = match slot {
        0 => flags::FIRST,
        2 => flags::LAST,
        _ => 0,
    };
    Run {
        offset: u64::from(slot * SLAB_BYTES_U32),
        message_bytes: u64::from(3 * SLAB_BYTES_U32),
        flags,
        ..small(slot, 0, SLAB_BYTES_U32)
    }
}

fn in_vain(session: &Session) {
    assert!(nothing(session.try_receive()));
}

fn flush(session: &Session) {
    session.flush();
}

fn wait_in_vain(session: &Session) {
    assert!(nothing(session.receive_timeout(Duration::from_millis(1))));
}

fn consume_early(daemon: &mut Daemon, session: &Session) {
    daemon.deliver(part(0));
    session.try_receive().unwrap().consume();
    session.flush();
    assert_eq!(daemon.releases(), [slices(0, 0, 1)], "no end before its last run came");
}

#[test]
fn a_message_consumed_early_ends_with_its_last_run() {
    for step in [in_vain, flush, wait_in_vain] {
        let (mut daemon, session) = pair(Duration::ZERO);
        consume_early(&mut daemon, &session);
        daemon.deliver(part(1));
        step(&session);
        assert_eq!(daemon.releases(), [slices(1, 0, 1)]);
        daemon.deliver(part(2));
        step(&session);
        assert_eq!(daemon.releases(), [slices_and_finish(2, 0, 1, 0)]);
        // The message number is used again, with another generation.
        daemon.deliver_as(small(1, 0, 5), 8, b"");
        session.try_receive().unwrap().consume();
        session.flush();
        assert_eq!(daemon.releases(), [slices_and_finish(1, 0, 1, 0)]);
    }
}

#[test]
fn every_way_to_consume_early_waits_for_the_last_run() {
    for detached in [false, true] {
        let (mut daemon, session) = pair(Duration::ZERO);
        daemon.deliver(part(0));
        let mut message = session.try_receive().unwrap();
        let slice = message.next_timeout(LONG).unwrap().unwrap();
        if detached {
            session.finish(message.detach(), Verdict::Consumed);
        } else {
            message.end(Verdict::Consumed);
        }
        daemon.deliver(part(1));
        daemon.deliver(part(2));
        session.flush();
        assert_eq!(daemon.releases(), [slices(1, 0, 1), slices_and_finish(2, 0, 1, 0)]);
        check_slice(&slice, 0);
        drop(slice);
        session.flush();
        assert_eq!(daemon.releases(), [slices(0, 0, 1)]);
    }
}

#[test]
fn slices_given_back_first_do_not_end_it_early() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(part(0));
    let mut message = session.try_receive().unwrap();
    let slice = message.next_timeout(LONG).unwrap().unwrap();
    message.consume();
    drop(slice);
    session.flush();
    assert_eq!(daemon.releases(), [slices(0, 0, 1)]);
    daemon.deliver(part(1));
    daemon.deliver(part(2));
    session.flush();
    assert_eq!(daemon.releases(), [slices(1, 0, 1), slices_and_finish(2, 0, 1, 0)]);
}

#[test]
fn a_message_consumed_early_ends_when_it_is_withdrawn() {
    for step in [in_vain, flush, wait_in_vain] {
        let (mut daemon, session) = pair(Duration::ZERO);
        consume_early(&mut daemon, &session);
        daemon.withdraw_as(0, 7, flags::CORRUPT);
        step(&session);
        assert_eq!(daemon.releases(), [finish(0, 0)]);
    }
}

#[test]
fn a_message_withdrawn_before_it_is_consumed_ends_at_once() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(part(0));
    let mut message = session.try_receive().unwrap();
    daemon.withdraw_as(0, 7, 0);
    in_vain(&session);
    assert!(matches!(message.try_next(), Err(SliceError::Withdrawn { corrupt: false })));
    message.consume();
    session.flush();
    assert_eq!(daemon.releases(), [slices_and_finish(0, 0, 1, 0)]);
}

#[test]
fn what_flush_reads_for_others_keeps_the_application_from_sleeping() {
    let (mut daemon, session) = pair(Duration::ZERO);
    let other = |run: Run| Run { slot: run.slot + 3, slab: run.slab + 3, message: 1, ..run };
    daemon.deliver(other(part(0)));
    let mut message = session.try_receive().unwrap();
    check_slice(&message.next_timeout(LONG).unwrap().unwrap(), 1);
    assert!(matches!(message.try_next(), Err(SliceError::NotYet)));
    assert_eq!(daemon.releases(), [slices(3, 0, 1)]);
    consume_early(&mut daemon, &session);
    daemon.deliver(other(part(2)));
    session.flush();
    assert!(!session.prepare_sleep().unwrap(), "a slice waits that nobody will be woken for");
    assert!(matches!(message.try_next(), Ok(Some(_))));
    assert!(session.prepare_sleep().unwrap());
}

#[test]
fn what_a_poll_reads_for_a_message_that_was_polled_before_keeps_the_application_from_sleeping() {
    type Polls = for<'s> fn(&'s Session, &mut Message<'s>);
    let in_vain: Polls = |session, _| assert!(nothing(session.try_receive()));
    let new_message: Polls = |session, _| session.try_receive().unwrap().consume();
    let other: Polls = |_, other| assert!(matches!(other.try_next(), Err(SliceError::NotYet)));
    for (poll, brings_message) in [(in_vain, false), (new_message, true), (other, false)] {
        let (mut daemon, session) = pair(Duration::ZERO);
        let of_other = |run: Run| Run { slot: run.slot + 3, slab: run.slab + 3, message: 1, ..run };
        daemon.deliver(part(0));
        daemon.deliver(of_other(part(0)));
        let mut messages = [0, 1].map(|_| session.try_receive().unwrap());
        for message in &mut messages {
            assert!(matches!(message.try_next(), Ok(Some(_))));
            assert!(matches!(message.try_next(), Err(SliceError::NotYet)));
        }
        let [message, another] = &mut messages;
        assert!(!session.prepare_sleep().unwrap(), "two first slices were read");
        assert!(session.prepare_sleep().unwrap());
        assert!(matches!(message.try_next(), Err(SliceError::NotYet)));
        daemon.deliver(part(2));
        if brings_message {
            daemon.deliver(small(7, 2, 9));
        }
        poll(&session, another);
        assert!(!session.prepare_sleep().unwrap(), "a slice waits that nobody will be woken for");
        assert!(matches!(message.try_next(), Ok(Some(_))));
        assert!(session.prepare_sleep().unwrap());
    }
}

#[test]
fn a_fault_that_flush_finds_is_told_by_the_next_call() {
    let (mut daemon, session) = pair(Duration::ZERO);
    consume_early(&mut daemon, &session);
    // The number is not free: its message has no end yet.
    daemon.deliver_as(small(5, 0, 5), 8, b"");
    session.flush();
    assert!(matches!(session.try_receive(), Err(ReceiveError::Broken(Fault::OutOfTurn { .. }))));
}

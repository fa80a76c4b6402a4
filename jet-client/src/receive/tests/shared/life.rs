//! What owned messages and slices do, whoever holds them.

use super::super::{LONG, expected_byte, finish, nothing, slices, slices_and_finish, small};
use super::{Daemon, check, deliver, half, halfway, shared_pair};
use crate::receive::{
    OwnedMessage, OwnedSlice, REJECT_DROPPED, ReceiveError, SharedSession, SliceError, Verdict,
};
use jet_wire::segment::{Release, delivery_flags as flags};
use jet_wire::{SLAB_BYTES, SLAB_BYTES_U32};
use std::num::NonZeroU32;
use std::time::Duration;

fn is_for_any_thread<T: Send + Sync + 'static>(_: &T) {}

#[test]
fn any_thread_may_have_them() {
    let (mut daemon, session) = shared_pair();
    daemon.deliver_as(small(3, 2, 64), 7, b"name");
    let mut message = session.try_receive().unwrap();
    let slice = message.next().unwrap().unwrap();
    is_for_any_thread::<SharedSession>(&session);
    is_for_any_thread::<OwnedMessage>(&message);
    is_for_any_thread::<OwnedSlice>(&slice);
    std::thread::spawn(move || {
        assert_eq!((message.tag(), message.sequence(), message.sender(), message.bytes()), (1002, 3, 42, 64));
        assert_eq!((message.user_header(), message.redelivered()), (&b"name"[..], false));
        check(&slice, 2);
        assert!(message.next().unwrap().is_none());
    })
    .join()
    .unwrap();
    session.flush();
    assert_eq!(daemon.releases(), [slices_and_finish(3, 0, 1, 0)]);
}

/// Returns what the daemon is shown of a message that is ended after `taken` of its two halves were taken.
fn ended(taken: usize, end: impl FnOnce(OwnedMessage)) -> Vec<Release> {
    let (mut daemon, session) = shared_pair();
    daemon.deliver(half(0, flags::FIRST));
    daemon.deliver(half(1, flags::LAST));
    let mut message = session.try_receive().unwrap();
    (0..taken).for_each(|_| drop(message.next().unwrap().unwrap()));
    end(message);
    session.flush();
    daemon.releases()
}

#[test]
fn a_message_ends_as_its_application_says_or_as_it_was_read() {
    let code = |releases: Vec<Release>| releases.last().unwrap().code;
    assert_eq!(code(ended(2, drop)), 0);
    assert_eq!(code(ended(1, drop)), REJECT_DROPPED);
    assert_eq!(code(ended(0, OwnedMessage::consume)), 0);
    assert_eq!(code(ended(2, |message| message.reject(NonZeroU32::new(28).unwrap()))), 28);
    assert_eq!(code(ended(2, |message| message.end(Verdict::Rejected(NonZeroU32::new(5).unwrap())))), 5);
    let panics = |message| {
        let dropped = std::thread::spawn(move || {
            let _message: OwnedMessage = message;
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        dropped.join().unwrap_err();
    };
    assert_eq!(code(ended(2, panics)), REJECT_DROPPED);
}

#[test]
fn parts_of_a_slice_are_given_back_on_their_own() {
    let (mut daemon, session) = shared_pair();
    daemon.deliver(small(0, 1, 4 * SLAB_BYTES_U32));
    let mut message = session.try_receive().unwrap();
    let (head, tail) = message.next().unwrap().unwrap().split_at_slab(1);
    drop(message);
    assert_eq!((head.len(), head.slabs(), tail.offset(), tail.slabs()), (SLAB_BYTES, 1, 4096, 3));
    check(&head, 1);
    check(&tail, 1);
    drop(tail);
    session.flush();
    assert_eq!(daemon.releases(), [slices(0, 1, 3)]);
    drop(head);
    session.flush();
    assert_eq!(daemon.releases(), [slices_and_finish(0, 0, 1, 0)]);
}

#[test]
fn whoever_waits_meanwhile_the_daemon_is_shown_at_once_what_was_given_back() {
    let (mut daemon, session, mut message) = halfway();
    daemon.deliver(half(1, flags::LAST));
    let slice = message.next().unwrap().unwrap();
    session.flush();
    daemon.releases();
    let waiting = session.clone();
    let waits = std::thread::spawn(move || waiting.receive_timeout(LONG).unwrap().tag());
    while session.stats().sleeps == 0 {
        std::thread::yield_now();
    }
    // Nobody looks again before something arrives.
    drop(slice);
    assert_eq!(daemon.releases(), [slices(1, 0, 1)]);
    drop(message);
    assert_eq!(daemon.releases(), [finish(0, 0)]);
    deliver(&mut daemon, super::other(1));
    assert_eq!(waits.join().unwrap(), 1001);
}

#[test]
fn the_end_of_a_message_is_shown_at_once_for_who_ended_it_may_be_busy() {
    let (mut daemon, session) = shared_pair();
    for (number, is_message_first) in [(0, true), (1, false)] {
        daemon.deliver(small(number, number, 100));
        let mut message = session.try_receive().unwrap();
        let slice = message.next().unwrap().unwrap();
        if is_message_first {
            drop(message);
            assert_eq!(daemon.releases(), [], "its slice is held");
            drop(slice);
        } else {
            drop((slice, message));
        }
        assert_eq!(daemon.releases(), [slices_and_finish(number, 0, 1, 0)]);
    }
}

#[test]
fn slices_stay_readable_when_the_daemon_is_gone() {
    let (mut daemon, session) = shared_pair();
    daemon.deliver(half(0, flags::FIRST));
    let mut message = session.receive_timeout(LONG).unwrap();
    let slice = message.next_timeout(LONG).unwrap().unwrap();
    drop(daemon);
    assert!(matches!(session.receive(), Err(ReceiveError::DaemonGone)));
    assert!(matches!(message.next(), Err(SliceError::Receive(ReceiveError::DaemonGone))));
    drop((session, message));
    check(&slice, 0);
}

#[test]
fn a_wait_ends_in_time_and_a_look_at_once() {
    let (mut daemon, session, mut message) = halfway();
    assert!(nothing(session.try_receive()));
    assert!(nothing(session.receive_timeout(Duration::from_millis(1))));
    assert!(matches!(message.try_next(), Err(SliceError::NotYet)));
    assert!(matches!(message.next_timeout(Duration::from_millis(1)), Err(SliceError::NotYet)));
    daemon.deliver(half(1, flags::LAST));
    assert!(message.next_timeout(Duration::MAX).unwrap().is_some());
    assert!(message.next_timeout(Duration::MAX).unwrap().is_none());
}

#[test]
fn a_message_is_copied_out_whole() {
    let (mut daemon, session) = shared_pair();
    daemon.deliver(half(1, flags::FIRST));
    daemon.deliver(half(0, flags::LAST));
    let mut message = session.try_receive().unwrap();
    let mut whole = Vec::new();
    assert_eq!(message.read_to_end_timeout(&mut whole, LONG).unwrap(), 2 * SLAB_BYTES as u64);
    assert!((0..).zip(&whole).all(|(at, byte)| *byte == expected_byte(0, at)));
    assert_eq!(whole.len(), 2 * SLAB_BYTES);
}

#[cfg(feature = "bytes")]
#[test]
fn bytes_are_those_of_the_slice_and_give_it_back_with_the_last_clone() {
    let (mut daemon, session): (Daemon, _) = shared_pair();
    daemon.deliver(small(0, 0, 100));
    let slice = session.try_receive().unwrap().next().unwrap().unwrap();
    session.flush();
    let at = slice.as_ptr();
    let bytes = bytes::Bytes::from(slice);
    let clone = bytes.slice(10..);
    assert_eq!((bytes.as_ptr(), bytes.len()), (at, 100), "no copy");
    drop(bytes);
    session.flush();
    assert_eq!(daemon.releases(), []);
    assert_eq!(clone[0], expected_byte(0, 10));
    drop(clone);
    session.flush();
    assert_eq!(daemon.releases(), [slices_and_finish(0, 0, 1, 0)]);
}

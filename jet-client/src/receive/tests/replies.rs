//! Tests of replies: what the daemon is shown, whenever the message's slices come back.

use super::{Daemon, LONG, Run, pair, slices, small};
use crate::receive::{NotReplied, ReplyError, Session, SliceError, Verdict};
use jet_wire::SLAB_BYTES_U32;
use jet_wire::segment::{Delivery, Release, delivery_flags as flags, release_kind};
use std::num::NonZeroU32;
use std::time::Duration;

/// Returns the release that ends message 0 with a reply of so many bytes.
fn reply(bytes: u16, code: u32) -> Release {
    let generation = Delivery { generations: 7 << 16, ..Delivery::ZERO }.message_generation();
    Release { index: 0, generation, first: bytes, count: 0, kind: release_kind::REPLY, reserved: 0, code }
}

/// Returns the first or the second half of message 0, whose sender takes a reply.
fn half(slot: u32) -> Run {
    let flags = if slot == 0 { flags::FIRST | flags::WANTS_REPLY } else { flags::LAST };
    Run {
        offset: u64::from(slot * SLAB_BYTES_U32),
        message_bytes: u64::from(2 * SLAB_BYTES_U32),
        flags,
        ..small(slot, 0, SLAB_BYTES_U32)
    }
}

/// Returns what the daemon finds in the reply cell of message 0.
fn cell(daemon: &Daemon, bytes: usize) -> Vec<u8> {
    let cell = daemon.end.reply_cell(0).expect("there is one");
    // SAFETY: the cell has 4096 bytes.
    unsafe { std::slice::from_raw_parts(cell, bytes) }.to_vec()
}

fn begin(session: &Session) -> crate::receive::Message<'_> {
    let message = session.try_receive().unwrap();
    assert!(message.wants_reply());
    message
}

#[test]
fn a_reply_ends_its_message_when_its_last_slice_is_back() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(half(0));
    daemon.deliver(half(1));
    let mut message = begin(&session);
    let first = message.next_timeout(LONG).unwrap().unwrap();
    let second = message.next_timeout(LONG).unwrap().unwrap();
    message.reply(b"an answer").unwrap();
    session.flush();
    assert_eq!(daemon.releases(), []);
    drop(first);
    drop(second);
    session.flush();
    assert_eq!(daemon.releases(), [slices(0, 0, 1), slices(1, 0, 1), reply(9, 0)]);
    assert_eq!(cell(&daemon, 9), b"an answer");
}

#[test]
fn what_was_not_taken_goes_back_before_the_reply() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(half(0));
    daemon.deliver(half(1));
    begin(&session).reply(&[]).unwrap();
    session.flush();
    assert_eq!(daemon.releases(), [slices(0, 0, 1), slices(1, 0, 1), reply(0, 0)]);
}

#[test]
fn a_reply_to_a_message_that_is_still_arriving_waits_for_its_last_run() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(half(0));
    begin(&session).reply(b"early").unwrap();
    session.flush();
    assert_eq!(daemon.releases(), [slices(0, 0, 1)]);
    daemon.deliver(half(1));
    session.flush();
    assert_eq!(daemon.releases(), [slices(1, 0, 1), reply(5, 0)]);
    assert_eq!(cell(&daemon, 5), b"early");
}

#[test]
fn a_rejection_with_a_reply_ends_a_message_that_is_still_arriving() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(half(0));
    let verdict = Verdict::Rejected(NonZeroU32::new(28).unwrap());
    begin(&session).reply_as(verdict, b"full").unwrap();
    session.flush();
    assert_eq!(daemon.releases(), [slices(0, 0, 1), reply(4, 28)]);
}

#[test]
fn a_number_that_is_used_again_has_no_reply_of_before() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(half(0));
    daemon.deliver(half(1));
    begin(&session).reply(b"before").unwrap();
    session.flush();
    daemon.releases();
    daemon.deliver_as(small(2, 0, 5), 8, b"");
    let message = session.try_receive().unwrap();
    assert!(!message.wants_reply());
    message.consume();
    session.flush();
    assert!(daemon.releases().iter().all(|release| release.kind != release_kind::REPLY));
}

#[test]
fn a_message_that_cannot_be_replied_to_comes_back_as_it_was() {
    let (mut daemon, session) = pair(Duration::ZERO);
    daemon.deliver(half(0));
    daemon.deliver(half(1));
    let NotReplied { error, mut message } = begin(&session).reply(&[0; 4097]).unwrap_err();
    assert_eq!(error, ReplyError::TooLong { bytes: 4097 });
    assert_eq!(message.next_timeout(LONG).unwrap().unwrap().offset(), 0);
    message.reply(&[1; 4096]).unwrap();
    session.flush();
    assert_eq!(daemon.releases().last(), Some(&reply(4096, 0)));
    // A message that is withdrawn has an end of its own; its reply is shown, and the daemon drops it.
    daemon.deliver_as(Run { flags: flags::FIRST | flags::WANTS_REPLY, ..half(0) }, 8, b"");
    let mut message = begin(&session);
    drop(message.next_timeout(LONG).unwrap());
    daemon.withdraw_as(0, 8, 0);
    assert!(matches!(message.next_timeout(LONG), Err(SliceError::Withdrawn { corrupt: false })));
    message.reply(b"too late").unwrap();
    session.flush();
    assert_eq!(daemon.releases().last().map(|release| release.kind), Some(release_kind::REPLY));
}

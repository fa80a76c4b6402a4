//! Tests of sessions that threads and tasks share.

mod life;
mod returning;
#[cfg(feature = "tokio")]
mod tasks;
mod threads;

use super::{Daemon, Run, SLOTS, expected_byte, pair, small};
use crate::receive::{OwnedMessage, OwnedSlice, SharedSession};
use jet_wire::SLAB_BYTES_U32;
use jet_wire::segment::delivery_flags as flags;
use std::time::Duration;

fn shared_pair() -> (Daemon, SharedSession) {
    let (daemon, session) = pair(Duration::ZERO);
    (daemon, SharedSession::from_session(session).unwrap())
}

/// Delivers a run as the daemon does: rings the doorbell where the session's word says that it sleeps.
fn deliver(daemon: &mut Daemon, run: Run) {
    daemon.deliver(run);
    ring(daemon);
}

fn ring(daemon: &mut Daemon) {
    if daemon.end.deliveries.wake_needed() {
        daemon.doorbell.ring();
    }
}

/// A half of message 0, of one slab.
fn half(number: u32, flags: u8) -> Run {
    Run {
        flags,
        offset: u64::from(number * SLAB_BYTES_U32),
        message_bytes: u64::from(2 * SLAB_BYTES_U32),
        ..small(number, 0, SLAB_BYTES_U32)
    }
}

/// Makes a session with a message whose first half arrived and was given back.
fn halfway() -> (Daemon, SharedSession, OwnedMessage) {
    let (mut daemon, session) = shared_pair();
    daemon.deliver(half(0, flags::FIRST));
    let mut message = session.try_receive().unwrap();
    drop(message.next().unwrap());
    (daemon, session, message)
}

/// A small message in place `message` of the table, in a slot that no half uses.
fn other(message: u32) -> Run {
    small(SLOTS - message, message, 10)
}

fn check(slice: &OwnedSlice, message: u32) {
    for (at, &byte) in slice.iter().enumerate() {
        assert_eq!(byte, expected_byte(message, slice.offset() + at as u64), "message {message} at {at}");
    }
}

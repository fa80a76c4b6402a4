//! Tests of messages that are taken back and of deadlines, between real processes.

use crate::rig::Rig;
use crate::traffic::{fill, next};
use jet_client::receive::{Message, Session, SliceError};
use jet_client::send::{AckStatus, Completion, Envelope, Sender, SenderOptions, SharedSender};
use jet_fabric::Address;
use jet_test_support::waiting::WAIT_LIMIT;
use std::time::{Duration, Instant};

const APP: &str = "store";
/// Longer than the pool of a rig: without escape memory such a message does not arrive as a whole while its
/// application takes nothing.
const LONG_BYTES: usize = 16 << 20;
const NO_MEMORY: &[&str] = &["escape.memory_bytes=0"];

fn options(address: &Address) -> SenderOptions {
    Rig::sender_options(address, APP).in_flight_max(16).window_bytes(1 << 30)
}

#[track_caller]
fn end(sender: &mut Sender) -> Completion {
    sender.wait_timeout(WAIT_LIMIT).expect("in time").expect("something is in flight")
}

/// Waits for the message with that tag, and drops others.
fn next_with<'s>(session: &'s Session, sender: &mut Sender, tag: u64) -> Message<'s> {
    loop {
        let message = next(session, sender);
        if message.tag() == tag {
            return message;
        }
    }
}

/// Waits until the receiver knows of so many messages.
fn wait_for_messages(rig: &Rig, sender: &mut Sender, count: u32) {
    rig.wait_status_while(|| sender.flush(), "the messages", |status| status.messages.known == count);
}

#[test]
fn what_is_read_and_what_waits_is_taken_back_on_every_fabric() {
    let rig = Rig::start(NO_MEMORY);
    let session = rig.session(APP);
    for address in rig.fabrics() {
        let mut sender = Sender::connect(&options(&address)).expect("let in");
        // The first one fills what its application may hold. The others wait behind it.
        let mut tickets = Vec::new();
        for tag in 0..3 {
            let mut buffer = sender.buffer(LONG_BYTES).expect("memory");
            fill(tag, &mut buffer);
            tickets.push(sender.send(tag, buffer).expect("taken"));
        }
        wait_for_messages(&rig, &mut sender, 3);
        let mut first = next_with(&session, &mut sender, 0);
        let slice = first.next_timeout(WAIT_LIMIT).expect("a slice").expect("not all");
        let mut expected = vec![0; LONG_BYTES];
        fill(first.tag(), &mut expected);
        assert_eq!(slice[..], expected[slice_range(&slice)], "what was given is right");
        for ticket in &tickets {
            sender.cancel(*ticket);
        }
        let mut ended: Vec<_> = (0..3).map(|_| end(&mut sender)).collect();
        ended.sort_by_key(|end| end.ticket);
        for (completion, ticket) in ended.iter().zip(&tickets) {
            assert_eq!((completion.ticket, completion.status), (*ticket, AckStatus::Cancelled));
            let buffer = completion.buffer.as_ref().expect("it comes back");
            assert_eq!(buffer.len(), LONG_BYTES);
        }
        // The application keeps what it has, and hears that no more comes.
        assert_eq!(slice[..], expected[slice_range(&slice)], "nobody wrote over it");
        drop(slice);
        let rest = loop {
            match first.next_timeout(WAIT_LIMIT) {
                Ok(Some(_)) => {}
                other => break other.map(drop),
            }
        };
        assert!(matches!(rest, Err(SliceError::Withdrawn { corrupt: false })), "{rest:?}");
        drop(first);
        // Others of which something arrived are withdrawn, too, and what is sent now arrives.
        let buffer = sender.buffer(100_000).expect("memory");
        sender.send(9, buffer).expect("taken");
        let message = next_with(&session, &mut sender, 9);
        // Consumed when all of it has arrived.
        message.consume();
        session.flush();
        assert_eq!(end(&mut sender).status, AckStatus::Consumed);
        assert_eq!(sender.stats().protocol.cancels, 3);
    }
    rig.wait_whole();
    let ends = rig.status().ends;
    assert_eq!(ends.cancelled, 3 * rig.fabrics().len() as u64);
}

fn slice_range(slice: &jet_client::receive::Slice<'_>) -> std::ops::Range<usize> {
    let first = usize::try_from(slice.offset()).expect("short");
    first..first + slice.len()
}

#[test]
fn deadlines_end_what_nobody_takes_and_say_why() {
    let mut rig = Rig::start(&[]);
    let address = rig.addresses()[0].clone();
    let mut sender = Sender::connect(&options(&address)).expect("let in");
    let began = Instant::now();
    // Nobody has the name: by default that is tried again for 30 s. The deadline leaves a busy host the time
    // for the first answer.
    let in_time = Envelope::new(1).deadline(Some(Duration::from_secs(2)));
    sender.send_small(in_time, b"for nobody").expect("taken");
    assert_eq!(end(&mut sender).status, AckStatus::NoApp);
    // One whose time is over is not sent, and one without end is kept.
    sender.send_small(Envelope::new(2).deadline(Some(Duration::ZERO)), b"too late").expect("taken");
    let over = end(&mut sender);
    assert_eq!((over.tag, over.status), (2, AckStatus::Cancelled));
    let session = rig.session(APP);
    sender.send_small(Envelope::new(3).deadline(Some(Duration::MAX)), b"at any time").expect("taken");
    next_with(&session, &mut sender, 3).consume();
    session.flush();
    assert_eq!(end(&mut sender).status, AckStatus::Consumed);
    // Without a daemon nothing is sent, and no longer waited for.
    rig.kill_daemon();
    while sender.is_connected() {
        assert!(began.elapsed() < WAIT_LIMIT, "it notices");
        sender.flush();
    }
    let buffer = sender.buffer(100_000).expect("memory");
    let soon = Envelope::new(4).deadline(Some(Duration::from_millis(200)));
    sender.send(soon, buffer).expect("taken");
    let end = end(&mut sender);
    assert_eq!((end.status, end.buffer.is_some()), (AckStatus::Cancelled, true));
}

#[test]
fn threads_take_back_what_others_wait_for() {
    let rig = Rig::start(NO_MEMORY);
    let session = rig.session(APP);
    for address in rig.fabrics() {
        let sender = SharedSender::connect(&options(&address)).expect("let in");
        let buffer = sender.buffer(LONG_BYTES).expect("memory");
        let handle = sender.send(1, buffer).expect("taken");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| sender.drain().expect("it ends"));
            let mut message = session.receive_timeout(WAIT_LIMIT).expect("it has begun to arrive");
            handle.cancel();
            handle.cancel();
            let taken_back = handle.wait().expect("its end");
            assert_eq!(taken_back.status, AckStatus::Cancelled);
            waits.join().expect("it ends");
            while matches!(message.next_timeout(WAIT_LIMIT), Ok(Some(_))) {}
        });
        session.flush();
    }
    rig.wait_whole();
}

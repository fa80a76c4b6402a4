//! Tests of replies, between real processes.

use crate::rig::{Rig, random_for};
use crate::traffic::{fill, next, until_received};
use jet_client::receive::{Message, NotReplied, RegisterOptions, ReplyError, SharedSession, Verdict};
use jet_client::send::{
    AckStatus, CallError, Envelope, RetryPolicy, SendError, Sender, SenderOptions, SharedSender, WaitError,
};
use jet_fabric::Address;
use jet_test_support::device::fabrics;
use jet_test_support::waiting::WAIT_LIMIT;
use std::collections::HashSet;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

const APP: &str = "store";

fn options(address: &Address) -> SenderOptions {
    Rig::sender_options(address, APP).replies(true).in_flight_max(16)
}

/// Returns the bytes that an application replies with to the message with that tag.
fn answer(tag: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(tag * 1013 % 4097).expect("short")];
    fill(tag ^ 0x5eed, &mut bytes);
    bytes
}

/// Takes all slices of a message.
fn take(message: &mut Message<'_>) {
    while message.next_timeout(WAIT_LIMIT).expect("it comes whole").is_some() {}
}

#[test]
fn small_and_large_messages_are_replied_to_on_every_fabric() {
    const MESSAGES: u64 = 60;
    let mut random = random_for("replies", 80);
    let rig = Rig::start(&[]);
    let session = rig.session(APP);
    for address in rig.fabrics() {
        let mut sender = Sender::connect(&options(&address)).expect("let in");
        let (mut sent, mut ended) = (0, 0);
        while ended < MESSAGES {
            while sent < MESSAGES && sent - ended < 8 {
                let envelope = Envelope::new(sent).wants_reply(true);
                if random.below(3) == 0 {
                    let buffer = sender.buffer(5000 + random.size_below(200_000)).expect("memory");
                    sender.send(envelope, buffer).expect("taken");
                } else {
                    sender.send_small(envelope, b"question").expect("taken");
                }
                sent += 1;
            }
            sender.flush();
            // Of three, one is rejected with a reply, and one has none.
            let mut message = next(&session, &mut sender);
            assert!(message.wants_reply());
            take(&mut message);
            let tag = message.tag();
            match tag % 3 {
                0 => message.reply(&answer(tag)).expect("it is wanted"),
                1 => {
                    let verdict = Verdict::Rejected(NonZeroU32::new(28).expect("not 0"));
                    message.reply_as(verdict, &answer(tag)).expect("it is wanted");
                }
                _ => message.consume(),
            }
            session.flush();
            let end = sender.wait_timeout(WAIT_LIMIT).expect("in time").expect("something is in flight");
            let expected = match end.tag % 3 {
                0 => (AckStatus::Consumed, Some(answer(end.tag))),
                1 => (AckStatus::Rejected(28), Some(answer(end.tag))),
                _ => (AckStatus::Consumed, None),
            };
            assert_eq!((end.status, end.reply.map(|reply| reply.to_vec())), expected, "{}", end.tag);
            ended += 1;
        }
        assert_eq!(rig.status().faults.sessions, 0);
    }
    rig.wait_whole();
}

#[test]
fn what_cannot_be_a_reply_is_given_back_with_its_message() {
    let rig = Rig::start(&[]);
    let session = rig.session(APP);
    let address = &rig.addresses()[0];
    let mut sender = Sender::connect(&options(address)).expect("let in");
    sender.send_small(Envelope::new(1).wants_reply(true), b"question").expect("taken");
    sender.send_small(2, b"no question").expect("taken");
    sender.flush();
    let NotReplied { error, message, .. } =
        next(&session, &mut sender).reply(&[0; 4097]).expect_err("too long");
    assert_eq!(error, ReplyError::TooLong { bytes: 4097 });
    message.reply(&[7; 4096]).expect("as long as may be");
    let NotReplied { error, message, .. } =
        next(&session, &mut sender).reply(b"?").expect_err("nobody wants it");
    assert_eq!(error, ReplyError::NotWanted);
    message.consume();
    session.flush();
    let mut ends: Vec<_> =
        (0..2).map(|_| sender.wait_timeout(WAIT_LIMIT).expect("in time").expect("an end")).collect();
    ends.sort_by_key(|end| end.tag);
    assert_eq!(ends[0].reply.as_deref(), Some(&[7; 4096][..]));
    assert!(ends[1].reply.is_none() && ends.iter().all(|end| end.status == AckStatus::Consumed));
    // A sender without memory for replies says so before it sends.
    let mut plain = Sender::connect(&Rig::sender_options(address, APP)).expect("let in");
    let refused = plain.send_small(Envelope::new(1).wants_reply(true), b"question");
    assert_eq!(refused, Err(SendError::NoReplies));
    // Replies may be kept, more of them than messages may be without an end.
    let mut kept = Vec::new();
    for tag in 0..50 {
        sender.send_small(Envelope::new(tag).wants_reply(true), b"question").expect("taken");
        sender.flush();
        next(&session, &mut sender).reply(&answer(tag)).expect("wanted");
        session.flush();
        kept.push(sender.wait_timeout(WAIT_LIMIT).expect("in time").expect("an end"));
    }
    for end in &kept {
        assert_eq!(end.reply.as_deref(), Some(&*answer(end.tag)));
    }
}

#[test]
fn threads_and_tasks_call_and_each_gets_its_own_reply() {
    const CALLERS: u64 = 4;
    const CALLS: u64 = 100;
    let rig = Rig::start(&[]);
    let session = SharedSession::register(&RegisterOptions::new(APP).control_socket(rig.control()));
    let session = session.expect("a daemon");
    let sender = SharedSender::connect(&options(&rig.addresses()[0]).in_flight_max(2)).expect("let in");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            for _ in 0..2 * CALLERS * CALLS {
                let message = session.receive_timeout(WAIT_LIMIT).expect("a message in time");
                let reply = answer(message.tag());
                message.reply(&reply).expect("it is wanted");
            }
        });
        for caller in 0..CALLERS {
            let sender = &sender;
            scope.spawn(move || {
                for tag in (0..CALLS).map(|call| caller * CALLS + call) {
                    assert_eq!(*sender.call(tag, b"question").expect("a reply"), *answer(tag));
                }
            });
        }
        let tasks: Vec<_> = (CALLERS..2 * CALLERS)
            .map(|caller| {
                let sender = sender.clone();
                runtime.spawn(async move {
                    for tag in (0..CALLS).map(|call| caller * CALLS + call) {
                        assert_eq!(
                            *sender.call_async(tag, b"question").await.expect("a reply"),
                            *answer(tag)
                        );
                    }
                })
            })
            .collect();
        for task in tasks {
            runtime.block_on(task).expect("no panic");
        }
        worker.join().expect("no panic");
    });
    // Nobody answers any more.
    let late = sender.call_timeout(1, b"question", Duration::from_millis(20));
    assert!(matches!(late, Err(CallError::Wait(WaitError::NotYet))), "{late:?}");
    let next = || until_received(|| session.receive_timeout(Duration::from_millis(1)), || sender.flush());
    let message = next();
    message.reject(NonZeroU32::new(5).expect("not 0"));
    let handle = sender.send_small(Envelope::new(2).wants_reply(true), b"question").expect("taken");
    let message = next();
    let verdict = Verdict::Rejected(NonZeroU32::new(5).expect("not 0"));
    message.reply_as(verdict, b"no").expect("it is wanted");
    match handle.reply() {
        Err(CallError::Ended { status: AckStatus::Rejected(5), reply: Some(reply), .. }) => {
            assert_eq!(&*reply, b"no");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_daemon_without_memory_for_replies_passes_none_on() {
    let rig = Rig::start(&["limits.reply_bytes=0"]);
    let session = rig.session(APP);
    let mut sender = Sender::connect(&options(&rig.addresses()[0])).expect("let in");
    sender.send_small(Envelope::new(1).wants_reply(true), b"question").expect("taken");
    sender.flush();
    let message = next(&session, &mut sender);
    assert!(!message.wants_reply());
    message.consume();
    session.flush();
    let end = sender.wait_timeout(WAIT_LIMIT).expect("in time").expect("an end");
    assert_eq!((end.status, end.reply.is_none()), (AckStatus::Consumed, true));
}

#[test]
fn messages_are_replied_to_once_though_the_daemon_is_killed() {
    const MESSAGES: u64 = 200;
    const KILLS: u64 = 3;
    for fabric in 0..fabrics().len() {
        let mut rig = Rig::start(&[]);
        let options = options(&rig.addresses()[fabric]).retry(RetryPolicy::all_for(Duration::MAX));
        let mut sender = Sender::connect(&options).expect("let in");
        let (mut sent, mut ended, mut kills) = (0, 0, 0);
        let mut session = rig.session(APP);
        let mut tags = HashSet::new();
        let began = Instant::now();
        while ended < MESSAGES {
            assert!(began.elapsed() < 3 * WAIT_LIMIT, "{ended} of {MESSAGES} have ended");
            while sent < MESSAGES && sent - ended < 8 {
                sender.send_small(Envelope::new(sent).wants_reply(true), b"question").expect("taken");
                sent += 1;
            }
            sender.flush();
            if ended >= (kills + 1) * MESSAGES / (KILLS + 1) {
                kills += 1;
                // Some replies are under way, and some messages are with the application.
                rig.kill_daemon();
                rig.start_again();
                session = rig.session(APP);
            }
            if let Ok(message) = session.receive_timeout(Duration::from_millis(20)) {
                let tag = message.tag();
                message.reply(&answer(tag)).expect("it is wanted");
                session.flush();
            }
            while let Some(end) = sender.poll() {
                assert_eq!(end.status, AckStatus::Consumed);
                assert_eq!(end.reply.expect("each has one").to_vec(), answer(end.tag));
                assert!(tags.insert(end.tag), "message {} ended twice", end.tag);
                ended += 1;
            }
        }
        rig.wait_whole();
    }
}

//! Threads that wait on one session.

use super::super::{LONG, MESSAGES, slot_generation, small};
use super::{deliver, half, halfway, other, ring, shared_pair};
use crate::receive::{ReceiveError, SharedSession, SliceError};
use jet_control::frame::encode_frame;
use jet_control::{ControlResponse, ErrorCode};
use jet_fabric::unix::Doorbell;
use jet_wire::segment::{delivery_flags as flags, release_kind};
use std::io::Write;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Waits until the session's waits slept `sleeps` times.
fn slept(session: &SharedSession, sleeps: u64) {
    while session.stats().sleeps < sleeps {
        thread::yield_now();
    }
}

fn receives(session: &SharedSession) -> thread::JoinHandle<u64> {
    let session = session.clone();
    thread::spawn(move || session.receive_timeout(LONG).unwrap().tag())
}

#[test]
fn each_thread_gets_what_it_waits_for() {
    let (mut daemon, session, mut message) = halfway();
    let asleep = session.stats().sleeps;
    let takes = thread::spawn(move || message.next_timeout(LONG).unwrap().unwrap().offset());
    slept(&session, asleep + 1);
    let receives = receives(&session);
    slept(&session, asleep + 2);
    // The first thread leads, and wakes the other one.
    deliver(&mut daemon, other(1));
    assert_eq!(receives.join().unwrap(), 1001);
    assert!(!takes.is_finished());
    deliver(&mut daemon, half(1, flags::LAST));
    assert_eq!(takes.join().unwrap(), 4096);
}

#[test]
fn a_thread_gets_what_another_read_for_it() {
    let (mut daemon, session, mut message) = halfway();
    let asleep = session.stats().sleeps;
    let takes = thread::spawn(move || message.next_timeout(LONG).unwrap().unwrap().offset());
    slept(&session, asleep + 1);
    // Nobody rings, so only the reading itself can wake it.
    daemon.deliver(half(1, flags::LAST));
    assert!(matches!(session.try_receive(), Err(ReceiveError::NotYet)));
    assert_eq!(takes.join().unwrap(), 4096);
}

#[test]
fn a_leader_whose_time_is_over_hands_the_lead_on() {
    let (mut daemon, session) = shared_pair();
    let leading = session.clone();
    let (led, leads) = mpsc::channel();
    let leader = thread::spawn(move || {
        led.send(()).unwrap();
        assert!(matches!(leading.receive_timeout(Duration::from_millis(100)), Err(ReceiveError::NotYet)));
    });
    leads.recv().unwrap();
    slept(&session, 1);
    let follower = receives(&session);
    slept(&session, 2);
    leader.join().unwrap();
    // Whoever followed leads now.
    slept(&session, 3);
    deliver(&mut daemon, other(1));
    assert_eq!(follower.join().unwrap(), 1001);
}

#[test]
fn every_thread_hears_of_the_sessions_end() {
    let (mut daemon, session, mut message) = halfway();
    let waiting = session.clone();
    let receives = thread::spawn(move || waiting.receive().unwrap_err().to_string());
    let takes = thread::spawn(move || match message.next() {
        Err(SliceError::Receive(error)) => error.to_string(),
        other => panic!("{other:?}"),
    });
    let said = ControlResponse::Error { code: ErrorCode::BadRequest, message: "enough".into() };
    daemon.control.write_all(&encode_frame(&said).unwrap()).unwrap();
    for thread in [receives, takes] {
        assert!(thread.join().unwrap().contains("enough"));
    }
}

#[test]
fn a_session_whose_bell_is_closed_hears_why_on_its_control_connection() {
    let (mut daemon, session, _message) = halfway();
    let asleep = session.stats().sleeps;
    let waiting = session.clone();
    let receives = thread::spawn(move || waiting.receive().unwrap_err());
    slept(&session, asleep + 1);
    // As the daemon ends a session: first the bell, and then the reason.
    daemon.doorbell = Doorbell::pair().unwrap().0;
    slept(&session, asleep + 2);
    let said = ControlResponse::Error { code: ErrorCode::BadRequest, message: "enough".into() };
    daemon.control.write_all(&encode_frame(&said).unwrap()).unwrap();
    let error = receives.join().unwrap();
    assert!(matches!(error, ReceiveError::Ended { code: ErrorCode::BadRequest, .. }), "{error}");
}

/// Messages through four threads that wait, with a daemon that has room for four at a time.
#[test]
fn threads_share_all_messages_and_lose_none() {
    const COUNT: u64 = 20_000;
    const THREADS: usize = 4;
    let (mut daemon, session) = shared_pair();
    let (sums, summed) = mpsc::channel();
    for number in 0..THREADS {
        let (session, sums) = (session.clone(), sums.clone());
        thread::spawn(move || {
            let (mut count, mut sum, mut held) = (0, 0, None);
            while let Ok(mut message) = session.receive() {
                let bytes = message.bytes();
                let slice = message.next().unwrap().unwrap();
                assert_eq!(slice.len() as u64, bytes);
                (count, sum) = (count + 1, sum + bytes);
                // One is kept now and then while others come, and they end in another order. Who keeps none
                // takes what is left of the room for messages.
                if number == 0 && count % 3 == 0 {
                    held = Some((slice, message));
                } else {
                    drop((message, slice));
                }
                if count % 5 == 0 {
                    held = None;
                }
            }
            drop(held);
            sums.send((count, sum)).unwrap();
        });
    }
    drop(sums);
    // One slot for each message, which has a generation of its own each time.
    let mut free: Vec<u32> = (0..MESSAGES).collect();
    let (mut generations, mut delivered, mut ended, mut expected) = ([7u16; MESSAGES as usize], 0, 0, 0);
    // The last message may be kept until the session has ended.
    while delivered < COUNT || ended + 1 < COUNT || session.stats().slices < COUNT {
        while let Some(index) = (delivered < COUNT).then(|| free.pop()).flatten() {
            let bytes = u32::try_from(1 + delivered % 100).unwrap();
            let generation = &mut generations[index as usize];
            *generation = generation.wrapping_add(1);
            daemon.deliver_as(small(index, index, bytes), *generation, b"");
            (delivered, expected) = (delivered + 1, expected + u64::from(bytes));
            ring(&mut daemon);
        }
        let releases = daemon.releases();
        if releases.is_empty() {
            thread::yield_now();
        }
        for release in releases {
            if matches!(release.kind, release_kind::FINISH | release_kind::SLICES_AND_FINISH) {
                ended += 1;
                // A release of slices names the slot, which has the message's number.
                free.push(release.index);
                assert_eq!(release.code, 0);
            } else {
                assert_eq!(release.generation, slot_generation(release.index));
            }
        }
    }
    drop(daemon);
    let (mut count, mut sum) = (0, 0);
    for (counted, bytes) in summed {
        (count, sum) = (count + counted, sum + bytes);
    }
    assert_eq!((count, sum), (COUNT, expected));
}

//! Tests of an application whose threads share one session, as a storage server's do.

use crate::rig::{Rig, random_for};
use crate::traffic::{Traffic, fits};
use jet_client::receive::{OwnedMessage, ReceiveError, RegisterOptions, SharedSession, SliceError};
use jet_client::send::{AckStatus, RetryPolicy, Sender};
use jet_test_support::device::fabrics;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Redelivered marks of each message, one for each time that a worker finished it.
type Finished = Mutex<HashMap<u64, Vec<bool>>>;

/// Takes a whole message and checks its bytes. `false`: the daemon is gone, and it comes again.
fn take(message: &mut OwnedMessage) -> bool {
    let mut bytes = 0;
    loop {
        match message.next() {
            Ok(Some(slice)) => {
                assert!(fits(message.tag(), slice.offset(), &slice));
                bytes += slice.len() as u64;
            }
            Ok(None) => {
                assert_eq!(bytes, message.bytes());
                return true;
            }
            Err(SliceError::Withdrawn { corrupt: false } | SliceError::Receive(ReceiveError::DaemonGone)) => {
                return false;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Works on messages until it is to stop.
fn work(session: &SharedSession, finished: &Finished, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut message = match session.receive_timeout(Duration::from_millis(20)) {
            Ok(message) => message,
            Err(ReceiveError::NotYet) => continue,
            Err(error) => panic!("{error}"),
        };
        if take(&mut message) {
            let (sequence, mark) = (message.sequence(), message.redelivered());
            // Before the end, which the sender hears.
            finished.lock().unwrap().entry(sequence).or_default().push(mark);
            message.consume();
        }
    }
}

#[test]
fn workers_of_one_session_go_on_with_the_next_daemon_and_lose_nothing() {
    const WORKERS: usize = 4;
    const KILLS: usize = 3;
    const MESSAGES: usize = 300;
    let mut random = random_for("shared", 60);
    for fabric in 0..fabrics().len() {
        let mut rig = Rig::start(&[]);
        let address = rig.addresses()[fabric].clone();
        let options =
            RegisterOptions::new("store").control_socket(rig.control()).reconnect_for(Duration::MAX);
        let session = SharedSession::register(&options).expect("a daemon");
        let (finished, stop) = (Finished::default(), AtomicBool::new(false));
        let options = Rig::sender_options(&address, "store").retry(RetryPolicy::all_for(Duration::MAX));
        let mut traffic = Traffic::over(Sender::connect(&options).expect("let in"), random.fork());
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| work(&session, &finished, &stop));
            }
            let (mut ended, mut sent, mut kills) = (HashSet::new(), 0, 0);
            while ended.len() < MESSAGES {
                while sent < MESSAGES && sent - ended.len() < 32 {
                    let is_large = random.below(4) == 0;
                    let bytes =
                        if is_large { 4097 + random.size_below(1 << 20) } else { random.size_below(4097) };
                    traffic.send(bytes).expect("taken");
                    sent += 1;
                }
                if ended.len() >= (kills + 1) * MESSAGES / (KILLS + 1) {
                    kills += 1;
                    rig.kill_daemon();
                    rig.start_again();
                }
                let end = traffic.end();
                assert_eq!(end.status, AckStatus::Consumed);
                assert!(ended.insert(end.ticket.0), "message {} ended twice", end.ticket.0);
                assert!(finished.lock().unwrap().contains_key(&end.ticket.0), "consumed, but not finished");
            }
            stop.store(true, Ordering::Relaxed);
        });
        rig.wait_whole();
        let finished = finished.into_inner().unwrap();
        assert_eq!(finished.len(), MESSAGES);
        for (sequence, marks) in &finished {
            assert!(marks[1..].iter().all(|mark| *mark), "message {sequence} came again unmarked: {marks:?}");
        }
        assert_eq!(rig.status().rows.sessions.len(), 1, "one session, and not one for each return");
    }
}

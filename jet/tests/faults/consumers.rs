//! Tests of several applications that share a name: its consumers.

use crate::children::Role;
use crate::rig::{Actor, Rig, random_for};
use crate::traffic::{Traffic, fits};
use jet_client::receive::{Message, ReceiveError, RegisterOptions, Session};
use jet_client::send::AckStatus;
use jet_control::status::Status;
use jet_test_support::device::fabrics;
use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const APP: &str = "store";

/// What the consumers of a name have of each sender.
#[derive(Debug, Default)]
struct Had {
    /// The consumer that has messages of the sender now, and how many.
    now: Option<(usize, usize)>,
    /// Number of the sender's last small message.
    last_small: u64,
}

type AllHad = Mutex<HashMap<u64, Had>>;

/// Notes that a consumer has a message from now on. It must be the only one that has any of the sender.
fn begin(all: &AllHad, consumer: usize, message: &Message<'_>) {
    let mut all = all.lock().unwrap();
    let had = all.entry(message.sender()).or_default();
    match &mut had.now {
        Some((other, count)) if *other == consumer => *count += 1,
        now => assert_eq!(now.replace((consumer, 1)), None, "message {} at {consumer}", message.sequence()),
    }
    if message.bytes() <= jet_wire::SLAB_BYTES as u64 {
        let last = std::mem::replace(&mut had.last_small, message.sequence());
        assert!(message.sequence() > last, "{} came after {last}", message.sequence());
    }
}

/// Notes that a consumer is about to finish a message.
fn end(all: &AllHad, message: &Message<'_>) {
    let mut all = all.lock().unwrap();
    let now = &mut all.get_mut(&message.sender()).expect("it has begun").now;
    let (consumer, count) = now.expect("somebody has it");
    *now = (count > 1).then_some((consumer, count - 1));
}

/// Takes messages as one of several consumers, three at a time, until it is to stop. Returns how many.
fn consume(session: &Session, consumer: usize, all: &AllHad, stop: &AtomicBool) -> u64 {
    const HELD: usize = 3;
    let (mut held, mut count) = (Vec::new(), 0);
    loop {
        let next = session.receive_timeout(Duration::from_millis(5));
        let is_idle = matches!(next, Err(ReceiveError::NotYet));
        match next {
            Ok(message) => {
                begin(all, consumer, &message);
                held.push(message);
            }
            Err(ReceiveError::NotYet) if stop.load(Ordering::Relaxed) && held.is_empty() => return count,
            Err(ReceiveError::NotYet) => {}
            Err(error) => panic!("{error}"),
        }
        while held.len() > HELD || (is_idle && !held.is_empty()) {
            let mut message: Message<'_> = held.remove(0);
            while let Some(slice) = message.next().expect("it comes whole") {
                assert!(fits(message.tag(), slice.offset(), &slice));
            }
            end(all, &message);
            message.consume();
            count += 1;
        }
    }
}

/// Keeps so many messages of each sender under way until each has sent so many.
fn drive(traffics: &mut [Traffic], messages: u64, depth: u64, is_large: &mut dyn FnMut() -> bool) {
    let mut ended = vec![0; traffics.len()];
    let mut sent = vec![0; traffics.len()];
    while ended.iter().any(|&ended| ended < messages) {
        for (at, traffic) in traffics.iter_mut().enumerate() {
            while sent[at] < messages && sent[at] - ended[at] < depth {
                traffic.send(if is_large() { 40_000 } else { 200 }).expect("taken");
                sent[at] += 1;
            }
            if ended[at] < sent[at] {
                assert_eq!(traffic.end().status, AckStatus::Consumed);
                ended[at] += 1;
            }
        }
    }
}

#[test]
fn one_consumer_at_a_time_has_a_senders_messages_though_more_consumers_come() {
    const SENDERS: u64 = 6;
    let mut random = random_for("consumers", 70);
    for fabric in 0..fabrics().len() {
        let rig = Rig::start(&[]);
        let address = rig.addresses()[fabric].clone();
        let (all, stop) = (AllHad::default(), AtomicBool::new(false));
        let mut traffics: Vec<_> = (0..SENDERS).map(|_| Traffic::new(&address, APP, random.fork())).collect();
        let counts: Vec<u64> = std::thread::scope(|scope| {
            let mut consumers = Vec::new();
            for number in 0..4 {
                let (all, stop) = (&all, &stop);
                let options = RegisterOptions::new(APP).control_socket(rig.control()).shares_name(true);
                let session = Session::register(&options).expect("a shared name");
                consumers.push(scope.spawn(move || consume(&session, number, all, stop)));
                // The senders never stop: each always has messages under way.
                drive(&mut traffics, 60, 8, &mut || random.below(5) == 0);
            }
            let even = |status: &Status| {
                status.rows.sessions.iter().all(|session| (1..=2).contains(&session.senders.unwrap_or(0)))
            };
            rig.wait_status("the senders to be spread", even);
            drive(&mut traffics, 30, 8, &mut || random.below(5) == 0);
            stop.store(true, Ordering::Relaxed);
            consumers.into_iter().map(|consumer| consumer.join().expect("it holds")).collect()
        });
        assert_eq!(counts.iter().sum::<u64>(), SENDERS * (4 * 60 + 30));
        assert!(counts.iter().all(|&count| count > 0), "each has some: {counts:?}");
        rig.wait_whole();
    }
}

/// Sends a message by each sender, and again what the consumer that died had. Returns the identities of the
/// senders whose messages were sent again.
fn round(traffics: &mut [Traffic], again_max: usize) -> HashSet<usize> {
    let mut again = HashSet::new();
    for (at, traffic) in traffics.iter_mut().enumerate() {
        for _ in 0..=again_max {
            traffic.send(3000).expect("taken");
            match traffic.end().status {
                AckStatus::Consumed => break,
                AckStatus::AppGone => assert!(again.insert(at), "another one has it"),
                other => panic!("{other:?}"),
            }
        }
    }
    again
}

#[test]
fn the_others_take_over_from_a_consumer_that_is_killed_and_share_with_the_next_one() {
    const SENDERS: usize = 8;
    let mut random = random_for("killed consumer", 71);
    let rig = Rig::start(&["session.quarantine_ms=20"]);
    let address = rig.addresses()[0].clone();
    let mut consumers: Vec<Actor> = (0..4).map(|_| rig.application(Role::Sharer, APP)).collect();
    let mut traffics: Vec<_> = (0..SENDERS).map(|_| Traffic::new(&address, APP, random.fork())).collect();
    assert!(round(&mut traffics, 0).is_empty());
    for _ in 0..4 {
        consumers.remove(0).process.kill();
        // Whose consumer died hears so of one message at most; nobody else notices.
        let again = round(&mut traffics, 1);
        assert!(again.len() <= SENDERS / 4, "{again:?}");
        let left = rig.wait_status("the others", |status| status.rows.sessions.len() == consumers.len());
        let senders = || left.rows.sessions.iter().filter_map(|session| session.senders);
        assert_eq!(senders().sum::<u32>(), 8);
        consumers.push(rig.application(Role::Sharer, APP));
        rig.wait_status("the next one to have its share", |status| {
            let sessions = &status.rows.sessions;
            sessions.len() == 4 && sessions.iter().all(|session| session.senders == Some(2))
        });
        assert!(round(&mut traffics, 0).is_empty(), "all are served");
    }
    // None that came last died, and each was given something.
    for consumer in &consumers {
        assert!(consumer.reported("finished") > 0);
        assert_eq!(consumer.reported("wrong"), 0);
    }
    rig.wait_whole();
}

#[test]
fn a_name_that_is_not_shared_is_refused_in_words() {
    let rig = Rig::start(&[]);
    let options = RegisterOptions::new(APP).control_socket(rig.control());
    let _first = Session::register(&options.clone().shares_name(true)).expect("a free name");
    let refused = Session::register(&options).expect_err("it is another's").to_string();
    assert!(refused.contains("let all that have the name share it"), "{refused}");
    let _second = Session::register(&options.shares_name(true)).expect("a shared name");
    assert!(rig.status().rows.sessions.iter().all(|session| session.shares_name));
}

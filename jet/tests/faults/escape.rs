//! Tests of the escape from applications that hold much of the pool (Jet §4.3): stopped ones, dead ones, and
//! ones that pin everything. Only the slow application waits, and it loses nothing.

use crate::children::Role;
use crate::rig::{Rig, nic_threads, random_for};
use crate::traffic::Traffic;
use jet_client::receive::{ReceiveError, RegisterOptions, Session, SliceError};
use jet_client::send::{AckStatus, Sender};
use jet_control::status::Status;
use jet_test_support::device::fabrics;
use jet_test_support::random::Random;
use jet_test_support::waiting::until;
use rustix::process::Signal;

const FRAGMENT: usize = 256 << 10;

/// Connects a sender with room for many messages in flight.
fn crowd(rig: &Rig, which: usize, app: &str, random: Random) -> Traffic {
    let options =
        Rig::sender_options(&rig.addresses()[which], app).in_flight_max(4096).region_bytes(64 << 20);
    Traffic::over(Sender::connect(&options).expect("let in"), random)
}

/// Sends `small` messages of a slab each, and then `large` messages of a fragment each.
fn pile_up(traffic: &mut Traffic, large: usize, small: usize) {
    for _ in 0..small {
        traffic.send(4096).expect("taken");
    }
    for _ in 0..large {
        traffic.send(FRAGMENT).expect("taken");
    }
}

/// Waits until `so` holds for the daemon's status, while the sender gets its turns. No message may end
/// meanwhile.
#[track_caller]
fn until_escaped(rig: &Rig, traffic: &mut Traffic, what: &str, so: impl Fn(&Status) -> bool) {
    until(what, || {
        traffic.sender.flush();
        assert!(traffic.sender.poll().is_none(), "nobody reads it");
        so(&rig.status()).then_some(())
    });
}

/// Makes `count` rounds of a good sender, each of which must end.
#[track_caller]
fn rounds(traffic: &mut Traffic, count: usize) {
    for _ in 0..count {
        traffic.round();
    }
}

/// Waits until the pool is whole and no escape memory is in use. Escape memory that is posted to the SRQ
/// leaves it only when it is used, so some messages are sent meanwhile.
#[track_caller]
fn wait_home(rig: &Rig, traffic: &mut Traffic) {
    rig.wait_whole();
    until("escape memory to be in no use", || {
        rounds(traffic, 4);
        (rig.wait_whole().escape.memory.used == 0).then_some(())
    });
}

#[test]
fn a_stopped_applications_backlog_moves_to_memory_and_comes_to_it_whole() {
    let mut random = random_for("stopped backlog", 60);
    for &thread in nic_threads() {
        // The pool is set to be under pressure early, because one application alone leaves enough of it free.
        let rig = Rig::start(&[thread, "escape.safe_permille=900"]);
        // With more small messages, the application would have its part of the SRQ share before the large
        // ones arrive that fill the pool.
        let small = usize::try_from(rig.srq_share_slabs() / 4).expect("few").min(200);
        let good = rig.application(Role::Consumer, "store");
        let stopped = rig.application(Role::Consumer, "stopped");
        stopped.process.pause();
        let fabrics = fabrics().len();
        for which in 0..fabrics {
            let mut waiting = crowd(&rig, which, "stopped", random.fork());
            let copied = rig.status().escape.copied.total;
            pile_up(&mut waiting, 60, small);
            until_escaped(&rig, &mut waiting, "its backlog to be copied", |status| {
                status.escape.copied.total >= copied + 1000
            });
            let mut traffic = Traffic::new(&rig.addresses()[which], "store", random.fork());
            rounds(&mut traffic, 20);
            let status = rig.status();
            let session = &status.rows.sessions[1];
            assert!(session.held_slabs >= session.memory_slabs, "{status:#?}");
            assert!(session.copied_slabs > 0, "{status:#?}");
            stopped.process.signal(Signal::CONT);
            assert_eq!(waiting.ends(60 + small), vec![AckStatus::Consumed; 60 + small]);
            wait_home(&rig, &mut traffic);
            if which + 1 < fabrics {
                stopped.process.pause();
            }
        }
        assert_eq!((good.reported("wrong"), stopped.reported("wrong")), (0, 0));
    }
}

#[test]
fn one_that_pins_everything_and_sleeps_is_replaced_and_the_others_go_on() {
    let mut random = random_for("pinned", 61);
    let rig = Rig::start(&["escape.safe_permille=900"]);
    let good = rig.application(Role::Consumer, "store");
    let mut keeper = rig.application(Role::Keeper, "keeper");
    let mut waiting = crowd(&rig, 0, "keeper", random.fork());
    let mut traffic = Traffic::new(&rig.addresses()[0], "store", random.fork());
    pile_up(&mut waiting, 62, 0);
    // Both conditions last, since the keeper gives nothing back.
    until_escaped(&rig, &mut waiting, "its slabs to be replaced", |status| status.escape.replaced.now >= 193);
    until_escaped(&rig, &mut waiting, "it to hold more than is replaced", |status| {
        status.rows.sessions.get(1).is_some_and(|session| session.held_slabs >= 257)
    });
    rounds(&mut traffic, 20);
    let status = rig.status();
    assert!(status.escape.replaced.now <= 256, "MEM_ESC: {status:#?}");
    keeper.process.kill();
    wait_home(&rig, &mut traffic);
    let ends = waiting.ends(62);
    assert!(ends.iter().all(|end| matches!(end, AckStatus::AppGone | AckStatus::NoApp)), "{ends:?}");
    assert_eq!(good.reported("wrong"), 0);
}

#[test]
fn one_that_dies_in_the_middle_of_its_copies_takes_nothing_along() {
    let mut random = random_for("dies copied", 62);
    // The pool is under pressure early, so that everything that is held is copied.
    let rig = Rig::start(&["session.quarantine_ms=50", "escape.safe_permille=900"]);
    let good = rig.application(Role::Consumer, "store");
    let mut traffic = Traffic::new(&rig.addresses()[0], "store", random.fork());
    for round in 0..12u64 {
        let mut dying = rig.application(Role::Consumer, "dying");
        dying.process.pause();
        let mut waiting = crowd(&rig, 0, "dying", random.fork());
        let copied = rig.status().escape.copied.total;
        pile_up(&mut waiting, 60, 0);
        until_escaped(&rig, &mut waiting, "copies to begin", |status| {
            status.escape.copied.total > copied + round * 64
        });
        dying.process.kill();
        // Messages that arrived only afterwards found no application.
        let ends = waiting.ends(60);
        assert!(ends.iter().all(|end| matches!(end, AckStatus::AppGone | AckStatus::NoApp)), "{ends:?}");
        rounds(&mut traffic, 2);
        rig.wait_status("its name to be free", |status| status.session_count == 1);
    }
    wait_home(&rig, &mut traffic);
    assert_eq!(good.reported("wrong"), 0);
}

#[test]
fn without_escape_memory_congestion_is_marked_and_the_others_go_on() {
    let mut random = random_for("no memory", 63);
    // The escape memory is more than the process may map.
    let rig = Rig::start_within(
        4 << 30,
        &["escape.memory_bytes=4294967296", "escape.safe_permille=900", "escape.danger_permille=899"],
    );
    let status = rig.wait_status("the daemon to know", |status| status.escape.memory.error.is_some());
    let error = status.escape.memory.error.expect("it says why");
    assert!(error.contains("escape.memory_bytes"), "{error}");
    let good = rig.application(Role::Consumer, "store");
    let stopped = rig.application(Role::Consumer, "stopped");
    stopped.process.pause();
    let mut waiting = crowd(&rig, 0, "stopped", random.fork());
    let mut traffic = Traffic::new(&rig.addresses()[0], "store", random.fork());
    pile_up(&mut waiting, 62, 0);
    // The stopped application's sender needs its turns: without them the pool never becomes scarce.
    until_escaped(&rig, &mut waiting, "congestion to be marked", |status| status.escape.marks >= 1);
    until_escaped(&rig, &mut waiting, "congestion to be signalled", |status| status.escape.signals >= 1);
    rounds(&mut traffic, 20);
    until("its sender to hear of it", || {
        waiting.sender.flush();
        (waiting.sender.stats().protocol.window.cuts > 0).then_some(())
    });
    stopped.process.signal(Signal::CONT);
    assert_eq!(waiting.ends(62), [AckStatus::Consumed; 62]);
    rig.wait_whole();
    assert_eq!((good.reported("wrong"), stopped.reported("wrong")), (0, 0));
}

#[test]
fn memory_is_given_instead_of_waiting_to_those_who_ask_for_it() {
    let mut random = random_for("instead", 64);
    // Nothing is copied, so that the pool stays as scarce as the keeper makes it.
    let rig = Rig::start(&["escape.safe_permille=900", "escape.workers=0"]);
    let keeper = rig.application(Role::Keeper, "keeper");
    let mut waiting = crowd(&rig, 0, "keeper", random.fork());
    pile_up(&mut waiting, 62, 0);
    // Once no more slabs can be replaced, only the keeper could free some, and it gives nothing back.
    until_escaped(&rig, &mut waiting, "the keeper to fill the pool", |status| {
        status.escape.replaced.now >= 193
    });
    let options = RegisterOptions::new("patient")
        .control_socket(rig.control())
        .class(2)
        .memory_instead_of_waiting(true);
    let session = Session::register(&options).expect("the daemon has memory");
    let mut traffic = Traffic::new(&rig.addresses()[0], "patient", random.fork());
    until("memory to be given", || {
        waiting.sender.flush();
        traffic.send(FRAGMENT).expect("taken");
        take_one(&session, &mut traffic);
        (rig.status().escape.spills.total > 0).then_some(())
    });
    drop((session, keeper));
}

/// Returns what a look found; `None` where it is not there yet.
fn found<T, E: std::fmt::Debug>(looked: Result<T, E>, is_not_yet: impl Fn(&E) -> bool) -> Option<T> {
    match looked {
        Err(error) if is_not_yet(&error) => None,
        looked => Some(looked.expect("the session lasts")),
    }
}

/// Takes a message that is in flight, checks its bytes, and waits until its sender has the end.
fn take_one(session: &Session, traffic: &mut Traffic) {
    let mut message = until("a message", || {
        traffic.sender.flush();
        found(session.try_receive(), ReceiveError::is_not_yet)
    });
    let (tag, mut taken) = (message.tag(), 0);
    while taken < message.bytes() {
        let run = until("the next slice", || {
            traffic.sender.flush();
            found(message.try_next(), SliceError::is_not_yet).map(|run| run.expect("not all of it came"))
        });
        assert!(crate::traffic::fits(tag, run.offset(), &run));
        taken += run.len() as u64;
    }
    message.consume();
    session.flush();
    assert_eq!(traffic.end().status, AckStatus::Consumed);
}

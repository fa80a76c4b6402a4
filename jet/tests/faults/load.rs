//! Tests of many senders, and of applications that do not take what is sent to them: no other application
//! waits for those.

use crate::children::Role;
use crate::rig::{NIC_THREAD, Rig, random_for};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, SendConnectError, Sender};
use jet_test_support::waiting::until;
use jet_wire::message::hello::Refusal;
use rustix::process::Signal;
use std::time::Duration;

/// Sends so many small and large messages to an application that does not take them.
fn pile_up(traffic: &mut Traffic, small: usize, large: usize) {
    for _ in 0..small {
        traffic.send(100).expect("taken");
    }
    for _ in 0..large {
        traffic.send(2 << 20).expect("taken");
    }
}

/// Waits until `each` messages of every sender have ended, while every sender gets its turns.
fn take_ends(senders: &mut [Traffic], each: usize) {
    let mut left: Vec<usize> = vec![each; senders.len()];
    until("every message to end", || {
        for (left, traffic) in left.iter_mut().zip(senders.iter_mut()) {
            while let Some(end) = traffic.sender.poll() {
                assert_eq!(end.status, AckStatus::Consumed);
                *left -= 1;
            }
        }
        left.iter().all(|&left| left == 0).then_some(())
    });
}

#[test]
fn an_application_that_stops_holds_up_its_own_senders_only() {
    const SMALL: usize = 2000;
    const LARGE: usize = 12;
    let mut random = random_for("stopped", 40);
    // Either the application's slots run out first, or its part of the SRQ share.
    for slots in ["session.slots=128", "session.slots=4096"] {
        let rig = Rig::start(&[slots]);
        // One application gets three quarters of the SRQ share at most. Its messages may come to a little
        // less.
        let most = rig.srq_share_slabs() / 3 * 2;
        let good = rig.application(Role::Consumer, "store");
        let addresses = rig.addresses();
        let mut traffic = Traffic::to_each(&addresses, "store", &mut random);
        let stopped = rig.application(Role::Consumer, "stopped");
        stopped.process.pause();
        let mut waiting: Vec<_> = addresses
            .iter()
            .map(|address| {
                let options = Rig::sender_options(address, "stopped").in_flight_max(4096);
                Traffic::over(Sender::connect(&options).expect("let in"), random.fork())
            })
            .collect();
        waiting.iter_mut().for_each(|sender| pile_up(sender, SMALL, LARGE));
        rig.wait_status_while(
            || waiting.iter_mut().for_each(|sender| sender.sender.flush()),
            "it to have all that it can get",
            |status| {
                let session = &status.rows.sessions[1];
                session.suspended || session.held_slabs > most
            },
        );
        for _ in 0..5 {
            traffic.iter_mut().for_each(Traffic::round);
        }
        stopped.process.signal(Signal::CONT);
        take_ends(&mut waiting, SMALL + LARGE);
        rig.wait_whole();
        assert_eq!((good.reported("wrong"), stopped.reported("wrong")), (0, 0));
    }
}

#[test]
fn more_than_the_pool_holds_goes_through_one_application_that_takes_one_after_the_other() {
    let mut random = random_for("one after the other", 41);
    let rig = Rig::start(&[]);
    let good = rig.application(Role::Consumer, "store");
    let mut senders = Traffic::to_each(&rig.addresses(), "store", &mut random);
    senders.iter_mut().for_each(|sender| pile_up(sender, 20, 30));
    take_ends(&mut senders, 50);
    rig.wait_whole();
    assert_eq!(good.reported("wrong"), 0);
}

#[test]
fn two_hundred_senders_come_and_go() {
    const THREADS: usize = 4;
    const SENDERS: usize = 50;
    let mut random = random_for("come and go", 42);
    let rig = Rig::start(&["session.quarantine_ms=20", NIC_THREAD]);
    let apps = ["store", "other"].map(|app| rig.application(Role::Consumer, app));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let mut random = random.fork();
            let addresses = rig.addresses();
            scope.spawn(move || {
                let mut open: Vec<(Traffic, usize)> = Vec::new();
                for number in 0..SENDERS {
                    let address = &addresses[random.size_below(2)];
                    let app = ["store", "other", "nobody"][random.size_below(3)];
                    // A sender that has left keeps its place until the daemon notices. Small devices have few
                    // places beyond those that are open here.
                    let sender = until("a place for another sender", || {
                        let options = Rig::sender_options(address, app).in_flight_max(32);
                        match Sender::connect(&options) {
                            Err(SendConnectError::Refused { refusal: Refusal::TooManyPeers, .. }) => None,
                            connected => Some(connected.expect("let in")),
                        }
                    });
                    open.push((Traffic::over(sender, random.fork()), 0));
                    for _ in 0..random.below(8) {
                        let which = random.size_below(open.len());
                        let (traffic, sent) = &mut open[which];
                        let most = [4097, 400_000][random.size_below(2)];
                        let bytes = random.size_below(most);
                        *sent += usize::from(traffic.send(bytes).is_ok());
                        traffic.sender.poll().inspect(|_| *sent -= 1);
                    }
                    // Some senders leave with all their ends, some in the middle, and some all at once.
                    while open.len() > 12 || (number == SENDERS - 1 && !open.is_empty()) {
                        let which = random.size_below(open.len());
                        let (mut traffic, sent) = open.swap_remove(which);
                        if random.below(2) == 0 {
                            for status in traffic.ends(sent) {
                                assert!(
                                    matches!(status, AckStatus::Consumed | AckStatus::NoApp),
                                    "{status:?}"
                                );
                            }
                        }
                    }
                }
            });
        }
    });
    rig.wait_status("nobody to be left", |status| status.peer_count == 0);
    let status = rig.wait_whole();
    assert_eq!((status.faults.peers, status.faults.sessions), (0, 0));
    for app in apps {
        assert_eq!((app.reported("registered"), app.reported("wrong")), (1, 0));
    }
}

#[test]
fn the_longest_turn_of_a_reactor_that_stood_still_is_in_the_status() {
    const STILL: Duration = Duration::from_millis(50);
    const MESSAGES: usize = 8;
    let mut rig = Rig::start_on_software(&[]);
    let _store = rig.application(Role::Consumer, "store");
    let mut traffic = Traffic::new(&rig.addresses()[0], "store", random_for("stood still", 43));
    until("a stop in the middle of a turn", || {
        // A reactor that copies is stopped in the middle of a turn. One that has nothing to do may be giving
        // way to others each time.
        for _ in 0..MESSAGES {
            traffic.send(2 << 20).expect("taken");
        }
        traffic.end();
        rig.daemon().pause();
        std::thread::sleep(STILL);
        rig.daemon().signal(Signal::CONT);
        let longest_ns = rig.status().longest_turn_ns.expect("this daemon measures it");
        traffic.ends(MESSAGES - 1);
        (u128::from(longest_ns) >= STILL.as_nanos()).then_some(())
    });
}

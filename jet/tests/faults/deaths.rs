//! Tests of senders and applications that die, stop, or come and go.

use crate::children::Role;
use crate::hand_session::HandSession;
use crate::rig::{Rig, nic_threads, random_for};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, RetryPolicy, Sender};
use jet_test_support::device::fabrics;
use jet_test_support::waiting::until;
use rustix::process::Signal;
use std::time::Duration;

#[test]
fn a_sender_killed_while_its_reads_run_leaves_nothing_behind() {
    const TIMES: u32 = 20;
    let mut random = random_for("killed senders", 30);
    for &thread in nic_threads() {
        let rig = Rig::start(&[thread]);
        let good = rig.application(Role::Consumer, "store");
        let mut withdrawn = 0;
        for address in rig.fabrics() {
            let mut traffic = Traffic::new(&address, "store", random.fork());
            let halting = rig.application(Role::Consumer, "halting");
            for time in 0..TIMES {
                let app = ["store", "halting"][time as usize % 2];
                let large = rig.status().messages.large;
                let stopped = app == "halting";
                if stopped {
                    // The application cannot hold the whole message, so it is certain to be in the middle.
                    halting.process.pause();
                }
                let role = if stopped { Role::LargeSender } else { Role::Sender };
                let mut sender = rig.child(role, Some(&address), app);
                sender.wait_reported("connected", 1);
                rig.wait_status("READs", |status| {
                    status.messages.large > large
                        && (!stopped
                            || status.rows.sessions.get(1).is_some_and(|session| session.held_slabs > 0)
                                && status.reads.running + status.reads.waiting > 0)
                });
                sender.process.kill();
                if stopped {
                    rig.wait_status("it to be gone", |status| status.peer_count == 1);
                    halting.process.signal(Signal::CONT);
                }
                rig.wait_status("it to be gone", |status| status.peer_count == 1);
                rig.wait_whole();
            }
            traffic.round();
            // Each message that had begun to arrive has an end at the application, too.
            until("every message to be taken back or finished", || {
                let begun = halting.reported("begun");
                (begun > 0 && begun == halting.reported("withdrawn") + halting.reported("finished"))
                    .then_some(())
            });
            withdrawn += halting.reported("withdrawn");
            assert_eq!(halting.reported("wrong"), 0, "{:?}", halting.report());
            drop(traffic);
            rig.wait_status("nobody", |status| status.peer_count == 0);
        }
        // Half of the senders had a message in the middle, and half of those are certain.
        let least = fabrics().len() * TIMES as usize / 4;
        assert!(withdrawn >= least, "{withdrawn} messages were taken back, not {least}");
        assert_eq!((good.reported("registered"), good.reported("wrong")), (1, 0));
    }
}

#[test]
fn an_application_killed_with_slabs_in_its_hands_gives_them_back_after_the_quarantine() {
    let mut random = random_for("killed applications", 31);
    // One quarantine ends while the test runs, and the other does not.
    for quarantine_ms in [100, 3_600_000] {
        let rig = Rig::start(&[&format!("session.quarantine_ms={quarantine_ms}")]);
        let _good = rig.application(Role::Consumer, "store");
        let mut keeper = rig.application(Role::Keeper, "keeper");
        let addresses = rig.addresses();
        let mut traffic = Traffic::to_each(&addresses, "store", &mut random);
        let mut lost: Vec<_> = addresses
            .iter()
            .map(|address| {
                let options = Rig::sender_options(address, "keeper").retry(RetryPolicy::NEVER);
                Traffic::over(Sender::connect(&options).expect("let in"), random.fork())
            })
            .collect();
        for sender in &mut lost {
            for bytes in [0, 4096, 5000, 700_000] {
                sender.send(bytes).unwrap();
            }
        }
        until("the keeper to have something of all", || {
            lost.iter_mut().for_each(|sender| sender.sender.flush());
            (keeper.reported("begun") == 8).then_some(())
        });
        let held = rig.status().pool.slabs;
        keeper.process.kill();
        for sender in &mut lost {
            assert_eq!(sender.ends(4), [AckStatus::AppGone; 4]);
        }
        // The dead application's name is free at once.
        drop(HandSession::register(&rig.control(), "keeper"));
        traffic.iter_mut().for_each(Traffic::round);
        if quarantine_ms == 100 {
            assert_eq!(rig.wait_whole().pool.slabs, held);
        } else {
            let status = rig.wait_status("all but the quarantined to be back", |status| {
                let pool = &status.pool;
                pool.free + pool.posted + pool.quarantined == pool.slabs
            });
            assert!(status.pool.quarantined >= 4, "{status:#?}");
            assert!(!status.pool.whole);
        }
    }
}

#[test]
fn what_a_dead_application_did_not_finish_comes_to_the_next_and_is_marked() {
    let mut random = random_for("next application", 32);
    let rig = Rig::start(&["session.quarantine_ms=20"]);
    for address in rig.fabrics() {
        let mut keeper = rig.application(Role::Keeper, "relay");
        let retry = RetryPolicy::all_for(Duration::MAX);
        let options = Rig::sender_options(&address, "relay").retry(retry);
        let mut sender = Traffic::over(Sender::connect(&options).expect("let in"), random.fork());
        for bytes in [10, 4096, 300_000, 2_000_000] {
            sender.send(bytes).unwrap();
        }
        until("the keeper to have something of all", || {
            sender.sender.flush();
            (keeper.reported("begun") == 4).then_some(())
        });
        keeper.process.kill();
        let next = rig.application(Role::Consumer, "relay");
        assert_eq!(sender.ends(4), [AckStatus::Consumed; 4]);
        let again =
            next.report().iter().filter(|line| line.starts_with("begun ") && line.ends_with(" true")).count();
        assert_eq!((again, next.reported("finished")), (4, 4), "{:?}", next.report());
        drop(next);
        rig.wait_whole();
    }
}

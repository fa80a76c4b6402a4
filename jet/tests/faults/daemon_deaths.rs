//! Tests of `jetd` that is killed and started again under load. Every message ends once, and none is reported
//! as consumed that was not. Messages that an application may have seen before are marked.

use crate::children::Role;
use crate::rig::{Actor, Rig, nic_threads, random_for};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, RetryPolicy, Sender};
use jet_test_support::device::fabrics;
use jet_test_support::waiting::WAIT_LIMIT;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Application's record of one sender's messages.
#[derive(Default)]
struct Ledger {
    lines: usize,
    finished: HashSet<u64>,
    /// Redelivered marks of each message, one for each time that the message began.
    begun: HashMap<u64, Vec<bool>>,
}

impl Ledger {
    fn read(&mut self, application: &Actor, sender: u64) {
        let lines = application.report();
        for line in &lines[self.lines..] {
            let words: Vec<_> = line.split(' ').collect();
            let [event, who, sequence, ..] = words[..] else { continue };
            if u64::from_str_radix(who, 16) != Ok(sender) {
                continue;
            }
            let sequence = sequence.parse().expect("a sequence");
            match event {
                "begun" => self.begun.entry(sequence).or_default().push(words[3] == "true"),
                "finished" => drop(self.finished.insert(sequence)),
                "withdrawn" => {}
                _ => panic!("{line}"),
            }
        }
        self.lines = lines.len();
    }
}

#[test]
fn a_daemon_killed_under_load_loses_nothing() {
    const KILLS: usize = 4;
    const MESSAGES: usize = 400;
    let mut random = random_for("daemon", 60);
    let fabrics =
        (0..fabrics().len()).flat_map(|fabric| nic_threads().iter().map(move |thread| (fabric, *thread)));
    for (fabric, thread) in fabrics {
        let mut rig = Rig::start(&[thread]);
        let application = rig.application(Role::Consumer, "store");
        let address = rig.addresses()[fabric].clone();
        // The application registers again only a moment after the daemon is there.
        let options = Rig::sender_options(&address, "store").retry(RetryPolicy::all_for(Duration::MAX));
        let mut traffic = Traffic::over(Sender::connect(&options).expect("let in"), random.fork());
        let sender = traffic.sender.id();
        let mut ledger = Ledger::default();
        let mut ended = HashSet::new();
        let (mut sent, mut kills) = (0, 0);
        let deadline = Instant::now() + WAIT_LIMIT;
        while ended.len() < MESSAGES {
            while sent < MESSAGES && sent - ended.len() < 32 {
                let bytes = if random.below(4) == 0 {
                    4097 + random.size_below(1 << 20)
                } else {
                    random.size_below(4097)
                };
                traffic.send(bytes).expect("taken");
                sent += 1;
            }
            if ended.len() >= (kills + 1) * MESSAGES / (KILLS + 1) {
                kills += 1;
                rig.kill_daemon();
                // Sometimes the sender has begun to look for the daemon, sometimes not.
                for _ in 0..random.below(3) {
                    traffic.sender.flush();
                }
                rig.start_again();
            }
            let end = traffic.end();
            assert_eq!(end.status, AckStatus::Consumed);
            assert!(ended.insert(end.ticket.0), "message {} ended twice", end.ticket.0);
            ledger.read(&application, sender);
            assert!(
                ledger.finished.contains(&end.ticket.0),
                "message {} is called consumed, and the application has not finished it",
                end.ticket.0
            );
            assert!(Instant::now() < deadline, "{} of {MESSAGES} ended", ended.len());
        }
        rig.wait_whole();
        ledger.read(&application, sender);
        assert_eq!(kills, KILLS);
        assert_eq!(application.reported("registered"), KILLS + 1, "{:?}", application.report());
        assert!(traffic.sender.poll().is_none(), "an end of nothing");
        let everything: HashSet<_> = (1..=MESSAGES as u64).collect();
        assert_eq!(ended, everything);
        assert_eq!(ledger.begun.keys().copied().collect::<HashSet<_>>(), everything);
        let mut again = 0;
        for (sequence, marks) in &ledger.begun {
            assert!(
                marks[1..].iter().all(|&marked| marked),
                "message {sequence} came again unmarked: {marks:?}"
            );
            again += marks.len() - 1;
        }
        let stats = traffic.sender.stats().protocol;
        assert!(stats.redelivered > 0, "{stats:?}");
        eprintln!("{address}: {again} seen more than once, {} sent again", stats.redelivered);
    }
}

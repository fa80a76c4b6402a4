//! "The others go on" in numbers: the pace of a good sender beside one that sits on the pool, over its pace alone.
//!
//! No bound on a time holds on every machine, and a round that ends at all may have taken a hundred times its time. What
//! can be compared are rounds of one process against one daemon, made in turns within seconds: whatever else the machine
//! does slows both kinds. The median of a turn forgets rounds that lost their core in the middle, and the median of the
//! turns forgets turns that did. Beside a dozen compilers on two cores the pace beside was 0.7 to 2 of the pace alone, with
//! single turns down to 0.4: the bound is far from that, and far from the hundredth of one that waits for the other.

use crate::children::Role;
use crate::rig::{Actor, Random, Rig, number, until};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, Sender, SenderOptions};
use jet_fabric::Address;
use std::time::{Duration, Instant};

/// The pace beside over the pace alone, at least.
const PACE_MIN: f64 = 0.2;
const TURNS: usize = 5;
const ROUNDS: usize = 12;

/// How an application sits on what it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sits {
    /// It is stopped and takes nothing.
    Stopped,
    /// It takes everything and gives nothing back.
    Keeps,
}

/// Of rounds, each of which is consumed.
fn median_round(traffic: &mut Traffic, mut between: impl FnMut()) -> Duration {
    let mut spans: Vec<_> = (0..ROUNDS)
        .map(|_| {
            between();
            let begun = Instant::now();
            traffic.round();
            begun.elapsed()
        })
        .collect();
    spans.sort_unstable();
    spans[ROUNDS / 2]
}

/// An application that sits on what it is sent, and who sends to it.
struct Sitter {
    actor: Actor,
    waiting: Traffic,
}

impl Sitter {
    /// Messages of a fragment each: more than the pool holds.
    const MESSAGES: usize = 62;

    /// Returns when it holds what it can get while the pool is scarce.
    fn new(rig: &Rig, address: &Address, sits: Sits, random: Random) -> Self {
        let role = if sits == Sits::Keeps { Role::Keeper } else { Role::Consumer };
        let actor = rig.application(role, "sitter");
        if sits == Sits::Stopped {
            actor.process.stop();
        }
        let options = SenderOptions {
            in_flight_max: 4096,
            region_bytes: 64 << 20,
            ..Rig::sender_options(address, "sitter")
        };
        let mut waiting = Traffic::over(Sender::connect(options).expect("let in"), random);
        let evaluations = || number(&rig.status(), "escape.evaluations");
        let before = evaluations();
        for _ in 0..Self::MESSAGES {
            waiting.send(256 << 10).expect("taken");
        }
        until("the pool to be scarce", || {
            waiting.sender.flush();
            (evaluations() > before).then_some(())
        });
        Self { actor, waiting }
    }

    fn end(mut self, rig: &Rig) {
        assert!(self.waiting.sender.poll().is_none(), "it gave nothing back");
        self.actor.process.kill();
        let ends = self.waiting.ends(Self::MESSAGES);
        assert!(ends.iter().all(|end| matches!(end, AckStatus::AppGone | AckStatus::NoApp)), "{ends:?}");
        drop(self.waiting);
        rig.wait_whole();
    }
}

/// The pace of rounds beside such an application over that of rounds without it.
fn check_pace(name: &str, seed: u64, sits: Sits, settings: &[&str]) {
    let mut random = Random::for_test(name, seed);
    let rig = Rig::start(&[&["session.quarantine_ms=20", "escape.safe_permille=900"], settings].concat());
    let good = rig.application(Role::Consumer, "store");
    for address in rig.fabrics() {
        let mut traffic = Traffic::new(&address, "store", random.fork());
        // The first ones touch memory for the first time.
        median_round(&mut traffic, || {});
        let mut paces: Vec<_> = (0..TURNS)
            .map(|_| {
                let alone = median_round(&mut traffic, || {});
                let mut sitter = Sitter::new(&rig, &address, sits, random.fork());
                let beside = median_round(&mut traffic, || sitter.waiting.sender.flush());
                sitter.end(&rig);
                alone.as_secs_f64() / beside.as_secs_f64()
            })
            .collect();
        paces.sort_by(f64::total_cmp);
        eprintln!("{name} over {address}: {paces:.2?} of the pace alone");
        assert!(
            paces[TURNS / 2] >= PACE_MIN,
            "{name} over {address}: the others go on at {paces:.3?} of the pace that they have alone"
        );
    }
    assert_eq!(good.reported("wrong"), 0);
}

#[test]
fn the_others_keep_their_pace_beside_one_that_is_stopped() {
    check_pace("stopped", 80, Sits::Stopped, &[]);
}

#[test]
fn the_others_keep_their_pace_beside_one_that_gives_nothing_back() {
    check_pace("keeps", 81, Sits::Keeps, &[]);
}

#[test]
fn the_others_keep_their_pace_without_escape_memory() {
    check_pace("no memory", 82, Sits::Stopped, &["escape.memory_bytes=0", "escape.replace_bytes=0"]);
}

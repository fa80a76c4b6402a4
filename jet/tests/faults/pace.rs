//! "The others go on" in numbers: the pace of a good sender beside one that sits on the pool, over its pace alone.
//!
//! No bound on a time holds on every machine, and a round that ends at all may have taken a hundred times its time. What
//! can be compared are rounds of one process against one daemon, made in turns within seconds: whatever else the machine
//! does slows both kinds. Where that is much, rounds that lost their core take five times the time of those that did not, in
//! one kind more often than in the other by chance. So not the medians are compared but the fastest quarters, which a fault
//! that slows every round moves just as far. With 25 processes waiting for two cores the pace beside was 0.6 to 1.1 of the pace
//! alone; the bound is a fifth, far from that and from the hundredth of one that waits for the other.

use crate::children::Role;
use crate::rig::{Actor, Random, Rig, number, until};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, Sender, SenderOptions};
use jet_fabric::Address;
use std::time::{Duration, Instant};

/// The pace beside over the pace alone, at least.
const PACE_MIN: f64 = 0.2;
const TURNS: usize = 7;
const ROUNDS: usize = 12;

/// How an application sits on what it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sits {
    /// It is stopped and takes nothing.
    Stopped,
    /// It takes everything and gives nothing back.
    Keeps,
}

/// How long each of a turn's rounds takes, all of which are consumed.
fn rounds(traffic: &mut Traffic, mut between: impl FnMut()) -> Vec<Duration> {
    let round = |_| {
        between();
        let begun = Instant::now();
        traffic.round();
        begun.elapsed()
    };
    (0..ROUNDS).map(round).collect()
}

/// What a quarter of the rounds stay below.
fn first_quartile(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans[spans.len() / 4]
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
        rounds(&mut traffic, || {});
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            alone.extend(rounds(&mut traffic, || {}));
            let mut sitter = Sitter::new(&rig, &address, sits, random.fork());
            beside.extend(rounds(&mut traffic, || sitter.waiting.sender.flush()));
            sitter.end(&rig);
        }
        let (alone, beside) = (first_quartile(alone), first_quartile(beside));
        let pace = alone.as_secs_f64() / beside.as_secs_f64();
        let what = format!(
            "{name} over {address}: {pace:.3} of the pace alone (rounds of {alone:?} and {beside:?})"
        );
        eprintln!("{what}");
        assert!(pace >= PACE_MIN, "{what}");
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

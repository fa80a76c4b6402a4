//! "The others go on" in numbers: the pace of a good sender beside one that sits on the pool, over its pace
//! alone.
//!
//! No bound on a time holds on every machine, and a round that ends at all may have taken a hundred times its
//! time. What can be compared are rounds of one process against one daemon, made in turns within seconds:
//! whatever else the machine does slows both kinds. Where that is much, rounds that lost their core take five
//! times the time of those that did not, in one kind more often than in the other by chance. So not the
//! medians are compared but the fastest quarters, which a fault that slows every round moves just as far.
//! With 25 processes waiting for two cores the pace beside was 0.6 to 1.1 of the pace alone; the bound is a
//! fifth, far from that and from the hundredth of one that waits for the other.
//!
//! The fastest quarter says nothing of the rest. So no round beside may take seconds longer than the slowest
//! alone, from the first message that is not given back on. Rounds take milliseconds, on a busy machine too:
//! seconds are a hang that somebody else makes.

use crate::children::Role;
use crate::rig::{Actor, Rig, random_for};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, Sender, SenderOptions};
use jet_control::status::{SessionStatus, Status};
use jet_fabric::Address;
use jet_test_support::random::Random;
use jet_test_support::waiting::PATIENCE;
use std::time::{Duration, Instant};

/// The pace beside over the pace alone, at least.
const PACE_MIN: f64 = 0.2;
const TURNS: usize = 7;
const ROUNDS: usize = 12;
/// What no round beside takes longer than the slowest alone.
const HANG: Duration = Duration::from_secs(5);
/// The pool is under pressure where less of it is available. One fragment of the pool of 12 MiB is more than
/// the rest: what a slow session holds before it is granted nothing more (a fragment or two, where others
/// press too) is enough.
const SAFE_PERMILLE: u32 = 980;

/// How an application sits on what it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sits {
    /// It is stopped and takes nothing.
    Stopped,
    /// It takes everything and gives nothing back.
    Keeps,
}

/// How long a round takes, all of which is consumed.
fn round(traffic: &mut Traffic) -> Duration {
    let begun = Instant::now();
    traffic.round();
    begun.elapsed()
}

/// How long each of a turn's rounds takes.
fn rounds(traffic: &mut Traffic, mut between: impl FnMut()) -> Vec<Duration> {
    let one = |_| {
        between();
        round(traffic)
    };
    (0..ROUNDS).map(one).collect()
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

    /// Returns when everything is to be sent to it, and little of it has arrived.
    fn new(rig: &Rig, address: &Address, sits: Sits, random: Random) -> Self {
        let role = if sits == Sits::Keeps { Role::Keeper } else { Role::Consumer };
        let actor = rig.application(role, "sitter");
        if sits == Sits::Stopped {
            actor.process.pause();
        }
        let options = SenderOptions {
            in_flight_max: 4096,
            region_bytes: 64 << 20,
            ..Rig::sender_options(address, "sitter")
        };
        let mut waiting = Traffic::over(Sender::connect(options).expect("let in"), random);
        for _ in 0..Self::MESSAGES {
            waiting.send(256 << 10).expect("taken");
        }
        Self { actor, waiting }
    }

    /// What is told of its session.
    fn session(status: &Status) -> &SessionStatus {
        status.session("sitter").expect("it is registered")
    }

    /// Whether what it holds of the pool is enough for pressure, whatever others hold.
    fn makes_scarce(status: &Status) -> bool {
        let own = Self::session(status);
        let in_pool = own.held_slabs - own.replaced_slabs - own.memory_slabs;
        in_pool * 1000 > status.pool.slabs * (1000 - SAFE_PERMILLE)
    }

    /// Whether what it was sent was moved to memory before it took it, as happens on a busy machine, where it
    /// is late. It then holds all the memory that it may, gets nothing more, and the pool stays empty.
    fn came_too_late(status: &Status, rounds: usize) -> bool {
        rounds > 500 && Self::session(status).copied_slabs > 0
    }

    /// How long the rounds take that are made until it is so; nothing where it will not be so, because
    /// `fails` is.
    fn rounds_until(
        &mut self,
        rig: &Rig,
        traffic: &mut Traffic,
        what: &str,
        so: fn(&Status) -> bool,
        fails: fn(&Status, usize) -> bool,
    ) -> Option<Vec<Duration>> {
        let deadline = Instant::now() + PATIENCE;
        let mut spans = Vec::new();
        loop {
            self.waiting.sender.flush();
            spans.push(round(traffic));
            let status = rig.status();
            if so(&status) {
                return Some(spans);
            }
            if fails(&status, spans.len()) {
                return None;
            }
            assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}: {status:#?}");
        }
    }

    /// One that makes the pool scarce, or whose backlog is in memory, and the rounds until then.
    fn in_place(
        rig: &Rig,
        traffic: &mut Traffic,
        sits: Sits,
        stays: bool,
        mut make: impl FnMut() -> Self,
    ) -> (Self, Vec<Duration>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut sitter = make();
            let never = |_: &Status, _| false;
            let rounds = if stays {
                let fails = if sits == Sits::Keeps { Self::came_too_late } else { never };
                sitter.rounds_until(rig, traffic, "the pool to be scarce", Self::makes_scarce, fails)
            } else {
                let copied = |status: &Status| Self::session(status).copied_slabs > 0;
                sitter.rounds_until(rig, traffic, "its backlog to be moved to memory", copied, never)
            };
            if let Some(rounds) = rounds {
                return (sitter, rounds);
            }
            assert!(Instant::now() < deadline, "it took what it was sent too late for {PATIENCE:?}");
            sitter.end(rig);
        }
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

/// The pace of rounds beside such an application over that of rounds without it, and the slowest of each.
fn check_pace(name: &str, seed: u64, sits: Sits, has_memory: bool) {
    let mut random = random_for(name, seed);
    let safe = format!("escape.safe_permille={SAFE_PERMILLE}");
    let no_memory = ["escape.memory_bytes=0", "escape.replace_bytes=0"];
    let settings = ["session.quarantine_ms=20", &safe];
    let rig = Rig::start(&[&settings[..], if has_memory { &[] } else { &no_memory }].concat());
    let good = rig.application(Role::Consumer, "store");
    // What nobody reads goes to memory, if there is any. What is pinned, or has nowhere to go, stays in the
    // pool.
    let stays = sits == Sits::Keeps || !has_memory;
    for address in rig.fabrics() {
        let mut traffic = Traffic::new(&address, "store", random.fork());
        // The first ones touch memory for the first time.
        rounds(&mut traffic, || {});
        let (mut alone, mut beginning, mut beside) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TURNS {
            alone.extend(rounds(&mut traffic, || {}));
            let deadline = Instant::now() + PATIENCE;
            let (began, these) = loop {
                let make = || Sitter::new(&rig, &address, sits, random.fork());
                let (mut sitter, began) = Sitter::in_place(&rig, &mut traffic, sits, stays, make);
                let these = rounds(&mut traffic, || sitter.waiting.sender.flush());
                let status = rig.status();
                sitter.end(&rig);
                if !stays || Sitter::makes_scarce(&status) {
                    break (began, these);
                }
                // It was there, and then moved to memory before it was taken.
                let is_late = sits == Sits::Keeps && Instant::now() < deadline;
                assert!(is_late, "the pool is no longer scarce: {status:#?}");
            };
            beginning.extend(began);
            beside.extend(these);
        }
        let slowest_alone = alone.iter().max().copied().expect("rounds");
        let slowest_beside = beginning.iter().chain(&beside).max().copied().expect("rounds");
        let (alone, beside) = (first_quartile(alone), first_quartile(beside));
        let pace = alone.as_secs_f64() / beside.as_secs_f64();
        let what = format!(
            "{name} over {address}: {pace:.3} of the pace alone (rounds of {alone:?} and {beside:?}; the \
             slowest of {slowest_alone:?} and {slowest_beside:?}, {} of them while it began)",
            beginning.len()
        );
        eprintln!("{what}");
        assert!(pace >= PACE_MIN, "{what}");
        assert!(slowest_beside <= slowest_alone + HANG, "somebody hung: {what}");
    }
    assert_eq!(good.reported("wrong"), 0);
}

#[test]
fn the_others_keep_their_pace_beside_one_that_is_stopped() {
    check_pace("stopped", 80, Sits::Stopped, true);
}

#[test]
fn the_others_keep_their_pace_beside_one_that_gives_nothing_back() {
    check_pace("keeps", 81, Sits::Keeps, true);
}

#[test]
fn the_others_keep_their_pace_without_escape_memory() {
    check_pace("no memory", 82, Sits::Stopped, false);
}

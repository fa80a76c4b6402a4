//! Measures of how fast a good sender goes beside an application that holds much of the pool, over its pace
//! alone.
//!
//! No bound on a time holds on every machine, and a round that ends at all may have taken a hundred times its
//! time. So rounds of one process against one daemon are compared, made in turns within seconds. Other work
//! of the machine slows both kinds. Where that is much, rounds that lost their core take five times as long
//! as others, by chance in one kind more often. So the fastest quarters are compared and not the medians. A
//! fault that slows every round moves them just as far. With 25 processes waiting for two cores the pace
//! beside was 0.6 to 1.1 of the pace alone. The bound is a fifth: far from that, and from the hundredth of a
//! sender that waits for the other.
//!
//! The fastest quarter says nothing of the rest. So no round beside may take seconds longer than the slowest
//! alone, from the first message on that is not given back. Rounds take milliseconds, on a busy machine too.
//! Seconds are a hang that another application causes.

use crate::children::Role;
use crate::rig::{Actor, Rig, random_for};
use crate::traffic::Traffic;
use jet_client::send::{AckStatus, Sender};
use jet_control::status::{SessionStatus, Status};
use jet_fabric::Address;
use jet_test_support::random::Random;
use jet_test_support::waiting::WAIT_LIMIT;
use std::time::{Duration, Instant};

/// Lowest pace beside over the pace alone that passes.
const PACE_MIN: f64 = 0.2;
const TURNS: usize = 7;
const ROUNDS: usize = 12;
/// Most time that a round beside may take longer than the slowest alone.
const HANG: Duration = Duration::from_secs(5);
/// Share of the pool in thousandths: the pool is under pressure where less of it is available. One fragment
/// in the pool of 12 MiB is more than the rest. So the slabs that a slow session holds before it gets no more
/// grants are enough: a fragment, or two where others press too.
const SAFE_PERMILLE: u32 = 980;

/// Ways in which an application holds what it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holding {
    /// The application is stopped and takes nothing.
    Stopped,
    /// The application takes everything and gives nothing back.
    Keeps,
}

/// Makes a round, all of which is consumed, and returns how long it took.
fn round(traffic: &mut Traffic) -> Duration {
    let begun = Instant::now();
    traffic.round();
    begun.elapsed()
}

/// Makes the rounds of a turn, and returns how long each took. `between` is called before each.
fn rounds(traffic: &mut Traffic, mut between: impl FnMut()) -> Vec<Duration> {
    let one = |_| {
        between();
        round(traffic)
    };
    (0..ROUNDS).map(one).collect()
}

/// Returns the time that a quarter of the rounds stay below.
fn first_quartile(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans[spans.len() / 4]
}

/// Application that holds what it is sent, and the sender that sends to it.
struct Sitter {
    actor: Actor,
    waiting: Traffic,
}

impl Sitter {
    /// Number of messages of a fragment each that are sent: more than the pool holds.
    const MESSAGES: usize = 62;

    /// Starts the application and submits all its messages. Little has arrived when this returns.
    fn new(rig: &Rig, address: &Address, holding: Holding, random: Random) -> Self {
        let role = if holding == Holding::Keeps { Role::Keeper } else { Role::Consumer };
        let actor = rig.application(role, "sitter");
        if holding == Holding::Stopped {
            actor.process.pause();
        }
        let options = Rig::sender_options(address, "sitter").in_flight_max(4096).region_bytes(64 << 20);
        let mut waiting = Traffic::over(Sender::connect(&options).expect("let in"), random);
        for _ in 0..Self::MESSAGES {
            waiting.send(256 << 10).expect("taken");
        }
        Self { actor, waiting }
    }

    /// Returns the session's part of a status.
    fn session(status: &Status) -> &SessionStatus {
        status.session("sitter").expect("it is registered")
    }

    /// Returns whether the application's slabs in the pool alone bring it under pressure.
    fn makes_scarce(status: &Status) -> bool {
        let own = Self::session(status);
        let in_pool = own.held_slabs - own.replaced_slabs - own.memory_slabs;
        in_pool * 1000 > status.pool.slabs * (1000 - SAFE_PERMILLE)
    }

    /// Returns whether messages were moved to memory before the application took them, as happens when it is
    /// late on a busy machine. It then holds all the memory that it may, gets nothing more, and the pool
    /// stays empty.
    fn came_too_late(status: &Status, rounds: usize) -> bool {
        rounds > 500 && Self::session(status).copied_slabs > 0
    }

    /// Makes rounds until `so` holds, and returns how long each took. Returns `None` where `fails` says that
    /// it will not hold.
    fn rounds_until(
        &mut self,
        rig: &Rig,
        traffic: &mut Traffic,
        what: &str,
        so: fn(&Status) -> bool,
        fails: fn(&Status, usize) -> bool,
    ) -> Option<Vec<Duration>> {
        let deadline = Instant::now() + WAIT_LIMIT;
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
            assert!(Instant::now() < deadline, "waited {WAIT_LIMIT:?} for {what}: {status:#?}");
        }
    }

    /// Makes an application that makes the pool scarce, or whose backlog is in memory. Also returns how long
    /// the rounds until then took.
    fn in_place(
        rig: &Rig,
        traffic: &mut Traffic,
        holding: Holding,
        stays: bool,
        mut make: impl FnMut() -> Self,
    ) -> (Self, Vec<Duration>) {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            let mut sitter = make();
            let never = |_: &Status, _| false;
            let rounds = if stays {
                let fails = if holding == Holding::Keeps { Self::came_too_late } else { never };
                sitter.rounds_until(rig, traffic, "the pool to be scarce", Self::makes_scarce, fails)
            } else {
                let copied = |status: &Status| Self::session(status).copied_slabs > 0;
                sitter.rounds_until(rig, traffic, "its backlog to be moved to memory", copied, never)
            };
            if let Some(rounds) = rounds {
                return (sitter, rounds);
            }
            assert!(Instant::now() < deadline, "it took what it was sent too late for {WAIT_LIMIT:?}");
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

/// Checks the pace of rounds beside such an application over that of rounds without it, and the slowest
/// rounds of each kind.
fn check_pace(name: &str, seed: u64, holding: Holding, has_memory: bool) {
    let mut random = random_for(name, seed);
    let safe = format!("escape.safe_permille={SAFE_PERMILLE}");
    let no_memory = ["escape.memory_bytes=0", "escape.replace_bytes=0"];
    let settings = ["session.quarantine_ms=20", &safe];
    let rig = Rig::start(&[&settings[..], if has_memory { &[] } else { &no_memory }].concat());
    let good = rig.application(Role::Consumer, "store");
    // Data that nobody reads moves to memory, if there is any. Data that is pinned, or has nowhere to go,
    // stays in the pool.
    let stays = holding == Holding::Keeps || !has_memory;
    for address in rig.fabrics() {
        let mut traffic = Traffic::new(&address, "store", random.fork());
        // The first rounds touch memory for the first time, and do not count.
        rounds(&mut traffic, || {});
        let (mut alone, mut beginning, mut beside) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TURNS {
            alone.extend(rounds(&mut traffic, || {}));
            let deadline = Instant::now() + WAIT_LIMIT;
            let (began, these) = loop {
                let make = || Sitter::new(&rig, &address, holding, random.fork());
                let (mut sitter, began) = Sitter::in_place(&rig, &mut traffic, holding, stays, make);
                let these = rounds(&mut traffic, || sitter.waiting.sender.flush());
                let status = rig.status();
                sitter.end(&rig);
                if !stays || Sitter::makes_scarce(&status) {
                    break (began, these);
                }
                // The messages were moved to memory before the application took them.
                let is_late = holding == Holding::Keeps && Instant::now() < deadline;
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
    check_pace("stopped", 80, Holding::Stopped, true);
}

#[test]
fn the_others_keep_their_pace_beside_one_that_gives_nothing_back() {
    check_pace("keeps", 81, Holding::Keeps, true);
}

#[test]
fn the_others_keep_their_pace_without_escape_memory() {
    check_pace("no memory", 82, Holding::Stopped, false);
}

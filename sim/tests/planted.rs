//! Planted bugs: each is found by seeds that are fixed, and so shows what the checkers are worth. Built only
//! with `RUSTC_WORKSPACE_WRAPPER=sim/with-planted-bugs`. `JET_PLANTED=NAME` chooses one of them.
#![cfg(jet_planted)]

use jet_sim::{Failure, Scenario, Simulation};
use jet_wire::planted::{Planted, plant};
use std::panic;

/// Seeds that are searched for each bug.
const SEEDS: u64 = 800;

/// The checkers of the promise that a bug breaks. `liveness` and `wake-up` only where what is lost holds
/// somebody up for ever, and `panic` only where the receiver itself is to notice.
fn finders(bug: Planted) -> &'static [&'static str] {
    match bug {
        Planted::SlabFreedTwice | Planted::AnyClass => &["panic"],
        Planted::WindowKeptOnFlush => &["windows"],
        Planted::EarlyAcknowledgement | Planted::AppForgotten | Planted::CancelledWhenWhole => &["fates"],
        Planted::PinIgnored => &["application", "quarantine"],
        Planted::RequestLost => &["liveness", "wake-up"],
        // A sender that is given no credit gives up its connection before anything lasts for ever.
        Planted::BarredForEver => &["connections", "liveness", "wake-up"],
        Planted::AgingSkipped | Planted::UnmeasuredWaits => &["starvation"],
        Planted::CongestionKept => &["congestion", "wake-up"],
        Planted::CreditLeaked => &["credit", "connections"],
        Planted::DepthIsDeath => &["connections", "fates"],
        Planted::AnyCreditReturn | Planted::CreditUnbounded => &["credit"],
        Planted::StatedPayload => &["application"],
        Planted::MovesAtOnce => &["consumers"],
    }
}

/// Returns what the checkers find in a seed.
fn failure_of(seed: u64) -> Option<Failure> {
    Simulation::new(Scenario::of(seed)).and_then(Simulation::run).ok()?.failure
}

#[test]
fn each_planted_bug_is_found() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let mut missed = Vec::new();
    let only = std::env::var("JET_PLANTED").ok();
    for bug in Planted::ALL {
        if only.as_ref().is_some_and(|only| *only != format!("{bug:?}")) {
            continue;
        }
        plant(Some(bug));
        // What panics first says less than the checker of what is broken.
        let of_finder = |failure: &Failure| finders(bug).contains(&failure.checker);
        let found = (1..=SEEDS).find_map(|seed| Some((seed, failure_of(seed).filter(of_finder)?)));
        plant(None);
        // What fails without the bug as well says nothing of it.
        let without = found.as_ref().and_then(|(seed, _)| failure_of(*seed));
        match (found, without) {
            (Some((seed, failure)), None) => println!("{bug:?}: seed {seed}, {failure}"),
            other => missed.push((bug, other)),
        }
    }
    panic::set_hook(report);
    assert!(missed.is_empty(), "not found, or by nobody who looks for it: {missed:#?}");
}

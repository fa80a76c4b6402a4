//! Planted bugs: each is found by seeds that are fixed, and so shows what the checkers are worth. Built only
//! with `RUSTC_WORKSPACE_WRAPPER=sim/with-planted-bugs`. `JET_PLANTED=NAME` chooses one of them.
#![cfg(jet_planted)]

use jet_sim::{Failure, Scenario, Simulation};
use jet_wire::planted::{Planted, plant};
use std::panic;

/// Seeds that are searched for each bug.
const SEEDS: u64 = 400;

/// The checkers that may find a bug first.
fn finders(bug: Planted) -> &'static [&'static str] {
    match bug {
        Planted::SlabFreedTwice => &["slabs", "panic", "application"],
        Planted::WindowKeptOnFlush => &["windows", "liveness", "panic"],
        Planted::EarlyAcknowledgement => &["fates", "panic"],
        Planted::PinIgnored => &["application", "quarantine", "panic", "escape memory"],
        Planted::RequestLost => &["liveness", "fates", "panic", "wake-up"],
        Planted::AgingSkipped | Planted::UnmeasuredWaits => &["starvation", "liveness"],
        Planted::CongestionKept => &["liveness", "congestion", "wake-up"],
        Planted::CreditLeaked => &["liveness", "credit", "wake-up", "connections"],
        Planted::DepthIsDeath => &["connections", "liveness", "fates"],
        Planted::BarredForEver => &["liveness", "wake-up", "connections"],
        Planted::AnyClass => &["panic"],
        Planted::AnyCreditReturn => &["credit", "liveness", "panic"],
        Planted::CreditUnbounded => &["credit"],
        Planted::StatedPayload => &["application"],
        Planted::AppForgotten => &["fates"],
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
        let found = (1..=SEEDS).find_map(|seed| failure_of(seed).map(|failure| (seed, failure)));
        plant(None);
        match found {
            Some((seed, failure)) if finders(bug).contains(&failure.checker) => {
                match failure_of(seed) {
                    None => println!("{bug:?}: seed {seed}, {failure}"),
                    // What fails without the bug as well says nothing of it.
                    Some(without) => missed.push((bug, Some((seed, without)))),
                }
            }
            other => missed.push((bug, other)),
        }
    }
    panic::set_hook(report);
    assert!(missed.is_empty(), "not found, or by nobody who looks for it: {missed:#?}");
}

//! Fixed seeds: nothing is found, the same seed gives the same events, and the rare states are reached.

use jet_sim::{Counts, Outcome, RARE, Scenario, Simulation};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds that are run. They reach every state of [`RARE`].
const SEEDS: u64 = 200;

fn run(seed: u64) -> Outcome {
    Simulation::new(Scenario::of(seed))
        .and_then(Simulation::run)
        .unwrap_or_else(|error| panic!("{seed}: {error}"))
}

#[test]
fn fixed_seeds_find_nothing_and_reach_the_rare_states() {
    let (next, counts) = (AtomicU64::new(1), Mutex::new(Counts::default()));
    let search = || {
        while let seed @ ..=SEEDS = next.fetch_add(1, Ordering::Relaxed) {
            let outcome = run(seed);
            if let Some(failure) = outcome.failure {
                panic!("jet-sim --seed {seed}: {failure}");
            }
            counts.lock().expect("no seed failed").merge(&outcome.counts);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, Into::into) {
            scope.spawn(search);
        }
    });
    let counts = counts.into_inner().expect("no seed failed");
    let missing: Vec<_> = RARE.iter().filter(|name| counts.of(name) == 0).collect();
    assert!(missing.is_empty(), "{missing:?} were not reached:\n{counts}");
}

#[test]
fn a_seed_gives_the_same_events_each_time() {
    for seed in [1, 2, 3, 5, 8, 13] {
        let (first, second) = (run(seed), run(seed));
        assert_eq!(first.log.hash(), second.log.hash(), "seed {seed}");
        assert_eq!(
            (first.log.count(), first.now_ns, first.counts),
            (second.log.count(), second.now_ns, second.counts)
        );
    }
}

#[test]
fn a_seed_gives_the_same_events_in_another_process() {
    for seed in [1, 5] {
        let output = Command::new(env!("CARGO_BIN_EXE_jet-sim"))
            .args(["--json", "--seed", &seed.to_string()])
            .output()
            .expect("jet-sim was built");
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a line of JSON");
        assert_eq!(said["hash"], format!("{:016x}", run(seed).log.hash()), "seed {seed}");
    }
}

#[test]
fn other_seeds_give_other_events() {
    let hashes: std::collections::BTreeSet<_> = (1..=10).map(|seed| run(seed).log.hash()).collect();
    assert_eq!(hashes.len(), 10);
}

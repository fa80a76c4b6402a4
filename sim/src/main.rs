//! `jet-sim`: runs one seed, or many.

use clap::Parser;
use jet_sim::{Outcome, Scenario, Simulation};
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

/// Search for what breaks Jet's promises, in time that is made up, from seeds
#[derive(Parser)]
#[command(name = "jet-sim", version)]
struct Args {
    /// Run this seed
    #[arg(long)]
    seed: Option<u64>,
    /// Print so many of the last events where a seed fails
    #[arg(long, default_value_t = 40)]
    events: usize,
    /// Run seeds one after the other, beginning with --seed, for --seconds
    #[arg(long)]
    swarm: bool,
    /// Seconds for which --swarm runs seeds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Measure the simulator: everybody is fast, nothing fails, and so many of 1000 messages are large ones
    #[arg(long, value_name = "PERMILLE", conflicts_with_all = ["swarm"])]
    plain: Option<u32>,
}

fn run(scenario: Scenario, events: usize) -> Result<Outcome, Box<dyn Error>> {
    Simulation::new(scenario)?.keeping(events).run()
}

fn report(outcome: &Outcome) {
    println!("{} events, hash {:016x}, {} ns", outcome.log.count(), outcome.log.hash(), outcome.now_ns);
    if let Some(failure) = &outcome.failure {
        println!("the last events:");
        for (at_ns, event) in outcome.log.last() {
            println!("  {at_ns} {event:?}");
        }
        println!("FAILED: {failure}");
    }
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 48));
    if args.swarm {
        return swarm(seed, args.seconds);
    }
    let scenario = args.plain.map_or_else(|| Scenario::of(seed), |large| Scenario::plain(seed, large));
    print!("{scenario}");
    let begin = Instant::now();
    let outcome = run(scenario, args.events)?;
    let seconds = begin.elapsed().as_secs_f64();
    print!("{}", outcome.counts);
    #[allow(clippy::cast_precision_loss)]
    let (small, bytes) =
        (outcome.counts.of("small messages") as f64, outcome.counts.of("delivered bytes") as f64);
    println!("{:.0} small messages/s, {:.2} GB/s", small / seconds, bytes / seconds / 1e9);
    report(&outcome);
    Ok(if outcome.failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn swarm(first: u64, seconds: u64) -> Result<ExitCode, Box<dyn Error>> {
    let begin = Instant::now();
    let mut seed = first;
    let mut counts = jet_sim::Counts::default();
    while begin.elapsed().as_secs() < seconds {
        let outcome = run(Scenario::of(seed), 40)?;
        counts.merge(&outcome.counts);
        if outcome.failure.is_some() {
            print!("{}", Scenario::of(seed));
            report(&outcome);
            println!("again: jet-sim --seed {seed}");
            return Ok(ExitCode::FAILURE);
        }
        seed += 1;
    }
    print!("{counts}");
    println!("{} seeds from {first} on, nothing found", seed - first);
    Ok(ExitCode::SUCCESS)
}

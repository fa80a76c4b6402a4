//! `jet-sim`: runs one seed, or many.

mod swarm;

use clap::Parser;
use jet_sim::{Counts, Less, Outcome, Scenario, Simulation, shrink};
use serde_json::json;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Search for what breaks Jet's promises, in time that is made up, from seeds
#[derive(Parser)]
#[command(name = "jet-sim", version)]
struct Args {
    /// Run this seed; with --swarm begin with it. Default: a random one
    #[arg(long)]
    seed: Option<u64>,
    /// Leave something out of the seed's scenario: sender=PLACE, application=PLACE, cheat=PLACE, fault=NAME,
    /// faults=COUNT or messages=COUNT
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["swarm", "plain"])]
    less: Vec<Less>,
    /// Print so many of the last events where a seed fails
    #[arg(long, default_value_t = 40)]
    events: usize,
    /// Run seeds one after the other
    #[arg(long)]
    swarm: bool,
    /// Seconds for which --swarm runs seeds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seconds of processor time for which --swarm runs seeds, instead of --seconds
    #[arg(long, value_name = "SECONDS", conflicts_with = "seconds")]
    processor_seconds: Option<u64>,
    /// Seeds that --swarm runs at once. Default: one on each core
    #[arg(long)]
    jobs: Option<usize>,
    /// Seconds for which what can be left out of a seed that failed is looked for. 0: not at all
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    shrink: u64,
    /// With --swarm, run only seeds in which many senders want READs and nothing fails: one of eight is such
    #[arg(long, requires = "swarm")]
    contended: bool,
    /// Measure the simulator: everybody is fast, nothing fails, and so many of 1000 messages are large ones
    #[arg(long, value_name = "PERMILLE", conflicts_with_all = ["swarm"])]
    plain: Option<u32>,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
    /// Plant a bug of `wire/src/planted.rs`
    #[cfg(jet_planted)]
    #[arg(long, value_name = "BUG")]
    plant: Option<String>,
}

/// Returns the bug of a name.
#[cfg(jet_planted)]
fn planted(name: &str) -> Result<jet_wire::planted::Planted, String> {
    let all = jet_wire::planted::Planted::ALL;
    let found = all.into_iter().find(|bug| format!("{bug:?}") == name);
    found.ok_or_else(|| format!("{name} is none of {all:?}"))
}

fn simulate(scenario: Scenario, events: usize) -> Result<Outcome, Box<dyn Error>> {
    Simulation::new(scenario)?.keeping(events).run()
}

/// Returns counts as JSON.
fn counted(counts: &Counts) -> serde_json::Value {
    counts
        .iter()
        .map(|(name, count)| (name.to_owned(), json!(count)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn print_end(outcome: &Outcome) {
    if let Some(failure) = &outcome.failure {
        println!("the last events:");
        for (at_ns, event) in outcome.log.last() {
            println!("  {at_ns} {event:?}");
        }
        println!("FAILED: {failure}");
    }
    println!("{} events, hash {:016x}, {} ns", outcome.log.count(), outcome.log.hash(), outcome.now_ns);
}

/// Prints what failed, and the smallest scenario that was found to fail in the same way.
fn print_failure(scenario: &Scenario, outcome: &Outcome, args: &Args) -> Result<(), Box<dyn Error>> {
    print!("{scenario}");
    print_end(outcome);
    let seed = scenario.seed;
    println!("again: jet-sim --seed {seed}");
    let Some(failure) = &outcome.failure else { return Ok(()) };
    if let Some(smaller) = shrink(scenario, failure, Duration::from_secs(args.shrink))? {
        let options: Vec<_> = smaller.left_out.iter().map(|less| format!(" --less {less}")).collect();
        if let Some(failure) = &smaller.outcome.failure {
            println!("a smaller scenario fails after {} events: {failure}", smaller.outcome.log.count());
        }
        println!("again: jet-sim --seed {seed}{}", options.concat());
    }
    Ok(())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 48));
    #[cfg(jet_planted)]
    jet_wire::planted::plant(args.plant.as_deref().map(planted).transpose()?);
    if args.swarm { swarm::run(seed, &args) } else { one(seed, &args) }
}

#[allow(clippy::cast_precision_loss)] // rates for people
fn one(seed: u64, args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let scenario = args.plain.map_or_else(|| Scenario::of(seed), |large| Scenario::plain(seed, large));
    let scenario = args.less.iter().fold(scenario, |scenario, less| scenario.without(*less));
    if !args.json {
        print!("{scenario}");
    }
    let begin = Instant::now();
    let outcome = simulate(scenario.clone(), args.events)?;
    let seconds = begin.elapsed().as_secs_f64();
    let small = outcome.counts.of("small messages") as f64 / seconds;
    let bytes = outcome.counts.of("delivered bytes") as f64 / seconds;
    if args.json {
        let failure = outcome.failure.as_ref();
        let line = json!({
            "seed": seed,
            "hash": format!("{:016x}", outcome.log.hash()),
            "events": outcome.log.count(),
            "now_ns": outcome.now_ns,
            "seconds": seconds,
            "small_messages_per_s": small,
            "bytes_per_s": bytes,
            "counts": counted(&outcome.counts),
            "checker": failure.map(|failure| failure.checker),
            "failure": failure.map(ToString::to_string),
        });
        println!("{line}");
    } else {
        print!("{}", outcome.counts);
        println!("{small:.0} small messages/s, {:.2} GB/s of checked payload", bytes / 1e9);
        print_end(&outcome);
        let is_whole = args.less.is_empty() && args.plain.is_none();
        if outcome.failure.is_some() && is_whole {
            print_failure(&scenario, &outcome, args)?;
        }
    }
    Ok(if outcome.failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

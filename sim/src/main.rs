//! `jet-sim`: runs one seed, or many.

use clap::Parser;
use jet_sim::{Counts, Less, Outcome, Scenario, Simulation, shrink};
use serde_json::json;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// Seeds that --swarm runs at once. Default: one on each core
    #[arg(long)]
    jobs: Option<usize>,
    /// Seconds for which what can be left out of a seed that failed is looked for. 0: not at all
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    shrink: u64,
    /// Measure the simulator: everybody is fast, nothing fails, and so many of 1000 messages are large ones
    #[arg(long, value_name = "PERMILLE", conflicts_with_all = ["swarm"])]
    plain: Option<u32>,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

fn run(scenario: Scenario, events: usize) -> Result<Outcome, Box<dyn Error>> {
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
    if args.swarm { swarm(seed, &args) } else { one(seed, &args) }
}

#[allow(clippy::cast_precision_loss)] // rates for people
fn one(seed: u64, args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let scenario = args.plain.map_or_else(|| Scenario::of(seed), |large| Scenario::plain(seed, large));
    let scenario = args.less.iter().fold(scenario, |scenario, less| scenario.without(*less));
    if !args.json {
        print!("{scenario}");
    }
    let begin = Instant::now();
    let outcome = run(scenario.clone(), args.events)?;
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

/// What the threads of a swarm have found.
#[derive(Default)]
struct Found {
    counts: Counts,
    seeds: u64,
    failed: Option<(Scenario, Outcome)>,
    error: Option<String>,
}

#[allow(clippy::cast_precision_loss)] // rates for people
fn swarm(first: u64, args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let begin = Instant::now();
    let longest = Duration::from_secs(args.seconds);
    let jobs = args.jobs.map_or_else(|| std::thread::available_parallelism().map(Into::into), Ok)?;
    let next = AtomicU64::new(first);
    let is_over = AtomicBool::new(false);
    let found = Mutex::new(Found::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while begin.elapsed() < longest && !is_over.load(Ordering::Relaxed) {
                    let scenario = Scenario::of(next.fetch_add(1, Ordering::Relaxed));
                    let outcome = run(scenario.clone(), args.events).map_err(|error| error.to_string());
                    let mut found = found.lock().expect("no thread panics with it");
                    match outcome {
                        Ok(outcome) => {
                            found.seeds += 1;
                            found.counts.merge(&outcome.counts);
                            if outcome.failure.is_none() {
                                continue;
                            }
                            found.failed.get_or_insert((scenario, outcome));
                        }
                        Err(error) => {
                            found.error.get_or_insert(format!("seed {}: {error}", scenario.seed));
                        }
                    }
                    is_over.store(true, Ordering::Relaxed);
                }
            });
        }
    });
    let found = found.into_inner()?;
    if let Some(error) = found.error {
        return Err(error.into());
    }
    let (seeds, seconds) = (found.seeds, begin.elapsed().as_secs_f64());
    let small = found.counts.of("small messages") as f64 / seconds / jobs as f64;
    let bytes = found.counts.of("delivered bytes") as f64 / seconds / jobs as f64;
    let failure = found.failed.as_ref().and_then(|(_, outcome)| outcome.failure.as_ref());
    if args.json {
        let line = json!({
            "first_seed": first,
            "seeds": seeds,
            "jobs": jobs,
            "seconds": seconds,
            "small_messages_per_s_and_job": small,
            "bytes_per_s_and_job": bytes,
            "counts": counted(&found.counts),
            "failed_seed": found.failed.as_ref().map(|(scenario, _)| scenario.seed),
            "checker": failure.map(|failure| failure.checker),
            "failure": failure.map(ToString::to_string),
        });
        println!("{line}");
    } else {
        print!("{}", found.counts);
        println!(
            "{seeds} seeds from {first} on, {:.1} a second; a second and job {small:.0} small messages, \
             {:.2} GB of checked payload",
            seeds as f64 / seconds,
            bytes / 1e9
        );
        match &found.failed {
            Some((scenario, outcome)) => print_failure(scenario, outcome, args)?,
            None => println!("nothing found"),
        }
    }
    Ok(if failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

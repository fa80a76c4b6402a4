//! A swarm: seeds one after the other, on all cores.

use crate::{Args, counted, print_failure, simulate};
use jet_sim::{Counts, Kind, Outcome, Scenario};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seconds between two lines of progress.
const PROGRESS_S: u64 = 30;

/// What the threads of a swarm have found.
#[derive(Default)]
struct Found {
    counts: Counts,
    seeds: u64,
    failed: Option<(Scenario, Outcome)>,
    error: Option<String>,
    /// Seconds after which progress was shown last.
    shown_s: u64,
}

impl Found {
    /// Says now and then how far the swarm is.
    fn show_progress(&mut self, begin: Instant) {
        let seconds = begin.elapsed().as_secs();
        if seconds >= self.shown_s + PROGRESS_S {
            self.shown_s = seconds;
            eprintln!("jet-sim: {} seeds in {seconds} s", self.seeds);
        }
    }
}

/// How long a swarm goes on.
enum Span {
    Seconds(Instant, Duration),
    ProcessorSeconds(Duration),
}

impl Span {
    fn is_over(&self) -> bool {
        match self {
            Self::Seconds(begin, longest) => begin.elapsed() >= *longest,
            Self::ProcessorSeconds(longest) => {
                let used = clock_gettime(ClockId::ProcessCPUTime);
                u64::try_from(used.tv_sec).is_ok_and(|used| used >= longest.as_secs())
            }
        }
    }
}

/// Runs seeds on all cores until one fails, or the time is over.
#[allow(clippy::cast_precision_loss)] // rates for people
pub fn run(first: u64, args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let begin = Instant::now();
    let span = match args.processor_seconds {
        Some(seconds) => Span::ProcessorSeconds(Duration::from_secs(seconds)),
        None => Span::Seconds(begin, Duration::from_secs(args.seconds)),
    };
    let jobs = args.jobs.map_or_else(|| std::thread::available_parallelism().map(Into::into), Ok)?;
    // Before anything can hang.
    eprintln!("jet-sim: seeds from {first} on");
    let next = AtomicU64::new(first);
    let is_over = AtomicBool::new(false);
    let found = Mutex::new(Found::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while !span.is_over() && !is_over.load(Ordering::Relaxed) {
                    let scenario = Scenario::of(next.fetch_add(1, Ordering::Relaxed));
                    if args.contended && scenario.kind == Kind::Anything {
                        continue;
                    }
                    let simulated = || simulate(scenario.clone(), args.events);
                    let outcome = match catch_unwind(AssertUnwindSafe(simulated)) {
                        Ok(outcome) => outcome.map_err(|error| error.to_string()),
                        // Outside of a step, where the simulation has none of its own to show.
                        Err(_) => Err("it panicked; the message is above".to_owned()),
                    };
                    let mut found = found.lock().expect("no thread panics with it");
                    match outcome {
                        Ok(outcome) => {
                            found.seeds += 1;
                            found.counts.merge(&outcome.counts);
                            found.show_progress(begin);
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
        let [small, large] = ["small messages", "large messages"].map(|name| found.counts.of(name) as f64);
        println!(
            "mix: {:.1} % of the messages are small, {:.1} % large; {:.0} bytes a message",
            100.0 * small / (small + large).max(1.0),
            100.0 * large / (small + large).max(1.0),
            found.counts.of("delivered bytes") as f64 / (small + large).max(1.0)
        );
        match &found.failed {
            Some((scenario, outcome)) => print_failure(scenario, outcome, args)?,
            None => println!("nothing found"),
        }
    }
    Ok(if failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

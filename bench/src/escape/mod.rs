//! Measures how a slow, a stopped and a dead application affect the other applications, and what escape costs
//! (Jet §4.3).
//!
//! - `stall`: one of four applications stops reading for five seconds at full load;
//! - `stragglers`: one slice in 25, and in another case one in ten, is held for longer than the other slices;
//! - `burst`: ten times the pool's bytes are sent at once, to a slow application;
//! - `kill`: one of four applications is killed at full load;
//! - `cost`: the time of one evaluation of Algorithm 1.
//!
//! A row says how long the daemon or the load had no core. More than a few percent mean that other programs
//! were busy on the machine. Rates and latencies of that run then mean little.
//!
//! [`load`] describes how the load is made, and what it cannot measure.

mod burst;
mod cost;
mod faulty_application;
mod feed;
mod kill;
mod load;
mod stall;
mod stragglers;

use crate::report::{Bound, Row, RunSize};
use std::error::Error;
use std::io::Write;
use std::time::Duration;

/// Name of the benchmark.
const BENCH: &str = "escape";

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// One of four applications stops reading
    Stall,
    /// One slice in 25, and one in ten, is held for longer than the others
    Stragglers,
    /// Ten times the pool's bytes are sent at once
    Burst,
    /// One of four applications is killed
    Kill,
    /// The time of an evaluation of Algorithm 1
    Cost,
}

/// Parts of the benchmark to run, and their settings.
#[derive(clap::Args)]
pub struct Args {
    /// The fabric between senders and daemon
    #[arg(long, value_parser = ["shm", "tcp"], default_value = "shm")]
    fabric: String,
    /// Only this part; may be repeated
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Set a key of the daemon's configuration, as in --set escape.replace_bytes=0; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
    /// How long a straggler's slice is held, in microseconds: by default two and a half times
    /// escape.straggler_us's default
    #[arg(long, default_value_t = 5000)]
    hold_us: u64,
}

/// Settings that all parts share.
struct Plan<'a> {
    run_size: RunSize,
    samples: u32,
    fabric: &'a str,
    settings: &'a [String],
    hold: Duration,
}

impl Plan<'_> {
    /// Prints how far a part that takes long has come.
    fn progress(&self, text: &str) {
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "jet-bench: escape: {text}");
    }
}

/// Adds the rows of one part of the benchmark. Each metric begins with the part's name.
struct PartRows<'a> {
    rows: &'a mut Vec<Row>,
    name: String,
}

impl PartRows<'_> {
    /// Adds a row of [`Kind::Timed`](crate::report::Kind::Timed): a figure of this machine, of which the
    /// bound is for a quiet machine.
    fn timed(&mut self, metric: &str, unit: &'static str, samples: Vec<f64>, bound: Bound) {
        self.rows.push(Row::new(BENCH, &format!("{}: {metric}", self.name), unit, samples, bound));
    }

    /// Adds a row of [`Kind::Exact`](crate::report::Kind::Exact): a figure of which the bound holds on any
    /// machine.
    fn exact(&mut self, metric: &str, unit: &'static str, samples: Vec<f64>, bound: Bound) {
        self.rows.push(Row::exact(BENCH, &format!("{}: {metric}", self.name), unit, samples, bound));
    }
}

/// Runs the benchmark `escape`.
///
/// # Errors
/// An error of one of the parts.
pub fn run(run_size: RunSize, args: &Args) -> Result<Vec<Row>, Box<dyn Error>> {
    let plan = Plan {
        run_size,
        samples: run_size.samples,
        fabric: &args.fabric,
        settings: &args.set,
        hold: Duration::from_micros(args.hold_us),
    };
    let wanted = |part: Part| args.only.is_empty() || args.only.contains(&part);
    let mut rows = Vec::new();
    if wanted(Part::Cost) {
        cost::run(&plan, &mut rows);
    }
    if wanted(Part::Stall) {
        stall::run(&plan, &mut rows)?;
    }
    if wanted(Part::Stragglers) {
        stragglers::run(&plan, &mut rows)?;
    }
    if wanted(Part::Burst) {
        burst::run(&plan, &mut rows)?;
    }
    if wanted(Part::Kill) {
        kill::run(&plan, &mut rows)?;
    }
    Ok(rows)
}

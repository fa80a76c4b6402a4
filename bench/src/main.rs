//! `cargo run --release -p jet-bench -- NAME [--json] [--check[=exact]] [--baseline FILE]`: measures Jet's
//! throughput, latency and use of resources, beside the machine's own limits.
//!
//! The cases of a comparison alternate (A B A B) within one run; figures are medians of the samples that the
//! row carries.

mod allocations;
mod alone;
mod baseline;
mod cache;
mod call;
mod checksums;
mod connections;
mod consumer;
mod core_cost;
mod e2e;
mod escape;
mod first;
mod handoff;
mod hosts;
mod interrupt;
mod membw;
mod ordered_process;
mod others;
mod own_reactor;
mod pattern;
mod processor_time;
mod provenance;
mod report;
mod residency;
mod resident_memory;
mod rig;
mod schedule;
mod send_loop;
mod session_cost;
mod status_cost;
mod stream;
mod tables;
mod tls_cost;
#[cfg(feature = "verbs")]
mod verbs;

use baseline::Baseline;
use clap::{Parser, Subcommand};
use jet::output::{self, print};
use provenance::Run;
use report::{Check, Row, RunSize};
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static COUNTING: allocations::Counting = allocations::Counting;

/// Number of samples of each figure unless `--samples` or `--brief` says otherwise.
const SAMPLES: u32 = 7;

#[derive(Parser)]
#[command(name = "jet-bench", version, about = "Measures Jet beside what the machine can do")]
struct Args {
    /// Print one JSON object a line: first the run (machine, commit, build, arguments), then the rows
    #[arg(long, global = true)]
    json: bool,
    /// Exit with 1 if a bound does not hold, or there is no bound. Without a value the bounds of all rows
    /// count; with =exact only those that hold on a busy machine, too
    #[arg(long, global = true, value_enum, value_name = "WHICH", num_args = 0..=1, require_equals = true,
          default_missing_value = "all")]
    check: Option<Check>,
    /// Print each row beside the same one of an earlier run, which is what --json printed
    #[arg(long, global = true, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Samples of each figure; each is one turn of A B [default: 7, or 1 with --brief]
    #[arg(long, global = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    samples: Option<u32>,
    /// Only show that the benchmark works: some seconds, with short spans where a benchmark has them. Timed
    /// bounds are not judged
    #[arg(long, global = true)]
    brief: bool,
    #[command(subcommand)]
    name: Name,
}

#[derive(Subcommand)]
enum Name {
    /// The receiver's state machine: nanoseconds a message, and its allocations (it must make none); with
    /// --instructions the instructions that a message takes
    Core(core_cost::Args),
    /// Handing a descriptor from one spinning process to another, beside a bare ring
    Handoff,
    /// What an application's end costs for each slice and message: borrowed ones beside owned ones, which any
    /// thread may hold
    Session,
    /// What a reply costs: a call of 64 B that is replied to, beside a message alone
    Call,
    /// A sender's first message: its memory beside fresh memory of the system, and the message beside a later
    /// one
    First,
    /// One message of 64 B at a time: as three processes, and with the application linked into the receiver,
    /// beside a number that processes pass on; with --trace what each hand-over takes
    Alone(alone::Args),
    /// Throughput of sender, daemon and application as three processes, beside memcpy and sockets
    E2e {
        /// Only this fabric: shm or tcp
        #[arg(long, value_parser = ["shm", "tcp"])]
        fabric: Option<String>,
        /// Set a key of the daemon's configuration, as in --set nic.thread=on; may be repeated
        #[arg(long, value_name = "SECTION.KEY=VALUE")]
        set: Vec<String>,
    },
    /// One stream of messages of one size, for comparisons with other systems (bench/peers)
    Stream(stream::Args),
    /// A load on a daemon that runs elsewhere: sizes, depths and rates, percentiles, processor time
    Load(hosts::load::Args),
    /// One message at a time to a daemon that runs elsewhere, alone or beside loads
    Probe(hosts::probe::Args),
    /// The application to which load and probe send, on the daemon's host
    Receive(hosts::receive::Args),
    /// Cost of checksums: messages without them, checked by the reactor, checked by workers, and not checked
    Checksums {
        /// Only this fabric: shm or tcp
        #[arg(long, value_parser = ["shm", "tcp"])]
        fabric: Option<String>,
    },
    /// Throughput with a thousand senders connected and 32 active, or with --connected of them, beside 32
    /// connected; how fast they connect; and the daemon's memory
    Connections(connections::Args),
    /// Jet over an RDMA device, beside perftest; in builds with --features verbs
    Verbs {
        /// Only this part; may be repeated
        #[arg(long, value_parser = ["throughput", "latency", "connections", "counts"])]
        only: Vec<String>,
    },
    /// Whether the cache warmer's residency reading is true, and how long reserving cache takes
    Cache {
        /// Only this part; may be repeated
        #[arg(long, value_parser = ["truth", "pools", "reserve"])]
        only: Vec<String>,
    },
    /// The processor time and memory of a daemon that has nothing to do
    Idle,
    /// 128 connections that ask a daemon for its status: how long an answer takes, and what throughput a load
    /// beside them loses
    Status,
    /// What TLS costs: a handshake with both proofs, and records, beside the bare cipher and openssl speed
    Tls,
    /// A stopped, a slow and a dead application: how they affect the others, and what escape costs
    Escape(escape::Args),
    /// What senders keep beside peers that behave badly: slow, stopped, half-sent, silent and lost ones
    Others(others::Args),
    /// A load that takes memory bandwidth at a fixed rate
    Membw(membw::Args),
    /// The cache's effect: Jet's pool beside conventional receivers, with the same senders and application,
    /// one receiver at a time
    Residency(residency::Args),
    /// A process of a benchmark's rig
    #[command(subcommand, hide = true)]
    Role(rig::Role),
}

impl Name {
    /// Returns whether the command itself handles SIGINT and SIGTERM. Processes of a rig end with the process
    /// that started them.
    fn handles_signals(&self) -> bool {
        matches!(self, Self::Role(_) | Self::Load(_) | Self::Probe(_) | Self::Receive(_))
    }
}

fn main() -> ExitCode {
    // A rig's daemon logs under its own name.
    let is_daemon = std::env::args_os().nth(2).is_some_and(|word| word == "daemon");
    let _log = jet::log::start(if is_daemon { "jetd" } else { "jet-bench" });
    let args = match output::command_line::<Args>() {
        Ok(args) => args,
        Err(code) => return code,
    };
    if !args.name.handles_signals()
        && let Err(error) = interrupt::watch()
    {
        tracing::error!("cannot wait for signals: {error}");
        return ExitCode::from(2);
    }
    match measure(args) {
        Ok(code) => output::exit_code(code),
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::from(2)
        }
    }
}

/// Runs the named benchmark and prints its rows.
fn measure(args: Args) -> Result<ExitCode, Box<dyn std::error::Error>> {
    if let Name::Role(role) = &args.name {
        return Ok(rig::run_role(role));
    }
    // Before anything is measured, so that a bad file is found at once.
    let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?;
    let samples = args.samples.unwrap_or(if args.brief { 1 } else { SAMPLES });
    // Some benchmarks pin this thread: afterwards the machine would seem to have one core.
    let run = Run::this(samples, args.brief);
    let run_size = RunSize { samples, brief: args.brief };
    let mut rows = rows(args.name, run_size)?;
    if args.brief {
        report::leave_unjudged(&mut rows);
    }
    let comparison = baseline.as_ref().map(|baseline| baseline.compare(&run, &rows));
    if args.json {
        print(&format!("{}\n", serde_json::to_string(&provenance::Line { run })?));
        print(&report::lines(&rows));
        print(&comparison.map_or(String::new(), |comparison| comparison.lines()));
    } else {
        print(&format!("{run}\n"));
        print(&report::table(&rows));
        print(&comparison.map_or(String::new(), |comparison| "\n".to_owned() + &comparison.table()));
    }
    if let Some(code) = interrupt::noted() {
        return Ok(ExitCode::from(code));
    }
    match args.check.map_or(Ok(()), |check| report::check(&rows, check)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(text) => {
            tracing::error!("{text}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Runs the named benchmark and returns its rows.
fn rows(name: Name, run_size: RunSize) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let RunSize { samples, .. } = run_size;
    match name {
        Name::Core(asked) => core_cost::run(samples, &asked),
        Name::Session => session_cost::run(run_size),
        Name::Tls => tls_cost::run(run_size),
        Name::Call => call::run(run_size),
        Name::First => first::run(run_size),
        Name::Alone(asked) => alone::run(run_size, &asked),
        Name::E2e { fabric, set } => match fabric.as_deref() {
            Some(fabric) => e2e::run(run_size, &[fabric], &set),
            None => e2e::run(run_size, &["shm", "tcp"], &set),
        },
        Name::Stream(shape) => stream::run(samples, &shape),
        Name::Load(asked) => hosts::load::run(samples, &asked),
        Name::Probe(asked) => hosts::probe::run(samples, &asked),
        Name::Receive(asked) => hosts::receive::run(&asked),
        Name::Checksums { fabric } => match fabric.as_deref() {
            Some(fabric) => checksums::run(samples, &[fabric]),
            None => checksums::run(samples, &["shm", "tcp"]),
        },
        Name::Connections(asked) => connections::run(run_size, &asked),
        Name::Cache { only } => cache::run(samples, &only),
        Name::Idle => connections::idle(run_size),
        Name::Status => status_cost::run(run_size),
        Name::Membw(asked) => membw::run(samples, asked),
        Name::Residency(asked) => residency::run(run_size, &asked),
        Name::Escape(parts) => escape::run(run_size, &parts),
        Name::Others(parts) => others::run(run_size, &parts),
        #[cfg(feature = "verbs")]
        Name::Verbs { only } => verbs::run(samples, &only),
        #[cfg(not(feature = "verbs"))]
        Name::Verbs { .. } => {
            Err("this build has no RDMA; build it with --features verbs (docs/rdma.md)".into())
        }
        Name::Role(_) => unreachable!("a role has no rows"),
        Name::Handoff => handoff::run(run_size).map_err(Into::into),
    }
}

//! `cargo run --release -p jet-bench -- NAME [--json] [--check]`: what Jet costs, beside what the machine can do.
//!
//! Comparisons run in turns (A B A B) within one run; figures are medians of the samples that the row carries.

mod allocations;
mod cache;
mod checksums;
mod connections;
mod consumer;
mod core_cost;
mod e2e;
mod escape;
mod handoff;
mod interrupt;
mod membw;
mod pattern;
mod report;
mod residency;
mod rig;
mod stream;
#[cfg(feature = "verbs")]
mod verbs;

use clap::{Parser, Subcommand};
use report::Row;
use std::process::ExitCode;

#[global_allocator]
static COUNTING: allocations::Counting = allocations::Counting;

#[derive(Parser)]
#[command(name = "jet-bench", version, about = "Measures Jet beside what the machine can do")]
struct Args {
    /// One JSON object a row: bench, metric, value, unit, bound, holds, samples
    #[arg(long, global = true)]
    json: bool,
    /// Exit with 1 where a bound does not hold
    #[arg(long, global = true)]
    check: bool,
    /// Samples a figure; each is one turn of A B
    #[arg(long, global = true, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    samples: u32,
    #[command(subcommand)]
    name: Name,
}

#[derive(Subcommand)]
enum Name {
    /// The receiver's state machine: nanoseconds a message, and its allocations (it must make none)
    Core,
    /// Handing a descriptor from one spinning process to another, beside a bare ring
    Handoff,
    /// Sender, daemon and application as three processes, beside memcpy and sockets
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
    /// Checksums: none, made by the reactor, by workers, and switched off at the receiver
    Checksums {
        /// Only this fabric: shm or tcp
        #[arg(long, value_parser = ["shm", "tcp"])]
        fabric: Option<String>,
    },
    /// A thousand senders connected and 32 active, beside 32 connected; and the daemon's memory
    Connections,
    /// Over an RDMA device, beside perftest; in builds with --features verbs
    Verbs {
        /// Only this part; may be repeated
        #[arg(long, value_parser = ["throughput", "latency", "connections", "counts"])]
        only: Vec<String>,
    },
    /// Whether the warmer's reading is true, and what reserving cache takes
    Cache {
        /// Only this part; may be repeated
        #[arg(long, value_parser = ["truth", "pools", "reserve"])]
        only: Vec<String>,
    },
    /// What a daemon costs that has nothing to do
    Idle,
    /// A stopped, a slow and a dead application: what they cost the others, and what escape costs
    Escape(escape::Args),
    /// Memory bandwidth taken at a fixed rate
    Membw(membw::Args),
    /// The cache's effect: Jet's pool beside buffers of each connection's own, the same senders and application
    Residency(residency::Args),
    /// A process of a benchmark's rig
    #[command(subcommand, hide = true)]
    Role(rig::Role),
}

fn main() -> ExitCode {
    let args = Args::parse();
    // A process of a rig ends with the one that started it.
    if !matches!(args.name, Name::Role(_))
        && let Err(error) = interrupt::watch()
    {
        eprintln!("jet-bench: cannot wait for signals: {error}");
        return ExitCode::from(2);
    }
    let rows: Result<Vec<Row>, Box<dyn std::error::Error>> = match args.name {
        Name::Core => Ok(core_cost::run(args.samples)),
        Name::E2e { fabric, set } => match fabric.as_deref() {
            Some(fabric) => e2e::run(args.samples, &[fabric], &set),
            None => e2e::run(args.samples, &["shm", "tcp"], &set),
        },
        Name::Stream(shape) => stream::run(args.samples, &shape),
        Name::Checksums { fabric } => match fabric.as_deref() {
            Some(fabric) => checksums::run(args.samples, &[fabric]),
            None => checksums::run(args.samples, &["shm", "tcp"]),
        },
        Name::Connections => connections::run(args.samples),
        Name::Cache { only } => cache::run(args.samples, &only),
        Name::Idle => connections::idle(args.samples),
        Name::Membw(asked) => membw::run(args.samples, asked),
        Name::Residency(asked) => residency::run(args.samples, &asked),
        Name::Escape(parts) => escape::run(args.samples, &parts),
        #[cfg(feature = "verbs")]
        Name::Verbs { only } => verbs::run(args.samples, &only),
        #[cfg(not(feature = "verbs"))]
        Name::Verbs { .. } => {
            Err("this build has no RDMA; build it with --features verbs (docs/rdma.md)".into())
        }
        Name::Role(role) => return rig::live(&role),
        Name::Handoff => handoff::run(args.samples).map_err(Into::into),
    };
    match rows {
        Ok(rows) => {
            let hold = report::print(&rows, args.json);
            if args.check && !hold { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            eprintln!("jet-bench: {error}");
            ExitCode::from(2)
        }
    }
}

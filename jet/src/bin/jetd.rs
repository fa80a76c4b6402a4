//! The daemon `jetd`.

use clap::Parser;
use jet::daemon::{DaemonArgs, run_from_args};
use std::process::ExitCode;

/// Jet's receiver on this host: keeps arriving data in the last-level cache and hands it to local applications.
#[derive(Parser)]
#[command(name = "jetd", version, about)]
struct Args {
    #[command(flatten)]
    daemon: DaemonArgs,
}

fn main() -> ExitCode {
    run_from_args(&Args::parse().daemon)
}

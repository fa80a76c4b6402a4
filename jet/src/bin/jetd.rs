//! Program `jetd`: the daemon, Jet's receiver on a host.

#![deny(clippy::print_stderr, clippy::print_stdout)]

use clap::Parser;
use jet::commands::ignore_file_size_signal;
use jet::daemon::{DaemonArgs, run_from_args};
use jet::{log, output};
use std::process::ExitCode;

/// Jet's receiver on this host: keeps arriving data in the last-level cache and hands it to local
/// applications.
#[derive(Parser)]
#[command(name = "jetd", version)]
struct Args {
    #[command(flatten)]
    daemon: DaemonArgs,
}

fn main() -> ExitCode {
    ignore_file_size_signal();
    let _log = log::start("jetd");
    match output::command_line::<Args>() {
        Ok(args) => output::exit_code(run_from_args(&args.daemon)),
        Err(code) => code,
    }
}

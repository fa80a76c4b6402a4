//! What the tool `jet` does, a file a subcommand.

mod cache;
mod daemon;
mod drain;
mod recv;
mod send;
mod signals;
pub(crate) mod status;
pub(crate) mod text;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use signals::wait_readable;
pub use signals::{Signals, unblock as unblock_signals};

/// Receives from remote hosts by RDMA into a pool that stays in the cache, and hands the bytes to applications here.
#[derive(Debug, Parser)]
#[command(name = "jet", version, about, long_about = None, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  jet demo                                             all of it on this host, with a table at the end
  jet daemon --listen tcp:0.0.0.0:7450 &               the receiver, on the receiving host
  jet recv --app store --out /data/incoming &          an application that writes files
  jet send --to tcp:host:7450 --app store photos/      from another host
  jet status                                           what the daemon does now";

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the receiver of this host (the same as jetd).
    Daemon(daemon::Args),
    /// Sends files and directories to an application behind a daemon.
    Send(send::Args),
    /// Receives files as an application of this host's daemon.
    Recv(recv::Args),
    /// Shows the state and the counters of this host's daemon.
    Status(status::Args),
    /// Shows, plans, makes and gives back reservations of the last-level cache.
    Cache(cache::Args),
    /// Lets this host's daemon finish what it has and stop.
    Drain(drain::Args),
    /// Runs daemon, receiver and senders on this host, and checks every file.
    Demo(crate::demo::Args),
}

/// The tool: reads the command line and does what it says.
pub fn main() -> ExitCode {
    let code = match Cli::parse().command {
        Command::Daemon(args) => daemon::run(&args),
        Command::Send(args) => send::run(args),
        Command::Recv(args) => recv::run(args),
        Command::Status(args) => status::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Demo(args) => crate::demo::run(&args),
    };
    if PRINTING_FAILED.load(Ordering::Relaxed) { ExitCode::FAILURE } else { code }
}

/// Says what went wrong, and gives the exit code for it.
pub(crate) fn fail(error: impl std::fmt::Display) -> ExitCode {
    eprintln!("jet: {error}");
    ExitCode::FAILURE
}

/// Whether something could not be printed, for [`main`].
static PRINTING_FAILED: AtomicBool = AtomicBool::new(false);

/// Prints a JSON object on a line of its own; otherwise as [`print`].
pub(crate) fn print_json(value: &serde_json::Value) {
    print(&format!("{value}\n"));
}

/// Prints text. A reader that went away is no error: what was asked is done. Other failures make the exit code 1.
pub(crate) fn print(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("jet: cannot print to stdout: {error}");
            PRINTING_FAILED.store(true, Ordering::Relaxed);
        }
        Ok(()) | Err(_) => {}
    }
}

/// Seconds from the command line: decimals are allowed, up to a year.
pub(crate) fn seconds(text: &str) -> Result<std::time::Duration, String> {
    const YEAR_S: f64 = 366.0 * 86_400.0;
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=YEAR_S).contains(&seconds) => Ok(std::time::Duration::from_secs_f64(seconds)),
        _ => Err("write seconds, as 30 or 0.5".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seconds_have_decimals_and_an_end() {
        assert_eq!(seconds("0.5"), Ok(std::time::Duration::from_millis(500)));
        for bad in ["", "-1", "NaN", "inf", "1e99", "5s"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}

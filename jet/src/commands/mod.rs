//! What the tool `jet` does, a file a subcommand.

mod cache;
mod daemon;
mod drain;
mod recv;
mod send;
mod signals;
pub(crate) mod status;

use crate::{log, output};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

pub(crate) use crate::output::{print, print_json};
pub(crate) use signals::wait_readable;
pub use signals::{Signals, ignore_file_size_signal};

/// Receives from remote hosts by RDMA into a pool that stays in the cache, and hands the bytes to
/// applications here.
#[derive(Debug, Parser)]
#[command(name = "jet", version, after_help = EXAMPLES)]
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
    ignore_file_size_signal();
    // What the daemon says is the daemon's, whatever it was started as.
    let is_daemon = std::env::args_os().nth(1).is_some_and(|word| word == "daemon");
    let _log = log::start(if is_daemon { "jetd" } else { "jet" });
    let cli = match output::command_line::<Cli>() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let code = match cli.command {
        Command::Daemon(args) => daemon::run(&args),
        Command::Send(args) => send::run(args),
        Command::Recv(args) => recv::run(args),
        Command::Status(args) => status::run(&args),
        Command::Cache(args) => cache::run(&args),
        Command::Drain(args) => drain::run(&args),
        Command::Demo(args) => crate::demo::run(&args),
    };
    output::exit_code(code)
}

/// Says what went wrong, and gives the exit code for it.
pub(crate) fn fail(error: impl std::fmt::Display) -> ExitCode {
    tracing::error!("{error}");
    ExitCode::FAILURE
}

/// An admission class from the command line.
pub(crate) fn class(text: &str) -> Result<u8, String> {
    let class = text.parse().ok().filter(|&class| usize::from(class) < jet_core::CLASSES_MAX);
    class.ok_or_else(|| format!("write a class from 0, the most urgent, to {}", jet_core::CLASSES_MAX - 1))
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
    fn classes_are_those_that_there_can_be() {
        assert_eq!((class("0"), class("7")), (Ok(0), Ok(7)));
        for bad in ["8", "255", "256", "-1", ""] {
            assert!(class(bad).unwrap_err().contains("0, the most urgent, to 7"), "{bad}");
        }
    }

    #[test]
    fn the_tool_says_what_it_does_and_not_what_the_crate_is() {
        let help = Cli::command().render_help().to_string();
        assert!(help.starts_with("Receives from remote hosts by RDMA"), "{help}");
    }

    #[test]
    fn seconds_have_decimals_and_an_end() {
        assert_eq!(seconds("0.5"), Ok(std::time::Duration::from_millis(500)));
        for bad in ["", "-1", "NaN", "inf", "1e99", "5s"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}

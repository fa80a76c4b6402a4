//! The tool `jet`: its command line, with a module for each subcommand.

mod admin;
mod cache;
mod daemon;
mod drain;
mod keys;
pub(crate) mod log_lines;
mod recv;
mod reload;
mod send;
mod signals;
pub(crate) mod status;

use crate::{log, output};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

pub(crate) use crate::output::{print, print_json};
pub use drain::DrainReport;
pub use keys::{
    AuthorityReport, NewKeyReport, PeerReport, RevokeReport, RevokedReport, ShowReport, SignReport,
    TrustReport,
};
pub use reload::ReloadReport;
pub(crate) use signals::wait_readable;
pub use signals::{Signals, ignore_file_size_signal};

/// Receives from remote hosts by RDMA into a pool that stays in the cache, and hands the bytes to
/// applications on this host.
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
  jet status                                           what the daemon does now
  jet keys new /etc/jet/jetd.key                       a key by which others know this host";

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the receiver of this host (the same as jetd).
    Daemon(daemon::Args),
    // The help of those without a line here is that of their arguments, in short and at length.
    Send(send::Args),
    Recv(recv::Args),
    Status(status::Args),
    Cache(cache::Args),
    Drain(drain::Args),
    Reload(reload::Args),
    Keys(keys::Args),
    Demo(crate::demo::Args),
}

/// Runs the tool `jet`: reads the command line, runs the subcommand that it names, and returns the exit code.
pub fn main() -> ExitCode {
    ignore_file_size_signal();
    // The daemon's log lines name `jetd`, also when the daemon was started as `jet daemon`.
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
        Command::Reload(args) => reload::run(&args),
        Command::Keys(args) => keys::run(&args),
        Command::Demo(args) => crate::demo::run(&args),
    };
    output::exit_code(code)
}

/// Logs an error, and returns the exit code of a failure.
pub(crate) fn fail(error: impl std::fmt::Display) -> ExitCode {
    tracing::error!("{error}");
    ExitCode::FAILURE
}

/// Reads an admission class from a command-line argument.
pub(crate) fn class(text: &str) -> Result<u8, String> {
    let class = text.parse().ok().filter(|&class| usize::from(class) < jet_core::CLASSES_MAX);
    class.ok_or_else(|| format!("write a class from 0, the most urgent, to {}", jet_core::CLASSES_MAX - 1))
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
    fn the_help_of_a_command_tells_what_its_arguments_say_at_length() {
        let mut command = Cli::command();
        for (name, part) in [("send", "Holes of sparse files stay holes"), ("recv", "no symbolic link is")] {
            let help = command.find_subcommand_mut(name).expect("it is there").render_long_help().to_string();
            assert!(help.contains(part), "{help}");
        }
        let overview = command.render_help().to_string();
        assert!(overview.contains("  send    Sends files and directories to"), "{overview}");
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
}

//! Subcommand `jet daemon`: runs the daemon, as the program `jetd` does.

use std::process::ExitCode;

/// Options of the daemon, the same as those of `jetd`.
pub(super) type Args = crate::daemon::DaemonArgs;

pub(super) fn run(args: &Args) -> ExitCode {
    crate::daemon::run_from_args(args)
}

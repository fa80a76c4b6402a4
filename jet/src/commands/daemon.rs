//! `jet daemon`: the same as `jetd`.

use std::process::ExitCode;

/// The daemon's own options.
pub(super) type Args = crate::daemon::DaemonArgs;

pub(super) fn run(args: &Args) -> ExitCode {
    crate::daemon::run_from_args(args)
}

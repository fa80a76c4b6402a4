//! Subcommand `jet reload`: lets this host's daemon read the rights in its configuration again.

use super::admin::AdminSocket;
use super::{print, print_json};
use jet_control::{ControlRequest, ControlResponse};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Lets this host's daemon read the rights in its configuration again.
///
/// Applications that the rights do not allow any more lose their sessions. All else in the configuration
/// counts from the daemon's next start on. Where the configuration is invalid, nothing changes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  jet reload\n  jet reload --control-socket /run/jet-mlx5_0/jetd.sock")]
pub(super) struct Args {
    #[command(flatten)]
    socket: AdminSocket,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
}

/// Report that `jet reload --json` prints (docs/json.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Always `true`: the rights were read again.
    pub reloaded: bool,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let expected = |answer| matches!(answer, ControlResponse::Reloaded {}).then_some(());
    match args.socket.ask(&ControlRequest::Reload, expected) {
        Ok(()) if args.json => print_json(&ReloadReport { reloaded: true }),
        Ok(()) => print("the daemon has read its rights again\n"),
        Err(code) => return code,
    }
    ExitCode::SUCCESS
}

//! Subcommand `jet drain`: lets this host's daemon finish the messages that it has, and then stop.

use super::admin::AdminSocket;
use super::{print, print_json};
use crate::values::parse_span_or_seconds;
use jet_control::{ControlRequest, ControlResponse};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::time::Duration;

/// Lets this host's daemon finish the messages that it has, and then stop.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  jet drain\n  jet drain --deadline 5 --json")]
pub(super) struct Args {
    #[command(flatten)]
    socket: AdminSocket,
    /// Time after which the daemon stops anyway, in seconds or as 500ms [default: its shutdown.drain_ms; if
    /// it drains already, the deadline that it has].
    #[arg(long, value_name = "SPAN", value_parser = parse_span_or_seconds)]
    deadline: Option<Duration>,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
}

/// Report that `jet drain --json` prints (docs/json.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// Always `true`: the daemon drains.
    pub draining: bool,
    /// Milliseconds after which the daemon stops even if messages are unfinished.
    pub deadline_ms: u64,
    /// Whether the daemon drained already before this request.
    pub again: bool,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let deadline_ms = args.deadline.map(|deadline| u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
    let expected = |answer| match answer {
        ControlResponse::Draining { deadline_ms, again } => Some((deadline_ms, again)),
        _ => None,
    };
    match args.socket.ask(&ControlRequest::Drain { deadline_ms }, expected) {
        Ok((deadline_ms, again)) if args.json => {
            print_json(&DrainReport { draining: true, deadline_ms, again });
        }
        Ok((deadline_ms, again)) => {
            let already = if again { " already" } else { "" };
            let seconds = Duration::from_millis(deadline_ms).as_secs_f64();
            print(&format!("the daemon drains{already}; it stops within {seconds} s\n"));
        }
        Err(code) => return code,
    }
    ExitCode::SUCCESS
}

//! Subcommand `jet status`: shows the state and the counters of this host's daemon.

mod cache;
mod legend;
mod page;
mod pressure;
mod rdma;

use super::{fail, print, print_json};
use crate::values::parse_span_or_seconds;
use jet_control::connection::StatusError;
use jet_control::status::Status;
use jet_control::{CONTROL_SOCKET, ControlConnection};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time between two requests for the status while `--wait-whole` waits for the pool.
const LOOK: Duration = Duration::from_millis(20);

/// Shows the state and the counters of this host's daemon.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  jet status
  jet status --legend            what each line and column means
  jet status --json | jq .pool
  jet status --wait-whole 5      exit code 1 where slabs are still out after 5 s")]
pub(super) struct Args {
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET)]
    control_socket: PathBuf,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
    /// Explain each line and column that this command prints, without asking a daemon.
    #[arg(long, conflicts_with_all = ["json", "wait_whole"])]
    legend: bool,
    /// Wait until every slab of the pool is free or posted, for at most this long, in seconds or as 500ms.
    #[arg(long, value_name = "SPAN", value_parser = parse_span_or_seconds)]
    wait_whole: Option<Duration>,
}

/// Asks a daemon for its status, with only the first page of rows.
pub(crate) fn ask(control_socket: &Path) -> Result<Status, StatusError> {
    ControlConnection::connect(control_socket)?.first_page()
}

/// Asks a daemon for its status, with all rows.
fn ask_for_all(control_socket: &Path) -> Result<Status, StatusError> {
    ControlConnection::connect(control_socket)?.status()
}

pub(super) fn run(args: &Args) -> ExitCode {
    if args.legend {
        print(&legend::legend());
        return ExitCode::SUCCESS;
    }
    let deadline = args.wait_whole.map(|wait| Instant::now() + wait);
    let status = loop {
        // The page for people lists only some rows of each kind. Programs get all rows.
        let answer = if args.json { ask_for_all(&args.control_socket) } else { ask(&args.control_socket) };
        let status = match answer {
            Ok(status) => status,
            Err(error) => return fail(error),
        };
        match deadline {
            Some(deadline) if !status.pool.whole && Instant::now() < deadline => {
                // The daemon gives no notice when a slab comes back, so ask again.
                std::thread::sleep(LOOK);
            }
            _ => break status,
        }
    };
    if args.json {
        print_json(&status);
    } else {
        print(&page::page(&status));
    }
    if deadline.is_some() && !status.pool.whole {
        let pool = &status.pool;
        return fail(format_args!(
            "{} slabs are held by large and {} by small messages, {} by dead applications",
            pool.read, pool.small_held, pool.quarantined
        ));
    }
    ExitCode::SUCCESS
}

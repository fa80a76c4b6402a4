//! `jet status`.

mod cache;
mod page;
mod pressure;
mod rdma;

use super::{fail, print, print_json, seconds};
use jet_control::connection::StatusError;
use jet_control::status::Status;
use jet_control::{CONTROL_SOCKET, ControlConnection};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between two looks with --wait-whole.
const LOOK: Duration = Duration::from_millis(20);

/// Shows the state and the counters of this host's daemon.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  jet status
  jet status --json | jq .pool
  jet status --wait-whole 5      exit code 1 where slabs are still out after 5 s")]
pub(super) struct Args {
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET)]
    control_socket: PathBuf,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
    /// Wait, at most so long, until every slab of the pool is free or posted.
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    wait_whole: Option<Duration>,
}

/// Asks a daemon how things stand, with the first of its rows.
pub(crate) fn ask(control_socket: &Path) -> Result<Status, StatusError> {
    ControlConnection::connect(control_socket)?.status_in_short()
}

/// Asks for all rows.
fn ask_for_all(control_socket: &Path) -> Result<Status, StatusError> {
    ControlConnection::connect(control_socket)?.status()
}

pub(super) fn run(args: &Args) -> ExitCode {
    let deadline = args.wait_whole.map(|wait| Instant::now() + wait);
    let status = loop {
        // People are shown some rows of each kind. All of them are for programs.
        let answer = if args.json { ask_for_all(&args.control_socket) } else { ask(&args.control_socket) };
        let status = match answer {
            Ok(status) => status,
            Err(error) => return fail(error),
        };
        match deadline {
            Some(deadline) if !status.pool.whole && Instant::now() < deadline => {
                // The daemon tells nobody when a slab comes back, so look again.
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

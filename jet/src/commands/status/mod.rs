//! `jet status`.

mod cache;
mod page;
mod pressure;
mod rdma;

use super::{fail, print, print_json, seconds};
use jet_client::registration::{CONTROL_SOCKET, ControlConnection, StatusError};
use serde_json::Value;
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

/// Asks a daemon.
pub(crate) fn ask(control_socket: &Path) -> Result<Value, StatusError> {
    ControlConnection::connect(control_socket)?.status()
}

/// A number in a status, 0 where there is none.
pub(crate) fn number(status: &Value, pointer: &str) -> u64 {
    status.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// Whether no slab is held.
pub(crate) fn is_whole(status: &Value) -> bool {
    status.pointer("/pool/whole").and_then(Value::as_bool) == Some(true)
}

pub(super) fn run(args: &Args) -> ExitCode {
    let deadline = args.wait_whole.map(|wait| Instant::now() + wait);
    let status = loop {
        let status = match ask(&args.control_socket) {
            Ok(status) => status,
            Err(error) => return fail(error),
        };
        match deadline {
            Some(deadline) if !is_whole(&status) && Instant::now() < deadline => {
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
    if deadline.is_some() && !is_whole(&status) {
        return fail(format_args!(
            "{} slabs are held by large and {} by small messages, {} by dead applications",
            number(&status, "/pool/read"),
            number(&status, "/pool/small_held"),
            number(&status, "/pool/quarantined")
        ));
    }
    ExitCode::SUCCESS
}

/// A word in a status.
fn word<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("?")
}

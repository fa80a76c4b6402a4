//! `jet send`.

use super::{Signals, fail, print, print_json, seconds, text};
use crate::files::sending::{Event, Link, MESSAGES_MAX, Options, Sending, Sent};
use crate::files::walk::Walk;
use jet_client::send::{RetryPolicy, SendConnectError, Sender, SenderOptions};
use jet_fabric::Address;
use std::io::{IsTerminal, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between two attempts to connect for the first time.
const CONNECT_BACKOFF_FIRST: Duration = Duration::from_millis(20);
const CONNECT_BACKOFF_MAX: Duration = Duration::from_secs(1);
/// The shell's code for a process that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// Sends files and directories.
///
/// A directory is called by its last component at the receiver, with everything in it below; `.` sends the contents
/// alone. A file counts as sent when the receiver has written every byte of it and given it its name. Symbolic links
/// and devices in a directory are left out and counted; given by name, a device or a pipe is an error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  jet send --to tcp:host:7450 --app store photos/ notes.txt
  jet send --to shm:/run/jet/nic.sock --app store --in-flight 8 --json .

Exit code: 0 all sent, 1 something was not, 2 the command line is no good.")]
pub(super) struct Args {
    /// Where the receiver's daemon listens: tcp:host:port, rdma:host:port or shm:/path.
    #[arg(long, value_name = "ADDR")]
    to: Address,
    /// The address of this host that an rdma: connection leaves from, and so its device.
    #[arg(long, value_name = "IP")]
    from: Option<IpAddr>,
    /// The type of service of an rdma: connection's packets, as in IP: 104 is DSCP 26.
    #[arg(long, value_name = "N")]
    tos: Option<u8>,
    /// The application there, as `jet recv --app` calls it.
    #[arg(long, value_name = "NAME", value_parser = super::recv::app_name)]
    app: String,
    /// What to send.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// How long a receiver that is away or busy is tried again.
    #[arg(long, value_name = "SECS", default_value = "30", value_parser = seconds)]
    retry_for: Duration,
    /// Large pieces in flight; each takes --piece-bytes of memory.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=200))]
    in_flight: u16,
    /// Bytes of a large piece.
    #[arg(long, value_name = "N", default_value_t = 8 << 20,
          value_parser = clap::value_parser!(u32).range(4097..=1 << 30))]
    piece_bytes: u32,
    /// Admission class of large pieces, 0 the most urgent.
    #[arg(long, value_name = "N", default_value_t = 0)]
    class: u8,
    /// Let the receiver check a CRC32C of every message.
    #[arg(long)]
    crc: bool,
    /// Say each file that was sent, on stderr.
    #[arg(long, short)]
    verbose: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Show a progress line on stderr (the default where it is a terminal).
    #[arg(long, overrides_with = "no_progress")]
    progress: bool,
    /// Show none.
    #[arg(long)]
    no_progress: bool,
}

pub(super) fn run(args: Args) -> ExitCode {
    let walk = match Walk::new(&args.paths) {
        Ok(walk) => walk,
        Err(error) => return fail(error),
    };
    let signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => return fail(format_args!("cannot wait for signals: {error}")),
    };
    let sender = match connect(&args, &signals) {
        Ok(Some(sender)) => sender,
        Ok(None) => return ExitCode::from(INTERRUPTED),
        Err(error) => return fail(error),
    };
    let options = Options {
        in_flight: usize::from(args.in_flight),
        piece_bytes: args.piece_bytes as usize,
        class: args.class,
    };
    let mut line = ProgressLine::new(args.progress || (!args.no_progress && std::io::stderr().is_terminal()));
    let verbose = args.verbose;
    let mut tell = |event: Event<'_>| match event {
        Event::FileSent { path, bytes } if verbose => {
            line.say(format_args!("{path}: {}", text::bytes(bytes)));
        }
        Event::FileSent { .. } => {}
        Event::FileFailed(failure) => {
            line.say(format_args!("jet: {} was not sent: {}", failure.path, failure.error));
        }
        Event::Skipped { source, what } if verbose => {
            line.say(format_args!("{} is left out: {what}", source.display()));
        }
        Event::Skipped { .. } => {}
        Event::Link(link) => line.say(format_args!("jet: {}", link_text(&args, link))),
        Event::Tick(sent) => line.show(sent),
    };
    let interrupted = std::cell::Cell::new(false);
    let stop = || {
        if signals.take().is_some() {
            interrupted.set(true);
            eprintln!("jet: giving up what is not sent; once more to leave at once");
            // A second one ends the process at once.
            let _ = super::signals::unblock();
        }
        interrupted.get()
    };
    let sent = Sending::new(options, sender, walk, &mut tell).run(stop);
    line.clear();
    match sent {
        Ok(sent) => report(&args, &sent),
        Err(error) => fail(error),
    }
}

fn link_text(args: &Args, link: Link) -> String {
    let Args { to, app, .. } = args;
    let retry_for_s = args.retry_for.as_secs_f64();
    match link {
        Link::Lost => format!("connection to {to} lost; trying again for {retry_for_s} s"),
        Link::Back => format!("connection to {to} is back"),
        Link::Refused => format!(
            "messages are refused (no application '{app}' is registered at {to}, or it is busy or the daemon ends); \
             trying again for {retry_for_s} s"
        ),
        Link::Consumed => format!("'{app}' at {to} takes messages again"),
        Link::Unchecked => {
            format!("{to} checks no checksums (its read.checksums is \"off\"): what is sent goes without")
        }
    }
}

/// `None`: interrupted.
fn connect(args: &Args, signals: &Signals) -> Result<Option<Sender>, SendConnectError> {
    let mut options = SenderOptions::new(args.to.clone(), args.app.clone());
    options.source = args.from;
    options.rdma.tos = args.tos;
    options.in_flight_max = MESSAGES_MAX;
    options.window_bytes = options.window_bytes.max(u64::from(args.in_flight) * u64::from(args.piece_bytes));
    options.reconnect_for = args.retry_for;
    options.retry = RetryPolicy::all_for_ns(u64::try_from(args.retry_for.as_nanos()).unwrap_or(u64::MAX));
    options.crc = args.crc;
    // A NIC registers a bounded number of regions: few of them hold all pieces.
    let pieces_per_region = usize::from(args.in_flight).div_ceil(16);
    options.region_bytes = (args.piece_bytes as usize).next_power_of_two() * pieces_per_region;
    let deadline = Instant::now() + args.retry_for;
    let mut backoff = CONNECT_BACKOFF_FIRST;
    let mut told = false;
    loop {
        let error = match Sender::connect(options.clone()) {
            Ok(sender) => return Ok(Some(sender)),
            Err(error) => error,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if !error.is_passing() || left.is_zero() {
            return Err(error);
        }
        if !std::mem::replace(&mut told, true) {
            eprintln!("jet: {error}; trying again for {} s", args.retry_for.as_secs_f64());
        }
        if signals.wait(backoff.min(left)).unwrap_or(false) {
            return Ok(None);
        }
        backoff = (backoff * 2).min(CONNECT_BACKOFF_MAX);
    }
}

/// A line on stderr that is written over.
struct ProgressLine {
    shown: bool,
    on: bool,
}

impl ProgressLine {
    fn new(on: bool) -> Self {
        Self { shown: false, on }
    }

    fn show(&mut self, sent: &Sent) {
        if self.on {
            let bytes = text::bytes(sent.bytes);
            let rate = text::rate(sent.bytes_per_s());
            eprint!("\r\x1b[K{} files, {bytes}, {rate}", sent.files);
            let _ = std::io::stderr().flush();
            self.shown = true;
        }
    }

    fn say(&mut self, what: std::fmt::Arguments<'_>) {
        self.clear();
        eprintln!("{what}");
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[K");
        }
    }
}

fn report(args: &Args, sent: &Sent) -> ExitCode {
    let latency = sent.latency.quantiles();
    if args.json {
        print_json(&serde_json::json!({
            "to": args.to.to_string(),
            "app": args.app,
            "files": sent.files,
            "directories": sent.directories,
            "failed": sent.failed,
            "not_tried": sent.not_tried,
            "total": sent.total(),
            "skipped": sent.skipped,
            "bytes": sent.bytes,
            "messages": sent.messages,
            "seconds": sent.seconds,
            "bytes_per_s": sent.bytes_per_s(),
            "latency_ns": latency,
            "latency_counts": sent.latency.counts(),
            "ends": sent.ends,
            "refused": sent.ends.refused(),
            "redelivered": sent.redelivered,
            "retried": sent.retried,
            "unchecked": sent.unchecked,
            "failures": sent.failures,
            "stopped": sent.stopped,
        }));
    } else {
        let mut rows = vec![
            ("files", sent.files.to_string()),
            ("directories", sent.directories.to_string()),
            ("bytes", format!("{} ({})", sent.bytes, text::bytes(sent.bytes))),
            ("messages", sent.messages.to_string()),
            ("throughput", format!("{} over {:.2} s", text::rate(sent.bytes_per_s()), sent.seconds)),
            (
                "latency",
                format!(
                    "p50 {}, p99 {}, p99.9 {}",
                    text::span_ns(latency.p50),
                    text::span_ns(latency.p99),
                    text::span_ns(latency.p999)
                ),
            ),
            (
                "messages again",
                format!(
                    "refused {}, redelivered {}, retried {}",
                    sent.ends.refused(),
                    sent.redelivered,
                    sent.retried
                ),
            ),
        ];
        if sent.skipped > 0 {
            rows.push(("left out", format!("{} (links, devices; -v names them)", sent.skipped)));
        }
        if sent.failed > 0 {
            rows.push(("not sent", format!("{} files or directories, see above", sent.failed)));
        }
        if sent.not_tried > 0 {
            rows.push((
                "not tried",
                format!("{} files or directories, of {} in all", sent.not_tried, sent.total()),
            ));
        }
        print(&text::rows(&rows));
    }
    if let Some(why) = &sent.stopped {
        eprintln!("jet: stopped before everything was tried: {why}");
    }
    if sent.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

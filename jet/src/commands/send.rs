//! Subcommand `jet send`: sends files and directories to an application behind a daemon.

use super::{Signals, fail, print, print_json};
use crate::backoff::Backoff;
use crate::files::proof::{BLOCK_BYTES, Hash};
use crate::files::sending::{Event, GIVE_UP_MAX, Link, MESSAGES_MAX, Options, Sending, Sent};
use crate::files::walk::Walk;
use crate::log::ASKED_FOR;
use crate::progress::{self, Progress};
use crate::text;
use crate::values::parse_span_or_seconds;
use jet_client::send::{RetryPolicy, SendConnectError, Sender, SenderOptions};
use jet_fabric::Address;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Shortest wait between two attempts to make the first connection.
const CONNECT_BACKOFF_FIRST: Duration = Duration::from_millis(20);
/// Longest wait between two attempts to make the first connection.
const CONNECT_BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Shortest time limit of the first attempt to connect, used if `--retry-for` is shorter.
const CONNECT_ONCE: Duration = Duration::from_secs(1);
/// Exit code that shells use for a process that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// Sends files and directories to an application behind a daemon.
///
/// At the receiver, a directory has the last component of its path as its name, and its contents lie below;
/// `.` sends the contents alone. A file counts as sent when the receiver has written every byte of it, has
/// proven that, and has given it its name. Holes of sparse files stay holes. A file that changes while it is
/// sent is sent again, a few times at most. Symbolic links and devices in a directory are left out and
/// counted. A device or a pipe that is given by name is an error.
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
    /// The address of this host from which an rdma: connection leaves; it also selects the device.
    #[arg(long, value_name = "IP")]
    from: Option<IpAddr>,
    /// The type of service in the IP headers of an rdma: connection's packets; 104 is DSCP 26.
    #[arg(long, value_name = "N")]
    tos: Option<u8>,
    /// The name of the receiving application, as given to `jet recv --app`.
    #[arg(long, value_name = "NAME", value_parser = super::recv::app_name)]
    app: String,
    /// The files and directories to send.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// How long to try again if the receiver is away or busy, in seconds or as 500ms.
    #[arg(long, value_name = "SPAN", default_value = "30", value_parser = parse_span_or_seconds)]
    retry_for: Duration,
    /// Limit of large pieces in flight; each takes --piece-bytes of memory.
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(1..=200))]
    in_flight: u16,
    /// Bytes of a large piece, rounded up to a multiple of 4 KiB; fewer if the receiver takes only shorter
    /// messages.
    #[arg(long, value_name = "N", default_value_t = 8 << 20,
          value_parser = clap::value_parser!(u32).range(4097..=1 << 30))]
    piece_bytes: u32,
    /// Admission class of large pieces, 0 the most urgent.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::class)]
    class: u8,
    /// The hash by which the receiver proves that a file is complete, and has the bytes that were read.
    ///
    /// fast: 128 bits of XXH3, against accidents. blake3: also against people who may choose the files'
    /// bytes; it takes many times as long. off: no hash; the receiver only accounts for every byte. Nobody
    /// then notices bytes that were damaged between the disks (but see --crc). If the receiver is started
    /// again in the middle of a file, all of the file is sent again.
    #[arg(long, value_name = "HASH", default_value = "fast")]
    proof: ProofBy,
    /// Let the receiver check a CRC32C of every message.
    #[arg(long)]
    crc: bool,
    /// Log each file that was sent, is sent again, or is left out, on stderr.
    #[arg(long, short)]
    verbose: bool,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: super::log_lines::LogLines,
    /// Show a progress line on stderr (the default where it is a terminal).
    #[arg(long, overrides_with = "no_progress")]
    progress: bool,
    /// Show no progress line.
    #[arg(long)]
    no_progress: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ProofBy {
    Fast,
    Blake3,
    Off,
}

impl ProofBy {
    fn hash(self) -> Option<Hash> {
        match self {
            Self::Fast => Some(Hash::Fast),
            Self::Blake3 => Some(Hash::Blake3),
            Self::Off => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Blake3 => "blake3",
            Self::Off => "off",
        }
    }
}

impl Args {
    /// Returns the length of a large piece in bytes, rounded up to whole blocks.
    fn piece_bytes(&self) -> usize {
        (self.piece_bytes as usize).next_multiple_of(BLOCK_BYTES)
    }
}

pub(super) fn run(args: Args) -> ExitCode {
    args.log.apply();
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
        piece_bytes: args.piece_bytes(),
        class: args.class,
        proof: args.proof.hash(),
    };
    let progress = args.progress || (!args.no_progress && progress::is_watched());
    let progress = if progress { Progress::of_unknown_length() } else { Progress::hidden() };
    let verbose = args.verbose;
    let mut tell = |event: Event<'_>| match event {
        Event::FileSent { path, bytes } if verbose => {
            tracing::info!(target: ASKED_FOR, "{path}: {}", text::bytes(bytes));
        }
        Event::FileSent { .. } => {}
        Event::FileFailed(failure) => {
            tracing::error!(target: ASKED_FOR, "{} was not sent: {}", failure.path, failure.error);
        }
        Event::Again { path, why } if verbose => {
            tracing::info!(target: ASKED_FOR, "{path} is sent again from its beginning: {why}");
        }
        Event::Again { .. } => {}
        Event::Shorter { max } => tracing::warn!(
            "the receiver takes messages of at most {max} bytes (its read.message_bytes_max), less than \
             --piece-bytes: sending shorter pieces"
        ),
        Event::Skipped { source, what } if verbose => {
            tracing::info!(target: ASKED_FOR, "{} is left out: {what}", source.display());
        }
        Event::Skipped { .. } => {}
        Event::NotTaken(why) => tracing::error!(
            "{why}. The connection is lost until then; trying again for {} s",
            args.retry_for.as_secs_f64()
        ),
        Event::Link(link) => log_link(&args, link),
        Event::Tick(sent) => progress.set(sent.bytes, format!("{} files", sent.files)),
    };
    let interrupted = std::cell::Cell::new(false);
    let stop = || {
        if signals.take().is_some() {
            interrupted.set(true);
            tracing::info!(
                "giving up what is not sent; leaving in {} s at the latest; a second signal ends it at once",
                GIVE_UP_MAX.as_secs()
            );
            signals.let_the_next_end();
        }
        interrupted.get()
    };
    let sent = Sending::new(options, sender, walk, &mut tell).run(stop);
    drop(progress);
    match sent {
        Ok(sent) => report(&args, &sent),
        Err(error) => fail(error),
    }
}

fn log_link(args: &Args, link: Link) {
    let Args { to, app, .. } = args;
    let retry_for_s = args.retry_for.as_secs_f64();
    match link {
        Link::Lost => tracing::warn!("connection to {to} lost; trying again for {retry_for_s} s"),
        Link::LeftInVain => tracing::warn!(
            "{to} is there, but no message had an end for long, and it named nothing that they wait for: \
             connecting again"
        ),
        Link::Waits(what) => tracing::warn!("'{app}' at {to} takes nothing: {what}; waiting for it"),
        Link::Back => tracing::info!("connection to {to} is back"),
        Link::Refused => tracing::warn!(
            "messages are refused (no application '{app}' is registered at {to}, or it is busy or the daemon \
             ends); trying again for {retry_for_s} s"
        ),
        Link::Consumed => tracing::info!("'{app}' at {to} takes messages again"),
        Link::Unchecked => {
            tracing::warn!(
                "{to} checks no checksums (its read.checksums is \"off\"): what is sent goes without"
            );
        }
    }
}

/// Connects to the daemon. Tries again for `--retry-for` while the error may be temporary. Returns `None` if
/// a signal interrupts the wait between two attempts.
fn connect(args: &Args, signals: &Signals) -> Result<Option<Sender>, SendConnectError> {
    let mut options = SenderOptions::new(args.to.clone(), args.app.clone());
    options.source = args.from;
    options.rdma.tos = args.tos;
    options.in_flight_max = MESSAGES_MAX;
    options.window_bytes = options.window_bytes.max(u64::from(args.in_flight) * args.piece_bytes() as u64);
    options.reconnect_for = args.retry_for;
    options.retry = RetryPolicy::all_for(args.retry_for);
    options.crc = args.crc;
    // A NIC registers a bounded number of memory regions, so a few regions have to hold all pieces.
    let pieces_per_region = usize::from(args.in_flight).div_ceil(16);
    options.region_bytes = args.piece_bytes().next_power_of_two() * pieces_per_region;
    let deadline = Instant::now() + args.retry_for;
    let attempt_max = options.connect_timeout;
    // Even if there is time for one attempt only, the answer needs some time.
    options.connect_timeout = args.retry_for.clamp(CONNECT_ONCE, attempt_max);
    let mut heard: Option<SendConnectError> = None;
    let mut backoff = Backoff::new(CONNECT_BACKOFF_FIRST, CONNECT_BACKOFF_MAX);
    loop {
        let error = match Sender::connect(&options.clone()) {
            Ok(sender) => return Ok(Some(sender)),
            Err(error) => error,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if !error.is_passing() || left.is_zero() {
            return Err(match error {
                // The last attempt has only the rest of the time, which may be very short. The error before
                // it says more than its timeout.
                SendConnectError::TimedOut { .. } => heard.unwrap_or(error),
                _ => error,
            });
        }
        if heard.is_none() {
            tracing::info!("{error}; trying again for {} s", args.retry_for.as_secs_f64());
        }
        heard = Some(error);
        if signals.wait(backoff.next_wait().min(left)).unwrap_or(false) {
            return Ok(None);
        }
        options.connect_timeout = deadline.saturating_duration_since(Instant::now()).min(attempt_max);
    }
}

fn report(args: &Args, sent: &Sent) -> ExitCode {
    let latency = sent.latency.quantiles();
    if args.json {
        print_json(&sent.report(args.to.to_string(), args.app.clone(), args.proof.name().to_owned()));
    } else {
        let proof = match args.proof {
            ProofBy::Off => "nothing (--proof off): damage between the disks would not be noticed",
            proof => proof.name(),
        };
        let mut rows = vec![
            ("files", sent.files.to_string()),
            ("directories", sent.directories.to_string()),
            ("bytes", format!("{} ({})", sent.bytes, text::bytes(sent.bytes))),
            ("proven by", proof.to_owned()),
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
        if sent.hole_bytes > 0 {
            rows.push(("holes", text::bytes(sent.hole_bytes)));
        }
        if sent.files_again > 0 {
            rows.push((
                "sent again",
                format!("{} files, from their beginnings (-v says why)", sent.files_again),
            ));
        }
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
        tracing::error!("stopped before everything was tried: {why}");
    }
    if sent.is_complete() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

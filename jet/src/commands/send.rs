//! `jet send`.

use super::{Signals, fail, print, print_json, seconds};
use crate::backoff::Backoff;
use crate::files::proof::{BLOCK_BYTES, Hash};
use crate::files::sending::{Event, GIVE_UP_MAX, Link, MESSAGES_MAX, Options, Sending, Sent};
use crate::files::walk::Walk;
use crate::log::ASKED_FOR;
use crate::progress::{self, Progress};
use crate::text;
use jet_client::send::{RetryPolicy, SendConnectError, Sender, SenderOptions};
use jet_fabric::Address;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between two attempts to connect for the first time.
const CONNECT_BACKOFF_FIRST: Duration = Duration::from_millis(20);
const CONNECT_BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How long an attempt may take where the time for all of them is shorter.
const CONNECT_ONCE: Duration = Duration::from_secs(1);
/// The shell's code for a process that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// Sends files and directories.
///
/// A directory is called by its last component at the receiver, with everything in it below; `.` sends the
/// contents alone. A file counts as sent when the receiver has written every byte of it, has proven that, and
/// has given it its name. Holes of sparse files stay holes. A file that changes while it is sent is sent
/// again, a few times at most. Symbolic links and devices in a directory are left out and counted; given by
/// name, a device or a pipe is an error.
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
    /// Bytes of a large piece, rounded up to whole 4 KiB; less where the receiver takes no such long
    /// messages.
    #[arg(long, value_name = "N", default_value_t = 8 << 20,
          value_parser = clap::value_parser!(u32).range(4097..=1 << 30))]
    piece_bytes: u32,
    /// Admission class of large pieces, 0 the most urgent.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::class)]
    class: u8,
    /// The hash that proves at the receiver that a file is there, and is what was read.
    ///
    /// fast: 128 bits of XXH3, against accidents. blake3: also against whoever may choose the files' bytes;
    /// it takes many times as long. off: the receiver only accounts for the bytes. Bytes that were damaged
    /// between the disks are then noticed by nobody (but see --crc), and a receiver that is started again in
    /// the middle of a file has all of it sent again.
    #[arg(long, value_name = "HASH", default_value = "fast")]
    proof: ProofBy,
    /// Let the receiver check a CRC32C of every message.
    #[arg(long)]
    crc: bool,
    /// Say each file that was sent, on stderr.
    #[arg(long, short)]
    verbose: bool,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
    /// Show a progress line on stderr (the default where it is a terminal).
    #[arg(long, overrides_with = "no_progress")]
    progress: bool,
    /// Show none.
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
    /// Pieces end where blocks do.
    fn piece_bytes(&self) -> usize {
        (self.piece_bytes as usize).next_multiple_of(BLOCK_BYTES)
    }
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
        Event::FileFailed(failure) => tracing::error!("{} was not sent: {}", failure.path, failure.error),
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
        Event::Link(link) => tell_of_link(&args, link),
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

fn tell_of_link(args: &Args, link: Link) {
    let Args { to, app, .. } = args;
    let retry_for_s = args.retry_for.as_secs_f64();
    match link {
        Link::Lost => tracing::warn!("connection to {to} lost; trying again for {retry_for_s} s"),
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

/// `None`: interrupted.
fn connect(args: &Args, signals: &Signals) -> Result<Option<Sender>, SendConnectError> {
    let mut options = SenderOptions::new(args.to.clone(), args.app.clone());
    options.source = args.from;
    options.rdma.tos = args.tos;
    options.in_flight_max = MESSAGES_MAX;
    options.window_bytes = options.window_bytes.max(u64::from(args.in_flight) * args.piece_bytes() as u64);
    options.reconnect_for = args.retry_for;
    options.retry = RetryPolicy::all_for_ns(u64::try_from(args.retry_for.as_nanos()).unwrap_or(u64::MAX));
    options.crc = args.crc;
    // A NIC registers a bounded number of regions: few of them hold all pieces.
    let pieces_per_region = usize::from(args.in_flight).div_ceil(16);
    options.region_bytes = args.piece_bytes().next_power_of_two() * pieces_per_region;
    let deadline = Instant::now() + args.retry_for;
    let attempt_max = options.connect_timeout;
    // Whoever tries once waits for an answer all the same.
    options.connect_timeout = args.retry_for.clamp(CONNECT_ONCE, attempt_max);
    let mut heard: Option<SendConnectError> = None;
    let mut backoff = Backoff::new(CONNECT_BACKOFF_FIRST, CONNECT_BACKOFF_MAX);
    loop {
        let error = match Sender::connect(options.clone()) {
            Ok(sender) => return Ok(Some(sender)),
            Err(error) => error,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if !error.is_passing() || left.is_zero() {
            return Err(match error {
                // The last attempt has the rest of the time, which may be next to nothing: what was heard
                // before says more.
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

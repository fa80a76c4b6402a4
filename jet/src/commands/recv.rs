//! Subcommand `jet recv`: receives files as an application of this host's daemon.

use super::{Signals, fail, print, print_json};
use crate::backoff::Backoff;
use crate::files::parts::Swept;
use crate::files::receiving::{Options, ReceiveReport, Received, Receiving, Served, Slow};
use crate::log::ASKED_FOR;
use crate::text;
use crate::values::parse_span_or_seconds;
use jet_client::receive::{ReceiveError, RegisterError, RegisterOptions, Session};
use jet_control::{CONTROL_SOCKET, ErrorCode};
use jet_wire::message::hello::AppName;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Shortest wait between two attempts to register with the daemon.
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
/// Longest wait between two attempts to register with the daemon.
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Time for which the first registration with the daemon is tried again, unless `--daemon-timeout` gives
/// another time.
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);

/// Receives files as an application of this host's daemon.
///
/// io_uring writes the bytes from where the NIC put them, with O_DIRECT where the file system and the
/// alignment allow it. A file gets its name when all of it is written and proven. Until then it is a hidden
/// file .jet-part-* in the same directory. Nothing is written outside --out, and no symbolic link is
/// followed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  jet recv --app store --out /data/incoming
  jet recv --app store --out /tmp/in --until-idle 2 --json
  jet recv --app store --out /data/incoming --fsync --class 1
  jet recv --app store --out /tmp/in --class 2 --memory
  jet recv --app store --out /tmp/in --slow 20ms/10,stop:3s@10s

SIGINT or SIGTERM: finishes the writes in flight and leaves; what was not finished is sent again to the next \
receiver.")]
pub(super) struct Args {
    /// The name that senders give with --app.
    #[arg(long, value_name = "NAME", value_parser = app_name)]
    app: String,
    /// The directory for the files; made if it does not exist.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET)]
    control_socket: PathBuf,
    /// Acknowledge data only once it is on the disk (fsync of the file, its directory and new directories
    /// above it).
    #[arg(long)]
    fsync: bool,
    /// Admission class of this application's messages, 0 the most urgent; a sender may ask for a less urgent
    /// one.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = super::class)]
    class: u8,
    /// Let messages take memory outside the cache instead of waiting for room in it.
    #[arg(long)]
    memory: bool,
    /// Be slow on purpose, to see what slow storage does to other applications [e.g. 5ms, 20ms/10,
    /// stop:3s@10s].
    ///
    /// SPAN holds every slice for that time before it is written, as slow storage would. SPAN/N holds one
    /// slice in N. stop:SPAN@AFTER reads nothing for SPAN, once, beginning when the time AFTER has passed
    /// since the first registration. A comma joins a hold and a stop. A time is a whole number with the unit
    /// us, ms or s. A slice is what was delivered at once, up to 256 KiB; at most half of --depth are held at
    /// a time.
    #[arg(long, value_name = "SPEC")]
    slow: Option<Slow>,
    /// Limit of writes in flight.
    #[arg(long, value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u16).range(2..=4096))]
    depth: u16,
    /// Write through the page cache, without O_DIRECT.
    #[arg(long)]
    no_direct: bool,
    /// Write with pwrite instead of io_uring.
    #[arg(long)]
    no_io_uring: bool,
    /// First remove the unfinished files (.jet-part-*) below --out that other receivers left; refused while
    /// another receiver uses --out.
    #[arg(long)]
    sweep: bool,
    /// End after one file.
    #[arg(long, conflicts_with = "count")]
    once: bool,
    /// End after this many files.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// End when nothing has arrived for this long, in seconds or as 500ms.
    #[arg(long, value_name = "SPAN", value_parser = parse_span_or_seconds)]
    until_idle: Option<Duration>,
    /// How long to wait for a daemon that is away, or for another receiver of this name that is just ending,
    /// in seconds or as 500ms [default: 10s at the start, later without end].
    #[arg(long, value_name = "SPAN", value_parser = parse_span_or_seconds)]
    daemon_timeout: Option<Duration>,
    /// Print one JSON object at the end (fields: docs/json.md).
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    log: super::log_lines::LogLines,
}

/// Reads an application's name from a command-line argument, and checks its length and characters.
pub(super) fn app_name(text: &str) -> Result<String, String> {
    AppName::new(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

pub(super) fn run(args: Args) -> ExitCode {
    args.log.apply();
    super::signals::ignore_file_size_signal();
    let signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => return fail(format_args!("cannot wait for signals: {error}")),
    };
    let options = Options {
        out: args.out.clone(),
        fsync: args.fsync,
        direct: !args.no_direct,
        io_uring: !args.no_io_uring,
        depth: usize::from(args.depth),
        files_max: if args.once { Some(1) } else { args.count },
        until_idle: args.until_idle,
        slow: args.slow.unwrap_or_default(),
    };
    // Each open file takes up to four descriptors.
    crate::descriptors::raise_limit();
    let mut receiving = match Receiving::new(options) {
        Ok(receiving) => receiving,
        Err(error) => return fail(error),
    };
    if let Some(error) = receiving.io_uring_refusal() {
        tracing::warn!("this kernel or container allows no io_uring ({error}); writing with pwrite");
    }
    if args.sweep {
        match receiving.parts().sweep() {
            Ok(swept) => log_swept(&swept),
            Err(error) => return fail(format_args!("cannot sweep {}: {error}", args.out.display())),
        }
    }
    if let Some(slow) = &args.slow {
        tracing::info!("receiving as {}, slow on purpose: {}", args.app, slow.in_words());
    }
    let began = Instant::now();
    let mut sessions = 0u64;
    let mut notices = Notices::default();
    let ended = loop {
        let session = match register(&args, &signals, sessions > 0) {
            Ok(Some(session)) => session,
            Ok(None) => break Ok("stopped"),
            Err(error) => break Err(error.to_string()),
        };
        sessions += 1;
        match receiving.serve(&session, signals.as_fd(), |receiving| notices.log(receiving)) {
            Ok(Served::Stopped) => break Ok("stopped"),
            Ok(Served::Enough) => break Ok("count"),
            Ok(Served::Idle) => break Ok("idle"),
            Ok(Served::SessionEnded(ReceiveError::DaemonGone)) => {
                tracing::warn!("the daemon is gone; registering again as soon as one runs");
            }
            Ok(Served::SessionEnded(error)) => tracing::warn!("{error}; registering again"),
            Err(error) => break Err(error.to_string()),
        }
    };
    // A receiver that never registered has nothing to report except the error.
    let ended = match ended {
        Err(error) if sessions == 0 => return fail(error),
        ended => ended,
    };
    report(&args, &receiving, sessions, began.elapsed(), ended.as_deref().unwrap_or("failed"));
    match ended {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

fn log_swept(swept: &Swept) {
    match swept.parts {
        1 => tracing::info!("removed 1 part"),
        parts => tracing::info!("removed {parts} parts"),
    }
    for left in &swept.left {
        tracing::warn!(target: ASKED_FOR, "not swept: {left}");
    }
    if swept.left_out > 0 {
        tracing::warn!("not swept: {} more", swept.left_out);
    }
}

/// Registers with the daemon. Tries again while the error may be temporary and the timeout allows it. Returns
/// `None` if a signal asks the program to stop.
fn register(args: &Args, signals: &Signals, again: bool) -> Result<Option<Session>, RegisterError> {
    let mut options = RegisterOptions::new(args.app.clone());
    options.control_socket.clone_from(&args.control_socket);
    options.class = args.class;
    options.memory_instead_of_waiting = args.memory;
    let timeout = args.daemon_timeout.or((!again).then_some(FIRST_TIMEOUT));
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
    let mut told = false;
    loop {
        let error = match Session::register(&options) {
            Ok(session) => {
                if told || again {
                    tracing::info!("registered as {}", args.app);
                }
                return Ok(Some(session));
            }
            Err(error) => error,
        };
        let away = match &error {
            RegisterError::Control(error) => error.is_passing(),
            RegisterError::Refused { code, .. } => *code == ErrorCode::Draining,
            _ => false,
        };
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if !error.is_passing() || left == Some(Duration::ZERO) {
            return Err(error);
        }
        // When the session ended, the log already said that the daemon is gone.
        let said = again && away;
        if !said && !std::mem::replace(&mut told, true) {
            tracing::warn!("{error}; trying again");
        }
        let wait = backoff.next_wait();
        if signals.wait(left.map_or(wait, |left| left.min(wait)))? {
            return Ok(None);
        }
    }
}

/// Notices to the user that were logged already. Each notice is logged once, or once each time that its cause
/// happens.
#[derive(Debug, Default)]
struct Notices {
    direct: bool,
    replaced: u64,
}

impl Notices {
    fn log(&mut self, receiving: &mut Receiving) {
        if !self.direct
            && let Some(error) = receiving.direct_refusal()
        {
            self.direct = true;
            tracing::warn!(
                "the file system of --out takes no O_DIRECT ({error}); writing through the page cache"
            );
        }
        let replaced = receiving.parts().replaced();
        if std::mem::replace(&mut self.replaced, replaced) < replaced {
            tracing::warn!("--out leads to another directory than before; files go there from now on");
        }
        let (complaints, more) = receiving.take_complaints();
        for complaint in complaints {
            tracing::warn!("rejected: {complaint}");
        }
        if more > 0 {
            let all = receiving.received().rejected;
            tracing::warn!("rejected: {more} more messages, {all} in all");
        }
    }
}

#[allow(clippy::cast_precision_loss)] // a figure of four digits
fn report(args: &Args, receiving: &Receiving, sessions: u64, elapsed: Duration, ended: &str) {
    let received = receiving.received();
    let Received { files, directories, messages, bytes, .. } = received;
    let bytes_per_s = bytes as f64 / elapsed.as_secs_f64().max(1e-9);
    let direct_refused = receiving.direct_refusal().map(ToString::to_string);
    let io_uring_refused = receiving.io_uring_refusal().map(ToString::to_string);
    if args.json {
        print_json(&ReceiveReport {
            received,
            app: args.app.clone(),
            class: args.class,
            memory: args.memory,
            slow: args.slow.map(|slow| slow.to_string()),
            seconds: elapsed.as_secs_f64(),
            bytes_per_s,
            engine: receiving.engine().name().to_owned(),
            io_uring_refused,
            direct_refused,
            fsync: args.fsync,
            sessions,
            ended: ended.to_owned(),
        });
        return;
    }
    let refused = |refused: Option<String>| refused.map_or(String::new(), |why| format!(" ({why})"));
    let mut rows = vec![
        ("files", files.to_string()),
        ("directories", directories.to_string()),
        ("bytes", format!("{bytes} ({})", text::bytes(bytes))),
        ("messages", messages.to_string()),
        ("time", format!("{:.2} s", elapsed.as_secs_f64())),
        ("written with", format!("{}{}", receiving.engine().name(), refused(io_uring_refused))),
        ("O_DIRECT", format!("{}{}", text::bytes(received.bytes_direct), refused(direct_refused))),
        ("page cache", text::bytes(received.bytes_buffered)),
        ("rejected", received.rejected.to_string()),
        ("lost", received.lost.to_string()),
        ("proven by reading", received.proven.to_string()),
        ("redelivered", received.redelivered.to_string()),
        ("withdrawn", received.withdrawn.to_string()),
        ("sessions", sessions.to_string()),
    ];
    if let Some(slow) = args.slow {
        rows.push(("slow on purpose", format!("{slow} ({} slices held)", received.held)));
    }
    print(&text::rows(&rows));
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Recv {
        #[command(flatten)]
        args: Args,
    }

    fn parse(more: &[&str]) -> Result<Args, clap::Error> {
        let given = ["recv", "--app", "store", "--out", "/tmp/in"];
        Recv::try_parse_from(given.iter().chain(more)).map(|recv| recv.args)
    }

    #[test]
    fn class_memory_and_the_slow_option_are_asked_for_and_otherwise_nothing() {
        let plain = parse(&[]).unwrap();
        assert_eq!((plain.class, plain.memory, plain.slow), (0, false, None));
        let args = parse(&["--class", "2", "--memory", "--slow", "5ms/10,stop:3s@10s"]).unwrap();
        let slow = args.slow.expect("asked for").to_string();
        assert_eq!((args.class, args.memory, slow.as_str()), (2, true, "5ms/10,stop:3s@10s"));
    }

    #[test]
    fn a_slow_option_that_is_none_says_what_to_write() {
        let refused = parse(&["--slow", "5ms/none"]).unwrap_err().to_string();
        assert!(refused.contains("write a whole number from 1, as 20ms/10"), "{refused}");
    }
}

//! `jet-bench receive`: the application behind a daemon that is measured from another host. The application
//! receives messages, and prints at its end how many arrived of each run.
//!
//! The application reads the messages' bytes or only gives them back, and keeps nothing. The application also
//! prints how much processor time each run took on this host, which the sending host cannot see.

use super::run_of;
use super::runs::{Key, Runs, Spent};
use crate::consumer::{Behaviour, Consumer, Reading};
use crate::processor_time::{self, ns_per_byte};
use crate::report::{Bound, Row};
use jet::commands::Signals;
use jet_client::receive::ReceiveError;
use jet_control::{CONTROL_SOCKET, ControlConnection};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time for which the application polls without finding a message before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// Time without a message after which the run counts as paused, and processor time is no longer counted for
/// it.
const IDLE_SPAN: Duration = Duration::from_millis(100);
/// Time between two checks for signals to this process while messages arrive: a check is a system call.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// The daemon and the application's name.
#[derive(clap::Args)]
#[command(after_help = "\
Ends with SIGINT or SIGTERM, and says then what came: of each run of `jet-bench load` (there by the same \
number), and in all.")]
pub struct Args {
    /// The daemon's socket
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET)]
    control_socket: PathBuf,
    /// The application's name, as `jet-bench load --app` has it
    #[arg(long, value_name = "NAME", default_value = crate::rig::APP)]
    app: String,
    /// Read every byte of the messages; otherwise they are given back unread
    #[arg(long)]
    read: bool,
    /// The core that this program stays on
    #[arg(long, visible_alias = "cpu")]
    core: Option<u32>,
}

/// Receives until SIGINT or SIGTERM comes. Call this function before any other thread is started.
///
/// # Errors
/// An error of the daemon or the system. If the daemon is gone, the error says how much had arrived.
pub fn run(args: &Args) -> Result<Vec<Row>, Box<dyn Error>> {
    let signals = Signals::new()?;
    let _pinning = args.core.map(super::load::pin_thread).transpose()?;
    let reading = if args.read { Reading::Read } else { Reading::Nothing };
    let behaviour = Behaviour { reading, ..Behaviour::default() };
    let mut consumer = Consumer::register(&args.control_socket, &args.app, behaviour)?;
    let daemon = ControlConnection::connect(&args.control_socket).map_err(io::Error::other);
    let daemon = match daemon.and_then(|control| processor_time::daemon_of(&control)) {
        Ok(pid) => Some(pid),
        Err(error) => {
            tracing::warn!("the daemon's processor time cannot be read and is left out: {error}");
            None
        }
    };
    let mut runs = Runs::new(|| {
        let daemon = daemon.map(processor_time::of).transpose()?.unwrap_or_default();
        Ok(Spent { application: processor_time::own(), daemon })
    });
    tracing::info!(
        "receiving as {} at {}; ends with SIGINT or SIGTERM",
        args.app,
        args.control_socket.display()
    );
    let ended = serve(&mut consumer, &mut runs, &signals);
    let taken = consumer.taken();
    match ended {
        Ok(()) => {}
        Err(error) => {
            return Err(
                format!("{error}; {} messages had come, {} bytes", taken.messages, taken.bytes).into()
            );
        }
    }
    // The daemon was in contact until now, so its times can still be read.
    runs.close()?;
    Ok(rows(&consumer, &runs, daemon.is_some()))
}

/// Receives messages until SIGINT or SIGTERM comes.
fn serve<F: FnMut() -> io::Result<Spent>>(
    consumer: &mut Consumer,
    runs: &mut Runs<F>,
    signals: &Signals,
) -> Result<(), Box<dyn Error>> {
    let mut checked = Instant::now();
    let mut idle_since: Option<Instant> = None;
    loop {
        let now = Instant::now();
        if now.duration_since(checked) >= CHECK_EVERY {
            checked = now;
            if signals.take().is_some() {
                return Ok(());
            }
        }
        let mut failed = Ok(());
        let worked = consumer.step_with(now, &mut |message| {
            let key = run_of(message.tag()).map(|run| Key { sender: message.sender(), run });
            if let Err(error) = runs.take(key, message.bytes(), now) {
                failed = Err(error);
            }
        })?;
        failed?;
        if worked {
            idle_since = None;
            continue;
        }
        if now.duration_since(*idle_since.get_or_insert(now)) < SPIN {
            rustix::thread::sched_yield();
            continue;
        }
        if !consumer.session().prepare_sleep()? {
            continue;
        }
        let idle_span = Timespec::try_from(IDLE_SPAN).expect("some milliseconds");
        let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(consumer.session(), PollFlags::IN)];
        match poll(&mut fds, runs.is_open().then_some(&idle_span)) {
            Ok(0) => runs.close()?,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(ReceiveError::Wait(error.into()).into()),
        }
        if signals.take().is_some() {
            return Ok(());
        }
    }
}

fn rows<F: FnMut() -> io::Result<Spent>>(consumer: &Consumer, runs: &Runs<F>, daemon: bool) -> Vec<Row> {
    #[allow(clippy::cast_precision_loss)] // counts below 2^53
    let count =
        |what: &str, unit, value: u64| Row::new("receive", what, unit, vec![value as f64], Bound::None);
    let mut rows = Vec::new();
    let mut before: HashMap<u32, u32> = HashMap::new();
    for run in runs.all() {
        // Another `load`, at the same time or later, counts its runs from 1, too.
        let number = before.entry(run.key.run).and_modify(|count| *count += 1).or_insert(1);
        let name = match number {
            1 => format!("run {}", run.key.run),
            again => format!("run {} ({again})", run.key.run),
        };
        rows.push(count(&format!("{name}: messages"), "messages", run.messages));
        rows.push(count(&format!("{name}: bytes"), "bytes", run.bytes));
        let figure = |what: &str, unit, value| {
            Row::new("receive", &format!("{name}{what}"), unit, vec![value], Bound::None)
        };
        let span = run.last.duration_since(run.first);
        rows.push(figure(", from the first message to the last", "s", span.as_secs_f64()));
        let Some(spent) = run.spent else { continue };
        let of_application = ns_per_byte(spent.application, run.bytes);
        rows.push(figure(", processor time of the application", "ns/B", of_application));
        if daemon {
            let of_daemon = ns_per_byte(spent.daemon, run.bytes);
            rows.push(figure(", processor time of the daemon", "ns/B", of_daemon));
        }
    }
    let taken = consumer.taken();
    rows.push(count("of no run (warm-up, other senders): messages", "messages", runs.others.0));
    rows.push(count("of no run (warm-up, other senders): bytes", "bytes", runs.others.1));
    rows.push(count("in all: messages", "messages", taken.messages));
    rows.push(count("in all: bytes", "bytes", taken.bytes));
    rows.push(count("withdrawn by the daemon, because their senders went", "messages", taken.withdrawn));
    rows
}

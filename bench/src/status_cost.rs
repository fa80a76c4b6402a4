//! Measures what status requests cost: how long an answer takes, and how much throughput messages lose
//! meanwhile. The daemon has many applications and senders, and many connections ask for its status.
//!
//! The threads that ask belong to this process. These threads take processor time of the same machine, which
//! slows the load. The cost of using the answer is not measured: each thread reads the frame and does not
//! decode it.

use crate::e2e::Load;
use crate::processor_time::{ThreadTime, is_beside_messages};
use crate::report::{Bound, Row, RunSize, median, pairwise};
use crate::rig::{APP, Rig};
use jet_client::send::{Sender, SenderOptions};
use jet_control::frame::encode_frame;
use jet_control::protocol::Register;
use jet_control::{ControlConnection, ControlRequest, ControlResponse};
use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of applications that are registered and idle, beside the one that reads.
const SESSIONS: usize = 1000;
/// Number of senders that are connected and idle, beside the one that sends.
const PEERS: usize = 1000;
/// Number of connections that ask for the daemon's status again and again: as many as a process may have.
/// Where the answers to one of them are timed, that one is among them.
const ASKERS: usize = 128;
/// Time between two requests of one connection in the case [`Asking::EachSecond`], as a monitoring program
/// asks.
const PERIOD: Duration = Duration::from_secs(1);
/// Limit of the time that an answer may take, in ms.
const ANSWER_MS: f64 = 50.0;
/// Bound: the least share of its rate that the load must keep beside connections that ask once a second.
const KEPT: f64 = 0.98;
/// Number of answers that are timed for each sample.
const ANSWERS: usize = 40;
/// Bytes that the load sends in each turn.
const BYTES: usize = 16 << 30;

/// Pace at which each of the [`ASKERS`] connections asks.
#[derive(Clone, Copy)]
enum Asking {
    /// Each connection asks for the status once a second.
    EachSecond,
    /// Each connection asks for the status again as soon as the answer has arrived.
    AtOnce,
}

impl Asking {
    const ALL: [Self; 2] = [Self::EachSecond, Self::AtOnce];

    const fn words(self) -> &'static str {
        match self {
            Self::EachSecond => "128 ask once a second",
            Self::AtOnce => "128 ask without a pause",
        }
    }
}

/// Runs the benchmark `status`.
///
/// # Errors
/// An error of the rig, a sender or the daemon.
pub fn run(run_size: RunSize) -> Result<Vec<Row>, Box<dyn Error>> {
    let (sessions, peers) = (run_size.of(SESSIONS, 20), run_size.of(PEERS, 20));
    let bytes = run_size.of(BYTES, 256 << 20);
    let settings = ["limits.sessions=1400", "session.slots=128", "session.messages=128"].map(str::to_owned);
    let rig = Rig::start("shm", true, &settings)?;
    let _sessions = (0..sessions).map(|n| idle_session(&rig, n)).collect::<Result<Vec<_>, _>>()?;
    let _peers = (0..peers).map(|_| idle_sender(&rig)).collect::<Result<Vec<_>, _>>()?;
    let mut load = Load::connect(&rig)?;
    let (mut rows, mut named) = (Vec::new(), Vec::new());
    let registered = f64::from(u32::try_from(sessions + 1)?);
    let row = |metric: &str, unit, values, bound| Row::new("status", metric, unit, values, bound);
    for asking in Asking::ALL {
        let (mut alone, mut beside, mut asked) = (Vec::new(), Vec::new(), Vec::new());
        let (mut short, mut worst, mut all) = (Vec::new(), Vec::new(), Vec::new());
        let mut answering = Vec::new();
        for _ in 0..run_size.samples {
            alone.push(load.large(bytes)?);
            let control = rig.control_socket();
            asked.push(while_asked(&control, ASKERS, asking, || {
                let time = ThreadTime::begin(rig.daemon_pid(), is_beside_messages)?;
                beside.push(load.large(bytes)?);
                answering.push(time.percent()?);
                Ok(())
            })?);
            // In a turn of its own: the thread that is timed asks more often than the others, and takes more
            // of the machine.
            while_asked(&control, ASKERS - 1, asking, || {
                let times = std::thread::scope(|scope| {
                    let asks = scope.spawn(|| {
                        times(&control, run_size.of(ANSWERS, 3)).map_err(|error| error.to_string())
                    });
                    load.large(bytes / 4)?;
                    Ok::<_, Box<dyn Error>>(asks.join().map_err(|_| "the thread that asks panicked")??)
                })?;
                short.push(median(&times));
                worst.push(times.iter().copied().fold(0.0, f64::max));
                let before = Instant::now();
                let status = ControlConnection::connect(&control)?.status()?;
                all.push(milliseconds(before));
                named.push(f64::from(u32::try_from(status.rows.sessions.len())?) / registered);
                Ok(())
            })?;
        }
        let words = asking.words();
        let kept = match asking {
            Asking::EachSecond => Bound::AtLeast(KEPT),
            Asking::AtOnce => Bound::None,
        };
        rows.extend([
            row(&format!("an answer, {words}"), "ms", short, Bound::AtMost(ANSWER_MS)),
            row(&format!("the longest of {ANSWERS}, {words}"), "ms", worst, Bound::AtMost(ANSWER_MS)),
            row(&format!("all rows, {words}"), "ms", all, Bound::None),
            row(&format!("answers to the others, {words}"), "1/s", asked, Bound::None),
            row(&format!("log and control plane, {words}, of a core"), "%", answering, Bound::None),
            row(&format!("256 KiB messages, {words}"), "GB/s", beside.clone(), Bound::None),
            row(
                &format!("256 KiB messages, {words} / nobody asks"),
                "ratio",
                pairwise(&beside, &alone),
                kept,
            ),
        ]);
    }
    let metric = "applications of those that are registered that all rows name";
    rows.push(Row::exact("status", metric, "ratio", named, Bound::Exactly(1.0)));
    Ok(rows)
}

/// Registers an application that does nothing. The application's descriptors are closed at once.
fn idle_session(rig: &Rig, number: usize) -> Result<ControlConnection, Box<dyn Error>> {
    let mut connection = ControlConnection::connect(&rig.control_socket())?;
    let request = ControlRequest::Register(Register::new(format!("idle-application-{number:06}")));
    match connection.request(&request)?.0 {
        ControlResponse::Registered(_) => Ok(connection),
        other => Err(format!("no session: {other:?}").into()),
    }
}

fn idle_sender(rig: &Rig) -> Result<Sender, Box<dyn Error>> {
    let options = SenderOptions::new(rig.address()?, APP).in_flight_max(8).region_bytes(1 << 16);
    Ok(Sender::connect(&options)?)
}

/// Runs `work` while `askers` connections ask for the status. Returns how many answers a second they get
/// together.
fn while_asked(
    control: &Path,
    askers: usize,
    asking: Asking,
    work: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let (over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let streams = (0..askers).map(|_| UnixStream::connect(control)).collect::<Result<Vec<_>, _>>()?;
    std::thread::scope(|scope| {
        let began = Instant::now();
        let threads: Vec<_> = streams
            .into_iter()
            .enumerate()
            .map(|(number, stream)| {
                let (over, answers) = (&over, &answers);
                // The first requests are spread over the period.
                #[allow(clippy::cast_precision_loss)] // hundreds
                let first = PERIOD.mul_f64(number as f64 / askers as f64);
                scope.spawn(move || ask(stream, asking, first, over, answers))
            })
            .collect();
        let worked = work();
        over.store(true, Ordering::Relaxed);
        let span = began.elapsed().as_secs_f64();
        for thread in threads {
            thread.thread().unpark();
            thread.join().map_err(|_| "a thread that asks panicked")??;
        }
        worked?;
        #[allow(clippy::cast_precision_loss)] // thousands
        Ok(answers.load(Ordering::Relaxed) as f64 / span)
    })
}

fn ask(
    mut stream: UnixStream,
    asking: Asking,
    first: Duration,
    over: &AtomicBool,
    answers: &AtomicU64,
) -> std::io::Result<()> {
    let request = encode_frame(&ControlRequest::Status).map_err(std::io::Error::other)?;
    let mut bytes = Vec::new();
    let mut next = Instant::now() + first;
    while !over.load(Ordering::Relaxed) {
        if matches!(asking, Asking::EachSecond) {
            let left = next.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                std::thread::park_timeout(left);
                continue;
            }
            next += PERIOD;
        }
        stream.write_all(&request)?;
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        bytes.resize(u32::from_le_bytes(length) as usize, 0);
        stream.read_exact(&mut bytes)?;
        answers.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Returns how long each of `count` status answers takes, in ms. As with `jet status`, the time runs from
/// connecting until the status has arrived.
fn times(control: &Path, count: usize) -> Result<Vec<f64>, Box<dyn Error>> {
    (0..count)
        .map(|_| {
            let before = Instant::now();
            ControlConnection::connect(control)?.first_page()?;
            Ok(milliseconds(before))
        })
        .collect()
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

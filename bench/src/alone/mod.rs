//! Measures one message of 64 B at a time: how long it takes, and what of that is Jet's code, what the
//! machine's.
//!
//! Some figures of each fabric stand beside each other, as half a round trip: half of the time from a
//! message's submission to its end.
//!
//! * *three processes*: sender, daemon and application, as Jet is;
//! * *one thread*, over `shm:` only: sender, receiver and application take turns in one thread. What that
//!   takes is Jet's code, without waiting and without cache lines that move;
//! * *linked*: the application is linked into the receiver, and both are one thread, which never sleeps, of
//!   the sender's process. What that saves is what the third process and wake-ups cost;
//! * the limit: a number that as many processes pass on through a cache line, which poll and give way as
//!   Jet's do. It is what the machine's cores and its scheduler take.
//!
//! The three processes take turns with their limit. With `--trace` there are rows for each hand-over as well:
//! when the message passed it after the one before, as the median of 4096 messages. The clock's reading, 25
//! to 50 ns, is in each. And there are rows for how often each party slept or gave way. A trace has messages
//! of its own: the figures above are without it.
//!
//! Neither a network nor an RNIC takes part. Where there are fewer cores than processes, the scheduler's part
//! is the greatest.

mod bare;
mod linked;
mod one_thread;
mod polite;
mod stamps;
mod switches;
mod trace;

pub use bare::PassArgs;

use crate::allocations;
use crate::report::{Bound, Row, RunSize, pairwise};
use crate::rig::{APP, Rig, read_all, role};
use bare::Passing;
use jet::child_process::ChildProcess;
use jet_client::receive::{RegisterOptions, Session};
use jet_client::send::{AckStatus, Sender, SenderOptions};
use jet_fabric::Address;
use stamps::{At, FIRST, MESSAGES, Stamps, UNTRACED, now_ns};
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;
use switches::Switches;
use trace::Times;

/// Bytes of a message.
const BYTES: usize = 64;
/// Messages of a turn over `shm:`, and a quarter of it over `tcp:`.
const ROUNDS: u32 = 40_000;
const ROUNDS_BRIEF: u32 = 500;

/// What is measured.
#[derive(clap::Args)]
pub struct Args {
    /// Only this fabric: shm or tcp
    #[arg(long, value_parser = ["shm", "tcp"])]
    fabric: Option<String>,
    /// Only the case with the application linked into the receiver
    #[arg(long)]
    linked: bool,
    /// Also show when a message passed each hand-over, and who slept
    #[arg(long)]
    trace: bool,
    /// Set a key of the daemon's configuration, as in --set reactor.spin_us_max=0; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

/// Arguments of the application's process.
#[derive(clap::Args)]
pub struct StampingArgs {
    /// The daemon's socket
    #[arg(long)]
    control_socket: PathBuf,
    /// Memory for the times of its hand-overs
    #[arg(long)]
    stamps: PathBuf,
}

/// Runs the benchmark `alone`.
///
/// # Errors
/// An error of the daemon, the sender or the application.
pub fn run(run_size: RunSize, args: &Args) -> Result<Vec<Row>, Box<dyn Error>> {
    let fabrics = args.fabric.as_deref().map_or(vec!["shm", "tcp"], |fabric| vec![fabric]);
    let mut rows = Vec::new();
    let (mut two_us, mut three_us) = (Vec::new(), Vec::new());
    for fabric in fabrics {
        let case = Case { run_size, args, fabric, stamps: Stamps::new()? };
        if fabric == "shm" && !args.linked {
            case.one_thread(&mut rows)?;
        }
        case.linked(&mut rows)?;
        if !args.linked {
            case.three_processes(&mut rows, &mut three_us)?;
            for _ in 0..run_size.samples {
                two_us.push(Passing::start(1)?.half_round_trip_us(case.rounds())?);
            }
        }
    }
    if !args.linked {
        for (processes, limit) in [("two", two_us), ("three", three_us)] {
            let what = format!("limit: {processes} processes pass a number on, half a round trip");
            rows.push(Row::new("alone", &what, "us", limit, Bound::None));
        }
    }
    Ok(rows)
}

/// Has a thread stop also where an error comes first.
struct StopsWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One fabric, and how it is measured.
struct Case<'a> {
    run_size: RunSize,
    args: &'a Args,
    fabric: &'a str,
    stamps: Stamps,
}

impl Case<'_> {
    /// Returns the messages of a turn.
    fn rounds(&self) -> u32 {
        self.run_size.of(ROUNDS, ROUNDS_BRIEF) / if self.fabric == "tcp" { 4 } else { 1 }
    }

    fn row(&self, what: &str, unit: &'static str, samples: Vec<f64>) -> Row {
        Row::new("alone", &format!("{}: {what}", self.fabric), unit, samples, Bound::None)
    }

    /// Measures the three parties in one thread. Over `tcp:` the kernel's work would be the most of it.
    fn one_thread(&self, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
        let folder = crate::interrupt::folder()?;
        let samples = one_thread::samples(self, &Address::Shm(folder.path().join("one-thread.sock")))?;
        rows.push(self.row("64 B, half a round trip, all in one thread", "us", samples));
        Ok(())
    }

    /// Measures a receiver with the application linked into it, beside the sender's thread.
    fn linked(&self, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
        let folder = crate::interrupt::folder()?;
        let listen: Address = match self.fabric {
            "tcp" => "tcp:127.0.0.1:0".parse()?,
            _ => Address::Shm(folder.path().join("linked.sock")),
        };
        let (stop, (tell, told)) = (AtomicBool::new(false), mpsc::channel());
        std::thread::scope(|scope| {
            let stops = StopsWhenDropped(&stop);
            let (stamps, stop) = (&self.stamps, &stop);
            let serves = scope.spawn(move || {
                linked::serve(&listen, &tell, stamps, stop).map_err(|error| error.to_string())
            });
            let measured = match told.recv() {
                Ok(address) => self.linked_at(&address),
                // It says itself why it is not there.
                Err(_) => Ok(Vec::new()),
            };
            drop(stops);
            serves.join().map_err(|_| "the receiver panicked")??;
            rows.extend(measured?);
            Ok(())
        })
    }

    fn linked_at(&self, address: &Address) -> Result<Vec<Row>, Box<dyn Error>> {
        let mut sends = OneAtATime::connect(address)?;
        let samples = self.run_size.samples as usize;
        // With room for all, so that only what is measured could allocate.
        let (mut alone, mut allocated) = (Vec::with_capacity(samples), Vec::with_capacity(samples));
        for _ in 0..samples {
            sends.half_round_trip_us(self.rounds() / 8)?;
            let before = allocations::count();
            alone.push(sends.half_round_trip_us(self.rounds())?);
            #[allow(clippy::cast_precision_loss)] // none, it is hoped
            allocated.push((allocations::count() - before) as f64);
        }
        let what = format!("{}: allocations while messages pass, linked", self.fabric);
        let mut rows = vec![
            self.row("64 B, half a round trip, application linked into the receiver", "us", alone),
            Row::exact("alone", &what, "count", allocated, Bound::AtMost(0.0)),
        ];
        if self.args.trace {
            let times = sends.traced()?;
            rows.extend(trace::linked_rows(self.fabric, &self.stamps, &times));
        }
        Ok(rows)
    }

    /// Measures sender, daemon and application as three processes, in turns with a number that three
    /// processes pass on.
    fn three_processes(&self, rows: &mut Vec<Row>, limits: &mut Vec<f64>) -> Result<(), Box<dyn Error>> {
        let rig = Rig::start_daemon(self.fabric, &self.args.set)?;
        let mut command = role("stamping")?;
        command.arg("--control-socket").arg(rig.control_socket());
        command.arg("--stamps").arg(self.stamps.path().ok_or("the stamps are another process's")?);
        let application = ChildProcess::start(command)?;
        let mut sends = OneAtATime::connect(&rig.address()?)?;
        let (mut alone, mut limit) = (Vec::new(), Vec::new());
        for _ in 0..self.run_size.samples {
            // These processes poll all the time, so they are there only while they are measured.
            limit.push(Passing::start(2)?.half_round_trip_us(self.rounds())?);
            sends.half_round_trip_us(self.rounds() / 8)?;
            alone.push(sends.half_round_trip_us(self.rounds())?);
        }
        let what = "64 B, half a round trip, three processes";
        let ratio = pairwise(&alone, &limit);
        rows.push(self.row(what, "us", alone));
        rows.push(self.row(&format!("{what} / a number that three pass on"), "ratio", ratio));
        limits.append(&mut limit);
        if self.args.trace {
            self.three_traced(&rig, &application, &mut sends, rows)?;
        }
        Ok(())
    }

    fn three_traced(
        &self,
        rig: &Rig,
        application: &ChildProcess,
        sends: &mut OneAtATime,
        rows: &mut Vec<Row>,
    ) -> Result<(), Box<dyn Error>> {
        let of_all = || -> std::io::Result<_> {
            Ok([
                ("the sender", Switches::own()?),
                ("the sender's helper", Switches::of_threads(std::process::id(), "jet-nic")?),
                ("the daemon", Switches::of_threads(rig.daemon_pid(), "jet-reactor")?),
                ("the daemon's NIC", Switches::of_threads(rig.daemon_pid(), "jet-nic")?),
                ("the application", Switches::of_threads(application.id(), "")?),
            ])
        };
        let before = of_all()?;
        let times = sends.traced()?;
        for ((who, before), (_, after)) in before.into_iter().zip(of_all()?) {
            let Switches { sleeps, others } = after.since(before);
            for (what, count) in [("sleeps", sleeps), ("gives way", others)] {
                #[allow(clippy::cast_precision_loss)] // counts of some thousand messages
                let each = count as f64 / MESSAGES as f64;
                rows.push(self.row(
                    &format!("how often {who} {what}, for each message"),
                    "count",
                    vec![each],
                ));
            }
        }
        rows.extend(trace::three_rows(self.fabric, &self.stamps, &times));
        Ok(())
    }
}

/// A sender that sends one message at a time.
struct OneAtATime(Sender);

impl OneAtATime {
    fn connect(address: &Address) -> Result<Self, Box<dyn Error>> {
        Ok(Self(Sender::connect(&SenderOptions::new(address.clone(), APP))?))
    }

    fn wait(&mut self) -> Result<(), Box<dyn Error>> {
        let end = self.0.wait()?.ok_or("a message is under way")?;
        match end.status {
            AckStatus::Consumed => Ok(()),
            status => Err(format!("a message ended: {status}").into()),
        }
    }

    /// Sends messages, each after the end of the one before. Returns half of what each took, in microseconds.
    fn half_round_trip_us(&mut self, rounds: u32) -> Result<f64, Box<dyn Error>> {
        let began = Instant::now();
        for _ in 0..rounds {
            self.0.send_small(UNTRACED, &[7; BYTES])?;
            self.wait()?;
        }
        Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0)
    }

    /// Sends messages that are traced, and returns their times at the sender.
    fn traced(&mut self) -> Result<Vec<Times>, Box<dyn Error>> {
        let mut times = Vec::new();
        for tag in FIRST..FIRST + MESSAGES {
            let submitted = now_ns();
            self.0.send_small(tag, &[7; BYTES])?;
            self.0.flush();
            let posted = now_ns();
            self.wait()?;
            times.push(Times { submitted, posted, ended: now_ns() });
        }
        Ok(times)
    }
}

/// Runs the application: it reads each message and notes when.
///
/// # Errors
/// An error of the session.
pub fn run_stamping(args: &StampingArgs) -> Result<(), Box<dyn Error>> {
    let stamps = Stamps::open(&args.stamps)?;
    let session = Session::register(&RegisterOptions::new(APP).control_socket(&args.control_socket))?;
    let mut sum = 0u64;
    loop {
        let mut message = session.receive()?;
        let tag = message.tag();
        stamps.note_now(tag, At::Taken);
        while let Some(slice) = message.next()? {
            sum = sum.wrapping_add(read_all(&slice));
        }
        drop(message);
        // Before the release is shown, so that it is there when the sender hears of the end.
        stamps.note_now(tag, At::GivenBack);
        session.flush();
        std::hint::black_box(sum);
    }
}

/// Runs a process that passes a number on.
///
/// # Errors
/// An error of the system.
pub fn run_passing(args: &PassArgs) -> Result<(), Box<dyn Error>> {
    bare::run_role(args)
}

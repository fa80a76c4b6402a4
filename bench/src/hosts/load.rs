//! `jet-bench load`: a load on a daemon that runs on another host, of one message size, depth and rate after
//! the other, each for a while.
//!
//! Without a rate the loop is closed: a message is sent when another has ended. With rates the loop is open:
//! messages are due at times that do not depend on the receiver. Latency counts from a message's due time,
//! even if the message could not be sent at that time. So a receiver that stops for a while shows in all
//! messages that were due meanwhile, not only in the few that were under way.
//!
//! The processor time of the other host is not visible here: `jet-bench receive` prints it there.

use super::run::{Outcome, Run, STALL_LIMIT};
use super::{Target, explained, span_above_zero, tag_of};
use crate::processor_time;
use crate::report::{Bound, Row};
use crate::schedule::{Arrivals, Schedule};
use crate::send_loop::{Messages, SendLoop};
use hdrhistogram::Histogram;
use jet::commands::Signals;
use jet::values::parse_span_or_seconds;
use jet_cat::CpuSet;
use jet_client::send::SenderOptions;
use jet_fabric::Address;
use std::error::Error;
use std::time::Duration;

/// Limit, in bytes, of the buffers for the messages of one run on this host. More is refused as a mistake.
const BUFFERS_MAX: usize = 4 << 30;
/// Limit of the default warm-up: the time before a run in which messages are not counted.
const WARM_UP_MAX: Duration = Duration::from_secs(1);
/// Least share, in percent, of an open loop's messages that must have ended in time; below it the receiver
/// counts as too slow for the rate.
const KEPT_PERCENT_MIN: f64 = 99.0;

/// Target and shape of the load.
#[derive(clap::Args)]
#[command(after_help = "\
A run is one size, one depth and one rate; each --samples passes through all of them. At the other host, \
before:
  jetd --listen tcp:0.0.0.0:7450 &
  jet-bench receive --app bench
then here:
  jet-bench load --to tcp:HOST:7450 --app bench --bytes 4096,262144 --depth 1,32 --runtime 10 --samples 1

Ctrl-C ends the run and prints what was measured so far; the exit code is then 130.")]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Bytes of a message, several as 4096,262144; up to 4096 they are copied and sent at once, more are READ
    /// by the receiver
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "262144",
          value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    bytes: Vec<u32>,
    /// Messages under way at once, several as 1,32; with --rate the limit: messages beyond it wait, and their
    /// latency includes the wait
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "32",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: Vec<u32>,
    /// Messages a second, several as 10000,20000: an open loop
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = rate)]
    rate: Vec<f64>,
    /// How the messages of an open loop are spread over time
    #[arg(long, value_enum, default_value = "poisson", requires = "rate")]
    arrivals: Arrivals,
    /// Length of a run, in seconds or as 500ms
    #[arg(long, value_name = "SPAN", default_value = "10", value_parser = span_above_zero)]
    runtime: Duration,
    /// Time before each run that is not counted, in seconds or as 500ms [default: an eighth of the run, 1s at
    /// most]
    #[arg(long, value_name = "SPAN", value_parser = parse_span_or_seconds)]
    warm_up: Option<Duration>,
    /// Messages carry a CRC32C; who checks it is the daemon's read.checksums
    #[arg(long)]
    crc: bool,
    /// Admission class of messages above 4096 bytes, 0 the most urgent
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=7))]
    class: u8,
    /// The core that the sending thread stays on; over tcp: and rdma: the NIC's thread is not kept there
    #[arg(long, visible_alias = "cpu")]
    core: Option<u32>,
    /// How long the sender polls for ends of messages before it sleeps, in microseconds; on a core of its
    /// own, a million makes it never sleep
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    spin_us: u64,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(per_s) if (0.01..=1e9).contains(&per_s) => Ok(per_s),
        _ => Err("write messages a second, from 0.01 to 1e9".to_owned()),
    }
}

/// One combination of message size, depth and rate.
#[derive(Clone, Copy)]
struct Cell {
    bytes: usize,
    depth: usize,
    rate: Option<f64>,
}

impl Cell {
    fn name(&self, arrivals: Arrivals) -> String {
        let Self { bytes, depth, rate } = *self;
        match (rate, arrivals) {
            (None, _) => format!("{bytes} B, {depth} at once"),
            (Some(rate), Arrivals::Poisson) => format!("{bytes} B, {rate}/s at random, {depth} at once"),
            (Some(rate), Arrivals::Constant) => format!("{bytes} B, {rate}/s evenly, {depth} at once"),
        }
    }
}

/// Figures of a cell's runs, one sample for each run.
#[derive(Default)]
struct Samples {
    consumed: Vec<f64>,
    without_end: Vec<f64>,
    per_s: Vec<f64>,
    gb_per_s: Vec<f64>,
    /// Latencies in microseconds at the quantiles 50 %, 99 %, 99.9 % and 100 %.
    latency_us: [Vec<f64>; 4],
    late_us: Vec<f64>,
    kept_percent: Vec<f64>,
    cpu_ns_per_byte: Vec<f64>,
}

/// Runs `jet-bench load`. Call this function before any other thread is started.
///
/// # Errors
/// An error of the daemon, the application or the system.
pub fn run(samples: u32, args: &Args) -> Result<Vec<Row>, Box<dyn Error>> {
    let signals = Signals::new()?;
    let cells = cells(args)?;
    let names: Vec<String> = cells.iter().map(|cell| cell.name(args.arrivals)).collect();
    let mut all: Vec<Samples> = cells.iter().map(|_| Samples::default()).collect();
    let runs = u32::try_from(cells.len())?.saturating_mul(samples);
    let warm_up = args.warm_up.unwrap_or_else(|| (args.runtime / 8).min(WARM_UP_MAX));
    tracing::info!(
        "{runs} runs of {} s, {} s before each; {:.0} s in all",
        args.runtime.as_secs_f64(),
        warm_up.as_secs_f64(),
        (args.runtime + warm_up).as_secs_f64() * f64::from(runs)
    );
    let mut number = 0;
    'turns: for _ in 0..samples {
        for ((cell, name), samples) in cells.iter().zip(&names).zip(&mut all) {
            number += 1;
            let name = format!("run {number} of {runs}: {name}");
            let (outcome, without_end, cpu) = one(args, cell, number, &name, warm_up, &signals)?;
            samples.add(cell, &outcome, without_end, cpu);
            samples.log_last(&name);
            if let Some(signal) = outcome.interrupted {
                crate::interrupt::note(signal);
                break 'turns;
            }
        }
    }
    Ok(names.iter().zip(&all).flat_map(|(name, samples)| samples.rows(name)).collect())
}

/// Returns every combination of the sizes, depths and rates.
fn cells(args: &Args) -> Result<Vec<Cell>, String> {
    let rates: Vec<Option<f64>> =
        if args.rate.is_empty() { vec![None] } else { args.rate.iter().copied().map(Some).collect() };
    let mut cells = Vec::new();
    for &bytes in &args.bytes {
        for &depth in &args.depth {
            let (bytes, depth) = (bytes as usize, depth as usize);
            if bytes.saturating_mul(depth) > BUFFERS_MAX {
                return Err(format!(
                    "{depth} messages of {bytes} B at once take more than {} GiB here; name fewer or smaller \
                     ones",
                    BUFFERS_MAX >> 30
                ));
            }
            cells.extend(rates.iter().map(|&rate| Cell { bytes, depth, rate }));
        }
    }
    Ok(cells)
}

/// Returns the options with which a sender connects for the messages of a run.
pub fn sender_options(to: &Address, app: &str, bytes: usize, depth: usize) -> SenderOptions {
    let defaults = SenderOptions::new(to.clone(), app);
    let window_bytes = defaults.window_bytes.max((bytes * depth) as u64);
    // A NIC registers a bounded number of regions: a few large ones hold all buffers.
    let region_bytes = defaults.region_bytes.max(bytes.next_power_of_two() * depth.div_ceil(16));
    // Messages that a repaired connection lets through would falsify the figures of this load.
    let options = defaults.reconnect_for(Duration::ZERO);
    options
        .in_flight_max(u32::try_from(depth).unwrap_or(u32::MAX))
        .window_bytes(window_bytes)
        .region_bytes(region_bytes)
}

/// Does one run of a load. Returns its outcome, the number of messages left without an end, and this
/// process's processor time.
fn one(
    args: &Args,
    cell: &Cell,
    number: u32,
    name: &str,
    warm_up: Duration,
    signals: &Signals,
) -> Result<(Outcome, usize, Duration), Box<dyn Error>> {
    let options = sender_options(&args.target.to, &args.target.app, cell.bytes, cell.depth)
        .source(args.target.from)
        .crc(args.crc)
        .spin_max(Duration::from_micros(args.spin_us));
    let mut messages = Messages { bytes: cell.bytes, depth: cell.depth, tag: 0, class: args.class };
    let buffers = if messages.are_small() { 0 } else { cell.depth };
    let mut sends = SendLoop::connect(options, cell.bytes, buffers)?;
    // The NIC's thread exists already, and does not inherit the core.
    let _pinning = args.core.map(pin_thread).transpose()?;
    let mut go = |run: u32, span: Duration| {
        messages.tag = tag_of(run);
        let schedule = cell.rate.map(|rate| Schedule::new(rate, args.arrivals, u64::from(run)));
        let mut measurement = Run::begin(name, span, schedule, &messages, signals);
        sends
            .run(&messages, &mut measurement)
            .map_err(|error| explained(error, &args.target.to, &args.target.app))?;
        let (outcome, without_end) = (measurement.finish(), sends.in_flight());
        if without_end > 0 && outcome.interrupted.is_none() {
            return Err(format!(
                "{}: {without_end} messages have no end for {} s; does the application '{}' read?",
                args.target.to,
                STALL_LIMIT.as_secs(),
                args.target.app
            ));
        }
        Ok((outcome, without_end))
    };
    if !warm_up.is_zero() {
        let (outcome, without_end) = go(super::WARM_UP, warm_up)?;
        if outcome.interrupted.is_some() {
            // The run itself did not begin: what the warm-up consumed does not count.
            let nothing = Outcome { consumed: 0, ..outcome };
            return Ok((nothing, without_end, Duration::ZERO));
        }
    }
    let before = processor_time::own();
    let (outcome, without_end) = go(number, args.runtime)?;
    Ok((outcome, without_end, processor_time::own() - before))
}

/// Keeps this thread on a core until the result is dropped.
pub fn pin_thread(core: u32) -> Result<jet_cat::Pinning, String> {
    CpuSet::from_iter([core]).pin_thread().map_err(|error| format!("cannot run on core {core}: {error}"))
}

impl Samples {
    fn add(&mut self, cell: &Cell, outcome: &Outcome, without_end: usize, cpu: Duration) {
        #[allow(clippy::cast_precision_loss)] // counts below 2^53
        self.without_end.push(without_end as f64);
        if outcome.consumed == 0 {
            return;
        }
        let bytes = outcome.consumed * cell.bytes as u64;
        #[allow(clippy::cast_precision_loss)] // counts below 2^53
        let (consumed, gigabytes) = (outcome.consumed as f64, bytes as f64 / 1e9);
        self.consumed.push(consumed);
        self.per_s.push(consumed / outcome.span.as_secs_f64());
        self.gb_per_s.push(gigabytes / outcome.span.as_secs_f64());
        for (samples, quantile) in self.latency_us.iter_mut().zip([0.5, 0.99, 0.999, 1.0]) {
            samples.push(us(&outcome.latencies, quantile));
        }
        if cell.rate.is_some() {
            self.late_us.push(us(&outcome.late, 0.99));
            self.kept_percent.extend(outcome.kept_percent);
        }
        self.cpu_ns_per_byte.push(processor_time::ns_per_byte(cpu, bytes));
    }

    /// Logs the figures of the last run of the combination `name`.
    fn log_last(&self, name: &str) {
        let (Some(per_s), Some(gb_per_s)) = (self.per_s.last(), self.gb_per_s.last()) else { return };
        let [p50, p99, p999, max] =
            self.latency_us.each_ref().map(|all| all.last().copied().unwrap_or(f64::NAN));
        tracing::info!(
            "{name}: {per_s:.0}/s, {gb_per_s:.3} GB/s; {p50:.1} us p50, {p99:.1} p99, {p999:.1} p99.9, \
             {max:.1} max"
        );
        if let Some(kept) = self.kept_percent.last().filter(|kept| **kept < KEPT_PERCENT_MIN) {
            tracing::info!(
                "{name}: the offered load could not be kept ({kept:.1} % of it): its latencies say how long \
                 the run was, not what the receiver does"
            );
        }
    }

    fn rows(&self, name: &str) -> Vec<Row> {
        let row = |what: &str, unit, samples: &[f64], bound| {
            Row::new("load", &format!("{name}{what}"), unit, samples.to_vec(), bound)
        };
        if self.without_end.is_empty() {
            // Interrupted before its first run.
            return Vec::new();
        }
        let exact = |what: &str, samples: &[f64], bound| {
            Row::exact("load", &format!("{name}: messages {what}"), "messages", samples.to_vec(), bound)
        };
        let mut rows = vec![
            exact("without an end", &self.without_end, Bound::Exactly(0.0)),
            exact("consumed", &self.consumed, Bound::AtLeast(1.0)),
        ];
        if self.consumed.is_empty() {
            return rows;
        }
        rows.push(row("", "1/s", &self.per_s, Bound::None));
        rows.push(row("", "GB/s", &self.gb_per_s, Bound::None));
        for (what, samples) in [", p50", ", p99", ", p99.9", ", max"].iter().zip(&self.latency_us) {
            rows.push(row(what, "us", samples, Bound::None));
        }
        if !self.late_us.is_empty() {
            rows.push(row(": went after its time, p99", "us", &self.late_us, Bound::None));
        }
        if !self.kept_percent.is_empty() {
            let bound = Bound::AtLeast(KEPT_PERCENT_MIN);
            rows.push(row(": of the offered load kept", "%", &self.kept_percent, bound));
        }
        rows.push(row(", processor time of the sender", "ns/B", &self.cpu_ns_per_byte, Bound::None));
        rows
    }
}

/// Returns a quantile, in microseconds, of a histogram of nanoseconds.
#[allow(clippy::cast_precision_loss)] // at most a minute
pub fn us(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    histogram.value_at_quantile(quantile) as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Load {
        #[command(flatten)]
        args: Args,
    }

    fn parse(more: &[&str]) -> Result<Args, clap::Error> {
        let given = ["load", "--to", "tcp:there:7450"];
        Load::try_parse_from(given.iter().chain(more)).map(|load| load.args)
    }

    #[test]
    fn every_size_comes_with_every_depth_and_every_rate() {
        let args = parse(&["--bytes", "64,65536", "--depth", "1,8", "--rate", "100,200"]).ok().unwrap();
        let names: Vec<String> =
            cells(&args).unwrap().iter().map(|cell| cell.name(Arrivals::Poisson)).collect();
        assert_eq!(names.len(), 8);
        assert_eq!(names[0], "64 B, 100/s at random, 1 at once");
        assert_eq!(names[7], "65536 B, 200/s at random, 8 at once");
        let closed = cells(&parse(&[]).ok().unwrap()).unwrap();
        assert_eq!(closed.len(), 1);
        assert_eq!(closed[0].name(Arrivals::Poisson), "262144 B, 32 at once");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for bad in [
            ["--bytes", "0"],
            ["--depth", "0"],
            ["--rate", "0"],
            ["--rate", "fast"],
            ["--runtime", "0"],
            ["--arrivals", "constant"],
        ] {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
        let much = parse(&["--bytes", "1073741824", "--depth", "32"]).ok().unwrap();
        assert!(cells(&much).err().unwrap().contains("more than 4 GiB"));
    }

    #[test]
    fn a_receiver_of_few_regions_holds_all_buffers() {
        let to: Address = "tcp:there:1".parse().unwrap();
        let options = sender_options(&to, "bench", 1 << 20, 64);
        assert_eq!((options.in_flight_max, options.window_bytes), (64, 64 << 20));
        assert_eq!(options.region_bytes, 8 << 20);
        assert_eq!(sender_options(&to, "bench", 1 << 20, 1024).region_bytes, 64 << 20);
    }
}

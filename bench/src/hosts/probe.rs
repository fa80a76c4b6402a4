//! `jet-bench probe`: sends one message at a time, alone or beside other loads, and shows what latency a
//! latency-sensitive sender sees.
//!
//! The method is RPerf's (Katebzadeh, Costa, Grot: "Evaluation of an InfiniBand Switch", IV). Each message
//! over the wire is followed by one to this host itself, and the difference is noted. The difference leaves
//! out what both ways have in common, the software and the NIC at this end, message by message.
//!
//! RPerf's messages are answered by the far NIC, and no software runs there. Jet's messages are answered when
//! the application has given them back. So the way to this host has a daemon and an application, too. The
//! difference is the network's time, plus the time by which the far host's software is slower than this
//! host's. The network alone cannot be measured this way.

use super::load::{pin_thread, sender_options, us};
use super::run::{STALL_LIMIT, histogram};
use super::{Target, explained, span_above_zero, tag_of};
use crate::report::{Bound, Row};
use crate::send_loop::{Measurement, Messages, Next, SendLoop, nanoseconds};
use hdrhistogram::Histogram;
use jet::commands::Signals;
use jet::values::parse_span_or_seconds;
use jet_client::send::Completion;
use jet_fabric::Address;
use std::error::Error;
use std::time::{Duration, Instant};

/// Time for which the probe's sender polls for ends before it sleeps: in practice the sender never sleeps.
const SPIN: Duration = Duration::from_secs(1);
/// Time between two checks for signals to this process. A check is a system call.
const CHECK_EVERY: Duration = Duration::from_millis(20);
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Target and shape of the probe.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// A daemon of this host with an application of the same name (--app): each message over the wire is
    /// followed by one to this daemon, and the difference is noted
    #[arg(long, value_name = "ADDR")]
    loopback: Option<Address>,
    /// Bytes of a message
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    bytes: u32,
    /// Length of a sample, in seconds or as 500ms
    #[arg(long, value_name = "SPAN", default_value = "10", value_parser = span_above_zero)]
    runtime: Duration,
    /// Time before each sample that is not counted, in seconds or as 500ms
    #[arg(long, value_name = "SPAN", default_value = "0.5", value_parser = parse_span_or_seconds)]
    warm_up: Duration,
    /// The core that the sending thread stays on; the thread polls for ends all the time
    #[arg(long, visible_alias = "cpu")]
    core: Option<u32>,
}

/// A measurement that sends one message and notes its latency.
struct OneMessage<'a> {
    signals: &'a Signals,
    start: Instant,
    latency_ns: Option<u64>,
}

impl Measurement for OneMessage<'_> {
    fn next(&mut self, sent: u64) -> Next {
        if sent == 0 { Next::Now } else { Next::Never }
    }

    fn consumed(&mut self, completion: &Completion) {
        self.latency_ns = Some(nanoseconds(completion.latency));
    }

    fn gives_up(&mut self) -> bool {
        is_interrupted(self.signals) || self.start.elapsed() > STALL_LIMIT
    }
}

/// Returns whether SIGINT or SIGTERM has come, now or before.
fn is_interrupted(signals: &Signals) -> bool {
    if let Some(signal) = signals.take() {
        crate::interrupt::note(signal);
    }
    crate::interrupt::noted().is_some()
}

/// One route that messages take: a connection to a daemon.
struct Route<'a> {
    to: &'a Address,
    app: &'a str,
    sends: SendLoop,
    messages: Messages,
}

impl<'a> Route<'a> {
    fn connect(to: &'a Address, args: &'a Args) -> Result<Self, Box<dyn Error>> {
        let messages = Messages { bytes: args.bytes as usize, depth: 1, tag: 0, class: 0 };
        let options = sender_options(to, &args.target.app, messages.bytes, 1).spin_max(SPIN);
        let source = args.target.from.filter(|_| matches!(to, Address::Rdma(_)));
        let buffers = usize::from(!messages.are_small());
        let sends = SendLoop::connect(options.source(source), messages.bytes, buffers)?;
        Ok(Self { to, app: &args.target.app, sends, messages })
    }

    /// Sends one message over this route. Returns nanoseconds from its submission to its end; `None`: a
    /// signal came first.
    fn one(&mut self, run: u32, now: Instant, signals: &Signals) -> Result<Option<u64>, Box<dyn Error>> {
        self.messages.tag = tag_of(run);
        let mut message = OneMessage { signals, start: now, latency_ns: None };
        self.sends.run(&self.messages, &mut message).map_err(|error| explained(error, self.to, self.app))?;
        if message.latency_ns.is_none() && crate::interrupt::noted().is_none() {
            let Self { to, app, .. } = self;
            return Err(format!(
                "{to}: a message has no end for {STALL_LIMIT:?}; does the application '{app}' read?"
            )
            .into());
        }
        Ok(message.latency_ns)
    }
}

/// Latencies of one sample of the probe.
struct Sample {
    far: Histogram<u64>,
    near: Histogram<u64>,
    /// Differences, latency over the wire minus latency to this host, in nanoseconds and in ascending order.
    differences_ns: Vec<i64>,
}

/// Runs `jet-bench probe`. Call this function before any other thread is started.
///
/// # Errors
/// An error of a daemon, an application or the system.
pub fn run(samples: u32, args: &Args) -> Result<Vec<Row>, Box<dyn Error>> {
    let signals = Signals::new()?;
    let mut far = Route::connect(&args.target.to, args)?;
    let mut near = args.loopback.as_ref().map(|to| Route::connect(to, args)).transpose()?;
    let _pinning = args.core.map(pin_thread).transpose()?;
    let mut seen = Vec::new();
    for number in 1..=samples {
        sample(&mut far, near.as_mut(), super::WARM_UP, args.warm_up, &signals)?;
        let sample = sample(&mut far, near.as_mut(), number, args.runtime, &signals)?;
        if sample.far.is_empty() {
            break;
        }
        let [p50, p99, p999, max] = QUANTILES.map(|(_, quantile)| us(&sample.far, quantile));
        tracing::info!(
            "sample {number} of {samples}: {} messages; {p50:.1} us p50, {p99:.1} p99, {p999:.1} p99.9, \
             {max:.1} max",
            sample.far.len()
        );
        seen.push(sample);
    }
    Ok(rows(args, &seen))
}

fn sample(
    far: &mut Route<'_>,
    mut near: Option<&mut Route<'_>>,
    run: u32,
    span: Duration,
    signals: &Signals,
) -> Result<Sample, Box<dyn Error>> {
    let mut sample = Sample { far: histogram(), near: histogram(), differences_ns: Vec::new() };
    let start = Instant::now();
    let mut checked = start;
    let mut interrupted = is_interrupted(signals);
    loop {
        let now = Instant::now();
        if now.duration_since(checked) >= CHECK_EVERY {
            (checked, interrupted) = (now, is_interrupted(signals));
        }
        if now.duration_since(start) >= span || interrupted {
            break;
        }
        let Some(far_ns) = far.one(run, now, signals)? else { break };
        sample.far.saturating_record(far_ns);
        if let Some(near) = &mut near {
            let Some(near_ns) = near.one(run, Instant::now(), signals)? else { break };
            sample.near.saturating_record(near_ns);
            sample.differences_ns.push(far_ns.cast_signed() - near_ns.cast_signed());
        }
    }
    sample.differences_ns.sort_unstable();
    Ok(sample)
}

fn rows(args: &Args, seen: &[Sample]) -> Vec<Row> {
    let name = format!("{} B, one at a time", args.bytes);
    let row = |what: &str, of: &dyn Fn(&Sample) -> f64| {
        Row::new("probe", &format!("{name}{what}"), "us", seen.iter().map(of).collect(), Bound::None)
    };
    #[allow(clippy::cast_precision_loss)] // counts below 2^53
    let messages = |sample: &Sample| sample.far.len() as f64;
    let consumed = seen.iter().map(messages).collect();
    let metric = format!("{name}: messages consumed");
    let mut rows = vec![Row::exact("probe", &metric, "messages", consumed, Bound::AtLeast(1.0))];
    for (what, quantile) in QUANTILES {
        rows.push(row(&format!(", {what}"), &|sample| us(&sample.far, quantile)));
    }
    if args.loopback.is_some() {
        for (what, quantile) in QUANTILES {
            let what = format!(" to this host, {what}");
            rows.push(row(&what, &|sample| us(&sample.near, quantile)));
        }
        for (what, quantile) in QUANTILES {
            let what = format!(", less that to this host, {what}");
            let of = |sample: &Sample| quantile_us(&sample.differences_ns, quantile);
            rows.push(row(&what, &of));
        }
    }
    rows
}

/// Returns the smallest value that at least a share `quantile` of the sorted values does not exceed, in
/// microseconds.
fn quantile_us(sorted_ns: &[i64], quantile: f64) -> f64 {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a place
    let place = ((sorted_ns.len() as f64 * quantile).ceil() as usize).saturating_sub(1);
    #[allow(clippy::cast_precision_loss)] // at most minutes
    sorted_ns.get(place).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_differences_may_be_below_zero() {
        let sorted_ns: Vec<i64> = (-50..50).map(|n| n * 1000).collect();
        let seen = [0.0, 0.5, 0.99, 1.0].map(|quantile| quantile_us(&sorted_ns, quantile));
        assert_eq!(seen, [-50.0, -1.0, 48.0, 49.0]);
        assert!(quantile_us(&[], 0.5).is_nan());
    }
}

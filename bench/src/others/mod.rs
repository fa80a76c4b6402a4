//! Measures what well-behaved senders keep beside peers that behave badly.
//!
//! - `slow`: beside one sender with 40 large messages outstanding that is behind a slow link, trickles, or is
//!   stopped, a fast sender's large messages;
//! - `half-sent`: beside 1000 connections that have sent a part of a SEND, a fast sender's small messages;
//! - `silent`: beside 384 connections that say nothing, a new sender's connecting;
//! - `classes`: beside a message of 1 GiB of the least urgent class behind a slow link, messages of the most
//!   urgent class;
//! - `loss`: while 1000 peers are lost at once, a fast sender's small messages;
//! - `sparse`: beside senders over `shm:` whose memory is holes, the daemon's own memory.
//!
//! The good and the bad peers send to different applications. Everything is a process of its own: the daemon,
//! both applications, the bad sender, its proxy, a crowd of connections. The good sender is in the
//! benchmark's own thread.
//!
//! *Alone* and *beside* alternate in one run, and a ratio is of two neighbours. Alone the bad sender's
//! processes are there too, and connected, and send nothing. So a ratio shows what the bad sender's messages
//! cost, and not what further processes cost. The processes do take some processor time beside, and on a
//! machine with few cores the good sender loses that time: a row says how much it was. A control row has the
//! same proxy with one message outstanding instead of 40, at the rate that takes the most processor time.
//! What is lost there is the machine's, and no place that the daemon gave away.
//!
//! Over `shm:` the daemon itself copies a sender's bytes out of the sender's memory. No rate and no stop of
//! the sender delays that copy, so the one bad sender over `shm:` is one that is stopped and takes no ends.
//! A slow sender over `tcp:` is measured beside good senders over both fabrics. What a proxy cannot show: a
//! network that loses packets, and an RNIC, which READs without the sender's processor as `shm:` does.

pub mod bad_sender;
mod classes;
pub mod crowd;
mod frames;
mod good_sender;
mod own_reactor;
pub mod proxy;
mod slow;
mod sparse;
mod stage;
mod strangers;

use crate::report::{Bound, Row, RunSize};
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::Write;
use std::time::Duration;

/// Name of the benchmark.
const BENCH: &str = "others";
/// Time after which a wait fails the benchmark. This limit is so long that delays of a busy machine are not
/// mistaken for a hang.
const LIMIT: Duration = Duration::from_secs(120);

/// Answer of a process that has done what it was told, and has nothing to say about it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Nothing {}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Beside one bad sender of large messages
    Slow,
    /// Beside 1000 half-sent SENDs
    HalfSent,
    /// Beside 384 silent connections
    Silent,
    /// An urgent message beside a long one of the least urgent class
    Classes,
    /// While 1000 peers are lost
    Loss,
    /// The daemon's memory beside senders whose memory is holes
    Sparse,
}

/// Parts of the benchmark to run, and their settings.
#[derive(clap::Args)]
pub struct Args {
    /// Only this part; may be repeated
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Set a key of the daemon's configuration, as in --set limits.requests_per_peer=8; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    set: Vec<String>,
}

/// Settings that all parts share.
struct Plan<'a> {
    run_size: RunSize,
    settings: &'a [String],
}

impl Plan<'_> {
    /// Returns the numbers of the turns, and prints each before it begins.
    fn turns(&self, part: &str) -> impl Iterator<Item = u32> {
        let samples = self.run_size.samples;
        (1..=samples).inspect(move |turn| {
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "jet-bench: others: {part}: {turn} of {samples}");
        })
    }
}

/// Adds the rows of one part of the benchmark. Each metric begins with the part's name.
struct PartRows<'a> {
    rows: &'a mut Vec<Row>,
    name: &'static str,
}

impl PartRows<'_> {
    /// Adds a row of [`Kind::Timed`](crate::report::Kind::Timed).
    fn timed(&mut self, metric: &str, unit: &'static str, samples: Vec<f64>, bound: Bound) {
        self.rows.push(Row::new(BENCH, &format!("{}: {metric}", self.name), unit, samples, bound));
    }

    /// Adds a row of [`Kind::Exact`](crate::report::Kind::Exact).
    fn exact(&mut self, metric: &str, unit: &'static str, value: f64, bound: Bound) {
        self.rows.push(Row::exact(BENCH, &format!("{}: {metric}", self.name), unit, vec![value], bound));
    }
}

/// Converts a span to milliseconds.
fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

/// Runs the benchmark `others`.
///
/// # Errors
/// An error of one of the parts.
pub fn run(run_size: RunSize, args: &Args) -> Result<Vec<Row>, Box<dyn Error>> {
    crate::connections::raise_descriptor_limit();
    let plan = Plan { run_size, settings: &args.set };
    let mut rows = Vec::new();
    for part in <Part as clap::ValueEnum>::value_variants() {
        if !args.only.is_empty() && !args.only.contains(part) {
            continue;
        }
        match part {
            Part::Slow => slow::run(&plan, &mut rows)?,
            Part::HalfSent => strangers::half_sent(&plan, &mut rows)?,
            Part::Silent => strangers::silent(&plan, &mut rows)?,
            Part::Classes => classes::run(&plan, &mut rows)?,
            Part::Loss => strangers::loss(&plan, &mut rows)?,
            Part::Sparse => sparse::run(&plan, &mut rows)?,
        }
    }
    Ok(rows)
}

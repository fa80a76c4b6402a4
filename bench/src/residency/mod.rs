//! Measures the cache's effect on a receiver. The same senders and the same reading application use Jet's
//! receiver, and receivers as RDMA applications are usually written (`conventional`). The conventional ones
//! have buffers of each connection's own, or a shared pool as SPDK has. One of those with own buffers has no
//! more READs at once than Jet. That receiver's figures separate the effect of that limit from the effect of
//! the cache.
//!
//! All receivers run over the NIC in software, whose copies fill the cache as a device's writes do. Each has
//! one thread for the NIC and one that reads every byte. The receivers take turns in one run, one at a time,
//! in an order that rotates. There are turns without and with an antagonist, a process that takes memory
//! bandwidth. With the antagonist there are also open loops, in which all receivers get the same load.
//!
//! The way from an RDMA device to memory (DDIO, the device's buffer) is not measured. No thread has a
//! processor of its own: senders, receiver, application and antagonist share those of this host. The senders'
//! bytes are one hot stretch of memory (`traffic`).

mod arrivals;
mod bare;
mod buffers;
pub mod conventional;
mod counted;
mod picture;
mod receivers;
mod resident;
mod rows;
mod table;
#[cfg(test)]
mod tests;
pub mod touched;
pub mod traffic;
mod turns;

use crate::provenance::Run;
use crate::report::{Bound, Row, RunSize};
use crate::rig::start_membw;
use counted::Counted;
use jet_cat::CpuSet;
use picture::Picture;
use receivers::{Receiver, StartedReceiver};
use resident::CacheHitClassifier;
use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use traffic::Shape;
use turns::{Measured, Setting, Spans};

/// Core that a receiver and its application share, so that the core's own cache has the bytes that have just
/// arrived. Senders and antagonist use [`OTHERS_CORE`].
const RECEIVERS_CORE: u32 = 0;
const OTHERS_CORE: u32 = 1;
/// Number of connections to a receiver, as many as in the paper's setting.
const SENDERS: usize = 32;
/// Message size, in bytes, to which the bounds apply.
const BOUND_BYTES: usize = 256 << 10;
/// Loads of the open loop, in percent of the slowest receiver's rate in a closed loop.
const LOADS: [u32; 3] = [50, 70, 90];
/// Load of a brief run's open loop, in percent of the slowest receiver's rate in a closed loop.
const BRIEF_LOADS: [u32; 1] = [70];

/// Message sizes and loads to measure, and files to write.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Bytes of a message, 8 to 1 MiB; may be repeated [default: 4 KiB to 1 MiB]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    pub message_bytes: Vec<u32>,
    /// Messages under way on each connection
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub depth: u16,
    /// Memory bandwidth that the antagonist takes; 0: as much as it can
    #[arg(long, value_name = "GB/S", default_value_t = 3.0, value_parser = crate::membw::rate)]
    pub antagonist: f64,
    /// A table (CSV) of every turn is written to this file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// A picture (SVG and PNG) and the table of --csv are written into this folder; needs gnuplot
    #[arg(long, value_name = "FOLDER")]
    pub plot: Option<PathBuf>,
    /// A setting of both Jet receivers' daemons, as in jetd's configuration; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// Runs the benchmark `residency`.
///
/// # Errors
/// An error of a receiver or a sender, or a file that cannot be written.
pub fn run(run_size: RunSize, args: &Args) -> Result<Vec<Row>, Box<dyn Error>> {
    let sizes = if args.message_bytes.is_empty() {
        vec![4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
    } else {
        args.message_bytes.iter().map(|&bytes| bytes as usize).collect()
    };
    // Before anything is measured, so that a missing gnuplot is found at once.
    let picture = args.plot.as_deref().map(Picture::prepare).transpose()?;
    let mut csv = args
        .csv
        .as_deref()
        .map(|path| File::create(path).map_err(|error| format!("--csv {}: {error}", path.display())))
        .transpose()?;
    if let Err(reason) = Counted::start(std::process::id()) {
        tracing::info!("{reason}");
    }
    let receivers = u32::try_from(Receiver::ALL.len())?;
    let samples = run_size.samples;
    if !samples.is_multiple_of(receivers) && !run_size.brief {
        tracing::info!(
            "in {samples} rounds not every receiver is first, second and so on equally often; \
             take {receivers} or a multiple: --samples {receivers}"
        );
    }
    let mut rows = Vec::new();
    let mut measured = Measured::default();
    for message_bytes in sizes {
        let shape = Shape { connections: SENDERS, depth: usize::from(args.depth), message_bytes };
        tracing::info!("messages of {message_bytes} bytes");
        one_size(run_size, shape, args, &mut measured, &mut rows)?;
    }
    if let Some(csv) = &mut csv {
        csv.write_all(table::csv(&measured).as_bytes())?;
    }
    if let Some(picture) = picture {
        picture.draw(&Run::this(samples, run_size.brief), &measured)?;
    }
    Ok(rows)
}

fn one_size(
    run_size: RunSize,
    shape: Shape,
    args: &Args,
    measured: &mut Measured,
    rows: &mut Vec<Row>,
) -> Result<(), Box<dyn Error>> {
    let start = |receiver| StartedReceiver::start(receiver, shape, RECEIVERS_CORE, &args.set);
    let mut receivers = Receiver::ALL.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
    let (spans, loads) = run_size.of((Spans::FULL, &LOADS[..]), (Spans::BRIEF, &BRIEF_LOADS[..]));
    // Loads are offered beside the antagonist only, where the tail's bound applies.
    for (antagonist, loads) in [(None, &[][..]), (Some(args.antagonist), loads)] {
        let _hammer = antagonist.map(|rate| start_membw(rate, OTHERS_CORE)).transpose()?;
        let setting = Setting { shape, antagonist, loads, spans };
        turns::warm_up(&mut receivers, spans)?;
        let classifier = calibrated()?;
        turns::rounds(run_size.samples as usize, &setting, classifier.as_ref(), &mut receivers, measured)?;
        rows.extend(rows::of_setting(shape, antagonist, loads, measured));
    }
    if !shape.is_small() {
        used(shape, spans, &mut receivers, rows)?;
    }
    Ok(())
}

/// Calibrates the classifier that tells cache hits from memory by time, on the processor where the receivers
/// of this benchmark run. `None`: the two cannot be told apart on this machine; a log line says why, and the
/// results of the receivers lack the row `resident`.
fn calibrated() -> std::io::Result<Option<CacheHitClassifier>> {
    let _there = CpuSet::from_iter([RECEIVERS_CORE]).pin_thread()?;
    Ok(CacheHitClassifier::calibrate()
        .inspect_err(|error| tracing::warn!("resident is not told: {error}"))
        .ok())
}

/// Adds rows for how much of Jet's pool is in use, from status requests during a load.
fn used(
    shape: Shape,
    spans: Spans,
    receivers: &mut [StartedReceiver],
    rows: &mut Vec<Row>,
) -> Result<(), Box<dyn Error>> {
    let _here = CpuSet::from_iter([OTHERS_CORE]).pin_thread()?;
    for one in receivers.iter_mut().filter(|one| one.rig().is_some()) {
        one.continue_receivers()?;
        let used = one.used_mib(spans.turn)?;
        one.stop()?;
        let Some((mean, most)) = used else { continue };
        let mut row = |metric: &str, unit, value, bound| {
            let metric = format!("{}: {}, {metric}", rows::words(shape, None), one.receiver.name());
            rows.push(Row::new("residency", &metric, unit, vec![value], bound));
        };
        row("in use for large messages, mean", "MiB", mean, Bound::None);
        let bounded = one.receiver == Receiver::Following && shape.message_bytes == BOUND_BYTES;
        let bound = if bounded { Bound::AtMost(1.5) } else { Bound::None };
        row("in use for large messages, most / mean", "ratio", most / mean, bound);
    }
    Ok(())
}

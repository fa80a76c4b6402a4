//! The cache's effect: the same senders and the same reading application through Jet's pool, and through buffers of each
//! connection's own, as RDMA applications usually keep them (`conventional`).
//!
//! Both receivers run over the NIC in software, whose copies fill the cache as a device's writes do; each with one thread for the
//! NIC and one that reads every byte. In turns, in one run, without and with an antagonist that takes memory bandwidth.
//!
//! It cannot see a device's own way to memory (DDIO, its buffer), nor processors of one's own for each thread: senders, receiver,
//! application and antagonist share those of this host. The senders' bytes are one hot stretch of memory (`traffic`).

mod bare;
pub mod conventional;
mod counted;
mod picture;
pub mod touched;
pub mod traffic;

use crate::report::{Bound, Row, pairwise};
use crate::rig::{ConventionalProcess, MembwProcess, Rig};
use counted::Counted;
use jet_cat::CpuSet;
use jet_wire::SLAB_BYTES;
use picture::Picture;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use touched::Touched;
use traffic::{Seen, Shape, Traffic};

/// Receiver and application share a core, whose own cache then has what has just arrived; senders and antagonist the other one.
const RECEIVERS_CORE: u32 = 0;
const OTHERS_CORE: u32 = 1;
/// Connections, as in the paper's setting.
const SENDERS: usize = 32;
/// How long one turn lasts, and is warmed up.
const TURN: Duration = Duration::from_millis(1500);
const WARM_UP: Duration = Duration::from_millis(1000);
/// The same of the bare limit.
const BARE_TURN: Duration = Duration::from_millis(150);
/// The size that the bounds are of.
const BOUND_BYTES: usize = 256 << 10;

/// What is asked for.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Bytes of a message, 8 to 1 MiB; may be repeated [default: 4 KiB to 1 MiB]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(8..=1 << 20))]
    pub message_bytes: Vec<u32>,
    /// Messages under way on each connection
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub depth: u16,
    /// What the antagonist takes; 0: as much as it can
    #[arg(long, value_name = "GB/S", default_value_t = 3.0, value_parser = crate::membw::rate)]
    pub antagonist: f64,
    /// A table of every turn is written there
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// A picture (SVG and PNG) and that table are written into this folder; takes gnuplot
    #[arg(long, value_name = "FOLDER")]
    pub plot: Option<PathBuf>,
    /// A setting of both daemons, as in jetd's configuration; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

/// Who receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiver {
    Jet,
    Following,
    Conventional,
}

impl Receiver {
    const ALL: [Self; 3] = [Self::Jet, Self::Conventional, Self::Following];

    fn name(self) -> &'static str {
        match self {
            Self::Jet => "Jet's pool",
            Self::Following => "Jet's pool, following",
            Self::Conventional => "buffers of each connection",
        }
    }

    /// In the table, and as a file's name.
    fn key(self) -> &'static str {
        match self {
            Self::Jet => "jet",
            Self::Following => "following",
            Self::Conventional => "conventional",
        }
    }
}

/// One turn of one receiver.
struct Turn {
    receiver: Receiver,
    shape: Shape,
    /// GB/s; `None`: without.
    antagonist: Option<f64>,
    seen: Seen,
    resident: Option<f64>,
    /// Memory that the application read during the turn, each page counted once.
    touched_mib: f64,
    /// Misses of the last-level cache a KiB.
    misses: Option<f64>,
}

/// A receiver that stands, with what is sent to it.
enum Standing {
    Jet(Receiver, Rig, Traffic, Touched),
    Conventional(ConventionalProcess, Traffic, Touched),
}

impl Standing {
    fn start(receiver: Receiver, shape: Shape, mut settings: Vec<String>) -> Result<Self, Box<dyn Error>> {
        let touched = Touched::new()?;
        if receiver == Receiver::Conventional {
            let process = ConventionalProcess::start(shape, RECEIVERS_CORE, &touched)?;
            let traffic = Traffic::connect(process.address(), shape)?;
            return Ok(Self::Conventional(process, traffic, touched));
        }
        settings.push(format!("reactor.cpu={RECEIVERS_CORE}"));
        settings.push("nic.thread=\"off\"".to_owned());
        let rig = Rig::start_on("shm", true, &settings, Some(RECEIVERS_CORE), Some(&touched))?;
        let traffic = Traffic::connect(&rig.address()?, shape)?;
        Ok(Self::Jet(receiver, rig, traffic, touched))
    }

    fn turn(&mut self, shape: Shape, antagonist: Option<f64>) -> Result<Turn, Box<dyn Error>> {
        let receiver_pid = match self {
            Self::Jet(_, rig, ..) => rig.daemon_pid(),
            Self::Conventional(process, ..) => process.pid(),
        };
        let counted = Counted::start(receiver_pid);
        let (Self::Jet(_, _, traffic, touched) | Self::Conventional(_, traffic, touched)) = self;
        touched.clear();
        let seen = traffic.run(TURN)?;
        let touched = touched.bytes();
        let misses = counted.ok().map(|mut counted| counted.misses()).transpose()?;
        let (receiver, resident) = match self {
            Self::Jet(receiver, rig, ..) => {
                let status = rig.status()?;
                (*receiver, status["cache"]["warmer"]["resident"]["share"].as_f64())
            }
            Self::Conventional(process, ..) => (Receiver::Conventional, process.resident()?),
        };
        #[allow(clippy::cast_precision_loss)] // a rate
        let misses =
            misses.map(|misses| misses as f64 / (seen.gigabytes_per_s * 1e9 / 1024.0 * TURN.as_secs_f64()));
        #[allow(clippy::cast_precision_loss)] // below 2^30
        let touched_mib = touched as f64 / 1_048_576.0;
        Ok(Turn { receiver, shape, antagonist, seen, resident, touched_mib, misses })
    }

    fn warm_up(&mut self) -> Result<(), Box<dyn Error>> {
        let (Self::Jet(_, _, traffic, _) | Self::Conventional(_, traffic, _)) = self;
        traffic.run(WARM_UP).map(drop)
    }

    /// What of the pool is in use for large messages, in MiB: on average over a turn, which is its rate times how long a slab is in
    /// use (Little's law), and at most. Asking costs the daemon a little: no turn of these counts for anything else.
    fn used_mib(&mut self) -> Result<Option<(f64, f64)>, Box<dyn Error>> {
        let Self::Jet(_, rig, traffic, _) = self else { return Ok(None) };
        let done = AtomicBool::new(false);
        let used = std::thread::scope(|scope| -> Result<Vec<f64>, Box<dyn Error>> {
            let asking = scope.spawn(|| -> std::io::Result<Vec<f64>> {
                let mut used = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    used.extend(rig.status()?["pool"]["read"].as_f64());
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(used)
            });
            let ran = traffic.run(TURN);
            done.store(true, Ordering::Relaxed);
            let used = asking.join().map_err(|_| "the thread that asks panicked")??;
            ran.map(|_| used)
        })?;
        #[allow(clippy::cast_precision_loss)] // a mean
        let mean = used.iter().sum::<f64>() / used.len() as f64;
        let most = used.iter().copied().fold(0.0, f64::max);
        let mib = |slabs: f64| slabs * SLAB_BYTES as f64 / 1_048_576.0;
        Ok(Some((mib(mean), mib(most))))
    }
}

/// Runs the benchmark.
///
/// # Errors
/// What a receiver or a sender says.
pub fn run(samples: u32, args: &Args) -> Result<Vec<Row>, Box<dyn Error>> {
    let sizes = if args.message_bytes.is_empty() {
        vec![4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
    } else {
        args.message_bytes.iter().map(|&bytes| bytes as usize).collect()
    };
    let picture = args.plot.as_deref().map(Picture::prepare).transpose()?;
    // Before anything is measured.
    let mut table = args
        .csv
        .as_deref()
        .map(|path| File::create(path).map_err(|error| format!("--csv {}: {error}", path.display())))
        .transpose()?;
    if let Err(reason) = Counted::start(std::process::id()) {
        eprintln!("residency: {reason}");
    }
    let mut rows = Vec::new();
    let mut turns = Vec::new();
    for message_bytes in sizes {
        let shape = Shape { connections: SENDERS, depth: usize::from(args.depth), message_bytes };
        eprintln!("residency: messages of {message_bytes} bytes");
        let from = turns.len();
        one_size(samples, shape, args, &mut turns, &mut rows)?;
        for antagonist in [None, Some(args.antagonist)] {
            summarize(shape, antagonist, &turns[from..], &mut rows);
        }
    }
    if let Some(table) = &mut table {
        table.write_all(csv(&turns).as_bytes())?;
    }
    if let Some(picture) = picture {
        picture.draw(&turns)?;
    }
    Ok(rows)
}

fn one_size(
    samples: u32,
    shape: Shape,
    args: &Args,
    turns: &mut Vec<Turn>,
    rows: &mut Vec<Row>,
) -> Result<(), Box<dyn Error>> {
    let mut standing = Receiver::ALL
        .iter()
        .map(|&receiver| {
            let mut settings = args.set.clone();
            if receiver == Receiver::Following {
                settings.push("read.footprint=\"follow\"".to_owned());
            }
            Standing::start(receiver, shape, settings)
        })
        .collect::<Result<Vec<_>, _>>()?;
    for antagonist in [None, Some(args.antagonist)] {
        let _hammer = antagonist.map(|rate| MembwProcess::start(rate, OTHERS_CORE)).transpose()?;
        // Not around all of this: processes start where their parent may run.
        let others = CpuSet::from_iter([OTHERS_CORE]);
        {
            let _here = others.stay()?;
            standing.iter_mut().try_for_each(Standing::warm_up)?;
        }
        let mut bare = bare::sizes(shape).map(|_| Vec::new());
        for _ in 0..samples {
            {
                let _here = others.stay()?;
                for one in &mut standing {
                    turns.push(one.turn(shape, antagonist)?);
                }
            }
            let _there = CpuSet::from_iter([RECEIVERS_CORE]).stay()?;
            for ((_, bytes), rates) in bare::sizes(shape).into_iter().zip(&mut bare) {
                let mut ring = bare::Ring::new(bytes, shape.message_bytes)?;
                ring.run(BARE_TURN);
                rates.push(ring.run(BARE_TURN));
            }
        }
        let words = words(shape, antagonist);
        let mut row = |metric: &str, unit, values| {
            rows.push(Row::new("residency", &format!("{words}: {metric}"), unit, values, Bound::None));
        };
        row("bare, 12 MiB / all connections' buffers", "ratio", pairwise(&bare[1], &bare[2]));
        for ((name, _), rates) in bare::sizes(shape).into_iter().zip(bare) {
            row(&format!("bare, {name}"), "GB/s", rates);
        }
    }
    let _here = CpuSet::from_iter([OTHERS_CORE]).stay()?;
    for one in &mut standing {
        let used = one.used_mib()?;
        let Standing::Jet(receiver, rig, ..) = one else { continue };
        let status = rig.status()?;
        let mib = status["pool"]["high_water"].as_f64().unwrap_or(f64::NAN) * SLAB_BYTES as f64 / 1_048_576.0;
        let mut row = |metric: &str, unit, value, bound| {
            let metric = format!("{}: {}, {metric}", words(shape, None), receiver.name());
            rows.push(Row::new("residency", &metric, unit, vec![value], bound));
        };
        row("high-water mark", "MiB", mib, Bound::AtMost(12.0));
        if let Some((mean, most)) = used.filter(|_| !shape.is_small()) {
            row("in use for large messages, mean", "MiB", mean, Bound::None);
            let bounded = *receiver == Receiver::Following && shape.message_bytes == BOUND_BYTES;
            let bound = if bounded { Bound::AtMost(1.5) } else { Bound::None };
            row("in use for large messages, most / mean", "ratio", most / mean, bound);
        }
    }
    Ok(())
}

fn words(shape: Shape, antagonist: Option<f64>) -> String {
    let size = format!("{} KiB, {} x {}", shape.message_bytes >> 10, shape.connections, shape.depth);
    match antagonist {
        None => size,
        Some(0.0) => format!("{size}, memory hammered"),
        Some(rate) => format!("{size}, {rate} GB/s hammered"),
    }
}

fn summarize(shape: Shape, antagonist: Option<f64>, turns: &[Turn], rows: &mut Vec<Row>) {
    let of = |receiver: Receiver, pick: &dyn Fn(&Turn) -> f64| -> Vec<f64> {
        let ours = |turn: &&Turn| turn.receiver == receiver && turn.antagonist == antagonist;
        turns.iter().filter(ours).map(pick).collect()
    };
    let words = words(shape, antagonist);
    for receiver in Receiver::ALL {
        let mut row = |metric: &str, unit, pick: &dyn Fn(&Turn) -> f64| {
            let metric = format!("{words}: {}{metric}", receiver.name());
            rows.push(Row::new("residency", &metric, unit, of(receiver, pick), Bound::None));
        };
        row("", "GB/s", &|turn| turn.seen.gigabytes_per_s);
        row(", p50", "us", &|turn| turn.seen.p50_us);
        row(", p99", "us", &|turn| turn.seen.p99_us);
        row(", p99.9", "us", &|turn| turn.seen.p999_us);
        row(", memory touched in a turn", "MiB", &|turn| turn.touched_mib);
        // Not told everywhere: a row of nothing says nothing.
        if !of(receiver, &|turn| turn.resident.unwrap_or(f64::NAN)).iter().any(|share| share.is_nan()) {
            row(", resident", "share", &|turn| turn.resident.unwrap_or(f64::NAN));
        }
        if !of(receiver, &|turn| turn.misses.unwrap_or(f64::NAN)).iter().any(|misses| misses.is_nan()) {
            row(", last-level misses a KiB", "count", &|turn| turn.misses.unwrap_or(f64::NAN));
        }
    }
    let bounded = antagonist.is_some() && shape.message_bytes == BOUND_BYTES;
    let bound = |bound| if bounded { bound } else { Bound::None };
    let mut ratio = |what: &str, above, below, pick: &dyn Fn(&Turn) -> f64, limit| {
        let values = pairwise(&of(above, pick), &of(below, pick));
        rows.push(Row::new("residency", &format!("{words}: {what}"), "ratio", values, bound(limit)));
    };
    let rate: &dyn Fn(&Turn) -> f64 = &|turn| turn.seen.gigabytes_per_s;
    let tail: &dyn Fn(&Turn) -> f64 = &|turn| turn.seen.p999_us;
    let (jet, own, following) = (Receiver::Jet, Receiver::Conventional, Receiver::Following);
    ratio("Jet / conventional", jet, own, rate, Bound::AtLeast(1.9));
    ratio("Jet / conventional, p99.9", jet, own, tail, Bound::AtMost(0.5));
    ratio("following / Jet", following, jet, rate, Bound::AtLeast(1.1));
}

fn csv(turns: &[Turn]) -> String {
    let mut text = String::from(
        "receiver,message_bytes,connections,depth,antagonist_gb_per_s,gb_per_s,p50_us,p99_us,p99_9_us,resident,touched_mib,misses_a_kib\n",
    );
    for Turn { receiver, shape, antagonist, seen, resident, touched_mib, misses } in turns {
        let name = receiver.key();
        let antagonist = antagonist.map_or(String::new(), |rate| rate.to_string());
        let resident = resident.map_or(String::new(), |share| format!("{share:.3}"));
        let misses = misses.map_or(String::new(), |misses| format!("{misses:.2}"));
        let Shape { connections, depth, message_bytes } = shape;
        let Seen { gigabytes_per_s, p50_us, p99_us, p999_us } = seen;
        writeln!(
            text,
            "{name},{message_bytes},{connections},{depth},{antagonist},{gigabytes_per_s:.3},{p50_us:.1},{p99_us:.1},\
             {p999_us:.1},{resident},{touched_mib:.1},{misses}"
        )
        .expect("text grows");
    }
    text
}

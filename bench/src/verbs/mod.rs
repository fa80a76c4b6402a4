//! Measures Jet over verbs beside perftest; the two alternate on one device. Both ends of each run on this
//! host.
//!
//! * 256 KiB: `ib_read_bw` with 32 READs outstanding, and messages through sender, daemon and application.
//! * 4 KiB: `ib_send_bw --use-srq`, and small messages. Jet's carry a header of 128 bytes, so each is two
//!   packets at an MTU of 4096. These messages are compared with perftest's 4224 bytes, which are the same
//!   two packets. perftest's 4096 bytes, which are one packet, are shown beside them.
//! * 64 B: `ib_send_lat`, and the way from the sender to the application. Jet's sender and application share
//!   one thread beside the daemon's, so that Jet has two threads as perftest has.
//! * Connections: 200 connected senders of which 32 are active, beside 32; and how much of the daemon's
//!   memory the queues of one connection take.
//! * Completion queues of a NIC of a daemon's sizes: how much of the queues' memory cycles through the cache,
//!   and whether all completions fit that can come at once.
//! * Two NICs without receiver and application: allocations and system calls per message while polling.
//!
//! Neither a wire nor an RNIC takes part. On soft-RoCE the kernel's own work on the same cores is most of
//! what is measured. Jet's three processes share these cores where perftest has two.

mod bare;
mod end;
mod perftest;
mod queues;
mod syscalls;

use crate::connections::{ACTIVE, Connections};
use crate::consumer::{Behaviour, Consumer};
use crate::e2e::Load;
use crate::report::{Bound, Row, median, pairwise};
use crate::rig::{Rig, role};
use jet_fabric::verbs::{LocalAddress, local_addresses};
use jet_wire::SLAB_BYTES;
use perftest::{Figure, Place};
use std::collections::BTreeMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

const LARGE: usize = 256 << 10;
/// Number of large messages of a sample: they take seconds on an emulated processor, and a tenth of a second
/// on hardware.
const LARGE_MESSAGES: usize = 512;
const SMALL_MESSAGES: u64 = 8000;
const ROUND_TRIPS: usize = 4000;
const BARE_SENDS: u64 = 4096;
const BARE_READS: u64 = 256;
/// Number of polls in which a NIC checks at most once for events of its connections. The check is a system
/// call. This check follows 4096 polls that found nothing; a poll that found completions counts as sixteen of
/// them.
const CHECK_EVERY_POLLS: u64 = 4096 / 16;
const CONNECTED: usize = 200;
/// Size, in MiB, of the pool's part in which small messages arrive (Jet §4.1.1).
const SRQ_SHARE_MIB: f64 = 4.0;
/// Size of one slab in MiB.
const SLAB_MIB: f64 = SLAB_BYTES as f64 / 1_048_576.0;
const SPAN_MESSAGES: usize = 512;
/// Limit, in KiB, of the daemon's memory that the queues of one connection may take.
const QUEUES_KIB_MAX: f64 = 24.0;
/// Least memory, in KiB, that the queues of one connection can take: a place of 32 bytes for each of 32
/// requests.
const QUEUES_KIB_LEAST: f64 = 1.0;
/// Limit, in KiB, of the completion queues' memory that may cycle through the cache.
const CYCLED_KIB_MAX: f64 = 512.0;

/// Returns the first RDMA device that has an address.
fn first_device() -> Result<LocalAddress, Box<dyn Error>> {
    let none = "no RDMA device has an address; docs/rdma.md says how to try it on soft-RoCE";
    Ok(local_addresses()?.into_iter().next().ok_or(none)?)
}

fn listen_at(device: &LocalAddress) -> String {
    format!("rdma:{}", SocketAddr::new(device.address, 0))
}

/// Returns the address at which a daemon listens over the first RDMA device.
///
/// # Errors
/// An error of the system, or that no RDMA device has an address.
pub fn listen_at_first_device() -> Result<String, Box<dyn Error>> {
    Ok(listen_at(&first_device()?))
}

/// Runs the benchmark `verbs`, or only the parts of it that are named.
///
/// # Errors
/// An error of the rig, perftest or the system, or that no RDMA device has an address.
pub fn run(samples: u32, parts: &[String]) -> Result<Vec<Row>, Box<dyn Error>> {
    let first = first_device()?;
    let address = first.address;
    let fabric = listen_at(&first);
    let place = Place { device: first.device, gid_index: first.gid_index.unwrap_or(0), address };
    let mut rows = Vec::new();
    let only = |name: &str| parts.is_empty() || parts.iter().any(|part| part == name);
    if only("throughput") {
        throughput(&place, &fabric, samples, &mut rows)?;
    }
    if only("latency") {
        latency(&place, &fabric, samples, &mut rows)?;
    }
    if only("connections") {
        connections(&fabric, samples, &mut rows)?;
        completion_queues(address, &mut rows)?;
    }
    if only("counts") {
        counted(address, &mut rows)?;
    }
    Ok(rows)
}

fn row(metric: &str, unit: &'static str, samples: Vec<f64>, bound: Bound) -> Row {
    Row::new("verbs", metric, unit, samples, bound)
}

fn exact(metric: &str, unit: &'static str, samples: Vec<f64>, bound: Bound) -> Row {
    Row::exact("verbs", metric, unit, samples, bound)
}

fn throughput(place: &Place, fabric: &str, samples: u32, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    // perftest's receiver does not read the bytes, so the application does not either.
    let rig = Rig::start(fabric, false, &[])?;
    let mut load = Load::connect(&rig)?;
    load.large(LARGE * 32)?;
    load.small(SMALL_MESSAGES / 8, 4096)?;
    let reads = LARGE_MESSAGES.to_string();
    let sends = SMALL_MESSAGES.to_string();
    let [mut bare_read, mut large, mut bare_send, mut bare_longer, mut small] = [const { Vec::new() }; 5];
    for _ in 0..samples {
        let options = ["-s", "262144", "-o", "32", "-t", "32", "-n", &reads];
        let mebibytes = perftest::run(place, "ib_read_bw", Figure::Bandwidth, &options)?;
        bare_read.push(mebibytes * 1_048_576.0 / 1e9);
        large.push(load.large(LARGE * LARGE_MESSAGES)?);
        for (bytes, into) in [("4096", &mut bare_send), ("4224", &mut bare_longer)] {
            let options = ["-s", bytes, "--use-srq", "-q", "1", "-n", &sends];
            into.push(1e6 * perftest::run(place, "ib_send_bw", Figure::MessageRate, &options)?);
        }
        small.push(load.small(SMALL_MESSAGES, 4096)?);
    }
    let (of_read, of_send, of_longer) =
        (pairwise(&large, &bare_read), pairwise(&small, &bare_send), pairwise(&small, &bare_longer));
    rows.push(row("ib_read_bw, 256 KiB, 32 outstanding", "GB/s", bare_read, Bound::None));
    rows.push(row("256 KiB messages", "GB/s", large, Bound::None));
    rows.push(row("256 KiB messages / ib_read_bw", "ratio", of_read, Bound::AtLeast(0.95)));
    rows.push(row("ib_send_bw --use-srq, 4096 B", "1/s", bare_send, Bound::None));
    rows.push(row("ib_send_bw --use-srq, 4224 B", "1/s", bare_longer, Bound::None));
    rows.push(row("4 KiB messages", "1/s", small, Bound::None));
    rows.push(row("4 KiB messages / ib_send_bw, 4224 B", "ratio", of_longer, Bound::AtLeast(0.85)));
    rows.push(row("4 KiB messages / ib_send_bw, 4096 B", "ratio", of_send, Bound::None));
    Ok(())
}

fn latency(place: &Place, fabric: &str, samples: u32, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    // As many threads poll as in perftest: the daemon's, and one that is sender and application.
    let spin = format!("reactor.spin_us_max={}", 100_000);
    let rig = Rig::start_daemon(fabric, &[spin])?;
    let mut app = Consumer::register(&rig.control_socket(), crate::rig::APP, Behaviour::default())?;
    let mut load = Load::connect(&rig)?;
    load.one_way(ROUND_TRIPS / 8, &mut app)?;
    let [mut bare, mut nics, mut jet, mut submission] = [const { Vec::new() }; 4];
    let trips = ROUND_TRIPS.to_string();
    for _ in 0..samples {
        bare.push(perftest::run(place, "ib_send_lat", Figure::Latency, &["-s", "64", "-n", &trips])?);
        nics.push(bare::half_round_trip(place.address, ROUND_TRIPS)?);
        let one_way = load.one_way(ROUND_TRIPS, &mut app)?;
        jet.push(one_way.arrived_ns / 1e3);
        submission.push(one_way.submitted_ns / 1e3);
    }
    let hand_over = hand_over(samples)?;
    let wire = 1.3 * median(&bare);
    let allowed = wire + median(&hand_over);
    rows.push(row("ib_send_lat, 64 B, one way", "us", bare, Bound::None));
    rows.push(row("hand-over, one way", "us", hand_over, Bound::None));
    rows.push(row("64 B and a header between two NICs, one way", "us", nics, Bound::AtMost(wire)));
    rows.push(row("submission of a 64 B message", "us", submission, Bound::None));
    rows.push(row("64 B message, from its submission to the application", "us", jet, Bound::AtMost(allowed)));
    Ok(())
}

/// Returns how long a hand-over through the session segment takes one way, in microseconds, for each sample.
/// A process of its own measures this time, because the measurement pins itself to a core.
fn hand_over(samples: u32) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.args(["handoff", "--json", "--samples", &samples.to_string()]).output()?;
    let rows = String::from_utf8(output.stdout)?;
    for line in rows.lines() {
        // The first line tells of the run.
        if let Line::Row { metric, samples } = serde_json::from_str(line)?
            && metric == "session segment, one way"
        {
            return Ok(samples.iter().map(|span_ns| span_ns / 1e3).collect());
        }
    }
    let (status, words) = (output.status, String::from_utf8_lossy(&output.stderr));
    Err(format!("jet-bench handoff printed no row \"session segment, one way\" ({status}): {words}{rows}")
        .into())
}

/// Line that `jet-bench --json` prints, with what [`hand_over`] needs of it.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Line {
    Row {
        metric: String,
        samples: Vec<f64>,
    },
    Run {
        #[serde(rename = "run")]
        _run: serde::de::IgnoredAny,
    },
}

fn connections(fabric: &str, samples: u32, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    crate::connections::raise_descriptor_limit();
    let mut few = Connections::gather(fabric, ACTIVE)?;
    let mut many = Connections::gather(fabric, CONNECTED)?;
    few.send(SPAN_MESSAGES / 4)?;
    many.send(SPAN_MESSAGES / 4)?;
    let (mut alone, mut beside_idle) = (Vec::new(), Vec::new());
    let (mut posted_few, mut posted_many) = (Vec::new(), Vec::new());
    for _ in 0..samples {
        few.answer()?;
        alone.push(few.send(SPAN_MESSAGES)?);
        posted_few.push(posted_mib(&few)?);
        many.answer()?;
        beside_idle.push(many.send(SPAN_MESSAGES)?);
        posted_many.push(posted_mib(&many)?);
    }
    let ratios = pairwise(&beside_idle, &alone);
    // Nothing arrives where nothing is posted. Without this bound a count that is always 0 would pass.
    let least = posted_many.clone();
    let memory = pairwise(&posted_many, &posted_few);
    rows.push(row("32 connected, 32 active", "GB/s", alone, Bound::None));
    rows.push(row("200 connected, 32 active", "GB/s", beside_idle, Bound::None));
    rows.push(row("200 connected / 32 connected", "ratio", ratios, Bound::AtLeast(0.9)));
    rows.push(row("posted to the SRQ, 32 connected", "MiB", posted_few, Bound::None));
    rows.push(exact("posted to the SRQ, 200 connected", "MiB", posted_many, Bound::AtMost(SRQ_SHARE_MIB)));
    rows.push(exact("posted to the SRQ, 200 connected, the least", "MiB", least, Bound::AtLeast(SLAB_MIB)));
    rows.push(row("posted to the SRQ, 200 connected / 32 connected", "ratio", memory, Bound::AtMost(1.0)));
    let more = queues::mapped_kib(many.daemon_pid())? - queues::mapped_kib(few.daemon_pid())?;
    #[allow(clippy::cast_precision_loss)] // hundreds
    let each = vec![more / (CONNECTED - ACTIVE) as f64];
    // Where the provider allocates queues itself (mlx5), the device's mappings do not grow. Then the second
    // of these bounds fails.
    let what = "queues of a connection, mapped of the device";
    rows.push(exact(what, "KiB", each.clone(), Bound::AtMost(QUEUES_KIB_MAX)));
    rows.push(exact(&format!("{what}, the least"), "KiB", each, Bound::AtLeast(QUEUES_KIB_LEAST)));
    Ok(())
}

/// Adds rows for a daemon's completion queues, with few and with many connected peers.
fn completion_queues(address: IpAddr, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let near = queues::cycled(address, ACTIVE, ACTIVE)?;
    let far = queues::cycled(address, CONNECTED, ACTIVE)?;
    let kibibytes = |ring: f64, bytes_each: f64| vec![ring * bytes_each / 1024.0];
    let cycled = "completion queues cycled through, 32 connected, 32 active";
    let here = kibibytes(near.ring, queues::RXE_BYTES);
    rows.push(exact(cycled, "KiB", here, Bound::AtMost(CYCLED_KIB_MAX)));
    let cycled = "completion queues cycled through, 200 connected, 32 active and far apart";
    rows.push(row(cycled, "KiB", kibibytes(far.ring, queues::RXE_BYTES), Bound::None));
    let there = kibibytes(far.ring, queues::MLX5_BYTES);
    rows.push(exact(&format!("{cycled}, with mlx5"), "KiB", there, Bound::AtMost(CYCLED_KIB_MAX)));
    // One queue for arrivals, and one for each active peer: no unused queue is counted, and no used one is
    // missing.
    #[allow(clippy::cast_precision_loss)] // tens
    let (queues, all) = (far.queues as f64, (1 + ACTIVE) as f64);
    rows.push(exact("completion queues of those", "queues", vec![queues], Bound::Exactly(all)));
    let left = "places left in the fullest completion queue when everything ends at once";
    let places_left = vec![near.places_left, far.places_left];
    rows.push(exact(left, "places", places_left, Bound::AtLeast(0.0)));
    Ok(())
}

/// Returns the memory that the daemon has posted to its SRQ now, in MiB.
fn posted_mib(connections: &Connections) -> Result<f64, Box<dyn Error>> {
    Ok(f64::from(connections.status()?.pool.posted) * SLAB_MIB)
}

/// Adds rows for allocations and system calls per message. The system calls are counted in a process of this
/// binary that does nothing else.
fn counted(address: IpAddr, rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let mut command = role("verbs-bare")?;
    command.arg(address.to_string());
    let (counts, said) = syscalls::count(&mut command)?;
    let [send_polls, read_polls]: [u64; 2] = serde_json::from_str(&said)?;
    // The intervals: before the first mark, between two marks, SENDs, READs, after the last mark.
    let [_, nothing, sends, reads, _] = &counts[..] else {
        return Err(format!("{} counts instead of 5", counts.len()).into());
    };
    let sends_in = format!("{BARE_SENDS} SENDs in chains of {}", bare::BURST);
    let reads_in = format!("{BARE_READS} READs in chains of {}", bare::READ_BURST);
    for (what, counts, chains, polls) in [
        (sends_in, sends, BARE_SENDS / bare::BURST as u64, send_polls),
        (reads_in, reads, BARE_READS / bare::READ_BURST, read_polls),
    ] {
        let counts = Calls::of(counts, nothing);
        let mut row = |metric: &str, value: f64, most: u64| {
            #[allow(clippy::cast_precision_loss)] // hundreds
            let bound = Bound::AtMost(most as f64);
            rows.push(exact(&format!("{metric}, {what}"), "calls", vec![value], bound));
        };
        // Soft-RoCE rings a doorbell by a system call, once for each chain; hardware by a store.
        row("doorbells by system call", counts.doorbells, chains);
        // Each end may be about to check for events when the count begins.
        row("looks for connections' events", counts.looks, polls / CHECK_EVERY_POLLS + 2);
        row("other system calls", counts.others, 0);
    }
    let carried = bare::carry(address, BARE_SENDS, BARE_READS, || {})?;
    #[allow(clippy::cast_precision_loss)] // thousands
    for (what, allocations, of) in
        [("SEND", carried.send_allocations, carried.sends), ("READ", carried.read_allocations, carried.reads)]
    {
        let metric = format!("allocations a {what}");
        rows.push(exact(&metric, "count", vec![allocations as f64 / of as f64], Bound::AtMost(0.0)));
    }
    Ok(())
}

/// Counts of the system calls between two marks, without those that marking takes.
struct Calls {
    doorbells: f64,
    looks: f64,
    others: f64,
}

impl Calls {
    /// Sorts the system calls between two marks by kind. Calls between two marks with nothing done between
    /// them, `nothing`, are subtracted.
    fn of(counts: &BTreeMap<u64, u64>, nothing: &BTreeMap<u64, u64>) -> Self {
        let is_look = |number| [libc::SYS_epoll_wait, libc::SYS_epoll_pwait].contains(&number);
        let mut calls = Self { doorbells: 0.0, looks: 0.0, others: 0.0 };
        for (counts, sign) in [(counts, 1.0), (nothing, -1.0)] {
            for (&number, &count) in counts {
                let sum = match number.cast_signed() {
                    libc::SYS_write => &mut calls.doorbells,
                    number if is_look(number) => &mut calls.looks,
                    _ => &mut calls.others,
                };
                #[allow(clippy::cast_precision_loss)] // thousands
                let count = count as f64;
                *sum += sign * count;
            }
        }
        calls
    }
}

/// Runs, in the process whose system calls are counted, the SENDs and READs between two NICs, and prints how
/// often they were polled.
///
/// # Errors
/// An error of the NICs.
pub fn run_role(address: IpAddr) -> Result<(), Box<dyn Error>> {
    let carried = bare::carry(address, BARE_SENDS, BARE_READS, syscalls::mark)?;
    jet::output::print(&format!("{}\n", serde_json::to_string(&[carried.send_polls, carried.read_polls])?));
    Ok(())
}

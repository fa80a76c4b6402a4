//! Measures the throughput and latency of a sender, the daemon and an application as three processes, beside
//! the bare limits of the machine.
//!
//! Over `shm:` the limit is one memcpy of the bytes into a ring of the pool's size and one read of them
//! there, by one thread. Over `tcp:` the limit is a loop that reads a loopback socket into such a ring. 32
//! messages are under way at once.
//!
//! The application counts how much memory a load goes through: it marks each page that it is handed. The
//! daemon's own count would not tell, since it cannot exceed the pool's size. Slabs that replace stragglers,
//! and copies, lie outside the pool.
//!
//! No network and no RNIC's DMA takes part. The three processes share the machine's cores, so none is sure of
//! a core of its own.

#[cfg(feature = "verbs")]
use crate::consumer::Consumer;
use crate::processor_time::{ThreadTime, is_beside_messages};
use crate::report::{Bound, Row, RunSize, median};
use crate::residency::touched::Touched;
use crate::rig::{APP, Rig, read_all, reads_of_a_sender_max};
use crate::send_loop::{Count, Messages, SendLoop};
use jet_client::send::SenderOptions;
#[cfg(feature = "verbs")]
use jet_client::send::{AckStatus, Completion};
use jet_escape::EscapeConfig;
use jet_wire::SLAB_BYTES;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// Bytes of a large message.
pub const LARGE_BYTES: usize = 256 << 10;
/// Number of large messages under way at once.
pub const DEPTH: usize = 32;
const POOL_BYTES: usize = 12 << 20;
/// Limit of loads in a row that try to make as many READs run at once as the daemon allows. One load is
/// enough where processes have cores of their own.
const LIMIT_LOADS_MAX: u32 = 32;
/// Bytes of one sample over `shm:`.
const SAMPLE_BYTES: usize = 2 << 30;
const SMALL_MESSAGES: u64 = 2_000_000;
const SMALL_BYTES: usize = 64;

/// Runs the benchmark `e2e` over the named fabrics.
///
/// # Errors
/// An error of the rig or the system.
pub fn run(run_size: RunSize, fabrics: &[&str], settings: &[String]) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for &fabric in fabrics {
        match fabric {
            "tcp" => tcp(run_size, settings, &mut rows)?,
            _ => shm(run_size, settings, &mut rows)?,
        }
    }
    Ok(rows)
}

fn shm(run_size: RunSize, settings: &[String], rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let bytes = run_size.of(SAMPLE_BYTES, SAMPLE_BYTES / 8);
    let messages = run_size.of(SMALL_MESSAGES, SMALL_MESSAGES / 8);
    let touched = Touched::new()?;
    let rig = Rig::start_on("shm", true, settings, None, Some(&touched))?;
    let mut load = Load::connect(&rig)?;
    load.large(bytes / 8)?;
    load.small(messages / 8, SMALL_BYTES)?;
    let (mut limit, mut large, mut small) = (Vec::new(), Vec::new(), Vec::new());
    let mut beside_messages = Vec::new();
    for _ in 0..run_size.samples {
        limit.push(copy_and_read(bytes));
        let time = ThreadTime::begin(rig.daemon_pid(), is_beside_messages)?;
        large.push(load.large(bytes)?);
        small.push(load.small(messages, SMALL_BYTES)?);
        beside_messages.push(time.percent()?);
    }
    let ratios = large.iter().map(|rate| rate / median(&limit)).collect();
    rows.push(Row::new("e2e", "shm: memcpy and read, one thread", "GB/s", limit, Bound::None));
    rows.push(Row::new("e2e", "shm: 256 KiB messages, read by the application", "GB/s", large, Bound::None));
    rows.push(Row::new(
        "e2e",
        "shm: 256 KiB messages / memcpy and read",
        "ratio",
        ratios,
        Bound::AtLeast(0.7),
    ));
    rows.push(Row::new("e2e", "shm: 64 B messages", "1/s", small, Bound::AtLeast(1e6)));
    rows.push(Row::new(
        "e2e",
        "shm: log and control plane while messages flow, of a core",
        "%",
        beside_messages,
        Bound::AtMost(1.0),
    ));
    limits(&rig, &touched, "shm", bytes / 2, rows)
}

fn tcp(run_size: RunSize, settings: &[String], rows: &mut Vec<Row>) -> Result<(), Box<dyn Error>> {
    let bytes = run_size.of(SAMPLE_BYTES / 2, SAMPLE_BYTES / 16);
    let messages = run_size.of(SMALL_MESSAGES / 4, SMALL_MESSAGES / 32);
    // The bare loop does not read the bytes it received, so the application does not either; then both read.
    for read in [false, true] {
        let touched = Touched::new()?;
        let rig = Rig::start_on("tcp", read, settings, None, Some(&touched))?;
        let mut load = Load::connect(&rig)?;
        load.large(bytes / 8)?;
        let (mut limit, mut large) = (Vec::new(), Vec::new());
        for _ in 0..run_size.samples {
            limit.push(socket_to_ring(read, bytes)?);
            large.push(load.large(bytes)?);
        }
        let ratios = large.iter().map(|rate| rate / median(&limit)).collect();
        let (what, bound) = if read { (", read", Bound::None) } else { ("", Bound::AtLeast(0.9)) };
        rows.push(Row::new("e2e", &format!("tcp: socket to buffers{what}"), "GB/s", limit, Bound::None));
        rows.push(Row::new("e2e", &format!("tcp: 256 KiB messages{what}"), "GB/s", large, Bound::None));
        rows.push(Row::new("e2e", &format!("tcp: 256 KiB messages / socket{what}"), "ratio", ratios, bound));
        if !read {
            load.small(messages / 4, SMALL_BYTES)?;
            let small =
                (0..run_size.samples).map(|_| load.small(messages, SMALL_BYTES)).collect::<Result<_, _>>()?;
            rows.push(Row::new("e2e", "tcp: 64 B messages", "1/s", small, Bound::None));
            limits(&rig, &touched, "tcp", bytes / 2, rows)?;
        }
    }
    Ok(())
}

/// Adds rows for the memory that the load went through since its start, and for the READs that ran at once.
/// Before this function measures, it sends twice as many messages at once as there may be READs: 16 MiB,
/// where the pool has 12 MiB. Without so much at once, neither the pool's limit nor that of READs would be
/// reached. This load is repeated, up to [`LIMIT_LOADS_MAX`] times, until the READs at once reach their
/// limit.
fn limits(
    rig: &Rig,
    touched: &Touched,
    fabric: &str,
    bytes: usize,
    rows: &mut Vec<Row>,
) -> Result<(), Box<dyn Error>> {
    let mut load = Load::shaped(rig, LARGE_BYTES, 2 * DEPTH, 1024, false)?;
    let mut status = rig.status()?;
    for _ in 0..LIMIT_LOADS_MAX {
        load.large(bytes)?;
        status = rig.status()?;
        if status.reads.high_water >= reads_of_a_sender_max() {
            break;
        }
    }
    let mebibytes = |slabs: f64| slabs * SLAB_BYTES as f64 / 1_048_576.0;
    #[allow(clippy::cast_precision_loss)] // below 2^30
    let touched = touched.bytes() as f64 / 1_048_576.0;
    let pool = f64::from(status.pool.slabs);
    let stand_ins = f64::from(EscapeConfig::default().replace_slabs_max);
    // Slabs that were taken from escape memory so far: one for each that was replaced, copied or spilled
    // there. That is more than were in use at once, since a free slab is not always the next one to be taken.
    let escape = &status.escape;
    #[allow(clippy::cast_precision_loss)] // far below 2^53
    let taken = (escape.replaced.total + escape.copied.total + escape.spills.total) as f64;
    let escaped = taken.min(f64::from(escape.memory.slabs));
    let high_water = mebibytes(f64::from(status.pool.high_water));
    let escaped_at_once = mebibytes(f64::from(escape.memory.used_max));
    let name = |metric: &str| format!("{fabric}: {metric}");
    let timed = |metric: &str, unit, value, bound| Row::new("e2e", &name(metric), unit, vec![value], bound);
    let exact = |metric: &str, unit, value, bound| Row::exact("e2e", &name(metric), unit, vec![value], bound);
    let handed = "memory that the application was handed";
    let beyond = "memory that the application was handed beyond the pool and what escaped";
    let most = Bound::AtMost(mebibytes(pool + stand_ins));
    rows.extend([
        timed(handed, "MiB", touched, most),
        exact(beyond, "MiB", (touched - mebibytes(pool + escaped)).max(0.0), Bound::AtMost(0.0)),
        timed("pool high-water mark, as the daemon counts", "MiB", high_water, Bound::None),
        timed("escape memory in use at once, at most", "MiB", escaped_at_once, Bound::None),
        timed("escape memory taken, all in all", "MiB", mebibytes(taken), Bound::None),
        exact(
            "READs of one sender at once, at most",
            "READs",
            f64::from(status.reads.high_water),
            Bound::Exactly(f64::from(reads_of_a_sender_max())),
        ),
    ]);
    Ok(())
}

/// A sender to a rig's application, which sends messages as fast as they are taken.
pub struct Load {
    sends: SendLoop,
    large: Messages,
    small_max: usize,
}

/// Time that a message takes from the sender to the application; each field is the median of many messages.
#[cfg(feature = "verbs")]
pub struct OneWay {
    /// Nanoseconds until the sender's calls that submit the message have returned.
    pub submitted_ns: f64,
    /// Nanoseconds from the beginning of these calls until the application has the message.
    pub arrived_ns: f64,
}

impl Load {
    /// Connects a sender to the rig, for [`DEPTH`] large messages of [`LARGE_BYTES`] under way at once.
    ///
    /// # Errors
    /// The sender's error.
    pub fn connect(rig: &Rig) -> Result<Self, Box<dyn Error>> {
        Self::shaped(rig, LARGE_BYTES, DEPTH, 1024, false)
    }

    /// Connects a sender to the rig. At most `large_max` large messages of `large_bytes` and `small_max`
    /// small ones are under way at once. `crc`: messages carry checksums.
    ///
    /// # Errors
    /// The sender's error.
    pub fn shaped(
        rig: &Rig,
        large_bytes: usize,
        large_max: usize,
        small_max: u32,
        crc: bool,
    ) -> Result<Self, Box<dyn Error>> {
        let options = SenderOptions::new(rig.address()?, APP).in_flight_max(small_max).crc(crc);
        let large = Messages { bytes: large_bytes, depth: large_max, tag: 0, class: 0 };
        let sends = SendLoop::connect(options, large_bytes, large_max)?;
        Ok(Self { sends, large, small_max: small_max as usize })
    }

    /// Sends `bytes` in large messages, as many at once as there are buffers. Returns GB/s.
    ///
    /// # Errors
    /// The sender's error, or a message that was not consumed.
    pub fn large(&mut self, bytes: usize) -> Result<f64, Box<dyn Error>> {
        let messages = bytes / self.large.bytes;
        let start = Instant::now();
        self.sends.run(&self.large, &mut Count(messages as u64))?;
        Ok(per_second(messages * self.large.bytes, start) / 1e9)
    }

    /// Sends small messages, as many at once as the receiver's credit allows. Returns messages a second.
    ///
    /// # Errors
    /// The sender's error, or a message that was not consumed.
    pub fn small(&mut self, messages: u64, bytes: usize) -> Result<f64, Box<dyn Error>> {
        let small = Messages { bytes, depth: self.small_max, tag: 0, class: 0 };
        let start = Instant::now();
        self.sends.run(&small, &mut Count(messages))?;
        Ok(per_second(usize::try_from(messages)?, start))
    }

    /// Sends 64-byte messages to an application in this thread, each after the end of the one before. Returns
    /// how long a message takes until it is submitted, and until the application has received it.
    ///
    /// # Errors
    /// The sender's error, or a message that was not consumed.
    #[cfg(feature = "verbs")]
    pub fn one_way(&mut self, messages: usize, app: &mut Consumer) -> Result<OneWay, Box<dyn Error>> {
        let sender = self.sends.sender();
        let (mut submitted, mut arrived) = (Vec::with_capacity(messages), Vec::with_capacity(messages));
        for tag in 0..messages as u64 {
            let start = Instant::now();
            sender.send_small(tag, &[7; SMALL_BYTES])?;
            sender.flush();
            #[allow(clippy::cast_precision_loss)] // far below 2^53
            submitted.push(start.elapsed().as_nanos() as f64);
            let expected = app.taken().messages + 1;
            let mut end = None;
            while app.taken().messages < expected {
                app.step(start)?;
                // Polling drives the sender's NIC, too.
                end = end.or(sender.poll());
            }
            #[allow(clippy::cast_precision_loss)] // far below 2^53
            arrived.push(start.elapsed().as_nanos() as f64);
            while end.is_none() {
                // The application publishes what it released with its next poll for messages.
                app.step(start)?;
                end = sender.poll();
            }
            end.map(consumed).transpose()?;
        }
        Ok(OneWay { submitted_ns: median(&submitted), arrived_ns: median(&arrived) })
    }
}

#[cfg(feature = "verbs")]
fn consumed(completion: Completion) -> Result<(), Box<dyn Error>> {
    match completion.status {
        AckStatus::Consumed => Ok(()),
        status => Err(format!("message {}: {status}", completion.ticket.0).into()),
    }
}

/// Measures the machine's limit for `shm:` in GB/s: one thread copies 256 KiB at a time into the next place
/// of a ring of the pool's size, and reads the bytes there.
fn copy_and_read(bytes: usize) -> f64 {
    let source = vec![1u8; DEPTH * LARGE_BYTES];
    let mut ring = vec![0u8; POOL_BYTES];
    let messages = bytes / LARGE_BYTES;
    let mut sum = 0u64;
    let start = Instant::now();
    for message in 0..messages {
        let from = message % DEPTH * LARGE_BYTES;
        let to = message % (POOL_BYTES / LARGE_BYTES) * LARGE_BYTES;
        let place = &mut ring[to..to + LARGE_BYTES];
        place.copy_from_slice(&source[from..from + LARGE_BYTES]);
        sum = sum.wrapping_add(read_all(std::hint::black_box(place)));
    }
    std::hint::black_box(sum);
    per_second(bytes, start) / 1e9
}

/// Measures the machine's limit for `tcp:` in GB/s: one thread writes 256 KiB at a time to a loopback socket,
/// and another receives them into a ring of the pool's size. If `read`, the other thread then reads the bytes
/// there.
fn socket_to_ring(read: bool, bytes: usize) -> std::io::Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let writer = std::thread::spawn(move || -> std::io::Result<()> {
        let source = vec![1u8; DEPTH * LARGE_BYTES];
        let mut stream = TcpStream::connect(address)?;
        for message in 0..bytes / LARGE_BYTES {
            let from = message % DEPTH * LARGE_BYTES;
            stream.write_all(&source[from..from + LARGE_BYTES])?;
        }
        Ok(())
    });
    let (mut stream, _) = listener.accept()?;
    let mut ring = vec![0u8; POOL_BYTES];
    let mut sum = 0u64;
    let start = Instant::now();
    for message in 0..bytes / LARGE_BYTES {
        let to = message % (POOL_BYTES / LARGE_BYTES) * LARGE_BYTES;
        let place = &mut ring[to..to + LARGE_BYTES];
        stream.read_exact(place)?;
        if read {
            sum = sum.wrapping_add(read_all(place));
        }
    }
    std::hint::black_box(sum);
    let rate = per_second(bytes, start) / 1e9;
    writer.join().map_err(|_| std::io::Error::other("the writer panicked"))??;
    Ok(rate)
}

/// Returns `count` divided by the seconds since `start`.
#[allow(clippy::cast_precision_loss)] // counts below 2^53
pub fn per_second(count: usize, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}

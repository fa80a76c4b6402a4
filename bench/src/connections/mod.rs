//! Measures what idle connections cost in throughput and in the daemon's memory, with many connected senders
//! and few active ones. The benchmark `idle`, also here, measures a daemon that has nothing to do.
//!
//! The idle senders live in processes of a thousand each, so the cost of as many processes to the host is not
//! seen. The daemon's memory is what the kernel counts as resident: its pool, its escape memory, its memory
//! for replies, and all else. Two rows stand apart. The daemon also maps the senders' own regions, which
//! count as the senders' memory. And the pages of the program and its libraries are files of the system: all
//! processes share them, and the kernel maps them in as large pieces as it likes.

mod idle;

use crate::processor_time::{self, ThreadTime};
use crate::report::{Bound, Row, RunSize, median};
use crate::resident_memory::Resident;
use crate::rig::{APP, Rig};
use crate::send_loop::{busy_only, written_buffers};
use clap::builder::PossibleValuesParser;
use idle::IdleSenders;
use jet_client::send::{AckStatus, SendBuffer, Sender, SenderOptions};
use jet_fabric::Address;
use std::error::Error;
use std::time::{Duration, Instant};

pub use idle::{IdleArgs, run_role};

/// Number of senders that send.
pub const ACTIVE: usize = 32;
/// Number of senders that are connected unless `--connected` says otherwise.
const CONNECTED: u32 = 1000;
/// Connected senders that a daemon takes by default.
const PEERS_BY_DEFAULT: usize = 4096;
const LARGE_BYTES: usize = 256 << 10;
/// Messages that each active sender has in flight.
const DEPTH: usize = 2;
const SAMPLE_MESSAGES: usize = 4096;
const SAMPLE_MESSAGES_BRIEF: usize = 512;
/// Size of a daemon's pool by default, in MiB.
const POOL_MIB: f64 = 12.0;
/// Size of a daemon's escape memory by default, in MiB: `escape.memory_bytes` and `escape.replace_bytes`
/// together.
const ESCAPE_MIB: f64 = 33.0;
/// Size of a daemon's memory for replies by default, in MiB: `limits.reply_bytes`.
const REPLIES_MIB: f64 = 8.0;
/// Limit, in MiB, of a daemon's resident memory beyond these three, and beyond the pages of its program, with
/// a thousand senders.
const BEYOND_MIB: f64 = 26.0;

/// Time without a header on the wire after which idle senders and their daemon have nothing more to exchange.
const QUIET_SPAN: Duration = Duration::from_millis(300);
/// Time after which senders and daemon that still exchange headers fail the benchmark.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);

/// Senders connected to one daemon that is measured: some send, and the others are idle.
pub struct Connections {
    rig: Rig,
    active: Vec<(Sender, Vec<SendBuffer>)>,
    idle: IdleSenders,
    connected: usize,
    /// Number of messages that ended as consumed so far.
    consumed: u64,
}

impl Connections {
    /// Starts a daemon that listens over `fabric`, an application that reads, and `connected` senders, 32 of
    /// them active.
    ///
    /// # Errors
    /// An error of the rig or a sender.
    pub fn gather(fabric: &str, connected: usize) -> Result<Self, Box<dyn Error>> {
        let peers = format!("limits.peers={}", connected + 1);
        let settings = if connected < PEERS_BY_DEFAULT { vec![] } else { vec![peers] };
        let rig = Rig::start(fabric, true, &settings)?;
        let address = rig.address()?;
        let mut active = Vec::with_capacity(ACTIVE);
        for _ in 0..ACTIVE {
            let mut sender = Sender::connect(&sender_options(&address))?;
            let buffers = written_buffers(&mut sender, LARGE_BYTES, DEPTH)?;
            active.push((sender, buffers));
        }
        let idle = IdleSenders::connect(&address, connected - ACTIVE)?;
        Ok(Self { rig, active, idle, connected, consumed: 0 })
    }

    /// Makes every active sender keep its messages in flight until `messages` have ended. Returns GB/s.
    ///
    /// # Errors
    /// A sender's error, or a message that was not consumed.
    pub fn send(&mut self, messages: usize) -> Result<f64, Box<dyn Error>> {
        let start = Instant::now();
        let mut started = 0;
        for (sender, buffers) in &mut self.active {
            while let Some(buffer) = buffers.pop() {
                sender.send(0, buffer)?;
                started += 1;
            }
            sender.flush();
        }
        let mut ended = 0;
        while ended < messages {
            for (sender, buffers) in &mut self.active {
                let Some(completion) = sender.wait()? else { continue };
                if completion.status != AckStatus::Consumed {
                    return Err(format!("a message ended {}", completion.status).into());
                }
                ended += 1;
                self.consumed += 1;
                let buffer = completion.buffer.ok_or("a large message gives its buffer back")?;
                if started < messages {
                    sender.send(0, buffer)?;
                    sender.flush();
                    started += 1;
                } else {
                    buffers.push(buffer);
                }
            }
        }
        #[allow(clippy::cast_precision_loss)] // gigabytes
        Ok((messages * LARGE_BYTES) as f64 / start.elapsed().as_secs_f64() / 1e9)
    }

    /// Asks the daemon for its status.
    ///
    /// # Errors
    /// The daemon does not answer.
    #[cfg(feature = "verbs")]
    pub fn status(&self) -> std::io::Result<jet_control::status::Status> {
        self.rig.status()
    }

    /// Returns the daemon's process id.
    #[cfg(feature = "verbs")]
    pub fn daemon_pid(&self) -> u32 {
        self.rig.daemon_pid()
    }

    /// Returns rows whose bounds must hold once all messages of the connections have ended. Every sender is
    /// connected, none was refused or cut off, and the daemon counts as many consumed messages as the senders
    /// do.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn counts(&self, bench: &'static str) -> Result<Vec<Row>, Box<dyn Error>> {
        let status = self.rig.status()?;
        #[allow(clippy::cast_precision_loss)] // thousands
        let [senders, consumed, ended, other_ends, cut_off] = [
            self.connected as u64,
            self.consumed,
            status.ends.consumed,
            status.ends.refused(),
            status.faults.peers,
        ]
        .map(|count| count as f64);
        let connected = f64::from(status.peer_count);
        let exact = |metric: &str, unit, value, bound| Row::exact(bench, metric, unit, vec![value], bound);
        Ok(vec![
            exact("senders connected at the end", "senders", connected, Bound::Exactly(senders)),
            exact("senders cut off", "senders", cut_off, Bound::AtMost(0.0)),
            exact("messages consumed, as the daemon counts", "messages", ended, Bound::Exactly(consumed)),
            exact("messages that ended otherwise", "messages", other_ends, Bound::AtMost(0.0)),
        ])
    }

    /// Returns how many headers the daemon has received and sent so far.
    fn headers(&self) -> Result<f64, Box<dyn Error>> {
        let nic = self.rig.status()?.nic;
        #[allow(clippy::cast_precision_loss)] // far below 2^53
        Ok((nic.receives + nic.sends) as f64)
    }

    /// Makes the active senders answer the daemon until no header is exchanged for [`QUIET_SPAN`]. Returns
    /// the number of headers received and sent so far.
    ///
    /// # Errors
    /// The daemon does not answer, or headers go on for longer than [`SETTLE_LIMIT`].
    fn settle(&mut self) -> Result<f64, Box<dyn Error>> {
        let deadline = Instant::now() + SETTLE_LIMIT;
        let mut before = self.headers()?;
        while Instant::now() < deadline {
            let quiet_until = Instant::now() + QUIET_SPAN;
            while Instant::now() < quiet_until {
                self.active.iter_mut().for_each(|(sender, _)| drop(sender.poll()));
                self.idle.answer()?;
                std::thread::sleep(Duration::from_millis(10));
            }
            let now = self.headers()?;
            if now.total_cmp(&before).is_eq() {
                return Ok(now);
            }
            before = now;
        }
        Err(format!("waited {SETTLE_LIMIT:?} for idle senders and their daemon to have nothing to say")
            .into())
    }

    /// Makes the idle senders answer what the daemon has sent to them, such as a recall of credit.
    ///
    /// # Errors
    /// A process of theirs has ended.
    pub fn answer(&mut self) -> std::io::Result<()> {
        self.idle.answer()
    }
}

/// Returns the options of each sender here.
fn sender_options(address: &Address) -> SenderOptions {
    SenderOptions::new(address.clone(), APP)
        .in_flight_max(8)
        .region_bytes(DEPTH * LARGE_BYTES)
        .retry(busy_only())
}

/// Fabrics that can be asked for.
const FABRICS: &[&str] = if cfg!(feature = "verbs") { &["shm", "tcp", "rdma"] } else { &["shm", "tcp"] };

/// What the benchmark `connections` is asked for.
#[derive(clap::Args)]
pub struct Args {
    /// The fabric; rdma is the first RDMA device that has an address
    #[arg(long, default_value = "shm", value_parser = PossibleValuesParser::new(FABRICS))]
    fabric: String,
    /// Senders that are connected; 32 of them send
    #[arg(long, default_value_t = CONNECTED, value_parser = clap::value_parser!(u32).range(33..=60_000))]
    connected: u32,
}

/// Runs the benchmark `connections`.
///
/// # Errors
/// An error of the rigs or the senders.
pub fn run(run_size: RunSize, asked: &Args) -> Result<Vec<Row>, Box<dyn Error>> {
    let connected = asked.connected as usize;
    let fabric = match asked.fabric.as_str() {
        #[cfg(feature = "verbs")]
        "rdma" => &crate::verbs::listen_at_first_device()?,
        fabric => fabric,
    };
    raise_descriptor_limit();
    let messages = run_size.of(SAMPLE_MESSAGES, SAMPLE_MESSAGES_BRIEF);
    let mut few = Connections::gather(fabric, ACTIVE)?;
    let mut many = Connections::gather(fabric, connected)?;
    few.send(messages / 4)?;
    many.send(messages / 4)?;
    let (mut alone, mut beside_idle) = (Vec::new(), Vec::new());
    for _ in 0..run_size.samples {
        few.answer()?;
        alone.push(few.send(messages)?);
        many.answer()?;
        beside_idle.push(many.send(messages)?);
    }
    let base = median(&alone);
    let ratios = beside_idle.iter().map(|rate| rate / base).collect();
    // Rows over `shm:`, the fabric by default, have no name of it.
    let over = if fabric == "shm" { String::new() } else { format!("{}: ", asked.fabric) };
    let row = |metric: &str, unit, samples, bound| {
        Row::new("connections", &format!("{over}{metric}"), unit, samples, bound)
    };
    #[allow(clippy::cast_precision_loss)] // thousands
    let idle = (connected - ACTIVE) as f64;
    let rate = idle / many.idle.connecting.as_secs_f64();
    let mut rows = vec![
        row("32 connected, 32 active", "GB/s", alone, Bound::None),
        row(&format!("{connected} connected, 32 active"), "GB/s", beside_idle, Bound::None),
        row(&format!("{connected} connected / 32 connected"), "ratio", ratios, Bound::AtLeast(0.9)),
        row("senders connect, one after the other", "1/s", vec![rate], Bound::None),
    ];
    rows.extend(many.counts("connections")?);
    many.settle()?;
    let idle = cpu_percent(many.rig.daemon_pid(), run_size.samples)?;
    let metric = format!("a daemon with {connected} senders, all idle, of a core");
    rows.push(row(&metric, "%", idle, Bound::AtMost(2.0)));
    rows.extend(memory(&many, connected == CONNECTED as usize)?);
    Ok(rows)
}

/// Returns rows of the daemon's memory. `is_bounded`: so many senders are connected that it is known what the
/// daemon may have beyond its pool and the like.
fn memory(many: &Connections, is_bounded: bool) -> Result<Vec<Row>, Box<dyn Error>> {
    let Resident { pool, escape, replies, senders, program, beyond } = Resident::of(many.rig.daemon_pid())?;
    let all = pool + escape + replies + beyond;
    let mut rows = Vec::new();
    let mut row = |metric: &str, mebibytes: f64, bound: Bound| {
        rows.push(match bound {
            Bound::None => Row::new("connections", metric, "MiB", vec![mebibytes], bound),
            bound => Row::exact("connections", metric, "MiB", vec![mebibytes], bound),
        });
    };
    let at_most = |mebibytes| if is_bounded { Bound::AtMost(mebibytes) } else { Bound::None };
    let all_max = POOL_MIB + ESCAPE_MIB + REPLIES_MIB + BEYOND_MIB;
    row("the daemon's memory, without its program's pages", all, at_most(all_max));
    row("of it the pool", pool, Bound::Exactly(POOL_MIB));
    row("of it escape memory", escape, Bound::Exactly(ESCAPE_MIB));
    row("of it memory for replies", replies, Bound::Exactly(REPLIES_MIB));
    row("of it anything else", beyond, at_most(BEYOND_MIB));
    row("the senders' memory that the daemon maps", senders, Bound::None);
    row("the daemon's program's pages", program, Bound::None);
    Ok(rows)
}

/// Runs the benchmark `idle`: a daemon whose application and senders have nothing to send.
///
/// # Errors
/// An error of the rig or the system.
pub fn idle(run_size: RunSize) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut connections = Connections::gather("shm", ACTIVE)?;
    connections.send(ACTIVE * 8)?;
    let pid = connections.rig.daemon_pid();
    if processor_time::of_threads(pid, |_| true)?.is_zero() {
        return Err("this kernel does not count the time that threads run (CONFIG_SCHED_INFO)".into());
    }
    // Senders whose process does something else do not answer the daemon, which recalls credit.
    std::thread::sleep(Duration::from_secs(1));
    let deaf = cpu_percent(pid, run_size.samples)?;
    // Senders that poll answer the daemon; after that nothing is left to do.
    let before = connections.settle()?;
    let listening = cpu_percent(pid, run_size.samples)?;
    let said = connections.headers()? - before;
    let mut rows = vec![
        Row::new("idle", "a daemon with 32 idle senders, of a core", "%", listening, Bound::AtMost(2.0)),
        Row::new("idle", "the same, none of which listens, of a core", "%", deaf, Bound::AtMost(2.0)),
        Row::exact("idle", "headers that went while all was said", "headers", vec![said], Bound::AtMost(0.0)),
    ];
    rows.extend(connections.counts("idle")?);
    Ok(rows)
}

/// Returns the share of a core that the process used in each of `seconds` seconds, in percent.
fn cpu_percent(pid: u32, seconds: u32) -> std::io::Result<Vec<f64>> {
    let second = |_| {
        let counter = ThreadTime::begin(pid, |_| true)?;
        std::thread::sleep(Duration::from_secs(1));
        counter.percent()
    };
    (0..seconds).map(second).collect()
}

/// Raises the limit of open descriptors as far as allowed: a thousand senders in one process have five
/// descriptors each.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // If the limit stays too low, connecting fails and says so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

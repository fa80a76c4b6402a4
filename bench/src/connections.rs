//! Measures what idle connections cost in throughput and in the daemon's memory, with many connected senders
//! and few active ones. The benchmark `idle`, also here, measures a daemon that has nothing to do.
//!
//! All senders live in this process, so the cost of a thousand processes to the host is not seen. The
//! daemon's memory is what the kernel counts as resident: its pool, its escape memory, its memory for
//! replies, and all else. Two rows stand apart. The daemon also maps the senders' own regions, which count as
//! the senders' memory. And the pages of the program and its libraries are files of the system: all processes
//! share them, and the kernel maps them in as large pieces as it likes.

use crate::processor_time::{self, ThreadTime};
use crate::report::{Bound, Row, RunSize, median};
use crate::resident_memory::Resident;
use crate::rig::{APP, Rig};
use crate::send_loop::{busy_only, written_buffers};
use jet_client::send::{AckStatus, SendBuffer, Sender, SenderOptions};
use std::error::Error;
use std::time::{Duration, Instant};

/// Number of senders that send.
pub const ACTIVE: usize = 32;
const CONNECTED: usize = 1000;
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
    idle: Vec<Sender>,
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
        let rig = Rig::start(fabric, true, &[])?;
        let address = rig.address()?;
        let mut active = Vec::with_capacity(ACTIVE);
        let mut idle = Vec::with_capacity(connected - ACTIVE);
        for n in 0..connected {
            let options = SenderOptions::new(address.clone(), APP)
                .in_flight_max(8)
                .region_bytes(DEPTH * LARGE_BYTES)
                .retry(busy_only());
            let mut sender = Sender::connect(&options)?;
            if n < ACTIVE {
                let buffers = written_buffers(&mut sender, LARGE_BYTES, DEPTH)?;
                active.push((sender, buffers));
            } else {
                idle.push(sender);
            }
        }
        Ok(Self { rig, active, idle, consumed: 0 })
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
            (self.active.len() + self.idle.len()) as u64,
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
    pub fn answer(&mut self) {
        for sender in &mut self.idle {
            while sender.poll().is_some() {}
        }
    }
}

/// Runs the benchmark `connections`.
///
/// # Errors
/// An error of the rigs or the senders.
pub fn run(run_size: RunSize) -> Result<Vec<Row>, Box<dyn Error>> {
    raise_descriptor_limit();
    let messages = run_size.of(SAMPLE_MESSAGES, SAMPLE_MESSAGES_BRIEF);
    let mut few = Connections::gather("shm", ACTIVE)?;
    let mut many = Connections::gather("shm", CONNECTED)?;
    few.send(messages / 4)?;
    many.send(messages / 4)?;
    let (mut alone, mut beside_idle) = (Vec::new(), Vec::new());
    for _ in 0..run_size.samples {
        few.answer();
        alone.push(few.send(messages)?);
        many.answer();
        beside_idle.push(many.send(messages)?);
    }
    let base = median(&alone);
    let ratios = beside_idle.iter().map(|rate| rate / base).collect();
    let mut rows = vec![
        Row::new("connections", "32 connected, 32 active", "GB/s", alone, Bound::None),
        Row::new("connections", "1000 connected, 32 active", "GB/s", beside_idle, Bound::None),
        Row::new("connections", "1000 connected / 32 connected", "ratio", ratios, Bound::AtLeast(0.9)),
    ];
    rows.extend(many.counts("connections")?);
    let Resident { pool, escape, replies, senders, program, beyond } = Resident::of(many.rig.daemon_pid())?;
    let all = pool + escape + replies + beyond;
    let mut row = |metric: &str, mebibytes: f64, bound: Bound| {
        rows.push(Row::exact("connections", metric, "MiB", vec![mebibytes], bound));
    };
    let all_max = POOL_MIB + ESCAPE_MIB + REPLIES_MIB + BEYOND_MIB;
    row("the daemon's memory, without its program's pages", all, Bound::AtMost(all_max));
    row("of it the pool", pool, Bound::Exactly(POOL_MIB));
    row("of it escape memory", escape, Bound::Exactly(ESCAPE_MIB));
    row("of it memory for replies", replies, Bound::Exactly(REPLIES_MIB));
    row("of it anything else", beyond, Bound::AtMost(BEYOND_MIB));
    let beside =
        [("the senders' memory that the daemon maps", senders), ("the daemon's program's pages", program)];
    for (metric, mebibytes) in beside {
        rows.push(Row::new("connections", metric, "MiB", vec![mebibytes], Bound::None));
    }
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

//! Many connected senders, few of them active: what the idle ones cost in throughput and in the daemon's memory; and
//! what a daemon costs that has nothing to do.
//!
//! It cannot see what a thousand processes would cost the host: the senders live in this one. Memory is what the kernel
//! counts as resident in the daemon, without the senders' own regions that it maps.

use crate::report::{Bound, Row, median};
use crate::rig::{APP, Rig};
use jet_client::send::{AckStatus, SendBuffer, Sender, SenderOptions};
use std::error::Error;
use std::time::{Duration, Instant};

const ACTIVE: usize = 32;
const CONNECTED: usize = 1000;
const LARGE_BYTES: usize = 256 << 10;
/// Messages that each active sender has in flight.
const DEPTH: usize = 2;
const SAMPLE_MESSAGES: usize = 4096;
/// Files that are counted elsewhere: those of senders, mapped by the daemon, and escape memory, which is as large as the
/// configuration says whoever connects.
const OTHER_FILES: [&str; 4] = ["memfd:jet-link", "memfd:jet-send", "memfd:jet-copies", "memfd:jet-escape"];
const POOL_BYTES: u64 = 12 << 20;

/// Senders connected to one rig.
pub struct Crowd {
    rig: Rig,
    active: Vec<(Sender, Vec<SendBuffer>)>,
    idle: Vec<Sender>,
}

impl Crowd {
    /// A daemon at such an address, an application that reads, and so many senders, 32 of them active.
    ///
    /// # Errors
    /// What the rig or a sender says.
    pub fn gather(fabric: &str, connected: usize) -> Result<Self, Box<dyn Error>> {
        let rig = Rig::start(fabric, true, &[])?;
        let address = rig.address()?;
        let mut active = Vec::with_capacity(ACTIVE);
        let mut idle = Vec::with_capacity(connected - ACTIVE);
        for n in 0..connected {
            let options = SenderOptions {
                in_flight_max: 8,
                region_bytes: DEPTH * LARGE_BYTES,
                ..SenderOptions::new(address.clone(), APP)
            };
            let mut sender = Sender::connect(options)?;
            if n < ACTIVE {
                let buffers = (0..DEPTH).map(|_| sender.buffer(LARGE_BYTES)).collect::<Result<_, _>>()?;
                active.push((sender, buffers));
            } else {
                idle.push(sender);
            }
        }
        Ok(Self { rig, active, idle })
    }

    /// Every active sender keeps its messages in flight, until so many have ended; gives GB/s.
    ///
    /// # Errors
    /// What a sender says, or a message that was not consumed.
    pub fn send(&mut self, messages: usize) -> Result<f64, Box<dyn Error>> {
        let start = Instant::now();
        let mut started = 0;
        for (sender, buffers) in &mut self.active {
            while let Some(buffer) = buffers.pop() {
                sender.send(0, b"", buffer, LARGE_BYTES, 0).map_err(|(error, _)| error)?;
                started += 1;
            }
            sender.flush();
        }
        let mut ended = 0;
        while ended < messages {
            for (sender, buffers) in &mut self.active {
                let Some(completion) = sender.wait(None)? else { continue };
                if completion.status != AckStatus::Consumed {
                    return Err(format!("a message ended {}", completion.status).into());
                }
                ended += 1;
                let buffer = completion.buffer.ok_or("a large message gives its buffer back")?;
                if started < messages {
                    sender.send(0, b"", buffer, LARGE_BYTES, 0).map_err(|(error, _)| error)?;
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

    /// What the daemon says of itself.
    ///
    /// # Errors
    /// Where it does not answer.
    #[cfg(feature = "verbs")]
    pub fn status(&self) -> std::io::Result<serde_json::Value> {
        self.rig.status()
    }

    /// The idle ones answer what the daemon asked of them (credit that it called back).
    pub fn answer(&mut self) {
        for sender in &mut self.idle {
            while sender.poll().is_some() {}
        }
    }
}

/// Runs the benchmark `connections`.
///
/// # Errors
/// What the rigs or the senders say.
pub fn run(samples: u32) -> Result<Vec<Row>, Box<dyn Error>> {
    raise_descriptor_limit();
    let mut few = Crowd::gather("shm", ACTIVE)?;
    let mut many = Crowd::gather("shm", CONNECTED)?;
    few.send(SAMPLE_MESSAGES / 4)?;
    many.send(SAMPLE_MESSAGES / 4)?;
    let (mut alone, mut crowded) = (Vec::new(), Vec::new());
    for _ in 0..samples {
        few.answer();
        alone.push(few.send(SAMPLE_MESSAGES)?);
        many.answer();
        crowded.push(many.send(SAMPLE_MESSAGES)?);
    }
    let base = median(&alone);
    let ratios = crowded.iter().map(|rate| rate / base).collect();
    let memory = resident_bytes(many.rig.daemon_pid())?;
    #[allow(clippy::cast_precision_loss)] // megabytes
    let beyond = memory.saturating_sub(POOL_BYTES) as f64 / 1_048_576.0;
    let status = many.rig.status()?;
    let peers = status["peer_count"].as_f64().unwrap_or(f64::NAN);
    #[allow(clippy::cast_precision_loss)] // a thousand
    let wanted = CONNECTED as f64;
    Ok(vec![
        Row::new("connections", "32 connected, 32 active", "GB/s", alone, Bound::None),
        Row::new("connections", "1000 connected, 32 active", "GB/s", crowded, Bound::None),
        Row::new("connections", "1000 connected / 32 connected", "ratio", ratios, Bound::AtLeast(0.9)),
        Row::exact(
            "connections",
            "senders connected at the end",
            "senders",
            vec![peers],
            Bound::Exactly(wanted),
        ),
        Row::new(
            "connections",
            "the daemon's memory beyond its pool",
            "MiB",
            vec![beyond],
            Bound::AtMost(32.0),
        ),
    ])
}

/// Runs the benchmark `idle`: a daemon with an application and a sender that have nothing to say.
///
/// # Errors
/// What the rig or the system says.
pub fn idle(samples: u32) -> Result<Vec<Row>, Box<dyn Error>> {
    let mut crowd = Crowd::gather("shm", ACTIVE)?;
    crowd.send(ACTIVE * 8)?;
    let pid = crowd.rig.daemon_pid();
    if cpu_ns(pid)? == 0 {
        return Err("this kernel does not count the time that threads run (CONFIG_SCHED_INFO)".into());
    }
    // Senders whose process does something else: they do not answer what the daemon asks (credit that it calls back).
    std::thread::sleep(Duration::from_secs(1));
    let deaf = cpu_percent(pid, samples)?;
    // Senders that listen: after they answered nothing is left to be done.
    let settle = Instant::now() + Duration::from_secs(1);
    while Instant::now() < settle {
        crowd.active.iter_mut().for_each(|(sender, _)| drop(sender.poll()));
        std::thread::sleep(Duration::from_millis(10));
    }
    let listening = cpu_percent(pid, samples)?;
    Ok(vec![
        Row::new("idle", "a daemon with 32 idle senders, of a core", "%", listening, Bound::AtMost(2.0)),
        Row::new("idle", "the same, none of which listens, of a core", "%", deaf, Bound::AtMost(2.0)),
    ])
}

/// What share of a core the process used, second by second.
fn cpu_percent(pid: u32, seconds: u32) -> std::io::Result<Vec<f64>> {
    let second = |_| {
        let (start, before) = (Instant::now(), cpu_ns(pid)?);
        std::thread::sleep(Duration::from_secs(1));
        #[allow(clippy::cast_precision_loss)] // a second in nanoseconds
        Ok((cpu_ns(pid)? - before) as f64 / start.elapsed().as_nanos() as f64 * 100.0)
    };
    (0..seconds).map(second).collect()
}

/// What the process has in memory, the senders' files aside.
fn resident_bytes(pid: u32) -> std::io::Result<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let mut counted = true;
    let mut kilobytes = 0u64;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") if counted => {
                kilobytes += words.next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
            }
            Some(word) if !word.ends_with(':') => {
                counted = !OTHER_FILES.iter().any(|file| line.contains(file));
            }
            _ => {}
        }
    }
    Ok(kilobytes * 1024)
}

/// Time that the process's threads ran.
fn cpu_ns(pid: u32) -> std::io::Result<u64> {
    let mut total = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        total += text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(total)
}

/// A thousand senders in one process have five descriptors each.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Where it stays too low, connecting says so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

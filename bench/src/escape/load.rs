//! The load of the benchmark `escape`, at its full rate on two cores: the daemon has one, the senders and
//! healthy applications have the other.
//!
//! One thread drives all senders and the healthy applications, each with a session of its own, and never
//! sleeps. With a process for each of them nine processes would share two cores, and the figures would show
//! which process the kernel runs. The application that stops, is killed or is slow is a process of its own.
//! This process does not run while its effect on the others is measured.
//!
//! The cost of waking and switching between processes is not measured, nor an application that reads all
//! bytes. The healthy applications check the first word of each slab. So the daemon, which copies in place of
//! a NIC, limits the rate. The daemon spends five sixths of its core on copying; the load spends two thirds
//! of its own on polling. Over `tcp:` each sender has a NIC thread beside it, and there the scheduler does
//! affect the figures.

use super::feed::{Depth, Feed, Latencies};
use crate::consumer::{Behaviour, Consumer, Reading};
use crate::pattern::Words;
use crate::rig::Rig;
use jet_control::status::Status;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time after which a wait fails the benchmark. This limit is so long that delays of a busy machine are not
/// mistaken for a hang.
const LIMIT: Duration = Duration::from_secs(120);
/// Number of status requests in a row over which a stopped application's slabs must not become fewer. After
/// these the daemon has seen the application's last releases.
const CHECKS: usize = 8;
/// Name of the daemon's thread that runs the reactor.
const REACTOR: &str = "jet-reactor";
/// Behaviour of the healthy applications.
pub const HEALTHY: Behaviour = Behaviour {
    reading: Reading::FirstOfSlab,
    hold_one_in: 0,
    hold: Duration::ZERO,
    pace: Duration::ZERO,
    side_by_side: false,
};

/// Figures of one span, a measured stretch of time, of the load.
pub struct Measured {
    /// Bytes of the healthy applications' messages that ended as consumed in the span.
    pub bytes: u64,
    /// Length of the span.
    pub span: Duration,
    /// Latencies of the messages that ended in the span.
    pub latencies: Latencies,
    /// State of the daemon at the span's end, while the load was on. The state is not read earlier: a status
    /// request delays the load by some 100 us, which p99.9 would show.
    pub daemon_state: DaemonState,
    /// Sum of the times for which the daemon and this thread were ready to run and had no core: other
    /// programs of the machine used the cores.
    pub waited: Duration,
}

impl Measured {
    /// Returns the share of the span in which the daemon or the load had no core, in percent.
    pub fn waited_percent(&self) -> f64 {
        self.waited.as_secs_f64() / self.span.as_secs_f64() * 100.0
    }

    /// Returns the rate of consumed bytes in GB/s.
    #[allow(clippy::cast_precision_loss)] // gigabytes
    pub fn gigabytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.span.as_secs_f64() / 1e9
    }
}

/// A daemon, healthy applications, and senders, driven by this thread.
pub struct Load {
    /// The daemon's rig.
    pub rig: Rig,
    /// The healthy applications, which this thread drives.
    pub consumers: Vec<Consumer>,
    /// Senders to the healthy applications.
    pub feeds: Vec<Feed>,
}

/// Returns the name of a healthy application.
fn name(n: usize) -> String {
    format!("healthy-{n}")
}

impl Load {
    /// Starts a daemon, `applications` healthy applications, and `senders` senders to each.
    ///
    /// # Errors
    /// An error of the rig, the sessions or the senders.
    pub fn start(
        fabric: &str,
        settings: &[String],
        applications: usize,
        senders: usize,
        depth: Depth,
        words: Words,
    ) -> Result<Self, Box<dyn Error>> {
        let rig = Rig::start_daemon(fabric, settings)?;
        let behaviour = match words {
            Words::FirstOfSlab => HEALTHY,
            Words::Every => Behaviour { reading: Reading::Every, ..HEALTHY },
        };
        let mut load = Self { consumers: Vec::new(), feeds: Vec::new(), rig };
        for n in 0..applications {
            load.consumers.push(Consumer::register(&load.rig.control_socket(), &name(n), behaviour)?);
            for _ in 0..senders {
                load.feeds.push(Feed::connect(load.rig.address()?, &name(n), depth, words)?);
            }
        }
        Ok(load)
    }

    /// Does one round over all applications and senders: takes everything that has arrived, and, if `sends`,
    /// submits as many messages as there is room for. `other` is the sender of an application that this
    /// thread does not drive.
    ///
    /// # Errors
    /// An error of the sessions or the senders.
    pub fn turn(
        &mut self,
        other: Option<&mut Feed>,
        mut latencies: Option<&mut Latencies>,
        sends: bool,
    ) -> Result<(), Box<dyn Error>> {
        let now = Instant::now();
        for consumer in &mut self.consumers {
            consumer.step(now)?;
        }
        for feed in &mut self.feeds {
            feed.take_ends(latencies.as_deref_mut())?;
            if sends {
                feed.submit()?;
            }
        }
        if let Some(feed) = other {
            feed.take_ends(None)?;
            if sends {
                feed.submit()?;
            }
        }
        Ok(())
    }

    /// Returns the bytes that the healthy applications have consumed so far, as their senders know.
    fn consumed_bytes(&self) -> u64 {
        self.feeds.iter().map(|feed| feed.ends().bytes).sum()
    }

    /// Runs the load for `span`, with the sender `other` beside it. The figures are of the healthy
    /// applications alone.
    ///
    /// # Errors
    /// An error of the sessions, the senders or the daemon.
    pub fn run(&mut self, span: Duration, mut other: Option<&mut Feed>) -> Result<Measured, Box<dyn Error>> {
        let mut latencies = Latencies::new();
        let bytes = self.consumed_bytes();
        let waited_ns = self.waited_ns()?;
        let start = Instant::now();
        while start.elapsed() < span {
            self.turn(other.as_deref_mut(), Some(&mut latencies), true)?;
        }
        let span = start.elapsed();
        let bytes = self.consumed_bytes() - bytes;
        let daemon_state = DaemonState::of(&self.rig)?;
        let waited = Duration::from_nanos(self.waited_ns()? - waited_ns);
        Ok(Measured { bytes, span, latencies, daemon_state, waited })
    }

    /// Returns how long this thread and the daemon's reactor have waited for a core so far, in nanoseconds.
    fn waited_ns(&self) -> std::io::Result<u64> {
        let daemon = format!("/proc/{}/task", self.rig.daemon_pid());
        let mut waited_ns = waiting_ns("/proc/thread-self")?;
        for task in std::fs::read_dir(daemon)? {
            let task = task?.path();
            // The other threads wait by design, for time that the reactor leaves.
            if std::fs::read_to_string(task.join("comm"))?.trim_end() == REACTOR {
                waited_ns += waiting_ns(task)?;
            }
        }
        Ok(waited_ns)
    }

    /// Sends nothing more, and waits until all messages in flight have ended and nothing is held.
    ///
    /// # Errors
    /// As of [`Self::run`], or that it takes too long.
    pub fn drain(&mut self) -> Result<(), Box<dyn Error>> {
        self.until("the healthy applications' messages to end", None, |load, _| {
            load.feeds.iter().all(|feed| feed.in_flight() == 0)
                && load.consumers.iter().all(Consumer::is_empty_handed)
        })
        .map(drop)
    }

    /// Sends nothing more, and waits until the messages of the sender `other` have ended. Returns when the
    /// last one did.
    ///
    /// # Errors
    /// As of [`Self::drain`].
    pub fn drain_other(&mut self, other: &mut Feed) -> Result<Instant, Box<dyn Error>> {
        self.until("the stopped application's messages to end", Some(other), |_, other| {
            other.is_none_or(|feed| feed.in_flight() == 0)
        })
    }

    /// Runs the load, with the sender `other` beside it, until the stopped application `app` holds slabs and
    /// the daemon has seen its last releases. Returns how many slabs it holds.
    ///
    /// # Errors
    /// As of [`Self::drain`].
    pub fn until_held(&mut self, app: &str, other: &mut Feed) -> Result<u64, Box<dyn Error>> {
        let deadline = Instant::now() + LIMIT;
        let mut checks = [0; CHECKS];
        loop {
            checks.rotate_left(1);
            let status = self.rig.status()?;
            let own = status.session(app).ok_or_else(|| format!("{app} is not registered any more"))?;
            checks[CHECKS - 1] = u64::from(own.held_slabs);
            if checks[0] > 0 && checks.is_sorted() {
                return Ok(checks[CHECKS - 1]);
            }
            self.turn(Some(&mut *other), None, true)?;
            if Instant::now() > deadline {
                return Err(format!("waited {LIMIT:?} for {app} to hold slabs and release none").into());
            }
        }
    }

    fn until(
        &mut self,
        what: &str,
        mut other: Option<&mut Feed>,
        done: impl Fn(&Self, Option<&Feed>) -> bool,
    ) -> Result<Instant, Box<dyn Error>> {
        let deadline = Instant::now() + LIMIT;
        while !done(self, other.as_deref()) {
            self.turn(other.as_deref_mut(), None, false)?;
            if Instant::now() > deadline {
                let state = DaemonState::of(&self.rig)?;
                return Err(format!("waited {LIMIT:?} for {what}; the daemon stands at {state:?}").into());
            }
        }
        Ok(Instant::now())
    }

    /// Waits until nothing of the pool is held and no escape memory is in use, and returns when that was
    /// seen. Calls `check` with every state of the daemon, also the last. The load must be drained.
    ///
    /// # Errors
    /// As of [`Self::drain`].
    pub fn until_whole(&mut self, mut check: impl FnMut(&DaemonState)) -> Result<Instant, Box<dyn Error>> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let state = DaemonState::of(&self.rig)?;
            let seen = Instant::now();
            check(&state);
            if state.whole && state.memory_used == 0 {
                return Ok(seen);
            }
            if seen > deadline {
                return Err(format!("waited {LIMIT:?} for the pool; the daemon stands at {state:?}").into());
            }
            // Senders must answer the daemon, which may recall credit.
            self.turn(None, None, false)?;
        }
    }

    /// Returns the number of messages that the healthy applications took whole so far.
    pub fn taken(&self) -> u64 {
        self.consumers.iter().map(|consumer| consumer.taken().messages).sum()
    }

    /// Returns the number of the healthy applications' messages that never arrived, arrived more than once,
    /// or had wrong bytes. The load must be drained.
    pub fn damaged(&self) -> u64 {
        let mut sent = (0u64, 0u64, 0u64);
        for ends in self.feeds.iter().map(Feed::ends) {
            sent = (sent.0 + ends.consumed, sent.1 + ends.bytes, sent.2.wrapping_add(ends.fingerprint));
        }
        let mut taken = (0u64, 0u64, 0u64);
        let mut damaged = 0;
        for of in self.consumers.iter().map(Consumer::taken) {
            taken = (taken.0 + of.messages, taken.1 + of.bytes, taken.2.wrapping_add(of.fingerprint));
            damaged += of.damaged + of.withdrawn;
        }
        damaged + sent.0.abs_diff(taken.0) + u64::from(sent != taken)
    }
}

/// Returns how long a thread has been ready to run without a core, in nanoseconds: the second number of its
/// `schedstat`.
fn waiting_ns(task: impl AsRef<Path>) -> std::io::Result<u64> {
    let text = std::fs::read_to_string(task.as_ref().join("schedstat"))?;
    let second = text.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    second.ok_or_else(|| std::io::Error::other(format!("a schedstat without a second number: {text:?}")))
}

/// State of the daemon's pool and escape memory as its status reports it.
#[derive(Clone, Copy, Debug)]
pub struct DaemonState {
    /// Slabs of the pool that are free or posted.
    pub free: u64,
    /// Most slabs of the pool in use at once since the daemon's start.
    pub high_water: u64,
    /// Slabs of the pool that are in quarantine: dead applications held them.
    pub quarantined: u64,
    /// Whether nothing of the pool is held.
    pub whole: bool,
    /// Slabs of escape memory in use.
    pub memory_used: u64,
    /// Most slabs of escape memory in use at once since the daemon's start.
    pub memory_used_max: u64,
    /// Escape memory in use, summed over time: slabs times milliseconds.
    pub memory_used_slab_ms: u64,
    /// Slabs replaced so far.
    pub replaced: u64,
    /// Bytes copied so far.
    pub copied_bytes: u64,
    /// Slabs spilled to escape memory so far.
    pub spilled: u64,
    /// Congestion signals sent so far.
    pub signals: u64,
}

impl DaemonState {
    /// Asks the daemon for its state.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn of(rig: &Rig) -> Result<Self, Box<dyn Error>> {
        let Status { pool, escape, .. } = rig.status()?;
        Ok(Self {
            free: u64::from(pool.free + pool.posted),
            high_water: u64::from(pool.high_water),
            quarantined: u64::from(pool.quarantined),
            whole: pool.whole,
            memory_used: u64::from(escape.memory.used),
            memory_used_max: u64::from(escape.memory.used_max),
            memory_used_slab_ms: escape.memory.used_slab_ms,
            replaced: escape.replaced.total,
            copied_bytes: escape.copied.bytes,
            spilled: escape.spills.total,
            signals: escape.signals,
        })
    }
}

/// Converts slabs to MiB.
#[allow(clippy::cast_precision_loss)] // megabytes
pub fn mebibytes(slabs: u64) -> f64 {
    slabs as f64 * 4096.0 / 1_048_576.0
}

/// Converts a span to milliseconds.
pub fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

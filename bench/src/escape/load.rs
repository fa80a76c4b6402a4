//! A load at its full rate on two cores: the daemon has one, the load the other.
//!
//! One thread drives all senders and the healthy applications, each with a session of its own, and never
//! sleeps. With a process for each of them nine would share two cores, and what is seen is whom the kernel
//! runs. Whoever stops, is killed or is slow is a process of its own: it does not run while it is being
//! measured what that costs the others.
//!
//! It cannot see what waking and switching between processes costs, nor an application that reads all bytes:
//! those of the healthy ones check the first word of each slab, so that the daemon, which copies as the NIC
//! would, is what bounds the rate (it spends five sixths of its core on that, and the load two thirds of its
//! own on looking for more). Over `tcp:` each sender has a NIC thread beside it, and there the scheduler is
//! seen after all.

use super::feed::{Depth, Feed, Latencies};
use crate::consumer::{Behaviour, Consumer, Look};
use crate::pattern::Words;
use crate::rig::Rig;
use jet_control::status::Status;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

/// Everything that is stuck for as long fails the benchmark: so long that being slow on a busy machine is not
/// being stuck.
const LIMIT: Duration = Duration::from_secs(120);
/// A stopped application's slabs do not become fewer over so many looks: the daemon has seen its last
/// releases.
const LOOKS: usize = 8;
/// The name of the daemon's thread that does the work.
const REACTOR: &str = "jet-reactor";
/// How the healthy applications behave.
pub const HEALTHY: Behaviour =
    Behaviour { look: Look::FirstOfSlab, hold_one_in: 0, hold: Duration::ZERO, pace: Duration::ZERO };

/// What a span of the load gave.
pub struct Measured {
    /// Bytes that ended as consumed in the span.
    pub bytes: u64,
    /// The span.
    pub span: Duration,
    /// Of the messages that ended in it.
    pub latencies: Latencies,
    /// How the daemon stood at its end, while the load was on. Not asked meanwhile: asking holds the load up
    /// for some 100 us, which p99.9 would show.
    pub standing: Standing,
    /// How long the daemon and this thread were ready to run and had no core, together: what others on the
    /// machine took.
    pub waited: Duration,
}

impl Measured {
    /// The share of the span that the daemon or the load had no core, in percent.
    pub fn waited_percent(&self) -> f64 {
        self.waited.as_secs_f64() / self.span.as_secs_f64() * 100.0
    }

    /// The rate.
    #[allow(clippy::cast_precision_loss)] // gigabytes
    pub fn gigabytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.span.as_secs_f64() / 1e9
    }
}

/// A daemon, healthy applications, and senders, driven by this thread.
pub struct Load {
    /// The daemon.
    pub rig: Rig,
    /// The healthy ones.
    pub consumers: Vec<Consumer>,
    /// Senders to the healthy ones.
    pub feeds: Vec<Feed>,
}

/// The name of a healthy application.
fn name(n: usize) -> String {
    format!("healthy-{n}")
}

impl Load {
    /// Starts a daemon, so many applications, and so many senders to each.
    ///
    /// # Errors
    /// What the rig, the sessions or the senders say.
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
            Words::Every => Behaviour { look: Look::Every, ..HEALTHY },
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

    /// One turn: everything that came is taken, everything that is free is sent.
    ///
    /// # Errors
    /// What the sessions or the senders say.
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

    /// Bytes that the healthy ones' senders know to be consumed.
    fn consumed_bytes(&self) -> u64 {
        self.feeds.iter().map(|feed| feed.ends().bytes).sum()
    }

    /// The load for so long, with another's sender beside it; what is measured is of the healthy ones alone.
    ///
    /// # Errors
    /// What the sessions, the senders or the daemon say.
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
        let standing = Standing::of(&self.rig)?;
        let waited = Duration::from_nanos(self.waited_ns()? - waited_ns);
        Ok(Measured { bytes, span, latencies, standing, waited })
    }

    /// How long this thread and the daemon's reactor waited for a core so far.
    fn waited_ns(&self) -> std::io::Result<u64> {
        let daemon = format!("/proc/{}/task", self.rig.daemon_pid());
        let mut waited_ns = waiting_ns("/proc/thread-self")?;
        for task in std::fs::read_dir(daemon)? {
            let task = task?.path();
            // The others wait by design: for what the reactor leaves.
            if std::fs::read_to_string(task.join("comm"))?.trim_end() == REACTOR {
                waited_ns += waiting_ns(task)?;
            }
        }
        Ok(waited_ns)
    }

    /// Sends nothing more and waits until all that is in flight has its end and nothing is held.
    ///
    /// # Errors
    /// As [`Self::run`], or that it takes too long.
    pub fn drain(&mut self) -> Result<(), Box<dyn Error>> {
        self.until("the healthy applications' messages to end", None, |load, _| {
            load.feeds.iter().all(|feed| feed.in_flight() == 0)
                && load.consumers.iter().all(Consumer::is_empty_handed)
        })
        .map(drop)
    }

    /// Sends nothing more and waits until another's messages have their ends; says when the last one was
    /// there.
    ///
    /// # Errors
    /// As [`Self::drain`].
    pub fn drain_other(&mut self, other: &mut Feed) -> Result<Instant, Box<dyn Error>> {
        self.until("the stopped application's messages to end", Some(other), |_, other| {
            other.is_none_or(|feed| feed.in_flight() == 0)
        })
    }

    /// The load goes on, with another's sender beside it, until the application of such a name, which is
    /// stopped, holds slabs and the daemon has seen all that it released before; gives how many.
    ///
    /// # Errors
    /// As [`Self::drain`].
    pub fn until_held(&mut self, app: &str, other: &mut Feed) -> Result<u64, Box<dyn Error>> {
        let deadline = Instant::now() + LIMIT;
        let mut looks = [0; LOOKS];
        loop {
            looks.rotate_left(1);
            let status = self.rig.status()?;
            let own = status.session(app).ok_or_else(|| format!("{app} is not registered any more"))?;
            looks[LOOKS - 1] = u64::from(own.held_slabs);
            if looks[0] > 0 && looks.is_sorted() {
                return Ok(looks[LOOKS - 1]);
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
                let standing = Standing::of(&self.rig)?;
                return Err(format!("waited {LIMIT:?} for {what}; the daemon stands at {standing:?}").into());
            }
        }
        Ok(Instant::now())
    }

    /// Waits until the pool is whole and no escape memory is in use, and says when that was seen; `look` is
    /// shown what the daemon says meanwhile, and at the end. The load is drained.
    ///
    /// # Errors
    /// As [`Self::drain`].
    pub fn until_whole(&mut self, mut look: impl FnMut(&Standing)) -> Result<Instant, Box<dyn Error>> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let standing = Standing::of(&self.rig)?;
            let seen = Instant::now();
            look(&standing);
            if standing.whole && standing.memory_used == 0 {
                return Ok(seen);
            }
            if seen > deadline {
                return Err(
                    format!("waited {LIMIT:?} for the pool; the daemon stands at {standing:?}").into()
                );
            }
            // Senders answer what the daemon asks (credit that it calls back).
            self.turn(None, None, false)?;
        }
    }

    /// Messages that the healthy ones had whole.
    pub fn taken(&self) -> u64 {
        self.consumers.iter().map(|consumer| consumer.taken().messages).sum()
    }

    /// Messages of the healthy ones that came not, more than once, or with other bytes. The load is drained.
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

/// How long a thread was ready to run and did not: the second number of its `schedstat`.
fn waiting_ns(task: impl AsRef<Path>) -> std::io::Result<u64> {
    let text = std::fs::read_to_string(task.as_ref().join("schedstat"))?;
    let second = text.split_whitespace().nth(1).and_then(|n| n.parse().ok());
    second.ok_or_else(|| std::io::Error::other(format!("a schedstat without a second number: {text:?}")))
}

/// What the daemon says of pool and escape memory, in slabs.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Of the pool: free or posted.
    pub free: u64,
    /// Of the pool: the most in use at once.
    pub high_water: u64,
    /// Of the pool: dead applications held them.
    pub quarantined: u64,
    /// Nothing of the pool is held.
    pub whole: bool,
    /// Escape memory in use.
    pub memory_used: u64,
    /// The most at once.
    pub memory_used_max: u64,
    /// Over time.
    pub memory_used_slab_ms: u64,
    /// Replaced so far.
    pub replaced: u64,
    /// Copied so far, in bytes.
    pub copied_bytes: u64,
    /// Granted from memory so far.
    pub granted: u64,
    /// Congestion signals sent so far.
    pub signals: u64,
}

impl Standing {
    /// Asks the daemon.
    ///
    /// # Errors
    /// Where it does not answer.
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
            granted: escape.memory_grants.total,
            signals: escape.signals,
        })
    }
}

/// Slabs in MiB.
#[allow(clippy::cast_precision_loss)] // megabytes
pub fn mebibytes(slabs: u64) -> f64 {
    slabs as f64 * 4096.0 / 1_048_576.0
}

/// A span in milliseconds.
pub fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

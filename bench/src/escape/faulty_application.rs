//! The application that stops, or is killed: a process of its own, and its sender.

use super::feed::{Depth, Feed};
use super::load::Load;
use crate::consumer::{Look, Order};
use crate::pattern::Words;
use crate::rig::{ConsumerProcess, Rig};
use rustix::process::Signal;
use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What is kept in flight for it: more than the pool holds (64 messages of 256 KiB are 16 MiB, and the most
/// that a daemon lets one sender have unfinished), so that without escape nothing is left for others.
pub const DEPTH_LARGE: usize = 64;
/// How long it runs beside the others before anything happens to it.
const BEFORE: Duration = Duration::from_millis(300);

/// How it stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It lives, and does not read.
    NotReading,
    /// SIGSTOP, wherever it is: with slices in its hands, as may be.
    Signal,
}

/// What going on gave.
pub struct Recovery {
    /// From its going on until its last message had its end: it reads its backlog.
    pub reading: Duration,
    /// From its going on until the pool was whole and no escape memory in use.
    pub whole: Duration,
    /// From its last message's end until then.
    pub whole_after_reading: Duration,
    /// Its messages that came not, more than once, or with other bytes.
    pub damaged: u64,
    /// Those that came.
    pub messages: u64,
}

/// Its death.
pub struct Killed {
    /// When.
    pub at: Instant,
    /// Slabs that it held then, at least: it was stopped, and released nothing any more.
    pub held: u64,
}

/// The application and its sender.
pub struct FaultyApplication {
    name: String,
    process: ConsumerProcess,
    /// Its sender.
    pub feed: Feed,
}

impl FaultyApplication {
    /// Starts it.
    ///
    /// # Errors
    /// What the rig or the sender says.
    pub fn start(rig: &Rig, depth: Depth) -> Result<Self, Box<dyn Error>> {
        // A name that came back at once might be the former one's still.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fourth-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let process = ConsumerProcess::start(rig, &name, Look::Every)?;
        let depth = Depth { large: DEPTH_LARGE, ..depth };
        let feed = Feed::connect(rig.address()?, &name, depth, Words::Every)?;
        Ok(Self { name, process, feed })
    }

    /// Runs it beside the others for a moment and stops it.
    ///
    /// # Errors
    /// What the load or the system says.
    pub fn run_and_stop(&mut self, load: &mut Load, stop: Stop) -> Result<(), Box<dyn Error>> {
        load.run(BEFORE, Some(&mut self.feed))?;
        match stop {
            Stop::NotReading => self.process.order(Order::Stop).map(drop)?,
            Stop::Signal => self.process.signal(Signal::STOP)?,
        }
        Ok(())
    }

    /// Runs it beside the others for a moment and kills it, with slabs in its hands: it is stopped before
    /// until it has some.
    ///
    /// # Errors
    /// As [`Self::run_and_stop`].
    pub fn run_and_kill(&mut self, load: &mut Load) -> Result<Killed, Box<dyn Error>> {
        load.run(BEFORE, Some(&mut self.feed))?;
        self.process.signal(Signal::STOP)?;
        self.process.wait_until_stopped()?;
        let held = load.until_held(&self.name, &mut self.feed)?;
        self.process.signal(Signal::KILL)?;
        let at = Instant::now();
        self.process.wait()?;
        Ok(Killed { at, held })
    }

    /// Has it go on, while the others rest, and checks what it got. `starved`: the others' messages end only
    /// when it went on, so that they rest after it.
    ///
    /// # Errors
    /// As [`Self::run_and_stop`].
    pub fn go_on(mut self, load: &mut Load, stop: Stop, starved: bool) -> Result<Recovery, Box<dyn Error>> {
        if !starved {
            load.drain()?;
        }
        let start = Instant::now();
        match stop {
            Stop::NotReading => self.process.order(Order::Go).map(drop)?,
            Stop::Signal => self.process.signal(Signal::CONT)?,
        }
        let read = load.drain_other(&mut self.feed)?;
        load.drain()?;
        let whole = load.until_whole(|_| {})?;
        let ends = self.feed.ends();
        let taken = self.process.order(Order::Report)?.taken;
        let same =
            (taken.messages, taken.bytes, taken.fingerprint) == (ends.consumed, ends.bytes, ends.fingerprint);
        let damaged = taken.damaged
            + taken.withdrawn
            + ends.gone
            + taken.messages.abs_diff(ends.consumed)
            + u64::from(!same);
        Ok(Recovery {
            reading: read - start,
            whole: whole - start,
            whole_after_reading: whole - read,
            damaged,
            messages: taken.messages,
        })
    }
}

//! The faulty application, which stops or is killed: a process of its own, and its sender.

use super::feed::{Depth, Feed};
use super::load::Load;
use crate::consumer::{Order, Reading};
use crate::pattern::Words;
use crate::rig::{ConsumerProcess, Rig};
use rustix::process::Signal;
use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Large messages that are kept in flight for the faulty application, more than the pool holds: 64 messages
/// of 256 KiB are 16 MiB. A daemon does not allow one sender more unfinished messages. Without escape these
/// messages leave nothing of the pool to the other applications.
pub const DEPTH_LARGE: usize = 64;
/// Time for which the faulty application runs beside the healthy ones before it is stopped.
const BEFORE: Duration = Duration::from_millis(300);

/// Ways in which the faulty application stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The application lives and polls, but takes no message.
    NotReading,
    /// SIGSTOP stops the application at any point, possibly while it holds slices.
    Signal,
}

/// Figures of the faulty application's recovery after it was stopped.
pub struct Recovery {
    /// Time from the application's continuing until its last message ended: the application reads its
    /// backlog.
    pub reading: Duration,
    /// Time from the application's continuing until nothing of the pool was held and no escape memory was in
    /// use.
    pub whole: Duration,
    /// Time from the end of the application's last message until nothing of the pool was held and no escape
    /// memory was in use.
    pub whole_after_reading: Duration,
    /// The application's messages that never arrived, arrived more than once, or had wrong bytes.
    pub damaged: u64,
    /// Messages that the application received.
    pub messages: u64,
}

/// Facts about the death of the faulty application.
pub struct Killed {
    /// Time of the kill.
    pub at: Instant,
    /// Slabs that the application held when it was killed, at least: the application was stopped before, and
    /// released nothing more.
    pub held: u64,
}

/// The faulty application and its sender.
pub struct FaultyApplication {
    name: String,
    process: ConsumerProcess,
    /// The application's sender.
    pub feed: Feed,
}

impl FaultyApplication {
    /// Starts the faulty application and connects its sender.
    ///
    /// # Errors
    /// An error of the rig or the sender.
    pub fn start(rig: &Rig, depth: Depth) -> Result<Self, Box<dyn Error>> {
        // A name that was used again at once might still be the former application's.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("faulty-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let process = ConsumerProcess::start(rig, &name, Reading::Every)?;
        let depth = Depth { large: DEPTH_LARGE, ..depth };
        let feed = Feed::connect(rig.address()?, &name, depth, Words::Every)?;
        Ok(Self { name, process, feed })
    }

    /// Runs the faulty application beside the healthy ones for a moment and stops it.
    ///
    /// # Errors
    /// An error of the load or the system.
    pub fn run_and_stop(&mut self, load: &mut Load, stop: Stop) -> Result<(), Box<dyn Error>> {
        load.run(BEFORE, Some(&mut self.feed))?;
        match stop {
            Stop::NotReading => self.process.order(Order::Stop).map(drop)?,
            Stop::Signal => self.process.child.signal(Signal::STOP)?,
        }
        Ok(())
    }

    /// Runs the faulty application beside the healthy ones for a moment, and kills it while it holds slabs.
    /// Before the kill the application is stopped, until the daemon's status shows that the application holds
    /// slabs.
    ///
    /// # Errors
    /// An error of the load or the system.
    pub fn run_and_kill(&mut self, load: &mut Load) -> Result<Killed, Box<dyn Error>> {
        load.run(BEFORE, Some(&mut self.feed))?;
        self.process.child.stop()?;
        let held = load.until_held(&self.name, &mut self.feed)?;
        self.process.child.signal(Signal::KILL)?;
        let at = Instant::now();
        self.process.child.wait()?;
        Ok(Killed { at, held })
    }

    /// Continues the faulty application, while the healthy ones rest, and checks what it received. `starved`:
    /// the healthy applications' messages end only after the faulty one continues, so the load comes to rest
    /// later.
    ///
    /// # Errors
    /// An error of the load or the system.
    pub fn continue_reading(
        mut self,
        load: &mut Load,
        stop: Stop,
        starved: bool,
    ) -> Result<Recovery, Box<dyn Error>> {
        if !starved {
            load.drain()?;
        }
        let start = Instant::now();
        match stop {
            Stop::NotReading => self.process.order(Order::Go).map(drop)?,
            Stop::Signal => self.process.child.signal(Signal::CONT)?,
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

//! The receivers that are compared, each as processes of its own with senders of its own. One receiver runs
//! at a time. The others are stopped, so that none warms its pool, polls or answers during another's turn.
//!
//! After its turn a receiver is stopped (`SIGSTOP`) and not ended and started anew. Stopping takes well below
//! a millisecond where a start takes tenths of a second. A stopped receiver also keeps what it has learned of
//! its load: Jet's footprint takes 5 to 20 s of load to find its size.
//!
//! On a machine that is busy with other programs the kernel gives a receiver less of the processor after a
//! stop than before it. So figures of such a machine mean nothing. Under real-time priority, receivers that
//! were stopped were as fast as receivers left alone.

use super::buffers::Kind;
use super::conventional::{BUFFERS, ConventionalProcess, Most};
use super::resident::Watched;
use super::touched::Touched;
use super::traffic::{Shape, Traffic};
use crate::processor_time;
use crate::rig::{Rig, reads_max};
use jet::child_process::ChildProcess;
use jet_wire::SLAB_BYTES;
use rustix::process::Signal;
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Name of the memory file of a daemon's pool, as a process's mappings show it.
const POOL: &str = "jet-pool";

/// The receivers that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// Jet's receiver, with its pool of 12 MiB.
    Jet,
    /// A conventional receiver with buffers of each connection's own.
    Own,
    /// Jet's receiver with a pool whose footprint follows the load.
    Following,
    /// A conventional receiver with a pool of 32 MiB that all connections share; the buffer returned last is
    /// taken first.
    Shared,
    /// A conventional receiver with buffers of each connection's own, and no more READs at once than Jet has.
    Capped,
}

impl Receiver {
    /// Every receiver, in the order of the letters that name them in rows.
    pub const ALL: [Self; 5] = [Self::Jet, Self::Own, Self::Following, Self::Shared, Self::Capped];

    /// Returns the receiver's letter in parentheses, which names it in the rows of ratios.
    pub fn letter(self) -> &'static str {
        &self.name()[..3]
    }

    /// Returns the receiver's name in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jet => "(a) Jet's pool",
            Self::Own => "(b) buffers of each connection",
            Self::Following => "(c) Jet's pool, following",
            Self::Shared => "(d) shared pool of 32 MiB, last in first out",
            Self::Capped => "(e) buffers of each connection, 32 READs at once",
        }
    }

    /// Returns the receiver's name in the table (CSV) and in file names.
    pub fn key(self) -> &'static str {
        match self {
            Self::Jet => "jet",
            Self::Own => "own",
            Self::Following => "following",
            Self::Shared => "shared",
            Self::Capped => "capped",
        }
    }

    /// Returns the order in which the receivers take their turns in a round. Over as many rounds as there are
    /// receivers, each receiver is first, second and so on once. After that the order is reversed, so that no
    /// receiver always follows the same one.
    pub fn order(round: usize) -> [Self; 5] {
        let count = Self::ALL.len();
        std::array::from_fn(|place| {
            let place = if (round / count).is_multiple_of(2) { place } else { count - 1 - place };
            Self::ALL[(round + place) % count]
        })
    }
}

/// A receiver whose processes have been started, with its senders.
pub struct StartedReceiver {
    /// Name of the receiver that was started.
    pub receiver: Receiver,
    processes: Processes,
    /// The receiver's senders.
    pub traffic: Traffic,
    /// Marks of the pages that the receiver's application has read.
    pub touched: Touched,
    /// The receiver's buffers, mapped into this process.
    pub watched: Watched,
}

enum Processes {
    Jet(Rig),
    Conventional(ConventionalProcess),
}

impl StartedReceiver {
    /// Starts a receiver on a core, and connects its senders. Afterwards the receiver is stopped.
    ///
    /// # Errors
    /// An error of the system, the receiver or the NIC.
    pub fn start(
        receiver: Receiver,
        shape: Shape,
        core: u32,
        settings: &[String],
    ) -> Result<Self, Box<dyn Error>> {
        let touched = Touched::new()?;
        let conventional =
            |kind, reads_max| ConventionalProcess::start(shape, kind, reads_max, core, &touched);
        let processes = match receiver {
            Receiver::Jet | Receiver::Following => {
                let mut settings = settings.to_vec();
                settings.extend([format!("reactor.cpu={core}"), "nic.thread=\"off\"".to_owned()]);
                if receiver == Receiver::Following {
                    settings.push("read.footprint=\"follow\"".to_owned());
                }
                Processes::Jet(Rig::start_on("shm", true, &settings, Some(core), Some(&touched))?)
            }
            Receiver::Own => Processes::Conventional(conventional(Kind::Own, None)?),
            Receiver::Capped => Processes::Conventional(conventional(Kind::Own, Some(reads_max()))?),
            Receiver::Shared => Processes::Conventional(conventional(Kind::Shared, None)?),
        };
        let (address, watched) = match &processes {
            Processes::Jet(rig) => {
                let application = rig.app_pid().ok_or("a rig without an application")?;
                (rig.address()?, Watched::of(POOL, rig.daemon_pid(), application)?)
            }
            Processes::Conventional(process) => {
                (process.address().clone(), Watched::of(BUFFERS, process.pid(), process.pid())?)
            }
        };
        let traffic = Traffic::connect(&address, shape)?;
        let started = Self { receiver, processes, traffic, touched, watched };
        started.stop()?;
        Ok(started)
    }

    /// Returns the id of the receiver's process that drives the NIC.
    pub fn driving_pid(&self) -> u32 {
        match &self.processes {
            Processes::Jet(rig) => rig.daemon_pid(),
            Processes::Conventional(process) => process.pid(),
        }
    }

    /// Returns the daemon's rig, if the receiver is Jet.
    pub fn rig(&self) -> Option<&Rig> {
        match &self.processes {
            Processes::Jet(rig) => Some(rig),
            Processes::Conventional(_) => None,
        }
    }

    /// Returns the receiver's processes, the one that drives the NIC first.
    fn children(&self) -> Vec<&ChildProcess> {
        match &self.processes {
            Processes::Jet(rig) => rig.processes().collect(),
            Processes::Conventional(process) => vec![process.child()],
        }
    }

    /// Returns the most READs and the most bytes of buffers in use at once since the last call. `None`: the
    /// receiver is Jet, which does not count them.
    ///
    /// # Errors
    /// The process ended.
    pub fn most(&mut self) -> io::Result<Option<Most>> {
        match &mut self.processes {
            Processes::Jet(_) => Ok(None),
            Processes::Conventional(process) => process.most().map(Some),
        }
    }

    /// Stops the receiver's processes, and waits until they have stopped.
    ///
    /// # Errors
    /// A process ended.
    pub fn stop(&self) -> Result<(), Box<dyn Error>> {
        for child in self.children() {
            child.stop().map_err(|error| format!("{}: {error}", self.receiver.name()))?;
        }
        Ok(())
    }

    /// Continues the receiver's processes.
    ///
    /// # Errors
    /// A process ended.
    pub fn continue_receivers(&self) -> Result<(), Box<dyn Error>> {
        for child in self.children() {
            child.signal(Signal::CONT)?;
        }
        Ok(())
    }

    /// Returns the processor time that the receiver's processes have spent so far.
    ///
    /// # Errors
    /// One of them ended.
    pub fn processor_time(&self) -> io::Result<Duration> {
        self.children().into_iter().map(|child| processor_time::of(child.id())).sum()
    }

    /// Returns how many MiB of the pool are in use for large messages while the senders run a closed loop:
    /// the mean, and the most. The mean is the rate times how long a slab is in use (Little's law). `None`:
    /// the receiver is not Jet. Asking for the status costs the daemon some time, so this turn is used for no
    /// other figure.
    ///
    /// # Errors
    /// An error of the daemon or the NIC.
    pub fn used_mib(&mut self, span: Duration) -> Result<Option<(f64, f64)>, Box<dyn Error>> {
        let Processes::Jet(rig) = &self.processes else { return Ok(None) };
        let traffic = &mut self.traffic;
        let done = AtomicBool::new(false);
        let used = std::thread::scope(|scope| -> Result<Vec<f64>, Box<dyn Error>> {
            let asking = scope.spawn(|| -> io::Result<Vec<f64>> {
                let mut used = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    used.push(f64::from(rig.status()?.pool.read));
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(used)
            });
            let ran = traffic.run(span);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_in_each_place_equally_often_and_follows_different_ones() {
        for first in [0, 5, 10] {
            for place in 0..5 {
                let there = (first..first + 5).map(|round| Receiver::order(round)[place]);
                let there: Vec<Receiver> = there.collect();
                for receiver in Receiver::ALL {
                    let times = there.iter().filter(|there| **there == receiver).count();
                    assert_eq!(times, 1, "{receiver:?} in place {place} of rounds {first} on");
                }
            }
        }
        let before_jet = |round| {
            let order = Receiver::order(round);
            let at = order.iter().position(|receiver| *receiver == Receiver::Jet)?;
            at.checked_sub(1).map(|before| order[before])
        };
        assert_ne!(before_jet(1), before_jet(6));
    }

    #[test]
    fn names_begin_with_letters() {
        let letters: Vec<&str> = Receiver::ALL.iter().map(|receiver| receiver.letter()).collect();
        assert_eq!(letters, ["(a)", "(b)", "(c)", "(d)", "(e)"]);
    }
}

//! The receivers that are compared, each as processes of its own with senders of its own. One at a time runs:
//! the others are stopped, so that none warms its pool, polls or answers while another has its turn.
//!
//! Stopping (`SIGSTOP`) instead of starting anew: it takes well below a millisecond where a start takes
//! tenths of a second, and what a receiver has learned of its load stays: Jet's footprint takes 5 to 20 s of
//! load to find its size.
//!
//! On a machine that is busy with something else the kernel gives a receiver less of the processor after a
//! stop than it had before. So figures of such a machine say nothing; beside real-time priority, stopped or
//! left alone, receivers were equally fast.

use super::buffers::Kind;
use super::conventional::{BUFFERS, ConventionalProcess, Most};
use super::resident::Watched;
use super::touched::Touched;
use super::traffic::{Shape, Traffic};
use crate::processor_time;
use crate::rig::{Rig, reads_max};
use jet_wire::SLAB_BYTES;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What the daemon's pool is called among a process's mappings.
const POOL: &str = "jet-pool";

/// Who receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiver {
    /// Jet's pool of 12 MiB.
    Jet,
    /// Buffers of each connection's own.
    Own,
    /// Jet's pool, whose footprint follows the load.
    Following,
    /// A pool of 32 MiB that all connections share, the last given the first taken.
    Shared,
    /// Buffers of each connection's own, and no more READs at once than Jet has.
    Capped,
}

impl Receiver {
    /// All of them, in the order of their letters.
    pub const ALL: [Self; 5] = [Self::Jet, Self::Own, Self::Following, Self::Shared, Self::Capped];

    /// What it is called in a ratio.
    pub fn letter(self) -> &'static str {
        &self.name()[..3]
    }

    /// What it is called in rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jet => "(a) Jet's pool",
            Self::Own => "(b) buffers of each connection",
            Self::Following => "(c) Jet's pool, following",
            Self::Shared => "(d) shared pool of 32 MiB, last in first out",
            Self::Capped => "(e) buffers of each connection, 32 READs at once",
        }
    }

    /// In the table, and as a file's name.
    pub fn key(self) -> &'static str {
        match self {
            Self::Jet => "jet",
            Self::Own => "own",
            Self::Following => "following",
            Self::Shared => "shared",
            Self::Capped => "capped",
        }
    }

    /// Whose turns come in a round, in this order. Over as many rounds as there are receivers each is first,
    /// second and so on once; after that they go the other way round, so that nobody always follows the same
    /// one.
    pub fn order(round: usize) -> [Self; 5] {
        let count = Self::ALL.len();
        std::array::from_fn(|place| {
            let place = if (round / count).is_multiple_of(2) { place } else { count - 1 - place };
            Self::ALL[(round + place) % count]
        })
    }
}

/// A receiver that stands, with its senders.
pub struct Standing {
    /// Which one.
    pub receiver: Receiver,
    processes: Processes,
    /// Its senders.
    pub traffic: Traffic,
    /// What its application has read.
    pub touched: Touched,
    /// Its buffers.
    pub watched: Watched,
}

enum Processes {
    Jet(Rig),
    Conventional(ConventionalProcess),
}

impl Standing {
    /// Starts it on a core, and connects. It is stopped then.
    ///
    /// # Errors
    /// What the system, the receiver or the NIC says.
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
        let standing = Self { receiver, processes, traffic, touched, watched };
        standing.stop()?;
        Ok(standing)
    }

    /// The process that drives the NIC.
    pub fn driving_pid(&self) -> u32 {
        match &self.processes {
            Processes::Jet(rig) => rig.daemon_pid(),
            Processes::Conventional(process) => process.pid(),
        }
    }

    /// The daemon, where it is Jet.
    pub fn rig(&self) -> Option<&Rig> {
        match &self.processes {
            Processes::Jet(rig) => Some(rig),
            Processes::Conventional(_) => None,
        }
    }

    fn pids(&self) -> Vec<u32> {
        let application = self.rig().and_then(Rig::app_pid);
        [self.driving_pid()].into_iter().chain(application).collect()
    }

    /// The most READs and buffers at once since this was asked last; `None`: it does not count them.
    ///
    /// # Errors
    /// That the process ended.
    pub fn most(&mut self) -> io::Result<Option<Most>> {
        match &mut self.processes {
            Processes::Jet(_) => Ok(None),
            Processes::Conventional(process) => process.most().map(Some),
        }
    }

    /// Stops it, and waits until it does nothing any more.
    ///
    /// # Errors
    /// That it ended.
    pub fn stop(&self) -> Result<(), Box<dyn Error>> {
        for pid in self.pids() {
            kill_process(known(pid)?, Signal::STOP)?;
        }
        for pid in self.pids() {
            let asked = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let status = waitid(WaitId::Pid(known(pid)?), asked)?;
            if !status.is_some_and(|status| status.stopped()) {
                return Err(format!("{}: a process of it ended", self.receiver.name()).into());
            }
        }
        Ok(())
    }

    /// Lets it run.
    ///
    /// # Errors
    /// That it ended.
    pub fn go_on(&self) -> Result<(), Box<dyn Error>> {
        for pid in self.pids() {
            kill_process(known(pid)?, Signal::CONT)?;
        }
        Ok(())
    }

    /// Time that its processes have spent on processors.
    ///
    /// # Errors
    /// That one of them ended.
    pub fn processor_time(&self) -> io::Result<Duration> {
        self.pids().into_iter().map(processor_time::of).sum()
    }

    /// What of the pool is in use for large messages, in MiB: on average over a turn, which is its rate times
    /// how long a slab is in use (Little's law), and at most. Asking costs the daemon a little: no turn of
    /// these counts for anything else.
    ///
    /// # Errors
    /// What the daemon or the NIC says.
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

fn known(pid: u32) -> io::Result<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| io::ErrorKind::InvalidInput.into())
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

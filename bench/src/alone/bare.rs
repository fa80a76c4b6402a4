//! What a machine's processes need to pass a number on: the limit of a message that passes them.
//!
//! The number lies in a cache line for each hop. A process copies it to the next line when it changes. It
//! polls as Jet's processes do before they sleep, and gives its core to others by the same rule. So the limit
//! includes what the scheduler takes where there are more processes than cores.

use super::polite::Polite;
use crate::rig::{path_for_children, role};
use jet::child_process::ChildProcess;
use jet_fabric::memory::{Mapping, Protection, SharedMemory};
use std::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Lines for the number.
const LINES: usize = 4;
const LINE_BYTES: usize = 128;
const BYTES: usize = LINES * LINE_BYTES;
/// Time after which the other processes count as lost.
const LIMIT: Duration = Duration::from_secs(20);
/// Polls in vain between two looks whether that time is over.
const POLLS_PER_LOOK: u32 = 1 << 14;

/// A process that passes the number on.
#[derive(clap::Args)]
pub struct PassArgs {
    /// The memory with the number
    #[arg(long)]
    memory: PathBuf,
    /// Line from which the number goes to the next one; may be repeated
    #[arg(long)]
    from: Vec<usize>,
}

fn line(base: *mut u8, index: usize) -> &'static AtomicU64 {
    assert!(index < LINES);
    // SAFETY: the mapping has `BYTES` bytes, and lives until its process ends or, in the benchmark's own
    // process, until the last use of what this returns; everybody touches it as atomics.
    unsafe { &*base.add(index * LINE_BYTES).cast() }
}

/// Passes the number on until the process is ended.
pub(super) fn run_role(args: &PassArgs) -> Result<(), Box<dyn Error>> {
    let file = File::options().read(true).write(true).open(&args.memory)?;
    let mapping = Mapping::map_received(file.as_fd(), Protection::ReadWrite, 1 << 20)?;
    if args.from.iter().any(|from| from + 1 >= LINES) {
        return Err("there is no such line".into());
    }
    let mut hops: Vec<_> = (args.from.iter())
        .map(|&from| (line(mapping.base(), from), line(mapping.base(), from + 1), 0u64))
        .collect();
    let mut polite = Polite::default();
    loop {
        let mut passed = false;
        for (from, to, last) in &mut hops {
            let number = from.load(Ordering::Acquire);
            if number != *last {
                to.store(number, Ordering::Release);
                (*last, passed) = (number, true);
            }
        }
        if passed {
            polite.found_something();
        } else {
            polite.found_nothing();
        }
    }
}

/// Processes that pass a number on, and back to this one.
pub(super) struct Passing {
    _processes: Vec<ChildProcess>,
    memory: SharedMemory,
    back: usize,
    number: u64,
    polite: Polite,
}

impl Passing {
    /// Starts one process beside this one, or two: one between this one and the last.
    pub(super) fn start(processes: usize) -> io::Result<Self> {
        let memory = SharedMemory::new("jet-bench", BYTES, false)?;
        let path = path_for_children(&memory);
        let (froms, back): (&[&[&str]], _) = match processes {
            1 => (&[&["0"]], 1),
            _ => (&[&["0", "2"], &["1"]], 3),
        };
        let start = |from: &&[&str]| {
            let mut command = role("pass")?;
            command.arg("--memory").arg(&path);
            for from in *from {
                command.args(["--from", from]);
            }
            ChildProcess::start(command)
        };
        let processes = froms.iter().map(start).collect::<io::Result<_>>()?;
        let polite = Polite::default();
        let mut passing = Self { _processes: processes, memory, back, number: 0, polite };
        // The first comes back when all of them are up.
        passing.half_round_trip_us(1)?;
        Ok(passing)
    }

    /// Passes numbers on, one at a time. Returns half of what a round took, in microseconds.
    ///
    /// # Errors
    /// A number that does not come back in [`LIMIT`].
    pub(super) fn half_round_trip_us(&mut self, rounds: u32) -> io::Result<f64> {
        let (there, back) = (line(self.memory.base(), 0), line(self.memory.base(), self.back));
        let began = Instant::now();
        for _ in 0..rounds {
            self.number += 1;
            there.store(self.number, Ordering::Release);
            let mut polls = 0u32;
            while back.load(Ordering::Acquire) != self.number {
                self.polite.found_nothing();
                polls = polls.wrapping_add(1);
                if polls.is_multiple_of(POLLS_PER_LOOK) && began.elapsed() > LIMIT {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "a number does not come back"));
                }
            }
            self.polite.found_something();
        }
        Ok(began.elapsed().as_secs_f64() * 1e6 / f64::from(rounds) / 2.0)
    }
}

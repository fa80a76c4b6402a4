//! Idle senders, in processes of their own: a process may have too few descriptors for ten thousand senders.

use super::sender_options;
use crate::ordered_process::{OrderedProcess, answer};
use crate::rig;
use jet_client::send::Sender;
use jet_fabric::Address;
use serde::{Deserialize, Serialize};
use std::error::Error;
use std::io::{self, BufRead};
use std::time::{Duration, Instant};

/// The most senders of one process.
const PROCESS_SENDERS_MAX: usize = 1000;

/// Arguments of a process with idle senders.
#[derive(clap::Args)]
pub struct IdleArgs {
    /// The daemon's address
    #[arg(long)]
    to: Address,
    /// Number of senders
    #[arg(long)]
    count: usize,
}

/// What a process says when all its senders are connected.
#[derive(Serialize, Deserialize)]
struct Connected {
    /// How long they took, one after the other.
    nanoseconds: u64,
}

/// The order to answer whatever the daemon has sent. The process says it back when that is done.
#[derive(Serialize, Deserialize)]
struct Turn {}

/// Connected senders that send nothing.
pub struct IdleSenders {
    processes: Vec<OrderedProcess>,
    /// How long all senders together took to connect, one after the other.
    pub connecting: Duration,
}

impl IdleSenders {
    /// Connects so many senders, one after the other.
    ///
    /// # Errors
    /// An error of the system, or of a sender.
    pub fn connect(address: &Address, count: usize) -> Result<Self, Box<dyn Error>> {
        let (mut processes, mut connecting, mut left) = (Vec::new(), Duration::ZERO, count);
        while left > 0 {
            let count = left.min(PROCESS_SENDERS_MAX);
            let mut command = rig::role("idle-senders")?;
            command.arg(format!("--to={address}")).arg(format!("--count={count}"));
            let mut process = OrderedProcess::start(command)?;
            let Connected { nanoseconds } =
                process.hear().map_err(|error| format!("idle senders do not connect: {error}"))?;
            connecting += Duration::from_nanos(nanoseconds);
            processes.push(process);
            left -= count;
        }
        Ok(Self { processes, connecting })
    }

    /// Makes them answer what the daemon has sent to them, such as a recall of credit.
    ///
    /// # Errors
    /// A process has ended.
    pub fn answer(&mut self) -> io::Result<()> {
        for process in &mut self.processes {
            let Turn {} = process.ask(&Turn {})?;
        }
        Ok(())
    }
}

/// Runs a process of idle senders until standard input ends.
///
/// # Errors
/// An error of a sender, or of the system.
pub fn run_role(args: &IdleArgs) -> Result<(), Box<dyn Error>> {
    super::raise_descriptor_limit();
    let options = sender_options(&args.to);
    let start = Instant::now();
    let senders: Result<Vec<_>, _> = (0..args.count).map(|_| Sender::connect(&options)).collect();
    let mut senders = senders?;
    answer(&Connected { nanoseconds: u64::try_from(start.elapsed().as_nanos())? })?;
    for line in io::stdin().lock().lines() {
        let Turn {} = serde_json::from_str(&line?)?;
        for sender in &mut senders {
            while sender.poll().is_some() {}
        }
        answer(&Turn {})?;
    }
    Ok(())
}

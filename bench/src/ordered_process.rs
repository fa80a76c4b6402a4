//! Processes of the benchmark that take orders: a line of JSON each on their standard input. Answers are
//! lines of JSON on their standard output.

use jet::child_process::ChildProcess;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// A process that takes orders. The process ends when this handle is dropped.
pub struct OrderedProcess {
    /// The process.
    pub child: ChildProcess,
    orders: ChildStdin,
    answers: ChildStdout,
}

impl OrderedProcess {
    /// Starts a process.
    ///
    /// # Errors
    /// An error of the system.
    pub fn start(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = ChildProcess::start(command)?;
        let (Some(orders), Some(answers)) = (child.take_stdin(), child.take_stdout()) else {
            unreachable!("both are pipes");
        };
        Ok(Self { child, orders, answers })
    }

    /// Sends an order, and does not wait for an answer.
    ///
    /// # Errors
    /// An error of the system, or that the process ended.
    pub fn tell(&mut self, order: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        self.orders.write_all(&line)
    }

    /// Waits for the next answer.
    ///
    /// # Errors
    /// An error of the system, the end of the process, or a line that is no such answer.
    pub fn hear<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut line = Vec::with_capacity(128);
        let mut byte = [0];
        loop {
            self.answers.read_exact(&mut byte)?;
            if byte[0] == b'\n' {
                return Ok(serde_json::from_slice(&line)?);
            }
            line.push(byte[0]);
        }
    }

    /// Sends an order and waits for its answer.
    ///
    /// # Errors
    /// As of [`Self::tell`] and [`Self::hear`].
    pub fn ask<T: DeserializeOwned>(&mut self, order: &impl Serialize) -> io::Result<T> {
        self.tell(order)?;
        self.hear()
    }
}

/// Writes an answer to standard output, in a process that takes orders.
///
/// # Errors
/// An error of the system.
pub fn answer(value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

//! A conventional receiver as a process of its own.

use super::{Kind, Most};
use crate::residency::touched::Touched;
use crate::residency::traffic::Shape;
use crate::rig::role;
use clap::ValueEnum;
use jet::child_process::ChildProcess;
use jet_fabric::Address;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

/// The process of a conventional receiver. The process ends when this handle is dropped.
pub struct ConventionalProcess {
    child: ChildProcess,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    address: Address,
    // Below the process, and so removed after its end.
    _directory: tempfile::TempDir,
}

impl ConventionalProcess {
    /// Starts a conventional receiver's process and waits until it listens.
    ///
    /// # Errors
    /// An error of the system, or that the process did not come up.
    pub fn start(
        shape: Shape,
        buffers: Kind,
        reads_max: Option<u32>,
        core: u32,
        touched: &Touched,
    ) -> io::Result<Self> {
        let directory = crate::interrupt::folder()?;
        let path = directory.path().join("nic.sock");
        let buffers = buffers.to_possible_value().expect("no value is skipped");
        let mut command = role("conventional")?;
        command.args(["--listen", &format!("shm:{}", path.display())]);
        command.args(["--buffers", buffers.get_name()]);
        for (name, value) in [
            ("--connections", shape.connections),
            ("--depth", shape.depth),
            ("--message-bytes", shape.message_bytes),
            ("--core", core as usize),
        ] {
            command.arg(name).arg(value.to_string());
        }
        if let Some(reads) = reads_max {
            command.arg("--reads-max").arg(reads.to_string());
        }
        command.arg("--touched").arg(touched.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = ChildProcess::start(command)?;
        let (Some(questions), Some(answers)) = (child.take_stdin(), child.take_stdout()) else {
            unreachable!("both are pipes");
        };
        let answers = BufReader::new(answers);
        let address = Address::Shm(path);
        let mut process = Self { child, questions, answers, address, _directory: directory };
        // The first line that it prints is its address.
        let mut line = String::new();
        process.answers.read_line(&mut line)?;
        if line.trim_end() == process.address.to_string() {
            return Ok(process);
        }
        let status = process.child.wait()?;
        Err(io::Error::other(format!("the conventional receiver ended at its start: {status}")))
    }

    /// Returns the most READs and the most bytes of buffers in use at once since the last call.
    ///
    /// # Errors
    /// An error of the system, or that the process ended.
    pub fn most(&mut self) -> io::Result<Most> {
        self.questions.write_all(b"\n")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the process itself.
    pub fn child(&self) -> &ChildProcess {
        &self.child
    }

    /// Returns the address that senders connect to.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

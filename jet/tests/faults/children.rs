//! Child processes of the tests: senders and applications that can be killed. A child is this binary, started
//! again.
//!
//! A child reports what happens in a file, one line at a time. Each line is written before the thing that it
//! announces is done. So the lines that are there when the child is killed are true.

use crate::rig::{Rig, random_for};
use crate::traffic::{Traffic, fits};
use jet_client::receive::{Message, ReceiveError, RegisterOptions, Session, SliceError};
use jet_client::send::RetryPolicy;
use jet_fabric::Address;
use jet_test_support::waiting::{WAIT_LIMIT, until};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of the test that a child runs.
pub const CHILD_TEST: &str = "children::child";

/// Code with which the application rejects bytes that are not the sender's.
pub const WRONG_BYTES: u32 = 99;

/// Role of a child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes every message, checks its bytes, and finishes it. Registers again when the daemon is gone.
    Consumer,
    /// Receives like [`Self::Consumer`], as one of several applications that share a name.
    Sharer,
    /// Receives like [`Self::Consumer`], but keeps everything and gives nothing back.
    Keeper,
    /// Registers, takes a message, breaks its session and keeps the slabs, again and again. Then it lives on.
    Faulty,
    /// Sends small and large messages without end.
    Sender,
    /// Sends one message after the other. Each is larger than what an application gets that gives nothing
    /// back.
    LargeSender,
}

impl Role {
    pub fn word(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Sharer => "sharer",
            Self::Keeper => "keeper",
            Self::Faulty => "faulty",
            Self::Sender => "sender",
            Self::LargeSender => "large sender",
        }
    }
}

/// Returns the environment variables that tell a child what to do.
pub fn environment(
    role: Role,
    control: &Path,
    address: Option<&Address>,
    app: &str,
    report: &Path,
) -> Vec<(&'static str, String)> {
    let path = |path: &Path| path.to_str().expect("paths of tests are text").to_owned();
    vec![
        ("JET_FAULTS_ROLE", role.word().to_owned()),
        ("JET_FAULTS_CONTROL", path(control)),
        ("JET_FAULTS_ADDRESS", address.map(Address::to_string).unwrap_or_default()),
        ("JET_FAULTS_APP", app.to_owned()),
        ("JET_FAULTS_REPORT", path(report)),
    ]
}

#[test]
#[ignore = "a child process of the other tests"]
fn child() {
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name}: started by no test"));
    let report = OpenOptions::new().append(true).open(variable("JET_FAULTS_REPORT")).expect("the report");
    let (control, app) = (PathBuf::from(variable("JET_FAULTS_CONTROL")), variable("JET_FAULTS_APP"));
    match variable("JET_FAULTS_ROLE").as_str() {
        role @ ("consumer" | "sharer" | "keeper") => {
            let options = RegisterOptions::new(app).control_socket(control).shares_name(role == "sharer");
            Application { report, options, keeps: role == "keeper" }.run();
        }
        "faulty" => crate::quarantine::fault_again_and_again(report, &control, &app),
        role @ ("sender" | "large sender") => {
            let address = variable("JET_FAULTS_ADDRESS").parse().expect("an address");
            send_without_end(&address, &app, role == "large sender", report);
        }
        other => panic!("no role {other}"),
    }
}

struct Application {
    report: File,
    options: RegisterOptions,
    keeps: bool,
}

impl Application {
    fn say(&mut self, line: &str) {
        // One system call writes a line as a whole or not at all.
        self.report.write_all(format!("{line}\n").as_bytes()).expect("the report");
    }

    fn run(&mut self) {
        loop {
            let session = until("a daemon", || Session::register(&self.options).ok());
            self.say("registered");
            match self.serve(&session) {
                ReceiveError::DaemonGone => self.say("gone"),
                error => {
                    self.say(&format!("failed {error}"));
                    return;
                }
            }
        }
    }

    /// Receives until the session ends.
    fn serve(&mut self, session: &Session) -> ReceiveError {
        let mut kept = Vec::new();
        loop {
            let mut message = match session.receive() {
                Ok(message) => message,
                // A keeper waits on, like an application that ignores the error.
                Err(ReceiveError::HoldsAll(held)) => {
                    self.say(&format!("held {}", held.limit.key()));
                    continue;
                }
                Err(error) => return error,
            };
            let (sender, sequence) = (message.sender(), message.sequence());
            self.say(&format!("begun {sender:016x} {sequence} {}", message.redelivered()));
            if self.keeps {
                kept.push(message.next_timeout(WAIT_LIMIT).ok().flatten().map(|slice| slice.detach()));
                kept.push(None);
                let _ = message.detach();
                continue;
            }
            match take(&mut message) {
                Ok(true) => {
                    let (tag, bytes) = (message.tag(), message.bytes());
                    self.say(&format!("finished {sender:016x} {sequence} {tag} {bytes}"));
                    message.consume();
                }
                Ok(false) => {
                    self.say(&format!("wrong {sender:016x} {sequence}"));
                    message.reject(NonZeroU32::new(WRONG_BYTES).expect("not 0"));
                }
                Err(SliceError::Withdrawn { corrupt }) => {
                    self.say(&format!(
                        "{} {sender:016x} {sequence}",
                        if corrupt { "corrupt" } else { "withdrawn" }
                    ));
                }
                Err(SliceError::Receive(error)) => return error,
                Err(error) => panic!("nothing is kept here: {error}"),
            }
        }
    }
}

/// Takes all slabs of a message. Returns `false` if the bytes are not the sender's, or do not cover the
/// message exactly once.
fn take(message: &mut Message<'_>) -> Result<bool, SliceError> {
    let tag = message.tag();
    let mut right = true;
    let mut pieces = Vec::new();
    while let Some(run) = message.next()? {
        for slice in run.into_slabs() {
            right &= fits(tag, slice.offset(), &slice);
            pieces.push((slice.offset(), slice.len() as u64));
        }
    }
    // The pieces are in the order of arrival.
    pieces.sort_unstable();
    let mut end = 0;
    for (offset, bytes) in pieces {
        right &= offset == end;
        end += bytes;
    }
    Ok(right && end == message.bytes())
}

fn send_without_end(address: &Address, app: &str, large_only: bool, mut report: File) {
    // The pool and all of escape memory are 45 MiB, and one message may get both.
    const LARGE_BYTES: usize = 64 << 20;
    let in_flight_max = if large_only { 1 } else { 24 };
    let options = Rig::sender_options(address, app).retry(RetryPolicy::all_for(Duration::MAX));
    let sender = jet_client::send::Sender::connect(&options).expect("the daemon lets it in");
    let mut random = random_for("sender", u64::from(std::process::id()));
    let sizes = random.fork();
    let mut traffic = Traffic::over(sender, random);
    let mut sizes = sizes;
    report.write_all(b"connected\n").expect("the report");
    let mut in_flight = 0;
    loop {
        while in_flight < in_flight_max {
            let bytes = if large_only {
                LARGE_BYTES
            } else if sizes.below(4) == 0 {
                sizes.size_below(4097)
            } else {
                1 + sizes.size_below(3 << 20)
            };
            traffic.send(bytes).expect("taken");
            in_flight += 1;
        }
        traffic.end();
        in_flight -= 1;
    }
}

//! What this binary does when a test starts it again: be a sender or an application that can be killed.
//!
//! A child says what happens in a file, a line at a time, each written before the thing that it announces is
//! done: what stands there when the child is killed is the truth.

use crate::rig::{Rig, random_for};
use crate::traffic::{Traffic, fits};
use jet_client::receive::{Message, ReceiveError, RegisterOptions, Session, SliceError};
use jet_client::send::RetryPolicy;
use jet_fabric::Address;
use jet_test_support::waiting::{PATIENCE, until};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// The test that is a child.
pub const CHILD_TEST: &str = "children::child";

/// The application's code for bytes that are not the sender's.
pub const WRONG_BYTES: u32 = 99;

/// What a child is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Takes every message, checks its bytes, and finishes it. Registers again when the daemon is gone.
    Consumer,
    /// As the consumer, but keeps everything that it gets.
    Keeper,
    /// Registers, takes something, breaks its session and keeps all of it, again and again; then it lives on.
    Faulty,
    /// Sends small and large messages without end.
    Sender,
    /// Sends one message after the other, each larger than what an application that takes nothing is ever
    /// given.
    LargeSender,
}

impl Role {
    pub fn word(self) -> &'static str {
        match self {
            Self::Consumer => "consumer",
            Self::Keeper => "keeper",
            Self::Faulty => "faulty",
            Self::Sender => "sender",
            Self::LargeSender => "large sender",
        }
    }
}

/// The environment of a child.
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
        "consumer" => Application { report, control, app, keeps: false }.run(),
        "keeper" => Application { report, control, app, keeps: true }.run(),
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
    control: PathBuf,
    app: String,
    keeps: bool,
}

impl Application {
    fn say(&mut self, line: &str) {
        // One system call: a line is there whole or not at all.
        self.report.write_all(format!("{line}\n").as_bytes()).expect("the report");
    }

    fn run(&mut self) {
        loop {
            let options =
                RegisterOptions { control_socket: self.control.clone(), ..RegisterOptions::new(&self.app) };
            let session = until("a daemon", || Session::register(&options).ok());
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
            let mut message = match session.receive(None) {
                Ok(message) => message.expect("without a limit there is always one"),
                // One that keeps what it gets waits on, as one does that does not look.
                Err(ReceiveError::HoldsAll(held)) => {
                    self.say(&format!("held {}", held.limit.key()));
                    continue;
                }
                Err(error) => return error,
            };
            let (sender, sequence) = (message.sender(), message.sequence());
            self.say(&format!("begun {sender:016x} {sequence} {}", message.redelivered()));
            if self.keeps {
                kept.push(message.next(Some(PATIENCE)).ok().flatten().map(|slice| slice.detach()));
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
                Err(error @ (SliceError::TimedOut | SliceError::HoldsAll(_))) => {
                    panic!("nothing is kept here: {error}")
                }
            }
        }
    }
}

/// Takes all of a message, slab by slab. `false`: these are not its bytes, or not each of them once.
fn take(message: &mut Message<'_>) -> Result<bool, SliceError> {
    let tag = message.tag();
    let mut right = true;
    let mut pieces = Vec::new();
    while let Some(run) = message.next(None)? {
        for slice in run.slices() {
            right &= fits(tag, slice.offset(), &slice);
            pieces.push((slice.offset(), slice.len() as u64));
        }
    }
    // They come in the order of arrival.
    pieces.sort_unstable();
    let mut end = 0;
    for (offset, bytes) in pieces {
        right &= offset == end;
        end += bytes;
    }
    Ok(right && end == message.bytes())
}

fn send_without_end(address: &Address, app: &str, large_only: bool, mut report: File) {
    // The pool and all of escape memory are 45 MiB: one that is awaited may get both.
    const LARGE_BYTES: usize = 64 << 20;
    let in_flight_max = if large_only { 1 } else { 24 };
    let mut options = Rig::sender_options(address, app);
    options.retry = RetryPolicy::all_for_ns(u64::MAX);
    let sender = jet_client::send::Sender::connect(options).expect("the daemon lets it in");
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

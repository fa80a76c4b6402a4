//! One run of the demo over one fabric.

use super::processes::Process;
use super::report::RunResult;
use super::verify::{Differences, Manifest};
use crate::backoff::Backoff;
use crate::commands::status::ask;
use crate::commands::{Signals, wait_readable};
use crate::progress::{self, Progress};
use jet_control::protocol::admin_socket_beside;
use jet_control::status::Status;
use jet_control::{ControlConnection, ControlRequest};
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const APP: &str = "demo";
/// Longest time that the demo waits for a process to be ready or to end, or for the pool to get all its slabs
/// back.
const WAIT_LIMIT: Duration = Duration::from_secs(20);
/// Time after which the run fails if no message was delivered or consumed.
const STALL: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(100);
const BACKOFF_FIRST: Duration = Duration::from_millis(2);
const BACKOFF_MAX: Duration = Duration::from_millis(100);

/// Reason why the demo has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum DemoError {
    /// The work directory, or a tree in it, cannot be made.
    #[error("cannot work in {}: {source}; name a directory with room for twice the bytes with --work-dir",
            path.display())]
    Work {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The directory that was given with `--dir` cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Dir {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The tree that the demo makes would be too small for this number of senders.
    #[error("--bytes {bytes} is below the minimum of {bytes_min} ({}MiB) for {senders} sender(s), 32MiB \
             each: give more, or fewer --senders", bytes_min >> 20)]
    TooFew {
        /// Size of the tree that was asked for.
        bytes: u64,
        /// Least size of a tree for this number of senders, in bytes.
        bytes_min: u64,
        /// Number of senders.
        senders: u64,
    },
    /// The directory that was given with `--dir` has nothing to send.
    #[error("{} has no files or directories to send", path.display())]
    Empty {
        /// Path of the directory.
        path: PathBuf,
    },
    /// A process of the demo ended too early, or with an error.
    #[error("the {name} ended ({status}); it said:\n{words}")]
    Ended {
        /// Name of the process.
        name: String,
        /// Exit status of the process, in words.
        status: String,
        /// End of the process's log.
        words: String,
    },
    /// An event that the demo waited for did not happen in time.
    #[error("{what} within {limit:?}; it said:\n{words}")]
    Late {
        /// Words that say what did not happen.
        what: String,
        /// Longest wait that was allowed.
        limit: Duration,
        /// End of a process's log.
        words: String,
    },
    /// RDMA was asked for, and there is no device with an address, or this build has no RDMA.
    #[error("{0}")]
    Rdma(String),
    /// SIGINT or SIGTERM arrived.
    #[error("interrupted; everything that was started is ended and removed")]
    Interrupted,
    /// Another operation of the system failed, or the daemon gave no status.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Returns the address at which the daemon is to listen: that of the first RDMA device with an IP address,
/// and any free port.
#[cfg(feature = "verbs")]
fn rdma_address() -> Result<String, DemoError> {
    let found = jet_fabric::verbs::local_addresses().map_err(|error| DemoError::Rdma(error.to_string()))?;
    let none = "no RDMA device has an IP address to be found by; give its interface one (on InfiniBand the \
                one over it, IPoIB), and set it up";
    let first = found.first().ok_or_else(|| DemoError::Rdma(none.to_owned()))?;
    Ok(format!("rdma:{}", std::net::SocketAddr::new(first.address, 0)))
}

#[cfg(not(feature = "verbs"))]
fn rdma_address() -> Result<String, DemoError> {
    let words = "this build has no RDMA; run it with `cargo run --release --features verbs --bin jet -- demo \
                 --fabric rdma`";
    Err(DemoError::Rdma(words.to_owned()))
}

/// Inputs of one run of the demo, over one fabric.
pub(super) struct Run<'a> {
    pub work: &'a Path,
    pub fabric: &'static str,
    pub shares: &'a [Vec<PathBuf>],
    pub signals: &'a Signals,
    /// Number of bytes that all senders send together.
    pub bytes: u64,
    pub quiet: bool,
    pub keep: bool,
}

impl Run<'_> {
    /// Starts the processes, waits until the senders have sent everything, ends the other processes, and
    /// compares the files. Returns the results.
    pub(super) fn perform(&self) -> Result<RunResult, DemoError> {
        let control = self.work.join(format!("{}.ctl", self.fabric));
        let out = self.work.join(format!("received-{}", self.fabric));
        let listen = match self.fabric {
            "shm" => format!("shm:{}", self.work.join("nic.sock").display()),
            "rdma" => rdma_address()?,
            _ => "tcp:127.0.0.1:0".to_owned(),
        };
        let os = OsStr::new;
        let mut daemon = Process::start(
            self.work,
            &format!("{}-daemon", self.fabric),
            &[os("daemon"), os("--listen"), os(&listen), os("--control-socket"), control.as_os_str()],
        )?;
        let status = self.until("the daemon was not ready", &mut [&mut daemon], || {
            ask(&control).ok().filter(|status| !status.listen.is_empty())
        })?;
        let to = status.listen.first().cloned().unwrap_or(listen);
        let mut receiver = Process::start(
            self.work,
            &format!("{}-receiver", self.fabric),
            &[
                os("recv"),
                os("--app"),
                os(APP),
                os("--out"),
                out.as_os_str(),
                os("--control-socket"),
                control.as_os_str(),
                os("--json"),
            ],
        )?;
        self.until("the receiver did not register", &mut [&mut receiver, &mut daemon], || {
            ask(&control).ok().filter(|status| status.session(APP).is_some())
        })?;
        let began = Instant::now();
        let mut senders = Vec::new();
        for (number, share) in self.shares.iter().enumerate() {
            let mut arguments =
                vec![os("send"), os("--to"), os(&to), os("--app"), os(APP), os("--json"), os("--")];
            arguments.extend(share.iter().map(|path| path.as_os_str()));
            senders.push(Process::start(self.work, &format!("{}-sender-{number}", self.fabric), &arguments)?);
        }
        self.watch(&control, &mut senders, &mut receiver, &mut daemon)?;
        let seconds = began.elapsed().as_secs_f64();
        let status = self.wait_until_whole(&control)?;
        self.end(&mut receiver, Process::terminate)?;
        self.end(&mut daemon, |_| drain(&control))?;
        let (files, differences) = self.compare(&out)?;
        let sent = senders.iter().map(Process::printed).collect::<io::Result<Vec<_>>>()?;
        let checked = (files, differences);
        let row = RunResult::new(self.fabric, seconds, &sent, &receiver.printed()?, &status, checked);
        for sender in &senders {
            let words = sender.log_end();
            if !words.is_empty() {
                tracing::info!("the {} said:\n{words}", sender.name);
            }
        }
        if !self.keep {
            std::fs::remove_dir_all(&out)?;
        }
        Ok(row)
    }

    fn compare(&self, out: &Path) -> Result<(u64, Differences), DemoError> {
        let progress = self.progress(2 * self.bytes);
        let mut done = 0;
        let mut each = |bytes: u64| {
            done += bytes;
            progress.set(done, format!("{}: comparing every file", self.fabric));
        };
        let mut sent = Manifest::default();
        for share in self.shares {
            sent.add(Manifest::of(share, &mut each)?);
        }
        let differences = sent.compare(&Manifest::below(out, &mut each)?);
        Ok((sent.files(), differences))
    }

    /// Shows the progress until all senders have ended. Fails if the receiver or the daemon ends, if a signal
    /// arrives, or if no message is delivered or consumed for longer than [`STALL`].
    fn watch(
        &self,
        control: &Path,
        senders: &mut [Process],
        receiver: &mut Process,
        daemon: &mut Process,
    ) -> Result<(), DemoError> {
        let progress = self.progress(self.bytes);
        let (mut before, mut moved) = (0, Instant::now());
        loop {
            let mut running = 0;
            for sender in &mut *senders {
                running += usize::from(sender.ended()?.is_none());
            }
            if running == 0 {
                return Ok(());
            }
            // A process that has ended stays readable, so wait only for those that run.
            let mut fds = vec![self.signals.as_fd(), receiver.as_fd(), daemon.as_fd()];
            fds.extend(senders.iter().filter(|sender| sender.is_running()).map(Process::as_fd));
            let _ = wait_readable(&fds, Some(TICK))?;
            self.check_alive(&mut [receiver, daemon])?;
            let Ok(status) = ask(control) else { continue };
            let (delivered, consumed) = (status.messages.delivered_bytes, status.ends.consumed);
            if delivered + consumed != before {
                before = delivered + consumed;
                moved = Instant::now();
            } else if moved.elapsed() > STALL {
                return Err(DemoError::Late {
                    what: "nothing arrived any more".to_owned(),
                    limit: STALL,
                    words: daemon.log_end(),
                });
            }
            let words = format!("{}: {running} of {} senders at work", self.fabric, senders.len());
            progress.set(delivered.min(self.bytes), words);
        }
    }

    /// Waits until every slab is back in the daemon's pool, but at most [`WAIT_LIMIT`]. Returns the daemon's
    /// last status.
    fn wait_until_whole(&self, control: &Path) -> Result<Status, DemoError> {
        let deadline = Instant::now() + WAIT_LIMIT;
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        loop {
            let status = ask(control).map_err(io::Error::other)?;
            if status.pool.whole || Instant::now() >= deadline {
                return Ok(status);
            }
            self.pause(&mut backoff)?;
        }
    }

    /// Calls `poll` until it returns a value. Fails if [`WAIT_LIMIT`] is over, if one of the processes ends,
    /// or if a signal arrives.
    fn until<T>(
        &self,
        what: &str,
        processes: &mut [&mut Process],
        mut poll: impl FnMut() -> Option<T>,
    ) -> Result<T, DemoError> {
        let deadline = Instant::now() + WAIT_LIMIT;
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        loop {
            if let Some(found) = poll() {
                return Ok(found);
            }
            self.check_alive(processes)?;
            if Instant::now() >= deadline {
                let words = processes.first().map(|process| process.log_end()).unwrap_or_default();
                return Err(DemoError::Late { what: what.to_owned(), limit: WAIT_LIMIT, words });
            }
            self.pause(&mut backoff)?;
        }
    }

    fn pause(&self, backoff: &mut Backoff) -> Result<(), DemoError> {
        if self.signals.wait(backoff.next_wait())? {
            return Err(DemoError::Interrupted);
        }
        Ok(())
    }

    /// Fails if one of the processes has ended, or if a signal has arrived.
    fn check_alive(&self, processes: &mut [&mut Process]) -> Result<(), DemoError> {
        if self.signals.wait(Duration::ZERO)? {
            return Err(DemoError::Interrupted);
        }
        for process in processes {
            if let Some(status) = process.ended()? {
                return Err(DemoError::Ended {
                    name: process.name.clone(),
                    status: status.to_string(),
                    words: process.log_end(),
                });
            }
        }
        Ok(())
    }

    /// Asks a process to end by calling `ask`, and waits until it has ended. Fails if [`WAIT_LIMIT`] is over,
    /// if the process ends with an error, or if a signal arrives.
    fn end(&self, process: &mut Process, ask: impl FnOnce(&Process)) -> Result<(), DemoError> {
        ask(process);
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            if let Some(status) = process.ended()? {
                return if status.success() {
                    Ok(())
                } else {
                    Err(DemoError::Ended {
                        name: process.name.clone(),
                        status: status.to_string(),
                        words: process.log_end(),
                    })
                };
            }
            if self.signals.wait(Duration::ZERO)? {
                return Err(DemoError::Interrupted);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(DemoError::Late {
                    what: format!("the {} did not end", process.name),
                    limit: WAIT_LIMIT,
                    words: process.log_end(),
                });
            }
            let _ = wait_readable(&[process.as_fd(), self.signals.as_fd()], Some(left))?;
        }
    }

    /// Creates a progress bar. The bar is hidden if the demo is quiet, or if standard error is no terminal,
    /// where each update would leave one more line.
    fn progress(&self, bytes: u64) -> Progress {
        if !self.quiet && progress::is_watched() { Progress::of_bytes(bytes) } else { Progress::hidden() }
    }
}

/// Asks the daemon to drain. Ignores errors: [`Run::end`] fails if the daemon does not end.
fn drain(control: &Path) {
    const DEADLINE_MS: u64 = 5000;
    if let Ok(mut connection) = ControlConnection::connect(&admin_socket_beside(control)) {
        let _ = connection.request(&ControlRequest::Drain { deadline_ms: Some(DEADLINE_MS) });
    }
}

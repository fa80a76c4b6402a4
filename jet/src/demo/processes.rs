//! Processes of the demo: this same program, started again with other arguments. Each process ends before the
//! demo does, or with it.

use crate::child_process::{ChildProcess, this_program};
use rustix::process::Signal;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

/// Limit of the bytes that are shown of the end of a process's log.
const LOG_SHOWN_BYTES: usize = 2000;

/// Process of the demo, with the files that take its output. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Process {
    pub name: String,
    child: ChildProcess,
    out: PathBuf,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `jet` with these arguments. Its standard output goes to the file `NAME.out` in `work`, its
    /// standard error to `NAME.log`.
    pub(super) fn start(work: &Path, name: &str, arguments: &[&std::ffi::OsStr]) -> io::Result<Self> {
        let (out, log) = (work.join(format!("{name}.out")), work.join(format!("{name}.log")));
        let mut command = this_program()?;
        command.args(arguments).stdout(File::create(&out)?).stderr(File::create(&log)?);
        let child = ChildProcess::start(command)?;
        Ok(Self { name: name.to_owned(), child, out, log, ended: None })
    }

    /// Returns the exit status of the process if it has ended.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.ended()?;
        }
        Ok(self.ended)
    }

    /// Returns `true` until a call of [`Self::ended`] finds that the process has ended.
    pub(super) fn is_running(&self) -> bool {
        self.ended.is_none()
    }

    /// Asks the process to end, by SIGTERM.
    pub(super) fn terminate(&self) {
        // A process that is gone already needs no signal.
        let _ = self.child.signal(Signal::TERM);
    }

    /// Reads the JSON object that the process printed.
    pub(super) fn printed<T: serde::de::DeserializeOwned>(&self) -> io::Result<T> {
        Ok(serde_json::from_slice(&std::fs::read(&self.out)?)?)
    }

    /// Reads the end of the process's log: at most [`LOG_SHOWN_BYTES`] bytes of its standard error.
    pub(super) fn log_end(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let from = log.len().saturating_sub(LOG_SHOWN_BYTES);
        String::from_utf8_lossy(&log[from..]).trim_end().to_owned()
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.child.as_fd()
    }
}

/// Directory for the demo's files. Dropping it removes the directory, unless it is to be kept.
#[derive(Debug)]
pub(super) struct WorkDirectory {
    path: PathBuf,
    keep: bool,
}

impl WorkDirectory {
    pub(super) fn new(parent: &Path, keep: bool) -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let pid = std::process::id();
        for attempt in 0..100u32 {
            let path = parent.join(format!("jet-demo-{pid}-{attempt}"));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, keep }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

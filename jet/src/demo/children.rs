//! The demo's processes: this same program, started again. None outlives the demo.

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// Bytes of a log that are shown when its process failed.
const LOG_SHOWN_BYTES: usize = 2000;

/// A process and its descriptor; dropping it ends the process.
#[derive(Debug)]
pub(super) struct Process {
    pub name: String,
    child: Child,
    /// Readable when the process ended.
    pidfd: OwnedFd,
    out: PathBuf,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `jet` with these arguments. What it prints goes to files in `work`.
    pub(super) fn start(work: &Path, name: &str, arguments: &[&std::ffi::OsStr]) -> io::Result<Self> {
        let (out, log) = (work.join(format!("{name}.out")), work.join(format!("{name}.log")));
        let parent = rustix::process::getpid();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(arguments).stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&log)?);
        // SAFETY: what runs between fork and exec makes system calls only: no allocation, no lock.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have ended before that.
                if rustix::process::getppid() == Some(parent) {
                    Ok(())
                } else {
                    Err(io::ErrorKind::BrokenPipe.into())
                }
            });
        }
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        Ok(Self { name: name.to_owned(), child, pidfd, out, log, ended: None })
    }

    /// How it ended, if it did.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Whether [`Self::ended`] never said that it did.
    pub(super) fn is_running(&self) -> bool {
        self.ended.is_none()
    }

    /// Asks it to end.
    pub(super) fn terminate(&self) {
        // Gone already is as good.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }

    /// The JSON object that it printed.
    pub(super) fn printed<T: serde::de::DeserializeOwned>(&self) -> io::Result<T> {
        Ok(serde_json::from_slice(&std::fs::read(&self.out)?)?)
    }

    /// The end of what it said on stderr.
    pub(super) fn last_words(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let from = log.len().saturating_sub(LOG_SHOWN_BYTES);
        String::from_utf8_lossy(&log[from..]).trim_end().to_owned()
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A directory of the demo's own; dropping it removes it.
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

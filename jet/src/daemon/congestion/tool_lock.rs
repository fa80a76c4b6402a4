//! Ending tools that have outlived their daemon. The tool of a killed daemon may still change a knob after
//! the next daemon has read that knob. Every tool therefore inherits a lock as its standard input. The next
//! daemon kills each process that has this lock as its standard input.

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between two attempts to take the lock.
const TRY_AGAIN: Duration = Duration::from_millis(5);

/// A file lock that is held as long as the daemon or one of its tools lives.
#[derive(Clone, Debug)]
pub(super) struct ToolLock {
    file: Arc<File>,
}

/// Reason why the lock cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum LockError {
    /// The lock's file cannot be opened or locked, or processes cannot be listed.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// Path of the lock's file.
        path: PathBuf,
        /// Error from the system.
        source: io::Error,
    },
    /// Another process still holds the lock when the time limit is over.
    #[error("{} is held by another daemon, or by a tool of one that cannot be ended; stop \
             it", path.display())]
    Held {
        /// Path of the lock's file.
        path: PathBuf,
    },
}

impl ToolLock {
    /// Takes the lock. Kills tools that an earlier daemon left, and waits at most `limit` for their end.
    pub(super) fn take(path: &Path, limit: Duration) -> Result<Self, LockError> {
        let failed = |source| LockError::Open { path: path.to_owned(), source };
        let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).expect("a flag of open() is an int");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(no_follow)
            .open(path)
            .map_err(failed)?;
        let lock = Self { file: Arc::new(file) };
        let deadline = Instant::now() + limit;
        while !lock.try_lock().map_err(failed)? {
            if Instant::now() >= deadline {
                return Err(LockError::Held { path: path.to_owned() });
            }
            lock.end_tools().map_err(failed)?;
            // flock() waits either without a limit or not at all.
            std::thread::sleep(TRY_AGAIN);
        }
        Ok(lock)
    }

    fn try_lock(&self) -> io::Result<bool> {
        match flock(&*self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills every process that has the lock as its standard input. A process that has the lock as another
    /// descriptor is a living daemon, which may run its tools: in that case no process is killed. A tool that
    /// is just being started looks like its daemon, and is found by the next call.
    fn end_tools(&self) -> io::Result<()> {
        let ours = self.file.metadata()?;
        let is_lock = |path: &Path| {
            path.metadata().is_ok_and(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino()))
        };
        let mut tools = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let number = entry.ok().and_then(|entry| entry.file_name().to_str()?.parse().ok());
            let Some(pid) = number.and_then(Pid::from_raw).filter(|&pid| pid != getpid()) else { continue };
            // Open the pidfd before looking, so the killed process is the one looked at, and not another one
            // with its number.
            let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            // The process is gone, or belongs to another user, who cannot have our file open.
            let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
            let mut is_tool = false;
            for file in files.flatten().filter(|file| is_lock(&file.path())) {
                if file.file_name() != "0" {
                    return Ok(());
                }
                is_tool = true;
            }
            if is_tool {
                tools.push(process);
            }
        }
        for tool in tools {
            // A process that is gone already needs no kill.
            let _ = pidfd_send_signal(tool, Signal::KILL);
        }
        Ok(())
    }

    /// Returns the lock as a tool's standard input. The lock is shared, so it becomes free only when the tool
    /// has ended, too.
    pub(super) fn inherited(&self) -> io::Result<Stdio> {
        Ok(Stdio::from(self.file.try_clone()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command};

    fn tool(lock: &ToolLock) -> Child {
        Command::new("sleep").arg("1000").stdin(lock.inherited().unwrap()).spawn().unwrap()
    }

    #[test]
    fn a_tool_of_a_dead_daemon_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = ToolLock::take(&path, Duration::ZERO).unwrap();
        let mut tool = tool(&lock);
        // A killed daemon releases the lock in the same way.
        drop(lock);
        let _lock = ToolLock::take(&path, Duration::from_secs(60)).unwrap();
        assert_eq!(tool.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_living_daemon_and_its_tool_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = ToolLock::take(&path, Duration::ZERO).unwrap();
        // Another process that has the lock both as standard input and otherwise, like a daemon.
        let mut daemon = Command::new("sh");
        let daemon = daemon.args(["-c", "exec 5<&0; echo; sleep 1000; :"]).stdin(lock.inherited().unwrap());
        let mut daemon = daemon.stdout(Stdio::piped()).process_group(0).spawn().unwrap();
        let mut line = [0];
        std::io::Read::read_exact(daemon.stdout.as_mut().unwrap(), &mut line).unwrap();
        let error = ToolLock::take(&path, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, LockError::Held { .. }), "{error}");
        assert!(daemon.try_wait().unwrap().is_none());
        rustix::process::kill_process_group(Pid::from_child(&daemon), Signal::KILL).unwrap();
        daemon.wait().unwrap();
    }

    #[test]
    fn a_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(matches!(ToolLock::take(&path, Duration::ZERO), Err(LockError::Open { .. })));
    }
}

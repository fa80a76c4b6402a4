//! A process that a test starts, and its output.

use crate::waiting::until;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, set_parent_process_death_signal, waitid,
};
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A child process of a test. It is killed when this value is dropped, and at the latest when the test's
/// thread ends. Where the test fails, its output is printed.
pub struct Process {
    child: Child,
    /// File that takes the standard output.
    out: PathBuf,
    /// File that takes the standard error.
    log: PathBuf,
    ended: bool,
}

impl Process {
    /// Starts a process. Its standard output goes to `PATH.out`, its standard error to `PATH.log`.
    #[track_caller]
    pub fn start(command: Command, path: &Path) -> Self {
        Self::start_with(command, path, |_| {})
    }

    /// Starts a process like [`Self::start`], after `prepare` changed the command. `prepare` may redirect the
    /// output.
    #[track_caller]
    pub fn start_with(mut command: Command, path: &Path, prepare: impl FnOnce(&mut Command)) -> Self {
        let (out, log) = (with_ending(path, ".out"), with_ending(path, ".log"));
        command
            .stdin(Stdio::null())
            .stdout(File::create(&out).expect("a file"))
            .stderr(File::create(&log).expect("a file"));
        // SAFETY: one system call between fork and exec.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        prepare(&mut command);
        Self { child: command.spawn().expect("the process starts"), out, log, ended: false }
    }

    /// Returns the process id as system calls take it.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns the process id as a number, for texts and for paths below `/proc`.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends the process a signal. The process must not have been waited for.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// Stops the process (SIGSTOP), and waits until it has stopped: that happens some time after the signal
    /// was sent.
    #[track_caller]
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let stopped = waitid(WaitId::Pid(self.pid()), WaitIdOptions::STOPPED).expect("a child");
        assert!(stopped.is_some_and(|status| status.stopped()), "{stopped:?}");
    }

    /// Kills the process (SIGKILL), and waits until it has ended.
    #[track_caller]
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
        self.ended = true;
    }

    /// Waits until the process has ended on its own, and returns its exit status.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let what = format!("{} to end", self.log.display());
        let status = until(&what, || self.child.try_wait().expect("a child"));
        self.ended = true;
        status
    }

    /// Whether the process has not ended yet. The call does not reap it: [`Self::wait`] still works.
    pub fn is_running(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !self.ended && waitid(WaitId::Pid(self.pid()), options).expect("a child").is_none()
    }

    /// Returns the process's standard error so far.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Returns the process's standard output so far.
    pub fn printed_bytes(&self) -> Vec<u8> {
        fs::read(&self.out).expect("a file")
    }

    /// Returns the process's standard output, parsed as one JSON value.
    #[track_caller]
    pub fn printed<T: DeserializeOwned>(&self) -> T {
        let bytes = self.printed_bytes();
        serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            panic!("{error}: {:?}\n{}", String::from_utf8_lossy(&bytes), self.stderr_text())
        })
    }

    /// Waits for the process's end, which must be a success, and returns its standard output, parsed as one
    /// JSON value.
    #[track_caller]
    pub fn succeed<T: DeserializeOwned>(mut self) -> T {
        let status = self.wait();
        assert!(status.success(), "{status}: {}", self.stderr_text());
        self.printed()
    }

    /// Asks the process to end (SIGTERM), which it must do successfully, and returns its standard output,
    /// parsed as one JSON value.
    #[track_caller]
    pub fn stop<T: DeserializeOwned>(self) -> T {
        self.signal(Signal::TERM);
        self.succeed()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.ended {
            // The process may have ended on its own.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            for path in [&self.out, &self.log] {
                let said = fs::read(path).unwrap_or_default();
                if !said.is_empty() {
                    eprintln!("--- {}\n{}", path.display(), String::from_utf8_lossy(&said));
                }
            }
        }
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(ending);
    path.into()
}

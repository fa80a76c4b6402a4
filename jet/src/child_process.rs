//! Child processes of Jet's programs. A child process ends with its parent, or when its handle is dropped.

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// Returns a command that runs the program of this process, without standard input. The caller adds the
/// arguments.
///
/// # Errors
/// The system does not tell where the program is.
pub fn this_program() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.stdin(Stdio::null());
    Ok(command)
}

/// Child process, with its pidfd. Dropping it kills the process, also where the process is stopped.
#[derive(Debug)]
pub struct ChildProcess {
    child: Child,
    /// Descriptor that is readable when the process has ended.
    pidfd: OwnedFd,
}

impl ChildProcess {
    /// Starts a process that the kernel kills when the thread ends that called this function.
    ///
    /// # Errors
    /// The program is missing, or an error of the system.
    pub fn start(mut command: Command) -> io::Result<Self> {
        let parent = rustix::process::getpid();
        // SAFETY: the closure, which runs between fork and exec, makes system calls only. It allocates
        // nothing and takes no lock.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                // The parent may have ended before the signal was set.
                if rustix::process::getppid() == Some(parent) {
                    Ok(())
                } else {
                    Err(io::ErrorKind::BrokenPipe.into())
                }
            });
        }
        let mut child = command.spawn()?;
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        Ok(Self { child, pidfd })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status of the process if it has ended.
    ///
    /// # Errors
    /// An error of the system.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits until the process has ended, and returns its exit status.
    ///
    /// # Errors
    /// An error of the system.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Sends the process a signal. It never reaches another process that got the same number later.
    ///
    /// # Errors
    /// The process has ended.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.pidfd, signal)?)
    }

    /// Stops the process (SIGSTOP), and waits until it has stopped: that happens some time after the signal
    /// was sent.
    ///
    /// # Errors
    /// The process has ended.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        let asked = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        match waitid(WaitId::PidFd(self.pidfd.as_fd()), asked)? {
            Some(status) if status.stopped() => Ok(()),
            _ => Err(io::Error::other("the process ended where it was to be stopped")),
        }
    }

    /// Takes the process's standard input, if it is a pipe that was not taken yet.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Takes the process's standard output, if it is a pipe that was not taken yet.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Takes the process's standard error, if it is a pipe that was not taken yet.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }
}

impl AsFd for ChildProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // A process that has ended already needs no signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn sleep() -> ChildProcess {
        let mut command = Command::new("sleep");
        command.arg("60");
        ChildProcess::start(command).unwrap()
    }

    #[test]
    fn a_handle_that_is_dropped_ends_its_process_also_a_stopped_one() {
        for stopped in [false, true] {
            let child = sleep();
            if stopped {
                child.stop().unwrap();
            }
            let at = format!("/proc/{}", child.id());
            assert!(Path::new(&at).exists());
            drop(child);
            assert!(!Path::new(&at).exists(), "{stopped}");
        }
    }

    #[test]
    fn a_process_that_has_ended_takes_no_signals() {
        let mut child = sleep();
        assert_eq!(child.ended().unwrap(), None);
        child.signal(Signal::TERM).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(child.ended().unwrap().is_some());
        assert!(child.signal(Signal::TERM).is_err());
        assert!(child.stop().is_err());
    }

    #[test]
    fn a_process_ends_with_the_thread_that_started_it() {
        let mut child = std::thread::spawn(sleep).join().unwrap();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
    }
}

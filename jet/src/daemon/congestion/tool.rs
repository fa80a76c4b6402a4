//! Running an external tool: finding and starting it, reading its output, and killing it when it hangs.
//!
//! The tool is started with `posix_spawn`, so no option of the start may force a `fork`. A fork would make
//! every private page of the daemon copy-on-write, and the reactor would fault on its own memory.

use super::tool_lock::ToolLock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Limit of bytes of a tool's output that are kept. The rest is read and dropped.
const SAID_BYTES_MAX: usize = 4096;

/// Limit of characters of a tool's output that an error shows.
const TOLD_CHARS_MAX: usize = 300;

/// Time that the daemon waits for the end of a killed tool. Only a tool that waits in the kernel does not end
/// at once.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// Reason why a run of a tool failed.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The tool does not exist, or is no program.
    #[error("{} not found{}: install mstflint, or set \
             congestion.mstcongestion", program.display(), looked(program))]
    NotFound {
        /// Path or name that was looked for.
        program: PathBuf,
    },
    /// The tool exists and cannot be started.
    #[error("cannot start {}: {source}", program.display())]
    NotStarted {
        /// Path of the tool.
        program: PathBuf,
        /// Error from the system.
        source: io::Error,
    },
    /// The tool hung and was killed.
    #[error("{command} did not end within {limit_ms} ms and was killed{}", said(.output))]
    TimedOut {
        /// Command line of the run.
        command: String,
        /// Time limit of the run, in milliseconds.
        limit_ms: u128,
        /// Output of the tool until it was killed.
        output: String,
    },
    /// The process of an earlier run hangs in the kernel, where not even a kill ends it.
    #[error("process {pid} of an earlier run cannot be killed; nothing more is tried until it is gone")]
    Unkillable {
        /// Number of the process that hangs.
        pid: u32,
    },
    /// The tool reported a failure, or another process killed it.
    #[error("{command} failed ({status}){}", said(.output))]
    Failed {
        /// Command line of the run.
        command: String,
        /// Exit status of the tool.
        status: ExitStatus,
        /// Output of the tool, standard error included.
        output: String,
    },
    /// The daemon does not have the lock that tools inherit.
    #[error("{why}")]
    Locked {
        /// Reason why the lock was not taken.
        why: String,
    },
}

fn looked(program: &Path) -> &'static str {
    if program.as_os_str().as_encoded_bytes().contains(&b'/') { "" } else { " in PATH" }
}

fn said(output: &str) -> String {
    match one_line(output) {
        text if text.is_empty() => String::new(),
        text => format!(": {text}"),
    }
}

/// Joins the lines of a text to one, without control characters, and cuts it after [`TOLD_CHARS_MAX`]
/// characters.
pub(super) fn one_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").chars().filter(|letter| !letter.is_control()).take(TOLD_CHARS_MAX).collect()
}

/// An external tool, of which one run happens at a time.
pub(super) struct Tool {
    program: PathBuf,
    limit: Duration,
    lock: Result<ToolLock, String>,
    unended: Option<Child>,
}

impl Tool {
    /// Creates a tool from its path, or its name in `PATH`. Each run may take `limit`. The tool's process
    /// inherits `lock`, by which the next daemon finds the process.
    pub(super) fn new(program: PathBuf, limit: Duration, lock: Result<ToolLock, String>) -> Self {
        Self { program, limit, lock, unended: None }
    }

    /// Returns the path of the tool. Each run looks for the tool anew, since it may be installed, moved or
    /// removed while the daemon runs.
    pub(super) fn find(&self) -> Result<PathBuf, ToolError> {
        let not_found = || ToolError::NotFound { program: self.program.clone() };
        if self.program.as_os_str().as_encoded_bytes().contains(&b'/') {
            return if is_program(&self.program) { Ok(self.program.clone()) } else { Err(not_found()) };
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        // An empty entry of `PATH` means the working directory, from which no program should be taken.
        std::env::split_paths(&path)
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join(&self.program))
            .find(|candidate| is_program(candidate))
            .ok_or_else(not_found)
    }

    /// Runs the tool to its end, and returns its output.
    ///
    /// # Errors
    /// Returns [`ToolError`] if the tool cannot be started, exceeds its time limit, or fails.
    pub(super) fn run<S: AsRef<OsStr>>(&mut self, arguments: &[S]) -> Result<String, ToolError> {
        self.refuse_while_one_runs()?;
        let lock = self.lock.as_ref().map_err(|why| ToolError::Locked { why: why.clone() })?;
        let program = self.find()?;
        let line = command_line(&program, arguments);
        let not_started = |source| ToolError::NotStarted { program: program.clone(), source };
        let pipe = pipe_with(PipeFlags::CLOEXEC).map_err(|error| not_started(error.into()))?;
        let (mut reader, writer) = (File::from(pipe.0), pipe.1);
        rustix::io::ioctl_fionbio(&reader, true).map_err(|error| not_started(error.into()))?;
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(lock.inherited().map_err(not_started)?)
            .stdout(writer.try_clone().map_err(not_started)?)
            .stderr(writer)
            // A separate process group, so that a kill also reaches processes that the tool started.
            .process_group(0);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(ToolError::NotFound { program });
            }
            Err(source) => return Err(not_started(source)),
        };
        let process = match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(process) => process,
            Err(error) => {
                // Most likely no descriptors are left. Without a pidfd the wait has no limit, so the tool
                // must not run.
                kill(&child);
                let _ = child.wait();
                return Err(not_started(error.into()));
            }
        };
        // The command holds our writing ends of the pipe. While these are open, reading never ends.
        drop(command);
        let mut output = Vec::new();
        let ended = wait(&process, Some(&mut reader), &mut output, self.limit);
        // Kill also processes that the tool left behind. It is not reaped yet, so the group's number is still
        // its own.
        kill(&child);
        let ended_after_kill = ended || wait(&process, None, &mut output, KILL_LIMIT);
        if !ended_after_kill {
            self.unended = Some(child);
            return Err(timed_out(line, self.limit, &output));
        }
        let status = child.wait();
        read_available(&mut reader, &mut output);
        match status {
            _ if !ended => Err(timed_out(line, self.limit, &output)),
            Err(source) => Err(not_started(source)),
            Ok(status) if status.success() => Ok(text(&output)),
            Ok(status) => Err(ToolError::Failed { command: line, status, output: text(&output) }),
        }
    }

    fn refuse_while_one_runs(&mut self) -> Result<(), ToolError> {
        let Some(child) = self.unended.as_mut() else { return Ok(()) };
        if !matches!(child.try_wait(), Ok(Some(_))) {
            return Err(ToolError::Unkillable { pid: child.id() });
        }
        self.unended = None;
        Ok(())
    }
}

fn timed_out(command: String, limit: Duration, output: &[u8]) -> ToolError {
    ToolError::TimedOut { command, limit_ms: limit.as_millis(), output: text(output) }
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

fn command_line<S: AsRef<OsStr>>(program: &Path, arguments: &[S]) -> String {
    let mut line = program.display().to_string();
    for argument in arguments {
        line.push(' ');
        line.push_str(&argument.as_ref().to_string_lossy());
    }
    line
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn kill(child: &Child) {
    // A group that is gone already needs no kill.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}

/// Waits until the process has ended, and reads its output meanwhile. Returns `false` when the time is up.
/// The process is not reaped.
fn wait(process: &OwnedFd, mut reader: Option<&mut File>, output: &mut Vec<u8>, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        let mut fds = vec![PollFd::new(process, PollFlags::IN)];
        if let Some(reader) = reader.as_deref() {
            fds.push(PollFd::new(reader, PollFlags::IN));
        }
        let polled = poll(&mut fds, Some(&timeout));
        let (ended, heard) =
            (!fds[0].revents().is_empty(), fds.get(1).is_some_and(|fd| !fd.revents().is_empty()));
        drop(fds);
        match polled {
            Ok(0) => return false,
            Ok(_) if ended => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
            Ok(_) => {}
        }
        if heard && reader.as_deref_mut().is_some_and(|reader| read_available(reader, output)) {
            // The tool has closed its output: the pipe would be readable for ever.
            reader = None;
        }
        if left.is_zero() {
            return false;
        }
    }
}

/// Reads the tool's output that has arrived. Returns whether the tool's end of the pipe is closed.
fn read_available(reader: &mut File, output: &mut Vec<u8>) -> bool {
    let mut chunk = [0; 1024];
    // A tool may write without end, so return after this many chunks to check the time.
    for _ in 0..64 {
        match reader.read(&mut chunk) {
            Ok(0) => return true,
            Ok(bytes) => {
                let room = SAID_BYTES_MAX - output.len();
                output.extend_from_slice(&chunk[..bytes.min(room)]);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::congestion::tests::{script, wait_until};

    /// Time limit of a tool in these tests, so long that only a hanging tool exceeds it.
    const GENEROUS: Duration = Duration::from_secs(30);

    struct Bench {
        directory: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().unwrap() }
        }

        fn tool(&self, body: &str, limit: Duration) -> Tool {
            let program = self.directory.path().join("tool");
            script(&program, body);
            let lock = ToolLock::take(&self.directory.path().join("lock"), GENEROUS);
            Tool::new(program, limit, lock.map_err(|error| error.to_string()))
        }
    }

    #[test]
    fn answers_what_the_tool_says() {
        let bench = Bench::new();
        let mut tool = bench.tool("echo \"$1 and $2\"; echo more >&2", GENEROUS);
        assert_eq!(tool.run(&["a b", "c"]).unwrap(), "a b and c\nmore\n");
    }

    #[test]
    fn a_failure_has_the_status_and_the_words() {
        let bench = Bench::new();
        let mut tool = bench.tool("echo '-E- no' >&2; echo device; exit 7", GENEROUS);
        let error = tool.run(&["-q"]).unwrap_err().to_string();
        assert!(error.contains("tool -q failed (exit status: 7): -E- no; device"), "{error}");
    }

    /// Whether a process has ended; its parent may not have reaped it yet.
    fn has_ended(pid: &str) -> bool {
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')),
            Err(_) => true,
        }
    }

    /// Returns the output of a tool that does not end, cut off by a time limit. Longer limits are tried until
    /// the output is enough, since a busy machine may need a second to start a shell.
    fn timed_out(body: &str, is_enough: impl Fn(&str) -> bool) -> String {
        let bench = Bench::new();
        for limit_s in [1, 4, 16, 64] {
            let mut tool = bench.tool(body, Duration::from_secs(limit_s));
            let error = tool.run::<&str>(&[]).unwrap_err();
            let ToolError::TimedOut { limit_ms, output, .. } = error else { panic!("{error}") };
            assert_eq!(limit_ms, u128::from(limit_s) * 1000);
            if is_enough(&output) {
                return output;
            }
        }
        panic!("the tool was never started");
    }

    #[test]
    fn a_hanging_tool_is_killed_with_all_that_it_started() {
        let output =
            timed_out("sleep 1000 & echo $! $$; sleep 1000", |output| output.split_whitespace().count() == 2);
        for pid in output.split_whitespace() {
            wait_until("the end", || has_ended(pid));
        }
    }

    #[test]
    fn what_a_tool_leaves_behind_ends_with_it() {
        let bench = Bench::new();
        let mut tool = bench.tool("sleep 1000 & echo $!", GENEROUS);
        let output = tool.run::<&str>(&[]).unwrap();
        wait_until("the end", || has_ended(output.trim()));
    }

    #[test]
    fn a_tool_that_talks_without_end_is_cut_short() {
        let output = timed_out("exec yes", |output| output.len() >= SAID_BYTES_MAX);
        assert_eq!(output.len(), SAID_BYTES_MAX);
    }

    #[test]
    fn a_missing_tool_says_what_to_install() {
        let bench = Bench::new();
        let lock = ToolLock::take(&bench.directory.path().join("lock"), GENEROUS);
        let lock = lock.map_err(|error| error.to_string());
        let mut tool = Tool::new("no-such-tool-anywhere".into(), GENEROUS, lock);
        let error = tool.run::<&str>(&[]).unwrap_err().to_string();
        assert!(error.starts_with("no-such-tool-anywhere not found in PATH: install mstflint"), "{error}");
    }

    #[test]
    fn what_is_no_program_is_not_started() {
        let bench = Bench::new();
        let mut tool = bench.tool("exit 0", GENEROUS);
        std::fs::set_permissions(&tool.program, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(tool.run::<&str>(&[]), Err(ToolError::NotFound { .. })));
    }
}

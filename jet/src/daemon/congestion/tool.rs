//! Running an external tool: found, started, heard, and killed when it hangs.
//!
//! Started with `posix_spawn` (nothing here may force a `fork`): a fork would make every private page of the
//! daemon copy-on-write, and the reactor would fault on its own memory.

use super::leftover::ToolLock;
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

/// What is kept of what a tool says; the rest is read and dropped.
const SAID_BYTES_MAX: usize = 4096;

/// What an error tells of it.
const TOLD_CHARS_MAX: usize = 300;

/// How long a killed tool may take to be gone: only one that is stuck in the kernel takes any time.
const KILL_LIMIT: Duration = Duration::from_secs(1);

/// Why a tool did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It is not there.
    #[error("{} not found{}: install mstflint, or set \
             congestion.mstcongestion", program.display(), looked(program))]
    NotFound {
        /// What was looked for.
        program: PathBuf,
    },
    /// It is there and cannot be started.
    #[error("cannot start {}: {source}", program.display())]
    NotStarted {
        /// Its path.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It hung and was killed.
    #[error("{command} did not end within {limit_ms} ms and was killed{}", said(.output))]
    TimedOut {
        /// How it was called.
        command: String,
        /// Its limit.
        limit_ms: u128,
        /// What it had said.
        output: String,
    },
    /// An earlier run hangs in the kernel, so that not even a kill ends it.
    #[error("process {pid} of an earlier run cannot be killed; nothing more is tried until it is gone")]
    Stuck {
        /// Its process.
        pid: u32,
    },
    /// It says that it failed, or was killed by somebody.
    #[error("{command} failed ({status}){}", said(.output))]
    Failed {
        /// How it was called.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said, on both outputs.
        output: String,
    },
    /// The lock that tools inherit is not ours.
    #[error("{why}")]
    Locked {
        /// Which.
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

/// What was said, in one line that is not too long.
pub(super) fn one_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join("; ").chars().filter(|letter| !letter.is_control()).take(TOLD_CHARS_MAX).collect()
}

/// A tool that is run for an answer, one run at a time.
pub(super) struct Tool {
    program: PathBuf,
    limit: Duration,
    lock: Result<ToolLock, String>,
    stuck: Option<Child>,
}

impl Tool {
    /// A tool by its path, or its name in `PATH`; each run may take so long. Whoever inherits `lock` is found
    /// again.
    pub(super) fn new(program: PathBuf, limit: Duration, lock: Result<ToolLock, String>) -> Self {
        Self { program, limit, lock, stuck: None }
    }

    /// Where it is. Looked for each time: it may be installed, moved or removed while the daemon runs.
    pub(super) fn find(&self) -> Result<PathBuf, ToolError> {
        let not_found = || ToolError::NotFound { program: self.program.clone() };
        if self.program.as_os_str().as_encoded_bytes().contains(&b'/') {
            return if is_program(&self.program) { Ok(self.program.clone()) } else { Err(not_found()) };
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        // An empty entry would be the working directory, which is no place to take a program from.
        std::env::split_paths(&path)
            .filter(|directory| directory.is_absolute())
            .map(|directory| directory.join(&self.program))
            .find(|candidate| is_program(candidate))
            .ok_or_else(not_found)
    }

    /// Runs it to its end and answers what it said.
    pub(super) fn run<S: AsRef<OsStr>>(&mut self, arguments: &[S]) -> Result<String, ToolError> {
        self.refuse_while_stuck()?;
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
            // A group of its own, so that a kill reaches what it started itself.
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
                // No descriptors left, most likely: it cannot be waited for with a limit, so it does not run.
                kill(&child);
                let _ = child.wait();
                return Err(not_started(error.into()));
            }
        };
        // Ours must go, or the pipe would never end.
        drop(command);
        let mut output = Vec::new();
        let ended = wait(&process, Some(&mut reader), &mut output, self.limit);
        // Also what it left behind. Not reaped yet, so that the group's number is still its own.
        kill(&child);
        let ended_after_kill = ended || wait(&process, None, &mut output, KILL_LIMIT);
        if !ended_after_kill {
            self.stuck = Some(child);
            return Err(timed_out(line, self.limit, &output));
        }
        let status = child.wait();
        hear(&mut reader, &mut output);
        match status {
            _ if !ended => Err(timed_out(line, self.limit, &output)),
            Err(source) => Err(not_started(source)),
            Ok(status) if status.success() => Ok(text(&output)),
            Ok(status) => Err(ToolError::Failed { command: line, status, output: text(&output) }),
        }
    }

    fn refuse_while_stuck(&mut self) -> Result<(), ToolError> {
        let Some(child) = self.stuck.as_mut() else { return Ok(()) };
        if !matches!(child.try_wait(), Ok(Some(_))) {
            return Err(ToolError::Stuck { pid: child.id() });
        }
        self.stuck = None;
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
    // Gone already is as good.
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}

/// Waits until the process has ended, hearing it meanwhile; `false` when the time is up. It is not reaped.
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
        if heard && reader.as_deref_mut().is_some_and(|reader| hear(reader, output)) {
            // Closed by the tool, and readable for ever.
            reader = None;
        }
        if left.is_zero() {
            return false;
        }
    }
}

/// Reads what is there; whether the other end is closed.
fn hear(reader: &mut File, output: &mut Vec<u8>) -> bool {
    let mut chunk = [0; 1024];
    // A tool that writes without end must not hold us here: so much, and then the clock is looked at again.
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

    /// Long enough that only a hang takes it.
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

    /// Whether a process has ended; its parent may not have looked yet.
    fn has_ended(pid: &str) -> bool {
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')),
            Err(_) => true,
        }
    }

    /// What a tool said that does not end, in a limit that was long enough to say so much: longer ones are
    /// tried, for a busy machine may need a second to start a shell.
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

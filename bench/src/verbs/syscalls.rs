//! Counts the system calls of a process by tracing it (ptrace).

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::process::{Command, Stdio};

/// Signal with which a traced process stops at a system call; `PTRACE_O_TRACESYSGOOD` sets the bit 0x80.
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// Makes a mark: stops this process so that its tracer begins the next count of system calls. Without a
/// tracer the process runs on after SIGCONT.
pub fn mark() {
    // SAFETY: a signal to this very thread.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Runs a command that calls [`mark`]. Returns the system calls between its marks, counted by number, and
/// what the command printed, which must not be more than a pipe holds.
///
/// # Errors
/// An error of the system, or that the command failed.
pub fn count(command: &mut Command) -> io::Result<(Vec<BTreeMap<u64, u64>>, String)> {
    use std::os::unix::process::CommandExt;
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let pid = libc::pid_t::try_from(child.id()).map_err(io::Error::other)?;
    let mut counts: Vec<BTreeMap<u64, u64>> = vec![BTreeMap::new()];
    let mut entering = true;
    let mut options_set = false;
    loop {
        let mut status = 0;
        // SAFETY: the child is ours; only its main thread is traced, and only it runs here.
        if unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            let ok = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
            if !ok {
                return Err(io::Error::other("the counted process failed"));
            }
            let mut said = String::new();
            child.stdout.take().map_or(Ok(0), |mut out| out.read_to_string(&mut said))?;
            return Ok((counts, said));
        }
        let mut signal = 0;
        match libc::WSTOPSIG(status) {
            SYSCALL_STOP => {
                if entering {
                    // SAFETY: every bit pattern is a value of the structure, which the call fills.
                    let number = unsafe {
                        let mut registers: libc::user_regs_struct = std::mem::zeroed();
                        libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut registers);
                        registers.orig_rax
                    };
                    if let Some(count) = counts.last_mut() {
                        *count.entry(number).or_default() += 1;
                    }
                }
                entering = !entering;
            }
            libc::SIGSTOP => counts.push(BTreeMap::new()),
            // The stop after exec.
            libc::SIGTRAP => {}
            other => signal = other,
        }
        // SAFETY: the child is stopped.
        unsafe {
            if !options_set {
                options_set = true;
                libc::ptrace(
                    libc::PTRACE_SETOPTIONS,
                    pid,
                    0,
                    libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL,
                );
            }
            libc::ptrace(libc::PTRACE_SYSCALL, pid, 0, signal);
        }
    }
}

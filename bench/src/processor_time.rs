//! The processor time of processes, from which follows the cost of moving a byte on one host.
//!
//! Time that the kernel spends for a process in interrupts is not included. Over `tcp:` that time is much of
//! the work of arriving messages.

use jet_control::ControlConnection;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// Returns the processor time that this process, with all its threads, has used so far.
pub fn own() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("no clock of a process is negative")
}

/// Returns the processor time that this thread has used so far.
pub fn own_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("no clock of a thread is negative")
}

/// Returns the process id, in this pid namespace, of the daemon at the other end of a control connection.
///
/// # Errors
/// An error of the system, or that the process is not visible from here.
pub fn daemon_of(control: &ControlConnection) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = libc::socklen_t::try_from(size_of_val(&peer)).expect("a few bytes");
    // SAFETY: the descriptor is open, and the answer is written to a variable of its type and of the size
    // that is said.
    let answer = unsafe {
        libc::getsockopt(
            control.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    match u32::try_from(peer.pid) {
        _ if answer != 0 => Err(io::Error::last_os_error()),
        // A pid of 0 means another namespace. rustix's type for the answer has no place for it.
        Ok(0) | Err(_) => Err(io::Error::other("it is in a PID namespace that this process does not see")),
        Ok(pid) => of(pid).map(|_| pid),
    }
}

/// Returns the processor time that a process has used so far: all its threads, also those that ended.
///
/// # Errors
/// There is no process `pid` in this pid namespace.
pub fn of(pid: u32) -> io::Result<Duration> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut clock = 0;
    // SAFETY: the clock's number is written to a variable of its type.
    let error = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a variable of its type.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) else {
        unreachable!("no clock of a process is negative");
    };
    Ok(Duration::new(seconds, nanoseconds))
}

/// Returns the processor time that those threads of a process have used so far whose names `counts` accepts.
/// Threads that ended do not count.
///
/// # Errors
/// An error of `/proc`.
pub fn of_threads(pid: u32, counts: impl Fn(&str) -> bool) -> io::Result<Duration> {
    let mut total = Duration::ZERO;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let folder = task?.path();
        if !counts(std::fs::read_to_string(folder.join("comm"))?.trim_end()) {
            continue;
        }
        let text = std::fs::read_to_string(folder.join("schedstat"))?;
        let ran_ns = text.split_whitespace().next().and_then(|number| number.parse().ok());
        total += Duration::from_nanos(
            ran_ns.ok_or_else(|| io::Error::other(format!("a schedstat without numbers: {text:?}")))?,
        );
    }
    Ok(total)
}

/// Returns whether a thread of this name is one of the daemon's that no message passes: the control plane,
/// the log, and those that check and report.
pub fn is_beside_messages(name: &str) -> bool {
    !["jet-reactor", "jet-nic", "jet-worker", "jet-warmer"].iter().any(|mover| name.starts_with(mover))
}

/// Processor time of some threads of a process, from a beginning on.
pub struct ThreadTime<F> {
    pid: u32,
    counts: F,
    began: Instant,
    before: Duration,
}

impl<F: Fn(&str) -> bool> ThreadTime<F> {
    /// Begins to count.
    ///
    /// # Errors
    /// An error of `/proc`.
    pub fn begin(pid: u32, counts: F) -> io::Result<Self> {
        let before = of_threads(pid, &counts)?;
        Ok(Self { pid, counts, began: Instant::now(), before })
    }

    /// Returns the time since the beginning that the threads ran, in percent of a core.
    ///
    /// # Errors
    /// An error of `/proc`.
    pub fn percent(&self) -> io::Result<f64> {
        let used = of_threads(self.pid, &self.counts)?.saturating_sub(self.before);
        Ok(used.as_secs_f64() / self.began.elapsed().as_secs_f64() * 100.0)
    }
}

/// Returns nanoseconds of processor time per byte, or NaN if `bytes` is 0.
pub fn ns_per_byte(time: Duration, bytes: u64) -> f64 {
    #[allow(clippy::cast_precision_loss)] // a ratio
    if bytes == 0 { f64::NAN } else { time.as_secs_f64() * 1e9 / bytes as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(span: Duration) {
        let before = own();
        let mut sum = 0u64;
        while own() - before < span {
            sum = std::hint::black_box(sum + 1);
        }
    }

    #[test]
    fn time_that_a_process_used_is_seen_from_outside_also_that_of_threads_that_ended() {
        let span = Duration::from_millis(20);
        let before = of(std::process::id()).unwrap();
        std::thread::spawn(move || work(span)).join().unwrap();
        assert!(of(std::process::id()).unwrap() - before >= span);
        assert!(own() >= before + span);
    }

    #[test]
    fn a_process_that_is_gone_and_a_run_without_bytes_have_no_figure() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(of(pid).is_err());
        assert!((ns_per_byte(Duration::from_secs(1), 1_000_000_000) - 1.0).abs() < 1e-9);
        assert!(ns_per_byte(Duration::from_secs(1), 0).is_nan());
    }
}

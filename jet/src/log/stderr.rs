//! Writing to standard error. A write never blocks for long, and never ends the program.
//!
//! Standard error may take nothing: its reader is gone or stands still, or its disk is full. Lines are then
//! left out, and the next line that is taken tells how many.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest time that a line waits for a slow reader. After a line has waited in vain, later lines do not wait
/// until one is taken.
const WAIT_LIMIT: Duration = Duration::from_secs(1);
/// Bytes that a pipe takes either completely or not at all (`PIPE_BUF`).
const CHUNK_BYTES: usize = 4096;
/// Pause before writing again after another process took the room.
const RETRY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// State of writing to standard error.
#[derive(Debug)]
pub(super) struct Stderr {
    /// Number of lines left out since the last one that was taken.
    left_out: u64,
    /// Whether the last line waited in vain.
    timed_out: bool,
    /// Whether only a part of the last line was taken.
    midway: bool,
    /// Descriptor that is written to instead of standard error itself; see [`reopen`].
    reopened: Option<OwnedFd>,
}

impl Stderr {
    /// State before the first line.
    pub const NONE: Self = Self { left_out: 0, timed_out: false, midway: false, reopened: None };

    /// State in which no line waits: not even the first.
    pub const AT_ONCE: Self = Self { timed_out: true, ..Self::NONE };

    /// Counts lines that were lost before they came here.
    pub fn left_out(&mut self, lines: u64) {
        self.left_out += lines;
    }

    /// Whether lines were left out since the last one that was taken.
    pub fn has_left_out(&self) -> bool {
        self.left_out > 0
    }

    /// Writes a text, or leaves it out and counts it. `loss` makes the line that tells of texts which were
    /// left out before this one.
    pub fn put(&mut self, to: BorrowedFd<'_>, text: &str, loss: impl FnOnce(u64) -> String) {
        let mut whole = String::new();
        if self.midway {
            whole.push('\n');
        }
        if self.left_out > 0 {
            whole.push_str(&loss(self.left_out));
        }
        whole.push_str(text);
        let deadline = (!self.timed_out).then(|| Instant::now() + WAIT_LIMIT);
        self.reopened = self.reopened.take().or_else(|| reopen(to));
        let to = self.reopened.as_ref().map_or(to, AsFd::as_fd);
        match write_within(to, whole.as_bytes(), deadline) {
            Ok(()) => (self.left_out, self.timed_out, self.midway) = (0, false, false),
            Err(NotTaken { bytes, late }) => {
                self.left_out += 1;
                self.timed_out = late;
                self.midway |= bytes > 0;
            }
        }
    }
}

/// Error for a text that was not written completely.
struct NotTaken {
    /// Number of bytes that were written.
    bytes: usize,
    /// Whether the deadline had passed. If not, a later try would fail, too.
    late: bool,
}

/// Opens the same pipe or terminal again, so that a write never waits.
///
/// Otherwise a write could wait for ever beside a reader that stands still: `poll` may report less room than
/// the write needs, or another process may take the room first. `O_NONBLOCK` cannot be set on the descriptor
/// itself, since all processes that share the descriptor would get it.
///
/// Other kinds of files give `None`. A plain file has no reader to wait for, and would be overwritten from
/// its beginning. For a socket each write has a flag of its own.
fn reopen(to: BorrowedFd<'_>) -> Option<OwnedFd> {
    let is_pipe =
        || rustix::fs::fstat(to).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    if !rustix::termios::isatty(to) && !is_pipe() {
        return None;
    }
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    // Opening fails if another user owns the pipe, or its reader is gone. Then the descriptor is used as it
    // is.
    rustix::fs::open(format!("/proc/self/fd/{}", to.as_raw_fd()), flags, Mode::empty()).ok()
}

/// Makes standard error of this process one that never blocks, if it is a pipe or a terminal. Other processes
/// that share it are not affected. For a process that is about to end, and prints its last lines past the
/// log.
pub(super) fn never_block() {
    let stderr = std::io::stderr();
    if let Some(reopened) = reopen(stderr.as_fd()) {
        // Fails for no descriptor that is open.
        let _ = rustix::stdio::dup2_stderr(&reopened);
    }
}

fn write_at_once(to: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    match rustix::net::send(to, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Err(Errno::NOTSOCK) => rustix::io::write(to, bytes),
        sent => sent,
    }
}

/// Writes all bytes until the deadline; without a deadline, as many as there is room for at once.
fn write_within(to: BorrowedFd<'_>, bytes: &[u8], deadline: Option<Instant>) -> Result<(), NotTaken> {
    let mut taken = 0;
    while taken < bytes.len() {
        let left = deadline.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        match poll(
            &mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)],
            Timespec::try_from(left).ok().as_ref(),
        ) {
            Ok(0) => return Err(NotTaken { bytes: taken, late: true }),
            Err(Errno::INTR) => continue,
            // Any other error of `poll` shows up in the write, too.
            Ok(_) | Err(_) => {}
        }
        let chunk = &bytes[taken..bytes.len().min(taken + CHUNK_BYTES)];
        match write_at_once(to, chunk) {
            Ok(written) if written > 0 => taken += written,
            Err(Errno::INTR) => {}
            // Another process took the room, or there is less room than the chunk needs.
            Err(Errno::AGAIN) if !left.is_zero() => {
                let _ = poll(&mut [], Some(&RETRY));
            }
            Err(Errno::AGAIN) => return Err(NotTaken { bytes: taken, late: true }),
            Ok(_) | Err(_) => return Err(NotTaken { bytes: taken, late: false }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_test_support::pipe::pipe;
    use std::fs::File;
    use std::io::{self, Read};
    use std::os::fd::FromRawFd;

    fn loss(lines: u64) -> String {
        format!("({lines} lost)\n")
    }

    #[test]
    fn a_reader_that_is_gone_and_a_full_disk_cost_the_line_alone() {
        let mut lines = Stderr::NONE;
        let (reader, writer) = pipe();
        drop(reader);
        lines.put(writer.as_fd(), "gone\n", loss);
        // Another output than the one before.
        lines.reopened = None;
        let full = File::options().write(true).open("/dev/full").unwrap();
        lines.put(full.as_fd(), "full\n", loss);
        assert_eq!((lines.left_out, lines.timed_out), (2, false));
        let mut log = tempfile::tempfile().unwrap();
        lines.put(log.as_fd(), "taken\n", loss);
        lines.put(log.as_fd(), "and this\n", loss);
        let mut said = String::new();
        io::Seek::rewind(&mut log).unwrap();
        log.read_to_string(&mut said).unwrap();
        assert_eq!(said, "(2 lost)\ntaken\nand this\n");
    }

    #[test]
    fn a_reader_that_stands_still_is_waited_for_once() {
        let (mut reader, writer) = pipe();
        let mut lines = Stderr::NONE;
        let line = format!("{}\n", "x".repeat(CHUNK_BYTES - 1));
        while !lines.timed_out {
            lines.put(writer.as_fd(), &line, loss);
        }
        let before = Instant::now();
        for _ in 0..1000 {
            lines.put(writer.as_fd(), &line, loss);
        }
        // Each line that waited would take a second.
        assert!(before.elapsed() < 100 * WAIT_LIMIT, "{:?}", before.elapsed());
        assert_eq!(lines.left_out, 1001);
        let mut room = vec![0; 4 * CHUNK_BYTES];
        reader.read_exact(&mut room).unwrap();
        lines.put(writer.as_fd(), "taken\n", loss);
        assert_eq!((lines.left_out, lines.timed_out), (0, false));
        drop((writer, lines));
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert!(rest.ends_with("\n(1001 lost)\ntaken\n"), "{rest}");
    }

    #[test]
    fn a_line_that_was_cut_does_not_run_into_the_next() {
        let (mut reader, writer) = pipe();
        let mut lines = Stderr::NONE;
        // More than any pipe holds by default.
        lines.put(writer.as_fd(), &format!("{}\n", "y".repeat(4 << 20)), loss);
        assert!(lines.timed_out && lines.midway);
        let mut some = vec![0; 1 << 15];
        reader.read_exact(&mut some).unwrap();
        lines.put(writer.as_fd(), "next\n", loss);
        drop((writer, lines));
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        assert!(rest.ends_with("y\n(1 lost)\nnext\n"), "{}", rest.len());
    }

    /// Opens a terminal that nothing reads, and returns its reader's end and the terminal.
    fn terminal() -> (OwnedFd, OwnedFd) {
        let (mut reader, mut terminal) = (-1, -1);
        let none = std::ptr::null_mut();
        // SAFETY: both pointers are valid places for a descriptor. The null pointers ask for no name,
        // settings or size.
        let opened =
            unsafe { libc::openpty(&raw mut reader, &raw mut terminal, none, none.cast(), none.cast()) };
        assert_eq!(opened, 0, "{}", io::Error::last_os_error());
        // SAFETY: both descriptors were just opened, and nothing else owns them.
        unsafe { (OwnedFd::from_raw_fd(reader), OwnedFd::from_raw_fd(terminal)) }
    }

    /// Returns the result of `work`, which runs on a thread of its own, since blocked work would block for
    /// ever.
    fn outcome<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(work()));
        told.recv_timeout(60 * WAIT_LIMIT).expect("it comes back")
    }

    #[test]
    fn a_terminal_that_nobody_reads_holds_nobody_up() {
        let (_reader, terminal) = terminal();
        let (left_out, timed_out) = outcome(move || {
            let mut lines = Stderr::NONE;
            for _ in 0..200 {
                lines.put(terminal.as_fd(), &format!("{}\n", "z".repeat(1023)), loss);
            }
            (lines.left_out, lines.timed_out)
        });
        assert!(left_out > 0 && timed_out, "200 KiB were taken");
    }

    #[test]
    fn what_other_processes_share_is_not_made_another() {
        let (_reader, terminal) = terminal();
        let (_pipe, writer) = pipe();
        for shared in [terminal.as_fd(), writer.as_fd()] {
            let before = rustix::fs::fcntl_getfl(shared).unwrap();
            let mut lines = Stderr::NONE;
            lines.put(shared, "x\n", loss);
            assert_eq!(rustix::fs::fcntl_getfl(shared).unwrap(), before);
            let reopened = lines.reopened.expect("it was opened again");
            assert!(rustix::fs::fcntl_getfl(&reopened).unwrap().contains(OFlags::NONBLOCK));
        }
    }

    #[test]
    fn a_socket_that_nobody_reads_holds_nobody_up() {
        let (_reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let full = outcome(move || {
            while write_at_once(writer.as_fd(), &[b'x'; 1000]).is_ok() {}
            write_at_once(writer.as_fd(), &[b'x'; 1000])
        });
        assert_eq!(full, Err(Errno::AGAIN));
    }
}

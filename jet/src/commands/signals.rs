//! SIGINT and SIGTERM as a descriptor, which can be waited for together with other descriptors.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_default;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use signal_hook::low_level::emulate_default_handler;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Descriptor that is readable when SIGINT or SIGTERM has arrived.
pub struct Signals {
    readable: UnixStream,
    came: Mutex<Arrived>,
    /// Whether the next SIGINT or SIGTERM ends the process.
    next_ends: Arc<AtomicBool>,
}

struct Arrived {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
    /// Numbers of signals that arrived together with one that was taken, and that [`Signals::take`] has not
    /// returned yet.
    more: VecDeque<u8>,
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").finish_non_exhaustive()
    }
}

impl Signals {
    /// Catches SIGINT and SIGTERM from now on. Programs that this process starts handle both as usual.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn new() -> io::Result<Self> {
        let next_ends = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            register_conditional_default(signal, Arc::clone(&next_ends))?;
        }
        let (read, write) = UnixStream::pair()?;
        let readable = read.try_clone()?;
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, [SIGINT, SIGTERM])?;
        let came = Mutex::new(Arrived { delivery, more: VecDeque::new() });
        Ok(Self { readable, came, next_ends })
    }

    /// Waits for SIGINT or SIGTERM, for at most `timeout` ([`Duration::MAX`]: without limit). Returns whether
    /// one has arrived that no call of [`Self::take`] has seen yet.
    ///
    /// # Errors
    /// Returns the system's error, except for an interrupted wait: that returns `false`.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        wait_readable(&[self.readable.as_fd()], Some(timeout))
    }

    /// Takes a signal that has arrived, and returns its number. Returns `None` if there is none.
    pub fn take(&self) -> Option<u8> {
        let mut came = self.came.lock().unwrap_or_else(PoisonError::into_inner);
        let Arrived { delivery, more } = &mut *came;
        more.extend(delivery.pending().filter_map(|signal| u8::try_from(signal).ok()));
        more.pop_front()
    }

    /// Lets the next SIGINT or SIGTERM end the process at once. A signal that has arrived beside the signal
    /// that was taken counts as the next.
    pub fn let_the_next_end(&self) {
        self.next_ends.store(true, Ordering::SeqCst);
        if let Some(signal) = self.take() {
            // Fails only for a number that is no signal.
            let _ = emulate_default_handler(i32::from(signal));
        }
    }
}

/// Waits until one of the descriptors is readable, for at most `timeout` (`None`: without limit). Returns
/// whether one is readable. An interrupted wait returns `false`.
pub(crate) fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<bool> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes a write beyond the file size limit fail with EFBIG, instead of ending the process by SIGXFSZ. The
/// log may be a file with such a limit.
pub fn ignore_file_size_signal() {
    // SAFETY: the signal is ignored, so no handler of this program runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

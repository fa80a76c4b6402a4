//! SIGINT and SIGTERM as a descriptor, so that they are waited for like everything else.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Readable when the process was asked to end.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks both signals in this thread and those that it starts, and makes the descriptor.
    ///
    /// A program started by this process has to unblock them: see [`unblock`].
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> io::Result<Self> {
        let set = set();
        // SAFETY: the set is initialised, and the former mask is not asked for.
        let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        // SAFETY: as above; a new descriptor is asked for.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Waits so long at most ([`Duration::MAX`]: for ever); whether a signal came. It stays readable until [`Self::take`].
    ///
    /// # Errors
    /// What the system says; never "interrupted".
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        wait_readable(&[self.0.as_fd()], Some(timeout))
    }

    /// Takes a signal that came: its number.
    pub fn take(&self) -> Option<u8> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        let read = rustix::io::read(&self.0, &mut info).ok()?;
        // It begins with the number, 32 bits of it (`ssi_signo`).
        let (number, _) = info[..read].split_first_chunk()?;
        u8::try_from(u32::from_ne_bytes(*number)).ok()
    }
}

/// Waits until one of the descriptors is readable, at most so long; whether one is.
pub(crate) fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<bool> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match poll(&mut fds, timeout.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Unblocks both signals: for a child between fork and exec. Async-signal-safe.
///
/// # Errors
/// What the system says.
pub fn unblock() -> io::Result<()> {
    let set = set();
    // SAFETY: the set is initialised, and the former mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Makes a write beyond the file size limit an error (EFBIG) instead of the process's end; a log may be such a file.
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal runs no handler of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

fn set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set that the other calls then change; the signals exist.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        set.assume_init()
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

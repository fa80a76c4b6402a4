//! Exclusive locks (flock) on files that other processes may hold.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// Longest time that [`lock_within`] waits for another process to release the lock. A process that changes
/// something holds it for milliseconds, and one start or end of a process may take the lock several times.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Time between two attempts to take the lock. The wait polls, since a thread that blocks in flock without a
/// limit cannot be stopped.
const RETRY_EVERY: Duration = Duration::from_millis(20);

/// Takes the lock of a file, waiting up to 2 s for another holder. Returns whether it was taken.
pub(crate) fn lock_within(file: &File) -> io::Result<bool> {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        if try_lock(file)? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(RETRY_EVERY);
    }
}

/// Takes the lock of a file if nobody holds it. Returns whether it was taken.
///
/// It calls flock(2), as `File::try_lock` does. The latter exists only from Rust 1.89 on, and this crate is
/// also checked by older toolchains.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

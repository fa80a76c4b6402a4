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

/// A lock that this process has taken. Dropping it releases the lock, and so does the process's end.
///
/// It is released by a call of its own. Closing the file would not do: the lock belongs to all descriptors of
/// the file as it was opened, and a process that another thread is just starting has one of them for some
/// microseconds.
#[derive(Debug)]
pub(crate) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Where this fails, closing the file is what is left.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Takes the lock of a file, waiting up to 2 s for another holder. `None`: it was not free in time.
pub(crate) fn lock_within(mut file: File) -> io::Result<Option<Lock>> {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        file = match attempt(file)? {
            Ok(lock) => return Ok(Some(lock)),
            Err(file) => file,
        };
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(RETRY_EVERY);
    }
}

/// Takes the lock of a file if nobody holds it.
pub(crate) fn try_lock(file: File) -> io::Result<Option<Lock>> {
    Ok(attempt(file)?.ok())
}

/// Takes the lock of a file, or gives the file back where somebody holds it.
///
/// It calls flock(2), as `File::try_lock` does. The latter exists only from Rust 1.89 on, and this crate is
/// also checked by older toolchains.
fn attempt(file: File) -> io::Result<Result<Lock, File>> {
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Ok(Lock(file))),
        Err(Errno::WOULDBLOCK) => Ok(Err(file)),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_free_once_dropped_though_another_has_the_file_as_it_was_opened() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let opened = || File::open(path.path()).unwrap();
        let lock = try_lock(opened()).unwrap().unwrap();
        // As a process has it that another thread is just starting.
        let inherited = lock.0.try_clone().unwrap();
        assert!(try_lock(opened()).unwrap().is_none());
        drop(lock);
        assert!(try_lock(opened()).unwrap().is_some());
        drop(inherited);
    }
}

//! Locks of files that others may hold.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// How long others may hold one: who changes something holds it for milliseconds, and a start or an end may
/// need several.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Between two looks: who waits for a lock without a limit cannot be stopped.
const LOOK: Duration = Duration::from_millis(20);

/// Takes a lock if it can be had within 2 s: says whether.
pub(crate) fn lock_within(file: &File) -> io::Result<bool> {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        if try_lock(file)? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(LOOK);
    }
}

/// Takes a lock if nobody has it: says whether. It is the system's flock, which `File::try_lock` is, too,
/// from Rust 1.89 on: with this one the crate can be checked by older toolchains that are at hand.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

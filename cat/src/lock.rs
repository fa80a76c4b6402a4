//! Locks of files that others may hold.

use std::fs::{File, TryLockError};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// How long others may hold one: who changes something holds it for milliseconds, and a start or an end may need several.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Between two looks: who waits for a lock without a limit cannot be stopped.
const LOOK: Duration = Duration::from_millis(20);

/// Takes a lock if it can be had within 2 s: says whether.
pub(crate) fn lock_within(file: &File) -> io::Result<bool> {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Ok(false),
            Err(TryLockError::WouldBlock) => thread::sleep(LOOK),
            Err(TryLockError::Error(source)) => return Err(source),
        }
    }
}

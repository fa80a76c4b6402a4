//! An interrupted benchmark leaves nothing behind: its processes end with it (they ask the kernel for that), and its folders are
//! removed here.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use tempfile::TempDir;

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A folder that is removed when it is dropped, and when the benchmark is interrupted.
///
/// # Errors
/// What the system says.
pub fn folder() -> io::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(folder.path().to_owned());
    Ok(folder)
}

fn both() -> libc::sigset_t {
    // SAFETY: a set is plain memory, and is emptied before it is used.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is this function's own, the signals exist.
    unsafe {
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGINT);
        libc::sigaddset(&raw mut set, libc::SIGTERM);
    }
    set
}

/// From now on SIGINT and SIGTERM remove the folders and end the process. To be called before any other thread is started, for they
/// inherit what is blocked.
///
/// # Errors
/// What the system says.
pub fn watch() -> io::Result<()> {
    let set = both();
    // SAFETY: the set is initialised, and the former mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    std::thread::Builder::new().name("jet-bench-interrupt".to_owned()).spawn(move || {
        let mut number = 0;
        // SAFETY: both are this thread's own.
        while unsafe { libc::sigwait(&raw const set, &raw mut number) } != 0 {}
        for folder in FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // It may be gone already; or a daemon writes into it meanwhile, which ends with this process.
            let _ = std::fs::remove_dir_all(folder).or_else(|_| std::fs::remove_dir_all(folder));
        }
        std::process::exit(128 + number);
    })?;
    Ok(())
}

/// For a child between fork and exec, which inherits what is blocked. Async-signal-safe.
///
/// # Errors
/// What the system says.
pub fn unblock() -> io::Result<()> {
    let set = both();
    // SAFETY: the set is initialised, and the former mask is not asked for.
    match unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

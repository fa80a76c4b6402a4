//! Cleans up after an interrupted benchmark. The benchmark's child processes end when the benchmark does,
//! since they ask the kernel for that. This module removes the benchmark's folders.

use jet::commands::Signals;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

static FOLDERS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Makes a temporary folder that is removed when the returned handle is dropped, and when the benchmark is
/// interrupted.
///
/// # Errors
/// An error of the system.
pub fn folder() -> io::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).push(folder.path().to_owned());
    Ok(folder)
}

static NOTED: AtomicU8 = AtomicU8::new(0);

/// Notes the signal that ended a benchmark early. Benchmarks that handle signals themselves call this
/// function.
pub fn note(signal: u8) {
    NOTED.store(signal, Ordering::Relaxed);
}

/// Returns the exit code of a benchmark that a signal ended early, in the shell's convention: 128 and the
/// signal. `None`: no signal was noted.
pub fn noted() -> Option<u8> {
    match NOTED.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(128 + signal),
    }
}

/// Starts a thread that, on SIGINT or SIGTERM, removes the benchmark's folders and ends the process. Call
/// this function before any other thread is started: threads inherit which signals are blocked.
///
/// # Errors
/// An error of the system.
pub fn watch() -> io::Result<()> {
    let signals = Signals::new()?;
    std::thread::Builder::new().name("jet-bench-interrupt".to_owned()).spawn(move || {
        let number = loop {
            if let Err(error) = signals.wait(Duration::MAX) {
                tracing::warn!("cannot wait for signals: {error}");
                return;
            }
            if let Some(number) = signals.take() {
                break number;
            }
        };
        for folder in FOLDERS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // The folder may be gone already. A daemon, which ends with this process, may still write into
            // it: hence twice.
            let _ = std::fs::remove_dir_all(folder).or_else(|_| std::fs::remove_dir_all(folder));
        }
        std::process::exit(128 + i32::from(number));
    })?;
    Ok(())
}

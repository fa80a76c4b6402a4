//! An interrupted benchmark leaves nothing behind: its processes end with it (they ask the kernel for that),
//! and its folders are removed here.

use jet::commands::Signals;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
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

static NOTED: AtomicU8 = AtomicU8::new(0);

/// A benchmark that hears signals itself ended early because of this one.
pub fn note(signal: u8) {
    NOTED.store(signal, Ordering::Relaxed);
}

/// The exit code of a benchmark that ended early because of a signal, as the shell has it; `None`: it did
/// not.
pub fn noted() -> Option<u8> {
    match NOTED.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(128 + signal),
    }
}

/// From now on SIGINT and SIGTERM remove the folders and end the process. To be called before any other
/// thread is started, for they inherit what is blocked.
///
/// # Errors
/// What the system says.
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
            // It may be gone already; or a daemon writes into it meanwhile, which ends with this process.
            let _ = std::fs::remove_dir_all(folder).or_else(|_| std::fs::remove_dir_all(folder));
        }
        std::process::exit(128 + i32::from(number));
    })?;
    Ok(())
}

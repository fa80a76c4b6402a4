//! A folder of a test's own.

use crate::process::Process;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder for one test, which is gone at its end. The output of processes that are started in it is
/// numbered in their order.
pub struct Folder {
    dir: tempfile::TempDir,
    started: Cell<u32>,
}

impl Folder {
    /// A new folder.
    #[expect(clippy::new_without_default)] // a folder is made, which a default does not say
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a folder"), started: Cell::new(0) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Where something in it is.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// A path for what belongs to the next process, without its ending.
    pub fn next(&self, name: &str) -> PathBuf {
        let number = self.started.get();
        self.started.set(number + 1);
        self.join(&format!("{number}-{name}"))
    }

    /// Starts a process, whose output gets that name.
    #[track_caller]
    pub fn start(&self, name: &str, command: Command) -> Process {
        Process::start(command, &self.next(name))
    }

    /// As [`Self::start`], after `prepare` changed the command. It may send the output elsewhere.
    #[track_caller]
    pub fn start_with(&self, name: &str, command: Command, prepare: impl FnOnce(&mut Command)) -> Process {
        Process::start_with(command, &self.next(name), prepare)
    }
}

//! A temporary folder for one test.

use crate::process::Process;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A temporary folder for one test, deleted when dropped. It numbers the output files of the processes that
/// are started in it, in the order of their start.
pub struct Folder {
    dir: tempfile::TempDir,
    started: Cell<u32>,
}

impl Folder {
    /// Makes a new, empty folder.
    #[expect(clippy::new_without_default)] // a folder is made, which a default does not say
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a folder"), started: Cell::new(0) }
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of the entry `name` in the folder.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Returns a new numbered path in the folder, without a file name extension: for the files of the next
    /// process.
    pub fn next(&self, name: &str) -> PathBuf {
        let number = self.started.get();
        self.started.set(number + 1);
        self.join(&format!("{number}-{name}"))
    }

    /// Starts a process. Its output files get a numbered path with `name` in it.
    #[track_caller]
    pub fn start(&self, name: &str, command: Command) -> Process {
        Process::start(command, &self.next(name))
    }

    /// Starts a process like [`Self::start`], after `prepare` changed the command. `prepare` may redirect the
    /// output.
    #[track_caller]
    pub fn start_with(&self, name: &str, command: Command, prepare: impl FnOnce(&mut Command)) -> Process {
        Process::start_with(command, &self.next(name), prepare)
    }
}

//! Access to the files of the mounted resctrl file system: whole reads, single writes, and the kernel's
//! reasons for failures.

use super::error::{AccessError, Action};
use crate::lock::{Lock, lock_within};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Magic number of the resctrl file system: `RDTGROUP_SUPER_MAGIC` of the kernel's linux/magic.h.
pub(crate) const MAGIC: i64 = 0x0765_5821;

/// Folder where resctrl is mounted.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    root: PathBuf,
    /// Whether the folder is an imitation of ordinary files, for tests. The kernel then cannot be asked
    /// whether it is mounted.
    plain: bool,
}

impl Tree {
    pub fn mounted(root: &Path) -> Self {
        Self { root: root.to_owned(), plain: false }
    }

    #[cfg(test)]
    pub fn plain(root: &Path) -> Self {
        Self { root: root.to_owned(), plain: true }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.root.join(relative)
    }

    /// Returns whether resctrl is still mounted.
    pub fn is_mounted(&self) -> bool {
        self.plain || rustix::fs::statfs(&self.root).is_ok_and(|found| found.f_type == MAGIC)
    }

    fn refused(&self, action: Action, path: &Path, text: Option<&str>, source: io::Error) -> AccessError {
        if self.is_mounted() {
            AccessError::refused(action, path, text, source)
        } else {
            AccessError::Unmounted { path: self.root.clone() }
        }
    }

    /// Makes an error like [`Self::refused`], and adds the kernel's explanation of its last failed command.
    /// Not all failing calls set that explanation.
    fn refused_with_status(
        &self,
        action: Action,
        path: &Path,
        text: Option<&str>,
        source: io::Error,
    ) -> AccessError {
        let mut error = self.refused(action, path, text, source);
        // A call that fails before the kernel parses the command leaves the explanation of an earlier
        // command.
        let is_answer = !error.is_permission() && !error.is_missing();
        if let AccessError::Refused { status, .. } = &mut error
            && is_answer
        {
            *status = fs::read_to_string(self.path("info/last_cmd_status")).ok().and_then(|said| {
                let said = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>();
                let said = said.join("; ");
                (said != "ok" && !said.is_empty()).then_some(said)
            });
        }
        error
    }

    pub fn read(&self, relative: impl AsRef<Path>) -> Result<String, AccessError> {
        let path = self.path(relative);
        fs::read_to_string(&path).map_err(|source| self.refused(Action::Read, &path, None, source))
    }

    /// Reads a file like [`Self::read`]. Returns `None` where there is no such file.
    pub fn read_if_there(&self, relative: impl AsRef<Path>) -> Result<Option<String>, AccessError> {
        match self.read(relative) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a file and parses its text, without the trailing whitespace.
    pub fn read_as<T, E: std::fmt::Display>(
        &self,
        relative: impl AsRef<Path>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, AccessError> {
        let text = self.read(relative.as_ref())?;
        parse(text.trim_end()).map_err(|problem| AccessError::format(&self.path(relative), &text, problem))
    }

    /// Returns the names of the folders in a folder, sorted.
    pub fn folders(&self, relative: impl AsRef<Path>) -> Result<Vec<String>, AccessError> {
        let path = self.path(relative);
        let refused = |source| self.refused(Action::Read, &path, None, source);
        let mut names = Vec::new();
        for entry in fs::read_dir(&path).map_err(refused)? {
            let entry = entry.map_err(refused)?;
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                // Skipping a group whose name cannot be represented would hide the ways that it has.
                let refused = |name: std::ffi::OsString| {
                    AccessError::format(
                        &path,
                        &name.to_string_lossy(),
                        "a folder's name is no UTF-8: rename it",
                    )
                };
                names.push(entry.file_name().into_string().map_err(refused)?);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Writes a file by a single write(2). Only so does the kernel apply several lines as one change. It
    /// refuses text without a final newline.
    pub fn write(&self, relative: impl AsRef<Path>, text: &str) -> Result<(), AccessError> {
        let path = self.path(relative);
        #[cfg(test)]
        let merged = self.plain.then(|| super::tests::written(&path, text));
        #[cfg(test)]
        let text = merged.as_deref().unwrap_or(text);
        let mut file = OpenOptions::new()
            .write(true)
            .truncate(self.plain)
            .open(&path)
            .map_err(|source| self.refused(Action::Write, &path, Some(text), source))?;
        let written = file.write(text.as_bytes()).and_then(|count| {
            if count == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
        });
        written.map_err(|source| self.refused_with_status(Action::Write, &path, Some(text), source))
    }

    pub fn make(&self, relative: impl AsRef<Path>) -> Result<(), AccessError> {
        let path = self.path(relative);
        // Not writable for others: only the owner may make monitoring groups in it.
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&path)
            .map_err(|source| self.refused_with_status(Action::Make, &path, None, source))?;
        #[cfg(test)]
        if self.plain {
            super::tests::begin(&self.root, &path);
        }
        Ok(())
    }

    pub fn remove(&self, relative: impl AsRef<Path>) -> Result<(), AccessError> {
        let path = self.path(relative);
        let removed = if self.plain { fs::remove_dir_all(&path) } else { fs::remove_dir(&path) };
        removed.map_err(|source| self.refused_with_status(Action::Remove, &path, None, source))
    }

    /// Takes the lock that tools which change resctrl agree on, as the kernel's documentation describes it.
    pub fn lock(&self) -> Result<Lock, AccessError> {
        let refused = |source: io::Error| self.refused(Action::Lock, &self.root, None, source);
        let folder = File::open(&self.root).map_err(refused)?;
        // Any user may open the folder and hold its lock, so the wait is limited.
        match lock_within(folder) {
            Ok(Some(lock)) => Ok(lock),
            Ok(None) => Err(AccessError::Locked { path: self.root.clone() }),
            Err(source) => Err(refused(source)),
        }
    }
}

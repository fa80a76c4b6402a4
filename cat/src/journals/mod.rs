//! Journals: files that record previous state before it is changed, so that it can be put back after a crash;
//! and the locks of the processes that make changes.

mod owner;
mod temporary_change;

pub(crate) use owner::{Life, Owner};
pub use temporary_change::ForgetOutcome;
pub(crate) use temporary_change::{Journaled, Record, forget, recover};

use crate::lock::{Lock, lock_within, try_lock};
use crate::resctrl;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Default folder of the journals. All programs that reserve cache share it, since the next one to start must
/// find what an earlier one left.
pub const FOLDER: &str = "/run/jet-cache";

/// Error of writing, reading or locking a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A system call failed.
    #[error("cannot {action} {}: {source}{}", path.display(), root(source))]
    System {
        /// Verb for the action that failed, for example "open".
        action: &'static str,
        /// File or folder of the failed call.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The journals' folder belongs to another user, in general root.
    #[error("{} is another user's: run this as root (as a service: the drop-in \
             deploy/cache.conf)", path.display())]
    NotOwn {
        /// Folder of the journals.
        path: PathBuf,
    },
    /// The journals' folder lies in resctrl, where every new folder would become a group.
    #[error("{} lies in resctrl, where every folder is a group: keep journals elsewhere", path.display())]
    InResctrl {
        /// Folder of the journals.
        path: PathBuf,
    },
    /// Other users may write to the journals' folder, so they could make root put back values of their
    /// choice.
    #[error(
        "{} is not this user's alone, so what it says is not trusted; make it so: chown root {}; chmod 700 \
         {}",
        path.display(), path.display(), path.display()
    )]
    Untrusted {
        /// Folder of the journals.
        path: PathBuf,
    },
    /// Another process held a lock for 2 s.
    #[error("another process has held the lock {} for 2 s (its pid is in /proc/locks); end it, or \
             wait", path.display())]
    Locked {
        /// Lock file that the other process holds.
        path: PathBuf,
    },
    /// A file in the journals' folder is no journal, or one of a later version.
    #[error(
        "{} cannot be read as a journal of this version: {problem}; look whether what it is about is as it \
         should be (jet cache show), then remove the file, or: jet cache restore --forget",
        path.display()
    )]
    Format {
        /// File that was read.
        path: PathBuf,
        /// Description of what is wrong with the file.
        problem: String,
    },
}

/// Returns a hint for the error text where permission was denied.
fn root(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied { "; reserving cache needs root" } else { "" }
}

/// Folder of journals, checked to be writable by its owner alone.
#[derive(Clone, Debug)]
pub(crate) struct Journals {
    folder: PathBuf,
}

impl Journals {
    /// Opens the journals' folder, and creates it with mode 0700 where it is missing.
    ///
    /// # Errors
    /// [`JournalError`] where the folder lies in resctrl, is another user's, or may be written by others.
    pub fn open(folder: &Path) -> Result<Self, JournalError> {
        let failed = |action| move |source| JournalError::System { action, path: folder.to_owned(), source };
        let above = folder.ancestors().find(|above| above.exists());
        if above
            .and_then(|above| rustix::fs::statfs(above).ok())
            .is_some_and(|fs| fs.f_type == resctrl::MAGIC)
        {
            return Err(JournalError::InResctrl { path: folder.to_owned() });
        }
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed("make"))?;
        let found = fs::metadata(folder).map_err(failed("read"))?;
        let own = rustix::process::geteuid();
        if found.uid() != own.as_raw() && !own.is_root() {
            return Err(JournalError::NotOwn { path: folder.to_owned() });
        }
        let is_own = found.uid() == own.as_raw() && found.mode() & 0o022 == 0;
        if !is_own {
            return Err(JournalError::Untrusted { path: folder.to_owned() });
        }
        Ok(Self { folder: folder.to_owned() })
    }

    fn lock_file(&self, name: &str) -> Result<(PathBuf, File), JournalError> {
        let path = self.folder.join(name);
        // Mode 0600, so that nobody but root opens the file: another user's lock would make root wait.
        let open = || {
            let mut options = OpenOptions::new();
            // `O_NONBLOCK`: opening something that is no regular file (a FIFO) must not wait.
            options.create(true).truncate(false).write(true).mode(0o600).custom_flags(libc::O_NONBLOCK);
            options.open(&path)
        };
        let opened = open().or_else(|error| {
            // Somebody removed the folder while this process still has something to put back.
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
            open()
        });
        match opened {
            Ok(file) => Ok((path, file)),
            Err(source) => Err(JournalError::System { action: "open", path, source }),
        }
    }

    /// Takes the lock of the journals' folder, waiting up to 2 s. State is read and changed only under this
    /// lock.
    pub fn transaction(&self) -> Result<Lock, JournalError> {
        let (path, file) = self.lock_file("lock")?;
        match lock_within(file) {
            Ok(Some(lock)) => Ok(lock),
            Ok(None) => Err(JournalError::Locked { path }),
            Err(source) => Err(JournalError::System { action: "lock", path, source }),
        }
    }

    /// Takes the lock that marks the owner of the change `name`. Returns `None` where another process has it.
    ///
    /// The lock is held as long as the change is in effect. The kernel releases it however the process ends.
    pub fn ownership(&self, name: &str) -> Result<Option<Lock>, JournalError> {
        let (path, file) = self.lock_file(&format!("{name}.lock"))?;
        try_lock(file).map_err(|source| JournalError::System { action: "lock", path, source })
    }

    /// Takes the lock of the change `name`, which the process `owner` made. Returns `None` where that process
    /// lives, or where another process has the lock.
    ///
    /// An owner that is just ending is waited for, since its lock is about to be released.
    pub fn inherit(&self, name: &str, owner: Option<Owner>) -> Result<Option<Lock>, JournalError> {
        // A process may retry what it made and could not undo.
        let life = owner.filter(|owner| *owner != Owner::this()).map(Owner::life);
        if life == Some(Life::Living) {
            return Ok(None);
        }
        let (path, file) = self.lock_file(&format!("{name}.lock"))?;
        let failed = |source| JournalError::System { action: "lock", path: path.clone(), source };
        if life == Some(Life::Ending) {
            return lock_within(file).map_err(failed);
        }
        self.ownership(name)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the names of the files with this ending in the journals' folder, without the ending, sorted.
    pub fn names(&self, ending: &str) -> Result<Vec<String>, JournalError> {
        let failed = |source| JournalError::System { action: "read", path: self.folder.clone(), source };
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_suffix(ending)).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    /// Reads what was saved under the name. Returns `None` where nothing was.
    pub fn load<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, JournalError> {
        let path = self.file(name);
        if fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Err(JournalError::Format { path, problem: "it is no file".to_owned() });
        }
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(JournalError::System { action: "read", path, source }),
        };
        let found = serde_json::from_str(&text);
        found.map(Some).map_err(|error| JournalError::Format { path, problem: error.to_string() })
    }

    /// Saves a value under the name, whole or not at all: after a crash the next start finds the old or the
    /// new contents.
    pub fn save<T: Serialize>(&self, name: &str, what: &T) -> Result<(), JournalError> {
        let (path, new) = (self.file(name), self.file(&format!("{name}.new")));
        let text = serde_json::to_string_pretty(what).expect("a journal is always JSON");
        let written = (|| {
            let mut file =
                OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, &path)
        })();
        written.map_err(|source| JournalError::System { action: "write", path, source })
    }

    pub fn forget(&self, name: &str) -> Result<(), JournalError> {
        let path = self.file(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(JournalError::System { action: "remove", path, source })
            }
            _ => Ok(()),
        }
    }
}

/// Returns the kernel's boot id, which changes with each boot.
pub(crate) fn boot() -> Result<String, JournalError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(JournalError::System { action: "read", path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_owns_what_it_changed() {
        let dir = tempfile::tempdir().unwrap();
        let journals = Journals::open(dir.path()).unwrap();
        let owned = journals.ownership("jet").unwrap().unwrap();
        assert!(journals.ownership("jet").unwrap().is_none());
        assert!(journals.ownership("other").unwrap().is_some());
        drop(owned);
        assert!(journals.ownership("jet").unwrap().is_some());
    }

    #[test]
    fn a_folder_that_others_may_write_is_not_trusted() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o770)).unwrap();
        let error = Journals::open(dir.path()).unwrap_err();
        assert!(error.to_string().contains("chmod 700"), "{error}");
    }
}

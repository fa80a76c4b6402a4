//! The folder where it is written down what was there before something was changed, and the locks of who
//! changes.

mod journaled;
mod owner;

pub use journaled::GivenUp;
pub(crate) use journaled::{Journaled, Record, forget, recover};
pub(crate) use owner::{Life, Owner};

use crate::lock::{lock_within, try_lock};
use crate::resctrl;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Where journals are, unless told otherwise. Of all who reserve: who comes next must find what somebody
/// left.
pub const FOLDER: &str = "/run/jet-cache";

/// Why a journal cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The system refused.
    #[error("cannot {action} {}: {source}{}", path.display(), root(source))]
    System {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is another user's, root's in general.
    #[error("{} is another user's: run this as root (as a service: the drop-in \
             deploy/cache.conf)", path.display())]
    NotOwn {
        /// The folder.
        path: PathBuf,
    },
    /// It is no place for files.
    #[error("{} lies in resctrl, where every folder is a group: keep journals elsewhere", path.display())]
    InResctrl {
        /// The folder.
        path: PathBuf,
    },
    /// Others may write there what root would then do.
    #[error(
        "{} is not this user's alone, so what it says is not trusted; make it so: chown root {}; chmod 700 \
         {}",
        path.display(), path.display(), path.display()
    )]
    Untrusted {
        /// The folder.
        path: PathBuf,
    },
    /// Another process holds a lock.
    #[error("another process has held the lock {} for 2 s (its pid is in /proc/locks); end it, or \
             wait", path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// It is none, or a later version's.
    #[error(
        "{} cannot be read as a journal of this version: {problem}; look whether what it is about is as it \
         should be (jet cache show), then remove the file, or: jet cache restore --forget",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// What helps where something is not permitted.
fn root(source: &io::Error) -> &'static str {
    if source.kind() == io::ErrorKind::PermissionDenied { "; reserving cache needs root" } else { "" }
}

/// The folder of journals.
#[derive(Clone, Debug)]
pub(crate) struct Journals {
    folder: PathBuf,
}

impl Journals {
    /// Makes the folder where it is not there.
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
        // Only root looks after this: the lock of a stranger would keep it waiting.
        let open = || {
            let mut options = OpenOptions::new();
            // What is no file is not waited for.
            options.create(true).truncate(false).write(true).mode(0o600).custom_flags(libc::O_NONBLOCK);
            options.open(&path)
        };
        let opened = open().or_else(|error| {
            // Somebody removed the folder under a process that has something to put back.
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

    /// For as long as something is looked at and changed; waits for others.
    pub fn transaction(&self) -> Result<File, JournalError> {
        let (path, file) = self.lock_file("lock")?;
        match lock_within(&file) {
            Ok(true) => Ok(file),
            Ok(false) => Err(JournalError::Locked { path }),
            Err(source) => Err(JournalError::System { action: "lock", path, source }),
        }
    }

    /// For as long as what was changed stands: the system gives it up when its process ends, however it does.
    /// None where another process has it.
    pub fn ownership(&self, name: &str) -> Result<Option<File>, JournalError> {
        let (path, file) = self.lock_file(&format!("{name}.lock"))?;
        match try_lock(&file) {
            Ok(locked) => Ok(locked.then_some(file)),
            Err(source) => Err(JournalError::System { action: "lock", path, source }),
        }
    }

    /// As [`Self::ownership`], of what `owner` made: one that is ending is waited for, as its lock is about
    /// to be free. None where it lives, or another process has the lock.
    pub fn inherit(&self, name: &str, owner: Option<Owner>) -> Result<Option<File>, JournalError> {
        // What this process made and could not undo it may try again.
        let life = owner.filter(|owner| *owner != Owner::this()).map(Owner::life);
        if life == Some(Life::Living) {
            return Ok(None);
        }
        let (path, file) = self.lock_file(&format!("{name}.lock"))?;
        let failed = |source| JournalError::System { action: "lock", path: path.clone(), source };
        if life == Some(Life::Ending) {
            return Ok(lock_within(&file).map_err(failed)?.then_some(file));
        }
        self.ownership(name)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Names of the files that end so, without the ending, in order.
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

    /// What was saved by that name; none where nothing was.
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

    /// Saves it whole or not at all: the next start reads what an end in between leaves.
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

/// The number of this start of the kernel.
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

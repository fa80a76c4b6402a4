//! What is checked of a file before what it holds counts.

use super::FileError;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

const WRITABLE_BY_OTHERS: u32 = 0o022;

/// What is kept from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secrecy {
    /// Others neither read nor write it.
    Secret,
    /// Credential of systemd, which shows the right of the service's user as one of the group.
    Credential,
    /// Others do not write it.
    Open,
}

/// Opens a file to read it. A pipe or a terminal holds nobody up.
pub(super) fn open(path: &Path) -> Result<File, FileError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    opened.map(File::from).map_err(|error| FileError::System { path: path.to_owned(), source: error.into() })
}

/// Checks who owns the open file, and what others may do with it.
pub(super) fn check(path: &Path, file: &File, secrecy: Secrecy) -> Result<(), FileError> {
    let found = file.metadata().map_err(|source| FileError::System { path: path.to_owned(), source })?;
    judge(path, found.uid(), rustix::process::geteuid().as_raw(), found.mode() & 0o7777, secrecy)
}

/// Checks that nobody else can put another file in this one's place.
pub(super) fn check_folder(path: &Path) -> Result<(), FileError> {
    let system = |source| FileError::System { path: path.to_owned(), source };
    let folder = folder_of(&std::fs::canonicalize(path).map_err(system)?);
    check(&folder, &open(&folder)?, Secrecy::Open)
}

/// Judges a file by its owner and its mode, for this user.
pub(super) fn judge(
    path: &Path,
    owner: u32,
    user: u32,
    mode: u32,
    secrecy: Secrecy,
) -> Result<(), FileError> {
    let path = || path.to_owned();
    if owner != 0 && owner != user {
        return Err(FileError::Owner { path: path(), owner, user });
    }
    let (forbidden, who, fix) = match secrecy {
        Secrecy::Secret => (0o077, "others may read or write it", "600"),
        Secrecy::Credential => (0o037, "others may read it, or its group may write it", "440"),
        Secrecy::Open => (WRITABLE_BY_OTHERS, "others may write it", "go-w"),
    };
    if mode & forbidden != 0 {
        return Err(FileError::Mode { path: path(), mode, who, fix });
    }
    Ok(())
}

pub(super) fn folder_of(path: &Path) -> PathBuf {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// Reads all of a file.
pub(super) fn read_text(path: &Path, file: File, most: u64) -> Result<String, FileError> {
    let kind = || FileError::Kind { path: path.to_owned(), most };
    let system = |source| FileError::System { path: path.to_owned(), source };
    if !file.metadata().map_err(system)?.is_file() {
        return Err(kind());
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(system)?;
    if bytes.len() as u64 > most {
        return Err(kind());
    }
    String::from_utf8(bytes).map_err(|_| system(io::ErrorKind::InvalidData.into()))
}

//! Files of keys, certificates and lists: who may have written and who may read them is checked.
//!
//! * A secret key is read by nobody but its owner (mode 0600), and belongs to root or to who reads it here.
//! * A list of trusted keys is written by nobody else: not by its group, and not by others.
//! * A path `credential:NAME` stands for the credential that systemd gives the service under this name, in
//!   the folder that `CREDENTIALS_DIRECTORY` names.

use crate::{Certificate, CertificateError, SecretKey, SecretKeyError, Trust, TrustError, pem};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Bytes of a file of a key or a certificate, at most.
const KEY_FILE_BYTES_MAX: u64 = 16 << 10;
/// Bytes of a list, at most: some hundred thousand keys.
const LIST_BYTES_MAX: u64 = 16 << 20;
const CREDENTIAL: &str = "credential:";
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";
/// Mode of new files of secret keys.
const SECRET_MODE: u32 = 0o600;
/// Mode of new lists and certificates.
const OPEN_MODE: u32 = 0o644;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Reason why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system says no.
    #[error("{path}: {source}")]
    System {
        /// The file.
        path: PathBuf,
        /// Error from the system.
        source: io::Error,
    },
    /// There is a file already.
    #[error("{path} is there already, and nothing was changed; choose another name, or move it away")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// It is no file, or too long for one.
    #[error("{path} is no file of {most} bytes at most, as one of this kind is")]
    Kind {
        /// The file.
        path: PathBuf,
        /// Most bytes of such a file.
        most: u64,
    },
    /// Users may read or write it who should not.
    #[error("{path} has mode {mode:04o}, so {who}; run chmod {fix} {path}")]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// What others may do.
        who: &'static str,
        /// What to run chmod with.
        fix: &'static str,
    },
    /// It belongs to another user.
    #[error("{path} belongs to user {owner}, who could change it; it must belong to root or to user {user}")]
    Owner {
        /// The file.
        path: PathBuf,
        /// Number of its owner.
        owner: u32,
        /// Number of the user who reads it.
        user: u32,
    },
    /// The path is a credential, and there are none.
    #[error(
        "{CREDENTIAL}{name} is a credential of systemd, and there is none: {CREDENTIALS_DIRECTORY} is not \
         set; write LoadCredential={name}:/etc/jet/{name} in the unit, or a path"
    )]
    NoCredentials {
        /// Name of the credential.
        name: String,
    },
    /// The path is no name of a credential.
    #[error("{CREDENTIAL}{name} is no credential's name, which has no / and does not begin with a dot")]
    CredentialName {
        /// What stands behind `credential:`.
        name: String,
    },
    /// It holds no secret key.
    #[error("{path}: {source}")]
    SecretKey {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: SecretKeyError,
    },
    /// It holds no certificate.
    #[error("{path}: {source}")]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: CertificateError,
    },
    /// It holds no list.
    #[error("{path}: {source}")]
    Trust {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: TrustError,
    },
}

/// What a file holds, by what it says itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A secret key.
    SecretKey,
    /// A certificate.
    Certificate,
    /// A list of trusted keys, if anything of Jet's.
    Trust,
}

/// What is kept from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Secrecy {
    /// Others neither read nor write it.
    Secret,
    /// Credential of systemd, which shows the right of the service's user as one of the group.
    Credential,
    /// Others do not write it.
    Open,
}

/// Tells what a file holds. Whether it holds it whole, and who may read it, is for those who read it.
///
/// # Errors
/// [`FileError`] says what to change.
pub fn kind_of(path: &Path) -> Result<FileKind, FileError> {
    let (path, _) = resolve(path)?;
    let text = read_text(&path, open(&path)?, LIST_BYTES_MAX)?;
    let holds = |label| pem::begins(label, &text);
    Ok(if holds(SecretKey::PEM_LABEL) {
        FileKind::SecretKey
    } else if holds(Certificate::PEM_LABEL) {
        FileKind::Certificate
    } else {
        FileKind::Trust
    })
}

/// Reads a secret key.
///
/// # Errors
/// [`FileError`] says what to change.
pub fn read_secret_key(path: &Path) -> Result<SecretKey, FileError> {
    let (path, is_credential) = resolve(path)?;
    let secrecy = if is_credential { Secrecy::Credential } else { Secrecy::Secret };
    let text = read(&path, secrecy, KEY_FILE_BYTES_MAX)?;
    SecretKey::from_text(&text).map_err(|source| FileError::SecretKey { path, source })
}

/// Reads a certificate. Who may write it does not matter: it is signed.
///
/// # Errors
/// [`FileError`] says what to change.
pub fn read_certificate(path: &Path) -> Result<Certificate, FileError> {
    let (path, _) = resolve(path)?;
    let file = open(&path)?;
    let text = read_text(&path, file, KEY_FILE_BYTES_MAX)?;
    Certificate::from_text(&text).map_err(|source| FileError::Certificate { path, source })
}

/// Reads a list of trusted keys.
///
/// # Errors
/// [`FileError`] says what to change.
pub fn read_trust(path: &Path) -> Result<Trust, FileError> {
    let (path, _) = resolve(path)?;
    let text = read(&path, Secrecy::Open, LIST_BYTES_MAX)?;
    Trust::from_text(&text).map_err(|source| FileError::Trust { path, source })
}

/// Writes a secret key into a new file that nobody else can read, not even in its first moment.
///
/// # Errors
/// [`FileError::Exists`] where there is one already; [`FileError::System`].
pub fn write_new_secret_key(path: &Path, key: &SecretKey) -> Result<(), FileError> {
    write_new(path, &key.to_text(), SECRET_MODE)
}

/// Writes a certificate into a new file.
///
/// # Errors
/// [`FileError::Exists`] where there is one already; [`FileError::System`].
pub fn write_new_certificate(path: &Path, certificate: &Certificate) -> Result<(), FileError> {
    write_new(path, &certificate.to_text(), OPEN_MODE)
}

/// Puts an entry behind a list of trusted keys, and makes the list if there is none. What stands in it stays
/// as it is, comments too. Whoever reads meanwhile reads the list before or after.
///
/// # Errors
/// [`FileError`]; the list is as it was.
pub fn add_to_trust(path: &Path, entry: &str) -> Result<Trust, FileError> {
    // The list itself is replaced, and not a link to it.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let system = |source| FileError::System { path: path.clone(), source };
    let new = lock_next(path).map_err(system)?;
    let added = add_to_locked(path, new, entry);
    if added.is_err() {
        let _ = std::fs::remove_file(next_to(path));
    }
    added
}

fn add_to_locked(path: &Path, new: File, entry: &str) -> Result<Trust, FileError> {
    let system = |source| FileError::System { path: path.to_owned(), source };
    let (mut text, old) = match open(path) {
        Ok(file) => {
            check(path, &file, Secrecy::Open)?;
            let old = file.metadata().map_err(system)?;
            (read_text(path, file, LIST_BYTES_MAX)?, Some(old))
        }
        Err(FileError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            (String::new(), None)
        }
        Err(error) => return Err(error),
    };
    if !text.is_empty() {
        text.push_str(if text.ends_with('\n') { "\n" } else { "\n\n" });
    }
    text.push_str(entry);
    let trust =
        Trust::from_text(&text).map_err(|source| FileError::Trust { path: path.to_owned(), source })?;
    replace(path, new, &text, old.as_ref()).map_err(system)?;
    Ok(trust)
}

fn next_to(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Opens the file that becomes the next list, and locks it.
///
/// Its owner alone can open it, so nobody else holds up a revocation. Whoever ended half way left it, and it
/// is taken over.
fn lock_next(path: &Path) -> io::Result<File> {
    let new = next_to(path);
    loop {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file: File = rustix::fs::open(&new, flags, Mode::from_raw_mode(SECRET_MODE))?.into();
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        // Who waited for the lock may have got that of what is the list by now.
        let found = file.metadata()?;
        if std::fs::metadata(&new).is_ok_and(|now| (now.dev(), now.ino()) == (found.dev(), found.ino())) {
            return Ok(file);
        }
    }
}

/// Replaces a list by the next one, whole. That has the old one's mode, and its owner where they differ.
fn replace(path: &Path, mut new: File, text: &str, old: Option<&std::fs::Metadata>) -> io::Result<()> {
    new.set_len(0)?;
    new.write_all(text.as_bytes())?;
    if let Some(old) = old {
        let own = new.metadata()?;
        if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
            std::os::unix::fs::fchown(&new, Some(old.uid()), Some(old.gid()))?;
        }
    }
    let mode = old.map_or(OPEN_MODE, |old| old.mode() & 0o7777);
    rustix::fs::fchmod(&new, Mode::from_raw_mode(mode))?;
    new.sync_all()?;
    std::fs::rename(next_to(path), path)?;
    File::open(folder_of(path))?.sync_all()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the path of the file, and whether it is a credential.
fn resolve(path: &Path) -> Result<(PathBuf, bool), FileError> {
    let Some(name) = path.to_str().and_then(|text| text.strip_prefix(CREDENTIAL)) else {
        return Ok((path.to_owned(), false));
    };
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(FileError::CredentialName { name: name.to_owned() });
    }
    let folder = std::env::var_os(CREDENTIALS_DIRECTORY)
        .ok_or_else(|| FileError::NoCredentials { name: name.to_owned() })?;
    Ok((Path::new(&folder).join(name), true))
}

fn read(path: &Path, secrecy: Secrecy, most: u64) -> Result<String, FileError> {
    let file = open(path)?;
    check(path, &file, secrecy)?;
    read_text(path, file, most)
}

/// Opens a file to read it. A pipe or a terminal holds nobody up.
fn open(path: &Path) -> Result<File, FileError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    opened.map(File::from).map_err(|error| FileError::System { path: path.to_owned(), source: error.into() })
}

/// Checks who owns the open file, and what others may do with it.
fn check(path: &Path, file: &File, secrecy: Secrecy) -> Result<(), FileError> {
    let path = || path.to_owned();
    let found = file.metadata().map_err(|source| FileError::System { path: path(), source })?;
    let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != 0 && owner != user {
        return Err(FileError::Owner { path: path(), owner, user });
    }
    let mode = found.mode() & 0o7777;
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

fn read_text(path: &Path, file: File, most: u64) -> Result<String, FileError> {
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

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let system = |source| FileError::System { path: path.to_owned(), source };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut file: File = match rustix::fs::open(path, flags, Mode::from_raw_mode(SECRET_MODE)) {
        Ok(file) => file.into(),
        Err(rustix::io::Errno::EXIST) => return Err(FileError::Exists { path: path.to_owned() }),
        Err(error) => return Err(system(error.into())),
    };
    let written = (|| {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        File::open(folder_of(path))?.sync_all()
    })();
    written.map_err(|source| {
        // Half a key is of no use, and would be in the way of the next try.
        let _ = std::fs::remove_file(path);
        system(source)
    })
}

#[cfg(test)]
mod tests;

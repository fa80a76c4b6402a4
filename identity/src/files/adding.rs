//! New files, and new entries of lists.

use super::checks::{Secrecy, check, check_folder, folder_of, open, read_text};
use super::{FileError, LIST_BYTES_MAX, credential_name};
use crate::{Certificate, SecretKey, Trust};
use data_encoding::HEXLOWER;
use rustix::fs::{FlockOperation, Mode, OFlags, XattrFlags, fgetxattr, fsetxattr};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Mode of new files of secret keys, and of locks.
pub(super) const SECRET_MODE: u32 = 0o600;
/// Mode of new lists and certificates.
pub(super) const OPEN_MODE: u32 = 0o644;
/// Where the kernel keeps rights of further users and groups, and the most bytes of them that are kept.
const ACCESS_LIST: &str = "system.posix_acl_access";
const ACCESS_LIST_BYTES_MAX: usize = 64 << 10;

/// Writes a secret key into a new file that nobody else can read, not even in its first moment.
///
/// # Errors
/// [`FileError::Exists`] where there is one already, and others where it cannot be written.
pub fn write_new_secret_key(path: &Path, key: &SecretKey) -> Result<(), FileError> {
    write_new(path, &key.to_text(), SECRET_MODE)
}

/// Writes a certificate into a new file.
///
/// # Errors
/// [`FileError::Exists`] where there is one already, and others where it cannot be written.
pub fn write_new_certificate(path: &Path, certificate: &Certificate) -> Result<(), FileError> {
    write_new(path, &certificate.to_text(), OPEN_MODE)
}

fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    refuse_credential(path)?;
    let system = |source| FileError::System { path: path.to_owned(), source };
    let mut file = create(path, mode).map_err(|error| match error {
        Errno::EXIST => FileError::Exists { path: path.to_owned() },
        Errno::NOENT if !folder_of(path).exists() => FileError::NoFolder { folder: folder_of(path) },
        error => system(error.into()),
    })?;
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| File::open(folder_of(path))?.sync_all());
    written.map_err(|source| {
        // Half a key is of no use, and would be in the way of the next try.
        let _ = std::fs::remove_file(path);
        system(source)
    })
}

/// Makes a file that was not there.
fn create(path: &Path, mode: u32) -> Result<File, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::from_raw_mode(mode)).map(File::from)
}

fn refuse_credential(path: &Path) -> Result<(), FileError> {
    match credential_name(path) {
        Some(name) => Err(FileError::CredentialWritten { name: name.to_owned() }),
        None => Ok(()),
    }
}

/// Changes a list of trusted keys: `change` makes the next text of the one that is there, or of nothing.
/// Whoever reads meanwhile reads the list before or after. Where `change` returns nothing, the list stays.
///
/// Beside the list is a file `.lock`, which stays. It is its owner's alone, so nobody else holds up a
/// revocation.
///
/// # Errors
/// [`FileError`]; the list is as it was.
pub fn change_trust(
    path: &Path,
    change: impl FnOnce(&Trust, &str) -> Option<String>,
) -> Result<Trust, FileError> {
    refuse_credential(path)?;
    let path = &whole_path(path)?;
    // Held until the end of this function.
    let _lock = lock(path)?;
    let system = |source| FileError::System { path: path.clone(), source };
    let invalid = |source| FileError::Trust { path: path.clone(), source };
    let (text, old) = match open(path) {
        Ok(file) => {
            check(path, &file, Secrecy::Open)?;
            let old = file.try_clone().map_err(system)?;
            (read_text(path, file, LIST_BYTES_MAX)?, Some(old))
        }
        Err(FileError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            (String::new(), None)
        }
        Err(error) => return Err(error),
    };
    let before = Trust::from_text(&text).map_err(invalid)?;
    let Some(next) = change(&before, &text) else { return Ok(before) };
    let after = Trust::from_text(&next).map_err(invalid)?;
    replace(path, &next, old.as_ref()).map_err(system)?;
    Ok(after)
}

/// Returns the path of the list itself, where the path is a link: the list is replaced, and not the link.
fn whole_path(path: &Path) -> Result<PathBuf, FileError> {
    let system = |source| FileError::System { path: path.to_owned(), source };
    match std::fs::canonicalize(path) {
        Ok(path) => Ok(path),
        // A link that leads nowhere: what it should lead to may only not be mounted.
        Err(error) if std::fs::symlink_metadata(path).is_ok() => Err(system(error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = folder_of(path);
            let name = path.file_name().ok_or_else(|| system(io::ErrorKind::InvalidInput.into()))?;
            let whole = std::fs::canonicalize(&folder).map_err(|_| FileError::NoFolder { folder })?;
            Ok(whole.join(name))
        }
        Err(error) => Err(system(error)),
    }
}

pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Waits for the lock of a list.
pub(super) fn lock(path: &Path) -> Result<File, FileError> {
    let path = &beside(path, ".lock");
    let system = |error: Errno| FileError::System { path: path.clone(), source: error.into() };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(SECRET_MODE)).map_err(system)?);
    // Who may open it could keep it locked, and who may write the folder could take it away.
    check(path, &file, Secrecy::Secret)?;
    check_folder(path)?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(system)?;
    Ok(file)
}

/// Replaces a list by the next one, whole. That has the old one's mode and rights, and its owner where they
/// differ. The caller has the lock.
fn replace(path: &Path, text: &str, old: Option<&File>) -> io::Result<()> {
    let number: [u8; 8] = ring::rand::generate(&ring::rand::SystemRandom::new())
        .map_err(|_| io::Error::other("the system gives no random numbers"))?
        .expose();
    let next = beside(path, &format!(".{}", HEXLOWER.encode(&number)));
    let mut file = create(&next, OPEN_MODE)?;
    let replaced = (|| {
        file.write_all(text.as_bytes())?;
        if let Some(old) = old {
            keep_rights(old, &old.metadata()?, &file)?;
        }
        file.sync_all()?;
        std::fs::rename(&next, path)
    })();
    if replaced.is_err() {
        // Its name is by chance, so it is no other's.
        let _ = std::fs::remove_file(&next);
    }
    replaced?;
    File::open(folder_of(path))?.sync_all()
}

fn keep_rights(old: &File, found: &Metadata, new: &File) -> io::Result<()> {
    let own = new.metadata()?;
    if (own.uid(), own.gid()) != (found.uid(), found.gid()) {
        std::os::unix::fs::fchown(new, Some(found.uid()), Some(found.gid()))?;
    }
    let mut list = vec![0; ACCESS_LIST_BYTES_MAX];
    match fgetxattr(old, ACCESS_LIST, &mut list[..]) {
        Ok(bytes) => fsetxattr(new, ACCESS_LIST, &list[..bytes], XattrFlags::empty())?,
        // There is none, or none in this file system.
        Err(Errno::NODATA | Errno::NOTSUP) => {}
        Err(error) => return Err(error.into()),
    }
    rustix::fs::fchmod(new, Mode::from_raw_mode(found.mode() & 0o7777))?;
    Ok(())
}

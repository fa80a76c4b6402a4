//! Files of keys, certificates and lists: who may have written and who may read them is checked.
//!
//! * A secret key is read by nobody but its owner (mode 0600), and belongs to root or to who reads it here.
//! * A list of trusted keys is written by nobody else: not by its group, and not by others.
//! * Neither lies in a folder that others may write: they could put another file in its place, or an older
//!   one.
//! * A path `credential:NAME` stands for the credential that systemd gives the service under this name, in
//!   the folder that `CREDENTIALS_DIRECTORY` names.

mod adding;
mod checks;
mod error;

pub use adding::{change_trust, write_new_certificate, write_new_secret_key};
pub use error::FileError;

use crate::{Certificate, SecretKey, SecretKeyError, Trust, pem};
use checks::{Secrecy, check, check_folder, open, read_text};
use std::path::{Path, PathBuf};

/// Bytes of a file of a key or a certificate, at most.
const KEY_FILE_BYTES_MAX: u64 = 16 << 10;
/// Bytes of a list, at most: some hundred thousand keys.
const LIST_BYTES_MAX: u64 = 16 << 20;
const CREDENTIAL: &str = "credential:";
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

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
    let file = open(&path)?;
    let checked = check(&path, &file, secrecy).and_then(|()| check_folder(&path));
    let text = read_text(&path, file, KEY_FILE_BYTES_MAX)?;
    let no_key = |source| FileError::SecretKey { path: path.clone(), source };
    // What is no key is not to be made secret.
    if !pem::begins(SecretKey::PEM_LABEL, &text) {
        return Err(no_key(SecretKeyError::Text));
    }
    checked?;
    SecretKey::from_text(&text).map_err(no_key)
}

/// Reads a certificate. Who may write it does not matter: it is signed.
///
/// # Errors
/// [`FileError`] says what to change.
pub fn read_certificate(path: &Path) -> Result<Certificate, FileError> {
    let (path, _) = resolve(path)?;
    let text = read_text(&path, open(&path)?, KEY_FILE_BYTES_MAX)?;
    Certificate::from_text(&text).map_err(|source| FileError::Certificate { path, source })
}

/// Reads a list of trusted keys.
///
/// # Errors
/// [`FileError`] says what to change.
pub fn read_trust(path: &Path) -> Result<Trust, FileError> {
    let (path, _) = resolve(path)?;
    let file = open(&path)?;
    let checked = check(&path, &file, Secrecy::Open).and_then(|()| check_folder(&path));
    let text = read_text(&path, file, LIST_BYTES_MAX)?;
    checked?;
    Trust::from_text(&text).map_err(|source| FileError::Trust { path, source })
}

/// Returns the path of the file, and whether it is a credential.
fn resolve(path: &Path) -> Result<(PathBuf, bool), FileError> {
    let Some(name) = credential_name(path) else { return Ok((path.to_owned(), false)) };
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(FileError::CredentialName { name: name.to_owned() });
    }
    let folder = std::env::var_os(CREDENTIALS_DIRECTORY)
        .ok_or_else(|| FileError::NoCredentials { name: name.to_owned() })?;
    Ok((Path::new(&folder).join(name), true))
}

fn credential_name(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(CREDENTIAL)
}

#[cfg(test)]
mod tests;

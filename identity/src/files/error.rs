//! Why a file was not read or written.

use super::{CREDENTIAL, CREDENTIALS_DIRECTORY};
use crate::{CertificateError, SecretKeyError, TrustError};
use std::io;
use std::path::PathBuf;

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
    /// The file's folder is not there.
    #[error("there is no folder {folder}; make it with install -d {folder}")]
    NoFolder {
        /// The folder.
        folder: PathBuf,
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
        /// The file or the folder.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// What others may do.
        who: &'static str,
        /// What to run chmod with.
        fix: &'static str,
    },
    /// It belongs to another user.
    #[error(
        "{path} belongs to user {owner}, who could change it; run this as user {owner}, or give the file to \
         user {user}"
    )]
    Owner {
        /// The file or the folder.
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
    /// A credential is to be written.
    #[error(
        "{CREDENTIAL}{name} is a credential of systemd, which only reads it; name the file that it is of"
    )]
    CredentialWritten {
        /// Name of the credential.
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

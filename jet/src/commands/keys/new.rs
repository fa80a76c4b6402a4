//! `jet keys new`: makes a secret key.

use super::KeysError;
use crate::commands::{print, print_json};
use jet_identity::{PublicKey, SecretKey, files};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Makes a secret key in a new file, and prints its public key.
///
/// Only the file's owner may read it. Who has the file can pass for its owner, so it stays on its host.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// File of the secret key.
    file: PathBuf,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
}

/// Report that `jet keys new --json` prints (docs/json.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewKeyReport {
    /// File of the secret key.
    pub file: PathBuf,
    /// Its public key.
    pub key: PublicKey,
}

pub(super) fn run(args: &Args) -> Result<(), KeysError> {
    let secret = SecretKey::generate()?;
    files::write_new_secret_key(&args.file, &secret)?;
    let key = secret.public();
    if args.json {
        print_json(&NewKeyReport { file: args.file.clone(), key });
    } else {
        print(&format!("{key}\n"));
    }
    Ok(())
}

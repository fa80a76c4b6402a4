//! `jet keys revoke`: a key that counts no more.

use super::{KeysError, TRUST_LIST};
use crate::commands::{print, print_json};
use jet_identity::{PublicKey, Revoked, Trust, files};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Revokes a key: it is trusted no more, whatever else the list and certificates say of it.
///
/// With an authority's key, all certificates that it signed count no more.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The public key.
    key: PublicKey,
    /// Reason, for whoever reads the list.
    #[arg(long, value_name = "TEXT", default_value = "")]
    why: String,
    /// Revoke a key that is not in the list, as one that only a certificate names.
    #[arg(long)]
    unlisted: bool,
    /// List of trusted keys.
    #[arg(long, value_name = "FILE", default_value = TRUST_LIST)]
    list: PathBuf,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
}

/// Report that `jet keys revoke --json` prints (docs/json.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeReport {
    /// List in which the key is revoked.
    pub list: PathBuf,
    /// The key.
    pub key: PublicKey,
    /// Whether it was revoked before, and nothing changed.
    pub again: bool,
}

pub(super) fn run(args: &Args) -> Result<(), KeysError> {
    let (list, key) = (args.list.clone(), args.key);
    let (mut again, mut is_listed) = (false, false);
    files::change_trust(&list, |trust, text| {
        again = trust.is_revoked(key);
        is_listed = trust.peer(key).is_some() || trust.authority(key).is_some();
        // A mistyped key that is revoked would leave the right one trusted.
        let is_new = !again && (is_listed || args.unlisted);
        is_new.then(|| Trust::text_with_revoked(text, &Revoked { key, why: args.why.clone() }))
    })?;
    if !again && !is_listed && !args.unlisted {
        return Err(KeysError::Unlisted { key, list });
    }
    if args.json {
        print_json(&RevokeReport { list, key, again });
    } else {
        let already = if again { " already" } else { "" };
        print(&format!("{key} is revoked{already} in {}\n", list.display()));
    }
    Ok(())
}

//! `jet keys revoke`: a key that counts no more.

use super::{KeysError, TRUST_LIST, now};
use crate::commands::{print, print_json};
use jet_identity::{PublicKey, Revoked, files};
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
    let trust = files::read_trust(&list)?;
    let again = trust.revoked().iter().any(|revoked| revoked.key == key);
    let is_listed = trust.peers(now()).iter().any(|(peer, _)| peer.key == key)
        || trust.authorities(now()).iter().any(|(authority, _)| authority.key == key);
    if !again {
        // A mistyped key that is revoked would leave the right one trusted.
        if !is_listed && !args.unlisted {
            return Err(KeysError::Unlisted { key, list });
        }
        files::add_to_trust(&list, &Revoked { key, why: args.why.clone() }.to_text())?;
    }
    if args.json {
        print_json(&RevokeReport { list, key, again });
    } else {
        let already = if again { " already" } else { "" };
        print(&format!("{key} is revoked{already} in {}\n", list.display()));
    }
    Ok(())
}

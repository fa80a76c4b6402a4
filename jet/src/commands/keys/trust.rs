//! `jet keys trust`: puts a key into a list of trusted keys.

use super::{KeysError, TRUST_LIST, Term};
use crate::commands::{print, print_json};
use jet_identity::{Authority, Name, NamePattern, Peer, PublicKey, Timestamp, Trust, files};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Puts a key into a list of trusted keys, under a name.
///
/// A name may have several keys: to change one, trust the new one, let its owner use it, and revoke the old
/// one.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Name that the key proves: web-1, or a SPIFFE id as spiffe://example.org/web-1.
    name: Name,
    /// The public key, as jet keys show prints it.
    key: PublicKey,
    #[command(flatten)]
    term: Term,
    /// The key is an authority's: it may give these names to other keys, by jet keys sign. A name that ends
    /// with * stands for all that begin so.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    authority: Vec<NamePattern>,
    /// List of trusted keys, which is made if there is none.
    #[arg(long, value_name = "FILE", default_value = TRUST_LIST)]
    list: PathBuf,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
}

/// Report that `jet keys trust --json` prints (docs/json.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrustReport {
    /// List that the key is in.
    pub list: PathBuf,
    /// Name of the key.
    pub name: Name,
    /// The key.
    pub key: PublicKey,
    /// When it is trusted no longer; `null`: until it is revoked.
    pub until: Option<Timestamp>,
    /// Names that it may give as an authority; empty for a peer.
    pub names: Vec<NamePattern>,
    /// Whether the same stood there before, and nothing changed.
    pub again: bool,
}

pub(super) fn run(args: &Args) -> Result<(), KeysError> {
    let (name, key, until) = (args.name.clone(), args.key, args.term.end()?);
    let (list, names) = (args.list.clone(), args.authority.clone());
    let (mut is_revoked, mut again) = (false, false);
    files::change_trust(&list, |trust, text| {
        is_revoked = trust.is_revoked(key);
        if names.is_empty() {
            let entry = Peer { until, name: name.clone(), key };
            again = trust.peer(key) == Some(&entry);
            (!is_revoked && !again).then(|| Trust::text_with_peer(text, &entry))
        } else {
            let entry = Authority { until, name: name.clone(), key, names: names.clone() };
            again = trust.authority(key) == Some(&entry);
            (!is_revoked && !again).then(|| Trust::text_with_authority(text, &entry))
        }
    })?;
    if is_revoked {
        return Err(KeysError::Revoked { key, list });
    }
    if args.json {
        print_json(&TrustReport { list, name, key, until, names, again });
    } else {
        let until = until.map_or_else(|| "until it is revoked".to_owned(), |until| format!("until {until}"));
        let what = if names.is_empty() { "" } else { "the authority " };
        let already = if again { " already" } else { "" };
        print(&format!("{} trusts {what}{name} by {key}{already}, {until}\n", list.display()));
    }
    Ok(())
}

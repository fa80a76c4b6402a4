//! `jet keys trust`: puts a key into a list of trusted keys.

use super::{KeysError, TRUST_LIST, Term};
use crate::commands::{print, print_json};
use jet_identity::{Authority, Name, NamePattern, Peer, PublicKey, Timestamp, files};
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
}

pub(super) fn run(args: &Args) -> Result<(), KeysError> {
    let (name, key, until) = (args.name.clone(), args.key, args.term.end()?);
    let names = args.authority.clone();
    let entry = if names.is_empty() {
        Peer { name: name.clone(), key, until }.to_text()
    } else {
        Authority { name: name.clone(), key, names: names.clone(), until }.to_text()
    };
    files::add_to_trust(&args.list, &entry)?;
    let list = args.list.clone();
    if args.json {
        print_json(&TrustReport { list, name, key, until, names });
    } else {
        let until = until.map_or_else(|| "until it is revoked".to_owned(), |until| format!("until {until}"));
        let what = if names.is_empty() { "" } else { "the authority " };
        print(&format!("{} trusts {what}{name} by {key}, {until}\n", list.display()));
    }
    Ok(())
}

//! The text of a list of trusted keys, in TOML.

use super::{Authority, Peer, Revoked, Trust};
use crate::{Name, PublicKey};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Reason why a list is refused. Nothing of a refused list counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The text is no list.
    #[error("line {line}: {what}")]
    Text {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A key stands twice among the peers, or twice among the authorities.
    #[error("the key {key} stands twice, for {first} and for {second}; leave one")]
    Twice {
        /// The key.
        key: PublicKey,
        /// Name of the first.
        first: Name,
        /// Name of the second.
        second: Name,
    },
    /// An authority may give no names.
    #[error("the authority {0} has no names; write names = [\"web-*\"], or names = [\"*\"] for all")]
    NoNames(Name),
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct List {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    peers: Vec<Peer>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    authorities: Vec<Authority>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    revoked: Vec<Revoked>,
}

impl Trust {
    /// Reads a list.
    ///
    /// # Errors
    /// [`TrustError`]; whoever wrote the list is to blame.
    pub fn from_text(text: &str) -> Result<Self, TrustError> {
        let list: List = toml::from_str(text).map_err(|error| {
            // The line itself is not repeated: the file may be a secret key by mistake.
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            TrustError::Text { line, what: error.message().to_owned() }
        })?;
        if let Some(authority) = list.authorities.iter().find(|authority| authority.names.is_empty()) {
            return Err(TrustError::NoNames(authority.name.clone()));
        }
        Ok(Self {
            peers: by_key(list.peers, |peer| (peer.key, &peer.name))?,
            authorities: by_key(list.authorities, |authority| (authority.key, &authority.name))?,
            // Twice revoked is revoked.
            revoked: list.revoked.into_iter().map(|revoked| (revoked.key, revoked)).collect(),
        })
    }
}

fn by_key<T>(
    entries: Vec<T>,
    parts: impl Fn(&T) -> (PublicKey, &Name),
) -> Result<HashMap<PublicKey, T>, TrustError> {
    let mut map = HashMap::with_capacity(entries.len());
    for entry in entries {
        let (key, second) = parts(&entry);
        if let Some(first) = map.get(&key) {
            let first = parts(first).1.clone();
            return Err(TrustError::Twice { key, first, second: second.clone() });
        }
        map.insert(key, entry);
    }
    Ok(map)
}

impl Trust {
    /// Returns the text of a list with one more peer: behind what is there.
    pub fn text_with_peer(text: &str, peer: &Peer) -> String {
        behind(text, &text_of(&List { peers: vec![peer.clone()], ..List::default() }))
    }

    /// Returns the text of a list with one more authority: behind what is there.
    pub fn text_with_authority(text: &str, authority: &Authority) -> String {
        behind(text, &text_of(&List { authorities: vec![authority.clone()], ..List::default() }))
    }

    /// Returns the text of a list in which one more key is revoked: before all other entries. So what is left
    /// of a list that was cut trusts nobody who was revoked.
    pub fn text_with_revoked(text: &str, revoked: &Revoked) -> String {
        let entry = text_of(&List { revoked: vec![revoked.clone()], ..List::default() });
        // Behind the comments with which the list begins.
        let first = text.split_inclusive('\n').take_while(|line| !line.trim_start().starts_with('['));
        let (comments, entries) = text.split_at(first.map(str::len).sum());
        let comments = if comments.is_empty() || comments.ends_with('\n') {
            comments.to_owned()
        } else {
            format!("{comments}\n\n")
        };
        let between = if entries.is_empty() { "" } else { "\n" };
        format!("{comments}{entry}{between}{entries}")
    }
}

fn behind(text: &str, entry: &str) -> String {
    let between = match text {
        "" => "",
        text if text.ends_with('\n') => "\n",
        _ => "\n\n",
    };
    format!("{text}{between}{entry}")
}

fn text_of(list: &List) -> String {
    toml::to_string(list).expect("lists of texts can be written")
}

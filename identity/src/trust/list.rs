//! The text of a list of trusted keys, in TOML.

use super::{Authority, Peer, Revoked, Trust};
use crate::{Name, PublicKey};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Reason why a list is refused. Nothing of a refused list counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The text is no list.
    #[error("{0}")]
    Text(String),
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
        let list: List = toml::from_str(text)
            .map_err(|error| TrustError::Text(error.to_string().trim_end().to_owned()))?;
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

impl Peer {
    /// Returns the entry as text, to be put behind a list.
    pub fn to_text(&self) -> String {
        text_of(&List { peers: vec![self.clone()], ..List::default() })
    }
}

impl Authority {
    /// Returns the entry as text, to be put behind a list.
    pub fn to_text(&self) -> String {
        text_of(&List { authorities: vec![self.clone()], ..List::default() })
    }
}

impl Revoked {
    /// Returns the entry as text, to be put behind a list.
    pub fn to_text(&self) -> String {
        text_of(&List { revoked: vec![self.clone()], ..List::default() })
    }
}

fn text_of(list: &List) -> String {
    toml::to_string(list).expect("lists of texts can be written")
}

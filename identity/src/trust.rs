//! Whom one trusts: keys with names, authorities whose certificates count, and keys that count no more.
//!
//! The rules:
//! * A revoked key is trusted by nobody, whatever else is said of it.
//! * A key in the list of peers has the name that stands there. Certificates for it are not looked at.
//! * Any other key needs a certificate: of a listed authority that is not revoked and whose time is not over,
//!   for this key, for a name that the authority may give, at its time.
//! * A name may have several keys, so a new one is trusted before the old one is revoked.

mod list;

pub use list::TrustError;

use crate::{Certificate, Name, NamePattern, PublicKey, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Key of a peer. In a list its end stands first, so that what is left of a list that was cut has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// First second at which it is no longer trusted. Without one: until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Name that the key proves.
    pub name: Name,
    /// The key.
    pub key: PublicKey,
}

/// Key of an authority: whoever it signs a certificate for is trusted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authority {
    /// First second at which its certificates no longer count. Without one: until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// What the authority is called in logs.
    pub name: Name,
    /// The key.
    pub key: PublicKey,
    /// Names that its certificates may give.
    pub names: Vec<NamePattern>,
}

/// Key that is not trusted any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revoked {
    /// The key.
    pub key: PublicKey,
    /// Reason, for whoever reads the list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// List of trusted keys.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    peers: HashMap<PublicKey, Peer>,
    authorities: HashMap<PublicKey, Authority>,
    revoked: HashMap<PublicKey, Revoked>,
}

/// How a key in a list stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It is trusted.
    Trusted,
    /// Its time is over.
    Expired,
    /// It is revoked.
    Revoked,
}

/// Reason why a peer is not trusted. It is for the log of whoever looked, and for no stranger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Distrust {
    /// The list has no such key, and the peer showed no certificate.
    #[error("the key {key} is in no list; trust it with jet keys trust NAME {key}")]
    Unknown {
        /// Key of the peer.
        key: PublicKey,
    },
    /// The key is revoked.
    #[error("the key {key} is revoked")]
    Revoked {
        /// Key of the peer.
        key: PublicKey,
    },
    /// The key's time is over.
    #[error("the key {key} of {name} was trusted until {until}; trust a new key of it with jet keys trust")]
    Expired {
        /// Key of the peer.
        key: PublicKey,
        /// Its name.
        name: Name,
        /// When its time was over.
        until: Timestamp,
    },
    /// The certificate is for another key than the peer's.
    #[error("the key {key} shows a certificate for another key, {certified}")]
    OfAnother {
        /// Key of the peer.
        key: PublicKey,
        /// Key that the certificate is for.
        certified: PublicKey,
    },
    /// The certificate's authority is not in the list.
    #[error(
        "the certificate of {name} is of {authority}, which is no trusted authority; trust it with jet keys \
         trust --authority"
    )]
    UnknownAuthority {
        /// Name in the certificate.
        name: Name,
        /// Key of the authority.
        authority: PublicKey,
    },
    /// The certificate's authority is revoked.
    #[error("the certificate of {name} is of the authority {authority}, which is revoked")]
    AuthorityRevoked {
        /// Name in the certificate.
        name: Name,
        /// Key of the authority.
        authority: PublicKey,
    },
    /// The certificate's authority was trusted for a time that is over.
    #[error("the certificate of {name} is of the authority {authority}, which was trusted until {until}")]
    AuthorityExpired {
        /// Name in the certificate.
        name: Name,
        /// Name of the authority.
        authority: Name,
        /// When its time was over.
        until: Timestamp,
    },
    /// The certificate's authority may not give this name.
    #[error("the authority {authority} may not give the name {name}; its list of names does not have it")]
    NameNotAllowed {
        /// Name in the certificate.
        name: Name,
        /// Name of the authority.
        authority: Name,
    },
    /// The certificate's time has not come.
    #[error("the certificate of {name} holds from {from} on, and it is {now} here; are both clocks right?")]
    NotYet {
        /// Name in the certificate.
        name: Name,
        /// When its time begins.
        from: Timestamp,
        /// Time at this end.
        now: Timestamp,
    },
    /// The certificate's time is over.
    #[error("the certificate of {name} held until {until}, and it is {now} here; make a new one")]
    CertificateExpired {
        /// Name in the certificate.
        name: Name,
        /// When its time was over.
        until: Timestamp,
        /// Time at this end.
        now: Timestamp,
    },
    /// The authority did not sign the certificate.
    #[error("the certificate of {name} is not signed by the authority {authority}, which it names")]
    Signature {
        /// Name in the certificate.
        name: Name,
        /// Name of the authority.
        authority: Name,
    },
}

/// Returns the end of a time that is over.
fn over(until: Option<Timestamp>, now: Timestamp) -> Option<Timestamp> {
    until.filter(|until| now >= *until)
}

impl Trust {
    /// Returns the name of a peer that has proven that it has this key.
    ///
    /// # Errors
    /// [`Distrust`]; the peer is to blame, or the list.
    pub fn identify(
        &self,
        key: PublicKey,
        certificate: Option<&Certificate>,
        now: Timestamp,
    ) -> Result<Name, Distrust> {
        if self.revoked.contains_key(&key) {
            return Err(Distrust::Revoked { key });
        }
        if let Some(peer) = self.peers.get(&key) {
            return match over(peer.until, now) {
                Some(until) => Err(Distrust::Expired { key, name: peer.name.clone(), until }),
                None => Ok(peer.name.clone()),
            };
        }
        let certificate = certificate.ok_or(Distrust::Unknown { key })?;
        self.identify_certified(key, certificate, now)
    }

    /// What costs most, the signature, is checked last.
    fn identify_certified(
        &self,
        key: PublicKey,
        certificate: &Certificate,
        now: Timestamp,
    ) -> Result<Name, Distrust> {
        let name = || certificate.name().clone();
        if certificate.key() != key {
            return Err(Distrust::OfAnother { key, certified: certificate.key() });
        }
        let authority = certificate.authority();
        if self.revoked.contains_key(&authority) {
            return Err(Distrust::AuthorityRevoked { name: name(), authority });
        }
        let Some(authority) = self.authorities.get(&authority) else {
            return Err(Distrust::UnknownAuthority { name: name(), authority });
        };
        if let Some(until) = over(authority.until, now) {
            return Err(Distrust::AuthorityExpired {
                name: name(),
                authority: authority.name.clone(),
                until,
            });
        }
        if !authority.names.iter().any(|pattern| pattern.matches(certificate.name())) {
            return Err(Distrust::NameNotAllowed { name: name(), authority: authority.name.clone() });
        }
        let validity = certificate.validity();
        if now < validity.from {
            return Err(Distrust::NotYet { name: name(), from: validity.from, now });
        }
        if now >= validity.until {
            return Err(Distrust::CertificateExpired { name: name(), until: validity.until, now });
        }
        if !certificate.is_signed() {
            return Err(Distrust::Signature { name: name(), authority: authority.name.clone() });
        }
        Ok(name())
    }

    /// Whether a key is revoked.
    pub fn is_revoked(&self, key: PublicKey) -> bool {
        self.revoked.contains_key(&key)
    }

    /// Returns the entry of a peer's key.
    pub fn peer(&self, key: PublicKey) -> Option<&Peer> {
        self.peers.get(&key)
    }

    /// Returns the entry of an authority's key.
    pub fn authority(&self, key: PublicKey) -> Option<&Authority> {
        self.authorities.get(&key)
    }

    /// Returns the listed peers, by name, and how each stands.
    pub fn peers(&self, now: Timestamp) -> Vec<(&Peer, Standing)> {
        let mut all: Vec<_> =
            self.peers.values().map(|peer| (peer, self.standing(peer.key, peer.until, now))).collect();
        all.sort_by(|(a, _), (b, _)| (&a.name, a.key).cmp(&(&b.name, b.key)));
        all
    }

    /// Returns the listed authorities, by name, and how each stands.
    pub fn authorities(&self, now: Timestamp) -> Vec<(&Authority, Standing)> {
        let mut all: Vec<_> = self
            .authorities
            .values()
            .map(|authority| (authority, self.standing(authority.key, authority.until, now)))
            .collect();
        all.sort_by(|(a, _), (b, _)| (&a.name, a.key).cmp(&(&b.name, b.key)));
        all
    }

    /// Returns the revoked keys, by key.
    pub fn revoked(&self) -> Vec<&Revoked> {
        let mut all: Vec<_> = self.revoked.values().collect();
        all.sort_by_key(|revoked| revoked.key);
        all
    }

    fn standing(&self, key: PublicKey, until: Option<Timestamp>, now: Timestamp) -> Standing {
        if self.revoked.contains_key(&key) {
            Standing::Revoked
        } else if over(until, now).is_some() {
            Standing::Expired
        } else {
            Standing::Trusted
        }
    }
}

#[cfg(test)]
mod tests;

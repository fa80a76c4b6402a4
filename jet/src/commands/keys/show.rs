//! `jet keys show`: what is in a file of a key, a certificate or a list.

use super::{KeysError, now};
use crate::commands::{print, print_json};
use crate::text;
use jet_identity::files::{self, FileKind};
use jet_identity::{Certificate, Name, NamePattern, PublicKey, Standing, Timestamp, Trust};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Shows what is in a file: the public key of a secret key, a certificate, or a list of trusted keys.
///
/// The secret itself is never shown.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// File of a secret key, of a certificate, or of a list of trusted keys.
    file: PathBuf,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
}

/// Report that `jet keys show --json` prints (docs/json.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ShowReport {
    /// A secret key.
    SecretKey {
        /// Its public key.
        key: PublicKey,
    },
    /// A certificate.
    Certificate {
        /// Name that the key gets.
        name: Name,
        /// The key.
        key: PublicKey,
        /// Public key of the authority.
        authority: PublicKey,
        /// When the certificate begins to hold.
        from: Timestamp,
        /// When it holds no longer.
        until: Timestamp,
        /// Whether it holds at the time of the call.
        holds: bool,
        /// Whether the authority signed it. Whether that authority is trusted is a list's affair.
        signed: bool,
    },
    /// A list of trusted keys.
    Trust {
        /// Keys of peers.
        peers: Vec<PeerReport>,
        /// Keys of authorities.
        authorities: Vec<AuthorityReport>,
        /// Keys that are revoked.
        revoked: Vec<RevokedReport>,
    },
}

/// A peer's key, as `jet keys show --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerReport {
    /// Name that the key proves.
    pub name: Name,
    /// The key.
    pub key: PublicKey,
    /// When it is trusted no longer; `null`: until it is revoked.
    pub until: Option<Timestamp>,
    /// How it stands now.
    pub standing: Standing,
}

/// An authority's key, as `jet keys show --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityReport {
    /// Name of the authority.
    pub name: Name,
    /// The key.
    pub key: PublicKey,
    /// Names that it may give.
    pub names: Vec<NamePattern>,
    /// When it is trusted no longer; `null`: until it is revoked.
    pub until: Option<Timestamp>,
    /// How it stands now.
    pub standing: Standing,
}

/// A revoked key, as `jet keys show --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedReport {
    /// The key.
    pub key: PublicKey,
    /// Reason that stands in the list.
    pub why: String,
}

pub(super) fn run(args: &Args) -> Result<(), KeysError> {
    let report = look(&args.file)?;
    if args.json {
        print_json(&report);
    } else {
        print(&report.to_text());
    }
    Ok(())
}

fn look(path: &Path) -> Result<ShowReport, KeysError> {
    Ok(match files::kind_of(path)? {
        FileKind::SecretKey => ShowReport::SecretKey { key: files::read_secret_key(path)?.public() },
        FileKind::Certificate => ShowReport::of_certificate(&files::read_certificate(path)?),
        FileKind::Trust => ShowReport::of_trust(&files::read_trust(path)?),
    })
}

impl ShowReport {
    fn of_certificate(certificate: &Certificate) -> Self {
        let validity = certificate.validity();
        Self::Certificate {
            name: certificate.name().clone(),
            key: certificate.key(),
            authority: certificate.authority(),
            from: validity.from,
            until: validity.until,
            holds: validity.has(now()),
            signed: certificate.is_signed(),
        }
    }

    fn of_trust(trust: &Trust) -> Self {
        let now = now();
        let peers = trust.peers(now).into_iter().map(|(peer, standing)| PeerReport {
            name: peer.name.clone(),
            key: peer.key,
            until: peer.until,
            standing,
        });
        let authorities = trust.authorities(now).into_iter().map(|(authority, standing)| AuthorityReport {
            name: authority.name.clone(),
            key: authority.key,
            names: authority.names.clone(),
            until: authority.until,
            standing,
        });
        let revoked = trust.revoked().into_iter();
        let revoked = revoked.map(|revoked| RevokedReport { key: revoked.key, why: revoked.why.clone() });
        Self::Trust { peers: peers.collect(), authorities: authorities.collect(), revoked: revoked.collect() }
    }

    /// A secret key is one line, the public key, so that scripts may take it.
    fn to_text(&self) -> String {
        match self {
            Self::SecretKey { key } => format!("{key}\n"),
            Self::Certificate { name, key, authority, from, until, holds, signed } => text::rows(&[
                ("name", name.to_string()),
                ("key", key.to_string()),
                ("from", from.to_string()),
                ("until", until.to_string()),
                ("holds now", if *holds { "yes" } else { "no" }.to_owned()),
                ("authority", authority.to_string()),
                ("signed by it", if *signed { "yes" } else { "no" }.to_owned()),
            ]),
            Self::Trust { peers, authorities, revoked } => {
                let end = |until: Option<Timestamp>| until.map_or("-".to_owned(), |at| at.to_string());
                let word = |standing| match standing {
                    Standing::Trusted => "trusted",
                    Standing::Expired => "expired",
                    Standing::Revoked => "revoked",
                };
                let line = |name: String, standing, until, key: &PublicKey, more: String| {
                    vec![name, word(standing).to_owned(), end(until), key.to_string(), more]
                };
                let mut lines = Vec::new();
                for PeerReport { name, key, until, standing } in peers {
                    lines.push(line(name.to_string(), *standing, *until, key, String::new()));
                }
                for AuthorityReport { name, key, names, until, standing } in authorities {
                    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
                    lines.push(line(name.to_string(), *standing, *until, key, names.join(" ")));
                }
                let listed = |key: &PublicKey| {
                    peers.iter().any(|peer| peer.key == *key)
                        || authorities.iter().any(|authority| authority.key == *key)
                };
                for RevokedReport { key, why } in revoked.iter().filter(|revoked| !listed(&revoked.key)) {
                    lines.push(line("-".to_owned(), Standing::Revoked, None, key, why.clone()));
                }
                if lines.is_empty() {
                    return "the list is empty: no key is trusted\n".to_owned();
                }
                text::table(&["name", "now", "until", "key", "gives names, or why"], &lines)
            }
        }
    }
}

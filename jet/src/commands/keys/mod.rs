//! Subcommand `jet keys`: makes keys, shows them, and says which are trusted.

mod new;
mod revoke;
mod show;
mod sign;
mod trust;

use super::fail;
use crate::values::parse_span_or_seconds;
use clap::Subcommand;
use jet_identity::Timestamp;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

pub use new::NewKeyReport;
pub use revoke::RevokeReport;
pub use show::{AuthorityReport, PeerReport, RevokedReport, ShowReport};
pub use sign::SignReport;
pub use trust::TrustReport;

/// List of trusted keys that is used if none is named.
const TRUST_LIST: &str = "/etc/jet/trust.toml";

/// Makes keys, shows them, and says which are trusted.
///
/// Each daemon and each sender has a secret key in a file of its own. Others know it by its public key, and
/// give that a name in a list of trusted keys.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Action,
}

const EXAMPLES: &str = "\
Examples:
  jet keys new /etc/jet/jetd.key                       a key for this host; prints its public key
  jet keys show /etc/jet/jetd.key                      the public key again
  jet keys trust web-1 ed25519:...                     a host's key, by its name
  jet keys revoke ed25519:... --why \"disk was sold\"    a key that counts no more
  jet keys show /etc/jet/trust.toml                    which keys are trusted, and which are not any more

For many hosts, let an authority sign their keys:
  jet keys new fleet.key
  jet keys trust fleet ed25519:... --authority 'web-*'    on each receiver
  jet keys sign web-7 ed25519:... --by fleet.key --for 90d --out web-7.cert";

#[derive(Debug, Subcommand)]
enum Action {
    New(new::Args),
    Show(show::Args),
    Trust(trust::Args),
    Revoke(revoke::Args),
    Sign(sign::Args),
}

pub(super) fn run(args: &Args) -> ExitCode {
    let done = match &args.action {
        Action::New(args) => new::run(args),
        Action::Show(args) => show::run(args),
        Action::Trust(args) => trust::run(args),
        Action::Revoke(args) => revoke::run(args),
        Action::Sign(args) => sign::run(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

/// Reason why a subcommand of `jet keys` fails.
#[derive(Debug, thiserror::Error)]
enum KeysError {
    /// A file was not read or written.
    #[error(transparent)]
    File(#[from] jet_identity::files::FileError),
    /// There is no new key.
    #[error(transparent)]
    SecretKey(#[from] jet_identity::SecretKeyError),
    /// There is no certificate.
    #[error(transparent)]
    Certificate(#[from] jet_identity::CertificateError),
    /// The time is over before it begins.
    #[error("{0} is over already; it is {now} here", now = now())]
    Over(Timestamp),
    /// The key is revoked, so it would not be trusted.
    #[error("{key} is revoked in {list}, and nothing was changed; let its owner make a new key")]
    Revoked {
        /// The key.
        key: jet_identity::PublicKey,
        /// The list.
        list: PathBuf,
    },
    /// The key is in no list that it could be struck from.
    #[error("{key} is not in {list}; a key that only certificates name is revoked with --unlisted")]
    Unlisted {
        /// The key.
        key: jet_identity::PublicKey,
        /// The list.
        list: PathBuf,
    },
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

/// Time for which something holds.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct Term {
    /// Until when it is trusted, as 2027-01-31T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,
    /// For how long from now on it is trusted, as 90d.
    #[arg(long = "for", value_name = "SPAN", value_parser = parse_span_or_seconds)]
    span: Option<Duration>,
}

impl Term {
    /// Returns the end of the time; `None` if there is none.
    fn end(&self) -> Result<Option<Timestamp>, KeysError> {
        let end = self.until.or_else(|| self.span.map(|span| now().plus(span)));
        match end {
            Some(end) if end <= now() => Err(KeysError::Over(end)),
            _ => Ok(end),
        }
    }
}

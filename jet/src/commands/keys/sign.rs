//! `jet keys sign`: a certificate for a key.

use super::{KeysError, Term, now};
use crate::commands::{print, print_json};
use jet_identity::{Certificate, Name, PublicKey, Timestamp, Validity, files};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Time before now from which on a new certificate holds: for hosts whose clocks are behind.
const CLOCKS_APART: Duration = Duration::from_secs(2 * 60 * 60);

/// Signs a certificate: an authority says which name a key has, and for how long.
///
/// The certificate holds from two hours before now on, for hosts whose clocks are behind.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("end").args(["until", "span"]).required(true))]
pub(super) struct Args {
    /// Name that the key gets.
    name: Name,
    /// The public key, as jet keys show prints it.
    key: PublicKey,
    /// File of the authority's secret key.
    #[arg(long, value_name = "FILE")]
    by: PathBuf,
    #[command(flatten)]
    term: Term,
    /// File of the certificate.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Print one JSON object (fields: docs/json.md).
    #[arg(long)]
    json: bool,
}

/// Report that `jet keys sign --json` prints (docs/json.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignReport {
    /// File of the certificate.
    pub file: PathBuf,
    /// Name that the key gets.
    pub name: Name,
    /// The key.
    pub key: PublicKey,
    /// Public key of the authority.
    pub authority: PublicKey,
    /// When the certificate begins to hold.
    pub from: Timestamp,
    /// When it holds no longer.
    pub until: Timestamp,
}

pub(super) fn run(args: &Args) -> Result<(), KeysError> {
    let authority = files::read_secret_key(&args.by)?;
    let (name, key, from) = (args.name.clone(), args.key, now().minus(CLOCKS_APART));
    let until = args.term.end()?.expect("the command line has it");
    let certificate = Certificate::issue(&authority, key, name.clone(), Validity { from, until })?;
    files::write_new_certificate(&args.out, &certificate)?;
    let (file, authority) = (args.out.clone(), authority.public());
    if args.json {
        print_json(&SignReport { file, name, key, authority, from, until });
    } else {
        print(&format!("{}: {name} has {key} until {until}\n", file.display()));
    }
    Ok(())
}

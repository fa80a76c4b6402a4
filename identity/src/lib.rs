//! Who a peer is: its key, and whether that key is trusted.
//!
//! * A daemon or a sender has a [`SecretKey`] in a file that nobody else reads ([`files`]).
//! * Peers know it by its [`PublicKey`]. A [`Trust`] list gives keys names. So does a [`Certificate`] that a
//!   trusted authority signed.
//! * A name is kept while keys change: a list may have several keys under one name.
//!
//! Lists and certificates are judged without a clock and without I/O: the time comes as a value.

#![forbid(unsafe_code)]

mod certificate;
pub mod files;
mod key;
mod name;
mod pem;
mod time;
mod trust;

pub use certificate::{CERTIFICATE_BYTES_MAX, Certificate, CertificateError, Validity};
pub use key::{PUBLIC_KEY_BYTES, PublicKey, PublicKeyError, SIGNATURE_BYTES, SecretKey, SecretKeyError};
pub use name::{NAME_MAX, Name, NameError, NamePattern};
pub use time::{Timestamp, TimestampError};
pub use trust::{Authority, Distrust, Peer, Revoked, Standing, Trust, TrustError};

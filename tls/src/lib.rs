//! TLS 1.3 (RFC 8446) between two ends that know each other by Ed25519 keys, as raw public keys (RFC 7250).
//!
//! * An [`Endpoint`] has an end's secret key. It begins a [`Handshake`] for each connection.
//! * A handshake takes bytes and gives bytes. Both ends sign all of it, so that when it is done each end
//!   knows that the other one has the key that it shows. Whether that key is trusted is asked of
//!   [`jet_identity::Trust`] by the caller.
//! * [`Records`] then seals and opens what is sent, in the caller's memory, without allocating any.
//!
//! The handshake and all keys are rustls's, the ciphers ring's. There is no socket and no clock here.

#![forbid(unsafe_code)]

mod endpoint;
mod handshake;
mod records;

pub use endpoint::Endpoint;
pub use handshake::{HANDSHAKE_BYTES_MAX, Handshake, HandshakeError, Secured};
pub use records::{
    HEADER_BYTES, OpenError, Opened, PLAIN_BYTES_MAX, RECORD_BODY_BYTES_MAX, Records, SEALED_BYTES_MAX,
    SealError,
};

#[cfg(test)]
mod tests;

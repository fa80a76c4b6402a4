//! The control socket of `jetd`: what can be asked, what is answered, and the daemon's status as types that
//! both ends share.
//!
//! * [`protocol`]: requests and responses.
//! * [`frame`]: how they lie on the socket.
//! * [`status`]: the daemon's state and counters. The same structs write and read them.
//! * [`connection`]: a client's end, blocking.
//!
//! # Versions
//!
//! The two ends may be of different builds. They understand each other within one
//! [`protocol::PROTOCOL_VERSION`]:
//!
//! * A field that is not known is passed over. So a newer end may add fields.
//! * A field that was added later has a default, so that an older end may leave it out. A field that was
//!   always there has none: without it the frame is refused, instead of reading 0.
//! * A word that is not known reads as the variant `Unknown` of its enum.
//! * A request that is not known is refused ([`protocol::ErrorCode::BadRequest`]).
//! * An option that must not be lost silently is repeated in the answer. An older daemon leaves it out there,
//!   and the client sees it.
//!
//! What cannot be done so takes another version. `tests/versions.rs` has a recorded exchange of each.
//!
//! What this crate does *not* do: it decides nothing, and takes no part in passing messages.

// A library says nothing: it returns errors.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod connection;
pub mod frame;
pub mod protocol;
pub mod status;

pub use connection::{ControlConnection, ControlError};
pub use protocol::{CONTROL_SOCKET, ControlRequest, ControlResponse, ErrorCode};

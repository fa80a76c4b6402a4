//! The control socket of `jetd`: its requests and responses, and the daemon's status as types that both ends
//! share.
//!
//! * [`protocol`]: requests and responses.
//! * [`frame`]: how requests and responses are framed on the socket.
//! * [`status`]: the daemon's state and counters. The same structs write and read them.
//! * [`connection`]: a client's end, blocking.
//!
//! # Versions
//!
//! The two ends may be of different builds. They understand each other within one
//! [`protocol::PROTOCOL_VERSION`]:
//!
//! * A reader ignores fields that it does not know. So a newer end may add fields.
//! * A field that was added later has a default, so that an older end may leave it out. A field that was
//!   always there has none: without it the frame is refused, instead of reading 0.
//! * A word that the reader does not know is read as the variant `Unknown` of its enum.
//! * A request that the daemon does not know is refused ([`protocol::ErrorCode::BadRequest`]).
//! * An option that must not be lost silently is repeated in the answer. An older daemon leaves it out of its
//!   answer, and so the client notices.
//! * The client names its version when it registers, the daemon with its status. Each end refuses another
//!   version, and says which versions the two ends speak and which end to update.
//!
//! A change that does not fit these rules takes another version. `tests/recorded/` has a recorded exchange of
//! each version since 3.
//!
//! What this crate does *not* do: it decides nothing, and takes no part in passing messages.

// A library does not print: it returns errors.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod connection;
pub mod frame;
pub mod protocol;
pub mod status;

pub use connection::{ControlConnection, ControlError};
pub use protocol::{CONTROL_SOCKET, ControlRequest, ControlResponse, ErrorCode};

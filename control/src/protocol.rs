//! Requests of clients to the daemon, and the daemon's responses.
//!
//! The control socket is a Unix stream socket (default [`CONTROL_SOCKET`]). A client sends one
//! [`ControlRequest`] at a time and gets one [`ControlResponse`]. Descriptors come with the first byte of an
//! answer.
//!
//! After [`ControlRequest::Register`] the connection stays open for the session's life. When the application
//! hangs up, the daemon ends the session; when the daemon hangs up, the application knows that the daemon is
//! gone. A [`ControlResponse::Error`] that is no answer to a request says why the daemon is about to hang up.

use crate::status::{Rows, RowsFrom, Status};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};

/// Path where the daemon listens unless its configuration (`control_socket`) says otherwise.
pub const CONTROL_SOCKET: &str = "/run/jet/jetd.sock";
/// Returns the path of a daemon's admin socket, where operators command it, unless its configuration
/// (`admin_socket`) says otherwise: `/run/jet/jetd-admin.sock` beside `/run/jet/jetd.sock`.
pub fn admin_socket_beside(control_socket: &Path) -> PathBuf {
    let mut name = control_socket.file_stem().unwrap_or_default().to_owned();
    name.push("-admin");
    if let Some(extension) = control_socket.extension() {
        name.push(".");
        name.push(extension);
    }
    control_socket.with_file_name(name)
}

/// Version of this protocol, sent in [`ControlRequest::Register`] and in [`Status`]. Ends of one version
/// understand each other ([versions](crate#versions)).
pub const PROTOCOL_VERSION: u32 = 5;

/// Request of a client on the control socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlRequest {
    /// Registers an application: the connection becomes a session.
    Register(Register),
    /// Asks for the daemon's state and counters, see
    /// [`ControlConnection::status`](crate::ControlConnection::status).
    Status,
    /// Asks for further rows of the status.
    StatusRows {
        /// First rows of the next page.
        from: RowsFrom,
    },
    /// Asks the daemon to take nothing new, finish what it has, and stop. A drain that is under way
    /// continues.
    Drain {
        /// Milliseconds from now after which the daemon stops anyway. Without a value, a drain that is under
        /// way keeps its deadline, and a new drain gets the daemon's `shutdown.drain_ms`.
        deadline_ms: Option<u64>,
    },
    /// Asks the daemon to read the rights in its configuration again. Sessions that they do not allow end.
    Reload,
}

/// The values with which an application registers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// The client's [`PROTOCOL_VERSION`].
    pub protocol: u32,
    /// Name that senders address, see [`jet_wire::message::hello::AppName`].
    pub app: String,
    /// Admission class of the application's messages; 0 is the most urgent.
    pub class: u8,
    /// Whether the application's messages take escape memory instead of waiting for room in the pool.
    pub memory_instead_of_waiting: bool,
    /// Whether the application shares its name with others of its user that say so, too. Each sender's
    /// messages go to one of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares_name: bool,
}

impl Register {
    /// Returns the values of an application of class 0 that waits for room, and has its name for itself.
    pub fn new(app: impl Into<String>) -> Self {
        Self {
            protocol: PROTOCOL_VERSION,
            app: app.into(),
            class: 0,
            memory_instead_of_waiting: false,
            shares_name: false,
        }
    }
}

/// Response of the daemon on the control socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlResponse {
    /// The connection is a session now. Descriptors come along, in this order:
    ///
    /// * the pool (to be mapped read-only),
    /// * the session segment (read-write),
    /// * the application's end of a [`jet_fabric::unix::Doorbell`],
    /// * escape memory (read-only), where `escape_bytes` is not 0.
    Registered(Registered),
    /// The daemon's state and counters, with the first of its rows.
    Status {
        /// The whole status, except for rows that follow in further pages.
        status: Box<Status>,
    },
    /// Further rows of the status.
    StatusRows(Rows),
    /// The daemon drains. It hangs up when it stops.
    Draining {
        /// Milliseconds from now after which the daemon stops even if messages are unfinished.
        deadline_ms: u64,
        /// Whether the daemon drained already before this request.
        again: bool,
    },
    /// The rights were read again.
    Reloaded {},
    /// The request was refused, or the session is ended.
    Error {
        /// Reason of the refusal, or of the end.
        code: ErrorCode,
        /// Text that describes the reason, and what to change.
        message: String,
    },
}

/// The session that a daemon opened for an application.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// Daemon's number for the session.
    pub session: u32,
    /// Size of one slab, in bytes.
    pub slab_bytes: u32,
    /// Size of the pool, in bytes.
    pub pool_bytes: u64,
    /// Number of slabs in the pool.
    pub pool_slabs: u32,
    /// Size of escape memory in bytes, where runs may lie or be moved to. 0: there is none.
    pub escape_bytes: u64,
    /// Size of the session segment, in bytes.
    pub segment_bytes: u64,
    /// Number that changes with every start of the daemon.
    pub incarnation: Incarnation,
    /// Admission class of the application's messages, as requested.
    pub class: u8,
    /// Whether the application's messages take escape memory instead of waiting, as requested.
    pub memory_instead_of_waiting: bool,
    /// Whether the application shares its name, as requested. A daemon that knows nothing of it says
    /// nothing.
    #[serde(default)]
    pub shares_name: bool,
}

/// Number that changes with every start of the daemon. In JSON it is hexadecimal text, because many readers
/// of JSON have exact numbers only up to 2^53.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<Incarnation> for String {
    fn from(incarnation: Incarnation) -> Self {
        incarnation.to_string()
    }
}

impl TryFrom<String> for Incarnation {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = u64::from_str_radix(&text, 16);
        number
            .map(Self)
            .map_err(|error| format!("the incarnation {text:?} is no hexadecimal number: {error}"))
    }
}

/// Describes that the two ends speak different versions of the control protocol, and says which end to
/// update. `daemon` is `None` where the daemon names no version: only daemons before version 5 name none.
pub fn version_mismatch(client: u32, daemon: Option<u32>) -> String {
    let older = match daemon {
        Some(daemon) if daemon > client => "the program that asked",
        _ => "the daemon",
    };
    let daemon = daemon.map_or_else(|| "one before 5".to_owned(), |daemon| daemon.to_string());
    format!(
        "the daemon speaks version {daemon} of the control protocol, and the program that asked version \
         {client}: update {older}, so that both are the same build of Jet"
    )
}

/// Reason for which the daemon refuses a request or ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorCode {
    /// The frame, or a field in it, is invalid.
    BadRequest,
    /// The client has another [`PROTOCOL_VERSION`].
    Version,
    /// Another application holds the requested name, and does not share it with this one.
    NameTaken,
    /// The configuration allows no further session.
    TooManySessions,
    /// All control connections that the daemon takes at once are in use.
    TooManyConnections,
    /// A session of the same process was ended for a fault, and the slabs that it held are not back yet.
    Quarantined,
    /// The daemon drains, and takes nothing new.
    Draining,
    /// The daemon does not let this client do it. Its log says why.
    Denied,
    /// A failure of the daemon itself, or of the system.
    Internal,
    /// A reason that only a newer daemon knows; its message describes it.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_admin_socket_is_beside_the_control_socket() {
        for (control, admin) in [
            (CONTROL_SOCKET, "/run/jet/jetd-admin.sock"),
            ("/tmp/a.b/socket", "/tmp/a.b/socket-admin"),
            ("x.y.sock", "x.y-admin.sock"),
        ] {
            assert_eq!(admin_socket_beside(Path::new(control)), Path::new(admin));
        }
    }
}

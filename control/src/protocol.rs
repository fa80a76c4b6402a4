//! What a client asks of the daemon, and what it answers.
//!
//! A Unix stream socket (default [`CONTROL_SOCKET`]). A client sends one [`ControlRequest`] at a time and
//! gets one [`ControlResponse`]. Descriptors ride with the first byte of an answer. After
//! [`ControlRequest::Register`] the connection stays open for the session's life: its hang-up ends the
//! session at the daemon, and tells the application that the daemon is gone. A [`ControlResponse::Error`]
//! that comes unasked says why the daemon is about to hang up.

use crate::status::{Rows, RowsFrom, Status};
use serde::{Deserialize, Serialize};

/// Where the daemon listens unless its configuration (`control_socket`) says otherwise.
pub const CONTROL_SOCKET: &str = "/run/jet/jetd.sock";
/// The version of this protocol, in [`ControlRequest::Register`]. Ends of one version understand each other
/// ([versions](crate#versions)).
pub const PROTOCOL_VERSION: u32 = 3;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlRequest {
    /// Makes this connection a session.
    Register {
        /// [`PROTOCOL_VERSION`].
        protocol: u32,
        /// The name that senders address, see [`jet_wire::message::hello::AppName`].
        app: String,
        /// Admission class of its messages, 0 the most urgent.
        class: u8,
        /// Take memory outside the cache instead of waiting for room in the pool.
        memory_instead_of_waiting: bool,
    },
    /// Asks for the daemon's state and counters, see
    /// [`ControlConnection::status`](crate::ControlConnection::status).
    Status,
    /// Asks for further rows of it.
    StatusRows {
        /// Which come next.
        from: RowsFrom,
    },
    /// Asks the daemon to take nothing new, finish what it has, and stop. A drain that is under way goes on.
    Drain {
        /// After so many milliseconds from now on it stops anyway; none: as a drain that is under way has it,
        /// or else the daemon's `shutdown.drain_ms`.
        deadline_ms: Option<u64>,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlResponse {
    /// The connection is a session. Descriptors come along, in this order: the pool (mapped read-only), the
    /// session segment (read-write), the application's end of a [`jet_fabric::unix::Doorbell`], and, where
    /// `escape_bytes` is not 0, escape memory (mapped read-only).
    Registered {
        /// The session's number.
        session: u32,
        /// Bytes of one slab.
        slab_bytes: u32,
        /// Bytes of the pool.
        pool_bytes: u64,
        /// Slabs of the pool.
        pool_slabs: u32,
        /// Bytes of escape memory, where runs may lie or be moved to; 0: there is none.
        escape_bytes: u64,
        /// Bytes of the session segment.
        segment_bytes: u64,
        /// Changes with every start of the daemon.
        incarnation: u64,
    },
    /// The daemon's state and counters, with the first of its rows.
    Status {
        /// All of it.
        status: Box<Status>,
    },
    /// Further rows of it.
    StatusRows(Rows),
    /// The daemon drains; it hangs up when it stops.
    Draining {
        /// After so many milliseconds from now on it stops anyway.
        deadline_ms: u64,
        /// It drained already.
        again: bool,
    },
    /// The request was refused, or the session is ended.
    Error {
        /// What for.
        code: ErrorCode,
        /// In words, with what to change.
        message: String,
    },
}

/// Why the daemon refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The frame or a field in it is no good.
    BadRequest,
    /// Another [`PROTOCOL_VERSION`].
    Version,
    /// Another application holds the name.
    NameTaken,
    /// As many sessions as the configuration allows are open.
    TooManySessions,
    /// A session of the same process was ended for a fault, and what it held is not back.
    Quarantined,
    /// The daemon drains and takes nothing new.
    Draining,
    /// The daemon's own failure, or the system's.
    Internal,
    /// A reason that a newer daemon has; its message says it.
    #[serde(other)]
    Unknown,
}

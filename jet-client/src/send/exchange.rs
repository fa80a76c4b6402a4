//! What crosses the protocol's boundary: what it asks for, and what it tells.

use super::window::WindowStats;
use jet_wire::message::AckStatus;

/// The id of a `CreditReturn`'s SEND; no message has it.
pub const CREDIT_RETURN_ID: u64 = u64::MAX;

/// What is to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// A small message, or the request for a large one.
    Message {
        /// The SEND's id, for [`super::protocol::Protocol::handle_send_completed`].
        id: u64,
        /// The message's place in the table: below `in_flight_max`, its own from the submission to the end.
        index: u32,
        /// Its number.
        sequence: u64,
        /// To be marked so.
        redelivered: bool,
    },
    /// The answer to a recall, under [`CREDIT_RETURN_ID`].
    CreditReturn {
        /// The limit to state.
        credit_limit: u64,
    },
}

/// A message's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Its place in the table, free for another from now on.
    pub index: u32,
    /// Its number.
    pub sequence: u64,
    /// How it ended.
    pub status: AckStatus,
}

/// What is to be done about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect; answer with `handle_connected`, `handle_refused` or `handle_disconnected`.
    Connect,
    /// Disconnect; answer with `handle_disconnected`.
    Disconnect,
}

/// A message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many messages as are allowed have no end yet.
    #[error("as many messages as in_flight_max allows have no end yet; poll completions and try again")]
    WouldBlock,
    /// [`super::protocol::Protocol::close`] was called.
    #[error("the sender is closing and takes nothing new")]
    Closed,
    /// Longer than the receiver said that it takes.
    #[error(
        "a message of {bytes} bytes is too large: the receiver takes at most {max}; split it, or raise the \
             receiver's message_bytes_max"
    )]
    TooLarge {
        /// Its length.
        bytes: u64,
        /// The receiver's limit.
        max: u64,
    },
}

/// What the protocol counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtocolStats {
    /// SENDs, `CreditReturn`s included.
    pub sends: u64,
    /// Messages that were sent again because a connection ended.
    pub redelivered: u64,
    /// Messages that were sent again because of their end.
    pub retried: u64,
    /// Acknowledgements of messages that have no place here, or have their end already.
    pub acks_ignored: u64,
    /// Headers of no connection that stands: late ones of an earlier connection, or ones that no welcome
    /// followed.
    pub headers_stray: u64,
    /// Headers that could not be read.
    pub malformed: u64,
    /// Ranges of ends with a status that a later version brought: each message ended as the nearest that this
    /// build knows.
    pub statuses_unknown: u64,
    /// Connections that stood.
    pub connections: u64,
    /// Recalls of credit.
    pub recalls: u64,
    /// Connections that were ended because the receiver said nothing for too long.
    pub silences: u64,
    /// What the congestion window went through, over all connections.
    pub window: WindowStats,
}

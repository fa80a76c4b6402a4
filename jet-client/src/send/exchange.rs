//! The values that cross the protocol's boundary: its requests, and what it reports.

use super::window::WindowStats;
use jet_wire::message::AckStatus;

/// Id of a `CreditReturn`'s SEND; no message has it.
pub const CREDIT_RETURN_ID: u64 = u64::MAX;
/// Id of a SEND that takes a message back; no message has it.
pub const CANCEL_ID: u64 = u64::MAX - 1;

/// A SEND that is to be posted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// A small message, or the request for a large one.
    Message {
        /// Id of the SEND, for [`super::protocol::Protocol::handle_send_completed`].
        id: u64,
        /// Place of the message in the table: below `in_flight_max`, and the message's own from its
        /// submission to its end.
        index: u32,
        /// Sequence number of the message.
        sequence: u64,
        /// Whether the message is to be marked redelivered.
        redelivered: bool,
    },
    /// The answer to a recall of credit. Its SEND has the id [`CREDIT_RETURN_ID`].
    CreditReturn {
        /// Credit limit that the answer states.
        credit_limit: u64,
    },
    /// A message is taken back. The SEND has the id [`CANCEL_ID`].
    Cancel {
        /// Place of the message in the table.
        index: u32,
        /// Sequence number of the message.
        sequence: u64,
    },
}

/// End of a message, as the protocol reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Place of the message in the table, free for another message now.
    pub index: u32,
    /// Sequence number of the message.
    pub sequence: u64,
    /// Status that the message ended with.
    pub status: AckStatus,
}

/// A reply that arrived, as the protocol reports it. Its bytes are behind the header that the protocol was
/// given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replied {
    /// Place of the message in the table.
    pub index: u32,
    /// Bytes of the reply.
    pub bytes: usize,
}

/// Request of the protocol about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect; answer with `handle_connected`, `handle_refused` or `handle_disconnected`.
    Connect,
    /// Disconnect; answer with `handle_disconnected`.
    Disconnect,
}

/// Reason why a message was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Too many messages have no end yet: as many as `in_flight_max` allows, or, of a sender with an
    /// identity, the oldest one is [`SEQUENCE_SPAN`](crate::exactly_once::SEQUENCE_SPAN) messages ago.
    #[error(
        "as many messages as in_flight_max allows have no end yet, or one is too old; poll completions \
             and try again"
    )]
    WouldBlock,
    /// [`super::protocol::Protocol::close`] was called.
    #[error("the sender is closing and takes nothing new")]
    Closed,
    /// The message is longer than the receiver accepts.
    #[error(
        "a message of {bytes} bytes is too large: the receiver takes at most {max}; split it, or raise the \
             receiver's message_bytes_max"
    )]
    TooLarge {
        /// Length of the message, in bytes.
        bytes: u64,
        /// Limit of the receiver, in bytes.
        max: u64,
    },
    /// The message lies in several pieces, and the connected receiver READs no such messages.
    #[error(
        "the receiver is of an older build, which takes no messages in pieces; send one buffer, or renew the \
         jetd there"
    )]
    NoGather,
}

/// Counters of a sender's protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProtocolStats {
    /// SENDs that were posted, `CreditReturn`s included.
    pub sends: u64,
    /// Messages that were sent again because a connection ended.
    pub redelivered: u64,
    /// Messages that were sent again because of their end.
    pub retried: u64,
    /// Messages whose receiver was asked to give them back.
    pub cancels: u64,
    /// Acknowledgements of messages that are not in the table, or have their end already.
    pub acks_ignored: u64,
    /// Headers without an established connection: late headers of an earlier connection, or headers that no
    /// welcome followed.
    pub headers_stray: u64,
    /// Headers that could not be parsed.
    pub malformed: u64,
    /// Ranges of ends with a status that only a later version knows. Each message ended with the nearest
    /// status that this build knows.
    pub statuses_unknown: u64,
    /// Connections that were established.
    pub connections: u64,
    /// Recalls of credit by the receiver.
    pub recalls: u64,
    /// Connections that were ended because the receiver sent nothing for too long.
    pub receiver_timeouts: u64,
    /// Connections that were ended because nothing moved on for too long, while the receiver's heartbeats
    /// named nothing that is waited for.
    pub progress_timeouts: u64,
    /// Counters of the congestion window, over all connections.
    pub window: WindowStats,
}

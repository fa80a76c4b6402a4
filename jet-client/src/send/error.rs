//! Errors of the sending end, one type for each operation.

use super::buffer::SendBuffer;
use super::protocol::SubmitError;
use super::replies::Reply;
use jet_fabric::Address;
use jet_fabric::advice::{self, Advised, advised};
use jet_fabric::nic::{ConnectError, DisconnectReason, RegionError, RegisterError};
use jet_wire::message::hello::{AppNameError, HelloError, Refusal};
use jet_wire::message::{AckStatus, PIECES_MAX, SMALL_USER_HEADER_MAX, USER_HEADER_MAX};
use std::io;
use std::time::Duration;

/// Reason why no sender could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendConnectError {
    /// The application's name is invalid.
    #[error(transparent)]
    App(#[from] AppNameError),
    /// An option is invalid; the text says which.
    #[error("{0}")]
    Option(&'static str),
    /// No NIC of this build can reach an address of this kind.
    #[error("this build has no NIC for {address}; use shm: or tcp:, or build it with --features verbs")]
    WrongFabric {
        /// Address of the receiver.
        address: Address,
    },
    /// The NIC on verbs cannot be set up.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] jet_fabric::verbs::VerbsError),
    /// The receiver cannot be reached: nobody listens there, or the network reports an error.
    #[error("{source}{}", if source.is_absence() { START_IT } else { "" })]
    Nobody {
        /// Address of the receiver.
        address: Address,
        /// Error of the NIC.
        source: ConnectError,
    },
    /// The receiver listens, but so many connections wait there that one more finds no room. Only over
    /// `shm:`.
    #[error(transparent)]
    Busy(ConnectError),
    /// The receiver refused the connection, with a reason.
    #[error("{address} refused the connection: {refusal}")]
    Refused {
        /// Address of the receiver.
        address: Address,
        /// Reason of the refusal.
        refusal: Refusal,
    },
    /// The receiver's answer cannot be read: the peer is not Jet, or another version.
    #[error("{address} answered what cannot be read: {source}")]
    Welcome {
        /// Address of the receiver.
        address: Address,
        /// Reason why the answer cannot be read.
        source: HelloError,
    },
    /// The connection ended before it was established.
    #[error(
        "the connection to {address} ended before it stood ({reason:?}); look at the log of the jetd there"
    )]
    Lost {
        /// Address of the receiver.
        address: Address,
        /// Reason of the end.
        reason: DisconnectReason,
    },
    /// The receiver's port takes shorter packets than this end sends, which would be dropped.
    #[error(
        "{address} takes shorter packets than this host sends; give the interfaces at both ends the same MTU \
         (ip link set dev INTERFACE mtu N), and the switches between them"
    )]
    Packets {
        /// Address of the receiver.
        address: Address,
    },
    /// The receiver does not take memory that this end registered, or cannot read it. Only over `shm:`.
    #[error("{address} does not take a region of this sender's memory: {source}")]
    Region {
        /// Address of the receiver.
        address: Address,
        /// What is wrong with the region, and what to change.
        source: RegionError,
    },
    /// The receiver did not answer in time.
    #[error("{address} did not answer within {timeout:?}; is the jetd there stopped or overloaded?")]
    TimedOut {
        /// Address of the receiver.
        address: Address,
        /// Time that the sender waited.
        timeout: Duration,
    },
    /// The NIC does not register the memory that a sender needs.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A call of the system failed.
    #[error("cannot set up the sender: {}", advised(.0))]
    System(#[from] io::Error),
}

const START_IT: &str = " If not, start it with `jet daemon`, and let its `listen` name that address";

impl SendConnectError {
    /// Whether trying again later may help: the receiver may start, its pool may empty, a device may come
    /// back.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Nobody { source: ConnectError::System { source, .. }, .. } => advice::may_pass(source),
            Self::Region { source, .. } => *source == RegionError::ReceiverFull,
            Self::Nobody { .. }
            | Self::Busy(_)
            | Self::Lost { .. }
            | Self::TimedOut { .. }
            | Self::Refused { .. } => true,
            #[cfg(feature = "verbs")]
            Self::Verbs(error) => error.is_passing(),
            _ => false,
        }
    }
}

/// Reason why a message was not accepted. Such a message has no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The protocol does not accept the message: too many messages are in flight, the sender is closed, or
    /// the message is too large for the receiver.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The payload is longer than a small message's, which has at most 4096 bytes.
    #[error("{bytes} bytes are no small message, which has at most 4096; use `send` with a buffer")]
    NotSmall {
        /// Length of the payload, in bytes.
        bytes: usize,
    },
    /// The buffer of a large message has no byte.
    #[error("a large message has at least one byte; send an empty one with `send_small`")]
    Empty,
    /// The user header is too long.
    #[error(
        "a user header of {bytes} bytes exceeds {max} (small: {SMALL_USER_HEADER_MAX}, large: \
         {USER_HEADER_MAX})"
    )]
    UserHeader {
        /// Length of the user header, in bytes.
        bytes: usize,
        /// Longest user header that such a message may have, in bytes.
        max: usize,
    },
    /// The message wants a reply, and the sender was made without memory for replies.
    #[error("the sender takes no replies: set SenderOptions::replies")]
    NoReplies,
    /// The buffer was made by another sender.
    #[error("the buffer belongs to another sender: get one from this sender's `buffer`")]
    ForeignBuffer,
    /// The buffer, or the bytes, are of memory that this sender does not know.
    #[error(
        "the memory is not registered with this sender: register the SendMemory that it is of, or copy the \
         bytes into one of this sender's buffers"
    )]
    NotRegistered,
    /// A message cannot lie in so many pieces.
    #[error("a message of {pieces} pieces: 1 to {PIECES_MAX} are possible")]
    Pieces {
        /// Number of pieces.
        pieces: usize,
    },
    /// A piece has no byte, or 4 GiB or more, or is not the last one and no multiple of 4096 bytes.
    #[error(
        "piece {index} has {bytes} bytes: each piece has at least one and less than 4 GiB, and all but the \
         last are multiples of 4096"
    )]
    Piece {
        /// Index of the piece.
        index: usize,
        /// Length of the piece, in bytes.
        bytes: usize,
    },
}

impl SendError {
    /// Whether the message can be accepted after more completions were polled.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::Submit(SubmitError::WouldBlock))
    }
}

/// Reason why a call has no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The message was not accepted.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The system refuses to wait, or the time ran out.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The message ended without being consumed. An application that rejected it may have replied as well.
    #[error("the message ended: {status}")]
    Ended {
        /// The message's end.
        status: AckStatus,
        /// The reply that came with it.
        reply: Option<Reply>,
    },
    /// The application consumed the message without a reply, or the receiver passes none on.
    #[error("the message was consumed without a reply")]
    NoReply,
}

/// A message that was not accepted, with its buffer. Such a message has no end.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct NotSent {
    /// Reason why the message was not accepted.
    pub error: SendError,
    /// The message's buffer, unchanged.
    pub buffer: SendBuffer,
}

/// A message in pieces that was not accepted, with its buffers. Such a message has no end.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct NotGathered {
    /// Reason why the message was not accepted.
    pub error: SendError,
    /// The message's buffers, unchanged.
    pub pieces: Vec<SendBuffer>,
}

impl NotGathered {
    /// Whether the message can be accepted after more completions were polled.
    pub fn is_would_block(&self) -> bool {
        self.error.is_would_block()
    }
}

/// The buffers go back to where they are from.
impl From<NotGathered> for SendError {
    fn from(not_gathered: NotGathered) -> Self {
        not_gathered.error
    }
}

/// The buffer goes back to its sender.
impl From<NotSent> for SendError {
    fn from(not_sent: NotSent) -> Self {
        not_sent.error
    }
}

impl NotSent {
    /// Whether the message can be accepted after more completions were polled.
    pub fn is_would_block(&self) -> bool {
        self.error.is_would_block()
    }
}

/// Reason why a send buffer could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BufferError {
    /// The memory could not be allocated.
    #[error("cannot get {bytes} bytes for a send buffer: {}",
            Advised { error: source, otherwise: "check the memory limit" })]
    Memory {
        /// Bytes that were asked for.
        bytes: usize,
        /// Error of the system.
        source: io::Error,
    },
    /// The NIC does not register the memory.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Reason why memory stays registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeregisterError {
    /// A message of the memory has no end, or its end was not polled.
    #[error("messages of this memory are in flight: poll their ends before")]
    InFlight,
}

/// Reason why a wait ended without what was waited for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// Nothing ended in time, or not everything where every end was waited for. Wait again.
    #[error("what was waited for did not end in time; wait again")]
    NotYet,
    /// The system refuses to wait.
    #[error("cannot wait for completions: {0}")]
    System(#[from] io::Error),
}

impl WaitError {
    /// Whether only the time ran out: waiting again may help.
    pub fn is_not_yet(&self) -> bool {
        matches!(self, Self::NotYet)
    }
}

//! What can go wrong at the sending end, one error an operation.

use super::protocol::SubmitError;
use jet_fabric::Address;
use jet_fabric::advice::{self, Advised, advised};
use jet_fabric::nic::{ConnectError, DisconnectReason, RegisterError};
use jet_wire::message::hello::{AppNameError, HelloError, Refusal};
use jet_wire::message::{SMALL_USER_HEADER_MAX, USER_HEADER_MAX};
use std::io;
use std::time::Duration;

/// Why no sender came to be.
#[derive(Debug, thiserror::Error)]
pub enum SendConnectError {
    /// The application's name is none.
    #[error(transparent)]
    App(#[from] AppNameError),
    /// An option is no good.
    #[error("{0}")]
    Option(&'static str),
    /// No NIC of this build speaks that address.
    #[error("this build has no NIC for {address}; use shm: or tcp:, or build it with --features verbs")]
    WrongFabric {
        /// The address.
        address: Address,
    },
    /// There is no NIC on verbs.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] jet_fabric::verbs::VerbsError),
    /// Nobody listens there.
    #[error("{source}{}", if source.is_absence() { START_IT } else { "" })]
    Nobody {
        /// The address.
        address: Address,
        /// What the NIC said.
        source: ConnectError,
    },
    /// The receiver refused, and says why.
    #[error("{address} refused the connection: {refusal}")]
    Refused {
        /// The address.
        address: Address,
        /// Its reason.
        refusal: Refusal,
    },
    /// Somebody who is no Jet answered, or one of another version.
    #[error("{address} answered what cannot be read: {source}")]
    Welcome {
        /// The address.
        address: Address,
        /// What was wrong.
        source: HelloError,
    },
    /// The connection ended before it stood.
    #[error(
        "the connection to {address} ended before it stood ({reason:?}); look at the log of the jetd there"
    )]
    Lost {
        /// The address.
        address: Address,
        /// Why.
        reason: DisconnectReason,
    },
    /// The receiver's port takes shorter packets than this end's, which would be dropped.
    #[error(
        "{address} takes shorter packets than this host sends; give the interfaces at both ends the same MTU \
         (ip link set dev INTERFACE mtu N), and the switches between them"
    )]
    Packets {
        /// The address.
        address: Address,
    },
    /// No answer in time.
    #[error("{address} did not answer within {timeout:?}; is the jetd there stopped or overloaded?")]
    TimedOut {
        /// The address.
        address: Address,
        /// How long was waited.
        timeout: Duration,
    },
    /// The NIC does not take the memory that a sender needs.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The system refused.
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
            Self::Nobody { .. } | Self::Lost { .. } | Self::TimedOut { .. } | Self::Refused { .. } => true,
            #[cfg(feature = "verbs")]
            Self::Verbs(error) => error.is_passing(),
            _ => false,
        }
    }
}

/// Why a message was not taken. It has no end, because it has no beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// As many as `in_flight_max` have no end that was polled; or closed, or too large for the receiver.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A small message has at most 4096 bytes of payload.
    #[error("{bytes} bytes are no small message, which has at most 4096; use `send` with a buffer")]
    NotSmall {
        /// The payload's length.
        bytes: usize,
    },
    /// A large message has at least one byte and fits its buffer.
    #[error("a message of {bytes} bytes does not fit its buffer of {buffer}, or is empty (use `send_small`)")]
    Length {
        /// The message's length.
        bytes: usize,
        /// The buffer's.
        buffer: usize,
    },
    /// The user header is too long.
    #[error(
        "a user header of {bytes} bytes exceeds {max} (small: {SMALL_USER_HEADER_MAX}, large: \
         {USER_HEADER_MAX})"
    )]
    UserHeader {
        /// Its length.
        bytes: usize,
        /// The most that is allowed.
        max: usize,
    },
    /// The buffer was made by another sender.
    #[error("the buffer belongs to another sender: get one from this sender's `buffer`")]
    ForeignBuffer,
}

impl SendError {
    /// Whether polling completions makes room.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Self::Submit(SubmitError::WouldBlock))
    }
}

/// Why there is no send buffer.
#[derive(Debug, thiserror::Error)]
pub enum BufferError {
    /// No memory.
    #[error("cannot get {bytes} bytes for a send buffer: {}",
            Advised { error: source, otherwise: "check the memory limit" })]
    Memory {
        /// Bytes asked for.
        bytes: usize,
        /// What the system said.
        source: io::Error,
    },
    /// The NIC does not take it.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Why waiting failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot wait for completions: {0}")]
pub struct WaitError(#[from] pub io::Error);

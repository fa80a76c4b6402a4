//! Errors of the receiving end, one type for each operation.

use super::wait::MayComeLater;
use jet_control::{ControlError, ErrorCode};
use jet_fabric::advice::advised;
use jet_fabric::memory::MapError;
use jet_wire::ring::RingError;
use jet_wire::segment::{HeldLimit, SegmentError};
use std::io;
use std::sync::Arc;

/// Reason why no session could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The request to the daemon failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The daemon refused the registration, with a reason.
    #[error("the daemon refused the registration: {message}")]
    Refused {
        /// Code of the reason that the daemon gave.
        code: ErrorCode,
        /// Text of the reason that the daemon gave.
        message: String,
    },
    /// The daemon's answer is invalid; the text says why.
    #[error(
        "the daemon's answer to the registration is no good: {0}; use the same build of Jet at both ends"
    )]
    Answer(&'static str),
    /// The daemon's answer came with another number of descriptors than it announced.
    #[error(
        "the daemon passed {found} descriptors with its answer to the registration instead of {expected}; \
         use the same build of Jet at both ends, or raise ulimit -n"
    )]
    Descriptors {
        /// Number of descriptors that came.
        found: usize,
        /// Number of descriptors that were announced: the pool, the segment, the doorbell, and escape memory
        /// where there is any.
        expected: usize,
    },
    /// The pool, escape memory or the segment cannot be mapped.
    #[error("cannot map what the daemon passed: {0}")]
    Map(#[from] MapError),
    /// The content of the session segment is invalid.
    #[error("the daemon passed a bad session segment: {0}")]
    Segment(#[from] SegmentError),
    /// A call of the system failed.
    #[error("cannot set up the session: {}", advised(.0))]
    System(#[from] io::Error),
}

/// Something invalid in the session segment, written by the daemon or by a process that overwrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A ring has an impossible index.
    #[error("{0}")]
    Ring(RingError),
    /// A delivery names a slot or a message that the segment does not have, or has an unknown kind.
    #[error("a delivery names slot {slot}, message {message} and kind {kind}, which do not exist")]
    Index {
        /// Slot that the delivery names.
        slot: u32,
        /// Message that the delivery names.
        message: u32,
        /// Kind that the delivery names.
        kind: u8,
    },
    /// A delivery's lengths contradict each other.
    #[error("a delivery of {bytes} bytes at {offset} does not fit its message of {message_bytes}")]
    Extent {
        /// Offset of the run in the message, in bytes.
        offset: u64,
        /// Length of the run, in bytes.
        bytes: u32,
        /// Length of the whole message, in bytes.
        message_bytes: u64,
    },
    /// A delivery uses a slot that is not released yet, or is for a message that is not open.
    #[error("a delivery in slot {slot} for message {message} came out of turn")]
    OutOfTurn {
        /// Slot that the delivery names.
        slot: u32,
        /// Message that the delivery names.
        message: u32,
    },
    /// A slot word names slabs that the pool, or escape memory, does not have.
    #[error("slot {slot} names slab {slab} and {slices} slices, beyond {}",
            if *escaped { "escape memory" } else { "the pool" })]
    Place {
        /// Number of the slot whose word it is.
        slot: u32,
        /// First slab that the word names, counted from the beginning of its memory.
        slab: u32,
        /// Whether the slab is in escape memory; otherwise it is in the pool.
        escaped: bool,
        /// Number of slabs in the run.
        slices: u16,
    },
    /// A slot word names another run than the one that was delivered in the slot and not released.
    #[error("slot {slot} holds another run than the one that was delivered there")]
    Run {
        /// Number of the slot whose word it is.
        slot: u32,
    },
    /// A slot is pinned, but this application did not pin it.
    #[error("slot {slot} is pinned by somebody else")]
    Pinned {
        /// Number of the pinned slot.
        slot: u32,
    },
}

/// Standstill: nothing more arrives before the application gives something back. It holds all that it may,
/// read or not, while more waits for it. Reported after a second in which nothing arrived and nothing was
/// given back, and again every ten seconds.
///
/// The session continues: give slices back (finish messages, where these are the limit), then wait again.
/// Where all of a message is wanted at once, [`Message::copy_to`](super::Message::copy_to) and
/// [`Message::read_to_end`](super::Message::read_to_end) copy it out and give slices back as they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "nothing more comes before slices are given back: this application holds {held_bytes} bytes that were \
     delivered, and {limit}; use slices as they come and give them back, or copy messages out (copy_to, \
     read_to_end)"
)]
#[non_exhaustive]
pub struct HoldsAll {
    /// Limit that the application has reached.
    pub limit: HeldLimit,
    /// Slabs that were delivered and not given back, in bytes.
    pub held_bytes: u64,
}

/// Reason why no message was received. [`Self::is_final`] says whether the session is over. A program whose
/// [`Session`](super::Session) is over registers again; a [`SharedSession`](super::SharedSession) has tried
/// to do so by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// No message arrived yet (`try_...`), or none in the given time (`..._timeout`); ask again.
    #[error("no message arrived in time")]
    NotYet,
    /// The application holds all that it may; the session continues.
    #[error(transparent)]
    HoldsAll(HoldsAll),
    /// The daemon hung up: it stopped, or was killed. Slices that are held stay readable. Messages that were
    /// not finished are sent again, as redelivered, by way of the next daemon.
    #[error("the daemon is gone; register again when one runs (a shared session does so by itself)")]
    DaemonGone,
    /// The daemon ended the session, with a reason.
    #[error("the daemon ended the session: {message}")]
    Ended {
        /// Code of the reason that the daemon gave.
        code: ErrorCode,
        /// Text of the reason that the daemon gave.
        message: String,
    },
    /// The session segment holds something invalid.
    #[error("the session segment is broken: {0}; register again")]
    Broken(#[from] Fault),
    /// The daemon is gone, and a shared session could not register again in the time that its options give.
    /// The next call tries again.
    #[error("the daemon is gone, and the session did not come back: {0}")]
    NotBack(#[source] Arc<RegisterError>),
    /// The system refused to wait.
    #[error("cannot wait for messages: {0}")]
    Wait(#[source] io::Error),
}

/// Reason why a message's next slice did not arrive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SliceError {
    /// The rest of the message will not arrive. The slices that were given so far are not the message.
    #[error("the message was withdrawn: {}",
            if *corrupt { "its bytes do not have the sender's checksum, or memory lost them" } else { "its \
                sender went away, or took it back" })]
    Withdrawn {
        /// Whether the checksum did not fit, or the receiver's memory lost the bytes; otherwise the sender
        /// went away, or took the message back.
        corrupt: bool,
    },
    /// No slice arrived yet (`try_...`), or none in the given time (`..._timeout`); ask again.
    #[error("no slice arrived in time")]
    NotYet,
    /// The application holds all that it may: give something back, then ask again.
    #[error(transparent)]
    HoldsAll(HoldsAll),
    /// The daemon that the message came by is gone, or ended the session, so no slice arrives any more: drop
    /// the message. A shared session comes back by itself, and the message comes again.
    #[error(transparent)]
    Receive(ReceiveError),
}

/// Reason why a message was not replied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplyError {
    /// The sender has no memory for a reply to the message.
    #[error("the message's sender takes no reply to it (Envelope::wants_reply)")]
    NotWanted,
    /// A reply has at most 4096 bytes.
    #[error("a reply of {bytes} bytes is too long: it has at most 4096")]
    TooLong {
        /// Bytes of the reply.
        bytes: usize,
    },
}

/// A message that was not replied to, and has not ended. Dropping it ends it, as dropping any message does:
/// consumed, or rejected for good. End it deliberately.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct NotReplied<M> {
    /// Reason why it was not.
    pub error: ReplyError,
    /// The message, as it was.
    pub message: M,
}

/// The message is dropped, and ends so.
impl<M> From<NotReplied<M>> for ReplyError {
    fn from(not_replied: NotReplied<M>) -> Self {
        not_replied.error
    }
}

impl RegisterError {
    /// Whether registering again later may help: the daemon may start, a place may become free.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Control(error) => error.is_passing(),
            // A name that is taken may belong to an application that is just ending. Slabs in quarantine may
            // be back in a moment, and so may a control connection.
            Self::Refused { code, .. } => matches!(
                code,
                ErrorCode::Draining
                    | ErrorCode::NameTaken
                    | ErrorCode::TooManyConnections
                    | ErrorCode::Quarantined
            ),
            _ => false,
        }
    }
}

impl ReceiveError {
    /// Whether the session is over, so that it is of no use to wait again.
    pub fn is_final(&self) -> bool {
        !matches!(self, Self::NotYet | Self::HoldsAll(_) | Self::NotBack(_))
    }

    /// Whether the daemon is gone or about to go, so that registering with the next one helps.
    pub(super) fn is_of_the_daemon(&self) -> bool {
        matches!(self, Self::DaemonGone | Self::Ended { code: ErrorCode::Draining, .. })
    }

    /// Whether there is only no message yet.
    #[inline]
    pub fn is_not_yet(&self) -> bool {
        matches!(self, Self::NotYet)
    }
}

impl SliceError {
    /// Whether there is only no slice yet.
    #[inline]
    pub fn is_not_yet(&self) -> bool {
        matches!(self, Self::NotYet)
    }
}

impl MayComeLater for ReceiveError {
    #[inline]
    fn is_not_yet(&self) -> bool {
        self.is_not_yet()
    }
}

impl MayComeLater for SliceError {
    #[inline]
    fn is_not_yet(&self) -> bool {
        self.is_not_yet()
    }
}

impl From<ReceiveError> for SliceError {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::NotYet => Self::NotYet,
            ReceiveError::HoldsAll(held) => Self::HoldsAll(held),
            error => Self::Receive(error),
        }
    }
}

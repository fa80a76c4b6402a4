//! What can go wrong at the receiving end, one error an operation.

use jet_control::{ControlError, ErrorCode};
use jet_fabric::advice::advised;
use jet_fabric::memory::MapError;
use jet_wire::ring::RingError;
use jet_wire::segment::{HeldLimit, SegmentError};
use std::io;

/// Why no session came to be.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The daemon could not be asked.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The daemon refused, and says why.
    #[error("the daemon refused the registration: {message}")]
    Refused {
        /// What for.
        code: ErrorCode,
        /// In words.
        message: String,
    },
    /// The answer is none of ours.
    #[error(
        "the daemon's answer to the registration is no good: {0}; use the same build of Jet at both ends"
    )]
    Answer(&'static str),
    /// Other descriptors than the answer announces came with it.
    #[error(
        "the daemon passed {found} descriptors with its answer to the registration instead of {expected}; \
         use the same build of Jet at both ends, or raise ulimit -n"
    )]
    Descriptors {
        /// How many came.
        found: usize,
        /// The pool, the segment, the doorbell, and escape memory where there is any.
        expected: usize,
    },
    /// The pool, escape memory or the segment cannot be mapped.
    #[error("cannot map what the daemon passed: {0}")]
    Map(#[from] MapError),
    /// The segment is none.
    #[error("the daemon passed a bad session segment: {0}")]
    Segment(#[from] SegmentError),
    /// The system refused.
    #[error("cannot set up the session: {}", advised(.0))]
    System(#[from] io::Error),
}

/// What the daemon, or somebody scribbling over the segment, wrote that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A ring index.
    #[error("{0}")]
    Ring(RingError),
    /// A delivery names a slot or a message beyond the segment's shape, or has an unknown kind.
    #[error("a delivery names slot {slot}, message {message} and kind {kind}, which do not exist")]
    Index {
        /// The slot named.
        slot: u32,
        /// The message named.
        message: u32,
        /// The kind named.
        kind: u8,
    },
    /// A delivery's lengths contradict each other.
    #[error("a delivery of {bytes} bytes at {offset} does not fit its message of {message_bytes}")]
    Extent {
        /// Where in the message.
        offset: u64,
        /// Bytes of the run.
        bytes: u32,
        /// The whole message's bytes.
        message_bytes: u64,
    },
    /// A delivery in a slot that is not released yet, or for a message that is not there.
    #[error("a delivery in slot {slot} for message {message} came out of turn")]
    OutOfTurn {
        /// The slot named.
        slot: u32,
        /// The message named.
        message: u32,
    },
    /// A slot word names slabs that the pool, or escape memory, does not have.
    #[error("slot {slot} names slab {slab} and {slices} slices, beyond {}",
            if *escaped { "escape memory" } else { "the pool" })]
    Place {
        /// The slot.
        slot: u32,
        /// The first slab named, counted from the beginning of its memory.
        slab: u32,
        /// In escape memory; else in the pool.
        escaped: bool,
        /// Slices of the run.
        slices: u16,
    },
    /// A slot word names another run than the one that was delivered in the slot and not released.
    #[error("slot {slot} holds another run than the one that was delivered there")]
    Run {
        /// The slot.
        slot: u32,
    },
    /// A slot is pinned that this end did not pin.
    #[error("slot {slot} is pinned by somebody else")]
    Pinned {
        /// The slot.
        slot: u32,
    },
}

/// Nothing more comes before the application gives something back: it holds all that it may, read or not,
/// while more waits for it. Said after a second in which nothing came and nothing was given back, and again
/// every ten.
///
/// The session goes on: give slices back (finish messages, where these are the limit), then wait again. Where
/// all of a message is wanted at once, [`Message::copy_to`](super::Message::copy_to) and
/// [`Message::read_to_end`](super::Message::read_to_end) copy it out and give back as they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "nothing more comes before slices are given back: this application holds {held_bytes} bytes that were \
     delivered, and {limit}; use slices as they come and give them back, or copy messages out (copy_to, \
     read_to_end)"
)]
pub struct HoldsAll {
    /// What it has used up.
    pub limit: HeldLimit,
    /// Slabs that were delivered and not given back, in bytes.
    pub held_bytes: u64,
}

/// Why nothing more is received. Every variant but [`Self::HoldsAll`] is final for the session: register
/// again.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The application holds all that it may; the session goes on.
    #[error(transparent)]
    HoldsAll(HoldsAll),
    /// The daemon hung up: it stopped, or was killed. Slices that are held stay readable; what was not
    /// finished comes again, as redelivered, from the next daemon.
    #[error("the daemon is gone; register again when it runs")]
    DaemonGone,
    /// The daemon ended the session and said why.
    #[error("the daemon ended the session: {message}")]
    Ended {
        /// What for.
        code: ErrorCode,
        /// In words.
        message: String,
    },
    /// The session segment holds what cannot be.
    #[error("the session segment is broken: {0}; register again")]
    Broken(#[from] Fault),
    /// The system refused to wait.
    #[error("cannot wait for messages: {0}")]
    Wait(#[source] io::Error),
}

/// Why a message's next slice did not come.
#[derive(Debug, thiserror::Error)]
pub enum SliceError {
    /// The rest will not come. What was given so far must not be taken for the message.
    #[error("the message was withdrawn: {}",
            if *corrupt { "its bytes do not have the sender's checksum, or memory lost them" } else { "its \
                sender went away" })]
    Withdrawn {
        /// Because the checksum did not fit, or the receiver's memory lost the bytes; else because the sender
        /// went away.
        corrupt: bool,
    },
    /// Not within the time given; ask again.
    #[error("no slice arrived in time")]
    TimedOut,
    /// The application holds all that it may: give something back, then ask again.
    #[error(transparent)]
    HoldsAll(HoldsAll),
    /// The session ended.
    #[error(transparent)]
    Receive(ReceiveError),
}

impl From<ReceiveError> for SliceError {
    fn from(error: ReceiveError) -> Self {
        match error {
            ReceiveError::HoldsAll(held) => Self::HoldsAll(held),
            error => Self::Receive(error),
        }
    }
}

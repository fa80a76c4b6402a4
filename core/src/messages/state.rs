//! States of a message: towards the receiver and its sender, and towards its application.
//!
//! These are two separate states, for either side may be done with a message long before the other. A sender
//! learns the end of a message that its application still holds. An application may have finished a message
//! whose end was not sent yet.

use crate::index::NONE;
use crate::pool::Share;
use jet_wire::message::AckStatus;

/// State of a message towards the receiver and its sender, from its arrival to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageState {
    /// The record is unused.
    Free,
    /// A request waits for admission.
    Waiting,
    /// A request is deferred: its session is suspended for now.
    Deferred,
    /// The message was admitted, and its fragments are being read.
    Running,
    /// A small message waits in this slab for a slot of its session.
    Backlogged { slab: u32, share: Share },
    /// All READs were posted, or no more will be. The application decides how the message ends.
    Settling,
    /// The receiver has decided how the message ends. It ends once no READ of it is under way.
    Ending(AckStatus),
    /// The message has ended like this, but its sender was not told: the record keeps the end, because the
    /// pending ends had no room for it.
    Ended(AckStatus),
    /// The end was handed on to the sender, or there is no sender. The receiver decided the end, or the
    /// record kept it for a time.
    Failed,
    /// The end was handed on to the sender, or there is no sender. The application decided the end.
    Acknowledged,
}

/// State of a message towards its application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppState {
    /// The application does not know the message: nothing was delivered, or there is no application any more.
    Unaware,
    /// The application knows the message by this number.
    Open { number: u16 },
    /// The application finished the message, and may still hold slices of it. `code`: 0 for consumed, else
    /// the rejection's code.
    Finished { number: u16, code: u32 },
    /// The application finished the message and gave everything back, or is gone since.
    Done { code: u32 },
}

impl MessageState {
    /// Returns whether the message is in no queue and in no list, except its sender's pending ends.
    #[inline]
    pub fn is_settling(&self) -> bool {
        matches!(self, Self::Settling | Self::Ending(_) | Self::Ended(_) | Self::Failed | Self::Acknowledged)
    }

    /// Returns whether the receiver decided how the message ends, or the record keeps its end.
    #[inline]
    pub fn has_failed(&self) -> bool {
        matches!(self, Self::Ending(_) | Self::Ended(_) | Self::Failed)
    }

    /// Returns whether the message's end is decided, and counted.
    #[inline]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Failed | Self::Acknowledged)
    }

    /// Returns whether the message's sender will hear nothing more of it.
    #[inline]
    pub fn is_acknowledged(&self) -> bool {
        matches!(self, Self::Failed | Self::Acknowledged)
    }

    /// Decides that the message ends with `status`, unless its end was decided before. The message must be in
    /// no queue.
    pub fn fail(&mut self, status: AckStatus) {
        if *self == Self::Settling {
            *self = Self::Ending(status);
        }
    }

    /// Notes that the message's end was handed on to its sender, or that there is no sender.
    #[inline]
    pub fn mark_acknowledged(&mut self) {
        *self = if self.has_failed() { Self::Failed } else { Self::Acknowledged };
    }

    /// Ends a small message's wait for a slot; returns where the message lies.
    pub fn leave_backlog(&mut self) -> (u32, Share) {
        match core::mem::replace(self, Self::Settling) {
            Self::Backlogged { slab, share } => (slab, share),
            other => unreachable!("{other:?} is in no backlog"),
        }
    }
}

impl AppState {
    /// Returns whether the application knows the message, and its number is in use.
    #[inline]
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. } | Self::Finished { .. })
    }

    /// Returns whether the application finished the message.
    #[inline]
    pub fn is_finished(&self) -> bool {
        matches!(self, Self::Finished { .. } | Self::Done { .. })
    }

    /// Returns the message's number, to be named in an error; [`NONE`] if it has none.
    pub fn number(&self) -> u32 {
        match *self {
            Self::Open { number } | Self::Finished { number, .. } => u32::from(number),
            Self::Unaware | Self::Done { .. } => NONE,
        }
    }

    /// Notes that the application is gone. A message that it finished stays finished.
    pub fn forget(&mut self) {
        *self = match *self {
            Self::Finished { code, .. } | Self::Done { code } => Self::Done { code },
            Self::Unaware | Self::Open { .. } => Self::Unaware,
        };
    }
}

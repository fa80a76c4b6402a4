//! Where a message stands: with the receiver and its sender, and with its application.
//!
//! These are two, for either may be through with a message long before the other: a sender hears of the end
//! of a message that its application still holds, and an application may have finished one whose end waits to
//! be said.

use crate::index::NONE;
use crate::pool::Share;
use jet_wire::message::AckStatus;

/// Where a message stands with the receiver and its sender, from its arrival to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// The record is unused.
    Free,
    /// A request that waits for admission.
    Waiting,
    /// A request whose session is suspended for now.
    Deferred,
    /// Admitted; READs are being made.
    Running,
    /// A small message that waits for a slot of its session, in this slab.
    Backlogged { slab: u32, share: Share },
    /// Everything was asked for, or nothing more will be. Its application decides how it ends.
    Settling,
    /// It ends like this, decided by the receiver, once no READ of it is under way.
    Ending(AckStatus),
    /// It ended like this; its sender has not been told, for there was no room among what it is to be told.
    Ended(AckStatus),
    /// Its sender has its end, which the receiver decided, or there is nobody to have it.
    Failed,
    /// Likewise, and its application decided it.
    Told,
}

/// Where a message stands with its application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// It does not know of it: nothing was delivered, or there is no application, or none any more.
    Unaware,
    /// It knows of it by this number.
    Open { number: u16 },
    /// It finished it, and may hold slices of it. The code: 0 consumed, else the rejection's.
    Finished { number: u16, code: u32 },
    /// It finished it and gave everything back, or is gone since.
    Done { code: u32 },
}

impl Life {
    /// In no queue and in no list but its sender's ends.
    #[inline]
    pub fn is_settling(&self) -> bool {
        matches!(self, Self::Settling | Self::Ending(_) | Self::Ended(_) | Self::Failed | Self::Told)
    }

    /// The receiver decided how it ends, or its end is kept.
    #[inline]
    pub fn has_failed(&self) -> bool {
        matches!(self, Self::Ending(_) | Self::Ended(_) | Self::Failed)
    }

    /// Its end is decided, and counted.
    #[inline]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Failed | Self::Told)
    }

    /// Its sender will hear nothing more of it.
    #[inline]
    pub fn is_told(&self) -> bool {
        matches!(self, Self::Failed | Self::Told)
    }

    /// It ends like this, if nothing else was decided before. It must be in no queue.
    pub fn fail(&mut self, status: AckStatus) {
        if *self == Self::Settling {
            *self = Self::Ending(status);
        }
    }

    /// Its end, which is decided now, was handed to those that its sender is told, or has nobody to go to.
    #[inline]
    pub fn tell(&mut self) {
        *self = if self.has_failed() { Self::Failed } else { Self::Told };
    }

    /// A small message does not wait for a slot any more; where it lies.
    pub fn leave_backlog(&mut self) -> (u32, Share) {
        match core::mem::replace(self, Self::Settling) {
            Self::Backlogged { slab, share } => (slab, share),
            other => unreachable!("{other:?} is in no backlog"),
        }
    }
}

impl Reader {
    /// It knows of it, and its number is in use.
    #[inline]
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. } | Self::Finished { .. })
    }

    /// It finished it.
    #[inline]
    pub fn is_finished(&self) -> bool {
        matches!(self, Self::Finished { .. } | Self::Done { .. })
    }

    /// The message's number, to be named in an error.
    pub fn number(&self) -> u32 {
        match *self {
            Self::Open { number } | Self::Finished { number, .. } => u32::from(number),
            Self::Unaware | Self::Done { .. } => NONE,
        }
    }

    /// The application is gone: what it finished stays finished.
    pub fn forget(&mut self) {
        *self = match *self {
            Self::Finished { code, .. } | Self::Done { code } => Self::Done { code },
            Self::Unaware | Self::Open { .. } => Self::Unaware,
        };
    }
}

//! Why something was not adjusted.

use crate::journals::JournalError;
use crate::resctrl::{AccessError, DomainId, GroupName, WayMask};

/// Why nothing was adjusted.
#[derive(Debug, thiserror::Error)]
pub enum AdjustError {
    /// There is nothing to throttle with.
    #[error(
        "memory bandwidth cannot be throttled here: resctrl has no MB (Intel's MBA, AMD's QoS bandwidth \
         enforcement)"
    )]
    NoBandwidth,
    /// A group is not there.
    #[error("there is no group '{group}' to throttle: make it (mkdir in /sys/fs/resctrl), or do not name it")]
    NoGroup {
        /// The group.
        group: GroupName,
    },
    /// A group that uses none.
    #[error("the group '{group}' is to become locked memory, and has no bandwidth to limit")]
    Locksetup {
        /// The group.
        group: GroupName,
    },
    /// A bandwidth that cannot be set.
    #[error(
        "a bandwidth of {wanted} cannot be set for '{group}': it is a multiple of {granularity}, and {min} \
         at least"
    )]
    Bandwidth {
        /// The group.
        group: GroupName,
        /// What was asked for.
        wanted: u64,
        /// What it must be a multiple of.
        granularity: u64,
        /// The least there is.
        min: u64,
    },
    /// There is no such domain.
    #[error("there is no domain {domain}; there are: \
             {}", present.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))]
    NoDomain {
        /// What was asked for.
        domain: DomainId,
        /// Those there are.
        present: Vec<DomainId>,
    },
    /// The kernel cannot say where devices write.
    #[error(
        "the kernel gives devices no ways of their own: io_alloc is of Linux 6.19 and later (Intel's DDIO is \
         a register)"
    )]
    NoIoAlloc,
    /// The processor cannot.
    #[error(
        "this processor gives devices no ways of their own (io_alloc: not supported; it takes AMD's SDCIAE)"
    )]
    IoAllocUnsupported,
    /// Ways that are none.
    #[error("devices cannot have the ways {ways} of domain {domain}, which has {all}")]
    Ways {
        /// The cache.
        domain: DomainId,
        /// What was asked for.
        ways: WayMask,
        /// Those there are.
        all: WayMask,
    },
    /// Another process has adjusted something.
    #[error("another process has adjusted bandwidth or the ways of devices; end it first")]
    Running,
    /// Code and data have ways of their own.
    #[error(
        "the ways of devices are not set where code and data have ways of their own: mount resctrl without \
         cdp"
    )]
    Cdp,
    /// What was changed is something else now.
    #[error(
        "what was set is neither as it was set nor as before, so nothing was changed: {found}. Set each to \
         one of the two by hand, then: jet cache restore; or let them stay as they are: jet cache restore \
         --forget. It is written down in {journal}"
    )]
    Misfit {
        /// Which, and what they are.
        found: String,
        /// The journal.
        journal: String,
    },
    /// What was changed before it was refused could not be put back: the next start tries that again.
    #[error("{refused}; and what was changed before could not be put back: {left}")]
    HalfUndone {
        /// Why it was not changed.
        refused: Box<AdjustError>,
        /// Why it was not put back.
        left: Box<AdjustError>,
    },
    /// The kernel refused.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl AdjustError {
    /// Whether what was set cannot be put back as long as somebody else's hand is in it, or what was written
    /// down cannot be read.
    pub fn may_stay_for_ever(&self) -> bool {
        match self {
            Self::Misfit { .. } | Self::Journal(JournalError::Format { .. }) => true,
            Self::Access(error) => error.errno() == Some(libc::EINVAL),
            _ => false,
        }
    }
}

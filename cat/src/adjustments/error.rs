//! Errors of making or undoing adjustments.

use crate::journals::JournalError;
use crate::resctrl::{AccessError, DomainId, GroupName, WayMask};

/// Error of making adjustments in resctrl or of putting them back. Where making them failed, nothing stays
/// changed, except with [`Self::HalfUndone`].
#[derive(Debug, thiserror::Error)]
pub enum AdjustError {
    /// The host has no means to limit memory bandwidth.
    #[error(
        "memory bandwidth cannot be throttled here: resctrl has no MB (Intel's MBA, AMD's QoS bandwidth \
         enforcement)"
    )]
    NoBandwidth,
    /// A group that the request names does not exist.
    #[error("there is no group '{group}' to throttle: make it (mkdir in /sys/fs/resctrl), or do not name it")]
    NoGroup {
        /// Name of the group that does not exist.
        group: GroupName,
    },
    /// The group is being set up as pseudo-locked memory, and so has no bandwidth.
    #[error("the group '{group}' is to become locked memory, and has no bandwidth to limit")]
    Locksetup {
        /// Name of the group that is being set up.
        group: GroupName,
    },
    /// The requested bandwidth is too small, or no multiple of the granularity.
    #[error(
        "a bandwidth of {wanted} cannot be set for '{group}': it is a multiple of {granularity}, and {min} \
         at least"
    )]
    Bandwidth {
        /// Name of the group for which the bandwidth was requested.
        group: GroupName,
        /// Bandwidth that was requested, in the unit of the kernel's files.
        wanted: u64,
        /// Number of which the bandwidth must be a multiple.
        granularity: u64,
        /// Smallest bandwidth that can be set.
        min: u64,
    },
    /// A requested domain does not exist.
    #[error("there is no domain {domain}; there are: \
             {}", present.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))]
    NoDomain {
        /// Domain that was requested.
        domain: DomainId,
        /// Domains that exist.
        present: Vec<DomainId>,
    },
    /// The kernel has no `io_alloc`.
    #[error(
        "the kernel gives devices no ways of their own: io_alloc is of Linux 6.19 and later (Intel's DDIO is \
         a register)"
    )]
    NoIoAlloc,
    /// The processor does not support `io_alloc`.
    #[error(
        "this processor gives devices no ways of their own (io_alloc: not supported; it takes AMD's SDCIAE)"
    )]
    IoAllocUnsupported,
    /// The requested ways are empty, or not ways of the cache.
    #[error("devices cannot have the ways {ways} of domain {domain}, which has {all}")]
    Ways {
        /// Id of the cache for which ways were requested.
        domain: DomainId,
        /// Ways that were requested.
        ways: WayMask,
        /// Ways that the cache has.
        all: WayMask,
    },
    /// Another process has made adjustments and still runs.
    #[error("another process has adjusted bandwidth or the ways of devices; end it first")]
    Running,
    /// CDP is on: code and data have separate ways, and then devices' ways are not set.
    #[error(
        "the ways of devices are not set where code and data have ways of their own: mount resctrl without \
         cdp"
    )]
    Cdp,
    /// A value is neither the one that was set nor the previous one: somebody else has changed it. So nothing
    /// was put back.
    #[error(
        "what was set is neither as it was set nor as before, so nothing was changed: {found}. Set each to \
         one of the two by hand, then: jet cache restore; or let them stay as they are: jet cache restore \
         --forget. It is written down in {journal}"
    )]
    Misfit {
        /// Description of the values that somebody else has changed.
        found: String,
        /// Path of the journal that records the previous values.
        journal: String,
    },
    /// A change was refused, and changes made before it could not be put back. The next start tries again to
    /// put them back.
    #[error("{refused}; and what was changed before could not be put back: {left}")]
    HalfUndone {
        /// Error of the change that was refused.
        refused: Box<AdjustError>,
        /// Error of putting back the changes that were made before.
        left: Box<AdjustError>,
    },
    /// Access to resctrl failed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The journal could not be written, read or locked.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl AdjustError {
    /// Returns whether retrying may never help: somebody else has changed a value, or the journal cannot be
    /// parsed.
    pub fn may_stay_for_ever(&self) -> bool {
        match self {
            Self::Misfit { .. } | Self::Journal(JournalError::Format { .. }) => true,
            Self::Access(error) => error.errno() == Some(libc::EINVAL),
            _ => false,
        }
    }
}

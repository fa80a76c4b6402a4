//! Errors of making a reservation and of moving threads.

use super::{HoldingsError, RestoreError};
use crate::journals::JournalError;
use crate::plan::Refusal;
use crate::resctrl::{AccessError, DomainId, GroupName};
use crate::topology::TopologyError;
use std::path::PathBuf;

/// Reason why nothing was reserved. Nothing was changed then, except with [`ReserveError::HalfUndone`].
#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    /// resctrl does not allocate ways of the last-level cache on this host.
    #[error(
        "the last-level cache cannot be shared out here: resctrl has none of L3, L3CODE, L3DATA; Skylake-SP \
         and Cascade Lake want rdt=l3cat on the kernel's command line"
    )]
    NoCache,
    /// resctrl is mounted read-only, so nothing can be changed.
    #[error(
        "{} is mounted read-only; as root: mount -o remount,rw {} (in a container: mount it from the host)",
        path.display(), path.display()
    )]
    ReadOnly {
        /// Mount point of resctrl.
        path: PathBuf,
    },
    /// Another process has a reservation under the requested name.
    #[error("another process has reserved cache as the group '{group}'; end it, or choose another name")]
    Running {
        /// Name of the group of both reservations.
        group: GroupName,
    },
    /// Another reservation has ways of a requested domain.
    #[error(
        "another process has reserved cache of domain {domain}, as the group '{group}': two at once cannot \
         both be put back; end it (or jet cache restore, where it only stands), or choose another domain"
    )]
    DomainTaken {
        /// Id of the cache that both reservations want.
        domain: DomainId,
        /// Group of the other reservation.
        group: GroupName,
    },
    /// A standing reservation, which outlives the process that made it, has the requested name, and differs
    /// from the request.
    #[error(
        "what stands reserved as '{group}' (jet cache apply) {problem}; give it back first (jet cache \
         restore), or ask for that"
    )]
    Standing {
        /// Name of the standing reservation's group.
        group: GroupName,
        /// Difference of the standing reservation from the request, in words.
        problem: &'static str,
    },
    /// The reservation cannot be planned.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What an earlier process left reserved cannot be put back.
    #[error(transparent)]
    Leftover(#[from] RestoreError),
    /// The kernel refused a step of making the reservation. The steps before it were undone.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The host's caches cannot be determined.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The journal could not be written, read or locked.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused a step of making the reservation, and the steps before it could not be undone. The
    /// next start tries again to undo them.
    #[error("{refused}; and what was done before could not be undone: {left}")]
    HalfUndone {
        /// Error of the refused step.
        refused: AccessError,
        /// Error of undoing the steps before.
        left: Box<RestoreError>,
    },
}

impl From<HoldingsError> for ReserveError {
    fn from(error: HoldingsError) -> Self {
        match error {
            HoldingsError::Access(error) => Self::Access(error),
            HoldingsError::Topology(error) => Self::Topology(error),
        }
    }
}

/// Reason why a thread was not moved.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// The thread is in another tool's group.
    #[error("thread {thread} is in the group '{group}' of another tool, and stays there")]
    Elsewhere {
        /// Id of the thread.
        thread: i32,
        /// Name of the group that the thread is in.
        group: String,
    },
    /// The kernel refused to move the thread.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// Error of a step of making a reservation, after its journal was written.
#[derive(Debug)]
pub(super) enum CarryError {
    Access(AccessError),
    Journal(JournalError),
}

impl From<AccessError> for CarryError {
    fn from(error: AccessError) -> Self {
        Self::Access(error)
    }
}

impl From<JournalError> for CarryError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

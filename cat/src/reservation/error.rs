//! Why nothing was reserved.

use super::{HoldingsError, RestoreError};
use crate::journals::JournalError;
use crate::plan::Refusal;
use crate::resctrl::{AccessError, DomainId, GroupName};
use crate::topology::TopologyError;
use std::path::PathBuf;

/// Why nothing was reserved. Nothing is changed then, but for [`ReserveError::HalfUndone`].
#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    /// The last-level cache is not shared out here.
    #[error(
        "the last-level cache cannot be shared out here: resctrl has none of L3, L3CODE, L3DATA; Skylake-SP \
         and Cascade Lake want rdt=l3cat on the kernel's command line"
    )]
    NoCache,
    /// Nothing can be changed.
    #[error(
        "{} is mounted read-only; as root: mount -o remount,rw {} (in a container: mount it from the host)",
        path.display(), path.display()
    )]
    ReadOnly {
        /// The folder.
        path: PathBuf,
    },
    /// Somebody else has this group.
    #[error("another process has reserved cache as the group '{group}'; end it, or choose another name")]
    Running {
        /// The group.
        group: GroupName,
    },
    /// Somebody else has ways there.
    #[error(
        "another process has reserved cache of domain {domain}, as the group '{group}': two at once cannot \
         both be put back; end it (or jet cache restore, where it only stands), or choose another domain"
    )]
    DomainTaken {
        /// The domain.
        domain: DomainId,
        /// Its group.
        group: GroupName,
    },
    /// There is one that was made to stand, and it is another.
    #[error(
        "what stands reserved as '{group}' (jet cache apply) {problem}; give it back first (jet cache \
         restore), or ask for that"
    )]
    Standing {
        /// The group.
        group: GroupName,
        /// What differs.
        problem: &'static str,
    },
    /// There is no way to do it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What a process before left cannot be put back.
    #[error(transparent)]
    Left(#[from] RestoreError),
    /// The kernel refused. What was done before is undone.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The caches cannot be told.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The journal cannot be kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused, and then refused to undo what was done before: the next start tries that again.
    #[error("{refused}; and what was done before could not be undone: {left}")]
    HalfUndone {
        /// Why it was not done.
        refused: AccessError,
        /// Why it was not undone.
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

/// Why a thread was not moved.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// It is in another tool's group.
    #[error("thread {thread} is in the group '{group}' of another tool, and stays there")]
    Elsewhere {
        /// The thread.
        thread: i32,
        /// Its group.
        group: String,
    },
    /// The kernel refused.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// What can go wrong between journal and end.
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

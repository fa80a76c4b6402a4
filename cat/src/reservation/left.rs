//! What processes that are gone had left reserved.

use super::journal::{self, Journal};
use super::locked;
use super::restore::{self, RestoreError, Restored};
use crate::journals::{JournalError, Journals, boot};
use crate::resctrl::{GroupName, Resctrl};
use std::fmt;
use std::path::Path;

/// What a process that is gone had left.
#[derive(Debug)]
pub struct Left {
    /// Its group.
    pub group: GroupName,
    /// What became of it.
    pub restored: Result<Restored, RestoreError>,
    /// What of it was forgotten and stays as it is, in words.
    pub stays: Vec<String>,
}

/// One line for people.
impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = &self.group;
        match &self.restored {
            Ok(Restored::Undone) => write!(f, "cache that was left reserved as '{group}' is given back"),
            Ok(Restored::Already) => {
                write!(f, "cache that was left reserved as '{group}' had been given back already")
            }
            Ok(Restored::Standing) => write!(f, "cache is reserved as '{group}', and stays so"),
            Ok(Restored::InUse) => {
                write!(f, "cache that is reserved as '{group}' is in use by a living process, and stays so")
            }
            Ok(Restored::OtherBoot) => {
                write!(f, "the journal of '{group}' was of another start of the kernel, and is removed")
            }
            Ok(Restored::Forgotten) => write!(
                f,
                "cache that was left reserved as '{group}' is forgotten: its journal is removed, and this \
                 stays as it is: {}",
                self.stays.join("; ")
            ),
            Err(error) => write!(f, "cache that was left reserved as '{group}' is not given back: {error}"),
        }
    }
}

/// Groups that are reserved by this kind of process, living ones and others.
///
/// # Errors
/// The folder of journals cannot be read.
pub fn reserved(folder: &Path) -> Result<Vec<GroupName>, JournalError> {
    if folder.is_dir() { Journals::open(folder)?.groups() } else { Ok(Vec::new()) }
}

/// Looks for what processes that are gone had left, and puts it back. What was made to outlive its process
/// stays.
///
/// # Errors
/// The folder of journals cannot be read. What cannot be put back is in the list.
pub fn recover(resctrl: &Resctrl, folder: &Path) -> Result<Vec<Left>, JournalError> {
    let journals = Journals::open(folder)?;
    let _transaction = journals.transaction()?;
    recover_locked(resctrl, &journals, Extent::Gone)
}

/// As [`recover`], and puts back what was made to outlive its process
/// ([`Reservation::leave`](super::Reservation::leave)), too, where no process uses it.
///
/// # Errors
/// As for [`recover`].
pub fn restore_all(resctrl: &Resctrl, folder: &Path) -> Result<Vec<Left>, JournalError> {
    let journals = Journals::open(folder)?;
    let _transaction = journals.transaction()?;
    recover_locked(resctrl, &journals, Extent::Standing)
}

/// As [`restore_all`]. What cannot be put back stays as it is. The journal is removed, so nothing remembers
/// what was before.
///
/// # Errors
/// As for [`recover`].
pub fn forget_all(resctrl: &Resctrl, folder: &Path) -> Result<Vec<Left>, JournalError> {
    let journals = Journals::open(folder)?;
    let _transaction = journals.transaction()?;
    recover_locked(resctrl, &journals, Extent::Forget)
}

/// How far putting back goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// What processes that are gone had left.
    Gone,
    /// And what is to outlive its process.
    Standing,
    /// And what cannot be put back is given up.
    Forget,
}

/// The caller has the transaction's lock.
pub(super) fn recover_locked(
    resctrl: &Resctrl,
    journals: &Journals,
    extent: Extent,
) -> Result<Vec<Left>, JournalError> {
    let mut all = Vec::new();
    for group in journals.groups()? {
        let journal = journals.read(&group);
        // What stands was made by a process that is gone, and may be used by others.
        let owner = journal.as_ref().ok().and_then(Option::as_ref).filter(|journal| !journal.standing);
        let Some(_ownership) = journals.inherit(&journal::name_of(&group), owner.map(|found| found.owner))?
        else {
            if extent != Extent::Gone {
                all.push(Left { group, restored: Ok(Restored::InUse), stays: Vec::new() });
            }
            continue;
        };
        // Read again: its owner may have written the last of it meanwhile.
        let (restored, stays) = match journals.read(&group) {
            Ok(Some(journal)) if extent == Extent::Gone && stands(resctrl, &journal)? => continue,
            Ok(Some(journal)) => put_back(resctrl, journals, &journal, extent),
            Ok(None) => continue,
            Err(error @ JournalError::Format { .. }) if extent == Extent::Forget => {
                let removed = journals.remove(&group).map(|()| Restored::Forgotten);
                (removed.map_err(RestoreError::from), vec![format!("what it was about: {error}")])
            }
            Err(error) => (Err(error.into()), Vec::new()),
        };
        all.push(Left { group, restored, stays });
    }
    Ok(all)
}

/// Whether it is to outlive its process. Of another boot, or another mount, nothing stands.
fn stands(resctrl: &Resctrl, journal: &Journal) -> Result<bool, JournalError> {
    Ok(journal.standing && journal.boot == boot()? && restore::is_of_this_mount(resctrl, journal))
}

/// What became of it, and what stays.
fn put_back(
    resctrl: &Resctrl,
    journals: &Journals,
    journal: &Journal,
    extent: Extent,
) -> (Result<Restored, RestoreError>, Vec<String>) {
    let restored = locked(resctrl, || restore::restore(resctrl, journals, journal));
    if extent != Extent::Forget || !restored.as_ref().is_err_and(RestoreError::may_stay_for_ever) {
        return (restored, Vec::new());
    }
    match locked(resctrl, || restore::forget(resctrl, journals, journal)) {
        // Somebody put right what did not fit a moment ago.
        Ok(stays) if stays.is_empty() => (Ok(Restored::Undone), stays),
        Ok(stays) => (Ok(Restored::Forgotten), stays),
        Err(error) => (Err(error), Vec::new()),
    }
}

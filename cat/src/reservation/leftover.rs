//! Reservations that processes left when they ended.

use super::journal::{self, Journal};
use super::locked;
use super::restore::{self, RestoreError, Restored};
use crate::journals::{JournalError, Journals, boot};
use crate::resctrl::{GroupName, Resctrl};
use std::fmt;
use std::path::Path;

/// Reservation that a process left, and the outcome of giving it back.
#[derive(Debug)]
pub struct Leftover {
    /// Name of the reservation's group.
    pub group: GroupName,
    /// Outcome of giving the reservation back.
    pub restored: Result<Restored, RestoreError>,
    /// Descriptions of what was not put back, and is no longer in any journal.
    pub stays: Vec<String>,
}

/// Describes the outcome in one line, for people.
impl fmt::Display for Leftover {
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

/// Returns the names of the groups that have a reservation, whether its process lives or not.
///
/// # Errors
/// [`JournalError`]: the folder of journals cannot be read.
pub fn reserved(folder: &Path) -> Result<Vec<GroupName>, JournalError> {
    if folder.is_dir() { Journals::open(folder)?.groups() } else { Ok(Vec::new()) }
}

/// Undoes every reservation whose process has ended. Standing reservations, which are to outlive their
/// process, stay.
///
/// # Errors
/// [`JournalError`]: the folder of journals cannot be read. A reservation that cannot be put back is in the
/// list.
pub fn recover(resctrl: &Resctrl, folder: &Path) -> Result<Vec<Leftover>, JournalError> {
    let journals = Journals::open(folder)?;
    let _transaction = journals.transaction()?;
    recover_locked(resctrl, &journals, RecoveryScope::Gone)
}

/// Undoes every reservation whose process has ended, and every standing one
/// ([`Reservation::leave`](super::Reservation::leave)) that no process uses.
///
/// # Errors
/// [`JournalError`], as for [`recover`].
pub fn restore_all(resctrl: &Resctrl, folder: &Path) -> Result<Vec<Leftover>, JournalError> {
    let journals = Journals::open(folder)?;
    let _transaction = journals.transaction()?;
    recover_locked(resctrl, &journals, RecoveryScope::Standing)
}

/// Undoes the same reservations as [`restore_all`], and leaves as they are the ways that cannot be put back.
/// The journals are removed, so nothing records the previous state any more.
///
/// # Errors
/// [`JournalError`], as for [`recover`].
pub fn forget_all(resctrl: &Resctrl, folder: &Path) -> Result<Vec<Leftover>, JournalError> {
    let journals = Journals::open(folder)?;
    let _transaction = journals.transaction()?;
    recover_locked(resctrl, &journals, RecoveryScope::Forget)
}

/// Choice of the reservations that are put back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RecoveryScope {
    /// Puts back the reservations that processes left when they ended.
    Gone,
    /// Puts back standing reservations, too.
    Standing,
    /// Puts back standing reservations, too, and gives up what cannot be put back.
    Forget,
}

/// Undoes the reservations that `scope` selects. The caller has the lock of the journals' folder.
pub(super) fn recover_locked(
    resctrl: &Resctrl,
    journals: &Journals,
    scope: RecoveryScope,
) -> Result<Vec<Leftover>, JournalError> {
    let mut all = Vec::new();
    for group in journals.groups()? {
        let journal = journals.read(&group);
        // The process that made a standing reservation may be gone while others use it, so only the lock
        // counts.
        let owner = journal.as_ref().ok().and_then(Option::as_ref).filter(|journal| !journal.standing);
        let Some(_ownership) = journals.inherit(&journal::name_of(&group), owner.map(|found| found.owner))?
        else {
            if scope != RecoveryScope::Gone {
                all.push(Leftover { group, restored: Ok(Restored::InUse), stays: Vec::new() });
            }
            continue;
        };
        // Read again under the lock: its owner may have written the journal meanwhile.
        let (restored, stays) = match journals.read(&group) {
            Ok(Some(journal)) if scope == RecoveryScope::Gone && outlives_its_process(resctrl, &journal)? => {
                continue;
            }
            Ok(Some(journal)) => put_back(resctrl, journals, &journal, scope),
            Ok(None) => continue,
            Err(error @ JournalError::Format { .. }) if scope == RecoveryScope::Forget => {
                let removed = journals.remove(&group).map(|()| Restored::Forgotten);
                (removed.map_err(RestoreError::from), vec![format!("what it was about: {error}")])
            }
            Err(error) => (Err(error.into()), Vec::new()),
        };
        all.push(Leftover { group, restored, stays });
    }
    Ok(all)
}

/// Returns whether the reservation is to outlive its process. A reservation from before the kernel's last
/// start, or of another mount, is gone.
fn outlives_its_process(resctrl: &Resctrl, journal: &Journal) -> Result<bool, JournalError> {
    Ok(journal.standing && journal.boot == boot()? && restore::is_of_this_mount(resctrl, journal))
}

/// Puts one reservation back. Returns the outcome, and descriptions of what was not put back.
fn put_back(
    resctrl: &Resctrl,
    journals: &Journals,
    journal: &Journal,
    scope: RecoveryScope,
) -> (Result<Restored, RestoreError>, Vec<String>) {
    let restored = locked(resctrl, || restore::restore(resctrl, journals, journal));
    if scope != RecoveryScope::Forget || !restored.as_ref().is_err_and(RestoreError::may_stay_for_ever) {
        return (restored, Vec::new());
    }
    match locked(resctrl, || restore::forget(resctrl, journals, journal)) {
        // What did not fit a moment ago was corrected meanwhile.
        Ok(stays) if stays.is_empty() => (Ok(Restored::Undone), stays),
        Ok(stays) => (Ok(Restored::Forgotten), stays),
        Err(error) => (Err(error), Vec::new()),
    }
}

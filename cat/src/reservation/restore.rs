//! Putting back what a journal says was there, if what is found fits it.

use super::journal::Journal;
use crate::journals::{JournalError, Journals, boot};
use crate::plan::{Change, Ways, l3_ways, schemata};
use crate::resctrl::{AccessError, GroupName, Resctrl, WayMask};

/// What became of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restored {
    /// Everything is as before.
    Undone,
    /// There was nothing to do any more: somebody did it, or unmounted the file system, which does it.
    Already,
    /// It was made to outlive its processes, and stands.
    Standing,
    /// A living process uses it.
    InUse,
    /// It is of another start of the kernel, which has forgotten all this. Nothing was changed.
    OtherBoot,
}

/// Why something was not put back.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// What is found is neither what was nor what was made of it. Nothing was changed.
    #[error(
        "the journal of the group '{group}' does not fit what is found, so nothing was changed: {problem}. Put that right by \
         hand, as {path} says what was before and after, then: jet cache restore"
    )]
    Misfit {
        /// The reservation's group.
        group: GroupName,
        /// What does not fit.
        problem: String,
        /// The journal.
        path: String,
    },
    /// The kernel refused; what is left is tried again with the next start.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The journal cannot be read or removed.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Undoes what a journal says, and removes it. The caller has the transaction's lock and owns the group.
pub(super) fn restore(
    resctrl: &Resctrl,
    journals: &Journals,
    journal: &Journal,
) -> Result<Restored, RestoreError> {
    if journal.boot != boot()? {
        journals.remove(&journal.group)?;
        return Ok(Restored::OtherBoot);
    }
    if !resctrl.is_mounted() {
        // Whether it is mounted elsewhere, or will be, is not known: the journal stays.
        return Err(AccessError::Unmounted { path: resctrl.mount().path.clone() }.into());
    }
    if !is_of_this_mount(resctrl, journal) {
        journals.remove(&journal.group)?;
        return Ok(Restored::Already);
    }
    // Everything is looked at before anything is changed.
    let is_there = check_group(resctrl, journals, journal)?;
    let mut returns = Vec::new();
    for loss in &journal.losses {
        let ways = to_be_put_back(resctrl, journals, journal, loss)?;
        if !ways.is_empty() {
            returns.push((&loss.group, ways));
        }
    }
    if journal.standing {
        // From here on it is not standing any more, whatever becomes of this process. Where that cannot be written down (the disk
        // is full) it is put back all the same.
        let _ = journals.write(&Journal { standing: false, ..journal.clone() });
    }
    if is_there {
        resctrl.remove(&journal.group)?;
    }
    // Who cannot get back what he had is no reason that others do not.
    let mut refused = None;
    for (group, ways) in &returns {
        if let Err(error) = resctrl.group(group).set_schemata(&schemata(ways)) {
            refused = refused.or(Some(error));
        }
    }
    if let Some(error) = refused {
        return Err(error.into());
    }
    journals.remove(&journal.group)?;
    Ok(if is_there || !returns.is_empty() { Restored::Undone } else { Restored::Already })
}

/// Unmounting undid what was done on another.
fn is_of_this_mount(resctrl: &Resctrl, journal: &Journal) -> bool {
    match (journal.mount, resctrl.mount_number()) {
        (Some(then), Some(now)) => then == now,
        _ => true,
    }
}

/// Whether the group is there and the one that was made.
pub(super) fn check(resctrl: &Resctrl, journals: &Journals, journal: &Journal) -> Result<(), RestoreError> {
    if journal.boot == boot()?
        && is_of_this_mount(resctrl, journal)
        && check_group(resctrl, journals, journal)?
    {
        return Ok(());
    }
    let problem =
        format!("there is no group '{}' any more; jet cache restore removes the journal", journal.group);
    Err(misfit(journals, journal, problem))
}

fn misfit(journals: &Journals, journal: &Journal, problem: String) -> RestoreError {
    let path = journals.path(&journal.group).display().to_string();
    RestoreError::Misfit { group: journal.group.clone(), problem, path }
}

/// Whether the group is there, and is the one that was made.
fn check_group(resctrl: &Resctrl, journals: &Journals, journal: &Journal) -> Result<bool, RestoreError> {
    let group = resctrl.group(&journal.group);
    let Some(inode) = group.inode() else { return Ok(false) };
    match journal.inode {
        Some(made) if made == inode => Ok(true),
        Some(_) => Err(misfit(journals, journal, format!("'{}' is another group now", journal.group))),
        // Made, and the end came before that was written down. What was just made has nobody in it.
        None if is_just_made(resctrl, journal)? => Ok(true),
        None => Err(misfit(
            journals,
            journal,
            format!("'{}' has threads, processors or ways that this program gave it not", journal.group),
        )),
    }
}

/// Whether a group may be one that was made a moment before its maker's end: it has nobody in it, and still all ways of those that
/// it was to get.
fn is_just_made(resctrl: &Resctrl, journal: &Journal) -> Result<bool, RestoreError> {
    let group = resctrl.group(&journal.group);
    let found = l3_ways(&group.schemata()?);
    let has = |resource, domain, ways: WayMask| {
        let found = found.get(resource).and_then(|found| found.get(domain));
        found.is_none_or(|found| found.contains(ways))
    };
    let own = journal.own.iter().flat_map(|(resource, ways)| ways.iter().map(move |way| (resource, way)));
    let mut own = own.filter(|(_, (domain, _))| journal.domains.contains(domain));
    Ok(group.threads()?.is_empty()
        && group.cpus()?.is_empty()
        && own.all(|(resource, (domain, ways))| has(resource, domain, *ways)))
}

/// What a group is to get back: ways of those domains in which it has what it was left with. Where it has what it had before,
/// it got it back already. A domain whose processors are all offline is not there, and has everything when they are back.
fn to_be_put_back(
    resctrl: &Resctrl,
    journals: &Journals,
    journal: &Journal,
    loss: &Change,
) -> Result<Ways, RestoreError> {
    let inode = resctrl.group(&loss.group).inode();
    if journal.losers.get(&loss.group).is_some_and(|made| Some(*made) != inode) {
        // A later group of that name.
        return Ok(Ways::new());
    }
    let cache = resctrl.info()?.l3().cloned();
    let found = match resctrl.group(&loss.group).schemata() {
        Ok(schemata) => l3_ways(&schemata),
        // A group that was removed needs nothing.
        Err(error) if error.is_missing() => return Ok(Ways::new()),
        Err(error) => return Err(error.into()),
    };
    let mut returns = Ways::new();
    for (resource, domains) in &loss.before {
        // Mounted anew with or without CDP: unmounting gave everything back.
        let Some(found) = found.get(resource) else { continue };
        for (domain, before) in domains {
            let after = loss.after.get(resource).and_then(|ways| ways.get(domain));
            match found.get(domain) {
                None => {}
                Some(has) if has == before => {}
                // What it was left with; or everything, as the kernel gives to a domain whose processors were all offline.
                Some(has) if Some(has) == after || cache.as_ref().is_some_and(|cache| *has == cache.ways) => {
                    if cache.as_ref().is_some_and(|cache| !cache.ways.contains(*before)) {
                        let problem = format!("ways {before} of {resource} of domain {domain} are none");
                        return Err(misfit(journals, journal, problem));
                    }
                    returns.entry(resource.clone()).or_default().insert(*domain, *before);
                }
                Some(has) => {
                    let problem = format!(
                        "{} has {has} of {resource} of domain {domain}, where {} is left over and {before} was before",
                        loss.group,
                        after.copied().unwrap_or_default()
                    );
                    return Err(misfit(journals, journal, problem));
                }
            }
        }
    }
    Ok(returns)
}

//! Restoration of the state that a journal records, if the current state fits the journal.

use super::journal::Journal;
use crate::journals::{JournalError, Journals, boot};
use crate::plan::{Change, Ways, l3_ways, schemata};
use crate::resctrl::{AccessError, GroupName, Mode, Resctrl, WayMask};
use std::collections::BTreeMap;

/// Outcome of putting a reservation back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restored {
    /// Everything is as before the reservation.
    Undone,
    /// Nothing was left to put back: somebody had done it, or had unmounted resctrl, which has the same
    /// effect.
    Already,
    /// The reservation was made to outlive its process, and stays.
    Standing,
    /// A living process uses the reservation.
    InUse,
    /// The journal is from before the kernel's last start, and the kernel has forgotten the reservation. Only
    /// the journal was removed.
    OtherBoot,
    /// The previous state could not be put back completely, and nothing records it any more.
    Forgotten,
}

/// Reason why a reservation was not put back.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The current state is neither as before nor as the reservation made it, or another group exclusively
    /// has ways that are to be put back. Nothing was changed.
    #[error(
        "the journal of the group '{group}' does not fit what is found, so nothing was changed: {problem}. \
         Put that right by hand, as {path} says what was before and after, then: jet cache restore. Or let \
         it stay as it is: jet cache restore --forget"
    )]
    Misfit {
        /// Group of the reservation.
        group: GroupName,
        /// Description of what does not fit.
        problem: String,
        /// Path of the journal.
        path: String,
    },
    /// The kernel refused to set the previous ways of some group.
    #[error(
        "the kernel refused to give back some ways that were taken for '{group}': {source}. What was before \
         is in {path}; jet cache restore tries again, jet cache restore --forget lets it stay as it is"
    )]
    Refused {
        /// Group of the reservation.
        group: GroupName,
        /// Error of the first refused write.
        source: Box<AccessError>,
        /// Path of the journal.
        path: String,
    },
    /// resctrl cannot be read or changed now. The next start tries to put the rest back.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The journal cannot be read or removed.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl RestoreError {
    /// Returns whether retrying may never help, since the cause is none of permissions, mounts or timing.
    pub(super) fn may_stay_for_ever(&self) -> bool {
        matches!(
            self,
            Self::Misfit { .. } | Self::Refused { .. } | Self::Journal(JournalError::Format { .. })
        )
    }
}

/// Undoes what a journal records, and removes the journal. The caller has the lock of the journals' folder,
/// the lock on resctrl, and the lock that marks the group's owner.
pub(super) fn restore(
    resctrl: &Resctrl,
    journals: &Journals,
    journal: &Journal,
) -> Result<Restored, RestoreError> {
    if let Some(restored) = undone_elsewhere(resctrl, journals, journal)? {
        return Ok(restored);
    }
    // Everything is checked before anything is changed.
    let is_there = check_group(resctrl, journals, journal)?;
    let Returns { returns, misfits } = returns(resctrl, journal, is_there)?;
    if !misfits.is_empty() {
        return Err(misfit(journals, journal, misfits.join("; ")));
    }
    if journal.standing {
        // From here on the reservation no longer stands, whatever happens to this process. If that cannot be
        // written (the disk is full), the reservation is put back all the same.
        let _ = journals.write(&Journal { standing: false, ..journal.clone() });
    }
    if is_there {
        resctrl.remove(&journal.group)?;
    }
    // If one group's ways cannot be put back, the others' still are.
    let mut refused = None;
    for (group, ways) in &returns {
        if let Err(error) = resctrl.group(group).set_schemata(&schemata(ways)) {
            refused = refused.or(Some(error));
        }
    }
    if let Some(source) = refused {
        if source.errno() != Some(libc::EINVAL) {
            return Err(source.into());
        }
        let path = journals.path(&journal.group).display().to_string();
        let group = journal.group.clone();
        return Err(RestoreError::Refused { group, source: Box::new(source), path });
    }
    journals.remove(&journal.group)?;
    Ok(if is_there || !returns.is_empty() { Restored::Undone } else { Restored::Already })
}

/// Undoes what can be undone of what a journal records, leaves the rest as it is, and removes the journal.
/// Returns descriptions of what stays.
pub(super) fn forget(
    resctrl: &Resctrl,
    journals: &Journals,
    journal: &Journal,
) -> Result<Vec<String>, RestoreError> {
    let mut stays = Vec::new();
    let is_there = match check_group(resctrl, journals, journal) {
        Ok(is_there) => is_there,
        Err(RestoreError::Misfit { problem, .. }) => {
            stays.push(problem);
            false
        }
        Err(error) => return Err(error),
    };
    let Returns { returns, misfits } = returns(resctrl, journal, is_there)?;
    stays.extend(misfits);
    if is_there && let Err(error) = resctrl.remove(&journal.group) {
        stays.push(format!("the group '{}': {error}", journal.group));
    }
    for (group, ways) in &returns {
        // Each cache is put back independently of the others.
        for (resource, domains) in ways {
            for (domain, before) in domains {
                let one = BTreeMap::from([(*domain, *before)]);
                let one = schemata(&Ways::from([(resource.clone(), one)]));
                if let Err(error) = resctrl.group(group).set_schemata(&one) {
                    stays.push(format!("what {group} has of {resource} of domain {domain}: {error}"));
                }
            }
        }
    }
    journals.remove(&journal.group)?;
    Ok(stays)
}

/// Checks whether the kernel has already forgotten what a journal records. If so, removes the journal and
/// returns the outcome.
fn undone_elsewhere(
    resctrl: &Resctrl,
    journals: &Journals,
    journal: &Journal,
) -> Result<Option<Restored>, RestoreError> {
    if journal.boot != boot()? {
        journals.remove(&journal.group)?;
        return Ok(Some(Restored::OtherBoot));
    }
    if !resctrl.is_mounted() {
        // resctrl may be mounted elsewhere, or be mounted again later, so the journal stays.
        return Err(AccessError::Unmounted { path: resctrl.mount().path.clone() }.into());
    }
    if !is_of_this_mount(resctrl, journal) {
        journals.remove(&journal.group)?;
        return Ok(Some(Restored::Already));
    }
    Ok(None)
}

/// Returns whether the journal belongs to the current mount; `true` where mounts cannot be told apart.
/// Unmounting has undone what was done in an earlier mount.
pub(super) fn is_of_this_mount(resctrl: &Resctrl, journal: &Journal) -> bool {
    match (journal.mount, resctrl.mount_number()) {
        (Some(then), Some(now)) => then == now,
        _ => true,
    }
}

/// Checks that the group exists, and is the one that this journal's reservation made.
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

/// Returns whether the journal's group exists. Fails where the group of that name is not the one that the
/// reservation made.
fn check_group(resctrl: &Resctrl, journals: &Journals, journal: &Journal) -> Result<bool, RestoreError> {
    let group = resctrl.group(&journal.group);
    let Some(inode) = group.inode() else { return Ok(false) };
    match journal.inode {
        Some(made) if made == inode => Ok(true),
        Some(_) => Err(misfit(journals, journal, format!("'{}' is another group now", journal.group))),
        // The process ended after it made the group and before it recorded the inode number. A group that was
        // just made has no threads yet.
        None if is_just_made(resctrl, journal)? => Ok(true),
        None => Err(misfit(
            journals,
            journal,
            format!("'{}' has threads, processors or ways that this program gave it not", journal.group),
        )),
    }
}

/// Returns whether the journal's group may have been made just before its maker ended: it has no threads and
/// no processors, and still has at least all ways that it was to get.
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

/// Ways that groups get back, and descriptions of what does not fit.
#[derive(Default)]
struct Returns {
    returns: Vec<(GroupName, Ways)>,
    misfits: Vec<String>,
}

/// Returns the ways that groups get back which lost some to the reservation. `is_there` says whether the
/// reservation's group still exists.
fn returns(resctrl: &Resctrl, journal: &Journal, is_there: bool) -> Result<Returns, RestoreError> {
    let own = is_there.then_some(&journal.group);
    let kept = ways_kept_for_one(resctrl, own)?;
    let ways = match own.map(|own| resctrl.group(own).schemata()) {
        Some(Ok(schemata)) => l3_ways(&schemata),
        // The group was removed meanwhile.
        Some(Err(error)) if !error.is_missing() => return Err(error.into()),
        _ => Ways::new(),
    };
    let mut all = Returns::default();
    for loss in &journal.losses {
        let back = to_be_put_back(resctrl, journal, loss, &ways, &kept, &mut all.misfits)?;
        if !back.is_empty() {
            all.returns.push((loss.group.clone(), back));
        }
    }
    Ok(all)
}

/// Returns the exclusive and pseudo-locked groups other than `own`, with their ways. The kernel gives these
/// ways to no other group.
fn ways_kept_for_one(
    resctrl: &Resctrl,
    own: Option<&GroupName>,
) -> Result<Vec<(GroupName, Ways)>, RestoreError> {
    let mut kept = Vec::new();
    for name in resctrl.groups()? {
        let group = resctrl.group(&name);
        let read = || Ok((group.mode()?, l3_ways(&group.schemata()?)));
        match read() {
            Ok((Mode::Exclusive | Mode::PseudoLocked, ways)) if own != Some(&name) => kept.push((name, ways)),
            Ok(_) => {}
            // The group was removed meanwhile.
            Err(error) if AccessError::is_missing(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(kept)
}

/// Returns the ways that a group gets back: those of the domains in which it still has the ways that the
/// reservation left it.
///
/// Where it has its previous ways already, it gets nothing. A domain whose processors are all offline is
/// missing; the kernel gives every group all of its ways when they return.
fn to_be_put_back(
    resctrl: &Resctrl,
    journal: &Journal,
    loss: &Change,
    own: &Ways,
    kept: &[(GroupName, Ways)],
    misfits: &mut Vec<String>,
) -> Result<Ways, RestoreError> {
    let inode = resctrl.group(&loss.group).inode();
    if journal.changed_groups.get(&loss.group).is_some_and(|made| Some(*made) != inode) {
        // This is a later group of the same name.
        return Ok(Ways::new());
    }
    let all = resctrl.info()?.l3().map(|cache| cache.ways);
    let of = |ways: &Ways, resource, domain| ways.get(resource)?.get(domain).copied();
    let found = match resctrl.group(&loss.group).schemata() {
        Ok(schemata) => l3_ways(&schemata),
        // A group that was removed needs nothing.
        Err(error) if error.is_missing() => return Ok(Ways::new()),
        Err(error) => return Err(error.into()),
    };
    let mut returns = Ways::new();
    for (resource, domains) in &loss.before {
        // resctrl was mounted again with or without CDP; unmounting gave everything back.
        let Some(found) = found.get(resource) else { continue };
        for (domain, &before) in domains {
            let after =
                loss.after.get(resource).and_then(|ways| ways.get(domain)).copied().unwrap_or_default();
            let Some(&has) = found.get(domain) else { continue };
            let of_kept = |(_, ways): &&(GroupName, Ways)| {
                ways.values().filter_map(|ways| ways.get(domain)).any(|ways| ways.overlaps(before))
            };
            if has == before {
                continue;
            }
            // Since the reservation's own group has all ways, the kernel forgot this domain. So other groups'
            // ways were set after that, and stay.
            let is_forgotten = all.is_some() && of(own, resource, domain) == all;
            if is_forgotten && has != after && Some(has) != all {
                continue;
            }
            // Expected is what the group was left with; or all ways, which the kernel gives to a domain whose
            // processors were all offline.
            if has != after && Some(has) != all {
                misfits.push(format!(
                    "{} has {has} of {resource} of domain {domain}, where {after} is left over and {before} \
                     was before",
                    loss.group
                ));
            } else if all.is_some_and(|all| !all.contains(before)) {
                misfits.push(format!("ways {before} of {resource} of domain {domain} are none"));
            } else if let Some((other, _)) = kept.iter().find(of_kept) {
                misfits.push(format!(
                    "{} has {has} of {resource} of domain {domain}, where {before} was before, of which the \
                     group '{other}' has ways for itself now (jet cache show)",
                    loss.group
                ));
            } else {
                returns.entry(resource.clone()).or_default().insert(*domain, before);
            }
        }
    }
    Ok(returns)
}

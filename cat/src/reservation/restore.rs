//! Putting back what a journal says was there, if what is found fits it.

use super::journal::{Journal, JournalError, Journals, Loss, boot};
use crate::plan::{Ways, l3_ways, schemata};
use crate::resctrl::{AccessError, GroupName, Resctrl};

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
    /// It is of another start of the kernel, which has forgotten all this. Nothing was changed.
    OtherBoot,
}

/// Why something was not put back.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// What is found is neither what was nor what was made of it. Nothing was changed.
    #[error(
        "the journal of the group '{group}' does not fit what is found, so nothing was changed: {problem}. See \
         {path}; put right by hand what it says, and remove it"
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
    // Everything is looked at before anything is changed.
    let is_there = check_group(resctrl, journals, journal)?;
    let mut losses = Vec::new();
    for loss in &journal.losses {
        if is_to_be_put_back(resctrl, journals, journal, loss)? {
            losses.push(loss);
        }
    }
    if is_there {
        resctrl.remove(&journal.group)?;
    }
    for loss in &losses {
        resctrl.group(&loss.group).set_schemata(&schemata(&loss.before))?;
    }
    journals.remove(&journal.group)?;
    Ok(if is_there || !losses.is_empty() { Restored::Undone } else { Restored::Already })
}

/// Whether the group is there and the one that was made.
pub(super) fn check(resctrl: &Resctrl, journals: &Journals, journal: &Journal) -> Result<(), RestoreError> {
    if journal.boot == boot()? && check_group(resctrl, journals, journal)? {
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
        None if group.threads()?.is_empty() && group.cpus()?.is_empty() => Ok(true),
        None => Err(misfit(
            journals,
            journal,
            format!("'{}' has threads or processors, which this program gave it not", journal.group),
        )),
    }
}

/// Whether a group still has what it was left with: then it gets back what it lost. If it has what it had, it got it back
/// already.
fn is_to_be_put_back(
    resctrl: &Resctrl,
    journals: &Journals,
    journal: &Journal,
    loss: &Loss,
) -> Result<bool, RestoreError> {
    let found = match resctrl.group(&loss.group).schemata() {
        Ok(schemata) => l3_ways(&schemata),
        // A group that was removed needs nothing.
        Err(error) if error.is_missing() => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    // Mounted anew with or without CDP: unmounting gave everything back.
    if loss.before.keys().any(|resource| !found.contains_key(resource)) {
        return Ok(false);
    }
    let found = only(&found, &loss.before);
    // A domain without processors has no mask, and gets a full one when they are back.
    if found == only(&loss.before, &found) {
        Ok(false)
    } else if found == only(&loss.after, &found) {
        Ok(true)
    } else {
        let problem = format!(
            "{} has {}, where {} is left over and {} was before",
            loss.group,
            one_line(&found),
            one_line(&loss.after),
            one_line(&loss.before)
        );
        Err(misfit(journals, journal, problem))
    }
}

/// Of some ways those of resources and domains that others name.
fn only(ways: &Ways, named: &Ways) -> Ways {
    let mut found = Ways::new();
    for (resource, domains) in ways {
        let Some(named) = named.get(resource) else { continue };
        let named = domains.iter().filter(|(domain, _)| named.contains_key(domain));
        found.insert(resource.clone(), named.map(|(domain, ways)| (*domain, *ways)).collect());
    }
    found
}

fn one_line(ways: &Ways) -> String {
    schemata(ways).to_string().trim_end().replace('\n', " ")
}

//! Journal of a reservation: a file with the previous state, written before anything is changed.

use crate::journals::{JournalError, Journals, Owner};
use crate::plan::{Change, DomainPlan, Holdings, Plan, Ways};
use crate::resctrl::{DomainId, GroupName, Mode, Resctrl, Resource, WayMask};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

const VERSION: u32 = 1;

/// Ending of a journal's file name, after the group's name.
const ENDING: &str = ".json";

/// Contents of a reservation's journal: what is changed, and what was before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Journal {
    pub version: u32,
    /// The kernel's boot id when the journal was written. A reboot deletes all groups.
    pub boot: String,
    pub group: GroupName,
    /// Whether the reservation stands: it outlives the process that made it, and is given back only on
    /// request.
    #[serde(default)]
    pub standing: bool,
    /// Number of the resctrl mount, where the kernel can tell mounts apart. Unmounting undoes the
    /// reservation, and a group of a later mount may have the same inode number.
    #[serde(default)]
    pub mount: Option<u64>,
    /// Process that made the reservation.
    pub owner: Owner,
    /// Inode number of the group's folder, once the group is made.
    pub inode: Option<u64>,
    /// Inode numbers of the folders of groups that lose ways. They tell these groups from later ones of the
    /// same names.
    #[serde(default, rename = "losers")]
    pub changed_groups: BTreeMap<GroupName, u64>,
    #[serde(with = "crate::plan::as_schemata")]
    pub own: Ways,
    /// Changes of the groups that lose ways.
    pub losses: Vec<Change>,
    /// Domains that were asked for.
    pub domains: Vec<DomainId>,
}

impl Journal {
    pub fn of(plan: &Plan, boot: String, resctrl: &Resctrl) -> Self {
        let inode = |change: &Change| Some((change.group.clone(), resctrl.group(&change.group).inode()?));
        Self {
            version: VERSION,
            boot,
            group: plan.group.clone(),
            standing: false,
            mount: resctrl.mount_number(),
            owner: Owner::this(),
            inode: None,
            changed_groups: plan.changes.iter().filter_map(inode).collect(),
            own: plan.own.clone(),
            losses: plan.changes.clone(),
            domains: plan.domains.iter().map(|planned| planned.domain).collect(),
        }
    }

    /// Returns a group's ways of a domain before and after the reservation, or `None` where it lost none
    /// there.
    pub fn change_of(
        &self,
        group: &GroupName,
        resource: &Resource,
        domain: DomainId,
    ) -> Option<(WayMask, WayMask)> {
        let loss = self.losses.iter().find(|loss| loss.group == *group)?;
        let of = |ways: &Ways| ways.get(resource)?.get(&domain).copied();
        Some((of(&loss.before)?, of(&loss.after)?))
    }

    /// Drops the record of a group's change in a domain, since another tool has set the group's ways there
    /// meanwhile. The group then keeps those ways, and gets none back there.
    pub fn forget_change(&mut self, group: &GroupName, resource: &Resource, domain: DomainId) {
        let forget = |ways: &mut Ways| {
            ways.entry(resource.clone()).or_default().remove(&domain);
            ways.retain(|_, domains| !domains.is_empty());
        };
        for loss in self.losses.iter_mut().filter(|loss| loss.group == *group) {
            forget(&mut loss.before);
            forget(&mut loss.after);
        }
        self.losses.retain(|loss| !loss.before.is_empty());
    }

    /// Records that a group gives up ways. Its ways before the first recorded change are kept. `inode`: inode
    /// number of the group's folder.
    pub fn record_change(&mut self, loss: &Change, inode: Option<u64>) {
        let group = &loss.group;
        if self.changed_groups.get(group).copied() != inode {
            // The recorded loss is of an earlier group of the same name.
            self.losses.retain(|other| other.group != *group);
        }
        if let Some(inode) = inode {
            self.changed_groups.insert(group.clone(), inode);
        }
        let at = self.losses.iter().position(|other| other.group == *group).unwrap_or_else(|| {
            self.losses.push(Change { group: group.clone(), before: Ways::new(), after: Ways::new() });
            self.losses.len() - 1
        });
        let known = &mut self.losses[at];
        for (resource, domains) in &loss.before {
            let before = known.before.entry(resource.clone()).or_default();
            for (domain, ways) in domains {
                before.entry(*domain).or_insert(*ways);
            }
        }
        for (resource, domains) in &loss.after {
            known.after.entry(resource.clone()).or_default().extend(domains);
        }
    }

    /// Reconstructs the plan, as far as the journal records it.
    pub fn plan(&self, found: &Holdings) -> Plan {
        let ways_of = |ways: &Ways, domain| {
            let ways = ways.values().filter_map(|ways| ways.get(&domain));
            ways.fold(WayMask::EMPTY, |all, ways| all | *ways)
        };
        let default = found.holders.iter().find(|holder| holder.name.is_default());
        let domains = self.domains.iter().map(|&domain| {
            let ways = ways_of(&self.own, domain);
            DomainPlan {
                domain,
                ways,
                bytes: u64::from(ways.count()) * found.way_bytes.get(&domain).copied().unwrap_or(0),
                with_devices: ways & found.cache.shareable,
                left: default.map_or(WayMask::EMPTY, |holder| ways_of(&holder.ways, domain)),
            }
        });
        let group = found.holders.iter().find(|holder| holder.name == self.group);
        Plan {
            group: self.group.clone(),
            own: self.own.clone(),
            exclusive: group.is_some_and(|group| group.mode == Mode::Exclusive),
            locked: group.is_some_and(|group| group.mode == Mode::PseudoLocked),
            changes: self.losses.clone(),
            domains: domains.collect(),
        }
    }
}

/// Access to the reservations' journals, one for each group.
impl Journals {
    pub(super) fn path(&self, group: &GroupName) -> PathBuf {
        self.file(&name_of(group))
    }

    /// Returns the names of the groups that have a journal, sorted.
    pub(super) fn groups(&self) -> Result<Vec<GroupName>, JournalError> {
        Ok(self.names(ENDING)?.iter().filter_map(|name| GroupName::new(name).ok()).collect())
    }

    /// Reads a group's journal, or returns `None` where there is none.
    pub(super) fn read(&self, group: &GroupName) -> Result<Option<Journal>, JournalError> {
        let Some(journal) = self.load::<Journal>(&name_of(group))? else { return Ok(None) };
        let path = self.path(group);
        let refused = |problem: String| JournalError::Format { path: path.clone(), problem };
        if journal.version != VERSION {
            return Err(refused(format!("it is of version {}", journal.version)));
        }
        let keys = |ways: &Ways| -> Vec<_> {
            ways.iter()
                .flat_map(|(resource, ways)| ways.keys().map(move |domain| (resource.clone(), *domain)))
                .collect()
        };
        if journal.losses.iter().any(|loss| keys(&loss.before) != keys(&loss.after)) {
            return Err(refused("before and after are not of the same domains".to_owned()));
        }
        if journal.group != *group {
            return Err(refused(format!("it is of the group '{}'", journal.group)));
        }
        Ok(Some(journal))
    }

    pub(super) fn write(&self, journal: &Journal) -> Result<(), JournalError> {
        self.save(&name_of(&journal.group), journal)
    }

    pub(super) fn remove(&self, group: &GroupName) -> Result<(), JournalError> {
        self.forget(&name_of(group))
    }
}

/// Returns the name of a group's journal file. The name of its lock file is derived from it.
pub(super) fn name_of(group: &GroupName) -> String {
    format!("{group}{ENDING}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn journal() -> Journal {
        let ways = |bits| Ways::from([(Resource::L3, BTreeMap::from([(0, WayMask(bits))]))]);
        Journal {
            version: VERSION,
            boot: "b".to_owned(),
            group: GroupName::new("jet").unwrap(),
            standing: false,
            mount: Some(3),
            owner: Owner::this(),
            inode: Some(7),
            changed_groups: BTreeMap::new(),
            own: ways(0xf),
            losses: vec![Change {
                group: GroupName::default_group(),
                before: ways(0xfffff),
                after: ways(0xffff0),
            }],
            domains: vec![0],
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_an_operator_can_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let journals = Journals::open(dir.path()).unwrap();
        let journal = journal();
        assert_eq!(journals.read(&journal.group).unwrap(), None);
        journals.write(&journal).unwrap();
        journals.write(&journal).unwrap();
        assert_eq!(journals.read(&journal.group).unwrap(), Some(journal.clone()));
        assert_eq!(journals.groups().unwrap(), std::slice::from_ref(&journal.group));
        let text = fs::read_to_string(journals.path(&journal.group)).unwrap();
        assert!(text.contains("\"before\": \"L3:0=fffff\\n\""), "{text}");
        journals.remove(&journal.group).unwrap();
        assert!(journals.groups().unwrap().is_empty());
    }

    #[test]
    fn a_later_loss_leaves_what_was_before_the_first() {
        let ways = |domain, bits| Ways::from([(Resource::L3, BTreeMap::from([(domain, WayMask(bits))]))]);
        let mut journal = journal();
        journal.changed_groups.insert(GroupName::default_group(), 1);
        let lost = |domain, before, after| Change {
            group: GroupName::default_group(),
            before: ways(domain, before),
            after: ways(domain, after),
        };
        journal.losses[0].before = ways(0, 0xffff);
        journal.record_change(&lost(0, 0xfffff, 0xfff00), Some(1));
        journal.record_change(&lost(1, 0xfffff, 0xffff0), Some(1));
        let [loss] = &journal.losses[..] else { panic!("{journal:?}") };
        assert_eq!(loss.before[&Resource::L3], BTreeMap::from([(0, WayMask(0xffff)), (1, WayMask(0xfffff))]));
        assert_eq!(loss.after[&Resource::L3], BTreeMap::from([(0, WayMask(0xfff00)), (1, WayMask(0xffff0))]));
        // Of a group that was made anew no earlier ways are known.
        journal.record_change(&lost(1, 0xff, 0xf0), Some(2));
        assert_eq!(journal.losses, [lost(1, 0xff, 0xf0)]);
    }

    #[test]
    fn what_is_none_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let journals = Journals::open(dir.path()).unwrap();
        let group = GroupName::new("jet").unwrap();
        let mut other = journal();
        other.version = 9;
        for (text, problem) in [
            ("", "EOF"),
            ("{\"version\":1}", "missing field"),
            (&*serde_json::to_string(&other).unwrap(), "version 9"),
            (&serde_json::to_string(&journal()).unwrap().replace("jet", "tej"), "of the group 'tej'"),
            (
                &serde_json::to_string(&journal()).unwrap().replace("L3:0=f\\n", "MB:0=10\\n"),
                "something else",
            ),
            (&serde_json::to_string(&journal()).unwrap().replace("L3:0=f\\n", "L3:0=x\\n"), "cannot be read"),
        ] {
            fs::write(dir.path().join("jet.json"), text).unwrap();
            let error = journals.read(&group).unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("remove the file"), "{problem}: {error}");
        }
    }
}

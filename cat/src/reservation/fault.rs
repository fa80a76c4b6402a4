//! Faults of a reservation: differences from how it was made. The kernel and other tools may undo parts of a
//! reservation without notice.

use super::journal::Journal;
use super::restore;
use crate::plan::{Ways, l3_ways};
use crate::resctrl::{AccessError, DomainId, GroupName, Mode, Resctrl, WayMask};
use std::path::PathBuf;

/// Difference between a reservation as it was made and as it is now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// resctrl was unmounted, and with it all groups are gone.
    #[error("resctrl is no longer mounted at {}; whoever unmounted it has undone the \
             reservation", path.display())]
    Unmounted {
        /// Former mount point.
        path: PathBuf,
    },
    /// resctrl was unmounted and mounted again; in the new mount nothing is reserved.
    #[error("resctrl was unmounted and mounted anew, which has undone the reservation")]
    MountedAnew,
    /// The reservation's group was removed, and its threads are in the default group.
    #[error("the group '{group}' was removed by another tool, and its threads are in the default group")]
    GroupRemoved {
        /// Name of the group that was removed.
        group: GroupName,
    },
    /// The reservation's group was removed, and another tool has made a group of the same name.
    #[error(
        "the group '{group}' was removed by another tool, and a group that is now called so is not this \
         program's"
    )]
    GroupOfOthers {
        /// Name of both groups.
        group: GroupName,
    },
    /// All processors of a cache are offline, so the kernel has no such cache at the moment.
    #[error("the processors of domain {domain} are offline: nothing is reserved there until one is back")]
    Offline {
        /// Id of the cache that is offline.
        domain: DomainId,
    },
    /// The kernel has forgotten all groups' ways of a cache, since its processors were all offline. Other
    /// groups may have been given ways since.
    #[error(
        "the group has every way of domain {domain}: that is how the kernel begins with a cache whose \
         processors were all offline"
    )]
    Reset {
        /// Id of the cache whose ways were forgotten.
        domain: DomainId,
    },
    /// Another tool has given the reservation's group other ways.
    #[error("another tool has changed the group's ways of domain {domain} from {made} to {has}")]
    Changed {
        /// Id of the cache whose ways were changed.
        domain: DomainId,
        /// Ways that were reserved.
        made: WayMask,
        /// Ways that the group has now.
        has: WayMask,
    },
    /// Another group has some of the reserved ways, too.
    #[error("{group} may fill the ways {ways} of domain {domain}, too, which are reserved")]
    Shared {
        /// Id of the cache whose ways are shared.
        domain: DomainId,
        /// Reserved ways that the other group has.
        ways: WayMask,
        /// Name of the other group.
        group: GroupName,
    },
    /// The reservation's group is no longer exclusive, so the kernel does not refuse its ways to other
    /// groups.
    #[error("the group is not exclusive any \
             more{}", reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}")))]
    Shareable {
        /// Reason why the kernel refused to make the group exclusive again, where that was tried.
        reason: Option<String>,
    },
}

/// Reservation as it was made, with which the current state is compared.
pub(super) struct Expected<'a> {
    pub resctrl: &'a Resctrl,
    pub journal: &'a Journal,
    /// All ways of the cache.
    pub all: WayMask,
    pub exclusive: bool,
    pub not_exclusive: Option<&'a str>,
}

impl Expected<'_> {
    /// Returns whether the reservation must keep these ways of a domain. In domains that were not asked for,
    /// the reservation's group may lose ways to other groups, unless it is to have none there.
    pub fn is_kept(&self, domain: DomainId, made: WayMask) -> bool {
        self.journal.domains.contains(&domain) || made.is_empty()
    }

    pub fn faults(&self) -> Result<Vec<Fault>, AccessError> {
        let (resctrl, name) = (self.resctrl, &self.journal.group);
        if !resctrl.is_mounted() {
            return Ok(vec![Fault::Unmounted { path: resctrl.mount().path.clone() }]);
        }
        if !restore::is_of_this_mount(resctrl, self.journal) {
            return Ok(vec![Fault::MountedAnew]);
        }
        let group = resctrl.group(name);
        match group.inode() {
            None => return self.without_group(),
            found if found != self.journal.inode => {
                return Ok(vec![Fault::GroupOfOthers { group: name.clone() }]);
            }
            Some(_) => {}
        }
        let read = || Ok((group.mode()?, l3_ways(&group.schemata()?)));
        let (mode, own) = match read() {
            Ok(found) => found,
            Err(error) if AccessError::is_missing(&error) => return self.without_group(),
            Err(error) => return Err(error),
        };
        let mut faults = self.of_ways(&own, &self.others()?);
        if self.exclusive && mode != Mode::Exclusive {
            faults.push(Fault::Shareable { reason: self.not_exclusive.map(str::to_owned) });
        }
        Ok(faults)
    }

    /// Returns the faults of a reservation whose group was removed: the removal, and groups that now have
    /// reserved ways although they lost none to the reservation.
    fn without_group(&self) -> Result<Vec<Fault>, AccessError> {
        let gave = |name: &GroupName| self.journal.losses.iter().any(|loss| loss.group == *name);
        let mut others = self.others()?;
        others.retain(|(name, _)| !name.is_default() && !gave(name));
        let mut faults = vec![Fault::GroupRemoved { group: self.journal.group.clone() }];
        faults.extend(self.of_ways(&self.journal.own, &others));
        Ok(faults)
    }

    /// Reads the ways of all groups but the reservation's.
    fn others(&self) -> Result<Vec<(GroupName, Ways)>, AccessError> {
        let mut names = vec![GroupName::default_group()];
        names.extend(self.resctrl.groups()?);
        let mut others = Vec::new();
        for name in names.into_iter().filter(|name| *name != self.journal.group) {
            match self.resctrl.group(&name).schemata() {
                Ok(schemata) => others.push((name, l3_ways(&schemata))),
                // The group was removed meanwhile.
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(others)
    }

    fn of_ways(&self, own: &Ways, others: &[(GroupName, Ways)]) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut add = |fault: Fault| {
            // Code and data may have the same fault.
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        };
        for (resource, domains) in &self.journal.own {
            for (&domain, &made) in domains.iter().filter(|(domain, made)| self.is_kept(**domain, **made)) {
                let of = |ways: &Ways| ways.get(resource).and_then(|ways| ways.get(&domain)).copied();
                match of(own) {
                    None => add(Fault::Offline { domain }),
                    Some(has) if has == made => {
                        for (group, ways) in others {
                            let ways = of(ways).unwrap_or_default() & made;
                            if !ways.is_empty() {
                                add(Fault::Shared { domain, ways, group: group.clone() });
                            }
                        }
                    }
                    // Having all ways means a reset, whatever other groups have: other tools may have set
                    // their ways again since.
                    Some(has) if has == self.all => add(Fault::Reset { domain }),
                    Some(has) => add(Fault::Changed { domain, made, has }),
                }
            }
        }
        faults
    }
}

//! What becomes of a reservation while it stands: the kernel and other tools may undo it, and tell nobody.

use super::journal::Journal;
use super::restore;
use crate::plan::{Ways, l3_ways};
use crate::resctrl::{AccessError, DomainId, GroupName, Mode, Resctrl, WayMask};
use std::path::PathBuf;

/// Something that is not as it was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The file system is gone, and with it all groups.
    #[error("resctrl is no longer mounted at {}; whoever unmounted it has undone the \
             reservation", path.display())]
    Unmounted {
        /// Where it was.
        path: PathBuf,
    },
    /// It is another mount, in which nothing was reserved.
    #[error("resctrl was unmounted and mounted anew, which has undone the reservation")]
    MountedAnew,
    /// The group is gone; its threads are in the default group.
    #[error("the group '{group}' was removed by another tool, and its threads are in the default group")]
    GroupRemoved {
        /// Its name.
        group: GroupName,
    },
    /// Another tool has one of that name.
    #[error(
        "the group '{group}' was removed by another tool, and a group that is now called so is not this \
         program's"
    )]
    GroupOfOthers {
        /// Its name.
        group: GroupName,
    },
    /// The kernel has no such cache at the moment.
    #[error("the processors of domain {domain} are offline: nothing is reserved there until one is back")]
    Offline {
        /// The cache.
        domain: DomainId,
    },
    /// The kernel has forgotten who had what there. Others may have been given ways since.
    #[error(
        "the group has every way of domain {domain}: that is how the kernel begins with a cache whose \
         processors were all offline"
    )]
    Reset {
        /// The cache.
        domain: DomainId,
    },
    /// Another tool gave the group other ways.
    #[error("another tool has changed the group's ways of domain {domain} from {made} to {has}")]
    Changed {
        /// The cache.
        domain: DomainId,
        /// What was reserved.
        made: WayMask,
        /// What it has.
        has: WayMask,
    },
    /// Somebody else fills the ways, too.
    #[error("{group} may fill the ways {ways} of domain {domain}, too, which are reserved")]
    Shared {
        /// The cache.
        domain: DomainId,
        /// The reserved ways that it has, too.
        ways: WayMask,
        /// The other group.
        group: GroupName,
    },
    /// The kernel does not keep others out any more.
    #[error("the group is not exclusive any \
             more{}", reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}")))]
    Shareable {
        /// Why the kernel would not have it so again.
        reason: Option<String>,
    },
}

/// What is to be looked for.
pub(super) struct Made<'a> {
    pub resctrl: &'a Resctrl,
    pub journal: &'a Journal,
    /// All ways of the cache.
    pub all: WayMask,
    pub exclusive: bool,
    pub not_exclusive: Option<&'a str>,
}

impl Made<'_> {
    /// Whether these ways of a domain are the reservation's matter. In domains that were not asked for the
    /// group gives way to others, unless it is to have nothing there.
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
        let look = || Ok((group.mode()?, l3_ways(&group.schemata()?)));
        let (mode, own) = match look() {
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

    /// That the group is gone, and who has its ways now that did not give way to it.
    fn without_group(&self) -> Result<Vec<Fault>, AccessError> {
        let gave = |name: &GroupName| self.journal.losses.iter().any(|loss| loss.group == *name);
        let mut others = self.others()?;
        others.retain(|(name, _)| !name.is_default() && !gave(name));
        let mut faults = vec![Fault::GroupRemoved { group: self.journal.group.clone() }];
        faults.extend(self.of_ways(&self.journal.own, &others));
        Ok(faults)
    }

    /// What all other groups have.
    fn others(&self) -> Result<Vec<(GroupName, Ways)>, AccessError> {
        let mut names = vec![GroupName::default_group()];
        names.extend(self.resctrl.groups()?);
        let mut others = Vec::new();
        for name in names.into_iter().filter(|name| *name != self.journal.group) {
            match self.resctrl.group(&name).schemata() {
                Ok(schemata) => others.push((name, l3_ways(&schemata))),
                // Removed meanwhile.
                Err(error) if error.is_missing() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(others)
    }

    fn of_ways(&self, own: &Ways, others: &[(GroupName, Ways)]) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut add = |fault: Fault| {
            // Code and data may be alike.
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
                    // Whatever others have by now: who runs them may have written it again since.
                    Some(has) if has == self.all => add(Fault::Reset { domain }),
                    Some(has) => add(Fault::Changed { domain, made, has }),
                }
            }
        }
        faults
    }
}

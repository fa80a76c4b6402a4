//! Repair of a reservation that was partly undone. It gets the same ways again, as far as they can be taken
//! from groups that a new reservation may take ways from.

use super::fault::{Expected, Fault};
use super::found::holdings_without_sizes;
use super::{Reservation, ReserveError, Step, note_reservations};
use crate::plan::{Change, Holder, Holdings, Ways, kept_by, schemata};
use crate::resctrl::{DomainId, GroupName, Mode, Resource, WayMask};

/// Work of one repair.
#[derive(Default)]
struct Work {
    /// Ways that the reservation's group gets.
    own: Ways,
    /// Changes of the groups that lose ways.
    losses: Vec<Change>,
    /// Faults that name groups which have reserved ways and must not lose them.
    in_the_way: Vec<Fault>,
    /// Groups, with resource and domain, whose ways another tool has changed since the reservation took some.
    settled: Vec<(GroupName, Resource, DomainId)>,
}

impl Reservation {
    /// Returns all differences from the reservation as it was made.
    ///
    /// # Errors
    /// [`AccessError`](crate::resctrl::AccessError): the current state cannot be read.
    pub fn faults(&self) -> Result<Vec<Fault>, crate::resctrl::AccessError> {
        self.expected().faults()
    }

    fn expected(&self) -> Expected<'_> {
        Expected {
            resctrl: &self.resctrl,
            journal: &self.journal,
            all: self.ways_all,
            exclusive: self.plan.exclusive,
            not_exclusive: self.not_exclusive.as_deref(),
        }
    }

    /// Makes again what the kernel has forgotten and what other tools have removed, with the same ways. The
    /// ways are taken from the default group, and from other groups where the request allows it. What another
    /// tool has changed stays changed. `watch` is called after each step.
    ///
    /// Returns the faults that remain. Where resctrl was unmounted nothing of the reservation is left, and
    /// the caller must make a new one.
    ///
    /// A group that another tool gave other ways meanwhile gets those back at the end, not its earlier ones.
    ///
    /// # Errors
    /// [`ReserveError`]; the steps that were completed are in the journal.
    pub fn repair(&mut self, watch: &mut dyn FnMut(Step)) -> Result<Vec<Fault>, ReserveError> {
        let is_past_repair = |fault: &Fault| {
            matches!(fault, Fault::Unmounted { .. } | Fault::MountedAnew | Fault::GroupOfOthers { .. })
        };
        let faults = self.faults()?;
        if faults.is_empty() || faults.iter().any(is_past_repair) {
            return Ok(faults);
        }
        let _transaction = self.journals.transaction()?;
        let resctrl = self.resctrl.clone();
        let _lock = resctrl.lock()?;
        let faults = self.faults()?;
        let is_removed = faults.iter().any(|fault| matches!(fault, Fault::GroupRemoved { .. }));
        let is_reset = faults.iter().any(|fault| matches!(fault, Fault::Reset { .. }));
        if is_removed || is_reset {
            let mut found = holdings_without_sizes(&resctrl)?.ok_or(ReserveError::NoCache)?;
            note_reservations(&self.journals, &mut found)?;
            let work = self.work(&found, is_removed);
            if is_removed && !work.in_the_way.is_empty() {
                // The group is made again only with all of its ways.
                let unnamed = work.in_the_way.into_iter().filter(|fault| !faults.contains(fault));
                return Ok(faults.iter().cloned().chain(unnamed).collect());
            }
            self.carry_out_again(work, is_removed, watch)?;
        }
        if self.plan.exclusive && (self.lost_exclusive || is_removed || is_reset) {
            let group = resctrl.group(&self.plan.group);
            let exclusive = group.set_mode(Mode::Exclusive);
            self.lost_exclusive = exclusive.is_err();
            self.not_exclusive = exclusive.err().map(|error| error.to_string());
            watch(Step::Exclusive);
        }
        Ok(self.faults()?)
    }

    /// Returns the work that is needed where the group was removed, or where the kernel has forgotten all
    /// groups' ways of a cache.
    fn work(&self, found: &Holdings, is_removed: bool) -> Work {
        let expected = self.expected();
        let mut work = Work::default();
        let own = found.holders.iter().find(|holder| holder.name == self.plan.group);
        let default = found.holders.iter().find(|holder| holder.name.is_default());
        for (resource, domains) in &self.journal.own {
            for (&domain, &ways) in domains {
                let of =
                    |holder: &Holder| holder.ways.get(resource).and_then(|ways| ways.get(&domain)).copied();
                // The domain is missing while its processors are offline.
                let Some(of_default) = default.and_then(of) else { continue };
                let is_kept = expected.is_kept(domain, ways);
                let is_again = own.and_then(of) == Some(self.ways_all);
                let is_forgotten = is_kept && is_again && ways != self.ways_all;
                if !is_removed && !is_forgotten {
                    continue;
                }
                let ways = if is_kept { ways } else { of_default };
                work.own.entry(resource.clone()).or_default().insert(domain, ways);
                if is_kept {
                    self.take(found, (resource, domain, ways), &mut work);
                }
            }
        }
        work
    }

    /// Adds to the work which groups lose the reserved ways. Groups that a new reservation could not take the
    /// ways from are recorded in `in_the_way`.
    fn take(
        &self,
        found: &Holdings,
        (resource, domain, ways): (&Resource, DomainId, WayMask),
        work: &mut Work,
    ) {
        for holder in found.holders.iter().filter(|holder| holder.name != self.plan.group) {
            let Some(&has) = holder.ways.get(resource).and_then(|of| of.get(&domain)) else { continue };
            // A group is expected to have its ways from before, those it was left with, or all, as the kernel
            // starts with. Another tool has set any other value.
            let made = self.journal.change_of(&holder.name, resource, domain);
            if made.is_some_and(|(before, after)| ![before, after, self.ways_all].contains(&has)) {
                work.settled.push((holder.name.clone(), resource.clone(), domain));
            }
            if !has.overlaps(ways) {
                continue;
            }
            match kept_by(&self.request, found, holder, domain, has, ways) {
                Some(after) => {
                    let one = |ways| Ways::from([(resource.clone(), [(domain, ways)].into())]);
                    work.losses.push(Change {
                        group: holder.name.clone(),
                        before: one(has),
                        after: one(after),
                    });
                }
                None => work.in_the_way.push(Fault::Shared {
                    domain,
                    ways: has & ways,
                    group: holder.name.clone(),
                }),
            }
        }
    }

    /// Does the work of a repair, and writes it to the journal first. The caller has both locks: that of the
    /// journals' folder and that on resctrl.
    fn carry_out_again(
        &mut self,
        work: Work,
        is_removed: bool,
        watch: &mut dyn FnMut(Step),
    ) -> Result<(), ReserveError> {
        let name = self.plan.group.clone();
        let resctrl = self.resctrl.clone();
        for (group, resource, domain) in &work.settled {
            self.journal.forget_change(group, resource, *domain);
        }
        for loss in &work.losses {
            self.journal.record_change(loss, resctrl.group(&loss.group).inode());
        }
        if is_removed {
            self.journal.inode = None;
        }
        self.journals.write(&self.journal)?;
        watch(Step::Journal);
        let group = resctrl.group(&name);
        if is_removed {
            self.make_group(&name)?;
            self.journal.inode = group.inode();
            // A new group starts shareable.
            self.lost_exclusive = true;
            watch(Step::Group);
            self.journals.write(&self.journal)?;
            watch(Step::Inode);
        } else if group.mode()? == Mode::Exclusive {
            // The group has every way now. While it is exclusive, the kernel refuses fewer ways to every
            // group, including itself.
            group.set_mode(Mode::Shareable)?;
            self.lost_exclusive = true;
            watch(Step::Shareable);
        }
        for (count, loss) in work.losses.iter().enumerate() {
            resctrl.group(&loss.group).set_schemata(&schemata(&loss.after))?;
            watch(Step::Loss(count));
        }
        group.set_schemata(&schemata(&work.own))?;
        watch(Step::Own);
        self.plan.changes.clone_from(&self.journal.losses);
        for planned in &mut self.plan.domains {
            let of_default = work.losses.iter().filter(|loss| loss.group.is_default());
            let left =
                of_default.flat_map(|loss| loss.after.values()).filter_map(|ways| ways.get(&planned.domain));
            planned.left = left.copied().reduce(|all, ways| all | ways).unwrap_or(planned.left);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

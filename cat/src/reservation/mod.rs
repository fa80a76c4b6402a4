//! Reserving ways: what was there is written down first, and put back at the end, however that comes.
//!
//! Between two processes of this kind stand locks in the journals' folder; between this and other tools the
//! lock on resctrl that the kernel's documentation asks for.

mod class;
mod error;
mod fault;
mod found;
mod journal;
mod left;
mod locked;
mod repair;
mod restore;

pub use crate::journals::{FOLDER, JournalError};
pub use class::Class;
pub use error::{ReserveError, ThreadError};
pub use fault::Fault;
pub use found::{HoldingsError, holdings};
pub use left::{Left, forget_all, recover, reserved, restore_all};
pub use locked::{LockError, LockedRegion};
pub use restore::{RestoreError, Restored};

use crate::journals::{Journals, boot};
use crate::plan::{Exclusiveness, Holder, Holdings, Plan, Request, Ways, plan, schemata};
use crate::resctrl::{AccessError, DomainId, GroupName, Mode, Resctrl, WayMask};
use error::CarryError;
use journal::Journal;
use left::{Extent, recover_locked};
use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long ids of monitoring are waited for, and between two looks.
const DRAIN_MAX: Duration = Duration::from_secs(5);
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// What has just been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is written down what was there.
    Journal,
    /// The group is made.
    Group,
    /// It is written down which one that is.
    Inode,
    /// One group's ways have become fewer; the number counts them.
    Loss(usize),
    /// The group is to become memory.
    Locksetup,
    /// The group has its ways; where it becomes memory, that lies in them.
    Own,
    /// The group is exclusive; or the kernel would not have it so, where that is only preferred.
    Exclusive,
    /// The group is shareable for as long as its ways are made again.
    Shareable,
}

/// What would be reserved. Changes nothing, and takes no lock: somebody may be about to change what it rests
/// on.
///
/// # Errors
/// [`ReserveError`], as for [`Reservation::make`]; of what processes that are gone had left nothing is said.
pub fn preview(resctrl: &Resctrl, request: &Request, folder: &Path) -> Result<Plan, ReserveError> {
    check_writable(resctrl)?;
    let found = holdings(resctrl)?.ok_or(ReserveError::NoCache)?;
    if folder.is_dir() {
        plan_beside_others(&Journals::open(folder)?, request, found)
    } else {
        Ok(plan(request, &found)?)
    }
}

/// What cannot be carried out is not planned.
fn check_writable(resctrl: &Resctrl) -> Result<(), ReserveError> {
    let mount = resctrl.mount();
    if mount.read_only { Err(ReserveError::ReadOnly { path: mount.path.clone() }) } else { Ok(()) }
}

/// Notes who has reserved what.
fn note_reservations(journals: &Journals, found: &mut Holdings) -> Result<(), JournalError> {
    for group in journals.groups()? {
        if let Some(journal) = journals.read(&group)? {
            found.reservations.insert(group, journal.domains);
        }
    }
    Ok(())
}

/// A plan that knows of other reservations.
fn plan_beside_others(
    journals: &Journals,
    request: &Request,
    mut found: Holdings,
) -> Result<Plan, ReserveError> {
    note_reservations(journals, &mut found)?;
    let wanted = request.domains_of(&found);
    for (group, theirs) in &found.reservations {
        if let Some(&domain) = wanted.iter().find(|domain| theirs.contains(domain)) {
            return Err(ReserveError::DomainTaken { domain, group: group.clone() });
        }
    }
    Ok(plan(request, &found)?)
}

/// Whether a group has the ways that a journal says, in the domains that were asked for. In all others it
/// gives way to who comes after it.
fn is_as_made(group: &Holder, journal: &Journal) -> bool {
    let of_domain = |ways: &Ways, domain| -> Vec<Option<WayMask>> {
        ways.values().map(|ways| ways.get(&domain).copied()).collect()
    };
    journal.domains.iter().all(|&domain| of_domain(&group.ways, domain) == of_domain(&journal.own, domain))
}

fn locked<T, E: From<AccessError>>(resctrl: &Resctrl, change: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let _lock = resctrl.lock()?;
    change()
}

/// Ways that are reserved. Put back when it is dropped, and by the next start where the process ends
/// otherwise.
#[derive(Debug)]
pub struct Reservation {
    resctrl: Resctrl,
    journals: Journals,
    plan: Plan,
    request: Request,
    /// As it was last written down.
    journal: Journal,
    /// All ways of the cache.
    ways_all: WayMask,
    /// Why the kernel refused that it be exclusive, where that was only preferred.
    not_exclusive: Option<String>,
    /// It was exclusive, and is not since it had to be made again.
    lost_exclusive: bool,
    /// Given up by the system, however the process ends.
    _ownership: File,
    is_restored: bool,
}

impl Reservation {
    /// Puts back what others left, plans, and carries out; `watch` hears of each step once it is done.
    ///
    /// # Errors
    /// [`ReserveError`].
    pub fn make(
        resctrl: &Resctrl,
        request: &Request,
        folder: &Path,
        watch: &mut dyn FnMut(Step),
    ) -> Result<Self, ReserveError> {
        check_writable(resctrl)?;
        let journals = Journals::open(folder)?;
        let _transaction = journals.transaction()?;
        for left in recover_locked(resctrl, &journals, Extent::Gone)? {
            left.restored?;
        }
        let owner = journals.read(&request.group)?.filter(|journal| !journal.standing);
        let owner = owner.map(|journal| journal.owner);
        let Some(ownership) = journals.inherit(&journal::name_of(&request.group), owner)? else {
            return Err(ReserveError::Running { group: request.group.clone() });
        };
        let _lock = resctrl.lock()?;
        let mut found = holdings(resctrl)?.ok_or(ReserveError::NoCache)?;
        match journals.read(&request.group)? {
            Some(journal) if journal.standing => {
                return Self::join(resctrl, journals, &journal, request, &found, ownership);
            }
            // Its process ended just now.
            Some(journal) => {
                restore::restore(resctrl, &journals, &journal)?;
                found = holdings(resctrl)?.ok_or(ReserveError::NoCache)?;
            }
            None => {}
        }
        let ways_all = found.cache.ways;
        let plan = plan_beside_others(&journals, request, found)?;
        Self::of_plan(resctrl, journals, request, plan, ways_all, ownership, watch)
    }

    /// The caller has both locks.
    fn of_plan(
        resctrl: &Resctrl,
        journals: Journals,
        request: &Request,
        plan: Plan,
        ways_all: WayMask,
        ownership: File,
        watch: &mut dyn FnMut(Step),
    ) -> Result<Self, ReserveError> {
        let journal = Journal::of(&plan, boot()?, resctrl);
        journals.write(&journal)?;
        watch(Step::Journal);
        let mut reservation = Self {
            resctrl: resctrl.clone(),
            journals,
            not_exclusive: None,
            lost_exclusive: false,
            plan,
            request: request.clone(),
            journal,
            ways_all,
            _ownership: ownership,
            // Not by dropping while the locks are held here, should `watch` panic: the next start does it
            // then.
            is_restored: true,
        };
        match reservation.carry_out(watch) {
            Ok(()) => {
                reservation.is_restored = false;
                Ok(reservation)
            }
            Err(CarryError::Access(refused)) => match reservation.undo() {
                Ok(_) => Err(refused.into()),
                Err(left) => Err(ReserveError::HalfUndone { refused, left: Box::new(left) }),
            },
            Err(CarryError::Journal(error)) => {
                // What cannot be undone now has its journal still.
                let _ = reservation.undo();
                Err(error.into())
            }
        }
    }

    /// Uses what was made to outlive its process, as it is, and leaves it standing.
    fn join(
        resctrl: &Resctrl,
        journals: Journals,
        journal: &Journal,
        request: &Request,
        found: &Holdings,
        ownership: File,
    ) -> Result<Self, ReserveError> {
        restore::check(resctrl, &journals, journal)?;
        let plan = journal.plan(found);
        let bytes = request.bytes.saturating_add(request.slack_bytes);
        let domains: Vec<DomainId> = plan.domains.iter().map(|planned| planned.domain).collect();
        let group = found.holders.iter().find(|holder| holder.name == journal.group);
        let problem = if domains != request.domains_of(found) {
            Some("is of other domains than are asked for")
        } else if plan.domains.iter().any(|planned| planned.bytes < bytes) {
            Some("is of fewer bytes than are asked for")
        } else if request.locked || plan.locked {
            Some("is in the way: memory that is locked into the cache is never left standing")
        } else if request.exclusive == Exclusiveness::Never && plan.exclusive {
            Some("is exclusive, and a shareable one is asked for")
        } else if request.exclusive == Exclusiveness::Require && !plan.exclusive {
            Some("is shareable, and an exclusive one is asked for")
        } else if group.is_none_or(|group| !is_as_made(group, journal)) {
            Some("was changed meanwhile")
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(ReserveError::Standing { group: journal.group.clone(), problem });
        }
        Ok(Self {
            resctrl: resctrl.clone(),
            journals,
            plan,
            request: request.clone(),
            journal: journal.clone(),
            ways_all: found.cache.ways,
            not_exclusive: None,
            lost_exclusive: false,
            _ownership: ownership,
            is_restored: true,
        })
    }

    /// Lets it outlive this process: [`restore_all`] gives it back, and whoever reserves by the same name
    /// uses it.
    ///
    /// # Errors
    /// [`JournalError`]; it is put back then.
    pub fn leave(mut self) -> Result<Plan, JournalError> {
        if let Some(mut journal) = self.journals.read(&self.plan.group)? {
            journal.standing = true;
            self.journals.write(&journal)?;
        }
        self.is_restored = true;
        Ok(self.plan.clone())
    }

    fn carry_out(&mut self, watch: &mut dyn FnMut(Step)) -> Result<(), CarryError> {
        let name = &self.plan.group.clone();
        self.make_group(name)?;
        watch(Step::Group);
        self.journal.inode = self.resctrl.group(name).inode();
        self.journals.write(&self.journal)?;
        watch(Step::Inode);
        for (count, change) in self.plan.changes.iter().enumerate() {
            self.resctrl.group(&change.group).set_schemata(&schemata(&change.after))?;
            watch(Step::Loss(count));
        }
        if self.plan.locked {
            self.resctrl.group(name).set_mode(Mode::PseudoLocksetup)?;
            watch(Step::Locksetup);
        }
        self.resctrl.group(name).set_schemata(&schemata(&self.plan.own))?;
        watch(Step::Own);
        if self.plan.exclusive {
            match self.resctrl.group(name).set_mode(Mode::Exclusive) {
                Ok(()) => {}
                Err(error) if self.request.exclusive == Exclusiveness::Require => return Err(error.into()),
                // The ways are nobody else's all the same, the kernel only does not see to it.
                Err(error) => {
                    self.not_exclusive = Some(error.to_string());
                    self.plan.exclusive = false;
                }
            }
            watch(Step::Exclusive);
        }
        Ok(())
    }

    /// A group takes an id of monitoring. Those of groups that were removed come back when the cache holds no
    /// line of theirs any more, which the kernel looks for every second and tells nobody.
    fn make_group(&self, name: &GroupName) -> Result<(), AccessError> {
        let deadline = Instant::now() + DRAIN_MAX;
        loop {
            match self.resctrl.make(name) {
                Err(error) if error.is_draining() && Instant::now() < deadline => thread::sleep(DRAIN_LOOK),
                made => return made,
            }
        }
    }

    /// What was asked for.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// What was done.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether the kernel refuses the ways to all others.
    pub fn is_exclusive(&self) -> bool {
        self.plan.exclusive
    }

    /// Why the kernel would not have it exclusive, where that was preferred and it refused.
    pub fn not_exclusive(&self) -> Option<&str> {
        self.not_exclusive.as_deref()
    }

    /// The file system that it is in.
    pub fn resctrl(&self) -> &Resctrl {
        &self.resctrl
    }

    /// The class that threads join.
    pub fn class(&self) -> Class {
        Class::new(&self.resctrl, &self.plan.group)
    }

    /// Moves a thread into the group, unless another tool has put it into one of its own.
    ///
    /// # Errors
    /// [`ThreadError`].
    pub fn add_thread(&self, thread: i32) -> Result<(), ThreadError> {
        self.class().add_thread(thread)
    }

    /// Puts everything back.
    ///
    /// # Errors
    /// [`RestoreError`]; the next start tries again.
    pub fn restore(mut self) -> Result<Restored, RestoreError> {
        if self.is_restored {
            return Ok(Restored::Standing);
        }
        // Tried once: who could not be put back now is put back by the next start.
        self.is_restored = true;
        let _transaction = self.journals.transaction()?;
        let resctrl = self.resctrl.clone();
        locked(&resctrl, || self.undo())
    }

    /// The caller has both locks.
    fn undo(&mut self) -> Result<Restored, RestoreError> {
        self.is_restored = true;
        let journal = match self.journals.read(&self.plan.group)? {
            Some(journal) => journal,
            // Somebody removed it: what this process has to put back it knows.
            None => {
                self.journals.write(&self.journal)?;
                self.journal.clone()
            }
        };
        restore::restore(&self.resctrl, &self.journals, &journal)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.is_restored
            && let Ok(_transaction) = self.journals.transaction()
        {
            let resctrl = self.resctrl.clone();
            // Where it fails the journal stays, and the next start says why.
            let _ = locked(&resctrl, || self.undo());
        }
    }
}

//! Reservations of ways. The previous state is written to a journal first, and put back at the end, however
//! the process ends.
//!
//! Locks in the journals' folder keep two processes that reserve cache apart. Other tools are kept out by the
//! lock on resctrl that the kernel's documentation asks for.

mod class;
mod error;
mod fault;
mod found;
mod journal;
mod leftover;
mod locked;
mod repair;
mod restore;

pub use crate::journals::{FOLDER, JournalError};
pub use class::Class;
pub use error::{ReserveError, ThreadError};
pub use fault::Fault;
pub use found::{HoldingsError, holdings};
pub use leftover::{Leftover, forget_all, recover, reserved, restore_all};
pub use locked::{LockError, LockedRegion};
pub use restore::{RestoreError, Restored};

use crate::journals::{Journals, boot};
use crate::lock::Lock;
use crate::plan::{Exclusiveness, Holder, Holdings, Plan, Request, Ways, plan, schemata};
use crate::resctrl::{AccessError, DomainId, GroupName, Mode, Resctrl, WayMask};
use error::CarryError;
use journal::Journal;
use leftover::{RecoveryScope, recover_locked};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for a free monitoring id. `DRAIN_RETRY_EVERY` is the time between two attempts to get one.
const DRAIN_MAX: Duration = Duration::from_secs(5);
const DRAIN_RETRY_EVERY: Duration = Duration::from_millis(50);

/// Completed step of making or repairing a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The journal with the previous state is written.
    Journal,
    /// The reservation's group is made.
    Group,
    /// The inode number of the group's folder is written to the journal.
    Inode,
    /// One group has lost its ways; the number counts these groups from 0.
    Loss(usize),
    /// The reservation's group is set up for pseudo-locking.
    Locksetup,
    /// The reservation's group has its ways. For pseudo-locked memory, the memory now lies in them.
    Own,
    /// The reservation's group is exclusive; or the kernel has refused that, where it was only preferred.
    Exclusive,
    /// The reservation's group was made shareable until its ways are restored.
    Shareable,
}

/// Returns the plan that a reservation would carry out. It changes nothing and takes no lock, so the state
/// may change before the plan is used.
///
/// # Errors
/// [`ReserveError`], as for [`Reservation::make`]. Reservations that ended processes left are not reported.
pub fn preview(resctrl: &Resctrl, request: &Request, folder: &Path) -> Result<Plan, ReserveError> {
    check_writable(resctrl)?;
    let found = holdings(resctrl)?.ok_or(ReserveError::NoCache)?;
    if folder.is_dir() {
        plan_beside_others(&Journals::open(folder)?, request, found)
    } else {
        Ok(plan(request, &found)?)
    }
}

/// Checks that resctrl can be changed, so that no plan is made that cannot be carried out.
fn check_writable(resctrl: &Resctrl) -> Result<(), ReserveError> {
    let mount = resctrl.mount();
    if mount.read_only { Err(ReserveError::ReadOnly { path: mount.path.clone() }) } else { Ok(()) }
}

/// Adds the existing reservations to the state that was found.
fn note_reservations(journals: &Journals, found: &mut Holdings) -> Result<(), JournalError> {
    for group in journals.groups()? {
        if let Some(journal) = journals.read(&group)? {
            found.reservations.insert(group, journal.domains);
        }
    }
    Ok(())
}

/// Plans a reservation, and refuses domains that another reservation has.
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

/// Returns whether a group has the ways that its journal records, in the domains that were asked for. In
/// other domains it may have lost ways to later reservations.
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

/// Reservation of ways that is in effect. It is put back when this is dropped, or by the next start if the
/// process ends without dropping it.
#[derive(Debug)]
pub struct Reservation {
    resctrl: Resctrl,
    journals: Journals,
    plan: Plan,
    request: Request,
    /// Journal as it was last written.
    journal: Journal,
    /// All ways of the cache.
    ways_all: WayMask,
    /// Reason why the kernel refused to make the group exclusive, where that was only preferred.
    not_exclusive: Option<String>,
    /// Whether the group was exclusive, and a repair has made it shareable, or has made it again.
    lost_exclusive: bool,
    /// Lock that marks the owner. The kernel releases it however the process ends.
    _ownership: Lock,
    is_restored: bool,
}

impl Reservation {
    /// Puts back what ended processes left, plans a reservation, and makes it. `watch` is called after each
    /// step.
    ///
    /// Where a standing reservation of the same name fits the request, it is used as it is.
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
        for left in recover_locked(resctrl, &journals, RecoveryScope::Gone)? {
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

    /// Makes a reservation by a plan. The caller has both locks: that of the journals' folder and that on
    /// resctrl.
    fn of_plan(
        resctrl: &Resctrl,
        journals: Journals,
        request: &Request,
        plan: Plan,
        ways_all: WayMask,
        ownership: Lock,
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
            // While `true`, dropping does not put anything back: if `watch` panics, this function still holds
            // the locks. The next start puts it back then.
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
                // What cannot be undone now still has its journal.
                let _ = reservation.undo();
                Err(error.into())
            }
        }
    }

    /// Uses a standing reservation as it is, and leaves it standing. Refuses one that does not fit the
    /// request.
    fn join(
        resctrl: &Resctrl,
        journals: Journals,
        journal: &Journal,
        request: &Request,
        found: &Holdings,
        ownership: Lock,
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

    /// Lets the reservation outlive this process, and returns its plan. [`restore_all`] gives it back later.
    /// A process that reserves by the same name uses it.
    ///
    /// # Errors
    /// [`JournalError`]; the reservation is put back then.
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
                // The ways are still no other group's; only the kernel does not enforce that.
                Err(error) => {
                    self.not_exclusive = Some(error.to_string());
                    self.plan.exclusive = false;
                }
            }
            watch(Step::Exclusive);
        }
        Ok(())
    }

    /// Makes the group, waiting up to 5 s for a free monitoring id.
    ///
    /// Each group takes such an id. The id of a removed group becomes free when the cache holds no line
    /// counted for it any more. The kernel checks that every second, and notifies nobody.
    fn make_group(&self, name: &GroupName) -> Result<(), AccessError> {
        let deadline = Instant::now() + DRAIN_MAX;
        loop {
            match self.resctrl.make(name) {
                Err(error) if error.is_draining() && Instant::now() < deadline => {
                    thread::sleep(DRAIN_RETRY_EVERY)
                }
                made => return made,
            }
        }
    }

    /// Returns the request that the reservation was made for.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Returns the plan that was carried out.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns whether the kernel refuses the reserved ways to all other groups.
    pub fn is_exclusive(&self) -> bool {
        self.plan.exclusive
    }

    /// Returns the reason why the kernel refused an exclusive group, where that was only preferred.
    pub fn not_exclusive(&self) -> Option<&str> {
        self.not_exclusive.as_deref()
    }

    /// Returns the file system in which the reservation is made.
    pub fn resctrl(&self) -> &Resctrl {
        &self.resctrl
    }

    /// Returns a handle to the reservation's group, which threads can join.
    pub fn class(&self) -> Class {
        Class::new(&self.resctrl, &self.plan.group)
    }

    /// Moves a thread into the group, unless the thread is in another tool's group.
    ///
    /// # Errors
    /// [`ThreadError`].
    pub fn add_thread(&self, thread: i32) -> Result<(), ThreadError> {
        self.class().add_thread(thread)
    }

    /// Puts the previous state back. A standing reservation stays.
    ///
    /// # Errors
    /// [`RestoreError`]; the next start tries again.
    pub fn restore(mut self) -> Result<Restored, RestoreError> {
        if self.is_restored {
            return Ok(Restored::Standing);
        }
        // Tried only once: what cannot be put back now is put back by the next start.
        self.is_restored = true;
        let _transaction = self.journals.transaction()?;
        let resctrl = self.resctrl.clone();
        locked(&resctrl, || self.undo())
    }

    /// Puts the previous state back. The caller has both locks: that of the journals' folder and that on
    /// resctrl.
    fn undo(&mut self) -> Result<Restored, RestoreError> {
        self.is_restored = true;
        let journal = match self.journals.read(&self.plan.group)? {
            Some(journal) => journal,
            // Somebody removed the journal. This process still knows its contents, so it writes the journal
            // again.
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
            // On failure the journal stays, and the next start reports why.
            let _ = locked(&resctrl, || self.undo());
        }
    }
}

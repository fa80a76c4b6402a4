//! Reserving ways: what was there is written down first, and put back at the end, however that comes.
//!
//! Between two processes of this kind stand locks in the journals' folder; between this and other tools the lock on resctrl
//! that the kernel's documentation asks for.

mod found;
mod journal;
mod locked;
mod restore;

pub use crate::journals::{FOLDER, JournalError};
pub use found::holdings;
pub use locked::{LockError, LockedRegion};
pub use restore::{RestoreError, Restored};

use crate::journals::{Journals, boot};
use crate::plan::{Exclusiveness, Holder, Holdings, Plan, Refusal, Request, Ways, plan, schemata};
use crate::resctrl::{AccessError, DomainId, GroupName, Mode, Resctrl, WayMask};
use journal::Journal;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long ids of monitoring are waited for, and between two looks.
const DRAIN_MAX: Duration = Duration::from_secs(5);
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// Why nothing was reserved. Nothing is changed then, but for [`ReserveError::HalfUndone`].
#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    /// The last-level cache is not shared out here.
    #[error(
        "the last-level cache cannot be shared out here: resctrl has none of L3, L3CODE, L3DATA; Skylake-SP and Cascade Lake want \
         rdt=l3cat on the kernel's command line"
    )]
    NoCache,
    /// Nothing can be changed.
    #[error(
        "{} is mounted read-only; as root: mount -o remount,rw {} (in a container: mount it from the host)",
        path.display(), path.display()
    )]
    ReadOnly {
        /// The folder.
        path: PathBuf,
    },
    /// Somebody else has this group.
    #[error("another process has reserved cache as the group '{group}'; end it, or choose another name")]
    Running {
        /// The group.
        group: GroupName,
    },
    /// Somebody else has ways there.
    #[error(
        "another process has reserved cache of domain {domain}, as the group '{group}': two at once cannot both be put back; end \
         it (or jet cache restore, where it only stands), or choose another domain"
    )]
    DomainTaken {
        /// The domain.
        domain: DomainId,
        /// Its group.
        group: GroupName,
    },
    /// There is one that was made to stand, and it is another.
    #[error(
        "what stands reserved as '{group}' (jet cache apply) {problem}; give it back first (jet cache restore), or ask for that"
    )]
    Standing {
        /// The group.
        group: GroupName,
        /// What differs.
        problem: &'static str,
    },
    /// There is no way to do it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// What a process before left cannot be put back.
    #[error(transparent)]
    Left(#[from] RestoreError),
    /// The kernel refused. What was done before is undone.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The journal cannot be kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel refused, and then refused to undo what was done before: the next start tries that again.
    #[error("{refused}; and what was done before could not be undone: {left}")]
    HalfUndone {
        /// Why it was not done.
        refused: AccessError,
        /// Why it was not undone.
        left: Box<RestoreError>,
    },
}

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
    /// The group is exclusive.
    Exclusive,
}

/// What a process that is gone had left.
#[derive(Debug)]
pub struct Left {
    /// Its group.
    pub group: GroupName,
    /// What became of it.
    pub restored: Result<Restored, RestoreError>,
}

/// One line for people.
impl fmt::Display for Left {
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
            Err(error) => write!(f, "cache that was left reserved as '{group}' is not given back: {error}"),
        }
    }
}

/// Groups that are reserved by this kind of process, living ones and others.
///
/// # Errors
/// The folder of journals cannot be read.
pub fn reserved(folder: &Path) -> Result<Vec<GroupName>, JournalError> {
    if folder.is_dir() { Journals::open(folder)?.groups() } else { Ok(Vec::new()) }
}

/// Looks for what processes that are gone had left, and puts it back. What was made to outlive its process stays.
///
/// # Errors
/// The folder of journals cannot be read. What cannot be put back is in the list.
pub fn recover(resctrl: &Resctrl, folder: &Path) -> Result<Vec<Left>, JournalError> {
    let journals = Journals::open(folder)?;
    let _transaction = journals.transaction()?;
    recover_locked(resctrl, &journals, false)
}

/// As [`recover`], and puts back what was made to outlive its process ([`Reservation::leave`]), too, where no process uses it.
///
/// # Errors
/// As for [`recover`].
pub fn restore_all(resctrl: &Resctrl, folder: &Path) -> Result<Vec<Left>, JournalError> {
    let journals = Journals::open(folder)?;
    let _transaction = journals.transaction()?;
    recover_locked(resctrl, &journals, true)
}

/// What would be reserved. Changes nothing, and takes no lock: somebody may be about to change what it rests on.
///
/// # Errors
/// [`ReserveError`], as for [`Reservation::make`]; of what processes that are gone had left nothing is said.
pub fn preview(resctrl: &Resctrl, request: &Request, folder: &Path) -> Result<Plan, ReserveError> {
    let found = holdings(resctrl)?.ok_or(ReserveError::NoCache)?;
    if folder.is_dir() {
        plan_beside_others(&Journals::open(folder)?, request, found)
    } else {
        Ok(plan(request, &found)?)
    }
}

/// A plan that knows of other reservations.
fn plan_beside_others(
    journals: &Journals,
    request: &Request,
    mut found: Holdings,
) -> Result<Plan, ReserveError> {
    for group in journals.groups()? {
        if let Some(journal) = journals.read(&group)? {
            found.reservations.insert(group, journal.domains);
        }
    }
    let wanted = request.domains_of(&found);
    for (group, theirs) in &found.reservations {
        if let Some(&domain) = wanted.iter().find(|domain| theirs.contains(domain)) {
            return Err(ReserveError::DomainTaken { domain, group: group.clone() });
        }
    }
    Ok(plan(request, &found)?)
}

fn recover_locked(
    resctrl: &Resctrl,
    journals: &Journals,
    standing_too: bool,
) -> Result<Vec<Left>, JournalError> {
    let mut left = Vec::new();
    for group in journals.groups()? {
        let journal = journals.read(&group);
        // What stands was made by a process that is gone, and may be used by others.
        let owner = journal.as_ref().ok().and_then(Option::as_ref).filter(|journal| !journal.standing);
        let Some(_ownership) = journals.inherit(&journal::name_of(&group), owner.map(|found| found.owner))?
        else {
            if standing_too {
                left.push(Left { group, restored: Ok(Restored::InUse) });
            }
            continue;
        };
        // Read again: its owner may have written the last of it meanwhile.
        let restored = match journals.read(&group) {
            // Of another boot nothing stands.
            Ok(Some(journal)) if journal.standing && !standing_too && journal.boot == boot()? => continue,
            Ok(Some(journal)) => locked(resctrl, || restore::restore(resctrl, journals, &journal)),
            Ok(None) => continue,
            Err(error) => Err(error.into()),
        };
        left.push(Left { group, restored });
    }
    Ok(left)
}

/// Whether a group has the ways that a journal says, in the domains that were asked for. In all others it gives way to who comes
/// after it.
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

/// Ways that are reserved. Put back when it is dropped, and by the next start where the process ends otherwise.
#[derive(Debug)]
pub struct Reservation {
    resctrl: Resctrl,
    journals: Journals,
    plan: Plan,
    /// As it was last written down; none of what stands.
    journal: Option<Journal>,
    /// Why the kernel refused that it be exclusive, where that was only preferred.
    not_exclusive: Option<String>,
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
        if resctrl.mount().read_only {
            return Err(ReserveError::ReadOnly { path: resctrl.mount().path.clone() });
        }
        let journals = Journals::open(folder)?;
        let _transaction = journals.transaction()?;
        for left in recover_locked(resctrl, &journals, false)? {
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
        let plan = plan_beside_others(&journals, request, found)?;
        let journal = Journal::of(&plan, boot()?, resctrl);
        journals.write(&journal)?;
        watch(Step::Journal);
        let mut reservation = Self {
            resctrl: resctrl.clone(),
            journals,
            not_exclusive: None,
            plan,
            journal: None,
            _ownership: ownership,
            // Not by dropping while the locks are held here, should `watch` panic: the next start does it then.
            is_restored: true,
        };
        match reservation.carry_out(journal, request, watch) {
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
            journal: None,
            not_exclusive: None,
            _ownership: ownership,
            is_restored: true,
        })
    }

    /// Lets it outlive this process: [`restore_all`] gives it back, and whoever reserves by the same name uses it.
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

    fn carry_out(
        &mut self,
        mut journal: Journal,
        request: &Request,
        watch: &mut dyn FnMut(Step),
    ) -> Result<(), CarryError> {
        let name = &self.plan.group.clone();
        self.make_group(name)?;
        watch(Step::Group);
        journal.inode = self.resctrl.group(name).inode();
        self.journals.write(&journal)?;
        self.journal = Some(journal.clone());
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
                Err(error) if request.exclusive == Exclusiveness::Require => return Err(error.into()),
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

    /// A group takes an id of monitoring. Those of groups that were removed come back when the cache holds no line of theirs
    /// any more, which the kernel looks for every second and tells nobody.
    fn make_group(&self, name: &GroupName) -> Result<(), AccessError> {
        let deadline = Instant::now() + DRAIN_MAX;
        loop {
            match self.resctrl.make(name) {
                Err(error) if error.is_draining() && Instant::now() < deadline => thread::sleep(DRAIN_LOOK),
                made => return made,
            }
        }
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

    /// Moves a thread into the group, unless another tool has put it into one of its own.
    ///
    /// # Errors
    /// [`ThreadError`].
    pub fn add_thread(&self, thread: i32) -> Result<(), ThreadError> {
        let path = format!("/proc/{thread}/cpu_resctrl_groups");
        // Kernels without that file cannot tell.
        if let Ok(text) = fs::read_to_string(path)
            && let Some(group) = text.lines().find_map(|line| line.strip_prefix("res:"))
            && !group.trim_matches('/').is_empty()
            && group.trim_matches('/') != self.plan.group.to_string()
        {
            return Err(ThreadError::Elsewhere { thread, group: group.to_owned() });
        }
        Ok(self.resctrl.group(&self.plan.group).add_thread(thread)?)
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
        let journal = match (self.journals.read(&self.plan.group)?, &self.journal) {
            (Some(journal), _) => journal,
            // Somebody removed it: what this process has to put back it knows.
            (None, Some(journal)) => {
                self.journals.write(journal)?;
                journal.clone()
            }
            (None, None) => return Ok(Restored::Already),
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

/// Why a thread was not moved.
#[derive(Debug, thiserror::Error)]
pub enum ThreadError {
    /// It is in another tool's group.
    #[error("thread {thread} is in the group '{group}' of another tool, and stays there")]
    Elsewhere {
        /// The thread.
        thread: i32,
        /// Its group.
        group: String,
    },
    /// The kernel refused.
    #[error(transparent)]
    Access(#[from] AccessError),
}

/// What can go wrong between journal and end.
#[derive(Debug)]
enum CarryError {
    Access(AccessError),
    Journal(JournalError),
}

impl From<AccessError> for CarryError {
    fn from(error: AccessError) -> Self {
        Self::Access(error)
    }
}

impl From<JournalError> for CarryError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

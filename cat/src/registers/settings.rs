//! Setting registers, and putting them back.

use super::{DDIO_WAYS, Msr, Processor, RegisterError, Unsupported, ddio_is_known, prefetch_register};
use crate::cpu_set::CpuSet;
use crate::journals::{self, JournalError, Kept};
use crate::resctrl::{DomainId, WayMask};
use crate::topology::Topology;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// What is to be set. Nothing by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The ways that devices are to fill, by cache.
    pub ddio: BTreeMap<DomainId, WayMask>,
    /// The processors whose prefetchers are to be off. Those of a core's threads are the same.
    pub prefetchers_off: CpuSet,
}

/// Why a register was not set. None is, then.
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The processor.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A register.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// There is no such cache, or no processor of it is online.
    #[error("there is no cache with the id {domain} that has a processor online")]
    NoDomain {
        /// The cache.
        domain: DomainId,
    },
    /// Ways that devices would have to do without.
    #[error("devices cannot do with the ways {ways}: two at least, side by side, within the cache's {count}")]
    Ways {
        /// What was asked for.
        ways: WayMask,
        /// How many there are.
        count: u32,
    },
    /// Another process has set registers.
    #[error("another process has set the processor's registers; end it first")]
    Running,
    /// What a process before had set does not fit what is found.
    #[error(
        "register {register:#x} of processor {cpu} is {found:#x}, where a process that is gone left {after:#x} and found {before:#x}: \
         nothing was changed; put it right by hand, and remove {journal}"
    )]
    Misfit {
        /// The processor.
        cpu: u32,
        /// The register.
        register: u32,
        /// What it is.
        found: u64,
        /// What was set.
        after: u64,
        /// What it was.
        before: u64,
        /// The journal.
        journal: String,
    },
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// One register's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Change {
    cpu: u32,
    register: u32,
    before: u64,
    after: u64,
}

/// All of them.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    changes: Vec<Change>,
}

impl journals::Record for Record {
    const NAME: &'static str = "registers.state";
    type Place = ();
    type Error = SettingError;

    fn carry_out(&self, (): &()) -> Result<(), SettingError> {
        Ok(self.changes.iter().try_for_each(|change| set(change.cpu, change.register, change.after))?)
    }

    fn put_back(&self, (): &(), journal: &Path) -> Result<bool, SettingError> {
        let mut returns = Vec::new();
        for change in &self.changes {
            let Change { cpu, register, before, after } = *change;
            let found = match Msr::of_cpu(cpu, false) {
                Ok(msr) => msr.read(register)?,
                // A processor that went offline has what its socket has when it is back.
                Err(RegisterError::NoDriver { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            if found == before {
                continue;
            }
            if found != after {
                let journal = journal.display().to_string();
                return Err(SettingError::Misfit { cpu, register, found, after, before, journal });
            }
            returns.push(change);
        }
        returns.iter().try_for_each(|change| set(change.cpu, change.register, change.before))?;
        Ok(!returns.is_empty())
    }
}

/// Registers that are set. Put back when dropped, and by the next start where the process ends otherwise.
#[derive(Debug)]
pub struct Settings(Kept<Record>);

impl Settings {
    /// Sets what is wanted, all of it or nothing.
    ///
    /// # Errors
    /// [`SettingError`].
    pub fn make(topology: &Topology, wanted: &Wanted, folder: &Path) -> Result<Self, SettingError> {
        let plan = |(): &()| Ok(Record { changes: changes(topology, wanted)? });
        Kept::make((), folder, plan)?.map(Self).ok_or(SettingError::Running)
    }

    /// Puts everything back.
    ///
    /// # Errors
    /// [`SettingError`]; the next start tries again.
    pub fn restore(self) -> Result<(), SettingError> {
        self.0.restore()
    }
}

/// Puts back what a process that is gone had set: says whether there was anything.
///
/// # Errors
/// [`SettingError`].
pub fn recover(folder: &Path) -> Result<bool, SettingError> {
    journals::recover::<Record>(&(), folder)
}

fn set(cpu: u32, register: u32, value: u64) -> Result<(), RegisterError> {
    Msr::of_cpu(cpu, true)?.write(register, value)
}

/// What is to be changed, and from what.
fn changes(topology: &Topology, wanted: &Wanted) -> Result<Vec<Change>, SettingError> {
    let mut changes = Vec::new();
    let mut change = |cpu: u32, register: u32, after: &dyn Fn(u64) -> u64| -> Result<(), SettingError> {
        // Opened as it will be: who may not write is told before anything is.
        let before = Msr::of_cpu(cpu, true)?.read(register)?;
        changes.push(Change { cpu, register, before, after: after(before) });
        Ok(())
    };
    if !wanted.ddio.is_empty() {
        ddio_is_known(Processor::this())?;
    }
    for (&domain, &ways) in &wanted.ddio {
        let found = topology.domain(domain).ok_or(SettingError::NoDomain { domain })?;
        // One way alone is refused by other tools, too (fastclick's ddiotune): devices would fill nothing else.
        if ways.count() < 2 || !ways.is_contiguous() || !WayMask::run(0, found.ways).contains(ways) {
            return Err(SettingError::Ways { ways, count: found.ways });
        }
        let cpu = found.cpus.iter().next().ok_or(SettingError::NoDomain { domain })?;
        change(cpu, DDIO_WAYS, &|_| ways.0)?;
    }
    if !wanted.prefetchers_off.is_empty() {
        let (register, off) = prefetch_register(Processor::this())?;
        for cpu in wanted.prefetchers_off.iter() {
            change(cpu, register, &|before| before | off)?;
        }
    }
    Ok(changes)
}

//! Temporary settings of processor registers, which are put back at the end or after a crash.

use super::msr::DRIVER;
use super::{DDIO_WAYS, Msr, Processor, RegisterError, Unsupported, ddio_is_known, prefetch_register};
use crate::cpu_set::CpuSet;
use crate::journals::{self, ForgetOutcome, JournalError, Journaled};
use crate::resctrl::{DomainId, WayMask};
use crate::topology::Topology;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Register settings that a caller asks for. The default asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Ways that devices shall fill, by cache.
    pub ddio: BTreeMap<DomainId, WayMask>,
    /// Processors whose prefetchers shall be off. The hardware threads of a core share their prefetchers.
    pub prefetchers_off: CpuSet,
}

/// Error of setting registers or of putting them back. Where setting failed, no register stays changed,
/// except with [`Self::HalfUndone`].
#[derive(Debug, thiserror::Error)]
pub enum SettingError {
    /// The processor does not have a register that was asked for, or is not known to have it.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A register could not be read or written.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// There is no cache with the requested id, or none of its processors is online.
    #[error("there is no cache with the id {domain} that has a processor online")]
    NoDomain {
        /// Id of the cache that was requested.
        domain: DomainId,
    },
    /// The requested ways are unusable for devices: fewer than two, not side by side, or not ways of the
    /// cache.
    #[error("devices cannot do with the ways {ways}: two at least, side by side, within the cache's {count}")]
    Ways {
        /// Ways that were requested.
        ways: WayMask,
        /// Number of ways that the cache has.
        count: u32,
    },
    /// Another process has set registers and still runs.
    #[error("another process has set the processor's registers; end it first")]
    Running,
    /// A register holds neither the value that was set nor the previous one, so nothing was put back.
    #[error(
        "the processor's registers are neither as they were set nor as before, so nothing was changed: \
         {found}. Set each to one of the two by hand (wrmsr), then: jet cache restore; or let them stay as \
         they are: jet cache restore --forget. It is written down in {journal}"
    )]
    Misfit {
        /// Description of the registers that somebody else has changed, and of their values.
        found: String,
        /// Path of the journal that records the previous values.
        journal: String,
    },
    /// A register could not be set, and those set before it could not be put back. The next start tries again
    /// to put them back.
    #[error("{refused}; and what was set before could not be put back: {left}")]
    HalfUndone {
        /// Error of setting the register that could not be set.
        refused: Box<SettingError>,
        /// Error of putting back the registers that were set before.
        left: Box<SettingError>,
    },
    /// The journal could not be written, read or locked.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl SettingError {
    /// Returns whether retrying may never help: somebody else has changed a register, or the journal cannot
    /// be parsed.
    pub fn may_stay_for_ever(&self) -> bool {
        matches!(self, Self::Misfit { .. } | Self::Journal(JournalError::Format { .. }))
    }
}

/// Change of one register of one processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Change {
    cpu: u32,
    register: u32,
    before: u64,
    after: u64,
}

impl Change {
    fn read(&self, driver: &Path) -> Result<u64, RegisterError> {
        Msr::of_driver(driver, self.cpu, false)?.read(self.register)
    }

    fn write(&self, driver: &Path, value: u64) -> Result<(), RegisterError> {
        Msr::of_driver(driver, self.cpu, true)?.write(self.register, value)
    }
}

/// Changes of all registers, as the journal holds them.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    changes: Vec<Change>,
}

/// Current state of the changed registers. `returns` are those that still hold the value that was set;
/// `misfits` describes those that hold neither that value nor the previous one.
struct Found<'a> {
    returns: Vec<&'a Change>,
    misfits: Vec<String>,
}

impl Record {
    /// Reads all changed registers and compares them with the record. Changes nothing.
    fn compare(&self, driver: &Path) -> Result<Found<'_>, RegisterError> {
        let (mut returns, mut misfits) = (Vec::new(), Vec::new());
        for change in &self.changes {
            let Change { cpu, register, before, after } = *change;
            // A register that cannot be read, since its processor is offline or the driver is not visible,
            // keeps its journal until it can be read.
            let found = change.read(driver)?;
            if found == after && found != before {
                returns.push(change);
            } else if found != before {
                misfits.push(format!(
                    "register {register:#x} of processor {cpu} is {found:#x}, where {after:#x} was set and \
                     {before:#x} before"
                ));
            }
        }
        Ok(Found { returns, misfits })
    }
}

impl journals::Record for Record {
    const NAME: &'static str = "registers.state";
    /// Folder of the kernel's `msr` driver.
    type Place = PathBuf;
    type Guard = ();
    type Error = SettingError;

    fn lock(_: &PathBuf) -> Result<(), SettingError> {
        Ok(())
    }

    fn carry_out(
        &mut self,
        driver: &PathBuf,
        _: &dyn Fn(&Self) -> Result<(), JournalError>,
    ) -> Result<(), SettingError> {
        Ok(self.changes.iter().try_for_each(|change| change.write(driver, change.after))?)
    }

    fn put_back(&self, driver: &PathBuf, journal: &Path) -> Result<bool, SettingError> {
        let Found { returns, misfits } = self.compare(driver)?;
        if !misfits.is_empty() {
            let journal = journal.display().to_string();
            return Err(SettingError::Misfit { found: misfits.join("; "), journal });
        }
        returns.iter().try_for_each(|change| change.write(driver, change.before))?;
        Ok(!returns.is_empty())
    }

    fn put_back_what_fits(&self, driver: &PathBuf) -> Result<Vec<String>, SettingError> {
        let Found { returns, misfits: mut stays } = self.compare(driver)?;
        let refused = returns.iter().filter_map(|change| change.write(driver, change.before).err());
        stays.extend(refused.map(|error| error.to_string()));
        Ok(stays)
    }

    fn half_undone(refused: SettingError, left: SettingError) -> SettingError {
        SettingError::HalfUndone { refused: Box::new(refused), left: Box::new(left) }
    }
}

/// Registers that are set. They are put back when this is dropped, or by the next start if the process ends
/// without dropping it.
#[derive(Debug)]
pub struct Settings(Journaled<Record>);

impl Settings {
    /// Sets the requested registers, all or none.
    ///
    /// # Errors
    /// [`SettingError`].
    pub fn make(topology: &Topology, wanted: &Wanted, folder: &Path) -> Result<Self, SettingError> {
        let plan = |_: &PathBuf| Ok(Record { changes: changes(topology, wanted)? });
        Journaled::make(DRIVER.into(), folder, plan)?.map(Self).ok_or(SettingError::Running)
    }

    /// Returns whether all registers still hold the values that were set.
    ///
    /// # Errors
    /// [`SettingError`]: a register cannot be read.
    pub fn is_in_effect(&self) -> Result<bool, SettingError> {
        let (record, driver) = self.0.record();
        for change in &record.changes {
            if change.read(driver)? != change.after {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Puts the previous values of all registers back.
    ///
    /// # Errors
    /// [`SettingError`]; the next start tries again.
    pub fn restore(self) -> Result<(), SettingError> {
        self.0.restore()
    }
}

/// Puts back the registers that a process left set when it ended. Returns whether there were any.
///
/// # Errors
/// [`SettingError`].
pub fn recover(folder: &Path) -> Result<bool, SettingError> {
    journals::recover::<Record>(&DRIVER.into(), folder)
}

/// Gives up what [`recover`] could not put back: puts back as many registers as possible, leaves the others,
/// and removes the journal.
///
/// # Errors
/// [`SettingError`]; the journal stays then.
pub fn forget(folder: &Path) -> Result<ForgetOutcome, SettingError> {
    journals::forget::<Record>(&DRIVER.into(), folder)
}

/// Returns the register changes that the request needs, with the current values.
fn changes(topology: &Topology, wanted: &Wanted) -> Result<Vec<Change>, SettingError> {
    let mut changes = Vec::new();
    let mut change = |cpu: u32, register: u32, after: &dyn Fn(u64) -> u64| -> Result<(), SettingError> {
        // Opened for writing already here, so that a missing permission is found before any register is
        // changed.
        let before = Msr::of_cpu(cpu, true)?.read(register)?;
        changes.push(Change { cpu, register, before, after: after(before) });
        Ok(())
    };
    if !wanted.ddio.is_empty() {
        ddio_is_known(Processor::this())?;
    }
    for (&domain, &ways) in &wanted.ddio {
        let found = topology.domain(domain).ok_or(SettingError::NoDomain { domain })?;
        // Other tools (fastclick's ddiotune) refuse a single way as well: devices would have only that one to
        // fill.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Makes registers of two processors in a folder laid out like the driver's, changed by a process that is
    /// gone. Returns a function that reads them.
    fn left_set(driver: &Path, folder: &Path) -> impl Fn(u32, u32) -> u64 {
        let mut changes = Vec::new();
        for cpu in 0..2 {
            fs::create_dir_all(driver.join(cpu.to_string())).unwrap();
            fs::write(driver.join(format!("{cpu}/msr")), []).unwrap();
            for register in [0x1a4, DDIO_WAYS] {
                let change = Change { cpu, register, before: 0x30, after: 0x3f };
                change.write(driver, change.before).unwrap();
                changes.push(change);
            }
        }
        let kept = Journaled::make(driver.to_owned(), folder, |_| Ok(Record { changes })).unwrap().unwrap();
        kept.abandon();
        let driver = driver.to_owned();
        move |cpu, register| Msr::of_driver(&driver, cpu, false).unwrap().read(register).unwrap()
    }

    #[test]
    fn of_registers_that_are_forgotten_those_are_put_back_that_nobody_set_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let (driver, folder) = (dir.path().join("cpu"), dir.path().join("journals"));
        let found = left_set(&driver, &folder);
        assert_eq!(found(1, DDIO_WAYS), 0x3f);
        Msr::of_driver(&driver, 0, true).unwrap().write(0x1a4, 7).unwrap();
        let error = journals::recover::<Record>(&driver, &folder).unwrap_err();
        assert!(error.may_stay_for_ever(), "{error}");
        assert_eq!(found(1, DDIO_WAYS), 0x3f);
        let ForgetOutcome::Stays(stays) = journals::forget::<Record>(&driver, &folder).unwrap() else {
            panic!("nobody has it")
        };
        assert_eq!(stays, ["register 0x1a4 of processor 0 is 0x7, where 0x3f was set and 0x30 before"]);
        assert_eq!(
            [found(0, 0x1a4), found(0, DDIO_WAYS), found(1, 0x1a4), found(1, DDIO_WAYS)],
            [7, 0x30, 0x30, 0x30]
        );
        assert!(!journals::recover::<Record>(&driver, &folder).unwrap());
    }

    #[test]
    fn registers_that_cannot_be_seen_are_not_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let (driver, folder) = (dir.path().join("cpu"), dir.path().join("journals"));
        let found = left_set(&driver, &folder);
        fs::rename(driver.join("1"), driver.join("offline")).unwrap();
        assert!(journals::forget::<Record>(&driver, &folder).is_err());
        assert_eq!(found(0, 0x1a4), 0x3f, "nothing is changed");
        fs::rename(driver.join("offline"), driver.join("1")).unwrap();
        assert!(journals::recover::<Record>(&driver, &folder).unwrap());
        assert_eq!((found(0, 0x1a4), found(1, DDIO_WAYS)), (0x30, 0x30));
    }
}

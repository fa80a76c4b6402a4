//! Temporary changes in resctrl beside a reservation: limits for other groups' memory bandwidth (MBA), and
//! the ways that devices fill (`io_alloc`).
//!
//! By default nothing is changed. Only groups that are named are touched, and all changes are put back at the
//! end or after a crash.

mod bandwidth;
mod device_ways;
mod error;

pub use crate::journals::ForgetOutcome;
pub use error::AdjustError;

use crate::journals::{self, JournalError, Journaled};
use crate::resctrl::{AccessError, DomainId, GroupName, Lock, Resctrl, WayMask};
use bandwidth::{Bandwidth, Throttle};
use device_ways::{DeviceWays, Returns};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Adjustments that a caller asks for. The default asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Most memory bandwidth that groups may use, in the unit of the kernel's files: per cent on Intel,
    /// eighths of GB/s on AMD, MiB/s where resctrl is mounted with `mba_MBps`.
    pub bandwidth: BTreeMap<GroupName, u64>,
    /// Domains in which `bandwidth` applies, for all groups; `None` means all domains.
    pub domains: Option<Vec<DomainId>>,
    /// Ways that devices' writes may fill, by cache.
    pub device_ways: BTreeMap<DomainId, WayMask>,
}

impl Wanted {
    /// Returns whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.bandwidth.is_empty() && self.device_ways.is_empty()
    }
}

/// Adjustments that were made, as the journal holds them.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Number of the resctrl mount in which the adjustments were made; `None` where the kernel cannot tell
    /// mounts apart. Unmounting resctrl undoes changes of bandwidth.
    mount: Option<u64>,
    throttles: Vec<Throttle>,
    device_ways: Option<DeviceWays>,
}

impl Record {
    /// Returns whether the recorded bandwidths belong to the current mount of resctrl. Unmounting gives
    /// groups their bandwidth back, but leaves the devices' ways as they are.
    fn is_of_this_mount(&self, resctrl: &Resctrl) -> bool {
        match (self.mount, resctrl.mount_number()) {
            (Some(then), Some(now)) => then == now,
            _ => true,
        }
    }

    fn throttles(&self, resctrl: &Resctrl) -> &[Throttle] {
        if self.is_of_this_mount(resctrl) { &self.throttles } else { &[] }
    }

    /// Reads all changed values and compares them with the record. Changes nothing.
    fn compare(&self, resctrl: &Resctrl) -> Result<Found<'_>, AdjustError> {
        let (mut throttled, mut misfits) = (Vec::new(), Vec::new());
        for throttle in self.throttles(resctrl) {
            throttled.push((throttle, throttle.to_be_put_back(resctrl, &mut misfits)?));
        }
        let device_ways = match &self.device_ways {
            Some(ways) => ways.to_be_put_back(resctrl, &mut misfits)?,
            None => Returns::Nothing,
        };
        Ok(Found { throttled, device_ways, misfits })
    }
}

/// Current state of the adjusted values: values that are still as they were set, and so are to be put back;
/// and descriptions of values that are neither as set nor as before.
struct Found<'a> {
    throttled: Vec<(&'a Throttle, Bandwidth)>,
    device_ways: Returns,
    misfits: Vec<String>,
}

impl journals::Record for Record {
    const NAME: &'static str = "resctrl.state";
    type Place = Resctrl;
    type Guard = Lock;
    type Error = AdjustError;

    fn lock(resctrl: &Resctrl) -> Result<Lock, AdjustError> {
        if !resctrl.is_mounted() {
            // resctrl may be mounted elsewhere, or be mounted again later, so the journal stays.
            return Err(AccessError::Unmounted { path: resctrl.mount().path.clone() }.into());
        }
        Ok(resctrl.lock()?)
    }

    fn carry_out(
        &mut self,
        resctrl: &Resctrl,
        save: &dyn Fn(&Self) -> Result<(), JournalError>,
    ) -> Result<(), AdjustError> {
        self.throttles.iter().try_for_each(|throttle| throttle.set(resctrl))?;
        if let Some(ways) = &mut self.device_ways
            && ways.enable(resctrl)?
        {
            save(self)?;
        }
        self.device_ways.iter().try_for_each(|ways| ways.set(resctrl))
    }

    fn put_back(&self, resctrl: &Resctrl, journal: &Path) -> Result<bool, AdjustError> {
        let Found { throttled, device_ways, misfits } = self.compare(resctrl)?;
        if !misfits.is_empty() {
            let journal = journal.display().to_string();
            return Err(AdjustError::Misfit { found: misfits.join("; "), journal });
        }
        let is_any =
            device_ways != Returns::Nothing || throttled.iter().any(|(_, returns)| !returns.is_empty());
        // If one group's value cannot be put back, the others' still are.
        let mut refused = DeviceWays::put_back(resctrl, &device_ways).err();
        for (throttle, returns) in throttled {
            let result = throttle.put_back(resctrl, returns);
            refused = refused.or(result.err());
        }
        refused.map_or(Ok(is_any), Err)
    }

    fn put_back_what_fits(&self, resctrl: &Resctrl) -> Result<Vec<String>, AdjustError> {
        let Found { throttled, device_ways, misfits: mut stays } = self.compare(resctrl)?;
        DeviceWays::put_back_each_domain(resctrl, &device_ways, &mut stays);
        for (throttle, returns) in throttled {
            throttle.put_back_each_domain(resctrl, returns, &mut stays);
        }
        Ok(stays)
    }

    fn half_undone(refused: AdjustError, left: AdjustError) -> AdjustError {
        AdjustError::HalfUndone { refused: Box::new(refused), left: Box::new(left) }
    }
}

/// Adjustments that are in effect. They are put back when this is dropped, or by the next start if the
/// process ends without dropping it.
#[derive(Debug)]
pub struct Adjustments(Journaled<Record>);

impl Adjustments {
    /// Makes the requested adjustments, all or none.
    ///
    /// # Errors
    /// [`AdjustError`].
    pub fn make(resctrl: &Resctrl, wanted: &Wanted, folder: &Path) -> Result<Self, AdjustError> {
        Journaled::make(resctrl.clone(), folder, |resctrl| plan(resctrl, wanted))?
            .map(Self)
            .ok_or(AdjustError::Running)
    }

    /// Returns whether all values are still as they were set. Other tools may change them.
    ///
    /// # Errors
    /// [`AdjustError`]: a value cannot be read.
    pub fn is_in_effect(&self) -> Result<bool, AdjustError> {
        let (record, resctrl) = self.0.record();
        if !record.is_of_this_mount(resctrl) {
            return Ok(false);
        }
        for throttle in &record.throttles {
            if !throttle.is_in_effect(resctrl)? {
                return Ok(false);
            }
        }
        record.device_ways.as_ref().map_or(Ok(true), |ways| ways.is_in_effect(resctrl))
    }

    /// Puts all adjusted values back.
    ///
    /// # Errors
    /// [`AdjustError`]; the next start tries again.
    pub fn restore(self) -> Result<(), AdjustError> {
        self.0.restore()
    }
}

fn plan(resctrl: &Resctrl, wanted: &Wanted) -> Result<Record, AdjustError> {
    let info = resctrl.info()?;
    let throttles = bandwidth::plan(resctrl, &info, wanted)?;
    let device_ways = device_ways::plan(resctrl, &info, wanted)?;
    Ok(Record { mount: resctrl.mount_number(), throttles, device_ways })
}

/// Checks that the adjustments are possible, as far as that shows without making them.
///
/// # Errors
/// [`AdjustError`].
pub fn check(resctrl: &Resctrl, wanted: &Wanted) -> Result<(), AdjustError> {
    plan(resctrl, wanted).map(drop)
}

/// Puts back the adjustments that a process left when it ended. Returns whether there were any.
///
/// # Errors
/// [`AdjustError`].
pub fn recover(resctrl: &Resctrl, folder: &Path) -> Result<bool, AdjustError> {
    journals::recover::<Record>(resctrl, folder)
}

/// Gives up what [`recover`] could not put back: puts back as much as possible, leaves the rest as it is, and
/// removes the journal.
///
/// # Errors
/// [`AdjustError`]; the journal stays then.
pub fn forget(resctrl: &Resctrl, folder: &Path) -> Result<ForgetOutcome, AdjustError> {
    journals::forget::<Record>(resctrl, folder)
}

#[cfg(test)]
mod tests;

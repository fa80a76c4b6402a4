//! What is changed of resctrl beside ways of one's own: other groups' memory bandwidth (MBA), and the ways that devices fill
//! (`io_alloc`). Nothing is by default, only groups that are named are touched, and all of it is put back.

mod bandwidth;
mod device_ways;
mod error;

pub use error::AdjustError;

use crate::journals::{self, Kept};
use crate::resctrl::{AccessError, DomainId, GroupName, Resctrl, WayMask};
use bandwidth::Throttle;
use device_ways::DeviceWays;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The most memory bandwidth that groups may use, in the unit of the kernel's files: per cent on Intel, eighths of GB/s on
    /// AMD, MiB/s where resctrl is mounted with `mba_MBps`.
    pub bandwidth: BTreeMap<GroupName, u64>,
    /// The caches and memories that are meant, for all of this; none: each.
    pub domains: Option<Vec<DomainId>>,
    /// The ways that devices' writes may fill, by cache.
    pub device_ways: BTreeMap<DomainId, WayMask>,
}

impl Wanted {
    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.bandwidth.is_empty() && self.device_ways.is_empty()
    }
}

/// What was done, as the journal has it.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Tells this mount from others, where the kernel can: unmounting undoes everything.
    mount: Option<u64>,
    throttles: Vec<Throttle>,
    device_ways: Option<DeviceWays>,
}

impl journals::Record for Record {
    const NAME: &'static str = "resctrl.state";
    type Place = Resctrl;
    type Error = AdjustError;

    fn carry_out(&self, resctrl: &Resctrl) -> Result<(), AdjustError> {
        let _lock = resctrl.lock()?;
        self.throttles.iter().try_for_each(|throttle| throttle.set(resctrl))?;
        self.device_ways.iter().try_for_each(|ways| ways.set(resctrl))
    }

    fn put_back(&self, resctrl: &Resctrl, journal: &Path) -> Result<bool, AdjustError> {
        if !resctrl.is_mounted() {
            // Whether it is mounted elsewhere, or will be, is not known: the journal stays.
            return Err(AccessError::Unmounted { path: resctrl.mount().path.clone() }.into());
        }
        let _lock = resctrl.lock()?;
        if let (Some(then), Some(now)) = (self.mount, resctrl.mount_number())
            && then != now
        {
            return Ok(false);
        }
        // Everything is looked at before anything is changed.
        let mut throttled = Vec::new();
        for throttle in &self.throttles {
            throttled.push((throttle, throttle.to_be_put_back(resctrl, journal)?));
        }
        let device_ways = match &self.device_ways {
            Some(ways) => ways.is_to_be_put_back(resctrl, journal)?.then_some(ways),
            None => None,
        };
        let is_any = device_ways.is_some() || throttled.iter().any(|(_, returns)| !returns.is_empty());
        // Who cannot get back what he had is no reason that others do not.
        let mut refused = device_ways.and_then(|ways| ways.put_back(resctrl).err());
        for (throttle, returns) in throttled {
            let result = throttle.put_back(resctrl, returns);
            refused = refused.or(result.err());
        }
        refused.map_or(Ok(is_any), Err)
    }
}

/// What is changed. Put back when dropped, and by the next start where the process ends otherwise.
#[derive(Debug)]
pub struct Adjustments(Kept<Record>);

impl Adjustments {
    /// Changes what is wanted, all of it or nothing.
    ///
    /// # Errors
    /// [`AdjustError`].
    pub fn make(resctrl: &Resctrl, wanted: &Wanted, folder: &Path) -> Result<Self, AdjustError> {
        let plan = |resctrl: &Resctrl| {
            let info = resctrl.info()?;
            let throttles = bandwidth::plan(resctrl, &info, wanted)?;
            let device_ways = device_ways::plan(resctrl, &info, wanted)?;
            Ok(Record { mount: resctrl.mount_number(), throttles, device_ways })
        };
        Kept::make(resctrl.clone(), folder, plan)?.map(Self).ok_or(AdjustError::Running)
    }

    /// Puts everything back.
    ///
    /// # Errors
    /// [`AdjustError`]; the next start tries again.
    pub fn restore(self) -> Result<(), AdjustError> {
        self.0.restore()
    }
}

/// Puts back what a process that is gone had changed: says whether there was anything.
///
/// # Errors
/// [`AdjustError`].
pub fn recover(resctrl: &Resctrl, folder: &Path) -> Result<bool, AdjustError> {
    journals::recover::<Record>(resctrl, folder)
}

#[cfg(test)]
mod tests;

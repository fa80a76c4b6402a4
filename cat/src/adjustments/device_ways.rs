//! The ways that devices' writes may fill, where the kernel can say so (`io_alloc`).

use super::{AdjustError, Wanted};
use crate::resctrl::{DomainId, Info, IoAlloc, Resctrl, WayMask};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// By cache.
type Ways = BTreeMap<DomainId, WayMask>;

/// What they had, and have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeviceWays {
    /// None: they had none of their own.
    before: Option<Ways>,
    /// What the kernel gave them at first, then; learnt once it has.
    initial: Option<Ways>,
    after: Ways,
}

/// What is to be changed, and from what.
pub(super) fn plan(
    resctrl: &Resctrl,
    info: &Info,
    wanted: &Wanted,
) -> Result<Option<DeviceWays>, AdjustError> {
    if wanted.device_ways.is_empty() {
        return Ok(None);
    }
    if resctrl.mount().cdp {
        return Err(AdjustError::Cdp);
    }
    let before = match resctrl.io_alloc()? {
        IoAlloc::Absent => return Err(AdjustError::NoIoAlloc),
        IoAlloc::NotSupported => return Err(AdjustError::IoAllocUnsupported),
        IoAlloc::Disabled => None,
        IoAlloc::Enabled => Some(resctrl.io_ways()?),
    };
    let cache = info.l3().ok_or(AdjustError::IoAllocUnsupported)?;
    for (&domain, &ways) in &wanted.device_ways {
        if !cache.usage.contains_key(&domain) {
            return Err(AdjustError::NoDomain { domain, present: cache.usage.keys().copied().collect() });
        }
        if ways.is_empty() || !cache.ways.contains(ways) {
            return Err(AdjustError::Ways { domain, ways, all: cache.ways });
        }
    }
    Ok(Some(DeviceWays { before, initial: None, after: wanted.device_ways.clone() }))
}

impl DeviceWays {
    /// Gives them ways of their own, where they have none: says whether something was learnt by that.
    pub fn enable(&mut self, resctrl: &Resctrl) -> Result<bool, AdjustError> {
        if self.before.is_some() {
            return Ok(false);
        }
        resctrl.set_io_alloc(true)?;
        self.initial = Some(resctrl.io_ways()?);
        Ok(true)
    }

    pub fn set(&self, resctrl: &Resctrl) -> Result<(), AdjustError> {
        Ok(resctrl.set_io_ways(&self.after)?)
    }

    pub fn stands(&self, resctrl: &Resctrl) -> Result<bool, AdjustError> {
        if resctrl.io_alloc()? != IoAlloc::Enabled {
            return Ok(false);
        }
        let found = resctrl.io_ways()?;
        Ok(self.after.iter().all(|(domain, after)| found.get(domain) == Some(after)))
    }

    /// Whether it is still as it was left; what is neither that nor as before is told.
    pub fn is_to_be_put_back(
        &self,
        resctrl: &Resctrl,
        misfits: &mut Vec<String>,
    ) -> Result<bool, AdjustError> {
        if resctrl.io_alloc()? != IoAlloc::Enabled {
            // As before; or somebody has taken the ways away.
            return Ok(false);
        }
        let found = resctrl.io_ways()?;
        // Enabled, and the end came before it was written down what that gave: within a few microseconds nobody else can
        // have come by.
        let Some(others) = self.before.as_ref().or(self.initial.as_ref()) else { return Ok(true) };
        let mut is_any = self.before.is_none();
        for (domain, &has) in &found {
            let other = others.get(domain).copied();
            match self.after.get(domain) {
                Some(&after) if has == after => is_any |= other != Some(after),
                _ if Some(has) == other => {}
                after => misfits.push(format!(
                    "what devices may fill of domain {domain} is {has}, where {} was set and {} before",
                    after.copied().or(other).unwrap_or_default(),
                    other.unwrap_or_default()
                )),
            }
        }
        Ok(is_any)
    }

    pub fn put_back(&self, resctrl: &Resctrl) -> Result<(), AdjustError> {
        match &self.before {
            None => Ok(resctrl.set_io_alloc(false)?),
            Some(before) => {
                let own = before.iter().filter(|(domain, _)| self.after.contains_key(domain));
                Ok(resctrl.set_io_ways(&own.map(|(domain, ways)| (*domain, *ways)).collect())?)
            }
        }
    }
}

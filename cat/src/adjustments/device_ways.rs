//! The ways that devices' writes may fill, where the kernel can say so (`io_alloc`).

use super::{AdjustError, Wanted};
use crate::resctrl::{DomainId, Info, IoAlloc, Resctrl, WayMask};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// By cache.
type Ways = BTreeMap<DomainId, WayMask>;

/// What they had, and have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeviceWays {
    /// None: they had none of their own.
    before: Option<Ways>,
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
    Ok(Some(DeviceWays { before, after: wanted.device_ways.clone() }))
}

impl DeviceWays {
    pub fn set(&self, resctrl: &Resctrl) -> Result<(), AdjustError> {
        if self.before.is_none() {
            resctrl.set_io_alloc(true)?;
        }
        Ok(resctrl.set_io_ways(&self.after)?)
    }

    /// Whether it is still as it was left. Where they had none of their own before, whatever they have now came by this.
    pub fn is_to_be_put_back(&self, resctrl: &Resctrl, journal: &Path) -> Result<bool, AdjustError> {
        let is_enabled = resctrl.io_alloc()? == IoAlloc::Enabled;
        let Some(before) = &self.before else { return Ok(is_enabled) };
        if !is_enabled {
            return Ok(false);
        }
        let found = resctrl.io_ways()?;
        let mut is_any = false;
        for (domain, &after) in &self.after {
            let (has, had) = (found.get(domain).copied(), before.get(domain).copied());
            if has == Some(after) {
                is_any |= had != Some(after);
            } else if has != had {
                let text = |ways: Option<WayMask>| ways.unwrap_or_default().to_string();
                return Err(AdjustError::Misfit {
                    what: format!("what devices may fill of domain {domain}"),
                    found: text(has),
                    after: after.to_string(),
                    before: text(had),
                    journal: journal.display().to_string(),
                });
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

//! Temporary change of the cache ways that devices' writes may fill, on kernels and processors with
//! `io_alloc`.

use super::{AdjustError, Wanted};
use crate::resctrl::{DomainId, Info, IoAlloc, Resctrl, WayMask};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Ways of caches, by the caches' ids.
type Ways = BTreeMap<DomainId, WayMask>;

/// Action that puts the devices' ways back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Returns {
    /// Nothing is to be put back.
    Nothing,
    /// Devices had no ways of their own before the change, so `io_alloc` is switched off again.
    None,
    /// Nothing can be put back, and these ways stay as they were set. Devices had no ways of their own
    /// before, but somebody has changed their ways in other domains, so `io_alloc` must stay on.
    Stay(Ways),
    /// Devices had these ways of their own before, so the ways are set again.
    Ways(Ways),
}

/// Change of the ways that devices fill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeviceWays {
    /// Ways before the change; `None` where devices had none of their own.
    before: Option<Ways>,
    /// Ways that the kernel chose when `io_alloc` was switched on. Known only after that was done.
    initial: Option<Ways>,
    after: Ways,
}

/// Checks the requested ways, and returns the change with the current state; `None` where nothing is
/// requested.
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
    /// Makes the record of a change where devices had no ways of their own, and the kernel chose the lowest
    /// eight.
    #[cfg(test)]
    pub fn left(after: &[(DomainId, u64)]) -> Self {
        let initial = after.iter().map(|(domain, _)| (*domain, WayMask(0xff))).collect();
        let after = after.iter().map(|(domain, ways)| (*domain, WayMask(*ways))).collect();
        Self { before: None, initial: Some(initial), after }
    }

    /// Gives devices ways of their own where they have none. Returns whether it did, so that the record must
    /// be saved again.
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

    pub fn is_in_effect(&self, resctrl: &Resctrl) -> Result<bool, AdjustError> {
        if resctrl.io_alloc()? != IoAlloc::Enabled {
            return Ok(false);
        }
        let found = resctrl.io_ways()?;
        Ok(self.after.iter().all(|(domain, after)| found.get(domain) == Some(after)))
    }

    /// Returns which of the devices' ways are to be put back. Ways that are neither the set nor the previous
    /// ones are described in `misfits`.
    ///
    /// Where devices had no ways of their own before, either everything is put back or nothing.
    pub fn to_be_put_back(
        &self,
        resctrl: &Resctrl,
        misfits: &mut Vec<String>,
    ) -> Result<Returns, AdjustError> {
        if resctrl.io_alloc()? != IoAlloc::Enabled {
            // Either this is the previous state, or somebody has switched `io_alloc` off since.
            return Ok(Returns::Nothing);
        }
        let found = resctrl.io_ways()?;
        // The process ended after it switched `io_alloc` on, and before it saved the kernel's choice. In
        // those few microseconds nobody else can have changed anything.
        let Some(others) = self.before.as_ref().or(self.initial.as_ref()) else { return Ok(Returns::None) };
        let (mut returns, mut left, mut fits) = (Ways::new(), Ways::new(), true);
        for (domain, &has) in &found {
            let other = others.get(domain).copied();
            match self.after.get(domain) {
                _ if Some(has) == other => {}
                Some(&after) if has == after => {
                    left.insert(*domain, after);
                    returns.extend(other.map(|other| (*domain, other)));
                }
                after => {
                    fits = false;
                    misfits.push(format!(
                        "what devices may fill of domain {domain} is {has}, where {} was set and {} before",
                        after.copied().or(other).unwrap_or_default(),
                        other.unwrap_or_default()
                    ));
                }
            }
        }
        Ok(match &self.before {
            None if fits => Returns::None,
            _ if returns.is_empty() => Returns::Nothing,
            None => Returns::Stay(left),
            Some(_) => Returns::Ways(returns),
        })
    }

    pub fn put_back(resctrl: &Resctrl, returns: &Returns) -> Result<(), AdjustError> {
        match returns {
            Returns::Nothing | Returns::Stay(_) => Ok(()),
            Returns::None => Ok(resctrl.set_io_alloc(false)?),
            Returns::Ways(ways) => Ok(resctrl.set_io_ways(ways)?),
        }
    }

    /// Puts the devices' ways back in each domain, even where that failed in another domain. Failures, and
    /// ways that stay as they were set, are described in `refused`.
    pub fn put_back_each_domain(resctrl: &Resctrl, returns: &Returns, refused: &mut Vec<String>) {
        let mut put_back = |returns: &Returns, what: &str| {
            if let Err(error) = Self::put_back(resctrl, returns) {
                refused.push(format!("what devices may fill{what}: {error}"));
            }
        };
        match returns {
            Returns::Nothing | Returns::None => put_back(returns, ""),
            Returns::Stay(ways) => refused.extend(ways.iter().map(|(domain, ways)| {
                format!(
                    "what devices may fill of domain {domain} is {ways}, where they had none of their \
                         own before"
                )
            })),
            Returns::Ways(ways) => {
                for (&domain, &ways) in ways {
                    put_back(&Returns::Ways([(domain, ways)].into()), &format!(" of domain {domain}"));
                }
            }
        }
    }
}

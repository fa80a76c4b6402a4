//! The ways that devices' writes may fill, where the kernel can say so (`io_alloc`).

use super::{AdjustError, Wanted};
use crate::resctrl::{DomainId, Info, IoAlloc, Resctrl, WayMask};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// By cache.
type Ways = BTreeMap<DomainId, WayMask>;

/// What is to be put back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Returns {
    /// Nothing.
    Nothing,
    /// They are to have none of their own.
    None,
    /// These are still as they were left. Devices had none of their own before, and have others in other
    /// domains now: so these stay.
    Stay(Ways),
    /// These.
    Ways(Ways),
}

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
    /// Set where devices had none of their own, and the kernel gave them the lowest eight.
    #[cfg(test)]
    pub fn left(after: &[(DomainId, u64)]) -> Self {
        let initial = after.iter().map(|(domain, _)| (*domain, WayMask(0xff))).collect();
        let after = after.iter().map(|(domain, ways)| (*domain, WayMask(*ways))).collect();
        Self { before: None, initial: Some(initial), after }
    }

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

    /// What is still as it was left; what is neither that nor as before is told. Where devices had no ways of
    /// their own, it is all of it or nothing.
    pub fn to_be_put_back(
        &self,
        resctrl: &Resctrl,
        misfits: &mut Vec<String>,
    ) -> Result<Returns, AdjustError> {
        if resctrl.io_alloc()? != IoAlloc::Enabled {
            // As before; or somebody has taken the ways away.
            return Ok(Returns::Nothing);
        }
        let found = resctrl.io_ways()?;
        // Enabled, and the end came before it was written down what that gave: within a few microseconds
        // nobody else can have come by.
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

    /// Each domain for itself: what cannot be put back in one is no reason that another's is not. What is
    /// refused is told.
    pub fn put_back_what_is_taken(resctrl: &Resctrl, returns: &Returns, refused: &mut Vec<String>) {
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

//! Temporary limits for the memory bandwidth of other resctrl groups.

use super::{AdjustError, Wanted};
use crate::resctrl::{DomainId, GroupName, Info, Line, Resctrl, Resource, Schemata};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Memory bandwidth by domain, in the unit of the kernel's files.
pub(super) type Bandwidth = BTreeMap<DomainId, u64>;

/// Bandwidths that the kernel sets for a domain after all its processors were offline. They mean no limit: in
/// per cent, in eighths of GB/s, and in MiB/s.
const RESET: [u64; 3] = [100, 2048, u32::MAX as u64];

/// Change of one group's memory bandwidth: the limits before it and after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Throttle {
    group: GroupName,
    /// Inode number of the group's folder. It tells the group from a later one of the same name.
    inode: u64,
    before: Bandwidth,
    after: Bandwidth,
}

/// Checks the requested bandwidths, and returns the changes to make, with the groups' current bandwidths.
pub(super) fn plan(resctrl: &Resctrl, info: &Info, wanted: &Wanted) -> Result<Vec<Throttle>, AdjustError> {
    if wanted.bandwidth.is_empty() {
        return Ok(Vec::new());
    }
    let limits = info.bandwidths.get(&Resource::MemoryBandwidth).ok_or(AdjustError::NoBandwidth)?;
    let throttle = |(group, &bandwidth): (&GroupName, &u64)| {
        let no_group = || AdjustError::NoGroup { group: group.clone() };
        let inode = resctrl.group(group).inode().ok_or_else(no_group)?;
        // The kernel would round another value, and later report the rounded one.
        let granularity = limits.granularity.max(1);
        // With the software controller values are in MiB/s, and the kernel's minimum, which is in per cent,
        // does not apply.
        let min =
            if resctrl.mount().bandwidth_controller { granularity } else { limits.min.max(granularity) };
        if !bandwidth.is_multiple_of(granularity) || bandwidth < min {
            return Err(AdjustError::Bandwidth { group: group.clone(), wanted: bandwidth, granularity, min });
        }
        let uninitialized = || AdjustError::Locksetup { group: group.clone() };
        let mut before = read(resctrl, group)?.ok_or_else(uninitialized)?;
        if let Some(domains) = &wanted.domains {
            if let Some(&domain) = domains.iter().find(|domain| !before.contains_key(domain)) {
                return Err(AdjustError::NoDomain { domain, present: before.into_keys().collect() });
            }
            before.retain(|domain, _| domains.contains(domain));
        }
        let after = before.keys().map(|domain| (*domain, bandwidth)).collect();
        Ok(Throttle { group: group.clone(), inode, before, after })
    };
    wanted.bandwidth.iter().map(throttle).collect()
}

/// Reads a group's bandwidth limits, or `None` where its schemata has none.
fn read(resctrl: &Resctrl, group: &GroupName) -> Result<Option<Bandwidth>, AdjustError> {
    match resctrl.group(group).schemata()?.line(&Resource::MemoryBandwidth) {
        Some(Line::Bandwidth(bandwidth)) => Ok(Some(bandwidth.clone())),
        _ => Ok(None),
    }
}

impl Throttle {
    pub fn set(&self, resctrl: &Resctrl) -> Result<(), AdjustError> {
        self.write(resctrl, self.after.clone())
    }

    fn write(&self, resctrl: &Resctrl, bandwidth: Bandwidth) -> Result<(), AdjustError> {
        let lines = vec![(Resource::MemoryBandwidth, Line::Bandwidth(bandwidth))];
        Ok(resctrl.group(&self.group).set_schemata(&Schemata { lines })?)
    }

    /// Reads the group's current bandwidth limits. Returns `None` where the group is gone, even if a later
    /// one has its name.
    fn found(&self, resctrl: &Resctrl) -> Result<Option<Bandwidth>, AdjustError> {
        if resctrl.group(&self.group).inode() == Some(self.inode) {
            read(resctrl, &self.group)
        } else {
            Ok(None)
        }
    }

    pub fn is_in_effect(&self, resctrl: &Resctrl) -> Result<bool, AdjustError> {
        let found = self.found(resctrl)?.unwrap_or_default();
        Ok(self.after.iter().all(|(domain, after)| found.get(domain) == Some(after)))
    }

    /// Returns the previous bandwidths of the domains that still have the bandwidth that was set. Bandwidths
    /// that are neither the set nor the previous ones are described in `misfits`.
    ///
    /// Nothing is put back in a group that was removed, or in a domain that is missing because its processors
    /// are offline. Such a domain comes back without a limit.
    pub fn to_be_put_back(
        &self,
        resctrl: &Resctrl,
        misfits: &mut Vec<String>,
    ) -> Result<Bandwidth, AdjustError> {
        let Some(found) = self.found(resctrl)? else { return Ok(Bandwidth::new()) };
        let mut returns = Bandwidth::new();
        for (&domain, &before) in &self.before {
            let after = self.after.get(&domain).copied().unwrap_or(before);
            match found.get(&domain) {
                None => {}
                Some(&has) if has == before => {}
                Some(&has) if has == after || (RESET.contains(&has) && has > before.max(after)) => {
                    returns.insert(domain, before);
                }
                Some(has) => misfits.push(format!(
                    "the memory bandwidth of '{}' in domain {domain} is {has}, where {after} was set and \
                     {before} before",
                    self.group
                )),
            }
        }
        Ok(returns)
    }

    pub fn put_back(&self, resctrl: &Resctrl, returns: Bandwidth) -> Result<(), AdjustError> {
        if returns.is_empty() { Ok(()) } else { self.write(resctrl, returns) }
    }

    /// Puts the group's bandwidth back in each domain, even where that failed in another domain. Failures are
    /// described in `refused`.
    pub fn put_back_each_domain(&self, resctrl: &Resctrl, returns: Bandwidth, refused: &mut Vec<String>) {
        for (domain, before) in returns {
            if let Err(error) = self.write(resctrl, [(domain, before)].into()) {
                refused.push(format!("the memory bandwidth of '{}' in domain {domain}: {error}", self.group));
            }
        }
    }
}

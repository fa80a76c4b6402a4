//! Resources that can be allocated to groups, as the folder `info` of resctrl describes them.

use super::error::AccessError;
use super::mask::WayMask;
use super::schemata::{DomainId, Resource};
use super::tree::Tree;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

/// Description of a cache whose ways can be allocated to groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheInfo {
    /// All ways of the cache.
    pub ways: WayMask,
    /// Fewest ways that a group must have in a domain; 0 on AMD, where a group may have none.
    pub min_ways: u32,
    /// Ways that devices (DDIO, a GPU) fill as well.
    pub shareable: WayMask,
    /// Number of CAT classes that the cache supports, including the default group's.
    pub classes: u32,
    /// Whether a group's ways may have gaps between them. `None` where the kernel does not say (before 6.7).
    pub sparse: Option<bool>,
    /// Use of each way, by domain; index 0 is the lowest way.
    pub usage: BTreeMap<DomainId, Vec<WayUsage>>,
}

/// Use of one way of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WayUsage {
    /// No group and no device uses the way.
    Unused,
    /// Shareable groups have the way.
    Shared,
    /// Devices fill the way.
    Hardware,
    /// Devices fill the way, and shareable groups have it.
    HardwareAndShared,
    /// One exclusive group has the way.
    Exclusive,
    /// A pseudo-locked region lies in the way.
    PseudoLocked,
}

/// Description of a memory bandwidth that can be limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BandwidthInfo {
    /// Number of classes for which the processor can limit this bandwidth, including the default group's.
    pub classes: u32,
    /// Lowest value that can be set, in the resource's unit.
    pub min: u64,
    /// Step between values that can be set, in the resource's unit.
    pub granularity: u64,
    /// Whether the effect of a limit is proportional to the value that is set.
    pub linear: bool,
}

/// Description of the monitoring of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorInfo {
    /// Number of monitoring ids. Each group takes one, and so does each group that is made for monitoring
    /// only.
    pub ids: u32,
    /// Names of the counted values in the kernel's files: `llc_occupancy`, `mbm_total_bytes`,
    /// `mbm_local_bytes`.
    pub features: Vec<String>,
}

/// Description of all resources that resctrl offers on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Caches whose ways can be allocated.
    pub caches: BTreeMap<Resource, CacheInfo>,
    /// Memory bandwidths that can be limited.
    pub bandwidths: BTreeMap<Resource, BandwidthInfo>,
    /// Monitoring of the last-level cache, where there is any.
    pub monitor: Option<MonitorInfo>,
}

impl Info {
    pub(super) fn read(tree: &Tree) -> Result<Self, AccessError> {
        let mut info = Self::default();
        for folder in tree.folders("info")? {
            let at = Path::new("info").join(&folder);
            match Resource::named(&folder) {
                Resource::Other(name) if name == "L3_MON" => info.monitor = Some(monitor(tree, &at)?),
                // Resources of later kernels are ignored.
                Resource::Other(_) => {}
                resource if resource.is_cache() => {
                    info.caches.insert(resource, cache(tree, &at)?);
                }
                resource => {
                    info.bandwidths.insert(resource, bandwidth(tree, &at)?);
                }
            }
        }
        Ok(info)
    }

    /// Returns the description of the last-level cache. Where CDP is on it is that of the data ways, and code
    /// has an equal one.
    pub fn l3(&self) -> Option<&CacheInfo> {
        self.caches.get(&Resource::L3).or_else(|| self.caches.get(&Resource::L3Data))
    }

    /// Returns how many groups there can be, including the default one. The resource with the fewest classes
    /// decides.
    pub fn groups_max(&self) -> u32 {
        let caches = self.caches.values().map(|cache| cache.classes);
        caches.chain(self.bandwidths.values().map(|bandwidth| bandwidth.classes)).min().unwrap_or(0)
    }
}

fn number<T>(tree: &Tree, path: &Path) -> Result<T, AccessError>
where
    T: FromStr,
    T::Err: Display,
{
    tree.read_as(path, |text| text.trim().parse::<T>())
}

fn cache(tree: &Tree, at: &Path) -> Result<CacheInfo, AccessError> {
    let ways: WayMask = number(tree, &at.join("cbm_mask"))?;
    let sparse = tree.read_if_there(at.join("sparse_masks"))?.map(|text| text.trim() == "1");
    Ok(CacheInfo {
        ways,
        min_ways: number(tree, &at.join("min_cbm_bits"))?,
        shareable: number(tree, &at.join("shareable_bits"))?,
        classes: number(tree, &at.join("num_closids"))?,
        sparse,
        usage: tree.read_as(at.join("bit_usage"), usage)?,
    })
}

/// Parses the use of each way, such as `0=SSSSHH;1=...`, in which the highest way comes first.
fn usage(text: &str) -> Result<BTreeMap<DomainId, Vec<WayUsage>>, &'static str> {
    let mut domains = BTreeMap::new();
    for entry in text.split(';').filter(|entry| !entry.trim().is_empty()) {
        let (domain, letters) = entry.split_once('=').ok_or("an entry is no DOMAIN=WAYS")?;
        let ways = letters.trim().chars().rev().map(|letter| match letter {
            '0' => Some(WayUsage::Unused),
            'S' => Some(WayUsage::Shared),
            'H' => Some(WayUsage::Hardware),
            'X' => Some(WayUsage::HardwareAndShared),
            'E' => Some(WayUsage::Exclusive),
            'P' => Some(WayUsage::PseudoLocked),
            _ => None,
        });
        let ways = ways.collect::<Option<Vec<_>>>().ok_or("a way has a letter that is not known")?;
        domains.insert(domain.trim().parse().map_err(|_| "a domain is no number")?, ways);
    }
    Ok(domains)
}

fn bandwidth(tree: &Tree, at: &Path) -> Result<BandwidthInfo, AccessError> {
    Ok(BandwidthInfo {
        classes: number(tree, &at.join("num_closids"))?,
        min: number(tree, &at.join("min_bandwidth"))?,
        granularity: number(tree, &at.join("bandwidth_gran"))?,
        linear: tree.read(at.join("delay_linear"))?.trim() == "1",
    })
}

fn monitor(tree: &Tree, at: &Path) -> Result<MonitorInfo, AccessError> {
    let features = tree.read(at.join("mon_features"))?;
    Ok(MonitorInfo {
        ids: number(tree, &at.join("num_rmids"))?,
        features: features.split_whitespace().map(str::to_owned).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_told_from_the_highest_down() {
        let usage = usage("0=HX0SEP;8=000000").unwrap();
        use WayUsage::{Exclusive, Hardware, HardwareAndShared, PseudoLocked, Shared, Unused};
        assert_eq!(usage[&0], [PseudoLocked, Exclusive, Shared, Unused, HardwareAndShared, Hardware]);
        assert_eq!(usage[&8], [Unused; 6]);
        assert!(super::usage("0=?").is_err());
        assert!(super::usage("x=S").is_err());
        assert!(super::usage("SS").is_err());
    }
}

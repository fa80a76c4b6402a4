//! Reading of the current state: which groups have which ways.

use crate::plan::{Holder, Holdings, l3_ways};
use crate::resctrl::{AccessError, CacheInfo, GroupName, Resctrl};
use crate::topology::{Topology, TopologyError};
use std::collections::BTreeMap;

/// Reason why the current state could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HoldingsError {
    /// The groups' files cannot be read.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The host's caches cannot be determined.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// Reads the caches and groups on which a plan is based. Returns `None` where the ways of the last-level
/// cache cannot be allocated on this host.
///
/// # Errors
/// [`HoldingsError`].
pub fn holdings(resctrl: &Resctrl) -> Result<Option<Holdings>, HoldingsError> {
    let Some(cache) = resctrl.info()?.l3().cloned() else { return Ok(None) };
    Ok(Some(shared_out(resctrl, cache, Some(&Topology::of_host()?))?))
}

/// Reads the state like [`holdings`], without the bytes of a way. The result tells which groups have which
/// ways, but no plan can be based on it.
pub(super) fn holdings_without_sizes(resctrl: &Resctrl) -> Result<Option<Holdings>, AccessError> {
    let Some(cache) = resctrl.info()?.l3().cloned() else { return Ok(None) };
    Ok(Some(shared_out(resctrl, cache, None)?))
}

/// Reads the state of a cache whose sizes the topology gives. The sizes that the kernel tells for a group
/// would not do, since a group may have no way.
fn shared_out(
    resctrl: &Resctrl,
    cache: CacheInfo,
    topology: Option<&Topology>,
) -> Result<Holdings, AccessError> {
    let info = resctrl.info()?;
    let groups_max = info.groups_max();
    let other_caches = info.caches.keys().any(|resource| !resource.is_l3());
    let default = holder(resctrl, &GroupName::default_group())?;
    let domains = default.ways.values().next().into_iter().flat_map(|ways| ways.keys().copied());
    let bytes_of =
        |domain| topology.and_then(|topology| topology.domain(domain)).map_or(0, |found| found.bytes);
    let ways = u64::from(cache.ways.count().max(1));
    // A cache that the system does not describe gets 0, and is not planned with.
    let way_bytes = domains.map(|domain| (domain, bytes_of(domain) / ways)).collect();
    let mut holders = vec![default];
    for name in resctrl.groups()? {
        match holder(resctrl, &name) {
            Ok(holder) => holders.push(holder),
            // The group was removed meanwhile.
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error),
        }
    }
    let reservations = BTreeMap::new();
    Ok(Holdings { cache, way_bytes, holders, reservations, groups_max, other_caches })
}

fn holder(resctrl: &Resctrl, name: &GroupName) -> Result<Holder, AccessError> {
    let group = resctrl.group(name);
    let schemata = group.schemata()?;
    Ok(Holder { name: name.clone(), mode: group.mode()?, ways: l3_ways(&schemata) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Request, plan};
    use crate::resctrl::tests::imitation;
    use crate::topology::Inclusion;
    use std::fs::{create_dir_all, write};
    use std::path::Path;

    /// Makes a topology of two caches of 55 MiB, one for each processor.
    fn two_caches(sysfs: &Path) -> Topology {
        for cpu in 0..2 {
            let cache = sysfs.join(format!("devices/system/cpu/cpu{cpu}/cache/index0"));
            create_dir_all(&cache).unwrap();
            let (id, cpus) = (cpu.to_string(), cpu.to_string());
            for (name, text) in [
                ("level", "3"),
                ("id", &id),
                ("size", "56320K"),
                ("ways_of_associativity", "20"),
                ("coherency_line_size", "64"),
                ("shared_cpu_list", &cpus),
            ] {
                write(cache.join(name), format!("{text}\n")).unwrap();
            }
        }
        Topology::read(sysfs, Inclusion::Unknown).unwrap()
    }

    #[test]
    fn a_way_has_its_size_where_the_default_group_has_none() {
        let (folder, resctrl) = imitation();
        let sysfs = tempfile::tempdir().unwrap();
        let topology = two_caches(sysfs.path());
        let found = |schemata: &str, size: &str| {
            write(folder.path().join("schemata"), schemata).unwrap();
            write(folder.path().join("size"), size).unwrap();
            let cache = resctrl.info().unwrap().l3().cloned().unwrap();
            shared_out(&resctrl, cache, Some(&topology)).unwrap()
        };
        let whole = found("L3:0=fffff;1=fffff\n", "L3:0=57671680;1=57671680\n");
        assert_eq!(whole.way_bytes, BTreeMap::from([(0, 2816 << 10), (1, 2816 << 10)]));
        // The default group has no way in the second cache, which processors that take empty masks allow.
        let mut empty = found("L3:0=fffff;1=0\n", "L3:0=57671680;1=0\n");
        assert_eq!(empty.way_bytes, whole.way_bytes);
        empty.cache.min_ways = 0;
        let request = Request::new(GroupName::new("jet").unwrap(), 13 << 20);
        let made = plan(&request, &empty).unwrap();
        let reserved: Vec<_> =
            made.domains.iter().map(|domain| (domain.ways.count(), domain.bytes)).collect();
        assert_eq!(reserved, [(5, 5 * (2816 << 10)); 2], "{made}");
    }

    #[test]
    fn a_cache_that_the_system_does_not_describe_is_not_planned_with() {
        let (folder, resctrl) = imitation();
        let sysfs = tempfile::tempdir().unwrap();
        let topology = two_caches(sysfs.path());
        write(folder.path().join("schemata"), "L3:0=fffff;7=fffff\n").unwrap();
        let cache = resctrl.info().unwrap().l3().cloned().unwrap();
        let found = shared_out(&resctrl, cache, Some(&topology)).unwrap();
        let said = plan(&Request::new(GroupName::new("jet").unwrap(), 1), &found).unwrap_err().to_string();
        assert!(said.contains("size of the cache with the id 7"), "{said}");
    }
}

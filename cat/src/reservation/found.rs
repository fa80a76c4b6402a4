//! Who has which ways now.

use crate::plan::{Holder, Holdings, l3_ways};
use crate::resctrl::{AccessError, GroupName, Resctrl};
use std::collections::BTreeMap;

/// What there is to reserve of, and who has it.
///
/// # Errors
/// [`AccessError`]; none in it where the last-level cache is not shared out here at all.
pub fn holdings(resctrl: &Resctrl) -> Result<Option<Holdings>, AccessError> {
    let info = resctrl.info()?;
    let groups_max = info.groups_max();
    let other_caches = info.caches.keys().any(|resource| !resource.is_l3());
    let Some(cache) = info.l3().cloned() else { return Ok(None) };
    let default = holder(resctrl, &GroupName::default_group())?;
    let mut way_bytes = BTreeMap::new();
    if let Some((resource, ways)) = default.ways.iter().next() {
        let sizes = resctrl.sizes(&default.name, resource)?;
        for (domain, ways) in ways {
            let bytes = sizes.get(domain).copied().unwrap_or(0);
            way_bytes.insert(*domain, bytes / u64::from(ways.count().max(1)));
        }
    }
    let mut holders = vec![default];
    for name in resctrl.groups()? {
        match holder(resctrl, &name) {
            Ok(holder) => holders.push(holder),
            // Removed meanwhile.
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(Holdings { cache, way_bytes, holders, reservations: BTreeMap::new(), groups_max, other_caches }))
}

fn holder(resctrl: &Resctrl, name: &GroupName) -> Result<Holder, AccessError> {
    let group = resctrl.group(name);
    let schemata = group.schemata()?;
    Ok(Holder { name: name.clone(), mode: group.mode()?, ways: l3_ways(&schemata) })
}

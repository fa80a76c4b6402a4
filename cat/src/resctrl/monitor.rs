//! Monitoring counts of a group: the folder `mon_data`.

use super::error::AccessError;
use super::group::GroupName;
use super::schemata::DomainId;
use super::tree::Tree;
use std::collections::BTreeMap;
use std::str::FromStr;

/// Count of a group, or the kernel's word for why there is none now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Count {
    /// Number of bytes.
    Bytes(u64),
    /// The processor reported an error.
    Error,
    /// The processor has no count at the moment.
    Unavailable,
    /// No counter is assigned to the group.
    Unassigned,
}

impl Count {
    /// Returns the counted bytes, or `None` where the counter gave no count.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl FromStr for Count {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.trim() {
            "Error" => Self::Error,
            "Unavailable" => Self::Unavailable,
            "Unassigned" => Self::Unassigned,
            number => Self::Bytes(number.parse()?),
        })
    }
}

/// Counts of a group in one domain. A field is `None` where the kernel has no file for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Bytes of the last-level cache that hold the group's lines.
    pub occupancy: Option<Count>,
    /// Bytes that went to and from memory since the group was made.
    pub total: Option<Count>,
    /// Part of `total` that concerns memory of this domain's own NUMA node.
    pub local: Option<Count>,
}

/// Reads a group's counts, by domain. Folders for other things than the last-level cache, which later kernels
/// have, are left out.
pub(super) fn counts(tree: &Tree, group: &GroupName) -> Result<BTreeMap<DomainId, Counts>, AccessError> {
    let at = group.file("mon_data");
    let mut found = BTreeMap::new();
    for folder in tree.folders(&at)? {
        let Some(domain) = folder.strip_prefix("mon_L3_").and_then(|id| id.parse().ok()) else { continue };
        let count = |file| {
            let path = at.join(&folder).join(file);
            match tree.read_as(&path, Count::from_str) {
                Ok(count) => Ok(Some(count)),
                Err(error) if error.is_missing() => Ok(None),
                Err(error) => Err(error),
            }
        };
        let counts = Counts {
            occupancy: count("llc_occupancy")?,
            total: count("mbm_total_bytes")?,
            local: count("mbm_local_bytes")?,
        };
        found.insert(domain, counts);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_numbers_or_say_why_not() {
        assert_eq!("16760832\n".parse(), Ok(Count::Bytes(16_760_832)));
        assert_eq!("Error\n".parse(), Ok(Count::Error));
        assert_eq!("Unavailable\n".parse(), Ok(Count::Unavailable));
        assert_eq!("Unassigned\n".parse(), Ok(Count::Unassigned));
        assert!("1.5".parse::<Count>().is_err());
        assert_eq!(Count::Error.bytes(), None);
    }
}

//! The section `[cache]` of the configuration.

use super::CacheError;
use crate::values;
use jet_cat::plan::{Exclusiveness, Placement, Request};
use jet_cat::resctrl::{DomainId, GroupName, GroupNameError, WayMask};
use jet_cat::topology::Topology;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Policy for reserving cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reserve {
    /// Reserve cache where that is possible. Otherwise, log the reason in one line and continue without a
    /// reservation.
    Auto,
    /// Reserve no cache.
    Off,
    /// Do not start the daemon without the reservation.
    Require,
}

/// Policy for hardware prefetchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prefetchers {
    /// The settings of the prefetchers stay as they are.
    Leave,
    /// Prefetchers are off on the cores to which the reactor and the software NIC are pinned.
    Off,
}

/// Choice of the ways of the cache that devices' writes fill, where the kernel can set these ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceWays {
    /// The ways that are reserved for the pool.
    Pool,
    /// The ways whose bits are set in this mask.
    Ways(WayMask),
}

const POOL: &str = "pool";

impl TryFrom<String> for DeviceWays {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let ways = || text.parse().map(Self::Ways);
        let refused = |error| format!("neither \"{POOL}\" nor a hexadecimal mask: {error}");
        if text == POOL { Ok(Self::Pool) } else { ways().map_err(refused) }
    }
}

impl From<DeviceWays> for String {
    fn from(ways: DeviceWays) -> Self {
        match ways {
            DeviceWays::Pool => POOL.to_owned(),
            DeviceWays::Ways(ways) => ways.to_string(),
        }
    }
}

/// Name of resctrl's default group, as in `/proc/PID/cpu_resctrl_groups`. No other group can have it.
pub const DEFAULT_GROUP: &str = "/";

/// Settings for reserving cache for the pool, and for keeping the pool in it (Jet §5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheConfig {
    /// Policy for setting ways of the last-level cache aside.
    pub reserve: Reserve,
    /// Bytes of cache to reserve. If not set, as many as the pool has.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::bytes_if_any")]
    pub bytes: Option<u64>,
    /// Bytes to reserve beside `bytes`: for the header area, rings, and the reactor's own code and data.
    #[serde(deserialize_with = "values::bytes")]
    pub slack_bytes: u64,
    /// Ids of the caches in which ways are reserved. If empty: the cache near the NIC, or every cache where
    /// the system does not say which one is near.
    pub domains: Vec<DomainId>,
    /// Position of the reserved ways: away from the ways that devices fill (DDIO), onto them, or anywhere.
    pub placement: Placement,
    /// Policy for exclusive ways, which the kernel refuses to all other groups.
    pub exclusive: Exclusiveness,
    /// Minimum number of ways that resctrl's default group keeps.
    pub others_ways_min: u32,
    /// Whether resctrl groups of other tools may lose ways to the reservation.
    pub take_from_groups: bool,
    /// Name of the resctrl group that the daemon makes for its reservation.
    pub group: String,
    /// Whether threads of registered applications join the daemon's resctrl group.
    pub applications: bool,
    /// Mask of the ways that devices fill (Intel's DDIO) in the reserved caches. If not set, these ways stay
    /// as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ddio_ways: Option<WayMask>,
    /// Ways that devices' writes fill in the reserved caches, where the kernel can set them (AMD). If not
    /// set, these ways stay as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_ways: Option<DeviceWays>,
    /// Policy for prefetchers, which bring cache lines into the cache that no thread has asked for.
    pub prefetchers: Prefetchers,
    /// Folder of the journals, which hold the settings from before the daemon's changes.
    pub journals: PathBuf,
    /// Whether the warmer runs: a thread that touches the pool at a low rate, and so measures how much of the
    /// pool is in the cache.
    pub warm: bool,
    /// Processor time that the warmer may take, in thousandths of a core.
    pub warm_permille: u32,
    /// Whether the processor counts the reactor's hits and misses in the last-level cache, where it can.
    pub counters: bool,
    /// Limits of the memory bandwidth of resctrl groups, by the group's name, with `/` for the default group.
    /// The unit is that of the kernel's `schemata` files.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub throttle: BTreeMap<String, u64>,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            reserve: Reserve::Auto,
            bytes: None,
            slack_bytes: 1 << 20,
            domains: Vec::new(),
            placement: Placement::Away,
            exclusive: Exclusiveness::Prefer,
            others_ways_min: 2,
            take_from_groups: false,
            group: "jet".to_owned(),
            applications: false,
            ddio_ways: None,
            device_ways: None,
            prefetchers: Prefetchers::Leave,
            journals: jet_cat::reservation::FOLDER.into(),
            warm: true,
            warm_permille: 10,
            counters: true,
            throttle: BTreeMap::new(),
        }
    }
}

/// Reason why the section `[cache]` is refused.
#[derive(Debug, thiserror::Error)]
pub enum CacheConfigError {
    /// The value of `cache.group` cannot be a group's name.
    #[error("cache.group: {0}")]
    Group(#[from] GroupNameError),
    /// A name in `cache.throttle` cannot be a group's name.
    #[error("cache.throttle: {0}; '{DEFAULT_GROUP}' means the default group")]
    Throttle(GroupNameError),
    /// The value of `cache.journals` is a relative path. A daemon that is started from another directory
    /// would not find the journals.
    #[error("cache.journals is '{}', and must be an absolute path", path.display())]
    Journals {
        /// Path that was given.
        path: PathBuf,
    },
    /// The section `cache.throttle` names the pool's own group.
    #[error("cache.throttle names '{group}', the pool's own group (cache.group): throttle others")]
    ThrottleOwn {
        /// Name of the group.
        group: String,
    },
    /// Devices are to fill the pool's ways, but exclusive ways are required, which the kernel keeps devices
    /// out of.
    #[error(
        "cache.device_ways = \"pool\" lets devices into the pool's ways, which cache.exclusive = \"require\" \
         forbids: let that be \"prefer\" or \"never\""
    )]
    DeviceWays,
    /// The warmer's share of a core is 0, or more than all of it.
    #[error(
        "cache.warm_permille is {found}, but must be 1 to 1000 thousandths of a core; cache.warm = false \
         switches it off"
    )]
    Budget {
        /// Value of `cache.warm_permille`.
        found: u32,
    },
}

impl CacheConfig {
    /// Checks the section's values beyond what their types ensure.
    ///
    /// # Errors
    /// Returns [`CacheConfigError`] for the first invalid value.
    pub fn check(&self) -> Result<(), CacheConfigError> {
        GroupName::new(&self.group)?;
        if !self.journals.is_absolute() {
            return Err(CacheConfigError::Journals { path: self.journals.clone() });
        }
        self.throttled()?;
        if self.throttle.contains_key(&self.group) {
            return Err(CacheConfigError::ThrottleOwn { group: self.group.clone() });
        }
        if self.device_ways == Some(DeviceWays::Pool) && self.exclusive == Exclusiveness::Require {
            return Err(CacheConfigError::DeviceWays);
        }
        if !(1..=1000).contains(&self.warm_permille) {
            return Err(CacheConfigError::Budget { found: self.warm_permille });
        }
        Ok(())
    }

    /// Returns the resctrl groups whose memory bandwidth is limited, with their limits.
    ///
    /// # Errors
    /// Returns [`CacheConfigError::Throttle`] if a name cannot be a group's name.
    pub fn throttled(&self) -> Result<BTreeMap<GroupName, u64>, CacheConfigError> {
        let named = |name: &str| match name {
            DEFAULT_GROUP => Ok(GroupName::default_group()),
            name => GroupName::new(name).map_err(CacheConfigError::Throttle),
        };
        self.throttle.iter().map(|(name, bandwidth)| Ok((named(name)?, *bandwidth))).collect()
    }

    /// Returns the ids of the caches that `cache.domains` names. If it names none, returns the caches near
    /// the NUMA node; an empty list means every cache of the host.
    ///
    /// # Errors
    /// Returns [`CacheError::Topology`] if the host's caches cannot be read.
    pub fn domains_near(&self, numa_node: Option<u32>) -> Result<Vec<DomainId>, CacheError> {
        match numa_node {
            Some(node) if self.domains.is_empty() => {
                Ok(Topology::of_host()?.of_node(node).domains().to_vec())
            }
            _ => Ok(self.domains.clone()),
        }
    }

    /// Returns the request to reserve cache for a pool of `pool_bytes` near a NUMA node.
    ///
    /// # Errors
    /// Returns [`CacheError`] if the caches near the node cannot be read, or the group's name is invalid.
    pub fn request_near(&self, pool_bytes: u64, numa_node: Option<u32>) -> Result<Request, CacheError> {
        let domains = self.domains_near(numa_node)?;
        Ok(Request {
            group: GroupName::new(&self.group).map_err(CacheConfigError::from)?,
            bytes: self.bytes.unwrap_or(pool_bytes),
            slack_bytes: self.slack_bytes,
            domains: (!domains.is_empty()).then_some(domains),
            placement: self.placement,
            // The kernel would keep devices out of exclusive ways.
            exclusive: match self.device_ways {
                Some(DeviceWays::Pool) => Exclusiveness::Never,
                _ => self.exclusive,
            },
            others_ways_min: self.others_ways_min,
            take_from_groups: self.take_from_groups,
            locked: false,
        })
    }
}

//! The section `[cache]`.

use super::CacheError;
use crate::daemon::config::values;
use jet_cat::plan::{Exclusiveness, Placement, Request};
use jet_cat::resctrl::{DomainId, GroupName, GroupNameError, WayMask};
use jet_cat::topology::Topology;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Whether cache is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reserve {
    /// Where it can be; where not, that is said in one line.
    Auto,
    /// No.
    Off,
    /// Or the daemon does not start.
    Require,
}

/// What becomes of prefetchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prefetchers {
    /// They stay as they are.
    Leave,
    /// Those of the cores that the reactor and the software NIC are pinned to are off.
    Off,
}

/// The ways that devices' writes fill, where the kernel can say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceWays {
    /// The pool's own.
    Pool,
    /// These.
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

/// The default group, as `/proc/PID/cpu_resctrl_groups` names it: no other group can be called so.
pub const DEFAULT_GROUP: &str = "/";

/// Reserving cache for the pool, and keeping it warm (Jet §5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheConfig {
    /// Whether ways of the last-level cache are set aside.
    pub reserve: Reserve,
    /// Bytes of it; none: the pool's.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "values::bytes_if_any")]
    pub bytes: Option<u64>,
    /// Beside them: for the header area, rings, and what the reactor itself touches.
    #[serde(deserialize_with = "values::bytes")]
    pub slack_bytes: u64,
    /// The caches, by their ids; none named: the one near the NIC, where the system tells, else each.
    pub domains: Vec<DomainId>,
    /// Whether ways that devices fill (DDIO) are avoided, sought, or neither.
    pub placement: Placement,
    /// Whether the kernel is to refuse the ways to all others.
    pub exclusive: Exclusiveness,
    /// The fewest ways that the default group keeps.
    pub others_ways_min: u32,
    /// Whether other tools' groups may lose ways.
    pub take_from_groups: bool,
    /// The group that is made.
    pub group: String,
    /// Whether the threads of registered applications join it.
    pub applications: bool,
    /// The ways that devices fill (Intel's DDIO), a hexadecimal mask, in the reserved caches; none: as they
    /// are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ddio_ways: Option<WayMask>,
    /// The ways that devices' writes fill, in the same caches, where the kernel can say so (AMD); none: as
    /// they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_ways: Option<DeviceWays>,
    /// Prefetchers bring in what nobody asked for.
    pub prefetchers: Prefetchers,
    /// Where it is written down what was there before.
    pub journals: PathBuf,
    /// Whether the pool is touched at a low rate, and so measured.
    pub warm: bool,
    /// What that may cost, in thousandths of a core.
    pub warm_permille: u32,
    /// Whether the processor counts what the reactor finds in the cache and what not, where it can.
    pub counters: bool,
    /// The most memory bandwidth that groups may use, by name, `/` for the default one; in the unit of the
    /// kernel's files.
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

/// Why `[cache]` is no good.
#[derive(Debug, thiserror::Error)]
pub enum CacheConfigError {
    /// The group's name is none.
    #[error("cache.group: {0}")]
    Group(#[from] GroupNameError),
    /// A group that is to be throttled has a name that none has.
    #[error("cache.throttle: {0}; '{DEFAULT_GROUP}' means the default group")]
    Throttle(GroupNameError),
    /// A start elsewhere would not find what this one wrote.
    #[error("cache.journals is '{}', and must be an absolute path", path.display())]
    Journals {
        /// What it is.
        path: PathBuf,
    },
    /// The pool's own group is to be throttled.
    #[error("cache.throttle names '{group}', the pool's own group (cache.group): throttle others")]
    ThrottleOwn {
        /// The group.
        group: String,
    },
    /// The kernel keeps devices out of exclusive ways.
    #[error(
        "cache.device_ways = \"pool\" lets devices into the pool's ways, which cache.exclusive = \"require\" \
         forbids: let that be \"prefer\" or \"never\""
    )]
    DeviceWays,
    /// The warmer may use no time, or more than there is.
    #[error(
        "cache.warm_permille is {found}, but must be 1 to 1000 thousandths of a core; cache.warm = false \
         switches it off"
    )]
    Budget {
        /// What it is.
        found: u32,
    },
}

impl CacheConfig {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// [`CacheConfigError`].
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

    /// Groups whose bandwidth is limited.
    ///
    /// # Errors
    /// [`CacheConfigError::Throttle`].
    pub fn throttled(&self) -> Result<BTreeMap<GroupName, u64>, CacheConfigError> {
        let named = |name: &str| match name {
            DEFAULT_GROUP => Ok(GroupName::default_group()),
            name => GroupName::new(name).map_err(CacheConfigError::Throttle),
        };
        self.throttle.iter().map(|(name, bandwidth)| Ok((named(name)?, *bandwidth))).collect()
    }

    /// The caches that are named, or near a NUMA node; none: each.
    ///
    /// # Errors
    /// [`CacheError::Topology`].
    pub fn domains_near(&self, numa_node: Option<u32>) -> Result<Vec<DomainId>, CacheError> {
        match numa_node {
            Some(node) if self.domains.is_empty() => {
                Ok(Topology::of_host()?.of_node(node).domains().to_vec())
            }
            _ => Ok(self.domains.clone()),
        }
    }

    /// What is asked of the cache, for a pool of so many bytes near a NUMA node.
    ///
    /// # Errors
    /// [`CacheError`]: the caches near the node cannot be told, or the group's name is none.
    pub fn request_near(&self, pool_bytes: u64, numa_node: Option<u32>) -> Result<Request, CacheError> {
        let domains = self.domains_near(numa_node)?;
        Ok(Request {
            group: GroupName::new(&self.group).map_err(CacheConfigError::from)?,
            bytes: self.bytes.unwrap_or(pool_bytes),
            slack_bytes: self.slack_bytes,
            domains: (!domains.is_empty()).then_some(domains),
            placement: self.placement,
            // Devices could not get into exclusive ways.
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

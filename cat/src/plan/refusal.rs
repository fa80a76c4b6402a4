//! Reasons why a reservation cannot be planned.

use crate::resctrl::{DomainId, GroupName, WayMask};

/// Reason why a reservation cannot be planned. The error text says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A group of the requested name exists already.
    #[error(
        "there is a group '{group}' already, and no journal that says it is this program's; remove it \
         (rmdir /sys/fs/resctrl/{group}; what others lost to it, schemata of /sys/fs/resctrl tells), or \
         choose another name"
    )]
    GroupExists {
        /// Name of the group that exists already.
        group: GroupName,
    },
    /// All CAT classes of the processor are taken.
    #[error(
        "all {groups_max} classes are taken, one by the default group, the others by: {}; remove one that is \
         not needed",
        names.join(", ")
    )]
    NoClass {
        /// Number of groups for which the processor has CAT classes, including the default group.
        groups_max: u32,
        /// Names of the existing groups, without the default one.
        names: Vec<String>,
    },
    /// The host has no cache with the requested id, or no cache was requested.
    #[error("there is no cache with the id {wanted}; there are: {}", list(present))]
    NoDomain {
        /// Cache id that was requested.
        wanted: DomainId,
        /// Cache ids that exist.
        present: Vec<DomainId>,
    },
    /// The system does not tell the size of a requested cache.
    #[error(
        "the system does not tell the size of the cache with the id {domain} \
         (/sys/devices/system/cpu/cpu*/cache), so how many of its ways to take cannot be told; name another \
         domain"
    )]
    NoSize {
        /// Id of the cache whose size is not known.
        domain: DomainId,
    },
    /// The cache is too small for the request.
    #[error(
        "{bytes} bytes are {ways} ways of domain {domain}, of which at most {ways_max} ({} bytes) can be \
         reserved: {kept} are for others; ask for less",
        u64::from(*ways_max) * way_bytes
    )]
    TooLarge {
        /// Id of the cache that is too small.
        domain: DomainId,
        /// Bytes requested, including the slack.
        bytes: u64,
        /// Ways requested.
        ways: u32,
        /// Most ways that can be reserved.
        ways_max: u32,
        /// Ways that the default group must keep.
        kept: u32,
        /// Bytes of one way.
        way_bytes: u64,
    },
    /// Other tools' groups have ways that the request needs.
    #[error(
        "domain {domain} has no {ways} ways that are nobody's but the default group's: {} {}; shrink or \
         remove them, ask for less, or let this take from them (exclusive ones never give)",
        names.join(", "), if names.len() == 1 { "has the others" } else { "have the others" }
    )]
    Groups {
        /// Id of the cache that the groups have ways of.
        domain: DomainId,
        /// Number of ways requested.
        ways: u32,
        /// Names of the other tools' groups that have ways of the cache.
        names: Vec<String>,
    },
    /// Every choice would include ways that devices fill, which the request avoids.
    #[error(
        "domain {domain} has no {ways} ways away from those that devices fill ({shareable}); ask for less, \
         or for a placement that may share them"
    )]
    Devices {
        /// Id of the cache that has too few other ways.
        domain: DomainId,
        /// Number of ways requested.
        ways: u32,
        /// Ways that devices fill.
        shareable: WayMask,
    },
    /// Every choice would leave some group too few ways, or ways with gaps where it must have none.
    #[error(
        "whichever {ways} ways of domain {domain} were taken, {} would keep fewer than {kept}, or ways that \
         do not stand side by side; ask for less, or give the default group more (its mask is {default})",
        names.join(" or ")
    )]
    NothingLeft {
        /// Id of the cache that has too few ways for the request and the groups.
        domain: DomainId,
        /// Number of ways requested.
        ways: u32,
        /// Number of ways that the default group must keep.
        kept: u32,
        /// Ways that the default group has.
        default: WayMask,
        /// Names of the groups that would lose ways.
        names: Vec<String>,
    },
    /// The search for ways used up its tries without finding a choice.
    #[error(
        "no {ways} ways of domain {domain} that leave everybody enough were found in {tries} tries, and \
         there may be none: the masks of {} have too many gaps to try all; give them masks without gaps or \
         remove what is not needed, or ask for less",
        if names.is_empty() { "the default group".to_owned() } else { names.join(", ") }
    )]
    NotFound {
        /// Id of the cache whose ways were searched.
        domain: DomainId,
        /// Number of ways requested.
        ways: u32,
        /// Number of tries after which the search is given up.
        tries: u32,
        /// Names of the groups that have ways of the cache.
        names: Vec<String>,
    },
    /// The request requires an exclusive group, which is impossible.
    #[error("the group cannot be exclusive: {problem}; ask for a shareable one")]
    NotExclusive {
        /// Reason why the group cannot be exclusive, in words.
        problem: &'static str,
    },
    /// The request asks for pseudo-locked memory, which is impossible.
    #[error("no memory can be locked into the cache so: {problem}")]
    NotLocked {
        /// Reason why memory cannot be pseudo-locked, in words.
        problem: &'static str,
    },
}

fn list(domains: &[DomainId]) -> String {
    domains.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

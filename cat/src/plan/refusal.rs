//! Why there is no plan.

use crate::resctrl::{DomainId, GroupName, WayMask};

/// Why there is no plan, and what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is such a group already.
    #[error(
        "there is a group '{group}' already, and no journal that says it is this program's; remove it \
         (rmdir /sys/fs/resctrl/{group}; what others lost to it, schemata of /sys/fs/resctrl tells), or \
         choose another name"
    )]
    GroupExists {
        /// Its name.
        group: GroupName,
    },
    /// All classes are taken.
    #[error(
        "all {groups_max} classes are taken, one by the default group, the others by: {}; remove one that is \
         not needed",
        names.join(", ")
    )]
    NoClass {
        /// Groups that can be.
        groups_max: u32,
        /// Those that there are.
        names: Vec<String>,
    },
    /// There is no such domain.
    #[error("there is no cache with the id {wanted}; there are: {}", list(present))]
    NoDomain {
        /// What was asked for.
        wanted: DomainId,
        /// What there is.
        present: Vec<DomainId>,
    },
    /// The system does not describe the cache.
    #[error(
        "the system does not tell the size of the cache with the id {domain} \
         (/sys/devices/system/cpu/cpu*/cache), so how many of its ways to take cannot be told; name another \
         domain"
    )]
    NoSize {
        /// Which.
        domain: DomainId,
    },
    /// The cache is too small.
    #[error(
        "{bytes} bytes are {ways} ways of domain {domain}, of which at most {ways_max} ({} bytes) can be \
         reserved: {kept} are for others; ask for less",
        u64::from(*ways_max) * way_bytes
    )]
    TooLarge {
        /// Where.
        domain: DomainId,
        /// What was asked for, slack included.
        bytes: u64,
        /// The same in ways.
        ways: u32,
        /// The most that can be had.
        ways_max: u32,
        /// Ways that others keep.
        kept: u32,
        /// Bytes of a way.
        way_bytes: u64,
    },
    /// Other tools have what would be needed.
    #[error(
        "domain {domain} has no {ways} ways that are nobody's but the default group's: {} {}; shrink or \
         remove them, ask for less, or let this take from them (exclusive ones never give)",
        names.join(", "), if names.len() == 1 { "has the others" } else { "have the others" }
    )]
    Groups {
        /// Where.
        domain: DomainId,
        /// Ways wanted.
        ways: u32,
        /// Who has them.
        names: Vec<String>,
    },
    /// Devices' ways are in between.
    #[error(
        "domain {domain} has no {ways} ways away from those that devices fill ({shareable}); ask for less, \
         or for a placement that may share them"
    )]
    Devices {
        /// Where.
        domain: DomainId,
        /// Ways wanted.
        ways: u32,
        /// Those that devices fill.
        shareable: WayMask,
    },
    /// The ways that are left would have gaps, or be too few.
    #[error(
        "whichever {ways} ways of domain {domain} were taken, {} would keep fewer than {kept}, or ways that \
         do not stand side by side; ask for less, or give the default group more (its mask is {default})",
        names.join(" or ")
    )]
    NothingLeft {
        /// Where.
        domain: DomainId,
        /// Ways wanted.
        ways: u32,
        /// Ways that the default group must keep.
        kept: u32,
        /// What it has.
        default: WayMask,
        /// Who would lose.
        names: Vec<String>,
    },
    /// The search was given up.
    #[error(
        "no {ways} ways of domain {domain} that leave everybody enough were found in {tries} tries, and \
         there may be none: the masks of {} have too many gaps to try all; give them masks without gaps or \
         remove what is not needed, or ask for less",
        if names.is_empty() { "the default group".to_owned() } else { names.join(", ") }
    )]
    NotFound {
        /// Where.
        domain: DomainId,
        /// Ways wanted.
        ways: u32,
        /// Ways that were tried.
        tries: u32,
        /// Groups that have ways there.
        names: Vec<String>,
    },
    /// Exclusiveness was required.
    #[error("the group cannot be exclusive: {problem}; ask for a shareable one")]
    NotExclusive {
        /// Why.
        problem: &'static str,
    },
    /// It was to become memory.
    #[error("no memory can be locked into the cache so: {problem}")]
    NotLocked {
        /// Why.
        problem: &'static str,
    },
}

fn list(domains: &[DomainId]) -> String {
    domains.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

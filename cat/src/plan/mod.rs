//! Planning of a reservation: which ways of each cache the pool gets, which groups lose them, and what those
//! groups keep. The module only computes; it changes nothing.
//!
//! A CAT class of its own shields ways from other CAT classes, but pins no lines in them (Jet §5). So the
//! pool gets ways that no other group fills: first unused ones, then ways of the default group, whose mask
//! shrinks. Groups of other tools keep their ways unless the request says otherwise.

pub(crate) mod as_schemata;
mod choose;
mod refusal;

pub(crate) use choose::kept_by;
pub use refusal::Refusal;

use crate::resctrl::{CacheInfo, DomainId, GroupName, Mode, Resource, Schemata, WayMask};
use std::collections::BTreeMap;
use std::fmt;

/// Ways by resource and domain. The resource is `L3`, or code and data separately where CDP is on.
pub type Ways = BTreeMap<Resource, BTreeMap<DomainId, WayMask>>;

/// Group that has ways of the last-level cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Name of the group.
    pub name: GroupName,
    /// Mode of the group: whether it shares its ways.
    pub mode: Mode,
    /// Ways that the group has.
    pub ways: Ways,
}

impl Holder {
    /// Returns the group's ways in a domain, those of code and of data together.
    fn all_ways(&self, domain: DomainId) -> WayMask {
        self.ways.values().filter_map(|ways| ways.get(&domain)).fold(WayMask::EMPTY, |all, ways| all | *ways)
    }
}

/// State of the caches and groups before anything is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// Description of the last-level cache.
    pub cache: CacheInfo,
    /// Bytes of one way, by domain; 0 where the system does not tell the cache's size.
    pub way_bytes: BTreeMap<DomainId, u64>,
    /// Groups that have ways: the default group first, then the others.
    pub holders: Vec<Holder>,
    /// Groups of standing reservations, which outlive the process that made them, with the domains that each
    /// asked for. In all other domains such a group has what the default group had, and loses ways like it.
    pub reservations: BTreeMap<GroupName, Vec<DomainId>>,
    /// Number of groups for which the processor has CAT classes, including the default group.
    pub groups_max: u32,
    /// Whether resctrl allocates ways of other caches (L2) as well. An exclusive group would be exclusive in
    /// those caches, too, which the request does not ask for.
    pub other_caches: bool,
}

impl Holdings {
    /// Returns whether a group's ways may have gaps between them.
    fn is_sparse(&self) -> bool {
        // Kernels before 6.7 do not say. Of the processors, AMD's all take gaps, and they alone allow a group
        // without any way.
        self.cache.sparse.unwrap_or(self.cache.min_ways == 0)
    }
}

/// Relation of the reserved ways to those that devices fill (DDIO, a GPU), as far as the processor tells
/// which these are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// The reserved ways avoid those that devices fill.
    #[default]
    Away,
    /// The reserved ways include as many as possible of those that devices fill, so that devices' writes land
    /// in the pool's ways.
    Onto,
    /// Ways that devices fill are treated like any others.
    Anywhere,
}

/// Choice whether the kernel refuses the reserved ways to all other groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exclusiveness {
    /// The group becomes exclusive where that is possible, and shareable otherwise.
    #[default]
    Prefer,
    /// The group must become exclusive; otherwise planning fails.
    Require,
    /// The group stays shareable.
    Never,
}

/// Request for a reservation of the last-level cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Name of the group that is made for the reservation.
    pub group: GroupName,
    /// Bytes of the pool.
    pub bytes: u64,
    /// Additional bytes, for other memory that the group's threads touch.
    pub slack_bytes: u64,
    /// Caches in which to reserve; `None` means all.
    pub domains: Option<Vec<DomainId>>,
    /// Relation of the reserved ways to those that devices fill.
    pub placement: Placement,
    /// Choice of an exclusive or a shareable group.
    pub exclusive: Exclusiveness,
    /// Fewest ways that the default group keeps in each domain.
    pub others_ways_min: u32,
    /// Whether groups of other tools may lose ways, too. Exclusive groups never do.
    pub take_from_groups: bool,
    /// Whether the ways become pseudo-locked memory instead of a CAT class that threads belong to. That is
    /// possible in one domain, without CDP. No other thread can then fill the ways.
    pub locked: bool,
}

impl Request {
    /// Makes a request for a number of bytes with the default choices: all domains, away from devices' ways,
    /// exclusive where possible, at least two ways for the default group, and no ways from other tools'
    /// groups.
    pub fn new(group: GroupName, bytes: u64) -> Self {
        Self {
            group,
            bytes,
            slack_bytes: 0,
            domains: None,
            placement: Placement::default(),
            exclusive: Exclusiveness::default(),
            others_ways_min: 2,
            take_from_groups: false,
            locked: false,
        }
    }

    /// Returns the requested domains, sorted and without duplicates: all found domains where none are named.
    pub(crate) fn domains_of(&self, found: &Holdings) -> Vec<DomainId> {
        let mut domains = self.domains.clone().unwrap_or_else(|| found.way_bytes.keys().copied().collect());
        domains.sort_unstable();
        domains.dedup();
        domains
    }
}

/// Change of one group's ways, in the domains where it loses some.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Change {
    /// Name of the group.
    pub group: GroupName,
    /// Ways that the group has before the reservation.
    #[serde(with = "as_schemata")]
    pub before: Ways,
    /// Ways that the group keeps.
    #[serde(with = "as_schemata")]
    pub after: Ways,
}

/// Part of a plan that concerns one domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainPlan {
    /// Id of the cache.
    pub domain: DomainId,
    /// Ways that the pool gets.
    pub ways: WayMask,
    /// Bytes of the ways that the pool gets.
    pub bytes: u64,
    /// Those of the pool's ways that devices fill, too.
    pub with_devices: WayMask,
    /// Ways that the default group keeps.
    pub left: WayMask,
}

/// Plan of a reservation: the group to make, and the ways that change owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Name of the group to make.
    pub group: GroupName,
    /// Ways that the group gets in every domain. In a domain that was not asked for it gets the default
    /// group's ways, or none. Pseudo-locked memory names only its own domain.
    pub own: Ways,
    /// Whether the group is made exclusive.
    pub exclusive: bool,
    /// Whether the ways become pseudo-locked memory.
    pub locked: bool,
    /// Changes of the groups that lose ways.
    pub changes: Vec<Change>,
    /// Summary by domain, for people.
    pub domains: Vec<DomainPlan>,
}

/// Returns the schemata whose lines assign these ways.
pub fn schemata(ways: &Ways) -> Schemata {
    let line = |(resource, ways): (&Resource, &BTreeMap<DomainId, WayMask>)| {
        (resource.clone(), crate::resctrl::Line::Ways(ways.clone()))
    };
    Schemata { lines: ways.iter().map(line).collect() }
}

/// Returns the ways of the last-level cache that a schemata names.
pub fn l3_ways(schemata: &Schemata) -> Ways {
    schemata.l3().map(|(resource, ways)| (resource.clone(), ways.clone())).collect()
}

/// Plans a reservation from a request and the state that was found.
///
/// # Errors
/// [`Refusal`], whose text says what to change.
pub fn plan(request: &Request, found: &Holdings) -> Result<Plan, Refusal> {
    if found.holders.iter().any(|holder| holder.name == request.group) {
        return Err(Refusal::GroupExists { group: request.group.clone() });
    }
    // A pseudo-locked region has already returned its class.
    let holders = found.holders.iter().filter(|holder| holder.mode != Mode::PseudoLocked);
    let groups = u32::try_from(holders.count()).unwrap_or(u32::MAX);
    if groups >= found.groups_max {
        let names = found.holders.iter().filter(|holder| !holder.name.is_default());
        return Err(Refusal::NoClass {
            groups_max: found.groups_max,
            names: names.map(|holder| holder.name.to_string()).collect(),
        });
    }
    let present: Vec<DomainId> = found.way_bytes.keys().copied().collect();
    let wanted = request.domains_of(found);
    if let Some(unknown) = wanted.iter().find(|domain| !present.contains(domain)) {
        return Err(Refusal::NoDomain { wanted: *unknown, present });
    }
    if wanted.is_empty() {
        return Err(Refusal::NoDomain { wanted: 0, present });
    }
    let mut chosen = BTreeMap::new();
    for domain in wanted {
        chosen.insert(domain, choose::ways(request, found, domain)?);
    }
    let exclusive = if request.locked {
        check_locked(found, &chosen)?;
        false
    } else {
        exclusiveness(request, found, &chosen)?
    };
    Ok(assemble(request, found, &chosen, exclusive))
}

/// Checks that the chosen ways can become pseudo-locked memory.
fn check_locked(found: &Holdings, chosen: &BTreeMap<DomainId, WayMask>) -> Result<(), Refusal> {
    let problem = if chosen.len() > 1 {
        "it lies in one cache, and several are asked for: name one"
    } else if found.holders.iter().any(|holder| holder.ways.len() > 1) {
        "code and data have ways of their own: mount resctrl without cdp"
    } else if chosen.values().any(|ways| ways.overlaps(found.cache.shareable)) {
        "devices fill those ways as well: choose a placement away from them"
    } else {
        return Ok(());
    };
    Err(Refusal::NotLocked { problem })
}

/// Returns whether the group is made exclusive.
///
/// # Errors
/// [`Refusal::NotExclusive`] where the request requires what is impossible.
fn exclusiveness(
    request: &Request,
    found: &Holdings,
    chosen: &BTreeMap<DomainId, WayMask>,
) -> Result<bool, Refusal> {
    let everywhere = found.way_bytes.keys().all(|domain| chosen.contains_key(domain));
    let problem = if request.exclusive == Exclusiveness::Never {
        return Ok(false);
    } else if found.other_caches {
        Some("an exclusive group is so in the second-level cache, too, which is shared out here as well")
    } else if !everywhere && (found.cache.min_ways > 0 || request.exclusive == Exclusiveness::Prefer) {
        // Where masks may be empty, an exclusive group could have no way in the other domains. That is too
        // high a price for a mere preference.
        Some("an exclusive group is so in every domain, and not all are asked for")
    } else if chosen.values().any(|ways| ways.overlaps(found.cache.shareable)) {
        Some("ways that devices fill cannot be exclusive")
    } else {
        None
    };
    match problem {
        None => Ok(true),
        Some(problem) if request.exclusive == Exclusiveness::Require => {
            Err(Refusal::NotExclusive { problem })
        }
        Some(_) => Ok(false),
    }
}

fn assemble(
    request: &Request,
    found: &Holdings,
    chosen: &BTreeMap<DomainId, WayMask>,
    exclusive: bool,
) -> Plan {
    let default = found.holders.iter().find(|holder| holder.name.is_default());
    let mut own = Ways::new();
    for (resource, ways) in default.into_iter().flat_map(|holder| &holder.ways) {
        // Without any way in a domain the group's threads would fill nothing there. That is done only where
        // the kernel demands it of an exclusive group.
        let nothing = exclusive && found.cache.min_ways == 0;
        let elsewhere = |ways: WayMask| if nothing { WayMask::EMPTY } else { ways };
        let of_domain = |(domain, ways): (&DomainId, &WayMask)| {
            (*domain, chosen.get(domain).copied().unwrap_or_else(|| elsewhere(*ways)))
        };
        let ways = ways.iter().filter(|(domain, _)| !request.locked || chosen.contains_key(domain));
        own.insert(resource.clone(), ways.map(of_domain).collect());
    }
    let changes: Vec<Change> =
        found.holders.iter().filter_map(|holder| change(holder, chosen, found.is_sparse())).collect();
    let left = |domain: DomainId| {
        let keeps = |holder: &Holder| {
            let ways = holder.ways.values().filter_map(|ways| ways.get(&domain));
            let kept = ways.map(|had| choose::kept_of(*had, chosen[&domain], found.is_sparse()));
            kept.fold(WayMask::EMPTY, |all, kept| all | kept)
        };
        default.map_or(WayMask::EMPTY, keeps)
    };
    let domains = chosen.iter().map(|(&domain, &ways)| DomainPlan {
        domain,
        ways,
        bytes: u64::from(ways.count()) * found.way_bytes[&domain],
        with_devices: ways & found.cache.shareable,
        left: left(domain),
    });
    let (group, locked) = (request.group.clone(), request.locked);
    Plan { group, own, exclusive, locked, changes, domains: domains.collect() }
}

/// Returns what a group loses to the chosen ways, or `None` where it loses nothing.
fn change(holder: &Holder, chosen: &BTreeMap<DomainId, WayMask>, sparse: bool) -> Option<Change> {
    let (mut before, mut after) = (Ways::new(), Ways::new());
    for (resource, ways) in &holder.ways {
        let losing =
            ways.iter().filter(|(domain, ways)| chosen.get(domain).is_some_and(|lost| lost.overlaps(**ways)));
        for (&domain, &ways) in losing {
            before.entry(resource.clone()).or_default().insert(domain, ways);
            after
                .entry(resource.clone())
                .or_default()
                .insert(domain, choose::kept_of(ways, chosen[&domain], sparse));
        }
    }
    (!before.is_empty()).then(|| Change { group: holder.name.clone(), before, after })
}

/// Describes the plan for people: what is done, and which ways are left to the groups.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = match (self.locked, self.exclusive) {
            (true, _) => "pseudo-locked",
            (false, true) => "exclusive",
            (false, false) => "shareable",
        };
        writeln!(f, "group {}, {share}:", self.group)?;
        for domain in &self.domains {
            writeln!(
                f,
                "  domain {}: ways {} ({} of them, {} KiB){}; the default group keeps {} ({})",
                domain.domain,
                domain.ways,
                domain.ways.count(),
                domain.bytes / 1024,
                if domain.with_devices.is_empty() {
                    String::new()
                } else {
                    format!(", of which devices fill {}", domain.with_devices)
                },
                domain.left,
                domain.left.count(),
            )?;
        }
        for change in &self.changes {
            for (resource, ways) in &change.before {
                for (domain, before) in ways {
                    let after = change.after[resource][domain];
                    writeln!(
                        f,
                        "  {}: {resource} of domain {domain} from {before} to {after}",
                        change.group
                    )?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

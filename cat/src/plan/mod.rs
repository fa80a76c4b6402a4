//! From bytes wanted to ways: which, who loses them, and what is left to others. Decides, and touches
//! nothing.
//!
//! A class of its own shields ways from other classes; it pins nothing (Jet §5). So the pool gets ways that
//! nobody else fills: unused ones first, then the default group's, whose mask shrinks. Other tools' groups
//! are left alone unless told.

pub(crate) mod as_schemata;
mod choose;
mod refusal;

pub(crate) use choose::kept_by;
pub use refusal::Refusal;

use crate::resctrl::{CacheInfo, DomainId, GroupName, Mode, Resource, Schemata, WayMask};
use std::collections::BTreeMap;
use std::fmt;

/// Ways by resource (`L3`, or code and data where CDP is on) and domain.
pub type Ways = BTreeMap<Resource, BTreeMap<DomainId, WayMask>>;

/// Who has which ways of the last-level cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The group.
    pub name: GroupName,
    /// How it shares them.
    pub mode: Mode,
    /// Its ways.
    pub ways: Ways,
}

impl Holder {
    /// Its ways in a domain, of code and of data.
    fn all_ways(&self, domain: DomainId) -> WayMask {
        self.ways.values().filter_map(|ways| ways.get(&domain)).fold(WayMask::EMPTY, |all, ways| all | *ways)
    }
}

/// What is found, before anything is changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    /// The last-level cache's ways.
    pub cache: CacheInfo,
    /// Bytes of one way, by domain; 0 where the system does not describe the cache.
    pub way_bytes: BTreeMap<DomainId, u64>,
    /// The default group, then the others.
    pub holders: Vec<Holder>,
    /// Groups of standing reservations, with the domains that each asked for. In all other domains they have
    /// what the default group had, and give way as it does.
    pub reservations: BTreeMap<GroupName, Vec<DomainId>>,
    /// Groups that can be, the default one counted.
    pub groups_max: u32,
    /// Whether other caches are shared out as well (L2): a group that is exclusive is so in all of them,
    /// which is not asked for.
    pub other_caches: bool,
}

impl Holdings {
    /// Whether a group's ways may have gaps between them.
    fn is_sparse(&self) -> bool {
        // Before 6.7 the kernel does not say; AMD's processors, which all take gaps, are told by taking no
        // way at all.
        self.cache.sparse.unwrap_or(self.cache.min_ways == 0)
    }
}

/// Whether the ways may be those that devices fill (DDIO, a GPU), as far as the processor tells which these
/// are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// They are others.
    #[default]
    Away,
    /// As many as possible are: what devices write is then in the pool's ways.
    Onto,
    /// It does not matter.
    Anywhere,
}

/// Whether the kernel is to refuse the ways to all other groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exclusiveness {
    /// Where it can be.
    #[default]
    Prefer,
    /// Or nothing.
    Require,
    /// No.
    Never,
}

/// What is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The group that is made for it.
    pub group: GroupName,
    /// Bytes of the pool.
    pub bytes: u64,
    /// Bytes for what else its threads touch.
    pub slack_bytes: u64,
    /// In which domains; none: in each.
    pub domains: Option<Vec<DomainId>>,
    /// Where in the cache.
    pub placement: Placement,
    /// For it alone or not.
    pub exclusive: Exclusiveness,
    /// The fewest ways that the default group keeps in each domain.
    pub others_ways_min: u32,
    /// Whether groups of other tools may lose ways, too. Those that are exclusive never do.
    pub take_from_groups: bool,
    /// Whether it becomes memory that lies in the ways (pseudo-locking), instead of a class that threads are
    /// in: in one domain, of one resource, for nobody else.
    pub locked: bool,
}

impl Request {
    /// So many bytes, and the documented choices: in each domain, away from devices' ways, exclusive where it
    /// can be, two ways for others, nothing from other tools' groups.
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

    /// The domains that are meant, in order, of those there are.
    pub(crate) fn domains_of(&self, found: &Holdings) -> Vec<DomainId> {
        let mut domains = self.domains.clone().unwrap_or_else(|| found.way_bytes.keys().copied().collect());
        domains.sort_unstable();
        domains.dedup();
        domains
    }
}

/// What a group has before and after, in the domains that change.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Change {
    /// The group.
    pub group: GroupName,
    /// What it has.
    #[serde(with = "as_schemata")]
    pub before: Ways,
    /// What it keeps.
    #[serde(with = "as_schemata")]
    pub after: Ways,
}

/// One domain's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainPlan {
    /// The cache's id.
    pub domain: DomainId,
    /// The pool's ways.
    pub ways: WayMask,
    /// Their bytes.
    pub bytes: u64,
    /// Of them: those that devices fill, too.
    pub with_devices: WayMask,
    /// What the default group keeps.
    pub left: WayMask,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The group to make.
    pub group: GroupName,
    /// What it gets, in every domain: in those that were not asked for as the default group, or nothing.
    pub own: Ways,
    /// Whether it is made exclusive.
    pub exclusive: bool,
    /// Whether it becomes memory.
    pub locked: bool,
    /// Who loses what.
    pub changes: Vec<Change>,
    /// The same by domain, for people.
    pub domains: Vec<DomainPlan>,
}

/// The lines of a schemata that say this.
pub fn schemata(ways: &Ways) -> Schemata {
    let line = |(resource, ways): (&Resource, &BTreeMap<DomainId, WayMask>)| {
        (resource.clone(), crate::resctrl::Line::Ways(ways.clone()))
    };
    Schemata { lines: ways.iter().map(line).collect() }
}

/// The ways of the last-level cache that a schemata names.
pub fn l3_ways(schemata: &Schemata) -> Ways {
    schemata.l3().map(|(resource, ways)| (resource.clone(), ways.clone())).collect()
}

/// Plans a reservation.
///
/// # Errors
/// [`Refusal`], with what to change.
pub fn plan(request: &Request, found: &Holdings) -> Result<Plan, Refusal> {
    if found.holders.iter().any(|holder| holder.name == request.group) {
        return Err(Refusal::GroupExists { group: request.group.clone() });
    }
    // A pseudo-locked region has given its class back.
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

/// Whether the ways can become memory.
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

/// Whether the group can be exclusive, where that is wanted.
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
        // With masks that may be empty it could have nothing elsewhere, which is too much to give for a
        // preference.
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
        // Without any way its threads would bring nothing into that cache: only where the kernel asks for it.
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

/// What a group loses to the chosen ways; none where it loses nothing.
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

/// For people: what is done, and what is left.
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

//! Which ways of one domain.

use super::{Holder, Holdings, Placement, Refusal, Request};
use crate::resctrl::{DomainId, Mode, WayMask, WayUsage};

/// Ways that are tried at most for one choice with gaps: some 0.1 s. Half a dozen groups that overlap in all ways need thousands.
const TRIES_MAX: u32 = 1 << 18;

/// What a choice may not touch, and what it should rather not.
struct Rules<'a> {
    request: &'a Request,
    found: &'a Holdings,
    domain: DomainId,
    /// How many ways.
    count: u32,
    /// Ways that somebody keeps, whatever was asked for.
    fixed: WayMask,
    /// Ways of other tools' groups, which share them.
    groups: WayMask,
}

/// What a group keeps of its ways when some are taken: all that is left, or, where its ways must stand side by side, the
/// longest run of that, the lowest of several.
pub(super) fn kept_of(had: WayMask, taken: WayMask, sparse: bool) -> WayMask {
    let left = had.without(taken);
    if sparse || left.is_contiguous() {
        return left;
    }
    let runs = (0..64).map(|first| WayMask::run(first, longest_run(left, first)));
    runs.rev().max_by_key(|run| run.count()).unwrap_or(left)
}

/// The ways for the pool in a domain.
pub(super) fn ways(request: &Request, found: &Holdings, domain: DomainId) -> Result<WayMask, Refusal> {
    let way_bytes = found.way_bytes[&domain].max(1);
    let bytes = request.bytes.saturating_add(request.slack_bytes);
    let wanted = u32::try_from(bytes.div_ceil(way_bytes)).unwrap_or(u32::MAX);
    let count = wanted.max(found.cache.min_ways).max(1);
    let kept = kept(request, found);
    let ways_max = found.cache.ways.count().saturating_sub(kept);
    if count > ways_max {
        return Err(Refusal::TooLarge { domain, bytes, ways: count, ways_max, kept, way_bytes });
    }
    let rules = Rules::new(request, found, domain, count);
    rules.best(rules.allowed(true, true)).ok_or_else(|| rules.refusal())
}

/// The fewest ways that the default group keeps.
fn kept(request: &Request, found: &Holdings) -> u32 {
    request.others_ways_min.max(found.cache.min_ways).max(1)
}

impl<'a> Rules<'a> {
    fn new(request: &'a Request, found: &'a Holdings, domain: DomainId, count: u32) -> Self {
        let others = || found.holders.iter().filter(|holder| !holder.name.is_default());
        let of = |holders: &mut dyn Iterator<Item = &Holder>| {
            holders.fold(WayMask::EMPTY, |all, holder| all | holder.all_ways(domain))
        };
        // A pseudo-locked region has no group's mask any more.
        let usage = found.cache.usage.get(&domain).into_iter().flatten();
        let locked = usage.zip(0..).filter(|(usage, _)| **usage == WayUsage::PseudoLocked);
        let locked = locked.fold(WayMask::EMPTY, |all, (_, way)| all | WayMask::run(way, 1));
        Self {
            request,
            found,
            domain,
            count,
            fixed: locked | of(&mut others().filter(|holder| holder.mode != Mode::Shareable)),
            groups: of(&mut others().filter(|holder| {
                let gives_way =
                    found.reservations.get(&holder.name).is_some_and(|own| !own.contains(&domain));
                holder.mode == Mode::Shareable && !gives_way
            })),
        }
    }

    /// Ways that may be chosen. For telling what stands in the way, groups or devices are left out of account.
    fn allowed(&self, respect_groups: bool, respect_devices: bool) -> WayMask {
        let mut allowed = self.found.cache.ways.without(self.fixed);
        if respect_groups && !self.request.take_from_groups {
            allowed = allowed.without(self.groups);
        }
        if respect_devices && self.request.placement == Placement::Away {
            allowed = allowed.without(self.found.cache.shareable);
        }
        allowed
    }

    /// The best choice among these ways.
    fn best(&self, allowed: WayMask) -> Option<WayMask> {
        let run = |first| WayMask::run(first, self.count);
        let runs = (0..64 - allowed.0.leading_zeros()).map(run).filter(|ways| allowed.contains(*ways));
        let runs = runs.filter(|ways| ways.count() == self.count && self.leaves_enough(*ways));
        let best = runs.min_by_key(|ways| self.cost(*ways));
        // Ways with gaps only where there is no other choice, and the processor takes them.
        best.or_else(|| self.found.is_sparse().then(|| self.scattered(allowed)).flatten())
    }

    /// Ways with gaps, of those that cost least one by one.
    fn scattered(&self, allowed: WayMask) -> Option<WayMask> {
        let mut each: Vec<WayMask> =
            (0..64).map(|way| WayMask::run(way, 1)).filter(|way| allowed.contains(*way)).collect();
        each.sort_by_key(|way| self.cost(*way));
        self.add(WayMask::EMPTY, &each, &mut TRIES_MAX.clone())
    }

    /// Adds some of these ways to those that are chosen, the first ones that go together.
    fn add(&self, chosen: WayMask, rest: &[WayMask], tries: &mut u32) -> Option<WayMask> {
        let missing = (self.count - chosen.count()) as usize;
        if missing == 0 {
            return Some(chosen);
        }
        let mut in_vain = Vec::new();
        for (at, &way) in rest.iter().enumerate().take((rest.len() + 1).saturating_sub(missing)) {
            if in_vain.iter().any(|&other| self.are_alike(way, other)) {
                continue;
            }
            *tries = tries.checked_sub(1)?;
            let more = chosen | way;
            // Who has lost too much does not get it back by more being taken.
            if self.leaves_enough(more)
                && let Some(found) = self.add(more, &rest[at + 1..], tries)
            {
                return Some(found);
            }
            in_vain.push(way);
        }
        None
    }

    /// Whether the same groups have both ways, for the same resources: then each is as much of a loss as the other.
    fn are_alike(&self, one: WayMask, other: WayMask) -> bool {
        let all = self.found.holders.iter();
        all.flat_map(|holder| self.of_resources(holder)).all(|had| had.overlaps(one) == had.overlaps(other))
    }

    /// Less is better: devices' ways where they are wanted, then as little as possible from other tools' groups, then from the
    /// default group, then the lowest.
    fn cost(&self, ways: WayMask) -> (u32, u32, u32, u32) {
        let devices = (ways & self.found.cache.shareable).count();
        let off_devices = match self.request.placement {
            Placement::Onto => ways.count() - devices,
            Placement::Away | Placement::Anywhere => 0,
        };
        let lost = |of_default: bool| {
            let losers = self.found.holders.iter().filter(|holder| holder.name.is_default() == of_default);
            let lost = losers
                .flat_map(|holder| self.of_resources(holder))
                .map(|had| had.count() - kept_of(had, ways, self.found.is_sparse()).count());
            lost.sum()
        };
        (off_devices, lost(false), lost(true), ways.0.trailing_zeros())
    }

    /// A holder's ways in this domain, of each resource.
    fn of_resources<'h>(&self, holder: &'h Holder) -> impl Iterator<Item = WayMask> + use<'h> {
        let domain = self.domain;
        holder.ways.values().filter_map(move |by_domain| by_domain.get(&domain)).copied()
    }

    fn default(&self) -> Option<&Holder> {
        self.found.holders.iter().find(|holder| holder.name.is_default())
    }

    /// Whether everybody who loses ways keeps enough.
    fn leaves_enough(&self, ways: WayMask) -> bool {
        self.found.holders.iter().all(|holder| {
            let kept = if holder.name.is_default() {
                kept(self.request, self.found)
            } else {
                self.found.cache.min_ways.max(1)
            };
            self.of_resources(holder)
                .filter(|had| had.overlaps(ways))
                .all(|had| kept_of(had, ways, self.found.is_sparse()).count() >= kept)
        })
    }

    /// Why there is no choice: what would have to give way for there to be one.
    fn refusal(&self) -> Refusal {
        let (domain, ways) = (self.domain, self.count);
        if self.best(self.allowed(true, false)).is_some() {
            return Refusal::Devices { domain, ways, shareable: self.found.cache.shareable };
        }
        let holders = self.found.holders.iter().filter(|holder| !holder.name.is_default());
        let names: Vec<String> = holders
            .filter(|holder| !holder.all_ways(domain).is_empty())
            .map(|holder| holder.name.to_string())
            .collect();
        let shared_out = self.fixed | self.groups;
        let free = self.found.cache.ways.without(shared_out);
        let longest = (0..64).map(|first| longest_run(free, first)).max().unwrap_or(0);
        if !names.is_empty() && longest < ways.saturating_add(kept(self.request, self.found)) {
            return Refusal::Groups { domain, ways, names };
        }
        Refusal::NothingLeft {
            domain,
            ways,
            kept: kept(self.request, self.found),
            default: self.default().map_or(WayMask::EMPTY, |holder| holder.all_ways(domain)),
            names: std::iter::once("the default group".to_owned())
                .chain(names.into_iter().filter(|_| self.request.take_from_groups))
                .collect(),
        }
    }
}

/// Ways side by side from one on.
fn longest_run(ways: WayMask, first: u32) -> u32 {
    (ways.0 >> first).trailing_ones()
}

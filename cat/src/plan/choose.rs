//! Which ways of one domain.

use super::{Holder, Holdings, Placement, Refusal, Request};
use crate::resctrl::{DomainId, Mode, WayMask, WayUsage};

/// Ways that are tried at most for one choice with gaps: some 0.1 s. Half a dozen groups that overlap in all
/// ways need thousands.
const TRIES_MAX: u32 = 1 << 18;

/// A search used up [`TRIES_MAX`]. Where it found nothing, there may be a choice, or none.
struct Unfinished;

/// What a choice costs: less is better, the first number before the second, and so on.
type Cost = [u32; 3];

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

/// What a group keeps of its ways when some are taken: all that is left, or, where its ways must stand side
/// by side, the longest run of that, the lowest of several.
pub(super) fn kept_of(had: WayMask, taken: WayMask, sparse: bool) -> WayMask {
    let left = had.without(taken);
    if sparse || left.is_contiguous() {
        return left;
    }
    let runs = (0..64).map(|first| WayMask::run(first, longest_run(left, first)));
    runs.rev().max_by_key(|run| run.count()).unwrap_or(left)
}

/// What a group keeps where ways of its are taken; none where it does not give, or would keep too few.
pub(crate) fn kept_by(
    request: &Request,
    found: &Holdings,
    holder: &Holder,
    domain: DomainId,
    has: WayMask,
    taken: WayMask,
) -> Option<WayMask> {
    let gives_way = found.reservations.get(&holder.name).is_some_and(|own| !own.contains(&domain));
    let gives = gives_way || request.take_from_groups;
    let gives = holder.name.is_default() || gives && holder.mode == Mode::Shareable;
    let least = if holder.name.is_default() { kept(request, found) } else { found.cache.min_ways.max(1) };
    let left = kept_of(has, taken, found.is_sparse());
    (gives && left.count() >= least).then_some(left)
}

/// The ways for the pool in a domain.
pub(super) fn ways(request: &Request, found: &Holdings, domain: DomainId) -> Result<WayMask, Refusal> {
    let way_bytes = found.way_bytes[&domain];
    if way_bytes == 0 {
        return Err(Refusal::NoSize { domain });
    }
    let bytes = request.bytes.saturating_add(request.slack_bytes);
    let wanted = u32::try_from(bytes.div_ceil(way_bytes)).unwrap_or(u32::MAX);
    let count = wanted.max(found.cache.min_ways).max(1);
    let kept = kept(request, found);
    let ways_max = found.cache.ways.count().saturating_sub(kept);
    if count > ways_max {
        return Err(Refusal::TooLarge { domain, bytes, ways: count, ways_max, kept, way_bytes });
    }
    let rules = Rules::new(request, found, domain, count);
    match rules.best(rules.allowed(true, true)) {
        Ok(Some(ways)) => Ok(ways),
        Ok(None) => Err(rules.refusal()),
        Err(Unfinished) => Err(rules.not_found()),
    }
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

    /// Ways that may be chosen. For telling what stands in the way, groups or devices are left out of
    /// account.
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

    /// The best choice among these ways, where there is one.
    fn best(&self, allowed: WayMask) -> Result<Option<WayMask>, Unfinished> {
        let run = |first| WayMask::run(first, self.count);
        let runs = (0..64 - allowed.0.leading_zeros()).map(run).filter(|ways| allowed.contains(*ways));
        let runs = runs.filter(|ways| ways.count() == self.count && self.leaves_enough(*ways));
        // Of several that cost the same the lowest.
        match runs.min_by_key(|ways| self.cost(*ways)) {
            Some(best) => Ok(Some(best)),
            // Ways with gaps only where there is no other choice, and the processor takes them.
            None if self.found.is_sparse() => self.scattered(allowed),
            None => Ok(None),
        }
    }

    /// Ways with gaps: those that cost least together, or the least of those that were tried until the tries
    /// were used up.
    fn scattered(&self, allowed: WayMask) -> Result<Option<WayMask>, Unfinished> {
        let ways = (0..64).map(|way| WayMask::run(way, 1)).filter(|way| allowed.contains(*way));
        let mut each: Vec<(Cost, WayMask)> = ways.map(|way| (self.cost(way), way)).collect();
        // The lower of two that cost the same stays before the other.
        each.sort_by_key(|(cost, _)| *cost);
        let mut search = Search { rules: self, tries: TRIES_MAX, best: None };
        let finished = search.add(WayMask::EMPTY, Cost::default(), &each);
        match search.best {
            Some((_, ways)) => Ok(Some(ways)),
            None => finished.map(|()| None),
        }
    }

    /// Whether the same groups have both ways, for the same resources: then each is as much of a loss as the
    /// other.
    fn are_alike(&self, one: WayMask, other: WayMask) -> bool {
        let all = self.found.holders.iter();
        all.flat_map(|holder| self.of_resources(holder)).all(|had| had.overlaps(one) == had.overlaps(other))
    }

    /// Ways that are not devices', where theirs are wanted; then what other tools' groups lose; then what the
    /// default group does.
    fn cost(&self, ways: WayMask) -> Cost {
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
        [off_devices, lost(false), lost(true)]
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

    /// Groups of others that have ways in this domain.
    fn other_names(&self) -> Vec<String> {
        let holders = self.found.holders.iter().filter(|holder| !holder.name.is_default());
        let holders = holders.filter(|holder| !holder.all_ways(self.domain).is_empty());
        holders.map(|holder| holder.name.to_string()).collect()
    }

    /// That it is not known whether there is a choice.
    fn not_found(&self) -> Refusal {
        Refusal::NotFound {
            domain: self.domain,
            ways: self.count,
            tries: TRIES_MAX,
            names: self.other_names(),
        }
    }

    /// Why there is no choice: what would have to give way for there to be one.
    fn refusal(&self) -> Refusal {
        let (domain, ways) = (self.domain, self.count);
        match self.best(self.allowed(true, false)) {
            Ok(Some(_)) => {
                return Refusal::Devices { domain, ways, shareable: self.found.cache.shareable };
            }
            Ok(None) => (),
            Err(Unfinished) => return self.not_found(),
        }
        let names = self.other_names();
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

/// A search for ways with gaps.
struct Search<'a> {
    rules: &'a Rules<'a>,
    /// Tries that are left.
    tries: u32,
    /// The best choice up to now, and its cost.
    best: Option<(Cost, WayMask)>,
}

impl Search<'_> {
    /// Adds some of these ways, the cheapest first, to those that are chosen. Costs add up, since with gaps
    /// nobody loses more than what is taken.
    fn add(&mut self, chosen: WayMask, cost: Cost, rest: &[(Cost, WayMask)]) -> Result<(), Unfinished> {
        let missing = (self.rules.count - chosen.count()) as usize;
        if missing == 0 {
            if self.is_better(cost) {
                self.best = Some((cost, chosen));
            }
            return Ok(());
        }
        let mut done: Vec<WayMask> = Vec::new();
        for (at, cheapest) in rest.windows(missing).enumerate() {
            // No choice among those that are left costs less than the first ones do.
            if !self.is_better(cheapest.iter().fold(cost, |sum, (of_way, _)| sum_of(sum, *of_way))) {
                break;
            }
            let (of_way, way) = rest[at];
            // In its place the other one was tried already, which costs as much or less.
            if done.iter().any(|&other| self.rules.are_alike(way, other)) {
                continue;
            }
            self.tries = self.tries.checked_sub(1).ok_or(Unfinished)?;
            let more = chosen | way;
            // Who has lost too much does not get it back by more being taken.
            if self.rules.leaves_enough(more) {
                self.add(more, sum_of(cost, of_way), &rest[at + 1..])?;
            }
            done.push(way);
        }
        Ok(())
    }

    fn is_better(&self, cost: Cost) -> bool {
        self.best.is_none_or(|(best, _)| cost < best)
    }
}

fn sum_of(one: Cost, other: Cost) -> Cost {
    std::array::from_fn(|at| one[at] + other[at])
}

/// Ways side by side from one on.
fn longest_run(ways: WayMask, first: u32) -> u32 {
    (ways.0 >> first).trailing_ones()
}

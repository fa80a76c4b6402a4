//! Choice of the ways of one cache that a reservation takes.

use super::{Holder, Holdings, Placement, Refusal, Request};
use crate::resctrl::{DomainId, Mode, WayMask, WayUsage};

/// Most steps that the search for ways with gaps takes, about 0.1 s. Half a dozen groups that overlap in all
/// ways need thousands of steps.
const TRIES_MAX: u32 = 1 << 18;

/// Sign that a search used up [`TRIES_MAX`] steps and found nothing. A choice may exist or not.
struct Unfinished;

/// Cost of choosing certain ways; less is better. Costs compare lexicographically: the first number decides,
/// then the second, then the third.
type Cost = [u32; 3];

/// Rules for choosing ways in one domain: which must not be taken, and which are better not taken.
struct Rules<'a> {
    request: &'a Request,
    found: &'a Holdings,
    domain: DomainId,
    /// Number of ways to choose.
    count: u32,
    /// Ways that are never taken, whatever the request says: those of exclusive groups and of pseudo-locked
    /// regions.
    fixed: WayMask,
    /// Ways of other tools' shareable groups.
    groups: WayMask,
}

/// Returns which of its ways a group keeps when `taken` are taken from it.
///
/// Where its ways may have gaps, it keeps all that are left. Otherwise it keeps the longest row of
/// consecutive ways, and of several equally long rows the lowest.
pub(super) fn kept_of(had: WayMask, taken: WayMask, sparse: bool) -> WayMask {
    let left = had.without(taken);
    if sparse || left.is_contiguous() {
        return left;
    }
    let runs = (0..64).map(|first| WayMask::run(first, longest_run(left, first)));
    runs.rev().max_by_key(|run| run.count()).unwrap_or(left)
}

/// Returns which of its ways a group keeps when `taken` are taken from it. Returns `None` where the group
/// must not lose ways, or would keep too few.
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
    let least = if holder.name.is_default() {
        default_group_min(request, found)
    } else {
        found.cache.min_ways.max(1)
    };
    let left = kept_of(has, taken, found.is_sparse());
    (gives && left.count() >= least).then_some(left)
}

/// Chooses the ways for the pool in a domain.
pub(super) fn ways(request: &Request, found: &Holdings, domain: DomainId) -> Result<WayMask, Refusal> {
    let way_bytes = found.way_bytes[&domain];
    if way_bytes == 0 {
        return Err(Refusal::NoSize { domain });
    }
    let bytes = request.bytes.saturating_add(request.slack_bytes);
    let wanted = u32::try_from(bytes.div_ceil(way_bytes)).unwrap_or(u32::MAX);
    let count = wanted.max(found.cache.min_ways).max(1);
    let kept = default_group_min(request, found);
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

/// Returns the fewest ways that the default group must keep.
fn default_group_min(request: &Request, found: &Holdings) -> u32 {
    request.others_ways_min.max(found.cache.min_ways).max(1)
}

impl<'a> Rules<'a> {
    fn new(request: &'a Request, found: &'a Holdings, domain: DomainId, count: u32) -> Self {
        let others = || found.holders.iter().filter(|holder| !holder.name.is_default());
        let of = |holders: &mut dyn Iterator<Item = &Holder>| {
            holders.fold(WayMask::EMPTY, |all, holder| all | holder.all_ways(domain))
        };
        // A pseudo-locked region no longer shows in a group's mask, only in the usage of the ways.
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

    /// Returns the ways that may be chosen. [`Self::refusal`] passes `false` to find out whether groups or
    /// devices are what prevents a choice.
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

    /// Returns the cheapest choice among the allowed ways, or `None` where there is no choice.
    fn best(&self, allowed: WayMask) -> Result<Option<WayMask>, Unfinished> {
        let run = |first| WayMask::run(first, self.count);
        let runs = (0..64 - allowed.0.leading_zeros()).map(run).filter(|ways| allowed.contains(*ways));
        let runs = runs.filter(|ways| ways.count() == self.count && self.leaves_enough(*ways));
        // Of several choices with equal cost, `min_by_key` returns the first, which is the lowest.
        match runs.min_by_key(|ways| self.cost(*ways)) {
            Some(best) => Ok(Some(best)),
            // Ways with gaps are used only where no consecutive ways are possible, and where the processor
            // takes gaps.
            None if self.found.is_sparse() => self.scattered(allowed),
            None => Ok(None),
        }
    }

    /// Returns the cheapest choice of ways with gaps, or the cheapest one found before the search used up its
    /// tries.
    fn scattered(&self, allowed: WayMask) -> Result<Option<WayMask>, Unfinished> {
        let ways = (0..64).map(|way| WayMask::run(way, 1)).filter(|way| allowed.contains(*way));
        let mut each: Vec<(Cost, WayMask)> = ways.map(|way| (self.cost(way), way)).collect();
        // The sort is stable: of two ways with equal cost the lower one stays first.
        each.sort_by_key(|(cost, _)| *cost);
        let mut search = Search { rules: self, tries: TRIES_MAX, best: None };
        let finished = search.add(WayMask::EMPTY, Cost::default(), &each);
        match search.best {
            Some((_, ways)) => Ok(Some(ways)),
            None => finished.map(|()| None),
        }
    }

    /// Returns whether the same groups have both ways, for the same resources. Taking either then has the
    /// same effect.
    fn are_alike(&self, one: WayMask, other: WayMask) -> bool {
        let all = self.found.holders.iter();
        all.flat_map(|holder| self.of_resources(holder)).all(|had| had.overlaps(one) == had.overlaps(other))
    }

    /// Returns the cost of taking these ways. Its first number counts ways that devices do not fill, where
    /// [`Placement::Onto`] wants devices' ways. The second counts ways that other tools' groups lose, and the
    /// third those that the default group loses.
    fn cost(&self, ways: WayMask) -> Cost {
        let devices = (ways & self.found.cache.shareable).count();
        let off_devices = match self.request.placement {
            Placement::Onto => ways.count() - devices,
            Placement::Away | Placement::Anywhere => 0,
        };
        let lost = |of_default: bool| {
            let holders = self.found.holders.iter().filter(|holder| holder.name.is_default() == of_default);
            let lost = holders
                .flat_map(|holder| self.of_resources(holder))
                .map(|had| had.count() - kept_of(had, ways, self.found.is_sparse()).count());
            lost.sum()
        };
        [off_devices, lost(false), lost(true)]
    }

    /// Returns a group's ways in this domain, one mask for each resource.
    fn of_resources<'h>(&self, holder: &'h Holder) -> impl Iterator<Item = WayMask> + use<'h> {
        let domain = self.domain;
        holder.ways.values().filter_map(move |by_domain| by_domain.get(&domain)).copied()
    }

    fn default(&self) -> Option<&Holder> {
        self.found.holders.iter().find(|holder| holder.name.is_default())
    }

    /// Returns whether every group that would lose some of these ways keeps at least as many as it must.
    fn leaves_enough(&self, ways: WayMask) -> bool {
        self.found.holders.iter().all(|holder| {
            let kept = if holder.name.is_default() {
                default_group_min(self.request, self.found)
            } else {
                self.found.cache.min_ways.max(1)
            };
            self.of_resources(holder)
                .filter(|had| had.overlaps(ways))
                .all(|had| kept_of(had, ways, self.found.is_sparse()).count() >= kept)
        })
    }

    /// Returns the names of the groups other than the default one that have ways in this domain.
    fn other_names(&self) -> Vec<String> {
        let holders = self.found.holders.iter().filter(|holder| !holder.name.is_default());
        let holders = holders.filter(|holder| !holder.all_ways(self.domain).is_empty());
        holders.map(|holder| holder.name.to_string()).collect()
    }

    /// Returns the refusal for a search that was given up, so that it is not known whether a choice exists.
    fn not_found(&self) -> Refusal {
        Refusal::NotFound {
            domain: self.domain,
            ways: self.count,
            tries: TRIES_MAX,
            names: self.other_names(),
        }
    }

    /// Returns the refusal that says why there is no choice: which ways would have to become free.
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
        if !names.is_empty() && longest < ways.saturating_add(default_group_min(self.request, self.found)) {
            return Refusal::Groups { domain, ways, names };
        }
        Refusal::NothingLeft {
            domain,
            ways,
            kept: default_group_min(self.request, self.found),
            default: self.default().map_or(WayMask::EMPTY, |holder| holder.all_ways(domain)),
            names: std::iter::once("the default group".to_owned())
                .chain(names.into_iter().filter(|_| self.request.take_from_groups))
                .collect(),
        }
    }
}

/// Depth-first search for a choice of ways with gaps.
struct Search<'a> {
    rules: &'a Rules<'a>,
    /// Steps that are left before the search is given up.
    tries: u32,
    /// Cheapest choice found so far, with its cost.
    best: Option<(Cost, WayMask)>,
}

impl Search<'_> {
    /// Extends the chosen ways by ways of `rest`, which is sorted by cost, until there are enough. Costs
    /// simply add up: where gaps are allowed, a group loses exactly what is taken from it.
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
            // `rest` is sorted, so no later choice costs less than the next `missing` ways together.
            if !self.is_better(cheapest.iter().fold(cost, |sum, (of_way, _)| sum_of(sum, *of_way))) {
                break;
            }
            let (of_way, way) = rest[at];
            // An alike way, which costs as much or less, was already tried in this place.
            if done.iter().any(|&other| self.rules.are_alike(way, other)) {
                continue;
            }
            self.tries = self.tries.checked_sub(1).ok_or(Unfinished)?;
            let more = chosen | way;
            // A group that has lost too many ways does not regain them when more are taken.
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

/// Returns the number of consecutive ways that begin at `first`.
fn longest_run(ways: WayMask, first: u32) -> u32 {
    (ways.0 >> first).trailing_ones()
}

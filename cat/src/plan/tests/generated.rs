//! Generated states and requests. An independent brute-force oracle says which requests can be planned, and
//! every plan is checked to harm no group.

use super::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::cell::Cell;

fn holdings() -> impl Strategy<Value = Holdings> {
    let shape = (4u32..=32, 0u32..=2, any::<bool>(), any::<bool>(), 1usize..=3, 0usize..=3, any::<bool>());
    shape.prop_flat_map(|(width, min_ways, sparse, cdp, domains, others, with_devices)| {
        let full = WayMask::run(0, width);
        // A mask of ways that the kernel would accept for a group.
        let mask = move || {
            let least = min_ways.max(1).min(width);
            let runs = (0..width, least..=width).prop_map(move |(first, count)| {
                let first = first.min(width - count);
                WayMask::run(first, count)
            });
            let gaps =
                (1..=full.0).prop_map(WayMask).prop_filter("enough", move |mask| mask.count() >= least);
            if sparse { prop_oneof![runs, gaps].boxed() } else { runs.boxed() }
        };
        let resources = if cdp { vec![Resource::L3Code, Resource::L3Data] } else { vec![Resource::L3] };
        let ways = move || {
            let resources = resources.clone();
            proptest::collection::vec(mask(), domains * resources.len()).prop_map(move |masks| {
                let mut ways = Ways::new();
                for (at, mask) in masks.into_iter().enumerate() {
                    let domain = DomainId::try_from(at % domains).unwrap() * 3;
                    ways.entry(resources[at / domains].clone()).or_default().insert(domain, mask);
                }
                ways
            })
        };
        let mode = prop_oneof![3 => Just(Mode::Shareable), 1 => Just(Mode::Exclusive)];
        (ways(), proptest::collection::vec((mode, ways()), others)).prop_map(move |(default, others)| {
            let default = Holder { name: name(""), mode: Mode::Shareable, ways: default };
            let others = others.into_iter().enumerate().map(|(at, (mode, ways))| Holder {
                name: name(&format!("g{at}")),
                mode,
                ways,
            });
            Holdings {
                cache: CacheInfo {
                    ways: full,
                    min_ways,
                    shareable: if with_devices { WayMask::run(width - 2, 2) } else { WayMask::EMPTY },
                    classes: 16,
                    sparse: Some(sparse),
                    usage: BTreeMap::new(),
                },
                way_bytes: (0..domains).map(|at| (DomainId::try_from(at).unwrap() * 3, WAY_BYTES)).collect(),
                holders: std::iter::once(default).chain(others).collect(),
                reservations: BTreeMap::new(),
                groups_max: 16,
                other_caches: false,
            }
        })
    })
}

fn any_request() -> impl Strategy<Value = Request> {
    let placement = prop_oneof![Just(Placement::Away), Just(Placement::Onto), Just(Placement::Anywhere)];
    let domains = proptest::option::of(proptest::collection::vec((0u32..3).prop_map(|at| at * 3), 1..3));
    (0u64..40, 0u32..4, placement, domains, any::<bool>()).prop_map(
        |(mib, others_ways_min, placement, domains, take_from_groups)| Request {
            bytes: mib << 20,
            placement,
            domains,
            others_ways_min,
            take_from_groups,
            locked: false,
            ..request(0)
        },
    )
}

/// Returns every choice of ways that the oracle tries in a domain: all consecutive ways, or, in a cache of up
/// to 12 ways that takes gaps, all sets.
fn choices(found: &Holdings, count: u32) -> Vec<u64> {
    let width = found.cache.ways.count();
    if found.cache.sparse == Some(true) && width <= 12 {
        return (1..1u64 << width).filter(|ways| ways.count_ones() == count).collect();
    }
    (0..width).filter(|first| first + count <= width).map(|first| ((1 << count) - 1) << first).collect()
}

/// Returns how many ways a group keeps. Where the processor takes no gaps, only the longest row of
/// consecutive ways counts.
fn left(had: u64, taken: u64, sparse: bool) -> u32 {
    let left = had & !taken;
    let (mut longest, mut run) = (0, 0);
    for way in 0..64 {
        run = if left >> way & 1 == 1 { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    if sparse { left.count_ones() } else { longest }
}

/// Returns whether taking these ways of a domain breaks no rule: devices' ways are respected, and every group
/// that loses ways may lose them and keeps enough.
fn harms_nobody(wanted: &Request, found: &Holdings, domain: DomainId, ways: u64) -> bool {
    let least = found.cache.min_ways.max(1);
    let avoids_devices = wanted.placement != Placement::Away || ways & found.cache.shareable.0 == 0;
    avoids_devices
        && found.holders.iter().all(|holder| {
            holder.ways.values().map(|by_domain| by_domain[&domain].0).all(|had| {
                let keeps = left(had, ways, found.cache.sparse == Some(true));
                had & ways == 0
                    || if holder.name.is_default() {
                        keeps >= wanted.others_ways_min.max(least)
                    } else {
                        wanted.take_from_groups && holder.mode == Mode::Shareable && keeps >= least
                    }
            })
        })
}

/// Returns whether a plan exists, by trying every choice. In wide caches that take gaps only consecutive ways
/// are tried, so a plan may exist where this returns `false` (see [`decides`]).
fn can_be_planned(wanted: &Request, found: &Holdings) -> bool {
    let least = found.cache.min_ways.max(1);
    let count = u32::try_from(wanted.bytes.div_ceil(WAY_BYTES)).unwrap().max(least);
    let all: Vec<DomainId> = found.way_bytes.keys().copied().collect();
    count + wanted.others_ways_min.max(least) <= found.cache.ways.count()
        && wanted.domains.as_ref().unwrap_or(&all).iter().all(|domain| {
            all.contains(domain)
                && choices(found, count).into_iter().any(|ways| harms_nobody(wanted, found, *domain, ways))
        })
}

/// Returns whether the oracle tries all choices there are.
fn decides(found: &Holdings) -> bool {
    found.cache.sparse == Some(false) || found.cache.ways.count() <= 12
}

/// Checks a plan: each group's remaining mask is one that the kernel accepts, no group shares the pool's
/// ways, every group keeps enough, and no group loses ways that must not.
fn check(wanted: &Request, found: &Holdings, plan: &Plan) -> Result<(), TestCaseError> {
    let sparse = found.cache.sparse == Some(true);
    for domain in &plan.domains {
        prop_assert!(domain.bytes >= wanted.bytes && domain.ways.count() >= found.cache.min_ways.max(1));
        prop_assert!(found.cache.ways.contains(domain.ways));
        prop_assert!(sparse || domain.ways.is_contiguous());
        if wanted.placement == Placement::Away {
            prop_assert!(!domain.ways.overlaps(found.cache.shareable));
        }
        for holder in &found.holders {
            let change = plan.changes.iter().find(|change| change.group == holder.name);
            for (resource, ways) in &holder.ways {
                let had = ways[&domain.domain];
                let changed = change.and_then(|change| change.after.get(resource)?.get(&domain.domain));
                let has = changed.copied().unwrap_or(had);
                prop_assert!(!has.overlaps(domain.ways), "{} overlaps", holder.name);
                if has == had {
                    continue;
                }
                prop_assert_eq!(change.unwrap().before[resource][&domain.domain], had);
                let left = had.without(domain.ways);
                prop_assert!(left.contains(has));
                // A group loses only what is taken, and beyond that only what it must to keep its ways
                // contiguous.
                let longest = (0..64).map(|first| (left.0 >> first).trailing_ones()).max().unwrap_or(0);
                prop_assert_eq!(has.count(), if sparse { left.count() } else { longest });
                prop_assert!(sparse || has.is_contiguous());
                prop_assert!(has.count() >= found.cache.min_ways.max(1));
                prop_assert!(!holder.name.is_default() || has.count() >= wanted.others_ways_min);
                prop_assert!(holder.name.is_default() || wanted.take_from_groups);
                prop_assert!(holder.mode == Mode::Shareable);
            }
        }
    }
    // A change names only resources and domains in which something changes.
    for change in &plan.changes {
        for (resource, ways) in &change.after {
            for (domain, after) in ways {
                prop_assert!(*after != change.before[resource][domain]);
                prop_assert!(plan.domains.iter().any(|planned| planned.domain == *domain));
            }
        }
    }
    // The new group has a mask in every domain.
    for (resource, ways) in &found.holders[0].ways {
        prop_assert_eq!(ways.keys().collect::<Vec<_>>(), plan.own[resource].keys().collect::<Vec<_>>());
    }
    Ok(())
}

/// Returns the cost of a choice. First come ways that devices do not fill, where theirs are wanted; then
/// other groups' losses; then the default group's. The cost is exact in caches that take gaps, where a group
/// loses only what is taken.
fn loss(wanted: &Request, found: &Holdings, domain: DomainId, ways: u64) -> (u32, u32, u32) {
    let lost = |of_default: bool| {
        let holders = found.holders.iter().filter(|holder| holder.name.is_default() == of_default);
        holders.flat_map(|holder| holder.ways.values()).map(|had| (had[&domain].0 & ways).count_ones()).sum()
    };
    let off_devices = (ways & !found.cache.shareable.0).count_ones();
    (if wanted.placement == Placement::Onto { off_devices } else { 0 }, lost(false), lost(true))
}

/// Checks that no other choice of the same kind costs less: among consecutive ways, or among ways with gaps
/// where consecutive ones are impossible. Returns whether the plan has ways with gaps.
fn check_cheapest(wanted: &Request, found: &Holdings, plan: &Plan) -> Result<bool, TestCaseError> {
    let mut with_gaps = false;
    for domain in &plan.domains {
        let may_be = |ways: &u64| {
            harms_nobody(wanted, found, domain.domain, *ways)
                && (WayMask(*ways).is_contiguous() || !domain.ways.is_contiguous())
        };
        let all = choices(found, domain.ways.count()).into_iter().filter(may_be);
        let least = all.map(|ways| loss(wanted, found, domain.domain, ways)).min();
        prop_assert_eq!(Some(loss(wanted, found, domain.domain, domain.ways.0)), least, "{}", plan);
        with_gaps |= !domain.ways.is_contiguous();
    }
    Ok(with_gaps)
}

/// Uses caches small enough to try all choices, and so many groups that the individually cheapest ways often
/// cannot be combined.
#[test]
fn ways_with_gaps_cost_as_little_as_can_be() {
    const CASES: u32 = 4000;
    let with_gaps = Cell::new(0u32);
    let groups = proptest::collection::vec(proptest::collection::vec(0u32..10, 2..4), 6..14);
    let mut runner = TestRunner::new(Config { source_file: Some(file!()), ..Config::with_cases(CASES) });
    let run = runner.run(&(any_request(), 2u64..7, groups), |(wanted, mib, groups)| {
        let mut found = two_sockets();
        found.cache.ways = WayMask::run(0, 10);
        (found.cache.min_ways, found.cache.sparse) = (0, Some(true));
        found.cache.shareable = WayMask(0x300);
        found.cache.usage = BTreeMap::new();
        found.way_bytes = BTreeMap::from([(0, WAY_BYTES)]);
        found.groups_max = 64;
        found.holders = vec![holder("", Mode::Shareable, &[Resource::L3], &[(0, 0b1100_1100)])];
        found.holders.extend(groups.into_iter().enumerate().map(|(at, ways)| {
            let mask = ways.into_iter().fold(0, |mask, way| mask | 1 << way);
            holder(&format!("g{at}"), Mode::Shareable, &[Resource::L3], &[(0, mask)])
        }));
        let wanted = Request { bytes: mib << 20, domains: None, take_from_groups: true, ..wanted };
        if let Ok(plan) = plan(&wanted, &found)
            && check_cheapest(&wanted, &found, &plan)?
        {
            with_gaps.set(with_gaps.get() + 1);
        }
        Ok(())
    });
    if let Err(error) = run {
        panic!("{error}");
    }
    assert!(with_gaps.get() >= CASES / 20, "{} with gaps", with_gaps.get());
}

#[test]
fn a_plan_never_overlaps_nor_starves() {
    const CASES: u32 = 4000;
    let (planned, refused) = (Cell::new(0u32), Cell::new(0u32));
    let mut runner = TestRunner::new(Config { source_file: Some(file!()), ..Config::with_cases(CASES) });
    let run = runner.run(&(any_request(), holdings()), |(wanted, found)| {
        let can_be = can_be_planned(&wanted, &found);
        match plan(&wanted, &found) {
            Ok(plan) => {
                prop_assert!(can_be || !decides(&found), "{plan} is no plan");
                planned.set(planned.get() + 1);
                check(&wanted, &found, &plan)
            }
            Err(refusal) => {
                prop_assert!(!can_be, "refused, though it can be: {refusal}");
                refused.set(refused.get() + 1);
                Ok(())
            }
        }
    });
    if let Err(error) = run {
        panic!("{error}");
    }
    // Both outcomes occur often.
    let (planned, refused) = (planned.get(), refused.get());
    assert!(planned >= CASES / 10 && refused >= CASES / 10, "{planned} planned, {refused} refused");
}

proptest! {
    /// A plan takes free ways and changes no group where enough free ways lie side by side.
    #[test]
    fn free_ways_are_found(width in 6u32..=32, taken in 2u32..=4, wanted in 1u64..=4) {
        let mut found = two_sockets();
        found.cache.ways = WayMask::run(0, width + taken);
        found.cache.shareable = WayMask::EMPTY;
        found.holders = vec![holder(
            "",
            Mode::Shareable,
            &[Resource::L3],
            &[(0, WayMask::run(0, taken).0), (1, WayMask::run(0, taken).0)],
        )];
        let found = plan(&request(wanted), &found).unwrap();
        prop_assert!(found.changes.is_empty());
    }
}

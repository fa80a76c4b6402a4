use super::*;
use crate::resctrl::WayUsage;

mod generated;

const WAY_BYTES: u64 = 1 << 20;

fn name(text: &str) -> GroupName {
    if text.is_empty() { GroupName::default_group() } else { GroupName::new(text).unwrap() }
}

fn holder(group: &str, mode: Mode, resources: &[Resource], masks: &[(DomainId, u64)]) -> Holder {
    let by_domain: BTreeMap<_, _> = masks.iter().map(|(domain, bits)| (*domain, WayMask(*bits))).collect();
    let ways = resources.iter().map(|resource| (resource.clone(), by_domain.clone())).collect();
    Holder { name: name(group), mode, ways }
}

/// Returns two domains of 20 ways of 1 MiB each. Devices fill the two highest ways; the default group has
/// all.
fn two_sockets() -> Holdings {
    let full = WayMask(0xfffff);
    Holdings {
        cache: CacheInfo {
            ways: full,
            min_ways: 1,
            shareable: WayMask(0xc0000),
            classes: 16,
            sparse: Some(false),
            usage: BTreeMap::from([(0, vec![WayUsage::Shared; 20]), (1, vec![WayUsage::Shared; 20])]),
        },
        way_bytes: BTreeMap::from([(0, WAY_BYTES), (1, WAY_BYTES)]),
        holders: vec![holder("", Mode::Shareable, &[Resource::L3], &[(0, full.0), (1, full.0)])],
        reservations: BTreeMap::new(),
        groups_max: 8,
        other_caches: false,
    }
}

fn request(mib: u64) -> Request {
    Request::new(name("jet"), mib << 20)
}

#[test]
fn memory_is_locked_in_one_cache_and_nowhere_else() {
    let found = two_sockets();
    let mut locked = Request { locked: true, ..request(2) };
    let refused = |request: &Request, found: &Holdings| plan(request, found).unwrap_err().to_string();
    assert!(refused(&locked, &found).contains("name one"));
    locked.domains = Some(vec![1]);
    let made = plan(&locked, &found).unwrap();
    assert!(made.locked && !made.exclusive);
    assert_eq!(schemata(&made.own).to_string(), "L3:1=3\n");
    assert_eq!(schemata(&made.changes[0].after).to_string(), "L3:1=ffffc\n");
    assert!(made.to_string().starts_with("group jet, pseudo-locked:\n  domain 1: ways 3"), "{made}");
    locked.placement = Placement::Onto;
    assert!(refused(&locked, &found).contains("devices fill those ways"));
    locked.placement = Placement::Away;
    let mut apart = two_sockets();
    apart.holders[0] =
        holder("", Mode::Shareable, &[Resource::L3Code, Resource::L3Data], &[(0, 0xfffff), (1, 0xfffff)]);
    assert!(refused(&locked, &apart).contains("without cdp"));
}

#[test]
fn the_lowest_ways_away_from_devices_are_taken_from_the_default_group() {
    let plan = plan(&request(4), &two_sockets()).unwrap();
    assert!(plan.exclusive);
    for domain in &plan.domains {
        assert_eq!((domain.ways, domain.left), (WayMask(0xf), WayMask(0xffff0)));
        assert_eq!((domain.bytes, domain.with_devices), (4 << 20, WayMask::EMPTY));
    }
    assert_eq!(schemata(&plan.own).to_string(), "L3:0=f;1=f\n");
    let [change] = &plan.changes[..] else { panic!("{:?}", plan.changes) };
    assert_eq!(schemata(&change.before).to_string(), "L3:0=fffff;1=fffff\n");
    assert_eq!(schemata(&change.after).to_string(), "L3:0=ffff0;1=ffff0\n");
    let text = plan.to_string();
    assert!(
        text.contains("group jet, exclusive:\n  domain 0: ways f (4 of them, 4096 KiB); the default"),
        "{text}"
    );
    assert!(text.contains("the default group: L3 of domain 1 from fffff to ffff0"), "{text}");
}

#[test]
fn bytes_and_slack_are_rounded_up_to_ways() {
    let mut wanted = request(12);
    wanted.slack_bytes = 1;
    let plan = plan(&wanted, &two_sockets()).unwrap();
    assert_eq!(plan.domains[0].ways.count(), 13);
}

#[test]
fn ways_of_devices_are_taken_where_wanted_and_then_nothing_is_exclusive() {
    let mut wanted = request(4);
    wanted.placement = Placement::Onto;
    let found = plan(&wanted, &two_sockets()).unwrap();
    assert_eq!((found.domains[0].ways, found.domains[0].with_devices), (WayMask(0xf0000), WayMask(0xc0000)));
    assert!(!found.exclusive);
    wanted.exclusive = Exclusiveness::Require;
    assert!(matches!(plan(&wanted, &two_sockets()), Err(Refusal::NotExclusive { .. })));
}

#[test]
fn one_domain_of_two_is_shareable_and_elsewhere_as_the_default_group() {
    let mut wanted = request(4);
    wanted.domains = Some(vec![1]);
    let found = plan(&wanted, &two_sockets()).unwrap();
    assert!(!found.exclusive);
    assert_eq!(schemata(&found.own).to_string(), "L3:0=fffff;1=f\n");
    assert_eq!(schemata(&found.changes[0].after).to_string(), "L3:1=ffff0\n");
    // Where a mask may be empty, the group has no ways in the other domain, and so can be exclusive.
    let mut amd = two_sockets();
    amd.cache.min_ways = 0;
    amd.cache.shareable = WayMask::EMPTY;
    assert!(!plan(&wanted, &amd).unwrap().exclusive);
    wanted.exclusive = Exclusiveness::Require;
    let found = plan(&wanted, &amd).unwrap();
    assert!(found.exclusive);
    assert_eq!(schemata(&found.own).to_string(), "L3:0=0;1=f\n");
}

#[test]
fn unused_ways_are_taken_first_and_nobody_loses() {
    let mut found = two_sockets();
    found.holders = vec![holder("", Mode::Shareable, &[Resource::L3], &[(0, 0xfff00), (1, 0xff)])];
    let plan = plan(&request(4), &found).unwrap();
    assert_eq!((plan.domains[0].ways, plan.domains[1].ways), (WayMask(0xf), WayMask(0xf00)));
    assert!(plan.changes.is_empty());
}

#[test]
fn other_tools_groups_are_left_alone_unless_told_and_exclusive_ones_always() {
    let mut found = two_sockets();
    found.holders.push(holder("web", Mode::Shareable, &[Resource::L3], &[(0, 0xff), (1, 0xff)]));
    let found_plan = plan(&request(4), &found).unwrap();
    // The pool's ways avoid web's and devices'. The default group must keep ways side by side, so it also
    // loses what lies beyond the pool's.
    assert_eq!((found_plan.domains[0].ways, found_plan.domains[0].left), (WayMask(0x3c000), WayMask(0x3fff)));
    assert!(found_plan.changes.iter().all(|change| change.group.is_default()));

    // A group that nobody has narrowed has all ways.
    found.holders[1] = holder("web", Mode::Shareable, &[Resource::L3], &[(0, 0xfffff), (1, 0xfffff)]);
    let error = plan(&request(4), &found).unwrap_err();
    assert!(matches!(&error, Refusal::Groups { names, .. } if names == &["web"]), "{error:?}");
    assert!(error.to_string().contains("web has the others"), "{error}");
    let mut taking = request(4);
    taking.take_from_groups = true;
    let taken = plan(&taking, &found).unwrap();
    assert_eq!(taken.changes.len(), 2);
    assert_eq!(schemata(&taken.changes[1].after).to_string(), "L3:0=ffff0;1=ffff0\n");

    found.holders[0] = holder("", Mode::Shareable, &[Resource::L3], &[(0, 0xf), (1, 0xf)]);
    found.holders[1] = holder("web", Mode::Exclusive, &[Resource::L3], &[(0, 0xffff0), (1, 0xffff0)]);
    assert!(matches!(plan(&taking, &found), Err(Refusal::Groups { .. })));
}

#[test]
fn a_reservation_of_another_domain_gives_way_as_the_default_group_does() {
    let mut found = two_sockets();
    found.holders = vec![
        holder("", Mode::Shareable, &[Resource::L3], &[(0, 0xffff0), (1, 0xfffff)]),
        holder("first", Mode::Shareable, &[Resource::L3], &[(0, 0xf), (1, 0xfffff)]),
    ];
    let mut wanted = request(4);
    wanted.domains = Some(vec![1]);
    assert!(matches!(plan(&wanted, &found), Err(Refusal::Groups { .. })));
    found.reservations = BTreeMap::from([(name("first"), vec![0])]);
    let found_plan = plan(&wanted, &found).unwrap();
    assert_eq!(schemata(&found_plan.changes[1].after).to_string(), "L3:1=ffff0\n");
    // In its own domain the first reservation does not give way.
    wanted.domains = Some(vec![0]);
    wanted.bytes = 16 << 20;
    assert!(matches!(plan(&wanted, &found), Err(Refusal::Groups { .. })));
}

#[test]
fn with_cdp_code_and_data_are_both_taken() {
    let both = [Resource::L3Code, Resource::L3Data];
    let mut found = two_sockets();
    found.holders = vec![holder("", Mode::Shareable, &both, &[(0, 0xfffff), (1, 0xfffff)])];
    let plan = plan(&request(2), &found).unwrap();
    assert_eq!(schemata(&plan.own).to_string(), "L3CODE:0=3;1=3\nL3DATA:0=3;1=3\n");
    assert_eq!(
        schemata(&plan.changes[0].after).to_string(),
        "L3CODE:0=ffffc;1=ffffc\nL3DATA:0=ffffc;1=ffffc\n"
    );
}

#[test]
fn gaps_are_a_way_out_only_where_the_processor_takes_them() {
    let mut found = two_sockets();
    found.cache.shareable = WayMask::EMPTY;
    // An exclusive group lies in the middle: no four consecutive ways can be taken.
    found.holders = vec![
        holder("", Mode::Shareable, &[Resource::L3], &[(0, 0b1110_0111), (1, 0b1110_0111)]),
        holder("hub", Mode::Exclusive, &[Resource::L3], &[(0, 0xfff18), (1, 0xfff18)]),
    ];
    assert!(matches!(plan(&request(4), &found), Err(Refusal::Groups { .. })));
    found.cache.sparse = Some(true);
    let plan = plan(&request(4), &found).unwrap();
    assert_eq!((plan.domains[0].ways.count(), plan.domains[0].left.count()), (4, 2));
    assert!(!plan.domains[0].ways.overlaps(WayMask(0xfff18)));
}

#[test]
fn ways_with_gaps_are_found_where_the_cheapest_do_not_go_together() {
    let mut found = two_sockets();
    found.cache = CacheInfo { ways: WayMask(0x1ff), min_ways: 0, sparse: Some(true), ..found.cache };
    found.cache.shareable = WayMask::EMPTY;
    found.way_bytes = BTreeMap::from([(0, WAY_BYTES)]);
    found.holders = vec![
        holder("", Mode::Shareable, &[Resource::L3], &[(0, 0b1000)]),
        holder("web", Mode::Shareable, &[Resource::L3], &[(0, 0b10_0101)]),
    ];
    // Five ways belong to nobody. One of web's three can be taken, but not the default group's only one.
    let mut wanted = request(7);
    (wanted.others_ways_min, wanted.take_from_groups) = (0, true);
    let plan = plan(&wanted, &found).unwrap();
    let ways = plan.domains[0].ways;
    assert_eq!((ways.count(), ways & WayMask(0b1000)), (7, WayMask::EMPTY));
    assert_eq!(plan.changes.len(), 1);
}

/// Returns 40 groups of three ways each among 32, spread by a multiplicative generator. Whichever ways are
/// taken, each group must keep one of its own.
fn tangled() -> Holdings {
    let mut found = two_sockets();
    let ways = WayMask::run(0, 32);
    found.cache =
        CacheInfo { ways, min_ways: 0, sparse: Some(true), shareable: WayMask::EMPTY, ..found.cache };
    found.way_bytes = BTreeMap::from([(0, WAY_BYTES)]);
    found.groups_max = 64;
    found.holders = vec![holder("", Mode::Shareable, &[Resource::L3], &[(0, 1)])];
    let mut state = 1u64;
    found.holders.extend((0..40).map(|group| {
        let mut mask = 0u64;
        while mask.count_ones() < 3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            mask |= 2 << ((state >> 33) % 31);
        }
        holder(&format!("g{group}"), Mode::Shareable, &[Resource::L3], &[(0, mask)])
    }));
    found
}

#[test]
fn a_search_that_is_given_up_says_so() {
    // Twenty-two ways cannot be taken from so many groups, but proving that needs more tries than are
    // allowed.
    let wanted = Request { take_from_groups: true, ..request(22) };
    let error = plan(&wanted, &tangled()).unwrap_err();
    assert!(
        matches!(&error, Refusal::NotFound { domain: 0, ways: 22, names, .. } if names.len() == 40),
        "{error:?}"
    );
    let said = error.to_string();
    assert!(
        said.contains("were found in 262144 tries, and there may be none") && said.contains("ask for less")
    );
    // The refusal does not blame devices either, where the search away from their ways was given up: here no
    // way lies away from them.
    let mut found = tangled();
    found.cache.shareable = WayMask::run(0, 32);
    assert!(matches!(plan(&wanted, &found), Err(Refusal::NotFound { .. })));
    // Fewer ways are found among the same groups.
    let plan = plan(&Request { take_from_groups: true, ..request(12) }, &tangled()).unwrap();
    assert_eq!(plan.domains[0].ways.count(), 12);
}

#[test]
fn what_cannot_be_says_what_to_change() {
    let with = |change: fn(&mut Request, &mut Holdings)| {
        let (mut request, mut found) = (request(4), two_sockets());
        change(&mut request, &mut found);
        plan(&request, &found).unwrap_err().to_string()
    };
    for (change, words) in [
        (
            (|r, _| r.bytes = 19 << 20) as fn(&mut Request, &mut Holdings),
            "at most 18 (18874368 bytes) can be reserved: 2",
        ),
        (|r, _| r.bytes = u64::MAX, "ask for less"),
        (|r, _| r.others_ways_min = 17, "at most 3"),
        (|r, _| r.domains = Some(vec![7]), "no cache with the id 7; there are: 0, 1"),
        (|r, _| r.domains = Some(vec![]), "no cache with the id"),
        (|_, f| f.groups_max = 1, "all 1 classes are taken"),
        (
            |_, f| f.holders.push(holder("jet", Mode::Shareable, &[Resource::L3], &[(0, 1)])),
            "rmdir /sys/fs/resctrl/jet",
        ),
        (|_, f| f.cache.shareable = WayMask(0xfffff), "away from those that devices fill (fffff)"),
        (
            |r, f| {
                // With code and data apart, whichever ways are taken, one of the two keeps at most two of its
                // four.
                r.others_ways_min = 3;
                f.cache.shareable = WayMask::EMPTY;
                f.cache.ways = WayMask(0xff);
                f.holders = vec![holder("", Mode::Shareable, &[Resource::L3Code], &[(0, 0xf), (1, 0xf)])];
                let data = holder("", Mode::Shareable, &[Resource::L3Data], &[(0, 0xf0), (1, 0xf0)]);
                f.holders[0].ways.extend(data.ways);
            },
            "whichever 4 ways of domain 0 were taken, the default group would keep fewer than 3",
        ),
    ] {
        let said = with(change);
        assert!(said.contains(words), "{words}: {said}");
    }
}

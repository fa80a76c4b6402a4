//! Tests in a folder that imitates resctrl. `tests/kernel` runs the same code against the kernel.

use super::super::found::holdings_without_sizes;
use super::super::{Restored, journal, plan_beside_others, recover};
use super::*;
use crate::journals::Journals;
use crate::plan::{Request, l3_ways};
use crate::resctrl::Resctrl;
use crate::resctrl::tests::{imitation, in_memory};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const ALL: u64 = 0xf_ffff;
/// Ways that the default group keeps beside the four reserved ones.
const LEFT: u64 = 0xf_fff0;

fn jet() -> GroupName {
    GroupName::new("jet").unwrap()
}

fn web() -> GroupName {
    GroupName::new("web").unwrap()
}

/// Host of two caches with twenty ways each, of which four are reserved.
struct Host {
    _dir: tempfile::TempDir,
    folder: tempfile::TempDir,
    resctrl: Resctrl,
}

impl Host {
    fn new() -> Self {
        let (dir, resctrl) = imitation();
        resctrl.remove(&web()).unwrap();
        Self { _dir: dir, folder: in_memory(), resctrl }
    }

    fn reserve(&self) -> Reservation {
        let journals = Journals::open(self.folder.path()).unwrap();
        let mut found = holdings_without_sizes(&self.resctrl).unwrap().unwrap();
        found.way_bytes.values_mut().for_each(|bytes| *bytes = 1 << 20);
        let (request, ways_all) = (Request::new(jet(), 4 << 20), found.cache.ways);
        let plan = plan_beside_others(&journals, &request, found).unwrap();
        let ownership = journals.ownership(&journal::name_of(&jet())).unwrap().unwrap();
        let made =
            Reservation::of_plan(&self.resctrl, journals, &request, plan, ways_all, ownership, &mut |_| {});
        let mut reservation = made.unwrap();
        reservation.is_restored = false;
        assert_eq!(
            self.ways(),
            BTreeMap::from([(GroupName::default_group(), [LEFT, LEFT]), (jet(), [0xf, 0xf])])
        );
        reservation
    }

    /// Sets a group's ways of one cache, as another tool or the kernel does.
    fn set(&self, group: &GroupName, domain: DomainId, ways: u64) {
        let ways = Ways::from([(Resource::L3, [(domain, WayMask(ways))].into())]);
        self.resctrl.group(group).set_schemata(&schemata(&ways)).unwrap();
    }

    /// Returns the ways that all groups have of the two caches, by the group's name.
    fn ways(&self) -> BTreeMap<GroupName, [u64; 2]> {
        let mut names = self.resctrl.groups().unwrap();
        names.push(GroupName::default_group());
        let of = |name: GroupName| {
            let ways = l3_ways(&self.resctrl.group(&name).schemata().unwrap());
            let ways = [0, 1].map(|domain| ways[&Resource::L3][&domain].0);
            (name, ways)
        };
        names.into_iter().map(of).collect()
    }

    fn of(&self, group: &GroupName) -> [u64; 2] {
        self.ways()[group]
    }
}

/// Event that undoes a part of the reservation.
#[derive(Clone, Copy, Debug)]
enum Undone {
    /// Another tool removes the group.
    Removed,
    /// The processors of the second cache were offline and are back, so the kernel has forgotten its ways.
    Reset,
}

/// Ways that the default group has of the second cache after the event, each with those that it must have at
/// the end.
const DEFAULTS: [(u64, u64); 6] = [
    // The group has all ways, as the kernel starts with; or the ways that the reservation left it.
    (ALL, ALL),
    (LEFT, ALL),
    // Another tool has set its ways: with all reserved ways, with some of them, and without any.
    (0x0_ffff, 0x0_ffff),
    (0x0_fffc, 0x0_fffc),
    (0xf_f000, 0xf_f000),
    // Another tool has set all ways but the three lowest.
    (0xf_fff8, 0xf_fff8),
];

impl Undone {
    fn happen(self, host: &Host, default: u64) {
        match self {
            Self::Removed => {
                host.resctrl.remove(&jet()).unwrap();
                // Another tool makes a group of its own, with ways that it takes from the default group.
                host.resctrl.make(&web()).unwrap();
                host.set(&web(), 0, 0xc_0000);
                host.set(&web(), 1, 0xc_0000);
            }
            Self::Reset => host.set(&jet(), 1, ALL),
        }
        host.set(&GroupName::default_group(), 1, default);
    }
}

#[test]
fn who_was_given_other_ways_meanwhile_gets_those_back() {
    for undone in [Undone::Removed, Undone::Reset] {
        for (default, at_the_end) in DEFAULTS {
            let what = format!("{undone:?}, {default:x}");
            let host = Host::new();
            let mut reservation = host.reserve();
            undone.happen(&host, default);
            let named = match undone {
                Undone::Removed => Fault::GroupRemoved { group: jet() },
                Undone::Reset => Fault::Reset { domain: 1 },
            };
            // Apart from a lost exclusiveness only the event is reported: no fault names another group.
            let faults = reservation.faults().unwrap();
            let faults: Vec<_> =
                faults.into_iter().filter(|fault| !matches!(fault, Fault::Shareable { .. })).collect();
            assert_eq!(faults, [named], "{what}");
            assert_eq!(reservation.repair(&mut |_| {}).unwrap(), [], "{what}");
            assert_eq!(host.of(&jet()), [0xf, 0xf], "{what}");
            assert_eq!(host.of(&GroupName::default_group()), [LEFT, default & LEFT], "{what}");
            assert_eq!(reservation.restore().unwrap(), Restored::Undone, "{what}");
            assert_eq!(host.of(&GroupName::default_group()), [ALL, at_the_end], "{what}");
            assert!(!host.ways().contains_key(&jet()), "{what}");
        }
    }
}

#[test]
fn what_the_kernel_forgot_is_in_nobodys_way_at_an_end_before_it_is_made_again() {
    for (default, at_the_end) in DEFAULTS {
        let host = Host::new();
        let reservation = host.reserve();
        Undone::Reset.happen(&host, default);
        assert_eq!(reservation.restore().unwrap(), Restored::Undone, "{default:x}");
        assert_eq!(host.of(&GroupName::default_group()), [ALL, at_the_end], "{default:x}");
        // Ways that another tool set are reported as a misfit where the kernel forgot nothing.
        host.set(&GroupName::default_group(), 1, ALL);
        let reservation = host.reserve();
        host.set(&GroupName::default_group(), 1, 0xff00);
        let said = reservation.restore().unwrap_err().to_string();
        assert!(said.contains("has ff00 of L3 of domain 1"), "{said}");
    }
}

/// Repairs a reservation, and stops after step number `last`. Returns the number of steps where the repair
/// ended before.
fn stopped_after(reservation: &mut Reservation, last: usize) -> Option<usize> {
    let mut done = 0;
    let repaired = catch_unwind(AssertUnwindSafe(|| {
        reservation.repair(&mut |_| {
            done += 1;
            if done == last {
                resume_unwind(Box::new("stopped"));
            }
        })
    }));
    repaired.is_ok().then_some(done)
}

#[test]
fn after_an_end_between_any_two_steps_of_repair_everybody_has_what_he_is_to_have() {
    for undone in [Undone::Removed, Undone::Reset] {
        for (default, at_the_end) in DEFAULTS {
            for is_killed in [true, false] {
                for last in 1.. {
                    let what = format!("{undone:?}, {default:x}, killed {is_killed}, after step {last}");
                    let host = Host::new();
                    let mut reservation = host.reserve();
                    undone.happen(&host, default);
                    let all = stopped_after(&mut reservation, last);
                    if let Some(steps) = all {
                        assert!(steps >= 3, "{what}");
                        // A repaired group has threads by then, which tell it from a group that was just
                        // made.
                        host.resctrl.group(&jet()).add_thread(1).unwrap();
                    }
                    if is_killed {
                        reservation.is_restored = true;
                        drop(reservation);
                        let left = recover(&host.resctrl, host.folder.path()).unwrap();
                        assert!(left[0].restored.is_ok(), "{what}: {}", left[0]);
                    } else {
                        // A repair that stopped halfway is completed by the next one.
                        assert_eq!(reservation.repair(&mut |_| {}).unwrap(), [], "{what}");
                        assert_eq!(host.of(&jet()), [0xf, 0xf], "{what}");
                        reservation.restore().unwrap();
                    }
                    assert_eq!(host.of(&GroupName::default_group()), [ALL, at_the_end], "{what}");
                    assert!(!host.ways().contains_key(&jet()), "{what}");
                    if all.is_some() {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn what_another_tool_made_of_the_group_stays_so() {
    let host = Host::new();
    let mut reservation = host.reserve();
    host.set(&jet(), 1, 0x3);
    let changed = host.ways();
    let named = [Fault::Changed { domain: 1, made: WayMask(0xf), has: WayMask(0x3) }];
    assert_eq!(reservation.repair(&mut |_| {}).unwrap(), named);
    assert_eq!(host.ways(), changed);
}

//! Tests of parts of a reservation that others undo while it stands: each is reported, and made again where
//! no other group loses by it.

use crate::mounted::{Mounted, Picture, host, jet, processor};
use jet_cat::plan::{Exclusiveness, Request, l3_ways, schemata};
use jet_cat::resctrl::{GroupName, Mode, Resctrl, WayMask};
use jet_cat::reservation::{Fault, Reservation, Restored, Step, holdings, recover, restore_all};
use jet_cat::topology::Topology;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

/// Returns the id of the second processor's cache. In the guests that cache has no other processor.
fn second() -> u32 {
    Topology::of_host().unwrap().of_cpu(1).expect("a second processor").id
}

fn web() -> GroupName {
    GroupName::new("web").unwrap()
}

/// Sets a group's ways in every cache.
fn set(mounted: &Mounted, group: &GroupName, to: impl Fn(WayMask) -> WayMask) {
    let mut ways = l3_ways(&mounted.resctrl.group(group).schemata().unwrap());
    ways.values_mut().flat_map(|domains| domains.values_mut()).for_each(|ways| *ways = to(*ways));
    mounted.resctrl.group(group).set_schemata(&schemata(&ways)).unwrap();
}

/// Sets a group's ways in one cache.
fn set_in(mounted: &Mounted, group: &GroupName, domain: u32, ways: WayMask) {
    let mut found = l3_ways(&mounted.resctrl.group(group).schemata().unwrap());
    found.values_mut().for_each(|domains| *domains = [(domain, ways)].into());
    mounted.resctrl.group(group).set_schemata(&schemata(&found)).unwrap();
}

/// Returns all ways without the `count` highest ones.
fn without_highest(all: WayMask, count: u32) -> WayMask {
    WayMask::run(0, 64 - all.0.leading_zeros() - count)
}

/// Reads a group's ways in a domain.
fn ways_of(mounted: &Mounted, group: &GroupName, domain: u32) -> WayMask {
    let ways = l3_ways(&mounted.resctrl.group(group).schemata().unwrap());
    *ways.values().next().unwrap().get(&domain).unwrap()
}

/// Takes the second processor offline and back, which makes the kernel forget all groups' ways of its cache.
fn reset_second() {
    processor(1, false);
    processor(1, true);
}

/// Reservation, with pictures of all groups before and after it was made.
struct Reserved {
    reservation: Reservation,
    before: Picture,
    since: Picture,
}

impl Reserved {
    /// Reserves a number of ways, with the default choices.
    fn ways(mounted: &Mounted, ways: u64) -> Self {
        Self::as_asked(mounted, &mounted.request(ways))
    }

    fn as_asked(mounted: &Mounted, request: &Request) -> Self {
        let before = mounted.picture();
        let reservation = mounted.reserve(request).unwrap();
        Self { reservation, before, since: mounted.picture() }
    }

    fn faults(&self) -> Vec<Fault> {
        self.reservation.faults().unwrap()
    }

    fn repair(&mut self) -> Vec<Fault> {
        repair(&mut self.reservation)
    }

    /// Checks that a repair makes the reservation as it was.
    #[track_caller]
    fn is_made_again(&mut self, mounted: &Mounted) {
        assert_eq!(self.repair(), []);
        assert_eq!(mounted.picture(), self.since);
    }

    /// Gives the reservation back, and checks that everything is as before.
    #[track_caller]
    fn ends_as_it_began(self, mounted: &Mounted) {
        drop(self.reservation);
        assert_eq!(mounted.picture(), self.before);
        assert!(!mounted.has_journal());
    }
}

fn repair(reservation: &mut Reservation) -> Vec<Fault> {
    reservation.repair(&mut |_| {}).unwrap()
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_cache_whose_processors_come_back_is_reserved_again() {
    let (mounted, domain) = (Mounted::new(), second());
    let mut reserved = Reserved::ways(&mounted, 2);
    assert_eq!(reserved.faults(), []);
    assert_eq!(reserved.repair(), []);
    processor(1, false);
    assert_eq!(reserved.faults(), [Fault::Offline { domain }]);
    assert_eq!(reserved.repair(), [Fault::Offline { domain }]);
    processor(1, true);
    assert_eq!(reserved.faults(), [Fault::Reset { domain }]);
    reserved.is_made_again(&mounted);
    reserved.ends_as_it_began(&mounted);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn ways_that_nobody_had_are_somebodys_when_the_cache_comes_back_and_are_taken_from_him() {
    let mounted = Mounted::new();
    let (default, domain) = (GroupName::default_group(), second());
    let all = ways_of(&mounted, &default, domain);
    // Enough unused ways, which are taken first, so that no group loses any.
    set(&mounted, &default, |ways| ways.without(WayMask::run(0, 4)));
    let mut reservation = mounted.reserve(&mounted.request(2)).unwrap();
    assert_eq!(reservation.plan().changes, []);
    let reserved = ways_of(&mounted, &jet(), domain);
    reset_second();
    assert_eq!(ways_of(&mounted, &default, domain), all);
    assert_eq!(repair(&mut reservation), []);
    assert_eq!(ways_of(&mounted, &jet(), domain), reserved);
    assert!(!ways_of(&mounted, &default, domain).overlaps(reserved));
    // The default group gets back what the kernel gave it.
    drop(reservation);
    assert_eq!(ways_of(&mounted, &default, domain), all);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn another_tools_group_keeps_what_the_kernel_gave_it_until_that_tool_takes_it_away() {
    let (mounted, domain) = (Mounted::new(), second());
    mounted.make(&web());
    set(&mounted, &web(), |_| WayMask::run(8, 2));
    let mut reserved = Reserved::ways(&mounted, 2);
    let was_exclusive = reserved.reservation.is_exclusive();
    let ways = ways_of(&mounted, &jet(), domain);
    reset_second();
    let all = ways_of(&mounted, &web(), domain);
    let amiss = reserved.repair();
    assert_eq!(amiss[0], Fault::Shared { domain, ways, group: web() });
    assert_eq!(matches!(amiss[1..], [Fault::Shareable { reason: Some(_) }]), was_exclusive, "{amiss:?}");
    assert_eq!((ways_of(&mounted, &web(), domain), ways_of(&mounted, &jet(), domain)), (all, ways));
    // The other tool can narrow its group. Had the reservation's group stayed exclusive with all ways, the
    // kernel would have refused that.
    set(&mounted, &web(), |_| WayMask::run(8, 2));
    reserved.is_made_again(&mounted);
    reserved.ends_as_it_began(&mounted);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_group_that_was_removed_is_made_again_with_its_threads() {
    let (mounted, domain) = (Mounted::new(), second());
    let mut reserved = Reserved::ways(&mounted, 2);
    let class = reserved.reservation.class();
    let thread = rustix::thread::gettid().as_raw_pid();
    class.add_thread(thread).unwrap();
    mounted.resctrl.remove(&jet()).unwrap();
    assert_eq!(reserved.faults(), [Fault::GroupRemoved { group: jet() }]);
    reserved.is_made_again(&mounted);
    class.add_thread(thread).unwrap();
    assert_eq!(class.threads().unwrap(), [thread]);
    class.remove_thread(thread).unwrap();
    assert!(class.threads().unwrap().is_empty());
    // The same with one cache offline, after somebody gave all ways back by hand.
    processor(1, false);
    mounted.resctrl.remove(&jet()).unwrap();
    set(&mounted, &GroupName::default_group(), |ways| without_highest(ways, 0));
    assert_eq!(reserved.repair(), [Fault::Offline { domain }]);
    processor(1, true);
    reserved.is_made_again(&mounted);
    reserved.ends_as_it_began(&mounted);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn what_is_to_outlive_its_process_is_made_again_by_who_uses_it_and_stands_on() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    mounted.reserve(&mounted.request(3)).unwrap().leave().unwrap();
    let standing = mounted.picture();
    // A request for less than what stands uses it, and it stays as it was made.
    let mut joined = mounted.reserve(&mounted.request(2)).unwrap();
    reset_second();
    assert_eq!(joined.faults().unwrap(), [Fault::Reset { domain: second() }]);
    assert_eq!(repair(&mut joined), []);
    mounted.resctrl.remove(&jet()).unwrap();
    assert_eq!(repair(&mut joined), []);
    assert_eq!(mounted.picture(), standing);
    assert_eq!(joined.restore().unwrap(), Restored::Standing);
    assert_eq!(mounted.picture(), standing);
    let left = restore_all(&mounted.resctrl, mounted.folder()).unwrap();
    assert!(matches!(left[0].restored, Ok(Restored::Undone)), "{left:?}");
    assert_eq!(mounted.picture(), before);
}

/// Events that undo a reservation: another tool removes the group, or the kernel forgets a cache.
const UNDONE: [&str; 2] = ["removed", "reset"];

/// All steps of a repair with at most one losing group.
const STEPS: [Step; 7] =
    [Step::Journal, Step::Group, Step::Inode, Step::Shareable, Step::Loss(0), Step::Own, Step::Exclusive];

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn after_a_kill_between_any_two_steps_of_repair_what_another_tool_gave_meanwhile_stays() {
    let mounted = Mounted::new();
    let (before, default) = (mounted.picture(), GroupName::default_group());
    for undone in UNDONE {
        let mut came_to = Vec::new();
        for step in STEPS {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "children::repairs_and_dies", "--ignored", "--nocapture"]);
            child.env("JET_CAT_FOLDER", mounted.folder()).env("JET_CAT_UNDONE", undone);
            let output = child.env("JET_CAT_STEP", format!("{step:?}")).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(9), "{undone}, {step:?}: {said}");
            if !said.contains("repaired everything") {
                came_to.push(step);
            }
            let left = recover(&mounted.resctrl, mounted.folder()).unwrap();
            assert!(left[0].restored.is_ok(), "{undone}, {step:?}: {}", left[0]);
            assert!(!mounted.has_journal());
            if undone == "removed" {
                // The default group has the ways that the child, acting as another tool, gave it.
                let all = ways_of(&mounted, &default, 0);
                assert_eq!(all, ways_of(&mounted, &default, second()), "{undone}, {step:?}");
                set(&mounted, &default, |ways| WayMask(ways.0 << 1 | 1));
            }
            assert_eq!(mounted.picture(), before, "{undone}, {step:?}");
        }
        // Where the kernel cannot make the group exclusive, these two steps do not exist.
        came_to.retain(|step| !matches!(step, Step::Exclusive | Step::Shareable));
        let made = [Step::Journal, Step::Group, Step::Inode, Step::Loss(0), Step::Own];
        let forgotten = [Step::Journal, Step::Loss(0), Step::Own];
        assert_eq!(came_to, if undone == "removed" { &made[..] } else { &forgotten }, "{undone}");
    }
}

/// Body of a child process, called from `children`: repairs a reservation and kills itself.
pub fn repairs_and_dies(folder: &Path) {
    let (last, undone) = (std::env::var("JET_CAT_STEP").unwrap(), std::env::var("JET_CAT_UNDONE").unwrap());
    let die =
        || rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    let resctrl = Resctrl::find().unwrap();
    let found = holdings(&resctrl).unwrap().unwrap();
    let request = Request::new(jet(), 2 * found.way_bytes.values().next().unwrap());
    let mut reservation = Reservation::make(&resctrl, &request, folder, &mut |_| {}).unwrap();
    if undone == "removed" {
        resctrl.remove(&jet()).unwrap();
        // Another tool takes the highest way for something else.
        let default = GroupName::default_group();
        let mut ways = l3_ways(&resctrl.group(&default).schemata().unwrap());
        let less = without_highest(found.cache.ways, 1);
        ways.values_mut().flat_map(|domains| domains.values_mut()).for_each(|ways| *ways = less);
        resctrl.group(&default).set_schemata(&schemata(&ways)).unwrap();
    } else {
        reset_second();
    }
    let mut watch = |step| {
        if format!("{step:?}") == last {
            die();
        }
    };
    assert_eq!(reservation.repair(&mut watch).unwrap(), []);
    println!("repaired everything");
    die();
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn what_another_tool_gave_the_default_group_meanwhile_is_what_it_gets_back() {
    let (mounted, default) = (Mounted::new(), GroupName::default_group());
    let all = ways_of(&mounted, &default, 0);
    let less = without_highest(all, 4);
    let mut reserved = Reserved::ways(&mounted, 2);
    let ways = ways_of(&mounted, &jet(), 0);
    // The other tool takes the highest ways for a group of its own.
    mounted.resctrl.remove(&jet()).unwrap();
    mounted.make(&web());
    set(&mounted, &web(), |_| all.without(less));
    set(&mounted, &default, |_| less);
    assert_eq!(reserved.repair(), []);
    assert_eq!(
        (ways_of(&mounted, &jet(), 0), ways_of(&mounted, &default, 0)),
        (ways, less.without(ways)),
        "the same ways again"
    );
    drop(reserved.reservation);
    for domain in [0, second()] {
        assert_eq!(ways_of(&mounted, &default, domain), less);
        assert_eq!(ways_of(&mounted, &web(), domain), all.without(less));
    }
    assert!(!mounted.has_journal());
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_cache_that_comes_back_is_reserved_again_where_another_tool_was_quicker() {
    let (mounted, default, domain) = (Mounted::new(), GroupName::default_group(), second());
    // Shareable: beside an exclusive group that has every way, the kernel lets nobody write any ways.
    let mut request = mounted.request(2);
    request.exclusive = Exclusiveness::Never;
    let mut reserved = Reserved::as_asked(&mounted, &request);
    let ways = ways_of(&mounted, &jet(), domain);
    reset_second();
    let less = without_highest(ways_of(&mounted, &default, domain), 4);
    set_in(&mounted, &default, domain, less);
    assert_eq!(reserved.faults(), [Fault::Reset { domain }]);
    assert_eq!(reserved.repair(), []);
    assert_eq!(ways_of(&mounted, &jet(), domain), ways);
    assert_eq!(ways_of(&mounted, &default, domain), less.without(ways));
    drop(reserved.reservation);
    assert_eq!(ways_of(&mounted, &default, domain), less);
    // Everything else is as before.
    set_in(&mounted, &default, domain, ways_of(&mounted, &default, 0));
    assert_eq!(mounted.picture(), reserved.before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn ways_that_another_group_has_now_are_left_to_it() {
    let mounted = Mounted::new();
    let mut reserved = Reserved::ways(&mounted, 2);
    let ways = l3_ways(&mounted.resctrl.group(&jet()).schemata().unwrap());
    mounted.resctrl.remove(&jet()).unwrap();
    mounted.make(&web());
    mounted.resctrl.group(&web()).set_schemata(&schemata(&ways)).unwrap();
    mounted.resctrl.group(&web()).set_mode(Mode::Exclusive).unwrap();
    let taken = mounted.picture();
    let amiss = reserved.repair();
    assert_eq!(amiss[0], Fault::GroupRemoved { group: jet() });
    assert!(
        amiss[1..].iter().all(|fault| matches!(fault, Fault::Shared { group, .. } if *group == web())),
        "{amiss:?}"
    );
    assert!(amiss.len() > 1);
    assert_eq!(mounted.picture(), taken);
    // A group of the same name that another tool made is not taken for the reservation's.
    mounted.resctrl.remove(&web()).unwrap();
    mounted.make(&jet());
    assert_eq!(reserved.repair(), [Fault::GroupOfOthers { group: jet() }]);
    mounted.resctrl.remove(&jet()).unwrap();
    reserved.is_made_again(&mounted);
    reserved.ends_as_it_began(&mounted);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn what_another_tool_has_changed_stays_so() {
    let mounted = Mounted::new();
    let mut reserved = Reserved::ways(&mounted, 4);
    let domain = second();
    let made = ways_of(&mounted, &jet(), domain);
    set(&mounted, &jet(), |ways| WayMask::run(ways.0.trailing_zeros(), 2));
    let has = ways_of(&mounted, &jet(), domain);
    let changed = mounted.picture();
    assert!(reserved.faults().contains(&Fault::Changed { domain, made, has }), "{:?}", reserved.faults());
    assert_eq!(reserved.repair(), reserved.faults());
    if reserved.reservation.is_exclusive() {
        mounted.resctrl.group(&jet()).set_mode(Mode::Shareable).unwrap();
        assert!(reserved.repair().contains(&Fault::Shareable { reason: None }));
        assert_eq!(mounted.resctrl.group(&jet()).mode().unwrap(), Mode::Shareable);
    } else {
        assert_eq!(mounted.picture(), changed);
    }
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn who_unmounts_is_told_from_who_removes() {
    let mounted = Mounted::new();
    let Reserved { mut reservation, before, since } = Reserved::ways(&mounted, 2);
    host("umount /sys/fs/resctrl");
    assert!(matches!(repair(&mut reservation)[..], [Fault::Unmounted { .. }]));
    host("mount -t resctrl resctrl /sys/fs/resctrl");
    assert_eq!(repair(&mut reservation), [Fault::MountedAnew]);
    assert_eq!(mounted.picture(), before);
    // A new reservation can be made afterwards.
    drop(reservation);
    let reservation = mounted.reserve(&mounted.request(2)).unwrap();
    assert_eq!(mounted.picture(), since);
    drop(reservation);
    assert_eq!(mounted.picture(), before);
    // A standing reservation does not outlive the mount.
    mounted.reserve(&mounted.request(2)).unwrap().leave().unwrap();
    mounted.again("rw");
    let reservation = mounted.reserve(&mounted.request(3)).unwrap();
    drop(reservation);
    assert_eq!(mounted.picture(), before);
}

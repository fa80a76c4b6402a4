//! What others undo while it stands: each is named, and made again where nobody loses by it.

use crate::mounted::{Mounted, host, jet, processor};
use jet_cat::plan::{Request, l3_ways, schemata};
use jet_cat::resctrl::{GroupName, Mode, Resctrl, WayMask};
use jet_cat::reservation::{Fault, Reservation, Restored, holdings, recover, restore_all};
use jet_cat::topology::Topology;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

/// The cache of the second processor, which has no other.
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

/// Ways of a group in a domain.
fn ways_of(mounted: &Mounted, group: &GroupName, domain: u32) -> WayMask {
    let ways = l3_ways(&mounted.resctrl.group(group).schemata().unwrap());
    *ways.values().next().unwrap().get(&domain).unwrap()
}

fn faults(reservation: &Reservation) -> Vec<Fault> {
    reservation.faults().unwrap()
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_cache_whose_processors_come_back_is_reserved_again() {
    let mounted = Mounted::new();
    let (before, domain) = (mounted.picture(), second());
    let mut reservation = mounted.reserve(&mounted.request(2)).unwrap();
    let reserved = mounted.picture();
    assert_eq!(faults(&reservation), []);
    assert_eq!(reservation.mend().unwrap(), []);
    processor(1, false);
    assert_eq!(faults(&reservation), [Fault::Offline { domain }]);
    assert_eq!(reservation.mend().unwrap(), [Fault::Offline { domain }]);
    processor(1, true);
    assert_eq!(faults(&reservation), [Fault::Reset { domain }]);
    assert_eq!(reservation.mend().unwrap(), []);
    assert_eq!(mounted.picture(), reserved);
    drop(reservation);
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn ways_that_nobody_had_are_somebodys_when_the_cache_comes_back_and_are_taken_from_him() {
    let mounted = Mounted::new();
    let (default, domain) = (GroupName::default_group(), second());
    let all = ways_of(&mounted, &default, domain);
    // So many that they are taken first, and nobody loses.
    set(&mounted, &default, |ways| ways.without(WayMask::run(0, 4)));
    let mut reservation = mounted.reserve(&mounted.request(2)).unwrap();
    assert_eq!(reservation.plan().changes, []);
    let reserved = ways_of(&mounted, &jet(), domain);
    processor(1, false);
    processor(1, true);
    assert_eq!(ways_of(&mounted, &default, domain), all);
    assert_eq!(reservation.mend().unwrap(), []);
    assert_eq!(ways_of(&mounted, &jet(), domain), reserved);
    assert!(!ways_of(&mounted, &default, domain).overlaps(reserved));
    // What the kernel gave it is what it gets back.
    drop(reservation);
    assert_eq!(ways_of(&mounted, &default, domain), all);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn another_tools_group_keeps_what_the_kernel_gave_it_until_that_tool_takes_it_away() {
    let mounted = Mounted::new();
    let domain = second();
    mounted.make(&web());
    set(&mounted, &web(), |_| WayMask::run(8, 2));
    let before = mounted.picture();
    let mut reservation = mounted.reserve(&mounted.request(2)).unwrap();
    let was_exclusive = reservation.is_exclusive();
    let reserved = mounted.picture();
    let ways = ways_of(&mounted, &jet(), domain);
    processor(1, false);
    processor(1, true);
    let all = ways_of(&mounted, &web(), domain);
    let amiss = reservation.mend().unwrap();
    assert_eq!(amiss[0], Fault::Shared { domain, ways, group: web() });
    assert_eq!(matches!(amiss[1..], [Fault::Shareable { reason: Some(_) }]), was_exclusive, "{amiss:?}");
    assert_eq!((ways_of(&mounted, &web(), domain), ways_of(&mounted, &jet(), domain)), (all, ways));
    // The other tool can: with every way for itself the group would have kept it from that.
    set(&mounted, &web(), |_| WayMask::run(8, 2));
    assert_eq!(reservation.mend().unwrap(), []);
    assert_eq!(mounted.picture(), reserved);
    drop(reservation);
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_group_that_was_removed_is_made_again_with_its_threads() {
    let mounted = Mounted::new();
    let (before, domain) = (mounted.picture(), second());
    let mut reservation = mounted.reserve(&mounted.request(2)).unwrap();
    let (reserved, class) = (mounted.picture(), reservation.class());
    let thread = rustix::thread::gettid().as_raw_pid();
    class.add_thread(thread).unwrap();
    mounted.resctrl.remove(&jet()).unwrap();
    assert_eq!(faults(&reservation), [Fault::GroupRemoved { group: jet() }]);
    assert_eq!(reservation.mend().unwrap(), []);
    assert_eq!(mounted.picture(), reserved);
    class.add_thread(thread).unwrap();
    assert_eq!(class.threads().unwrap(), [thread]);
    class.remove_thread(thread).unwrap();
    assert!(class.threads().unwrap().is_empty());
    // With one cache away, and all given back by hand.
    processor(1, false);
    mounted.resctrl.remove(&jet()).unwrap();
    set(&mounted, &GroupName::default_group(), |ways| WayMask::run(0, 64 - ways.0.leading_zeros()));
    assert_eq!(reservation.mend().unwrap(), [Fault::Offline { domain }]);
    processor(1, true);
    assert_eq!(reservation.mend().unwrap(), []);
    assert_eq!(mounted.picture(), reserved);
    drop(reservation);
    assert_eq!(mounted.picture(), before);
    assert!(!mounted.has_journal());
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn what_is_to_outlive_its_process_is_made_again_by_who_uses_it_and_stands_on() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    mounted.reserve(&mounted.request(3)).unwrap().leave().unwrap();
    let standing = mounted.picture();
    // With less than stands, which stays as it was made.
    let mut joined = mounted.reserve(&mounted.request(2)).unwrap();
    processor(1, false);
    processor(1, true);
    assert_eq!(faults(&joined), [Fault::Reset { domain: second() }]);
    assert_eq!(joined.mend().unwrap(), []);
    mounted.resctrl.remove(&jet()).unwrap();
    assert_eq!(joined.mend().unwrap(), []);
    assert_eq!(mounted.picture(), standing);
    assert_eq!(joined.restore().unwrap(), Restored::Standing);
    assert_eq!(mounted.picture(), standing);
    let left = restore_all(&mounted.resctrl, mounted.folder()).unwrap();
    assert!(matches!(left[0].restored, Ok(Restored::Undone)), "{left:?}");
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn after_a_kill_what_was_made_again_is_put_back() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "children::mends_and_dies", "--ignored", "--nocapture"]);
    let output = child.env("JET_CAT_FOLDER", mounted.folder()).output().unwrap();
    assert_eq!(output.status.signal(), Some(9), "{}", String::from_utf8_lossy(&output.stderr));
    assert_ne!(mounted.picture(), before);
    let left = recover(&mounted.resctrl, mounted.folder()).unwrap();
    assert!(matches!(left[0].restored, Ok(Restored::Undone)), "{left:?}");
    assert_eq!(mounted.picture(), before);
}

/// What a child process does; see `children`.
pub fn mends_and_dies(folder: &Path) {
    let resctrl = Resctrl::find().unwrap();
    let found = holdings(&resctrl).unwrap().unwrap();
    let request = Request::new(jet(), 2 * found.way_bytes.values().next().unwrap());
    let mut reservation = Reservation::make(&resctrl, &request, folder, &mut |_| {}).unwrap();
    resctrl.remove(&jet()).unwrap();
    assert_eq!(reservation.mend().unwrap(), []);
    processor(1, false);
    processor(1, true);
    assert_eq!(reservation.mend().unwrap(), []);
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn ways_that_another_group_has_now_are_left_to_it() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    let mut reservation = mounted.reserve(&mounted.request(2)).unwrap();
    let reserved = mounted.picture();
    let ways = l3_ways(&mounted.resctrl.group(&jet()).schemata().unwrap());
    mounted.resctrl.remove(&jet()).unwrap();
    mounted.make(&web());
    mounted.resctrl.group(&web()).set_schemata(&schemata(&ways)).unwrap();
    mounted.resctrl.group(&web()).set_mode(Mode::Exclusive).unwrap();
    let taken = mounted.picture();
    let amiss = reservation.mend().unwrap();
    assert_eq!(amiss[0], Fault::GroupRemoved { group: jet() });
    assert!(
        amiss[1..].iter().all(|fault| matches!(fault, Fault::Shared { group, .. } if *group == web())),
        "{amiss:?}"
    );
    assert!(amiss.len() > 1);
    assert_eq!(mounted.picture(), taken);
    // Nor is a group of that name taken for its own.
    mounted.resctrl.remove(&web()).unwrap();
    mounted.make(&jet());
    assert_eq!(reservation.mend().unwrap(), [Fault::GroupOfOthers { group: jet() }]);
    mounted.resctrl.remove(&jet()).unwrap();
    assert_eq!(reservation.mend().unwrap(), []);
    assert_eq!(mounted.picture(), reserved);
    drop(reservation);
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn what_another_tool_has_changed_stays_so() {
    let mounted = Mounted::new();
    let mut reservation = mounted.reserve(&mounted.request(4)).unwrap();
    let domain = second();
    let made = ways_of(&mounted, &jet(), domain);
    set(&mounted, &jet(), |ways| WayMask::run(ways.0.trailing_zeros(), 2));
    let has = ways_of(&mounted, &jet(), domain);
    let changed = mounted.picture();
    assert!(
        faults(&reservation).contains(&Fault::Changed { domain, made, has }),
        "{:?}",
        faults(&reservation)
    );
    assert_eq!(reservation.mend().unwrap(), faults(&reservation));
    if reservation.is_exclusive() {
        mounted.resctrl.group(&jet()).set_mode(Mode::Shareable).unwrap();
        assert!(reservation.mend().unwrap().contains(&Fault::Shareable { reason: None }));
        assert_eq!(mounted.resctrl.group(&jet()).mode().unwrap(), Mode::Shareable);
    } else {
        assert_eq!(mounted.picture(), changed);
    }
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn who_unmounts_is_told_from_who_removes() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    let mut reservation = mounted.reserve(&mounted.request(2)).unwrap();
    let reserved = mounted.picture();
    host("umount /sys/fs/resctrl");
    assert!(matches!(reservation.mend().unwrap()[..], [Fault::Unmounted { .. }]));
    host("mount -t resctrl resctrl /sys/fs/resctrl");
    assert_eq!(reservation.mend().unwrap(), [Fault::MountedAnew]);
    assert_eq!(mounted.picture(), before);
    // Then there is a new one to be made.
    drop(reservation);
    let reservation = mounted.reserve(&mounted.request(2)).unwrap();
    assert_eq!(mounted.picture(), reserved);
    drop(reservation);
    assert_eq!(mounted.picture(), before);
    // What was to outlive its process does not outlive the mount.
    mounted.reserve(&mounted.request(2)).unwrap().leave().unwrap();
    mounted.again("rw");
    let reservation = mounted.reserve(&mounted.request(3)).unwrap();
    drop(reservation);
    assert_eq!(mounted.picture(), before);
}

//! Tests of adjustments: other groups' bandwidth, and devices' ways.

use crate::mounted::{Mounted, jet};
use jet_cat::adjustments::{AdjustError, Adjustments, Wanted, recover};
use jet_cat::plan::Exclusiveness;
use jet_cat::resctrl::{GroupName, IoAlloc, Resctrl, WayMask};
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

fn batch() -> GroupName {
    GroupName::new("batch").unwrap()
}

/// Returns a request that limits the group `batch` to a tenth of the bandwidth, and the default group to a
/// half.
fn throttled(resctrl: &Resctrl) -> Wanted {
    let all = bandwidth(resctrl, &GroupName::default_group());
    let bandwidth = BTreeMap::from([(batch(), all / 10), (GroupName::default_group(), all / 2)]);
    Wanted { bandwidth, ..Wanted::default() }
}

/// Reads a group's bandwidth in the first domain from the kernel.
fn bandwidth(resctrl: &Resctrl, group: &GroupName) -> u64 {
    let schemata = resctrl.group(group).schemata().unwrap().to_string();
    let line = schemata.lines().find_map(|line| line.strip_prefix("MB:")).expect("a line of bandwidth");
    let (_, value) = line.split(';').next().and_then(|entry| entry.split_once('=')).expect("a domain");
    value.parse().expect("a number")
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-intel"]
fn bandwidth_is_taken_from_groups_that_are_named_and_given_back() {
    let mounted = Mounted::new();
    let resctrl = &mounted.resctrl;
    let wanted = throttled(resctrl);
    let nothing = mounted.picture();
    let refused = Adjustments::make(resctrl, &wanted, mounted.folder());
    assert!(matches!(refused, Err(AdjustError::NoGroup { .. })), "{refused:?}");
    assert_eq!(mounted.picture(), nothing, "of two groups one is there, and keeps what it has");

    mounted.make(&batch());
    // The group lacks the ways that are to be reserved, so it loses none.
    resctrl.group(&batch()).set_schemata(&"L3:0=ff00;1=ff00\n".parse().unwrap()).unwrap();
    let before = mounted.picture();
    // A reservation at the same time changes what the same groups have of the cache.
    let reservation = mounted.reserve(&mounted.request(4)).unwrap();
    let reserved = mounted.picture();
    let adjustments = Adjustments::make(resctrl, &wanted, mounted.folder()).unwrap();
    for (group, &value) in &wanted.bandwidth {
        assert_eq!(bandwidth(resctrl, group), value, "{group}");
    }
    assert!(bandwidth(resctrl, &jet()) >= wanted.bandwidth[&batch()] * 10, "the pool's own is not throttled");
    assert!(!recover(resctrl, mounted.folder()).unwrap(), "its process lives");
    adjustments.restore().unwrap();
    assert_eq!(mounted.picture(), reserved);
    drop(reservation);
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-intel"]
fn bandwidth_is_given_back_after_a_kill_unless_somebody_changed_it_meanwhile() {
    let mounted = Mounted::new();
    mounted.make(&batch());
    let before = mounted.picture();
    let kill = || {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "children::throttles_and_dies", "--ignored"]);
        let output = child.env("JET_CAT_FOLDER", mounted.folder()).output().unwrap();
        assert_eq!(output.status.signal(), Some(9), "{}", String::from_utf8_lossy(&output.stderr));
    };
    kill();
    assert_ne!(mounted.picture(), before);
    assert!(recover(&mounted.resctrl, mounted.folder()).unwrap());
    assert_eq!(mounted.picture(), before);
    assert!(!recover(&mounted.resctrl, mounted.folder()).unwrap());

    kill();
    // The group has a tenth; another tool now sets two tenths.
    let other = format!("MB:0={}\n", bandwidth(&mounted.resctrl, &batch()) * 2);
    mounted.resctrl.group(&batch()).set_schemata(&other.parse().unwrap()).unwrap();
    let changed = mounted.picture();
    let error = recover(&mounted.resctrl, mounted.folder()).unwrap_err().to_string();
    assert!(error.contains("'batch' in domain 0") && error.contains("nothing was changed"), "{error}");
    assert_eq!(mounted.picture(), changed);
    // A group that somebody made anew under the same name is not the one that was limited.
    mounted.resctrl.remove(&batch()).unwrap();
    mounted.make(&batch());
    assert!(recover(&mounted.resctrl, mounted.folder()).unwrap(), "the default group");
    assert_eq!(mounted.picture(), before);

    kill();
    mounted.again("rw");
    assert_eq!(mounted.resctrl.groups().unwrap(), []);
    assert!(!recover(&mounted.resctrl, mounted.folder()).unwrap(), "unmounting gave everything back");
}

/// Body of a child process, called from `children`: makes adjustments and kills itself.
pub fn throttles_and_dies(folder: &Path) {
    let resctrl = Resctrl::find().unwrap();
    let _adjustments = Adjustments::make(&resctrl, &throttled(&resctrl), folder).unwrap();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-io"]
fn io_devices_get_the_pools_ways_and_lose_them() {
    let mounted = Mounted::new();
    let resctrl = &mounted.resctrl;
    let mut request = mounted.request(4);
    request.exclusive = Exclusiveness::Never;
    let reservation = mounted.reserve(&request).unwrap();
    let ways: BTreeMap<_, _> =
        reservation.plan().domains.iter().map(|planned| (planned.domain, planned.ways)).collect();
    let wanted = Wanted { device_ways: ways.clone(), ..Wanted::default() };
    let adjustments = Adjustments::make(resctrl, &wanted, mounted.folder()).unwrap();
    assert_eq!(resctrl.io_ways().unwrap(), ways);
    adjustments.restore().unwrap();
    assert_eq!(resctrl.io_alloc().unwrap(), IoAlloc::Disabled);

    // Ways that somebody else sets meanwhile are not changed back.
    let adjustments = Adjustments::make(resctrl, &wanted, mounted.folder()).unwrap();
    assert!(adjustments.is_in_effect().unwrap());
    let others: BTreeMap<_, _> = ways.keys().map(|domain| (*domain, WayMask(0xf000))).collect();
    resctrl.set_io_ways(&others).unwrap();
    assert!(!adjustments.is_in_effect().unwrap());
    let error = adjustments.restore().unwrap_err().to_string();
    assert!(error.contains("is f000, where f was set and ffff before"), "{error}");
    assert_eq!(resctrl.io_ways().unwrap(), others);
    // Unmounting does not undo the devices' ways.
    resctrl.set_io_ways(&ways).unwrap();
    drop(reservation);
    mounted.again("rw");
    assert_eq!(resctrl.io_alloc().unwrap(), IoAlloc::Enabled);
    assert!(recover(resctrl, mounted.folder()).unwrap());
    assert_eq!(resctrl.io_alloc().unwrap(), IoAlloc::Disabled);

    // An operator had given devices other ways before.
    resctrl.set_io_alloc(true).unwrap();
    resctrl.set_io_ways(&others).unwrap();
    let adjustments = Adjustments::make(resctrl, &wanted, mounted.folder()).unwrap();
    assert_eq!(resctrl.io_ways().unwrap(), ways);
    drop(adjustments);
    assert_eq!(resctrl.io_ways().unwrap(), others);
    resctrl.set_io_alloc(false).unwrap();
}

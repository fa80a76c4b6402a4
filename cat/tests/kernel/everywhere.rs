//! Tests that hold wherever ways of the last-level cache can be allocated.

use crate::mounted::{Mounted, host, jet, processor};
use jet_cat::plan::{Exclusiveness, Refusal, l3_ways};
use jet_cat::resctrl::{AccessError, GroupName, Line, Mode, WayMask};
use jet_cat::reservation::{
    Reservation, ReserveError, RestoreError, Restored, preview, recover, restore_all,
};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn what_is_planned_is_what_the_kernel_has_and_all_of_it_is_put_back() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    let reservation = mounted.reserve(&mounted.request(3)).unwrap();
    let plan = reservation.plan().clone();
    for planned in &plan.domains {
        assert_eq!((planned.ways.count(), planned.bytes), (3, 3 * mounted.way_bytes()));
    }
    assert_eq!(l3_ways(&mounted.resctrl.group(&jet()).schemata().unwrap()), plan.own);
    for change in &plan.changes {
        let found = l3_ways(&mounted.resctrl.group(&change.group).schemata().unwrap());
        for (resource, ways) in &change.after {
            for (domain, ways) in ways {
                assert_eq!(found[resource][domain], *ways, "{} of domain {domain}", change.group);
            }
        }
    }
    let mode = mounted.resctrl.group(&jet()).mode().unwrap();
    assert_eq!(mode == Mode::Exclusive, reservation.is_exclusive());
    assert!(mounted.has_journal());
    assert_eq!(reservation.restore().unwrap(), Restored::Undone);
    assert_eq!(mounted.picture(), before);
    assert!(!mounted.has_journal());
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn dropping_puts_back_and_threads_go_home() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    let thread = rustix::thread::gettid().as_raw_pid();
    let reservation = mounted.reserve(&mounted.request(2)).unwrap();
    reservation.add_thread(thread).unwrap();
    assert_eq!(mounted.resctrl.group(&jet()).threads().unwrap(), [thread]);
    drop(reservation);
    assert_eq!(mounted.picture(), before);
    assert!(mounted.resctrl.group(&GroupName::default_group()).threads().unwrap().contains(&thread));
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_thread_of_another_tool_stays_where_it_is() {
    let mounted = Mounted::new();
    let web = GroupName::new("web").unwrap();
    // The group is narrowed, so that some ways belong to nobody but the default group.
    mounted.make(&web);
    let mut narrow = mounted.resctrl.group(&GroupName::default_group()).schemata().unwrap();
    for (_, line) in &mut narrow.lines {
        if let jet_cat::resctrl::Line::Ways(ways) = line {
            ways.values_mut().for_each(|ways| *ways = jet_cat::resctrl::WayMask::run(0, 2));
        }
    }
    mounted.resctrl.group(&web).set_schemata(&narrow).unwrap();
    let thread = rustix::thread::gettid().as_raw_pid();
    mounted.resctrl.group(&web).add_thread(thread).unwrap();
    let before = mounted.picture();
    let reservation = mounted.reserve(&mounted.request(2)).unwrap();
    let error = reservation.add_thread(thread).unwrap_err().to_string();
    assert!(error.contains("in the group 'web' of another tool"), "{error}");
    drop(reservation);
    assert_eq!(mounted.picture(), before);
    assert_eq!(mounted.resctrl.group(&web).threads().unwrap(), [thread]);
    mounted.resctrl.remove(&web).unwrap();
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_group_of_another_tool_that_shares_everything_is_named_and_nothing_changes() {
    let mounted = Mounted::new();
    mounted.make(&GroupName::new("web").unwrap());
    let before = mounted.picture();
    let error = mounted.reserve(&mounted.request(2)).unwrap_err();
    assert!(
        matches!(&error, ReserveError::Refused(Refusal::Groups { names, .. }) if names == &["web"]),
        "{error:?}"
    );
    assert_eq!(mounted.picture(), before);
    assert!(!mounted.has_journal());
    // On request the reservation takes ways from that group, and gives them back.
    let mut taking = mounted.request(2);
    taking.take_from_groups = true;
    let reservation = mounted.reserve(&taking).unwrap();
    assert_eq!(reservation.plan().changes.len(), 2);
    drop(reservation);
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_group_of_that_name_without_a_journal_is_somebodys() {
    let mounted = Mounted::new();
    mounted.make(&jet());
    let before = mounted.picture();
    let error = mounted.reserve(&mounted.request(2)).unwrap_err().to_string();
    assert!(error.contains("rmdir /sys/fs/resctrl/jet"), "{error}");
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn two_reservations_of_one_domain_or_one_name_do_not_go_together() {
    let mounted = Mounted::new();
    let first = mounted.reserve(&mounted.request(2)).unwrap();
    let before = mounted.picture();
    let error = mounted.reserve(&mounted.request(2)).unwrap_err();
    assert!(matches!(error, ReserveError::Running { .. }), "{error:?}");
    let mut other = mounted.request(2);
    other.group = GroupName::new("other").unwrap();
    other.exclusive = Exclusiveness::Never;
    let error = mounted.reserve(&other).unwrap_err();
    assert!(matches!(error, ReserveError::DomainTaken { .. }), "{error:?}");
    assert_eq!(mounted.picture(), before);
    // What a living process has is not put back by others.
    assert!(recover(&mounted.resctrl, mounted.folder()).unwrap().is_empty());
    assert_eq!(mounted.picture(), before);
    drop(first);
    mounted.reserve(&other).unwrap();
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn each_domain_can_be_somebody_elses() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    let domains: Vec<u32> = mounted
        .reserve(&mounted.request(2))
        .unwrap()
        .plan()
        .own
        .values()
        .next()
        .unwrap()
        .keys()
        .copied()
        .collect();
    assert!(domains.len() > 1, "the guest has two");
    let reserve = |name: &str, domain: u32| {
        let mut request = mounted.request(2);
        request.group = GroupName::new(name).unwrap();
        request.domains = Some(vec![domain]);
        request.exclusive = Exclusiveness::Never;
        mounted.reserve(&request).unwrap()
    };
    let first = reserve("a", domains[0]);
    let second = reserve("b", domains[1]);
    // The reservations end in the order in which they were made, not in the reverse order.
    drop(first);
    drop(second);
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn read_only_is_said_and_nothing_changes() {
    let mounted = Mounted::with("ro");
    let error = mounted.reserve(&mounted.request(2)).unwrap_err();
    assert!(matches!(error, ReserveError::ReadOnly { .. }), "{error:?}");
    assert!(error.to_string().contains("mount -o remount,rw"), "{error}");
    assert!(!mounted.has_journal());
    // A plan that could not be carried out is not made either.
    let planned = preview(&mounted.resctrl, &mounted.request(2), mounted.folder());
    assert!(matches!(planned, Err(ReserveError::ReadOnly { .. })), "{planned:?}");
    assert!(mounted.resctrl.group(&GroupName::default_group()).schemata().is_ok());
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_user_without_the_right_is_told_and_nothing_changes() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    // Folders for journals: one that the user owns, one of root's, and one that anybody may write.
    let places = "chmod 755 .; mkdir -m 700 own closed; mkdir -m 777 open; chown 65534 own";
    host(&format!("cd {}; {places}", mounted.folder().display()));
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "children::as_nobody", "--ignored", "--nocapture"]);
    let output = child.env("JET_CAT_FOLDER", mounted.folder()).uid(65534).gid(65534).output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(mounted.picture(), before);
    assert!(!mounted.has_journal());
    let open = mounted.folder().join("open");
    let error = Reservation::make(&mounted.resctrl, &mounted.request(2), &open, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("is not trusted"), "{error}");
    assert_eq!(mounted.picture(), before);
}

/// Body of a child process, called from `children`: tries to reserve as another user.
pub fn as_nobody(folder: &Path) {
    let resctrl = jet_cat::resctrl::Resctrl::find().unwrap();
    let request = jet_cat::plan::Request::new(jet(), 1);
    let own = folder.join("own");
    let error = Reservation::make(&resctrl, &request, &own, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("run as root"), "{error}");
    // The same where not even the journal can be written.
    let closed = folder.join("closed/journals");
    let error = Reservation::make(&resctrl, &request, &closed, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("reserving cache needs root"), "{error}");
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn who_unmounts_undoes_and_the_next_start_sees_that() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    let reservation = mounted.reserve(&mounted.request(2)).unwrap();
    host("umount /sys/fs/resctrl");
    let error = reservation.restore().unwrap_err();
    assert!(matches!(error, RestoreError::Access(AccessError::Unmounted { .. })), "{error:?}");
    assert!(mounted.has_journal());
    host("mount -t resctrl resctrl /sys/fs/resctrl");
    let left = recover(&mounted.resctrl, mounted.folder()).unwrap();
    assert!(matches!(left[..], [ref left] if matches!(left.restored, Ok(Restored::Already))), "{left:?}");
    assert_eq!(mounted.picture(), before);
    assert!(!mounted.has_journal());
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_journal_of_another_boot_changes_nothing() {
    let mounted = Mounted::new();
    crate::crashes::left_by_a_crash(&mounted);
    let journal = mounted.folder().join("jet.json");
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, text.replace(boot.trim(), "00000000-0000-0000-0000-000000000000")).unwrap();
    let before = mounted.picture();
    let left = recover(&mounted.resctrl, mounted.folder()).unwrap();
    assert!(matches!(left[..], [ref left] if matches!(left.restored, Ok(Restored::OtherBoot))), "{left:?}");
    assert_eq!(mounted.picture(), before);
    assert!(!mounted.has_journal());
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_journal_that_does_not_fit_changes_nothing_and_says_what_does_not() {
    let mounted = Mounted::new();
    crate::crashes::left_by_a_crash(&mounted);
    // Somebody changed what the default group was left with.
    let default = GroupName::default_group();
    let mut schemata = mounted.resctrl.group(&default).schemata().unwrap();
    for (_, line) in &mut schemata.lines {
        if let jet_cat::resctrl::Line::Ways(ways) = line {
            ways.values_mut().for_each(|ways| {
                // Two ways, the fewest that some processors accept.
                *ways = jet_cat::resctrl::WayMask::run(62 - ways.0.leading_zeros(), 2);
            });
        }
    }
    mounted.resctrl.group(&default).set_schemata(&schemata).unwrap();
    let before = mounted.picture();
    let left = recover(&mounted.resctrl, mounted.folder()).unwrap();
    let [left] = &left[..] else { panic!("{left:?}") };
    let error = left.restored.as_ref().unwrap_err();
    assert!(matches!(error, RestoreError::Misfit { .. }), "{error:?}");
    assert!(
        error.to_string().contains("the default group has ") && error.to_string().contains("jet.json"),
        "{error}"
    );
    assert_eq!(mounted.picture(), before);
    assert!(mounted.has_journal());
    // A new reservation does not overwrite it.
    assert!(matches!(mounted.reserve(&mounted.request(2)), Err(ReserveError::Leftover(_))));
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_group_that_was_made_anew_by_somebody_is_left_alone() {
    let mounted = Mounted::new();
    crate::crashes::left_by_a_crash(&mounted);
    mounted.resctrl.remove(&jet()).unwrap();
    // Another group takes the old inode number, so that this group gets a different one.
    mounted.make(&GroupName::new("between").unwrap());
    mounted.make(&jet());
    let before = mounted.picture();
    let left = recover(&mounted.resctrl, mounted.folder()).unwrap();
    assert!(left[0].restored.as_ref().unwrap_err().to_string().contains("another group now"), "{left:?}");
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn what_the_kernel_refuses_says_what_was_written_and_why() {
    let mounted = Mounted::new();
    let default = GroupName::default_group();
    let group = mounted.resctrl.group(&default);
    let said = |text: &str| group.set_schemata(&text.parse().unwrap()).unwrap_err().to_string();
    let resource = group.schemata().unwrap().l3().next().unwrap().0.clone();
    let refused = said(&format!("{resource}:0=fffffffff\n"));
    assert!(refused.contains(&format!("('{resource}:0=fffffffff')")), "{refused}");
    assert!(refused.to_lowercase().contains("mask"), "{refused}");
    // Here the kernel gives no reason; the text of an earlier failure is not reported.
    let refused = said(&format!("{resource}:77=1\n"));
    assert!(refused.contains("a domain that does not exist"), "{refused}");
    let error = group.add_thread(i32::MAX).unwrap_err().to_string();
    assert!(error.contains("No task"), "{error}");
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_cache_whose_processors_went_away_meanwhile_keeps_nothing_from_the_others() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    // If the processor went and came back, the kernel gave every group all ways of its cache. If it is still
    // offline, there is nothing to put back in that cache.
    for comes_back in [true, false] {
        let reservation = mounted.reserve(&mounted.request(2)).unwrap();
        processor(1, false);
        if comes_back {
            processor(1, true);
        }
        assert_eq!(reservation.restore().unwrap(), Restored::Undone);
        assert!(!mounted.has_journal());
        processor(1, true);
        assert_eq!(mounted.picture(), before, "back: {comes_back}");
    }
    // A default group that did not have all ways before gets back those that it had.
    let group = GroupName::default_group();
    let had = mounted.resctrl.group(&group).schemata().unwrap();
    let mut less = had.clone();
    for (_, line) in less.lines.iter_mut().filter(|(resource, _)| resource.is_l3()) {
        let Line::Ways(ways) = line else { continue };
        ways.values_mut().for_each(|ways| *ways = WayMask::run(0, ways.count() - 2));
    }
    mounted.resctrl.group(&group).set_schemata(&less).unwrap();
    let with_less = mounted.picture();
    // More ways than the default group left unused, since unused ways are taken first.
    let reservation = mounted.reserve(&mounted.request(4)).unwrap();
    processor(1, false);
    processor(1, true);
    assert_eq!(reservation.restore().unwrap(), Restored::Undone);
    assert_eq!(mounted.picture(), with_less);
    mounted.resctrl.group(&group).set_schemata(&had).unwrap();
    // The same after a crash.
    crate::crashes::left_by_a_crash(&mounted);
    processor(1, false);
    let left = recover(&mounted.resctrl, mounted.folder()).unwrap();
    processor(1, true);
    assert!(matches!(left[0].restored, Ok(Restored::Undone)), "{left:?}");
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn who_holds_the_lock_of_the_file_system_keeps_nobody_for_ever() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    let folder = std::fs::File::open("/sys/fs/resctrl").unwrap();
    rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let error = mounted.reserve(&mounted.request(2)).unwrap_err();
    assert!(error.to_string().contains("held the lock on /sys/fs/resctrl"), "{error}");
    assert_eq!(mounted.picture(), before);
    drop(folder);
    assert!(mounted.reserve(&mounted.request(2)).is_ok());
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn what_stands_is_used_if_it_is_what_is_asked_for_and_given_back_when_told() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    let plan = mounted.reserve(&mounted.request(2)).unwrap().leave().unwrap();
    let standing = mounted.picture();
    assert_ne!(standing, before);
    assert!(recover(&mounted.resctrl, mounted.folder()).unwrap().is_empty());
    let joined = mounted.reserve(&mounted.request(2)).unwrap();
    assert_eq!(joined.plan().domains, plan.domains);
    assert_eq!(joined.restore().unwrap(), Restored::Standing);
    // A request for more than what stands is refused.
    let error = mounted.reserve(&mounted.request(3)).unwrap_err();
    assert!(error.to_string().contains("of fewer bytes"), "{error}");
    let mut other = mounted.request(1);
    other.domains = Some(plan.domains[..1].iter().map(|planned| planned.domain).collect());
    let error = mounted.reserve(&other).unwrap_err();
    assert!(error.to_string().contains("of other domains"), "{error}");
    assert_eq!(mounted.picture(), standing);
    let left = restore_all(&mounted.resctrl, mounted.folder()).unwrap();
    assert!(matches!(left[0].restored, Ok(Restored::Undone)), "{left:?}");
    assert_eq!(mounted.picture(), before);
}

//! Tests of what cannot be put back: it is reported, left alone, and forgotten on request.

use crate::mounted::{Mounted, jet};
use jet_cat::plan::l3_ways;
use jet_cat::resctrl::{GroupName, Mode, WayMask};
use jet_cat::reservation::{Leftover, RestoreError, Restored, forget_all, recover};

/// Forgets the only reservation that was left, and returns the outcome.
fn forgotten(mounted: &Mounted) -> Leftover {
    let mut left = forget_all(&mounted.resctrl, mounted.folder()).unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    left.remove(0)
}

/// Makes another tool's exclusive group with the ways of the killed process's group, which it removes.
fn take_over(mounted: &Mounted) -> GroupName {
    let web = GroupName::new("web").unwrap();
    let ways = l3_ways(&mounted.resctrl.group(&jet()).schemata().unwrap());
    mounted.resctrl.remove(&jet()).unwrap();
    mounted.make(&web);
    mounted.resctrl.group(&web).set_schemata(&jet_cat::plan::schemata(&ways)).unwrap();
    mounted.resctrl.group(&web).set_mode(Mode::Exclusive).unwrap();
    web
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn ways_that_another_group_keeps_for_itself_are_named_and_stay_its_own() {
    let mounted = Mounted::new();
    crate::crashes::left_by_a_crash(&mounted);
    let web = take_over(&mounted);
    let before = mounted.picture();
    // The conflict is found before anything is changed, not by the kernel's refusal halfway.
    let left = recover(&mounted.resctrl, mounted.folder()).unwrap();
    let error = left[0].restored.as_ref().unwrap_err();
    assert!(matches!(error, RestoreError::Misfit { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("the group 'web' has ways for itself") && said.contains("--forget"), "{said}");
    assert_eq!(mounted.picture(), before);
    assert!(mounted.has_journal());

    let left = forgotten(&mounted);
    assert_eq!(left.restored.as_ref().unwrap(), &Restored::Forgotten);
    assert_eq!(left.stays.len(), 2, "of each cache: {left}");
    assert!(left.to_string().contains("the group 'web' has ways for itself"), "{left}");
    assert_eq!(mounted.picture(), before);
    assert!(!mounted.has_journal());
    // Nothing prevents the next reservation any more.
    let reservation = mounted.reserve(&mounted.request(2)).unwrap();
    drop(reservation);
    assert_eq!(mounted.picture(), before);
    assert!(mounted.resctrl.group(&web).exists());
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn what_can_be_put_back_is_and_the_rest_is_forgotten() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    crate::crashes::left_by_a_crash(&mounted);
    // In one cache the default group's ways are no longer what it was left with.
    let default = GroupName::default_group();
    let mut ways = l3_ways(&mounted.resctrl.group(&default).schemata().unwrap());
    let has = WayMask::run(4, 2);
    let domains = ways.values_mut().next().unwrap();
    *domains.values_mut().next().unwrap() = has;
    mounted.resctrl.group(&default).set_schemata(&jet_cat::plan::schemata(&ways)).unwrap();
    assert!(recover(&mounted.resctrl, mounted.folder()).unwrap()[0].restored.is_err());
    let left = forgotten(&mounted);
    assert_eq!(left.restored.as_ref().unwrap(), &Restored::Forgotten);
    assert_eq!(left.stays.len(), 1, "{left}");
    assert!(left.to_string().contains(&format!("the default group has {has} of L3 of domain 0")), "{left}");
    assert!(!mounted.resctrl.group(&jet()).exists());
    assert!(!mounted.has_journal());
    // The other cache is as before.
    let found = l3_ways(&mounted.resctrl.group(&default).schemata().unwrap());
    let all = jet_cat::reservation::holdings(&mounted.resctrl).unwrap().unwrap().cache.ways;
    assert_eq!(found.values().next().unwrap().values().copied().collect::<Vec<_>>(), [has, all]);
    assert_ne!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn what_fits_is_given_back_and_what_is_in_use_stays_whatever_is_said() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    crate::crashes::left_by_a_crash(&mounted);
    assert_eq!(forgotten(&mounted).restored.unwrap(), Restored::Undone);
    assert_eq!(mounted.picture(), before);
    let reservation = mounted.reserve(&mounted.request(2)).unwrap();
    let reserved = mounted.picture();
    // Both the owner's process and its lock protect a reservation. Here the journal names another living
    // process, while this process holds the lock.
    let journal = mounted.folder().join("jet.json");
    let text = std::fs::read_to_string(&journal).unwrap();
    let init = text.replace(&format!("\"pid\": {}", std::process::id()), "\"pid\": 1");
    assert_ne!(init, text);
    std::fs::write(&journal, init).unwrap();
    assert_eq!(forgotten(&mounted).restored.unwrap(), Restored::InUse);
    assert_eq!(mounted.picture(), reserved);
    drop(reservation);
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check"]
fn a_journal_that_cannot_be_read_is_forgotten_and_said_to_be() {
    let mounted = Mounted::new();
    crate::crashes::left_by_a_crash(&mounted);
    std::fs::write(mounted.folder().join("jet.json"), "no journal").unwrap();
    let before = mounted.picture();
    assert!(recover(&mounted.resctrl, mounted.folder()).unwrap()[0].restored.is_err());
    assert!(mounted.has_journal());
    let left = forgotten(&mounted);
    assert_eq!(left.restored.as_ref().unwrap(), &Restored::Forgotten);
    assert!(left.to_string().contains("cannot be read as a journal"), "{left}");
    assert_eq!(mounted.picture(), before, "nobody knows what was before");
    assert!(!mounted.has_journal());
}

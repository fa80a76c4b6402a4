//! Tests in a folder that imitates resctrl. `tests/kernel` runs the same code against the kernel.

use super::*;
use crate::resctrl::tests::imitation;
use std::fs::{read_to_string, write};

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn throttled(groups: &[(GroupName, u64)]) -> Wanted {
    Wanted { bandwidth: groups.iter().cloned().collect(), ..Wanted::default() }
}

#[test]
fn what_cannot_be_is_refused_by_name_and_changes_nothing() {
    let (dir, resctrl) = imitation();
    let journals = tempfile::tempdir().unwrap();
    let web = dir.path().join("web/schemata");
    let before = read_to_string(&web).unwrap();
    let devices = |ways| Wanted { device_ways: BTreeMap::from([(0, WayMask(ways))]), ..Wanted::default() };
    let elsewhere = Wanted { domains: Some(vec![7]), ..throttled(&[(group("web"), 20)]) };
    for (wanted, problem) in [
        (throttled(&[(group("web"), 20), (group("none"), 20)]), "no group 'none'"),
        (throttled(&[(group("web"), 25)]), "a multiple of 10, and 10 at least"),
        (throttled(&[(group("web"), 0)]), "a multiple of 10, and 10 at least"),
        (elsewhere, "no domain 7; there are: 0, 1"),
        (devices(0xf), "Linux 6.19"),
    ] {
        let error = Adjustments::make(&resctrl, &wanted, journals.path()).unwrap_err().to_string();
        assert!(error.contains(problem), "{problem}: {error}");
        assert_eq!(read_to_string(&web).unwrap(), before);
    }
    assert!(!recover(&resctrl, journals.path()).unwrap(), "nothing was written down");
}

#[test]
fn bandwidth_is_put_back_where_it_is_as_it_was_left() {
    let (dir, resctrl) = imitation();
    let journals = tempfile::tempdir().unwrap();
    let web = dir.path().join("web/schemata");
    let wanted = Wanted { domains: Some(vec![1]), ..throttled(&[(group("web"), 20)]) };
    let adjustments = Adjustments::make(&resctrl, &wanted, journals.path()).unwrap();
    assert_eq!(read_to_string(&web).unwrap(), "MB:0=100;1=20\nL3:0=ff;1=ff\n");
    assert!(matches!(Adjustments::make(&resctrl, &wanted, journals.path()), Err(AdjustError::Running)));
    adjustments.restore().unwrap();
    assert_eq!(read_to_string(&web).unwrap(), "MB:0=100;1=100\nL3:0=ff;1=ff\n");

    let adjustments = Adjustments::make(&resctrl, &wanted, journals.path()).unwrap();
    write(&web, "MB:1=70\n").unwrap();
    let error = adjustments.restore().unwrap_err().to_string();
    for word in ["'web' in domain 1 is 70", "20 was set", "100 before", "jet cache restore", "resctrl.state"]
    {
        assert!(error.contains(word), "{word}: {error}");
    }
    assert_eq!(read_to_string(&web).unwrap(), "MB:1=70\n");
}

#[test]
fn devices_get_other_ways_and_those_before_again() {
    let (dir, resctrl) = imitation();
    let journals = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join("info/L3").join(name);
    let wanted = |ways| Wanted {
        device_ways: BTreeMap::from([(0, WayMask(ways)), (1, WayMask(ways))]),
        ..Wanted::default()
    };
    write(file("io_alloc"), "not supported\n").unwrap();
    let refused = Adjustments::make(&resctrl, &wanted(0xf), journals.path());
    assert!(matches!(refused, Err(AdjustError::IoAllocUnsupported)));
    write(file("io_alloc"), "disabled\n").unwrap();
    write(file("io_alloc_cbm"), "").unwrap();
    for ways in [0, 0x10_0000] {
        let refused = Adjustments::make(&resctrl, &wanted(ways), journals.path());
        assert!(matches!(refused, Err(AdjustError::Ways { domain: 0, .. })));
    }
    // The devices' ways were set by somebody before. The other case, `disabled`, needs a kernel that answers
    // to it.
    write(file("io_alloc"), "enabled\n").unwrap();
    write(file("io_alloc_cbm"), "0=ff;1=ff\n").unwrap();
    let adjustments = Adjustments::make(&resctrl, &wanted(0xf), journals.path()).unwrap();
    assert_eq!(read_to_string(file("io_alloc_cbm")).unwrap(), "0=f;1=f\n");
    drop(adjustments);
    assert_eq!(read_to_string(file("io_alloc_cbm")).unwrap(), "0=ff;1=ff\n");
    assert_eq!(read_to_string(file("io_alloc")).unwrap(), "enabled\n");

    let adjustments = Adjustments::make(&resctrl, &wanted(0xf), journals.path()).unwrap();
    assert!(adjustments.is_in_effect().unwrap());
    write(file("io_alloc_cbm"), "0=f;1=70\n").unwrap();
    assert!(!adjustments.is_in_effect().unwrap());
    let error = adjustments.restore().unwrap_err().to_string();
    assert!(error.contains("domain 1 is 70, where f was set and ff before"), "{error}");
    assert_eq!(read_to_string(file("io_alloc_cbm")).unwrap(), "0=f;1=70\n");
}

/// Gives the adjustments up, and returns descriptions of what stays changed.
#[track_caller]
fn given_up(resctrl: &Resctrl, folder: &Path) -> Vec<String> {
    match forget(resctrl, folder).unwrap() {
        ForgetOutcome::Stays(stays) => stays,
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_bandwidth_that_is_forgotten_that_is_put_back_which_nobody_changed_meanwhile() {
    let (dir, resctrl) = imitation();
    let journals = tempfile::tempdir().unwrap();
    resctrl.make(&group("batch")).unwrap();
    let line = |name: &str| {
        let text = read_to_string(dir.path().join(name).join("schemata")).unwrap();
        text.lines().find(|line| line.starts_with("MB:")).unwrap().to_owned()
    };
    let wanted = throttled(&[(group("batch"), 10), (group("web"), 20)]);
    Adjustments::make(&resctrl, &wanted, journals.path()).unwrap().0.abandon();
    assert_eq!((line("batch").as_str(), line("web").as_str()), ("MB:0=10;1=10", "MB:0=20;1=20"));
    // Somebody has changed one of the two domains of one group.
    write(dir.path().join("web/schemata"), "MB:0=70;1=20\nL3:0=ff;1=ff\n").unwrap();
    let error = recover(&resctrl, journals.path()).unwrap_err();
    assert!(error.may_stay_for_ever(), "{error}");
    assert_eq!((line("batch").as_str(), line("web").as_str()), ("MB:0=10;1=10", "MB:0=70;1=20"));
    let stays = given_up(&resctrl, journals.path());
    assert_eq!(stays, ["the memory bandwidth of 'web' in domain 0 is 70, where 20 was set and 100 before"]);
    assert_eq!((line("batch").as_str(), line("web").as_str()), ("MB:0=100;1=100", "MB:0=70;1=100"));
    assert_eq!(forget(&resctrl, journals.path()).unwrap(), ForgetOutcome::Nothing);
}

#[test]
fn of_ways_of_devices_that_are_forgotten_those_are_put_back_that_nobody_changed_meanwhile() {
    let (dir, resctrl) = imitation();
    let file = |name: &str| dir.path().join("info/L3").join(name);
    let wanted =
        Wanted { device_ways: BTreeMap::from([(0, WayMask(0xf)), (1, WayMask(0xf))]), ..Wanted::default() };
    write(file("io_alloc"), "enabled\n").unwrap();
    write(file("io_alloc_cbm"), "0=ff;1=ff\n").unwrap();
    let journals = tempfile::tempdir().unwrap();
    Adjustments::make(&resctrl, &wanted, journals.path()).unwrap().0.abandon();
    write(file("io_alloc_cbm"), "0=f;1=70\n").unwrap();
    let stays = given_up(&resctrl, journals.path());
    assert_eq!(stays, ["what devices may fill of domain 1 is 70, where f was set and ff before"]);
    assert_eq!(read_to_string(file("io_alloc_cbm")).unwrap(), "0=ff\n", "the other domain is not written");

    // Where devices had no ways of their own before, all of it is put back or nothing, and what stays is
    // reported.
    let left = DeviceWays::left(&[(0, 0xf), (1, 0xf)]);
    write(file("io_alloc_cbm"), "0=f;1=70\n").unwrap();
    let record = Record { mount: resctrl.mount_number(), throttles: Vec::new(), device_ways: Some(left) };
    let stays = journals::Record::put_back_what_fits(&record, &resctrl).unwrap();
    assert_eq!(stays[0], "what devices may fill of domain 1 is 70, where f was set and ff before");
    assert_eq!(
        stays[1..],
        ["what devices may fill of domain 0 is f, where they had none of their own before"]
    );
    assert_eq!(read_to_string(file("io_alloc")).unwrap(), "enabled\n");
}

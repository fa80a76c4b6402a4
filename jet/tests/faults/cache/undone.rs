//! Tests of a reservation of cache that others undo while the daemon runs and after it. They use the kernel's
//! own resctrl, in the guest only.

use super::{Mounted, ROOT, ends, ends_and_leaves, threads_inside};
use crate::children::Role;
use crate::rig::{Rig, cache};
use jet_test_support::waiting::until;
use std::path::Path;
use std::process::Command;

/// Runs `jet cache` with these arguments. Returns whether it succeeded, and everything that it printed.
fn jet_cache(arguments: &[&str]) -> (bool, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_jet")).arg("cache").args(arguments).output().expect("it runs");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said)
}

/// Writes into a file of resctrl, as another tool does.
#[track_caller]
fn write(file: &str, text: &str) {
    std::fs::write(Path::new(ROOT).join(file), text).unwrap_or_else(|error| panic!("{file}: {error}"));
}

fn processor(number: u32, online: bool) {
    let file = format!("/sys/devices/system/cpu/cpu{number}/online");
    std::fs::write(file, if online { "1" } else { "0" }).expect("processors can be taken away");
}

/// Takes the lock of resctrl's convention, and so keeps a daemon from changing anything until the file is
/// dropped.
fn lock() -> std::fs::File {
    let folder = std::fs::File::open(ROOT).expect("resctrl");
    rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
    folder
}

/// Returns a line of a group's schemata, without the spaces and leading zeros that kernels pad with.
fn line(group: &str, resource: &str) -> String {
    let text = std::fs::read_to_string(Path::new(ROOT).join(group).join("schemata")).expect("a schemata");
    let line = text.lines().map(str::trim).find(|line| line.starts_with(resource));
    let entry = |entry: &str| {
        let (domain, value) = entry.split_once('=').expect("DOMAIN=VALUE");
        format!("{domain}={}", value.trim().trim_start_matches('0'))
    };
    let line = line.and_then(|line| line.strip_prefix(resource)).expect("a line of that resource");
    format!("{resource}{}", line.split(';').map(entry).collect::<Vec<_>>().join(";"))
}

/// Returns the faults of the reservation, as the status lists them.
fn faults(rig: &Rig) -> String {
    let status = rig.status();
    cache(&status).reservation.faults.iter().map(|fault| format!("{fault}\n")).collect()
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn ways_that_another_tool_took_meanwhile_are_forgotten_when_somebody_says_so() {
    let _mounted = Mounted::new();
    let mut rig = Rig::start_on_software(&["cache.reserve='require'"]);
    rig.kill_daemon();
    let web = Path::new(ROOT).join("web");
    std::fs::remove_dir(Path::new(ROOT).join("jet")).expect("removed");
    std::fs::create_dir(&web).expect("a group of somebody else's");
    write("web/schemata", "L3:0=1f;1=1f\n");
    write("web/mode", "exclusive\n");
    let found = Mounted::schemata();
    let (well, said) = jet_cache(&["restore"]);
    assert!(
        !well && said.contains("'web' has ways for itself") && said.contains("jet cache restore --forget"),
        "{said}"
    );
    assert_eq!(Mounted::schemata(), found);
    let (well, said) = jet_cache(&["restore", "--forget"]);
    assert!(
        well && said.contains("this stays as it is: the default group has fffe0 of L3 of domain 0"),
        "{said}"
    );
    assert_eq!(Mounted::schemata(), found);
    let (well, said) = jet_cache(&["restore", "--forget", "--json"]);
    assert!(well && said.contains("\"left\":[]"), "{said}");
    // The next daemon gets the ways that are left.
    rig.start_again();
    assert_eq!(
        cache(&rig.status()).reservation.domains[0].ways.as_deref(),
        Some("3e0"),
        "{:#?}",
        rig.status()
    );
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn what_is_planned_on_a_mount_that_is_read_only_is_what_the_daemon_says() {
    let _mounted = Mounted::new();
    assert!(Command::new("umount").arg(ROOT).status().is_ok_and(|status| status.success()));
    let mounted = Command::new("mount").args(["-t", "resctrl", "-o", "ro", "resctrl", ROOT]).status();
    assert!(mounted.is_ok_and(|status| status.success()));
    let (well, said) = jet_cache(&["plan"]);
    assert!(!well && said.contains("is mounted read-only"), "{said}");
    let refusal = Rig::refusal(&["cache.reserve='require'"]);
    // A time comes first.
    let why = said.trim().split("jet: error: ").nth(1).expect("an error");
    assert!(refusal.contains(why), "{refusal}\n{said}");
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn a_cache_whose_processors_come_back_is_reserved_again() {
    let _mounted = Mounted::new();
    let before = Mounted::schemata();
    let mut rig = Rig::start_on_software(&["cache.reserve='require'"]);
    let reserved = Mounted::schemata();
    processor(1, false);
    until("the processors to be missed", || faults(&rig).contains("domain 1 are offline").then_some(()));
    until("that to be said", || rig.daemon().stderr_text().contains("domain 1 are offline").then_some(()));
    processor(1, true);
    until("the cache to be reserved again", || (Mounted::schemata() == reserved).then_some(()));
    until("nothing to be amiss", || faults(&rig).is_empty().then_some(()));
    assert!(cache(&rig.status()).reservation.reserved_again == 1);
    let said = rig.daemon().stderr_text();
    for words in [
        "the processors of domain 1 are offline",
        "the group has every way of domain 1",
        "cache reserved again: group jet, exclusive",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("another tool"), "{said}");
    ends_and_leaves(&mut rig, &before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn a_group_that_was_removed_is_made_again_and_its_threads_are_back() {
    let _mounted = Mounted::new();
    let before = Mounted::schemata();
    let settings = ["cache.reserve='require'", "cache.applications=true", "nic.thread='on'"];
    let mut rig = Rig::start_on_software(&settings);
    let _application = rig.application(Role::Consumer, "store");
    until("the application to have joined", || {
        threads_inside().iter().any(|name| name.starts_with("faults")).then_some(())
    });
    let reserved = Mounted::schemata();
    std::fs::remove_dir(Path::new(ROOT).join("jet")).expect("removed");
    until("the group to be there", || Mounted::group_is_there().then_some(()));
    until("the threads to be back", || {
        let inside = threads_inside();
        let has = |name: &str| inside.iter().any(|found| found.starts_with(name));
        (has("jet-reactor") && has("jet-nic") && has("faults")).then_some(())
    });
    assert!(
        !threads_inside().iter().any(|name| name == "jetd" || name.starts_with("jet-cache")),
        "{:?}",
        threads_inside()
    );
    until("the cache to be reserved again", || (Mounted::schemata() == reserved).then_some(()));
    until("nothing to be amiss", || faults(&rig).is_empty().then_some(()));
    assert!(
        rig.daemon().stderr_text().contains("the group 'jet' was removed by another tool"),
        "{}",
        rig.daemon().stderr_text()
    );
    // A group that has taken the ways meanwhile keeps them.
    std::fs::remove_dir(Path::new(ROOT).join("jet")).expect("removed");
    std::fs::create_dir(Path::new(ROOT).join("web")).expect("a group of somebody else's");
    write("web/schemata", "L3:0=1f;1=1f\n");
    write("web/mode", "exclusive\n");
    until("it to be named", || faults(&rig).contains("web may fill the ways 1f of domain 0").then_some(()));
    assert!(!Mounted::group_is_there());
    std::fs::remove_dir(Path::new(ROOT).join("web")).expect("removed");
    until("the group to be there", || Mounted::group_is_there().then_some(()));
    until("nothing to be amiss", || faults(&rig).is_empty().then_some(()));
    ends_and_leaves(&mut rig, &before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn threads_that_were_moved_out_are_back_and_another_tools_are_named() {
    let _mounted = Mounted::new();
    let mut rig = Rig::start_on_software(&["cache.reserve='require'"]);
    let daemon = rig.daemon().id();
    until("the reactor in the class", || {
        threads_inside().iter().any(|name| name == "jet-reactor").then_some(())
    });
    let thread = |name: &str| -> String {
        let tasks = std::fs::read_dir(format!("/proc/{daemon}/task")).expect("threads").flatten();
        let is_it = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|found| found.trim() == name)
        };
        tasks
            .into_iter()
            .find(is_it)
            .expect("a thread of that name")
            .file_name()
            .into_string()
            .expect("a number")
    };
    let reactor = thread("jet-reactor");
    write("tasks", &format!("{reactor}\n"));
    until("the reactor to be back", || {
        threads_inside().iter().any(|name| name == "jet-reactor").then_some(())
    });
    until("it to be said", || {
        let said = rig.daemon().stderr_text();
        (said.contains("jet-reactor (") && said.contains("threads back in the reserved cache's group: 1"))
            .then_some(())
    });
    std::fs::create_dir(Path::new(ROOT).join("web")).expect("a group of somebody else's");
    write("web/schemata", "L3:0=ff00;1=ff00\n");
    write("web/tasks", &format!("{reactor}\n"));
    until("it to be named", || {
        faults(&rig).contains("was moved to the group 'web' of another tool").then_some(())
    });
    assert!(!threads_inside().iter().any(|name| name == "jet-reactor"));
    // That group is removed, and its threads fall to the default group.
    std::fs::remove_dir(Path::new(ROOT).join("web")).expect("removed");
    until("the reactor to be back", || {
        threads_inside().iter().any(|name| name == "jet-reactor").then_some(())
    });
    until("nothing to be amiss", || faults(&rig).is_empty().then_some(()));
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn who_unmounts_is_named_and_what_is_mounted_again_is_reserved_again() {
    let _mounted = Mounted::new();
    let before = Mounted::schemata();
    let mut rig = Rig::start_on_software(&["cache.reserve='require'"]);
    let reserved = Mounted::schemata();
    // The daemon may be reading there, and keeps the mount busy.
    let unmount = || Command::new("umount").arg(ROOT).status().is_ok_and(|status| status.success());
    until("it to be unmounted", || unmount().then_some(()));
    until("it to be named", || faults(&rig).contains("no longer mounted at /sys/fs/resctrl").then_some(()));
    let mounted = Command::new("mount").args(["-t", "resctrl", "resctrl", ROOT]).status();
    assert!(mounted.is_ok_and(|status| status.success()), "resctrl can be mounted");
    until("the cache to be reserved again", || (Mounted::schemata() == reserved).then_some(()));
    until("the reactor in the class", || {
        Mounted::group_is_there().then(threads_inside)?.iter().any(|name| name == "jet-reactor").then_some(())
    });
    until("nothing to be amiss", || faults(&rig).is_empty().then_some(()));
    ends_and_leaves(&mut rig, &before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn what_another_tool_gave_meanwhile_is_what_the_daemon_leaves() {
    let _mounted = Mounted::new();
    let mut rig = Rig::start_on_software(&["cache.reserve='require'"]);
    assert_eq!(line("jet", "L3:"), "L3:0=1f;1=1f");
    let locked = lock();
    std::fs::remove_dir(Path::new(ROOT).join("jet")).expect("removed");
    std::fs::create_dir(Path::new(ROOT).join("web")).expect("a group of somebody else's");
    write("web/schemata", "L3:0=f8000;1=f8000\n");
    write("schemata", "L3:0=7fff;1=7fff\n");
    drop(locked);
    until("the group to be there", || Mounted::group_is_there().then_some(()));
    // The group is there before its ways are, and what is amiss is told later.
    until("the cache to be reserved again", || {
        (line("jet", "L3:") == "L3:0=1f;1=1f" && line("", "L3:") == "L3:0=7fe0;1=7fe0").then_some(())
    });
    until("nothing to be amiss", || faults(&rig).is_empty().then_some(()));
    ends(&mut rig);
    assert!(!Mounted::group_is_there());
    assert_eq!(
        (line("web", "L3:"), line("", "L3:")),
        ("L3:0=f8000;1=f8000".into(), "L3:0=7fff;1=7fff".into())
    );
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn a_cache_that_comes_back_is_reserved_again_where_another_tool_was_quicker() {
    let _mounted = Mounted::new();
    // Beside an exclusive group that has every way, the kernel lets nobody write anything.
    let mut rig = Rig::start_on_software(&["cache.reserve='require'", "cache.exclusive='never'"]);
    let locked = lock();
    processor(1, false);
    processor(1, true);
    write("schemata", "L3:1=7fff\n");
    drop(locked);
    until("the cache to be reserved again", || {
        (line("jet", "L3:") == "L3:0=1f;1=1f" && line("", "L3:") == "L3:0=fffe0;1=7fe0").then_some(())
    });
    until("nothing to be amiss", || faults(&rig).is_empty().then_some(()));
    let said = rig.daemon().stderr_text();
    assert!(said.contains("the group has every way of domain 1") && !said.contains("another tool"), "{said}");
    ends(&mut rig);
    assert_eq!(line("", "L3:"), "L3:0=fffff;1=7fff");
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn of_limits_that_are_forgotten_those_are_taken_back_that_nobody_changed() {
    let _mounted = Mounted::new();
    for name in ["batch", "web"] {
        std::fs::create_dir(Path::new(ROOT).join(name)).expect("a group of somebody else's");
    }
    let limits = || (line("batch", "MB:"), line("web", "MB:"));
    let are = |batch: &str, web: &str| (format!("MB:{batch}"), format!("MB:{web}"));
    assert_eq!(limits(), are("0=100;1=100", "0=100;1=100"));
    let mut rig = Rig::start_on_software(&["cache.throttle={batch=20, web=30}"]);
    rig.kill_daemon();
    write("web/schemata", "MB:0=70\n");
    let (well, said) = jet_cache(&["restore"]);
    assert!(
        !well && said.contains("'web' in domain 0 is 70") && said.contains("nothing was changed"),
        "{said}"
    );
    assert_eq!(limits(), are("0=20;1=20", "0=70;1=30"));
    let (well, said) = jet_cache(&["restore", "--forget"]);
    let stays = "this stays as it is: the memory bandwidth of 'web' in domain 0 is 70";
    assert!(well && said.contains(stays) && !said.contains("batch"), "{said}");
    assert_eq!(limits(), are("0=100;1=100", "0=70;1=100"));
    let (well, said) = jet_cache(&["restore", "--forget", "--json"]);
    assert!(well && said.contains("\"left\":[]"), "{said}");
}

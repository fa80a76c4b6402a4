//! Tests of the daemon's reservation of cache, on the kernel's own resctrl. They run in the guest only
//! (deploy/vm/check cache-daemon).

use crate::children::Role;
use crate::rig::{Rig, cache, random_for};
use crate::traffic::Traffic;
use jet_control::status::SettingStatus;
use jet_test_support::waiting::until;
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;

mod undone;

const ROOT: &str = "/sys/fs/resctrl";

/// Guard that mounts resctrl for one test, and unmounts it when dropped.
struct Mounted;

impl Mounted {
    fn new() -> Self {
        let guest =
            std::fs::read_to_string("/proc/sys/kernel/hostname").is_ok_and(|name| name.trim() == "jet-guest");
        assert!(guest, "these tests change the cache of the machine: deploy/vm/check cache-daemon");
        let _ = Command::new("umount").arg(ROOT).output();
        let mounted = Command::new("mount").args(["-t", "resctrl", "resctrl", ROOT]).status();
        assert!(mounted.is_ok_and(|status| status.success()), "resctrl can be mounted");
        // The test before may have left journals when its daemon was killed.
        let _ = std::fs::remove_dir_all("/run/jet-cache");
        Self
    }

    fn schemata() -> String {
        std::fs::read_to_string(Path::new(ROOT).join("schemata")).expect("a schemata")
    }

    fn group_is_there() -> bool {
        Path::new(ROOT).join("jet").exists()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(ROOT).output();
    }
}

/// Sends the daemon SIGTERM, and checks that it ends with success.
#[track_caller]
fn ends(rig: &mut Rig) {
    rig.daemon().signal(Signal::TERM);
    assert!(rig.take_daemon().wait().success());
}

/// Ends the daemon like [`ends`], and checks that it leaves the cache as it was before: the same schemata,
/// and no group of its own.
#[track_caller]
fn ends_and_leaves(rig: &mut Rig, before: &str) {
    ends(rig);
    assert_eq!(Mounted::schemata(), before);
    assert!(!Mounted::group_is_there());
}

/// Returns the names of the threads in the daemon's group.
fn threads_inside() -> Vec<String> {
    let tasks = std::fs::read_to_string(Path::new(ROOT).join("jet/tasks")).expect("the group's threads");
    let name = |thread: &str| std::fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
    tasks.lines().map(|thread| name(thread).trim().to_owned()).collect()
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn the_daemon_reserves_uses_and_gives_back_cache() {
    let _mounted = Mounted::new();
    let before = Mounted::schemata();
    let mut rig =
        Rig::start_on_software(&["cache.reserve='require'", "cache.applications=true", "nic.thread='on'"]);
    assert_ne!(Mounted::schemata(), before);
    let status = rig.status();
    assert_eq!(cache(&status).reservation.group.as_deref(), Some("jet"), "{status:#?}");
    assert_eq!(cache(&status).reservation.domains.len(), 2, "{status:#?}");
    // The pool of 12 MiB, and 1 MiB beside it, take five ways of 2816 KiB.
    assert_eq!(cache(&status).reservation.domains[0].bytes, Some(5 * 2816 * 1024), "{status:#?}");
    let mut random = random_for("cache", 91);
    let _application = rig.application(Role::Consumer, "store");
    for address in rig.addresses() {
        Traffic::new(&address, "store", random.fork()).round();
    }
    let inside = threads_inside();
    for name in ["jet-reactor", "jet-nic"] {
        assert!(inside.iter().any(|found| found.starts_with(name)), "{name}: {inside:?}");
    }
    // The control plane's threads are not in the group. An application's are, where that is configured.
    assert!(!inside.iter().any(|found| found == "jetd"), "{inside:?}");
    assert!(inside.iter().any(|found| found.starts_with("faults")), "{inside:?}");
    ends_and_leaves(&mut rig, &before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn after_a_kill_the_next_start_finds_the_cache_as_it_was() {
    let _mounted = Mounted::new();
    let before = Mounted::schemata();
    let mut rig = Rig::start_on_software(&["cache.reserve='require'"]);
    let reserved = Mounted::schemata();
    for _ in 0..5 {
        rig.kill_daemon();
        assert_eq!(Mounted::schemata(), reserved, "nobody was there to give it back");
        rig.start_again();
        assert_eq!(Mounted::schemata(), reserved);
        assert!(
            rig.daemon().stderr_text().contains("left reserved as 'jet' is given back"),
            "{}",
            rig.daemon().stderr_text()
        );
    }
    rig.kill_daemon();
    // The tool gives the cache back as well, without a daemon.
    let restore =
        Command::new(env!("CARGO_BIN_EXE_jet")).args(["cache", "restore"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&restore.stdout).into_owned();
    assert!(restore.status.success() && said.contains("is given back"), "{said}");
    assert_eq!(Mounted::schemata(), before);
    assert!(!Mounted::group_is_there());
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn a_second_daemon_says_so_and_goes_on_without() {
    let _mounted = Mounted::new();
    let _first = Rig::start_on_software(&["cache.reserve='require'"]);
    let reserved = Mounted::schemata();
    let second = Rig::start_on_software(&[]);
    let status = second.status();
    let reason = cache(&status).reservation.reason.as_deref().unwrap_or_default();
    assert!(reason.contains("another process has reserved cache as the group 'jet'"), "{status:#?}");
    assert_eq!(Mounted::schemata(), reserved);
    drop(second);
    assert_eq!(Mounted::schemata(), reserved);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn what_an_operator_reserved_is_used_and_stays() {
    let _mounted = Mounted::new();
    let before = Mounted::schemata();
    let jet = |arguments: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_jet")).arg("cache").args(arguments).output().expect("it runs");
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    };
    let planned = jet(&["plan"]);
    assert!(planned.starts_with("group jet, exclusive:"), "{planned}");
    assert_eq!(Mounted::schemata(), before);
    assert_eq!(jet(&["apply"]), planned);
    let reserved = Mounted::schemata();
    assert_ne!(reserved, before);
    assert!(jet(&["show"]).contains("exclusive"));
    let rig = Rig::start_on_software(&["cache.reserve='require'"]);
    until("the reactor in the class", || {
        threads_inside().iter().any(|name| name == "jet-reactor").then_some(())
    });
    // The tool does not take the cache from a daemon that uses it.
    assert!(jet(&["restore"]).contains("in use by a living process"));
    drop(rig);
    assert_eq!(Mounted::schemata(), reserved);
    assert!(jet(&["restore", "--json"]).contains("undone"));
    assert_eq!(Mounted::schemata(), before);
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn bandwidth_of_others_is_limited_where_configured_and_given_back() {
    let _mounted = Mounted::new();
    let batch = Path::new(ROOT).join("batch");
    std::fs::create_dir(&batch).expect("a group of somebody else's");
    // Spaces are removed, because kernels pad in different ways.
    let of = |file: &Path| std::fs::read_to_string(file).expect("a schemata").replace(' ', "");
    let of_batch = || of(&batch.join("schemata"));
    let of_default = || of(&Path::new(ROOT).join("schemata"));
    std::fs::write(batch.join("schemata"), "L3:0=ff00;1=ff00\n").expect("it does without the pool's ways");
    let before = (of_default(), of_batch());
    let settings = ["cache.reserve='require'", "cache.throttle={batch=20, '/'=50}"];
    let mut rig = Rig::start_on_software(&settings);
    assert!(of_batch().contains("MB:0=20;1=20"), "{}", of_batch());
    assert!(of_default().contains("MB:0=50;1=50"), "{}", of_default());
    let status = rig.status();
    assert_eq!(cache(&status).adjustments.setting, SettingStatus::Set, "{status:#?}");
    assert_eq!(cache(&status).adjustments.stands, Some(true), "{status:#?}");
    assert_eq!(cache(&status).reservation.domains[0].ways.as_deref(), Some("1f"), "{status:#?}");
    // Another tool takes ways from the pool, and the status shows it.
    std::fs::write(Path::new(ROOT).join("jet/schemata"), "L3:0=3\n").expect("within its own");
    let status = rig.wait_status("the status to show it", |status| {
        cache(status).reservation.domains[0].ways.as_deref() == Some("3")
    });
    assert_eq!(cache(&status).reservation.domains[0].reserved, "1f", "{status:#?}");
    assert_eq!(cache(&status).reservation.domains[0].bytes, Some(2 * 2816 * 1024), "{status:#?}");
    rig.kill_daemon();
    let restore =
        Command::new(env!("CARGO_BIN_EXE_jet")).args(["cache", "restore"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&restore.stdout).into_owned();
    assert!(
        said.contains("bandwidth of groups and ways of devices that were left set are put back"),
        "{said}"
    );
    assert_eq!((of_default(), of_batch()), before);
    rig.start_again();
    assert!(of_batch().contains("MB:0=20;1=20"), "{}", of_batch());
    ends(&mut rig);
    assert_eq!((of_default(), of_batch()), before);
    // Without that group no limit is set, and the status says why.
    std::fs::remove_dir(&batch).expect("removed");
    let rig = Rig::start_on_software(&["cache.throttle={batch=20}"]);
    let reason = refusal(&cache(&rig.status()).adjustments.setting);
    assert!(reason.contains("no group 'batch'"), "{reason}");
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn what_a_daemon_knows_it_gives_back_without_its_journals() {
    let _mounted = Mounted::new();
    let before = Mounted::schemata();
    let settings = ["cache.reserve='require'", "cache.throttle={'/'=50}"];
    let mut rig = Rig::start_on_software(&settings);
    assert_ne!(Mounted::schemata(), before);
    std::fs::remove_dir_all("/run/jet-cache").expect("journals");
    ends_and_leaves(&mut rig, &before);

    // A living daemon is recognised even where somebody removed its locks. A daemon that has not quite ended
    // is waited for.
    rig.start_again();
    for lock in ["jet.json.lock", "resctrl.state.lock"] {
        std::fs::remove_file(Path::new("/run/jet-cache").join(lock)).expect("a lock");
    }
    let reserved = Mounted::schemata();
    let restore =
        || Command::new(env!("CARGO_BIN_EXE_jet")).args(["cache", "restore"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&restore().stdout).into_owned();
    assert!(said.contains("in use by a living process"), "{said}");
    assert_eq!(Mounted::schemata(), reserved);
    rig.daemon().signal(Signal::KILL);
    let said = String::from_utf8_lossy(&restore().stdout).into_owned();
    assert!(said.contains("is given back"), "{said}");
    assert_eq!(Mounted::schemata(), before);
    rig.take_daemon().wait();
}

/// Reads a model-specific register of a processor.
fn register(cpu: u32, register: u64) -> u64 {
    use std::os::unix::fs::FileExt;
    let mut bytes = [0; 8];
    let file = std::fs::File::open(format!("/dev/cpu/{cpu}/msr")).expect("the msr driver");
    file.read_exact_at(&mut bytes, register).expect("the register");
    u64::from_ne_bytes(bytes)
}

#[test]
#[ignore = "changes the machine's cache: deploy/vm/check cache-daemon"]
fn ways_of_devices_and_prefetchers_are_set_where_configured_and_put_back() {
    const DDIO: u64 = 0xc8b;
    const PREFETCH: u64 = 0x1a4;
    let _mounted = Mounted::new();
    assert!(Command::new("modprobe").arg("msr").status().is_ok_and(|status| status.success()));
    let registers = || [register(0, DDIO), register(1, DDIO), register(0, PREFETCH), register(1, PREFETCH)];
    let before = registers();
    let settings =
        ["cache.ddio_ways='3c000'", "cache.prefetchers='off'", "reactor.cpu=1", "cache.domains=[1]"];
    let mut rig = Rig::start_on_software(&settings);
    let set = [before[0], 0x3c000, before[2], before[3] | 0xf];
    assert_eq!(registers(), set);
    assert_eq!(cache(&rig.status()).registers.setting, SettingStatus::Set);
    rig.kill_daemon();
    assert_eq!(registers(), set);
    rig.start_again();
    assert!(
        rig.daemon().stderr_text().contains("registers that were left set are put back"),
        "{}",
        rig.daemon().stderr_text()
    );
    assert_eq!(registers(), set);
    ends(&mut rig);
    assert_eq!(registers(), before);
    // Without `reactor.cpu` there is no core whose prefetchers could be set.
    let without = Rig::start_on_software(&["cache.prefetchers='off'"]);
    let status = without.status();
    let reason = refusal(&cache(&status).registers.setting);
    assert!(reason.contains("reactor.cpu"), "{status:#?}");
    assert_eq!(registers(), before);
}

/// Returns the reason why a setting is not set.
#[track_caller]
fn refusal(setting: &SettingStatus) -> String {
    match setting {
        SettingStatus::Failed { reason } => reason.clone(),
        _ => panic!("it is not refused: {setting:?}"),
    }
}

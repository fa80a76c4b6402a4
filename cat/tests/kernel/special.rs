//! Tests of what is special to some guests. Each test's name begins with the guest's profile.

use crate::mounted::{Mounted, host, jet};
use jet_cat::plan::{Exclusiveness, Placement, Refusal};
use jet_cat::resctrl::{GroupName, IoAlloc, Mode, OpenError, Resctrl, WayMask};
use jet_cat::reservation::{ReserveError, holdings};
use jet_cat::topology::{Near, Topology};

/// Reads with `pqos` the masks that the processor itself has for each class: `L3CA COS1 => MASK 0xf`.
///
/// `pqos` reads the registers directly. Through the kernel it would make a group for each class, and fail
/// where a group has an unexpected name.
fn masks_by_pqos() -> Vec<(u32, u64)> {
    let said = host("modprobe msr && mkdir -p /run/lock && pqos --iface=msr -s");
    let line = |line: &str| {
        let (class, mask) = line.trim().strip_prefix("L3CA COS")?.split_once(" => MASK 0x")?;
        Some((class.parse().ok()?, u64::from_str_radix(mask.trim(), 16).ok()?))
    };
    let masks: Vec<_> = said.lines().filter_map(line).collect();
    assert!(!masks.is_empty(), "{said}");
    masks
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-intel"]
fn intel_another_reader_sees_what_was_set() {
    let mounted = Mounted::new();
    let reservation = mounted.reserve(&mounted.request(4)).unwrap();
    assert!(reservation.is_exclusive());
    // Both sockets have the same masks for both classes: the default one, and the one that was made.
    let masks = masks_by_pqos();
    assert_eq!(masks.iter().filter(|found| **found == (0, 0xffff0)).count(), 2, "{masks:x?}");
    assert_eq!(masks.iter().filter(|found| **found == (1, 0x0000f)).count(), 2, "{masks:x?}");
    drop(reservation);
    let masks = masks_by_pqos();
    assert_eq!(masks.iter().filter(|found| **found == (0, 0xfffff)).count(), 2, "{masks:x?}");
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-intel"]
fn intel_the_kernel_keeps_others_out_of_an_exclusive_group() {
    let mounted = Mounted::new();
    let reservation = mounted.reserve(&mounted.request(4)).unwrap();
    let default = GroupName::default_group();
    let refused = mounted.resctrl.group(&default).set_schemata(&"L3:0=fffff\n".parse().unwrap()).unwrap_err();
    assert!(refused.to_string().contains("exclusive"), "{refused}");
    let counts = mounted.resctrl.counts(&jet()).unwrap();
    assert!(counts.len() == 2 && counts.values().all(|counts| counts.occupancy.is_some()), "{counts:?}");
    drop(reservation);
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-intel"]
fn intel_ways_of_devices_are_shared_where_wanted() {
    let mounted = Mounted::new();
    let mut onto = mounted.request(3);
    onto.placement = Placement::Onto;
    let reservation = mounted.reserve(&onto).unwrap();
    assert_eq!(reservation.plan().domains[0].ways, WayMask(0xe0000));
    assert!(!reservation.is_exclusive());
    drop(reservation);
    onto.exclusive = Exclusiveness::Require;
    assert!(matches!(mounted.reserve(&onto), Err(ReserveError::Refused(Refusal::NotExclusive { .. }))));
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-intel"]
fn intel_the_topology_is_the_kernels() {
    let mounted = Mounted::new();
    let topology = Topology::of_host().unwrap();
    let found = holdings(&mounted.resctrl).unwrap().unwrap();
    let ids: Vec<u32> = topology.domains.iter().map(|domain| domain.id).collect();
    assert_eq!(ids, found.way_bytes.keys().copied().collect::<Vec<_>>());
    for domain in &topology.domains {
        assert_eq!(domain.bytes, found.way_bytes[&domain.id] * u64::from(found.cache.ways.count()));
        assert_eq!(domain.cpus.len(), 1);
    }
    // A virtual device whose firmware does not say which node it is near.
    let device = host("ls /sys/bus/pci/devices | head -n 1");
    assert_eq!(topology.of_pci(device.trim()).unwrap(), Near::Unknown);
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-intel"]
fn intel_what_is_not_mounted_says_how_to_mount_it() {
    drop(Mounted::new());
    let error = Resctrl::find().unwrap_err();
    assert!(matches!(error, OpenError::NotMounted), "{error:?}");
    assert!(error.to_string().contains("mount -t resctrl"), "{error}");
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-cdp"]
fn cdp_code_and_data_are_reserved_and_put_back() {
    let mounted = Mounted::with("cdp");
    assert!(mounted.resctrl.mount().cdp);
    let before = mounted.picture();
    let reservation = mounted.reserve(&mounted.request(3)).unwrap();
    let schemata = mounted.resctrl.group(&jet()).schemata().unwrap();
    assert_eq!(schemata.l3().count(), 2);
    assert!(schemata.l3().all(|(_, ways)| ways.values().all(|ways| *ways == WayMask(7))), "{schemata}");
    assert!(reservation.is_exclusive());
    drop(reservation);
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-cdp"]
fn cdp_mounted_otherwise_meanwhile_everything_is_undone_already() {
    let mounted = Mounted::with("cdp");
    crate::crashes::left_by_a_crash(&mounted);
    mounted.again("rw");
    let before = mounted.picture();
    let left = jet_cat::reservation::recover(&mounted.resctrl, mounted.folder()).unwrap();
    assert!(matches!(left[0].restored, Ok(jet_cat::reservation::Restored::Already)), "{left:?}");
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-small"]
fn small_without_a_class_left_the_others_are_named() {
    let mounted = Mounted::new();
    let names = ["a", "b", "c"].map(|name| GroupName::new(name).unwrap());
    for name in &names {
        mounted.make(name);
    }
    let before = mounted.picture();
    let error = mounted.reserve(&mounted.request(2)).unwrap_err();
    assert!(matches!(&error, ReserveError::Refused(Refusal::NoClass { .. })), "{error:?}");
    assert!(error.to_string().contains("others by: a, b, c"), "{error}");
    // The kernel's own explanation. While monitoring ids are not yet free, it reports that first.
    let refused = loop {
        match mounted.resctrl.make(&jet()).unwrap_err() {
            error if error.is_draining() => host("sleep 0.05"),
            error => break error,
        };
    };
    assert!(refused.to_string().contains("Out of CLOSIDs"), "{refused}");
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-small"]
fn small_without_an_id_of_monitoring_left_the_kernel_says_so_and_nothing_changes() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    // Groups for monitoring only take all ids; the kernel says how many there are.
    let ids = mounted.resctrl.info().unwrap().monitor.unwrap().ids;
    for id in 1..ids {
        let path = mounted.resctrl.path(format!("mon_groups/m{id}"));
        while let Err(error) = std::fs::create_dir(&path) {
            // The ids of the previous test are not yet free.
            assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "{error}");
            host("sleep 0.05");
        }
    }
    let error = mounted.reserve(&mounted.request(2)).unwrap_err();
    assert!(error.to_string().contains("Out of RMIDs"), "{error}");
    assert_eq!(mounted.picture(), before);
    assert!(!mounted.has_journal());
    for id in 1..ids {
        std::fs::remove_dir(mounted.resctrl.path(format!("mon_groups/m{id}"))).unwrap();
    }
    // The reservation waits until ids become free.
    drop(mounted.reserve(&mounted.request(2)).unwrap());
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-l2"]
fn l2_where_it_is_shared_out_as_well_nothing_is_exclusive() {
    let mounted = Mounted::new();
    let before = mounted.picture();
    let reservation = mounted.reserve(&mounted.request(3)).unwrap();
    assert!(!reservation.is_exclusive());
    drop(reservation);
    assert_eq!(mounted.picture(), before);
    let mut required = mounted.request(3);
    required.exclusive = Exclusiveness::Require;
    assert!(matches!(mounted.reserve(&required), Err(ReserveError::Refused(Refusal::NotExclusive { .. }))));
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-amd"]
fn amd_masks_may_have_gaps_and_be_empty() {
    let mounted = Mounted::new();
    let found = holdings(&mounted.resctrl).unwrap().unwrap();
    assert_eq!(found.cache.min_ways, 0);
    // An exclusive group lies in the middle of the default group's ways.
    let hub = GroupName::new("hub").unwrap();
    mounted.make(&hub);
    let default = GroupName::default_group();
    let (whole, domains) = (found.cache.ways, found.way_bytes.keys().copied().collect::<Vec<_>>());
    let set = |group: &GroupName, mask: WayMask| {
        let entries: Vec<String> = domains.iter().map(|domain| format!("{domain}={mask}")).collect();
        let schemata = format!("L3:{}\n", entries.join(";")).parse().unwrap();
        mounted.resctrl.group(group).set_schemata(&schemata).unwrap();
    };
    let middle = WayMask::run(2, whole.count() - 4);
    set(&default, whole.without(middle));
    set(&hub, middle);
    mounted.resctrl.group(&hub).set_mode(Mode::Exclusive).unwrap();
    let before = mounted.picture();
    let mut two = mounted.request(2);
    two.others_ways_min = 1;
    let mut three = two.clone();
    three.bytes = 3 * mounted.way_bytes();
    let reservation = mounted.reserve(&three).unwrap();
    let ways = reservation.plan().domains[0].ways;
    assert!(ways.count() == 3 && !ways.is_contiguous() && !ways.overlaps(middle), "{ways}");
    assert!(reservation.is_exclusive());
    drop(reservation);
    assert_eq!(mounted.picture(), before);

    // In one domain only: the group has no ways in the other, and so can be exclusive.
    two.domains = Some(vec![domains[0]]);
    two.exclusive = Exclusiveness::Require;
    let reservation = mounted.reserve(&two).unwrap();
    assert!(reservation.is_exclusive());
    let own = mounted.resctrl.group(&jet()).schemata().unwrap();
    let (_, own) = own.l3().next().unwrap();
    assert_eq!((own[&domains[0]].count(), own[&domains[1]]), (2, WayMask::EMPTY));
    drop(reservation);
    assert_eq!(mounted.picture(), before);
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-amd"]
fn amd_a_cache_of_which_the_default_group_has_nothing_is_reserved_as_any_other() {
    let mounted = Mounted::new();
    let whole = holdings(&mounted.resctrl).unwrap().unwrap();
    let default = GroupName::default_group();
    mounted.resctrl.group(&default).set_schemata(&"L3:1=0\n".parse().unwrap()).unwrap();
    let found = holdings(&mounted.resctrl).unwrap().unwrap();
    assert_eq!(found.way_bytes, whole.way_bytes);
    let before = mounted.picture();
    // Fewer bytes than a way has, and several ways.
    for (bytes, ways) in [(8, 1), (3 * mounted.way_bytes(), 3)] {
        let reservation = mounted.reserve(&jet_cat::plan::Request::new(jet(), bytes)).unwrap();
        for planned in &reservation.plan().domains {
            assert_eq!((planned.ways.count(), planned.bytes), (ways, u64::from(ways) * mounted.way_bytes()));
        }
        let own = mounted.resctrl.sizes(&jet(), &jet_cat::resctrl::Resource::L3).unwrap();
        assert_eq!(own.into_values().collect::<Vec<_>>(), [u64::from(ways) * mounted.way_bytes(); 2]);
        drop(reservation);
        assert_eq!(mounted.picture(), before);
    }
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-monitor"]
fn monitor_a_cache_that_is_only_counted_cannot_be_reserved() {
    let mounted = Mounted::new();
    assert!(holdings(&mounted.resctrl).unwrap().is_none());
    let request = jet_cat::plan::Request::new(jet(), 1);
    assert!(matches!(mounted.reserve(&request), Err(ReserveError::NoCache)));
    assert!(!mounted.has_journal());
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-none"]
fn none_a_processor_without_it_is_told_from_one_that_is_not_mounted() {
    let error = Resctrl::find().unwrap_err();
    assert!(matches!(error, OpenError::Unsupported), "{error:?}");
}

#[test]
#[ignore = "needs a guest: deploy/vm/check cache-io"]
fn io_devices_get_ways_of_their_own_and_lose_them() {
    let mounted = Mounted::new();
    assert_eq!(mounted.resctrl.io_alloc().unwrap(), IoAlloc::Disabled);
    assert!(mounted.resctrl.io_ways().is_err(), "there are none while it is disabled");
    mounted.resctrl.set_io_alloc(true).unwrap();
    assert_eq!(mounted.resctrl.io_alloc().unwrap(), IoAlloc::Enabled);
    let mut ways = mounted.resctrl.io_ways().unwrap();
    for ways in ways.values_mut() {
        *ways = WayMask(0x3);
    }
    mounted.resctrl.set_io_ways(&ways).unwrap();
    assert_eq!(mounted.resctrl.io_ways().unwrap(), ways);
    mounted.resctrl.set_io_alloc(false).unwrap();
    assert_eq!(mounted.resctrl.io_alloc().unwrap(), IoAlloc::Disabled);
}

pub mod locked {
    //! Tests of pseudo-locked memory, on the only profile whose processor the kernel supports it for.

    use crate::mounted::{Mounted, jet};
    use jet_cat::plan::{Refusal, Request};
    use jet_cat::resctrl::{GroupName, Mode, Resctrl, WayMask};
    use jet_cat::reservation::{LockError, LockedRegion, ReserveError, recover};
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::process::Command;

    /// Makes a request for ways of the second socket's cache only.
    fn request(mounted: &Mounted, ways: u64) -> Request {
        Request { domains: Some(vec![1]), ..mounted.request(ways) }
    }

    #[test]
    #[ignore = "needs a guest: deploy/vm/check cache-intel"]
    fn intel_memory_lies_in_ways_that_nobody_else_gets() {
        let mounted = Mounted::new();
        let before = mounted.picture();
        let region = LockedRegion::make(&mounted.resctrl, &request(&mounted, 1), mounted.folder()).unwrap();
        assert_eq!(region.bytes() as u64, mounted.way_bytes());
        assert_eq!(mounted.resctrl.group(&jet()).mode().unwrap(), Mode::PseudoLocked);
        let default = GroupName::default_group();
        let kept = jet_cat::plan::l3_ways(&mounted.resctrl.group(&default).schemata().unwrap());
        let ways: Vec<_> = kept.values().flat_map(|ways| ways.values().copied()).collect();
        assert_eq!(ways, [WayMask(0xfffff), WayMask(0xffffe)], "only where it was asked for");
        let refused = mounted.resctrl.group(&default).set_schemata(&"L3:1=fffff\n".parse().unwrap());
        assert!(refused.unwrap_err().to_string().contains("pseudo-locked"));
        // SAFETY: the bytes are the region's memory, which nobody else has.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region.base().as_ptr(), region.bytes()) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(7);
        assert!(bytes.iter().all(|byte| *byte == 7));
        // Another thread may use the mapped memory, wherever it runs.
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(bytes[bytes.len() - 1], 7));
        });
        region.restore().unwrap();
        assert_eq!(mounted.picture(), before);
        drop(LockedRegion::make(&mounted.resctrl, &request(&mounted, 1), mounted.folder()).unwrap());
        assert_eq!(mounted.picture(), before);
    }

    #[test]
    #[ignore = "needs a guest: deploy/vm/check cache-intel"]
    fn intel_what_cannot_be_locked_changes_nothing() {
        let mounted = Mounted::new();
        let before = mounted.picture();
        // The kernel locks at most 4 MiB.
        let refused =
            LockedRegion::make(&mounted.resctrl, &request(&mounted, 2), mounted.folder()).unwrap_err();
        assert!(refused.to_string().contains("exceeds maximum size"), "{refused}");
        let everywhere = Request { domains: None, ..request(&mounted, 1) };
        let refused = LockedRegion::make(&mounted.resctrl, &everywhere, mounted.folder()).unwrap_err();
        let LockError::Reserve(ReserveError::Refused(Refusal::NotLocked { .. })) = refused else {
            panic!("{refused}")
        };
        assert_eq!(mounted.picture(), before);
    }

    #[test]
    #[ignore = "needs a guest: deploy/vm/check cache-intel"]
    fn intel_locked_memory_is_given_back_after_a_kill() {
        let mounted = Mounted::new();
        let before = mounted.picture();
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "children::locks_and_dies", "--ignored"]);
        let output = child.env("JET_CAT_FOLDER", mounted.folder()).output().unwrap();
        assert_eq!(output.status.signal(), Some(9), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(mounted.resctrl.group(&jet()).mode().unwrap(), Mode::PseudoLocked);
        let left = recover(&mounted.resctrl, mounted.folder()).unwrap();
        assert!(left.iter().all(|left| left.restored.is_ok()) && left.len() == 1, "{left:?}");
        assert_eq!(mounted.picture(), before);
    }

    /// Body of a child process, called from `children`: locks memory and kills itself.
    pub fn locks_and_dies(folder: &Path) {
        let resctrl = Resctrl::find().unwrap();
        let request = Request { domains: Some(vec![1]), ..Request::new(jet(), 1 << 20) };
        let _region = LockedRegion::make(&resctrl, &request, folder).unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    }
}

pub mod ddio {
    //! Tests of model-specific registers, in a guest whose processor has them.

    use crate::mounted::host;
    use jet_cat::registers::{Msr, RegisterError, SettingError, Settings, Wanted, ddio_ways, recover};
    use jet_cat::resctrl::WayMask;
    use jet_cat::topology::Topology;
    use std::collections::BTreeMap;
    use std::os::unix::process::ExitStatusExt;
    use std::path::Path;
    use std::process::Command;

    const DDIO: u32 = 0xc8b;
    const PREFETCH: u32 = 0x1a4;

    fn guest() -> (Topology, tempfile::TempDir) {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
        assert!(name.is_ok_and(|name| name.trim() == "jet-guest"), "deploy/vm/check cache-ddio");
        host("modprobe msr");
        (Topology::of_host().unwrap(), tempfile::tempdir().unwrap())
    }

    /// Requests other ways for devices in the first cache, and no prefetchers on its processors.
    fn wanted(topology: &Topology) -> Wanted {
        let first = &topology.domains[0];
        let ddio = BTreeMap::from([(first.id, WayMask(0xf0000))]);
        Wanted { ddio, prefetchers_off: first.cpus.clone() }
    }

    fn registers() -> [u64; 4] {
        let read = |cpu, register| Msr::of_cpu(cpu, false).unwrap().read(register).unwrap();
        [read(0, DDIO), read(1, DDIO), read(0, PREFETCH), read(1, PREFETCH)]
    }

    #[test]
    #[ignore = "needs a guest: deploy/vm/check cache-ddio"]
    fn registers_are_set_where_asked_for_and_put_back() {
        let (topology, folder) = guest();
        let before = registers();
        assert_eq!(
            ddio_ways(&topology).unwrap().values().map(|ways| ways.0).collect::<Vec<_>>(),
            before[..2]
        );
        let settings = Settings::make(&topology, &wanted(&topology), folder.path()).unwrap();
        assert_eq!(registers(), [0xf0000, before[1], before[2] | 0xf, before[3]]);
        let again = Settings::make(&topology, &wanted(&topology), folder.path());
        assert!(matches!(again, Err(SettingError::Running)), "{again:?}");
        assert!(!recover(folder.path()).unwrap(), "its process lives");
        settings.restore().unwrap();
        assert_eq!(registers(), before);
        drop(Settings::make(&topology, &wanted(&topology), folder.path()).unwrap());
        assert_eq!(registers(), before);
    }

    #[test]
    #[ignore = "needs a guest: deploy/vm/check cache-ddio"]
    fn registers_are_put_back_after_a_kill_unless_somebody_set_them_meanwhile() {
        let (_, folder) = guest();
        let before = registers();
        let kill = || {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "children::sets_and_dies", "--ignored"]);
            let output = child.env("JET_CAT_FOLDER", folder.path()).output().unwrap();
            assert_eq!(output.status.signal(), Some(9), "{}", String::from_utf8_lossy(&output.stderr));
        };
        kill();
        assert_ne!(registers(), before);
        assert!(recover(folder.path()).unwrap());
        assert_eq!(registers(), before);
        assert!(!recover(folder.path()).unwrap());

        kill();
        Msr::of_cpu(0, true).unwrap().write(DDIO, 0x30000).unwrap();
        let found = registers();
        let error = recover(folder.path()).unwrap_err().to_string();
        assert!(
            error.contains("register 0xc8b of processor 0 is 0x30000, where 0xf0000 was set")
                && error.contains("nothing was changed"),
            "{error}"
        );
        assert_eq!(registers(), found);
        Msr::of_cpu(0, true).unwrap().write(DDIO, 0xf0000).unwrap();
        // A process that cannot see the registers does not take them as put back.
        host("mount -t tmpfs none /dev/cpu");
        let unseen = recover(folder.path());
        host("umount /dev/cpu");
        assert!(matches!(unseen, Err(SettingError::Register(RegisterError::NoDriver { .. }))), "{unseen:?}");
        assert!(recover(folder.path()).unwrap());
        assert_eq!(registers(), before);
    }

    /// Body of a child process, called from `children`: sets registers and kills itself.
    pub fn sets_and_dies(folder: &Path) {
        let topology = Topology::of_host().unwrap();
        let _settings = Settings::make(&topology, &wanted(&topology), folder).unwrap();
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    #[ignore = "needs a guest: deploy/vm/check cache-ddio"]
    fn what_cannot_be_set_sets_nothing() {
        let (topology, folder) = guest();
        let before = registers();
        let refused = |ddio: &[(u32, u64)]| {
            let ddio = ddio.iter().map(|(domain, ways)| (*domain, WayMask(*ways))).collect();
            let wanted = Wanted { ddio, ..Wanted::default() };
            Settings::make(&topology, &wanted, folder.path()).unwrap_err().to_string()
        };
        assert!(refused(&[(0, 1)]).contains("two at least"));
        assert!(refused(&[(0, 0b101)]).contains("side by side"));
        assert!(refused(&[(0, 3 << 19)]).contains("within the cache's 20"));
        assert!(refused(&[(0, 3), (7, 3)]).contains("no cache with the id 7"));
        assert_eq!(registers(), before);
        assert!(matches!(Msr::of_cpu(99, false), Err(RegisterError::NoDriver { .. })));
        // A value that the register does not accept.
        let refused = Msr::of_cpu(0, true).unwrap().write(DDIO, u64::MAX);
        assert!(matches!(refused, Err(RegisterError::NoRegister { .. })), "{refused:?}");
        assert_eq!(registers(), before);
    }
}

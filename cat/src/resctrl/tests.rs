use super::*;
use std::fs::{create_dir_all, write};

/// Makes a temporary folder in memory where possible, so that writing there takes no disk time.
pub(crate) fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Makes a folder laid out like resctrl of Linux 6.1 on two sockets, with one group.
pub(crate) fn imitation() -> (tempfile::TempDir, Resctrl) {
    let dir = in_memory();
    let files = [
        ("info/last_cmd_status", "ok\n"),
        ("info/L3/cbm_mask", "fffff\n"),
        ("info/L3/min_cbm_bits", "1\n"),
        ("info/L3/shareable_bits", "c0000\n"),
        ("info/L3/num_closids", "16\n"),
        ("info/L3/bit_usage", "0=XXSSSSSSSSSSSSSSSSSS;1=XXSSSSSSSSSSSSSSSSSS\n"),
        ("info/MB/num_closids", "8\n"),
        ("info/MB/min_bandwidth", "10\n"),
        ("info/MB/bandwidth_gran", "10\n"),
        ("info/MB/delay_linear", "1\n"),
        ("info/L3_MON/num_rmids", "64\n"),
        ("info/L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n"),
        ("info/NEW_MON/whatever", "1\n"),
        ("schemata", "    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n"),
        ("mode", "shareable\n"),
        ("tasks", "1\n2\n"),
        ("cpus_list", "0-1\n"),
        ("size", "    MB:0=100;1=100\n    L3:0=57671680;1=57671680\n"),
        ("mon_data/mon_L3_00/llc_occupancy", "16760832\n"),
        ("mon_data/mon_L3_00/mbm_total_bytes", "Unavailable\n"),
        ("mon_data/mon_L3_01/llc_occupancy", "0\n"),
        ("mon_data/mon_PERF_PKG_00/core_energy", "1.5\n"),
        ("mon_groups/.keep", ""),
        ("web/schemata", "MB:0=100;1=100\nL3:0=ff;1=ff\n"),
        ("web/mode", "exclusive\n"),
        ("web/tasks", ""),
        ("web/cpus_list", "\n"),
    ];
    for (name, text) in files {
        let path = dir.path().join(name);
        create_dir_all(path.parent().unwrap()).unwrap();
        write(path, text).unwrap();
    }
    let resctrl = Resctrl::imitation(dir.path(), false);
    (dir, resctrl)
}

/// Returns what a file contains after `text` is written to it. A schemata keeps what the text does not name.
pub(super) fn written(path: &Path, text: &str) -> String {
    let found = std::fs::read_to_string(path).unwrap_or_default();
    let (Ok(mut all), Ok(new)) = (found.parse::<Schemata>(), text.parse::<Schemata>()) else {
        return text.to_owned();
    };
    if path.file_name().is_none_or(|name| name != "schemata") {
        return text.to_owned();
    }
    for (resource, line) in new.lines {
        let known = all.lines.iter_mut().find(|(other, _)| *other == resource).map(|(_, line)| line);
        match (known, line) {
            (Some(Line::Ways(all)), Line::Ways(new)) => all.extend(new),
            (Some(Line::Bandwidth(all)), Line::Bandwidth(new)) => all.extend(new),
            (Some(known), line) => *known = line,
            (None, line) => all.lines.push((resource, line)),
        }
    }
    all.to_string()
}

/// Writes the files of a group that was just made. It has the whole of each domain that the default group
/// has.
pub(super) fn begin(root: &Path, group: &Path) {
    let mut all: Schemata = std::fs::read_to_string(root.join("schemata")).unwrap().parse().unwrap();
    let mask = std::fs::read_to_string(root.join("info/L3/cbm_mask")).unwrap().parse().unwrap();
    for (_, line) in &mut all.lines {
        match line {
            Line::Ways(ways) => ways.values_mut().for_each(|ways| *ways = mask),
            Line::Bandwidth(bandwidth) => bandwidth.values_mut().for_each(|bandwidth| *bandwidth = 100),
            _ => {}
        }
    }
    for (name, text) in
        [("schemata", all.to_string().as_str()), ("mode", "shareable\n"), ("tasks", ""), ("cpus_list", "\n")]
    {
        write(group.join(name), text).unwrap();
    }
}

#[test]
fn everything_is_read() {
    let (_dir, resctrl) = imitation();
    let info = resctrl.info().unwrap();
    let l3 = info.l3().unwrap();
    assert_eq!((l3.ways, l3.shareable, l3.min_ways, l3.classes), (WayMask(0xfffff), WayMask(0xc0000), 1, 16));
    assert_eq!(l3.sparse, None);
    assert_eq!(l3.usage[&1][19], WayUsage::HardwareAndShared);
    assert_eq!(l3.usage[&1][0], WayUsage::Shared);
    assert_eq!(info.groups_max(), 8);
    assert_eq!(info.monitor.as_ref().unwrap().features.len(), 3);

    let web = GroupName::new("web").unwrap();
    assert_eq!(resctrl.groups().unwrap(), std::slice::from_ref(&web));
    let group = resctrl.group(&web);
    assert_eq!(group.mode().unwrap(), Mode::Exclusive);
    assert!(group.threads().unwrap().is_empty() && group.cpus().unwrap().is_empty());
    assert_eq!(group.schemata().unwrap().ways(&Resource::L3).unwrap()[&0], WayMask(0xff));

    let all = GroupName::default_group();
    assert_eq!(resctrl.group(&all).threads().unwrap(), [1, 2]);
    assert_eq!(resctrl.sizes(&all, &Resource::L3).unwrap()[&1], 57_671_680);
    let counts = resctrl.counts(&all).unwrap();
    assert_eq!(counts.len(), 2);
    assert_eq!(counts[&0].occupancy, Some(Count::Bytes(16_760_832)));
    assert_eq!((counts[&0].total, counts[&0].local), (Some(Count::Unavailable), None));
    assert!(resctrl.counts(&web).unwrap().is_empty());
    assert_eq!(resctrl.io_alloc().unwrap(), IoAlloc::Absent);
}

#[test]
fn the_ways_of_devices_are_read_and_written_as_later_kernels_do() {
    let (dir, resctrl) = imitation();
    for (text, state) in [
        ("disabled", IoAlloc::Disabled),
        ("enabled", IoAlloc::Enabled),
        ("not supported", IoAlloc::NotSupported),
    ] {
        write(dir.path().join("info/L3/io_alloc"), format!("{text}\n")).unwrap();
        assert_eq!(resctrl.io_alloc().unwrap(), state);
    }
    write(dir.path().join("info/L3/io_alloc_cbm"), "0=ffff;8=00f0\n").unwrap();
    let mut ways = resctrl.io_ways().unwrap();
    assert_eq!(ways[&8], WayMask(0xf0));
    ways.insert(8, WayMask(0x0f));
    resctrl.set_io_ways(&ways).unwrap();
    assert_eq!(std::fs::read_to_string(dir.path().join("info/L3/io_alloc_cbm")).unwrap(), "0=ffff;8=f\n");
    resctrl.set_io_alloc(true).unwrap();
    assert_eq!(std::fs::read_to_string(dir.path().join("info/L3/io_alloc")).unwrap(), "1\n");
}

#[test]
fn what_cannot_be_read_is_named_with_its_text() {
    let (dir, resctrl) = imitation();
    write(dir.path().join("web/mode"), "open\n").unwrap();
    let web = GroupName::new("web").unwrap();
    let error = resctrl.group(&web).mode().unwrap_err();
    assert!(error.to_string().contains("web/mode holds 'open'"), "{error}");
    let gone = GroupName::new("gone").unwrap();
    assert!(resctrl.group(&gone).schemata().unwrap_err().is_missing());
    assert!(!resctrl.group(&gone).exists());
    assert!(resctrl.remove(&GroupName::default_group()).is_err());
}

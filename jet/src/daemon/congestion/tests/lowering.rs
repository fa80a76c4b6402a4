//! Tests without failures: values that are set, values that are restored, and rows of the status.

use super::host::{Host, INTERFACE, PCI, THREE, row, rows, value};
use crate::daemon::congestion::{ActuatorKind, CongestionConfig, Setting};
use jet_control::status::{ActuatorState, ActuatorStatus};
use std::fs;

#[test]
fn all_are_lowered_and_restored_to_what_was_there() {
    let host = Host::new();
    let (mut keeper, recovery) = host.keeper(&host.config(&THREE));
    assert_eq!((recovery.found, recovery.notes.len()), (0, 0));
    let mut notes = Vec::new();
    for round in 1..=2 {
        host.assert_untouched();
        assert!(!host.journal().exists());
        keeper.lower(&mut notes);
        host.assert_lowered();
        let journal: serde_json::Value = serde_json::from_slice(&fs::read(host.journal()).unwrap()).unwrap();
        assert_eq!(journal["settings"].as_array().unwrap().len(), 5);
        let lowered = rows(&keeper);
        assert_eq!(
            lowered.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(),
            ["soft", "roce_np", "cc_params", "mstcongestion"]
        );
        assert!(
            lowered.iter().all(|row| row.state == ActuatorState::Lowered && row.lowered == round),
            "{lowered:?}"
        );
        keeper.restore(&mut notes);
        assert!(
            rows(&keeper)
                .iter()
                .all(|row| row.state == ActuatorState::Ready && row.restored == round && row.failed == 0)
        );
    }
    host.assert_untouched();
    assert!(!host.journal().exists());
    assert_eq!(notes, Vec::<String>::new());
}

#[test]
fn the_rows_say_what_each_is_and_its_values() {
    let host = Host::new();
    let (mut keeper, _) = host.keeper(&host.config(&THREE));
    let ready = rows(&keeper);
    assert!(row(&ready, "roce_np").detail.ends_with("; enable/3 0, min_time_between_cnps 4"), "{ready:?}");
    assert!(row(&ready, "cc_params").detail.ends_with("; min_time_between_cnps 8"), "{ready:?}");
    assert!(row(&ready, "mstcongestion").detail.ends_with("; action disabled, mode dynamic"), "{ready:?}");
    keeper.lower(&mut Vec::new());
    let lowered = rows(&keeper);
    assert!(row(&lowered, "cc_params").detail.ends_with("; min_time_between_cnps 8 -> 0"), "{lowered:?}");
    let tool = row(&lowered, "mstcongestion").detail;
    assert!(tool.ends_with("; mode dynamic -> aggressive, action disabled -> mark"), "{tool}");
    let ActuatorStatus { name, state, lowered, .. } = &lowered[0];
    assert_eq!((name.as_str(), *state, *lowered), ("soft", ActuatorState::Lowered, 1));
}

#[test]
fn what_stands_as_strong_already_is_not_touched() {
    let host = Host::new();
    fs::write(host.roce_np("min_time_between_cnps"), "1\n").unwrap();
    host.set_tool("mark", "dynamic");
    let config = CongestionConfig { min_time_between_cnps_us: 2, priorities: vec![], ..host.config(&THREE) };
    let (mut keeper, _) = host.keeper(&config);
    keeper.lower(&mut Vec::new());
    assert_eq!(value(&host.roce_np("min_time_between_cnps")), "1");
    assert_eq!(value(&host.cc_params()), "2");
    assert_eq!(host.tool_state(), ("mark".into(), "aggressive".into()));
    keeper.restore(&mut Vec::new());
    assert_eq!(
        (value(&host.cc_params()), host.tool_state()),
        ("8".into(), ("mark".into(), "dynamic".into()))
    );
}

#[test]
fn two_files_of_one_register_are_restored_to_its_first_value() {
    let host = Host::new();
    fs::remove_file(host.cc_params()).unwrap();
    std::os::unix::fs::symlink(host.roce_np("min_time_between_cnps"), host.cc_params()).unwrap();
    for actuators in
        [[ActuatorKind::RoceNp, ActuatorKind::CcParams], [ActuatorKind::CcParams, ActuatorKind::RoceNp]]
    {
        let (mut keeper, _) = host.keeper(&host.config(&actuators));
        keeper.lower(&mut Vec::new());
        assert_eq!(value(&host.cc_params()), "0");
        keeper.restore(&mut Vec::new());
        assert_eq!(value(&host.cc_params()), "4");
    }
}

#[test]
fn the_parameter_may_lie_where_the_vendors_documents_have_it() {
    let host = Host::new();
    fs::create_dir(host.roce_np("params")).unwrap();
    fs::rename(host.roce_np("min_time_between_cnps"), host.roce_np("params/min_time_between_cnps")).unwrap();
    let (mut keeper, _) = host.keeper(&host.config(&[ActuatorKind::RoceNp]));
    keeper.lower(&mut Vec::new());
    assert_eq!(value(&host.roce_np("params/min_time_between_cnps")), "0");
    keeper.restore(&mut Vec::new());
    assert_eq!(value(&host.roce_np("params/min_time_between_cnps")), "4");
}

#[test]
fn without_actuators_only_soft_is_there_and_nothing_is_written() {
    let host = Host::new();
    let (mut keeper, _) = host.keeper(&host.config(&[]));
    keeper.lower(&mut Vec::new());
    assert_eq!(rows(&keeper).len(), 1);
    keeper.restore(&mut Vec::new());
    assert_eq!((row(&rows(&keeper), "soft").lowered, row(&rows(&keeper), "soft").restored), (1, 1));
    assert!(!host.root.join("run/jetd.congestion.lock").exists());
    let (mut keeper, _) = host.keeper(&CongestionConfig { soft: false, ..host.config(&[]) });
    keeper.lower(&mut Vec::new());
    let soft = row(&rows(&keeper), "soft");
    assert_eq!((soft.state, soft.lowered), (ActuatorState::Unsupported, 0));
    assert!(soft.detail.contains("congestion.soft"), "{}", soft.detail);
}

#[test]
fn unsupported_says_why() {
    type Prepare<'a> = &'a dyn Fn(&Host, &mut CongestionConfig);
    let why = |prepare: Prepare, name: &str| {
        let host = Host::new();
        let mut config = host.config(&ActuatorKind::ALL);
        prepare(&host, &mut config);
        let (mut keeper, _) = host.keeper(&config);
        let found = row(&rows(&keeper), name);
        assert_eq!(found.state, ActuatorState::Unsupported, "{found:?}");
        keeper.lower(&mut Vec::new());
        assert_eq!(row(&rows(&keeper), name), found, "and is not tried");
        found.detail
    };
    let remove = |path: &std::path::Path| fs::remove_dir_all(path).unwrap();
    let cases: [(Prepare, &str, &str); 14] = [
        (&|_, _| {}, "pcie_cong", "can only be observed"),
        (&|_, config| config.interface = None, "roce_np", "set congestion.interface"),
        (&|_, config| config.interface = Some("eth9".into()), "roce_np", "there is no interface eth9"),
        (&|host, _| remove(&host.roce_np("")), "roce_np", "only the vendor's driver"),
        (
            &|_, config| config.sysfs = "/nonexistent".into(),
            "roce_np",
            "sysfs is not mounted at /nonexistent",
        ),
        (&|host, _| fs::write(host.roce_np("enable/3"), "").unwrap(), "roce_np", "not a number"),
        (
            &|host, _| remove(&host.root.join("debug")),
            "cc_params",
            "debugfs is not mounted (mount -t debugfs",
        ),
        (&|_, config| config.pci = Some("0000:5e:00.0".into()), "cc_params", "no device 0000:5e:00.0"),
        (&|host, _| remove(host.cc_params().parent().unwrap()), "cc_params", "no cc_params"),
        (&|_, config| config.interface = None, "cc_params", "set congestion.pci or congestion.interface"),
        (
            &|_, config| config.interface = Some("eth9".into()),
            "mstcongestion",
            "no PCI device of interface eth9",
        ),
        (
            &|_, config| config.mstcongestion = "no-such-tool-anywhere".into(),
            "mstcongestion",
            "not found in PATH: install mstflint",
        ),
        (
            &|_, config| config.pci = Some("0000:5e:00.0".into()),
            "mstcongestion",
            "-E- Failed to open device: 0000:5e:00.0",
        ),
        (
            &|host, _| host.set_tool("N/A", "dynamic"),
            "mstcongestion",
            "answered \"Action: N/A; Mode: dynamic\"",
        ),
    ];
    for (prepare, name, expected) in cases {
        let detail = why(prepare, name);
        assert!(detail.contains(expected), "{name}: {detail}");
    }
}

#[test]
fn settings_name_the_device_they_are_of() {
    let host = Host::new();
    let (mut keeper, _) = host.keeper(&host.config(&THREE));
    keeper.lower(&mut Vec::new());
    let journal: serde_json::Value = serde_json::from_slice(&fs::read(host.journal()).unwrap()).unwrap();
    let settings: Vec<Setting> = serde_json::from_value(journal["settings"].clone()).unwrap();
    let devices: Vec<_> = settings.iter().map(|setting| setting.device.as_str()).collect();
    assert_eq!(devices, [INTERFACE, INTERFACE, PCI, PCI, PCI]);
}

//! Tests of failures: each concerns one actuator alone, gives a reason, and leaves nothing lowered.

use super::host::{Host, PCI, THREE, row, rows, value};
use crate::daemon::congestion::{ActuatorKind, Congestion, CongestionConfig, FileKnobs, Setting};
use jet_control::status::ActuatorState;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

fn read_only(path: &Path, is: bool) {
    fs::set_permissions(path, fs::Permissions::from_mode(if is { 0o444 } else { 0o644 })).unwrap();
}

#[test]
fn a_tool_that_hangs_from_the_start_is_killed_in_time_and_told() {
    let host = Host::new();
    host.make_tool("hang");
    let (mut keeper, _) = host.keeper(&CongestionConfig { tool_timeout_ms: 100, ..host.config(&THREE) });
    let probed = row(&rows(&keeper), "mstcongestion");
    assert_eq!(probed.state, ActuatorState::Unsupported);
    assert!(probed.detail.contains("did not end within 100 ms and was killed"), "{}", probed.detail);
    keeper.lower(&mut Vec::new());
    assert_eq!((value(&host.cc_params()), value(&host.roce_np("enable/3"))), ("0".into(), "1".into()));
    keeper.restore(&mut Vec::new());
    host.assert_untouched();
}

#[test]
fn a_tool_that_begins_to_hang_fails_alone() {
    let host = Host::new();
    let mut keeper = host.impatient_keeper();
    host.make_tool("hang");
    let mut notes = Vec::new();
    keeper.lower(&mut notes);
    let failed = row(&rows(&keeper), "mstcongestion");
    assert_eq!((failed.state, failed.failed, failed.lowered), (ActuatorState::Failed, 1, 0));
    assert!(failed.detail.contains("--query did not end within 100 ms and was killed"), "{}", failed.detail);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert_eq!(row(&rows(&keeper), "roce_np").state, ActuatorState::Lowered);
    assert_eq!(row(&rows(&keeper), "cc_params").state, ActuatorState::Lowered);
    keeper.restore(&mut notes);
    host.assert_untouched();
    assert!(!host.journal().exists());
    // The tool is tried again, and works again.
    host.cure_tool("hang");
    keeper.lower(&mut notes);
    host.assert_lowered();
    assert_eq!(row(&rows(&keeper), "mstcongestion").state, ActuatorState::Lowered);
}

#[test]
fn a_tool_that_hangs_when_it_should_restore_is_tried_again() {
    let host = Host::new();
    let mut keeper = host.impatient_keeper();
    keeper.lower(&mut Vec::new());
    host.make_tool("hang");
    let mut notes = Vec::new();
    keeper.restore(&mut notes);
    assert!(keeper.has_pending() && host.journal().exists());
    assert_eq!(value(&host.cc_params()), "8");
    let failed = row(&rows(&keeper), "mstcongestion");
    assert_eq!((failed.state, failed.restored), (ActuatorState::Failed, 0));
    // Danger returns before restoring succeeded: the value from before the first lowering still counts.
    host.cure_tool("hang");
    keeper.lower(&mut notes);
    host.assert_lowered();
    keeper.restore(&mut notes);
    host.assert_untouched();
    assert!(!keeper.has_pending() && !host.journal().exists());
    assert_eq!(notes.len(), 1, "{notes:?}");
}

#[test]
fn a_failing_tool_tells_its_status_and_its_words() {
    let host = Host::new();
    let (mut keeper, _) = host.keeper(&host.config(&THREE));
    host.make_tool("fail");
    keeper.lower(&mut Vec::new());
    let failed = row(&rows(&keeper), "mstcongestion");
    assert_eq!(failed.state, ActuatorState::Failed);
    assert!(
        failed.detail.contains("(exit status: 1): -E- Failed to perform the operation: register"),
        "{}",
        failed.detail
    );
    assert_eq!(row(&rows(&keeper), "cc_params").state, ActuatorState::Lowered);
}

#[test]
fn a_tool_that_takes_no_effect_is_noticed_and_undone() {
    let host = Host::new();
    let (mut keeper, _) = host.keeper(&host.config(&[ActuatorKind::Mstcongestion]));
    host.make_tool("deaf");
    keeper.lower(&mut Vec::new());
    let failed = row(&rows(&keeper), "mstcongestion");
    assert!(failed.detail.contains("action was set to mark and reads disabled"), "{}", failed.detail);
    host.assert_untouched();
    assert!(!keeper.has_pending() && !host.journal().exists());
}

#[test]
fn a_tool_that_disappears_is_told() {
    let host = Host::new();
    let (mut keeper, _) = host.keeper(&host.config(&THREE));
    let aside = host.root.join("run/aside");
    fs::rename(host.tool(), &aside).unwrap();
    keeper.lower(&mut Vec::new());
    let failed = row(&rows(&keeper), "mstcongestion");
    assert_eq!(failed.state, ActuatorState::Failed);
    assert!(failed.detail.contains("mstcongestion not found: install mstflint"), "{}", failed.detail);
    keeper.restore(&mut Vec::new());
    host.assert_untouched();
    // If the tool is missing at restoring, its settings stay in the journal until it is back.
    fs::rename(&aside, host.tool()).unwrap();
    keeper.lower(&mut Vec::new());
    fs::rename(host.tool(), &aside).unwrap();
    keeper.restore(&mut Vec::new());
    assert!(keeper.has_pending());
    let failed = row(&rows(&keeper), "mstcongestion");
    assert!(
        failed.detail.contains("not restored, tried again") && failed.detail.contains("not found"),
        "{failed:?}"
    );
    fs::rename(&aside, host.tool()).unwrap();
    keeper.restore(&mut Vec::new());
    host.assert_untouched();
    assert!(!keeper.has_pending());
}

#[test]
fn a_read_only_file_is_told_and_the_others_are_lowered() {
    let host = Host::new();
    let (mut keeper, _) = host.keeper(&host.config(&[ActuatorKind::RoceNp, ActuatorKind::CcParams]));
    read_only(&host.roce_np("min_time_between_cnps"), true);
    keeper.lower(&mut Vec::new());
    let failed = row(&rows(&keeper), "roce_np");
    assert_eq!(failed.state, ActuatorState::Failed);
    assert!(failed.detail.contains("min_time_between_cnps is read-only"), "{}", failed.detail);
    assert_eq!(value(&host.roce_np("enable/3")), "0");
    assert_eq!(row(&rows(&keeper), "cc_params").state, ActuatorState::Lowered);
    keeper.restore(&mut Vec::new());
    // An actuator that is read-only at the start is never tried.
    drop(keeper);
    let (keeper, _) = host.keeper(&host.config(&[ActuatorKind::RoceNp]));
    assert_eq!(row(&rows(&keeper), "roce_np").state, ActuatorState::Unsupported);
}

#[test]
fn a_file_that_turns_read_only_while_lowered_is_tried_again() {
    let host = Host::new();
    let (mut keeper, _) = host.keeper(&host.config(&[ActuatorKind::RoceNp]));
    keeper.lower(&mut Vec::new());
    read_only(&host.roce_np("enable/3"), true);
    keeper.restore(&mut Vec::new());
    // The actuator's other knob is restored nevertheless.
    assert_eq!(value(&host.roce_np("min_time_between_cnps")), "4");
    assert_eq!(value(&host.roce_np("enable/3")), "1");
    assert!(keeper.has_pending());
    read_only(&host.roce_np("enable/3"), false);
    keeper.restore(&mut Vec::new());
    host.assert_untouched();
    assert!(!keeper.has_pending());
}

#[test]
fn a_file_that_vanishes_fails_lowering_and_needs_no_restoring() {
    let host = Host::new();
    let (mut keeper, _) = host.keeper(&host.config(&[ActuatorKind::RoceNp, ActuatorKind::CcParams]));
    keeper.lower(&mut Vec::new());
    fs::remove_file(host.cc_params()).unwrap();
    let mut notes = Vec::new();
    keeper.restore(&mut notes);
    assert!(!keeper.has_pending() && !host.journal().exists());
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("which was 8, is no longer there"), "{notes:?}");
    keeper.lower(&mut notes);
    let failed = row(&rows(&keeper), "cc_params");
    assert_eq!(failed.state, ActuatorState::Failed);
    assert!(failed.detail.contains("is not there any more"), "{}", failed.detail);
    assert_eq!(row(&rows(&keeper), "roce_np").state, ActuatorState::Lowered);
}

#[test]
fn a_value_that_the_file_does_not_take_is_told() {
    let host = Host::new();
    // A file of the kernel that accepts -1000 to 1000 and refuses all else, like the driver's files.
    let bounded = Path::new("/proc/self/oom_score_adj");
    let before = value(bounded);
    fs::remove_file(host.cc_params()).unwrap();
    std::os::unix::fs::symlink(bounded, host.cc_params()).unwrap();
    let setting = Setting {
        actuator: "cc_params".into(),
        device: PCI.into(),
        knob: "min_time_between_cnps".into(),
        before: before.clone(),
        lowered: "5000".into(),
    };
    let mut actuator = FileKnobs::cc_params(&host.config(&[]));
    let error = actuator.lower(std::slice::from_ref(&setting)).unwrap_err().to_string();
    assert!(error.contains("np_min_time_between_cnps does not take 5000: Invalid argument"), "{error}");
    assert_eq!(value(bounded), before);
    assert_eq!(actuator.restore(&[setting]).unwrap(), Vec::<String>::new());
}

/// Tests a file that accepts every value and keeps another one: it is restored before it looks like a change
/// by another program.
#[test]
fn a_value_that_reads_back_otherwise_is_put_back() {
    let host = Host::new();
    let mut actuator = FileKnobs::cc_params(&host.config(&[]));
    let mut settings = actuator.plan().unwrap();
    // The file is written as 007 and compared as 7.
    settings[0].lowered = "007".into();
    let error = actuator.lower(&settings).unwrap_err().to_string();
    assert!(error.contains("was set to 007 and reads 7"), "{error}");
    assert_eq!(value(&host.cc_params()), "8");
}

#[test]
fn what_somebody_else_changed_meanwhile_is_left_to_them() {
    let host = Host::new();
    let (mut keeper, _) = host.keeper(&host.config(&THREE));
    keeper.lower(&mut Vec::new());
    fs::write(host.cc_params(), "50\n").unwrap();
    host.set_tool("drop", "aggressive");
    let mut notes = Vec::new();
    keeper.restore(&mut notes);
    assert_eq!(value(&host.cc_params()), "50");
    assert_eq!(host.tool_state(), ("drop".into(), "dynamic".into()));
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(
        notes.iter().any(|note| note.contains("is 50, neither 8 as before nor 0 as lowered")),
        "{notes:?}"
    );
    assert!(!keeper.has_pending());
}

#[test]
fn without_a_journal_nothing_is_lowered() {
    let host = Host::new();
    let (mut keeper, _) = host.keeper(&host.config(&THREE));
    // Not even root can create a file where a directory has its name.
    fs::create_dir(host.root.join("run/jetd.congestion.journal.new")).unwrap();
    keeper.lower(&mut Vec::new());
    host.assert_untouched();
    for name in ["roce_np", "cc_params", "mstcongestion"] {
        let failed = row(&rows(&keeper), name);
        assert_eq!(failed.state, ActuatorState::Failed);
        assert!(failed.detail.contains("nothing is lowered that could not be undone"), "{}", failed.detail);
    }
    assert_eq!(row(&rows(&keeper), "soft").state, ActuatorState::Lowered);
}

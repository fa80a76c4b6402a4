//! Tests of a daemon that is killed while something is lowered: the next daemon restores it.

use super::host::{Host, THREE, row, rows, script, value, wait_until};
use crate::daemon::congestion::CongestionConfig;
use jet_control::status::ActuatorState;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const ROOT: &str = "JET_TEST_CONGESTION_ROOT";

/// Runs in the process that the other tests kill, and is no test itself. It lowers everything and never
/// restores.
#[test]
#[ignore = "the other tests start it as a process of its own"]
fn lowers_until_it_is_killed() {
    let root = PathBuf::from(
        std::env::var_os(ROOT).expect("started by the other tests, with the directory of the host"),
    );
    let host = Host::at(&root);
    let control = host.control(&host.config(&THREE));
    control.wish_handle().set(true);
    loop {
        std::thread::park();
    }
}

/// A process that is killed at the end of the test, whether the test passes or fails.
struct Daemon(Child);

impl Daemon {
    /// Kills the process with SIGKILL, and returns when it is gone.
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

fn daemon(host: &Host) -> Daemon {
    let name = "daemon::congestion::tests::crash::lowers_until_it_is_killed";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--test-threads=1"])
        .env(ROOT, &host.root)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    Daemon(child.unwrap())
}

fn killed_while_lowered(host: &Host) {
    let mut daemon = daemon(host);
    wait_until("lowering", || host.tool_state().0 == "mark");
    daemon.kill();
    host.assert_lowered();
    assert!(host.journal().exists());
}

#[test]
fn what_a_killed_daemon_lowered_is_restored_by_the_next() {
    let host = Host::new();
    killed_while_lowered(&host);
    let recovery = host.recover(&host.config(&THREE));
    assert_eq!((recovery.found, recovery.notes, recovery.pending.len()), (5, vec![], 0));
    host.assert_untouched();
    assert!(!host.journal().exists());
    assert_eq!(host.recover(&host.config(&THREE)).found, 0);
    // Now the next daemon's start itself restores, and the daemon then works normally.
    killed_while_lowered(&host);
    let (mut keeper, recovery) = host.keeper(&host.config(&THREE));
    assert_eq!(recovery.found, 5);
    host.assert_untouched();
    assert!(
        rows(&keeper)
            .iter()
            .all(|row| (row.state, row.lowered, row.restored) == (ActuatorState::Ready, 0, 0))
    );
    keeper.lower(&mut Vec::new());
    host.assert_lowered();
    keeper.restore(&mut Vec::new());
    host.assert_untouched();
}

#[test]
fn a_tool_that_the_killed_daemon_left_running_is_ended_before_it_lowers() {
    let host = Host::new();
    // The query of the probe ends at once. Setting the action takes until the test allows it.
    let body = r#"
        cd "$(dirname "$0")"
        case $3 in
            --query) printf 'Action: %s\nMode: %s\n' "$(cat action)" "$(cat mode)";;
            --mode) echo "$4" > mode;;
            --action) : > setting; while [ ! -e go ]; do sleep 0.01; done; echo "$4" > action;;
        esac
    "#;
    script(&host.tool(), body);
    let mut daemon = daemon(&host);
    wait_until("the tool", || host.root.join("run/setting").exists());
    daemon.kill();
    let recovery = host.recover(&host.config(&[]));
    assert_eq!((recovery.found, recovery.pending.len()), (5, 0), "{recovery:?}");
    host.assert_untouched();
    // A tool that still lived would lower the action now, before it released its lock.
    fs::write(host.root.join("run/go"), "").unwrap();
    let (_keeper, _) = host.keeper(&host.config(&THREE));
    host.assert_untouched();
}

#[test]
fn what_is_no_longer_there_is_told_and_the_rest_restored() {
    let host = Host::new();
    killed_while_lowered(&host);
    fs::remove_dir_all(host.roce_np("")).unwrap();
    fs::remove_dir(host.pci_device()).unwrap();
    let recovery = host.recover(&host.config(&THREE));
    assert_eq!((recovery.found, recovery.notes.len(), recovery.pending.len()), (5, 4, 0));
    assert!(recovery.notes.iter().all(|note| note.contains("is no longer there")), "{recovery:?}");
    assert_eq!(value(&host.cc_params()), "8");
    assert!(!host.journal().exists());
}

#[test]
fn what_does_not_fit_changes_nothing_and_says_so() {
    let host = Host::new();
    killed_while_lowered(&host);
    fs::write(host.roce_np("enable/3"), "2\n").unwrap();
    fs::write(host.roce_np("min_time_between_cnps"), "100\n").unwrap();
    fs::write(host.cc_params(), "100\n").unwrap();
    host.set_tool("drop", "aggressive");
    let recovery = host.recover(&host.config(&THREE));
    assert_eq!((recovery.notes.len(), recovery.pending.len()), (4, 0));
    assert!(recovery.notes.iter().all(|note| note.contains("left as it is")), "{recovery:?}");
    assert_eq!((value(&host.roce_np("enable/3")), value(&host.cc_params())), ("2".into(), "100".into()));
    assert_eq!(host.tool_state(), ("drop".into(), "dynamic".into()));
}

#[test]
fn a_journal_that_is_none_changes_nothing_and_says_so() {
    let host = Host::new();
    killed_while_lowered(&host);
    let text = fs::read_to_string(host.journal()).unwrap();
    fs::write(host.journal(), &text[..text.len() / 2]).unwrap();
    let recovery = host.recover(&host.config(&THREE));
    assert_eq!((recovery.found, recovery.pending.len()), (0, 0));
    assert!(recovery.notes[0].contains("nothing is restored from it"), "{recovery:?}");
    host.assert_lowered();
    assert!(host.journal().with_extension("journal.refused").exists() && !host.journal().exists());
}

#[test]
fn a_tool_that_is_gone_keeps_its_settings_noted() {
    let host = Host::new();
    killed_while_lowered(&host);
    let aside = host.root.join("run/aside");
    fs::rename(host.tool(), &aside).unwrap();
    let config = CongestionConfig { actuators: Vec::new(), ..host.config(&THREE) };
    let (mut keeper, recovery) = host.keeper(&config);
    assert_eq!((recovery.found, recovery.pending.len()), (5, 2));
    assert_eq!(value(&host.cc_params()), "8");
    let failed = row(&rows(&keeper), "mstcongestion");
    assert_eq!(failed.state, ActuatorState::Failed);
    assert!(failed.detail.contains("install mstflint"), "{}", failed.detail);
    // The actuator is not lowered, because it is not configured.
    fs::rename(&aside, host.tool()).unwrap();
    keeper.lower(&mut Vec::new());
    assert_eq!(row(&rows(&keeper), "mstcongestion").lowered, 0);
    keeper.restore(&mut Vec::new());
    host.assert_untouched();
    assert!(!host.journal().exists());
    assert_eq!(row(&rows(&keeper), "mstcongestion").state, ActuatorState::Unsupported);
}

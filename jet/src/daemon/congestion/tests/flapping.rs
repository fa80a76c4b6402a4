//! Tests of the thread: wishes that change fast, and the end.

use super::host::{Host, THREE, row, wait_until};
use crate::daemon::congestion::{ActuatorKind, CongestionConfig, CongestionControl};
use jet_control::status::ActuatorState;

fn state(control: &CongestionControl, name: &str) -> ActuatorState {
    row(&control.rows(), name).state
}

#[test]
fn wishes_are_carried_out_and_counted() {
    let host = Host::new();
    let control = host.control(&CongestionConfig { hold_ms: 1, ..host.config(&THREE) });
    let wish = control.wish_handle();
    for round in 1..=3 {
        wish.set(true);
        wait_until("lowering", || row(&control.rows(), "mstcongestion").lowered == round);
        host.assert_lowered();
        wish.set(false);
        wait_until("restoring", || row(&control.rows(), "soft").restored == round);
        host.assert_untouched();
    }
    control.shutdown();
    control.shutdown();
    host.assert_untouched();
}

#[test]
fn flapping_within_the_hold_time_changes_nothing_and_the_end_restores() {
    let host = Host::new();
    let control = host.control(&host.config(&THREE));
    let wish = control.wish_handle();
    wish.set(true);
    wait_until("lowering", || state(&control, "mstcongestion") == ActuatorState::Lowered);
    for _ in 0..1000 {
        wish.set(false);
        wish.set(true);
    }
    wish.set(false);
    let rows = control.rows();
    assert!(rows.iter().all(|row| (row.lowered, row.restored, row.failed) == (1, 0, 0)), "{rows:?}");
    host.assert_lowered();
    // The hold time is a minute, but the end does not wait for it.
    control.shutdown();
    host.assert_untouched();
    let rows = control.rows();
    assert!(
        rows.iter().all(|row| (row.state, row.lowered, row.restored) == (ActuatorState::Ready, 1, 1)),
        "{rows:?}"
    );
    assert!(!host.journal().exists());
    wish.set(true);
    host.assert_untouched();
}

#[test]
fn dropped_it_has_restored() {
    let host = Host::new();
    let control = host.control(&host.config(&THREE));
    control.wish_handle().set(true);
    wait_until("lowering", || state(&control, "mstcongestion") == ActuatorState::Lowered);
    drop(control);
    host.assert_untouched();
    assert!(!host.journal().exists());
}

#[test]
fn restoring_that_fails_is_tried_again_by_itself() {
    let host = Host::new();
    let config = CongestionConfig { hold_ms: 5, ..host.config(&[ActuatorKind::Mstcongestion]) };
    let control = host.control(&config);
    control.wish_handle().set(true);
    wait_until("lowering", || state(&control, "mstcongestion") == ActuatorState::Lowered);
    host.make_tool("fail");
    control.wish_handle().set(false);
    wait_until("failing twice", || row(&control.rows(), "mstcongestion").failed >= 2);
    assert_eq!(host.tool_state(), ("mark".into(), "aggressive".into()));
    host.cure_tool("fail");
    wait_until("restoring", || state(&control, "mstcongestion") == ActuatorState::Ready);
    host.assert_untouched();
    assert!(!host.journal().exists());
}

#[test]
fn what_cannot_be_restored_at_the_end_is_left_to_the_next_start() {
    let host = Host::new();
    let control = host.control(&host.config(&THREE));
    control.wish_handle().set(true);
    wait_until("lowering", || state(&control, "mstcongestion") == ActuatorState::Lowered);
    host.make_tool("fail");
    control.shutdown();
    drop(control);
    assert!(host.journal().exists());
    host.cure_tool("fail");
    // The next daemon restores even if it has no actuators.
    let control = host.control(&host.config(&[]));
    host.assert_untouched();
    assert!(!host.journal().exists());
    assert_eq!(control.rows().len(), 1);
}

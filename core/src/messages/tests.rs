//! Tests of a message's states, step by step.

use super::{AppState, MessageState, Messages};
use jet_wire::message::AckStatus;

#[test]
fn what_was_decided_first_stays() {
    let mut state = MessageState::Settling;
    state.fail(AckStatus::Corrupt);
    state.fail(AckStatus::AppGone);
    assert_eq!(state, MessageState::Ending(AckStatus::Corrupt));
    state.mark_acknowledged();
    state.fail(AckStatus::AppGone);
    assert_eq!(state, MessageState::Failed, "and it is known that the application did not decide it");
    let mut state = MessageState::Settling;
    state.mark_acknowledged();
    assert!(state.is_acknowledged() && !state.has_failed(), "{state:?}");
}

#[test]
fn what_was_finished_stays_so_when_its_application_goes() {
    let mut app_state = AppState::Finished { number: 3, code: 7 };
    app_state.forget();
    assert_eq!(app_state, AppState::Done { code: 7 });
    let mut app_state = AppState::Open { number: 3 };
    app_state.forget();
    assert!(app_state == AppState::Unaware && !app_state.is_open());
}

#[test]
fn records_that_were_ever_used_are_as_many_as_were_in_use_at_once() {
    let mut messages = Messages::new(8);
    assert_eq!(messages.indices(), 0..0);
    let first = messages.add().unwrap();
    messages.add().unwrap();
    messages.mark_acknowledged(first);
    assert_eq!((messages.add(), messages.indices()), (Some(first), 0..2));
}

//! Tests of a message's states, step by step.

use super::{Life, Reader};
use jet_wire::message::AckStatus;

#[test]
fn what_was_decided_first_stays() {
    let mut life = Life::Settling;
    life.fail(AckStatus::Corrupt);
    life.fail(AckStatus::AppGone);
    assert_eq!(life, Life::Ending(AckStatus::Corrupt));
    life.tell();
    life.fail(AckStatus::AppGone);
    assert_eq!(life, Life::Failed, "and it is known that the application did not decide it");
    let mut life = Life::Settling;
    life.tell();
    assert!(life.is_told() && !life.has_failed(), "{life:?}");
}

#[test]
fn what_was_finished_stays_so_when_its_application_goes() {
    let mut reader = Reader::Finished { number: 3, code: 7 };
    reader.forget();
    assert_eq!(reader, Reader::Done { code: 7 });
    let mut reader = Reader::Open { number: 3 };
    reader.forget();
    assert!(reader == Reader::Unaware && !reader.is_open());
}

//! Tests of a sender with a receiver of another version.

use super::protocol::{connected, options, welcome};
use crate::send::protocol::{Protocol, Transmit};
use jet_wire::message::hello::Welcome;
use jet_wire::message::{AckHeader, AckRange, AckStatus, CreditHeader, HeaderBytes, Versions};

/// Returns a protocol with one small message sent, on a connection of that version.
fn sent(version: u8) -> Protocol {
    let mut protocol = connected(options(), 0, 0);
    protocol.handle_disconnected(0);
    let versions = Versions::new(version, version).unwrap();
    protocol.poll_action().expect("it connects again");
    protocol.handle_connected(&Welcome { versions, ..welcome(4, 4) }, 0);
    protocol.submit_small(1, 0).unwrap();
    let transmit = protocol.poll_transmit().expect("there is credit");
    let Transmit::Message { id, .. } = transmit else { panic!("{transmit:?}") };
    protocol.handle_send_completed(id, true, 0);
    protocol
}

/// Returns an acknowledgement of message 1 with a status that only a later version knows.
fn later_end(version: u8, status: u16) -> HeaderBytes {
    let rejected = AckRange { first: 1, count: 1, status: AckStatus::Rejected(28) };
    let mut header = AckHeader::encode(4, &[rejected]);
    header.set_version(version);
    header.0[42..44].copy_from_slice(&status.to_le_bytes());
    header
}

#[test]
fn an_end_of_a_later_version_is_the_nearest_and_the_connection_stands() {
    for (status, nearest) in [
        (0x101, AckStatus::Consumed),
        (0x2ff, AckStatus::Rejected(28)),
        (0x301, AckStatus::Busy),
        (0x401, AckStatus::Denied),
        (0x501, AckStatus::Corrupt),
        (0x602, AckStatus::AppGone),
        (0xffff, AckStatus::AppGone),
    ] {
        let mut protocol = sent(2);
        protocol.handle_header(&later_end(2, status), 0, 0);
        assert_eq!(protocol.poll_end().map(|end| end.status), Some(nearest), "{status:#x}");
        assert_eq!(protocol.poll_action(), None, "the connection is not ended");
        assert_eq!((protocol.stats().statuses_unknown, protocol.stats().malformed), (1, 0));
    }
}

#[test]
fn version_1_has_no_other_ends_and_no_bytes_to_skip() {
    let mut skipped = CreditHeader::encode(9, false);
    skipped.set_version(1);
    skipped.0[127] = 1;
    for header in [later_end(1, 0x301), skipped] {
        let mut protocol = sent(1);
        protocol.handle_header(&header, 0, 0);
        assert_eq!(protocol.stats().malformed, 1);
        assert!(protocol.poll_action().is_some(), "the connection is ended");
    }
}

#[test]
fn bytes_of_a_later_version_are_skipped() {
    let mut protocol = sent(2);
    let mut header = CreditHeader::encode(9, false);
    (header.0[3], header.0[64], header.0[127]) = (0x80, 1, 0xff);
    protocol.handle_header(&header, 0, 0);
    assert_eq!((protocol.stats().malformed, protocol.poll_action()), (0, None));
}

#[test]
fn a_header_of_another_version_than_was_agreed_on_ends_the_connection() {
    for (agreed, found) in [(1, 2), (2, 1), (2, 3)] {
        let mut protocol = sent(agreed);
        let mut header = CreditHeader::encode(9, false);
        header.set_version(found);
        protocol.handle_header(&header, 0, 0);
        assert_eq!(protocol.stats().malformed, 1, "{found} on a connection of {agreed}");
        assert!(protocol.poll_action().is_some());
    }
}

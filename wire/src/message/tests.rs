use super::status::tests::TRAVEL;
use super::*;
use crate::SLAB_BYTES;
use proptest::prelude::*;
use std::ops::Range;
use std::string::ToString;
use std::vec;
use std::vec::Vec;

fn small(payload_bytes: u32, user_header: &[u8]) -> HeaderBytes {
    SmallHeader::encode(&SmallFields {
        sequence: 5,
        tag: 7,
        payload_bytes,
        crc32c: None,
        redelivered: false,
        wants_reply: false,
        user_header,
    })
}

fn request(address: u64, length: u64, user_header: &[u8]) -> HeaderBytes {
    RequestHeader::encode(&RequestFields { address, length, user_header, ..REQUEST })
}

const REQUEST: RequestFields<'static> = RequestFields {
    sequence: 5,
    tag: 7,
    length: 1,
    address: 0,
    key: 9,
    class: 1,
    pieces: 0,
    crc32c: None,
    redelivered: false,
    wants_reply: false,
    user_header: b"",
};

/// A request for a message in pieces.
fn request_of_pieces(pieces: u8, user_header: &[u8]) -> HeaderBytes {
    RequestHeader::encode(&RequestFields { pieces, length: 1 << 20, key: 0, user_header, ..REQUEST })
}

fn ack(ranges: &[AckRange]) -> HeaderBytes {
    AckHeader::encode(1, ranges)
}

const CONSUMED: AckRange = AckRange { first: 1, count: 1, status: AckStatus::Consumed };

/// Returns the header with one byte changed.
fn with(mut header: HeaderBytes, at: usize, byte: u8) -> HeaderBytes {
    header.0[at] = byte;
    header
}

/// Returns the error that all versions give for a sender's header; `None` if it is valid. Panics if the
/// versions differ.
fn from_sender(header: HeaderBytes, payload_bytes: usize) -> Option<HeaderError> {
    parse(&header, payload_bytes, true)
}

fn from_receiver(header: HeaderBytes) -> Option<HeaderError> {
    parse(&header, 0, false)
}

fn spoken() -> impl Iterator<Item = u8> {
    Versions::SUPPORTED.lowest()..=Versions::SUPPORTED.highest()
}

/// Returns one header of every kind, with its payload's length, and whether a sender sends it.
fn one_of_each() -> Vec<(HeaderBytes, usize, bool)> {
    vec![
        (small(100, b"user"), 100, true),
        (request(4096, 1 << 20, b"user"), 0, true),
        (request(4096, 1 << 20, &[1; USER_HEADER_MAX]), USER_HEADER_MAX, true),
        (CreditReturn::encode(3), 0, true),
        (ack(&[CONSUMED]), 0, false),
        (CreditHeader::encode(3, true), 0, false),
        (CongestionHeader::encode(500), 0, false),
        (ByeHeader::encode(ByeReason::Draining), 0, false),
    ]
}

fn parse(header: &HeaderBytes, payload_bytes: usize, sender: bool) -> Option<HeaderError> {
    let said: Vec<_> = spoken().map(|version| parse_in(version, header, payload_bytes, sender)).collect();
    assert!(said.iter().all(|each| *each == said[0]), "versions differ: {said:?} about {header:?}");
    said[0]
}

/// Parses a header as one of that version.
fn parse_in(version: u8, header: &HeaderBytes, payload_bytes: usize, sender: bool) -> Option<HeaderError> {
    let mut header = *header;
    header.set_version(version);
    if sender {
        parse_from_sender(version, &header, payload_bytes).err()
    } else {
        parse_from_receiver(version, &header, payload_bytes).err()
    }
}

/// Returns the bytes of a kind's header that have no meaning: first those that must be zero, then those that
/// are skipped from version 2 on.
fn reserved(kind: u8) -> (Range<usize>, Range<usize>) {
    match kind {
        1 => (6..8, 0..0),
        2 => (50..56, 56..64),
        3 => (16..24, 24..32),
        4 | 5 | 9 => (16..64, 64..128),
        6 => (12..64, 64..128),
        8 => (36..64, 64..128),
        _ => (10..64, 64..128),
    }
}

/// Zeroes the only bytes that the parser accepts whatever they are: those behind the user header, and those
/// that are skipped.
fn without_slack(mut header: HeaderBytes) -> HeaderBytes {
    if header.version() > FIRST_VERSION {
        header.0[3] = 0;
        let skipped = reserved(header.0[1]).1;
        header.0[skipped].fill(0);
    }
    let used = usize::from(u16::from_le_bytes([header.0[4], header.0[5]]));
    let area = match header.0[1] {
        1 => SMALL_USER_HEADER_MAX,
        2 => REQUEST_INLINE_USER_HEADER_MAX,
        _ => return header,
    };
    let used = if used > area { 0 } else { used };
    header.0[HEADER_BYTES - area + used..].fill(0);
    header
}

#[test]
fn a_small_message_reads_as_it_was_written() {
    for (payload_bytes, user) in [(0, 0), (1, 32), (4096, 96)] {
        let user_header: Vec<u8> = (0..user).collect();
        let header = SmallHeader::encode(&SmallFields {
            sequence: u64::MAX,
            tag: 0x0102_0304_0506_0708,
            payload_bytes,
            crc32c: Some(0),
            redelivered: true,
            wants_reply: false,
            user_header: &user_header,
        });
        let Ok(FromSender::Small(read)) = parse_from_sender(WIRE_VERSION, &header, payload_bytes as usize)
        else {
            panic!("not small: {header:?}")
        };
        assert_eq!((read.sequence.get(), read.tag.get()), (u64::MAX, 0x0102_0304_0506_0708));
        assert_eq!((read.crc32c(), read.redelivered()), (Some(0), true));
        assert_eq!(read.user_header(), user_header);
    }
    // The tag's least byte comes first, on every machine.
    assert_eq!(small(0, b"").0[24..32], [7, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_request_reads_as_it_was_written_wherever_its_user_header_lies() {
    for user in [0, 1, 64, 65, 256] {
        let user_header: Vec<u8> = (0..=255).cycle().take(user).collect();
        let header = request(1 << 40, 5 << 30, &user_header);
        let behind = if user > REQUEST_INLINE_USER_HEADER_MAX { user } else { 0 };
        let Ok(FromSender::Request(read)) = parse_from_sender(WIRE_VERSION, &header, behind) else {
            panic!("not a request: {header:?}")
        };
        assert_eq!((read.address.get(), read.length.get()), (1 << 40, 5 << 30));
        assert_eq!((read.key.get(), read.class, read.user_header_bytes()), (9, 1, user));
        assert_eq!((read.crc32c(), read.redelivered()), (None, false));
        assert_eq!(read.user_header_is_payload(), behind > 0);
        assert_eq!(read.inline_user_header(), (behind == 0).then_some(&user_header[..]));
    }
}

#[test]
fn a_request_of_pieces_has_their_list_behind_its_user_header() {
    for (pieces, user) in [(2, 0), (16, 64), (2, 65), (16, 256)] {
        let user_header = vec![3; user];
        let header = request_of_pieces(pieces, &user_header);
        let list = usize::from(pieces) * PIECE_BYTES;
        let behind = if user > REQUEST_INLINE_USER_HEADER_MAX { user + list } else { list };
        let Ok(FromSender::Request(read)) = parse_from_sender(WIRE_VERSION, &header, behind) else {
            panic!("not a request: {header:?}")
        };
        assert_eq!((read.pieces, read.payload_bytes(), read.user_header_bytes()), (pieces, behind, user));
        assert_eq!(FromSender::Request(read).encode().0, header.0);
        for wrong in [behind - 1, behind + 1, behind - list, 0] {
            let stated = HeaderError::Payload { stated: behind as u64, arrived: wrong };
            assert_eq!(parse_in(WIRE_VERSION, &header, wrong, true), Some(stated));
        }
        // The first version knows no pieces.
        assert_eq!(parse_in(FIRST_VERSION, &header, behind, true), Some(HeaderError::Reserved));
        // Where the message lies is said once.
        for at in [12, 40] {
            let found = parse_in(WIRE_VERSION, &with(header, at, 1), behind, true);
            assert_eq!(found, Some(HeaderError::Reserved), "byte {at}");
        }
    }
    for pieces in [1, 17, 255] {
        let behind = usize::from(pieces) * PIECE_BYTES;
        let found = parse_in(WIRE_VERSION, &request_of_pieces(pieces, b""), behind, true);
        assert_eq!(found, Some(HeaderError::Pieces { index: pieces.into() }));
    }
}

#[test]
fn pieces_are_whole_slabs_but_for_the_last_and_together_the_message() {
    let checked = |pieces: &[(u64, u32)], length| {
        let list: Vec<_> = pieces.iter().map(|&(address, bytes)| Piece::new(address, bytes, 9)).collect();
        check_pieces(list.as_bytes(), length).map_err(|error| match error {
            HeaderError::Pieces { index } => index,
            other => panic!("{other}"),
        })
    };
    assert_eq!(checked(&[(0, 4096), (1 << 40, 1)], 4097), Ok(()));
    assert_eq!(checked(&[(3, 8192), (5, 4096), (7, 4000)], 16_288), Ok(()));
    assert_eq!(checked(&[(u64::MAX - 4096, 4096), (0, 4096)], 8192), Ok(()));
    assert_eq!(checked(&[(0, 0x8000_0000), (0, u32::MAX)], 0x1_7fff_ffff), Ok(()));
    assert_eq!(checked(&[(0, 4096); PIECES_MAX], 65_536), Ok(()));
    for (pieces, length, index) in [
        (&[][..], 0, 0),
        (&[(0, 4096)], 4096, 1),
        (&[(0, 4096); PIECES_MAX + 1], 69_632, PIECES_MAX + 1),
        (&[(0, 4096), (0, 0)], 4096, 1),
        (&[(0, 0), (0, 4096)], 4096, 0),
        (&[(0, 4097), (0, 1)], 4098, 0),
        (&[(0, 4096), (0, 1), (0, 4096)], 8193, 1),
        (&[(0, 4096), (u64::MAX - 1, 2)], 4098, 1),
        (&[(0, 4096), (0, 4096)], 8193, 2),
        (&[(0, 4096), (0, 4096)], 4096, 2),
    ] {
        assert_eq!(checked(pieces, length), Err(index), "{pieces:?}");
    }
    for odd in [PIECE_BYTES * 2 - 1, PIECE_BYTES * 2 + 1] {
        assert!(check_pieces(&vec![1; odd], 0x0101_0101_0202_0202).is_err());
    }
    let two = [Piece::new(1, 4096, 2), Piece::new(3, 4, 5)];
    assert_eq!(pieces(two.as_bytes()), two);
}

#[test]
fn acknowledgements_carry_every_status_that_travels() {
    for statuses in [&TRAVEL[..0], &TRAVEL[..1], &TRAVEL[1..7], &TRAVEL[7..]] {
        let ranges: Vec<_> =
            statuses.iter().map(|&status| AckRange { first: 10, count: u16::MAX, status }).collect();
        let header = AckHeader::encode(77, &ranges);
        let Ok(FromReceiver::Ack(read)) = parse_from_receiver(WIRE_VERSION, &header, 0) else {
            panic!("{header:?}")
        };
        assert_eq!((read.credit_limit.get(), read.ranges().collect::<Vec<_>>()), (77, ranges));
    }
}

#[test]
#[should_panic(expected = "cannot say")]
fn a_senders_own_verdict_is_never_sent() {
    ack(&[AckRange { status: AckStatus::PeerLost, ..CONSUMED }]);
}

#[test]
fn control_headers_read_as_they_were_written() {
    let header = CreditReturn::encode(12);
    let Ok(FromSender::CreditReturn(read)) = parse_from_sender(WIRE_VERSION, &header, 0) else {
        panic!("no credit return")
    };
    assert_eq!(read.credit_limit.get(), 12);
    for recall in [false, true] {
        let header = CreditHeader::encode(13, recall);
        let Ok(FromReceiver::Credit(read)) = parse_from_receiver(WIRE_VERSION, &header, 0) else {
            panic!("no credit")
        };
        assert_eq!((read.credit_limit.get(), read.recall(), read.waits_for()), (13, recall, None));
    }
    let reasons = [WaitsFor::Application, WaitsFor::Reads, WaitsFor::Turn, WaitsFor::Room, WaitsFor::Other];
    for reason in reasons.map(Some).into_iter().chain([None]) {
        let header = CreditHeader::encode_heartbeat(13, reason);
        let Ok(FromReceiver::Credit(read)) = parse_from_receiver(WIRE_VERSION, &header, 0) else {
            panic!("no heartbeat")
        };
        assert_eq!((read.credit_limit.get(), read.recall(), read.waits_for()), (13, false, reason));
    }
    let later = with(CreditHeader::encode(13, false), 64, 99);
    let Ok(FromReceiver::Credit(read)) = parse_from_receiver(WIRE_VERSION, &later, 0) else {
        panic!("no heartbeat")
    };
    assert_eq!(read.waits_for(), Some(WaitsFor::Other), "a reason of a later build is a reason");
    for (asked, stated) in [(0, 1), (1, 1), (999, 999), (5000, 1000)] {
        let header = CongestionHeader::encode(asked);
        let Ok(FromReceiver::Congestion(read)) = parse_from_receiver(WIRE_VERSION, &header, 0) else {
            panic!("none")
        };
        assert_eq!(read.window_permille.get(), stated);
    }
    for reason in [
        ByeReason::Draining,
        ByeReason::Malformed,
        ByeReason::Version,
        ByeReason::CreditExceeded,
        ByeReason::BadMemory,
        ByeReason::Unresponsive,
    ] {
        let header = ByeHeader::encode(reason);
        let Ok(FromReceiver::Bye(read)) = parse_from_receiver(WIRE_VERSION, &header, 0) else {
            panic!("no farewell")
        };
        assert_eq!(read.reason(), Some(reason));
    }
}

#[test]
fn a_reply_reads_as_it_was_written_from_version_2_on_and_no_lie_of_it_does() {
    for (status, bytes) in
        [(AckStatus::Consumed, 0), (AckStatus::Rejected(28), 1), (AckStatus::Consumed, 4096)]
    {
        let header = ReplyHeader::encode(12, 5, status, bytes);
        let Ok(FromReceiver::Reply(read)) = parse_from_receiver(WIRE_VERSION, &header, bytes as usize) else {
            panic!("no reply")
        };
        let values = (read.credit_limit.get(), read.sequence(), read.status(), read.payload_bytes.get());
        assert_eq!(values, (12, 5, status, bytes));
        let error = parse_from_receiver(WIRE_VERSION, &header, bytes as usize + 1).unwrap_err();
        assert!(matches!(error, HeaderError::Payload { .. }), "{error}");
        let earlier = parse_in(FIRST_VERSION, &header, bytes as usize, false);
        assert!(earlier.is_some(), "version 1 has no replies");
    }
    let header = ReplyHeader::encode(12, 5, AckStatus::Consumed, 0);
    let end = core::mem::offset_of!(ReplyHeader, end);
    // No sequence, two of them, an end that no application gives, and a count.
    for (at, byte) in [(end + 8, 0), (end + 8, 2), (end + 10, 2), (4, 1)] {
        assert!(parse_from_receiver(WIRE_VERSION, &with(header, at, byte), 0).is_err(), "{at}");
    }
    let read = SmallHeader::encode(&SmallFields {
        sequence: 1,
        tag: 1,
        payload_bytes: 0,
        crc32c: None,
        redelivered: false,
        wants_reply: true,
        user_header: &[],
    });
    let Ok(FromSender::Small(small)) = parse_from_sender(WIRE_VERSION, &read, 0) else { panic!("not small") };
    assert!(small.wants_reply());
    assert_eq!(parse_in(FIRST_VERSION, &read, 0, true), Some(HeaderError::Reserved));
}

#[test]
fn what_is_taken_back_reads_as_it_was_written_from_version_2_on() {
    let header = CancelHeader::encode(5);
    let Ok(FromSender::Cancel(read)) = parse_from_sender(WIRE_VERSION, &header, 0) else {
        panic!("nothing is taken back")
    };
    assert_eq!(read.sequence.get(), 5);
    let found = |header, payload_bytes| parse_in(WIRE_VERSION, &header, payload_bytes, true);
    assert_eq!(found(header, 1), Some(HeaderError::Payload { stated: 0, arrived: 1 }));
    // A count, and bytes that must be zero.
    for at in [4, 16, 63] {
        assert_eq!(found(with(header, at, 1), 0), Some(HeaderError::Reserved), "{at}");
    }
    assert_eq!(found(with(header, 64, 1), 0), None, "it is skipped");
    assert_eq!(parse_in(FIRST_VERSION, &header, 0, true), Some(HeaderError::Kind { found: 9 }));
    assert_eq!(from_receiver(header), Some(HeaderError::Kind { found: 9 }));
}

#[test]
fn fewer_bytes_than_a_header_are_truncated() {
    for bytes in [0, 1, 8, 127] {
        let found = HeaderBytes::from_front(&vec![1; bytes]).err();
        assert_eq!(found, Some(HeaderError::Truncated { bytes }));
    }
    let mut long = small(3, b"x").0.to_vec();
    long.extend([1, 2, 3]);
    assert_eq!(HeaderBytes::from_front(&long).unwrap().0, small(3, b"x").0);
}

#[test]
fn another_version_than_was_agreed_is_told_from_everything_else() {
    for (header, payload_bytes, sender) in one_of_each() {
        assert_eq!(parse(&header, payload_bytes, sender), None);
        for agreed in spoken() {
            for found in [0, agreed - 1, agreed + 1, 255] {
                let other = with(header, 0, found);
                let error = if sender {
                    parse_from_sender(agreed, &other, payload_bytes).err()
                } else {
                    parse_from_receiver(agreed, &other, payload_bytes).err()
                };
                assert_eq!(error, Some(HeaderError::Version { found, agreed }));
            }
        }
    }
}

#[test]
fn a_kind_that_does_not_exist_or_goes_the_other_way_is_refused() {
    for (header, payload_bytes, sender) in one_of_each() {
        for found in [0, 10, 255] {
            let other = with(header, 1, found);
            let expected = if sender || payload_bytes == 0 {
                HeaderError::Kind { found }
            } else {
                HeaderError::Payload { stated: 0, arrived: payload_bytes }
            };
            assert_eq!(parse(&other, payload_bytes, sender), Some(expected));
        }
        let found = header.0[1];
        assert_eq!(parse(&header, 0, !sender), Some(HeaderError::Kind { found }));
    }
}

#[test]
fn unknown_and_misplaced_flags_are_refused_but_for_the_upper_ones_from_version_2_on() {
    for (header, payload_bytes, sender) in one_of_each() {
        let allowed: u16 = match header.0[1] {
            1 | 2 => flags::CRC32C | flags::REDELIVERED,
            4 => flags::RECALL,
            _ => 0,
        };
        for (version, bit) in spoken().flat_map(|version| (0..16).map(move |bit| (version, bit))) {
            let flag = 1u16 << bit;
            let mut other = header;
            other.0[2..4].copy_from_slice(&flag.to_le_bytes());
            let since_second = version > 1 && matches!(header.0[1], 1 | 2) && flag == flags::WANTS_REPLY;
            let passes = flag & allowed != 0 || (version > 1 && bit >= 8) || since_second;
            let expected = (!passes).then_some(HeaderError::Reserved);
            let found = parse_in(version, &other, payload_bytes, sender);
            assert_eq!(found, expected, "flag {flag:#x} in version {version} on {header:?}");
        }
    }
}

#[test]
fn bytes_that_must_be_zero_are_checked_everywhere() {
    for (header, payload_bytes, sender) in one_of_each() {
        let counted = matches!(header.0[1], 1..=3);
        let mut must: Vec<usize> = vec![6, 7];
        must.extend(if counted { 0..0 } else { 4..6 });
        // The second range of an acknowledgement that has only one.
        must.extend(if header.0[1] == 3 { 48..128 } else { 0..0 });
        must.extend(reserved(header.0[1]).0);
        for at in must {
            let found = parse(&with(header, at, 1), payload_bytes, sender);
            assert_eq!(found, Some(HeaderError::Reserved), "byte {at} of {header:?}");
        }
    }
}

/// Checks that additions of a later version do no harm to an end that does not know them: the rest is read as
/// if they were not there.
#[test]
fn bytes_of_later_versions_are_skipped_from_version_2_on_and_refused_by_version_1() {
    for (header, payload_bytes, sender) in one_of_each() {
        for at in reserved(header.0[1]).1 {
            let other = with(header, at, 0xa5);
            let found = |version| parse_in(version, &other, payload_bytes, sender);
            assert_eq!(found(1), Some(HeaderError::Reserved), "byte {at} of {header:?}");
            assert_eq!(found(2), None, "byte {at} of {header:?}");
            let again = if sender {
                parse_from_sender(2, &other, payload_bytes).unwrap().encode()
            } else {
                parse_from_receiver(2, &other, payload_bytes).unwrap().encode().unwrap()
            };
            assert_eq!(again.0, without_slack(header).0, "byte {at}");
        }
    }
}

#[test]
fn an_end_of_a_later_version_is_the_nearest_of_its_class_and_version_1_refuses_it() {
    for (high, nearest) in [
        (1, AckStatus::Consumed),
        (2, AckStatus::Rejected(28)),
        (3, AckStatus::Busy),
        (200, AckStatus::AppGone),
    ] {
        let mut header = ack(&[CONSUMED, AckRange { status: AckStatus::Rejected(28), ..CONSUMED }]);
        header.0[48 + 11] = high;
        assert_eq!(parse_in(1, &header, 0, false), Some(HeaderError::Range { index: 1 }));
        let Ok(FromReceiver::Ack(read)) = parse_from_receiver(2, &header, 0) else { panic!("{header:?}") };
        let ends: Vec<_> = read.ranges().map(|range| range.status).collect();
        assert_eq!(ends, [AckStatus::Consumed, nearest]);
        assert_eq!(read.ranges_of_unknown_status(), 1);
        assert!(FromReceiver::Ack(read).encode().is_none(), "the nearest is not what was read");
    }
}

#[test]
fn a_farewell_for_a_reason_of_a_later_version_is_one_all_the_same() {
    for found in [7u16, u16::MAX] {
        let mut header = ByeHeader::encode(ByeReason::Draining);
        header.0[8..10].copy_from_slice(&found.to_le_bytes());
        assert_eq!(parse_in(1, &header, 0, false), Some(HeaderError::Reason { found }));
        let Ok(FromReceiver::Bye(read)) = parse_from_receiver(2, &header, 0) else { panic!("no farewell") };
        assert_eq!(read.reason(), None);
        assert!(FromReceiver::Bye(read).encode().is_none(), "there is no reason to write");
    }
}

#[test]
fn a_checksum_without_its_flag_is_refused() {
    assert_eq!(from_sender(with(small(0, b""), 12, 1), 0), Some(HeaderError::Reserved));
    assert_eq!(from_sender(with(request(0, 1, b""), 8, 1), 0), Some(HeaderError::Reserved));
}

#[test]
fn an_oversized_user_header_is_refused() {
    let mut header = small(0, b"");
    header.0[4] = 97;
    assert_eq!(from_sender(header, 0), Some(HeaderError::UserHeader { bytes: 97, max: 96 }));
    let mut header = request(0, 1, b"");
    header.0[4..6].copy_from_slice(&257u16.to_le_bytes());
    assert_eq!(from_sender(header, 257), Some(HeaderError::UserHeader { bytes: 257, max: 256 }));
}

#[test]
fn a_length_that_lies_is_refused() {
    let arrived = |arrived, stated| Some(HeaderError::Payload { stated, arrived });
    assert_eq!(from_sender(small(100, b""), 99), arrived(99, 100));
    assert_eq!(from_sender(small(100, b""), 101), arrived(101, 100));
    let mut long = small(0, b"");
    long.0[8..12].copy_from_slice(&4097u32.to_le_bytes());
    assert_eq!(from_sender(long, SLAB_BYTES + 1), arrived(4097, 4097));
    long.0[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(from_sender(long, 0), arrived(0, u64::from(u32::MAX)));
    assert_eq!(from_sender(request(0, 1, b"short"), 5), arrived(5, 0));
    assert_eq!(from_sender(request(0, 1, &[0; 65]), 64), arrived(64, 65));
    assert_eq!(from_sender(CreditReturn::encode(1), 1), arrived(1, 0));
    for (header, _, sender) in one_of_each() {
        if !sender {
            assert_eq!(parse(&header, 1, sender), arrived(1, 0));
        }
    }
}

#[test]
fn a_message_that_cannot_exist_is_refused() {
    for (address, length) in [(0, 0), (5, u64::MAX), (u64::MAX, 1)] {
        let found = from_sender(request(address, length, b""), 0);
        assert_eq!(found, Some(HeaderError::Extent { address, length }));
    }
    assert_eq!(from_sender(request(u64::MAX - 1, 1, b""), 0), None);
}

#[test]
fn bad_ranges_are_refused_by_their_position() {
    let second = 32 + 16;
    let good = ack(&[CONSUMED, CONSUMED]);
    let bad = Some(HeaderError::Range { index: 1 });
    let mut wraps = good;
    wraps.0[second..second + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(from_receiver(good), None);
    assert_eq!(from_receiver(wraps), bad);
    assert_eq!(from_receiver(with(good, second + 8, 0)), bad, "an empty range");
    assert_eq!(from_receiver(with(good, second + 10, 9)), bad, "a status that never travels");
    assert_eq!(from_receiver(with(good, second + 10, 255)), bad, "a status that will not exist");
    assert_eq!(from_receiver(with(good, second + 12, 1)), bad, "a code where there is none");
    assert_eq!(from_receiver(with(good, 4, 7)), Some(HeaderError::Range { index: ACK_RANGES_MAX }));
    assert_eq!(from_receiver(with(good, 4, 3)), Some(HeaderError::Range { index: 2 }), "one too few");
}

#[test]
fn an_impossible_window_and_no_reason_are_refused() {
    let mut header = CongestionHeader::encode(1);
    for permille in [0u32, 1001, u32::MAX] {
        header.0[8..12].copy_from_slice(&permille.to_le_bytes());
        assert_eq!(from_receiver(header), Some(HeaderError::Window { permille }));
    }
    let none = with(ByeHeader::encode(ByeReason::Draining), 8, 0);
    assert_eq!(from_receiver(none), Some(HeaderError::Reason { found: 0 }));
}

#[test]
fn every_error_says_its_value() {
    let texts = [
        (HeaderError::Truncated { bytes: 77 }.to_string(), "77"),
        (HeaderError::Version { found: 77, agreed: 1 }.to_string(), "77"),
        (HeaderError::Kind { found: 77 }.to_string(), "77"),
        (HeaderError::UserHeader { bytes: 77, max: 1 }.to_string(), "77"),
        (HeaderError::Payload { stated: 77, arrived: 1 }.to_string(), "77"),
        (HeaderError::Extent { address: 1, length: 77 }.to_string(), "77"),
        (HeaderError::Range { index: 77 }.to_string(), "77"),
        (HeaderError::Window { permille: 77 }.to_string(), "77"),
        (HeaderError::Reason { found: 77 }.to_string(), "77"),
    ];
    for (text, value) in texts {
        assert!(text.contains(value), "{text}");
    }
}

fn any_header() -> impl Strategy<Value = HeaderBytes> {
    any::<[u8; HEADER_BYTES]>().prop_map(HeaderBytes)
}

/// Generates valid headers with a few bytes changed. They get much further through the parser than random
/// ones.
fn nearly_valid() -> impl Strategy<Value = (HeaderBytes, usize)> {
    let changes = prop::collection::vec((0..HEADER_BYTES, any::<u8>()), 0..4);
    let mut all = one_of_each();
    all.push((ReplyHeader::encode(3, 5, AckStatus::Rejected(28), 100), 100, false));
    all.push((CancelHeader::encode(5), 0, true));
    (0..all.len(), changes).prop_map(move |(which, changes)| {
        let (mut header, payload_bytes, _) = all[which];
        changes.into_iter().for_each(|(at, byte)| header.0[at] = byte);
        (header, payload_bytes)
    })
}

fn check_both_ways(version: u8, header: HeaderBytes, payload_bytes: usize) -> Result<(), TestCaseError> {
    if let Ok(read) = parse_from_sender(version, &header, payload_bytes) {
        let mut again = read.encode();
        again.set_version(version);
        prop_assert_eq!(again.0, without_slack(header).0);
    }
    match parse_from_receiver(version, &header, payload_bytes) {
        Ok(FromReceiver::Bye(bye)) if bye.reason().is_none() => prop_assert!(version > FIRST_VERSION),
        Ok(FromReceiver::Ack(ack)) if ack.ranges_of_unknown_status() > 0 => {
            prop_assert!(version > FIRST_VERSION);
            prop_assert_eq!(ack.ranges().count(), usize::from(ack.prefix.count.get()));
        }
        Ok(read) => {
            let mut again = read.encode().expect("every status and reason is known");
            again.set_version(version);
            prop_assert_eq!(again.0, without_slack(header).0);
        }
        Err(_) => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_bytes_never_panic_and_what_parses_encodes_the_same(
        mut header in any_header(),
        version in prop_oneof![Just(FIRST_VERSION), Just(WIRE_VERSION), any::<u8>()],
        kind in 0u8..10,
        payload_bytes in prop_oneof![Just(0usize), 0usize..5000, any::<usize>()],
    ) {
        check_both_ways(version, header, payload_bytes)?;
        (header.0[0], header.0[1]) = (version, kind);
        header.0[6..8].fill(0);
        check_both_ways(version, header, payload_bytes)?;
    }

    #[test]
    fn nearly_valid_bytes_never_panic_and_what_parses_encodes_the_same(
        (header, payload_bytes) in nearly_valid(),
        version in Versions::SUPPORTED.lowest()..=Versions::SUPPORTED.highest(),
    ) {
        let mut header = header;
        if header.version() == WIRE_VERSION {
            header.set_version(version);
        }
        check_both_ways(version, header, payload_bytes)?;
    }
}

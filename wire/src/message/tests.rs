use super::hello::{
    AppName, AppNameError, Hello, HelloError, REFUSAL_BYTES, Refusal, WELCOME_BYTES, Welcome,
};
use super::*;
use crate::SLAB_BYTES;
use proptest::prelude::*;
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
        user_header,
    })
}

fn request(address: u64, length: u64, user_header: &[u8]) -> HeaderBytes {
    RequestHeader::encode(&RequestFields {
        sequence: 5,
        tag: 7,
        length,
        address,
        key: 9,
        class: 1,
        crc32c: None,
        redelivered: false,
        user_header,
    })
}

fn ack(ranges: &[AckRange]) -> HeaderBytes {
    AckHeader::encode(1, ranges)
}

const CONSUMED: AckRange = AckRange { first: 1, count: 1, status: AckStatus::Consumed };

/// The header with one byte changed.
fn with(mut header: HeaderBytes, at: usize, byte: u8) -> HeaderBytes {
    header.0[at] = byte;
    header
}

fn from_sender(header: HeaderBytes, payload_bytes: usize) -> Option<HeaderError> {
    parse_from_sender(&header, payload_bytes).err()
}

fn from_receiver(header: HeaderBytes) -> Option<HeaderError> {
    parse_from_receiver(&header, 0).err()
}

/// Every kind of header, with the payload that goes with it, and whether a sender sends it.
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
    if sender {
        parse_from_sender(header, payload_bytes).err()
    } else {
        parse_from_receiver(header, payload_bytes).err()
    }
}

/// Writes anew what was read.
fn encode_from_sender(read: FromSender<'_>) -> HeaderBytes {
    match read {
        FromSender::Small(small) => SmallHeader::encode(&SmallFields {
            sequence: small.sequence.get(),
            tag: small.tag.get(),
            payload_bytes: small.payload_bytes.get(),
            crc32c: small.crc32c(),
            redelivered: small.redelivered(),
            user_header: small.user_header(),
        }),
        FromSender::Request(request) => RequestHeader::encode(&RequestFields {
            sequence: request.sequence.get(),
            tag: request.tag.get(),
            length: request.length.get(),
            address: request.address.get(),
            key: request.key.get(),
            class: request.class,
            crc32c: request.crc32c(),
            redelivered: request.redelivered(),
            // Where the user header is the payload only its length is in the header.
            user_header: request
                .inline_user_header()
                .unwrap_or(&[0; USER_HEADER_MAX][..request.user_header_bytes()]),
        }),
        FromSender::CreditReturn(credit) => CreditReturn::encode(credit.credit_limit.get()),
    }
}

fn encode_from_receiver(read: FromReceiver<'_>) -> HeaderBytes {
    match read {
        FromReceiver::Ack(ack) => {
            AckHeader::encode(ack.credit_limit.get(), &ack.ranges().collect::<Vec<_>>())
        }
        FromReceiver::Credit(credit) => CreditHeader::encode(credit.credit_limit.get(), credit.recall()),
        FromReceiver::Congestion(congestion) => CongestionHeader::encode(congestion.window_permille.get()),
        FromReceiver::Bye(bye) => ByeHeader::encode(bye.reason().expect("the parser checked it")),
    }
}

/// Zeroes the only bytes that the parser lets pass whatever they are: those behind the user header.
fn without_slack(mut header: HeaderBytes) -> HeaderBytes {
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
            user_header: &user_header,
        });
        let Ok(FromSender::Small(read)) = parse_from_sender(&header, payload_bytes as usize) else {
            panic!("not small: {header:?}")
        };
        assert_eq!((read.sequence.get(), read.tag.get()), (u64::MAX, 0x0102_0304_0506_0708));
        assert_eq!((read.crc32c(), read.redelivered()), (Some(0), true));
        assert_eq!(read.user_header(), user_header);
    }
    // The tag's least byte comes first, whatever the machine.
    assert_eq!(small(0, b"").0[24..32], [7, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_request_reads_as_it_was_written_wherever_its_user_header_lies() {
    for user in [0, 1, 64, 65, 256] {
        let user_header: Vec<u8> = (0..=255).cycle().take(user).collect();
        let header = request(1 << 40, 5 << 30, &user_header);
        let behind = if user > REQUEST_INLINE_USER_HEADER_MAX { user } else { 0 };
        let Ok(FromSender::Request(read)) = parse_from_sender(&header, behind) else {
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
fn acknowledgements_carry_every_status_that_travels() {
    let all = [
        AckStatus::Consumed,
        AckStatus::Rejected(28),
        AckStatus::Busy,
        AckStatus::NoApp,
        AckStatus::Denied,
        AckStatus::TooLarge,
        AckStatus::Corrupt,
        AckStatus::AppGone,
        AckStatus::Draining,
    ];
    for statuses in [&all[..0], &all[..1], &all[1..7], &all[7..]] {
        let ranges: Vec<_> =
            statuses.iter().map(|&status| AckRange { first: 10, count: u16::MAX, status }).collect();
        let header = AckHeader::encode(77, &ranges);
        let Ok(FromReceiver::Ack(read)) = parse_from_receiver(&header, 0) else { panic!("{header:?}") };
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
    let Ok(FromSender::CreditReturn(read)) = parse_from_sender(&header, 0) else {
        panic!("no credit return")
    };
    assert_eq!(read.credit_limit.get(), 12);
    for recall in [false, true] {
        let header = CreditHeader::encode(13, recall);
        let Ok(FromReceiver::Credit(read)) = parse_from_receiver(&header, 0) else { panic!("no credit") };
        assert_eq!((read.credit_limit.get(), read.recall()), (13, recall));
    }
    for (asked, stated) in [(0, 1), (1, 1), (999, 999), (5000, 1000)] {
        let header = CongestionHeader::encode(asked);
        let Ok(FromReceiver::Congestion(read)) = parse_from_receiver(&header, 0) else { panic!("none") };
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
        let Ok(FromReceiver::Bye(read)) = parse_from_receiver(&header, 0) else { panic!("no farewell") };
        assert_eq!(read.reason(), Some(reason));
    }
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
fn another_version_is_told_from_everything_else() {
    for (header, payload_bytes, sender) in one_of_each() {
        assert_eq!(parse(&header, payload_bytes, sender), None);
        for found in [0, WIRE_VERSION + 1, 255] {
            let other = with(header, 0, found);
            assert_eq!(parse(&other, payload_bytes, sender), Some(HeaderError::Version { found }));
        }
    }
    assert_eq!(from_sender(HeaderBytes::ZERO, 0), Some(HeaderError::Version { found: 0 }));
}

#[test]
fn a_kind_that_does_not_exist_or_goes_the_other_way_is_refused() {
    for (header, payload_bytes, sender) in one_of_each() {
        for found in [0, 8, 255] {
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
fn unknown_and_misplaced_flags_are_refused() {
    for (header, payload_bytes, sender) in one_of_each() {
        let allowed: u16 = match header.0[1] {
            1 | 2 => flags::CRC32C | flags::REDELIVERED,
            4 => flags::RECALL,
            _ => 0,
        };
        for bit in 0..16 {
            let flag = 1u16 << bit;
            let mut other = header;
            other.0[2..4].copy_from_slice(&flag.to_le_bytes());
            let expected = (flag & allowed == 0).then_some(HeaderError::Reserved);
            assert_eq!(parse(&other, payload_bytes, sender), expected, "flag {flag:#x} on {header:?}");
        }
    }
}

#[test]
fn bytes_that_must_be_zero_are_checked_everywhere() {
    for (header, payload_bytes, sender) in one_of_each() {
        let reserved: &[usize] = match header.0[1] {
            1 => &[6, 7],
            2 => &[6, 7, 49, 63],
            3 => &[6, 7, 16, 31, 48, 127],
            4 | 5 => &[4, 5, 6, 7, 16, 127],
            6 => &[4, 5, 6, 7, 12, 127],
            _ => &[4, 5, 6, 7, 10, 127],
        };
        for &at in reserved {
            let found = parse(&with(header, at, 1), payload_bytes, sender);
            assert_eq!(found, Some(HeaderError::Reserved), "byte {at} of {header:?}");
        }
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
    assert_eq!(from_receiver(with(good, second + 11, 1)), bad, "a status that does not exist");
    assert_eq!(from_receiver(with(good, second + 12, 1)), bad, "a code where there is none");
    assert_eq!(from_receiver(with(good, 4, 7)), Some(HeaderError::Range { index: ACK_RANGES_MAX }));
    assert_eq!(from_receiver(with(good, 4, 3)), Some(HeaderError::Range { index: 2 }), "one too few");
}

#[test]
fn an_impossible_window_and_an_unknown_reason_are_refused() {
    let mut header = CongestionHeader::encode(1);
    for permille in [0u32, 1001, u32::MAX] {
        header.0[8..12].copy_from_slice(&permille.to_le_bytes());
        assert_eq!(from_receiver(header), Some(HeaderError::Window { permille }));
    }
    for found in [0u16, 7, u16::MAX] {
        let mut header = ByeHeader::encode(ByeReason::Draining);
        header.0[8..10].copy_from_slice(&found.to_le_bytes());
        assert_eq!(from_receiver(header), Some(HeaderError::Reason { found }));
    }
}

#[test]
fn every_error_says_its_value() {
    let texts = [
        (HeaderError::Truncated { bytes: 77 }.to_string(), "77"),
        (HeaderError::Version { found: 77 }.to_string(), "77"),
        (HeaderError::Kind { found: 77 }.to_string(), "77"),
        (HeaderError::UserHeader { bytes: 77, max: 1 }.to_string(), "77"),
        (HeaderError::Payload { stated: 77, arrived: 1 }.to_string(), "77"),
        (HeaderError::Extent { address: 1, length: 77 }.to_string(), "77"),
        (HeaderError::Range { index: 77 }.to_string(), "77"),
        (HeaderError::Window { permille: 77 }.to_string(), "77"),
        (HeaderError::Reason { found: 77 }.to_string(), "77"),
        (HelloError::Version { found: 77 }.to_string(), "77"),
        (HelloError::Truncated { bytes: 77 }.to_string(), "77"),
    ];
    for (text, value) in texts {
        assert!(text.contains(value), "{text}");
    }
}

fn a_hello() -> Hello {
    Hello { features: 3, sender_id: 1 << 60, receive_entries: 64, app: AppName::new("store/0").unwrap() }
}

const WELCOME: Welcome = Welcome {
    features: 1,
    incarnation: 9,
    credit_limit: 32,
    message_bytes_max: 1 << 30,
    requests_max: 64,
    heartbeat_ms: 5000,
};

#[test]
fn first_words_read_as_they_were_written() {
    let bytes = a_hello().encode();
    assert_eq!(Hello::decode(&bytes), Ok(a_hello()));
    let mut padded = bytes.to_vec();
    padded.resize(196, 0);
    assert_eq!(Hello::decode(&padded), Ok(a_hello()));
    assert_eq!(Welcome::decode(&WELCOME.encode()), Ok(WELCOME));
    for refusal in [Refusal::Malformed, Refusal::Version, Refusal::TooManyPeers, Refusal::Draining] {
        assert_eq!(Refusal::decode(&refusal.encode()), Some(refusal));
    }
}

#[test]
fn bad_first_words_are_refused() {
    let (hello, welcome) = (a_hello().encode(), WELCOME.encode());
    for bytes in 0..hello.len() {
        assert_eq!(Hello::decode(&hello[..bytes]), Err(HelloError::Truncated { bytes }));
    }
    for bytes in 0..WELCOME_BYTES {
        assert_eq!(Welcome::decode(&welcome[..bytes]), Err(HelloError::Truncated { bytes }));
    }
    for at in 0..4 {
        let (mut hello, mut welcome) = (hello, welcome);
        (hello[at], welcome[at]) = (0, 0);
        assert_eq!(Hello::decode(&hello), Err(HelloError::Magic));
        assert_eq!(Welcome::decode(&welcome), Err(HelloError::Magic));
    }
    let (mut other_hello, mut other_welcome) = (hello, welcome);
    (other_hello[4], other_welcome[4]) = (2, 2);
    assert_eq!(Hello::decode(&other_hello), Err(HelloError::Version { found: 2 }));
    assert_eq!(Welcome::decode(&other_welcome), Err(HelloError::Version { found: 2 }));
    for (at, byte) in [(5, 0), (5, 33), (5, 255), (5, 8), (20, b' '), (20, 0xff)] {
        let mut hello = hello;
        hello[at] = byte;
        assert_eq!(Hello::decode(&hello), Err(HelloError::App), "byte {at} = {byte}");
    }
}

#[test]
fn bad_refusals_are_none_and_other_versions_are_understood() {
    let good = Refusal::Version.encode();
    assert_eq!(Refusal::decode(&good[..5]), None);
    assert_eq!(Refusal::decode(&[0; REFUSAL_BYTES]), None);
    for reason in [0, 5, 255] {
        let mut bad = good;
        bad[5] = reason;
        assert_eq!(Refusal::decode(&bad), None);
    }
    // A receiver of another version says so in words that every version reads.
    let mut other = good;
    other[4] = 99;
    assert_eq!(Refusal::decode(&other), Some(Refusal::Version));
}

#[test]
fn only_names_are_names() {
    for name in ["a", "jet.recv_1-x/y:z", "12345678901234567890123456789012"] {
        assert_eq!(AppName::new(name).unwrap().as_str(), name);
    }
    for name in ["", "123456789012345678901234567890123", "with space", "null\0", "ü"] {
        assert_eq!(AppName::new(name), Err(AppNameError), "{name:?}");
    }
}

fn any_header() -> impl Strategy<Value = HeaderBytes> {
    any::<[u8; HEADER_BYTES]>().prop_map(HeaderBytes)
}

/// Valid headers with a few bytes changed: they come much further than random ones.
fn nearly_valid() -> impl Strategy<Value = (HeaderBytes, usize)> {
    let changes = prop::collection::vec((0..HEADER_BYTES, any::<u8>()), 0..4);
    (0..one_of_each().len(), changes).prop_map(|(which, changes)| {
        let (mut header, payload_bytes, _) = one_of_each()[which];
        changes.into_iter().for_each(|(at, byte)| header.0[at] = byte);
        (header, payload_bytes)
    })
}

fn check_both_ways(header: HeaderBytes, payload_bytes: usize) -> Result<(), TestCaseError> {
    if let Ok(read) = parse_from_sender(&header, payload_bytes) {
        prop_assert_eq!(encode_from_sender(read).0, without_slack(header).0);
    }
    if let Ok(read) = parse_from_receiver(&header, payload_bytes) {
        prop_assert_eq!(encode_from_receiver(read).0, header.0);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic_and_what_parses_encodes_the_same(
        mut header in any_header(),
        version in prop_oneof![Just(WIRE_VERSION), any::<u8>()],
        kind in 0u8..9,
        payload_bytes in prop_oneof![Just(0usize), 0usize..5000, any::<usize>()],
    ) {
        check_both_ways(header, payload_bytes)?;
        (header.0[0], header.0[1]) = (version, kind);
        header.0[6..8].fill(0);
        check_both_ways(header, payload_bytes)?;
    }

    #[test]
    fn nearly_valid_bytes_never_panic_and_what_parses_encodes_the_same((header, payload_bytes) in nearly_valid()) {
        check_both_ways(header, payload_bytes)?;
    }

    #[test]
    fn random_first_words_never_panic_and_what_parses_encodes_the_same(
        mut bytes in prop::collection::vec(any::<u8>(), 0..80),
        name in 0usize..40,
    ) {
        for pass in 0..2 {
            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
                prop_assert_eq!(&hello.encode()[..20], &bytes[..20]);
            }
            if let Ok(welcome) = Welcome::decode(&bytes) {
                prop_assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
            }
            if let Some(refusal) = Refusal::decode(&bytes) {
                prop_assert_eq!(refusal.encode()[5], bytes[5]);
            }
            if pass == 0 && bytes.len() >= 6 {
                bytes[..6].copy_from_slice(&[b'J', b'E', b'T', b'h', WIRE_VERSION, u8::try_from(name).unwrap()]);
                bytes.iter_mut().skip(20).take(32).for_each(|byte| *byte = b'a' + (*byte % 26));
            }
        }
    }
}

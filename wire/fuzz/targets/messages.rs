//! Bytes of a stranger, read as first words and as headers of every version that is spoken: without a panic, and what was read is
//! written as what it was, but for what the version skips.

#![no_main]

use jet_wire::message::hello::{Hello, Refusal, Welcome};
use jet_wire::message::{
    AckHeader, ByeHeader, CongestionHeader, CreditHeader, CreditReturn, FIRST_VERSION, FromReceiver, FromSender,
    HEADER_BYTES, HeaderBytes, RequestFields, RequestHeader, SmallFields, SmallHeader, USER_HEADER_MAX, Versions,
    parse_from_receiver, parse_from_sender,
};
use libfuzzer_sys::fuzz_target;

/// Words that are read again as they are written.
fn first_words(bytes: &[u8]) {
    match Hello::decode(bytes) {
        Ok(hello) => assert_eq!(Hello::decode(&hello.encode()), Ok(hello)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match Welcome::decode(bytes) {
        Ok(welcome) => {
            assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
            assert_eq!(Versions::SPOKEN.agree(welcome.versions), Some(welcome.agreed_version()));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Some(refusal) = Refusal::decode(bytes) {
        assert_eq!(Refusal::decode(&refusal.encode()), Some(refusal));
        assert!(!refusal.to_string().is_empty());
    }
}

fn from_sender(read: FromSender<'_>) -> HeaderBytes {
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
            user_header: request
                .inline_user_header()
                .unwrap_or(&[0; USER_HEADER_MAX][..request.user_header_bytes()]),
        }),
        FromSender::CreditReturn(answer) => CreditReturn::encode(answer.credit_limit.get()),
    }
}

fn from_receiver(read: FromReceiver<'_>) -> Option<HeaderBytes> {
    Some(match read {
        FromReceiver::Ack(ack) => {
            let ranges: Vec<_> = ack.ranges().collect();
            assert_eq!(ranges.len(), usize::from(ack.prefix.count.get()));
            if ack.ranges_of_unknown_status() > 0 {
                return None;
            }
            AckHeader::encode(ack.credit_limit.get(), &ranges)
        }
        FromReceiver::Credit(credit) => CreditHeader::encode(credit.credit_limit.get(), credit.recall()),
        FromReceiver::Congestion(signal) => CongestionHeader::encode(signal.window_permille.get()),
        FromReceiver::Bye(bye) => ByeHeader::encode(bye.reason()?),
    })
}

/// What was read is written as it was, wherever a byte that it has is one that the header has not skipped.
fn check(version: u8, header: &HeaderBytes, mut again: HeaderBytes) {
    again.set_version(version);
    let area = if again.0[1] == 1 { 32 } else { 64 };
    let differ: Vec<_> = (0..HEADER_BYTES).filter(|&at| header.0[at] != again.0[at]).collect();
    for at in differ {
        // Behind a user header, whatever the version; and what a later version may have put there.
        let behind_user_header = matches!(again.0[1], 1 | 2) && at >= area;
        let skipped = version > FIRST_VERSION
            && match again.0[1] {
                1 => at == 3,
                2 => at == 3 || (56..64).contains(&at),
                3 => at == 3 || (24..32).contains(&at),
                _ => at == 3 || at >= 64,
            };
        assert!(behind_user_header || skipped, "byte {at} of {header:?} in version {version}");
    }
}

fuzz_target!(|bytes: &[u8]| {
    first_words(bytes);
    let Ok(mut header) = HeaderBytes::from_front(bytes) else { return };
    let payload_bytes = bytes.len() - HEADER_BYTES;
    for version in Versions::SPOKEN.lowest()..=Versions::SPOKEN.highest() {
        header.set_version(version);
        match parse_from_sender(version, &header, payload_bytes) {
            Ok(read) => check(version, &header, from_sender(read)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        match parse_from_receiver(version, &header, payload_bytes) {
            Ok(read) => {
                if let Some(again) = from_receiver(read) {
                    check(version, &header, again);
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
});

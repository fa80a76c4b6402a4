//! Fuzzing of messages between hosts: any bytes are read as first words, and as headers of every version
//! spoken. Reading must not panic. What was read must be written back as it was, except for bytes that the
//! version skips.

#![no_main]

use jet_wire::message::hello::{Hello, Refusal, Welcome};
use jet_wire::message::{
    FIRST_VERSION, FromReceiver, FromSender, HEADER_BYTES, HeaderBytes, PIECES_MAX, Versions,
    check_pieces, parse_from_receiver, parse_from_sender, pieces,
};
use libfuzzer_sys::fuzz_target;

/// Checks that the first words of a connection are read again as they were written.
fn first_words(bytes: &[u8]) {
    match Hello::decode(bytes) {
        Ok(hello) => assert_eq!(Hello::decode(&hello.encode()), Ok(hello)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match Welcome::decode(bytes) {
        Ok(welcome) => {
            assert_eq!(Welcome::decode(&welcome.encode()), Ok(welcome));
            assert_eq!(Versions::SUPPORTED.agree(welcome.versions), Some(welcome.agreed_version()));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Some(refusal) = Refusal::decode(bytes) {
        assert_eq!(Refusal::decode(&refusal.encode()), Some(refusal));
        assert!(!refusal.to_string().is_empty());
    }
}

/// Encodes a header again. `None` where a status or a reason belongs to a later version.
fn from_receiver(read: FromReceiver<'_>) -> Option<HeaderBytes> {
    if let FromReceiver::Ack(ack) = read {
        assert_eq!(ack.ranges().count(), usize::from(ack.prefix.count.get()));
    }
    read.encode()
}

/// Checks that a header is written back as it was, except for bytes that its version skips.
fn check(version: u8, header: &HeaderBytes, mut again: HeaderBytes) {
    again.set_version(version);
    let area = if again.0[1] == 1 { 32 } else { 64 };
    let differ: Vec<_> = (0..HEADER_BYTES).filter(|&at| header.0[at] != again.0[at]).collect();
    for at in differ {
        // Bytes behind a user header, whatever the version, and bytes that a later version may use.
        let behind_user_header = matches!(again.0[1], 1 | 2) && at >= area;
        let skipped = version > FIRST_VERSION
            && match again.0[1] {
                1 => at == 3,
                2 => at == 3 || (56..64).contains(&at),
                3 => at == 3 || (24..32).contains(&at),
                // A reason that this build knows is written back. A recall has none.
                4 if at == 64 => header.0[at] > 4 || header.0[2] & 4 != 0,
                _ => at == 3 || at >= 64,
            };
        assert!(behind_user_header || skipped, "byte {at} of {header:?} in version {version}");
    }
}

/// Checks a list of pieces: what is taken is as long as it says, in pieces that can be.
fn list(length: u64, bytes: &[u8]) {
    match check_pieces(bytes, length) {
        Ok(()) => {
            let pieces = pieces(bytes);
            let lengths = pieces.iter().map(|piece| u64::from(piece.bytes.get()));
            assert!((2..=PIECES_MAX).contains(&pieces.len()) && lengths.sum::<u64>() == length);
            let again: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_bytes()).collect();
            assert_eq!(again, bytes);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fuzz_target!(|bytes: &[u8]| {
    first_words(bytes);
    let Ok(mut header) = HeaderBytes::from_front(bytes) else { return };
    let payload_bytes = bytes.len() - HEADER_BYTES;
    for version in Versions::SUPPORTED.lowest()..=Versions::SUPPORTED.highest() {
        header.set_version(version);
        match parse_from_sender(version, &header, payload_bytes) {
            Ok(read) => {
                if let FromSender::Request(request) = read
                    && request.pieces > 0
                {
                    list(request.length.get(), &bytes[bytes.len() - request.list_bytes()..]);
                }
                check(version, &header, read.encode());
            }
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

//! Large messages that lie in several pieces. Here the key of a piece says which slabs of the message it is,
//! and pieces lie far from each other, the last one first.

use super::*;
use jet_wire::message::{PIECES_MAX, Piece};

/// Key of a message that lies in one piece.
pub(super) const WHOLE: u32 = u32::MAX;

/// Returns the piece that is these slabs of its message.
fn piece_of(first: u64, end: u64, bytes: u32) -> Piece {
    Piece::new(address_of(first), bytes, (first << 16 | end).try_into().unwrap())
}

/// Returns where the piece lies whose first slab is that one of its message.
fn address_of(first: u64) -> u64 {
    (0x1_0000 - first) << 32
}

/// Returns the pieces of a message, of about the same length each. A message that has too few slabs lies in
/// one piece, which has no list.
pub(super) fn in_pieces(length: u64, count: u64) -> Vec<Piece> {
    let slabs = length.div_ceil(4096);
    if count < 2 || slabs < count || slabs > 0xffff {
        return Vec::new();
    }
    let piece = |index: u64| {
        let (first, end) = (index * slabs / count, (index + 1) * slabs / count);
        let bytes = (end * 4096).min(length) - first * 4096;
        piece_of(first, end, bytes.try_into().unwrap())
    };
    (0..count).map(piece).collect()
}

pub(super) fn list(pieces: &[Piece]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| piece.to_bytes()).collect()
}

/// Checks that a READ lies within the piece that has its key, and returns its offset in the message.
pub(super) fn offset_of(remote: Remote, bytes: u32) -> u32 {
    let offset = if remote.key == WHOLE {
        remote.address
    } else {
        let (first, end) = (u64::from(remote.key >> 16), u64::from(remote.key & 0xffff));
        let within = remote.address.checked_sub(address_of(first)).expect("it is in its piece");
        assert!(within + u64::from(bytes) <= (end - first) * 4096, "{bytes} bytes from {within} on");
        first * 4096 + within
    };
    offset.try_into().expect("requests give address 0")
}

/// Returns the header of a request for such a message.
fn request(length: u64, pieces: usize, user_header: &[u8]) -> HeaderBytes {
    RequestHeader::encode(&RequestFields {
        sequence: 1,
        tag: 0,
        length,
        address: 0,
        key: 0,
        class: 0,
        pieces: pieces.try_into().unwrap(),
        crc32c: None,
        redelivered: false,
        wants_reply: false,
        user_header,
    })
}

#[test]
fn each_piece_is_read_from_where_it_lies_and_the_application_sees_one_message() {
    for user_header in [&[3u8; 64][..], &[3; 256]] {
        let mut bench = Bench::new(config());
        let (session, peer) = (bench.open("disk"), bench.join("disk"));
        // Two slabs; more than a fragment; a rest that is no whole slab.
        let pieces = [piece_of(0, 2, 8192), piece_of(2, 20, 73_728), piece_of(20, 21, 5)];
        let mut payload = if user_header.len() > 64 { user_header.to_vec() } else { vec![] };
        payload.extend(list(&pieces));
        bench.arrive(peer, &request(81_925, 3, user_header), &payload);
        bench.flush();
        let reads: Vec<_> =
            bench.world.reads.iter().map(|read| (read.2.key, read.2.address, read.3)).collect();
        let [first, second, third] = pieces.map(|piece| (piece.key.get(), piece.address.get()));
        let expected = [
            (first.0, first.1, 8192),
            (second.0, second.1, 65_536),
            (second.0, second.1 + 65_536, 8192),
            (third.0, third.1, 5),
        ];
        assert_eq!(reads, expected);
        (0..4).for_each(|_| bench.read_done());
        let (first, seen) = bench.delivery(session).unwrap();
        assert_eq!(seen, user_header);
        let rest: Vec<_> = (0..3).map(|_| bench.delivery(session).unwrap().0).collect();
        let offsets = [first].iter().chain(&rest).map(|part| (part.offset, part.bytes)).collect::<Vec<_>>();
        assert_eq!(offsets, [(0, 8192), (8192, 65_536), (73_728, 8192), (81_920, 5)]);
        for part in &rest {
            bench.release(session, part, false, 0);
        }
        bench.release(session, &first, true, 0);
        bench.flush();
        assert_eq!(bench.world.ends, [(peer.0, 1, AckStatus::Consumed)]);
        assert!(bench.whole());
    }
}

#[test]
fn a_list_that_is_not_the_message_costs_its_sender_the_connection() {
    let good = in_pieces(100_000, 3);
    let with = |at: usize, piece| {
        let mut pieces = good.clone();
        pieces[at] = piece;
        pieces
    };
    let lists = [
        (with(0, Piece::new(0, 0, 1)), 100_000),
        (with(0, Piece::new(0, 4095, 1)), 100_000),
        (with(1, Piece::new(u64::MAX - 1, good[1].bytes.get(), 1)), 100_000),
        (good.clone(), 99_999),
        (good.clone(), u64::MAX),
    ];
    for (pieces, length) in lists {
        let mut bench = Bench::new(config());
        let (_, peer) = (bench.open("disk"), bench.join("disk"));
        bench.arrive(peer, &request(length, pieces.len(), b""), &list(&pieces));
        bench.flush();
        assert_eq!(bench.world.disconnects, [peer.0], "{pieces:?} of {length}");
        assert!(bench.world.reads.is_empty());
        bench.receiver.handle_peer_lost(peer);
        bench.flush();
        assert!(bench.whole());
    }
}

#[test]
fn pieces_are_for_those_who_agreed_on_them() {
    let pieces = in_pieces(100_000, PIECES_MAX as u64);
    for (features, agreed) in [(features::ALL, true), (features::ALL & !features::GATHER, false)] {
        let mut bench = Bench::new(config());
        let (_, peer) = (bench.open("disk"), bench.join_as("disk", 42, features));
        bench.arrive(peer, &request(100_000, PIECES_MAX, b""), &list(&pieces));
        bench.flush();
        assert_eq!((bench.world.disconnects.is_empty(), bench.world.reads.is_empty()), (agreed, !agreed));
    }
}

#[test]
fn a_request_is_corrupt_where_its_list_lies_in_a_slab_that_was_lost() {
    let mut bench = Bench::new(config());
    let (_, peer) = (bench.open("disk"), bench.join("disk"));
    let (_, lost) = bench.world.posted[0];
    bench.lose(Run { first: lost, count: 1 });
    // What lies there may be anything.
    bench.arrive(peer, &request(100_000, 3, b""), &[0xff; 48]);
    bench.flush();
    assert_eq!(bench.world.ends, [(peer.0, 1, AckStatus::Corrupt)]);
    assert!(bench.world.reads.is_empty() && bench.world.disconnects.is_empty());
}

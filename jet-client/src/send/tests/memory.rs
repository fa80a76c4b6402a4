//! Tests of memory of the program's own, and of messages that lie in several pieces.

use super::driver::made;
use super::protocol::{connected, options, sent, welcome};
use crate::send::{NotGathered, SendError, SendMemory, SubmitError, TakeError};
use jet_fabric::Address;
use jet_wire::message::AckStatus;
use jet_wire::message::hello::{Welcome, features};
use proptest::prelude::*;

fn address() -> Address {
    Address::Tcp("127.0.0.1:1".to_owned())
}

proptest! {
    /// Checks against a map of bytes that buffers never overlap, and that what was dropped is free.
    #[test]
    fn a_byte_has_one_buffer(ops in prop::collection::vec((0..70usize, 0..20usize, 0..6usize), 1..120)) {
        const UNIT: usize = 1000;
        let memory = SendMemory::new(64 * UNIT).unwrap();
        let units = memory.bytes().div_ceil(UNIT);
        let mut owners = vec![None; units];
        let mut buffers = Vec::new();
        for (id, (first, count, drops)) in ops.into_iter().enumerate() {
            let range = first * UNIT..(first + count) * UNIT;
            let is_free = |owners: &[Option<usize>]| owners[first..first + count].iter().all(Option::is_none);
            match memory.take(range.clone()) {
                Ok(mut buffer) => {
                    prop_assert!(count > 0 && range.end <= memory.bytes() && is_free(&owners));
                    prop_assert_eq!((buffer.len(), buffer.capacity()), (count * UNIT, count * UNIT));
                    buffer.fill(u8::try_from(id % 251).unwrap());
                    owners[first..first + count].fill(Some(id));
                    buffers.push((id, buffer));
                }
                Err(TakeError::Empty { range: of }) => prop_assert!(count == 0 && of == range),
                Err(TakeError::Beyond { bytes, .. }) => {
                    prop_assert!(range.end > bytes && bytes == memory.bytes());
                }
                Err(TakeError::Taken { by, .. }) => {
                    prop_assert!(by.start < range.end && by.end > range.start);
                    prop_assert!(!is_free(&owners));
                }
            }
            if drops == 0 && !buffers.is_empty() {
                let (gone, buffer) = buffers.swap_remove(id % buffers.len());
                drop(buffer);
                owners.iter_mut().filter(|owner| **owner == Some(gone)).for_each(|owner| *owner = None);
            }
            for (id, buffer) in &buffers {
                prop_assert!(buffer.iter().all(|byte| usize::from(*byte) == id % 251));
            }
        }
    }
}

#[test]
fn a_buffer_of_memory_that_is_not_registered_is_given_back() {
    let (mut driver, _script) = made(address());
    let memory = SendMemory::new(100_000).unwrap();
    let buffer = memory.take(8192..8292).unwrap();
    let place = buffer.as_ptr();
    let not_sent = driver.send(0, 1, buffer).unwrap_err();
    assert_eq!((not_sent.error, not_sent.buffer.as_ptr()), (SendError::NotRegistered, place));
    driver.register(&memory).unwrap();
    // Once is enough.
    driver.register(&memory.clone()).unwrap();
    driver.send(0, 1, not_sent.buffer).unwrap();
    assert!(memory.take(8192..8193).is_err(), "it is in flight");
    assert_eq!(
        driver.deregister(&memory).unwrap_err().to_string(),
        "messages of this memory are in flight: poll their ends before"
    );
    driver.cancel(crate::send::Ticket(1));
    let end = driver.poll_end().expect("it was not sent");
    assert_eq!((end.status, end.buffer.map(|buffer| buffer.as_ptr())), (AckStatus::Cancelled, Some(place)));
    assert!(memory.take(8192..8193).is_ok(), "the buffer was dropped");
    driver.deregister(&memory).unwrap();
    driver.deregister(&memory).unwrap();
    assert_eq!(driver.send(0, 1, memory.take(0..1).unwrap()).unwrap_err().error, SendError::NotRegistered);
}

#[test]
fn pieces_that_are_no_message_are_given_back_as_they_were() {
    let (mut driver, _script) = made(address());
    let (mut other, _other_script) = made(address());
    let of = |driver: &mut crate::send::Driver, lengths: &[usize]| -> Vec<_> {
        lengths.iter().map(|length| driver.buffer(*length).unwrap()).collect()
    };
    let many = vec![4096; 17];
    for (lengths, expected) in [
        (&[][..], SendError::Pieces { pieces: 0 }),
        (&many, SendError::Pieces { pieces: 17 }),
        (&[4096, 0], SendError::Piece { index: 1, bytes: 0 }),
        (&[0, 4096], SendError::Piece { index: 0, bytes: 0 }),
        (&[4096, 5000, 1], SendError::Piece { index: 1, bytes: 5000 }),
        (&[0], SendError::Piece { index: 0, bytes: 0 }),
    ] {
        let pieces = of(&mut driver, lengths);
        let places: Vec<_> = pieces.iter().map(|piece| piece.as_ptr()).collect();
        let NotGathered { error, pieces } = driver.send_gathered(0, 1, pieces).unwrap_err();
        assert_eq!(error, expected);
        assert_eq!(pieces.iter().map(|piece| piece.as_ptr()).collect::<Vec<_>>(), places);
    }
    let mut pieces = of(&mut driver, &[4096]);
    pieces.extend(of(&mut other, &[4096]));
    assert_eq!(driver.send_gathered(0, 1, pieces).unwrap_err().error, SendError::ForeignBuffer);
    let pieces = of(&mut driver, &[4096, 8192, 1]);
    driver.send_gathered(0, 1, pieces).unwrap();
    driver.cancel(crate::send::Ticket(1));
    let end = driver.poll_end().expect("it was not sent");
    let lengths: Vec<_> = end.pieces.iter().map(|piece| piece.len()).collect();
    assert_eq!(
        (end.status, end.buffer.is_none(), lengths),
        (AckStatus::Cancelled, true, vec![4096, 8192, 1])
    );
}

#[cfg(feature = "bytes")]
#[test]
fn bytes_are_sent_from_where_they_lie_and_others_are_refused() {
    let (mut driver, _script) = made(address());
    let memory = SendMemory::new(1 << 20).unwrap();
    driver.register(&memory).unwrap();
    let whole = bytes::Bytes::from(memory.take(4096..104_096).unwrap());
    let (part, elsewhere) = (whole.slice(10..90_000), bytes::Bytes::from(vec![0; 4097]));
    assert_eq!(driver.send_bytes(0, 1, &elsewhere), Err(SendError::NotRegistered));
    // A copy of few bytes needs no registered memory.
    driver.send_bytes(0, 1, &elsewhere.slice(1..)).unwrap();
    let ticket = driver.send_bytes(0, 2, &part).unwrap();
    drop((whole, part));
    assert!(memory.take(4096..4097).is_err() && driver.deregister(&memory).is_err(), "it is in flight");
    driver.cancel(ticket);
    let end = driver.poll_end().expect("it was not sent");
    assert_eq!((end.ticket, end.buffer.is_none(), end.pieces.len()), (ticket, true, 0));
    assert_eq!(end.bytes.expect("they come back").len(), 89_990);
    drop(memory.take(4096..104_096).expect("the last clone was dropped"));
    driver.deregister(&memory).unwrap();
}

#[test]
fn a_receiver_that_knows_no_pieces_gets_none() {
    let without = Welcome { features: features::ALL & !features::GATHER, ..welcome(9, 9) };
    let with = Welcome { features: features::ALL, ..without };
    let mut protocol = connected(options(), 0, 0);
    let connect = |protocol: &mut crate::send::protocol::Protocol, welcome: &Welcome| {
        protocol.handle_disconnected(0);
        let due_ns = protocol.poll_timeout().unwrap_or(0);
        protocol.handle_timeout(due_ns);
        protocol.poll_action().expect("it connects again");
        protocol.handle_connected(welcome, due_ns);
    };
    connect(&mut protocol, &without);
    assert_eq!(protocol.submit_gathered(8192, 0), Err(SubmitError::NoGather));
    connect(&mut protocol, &with);
    let (first, _) = protocol.submit_gathered(8192, 0).unwrap();
    assert_eq!(sent(&mut protocol).len(), 1);
    let (second, _) = protocol.submit_gathered(8192, 0).unwrap();
    // Its connection ends, and the next receiver is an older one. What was sent may have been consumed.
    connect(&mut protocol, &without);
    assert!(protocol.poll_transmit().is_none());
    let mut ends: Vec<_> =
        std::iter::from_fn(|| protocol.poll_end()).map(|end| (end.index, end.status)).collect();
    ends.sort_by_key(|end| end.0);
    assert_eq!(ends, [(first, AckStatus::PeerLost), (second, AckStatus::Denied)]);
    // Others are sent as before.
    protocol.submit_large(8192, 0).unwrap();
    assert!(protocol.poll_transmit().is_some());
}

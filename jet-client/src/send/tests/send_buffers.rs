//! Tests of send buffers: their length, and that one that was not sent comes back.

use super::driver::made;
use crate::send::{NotSent, SendError, SubmitError};
use jet_fabric::Address;

fn address() -> Address {
    Address::Tcp("127.0.0.1:1".to_owned())
}

#[test]
fn a_buffer_that_was_not_sent_is_given_back_as_it_was() {
    let (mut driver, _script) = made(address());
    let (mut other, _other_script) = made(address());
    let mut buffer = other.buffer(3000).unwrap();
    buffer.fill(7);
    let place = buffer.as_ptr();
    let NotSent { error, buffer } = driver.send(0, 1, buffer).unwrap_err();
    assert_eq!((error, buffer.as_ptr()), (SendError::ForeignBuffer, place));
    let NotSent { error, mut buffer } = driver.send_small_buffer(0, 1, buffer).unwrap_err();
    assert_eq!((error, buffer.as_ptr()), (SendError::ForeignBuffer, place));
    // As many as may be in flight.
    while other.send_small(0, 1, b"").is_ok() {}
    for small in [false, true] {
        let sent = if small { other.send_small_buffer(0, 1, buffer) } else { other.send(0, 1, buffer) };
        let not_sent = sent.unwrap_err();
        assert!(not_sent.is_would_block());
        assert_eq!(not_sent.error, SendError::Submit(SubmitError::WouldBlock));
        assert_eq!(not_sent.to_string(), not_sent.error.to_string());
        buffer = not_sent.buffer;
        assert_eq!((buffer.as_ptr(), buffer.len()), (place, 3000));
        assert!(buffer.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn the_length_changes_within_the_capacity_and_the_bytes_stay() {
    let (mut driver, _script) = made(address());
    for (bytes, capacity) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (100_000, 1 << 17)] {
        let buffer = driver.buffer(bytes).unwrap();
        assert_eq!((buffer.len(), buffer.capacity()), (bytes, capacity));
    }
    let mut buffer = driver.buffer(5000).unwrap();
    buffer.set_length(8192);
    assert_eq!((buffer.len(), buffer[8191]), (8192, 0));
    buffer.fill(7);
    buffer.set_length(10);
    assert_eq!(&buffer[..], &[7; 10]);
    buffer.fill(1);
    buffer.set_length(0);
    assert!(buffer.is_empty());
    buffer.set_length(8192);
    assert!(buffer[..10].iter().all(|byte| *byte == 1) && buffer[10..].iter().all(|byte| *byte == 7));
    assert_eq!(buffer.capacity(), 8192);
}

#[test]
#[should_panic(expected = "length 4097 is out of range for a buffer of capacity 4096")]
fn a_length_beyond_the_capacity_panics() {
    let (mut driver, _script) = made(address());
    driver.buffer(10).unwrap().set_length(4097);
}

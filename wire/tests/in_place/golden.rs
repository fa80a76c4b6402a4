//! Golden bytes: the layout does not drift. The messages and their bytes follow the table in the module's
//! text.

use crate::messages::{Batch, Extent, Mode, Nothing, Numbers, Step, WriteRequest, written};
use jet_wire::in_place::{Head, InPlace};

fn extent(first_block: u64, blocks: u32) -> Extent {
    Extent { first_block: first_block.into(), blocks: blocks.into() }
}

/// Parses text with two hexadecimal digits a byte. In each line, text behind a `|` is a comment.
fn hex(text: &str) -> Vec<u8> {
    let digits = text.lines().map(|line| line.split('|').next().unwrap_or("")).collect::<String>();
    let digits: Vec<char> = digits.chars().filter(|digit| !digit.is_whitespace()).collect();
    digits.chunks(2).map(|two| u8::from_str_radix(&two.iter().collect::<String>(), 16).unwrap()).collect()
}

#[track_caller]
fn is<'a, T: InPlace<'a> + PartialEq + std::fmt::Debug>(message: T, bytes: &'a [u8]) {
    assert_eq!(written(&message), bytes);
    assert_eq!(T::read(bytes), Ok(message));
}

fn write_request() -> WriteRequest<'static> {
    // Constants only, so that they live for ever.
    const EXTENTS: [(u64, u32); 2] = [(0x40, 8), (0x80, 16)];
    let extents = EXTENTS.map(|(first, blocks)| extent(first, blocks));
    WriteRequest {
        volume: 0x0102_0304_0506_0708,
        offset: 4096,
        flags: 0x8001,
        extents: Box::leak(Box::new(extents)),
        name: "j\u{e9}z",
        payload: &[0, 1, 2],
        trace: 0xfeed,
        tenant: Some("t1"),
    }
}

#[test]
fn a_request() {
    let bytes = hex("
        02 02 3200 53000000        | version 2, kind 2, 50 bytes are fixed, 83 in all
        0807060504030201           | volume
        0010000000000000           | offset
        0180                       | flags
        02000000                   | extents: two
        04000000                   | name: four bytes
        03000000                   | payload: three bytes
        edfe000000000000           | trace, since version 2
        02000000                   | tenant: two bytes
        4000000000000000 08000000  | the extents
        8000000000000000 10000000
        6ac3a97a                   | name
        000102                     | payload
        7431                       | tenant
    ");
    is(write_request(), &bytes);
    assert_eq!(Head::peek(&bytes), Some(Head { version: 2, kind: 2, fixed_bytes: 50, bytes: 83 }));
}

#[test]
fn a_request_without_what_is_optional() {
    let bytes = hex("
        02 02 3200 32000000
        0000000000000000 0000000000000000 0000
        00000000 00000000 00000000
        0000000000000000
        ffffffff         | tenant: none
    ");
    let request = WriteRequest {
        volume: 0,
        offset: 0,
        flags: 0,
        extents: &[],
        name: "",
        payload: &[],
        trace: 0,
        tenant: None,
    };
    is(request, &bytes);
}

#[test]
fn numbers() {
    let bytes = hex("
        01 01 6000 60000000
        01 0200 03000000 0400000000000000 05000000000000000000000000000000
        ff feff fdffffff fcffffffffffffff fbffffffffffffffffffffffffffffff
        01               | true
        68656c6c6f       | five bytes
        02               | Mode::Write
        01 09000000      | Some(9)
        00 00            | None
        0700000000000000 08000000
    ");
    let numbers = Numbers {
        a: 1,
        b: 2,
        c: 3,
        d: 4,
        e: 5,
        f: -1,
        g: -2,
        h: -3,
        i: -4,
        j: -5,
        k: true,
        l: *b"hello",
        m: Mode::Write,
        n: Some(9),
        o: None,
        p: extent(7, 8),
    };
    is(numbers, &bytes);
}

#[test]
fn nested_messages_and_lists() {
    let inner = WriteRequest { extents: &[], name: "n", payload: &[], tenant: None, ..write_request() };
    let bytes = hex("
        01 03 2000 5d000000
        64696765         | digest
        33000000         | first: 51 bytes
        02000000         | steps: two
        ffffffff         | second: none
        02000000         | comment: two bytes
        00000000         | more: a list of none
        02 02 3200 33000000
        0807060504030201 0010000000000000 0180 00000000 01000000 00000000 edfe000000000000 ffffffff
        6e
        01 00 0500
        02 01 0600
        6f6b
    ");
    let steps = [
        Step { mode: Mode::Read, last: false, blocks: 5.into() },
        Step { mode: Mode::Write, last: true, blocks: 6.into() },
    ];
    let batch = Batch {
        digest: b"dige",
        first: inner,
        steps: &steps,
        second: None,
        comment: Some(b"ok"),
        more: Some(&[]),
    };
    assert_eq!(written(&batch), bytes);
    assert_eq!(Batch::read(&bytes), Ok(batch));
}

#[test]
fn nothing() {
    is(Nothing {}, &hex("ff ff 0800 08000000"));
}

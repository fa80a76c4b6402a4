//! Fuzzing of in-place messages: any bytes are read as messages of several shapes. Reading must not panic,
//! and what was read must be written back as it was.

#![no_main]

use jet_wire::in_place::{DecodeError, Head, InPlace};
use libfuzzer_sys::fuzz_target;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Extent {
    first_block: U64,
    blocks: U32,
}

#[derive(Clone, Copy, Debug, PartialEq, TryFromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(u8)]
enum Mode {
    Read = 1,
    Write = 2,
    Trim = 200,
}

#[derive(Clone, Copy, Debug, PartialEq, TryFromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Step {
    mode: Mode,
    last: bool,
    blocks: U16,
}

#[derive(Debug, PartialEq, InPlace)]
#[in_place(kind = 1, version = 1)]
struct Fixed<'a> {
    count: u32,
    wide: i128,
    urgent: bool,
    mode: Mode,
    step: Step,
    deadline: Option<u64>,
    fallback: Option<Mode>,
    digest: &'a [u8; 7],
}

#[derive(Debug, PartialEq, InPlace)]
#[in_place(kind = 2, version = 1)]
struct Old<'a> {
    volume: u64,
    name: &'a str,
    extents: &'a [Extent],
}

#[derive(Debug, PartialEq, InPlace)]
#[in_place(kind = 2, version = 3)]
struct New<'a> {
    volume: u64,
    name: &'a str,
    extents: &'a [Extent],
    #[in_place(since = 2)]
    mode: Option<Mode>,
    #[in_place(since = 2)]
    tenant: Option<&'a str>,
    #[in_place(since = 3)]
    steps: &'a [Step],
    #[in_place(since = 3)]
    payload: &'a [u8],
}

#[derive(Debug, PartialEq, InPlace)]
#[in_place(kind = 3, version = 1)]
struct Nest<'a> {
    #[in_place(nested)]
    first: Fixed<'a>,
    name: &'a str,
    #[in_place(nested)]
    second: Option<New<'a>>,
    #[in_place(nested)]
    third: Option<Leaf>,
}

#[derive(Debug, PartialEq, InPlace)]
#[in_place(kind = 4, version = 2)]
struct Leaf {
    number: u16,
    #[in_place(since = 2)]
    more: [u8; 3],
}

/// Reads bytes as a message, writes the message and reads that again. `$exact`: all of the message has one
/// version, so in the reader's version the bytes must be the same again. It is a macro because the message
/// borrows, first from the given bytes and then from the written ones.
macro_rules! read {
    ($message:ident, $bytes:expr, $exact:expr) => {{
        let bytes: &[u8] = $bytes;
        let read = $message::read(bytes);
        match &read {
            Ok(message) => {
                let mut again = vec![0xa5; message.encoded_len()];
                assert_eq!(message.write_to(&mut again), Ok(again.len()));
                if $exact && bytes[0] == $message::VERSION {
                    assert_eq!(again, bytes);
                }
                assert_eq!($message::read(&again).as_ref(), Ok(message));
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                let _ = error.blame();
            }
        }
        match $message::read_prefix(bytes) {
            Ok((message, behind)) => {
                let stated = Head::peek(bytes).expect("was read").bytes as usize;
                assert_eq!(stated + behind.len(), bytes.len());
                assert_eq!(behind.is_empty(), read.is_ok());
                assert_eq!($message::read(&bytes[..stated]), Ok(message));
            }
            Err(error) => {
                let longer = matches!(read, Err(DecodeError::Length { .. }));
                assert!(longer || read == Err(error), "{read:?}, and as a prefix {error}");
            }
        }
    }};
}

fuzz_target!(|bytes: &[u8]| {
    read!(Fixed, bytes, true);
    read!(Old, bytes, true);
    read!(New, bytes, true);
    read!(Leaf, bytes, true);
    // A nested message of an older version is written in this one.
    read!(Nest, bytes, false);
});

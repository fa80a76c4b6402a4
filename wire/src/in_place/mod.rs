//! In-place messages: structs that are written as bytes, and read where those bytes lie (Jet §4.2.2).
//!
//! They are for an application's user header or its payload. A message is a plain struct.
//! `#[derive(InPlace)]` writes its bytes and reads them where they lie: bytes, text, lists and nested
//! messages are borrowed from the buffer that they arrived in. Nothing is allocated, and only fields of fixed
//! size are copied.
//!
//! ```
//! use jet_wire::in_place::{DecodeError, InPlace};
//! use zerocopy::little_endian::{U32, U64};
//! use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};
//!
//! #[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
//! #[repr(C)]
//! struct Extent {
//!     first_block: U64,
//!     blocks: U32,
//! }
//!
//! #[derive(Clone, Copy, Debug, PartialEq, TryFromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
//! #[repr(u8)]
//! enum Durability {
//!     Written = 1,
//!     Flushed = 2,
//! }
//!
//! #[derive(Debug, PartialEq, InPlace)]
//! #[in_place(kind = 7, version = 2)]
//! struct WriteRequest<'a> {
//!     volume: u64,
//!     durability: Durability,
//!     extents: &'a [Extent],
//!     name: &'a str,
//!     #[in_place(since = 2)]
//!     trace: Option<u64>,
//! }
//!
//! let request = WriteRequest {
//!     volume: 3,
//!     durability: Durability::Flushed,
//!     extents: &[Extent { first_block: 80.into(), blocks: 8.into() }],
//!     name: "journal",
//!     trace: Some(0xfeed),
//! };
//! let mut header = [0; 96];
//! let length = request.write_to(&mut header)?;
//! assert_eq!(length, request.encoded_len());
//!
//! let read = WriteRequest::read(&header[..length])?;
//! assert_eq!(read, request);
//! assert!(header.as_ptr_range().contains(&read.name.as_ptr()), "no copy");
//!
//! header[16] = 9; // What `durability` is not.
//! assert_eq!(
//!     WriteRequest::read(&header[..length]),
//!     Err(DecodeError::Value { field: "WriteRequest.durability", first_byte: 9 })
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Fields
//!
//! | field | in the fixed part | behind it |
//! |---|---|---|
//! | `u8` to `u128`, `i8` to `i128` | the value | |
//! | `T` | the value | |
//! | `&'a T` | the value, borrowed where it lies | |
//! | `&'a [u8]`, `&'a str` | the number of bytes | the bytes; text is checked to be UTF-8 |
//! | `&'a [T]` | the number of elements | the elements |
//! | another message, `#[in_place(nested)]` | the number of bytes | the message |
//! | `Option` of these, but not of `&'a T` | byte 0 or 1 before a value; number `0xffff_ffff`: `None` | |
//!
//! `T` is a [`Plain`] type: `bool`, `[u8; N]`, and structs and enums that derive zerocopy's traits. They are
//! checked as far as their type can be wrong (`bool`, enums). All are byte-aligned ([`zerocopy::Unaligned`]),
//! so a message may lie at any address, there is no padding, and no range can be misaligned. That is why a
//! struct's integers are `zerocopy::little_endian::U64` and the like.
//!
//! # Layout
//!
//! All numbers are little-endian. Nothing is aligned or padded.
//!
//! | bytes | |
//! |---|---|
//! | 0 | version, 1 to 255 |
//! | 1 | kind, 1 to 255: which message of the application it is |
//! | 2, 3 | bytes of the fixed part, these eight included: F |
//! | 4 to 7 | bytes of the whole message |
//! | 8 to F-1 | every field in the order of the struct: a value, or a number of 4 bytes |
//! | F to the end | what the numbers count, in the same order, without gaps |
//!
//! There are no offsets: where a field lies follows from the numbers before it. So ranges cannot overlap and
//! leave no gap, and one value has one form. Each field of variable length costs only 4 bytes, which matters
//! in a header of 96. The same value makes the same bytes. A message that was read in the reader's version
//! makes the same bytes again.
//!
//! # Versions
//!
//! A later version appends fields, marked `#[in_place(since = N)]`, at the end of the struct. Existing fields
//! are never moved, removed, or given another type.
//! * An older message: the fields that it does not have get their type's `Default` (`None` for an `Option`).
//! * A newer message: the fixed part's length shows where unknown fields begin. They are passed over, as is
//!   what lies behind the last known field.
//!
//! # Hostile bytes
//!
//! Reading never panics and never looks outside the bytes. The head is read once, as one word, and each
//! number once, so what is checked is what is used. A [`DecodeError`] refuses another kind, a wrong length, a
//! fixed part that the version cannot have, and numbers beyond the message. It also refuses bytes that no
//! field counts, bytes that are not a value of their type, and text that is not UTF-8.
#![forbid(unsafe_code)]

mod error;
#[doc(hidden)]
pub mod parts;

pub use error::{Blame, DecodeError, EncodeError};
/// Derives [`trait@InPlace`] for a struct with named fields and at most one lifetime.
///
/// `#[in_place(kind = N, version = N)]` on the struct, both 1 to 255; on fields `#[in_place(since = N)]` and
/// `#[in_place(nested)]`. [The module](self) lists the types that fields may have.
pub use jet_wire_derive::InPlace;

use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// Bytes of the head that every in-place message begins with.
pub const HEAD_BYTES: usize = 8;

/// A type whose values lie in a message as they lie in memory: byte-aligned, without padding, free of
/// references.
///
/// Do not implement it by hand: derive zerocopy's `FromBytes` (or `TryFromBytes`, where not all bytes are a
/// value), `IntoBytes`, `Immutable`, `KnownLayout` and `Unaligned`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no plain type for a field of an in-place message",
    note = "derive zerocopy's FromBytes (an enum: TryFromBytes), IntoBytes, Immutable, KnownLayout and \
            Unaligned; integers in it are U16, U32, U64, ... of zerocopy::little_endian",
    note = "another message is a field with #[in_place(nested)]; an integer under another name is written by \
            its own"
)]
pub trait Plain: TryFromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {}
impl<T: TryFromBytes + IntoBytes + Immutable + KnownLayout + Unaligned> Plain for T {}

/// A message that is written from a struct and read in place (Jet §4.2.2). It is derived: see [the
/// module](self).
pub trait InPlace<'a>: Sized {
    /// Name of the struct, as errors give it.
    const NAME: &'static str;
    /// Number of this message among those of one application, 1 to 255.
    const KIND: u8;
    /// Version that this build writes.
    const VERSION: u8;
    /// Bytes of the fixed part, head included: the least that a message has.
    const FIXED_BYTES: usize;

    /// Returns the number of bytes that [`Self::write_to`] writes.
    fn encoded_len(&self) -> usize;

    /// Writes the message to the front of `out` and returns its length in bytes. Nothing is written on an
    /// error.
    ///
    /// # Errors
    /// [`EncodeError`]: `out` is too short, or the message longer than its head can say.
    fn write_to(&self, out: &mut [u8]) -> Result<usize, EncodeError>;

    /// Reads the message at the front of `bytes`; also returns what lies behind it.
    ///
    /// # Errors
    /// [`DecodeError`] says what is wrong, where, and who is to blame.
    fn read_prefix(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError>;

    /// Reads a message that takes up all of `bytes`.
    ///
    /// # Errors
    /// The errors of [`Self::read_prefix`], and [`DecodeError::Length`] where something lies behind the
    /// message.
    fn read(bytes: &'a [u8]) -> Result<Self, DecodeError>;
}

/// The head of an in-place message, by which kinds are told apart before one of them is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Version that the message was written in.
    pub version: u8,
    /// Kind of the message, its [`InPlace::KIND`].
    pub kind: u8,
    /// Bytes of the fixed part, head included.
    pub fixed_bytes: u16,
    /// Bytes of the whole message.
    pub bytes: u32,
}

impl Head {
    /// Returns the head at the front of `bytes`, not checked yet; `None` where there are fewer than
    /// [`HEAD_BYTES`].
    #[inline]
    pub fn peek(bytes: &[u8]) -> Option<Self> {
        Some(Self::from_word(u64::from_le_bytes(*bytes.first_chunk()?)))
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        let [version, kind, fixed_low, fixed_high, a, b, c, d] = word.to_le_bytes();
        Self {
            version,
            kind,
            fixed_bytes: u16::from_le_bytes([fixed_low, fixed_high]),
            bytes: u32::from_le_bytes([a, b, c, d]),
        }
    }

    #[inline]
    fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let [fixed_low, fixed_high] = self.fixed_bytes.to_le_bytes();
        let [a, b, c, d] = self.bytes.to_le_bytes();
        [self.version, self.kind, fixed_low, fixed_high, a, b, c, d]
    }
}

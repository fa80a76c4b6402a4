//! Headers that announce or carry a message: small, and the request for a large one.

use super::{
    HEADER_BYTES, HeaderBytes, Kind, Prefix, REQUEST_INLINE_USER_HEADER_MAX, SMALL_USER_HEADER_MAX,
    USER_HEADER_MAX, flags,
};
use crate::SLAB_BYTES;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Header of a small message (payload <= 4 KiB, Jet §4.1.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SmallHeader {
    /// Common prefix; `count` is the user header's length.
    pub prefix: Prefix,
    /// Payload bytes behind the header, 0 to 4096.
    pub payload_bytes: U32,
    /// CRC32C of the payload where [`flags::CRC32C`] is set, else 0.
    pub crc32c: U32,
    /// The sender's own number for this message; its acknowledgement names it.
    pub sequence: U64,
    /// The application's word, delivered as it came.
    pub tag: U64,
    /// The application's header; the first `count` bytes count.
    pub user_header: [u8; SMALL_USER_HEADER_MAX],
}

/// Header that asks the receiver to READ a large message (Jet §3.2 step 2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// Common prefix; `count` is the user header's length.
    pub prefix: Prefix,
    /// CRC32C of the whole message where [`flags::CRC32C`] is set, else 0.
    pub crc32c: U32,
    /// The remote key of the region that holds the message.
    pub key: U32,
    /// The sender's own number for this message.
    pub sequence: U64,
    /// The application's word, delivered as it came.
    pub tag: U64,
    /// Message bytes, at least 1.
    pub length: U64,
    /// Where the message begins, in the terms of the NIC that registered it (an offset, or a virtual
    /// address).
    pub address: U64,
    /// Admission class asked for, 0 the most urgent.
    pub class: u8,
    /// Zero.
    pub reserved: [u8; 15],
    /// The user header where it fits; else it is the payload behind this header.
    pub user_header: [u8; REQUEST_INLINE_USER_HEADER_MAX],
}

const _: () = assert!(size_of::<SmallHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<RequestHeader>() == HEADER_BYTES);

/// What a small message's header says, for writing one.
#[derive(Clone, Copy, Debug)]
pub struct SmallFields<'a> {
    /// The sender's number for the message.
    pub sequence: u64,
    /// The application's word.
    pub tag: u64,
    /// Payload bytes, at most [`SLAB_BYTES`].
    pub payload_bytes: u32,
    /// CRC32C of the payload, if the receiver is to check it.
    pub crc32c: Option<u32>,
    /// Sent before on an earlier connection.
    pub redelivered: bool,
    /// At most [`SMALL_USER_HEADER_MAX`] bytes.
    pub user_header: &'a [u8],
}

/// What a request says, for writing one.
#[derive(Clone, Copy, Debug)]
pub struct RequestFields<'a> {
    /// The sender's number for the message.
    pub sequence: u64,
    /// The application's word.
    pub tag: u64,
    /// Message bytes.
    pub length: u64,
    /// Where it lies.
    pub address: u64,
    /// The key of the region it lies in.
    pub key: u32,
    /// Admission class asked for.
    pub class: u8,
    /// CRC32C of the whole message, if the receiver is to check it.
    pub crc32c: Option<u32>,
    /// Sent before on an earlier connection.
    pub redelivered: bool,
    /// At most [`USER_HEADER_MAX`] bytes. Above [`REQUEST_INLINE_USER_HEADER_MAX`] the caller sends them as
    /// the payload behind the header.
    pub user_header: &'a [u8],
}

fn flag_bits(crc32c: Option<u32>, redelivered: bool) -> u16 {
    (if crc32c.is_some() { flags::CRC32C } else { 0 }) | (if redelivered { flags::REDELIVERED } else { 0 })
}

impl SmallHeader {
    /// Writes a header.
    ///
    /// # Panics
    /// Where the user header or the payload is longer than a small message may have: the caller's own
    /// mistake.
    pub fn encode(fields: &SmallFields<'_>) -> HeaderBytes {
        let used = fields.user_header.len();
        assert!(
            used <= SMALL_USER_HEADER_MAX,
            "user header of {used} bytes: a small message carries at most 96"
        );
        assert!(
            fields.payload_bytes as usize <= SLAB_BYTES,
            "payload of {} bytes is not small",
            fields.payload_bytes
        );
        let mut user_header = [0; SMALL_USER_HEADER_MAX];
        user_header[..used].copy_from_slice(fields.user_header);
        let header = Self {
            prefix: Prefix::new(Kind::Small, flag_bits(fields.crc32c, fields.redelivered), short(used)),
            payload_bytes: fields.payload_bytes.into(),
            crc32c: fields.crc32c.unwrap_or(0).into(),
            sequence: fields.sequence.into(),
            tag: fields.tag.into(),
            user_header,
        };
        zerocopy::transmute!(header)
    }

    /// The user header's bytes.
    pub fn user_header(&self) -> &[u8] {
        &self.user_header[..usize::from(self.prefix.count.get()).min(SMALL_USER_HEADER_MAX)]
    }

    /// The payload's checksum, where the sender gave one.
    pub fn crc32c(&self) -> Option<u32> {
        (self.prefix.flags.get() & flags::CRC32C != 0).then(|| self.crc32c.get())
    }

    /// Whether this message was sent before on an earlier connection.
    pub fn redelivered(&self) -> bool {
        self.prefix.flags.get() & flags::REDELIVERED != 0
    }
}

impl RequestHeader {
    /// Writes a header. A user header longer than [`REQUEST_INLINE_USER_HEADER_MAX`] must follow as the
    /// payload.
    ///
    /// # Panics
    /// Where the user header is longer than [`USER_HEADER_MAX`].
    pub fn encode(fields: &RequestFields<'_>) -> HeaderBytes {
        let used = fields.user_header.len();
        assert!(used <= USER_HEADER_MAX, "user header of {used} bytes: a large message carries at most 256");
        let mut user_header = [0; REQUEST_INLINE_USER_HEADER_MAX];
        if used <= REQUEST_INLINE_USER_HEADER_MAX {
            user_header[..used].copy_from_slice(fields.user_header);
        }
        let header = Self {
            prefix: Prefix::new(Kind::Request, flag_bits(fields.crc32c, fields.redelivered), short(used)),
            crc32c: fields.crc32c.unwrap_or(0).into(),
            key: fields.key.into(),
            sequence: fields.sequence.into(),
            tag: fields.tag.into(),
            length: fields.length.into(),
            address: fields.address.into(),
            class: fields.class,
            reserved: [0; 15],
            user_header,
        };
        zerocopy::transmute!(header)
    }

    /// The user header's length, wherever it lies.
    pub fn user_header_bytes(&self) -> usize {
        usize::from(self.prefix.count.get())
    }

    /// Whether the user header is the payload behind this header.
    pub fn user_header_is_payload(&self) -> bool {
        self.user_header_bytes() > REQUEST_INLINE_USER_HEADER_MAX
    }

    /// The user header, where it lies in the header itself.
    pub fn inline_user_header(&self) -> Option<&[u8]> {
        self.user_header.get(..self.user_header_bytes())
    }

    /// The message's checksum, where the sender gave one.
    pub fn crc32c(&self) -> Option<u32> {
        (self.prefix.flags.get() & flags::CRC32C != 0).then(|| self.crc32c.get())
    }

    /// Whether this message was sent before on an earlier connection.
    pub fn redelivered(&self) -> bool {
        self.prefix.flags.get() & flags::REDELIVERED != 0
    }
}

fn short(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("bounded by USER_HEADER_MAX above")
}

//! Headers that announce or carry a message: small, and the request for a large one.

use super::{
    HEADER_BYTES, HeaderBytes, Kind, PIECE_BYTES, Prefix, REQUEST_INLINE_USER_HEADER_MAX,
    SMALL_USER_HEADER_MAX, USER_HEADER_MAX, flags,
};
use crate::SLAB_BYTES;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Header of a small message (payload <= 4 KiB, Jet §4.1.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SmallHeader {
    /// Prefix that all headers have; `count` is the user header's length.
    pub prefix: Prefix,
    /// Payload bytes behind the header, 0 to 4096.
    pub payload_bytes: U32,
    /// CRC32C of the payload where [`flags::CRC32C`] is set, else 0.
    pub crc32c: U32,
    /// Number that the sender gave this message; the acknowledgement names it.
    pub sequence: U64,
    /// Number that the sending program chose, delivered unchanged.
    pub tag: U64,
    /// User header of the sending program, in the first `count` bytes.
    pub user_header: [u8; SMALL_USER_HEADER_MAX],
}

/// Header that asks the receiver to READ a large message (Jet §3.2 step 2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// Prefix that all headers have; `count` is the user header's length.
    pub prefix: Prefix,
    /// CRC32C of the whole message where [`flags::CRC32C`] is set, else 0.
    pub crc32c: U32,
    /// Remote key of the region that holds the message.
    pub key: U32,
    /// Number that the sender gave this message.
    pub sequence: U64,
    /// Number that the sending program chose, delivered unchanged.
    pub tag: U64,
    /// Bytes of the message, at least 1.
    pub length: U64,
    /// Address of the message's first byte, in the terms of the NIC that registered it (an offset, or a
    /// virtual address).
    pub address: U64,
    /// Requested admission class, 0 the most urgent.
    pub class: u8,
    /// Pieces that the message lies in, where it lies in several: 2 to 16. Their list
    /// ([`Piece`](super::Piece)) is the end of the payload, and `address` and `key` are zero. 0: the message
    /// is at `address`. Not on connections of version 1.
    pub pieces: u8,
    /// Bytes without a meaning: zero. From version 2 on a reader skips the last eight.
    pub reserved: [u8; 14],
    /// User header where it fits; a longer one is the payload behind this header.
    pub user_header: [u8; REQUEST_INLINE_USER_HEADER_MAX],
}

const _: () = assert!(size_of::<SmallHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<RequestHeader>() == HEADER_BYTES);

/// Fields of a small message's header, for encoding one.
#[derive(Clone, Copy, Debug)]
pub struct SmallFields<'a> {
    /// Number that the sender gave the message.
    pub sequence: u64,
    /// Number that the sending program chose.
    pub tag: u64,
    /// Payload bytes, at most [`SLAB_BYTES`].
    pub payload_bytes: u32,
    /// CRC32C of the payload, if the receiver is to check it.
    pub crc32c: Option<u32>,
    /// Whether the message was sent before on an earlier connection.
    pub redelivered: bool,
    /// Whether the sender has memory for a reply.
    pub wants_reply: bool,
    /// User header, at most [`SMALL_USER_HEADER_MAX`] bytes.
    pub user_header: &'a [u8],
}

/// Fields of a request, for encoding one.
#[derive(Clone, Copy, Debug)]
pub struct RequestFields<'a> {
    /// Number that the sender gave the message.
    pub sequence: u64,
    /// Number that the sending program chose.
    pub tag: u64,
    /// Bytes of the message.
    pub length: u64,
    /// Address of the message.
    pub address: u64,
    /// Key of the region that the message lies in.
    pub key: u32,
    /// Requested admission class.
    pub class: u8,
    /// Pieces that the message lies in, where it lies in several; else 0. With pieces the caller gives 0 for
    /// `address` and `key`, and sends the list as the end of the payload.
    pub pieces: u8,
    /// CRC32C of the whole message, if the receiver is to check it.
    pub crc32c: Option<u32>,
    /// Whether the message was sent before on an earlier connection.
    pub redelivered: bool,
    /// Whether the sender has memory for a reply.
    pub wants_reply: bool,
    /// User header, at most [`USER_HEADER_MAX`] bytes. Above [`REQUEST_INLINE_USER_HEADER_MAX`] the caller
    /// sends it as the payload behind the header.
    pub user_header: &'a [u8],
}

fn flag_bits(crc32c: Option<u32>, redelivered: bool, wants_reply: bool) -> u16 {
    let bit = |is_set, bit| if is_set { bit } else { 0 };
    bit(crc32c.is_some(), flags::CRC32C)
        | bit(redelivered, flags::REDELIVERED)
        | bit(wants_reply, flags::WANTS_REPLY)
}

impl SmallHeader {
    /// Encodes a header.
    ///
    /// # Panics
    /// Panics if the user header or the payload is longer than a small message may have: the caller's own
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
            prefix: Prefix::new(
                Kind::Small,
                flag_bits(fields.crc32c, fields.redelivered, fields.wants_reply),
                short(used),
            ),
            payload_bytes: fields.payload_bytes.into(),
            crc32c: fields.crc32c.unwrap_or(0).into(),
            sequence: fields.sequence.into(),
            tag: fields.tag.into(),
            user_header,
        };
        zerocopy::transmute!(header)
    }

    /// Returns the user header's bytes.
    pub fn user_header(&self) -> &[u8] {
        &self.user_header[..usize::from(self.prefix.count.get()).min(SMALL_USER_HEADER_MAX)]
    }

    /// Returns the payload's checksum, if the sender gave one.
    pub fn crc32c(&self) -> Option<u32> {
        (self.prefix.flags.get() & flags::CRC32C != 0).then(|| self.crc32c.get())
    }

    /// Returns whether this message was sent before on an earlier connection.
    pub fn redelivered(&self) -> bool {
        self.prefix.flags.get() & flags::REDELIVERED != 0
    }

    /// Returns whether the sender has memory for a reply.
    #[inline]
    pub fn wants_reply(&self) -> bool {
        self.prefix.flags.get() & flags::WANTS_REPLY != 0
    }
}

impl RequestHeader {
    /// Encodes a header. A user header longer than [`REQUEST_INLINE_USER_HEADER_MAX`] must follow as the
    /// payload.
    ///
    /// # Panics
    /// Panics if the user header is longer than [`USER_HEADER_MAX`].
    pub fn encode(fields: &RequestFields<'_>) -> HeaderBytes {
        let used = fields.user_header.len();
        assert!(used <= USER_HEADER_MAX, "user header of {used} bytes: a large message carries at most 256");
        let mut user_header = [0; REQUEST_INLINE_USER_HEADER_MAX];
        if used <= REQUEST_INLINE_USER_HEADER_MAX {
            user_header[..used].copy_from_slice(fields.user_header);
        }
        let header = Self {
            prefix: Prefix::new(
                Kind::Request,
                flag_bits(fields.crc32c, fields.redelivered, fields.wants_reply),
                short(used),
            ),
            crc32c: fields.crc32c.unwrap_or(0).into(),
            key: fields.key.into(),
            sequence: fields.sequence.into(),
            tag: fields.tag.into(),
            length: fields.length.into(),
            address: fields.address.into(),
            class: fields.class,
            pieces: fields.pieces,
            reserved: [0; 14],
            user_header,
        };
        zerocopy::transmute!(header)
    }

    /// Returns the user header's length, wherever the user header lies.
    pub fn user_header_bytes(&self) -> usize {
        usize::from(self.prefix.count.get())
    }

    /// Returns whether the user header is the payload behind this header.
    pub fn user_header_is_payload(&self) -> bool {
        self.user_header_bytes() > REQUEST_INLINE_USER_HEADER_MAX
    }

    /// Returns the bytes behind this header: the user header, where that lies there, and the list of pieces.
    pub fn payload_bytes(&self) -> usize {
        let user_header = if self.user_header_is_payload() { self.user_header_bytes() } else { 0 };
        user_header + self.list_bytes()
    }

    /// Returns the bytes of the list of pieces, which is the end of the payload: 0 where there is none.
    pub fn list_bytes(&self) -> usize {
        usize::from(self.pieces) * PIECE_BYTES
    }

    /// Returns the user header, if it lies in the header itself.
    pub fn inline_user_header(&self) -> Option<&[u8]> {
        self.user_header.get(..self.user_header_bytes())
    }

    /// Returns the message's checksum, if the sender gave one.
    pub fn crc32c(&self) -> Option<u32> {
        (self.prefix.flags.get() & flags::CRC32C != 0).then(|| self.crc32c.get())
    }

    /// Returns whether this message was sent before on an earlier connection.
    pub fn redelivered(&self) -> bool {
        self.prefix.flags.get() & flags::REDELIVERED != 0
    }

    /// Returns whether the sender has memory for a reply.
    #[inline]
    pub fn wants_reply(&self) -> bool {
        self.prefix.flags.get() & flags::WANTS_REPLY != 0
    }
}

fn short(bytes: usize) -> u16 {
    u16::try_from(bytes).expect("bounded by USER_HEADER_MAX above")
}

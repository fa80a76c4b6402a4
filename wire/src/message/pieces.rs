//! Large messages that lie in several pieces of their sender's memory.

use super::HeaderError;
use crate::SLAB_BYTES;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The most pieces of a message.
pub const PIECES_MAX: usize = 16;
/// Bytes of a [`Piece`] in a request's list.
pub const PIECE_BYTES: usize = 16;
/// Bytes of the longest list of pieces.
pub const PIECES_BYTES_MAX: usize = PIECES_MAX * PIECE_BYTES;

/// A piece of a large message. The list of all of them, in the order of the message's bytes, is in the
/// request's payload, behind a user header that lies there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Piece {
    /// Address of the piece's first byte, in the terms of the NIC that registered it.
    pub address: U64,
    /// Bytes of the piece: a multiple of 4096, but for the last piece, which has at least one.
    pub bytes: U32,
    /// Remote key of the region that holds the piece.
    pub key: U32,
}

const _: () = assert!(size_of::<Piece>() == PIECE_BYTES);

impl Piece {
    /// Makes a piece.
    pub fn new(address: u64, bytes: u32, key: u32) -> Self {
        Self { address: address.into(), bytes: bytes.into(), key: key.into() }
    }

    /// Returns the piece as it is in a list.
    pub fn to_bytes(self) -> [u8; PIECE_BYTES] {
        zerocopy::transmute!(self)
    }
}

/// Checks the list of pieces of a message of `length` bytes, out of its bytes as they arrived.
///
/// All pieces but the last are whole slabs. So a receiver's slabs are full, and what it delivers of a message
/// in pieces is aligned as that of any other message.
///
/// # Errors
/// [`HeaderError::Pieces`]: the list is not 2 to [`PIECES_MAX`] pieces that are this message.
pub fn check_pieces(list: &[u8], length: u64) -> Result<(), HeaderError> {
    let wrong = |index| Err(HeaderError::Pieces { index });
    let count = list.len() / PIECE_BYTES;
    if !(2..=PIECES_MAX).contains(&count) || !list.len().is_multiple_of(PIECE_BYTES) {
        return wrong(count);
    }
    let mut sum = 0;
    for (index, piece) in pieces(list).iter().enumerate() {
        let bytes = piece.bytes.get();
        let is_last = index + 1 == count;
        let fits = bytes > 0 && (is_last || (bytes as usize).is_multiple_of(SLAB_BYTES));
        if !fits || piece.address.get().checked_add(u64::from(bytes)).is_none() {
            return wrong(index);
        }
        sum += u64::from(bytes);
    }
    if sum == length { Ok(()) } else { wrong(count) }
}

/// Returns the pieces of a list.
///
/// # Panics
/// Where the list does not end with a whole piece, as one that [`check_pieces`] took does.
pub fn pieces(list: &[u8]) -> &[Piece] {
    <[Piece]>::ref_from_bytes(list).expect("a list of whole pieces")
}

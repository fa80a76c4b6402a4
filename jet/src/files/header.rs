//! The user header of a message that carries (a part of) a file.

use super::path::{PathError, RelativePath};
use jet_wire::message::{SMALL_USER_HEADER_MAX, USER_HEADER_MAX};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of the convention.
pub const FILES_VERSION: u8 = 1;
/// Bytes of the fixed fields.
pub const FIXED_BYTES: usize = 32;
/// The longest path in a small message's header.
pub const SMALL_PATH_MAX: usize = SMALL_USER_HEADER_MAX - FIXED_BYTES;
/// The longest path in a large message's header.
pub const LARGE_PATH_MAX: usize = USER_HEADER_MAX - FIXED_BYTES;
/// The longest path at all: the payload of a small message.
pub const PATH_MAX: usize = jet_wire::SLAB_BYTES;
/// The tag of every message of this convention: "jetfiles" in ASCII.
pub const TAG: u64 = u64::from_be_bytes(*b"jetfiles");
/// The permission bits that travel: set-user-id and its like do not.
pub const MODE_MASK: u16 = 0o777;

/// What a message is. The value on the wire is the discriminant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A directory.
    Directory = 1,
    /// Bytes of a file.
    Piece = 2,
    /// A path, as the payload.
    Path = 3,
    /// The end of a file: all its pieces were consumed.
    Complete = 4,
    /// The sender gave the file up.
    Abandoned = 5,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fixed {
    version: u8,
    kind: u8,
    mode: U16,
    path_bytes: U16,
    reserved: U16,
    file_id: U64,
    file_bytes: U64,
    offset: U64,
}

const _: () = assert!(size_of::<Fixed>() == FIXED_BYTES);

/// Where the path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathField<'a> {
    /// In the header.
    Here(RelativePath<'a>),
    /// Said before in a path message of this sender and file id (or, of a path message, in its payload).
    Elsewhere,
}

/// What a header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader<'a> {
    /// What the message is.
    pub kind: Kind,
    /// Permission bits, within [`MODE_MASK`].
    pub mode: u16,
    /// The sender's number for the file.
    pub file_id: u64,
    /// The whole file's bytes.
    pub file_bytes: u64,
    /// Where the piece begins in the file.
    pub offset: u64,
    /// The path.
    pub path: PathField<'a>,
}

/// A header that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Too short, or its path is longer than what is there, or something follows the path.
    #[error("a file header of {bytes} bytes does not hold what it says")]
    Length {
        /// Its bytes.
        bytes: usize,
    },
    /// Another version.
    #[error(
        "file header version {version}, this build speaks {FILES_VERSION}; use the same Jet at both ends"
    )]
    Version {
        /// The version given.
        version: u8,
    },
    /// A kind that does not exist, or bits that must be zero.
    #[error("a file header of kind {kind} with bits that mean nothing")]
    Kind {
        /// The kind given.
        kind: u8,
    },
    /// The path is refused.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// A header as bytes; the first `length` count.
#[derive(Clone, Debug)]
pub struct EncodedHeader {
    bytes: [u8; USER_HEADER_MAX],
    length: usize,
}

impl AsRef<[u8]> for EncodedHeader {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl<'a> FileHeader<'a> {
    /// Writes it.
    ///
    /// # Panics
    /// Where the path is longer than [`LARGE_PATH_MAX`]: the caller's own mistake.
    pub fn encode(&self) -> EncodedHeader {
        let path = match self.path {
            PathField::Here(path) => path.as_bytes(),
            PathField::Elsewhere => &[],
        };
        assert!(path.len() <= LARGE_PATH_MAX, "a path of {} bytes fits no header", path.len());
        let fixed = Fixed {
            version: FILES_VERSION,
            kind: self.kind as u8,
            mode: (self.mode & MODE_MASK).into(),
            path_bytes: u16::try_from(path.len()).unwrap_or(u16::MAX).into(),
            reserved: 0.into(),
            file_id: self.file_id.into(),
            file_bytes: self.file_bytes.into(),
            offset: self.offset.into(),
        };
        let mut bytes = [0; USER_HEADER_MAX];
        bytes[..FIXED_BYTES].copy_from_slice(fixed.as_bytes());
        bytes[FIXED_BYTES..FIXED_BYTES + path.len()].copy_from_slice(path);
        EncodedHeader { bytes, length: FIXED_BYTES + path.len() }
    }

    /// Reads one that came from a stranger.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, HeaderError> {
        let length = HeaderError::Length { bytes: bytes.len() };
        let (fixed, rest) = Fixed::read_from_prefix(bytes).map_err(|_| length)?;
        if fixed.version != FILES_VERSION {
            return Err(HeaderError::Version { version: fixed.version });
        }
        let kind = match fixed.kind {
            1 => Kind::Directory,
            2 => Kind::Piece,
            3 => Kind::Path,
            4 => Kind::Complete,
            5 => Kind::Abandoned,
            kind => return Err(HeaderError::Kind { kind }),
        };
        if fixed.reserved.get() != 0 || fixed.mode.get() & !MODE_MASK != 0 {
            return Err(HeaderError::Kind { kind: fixed.kind });
        }
        if usize::from(fixed.path_bytes.get()) != rest.len() {
            return Err(length);
        }
        let path =
            if rest.is_empty() { PathField::Elsewhere } else { PathField::Here(RelativePath::new(rest)?) };
        Ok(Self {
            kind,
            mode: fixed.mode.get(),
            file_id: fixed.file_id.get(),
            file_bytes: fixed.file_bytes.get(),
            offset: fixed.offset.get(),
            path,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(path: PathField<'_>) -> FileHeader<'_> {
        FileHeader { kind: Kind::Piece, mode: 0o640, file_id: 7, file_bytes: 1 << 40, offset: 8 << 20, path }
    }

    #[test]
    fn a_header_reads_as_it_was_written() {
        let name = [b'a', 0xff, b'\n', b' '];
        for path in [PathField::Here(RelativePath::new(&name).unwrap()), PathField::Elsewhere] {
            let encoded = piece(path).encode();
            assert_eq!(FileHeader::decode(encoded.as_ref()).unwrap(), piece(path));
        }
        let small = vec![b'p'; SMALL_PATH_MAX];
        let encoded = piece(PathField::Here(RelativePath::new(&small).unwrap())).encode();
        assert_eq!(encoded.as_ref().len(), SMALL_USER_HEADER_MAX);
    }

    #[test]
    fn the_bytes_on_the_wire_are_these() {
        let encoded = piece(PathField::Here(RelativePath::new(b"a/b").unwrap())).encode();
        let mut expected = vec![1, 2, 0xa0, 0x01, 3, 0, 0, 0];
        expected.extend(7u64.to_le_bytes());
        expected.extend((1u64 << 40).to_le_bytes());
        expected.extend((8u64 << 20).to_le_bytes());
        expected.extend(b"a/b");
        assert_eq!(encoded.as_ref(), expected);
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let good = piece(PathField::Here(RelativePath::new(b"a/b").unwrap())).encode();
        let good = good.as_ref();
        for cut in 0..good.len() {
            assert_eq!(FileHeader::decode(&good[..cut]), Err(HeaderError::Length { bytes: cut }));
        }
        let broken = |at: usize, value: u8| {
            let mut bytes = good.to_vec();
            bytes[at] = value;
            FileHeader::decode(&bytes).unwrap_err().to_string()
        };
        assert!(broken(0, 9).contains("version 9"));
        assert!(broken(1, 0).contains("kind 0"));
        assert!(broken(3, 0x80).contains("mean nothing"));
        assert!(broken(6, 1).contains("mean nothing"));
        assert!(broken(4, 2).contains("does not hold"));
        assert!(broken(FIXED_BYTES, b'/').contains("absolute"));
    }
}

//! User header of a message that carries a file, a part of one, or a directory.

use super::path::{PathError, RelativePath};
use super::proof::{DIGEST_BYTES, Digest, Hash, Proof};
use jet_wire::message::{SMALL_USER_HEADER_MAX, USER_HEADER_MAX};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the convention for sending files, in every header.
pub const FILES_VERSION: u8 = 2;
/// Length of the header's fixed fields, in bytes.
pub const FIXED_BYTES: usize = 32;
/// Length of the longest path that fits a small message's header, in bytes.
pub const SMALL_PATH_MAX: usize = SMALL_USER_HEADER_MAX - FIXED_BYTES;
/// Length of the longest path that fits a large message's header, in bytes.
pub const LARGE_PATH_MAX: usize = USER_HEADER_MAX - FIXED_BYTES;
/// Length of the longest path that can be sent at all, in bytes. Such a path is the payload of a small
/// message.
pub const PATH_MAX: usize = jet_wire::SLAB_BYTES;
/// Tag of every message of the convention: "jetfiles" in ASCII.
pub const TAG: u64 = u64::from_be_bytes(*b"jetfiles");
/// Permission bits that are sent with a file or directory. The set-user-id, set-group-id and sticky bits are
/// not sent.
pub const MODE_MASK: u16 = 0o777;

/// Meaning of a message, with the fields that only this kind of message has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The directory exists, with these permission bits.
    Directory {
        /// Permission bits of the directory, within [`MODE_MASK`].
        mode: u16,
    },
    /// The payload is a whole file.
    Whole {
        /// Permission bits of the file, within [`MODE_MASK`].
        mode: u16,
        /// Hash of the payload, if the sender made one.
        proof: Option<Proof>,
    },
    /// The payload is the path of a file or directory. Later messages of this sender with this file id, which
    /// carry no path, are about that path.
    Path,
    /// A file of several messages begins: the receiver makes an empty part for the file. No other message
    /// makes a part.
    Begin {
        /// Length of the whole file, in bytes.
        file_bytes: u64,
        /// Kind of hash that [`Self::Complete`] will carry, if any.
        hash: Option<Hash>,
    },
    /// The payload is a piece of a file that has begun.
    Piece {
        /// Offset of the piece in the file, in bytes.
        offset: u64,
    },
    /// A range of a file that has begun is a hole.
    Hole {
        /// Offset of the hole in the file, in bytes.
        offset: u64,
        /// Length of the hole, in bytes.
        bytes: u64,
    },
    /// All pieces and holes of a file were consumed: the file is to take its name.
    Complete {
        /// Permission bits of the file, within [`MODE_MASK`].
        mode: u16,
        /// Hash of the whole file, if the sender made one.
        proof: Option<Proof>,
    },
    /// The sender gave the file up: the receiver removes the file's part.
    Abandoned,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Fixed {
    version: u8,
    kind: u8,
    mode: U16,
    path_bytes: U16,
    hash: u8,
    reserved: u8,
    file_id: U64,
    /// First of two numbers whose meaning depends on the kind: a length, an offset, an offset and a length,
    /// or the halves of a digest.
    first: U64,
    second: U64,
}

const _: () = assert!(size_of::<Fixed>() == FIXED_BYTES);

/// Place of the path that a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathField<'a> {
    /// The header carries the path.
    Here(RelativePath<'a>),
    /// An earlier path message of the same sender and file id carried the path. For a path message itself,
    /// its payload is the path.
    Elsewhere,
}

/// Contents of a file header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader<'a> {
    /// Meaning of the message.
    pub kind: Kind,
    /// Sender's number for the file. The sender takes another one each time it sends the file from its
    /// beginning.
    pub file_id: u64,
    /// Path that the message is about, or where to find it.
    pub path: PathField<'a>,
}

/// Reason why a file header cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The header is too short, or its length is not that of the fixed fields and the path together.
    #[error("a file header of {bytes} bytes does not hold what it says")]
    Length {
        /// Length of the header, in bytes.
        bytes: usize,
    },
    /// The header is of another version of the convention.
    #[error(
        "file header version {version}, this build speaks {FILES_VERSION}; use the same Jet at both ends"
    )]
    Version {
        /// Version in the header.
        version: u8,
    },
    /// The kind does not exist, or the header has bits set that must be zero.
    #[error("a file header of kind {kind} with bits that mean nothing")]
    Kind {
        /// Number of the kind in the header.
        kind: u8,
    },
    /// The path in the header is refused.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// File header as bytes. The first `length` bytes are the header, and the others are unused.
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

/// Fields of a header beside the path and the file id, as numbers.
#[derive(Default)]
struct Fields {
    number: u8,
    mode: u16,
    hash: u8,
    first: u64,
    second: u64,
}

impl Fields {
    fn proven(number: u8, mode: u16, proof: Option<Proof>) -> Self {
        let none = Self { number, mode, ..Self::default() };
        proof.map_or(none, |Proof { hash, digest }| {
            let (first, second) = halves(digest);
            Self { number, mode, hash: hash as u8, first, second }
        })
    }

    fn proof(&self) -> Option<Option<Proof>> {
        Some(match self.hash()? {
            Some(hash) => Some(Proof { hash, digest: digest_of(self.first, self.second) }),
            None if (self.first, self.second) == (0, 0) => None,
            None => return None,
        })
    }

    fn hash(&self) -> Option<Option<Hash>> {
        match self.hash {
            0 => Some(None),
            1 => Some(Some(Hash::Fast)),
            2 => Some(Some(Hash::Blake3)),
            _ => None,
        }
    }
}

fn halves(Digest(bytes): Digest) -> (u64, u64) {
    let wide = u128::from_le_bytes(bytes);
    #[allow(clippy::cast_possible_truncation)] // the lower half, and then the upper one
    (wide as u64, (wide >> 64) as u64)
}

fn digest_of(first: u64, second: u64) -> Digest {
    let bytes: [u8; DIGEST_BYTES] = (u128::from(second) << 64 | u128::from(first)).to_le_bytes();
    Digest(bytes)
}

impl Kind {
    fn fields(self) -> Fields {
        match self {
            Self::Directory { mode } => Fields { number: 1, mode, ..Fields::default() },
            Self::Piece { offset } => Fields { number: 2, first: offset, ..Fields::default() },
            Self::Path => Fields { number: 3, ..Fields::default() },
            Self::Complete { mode, proof } => Fields::proven(4, mode, proof),
            Self::Abandoned => Fields { number: 5, ..Fields::default() },
            Self::Begin { file_bytes, hash } => Fields {
                number: 6,
                hash: hash.map_or(0, |hash| hash as u8),
                first: file_bytes,
                ..Fields::default()
            },
            Self::Hole { offset, bytes } => {
                Fields { number: 7, first: offset, second: bytes, ..Fields::default() }
            }
            Self::Whole { mode, proof } => Fields::proven(8, mode, proof),
        }
    }

    /// Makes the kind that the fields describe. Returns `None` if no such kind exists, or if a field is set
    /// that the kind does not have.
    fn of(fields: &Fields) -> Option<Self> {
        let Fields { number, mode, hash, first, second } = *fields;
        if mode & !MODE_MASK != 0 {
            return None;
        }
        let kind = match number {
            1 => Self::Directory { mode },
            2 => Self::Piece { offset: first },
            3 => Self::Path,
            4 => Self::Complete { mode, proof: fields.proof()? },
            5 => Self::Abandoned,
            6 => Self::Begin { file_bytes: first, hash: fields.hash()? },
            7 => Self::Hole { offset: first, bytes: second },
            8 => Self::Whole { mode, proof: fields.proof()? },
            _ => return None,
        };
        let again = kind.fields();
        let same = (mode, hash, first, second) == (again.mode, again.hash, again.first, again.second);
        same.then_some(kind)
    }
}

impl<'a> FileHeader<'a> {
    /// Writes the header as bytes.
    ///
    /// # Panics
    /// Panics where the path is longer than [`LARGE_PATH_MAX`]. The caller must not let that happen.
    pub fn encode(&self) -> EncodedHeader {
        let path = match self.path {
            PathField::Here(path) => path.as_bytes(),
            PathField::Elsewhere => &[],
        };
        assert!(path.len() <= LARGE_PATH_MAX, "a path of {} bytes fits no header", path.len());
        let fields = self.kind.fields();
        let fixed = Fixed {
            version: FILES_VERSION,
            kind: fields.number,
            mode: (fields.mode & MODE_MASK).into(),
            path_bytes: u16::try_from(path.len()).unwrap_or(u16::MAX).into(),
            hash: fields.hash,
            reserved: 0,
            file_id: self.file_id.into(),
            first: fields.first.into(),
            second: fields.second.into(),
        };
        let mut bytes = [0; USER_HEADER_MAX];
        bytes[..FIXED_BYTES].copy_from_slice(fixed.as_bytes());
        bytes[FIXED_BYTES..FIXED_BYTES + path.len()].copy_from_slice(path);
        EncodedHeader { bytes, length: FIXED_BYTES + path.len() }
    }

    /// Reads a header that came from an untrusted sender.
    ///
    /// # Errors
    /// [`HeaderError`] says what is wrong with the header.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, HeaderError> {
        let length = HeaderError::Length { bytes: bytes.len() };
        let (fixed, rest) = Fixed::read_from_prefix(bytes).map_err(|_| length)?;
        if fixed.version != FILES_VERSION {
            return Err(HeaderError::Version { version: fixed.version });
        }
        let fields = Fields {
            number: fixed.kind,
            mode: fixed.mode.get(),
            hash: fixed.hash,
            first: fixed.first.get(),
            second: fixed.second.get(),
        };
        let kind = Kind::of(&fields)
            .filter(|_| fixed.reserved == 0)
            .ok_or(HeaderError::Kind { kind: fixed.kind })?;
        if usize::from(fixed.path_bytes.get()) != rest.len() {
            return Err(length);
        }
        let path =
            if rest.is_empty() { PathField::Elsewhere } else { PathField::Here(RelativePath::new(rest)?) };
        Ok(Self { kind, file_id: fixed.file_id.get(), path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: Digest = Digest([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);

    fn whole(path: PathField<'_>) -> FileHeader<'_> {
        let proof = Some(Proof { hash: Hash::Fast, digest: DIGEST });
        FileHeader { kind: Kind::Whole { mode: 0o640, proof }, file_id: 7, path }
    }

    #[test]
    fn a_header_reads_as_it_was_written() {
        let name = [b'a', 0xff, b'\n', b' '];
        let proofs = [
            None,
            Some(Proof { hash: Hash::Fast, digest: DIGEST }),
            Some(Proof { hash: Hash::Blake3, digest: Digest([0; 16]) }),
        ];
        let mut kinds = vec![
            Kind::Directory { mode: 0o750 },
            Kind::Path,
            Kind::Begin { file_bytes: 1 << 40, hash: None },
            Kind::Begin { file_bytes: 1, hash: Some(Hash::Blake3) },
            Kind::Piece { offset: 8 << 20 },
            Kind::Hole { offset: 8 << 20, bytes: 1 << 50 },
            Kind::Abandoned,
        ];
        for proof in proofs {
            kinds.extend([Kind::Whole { mode: 0o640, proof }, Kind::Complete { mode: 0o777, proof }]);
        }
        for kind in kinds {
            for path in [PathField::Here(RelativePath::new(&name).unwrap()), PathField::Elsewhere] {
                let header = FileHeader { kind, file_id: u64::MAX, path };
                assert_eq!(FileHeader::decode(header.encode().as_ref()).unwrap(), header);
            }
        }
        let small = vec![b'p'; SMALL_PATH_MAX];
        let encoded = whole(PathField::Here(RelativePath::new(&small).unwrap())).encode();
        assert_eq!(encoded.as_ref().len(), SMALL_USER_HEADER_MAX);
    }

    #[test]
    fn the_bytes_on_the_wire_are_these() {
        let encoded = whole(PathField::Here(RelativePath::new(b"a/b").unwrap())).encode();
        let mut expected = vec![2, 8, 0xa0, 0x01, 3, 0, 1, 0];
        expected.extend(7u64.to_le_bytes());
        expected.extend(DIGEST.0);
        expected.extend(b"a/b");
        assert_eq!(encoded.as_ref(), expected);
        let hole = Kind::Hole { offset: 8 << 20, bytes: 4096 };
        let encoded = FileHeader { kind: hole, file_id: 7, path: PathField::Elsewhere }.encode();
        let mut expected = vec![2, 7, 0, 0, 0, 0, 0, 0];
        expected.extend([7u64, 8 << 20, 4096].into_iter().flat_map(u64::to_le_bytes));
        assert_eq!(encoded.as_ref(), expected);
    }

    #[test]
    fn what_cannot_be_read_says_why() {
        let good = whole(PathField::Here(RelativePath::new(b"a/b").unwrap())).encode();
        let good = good.as_ref();
        for cut in 0..good.len() {
            assert_eq!(FileHeader::decode(&good[..cut]), Err(HeaderError::Length { bytes: cut }));
        }
        let broken = |at: usize, value: u8| {
            let mut bytes = good.to_vec();
            bytes[at] = value;
            FileHeader::decode(&bytes).unwrap_err().to_string()
        };
        assert!(broken(0, 1).contains("version 1"));
        assert!(broken(1, 0).contains("kind 0"));
        assert!(broken(3, 0x80).contains("mean nothing"));
        assert!(broken(6, 3).contains("mean nothing"), "a hash that does not exist");
        assert!(broken(6, 0).contains("mean nothing"), "a digest of no hash");
        assert!(broken(1, 1).contains("mean nothing"), "a directory with a digest");
        assert!(broken(7, 1).contains("mean nothing"));
        assert!(broken(4, 2).contains("does not hold"));
        assert!(broken(FIXED_BYTES, b'/').contains("absolute"));
    }
}

//! The user header of a message that carries (a part of) a file.

use super::path::{PathError, RelativePath};
use super::proof::{DIGEST_BYTES, Digest, Hash, Proof};
use jet_wire::message::{SMALL_USER_HEADER_MAX, USER_HEADER_MAX};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version of the convention.
pub const FILES_VERSION: u8 = 2;
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

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory {
        /// Permission bits, within [`MODE_MASK`].
        mode: u16,
    },
    /// A file of one message: its bytes are the payload.
    Whole {
        /// Permission bits.
        mode: u16,
        /// Of the payload.
        proof: Option<Proof>,
    },
    /// A path, as the payload.
    Path,
    /// A file of several messages begins: its part is made, empty. Only this makes one.
    Begin {
        /// The whole file's bytes.
        file_bytes: u64,
        /// What [`Self::Complete`] will prove it with.
        hash: Option<Hash>,
    },
    /// Bytes of a file that has begun.
    Piece {
        /// Where they belong.
        offset: u64,
    },
    /// Bytes of a file that has begun are a hole.
    Hole {
        /// Where it begins.
        offset: u64,
        /// Its length.
        bytes: u64,
    },
    /// All pieces and holes of a file were consumed: it is to take its name.
    Complete {
        /// Permission bits.
        mode: u16,
        /// Of the whole file.
        proof: Option<Proof>,
    },
    /// The sender gave the file up.
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
    /// As the kind has it: a length, an offset, an offset and a length, a digest.
    first: U64,
    second: U64,
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
    /// The sender's number for the file; another one each time that it is sent from its beginning.
    pub file_id: u64,
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

/// The fields beside path and file id, before they are bytes.
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

    /// `None`: no kind, or something is said that it does not have.
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

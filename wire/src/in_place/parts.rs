//! Functions that derived code calls. They are not for use by hand, and change without notice.

use super::{DecodeError, EncodeError, HEAD_BYTES, Head, InPlace, Plain};
use zerocopy::{IntoBytes, TryCastError};

/// Number that stands for `None` in the fixed part.
const NONE: u32 = u32::MAX;

/// Returns the number of bytes that a value of the type takes.
pub const fn size<T: Plain>() -> usize {
    size_of::<T>()
}

/// Returns the length of a fixed part in the form of the head.
///
/// # Panics
/// Panics at compile time if it is too long.
pub const fn fixed_bytes(bytes: usize) -> u16 {
    assert!(bytes <= u16::MAX as usize, "the fixed part of an in-place message has at most 65535 bytes");
    #[expect(clippy::cast_possible_truncation, reason = "asserted above")]
    let bytes = bytes as u16;
    bytes
}

/// Returns `N` bytes of the fixed part, from `AT` on.
#[inline(always)]
pub fn get<const AT: usize, const N: usize, const FIXED: usize>(fixed: &[u8; FIXED]) -> &[u8; N] {
    const { assert!(AT <= FIXED && N <= FIXED - AT) }
    fixed[AT..].first_chunk().expect("asserted above")
}

/// Writes `N` bytes into the fixed part, from `AT` on.
#[inline(always)]
pub fn put<const AT: usize, const N: usize, const FIXED: usize>(fixed: &mut [u8; FIXED], bytes: &[u8; N]) {
    const { assert!(AT <= FIXED && N <= FIXED - AT) }
    *fixed[AT..].first_chunk_mut().expect("asserted above") = *bytes;
}

/// Writes a value of a plain type into the fixed part, from `AT` on.
#[inline(always)]
pub fn put_plain<T: Plain, const AT: usize, const FIXED: usize>(fixed: &mut [u8; FIXED], value: &T) {
    const { assert!(AT <= FIXED && size_of::<T>() <= FIXED - AT) }
    fixed[AT..AT + size_of::<T>()].copy_from_slice(value.as_bytes());
}

/// Returns the elements of a list as bytes.
#[inline(always)]
pub fn list_bytes<T: Plain>(list: &[T]) -> &[u8] {
    list.as_bytes()
}

/// Returns the bytes of a number of bytes or elements. A larger length was refused by [`start`] before.
#[inline(always)]
pub fn number(count: usize) -> [u8; 4] {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the whole message is no longer than the number can say"
    )]
    let count = count as u32;
    count.to_le_bytes()
}

/// Returns the bytes of a number of bytes or elements, or the bytes that stand for `None`.
#[inline(always)]
pub fn number_or_none(count: Option<usize>) -> [u8; 4] {
    count.map_or(NONE.to_le_bytes(), number)
}

/// Begins a message of `bytes` bytes. Returns its fixed part, with the head in it, and the place behind it.
///
/// # Errors
/// [`EncodeError::TooLong`], or [`EncodeError::Room`] where `out` is too short.
#[inline(always)]
pub fn start<'o, const FIXED: usize>(
    message: &'static str,
    head: (u8, u8),
    bytes: usize,
    out: &'o mut [u8],
) -> Result<(&'o mut [u8; FIXED], &'o mut [u8]), EncodeError> {
    let room = out.len();
    let Ok(stated) = u32::try_from(bytes) else { return Err(EncodeError::TooLong { message, bytes }) };
    let place = out.get_mut(..bytes).and_then(|place| place.split_first_chunk_mut::<FIXED>());
    let Some((fixed, rest)) = place else {
        return Err(EncodeError::Room { message, needed: bytes, room });
    };
    let (version, kind) = head;
    let head = Head { version, kind, fixed_bytes: const { fixed_bytes(FIXED) }, bytes: stated };
    put::<0, HEAD_BYTES, FIXED>(fixed, &head.to_bytes());
    Ok((fixed, rest))
}

/// Writes bytes to the front of `rest`, and returns what is left of it.
///
/// # Errors
/// [`EncodeError::Room`] if the length was computed wrong.
#[inline(always)]
pub fn append<'o>(
    message: &'static str,
    rest: &'o mut [u8],
    bytes: &[u8],
) -> Result<&'o mut [u8], EncodeError> {
    let room = rest.len();
    let Some((place, rest)) = rest.split_at_mut_checked(bytes.len()) else {
        return Err(EncodeError::Room { message, needed: bytes.len(), room });
    };
    place.copy_from_slice(bytes);
    Ok(rest)
}

/// Writes a message to the front of `rest`; returns its length, and what is left of `rest`.
///
/// # Errors
/// The errors of [`InPlace::write_to`].
#[inline(always)]
pub fn append_nested<'a, 'o, T: InPlace<'a>>(
    message: &'static str,
    rest: &'o mut [u8],
    nested: &T,
) -> Result<(usize, &'o mut [u8]), EncodeError> {
    let (written, room) = (nested.write_to(rest)?, rest.len());
    match rest.split_at_mut_checked(written) {
        Some((_, rest)) => Ok((written, rest)),
        None => Err(EncodeError::Room { message, needed: written, room }),
    }
}

/// A message whose head is checked.
pub struct Opened<'a> {
    /// Name of the message.
    pub message: &'static str,
    /// Version of the message.
    pub version: u8,
    /// Bytes of the whole message.
    pub whole: &'a [u8],
    /// Bytes of the message behind its fixed part.
    pub rest: &'a [u8],
    /// Bytes behind the message.
    pub behind: &'a [u8],
}

/// Reads and checks a message's head. `known` is the reader's version and kind. `fixed` has the length of the
/// fixed part for each known version.
///
/// # Errors
/// [`DecodeError`] says what is wrong with the head.
#[inline(always)]
pub fn open<'a, const VERSIONS: usize>(
    message: &'static str,
    known: (u8, u8),
    fixed: &[u16; VERSIONS],
    bytes: &'a [u8],
) -> Result<Opened<'a>, DecodeError> {
    // The head is one word, read here and nowhere else.
    let Some(word) = bytes.first_chunk().copied().map(u64::from_le_bytes) else {
        return Err(DecodeError::Truncated { message, bytes: bytes.len() });
    };
    let (version, kind) = known;
    let now = Head { version, kind, fixed_bytes: fixed[VERSIONS - 1], bytes: 0 };
    let found = Head::from_word(word);
    // The reader's own version is the common case, and then everything but the length is known.
    if word & u64::from(u32::MAX) != u64::from_le_bytes(now.to_bytes()) {
        match other_head(kind, fixed, found) {
            OtherHead::Fits => {}
            OtherHead::Kind => return Err(DecodeError::Kind { message, expected: kind, found: found.kind }),
            OtherHead::Version => return Err(DecodeError::Version { message }),
            OtherHead::Fixed { expected } => {
                let Head { version, fixed_bytes: stated, .. } = found;
                return Err(DecodeError::Fixed { message, version, stated, expected });
            }
        }
    }
    let split = usize::try_from(found.bytes).ok().and_then(|stated| bytes.split_at_checked(stated));
    let rest = split.and_then(|(whole, _)| whole.get(usize::from(found.fixed_bytes)..));
    match (split, rest) {
        (Some((whole, behind)), Some(rest)) => {
            Ok(Opened { message, version: found.version, whole, rest, behind })
        }
        _ => Err(DecodeError::Length { message, stated: found.bytes, arrived: bytes.len() }),
    }
}

/// The result of checking a head that is not that of the reader's own version. It fits a register. An error
/// that a function returns in memory would force the message that is read out of registers, too.
enum OtherHead {
    Fits,
    Kind,
    Version,
    Fixed { expected: u16 },
}

#[cold]
#[inline(never)]
fn other_head(kind: u8, fixed: &[u16], found: Head) -> OtherHead {
    if found.kind != kind {
        return OtherHead::Kind;
    }
    let version = usize::from(found.version);
    if version == 0 {
        return OtherHead::Version;
    }
    let expected = fixed[version.min(fixed.len()) - 1];
    let stated = found.fixed_bytes;
    // A newer version has the fields that this one knows, and more.
    if stated == expected || (version > fixed.len() && stated > expected) {
        OtherHead::Fits
    } else {
        OtherHead::Fixed { expected }
    }
}

/// Returns the part of a message that a version has fixed. [`open`] has checked that it is there.
///
/// # Errors
/// [`DecodeError::Length`] if it is not.
#[inline(always)]
pub fn fixed_part<'a, const FIXED: usize>(opened: &Opened<'a>) -> Result<&'a [u8; FIXED], DecodeError> {
    let Opened { message, whole, .. } = *opened;
    whole.first_chunk().ok_or(DecodeError::Length { message, stated: 0, arrived: whole.len() })
}

/// Checks that nothing is left of a message whose version is known.
///
/// # Errors
/// [`DecodeError::Unclaimed`] if something is.
#[inline(always)]
pub fn end(version: u8, opened: &Opened<'_>, rest: &[u8]) -> Result<(), DecodeError> {
    if rest.is_empty() || opened.version > version {
        Ok(())
    } else {
        Err(DecodeError::Unclaimed { message: opened.message, bytes: rest.len() })
    }
}

/// Checks that nothing lies behind a message.
///
/// # Errors
/// [`DecodeError::Length`] if something does.
#[inline(always)]
pub fn alone(opened: &Opened<'_>) -> Result<(), DecodeError> {
    let Opened { message, whole, behind, .. } = *opened;
    if behind.is_empty() {
        return Ok(());
    }
    let stated = u32::try_from(whole.len()).unwrap_or(u32::MAX);
    Err(DecodeError::Length { message, stated, arrived: whole.len() + behind.len() })
}

/// Reads a value of a plain type.
///
/// # Errors
/// [`DecodeError::Value`] if the bytes are not one.
#[inline(always)]
pub fn plain<T: Plain, const N: usize>(field: &'static str, bytes: &[u8; N]) -> Result<T, DecodeError> {
    T::try_read_from_bytes(bytes).map_err(|_| no_value(field, bytes))
}

/// Borrows a value of a plain type where it lies.
///
/// # Errors
/// [`DecodeError::Value`] if the bytes are not one.
#[inline(always)]
pub fn plain_in_place<'a, T: Plain, const N: usize>(
    field: &'static str,
    bytes: &'a [u8; N],
) -> Result<&'a T, DecodeError> {
    T::try_ref_from_bytes(bytes).map_err(|_| no_value(field, bytes))
}

/// Returns whether a value is there. One that is not there must have zeros in its place, so that `None` has
/// one form.
///
/// # Errors
/// [`DecodeError::Value`] if the flag is neither 0 nor 1, or a missing value is not zeros.
#[inline(always)]
pub fn present<const N: usize>(field: &'static str, flag: u8, value: &[u8; N]) -> Result<bool, DecodeError> {
    match flag {
        1 => Ok(true),
        0 if *value == [0; N] => Ok(false),
        _ => Err(no_value(field, &[flag])),
    }
}

/// Reads a number of bytes or elements from the fixed part.
#[inline(always)]
pub fn count(bytes: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*bytes)
}

/// Reads a number of bytes or elements, or `None`, from the fixed part.
#[inline(always)]
pub fn count_or_none(bytes: &[u8; 4]) -> Option<u32> {
    Some(count(bytes)).filter(|count| *count != NONE)
}

/// Takes bytes off the front of `rest`.
///
/// # Errors
/// [`DecodeError::Range`] if fewer are left.
#[inline(always)]
pub fn bytes<'a>(field: &'static str, count: u32, rest: &mut &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let split = usize::try_from(count).ok().and_then(|count| rest.split_at_checked(count));
    let Some((taken, left)) = split else {
        return Err(DecodeError::Range { field, count, left: rest.len() });
    };
    *rest = left;
    Ok(taken)
}

/// Takes text off the front of `rest`.
///
/// # Errors
/// [`DecodeError::Range`] if fewer bytes are left, [`DecodeError::Utf8`] if they are not UTF-8.
#[inline(always)]
pub fn text<'a>(field: &'static str, count: u32, rest: &mut &'a [u8]) -> Result<&'a str, DecodeError> {
    crate::text::from_utf8(bytes(field, count, rest)?)
        .map_err(|error| DecodeError::Utf8 { field, valid_bytes: error.valid_up_to() })
}

/// Takes elements off the front of `rest`.
///
/// # Errors
/// [`DecodeError::Range`] if fewer are left, [`DecodeError::Element`] if one is not a value of the type.
#[inline(always)]
pub fn elements<'a, T: Plain>(
    field: &'static str,
    count: u32,
    rest: &mut &'a [u8],
) -> Result<&'a [T], DecodeError> {
    const { assert!(size_of::<T>() > 0, "elements of no bytes cannot be counted by the bytes of a message") }
    let Ok(elements) = usize::try_from(count) else {
        return Err(DecodeError::Range { field, count, left: rest.len() });
    };
    match <[T] as zerocopy::TryFromBytes>::try_ref_from_prefix_with_elems(rest, elements) {
        Ok((taken, left)) => {
            *rest = left;
            Ok(taken)
        }
        Err(TryCastError::Validity(_)) => Err(DecodeError::Element { field, index: values::<T>(rest) }),
        Err(_) => Err(DecodeError::Range { field, count, left: rest.len() }),
    }
}

/// Takes a message off the front of `rest`.
///
/// # Errors
/// [`DecodeError::Range`] if fewer bytes are left, and the errors of that message.
#[inline(always)]
pub fn nested<'a, T: InPlace<'a>>(
    field: &'static str,
    count: u32,
    rest: &mut &'a [u8],
) -> Result<T, DecodeError> {
    T::read(bytes(field, count, rest)?)
}

#[inline(always)]
fn no_value(field: &'static str, bytes: &[u8]) -> DecodeError {
    DecodeError::Value { field, first_byte: bytes.first().copied().unwrap_or(0) }
}

/// Returns the number of elements before the first that is not a value of the type.
#[cold]
#[inline(never)]
fn values<T: Plain>(bytes: &[u8]) -> usize {
    bytes.chunks_exact(size_of::<T>()).take_while(|element| T::try_ref_from_bytes(element).is_ok()).count()
}

//! Conversion of texts, bytes and structures that come from C.

use crate::code::{Code, Failure};
use std::ffi::{CStr, c_char};
use std::ptr::NonNull;
use std::time::Duration;

/// Reads a text that must not be null.
///
/// # Safety
/// Where `text` is not null, it ends with a zero byte.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::new(Code::Argument, format_args!("{name} is null")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|error| Failure::new(Code::Argument, format_args!("{name} is no UTF-8: {error}")))
}

/// Reads `bytes` bytes. `data` may be null only where `bytes` is 0.
///
/// # Safety
/// `bytes` bytes can be read at `data`, and nobody writes them meanwhile.
pub(crate) unsafe fn bytes<'a>(data: *const u8, bytes: usize) -> Result<&'a [u8], Failure> {
    if bytes == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(Code::Argument.into());
    }
    if isize::try_from(bytes).is_err() {
        return Err(Code::Size.into());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data, bytes) })
}

/// Place in the caller's memory for an answer.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Makes a place of a pointer. Fails where the pointer is null or not aligned.
    ///
    /// # Safety
    /// Where `place` is not null, it is the caller's to write, as large as a `T`, until the call ends.
    pub unsafe fn new(place: *mut T) -> Result<Self, Failure> {
        NonNull::new(place).filter(|place| place.is_aligned()).map(Self).ok_or(Code::Argument.into())
    }

    /// Makes the place of an answer that the caller may leave out by passing null.
    ///
    /// # Safety
    /// As for [`Self::new`].
    pub unsafe fn optional(place: *mut T) -> Result<Option<Self>, Failure> {
        // SAFETY: the caller's promise.
        if place.is_null() { Ok(None) } else { unsafe { Self::new(place) }.map(Some) }
    }

    #[inline]
    pub fn put(&self, value: T) {
        // SAFETY: the promise of `new`.
        unsafe { self.0.write(value) };
    }
}

/// The most bytes that a structure of any version has.
const STRUCTURE_BYTES_MAX: usize = 4096;

/// Reads a structure whose first field is its size as the caller knows it. Fields that the caller does not
/// know have the value of `default`. Fields that this library does not know must be 0: none is lost silently.
///
/// # Safety
/// Where `place` is not null, as many bytes can be read there as its first `size_t` says.
pub(crate) unsafe fn sized<T: Copy>(place: *const T, default: T) -> Result<T, Failure> {
    if place.is_null() || !place.is_aligned() {
        return Err(Code::Argument.into());
    }
    // SAFETY: the caller's promise; the structure begins with its size.
    let size = unsafe { place.cast::<usize>().read() };
    if !(size_of::<usize>()..=STRUCTURE_BYTES_MAX).contains(&size) {
        return Err(Failure::new(
            Code::Argument,
            format_args!("a structure says that it has {size} bytes: fill it by its _init function"),
        ));
    }
    let known = size_of::<T>();
    // SAFETY: the caller's promise.
    let newer = (known..size).any(|at| unsafe { place.cast::<u8>().add(at).read() } != 0);
    if newer {
        return Err(Failure::new(
            Code::Argument,
            format_args!(
                "a structure of {size} bytes has a setting that this library, which knows {known} of them, \
                 does not have: link a newer one"
            ),
        ));
    }
    let mut value = default;
    // SAFETY: both have as many bytes, and do not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(
            place.cast::<u8>(),
            (&raw mut value).cast::<u8>(),
            size.min(size_of::<T>()),
        );
    }
    Ok(value)
}

/// Place in the caller's memory for a structure, of which the caller knows the first `size` bytes.
pub(crate) struct OutSized<T> {
    place: NonNull<T>,
    size: usize,
}

impl<T: Copy> OutSized<T> {
    /// Makes a place of a pointer. Fails where the pointer is null or not aligned, or no structure has that
    /// size.
    ///
    /// # Safety
    /// Where `place` is not null, `size` bytes there are the caller's to write, until the call ends.
    pub unsafe fn new(place: *mut T, size: usize) -> Result<Self, Failure> {
        // SAFETY: only the pointer is looked at.
        let Out(place) = unsafe { Out::new(place) }?;
        if !(size_of::<usize>()..=STRUCTURE_BYTES_MAX).contains(&size) {
            return Err(Failure::new(
                Code::Argument,
                format_args!("a structure cannot have {size} bytes: give the sizeof of yours"),
            ));
        }
        Ok(Self { place, size })
    }

    /// Writes as much as the caller knows. Fields that only a newer header knows are set to 0.
    #[inline]
    pub fn put(&self, value: T) {
        if self.size == size_of::<T>() {
            // SAFETY: the promise of `new`.
            return unsafe { self.place.write(value) };
        }
        let (first, known) = (self.place.as_ptr().cast::<u8>(), self.size.min(size_of::<T>()));
        // SAFETY: the promise of `new`, and `value` is as long as what is copied.
        unsafe {
            std::ptr::write_bytes(first, 0, self.size);
            std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), first, known);
        }
    }
}

/// Writes as much of a structure as the caller knows, which is `size` bytes; see [`OutSized::put`].
///
/// # Safety
/// As for [`OutSized::new`].
pub(crate) unsafe fn put_sized<T: Copy>(place: *mut T, size: usize, value: &T) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { OutSized::new(place, size) }?.put(*value);
    Ok(())
}

/// Converts a timeout in nanoseconds; below zero: `None`, without limit.
pub(crate) fn timeout(ns: i64) -> Option<Duration> {
    u64::try_from(ns).ok().map(Duration::from_nanos)
}

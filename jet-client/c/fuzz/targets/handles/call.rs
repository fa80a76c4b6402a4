//! Calls of the library: what they may answer, the text of their errors, the memory that they take, and the
//! places in the caller's memory that they write.

use jet_client_c::{Code, jet_code_text, jet_error_text};
use std::ffi::{CStr, c_char, c_int};

/// Most memory that a call takes, in addition to what it keeps.
const CALL_BYTES_MAX: isize = 1 << 20;

/// Reads a text of the library's, which is never null and never empty.
fn text_at(text: *const c_char) -> String {
    assert!(!text.is_null(), "a null pointer for a text");
    // SAFETY: the library's texts end with a zero byte. It is read before the thread's next error.
    let text = unsafe { CStr::from_ptr(text) }.to_str().expect("UTF-8").to_owned();
    assert!(!text.is_empty(), "an empty text");
    text
}

/// Returns the text of a code, or of a status, whatever its number is.
pub fn meaning(text: extern "C" fn(c_int) -> *const c_char, number: c_int) -> String {
    text_at(text(number))
}

/// All calls so far.
#[derive(Default)]
pub struct Calls {
    /// Bytes that are in use since the first call: what living handles have, and the last error's text.
    pub bytes: isize,
    last_error: Option<String>,
}

impl Calls {
    /// Makes a call, and checks its code: it is one of `faults` where there are any, otherwise one of `good`.
    /// Returns whether the call succeeded.
    pub fn check(
        &mut self,
        name: &str,
        faults: &[Code],
        good: &[Code],
        call: impl FnOnce() -> c_int,
    ) -> Code {
        let (number, bytes, bytes_max) = jet_fuzz_memory::of(call);
        self.bytes += bytes;
        assert!(bytes_max <= CALL_BYTES_MAX, "{name} took {bytes_max} bytes");
        let text = text_at(jet_error_text());
        let expected = if faults.is_empty() { good } else { faults };
        let Some(code) = expected.iter().copied().find(|code| *code as c_int == number) else {
            panic!("{name} returns {number}, and not one of {expected:?}; the last error: {text}");
        };
        let meaning = meaning(jet_code_text, number);
        assert_ne!(meaning, "no code of Jet's", "code {number} has no text");
        if number < 0 {
            self.last_error = Some(text);
        } else if let Some(last) = &self.last_error {
            assert_eq!(text, *last, "{name} changed the text of the last error, and succeeded");
        }
        code
    }
}

/// How the caller names a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pointer {
    Good,
    Null,
    /// Not aligned.
    Crooked,
}

/// Bytes of a [`Place`], which the largest structure does not fill.
const PLACE_BYTES: usize = 256;

/// Memory of the caller's for one structure, with bytes before and behind it.
#[repr(C, align(16))]
pub struct Place {
    bytes: [u8; PLACE_BYTES],
    before: [u8; PLACE_BYTES],
    pointer: Pointer,
}

impl Place {
    /// Makes a place whose bytes nobody wrote yet.
    pub fn new(pointer: Pointer) -> Self {
        Self { bytes: [0xa5; PLACE_BYTES], before: [0xa5; PLACE_BYTES], pointer }
    }

    /// Makes a place that has a structure.
    pub fn of<T: Copy>(value: T, pointer: Pointer) -> Self {
        let mut place = Self::new(pointer);
        // SAFETY: within the bytes, which are long enough.
        unsafe { place.bytes.as_mut_ptr().add(place.offset()).cast::<T>().write_unaligned(value) };
        place.before = place.bytes;
        place
    }

    /// Makes a place that has a structure, and a word of zero behind it.
    pub fn of_given<T: Copy>(value: T, pointer: Pointer) -> Self {
        let mut place = Self::of(value, pointer);
        let end = place.offset() + size_of::<T>();
        place.bytes[end..end + 8].fill(0);
        place.before = place.bytes;
        place
    }

    fn offset(&self) -> usize {
        if self.pointer == Pointer::Crooked { 65 } else { 64 }
    }

    pub fn is_good(&self) -> bool {
        self.pointer == Pointer::Good
    }

    pub fn is_crooked(&self) -> bool {
        self.pointer == Pointer::Crooked
    }

    pub fn pointer<T>(&mut self) -> *mut T {
        assert!(64 + size_of::<T>() < PLACE_BYTES);
        if self.pointer == Pointer::Null {
            return std::ptr::null_mut();
        }
        // SAFETY: within the bytes.
        unsafe { self.bytes.as_mut_ptr().add(self.offset()).cast() }
    }

    /// Returns the structure, after checking that nothing beside it was written.
    ///
    /// # Safety
    /// The library, or [`Self::of`], wrote a `T` there.
    pub unsafe fn written<T: Copy>(&self) -> T {
        let (from, to) = (self.offset(), self.offset() + size_of::<T>());
        assert_eq!(self.bytes[..from], self.before[..from], "bytes before the structure were written");
        assert_eq!(self.bytes[to..], self.before[to..], "bytes behind the structure were written");
        // SAFETY: the caller's promise.
        unsafe { self.bytes.as_ptr().add(from).cast::<T>().read_unaligned() }
    }

    /// Checks that the call changed nothing.
    pub fn check_unchanged(&self, name: &str) {
        assert_eq!(self.bytes, self.before, "{name} failed, and changed the structure");
    }
}

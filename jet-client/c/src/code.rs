//! Result codes of the functions, and the text of the last error.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Result of a function. Codes below zero are errors, whose text [`jet_error_text`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// The call succeeded.
    Ok = 0,
    /// No result yet: nothing has arrived, or nothing arrived in time.
    Nothing = 1,
    /// All slices of the message were given.
    End = 2,
    /// An argument is invalid: a null pointer, a text that is no UTF-8, a structure of no known size.
    Argument = -1,
    /// The handle is not a living handle of the kind that the function takes: it was freed, or never was one.
    Handle = -2,
    /// Another thread is using the handle at this moment.
    Busy = -3,
    /// The slice, message or buffer is not, or no longer, one of this handle's.
    Key = -4,
    /// Too many messages are in flight: take ends, then try again.
    Full = -5,
    /// A length is greater than such a message, header or buffer may have.
    Size = -6,
    /// The sender was closed.
    Closed = -7,
    /// The address cannot be reached, or does not answer in time.
    Unreachable = -8,
    /// The daemon or the receiver refused, with a reason.
    Refused = -9,
    /// The other end sent something invalid: it is another version, or a process overwrote shared memory.
    Broken = -10,
    /// The daemon is gone: register again when it runs.
    Gone = -11,
    /// The rest of the message will not arrive: the slices that came are not the message.
    Withdrawn = -12,
    /// The system refused something, for example memory or a descriptor.
    System = -13,
    /// Too many handles exist.
    Limit = -14,
    /// A bug in this library caused a panic: the handle can only be freed.
    Internal = -15,
    /// The session holds all that it may, and more waits: give slices back, then try again.
    Held = -16,
    /// No reply can come to the message: its sender wants none, or has no memory for replies.
    NoReply = -17,
}

impl Code {
    const ALL: [(Self, &'static CStr); 20] = [
        (Self::Ok, c"done"),
        (Self::Nothing, c"nothing there yet, or not in time"),
        (Self::End, c"all slices of the message were given"),
        (
            Self::Argument,
            c"an argument that cannot be: a null pointer, no UTF-8, a structure of no known size",
        ),
        (Self::Handle, c"no living handle of that kind: it was freed, or never was one"),
        (Self::Busy, c"the handle is in use by another thread at this moment; use it from one at a time"),
        (Self::Key, c"the slice, message or buffer is not, or no longer, one of this handle's"),
        (
            Self::Full,
            c"as many messages as may be are in flight: take ends (jet_sender_poll), then try again",
        ),
        (Self::Size, c"a length beyond what such a message, header or buffer may have"),
        (Self::Closed, c"the sender was closed"),
        (Self::Unreachable, c"nobody answers there, or not in time"),
        (Self::Refused, c"the other end refused"),
        (Self::Broken, c"the other end said what cannot be; use the same build of Jet at both ends"),
        (Self::Gone, c"the daemon is gone; register again when it runs"),
        (Self::Withdrawn, c"the message was withdrawn: what came of it must not be taken for it"),
        (Self::System, c"the system refused"),
        (Self::Limit, c"too many handles at once: free some"),
        (Self::NoReply, c"no reply can come to the message: its sender wants none, or has no memory for it"),
        (Self::Held, c"the session holds all that it may: give slices back, then ask again"),
        (Self::Internal, c"a bug in Jet's client library: the handle can only be freed"),
    ];

    fn text(self) -> &'static CStr {
        Self::ALL.iter().find(|(code, _)| *code == self).map_or(c"", |(_, text)| text)
    }
}

/// Reason why a call failed. A failure without a text of its own costs nothing to make, since some occur on
/// the path of messages.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    text: Option<Cow<'static, CStr>>,
}

impl Failure {
    pub fn new(code: Code, text: impl Display) -> Self {
        // A text from elsewhere may hold a zero byte.
        Self { code, text: CString::new(text.to_string().replace('\0', "?")).ok().map(Cow::Owned) }
    }

    /// Makes a failure with a text that costs nothing to make.
    pub const fn fixed(code: Code, text: &'static CStr) -> Self {
        Self { code, text: Some(Cow::Borrowed(text)) }
    }
}

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        Self { code, text: None }
    }
}

thread_local! {
    /// Last error of this thread.
    static LAST: RefCell<Failure> = const { RefCell::new(Failure { code: Code::Ok, text: None }) };
}

/// Runs a call from C, and returns its code. Catches panics, and keeps the text of an error.
pub(crate) fn answer(call: impl FnOnce() -> Result<Code, Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(code)) => return code as c_int,
        Ok(Err(failure)) => failure,
        Err(_) => Code::Internal.into(),
    };
    let code = failure.code;
    // A thread that is about to end has no place for the text, and nobody would read it.
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = failure;
        }
    });
    code as c_int
}

/// Returns the text of this thread's last error, valid until its next error.
#[unsafe(no_mangle)]
pub extern "C" fn jet_error_text() -> *const c_char {
    let text = |last: &RefCell<Failure>| {
        let last = last.borrow();
        last.text.as_deref().unwrap_or_else(|| last.code.text()).as_ptr()
    };
    catch_unwind(|| LAST.try_with(text).unwrap_or(c"".as_ptr())).unwrap_or(c"".as_ptr())
}

/// Returns the general meaning of a result code.
#[unsafe(no_mangle)]
pub extern "C" fn jet_code_text(code: c_int) -> *const c_char {
    let known = Code::ALL.iter().find(|(known, _)| *known as c_int == code);
    known.map_or(c"no code of Jet's", |(_, text)| *text).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: a text of this thread's, read before the next error.
        unsafe { CStr::from_ptr(jet_error_text()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn errors_have_text_and_a_panic_is_one() {
        assert_eq!(answer(|| Ok(Code::Nothing)), 1);
        assert_eq!(answer(|| Err(Failure::new(Code::Refused, "no \0, never"))), Code::Refused as c_int);
        assert_eq!(last(), "no ?, never");
        assert_eq!(answer(|| Ok(Code::Ok)), 0);
        assert_eq!(last(), "no ?, never", "until the next error");
        assert_eq!(answer(|| Err(Code::Full.into())), -5);
        assert!(last().contains("jet_sender_poll"));
        assert_eq!(answer(|| panic!("as it should not")), Code::Internal as c_int);
        assert!(last().contains("a bug"));
        for (code, text) in Code::ALL {
            // SAFETY: a static text.
            assert_eq!(unsafe { CStr::from_ptr(jet_code_text(code as c_int)) }, text);
        }
        // SAFETY: as above.
        assert!(unsafe { CStr::from_ptr(jet_code_text(77)) }.to_str().unwrap().starts_with("no code"));
    }
}

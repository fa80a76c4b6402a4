//! The receiving end.
#![allow(non_camel_case_types)] // C's names

use crate::code::{Code, Failure, answer};
use crate::handles::{self, Kind};
use crate::keys::Keys;
use crate::text::{Out, put_sized, sized, structure, structure_const, text, timeout};
use jet_client::receive::CONTROL_SOCKET;
use jet_client::receive::{
    DetachedMessage, DetachedSlice, Message, ReceiveError, RegisterError, RegisterOptions, Session,
    SliceError, Verdict,
};
use std::ffi::{c_char, c_int, c_void};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd};
use std::task::Poll;
use std::time::Duration;

/// A session, to C.
#[derive(Debug)]
pub enum jet_session {}

/// How to register.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_session_options {
    /// Of this structure, as the caller knows it.
    pub size: usize,
    /// The daemon's socket; null: where it is by default.
    pub control_socket: *const c_char,
    /// The name that senders address.
    pub app: *const c_char,
    /// Admission class of its messages, 0 the most urgent.
    pub class: c_int,
    /// Whether memory is taken instead of waiting for cache.
    pub memory_instead_of_waiting: c_int,
    /// The longest that a wait spins.
    pub spin_max_ns: u64,
}

/// A message that arrived, or is arriving.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_message {
    /// Names it to its session.
    pub key: u64,
    /// The sender's word.
    pub tag: u64,
    /// The sender's number for it.
    pub sequence: u64,
    /// The sender's identity.
    pub sender: u64,
    /// Its whole length.
    pub bytes: u64,
    /// The sender's header, until the message is finished.
    pub user_header: *const c_void,
    /// Its length.
    pub user_header_bytes: usize,
    /// Whether it was sent before.
    pub redelivered: c_int,
    /// Keeps the size the same everywhere.
    pub reserved: c_int,
}

/// Bytes of a message.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_slice {
    /// The first byte.
    pub data: *const c_void,
    /// How many.
    pub bytes: usize,
    /// Where in the message they begin.
    pub offset: u64,
    /// Names it to its session.
    pub key: u64,
}

const NO_SLICE: jet_slice = jet_slice { data: std::ptr::null(), bytes: 0, offset: 0, key: 0 };

/// What a session counted.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_session_stats {
    /// Messages received.
    pub messages: u64,
    /// Slices taken.
    pub slices: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Times that it slept.
    pub sleeps: u64,
}

/// A session and what of it is lent to the caller.
struct SessionEnd {
    slices: Keys<DetachedSlice>,
    messages: Keys<DetachedMessage>,
    session: Session,
}

impl Kind for SessionEnd {
    const KIND: u64 = 2;
    type Opaque = jet_session;
}

/// Lent at once before anything is allocated again: a session's slots, by default.
const LENT: usize = 1024;

impl From<RegisterError> for Failure {
    fn from(error: RegisterError) -> Self {
        let code = match &error {
            RegisterError::Control(_) => Code::Unreachable,
            RegisterError::Refused { .. } => Code::Refused,
            RegisterError::Answer(_) | RegisterError::Descriptors { .. } | RegisterError::Segment(_) => {
                Code::Broken
            }
            RegisterError::Map(_) | RegisterError::System(_) => Code::System,
        };
        Self::new(code, error)
    }
}

impl From<ReceiveError> for Failure {
    fn from(error: ReceiveError) -> Self {
        let code = match &error {
            ReceiveError::DaemonGone | ReceiveError::Ended { .. } => Code::Gone,
            ReceiveError::Broken(_) => Code::Broken,
            ReceiveError::Wait(_) => Code::System,
            ReceiveError::HoldsAll(_) => Code::Held,
        };
        Self::new(code, error)
    }
}

/// Fills options with the defaults, as far as the caller knows them.
///
/// # Safety
/// `options` is null or `size` bytes to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_session_options_init_sized(
    options: *mut jet_session_options,
    size: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        unsafe {
            put_sized(options, size, &jet_session_options { size, ..jet_session_options::defaults() })
        }?;
        Ok(Code::Ok)
    })
}

impl jet_session_options {
    fn defaults() -> Self {
        let spin_max = RegisterOptions::new("").spin_max;
        Self {
            size: size_of::<Self>(),
            control_socket: std::ptr::null(),
            app: std::ptr::null(),
            class: 0,
            memory_instead_of_waiting: 0,
            spin_max_ns: u64::try_from(spin_max.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// Registers with this host's daemon.
///
/// # Safety
/// Pointers are null or lead to what their types say; `options->size` is of the memory there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_session_register(
    options: *const jet_session_options,
    session: *mut *mut jet_session,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(session) }?;
        place.put(std::ptr::null_mut());
        // SAFETY: as above.
        let options = unsafe { sized(options, jet_session_options::defaults()) }?;
        // SAFETY: as above.
        let app = unsafe { text(options.app, "app") }?;
        let control_socket = if options.control_socket.is_null() {
            CONTROL_SOCKET
        } else {
            // SAFETY: as above.
            unsafe { text(options.control_socket, "control_socket") }?
        };
        let class = u8::try_from(options.class)
            .map_err(|_| Failure::new(Code::Argument, format_args!("there is no class {}", options.class)))?;
        let session = Session::register(&RegisterOptions {
            control_socket: control_socket.into(),
            class,
            memory_instead_of_waiting: options.memory_instead_of_waiting != 0,
            spin_max: Duration::from_nanos(options.spin_max_ns),
            ..RegisterOptions::new(app)
        })?;
        let (slices, messages) = (Keys::with_capacity(LENT), Keys::with_capacity(LENT));
        place.put(handles::insert(SessionEnd { slices, messages, session })?);
        Ok(Code::Ok)
    })
}

/// Ends a session: what was not finished is the next one's.
#[unsafe(no_mangle)]
pub extern "C" fn jet_session_free(session: *mut jet_session) -> c_int {
    answer(|| {
        drop(handles::remove::<SessionEnd>(session)?);
        Ok(Code::Ok)
    })
}

/// The next message, or none in time.
///
/// # Safety
/// `message` is null or a `jet_message` to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_session_receive(
    session: *mut jet_session,
    timeout_ns: i64,
    message: *mut jet_message,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(message) }?;
        handles::with(session, |end: &mut SessionEnd| {
            let SessionEnd { session, messages, .. } = end;
            let received = match timeout_ns {
                0 => session.try_receive()?,
                _ => session.receive(timeout(timeout_ns))?,
            };
            let Some(message) = received else { return Ok(Code::Nothing) };
            let header = message.user_header();
            let mut shown = jet_message {
                key: 0,
                tag: message.tag(),
                sequence: message.sequence(),
                sender: message.sender(),
                bytes: message.bytes(),
                user_header: header.as_ptr().cast(),
                user_header_bytes: header.len(),
                redelivered: message.redelivered().into(),
                reserved: 0,
            };
            shown.key = messages.insert(message.detach());
            place.put(shown);
            Ok(Code::Ok)
        })
    })
}

/// A message's next slice, or none in time, or none any more.
///
/// # Safety
/// `message` is null or a `jet_message`, `slice` null or a `jet_slice` to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_message_next(
    session: *mut jet_session,
    message: *const jet_message,
    timeout_ns: i64,
    slice: *mut jet_slice,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let (place, message) = unsafe { (Out::new(slice)?, structure_const(message)?) };
        handles::with(session, |end: &mut SessionEnd| {
            let SessionEnd { session, messages, slices } = end;
            let next = |message| {
                let mut message: Message<'_> = session.attach(message);
                let found = match timeout_ns {
                    0 => message.try_next(),
                    _ => message.next(timeout(timeout_ns)).map(Poll::Ready),
                };
                let found =
                    found.map(|found| found.map(|slice| slice.map(jet_client::receive::Slice::detach)));
                (Some(message.detach()), found)
            };
            let slice = match messages.change(message.key, next).ok_or(Code::Key)? {
                Ok(Poll::Ready(Some(slice))) => slice,
                Ok(Poll::Ready(None)) => return Ok(Code::End),
                Ok(Poll::Pending) | Err(SliceError::TimedOut) => return Ok(Code::Nothing),
                Err(error @ SliceError::Withdrawn { .. }) => {
                    return Err(Failure::new(Code::Withdrawn, error));
                }
                Err(SliceError::HoldsAll(held)) => return Err(Failure::new(Code::Held, held)),
                Err(SliceError::Receive(error)) => return Err(error.into()),
            };
            let (data, bytes, offset) = (slice.as_ptr().cast(), slice.len(), slice.offset());
            place.put(jet_slice { data, bytes, offset, key: slices.insert(slice) });
            Ok(Code::Ok)
        })
    })
}

/// Gives a slice back.
///
/// # Safety
/// `slice` is null or a `jet_slice`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_slice_release(session: *mut jet_session, slice: *mut jet_slice) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let (place, key) = unsafe { (Out::new(slice)?, (*slice).key) };
        handles::with(session, |end: &mut SessionEnd| {
            end.session.release(end.slices.take(key).ok_or(Code::Key)?);
            place.put(NO_SLICE);
            Ok(Code::Ok)
        })
    })
}

/// Ends a message: as consumed where `code` is 0, else as rejected with it.
///
/// # Safety
/// `message` is null or a `jet_message`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_message_finish(
    session: *mut jet_session,
    message: *mut jet_message,
    code: u32,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let message = unsafe { structure(message) }?;
        handles::with(session, |end: &mut SessionEnd| {
            let detached = end.messages.take(message.key).ok_or(Code::Key)?;
            let verdict = NonZeroU32::new(code).map_or(Verdict::Consumed, Verdict::Rejected);
            end.session.finish(detached, verdict);
            (message.key, message.user_header, message.user_header_bytes) = (0, std::ptr::null(), 0);
            Ok(Code::Ok)
        })
    })
}

/// Shows the daemon what was given back, now.
#[unsafe(no_mangle)]
pub extern "C" fn jet_session_flush(session: *mut jet_session) -> c_int {
    answer(|| {
        handles::with(session, |end: &mut SessionEnd| {
            end.session.flush();
            Ok(Code::Ok)
        })
    })
}

/// The descriptor that is readable when there is something, once [`jet_session_prepare_sleep`] said so.
///
/// # Safety
/// `fd` is null or an `int` to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_session_fd(session: *mut jet_session, fd: *mut c_int) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(fd) }?;
        handles::with(session, |end: &mut SessionEnd| {
            place.put(end.session.as_fd().as_raw_fd());
            Ok(Code::Ok)
        })
    })
}

/// Whether to wait for the descriptor now: done; or to poll again: nothing.
#[unsafe(no_mangle)]
pub extern "C" fn jet_session_prepare_sleep(session: *mut jet_session) -> c_int {
    answer(|| {
        handles::with(session, |end: &mut SessionEnd| {
            Ok(if end.session.prepare_sleep()? { Code::Ok } else { Code::Nothing })
        })
    })
}

/// What it counted.
///
/// # Safety
/// `stats` is null or `size` bytes to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_session_stats_get(
    session: *mut jet_session,
    stats: *mut jet_session_stats,
    size: usize,
) -> c_int {
    answer(|| {
        handles::with(session, |end: &mut SessionEnd| {
            let found = end.session.stats();
            let counted = jet_session_stats {
                messages: found.messages,
                slices: found.slices,
                bytes: found.bytes,
                sleeps: found.sleeps,
            };
            // SAFETY: the caller's promise.
            unsafe { put_sized(stats, size, &counted) }?;
            Ok(Code::Ok)
        })
    })
}

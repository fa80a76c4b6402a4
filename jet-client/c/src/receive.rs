//! The receiving end for C.
#![allow(non_camel_case_types)] // C's names

use crate::code::{Code, Failure, answer};
use crate::handles::{self, Kind};
use crate::keys::Keys;
use crate::text::{Out, OutSized, bytes, put_sized, sized, text, timeout};
use jet_client::receive::CONTROL_SOCKET;
use jet_client::receive::{
    DetachedMessage, DetachedSlice, Message, NotReplied, ReceiveError, RegisterError, RegisterOptions,
    ReplyError, Session, SliceError, Verdict,
};
use std::ffi::{c_char, c_int, c_void};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::time::Duration;

/// Opaque type of a session handle in C.
#[derive(Debug)]
pub enum jet_session {}

/// Options of a registration.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_session_options {
    /// Size of this structure, as the caller knows it.
    pub size: usize,
    /// Path of the daemon's control socket; null: the default path.
    pub control_socket: *const c_char,
    /// Name that senders address.
    pub app: *const c_char,
    /// Admission class of the application's messages, 0 the most urgent.
    pub class: c_int,
    /// Whether messages take escape memory instead of waiting for room in the pool.
    pub memory_instead_of_waiting: c_int,
    /// Longest time that a wait spins before it sleeps, in nanoseconds.
    pub spin_max_ns: u64,
    /// Whether the application shares its name with others of its user that say so, too.
    pub shares_name: c_int,
    /// Reserved: 0.
    pub reserved: c_int,
}

/// A message that arrived, or is arriving.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_message {
    /// Key that names the message to its session.
    pub key: u64,
    /// Number that the sender attached to the message.
    pub tag: u64,
    /// Sequence number that the sender gave the message.
    pub sequence: u64,
    /// Identity of the sender.
    pub sender: u64,
    /// Length of the whole message, in bytes.
    pub bytes: u64,
    /// User header, valid until the message is finished.
    pub user_header: *const c_void,
    /// Length of the user header, in bytes.
    pub user_header_bytes: usize,
    /// Whether the message was sent before.
    pub redelivered: c_int,
    /// Whether the sender has memory for a reply.
    pub wants_reply: c_int,
}

/// A message that the caller has. A program of an older version has less of it than `jet_message` says, so
/// only what each version has is touched.
struct Shown(NonNull<jet_message>);

impl Shown {
    /// Fails where the pointer is null or not aligned.
    ///
    /// # Safety
    /// Where `message` is not null, it is a `jet_message` of any version, and the caller's, until the call
    /// ends. For [`Self::empty`] it is to be written.
    unsafe fn new(message: *const jet_message) -> Result<Self, Failure> {
        let message = NonNull::new(message.cast_mut()).filter(|message| message.is_aligned());
        message.map(Self).ok_or(Code::Argument.into())
    }

    fn key(&self) -> u64 {
        // SAFETY: the promise of `new`; no reference to the whole structure is made.
        unsafe { (&raw const (*self.0.as_ptr()).key).read() }
    }

    /// Marks the message as ended.
    fn empty(&self) {
        let message = self.0.as_ptr();
        // SAFETY: as above.
        unsafe {
            (&raw mut (*message).key).write(0);
            (&raw mut (*message).user_header).write(std::ptr::null());
            (&raw mut (*message).user_header_bytes).write(0);
        }
    }
}

/// Returns the verdict that a code in C stands for.
fn verdict(code: u32) -> Verdict {
    NonZeroU32::new(code).map_or(Verdict::Consumed, Verdict::Rejected)
}

/// Bytes of a message, lent to the caller.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_slice {
    /// Address of the slice's first byte.
    pub data: *const c_void,
    /// Length of the slice, in bytes.
    pub bytes: usize,
    /// Offset of the first byte in the message.
    pub offset: u64,
    /// Key that names the slice to its session.
    pub key: u64,
}

const NO_SLICE: jet_slice = jet_slice { data: std::ptr::null(), bytes: 0, offset: 0, key: 0 };

/// Counters of a session.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_session_stats {
    /// Messages that the application received.
    pub messages: u64,
    /// Slices that the application took.
    pub slices: u64,
    /// Bytes of the slices that the application took.
    pub bytes: u64,
    /// Times that the session slept.
    pub sleeps: u64,
}

/// A session, and the slices and messages that are lent to the caller.
struct SessionEnd {
    slices: Keys<DetachedSlice>,
    messages: Keys<DetachedMessage>,
    session: Session,
}

impl Kind for SessionEnd {
    const KIND: u64 = 2;
    type Opaque = jet_session;
}

/// Slices, and messages, that can be lent at once before memory is allocated again: the default number of a
/// session's slots.
const LENT: usize = 1024;

impl From<RegisterError> for Failure {
    fn from(error: RegisterError) -> Self {
        let code = match &error {
            RegisterError::Control(_) => Code::Unreachable,
            RegisterError::Refused { .. } => Code::Refused,
            RegisterError::Answer(_) | RegisterError::Descriptors { .. } | RegisterError::Segment(_) => {
                Code::Broken
            }
            // Memory that cannot be mapped, and whatever later versions of the library for Rust add.
            _ => Code::System,
        };
        Self::new(code, error)
    }
}

impl From<ReceiveError> for Failure {
    fn from(error: ReceiveError) -> Self {
        let code = match &error {
            ReceiveError::DaemonGone | ReceiveError::Ended { .. } => Code::Gone,
            ReceiveError::Broken(_) => Code::Broken,
            ReceiveError::HoldsAll(_) => Code::Held,
            // The system refuses to wait, and whatever later versions of the library for Rust add.
            _ => Code::System,
        };
        Self::new(code, error)
    }
}

impl From<ReplyError> for Failure {
    fn from(error: ReplyError) -> Self {
        match error {
            // An application may find this out message by message, so no text is made.
            ReplyError::NotWanted => Self::fixed(
                Code::NoReply,
                c"the message wants no reply (jet_message.wants_reply): end it by jet_message_finish",
            ),
            error => Self::new(Code::Size, error),
        }
    }
}

/// Fills options with the defaults, as far as the caller's version of the structure goes.
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
            shares_name: 0,
            reserved: 0,
        }
    }
}

/// Registers an application with this host's daemon.
///
/// # Safety
/// Pointers are null or lead to what their types say; `options->size` is the size of the memory there.
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
        let options = RegisterOptions::new(app)
            .control_socket(control_socket)
            .class(class)
            .memory_instead_of_waiting(options.memory_instead_of_waiting != 0)
            .shares_name(options.shares_name != 0)
            .spin_max(Duration::from_nanos(options.spin_max_ns));
        let session = Session::register(&options)?;
        let (slices, messages) = (Keys::with_capacity(LENT), Keys::with_capacity(LENT));
        place.put(handles::insert(SessionEnd { slices, messages, session })?);
        Ok(Code::Ok)
    })
}

/// Ends a session. Senders of unfinished messages hear `AppGone`.
#[unsafe(no_mangle)]
pub extern "C" fn jet_session_free(session: *mut jet_session) -> c_int {
    answer(|| {
        drop(handles::remove::<SessionEnd>(session)?);
        Ok(Code::Ok)
    })
}

/// Writes the next message to `message`, as far as the caller's version of the structure goes, or returns
/// [`Code::Nothing`] where none arrived in time.
///
/// # Safety
/// `message` is null or `size` bytes to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_session_receive_sized(
    session: *mut jet_session,
    timeout_ns: i64,
    message: *mut jet_message,
    size: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutSized::new(message, size) }?;
        handles::with(session, |end: &mut SessionEnd| {
            let SessionEnd { session, messages, .. } = end;
            let received = match timeout_ns {
                0 => session.try_receive(),
                _ => timeout(timeout_ns)
                    .map_or_else(|| session.receive(), |timeout| session.receive_timeout(timeout)),
            };
            let message = match received {
                Err(ReceiveError::NotYet) => return Ok(Code::Nothing),
                received => received?,
            };
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
                wants_reply: message.wants_reply().into(),
            };
            shown.key = messages.insert(message.detach());
            place.put(shown);
            Ok(Code::Ok)
        })
    })
}

/// Writes a message's next slice to `slice`. Returns [`Code::Nothing`] where none arrived in time, and
/// [`Code::End`] where all slices were given.
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
        let (place, message) = unsafe { (Out::new(slice)?, Shown::new(message)?) };
        handles::with(session, |end: &mut SessionEnd| {
            let SessionEnd { session, messages, slices } = end;
            let next = |message| {
                let mut message: Message<'_> = session.attach(message);
                let found = match timeout_ns {
                    0 => message.try_next(),
                    _ => match timeout(timeout_ns) {
                        None => message.next(),
                        Some(timeout) => message.next_timeout(timeout),
                    },
                };
                let found = found.map(|slice| slice.map(jet_client::receive::Slice::detach));
                (Some(message.detach()), found)
            };
            let slice = match messages.with_taken(message.key(), next).ok_or(Code::Key)? {
                Ok(Some(slice)) => slice,
                Ok(None) => return Ok(Code::End),
                Err(SliceError::NotYet) => return Ok(Code::Nothing),
                Err(error @ SliceError::Withdrawn { .. }) => {
                    return Err(Failure::new(Code::Withdrawn, error));
                }
                Err(SliceError::HoldsAll(held)) => return Err(Failure::new(Code::Held, held)),
                Err(SliceError::Receive(error)) => return Err(error.into()),
                Err(error) => return Err(Failure::new(Code::System, error)),
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

/// Ends a message: as consumed where `code` is 0, otherwise as rejected with this code.
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
        let message = unsafe { Shown::new(message) }?;
        handles::with(session, |end: &mut SessionEnd| {
            let detached = end.messages.take(message.key()).ok_or(Code::Key)?;
            end.session.finish(detached, verdict(code));
            message.empty();
            Ok(Code::Ok)
        })
    })
}

/// Ends a message with a reply: as consumed where `code` is 0, otherwise as rejected with this code. Where
/// the call fails, the message has not ended.
///
/// # Safety
/// `message` is null or a `jet_message`; `reply` is null or leads to `reply_bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_message_reply(
    session: *mut jet_session,
    message: *mut jet_message,
    code: u32,
    reply: *const c_void,
    reply_bytes: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let (message, reply) = unsafe { (Shown::new(message)?, bytes(reply.cast(), reply_bytes)?) };
        handles::with(session, |end: &mut SessionEnd| {
            let SessionEnd { session, messages, .. } = end;
            let reply = |detached| match session.attach(detached).reply_as(verdict(code), reply) {
                Ok(()) => (None, Ok(())),
                // The message stays the caller's, under the same key.
                Err(NotReplied { error, message, .. }) => (Some(message.detach()), Err(error)),
            };
            Ok(messages.with_taken(message.key(), reply).ok_or(Code::Key)??)
        })?;
        // The reply may be part of the structure, its `bytes` say. It was read.
        message.empty();
        Ok(Code::Ok)
    })
}

/// Shows the daemon now what was given back, without waiting for the next receive.
#[unsafe(no_mangle)]
pub extern "C" fn jet_session_flush(session: *mut jet_session) -> c_int {
    answer(|| {
        handles::with(session, |end: &mut SessionEnd| {
            end.session.flush();
            Ok(Code::Ok)
        })
    })
}

/// Writes the session's descriptor to `fd`. Once [`jet_session_prepare_sleep`] returned [`Code::Ok`], the
/// descriptor becomes readable when a message may have come or the daemon is gone.
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

/// Prepares to wait for the session's descriptor. Returns [`Code::Ok`]: wait for the descriptor now; or
/// [`Code::Nothing`]: poll again, each message too.
#[unsafe(no_mangle)]
pub extern "C" fn jet_session_prepare_sleep(session: *mut jet_session) -> c_int {
    answer(|| {
        handles::with(session, |end: &mut SessionEnd| {
            Ok(if end.session.prepare_sleep()? { Code::Ok } else { Code::Nothing })
        })
    })
}

/// Returns [`Code::Held`] where nothing more arrives before slices are given back, or messages finished, and
/// something waits for that; else [`Code::Nothing`].
#[unsafe(no_mangle)]
pub extern "C" fn jet_session_holds_all(session: *mut jet_session) -> c_int {
    answer(|| {
        handles::with(session, |end: &mut SessionEnd| match end.session.holds_all() {
            Some(held) => Err(Failure::new(Code::Held, held)),
            None => Ok(Code::Nothing),
        })
    })
}

/// Writes the session's counters to `stats`, as far as the caller's version of the structure goes.
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

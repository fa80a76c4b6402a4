//! Sending a message: its envelope, and the three ways in which its bytes are given.

use super::failures::longer_than;
use super::{NO_BUFFER, SenderEnd, jet_buffer, jet_sender};
use crate::code::{Code, Failure, answer};
use crate::handles;
use crate::text::{Out, bytes, put_sized, sized, timeout};
use jet_client::send::{Envelope, NotSent, SendBuffer, Sender, Ticket};
use std::ffi::{c_int, c_void};

/// What a message says beside its bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_envelope {
    /// Size of this structure, as the caller knows it.
    pub size: usize,
    /// Number for the application.
    pub tag: u64,
    /// Bytes for the application; may be null where there are none.
    pub user_header: *const c_void,
    /// Length of the user header, in bytes.
    pub user_header_bytes: usize,
    /// Admission class of a large message, 0 the most urgent.
    pub class: c_int,
    /// Whether the application may reply.
    pub wants_reply: c_int,
    /// Time from the submission after which the message is taken back, in nanoseconds; below zero: without
    /// limit.
    pub deadline_ns: i64,
}

impl jet_envelope {
    fn new(tag: u64) -> Self {
        Self {
            size: size_of::<Self>(),
            tag,
            user_header: std::ptr::null(),
            user_header_bytes: 0,
            class: 0,
            wants_reply: 0,
            deadline_ns: -1,
        }
    }
}

/// Reads an envelope of the caller's.
///
/// # Safety
/// `envelope` is null or leads to as many bytes as its first field says, and its user header to as many as it
/// says.
unsafe fn parsed<'a>(envelope: *const jet_envelope) -> Result<Envelope<'a>, Failure> {
    // SAFETY: the caller's promise.
    let envelope = unsafe { sized(envelope, jet_envelope::new(0)) }?;
    // SAFETY: as above.
    let header = unsafe { bytes(envelope.user_header.cast(), envelope.user_header_bytes) }?;
    let class = u8::try_from(envelope.class)
        .map_err(|_| Failure::new(Code::Argument, format_args!("there is no class {}", envelope.class)))?;
    let wants_reply = envelope.wants_reply != 0;
    let deadline = timeout(envelope.deadline_ns);
    let parsed = Envelope::new(envelope.tag).user_header(header).class(class);
    Ok(parsed.wants_reply(wants_reply).deadline(deadline))
}

/// Fills an envelope with a tag and the defaults, as far as the caller's version of the structure goes.
///
/// # Safety
/// `envelope` is null or `size` bytes to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_envelope_init_sized(
    envelope: *mut jet_envelope,
    size: usize,
    tag: u64,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        unsafe { put_sized(envelope, size, &jet_envelope { size, ..jet_envelope::new(tag) }) }?;
        Ok(Code::Ok)
    })
}

/// Takes a message back. Its end says what became of it. A ticket of no message, and of one that has its end,
/// is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn jet_cancel(sender: *mut jet_sender, ticket: u64) -> c_int {
    answer(|| {
        handles::with(sender, |end: &mut SenderEnd| {
            end.sender.cancel(Ticket(ticket));
            Ok(Code::Ok)
        })
    })
}

/// Sends a small message, whose payload is copied.
///
/// # Safety
/// Pointers are null or lead to as many bytes as the arguments and the envelope say; `ticket` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_send_small(
    sender: *mut jet_sender,
    envelope: *const jet_envelope,
    payload: *const c_void,
    payload_bytes: usize,
    ticket: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let (envelope, payload, ticket) =
            unsafe { (parsed(envelope)?, bytes(payload.cast(), payload_bytes)?, Out::optional(ticket)?) };
        handles::with(sender, |end: &mut SenderEnd| {
            let sent = end.sender.send_small(envelope, payload)?;
            ticket.into_iter().for_each(|ticket| ticket.put(sent.0));
            Ok(Code::Ok)
        })
    })
}

/// Sends the first `length` bytes of a buffer as a small message, without a copy where the NIC can do without
/// it.
///
/// # Safety
/// As for [`jet_send_small`]; `buffer` is null or a `jet_buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_send_small_buffer(
    sender: *mut jet_sender,
    envelope: *const jet_envelope,
    buffer: *mut jet_buffer,
    length: usize,
    ticket: *mut u64,
) -> c_int {
    let send =
        |sender: &mut Sender, envelope: Envelope<'_>, buffer| sender.send_small_buffer(envelope, buffer);
    // SAFETY: the caller's promise.
    unsafe { send_buffer(sender, envelope, buffer, length, ticket, send) }
}

/// Sends the first `length` bytes of a buffer as a large message.
///
/// # Safety
/// As for [`jet_send_small_buffer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_send(
    sender: *mut jet_sender,
    envelope: *const jet_envelope,
    buffer: *mut jet_buffer,
    length: usize,
    ticket: *mut u64,
) -> c_int {
    let send = |sender: &mut Sender, envelope: Envelope<'_>, buffer| sender.send(envelope, buffer);
    // SAFETY: the caller's promise.
    unsafe { send_buffer(sender, envelope, buffer, length, ticket, send) }
}

/// Sends the first `length` bytes of a buffer by `send`.
///
/// # Safety
/// As for [`jet_send_small_buffer`].
unsafe fn send_buffer(
    sender: *mut jet_sender,
    envelope: *const jet_envelope,
    buffer: *mut jet_buffer,
    length: usize,
    ticket: *mut u64,
    send: impl FnOnce(&mut Sender, Envelope<'_>, SendBuffer) -> Result<Ticket, NotSent>,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let (place, ticket) = unsafe { (Out::new(buffer)?, Out::optional(ticket)?) };
        // SAFETY: as above.
        let (key, envelope) = unsafe { ((*buffer).key, parsed(envelope)?) };
        handles::with(sender, |end: &mut SenderEnd| {
            let SenderEnd { buffers, whole, sender, .. } = end;
            let send = |mut buffer: SendBuffer| {
                let bytes = buffer.len();
                if length > bytes {
                    return (Some(buffer), Err(longer_than(bytes, length)));
                }
                buffer.set_length(length);
                match send(sender, envelope, buffer) {
                    Ok(ticket) => {
                        if length < bytes {
                            whole.insert(ticket, bytes);
                        }
                        (None, Ok(ticket))
                    }
                    // A buffer that was not sent still belongs to the caller, under the same key.
                    Err(NotSent { error, mut buffer, .. }) => {
                        buffer.set_length(bytes);
                        (Some(buffer), Err(error.into()))
                    }
                }
            };
            let sent = buffers.with_taken(key, send).ok_or(Code::Key)??;
            place.put(NO_BUFFER);
            ticket.into_iter().for_each(|ticket| ticket.put(sent.0));
            Ok(Code::Ok)
        })
    })
}

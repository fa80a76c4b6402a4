//! Ends of messages, and the replies that come with them.

use super::failures::in_time;
use super::{NO_BUFFER, SenderEnd, jet_buffer, jet_sender, long, ns};
use crate::code::{Code, answer};
use crate::handles;
use crate::text::OutSized;
use jet_client::send::Completion;
use std::ffi::{c_char, c_int, c_void};

/// End of a message.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_completion {
    /// Ticket of the message.
    pub ticket: u64,
    /// Tag of the message.
    pub tag: u64,
    /// Status that the message ended with: one of `JET_CONSUMED` and so on.
    pub status: c_int,
    /// Code of the application, where it rejected the message.
    pub code: u32,
    /// Time from the submission to the end, in nanoseconds.
    pub latency_ns: u64,
    /// Buffer of the message, which belongs to the caller again.
    pub buffer: jet_buffer,
    /// Reply of the application; null where there is none. It is not null where the reply has no bytes.
    pub reply: *const c_void,
    /// Length of the reply, in bytes.
    pub reply_bytes: usize,
}

impl SenderEnd {
    /// Returns an end as C has it, and keeps its reply for the caller.
    fn completion(&mut self, end: Completion) -> jet_completion {
        // The header's numbers are those of the wire.
        let (status, code) = end.status.to_wire();
        let buffer = end.buffer.map_or(NO_BUFFER, |mut buffer| {
            if let Some(bytes) = self.whole.remove(&end.ticket) {
                buffer.set_length(bytes);
            }
            self.lend(buffer)
        });
        self.reply = end.reply;
        let reply = self.reply.as_deref();
        jet_completion {
            ticket: end.ticket.0,
            tag: end.tag,
            status: status.into(),
            code,
            latency_ns: ns(end.latency),
            buffer,
            reply: reply.map_or(std::ptr::null(), |reply| reply.as_ptr().cast()),
            reply_bytes: reply.map_or(0, <[u8]>::len),
        }
    }
}

/// Returns a description of the end `status`, one of `JET_CONSUMED` and so on.
#[unsafe(no_mangle)]
pub extern "C" fn jet_status_text(status: c_int) -> *const c_char {
    let text = match status {
        0 => c"consumed",
        1 => c"rejected by the application, with a code of its own",
        2 => c"the receiver has no room for another request; send it again later",
        3 => c"no application of that name is registered there",
        4 => c"not admitted: the class, or the application, is not allowed by the receiver's configuration",
        5 => c"longer than the receiver takes (read.message_bytes_max)",
        6 => c"what arrived does not have the checksum that was sent",
        7 => c"the application went away before it finished the message",
        8 => c"the daemon is draining and takes nothing new",
        9 => c"the connection was lost and not found again in time",
        0x601 => c"taken back by its sender, or its deadline passed: no application consumed it",
        _ => c"no end of Jet's",
    };
    text.as_ptr()
}

/// Writes the next message's end to `completion`, as far as the caller's version of the structure goes, or
/// returns [`Code::Nothing`] where there is none. The reply of the end before must not be read any more.
///
/// # Safety
/// `completion` is null or `size` bytes to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_sender_poll_sized(
    sender: *mut jet_sender,
    completion: *mut jet_completion,
    size: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutSized::new(completion, size) }?;
        handles::with(sender, |end: &mut SenderEnd| {
            end.reply = None;
            let Some(found) = end.sender.poll() else { return Ok(Code::Nothing) };
            place.put(end.completion(found));
            Ok(Code::Ok)
        })
    })
}

/// Waits for the next message's end, and writes it to `completion` like [`jet_sender_poll_sized`].
///
/// # Safety
/// As for [`jet_sender_poll_sized`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_sender_wait_sized(
    sender: *mut jet_sender,
    timeout_ns: i64,
    completion: *mut jet_completion,
    size: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { OutSized::new(completion, size) }?;
        handles::with(sender, |end: &mut SenderEnd| {
            end.reply = None;
            let found = in_time(end.sender.wait_timeout(long(timeout_ns)))?.flatten();
            let Some(found) = found else { return Ok(Code::Nothing) };
            place.put(end.completion(found));
            Ok(Code::Ok)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use jet_client::send::AckStatus;

    #[test]
    fn each_end_has_words() {
        let words = |status: c_int| {
            // SAFETY: a text that ends with 0.
            unsafe { std::ffi::CStr::from_ptr(jet_status_text(status)) }.to_str().unwrap()
        };
        let unknown = words(-1);
        for status in AckStatus::ALL {
            assert_ne!(words(status.to_wire().0.into()), unknown, "{status:?}");
        }
    }
}

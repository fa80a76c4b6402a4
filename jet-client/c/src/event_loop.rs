//! What a program with an event loop of its own asks a sender.

use crate::code::{Code, answer};
use crate::handles;
use crate::send::{SenderEnd, jet_sender};
use crate::text::put_sized;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

/// How to sleep until a sender has something to poll.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_sleep {
    /// Descriptor that becomes readable.
    pub fd: c_int,
    /// Number that changes when `fd` becomes another descriptor.
    pub fd_number: u32,
    /// Nanoseconds after which the sender must be polled even if nothing comes; below 0: never.
    pub timeout_ns: i64,
}

/// Prepares to sleep, and writes to `sleep` how, as far as the caller's version of the structure goes.
/// [`Code::Nothing`]: there is something to poll now.
///
/// # Safety
/// `sleep` is null or `size` bytes to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_sender_prepare_sleep_sized(
    sender: *mut jet_sender,
    sleep: *mut jet_sleep,
    size: usize,
) -> c_int {
    answer(|| {
        handles::with(sender, |end: &mut SenderEnd| {
            let is_prepared = end.sender.prepare_sleep();
            let timeout = end.sender.next_timeout();
            let how = jet_sleep {
                fd: end.sender.as_fd().as_raw_fd(),
                fd_number: end.sender.devices(),
                timeout_ns: timeout.map_or(-1, |timeout| i64::try_from(timeout.as_nanos()).unwrap_or(-1)),
            };
            // SAFETY: the caller's promise.
            unsafe { put_sized(sleep, size, &how) }?;
            Ok(if is_prepared { Code::Ok } else { Code::Nothing })
        })
    })
}

//! The sending end for C.
#![allow(non_camel_case_types)] // C's names

mod completion;
mod failures;
mod message;

pub use self::completion::*;
pub use self::message::*;

use self::failures::in_time;
use crate::code::{Code, Failure, answer};
use crate::handles::{self, Kind};
use crate::keys::Keys;
use crate::text::{Out, put_sized, sized, text, timeout};
use jet_client::Address;
use jet_client::send::{Reply, RetryPolicy, SendBuffer, Sender, SenderOptions, Ticket};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

/// Opaque type of a sender handle in C.
#[derive(Debug)]
pub enum jet_sender {}

/// Options of a sender.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_sender_options {
    /// Size of this structure, as the caller knows it.
    pub size: usize,
    /// Address where the receiver's daemon listens.
    pub address: *const c_char,
    /// Application that the messages are for.
    pub app: *const c_char,
    /// Address of this host that an `rdma:` connection leaves from; null: as the kernel routes.
    pub source: *const c_char,
    /// Messages that may be without an end at once.
    pub in_flight_max: u32,
    /// Whether messages carry a checksum.
    pub crc: c_int,
    /// Bytes of large messages that may be in flight.
    pub window_bytes: u64,
    /// Longest time for the first connection, in nanoseconds.
    pub connect_timeout_ns: u64,
    /// Time for which a lost connection is tried again, in nanoseconds.
    pub reconnect_for_ns: u64,
    /// Time for which messages are sent again after an end that may pass, in nanoseconds. Such ends are
    /// `Busy`, and with `retry_all` also `NoApp`, `AppGone` and `Draining`.
    pub retry_for_ns: u64,
    /// Whether messages are also sent again after `NoApp`, `AppGone` and `Draining`.
    pub retry_all: c_int,
    /// Whether the sender has memory for replies.
    pub replies: c_int,
    /// Longest time that a wait spins before it sleeps, in nanoseconds.
    pub spin_max_ns: u64,
    /// Bytes of memory that are registered at a time, from which send buffers are cut.
    pub region_bytes: usize,
    /// Longest time in which the receiver sends nothing while a message waits, in nanoseconds.
    pub receiver_timeout_ns: u64,
}

/// Registered memory to send from.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_buffer {
    /// Address of the buffer's first byte.
    pub data: *mut c_void,
    /// Length of the buffer, in bytes.
    pub bytes: usize,
    /// Key that names the buffer to its sender.
    pub key: u64,
}

const NO_BUFFER: jet_buffer = jet_buffer { data: std::ptr::null_mut(), bytes: 0, key: 0 };

/// Counters of a sender, and its state.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_sender_stats {
    /// Messages whose end was not taken.
    pub in_flight: u64,
    /// Share of its windows that the sender may use after congestion signals, in thousandths.
    pub window_permille: u64,
    /// Whether the sender is connected.
    pub connected: u64,
    /// Whether messages carry a checksum: it was asked for, and the receiver checks.
    pub checksums: u64,
}

/// A sender, and the buffers that are lent to the caller.
pub(crate) struct SenderEnd {
    // Buffers lead into the sender's memory, so they are dropped first.
    buffers: Keys<SendBuffer>,
    /// Lengths of the buffers of which less is in flight, to be set again at the message's end: in C a buffer
    /// keeps its length.
    whole: HashMap<Ticket, usize>,
    /// Reply of the last end that the caller took, which may read it until it asks for the next one.
    reply: Option<Reply>,
    pub(crate) sender: Sender,
}

impl Kind for SenderEnd {
    const KIND: u64 = 1;
    type Opaque = jet_sender;
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl jet_sender_options {
    fn defaults() -> Self {
        let options = SenderOptions::new(Address::Tcp(String::new()), "");
        Self {
            size: size_of::<Self>(),
            address: std::ptr::null(),
            app: std::ptr::null(),
            source: std::ptr::null(),
            in_flight_max: options.in_flight_max,
            crc: 0,
            window_bytes: options.window_bytes,
            connect_timeout_ns: ns(options.connect_timeout),
            reconnect_for_ns: ns(options.reconnect_for),
            retry_for_ns: ns(options.retry.retry_for),
            retry_all: 0,
            replies: 0,
            spin_max_ns: ns(options.spin_max),
            region_bytes: options.region_bytes,
            receiver_timeout_ns: ns(options.receiver_timeout),
        }
    }

    /// Checks the options, and converts them.
    ///
    /// # Safety
    /// The texts are null or end with a zero byte.
    unsafe fn parsed(&self) -> Result<SenderOptions, Failure> {
        // SAFETY: the caller's promise.
        let (address, app) = unsafe { (text(self.address, "address")?, text(self.app, "app")?) };
        let address: Address = address.parse().map_err(|error| Failure::new(Code::Argument, error))?;
        let source = if self.source.is_null() {
            None
        } else {
            // SAFETY: as above.
            let source = unsafe { text(self.source, "source") }?;
            let refused = |error| Failure::new(Code::Argument, format_args!("source '{source}': {error}"));
            Some(source.parse().map_err(refused)?)
        };
        let all = self.retry_all != 0;
        let retry = RetryPolicy::all_for(Duration::from_nanos(self.retry_for_ns))
            .on_no_app(all)
            .on_app_gone(all)
            .on_draining(all);
        Ok(SenderOptions::new(address, app)
            .source(source)
            .in_flight_max(self.in_flight_max)
            .window_bytes(self.window_bytes)
            .connect_timeout(Duration::from_nanos(self.connect_timeout_ns))
            .reconnect_for(Duration::from_nanos(self.reconnect_for_ns))
            .retry(retry)
            .crc(self.crc != 0)
            .replies(self.replies != 0)
            .spin_max(Duration::from_nanos(self.spin_max_ns))
            .region_bytes(self.region_bytes)
            .receiver_timeout(Duration::from_nanos(self.receiver_timeout_ns)))
    }
}

impl SenderEnd {
    fn lend(&mut self, mut buffer: SendBuffer) -> jet_buffer {
        let (data, bytes) = (buffer.as_mut_ptr().cast(), buffer.len());
        jet_buffer { data, bytes, key: self.buffers.insert(buffer) }
    }
}

/// Fills options with the defaults, as far as the caller's version of the structure goes.
///
/// # Safety
/// `options` is null or `size` bytes to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_sender_options_init_sized(
    options: *mut jet_sender_options,
    size: usize,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        unsafe { put_sized(options, size, &jet_sender_options { size, ..jet_sender_options::defaults() }) }?;
        Ok(Code::Ok)
    })
}

/// Connects to a receiver.
///
/// # Safety
/// Pointers are null or lead to what their types say; `options->size` is the size of the memory there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_sender_connect(
    options: *const jet_sender_options,
    sender: *mut *mut jet_sender,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(sender) }?;
        place.put(std::ptr::null_mut());
        // SAFETY: as above.
        let options = unsafe { sized(options, jet_sender_options::defaults()) }?;
        // SAFETY: as above.
        let sender = Sender::connect(&unsafe { options.parsed() }?)?;
        let in_flight_max = options.in_flight_max as usize;
        let buffers = Keys::with_capacity(in_flight_max);
        // A map that is at most half full is tidied in place, and allocates nothing more.
        let whole = HashMap::with_capacity(2 * in_flight_max);
        place.put(handles::insert(SenderEnd { buffers, whole, reply: None, sender })?);
        Ok(Code::Ok)
    })
}

/// Frees a sender. Messages without an end may arrive or not.
#[unsafe(no_mangle)]
pub extern "C" fn jet_sender_free(sender: *mut jet_sender) -> c_int {
    answer(|| {
        drop(handles::remove::<SenderEnd>(sender)?);
        Ok(Code::Ok)
    })
}

/// Accepts no further messages, waits until every message has its end, and disconnects. Returns
/// [`Code::Nothing`] where that takes longer than `timeout_ns`.
#[unsafe(no_mangle)]
pub extern "C" fn jet_sender_close(sender: *mut jet_sender, timeout_ns: i64) -> c_int {
    answer(|| {
        handles::with(sender, |end: &mut SenderEnd| {
            let closed = in_time(end.sender.close_timeout(long(timeout_ns)))?;
            Ok(closed.map_or(Code::Nothing, |()| Code::Ok))
        })
    })
}

/// Waits until every message has its end. Returns [`Code::Nothing`] where that takes longer than
/// `timeout_ns`.
#[unsafe(no_mangle)]
pub extern "C" fn jet_sender_drain(sender: *mut jet_sender, timeout_ns: i64) -> c_int {
    answer(|| {
        handles::with(sender, |end: &mut SenderEnd| {
            let drained = in_time(end.sender.drain_timeout(long(timeout_ns)))?;
            Ok(drained.map_or(Code::Nothing, |()| Code::Ok))
        })
    })
}

/// Converts a timeout in nanoseconds; below zero: [`Duration::MAX`], without limit.
fn long(timeout_ns: i64) -> Duration {
    timeout(timeout_ns).unwrap_or(Duration::MAX)
}

/// Writes a registered buffer of `bytes` bytes to `buffer`.
///
/// # Safety
/// `buffer` is null or a `jet_buffer` to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_buffer_get(
    sender: *mut jet_sender,
    bytes: usize,
    buffer: *mut jet_buffer,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(buffer) }?;
        handles::with(sender, |end: &mut SenderEnd| {
            let buffer = end.sender.buffer(bytes)?;
            place.put(end.lend(buffer));
            Ok(Code::Ok)
        })
    })
}

/// Writes `count` registered buffers of `bytes` bytes each to `buffers`. The buffers lie one behind the other
/// where `bytes` is a power of two of 4096 or more.
///
/// # Safety
/// `buffers` is null or `count` of them to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_buffer_get_row(
    sender: *mut jet_sender,
    bytes: usize,
    count: usize,
    buffers: *mut jet_buffer,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let _checked = unsafe { Out::new(buffers) }?;
        handles::with(sender, |end: &mut SenderEnd| {
            for (at, buffer) in end.sender.buffers(bytes, count)?.into_iter().enumerate() {
                let buffer = end.lend(buffer);
                // SAFETY: as above.
                unsafe { buffers.add(at).write(buffer) };
            }
            Ok(Code::Ok)
        })
    })
}

/// Gives a buffer back that is not sent.
///
/// # Safety
/// `buffer` is null or a `jet_buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_buffer_free(sender: *mut jet_sender, buffer: *mut jet_buffer) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let (place, key) = unsafe { (Out::new(buffer)?, (*buffer).key) };
        handles::with(sender, |end: &mut SenderEnd| {
            drop(end.buffers.take(key).ok_or(Code::Key)?);
            place.put(NO_BUFFER);
            Ok(Code::Ok)
        })
    })
}

/// Sends messages that were accepted, without waiting for the next poll.
#[unsafe(no_mangle)]
pub extern "C" fn jet_sender_flush(sender: *mut jet_sender) -> c_int {
    answer(|| {
        handles::with(sender, |end: &mut SenderEnd| {
            end.sender.flush();
            Ok(Code::Ok)
        })
    })
}

/// Writes the sender's identity to `id`. The application sees it with every message.
///
/// # Safety
/// `id` is null or a `uint64_t` to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_sender_id(sender: *mut jet_sender, id: *mut u64) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(id) }?;
        handles::with(sender, |end: &mut SenderEnd| {
            place.put(end.sender.id());
            Ok(Code::Ok)
        })
    })
}

/// Writes the sender's counters to `stats`, as far as the caller's version of the structure goes.
///
/// # Safety
/// `stats` is null or `size` bytes to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_sender_stats_get(
    sender: *mut jet_sender,
    stats: *mut jet_sender_stats,
    size: usize,
) -> c_int {
    answer(|| {
        handles::with(sender, |end: &mut SenderEnd| {
            let found = end.sender.stats();
            let counted = jet_sender_stats {
                in_flight: found.in_flight as u64,
                window_permille: found.window_permille.into(),
                connected: end.sender.is_connected().into(),
                checksums: end.sender.sends_checksums().into(),
            };
            // SAFETY: the caller's promise.
            unsafe { put_sized(stats, size, &counted) }?;
            Ok(Code::Ok)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn below_zero_a_wait_has_no_limit_and_else_the_one_that_is_given() {
        assert_eq!([long(-1), long(i64::MIN)], [Duration::MAX; 2]);
        assert_eq!([long(0), long(1)], [Duration::ZERO, Duration::from_nanos(1)]);
        assert_eq!(long(i64::MAX), Duration::from_nanos(i64::MAX.unsigned_abs()));
    }
}

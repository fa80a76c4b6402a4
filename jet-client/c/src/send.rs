//! The sending end for C.
#![allow(non_camel_case_types)] // C's names

mod failures;

use self::failures::{in_time, longer_than};
use crate::code::{Code, Failure, answer};
use crate::handles::{self, Kind};
use crate::keys::Keys;
use crate::text::{Out, bytes, put_sized, sized, text, timeout};
use jet_client::Address;
use jet_client::send::{
    AckStatus, Completion, Envelope, NotSent, RetryPolicy, SendBuffer, Sender, SenderOptions, Ticket,
};
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
    /// Padding that keeps the following fields aligned.
    pub reserved: c_int,
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

/// End of a message.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct jet_completion {
    /// Ticket of the message.
    pub ticket: u64,
    /// Status that the message ended with: one of `JET_CONSUMED` and so on.
    pub status: c_int,
    /// Code of the application, where it rejected the message.
    pub code: u32,
    /// Time from the submission to the end, in nanoseconds.
    pub latency_ns: u64,
    /// Buffer of the message, which belongs to the caller again.
    pub buffer: jet_buffer,
}

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
struct SenderEnd {
    // Buffers lead into the sender's memory, so they are dropped first.
    buffers: Keys<SendBuffer>,
    /// Lengths of the buffers of which less is in flight, to be set again at the message's end: in C a buffer
    /// keeps its length.
    whole: HashMap<Ticket, usize>,
    sender: Sender,
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
            reserved: 0,
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

    fn completion(&mut self, end: Completion) -> jet_completion {
        let (status, code) = match end.status {
            AckStatus::Consumed => (0, 0),
            AckStatus::Rejected(code) => (1, code),
            AckStatus::Busy => (2, 0),
            AckStatus::NoApp => (3, 0),
            AckStatus::Denied => (4, 0),
            AckStatus::TooLarge => (5, 0),
            AckStatus::Corrupt => (6, 0),
            AckStatus::AppGone => (7, 0),
            AckStatus::Draining => (8, 0),
            AckStatus::PeerLost => (9, 0),
        };
        let buffer = end.buffer.map_or(NO_BUFFER, |mut buffer| {
            if let Some(bytes) = self.whole.remove(&end.ticket) {
                buffer.set_length(bytes);
            }
            self.lend(buffer)
        });
        jet_completion { ticket: end.ticket.0, status, code, latency_ns: ns(end.latency), buffer }
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
        _ => c"no end of Jet's",
    };
    text.as_ptr()
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
        place.put(handles::insert(SenderEnd { buffers, whole, sender })?);
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

/// Sends a small message, whose payload is copied.
///
/// # Safety
/// Pointers are null or lead to as many bytes as the arguments say; `ticket` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_send_small(
    sender: *mut jet_sender,
    tag: u64,
    user_header: *const c_void,
    user_header_bytes: usize,
    payload: *const c_void,
    payload_bytes: usize,
    ticket: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let (header, payload, ticket) = unsafe {
            let header = bytes(user_header.cast(), user_header_bytes)?;
            (header, bytes(payload.cast(), payload_bytes)?, Out::optional(ticket)?)
        };
        handles::with(sender, |end: &mut SenderEnd| {
            let sent = end.sender.send_small(Envelope::new(tag).user_header(header), payload)?;
            ticket.into_iter().for_each(|ticket| ticket.put(sent.0));
            Ok(Code::Ok)
        })
    })
}

/// Sends the first `length` bytes of a buffer: as a small message without a copy where `class` is below zero,
/// otherwise as a large message of that class.
///
/// # Safety
/// As for [`jet_send_small`]; `buffer` is null or a `jet_buffer`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_send_buffer(
    sender: *mut jet_sender,
    tag: u64,
    user_header: *const c_void,
    user_header_bytes: usize,
    buffer: *mut jet_buffer,
    length: usize,
    class: c_int,
    ticket: *mut u64,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let (place, ticket) = unsafe { (Out::new(buffer)?, Out::optional(ticket)?) };
        // SAFETY: as above.
        let (key, header) = unsafe { ((*buffer).key, bytes(user_header.cast(), user_header_bytes)?) };
        let class = match class {
            ..0 => None,
            class => Some(u8::try_from(class).map_err(|_| Code::Argument)?),
        };
        handles::with(sender, |end: &mut SenderEnd| {
            let SenderEnd { buffers, whole, sender } = end;
            let envelope = Envelope::new(tag).user_header(header);
            let send = |mut buffer: SendBuffer| {
                let bytes = buffer.len();
                if length > bytes {
                    return (Some(buffer), Err(longer_than(bytes, length)));
                }
                buffer.set_length(length);
                let sent = match class {
                    None => sender.send_small_buffer(envelope, buffer),
                    Some(class) => sender.send(envelope.class(class), buffer),
                };
                match sent {
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

/// Writes the next message's end to `completion`, or returns [`Code::Nothing`] where there is none.
///
/// # Safety
/// `completion` is null or a `jet_completion` to be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_sender_poll(sender: *mut jet_sender, completion: *mut jet_completion) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(completion) }?;
        handles::with(sender, |end: &mut SenderEnd| {
            let Some(found) = end.sender.poll() else { return Ok(Code::Nothing) };
            place.put(end.completion(found));
            Ok(Code::Ok)
        })
    })
}

/// Waits for the next message's end, and writes it to `completion`.
///
/// # Safety
/// As for [`jet_sender_poll`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn jet_sender_wait(
    sender: *mut jet_sender,
    timeout_ns: i64,
    completion: *mut jet_completion,
) -> c_int {
    answer(|| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(completion) }?;
        handles::with(sender, |end: &mut SenderEnd| {
            let found = in_time(end.sender.wait_timeout(long(timeout_ns)))?.flatten();
            let Some(found) = found else { return Ok(Code::Nothing) };
            place.put(end.completion(found));
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

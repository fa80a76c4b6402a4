//! Calls of the sending end that make, use and free handles and buffers. Sending: `sending.rs`.

use crate::call::{Place, Pointer};
use crate::daemon::text;
use crate::lent::Lent;
use crate::sized::{self, Structure};
use crate::world::{APPS, HANDLES_MAX, World};
use jet_client_c::{
    Code, jet_buffer, jet_buffer_free, jet_buffer_get, jet_buffer_get_row, jet_sender, jet_sender_close,
    jet_sender_connect, jet_sender_drain, jet_sender_flush, jet_sender_free, jet_sender_id,
    jet_sender_options, jet_sender_options_init_sized, jet_sender_stats, jet_sender_stats_get,
};
use std::collections::BTreeMap;
use std::ffi::CString;

/// Lengths of buffers. The last is longer than any memory.
const BUFFER_BYTES: [usize; 8] = [1, 100, 4096, 5000, 65_536, 150_000, 0, usize::MAX];
/// Numbers of buffers of a row. The last two are more than any memory has.
const ROWS: [usize; 8] = [0, 1, 2, 3, 4, 8, usize::MAX / 4096, usize::MAX / 2];
const ROW_MAX: usize = 8;
/// Messages that may be in flight, where the options do not say.
const IN_FLIGHT_DEFAULT: usize = 256;
/// Bytes of the options up to `replies`, and with it.
const REPLIES_END: usize = std::mem::offset_of!(jet_sender_options, replies) + 4;

pub struct SenderEnd {
    pub app: usize,
    pub id: u64,
    pub in_flight_max: usize,
    pub buffers: Lent<Buffer>,
    /// Messages whose end was not taken, with their buffers.
    pub in_flight: BTreeMap<u64, Option<Buffer>>,
    pub sent: u64,
    pub closed: bool,
    /// Every message has its end.
    pub drained: bool,
    /// It has memory for replies.
    pub replies: bool,
    /// The reply of the last end that was taken: where it is, and what it is.
    pub reply: Option<(*const u8, &'static [u8])>,
}

impl SenderEnd {
    /// Checks that the last reply is still there.
    pub fn check_reply(&self) {
        if let Some((at, reply)) = self.reply.filter(|(_, reply)| !reply.is_empty()) {
            // SAFETY: the library gave this address with this length, and nobody asked for an end since.
            let shown = unsafe { std::slice::from_raw_parts(at, reply.len()) };
            assert!(shown == reply, "a reply changed before the next end was asked for");
        }
    }
}

/// A buffer, filled with bytes that no other has.
#[derive(Clone, Copy)]
pub struct Buffer {
    pub shown: jet_buffer,
    pub bytes: &'static [u8],
}

impl Buffer {
    /// Checks that nobody wrote the buffer.
    pub fn check(&self) {
        if self.shown.bytes > 0 {
            // SAFETY: the library gave this address with this length, and the buffer was not freed.
            let shown = unsafe { std::slice::from_raw_parts(self.shown.data.cast::<u8>(), self.shown.bytes) };
            assert!(shown == self.bytes, "a buffer was written by others");
        }
    }
}

pub fn pointer(handle: usize) -> *mut jet_sender {
    std::ptr::without_provenance_mut(handle)
}

impl World<'_> {
    fn sender_options(&mut self) -> jet_sender_options {
        let mut memory = Structure::new(Pointer::Good);
        let place = memory.pointer();
        let size = size_of::<jet_sender_options>();
        // SAFETY: the place is as long as the structure.
        let call = || unsafe { jet_sender_options_init_sized(place, size) };
        self.past.calls.check("jet_sender_options_init", &[], &[Code::Ok], call);
        // SAFETY: the library has written it.
        unsafe { place.read() }
    }

    pub fn connect(&mut self) {
        if self.senders.len() == HANDLES_MAX {
            return;
        }
        let app = self.input.digit(APPS as u8);
        let how = self.input.digit(16);
        let (name, address, nobody) =
            (self.name(app), self.past.daemon.address(), self.past.daemon.nobody().0);
        let no_text = CString::new(b"\xff").expect("no zero");
        let (no_name, no_address) = (text("two words"), text("nowhere"));
        let mut options = self.sender_options();
        (options.app, options.address) = (name.as_ptr(), address.as_ptr());
        options.spin_max_ns = 0;
        options.in_flight_max = self.input.one_of([1, 2, 4, 8]);
        let flags = self.input.digit(4) as i32;
        (options.crc, options.replies) = (flags & 1, flags >> 1);
        options.retry_all = self.input.digit(2) as i32;
        options.retry_for_ns = 1_000_000;
        options.region_bytes = self.input.one_of([1, 4096, 65_536, 1 << 20]);
        let (mut size, mut at, mut place) = (options.size, Pointer::Good, Place::new(Pointer::Good));
        let mut faults = vec![];
        match how {
            5 => (options.app, faults) = (std::ptr::null(), vec![Code::Argument]),
            6 => (options.address, faults) = (std::ptr::null(), vec![Code::Argument]),
            7 => (options.app, faults) = (no_text.as_ptr(), vec![Code::Argument]),
            8 => (options.app, faults) = (no_name.as_ptr(), vec![Code::Argument]),
            9 => (options.address, faults) = (no_address.as_ptr(), vec![Code::Argument]),
            10 => (options.source, faults) = (no_address.as_ptr(), vec![Code::Argument]),
            11 => (options.address, faults) = (nobody.as_ptr(), vec![Code::Unreachable]),
            12 => {
                options.in_flight_max = self.input.one_of([0, 65_537]);
                faults = vec![Code::Argument];
            }
            13 => at = self.pointer(),
            14 => place = Place::new(self.pointer()),
            15 => size = self.input.one_of(sized::sizes(size)),
            _ => {}
        }
        faults.extend(sized::given_faults(size, size_of::<jet_sender_options>(), at));
        if !place.is_good() || size < 24 {
            faults.push(Code::Argument);
        }
        let replies = size >= REPLIES_END && options.replies == 1;
        let in_flight_max = if size < 40 { IN_FLIGHT_DEFAULT } else { options.in_flight_max as usize };
        let mut memory = Structure::new(at);
        options.size = size;
        memory.give(options);
        let structure = memory.pointer::<jet_sender_options>();
        let made = place.pointer();
        // SAFETY: both places are as long as their structures, or null, or crooked, which is refused. Texts
        // end with a zero byte.
        let call = || unsafe { jet_sender_connect(structure, made) };
        let code = self.past.calls.check("jet_sender_connect", &faults, &[Code::Ok], call);
        if !place.is_good() {
            return place.check_unchanged("jet_sender_connect");
        }
        // SAFETY: the library has written it.
        let handle = unsafe { place.written::<*mut jet_sender>() }.addr();
        if code != Code::Ok {
            return assert_eq!(handle, 0, "a handle beside an error");
        }
        self.handle_made(handle);
        let mut end = SenderEnd {
            app,
            id: 0,
            in_flight_max,
            buffers: Lent::new(),
            in_flight: BTreeMap::new(),
            sent: 0,
            closed: false,
            drained: true,
            replies,
            reply: None,
        };
        // SAFETY: a place for a number.
        let call = || unsafe { jet_sender_id(pointer(handle), &raw mut end.id) };
        self.past.calls.check("jet_sender_id", &[], &[Code::Ok], call);
        assert!(self.senders.values().all(|other| other.id != end.id), "two senders of one identity");
        self.senders.insert(handle, end);
    }

    pub fn sender_free(&mut self) {
        let (handle, faults) = self.sender();
        self.sender_free_at(handle, &faults);
    }

    pub fn sender_free_at(&mut self, handle: usize, faults: &[Code]) {
        if let Some(end) = self.senders.get(&handle) {
            end.check_reply();
        }
        let call = || jet_sender_free(pointer(handle));
        self.past.calls.check("jet_sender_free", faults, &[Code::Ok], call);
        if let Some(end) = self.senders.remove(&handle) {
            self.handle_freed(handle);
            for (_, sent) in self.sent.range_mut((end.id, 0)..=(end.id, u64::MAX)) {
                sent.sender_is_gone = true;
            }
        }
    }

    /// Fills a new buffer, and notes it.
    pub fn lend(&mut self, handle: usize, shown: jet_buffer) -> Buffer {
        let bytes = self.piece(shown.bytes);
        assert!(!shown.data.is_null());
        // SAFETY: the library gave this address with this length, to be written.
        unsafe { std::slice::from_raw_parts_mut(shown.data.cast::<u8>(), shown.bytes) }
            .copy_from_slice(bytes);
        let buffer = Buffer { shown, bytes };
        self.senders.get_mut(&handle).expect("it lives").buffers.insert(shown.key, buffer);
        buffer
    }

    pub fn buffer_get(&mut self) {
        let (handle, mut faults) = self.sender();
        let bytes = self.input.one_of(BUFFER_BYTES);
        let mut place = Place::new(self.pointer());
        if !place.is_good() {
            faults.push(Code::Argument);
        }
        if bytes == usize::MAX {
            faults.push(Code::System);
        }
        let at = place.pointer();
        // SAFETY: the place is as long as the structure, or null, or crooked, which is refused.
        let call = || unsafe { jet_buffer_get(pointer(handle), bytes, at) };
        if self.past.calls.check("jet_buffer_get", &faults, &[Code::Ok], call) != Code::Ok {
            return place.check_unchanged("jet_buffer_get");
        }
        // SAFETY: the library has written it.
        let shown = unsafe { place.written::<jet_buffer>() };
        assert_eq!(shown.bytes, bytes, "the buffer's length");
        self.lend(handle, shown);
    }

    pub fn buffer_get_row(&mut self) {
        let (handle, mut faults) = self.sender();
        let (bytes, count) = (self.input.one_of(BUFFER_BYTES), self.input.one_of(ROWS));
        let is_null = self.input.digit(16) == 15;
        if is_null {
            faults.push(Code::Argument);
        }
        if bytes == usize::MAX || count > ROW_MAX {
            faults.push(Code::System);
        }
        let none = jet_buffer { data: std::ptr::null_mut(), bytes: 77, key: 77 };
        let mut row = [none; ROW_MAX + 1];
        let at = if is_null { std::ptr::null_mut() } else { row.as_mut_ptr() };
        // SAFETY: there are as many places, or there is no memory for so many buffers.
        let call = || unsafe { jet_buffer_get_row(pointer(handle), bytes, count, at) };
        let code = self.past.calls.check("jet_buffer_get_row", &faults, &[Code::Ok], call);
        let given = if code == Code::Ok { count } else { 0 };
        assert!(row[given..].iter().all(|shown| shown.key == 77), "more than the row was written");
        for shown in &row[..given] {
            assert_eq!(shown.bytes, bytes, "the buffer's length");
            self.lend(handle, *shown);
        }
        if bytes.is_power_of_two() && bytes >= 4096 {
            for pair in row[..given].windows(2) {
                assert_eq!(pair[0].data.addr() + bytes, pair[1].data.addr(), "a row is one range");
            }
        }
    }

    /// Chooses a buffer: a place with its structure, the buffer, and what is wrong with it.
    pub fn buffer(&mut self, handle: usize) -> (Place, Option<Buffer>, Vec<Code>) {
        let others = self.senders.iter().filter(|(other, _)| **other != handle);
        let foreign: Vec<u64> = others.flat_map(|(_, end)| end.buffers.held.keys().copied()).collect();
        let none = Lent::new();
        let buffers = self.senders.get(&handle).map_or(&none, |end| &end.buffers);
        let key = buffers.choose(&mut self.input, &foreign);
        let found = buffers.held.get(&key).copied();
        let unknown = jet_buffer { data: std::ptr::without_provenance_mut(1), bytes: usize::MAX, key };
        let place = Place::of(found.map_or(unknown, |buffer| buffer.shown), self.pointer());
        let mut faults = if place.is_good() { vec![] } else { vec![Code::Argument] };
        if found.is_none() {
            faults.push(Code::Key);
        }
        (place, found, faults)
    }

    /// Notes that a buffer is no longer the caller's.
    ///
    /// # Panics
    /// Where the call did not empty its structure.
    pub fn buffer_gone(&mut self, handle: usize, buffer: Buffer, place: &Place) {
        // SAFETY: the library has written it.
        let left = unsafe { place.written::<jet_buffer>() };
        assert_eq!((left.data.is_null(), left.bytes, left.key), (true, 0, 0), "the buffer is emptied");
        self.senders.get_mut(&handle).expect("it lives").buffers.held.remove(&buffer.shown.key);
    }

    pub fn buffer_free(&mut self) {
        let (handle, mut faults) = self.sender();
        let (mut place, buffer, buffer_faults) = self.buffer(handle);
        faults.extend(buffer_faults);
        if let Some(buffer) = buffer {
            buffer.check();
        }
        let at = place.pointer();
        // SAFETY: the place is as long as the structure, or null, or crooked, which is refused.
        let call = || unsafe { jet_buffer_free(pointer(handle), at) };
        match (self.past.calls.check("jet_buffer_free", &faults, &[Code::Ok], call), buffer) {
            (Code::Ok, Some(buffer)) => self.buffer_gone(handle, buffer, &place),
            _ => place.check_unchanged("jet_buffer_free"),
        }
    }

    pub fn flush(&mut self) {
        let (handle, faults) = self.sender();
        let call = || jet_sender_flush(pointer(handle));
        self.past.calls.check("jet_sender_flush", &faults, &[Code::Ok], call);
    }

    pub fn drain(&mut self, closes: bool) {
        let (handle, faults) = self.sender();
        let is_empty = self.senders.get(&handle).is_some_and(|end| end.in_flight.is_empty());
        let timeout = self.input.timeout(!faults.is_empty() || is_empty);
        let call = || match closes {
            true => jet_sender_close(pointer(handle), timeout),
            false => jet_sender_drain(pointer(handle), timeout),
        };
        let name = if closes { "jet_sender_close" } else { "jet_sender_drain" };
        let good = [Code::Ok, Code::Nothing];
        let good = if timeout < 0 || (!closes && is_empty) { &good[..1] } else { &good };
        let code = self.past.calls.check(name, &faults, good, call);
        if let Some(end) = self.senders.get_mut(&handle) {
            end.closed |= closes;
            end.drained |= code == Code::Ok;
        }
    }

    pub fn sender_id(&mut self) {
        let (handle, mut faults) = self.sender();
        let mut place = Place::new(self.pointer());
        if !place.is_good() {
            faults.push(Code::Argument);
        }
        let at = place.pointer();
        // SAFETY: the place is as long as a number, or null, or crooked, which is refused.
        let call = || unsafe { jet_sender_id(pointer(handle), at) };
        if self.past.calls.check("jet_sender_id", &faults, &[Code::Ok], call) != Code::Ok {
            return place.check_unchanged("jet_sender_id");
        }
        // SAFETY: the library has written it.
        let id = unsafe { place.written::<u64>() };
        assert_eq!(id, self.senders[&handle].id, "the identity changed");
    }

    pub fn sender_stats(&mut self) {
        let (handle, mut faults) = self.sender();
        let kind = self.pointer();
        let size = self.input.one_of(sized::sizes(size_of::<jet_sender_stats>()));
        faults.extend(sized::faults(size, kind));
        let mut memory = Structure::new(kind);
        let at = memory.pointer();
        // SAFETY: the memory is as long as the longest structure; a longer one, null and crooked are refused.
        let call = || unsafe { jet_sender_stats_get(pointer(handle), at, size) };
        if self.past.calls.check("jet_sender_stats_get", &faults, &[Code::Ok], call) != Code::Ok {
            return memory.check_unchanged("jet_sender_stats_get");
        }
        let in_flight = self.senders[&handle].in_flight.len() as u64;
        let shown = memory.written::<jet_sender_stats>(size);
        assert_eq!(shown[0], in_flight, "messages in flight");
        assert!(shown.get(2).is_none_or(|connected| *connected <= 1));
    }

    pub fn sender_options_init(&mut self) {
        let kind = self.pointer();
        let size = self.input.one_of(sized::sizes(size_of::<jet_sender_options>()));
        let mut memory = Structure::new(kind);
        let at = memory.pointer();
        // SAFETY: as for the counters.
        let call = || unsafe { jet_sender_options_init_sized(at, size) };
        let faults = sized::faults(size, kind);
        if self.past.calls.check("jet_sender_options_init", &faults, &[Code::Ok], call) != Code::Ok {
            return memory.check_unchanged("jet_sender_options_init");
        }
        assert_eq!(memory.written::<jet_sender_options>(size)[0], size as u64, "the options' size");
    }
}

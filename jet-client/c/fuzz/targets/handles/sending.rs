//! Calls that send messages, and that take their ends.

use crate::call::{Place, Pointer, meaning};
use crate::daemon::{CLASSES, MESSAGE_BYTES_MAX};
use crate::senders::{Buffer, pointer};
use crate::sized::{self, Structure};
use crate::world::{Sent, World};
use jet_client_c::{
    Code, jet_cancel, jet_completion, jet_envelope, jet_envelope_init_sized, jet_send, jet_send_small,
    jet_send_small_buffer, jet_sender_poll_sized, jet_sender_wait_sized, jet_status_text,
};
use std::ffi::c_int;
use std::mem::offset_of;

const HEADER_BYTES: [usize; 8] = [0, 1, 8, 96, 97, 256, 257, 32];
const SMALL_BYTES: [usize; 8] = [0, 1, 5, 100, 4095, 4096, 4097, 9000];
/// Longest user headers, and payload, of a small message and of a large one.
const SMALL_HEADER_MAX: usize = 96;
const SMALL_BYTES_MAX: usize = 4096;
const LARGE_HEADER_MAX: usize = 256;
/// Classes of messages from buffers; `None`: a small message. 256 is no class.
const SENT_CLASSES: [Option<c_int>; 8] =
    [None, Some(0), Some(1), Some(3), Some(4), Some(255), Some(256), Some(0)];
const FIRST_TAG_WITH_REPLY: usize = 12;

/// Ends of messages, as the header numbers them.
const CONSUMED: c_int = 0;
const REJECTED: c_int = 1;
const NO_APP: c_int = 3;
const DENIED: c_int = 4;
const APP_GONE: c_int = 7;
const CANCELLED: c_int = 0x601;

/// Bytes that are sent, and the pointer that says where: null in place of some.
struct Bytes {
    bytes: &'static [u8],
    is_null: bool,
}

impl Bytes {
    fn pointer(&self) -> *const std::ffi::c_void {
        if self.is_null { std::ptr::null() } else { self.bytes.as_ptr().cast() }
    }

    fn is_lie(&self) -> bool {
        self.is_null && !self.bytes.is_empty()
    }
}

/// An envelope, with what the library reads of it.
struct Said {
    place: Place,
    tag: u64,
    header: &'static [u8],
    class: c_int,
    wants_reply: bool,
    faults: Vec<Code>,
}

impl World<'_> {
    fn bytes<const N: usize>(&mut self, lengths: [usize; N]) -> Bytes {
        let bytes = self.input.one_of(lengths);
        let bytes = self.piece(bytes);
        Bytes { bytes, is_null: self.input.digit(16) == 15 }
    }

    /// What a sender refuses whatever the bytes are.
    fn sender_faults(&self, handle: usize, said: &Said) -> Vec<Code> {
        let Some(end) = self.senders.get(&handle) else { return vec![] };
        let mut faults = vec![];
        if end.closed {
            faults.push(Code::Closed);
        }
        if end.in_flight.len() == end.in_flight_max {
            faults.push(Code::Full);
        }
        if said.wants_reply && !end.replies {
            faults.push(Code::NoReply);
        }
        faults
    }

    /// Notes a message that was accepted.
    fn accepted(&mut self, handle: usize, sent: Sent, buffer: Option<Buffer>, ticket: &Place) {
        let end = self.senders.get_mut(&handle).expect("it lives");
        end.sent += 1;
        if ticket.is_good() {
            // SAFETY: the library has written it.
            assert_eq!(unsafe { ticket.written::<u64>() }, end.sent, "tickets count from 1");
        }
        end.drained = false;
        end.in_flight.insert(end.sent, buffer);
        let id = (end.id, end.sent);
        self.sent.insert(id, sent);
    }

    /// Makes an envelope, from a header, a class and two digits of the input.
    fn envelope(&mut self, header: &Bytes, class: c_int) -> Said {
        let tag = self.input.digit(16);
        let mut envelope = self.new_envelope(tag as u64);
        (envelope.user_header, envelope.user_header_bytes) = (header.pointer(), header.bytes.len());
        // The input's last tags are of messages that want a reply.
        (envelope.class, envelope.wants_reply) = (class, c_int::from(tag >= FIRST_TAG_WITH_REPLY));
        let (own, mut at) = (envelope.size, Pointer::Good);
        match self.input.digit(16) {
            11 => at = Pointer::Null,
            12 => at = Pointer::Crooked,
            // No longer than the place: the library looks at all of it.
            13 => match self.input.one_of(sized::sizes(own)) {
                4096 => envelope.size = own + 16,
                size => envelope.size = size,
            },
            14 => envelope.class = -1,
            15 => envelope.class = 256,
            _ => {}
        }
        let mut faults = sized::given_faults(envelope.size, own, at);
        let knows = |end: usize| envelope.size >= end;
        let header_end = offset_of!(jet_envelope, class);
        let deadline = offset_of!(jet_envelope, deadline_ns);
        let class = if knows(deadline) { envelope.class } else { 0 };
        if (knows(header_end) && header.is_lie()) || !(0..=255).contains(&class) {
            faults.push(Code::Argument);
        }
        Said {
            tag: if knows(offset_of!(jet_envelope, user_header)) { tag as u64 } else { 0 },
            header: if knows(header_end) { header.bytes } else { &[] },
            class,
            wants_reply: knows(deadline) && envelope.wants_reply == 1,
            faults,
            place: Place::of_given(envelope, at),
        }
    }

    /// Has the library fill an envelope.
    fn new_envelope(&mut self, tag: u64) -> jet_envelope {
        let mut place = Place::new(Pointer::Good);
        let at = place.pointer();
        // SAFETY: the place is as long as the structure.
        let call = || unsafe { jet_envelope_init_sized(at, size_of::<jet_envelope>(), tag) };
        self.past.calls.check("jet_envelope_init", &[], &[Code::Ok], call);
        // SAFETY: the library has written it.
        let envelope = unsafe { place.written::<jet_envelope>() };
        assert_eq!((envelope.size, envelope.tag), (size_of::<jet_envelope>(), tag), "size and tag");
        envelope
    }

    pub fn envelope_init(&mut self) {
        let pointer = self.pointer();
        let size = self.input.one_of(sized::sizes(size_of::<jet_envelope>()));
        let mut memory = Structure::new(pointer);
        let at = memory.pointer();
        // SAFETY: the memory is as long as the longest structure; a longer one, null and crooked are refused.
        let call = || unsafe { jet_envelope_init_sized(at, size, 7) };
        let faults = sized::faults(size, pointer);
        if self.past.calls.check("jet_envelope_init", &faults, &[Code::Ok], call) != Code::Ok {
            return memory.check_unchanged("jet_envelope_init");
        }
        assert_eq!(memory.written::<jet_envelope>(size)[0], size as u64, "the envelope's size");
    }

    fn new_message(&self, handle: usize, said: &Said, payload: &'static [u8]) -> Sent {
        let app = self.senders[&handle].app;
        Sent {
            app,
            tag: said.tag,
            header: said.header,
            payload,
            large: false,
            denied: false,
            app_is_gone: self.apps[app].session.is_none(),
            sender_is_gone: false,
            receiver: None,
            was_received: false,
            finished: None,
            wants_reply: said.wants_reply,
            reply: None,
            slices: 0,
            ended: false,
            taken_back: false,
        }
    }

    pub fn send_small(&mut self) {
        let (handle, mut faults) = self.sender();
        let (header, payload) = (self.bytes(HEADER_BYTES), self.bytes(SMALL_BYTES));
        let mut ticket = Place::new(self.pointer());
        let mut said = self.envelope(&header, 0);
        faults.extend_from_slice(&said.faults);
        if payload.is_lie() || ticket.is_crooked() {
            faults.push(Code::Argument);
        }
        if said.header.len() > SMALL_HEADER_MAX || payload.bytes.len() > SMALL_BYTES_MAX {
            faults.push(Code::Size);
        }
        faults.extend(self.sender_faults(handle, &said));
        let (envelope, payload_at, ticket_at) = (said.place.pointer(), payload.pointer(), ticket.pointer());
        let payload = payload.bytes;
        let call = || {
            let (sender, bytes) = (pointer(handle), payload.len());
            // SAFETY: the pointers lead to as many bytes, or are null; those of the envelope and the ticket
            // are refused where they are crooked.
            unsafe { jet_send_small(sender, envelope, payload_at, bytes, ticket_at) }
        };
        let code = self.past.calls.check("jet_send_small", &faults, &[Code::Ok], call);
        said.place.check_unchanged("jet_send_small");
        if code != Code::Ok {
            return ticket.check_unchanged("jet_send_small");
        }
        let sent = self.new_message(handle, &said, payload);
        self.accepted(handle, sent, None, &ticket);
    }

    pub fn send_buffer(&mut self) {
        let (handle, mut faults) = self.sender();
        let (mut place, buffer, buffer_faults) = self.buffer(handle);
        faults.extend(buffer_faults);
        let header = self.bytes(HEADER_BYTES);
        let whole = buffer.map_or(100, |buffer| buffer.shown.bytes);
        let bytes =
            self.input.one_of([whole, 1, whole / 2, whole + 1, whole - whole / 16, 4097, 0, usize::MAX]);
        let class = self.input.one_of(SENT_CLASSES);
        let mut ticket = Place::new(self.pointer());
        let mut said = self.envelope(&header, class.unwrap_or(0));
        faults.extend_from_slice(&said.faults);
        if ticket.is_crooked() {
            faults.push(Code::Argument);
        }
        let large = class.is_some();
        let (header_max, bytes_max) =
            if large { (LARGE_HEADER_MAX, MESSAGE_BYTES_MAX) } else { (SMALL_HEADER_MAX, SMALL_BYTES_MAX) };
        let fits = bytes <= whole.min(bytes_max) && (bytes > 0 || !large);
        if !fits || said.header.len() > header_max {
            faults.push(Code::Size);
        }
        faults.extend(self.sender_faults(handle, &said));
        let (envelope, buffer_at, ticket_at) = (said.place.pointer(), place.pointer(), ticket.pointer());
        let name = if large { "jet_send" } else { "jet_send_small_buffer" };
        let call = || {
            let sender = pointer(handle);
            // SAFETY: the pointers lead to as many bytes, or are null, or crooked, which is refused.
            unsafe {
                match large {
                    true => jet_send(sender, envelope, buffer_at, bytes, ticket_at),
                    false => jet_send_small_buffer(sender, envelope, buffer_at, bytes, ticket_at),
                }
            }
        };
        let code = self.past.calls.check(name, &faults, &[Code::Ok], call);
        said.place.check_unchanged(name);
        match (code, buffer) {
            (Code::Ok, Some(buffer)) => {
                self.buffer_gone(handle, buffer, &place);
                let message = self.new_message(handle, &said, &buffer.bytes[..bytes]);
                let denied = large && said.class >= i32::from(CLASSES);
                self.accepted(handle, Sent { large, denied, ..message }, Some(buffer), &ticket);
            }
            _ => {
                place.check_unchanged(name);
                ticket.check_unchanged(name);
            }
        }
    }

    /// Takes one of the last messages back, or one that never was.
    pub fn cancel(&mut self) {
        let (handle, faults) = self.sender();
        let newest = self.senders.get(&handle).map_or(0, |end| end.sent);
        let ticket = match self.input.digit(8) {
            7 => self.input.number(),
            back => newest.saturating_sub(back as u64),
        };
        let call = || jet_cancel(pointer(handle), ticket);
        if self.past.calls.check("jet_cancel", &faults, &[Code::Ok], call) != Code::Ok {
            return;
        }
        let Some(end) = self.senders.get(&handle) else { return };
        if end.in_flight.contains_key(&ticket) {
            self.sent.get_mut(&(end.id, ticket)).expect("it was sent").taken_back = true;
        }
    }

    pub fn poll(&mut self) {
        self.take_end(false);
    }

    pub fn wait(&mut self) {
        self.take_end(true);
    }

    fn take_end(&mut self, waits: bool) {
        let (handle, mut faults) = self.sender();
        let mut place = Place::new(self.pointer());
        if !place.is_good() {
            faults.push(Code::Argument);
        }
        let is_empty = self.senders.get(&handle).is_some_and(|end| end.in_flight.is_empty());
        let timeout = waits.then(|| self.input.timeout(!faults.is_empty() || is_empty));
        self.take_end_at(handle, &faults, timeout, &mut place);
    }

    /// Takes the next message's end, and compares it with what became of the message. Without a timeout it
    /// polls.
    pub fn take_end_at(&mut self, handle: usize, faults: &[Code], timeout: Option<i64>, place: &mut Place) {
        let good = match self.senders.get(&handle) {
            Some(end) if end.in_flight.is_empty() => &[Code::Nothing][..],
            Some(end) if end.drained => &[Code::Ok],
            _ => &[Code::Ok, Code::Nothing],
        };
        if let Some(end) = self.senders.get_mut(&handle) {
            end.check_reply();
            end.reply = None;
        }
        let at = place.pointer();
        let (name, code) = match timeout {
            // SAFETY: the place is as long as the structure, or null, or crooked, which is refused.
            None => (
                "jet_sender_poll",
                self.past.calls.check("jet_sender_poll", faults, good, || unsafe {
                    jet_sender_poll_sized(pointer(handle), at, size_of::<jet_completion>())
                }),
            ),
            // SAFETY: as above.
            Some(ns) => (
                "jet_sender_wait",
                self.past.calls.check("jet_sender_wait", faults, good, || unsafe {
                    jet_sender_wait_sized(pointer(handle), ns, at, size_of::<jet_completion>())
                }),
            ),
        };
        if code != Code::Ok {
            return place.check_unchanged(name);
        }
        // SAFETY: the library has written it.
        let end = unsafe { place.written::<jet_completion>() };
        self.ended(handle, &end);
    }

    fn ended(&mut self, handle: usize, shown: &jet_completion) {
        let end = self.senders.get_mut(&handle).expect("it lives");
        let id = (end.id, shown.ticket);
        let buffer = end.in_flight.remove(&shown.ticket);
        let buffer = buffer.unwrap_or_else(|| panic!("{id:?} is not in flight: it ends twice"));
        let sent = self.sent.get_mut(&id).expect("it was sent");
        sent.ended = true;
        let status = meaning(jet_status_text, shown.status);
        let (finished, slices) = (sent.finished, sent.slices);
        let is_true = match shown.status {
            CONSUMED => finished == Some(0) && slices == 0,
            REJECTED => finished.is_some_and(|code| code != 0) && slices == 0,
            NO_APP | APP_GONE => sent.app_is_gone,
            DENIED => sent.denied,
            CANCELLED => sent.taken_back,
            _ => false,
        };
        assert!(is_true, "{id:?} ends as {status}: finished {finished:?}, {slices} slices are held");
        let code = if shown.status == REJECTED { finished.unwrap_or(0) } else { 0 };
        assert_eq!(shown.code, code, "{id:?}: the application's code");
        assert_eq!(shown.tag, sent.tag, "{id:?}: the tag");
        let reply = sent.reply.filter(|_| matches!(shown.status, CONSUMED | REJECTED));
        let is_there = (!shown.reply.is_null()).then_some(shown.reply_bytes);
        assert_eq!(is_there, reply.map(<[u8]>::len), "{id:?}: the reply's length");
        assert!(reply.is_some() || shown.reply_bytes == 0, "{id:?}: no reply has no bytes");
        end.reply = reply.map(|reply| (shown.reply.cast(), reply));
        end.check_reply();
        let Some(buffer) = buffer else {
            let none = &shown.buffer;
            return assert_eq!((none.data.is_null(), none.bytes, none.key), (true, 0, 0), "no buffer");
        };
        assert_eq!(
            (shown.buffer.data, shown.buffer.bytes),
            (buffer.shown.data, buffer.shown.bytes),
            "{id:?}: the buffer comes back"
        );
        let buffer = Buffer { shown: shown.buffer, ..buffer };
        buffer.check();
        end.buffers.insert(shown.buffer.key, buffer);
    }

    /// Takes an end, if there is one within `ns` nanoseconds.
    pub fn wait_at(&mut self, handle: usize, ns: i64) {
        self.take_end_at(handle, &[], Some(ns), &mut Place::new(Pointer::Good));
    }
}

//! Calls of the receiving end.

use crate::call::{Place, Pointer};
use crate::daemon::{CLASSES, text};
use crate::lent::Lent;
use crate::sized::{self, Structure};
use crate::world::{APPS, App, HANDLES_MAX, MessageId, World};
use jet_client_c::{
    Code, jet_message, jet_message_finish, jet_message_next, jet_message_reply, jet_session, jet_session_fd,
    jet_session_flush, jet_session_free, jet_session_holds_all, jet_session_options,
    jet_session_options_init_sized, jet_session_prepare_sleep, jet_session_receive_sized,
    jet_session_register, jet_session_stats, jet_session_stats_get, jet_slice, jet_slice_release,
};
use std::collections::BTreeMap;
use std::ffi::CString;

/// Codes with which messages are finished.
const VERDICTS: [u32; 4] = [0, 0, 28, u32::MAX];
/// Lengths of replies.
const REPLY_BYTES: [usize; 8] = [0, 1, 64, 4095, 4096, 4097, 100_000, 100];
/// Length of the longest reply.
const REPLY_BYTES_MAX: usize = 4096;

pub struct SessionEnd {
    app: usize,
    messages: Lent<Message>,
    slices: Lent<Slice>,
    received: u64,
    slices_taken: u64,
    bytes_taken: u64,
    descriptor: Option<i32>,
}

/// A message that was received and not finished.
struct Message {
    id: MessageId,
    shown: jet_message,
    /// Slices that were given: offsets and lengths.
    given: BTreeMap<u64, usize>,
    withdrawn: bool,
}

impl Message {
    fn is_whole(&self) -> bool {
        let given: usize = self.given.values().sum();
        !self.given.is_empty() && given as u64 == self.shown.bytes
    }
}

/// A slice that was taken and not given back.
struct Slice {
    shown: jet_slice,
    id: MessageId,
    bytes: &'static [u8],
}

impl Slice {
    fn check(&self) {
        // SAFETY: the library gave this address with this length, and the slice was not given back.
        let shown = unsafe { bytes_at(self.shown.data.cast(), self.shown.bytes) };
        assert!(shown == self.bytes, "the bytes at {} of message {:?}", self.shown.offset, self.id);
    }
}

/// # Safety
/// The library gave this address with this length, and the bytes were not given back.
unsafe fn bytes_at<'a>(data: *const u8, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    assert!(!data.is_null(), "{bytes} bytes at null");
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(data, bytes) }
}

fn pointer(handle: usize) -> *mut jet_session {
    std::ptr::without_provenance_mut(handle)
}

/// What is wrong with a place.
fn place_faults(place: &Place) -> Vec<Code> {
    if place.is_good() { vec![] } else { vec![Code::Argument] }
}

impl World<'_> {
    fn session_options(&mut self) -> jet_session_options {
        let mut memory = Structure::new(Pointer::Good);
        let place = memory.pointer();
        let size = size_of::<jet_session_options>();
        // SAFETY: the place is as long as the structure.
        let call = || unsafe { jet_session_options_init_sized(place, size) };
        self.past.calls.check("jet_session_options_init", &[], &[Code::Ok], call);
        // SAFETY: the library has written it.
        unsafe { place.read() }
    }

    pub fn register(&mut self) {
        if self.sessions.len() == HANDLES_MAX {
            return;
        }
        let app = self.input.digit(APPS as u8);
        let how = self.input.digit(16);
        let (name, control_socket, nobody) =
            (self.name(app), self.past.daemon.control_socket(), self.past.daemon.nobody().1);
        let (no_text, no_name) = (CString::new(b"\xff").expect("no zero"), text("two words"));
        let mut options = self.session_options();
        (options.app, options.control_socket) = (name.as_ptr(), control_socket.as_ptr());
        options.spin_max_ns = 0;
        options.memory_instead_of_waiting = self.input.digit(2) as i32;
        options.class = self.input.one_of([0, 0, 1, i32::from(CLASSES) - 1]);
        let (mut size, mut at, mut place) = (options.size, Pointer::Good, Place::new(Pointer::Good));
        let mut faults = vec![];
        match how {
            7 => (options.app, faults) = (std::ptr::null(), vec![Code::Argument]),
            8 => (options.app, faults) = (no_text.as_ptr(), vec![Code::Argument]),
            9 => (options.app, faults) = (no_name.as_ptr(), vec![Code::Refused]),
            10 => (options.control_socket, faults) = (nobody.as_ptr(), vec![Code::Unreachable]),
            11 => (options.class, faults) = (self.input.one_of([-1, 256]), vec![Code::Argument]),
            12 => (options.class, faults) = (CLASSES.into(), vec![Code::Refused]),
            13 => at = self.pointer(),
            14 => place = Place::new(self.pointer()),
            15 => size = self.input.one_of(sized::sizes(size)),
            _ => {}
        }
        faults.extend(sized::given_faults(size, size_of::<jet_session_options>(), at));
        faults.extend(place_faults(&place));
        // The address of the name is beyond such a structure.
        if size < 24 {
            faults.push(Code::Argument);
        }
        let App { session, was_freed } = self.apps[app];
        if session.is_some() {
            faults.push(Code::Refused);
        }
        let mut memory = Structure::new(at);
        options.size = size;
        memory.give(options);
        let structure = memory.pointer::<jet_session_options>();
        let good = if was_freed { &[Code::Ok, Code::Refused][..] } else { &[Code::Ok] };
        let made = place.pointer();
        // SAFETY: both places are as long as their structures, or null, or crooked, which is refused. Texts
        // end with a zero byte.
        let call = || unsafe { jet_session_register(structure, made) };
        let code = self.past.calls.check("jet_session_register", &faults, good, call);
        if !place.is_good() {
            return place.check_unchanged("jet_session_register");
        }
        // SAFETY: the library has written it.
        let handle = unsafe { place.written::<*mut jet_session>() }.addr();
        if code != Code::Ok {
            return assert_eq!(handle, 0, "a handle beside an error");
        }
        self.handle_made(handle);
        self.apps[app].session = Some(handle);
        let end = SessionEnd {
            app,
            messages: Lent::new(),
            slices: Lent::new(),
            received: 0,
            slices_taken: 0,
            bytes_taken: 0,
            descriptor: None,
        };
        self.sessions.insert(handle, end);
    }

    pub fn session_free(&mut self) {
        let (handle, faults) = self.session();
        self.session_free_at(handle, &faults);
    }

    pub fn session_free_at(&mut self, handle: usize, faults: &[Code]) {
        let call = || jet_session_free(pointer(handle));
        self.past.calls.check("jet_session_free", faults, &[Code::Ok], call);
        if let Some(end) = self.sessions.remove(&handle) {
            self.handle_freed(handle);
            self.app_gone(end.app, handle);
        }
    }

    pub fn receive(&mut self) {
        let (handle, mut faults) = self.session();
        let mut place = Place::new(self.pointer());
        faults.extend(place_faults(&place));
        let timeout = self.input.timeout(!faults.is_empty());
        self.receive_at(handle, &faults, timeout, &mut place);
    }

    /// Receives a message, and compares it with what was sent. Returns whether there was one.
    pub fn receive_at(&mut self, handle: usize, faults: &[Code], timeout: i64, place: &mut Place) -> bool {
        let holds = self
            .sessions
            .get(&handle)
            .is_some_and(|end| !end.messages.held.is_empty() || !end.slices.held.is_empty());
        let good =
            if holds { &[Code::Ok, Code::Nothing, Code::Held][..] } else { &[Code::Ok, Code::Nothing] };
        let at = place.pointer();
        let size = size_of::<jet_message>();
        // SAFETY: the place is as long as the structure, or null, or crooked, which is refused.
        let call = || unsafe { jet_session_receive_sized(pointer(handle), timeout, at, size) };
        if self.past.calls.check("jet_session_receive", faults, good, call) != Code::Ok {
            place.check_unchanged("jet_session_receive");
            return false;
        }
        // SAFETY: the library has written it.
        let shown = unsafe { place.written::<jet_message>() };
        let id = (shown.sender, shown.sequence);
        let end = self.sessions.get_mut(&handle).expect("it lives");
        let sent = self.sent.get_mut(&id).unwrap_or_else(|| panic!("{id:?} was never sent"));
        assert_eq!((sent.app, sent.tag), (end.app, shown.tag), "{id:?}: application and tag");
        assert_eq!(sent.payload.len() as u64, shown.bytes, "{id:?}: length");
        // One that was taken back may have its end before its application sees it begin.
        assert!(!sent.ended || sent.sender_is_gone || sent.taken_back, "{id:?} has its end already");
        assert_eq!(sent.receiver, None, "{id:?} is received twice");
        assert!(!sent.was_received || shown.redelivered == 1, "{id:?} was received, and is not redelivered");
        // SAFETY: the message was not finished.
        let header = unsafe { bytes_at(shown.user_header.cast(), shown.user_header_bytes) };
        assert!(header == sent.header, "{id:?}: user header");
        assert_eq!(shown.wants_reply == 1, sent.wants_reply, "{id:?}: whether it wants a reply");
        (sent.receiver, sent.finished, sent.reply, sent.slices) = (Some(handle), None, None, 0);
        end.received += 1;
        end.messages.insert(shown.key, Message { id, shown, given: BTreeMap::new(), withdrawn: false });
        true
    }

    /// Returns the keys of what other sessions hold, and of this one's things of the other kind.
    fn foreign_keys(&self, handle: usize, of_messages: bool) -> Vec<u64> {
        let keys = self.sessions.iter().flat_map(|(other, end)| {
            let messages = end.messages.held.keys().filter(move |_| *other != handle || !of_messages);
            messages.chain(end.slices.held.keys().filter(move |_| *other != handle || of_messages))
        });
        keys.copied().collect()
    }

    /// Chooses a message: a place with its structure, its key, and what is wrong with it.
    fn message(&mut self, handle: usize) -> (Place, u64, Vec<Code>) {
        let foreign = self.foreign_keys(handle, true);
        let none = Lent::new();
        let messages = self.sessions.get(&handle).map_or(&none, |end| &end.messages);
        let key = messages.choose(&mut self.input, &foreign);
        let shown = messages.held.get(&key).map(|message| message.shown);
        let unknown = jet_message {
            key,
            tag: 1,
            sequence: 1,
            sender: 1,
            bytes: 1,
            user_header: std::ptr::without_provenance(1),
            user_header_bytes: usize::MAX,
            redelivered: 1,
            wants_reply: 1,
        };
        let place = Place::of(shown.unwrap_or(unknown), self.pointer());
        let mut faults = place_faults(&place);
        if shown.is_none() {
            faults.push(Code::Key);
        }
        (place, key, faults)
    }

    pub fn next(&mut self) {
        let (handle, mut faults) = self.session();
        let (mut message, key, message_faults) = self.message(handle);
        let mut place = Place::new(self.pointer());
        faults.extend(message_faults);
        faults.extend(place_faults(&place));
        let held = self.sessions.get(&handle).and_then(|end| end.messages.held.get(&key));
        let is_sure = !faults.is_empty() || held.is_some_and(|message| message.is_whole());
        let timeout = self.input.timeout(is_sure);
        self.next_at(handle, key, &faults, timeout, &mut message, &mut place);
        message.check_unchanged("jet_message_next");
    }

    /// Takes a message's next slice, and compares it with what was sent.
    fn next_at(
        &mut self,
        handle: usize,
        key: u64,
        faults: &[Code],
        timeout: i64,
        message: &mut Place,
        place: &mut Place,
    ) -> Code {
        let held = self.sessions.get(&handle).and_then(|end| end.messages.held.get(&key));
        let mut good = vec![];
        if let Some(message) = held {
            let sent = &self.sent[&message.id];
            if !message.withdrawn {
                good = match (message.is_whole(), sent.large) {
                    (true, _) => vec![Code::End],
                    (false, true) => vec![Code::Ok, Code::Nothing, Code::Held],
                    // It has arrived whole.
                    (false, false) => vec![Code::Ok],
                };
            }
            if sent.sender_is_gone || sent.taken_back {
                good.push(Code::Withdrawn);
            }
        }
        let (message, slice) = (message.pointer(), place.pointer());
        // SAFETY: the places are as long as their structures, or null, or crooked, which is refused.
        let call = || unsafe { jet_message_next(pointer(handle), message, timeout, slice) };
        let code = self.past.calls.check("jet_message_next", faults, &good, call);
        if code != Code::Ok {
            place.check_unchanged("jet_message_next");
            if code == Code::Withdrawn {
                let end = self.sessions.get_mut(&handle).expect("it lives");
                end.messages.held.get_mut(&key).expect("it is held").withdrawn = true;
            }
            return code;
        }
        // SAFETY: the library has written it.
        let shown = unsafe { place.written::<jet_slice>() };
        let end = self.sessions.get_mut(&handle).expect("it lives");
        let message = end.messages.held.get_mut(&key).expect("it is held");
        let sent = self.sent.get_mut(&message.id).expect("it was sent");
        let (from, to) = (shown.offset as usize, shown.offset as usize + shown.bytes);
        assert!(to <= sent.payload.len(), "{:?}: bytes {from} to {to}", message.id);
        let before = message.given.range(..=shown.offset).next_back();
        let behind = message.given.range(shown.offset..).next();
        assert!(
            before.is_none_or(|(at, bytes)| *at as usize + bytes <= from)
                && behind.is_none_or(|(at, _)| to <= *at as usize),
            "{:?}: bytes {from} to {to} are given twice",
            message.id
        );
        message.given.insert(shown.offset, shown.bytes);
        let slice = Slice { shown, id: message.id, bytes: &sent.payload[from..to] };
        slice.check();
        sent.slices += 1;
        end.slices_taken += 1;
        end.bytes_taken += shown.bytes as u64;
        end.slices.insert(shown.key, slice);
        code
    }

    pub fn release(&mut self) {
        let (handle, mut faults) = self.session();
        let foreign = self.foreign_keys(handle, false);
        let none = Lent::new();
        let slices = self.sessions.get(&handle).map_or(&none, |end| &end.slices);
        let key = slices.choose(&mut self.input, &foreign);
        let shown = slices.held.get(&key).map(|slice| slice.shown);
        let unknown = jet_slice { data: std::ptr::without_provenance(1), bytes: usize::MAX, offset: 1, key };
        let place = Place::of(shown.unwrap_or(unknown), self.pointer());
        faults.extend(place_faults(&place));
        if shown.is_none() {
            faults.push(Code::Key);
        }
        self.release_at(handle, key, &faults, place);
    }

    fn release_at(&mut self, handle: usize, key: u64, faults: &[Code], mut place: Place) {
        if faults.is_empty() {
            // Nobody wrote the bytes meanwhile.
            self.sessions[&handle].slices.held[&key].check();
        }
        let at = place.pointer();
        // SAFETY: the place is as long as the structure, or null, or crooked, which is refused.
        let call = || unsafe { jet_slice_release(pointer(handle), at) };
        if self.past.calls.check("jet_slice_release", faults, &[Code::Ok], call) != Code::Ok {
            return place.check_unchanged("jet_slice_release");
        }
        // SAFETY: the library has written it.
        let left = unsafe { place.written::<jet_slice>() };
        assert_eq!((left.data.is_null(), left.bytes, left.key), (true, 0, 0), "the slice is emptied");
        let end = self.sessions.get_mut(&handle).expect("it lives");
        let slice = end.slices.held.remove(&key).expect("it was held");
        let sent = self.sent.get_mut(&slice.id).expect("it was sent");
        sent.slices = sent.slices.saturating_sub(1);
    }

    pub fn finish(&mut self) {
        let (handle, mut faults) = self.session();
        let (place, key, message_faults) = self.message(handle);
        faults.extend(message_faults);
        let verdict = self.input.one_of(VERDICTS);
        self.finish_at(handle, key, &faults, verdict, place);
    }

    fn finish_at(&mut self, handle: usize, key: u64, faults: &[Code], verdict: u32, mut place: Place) {
        if faults.is_empty() {
            let message = &self.sessions[&handle].messages.held[&key];
            let jet_message { user_header, user_header_bytes, .. } = message.shown;
            // SAFETY: the message was not finished.
            let header = unsafe { bytes_at(user_header.cast(), user_header_bytes) };
            assert!(header == self.sent[&message.id].header, "{:?}: the user header changed", message.id);
        }
        let at = place.pointer();
        // SAFETY: the place is as long as the structure, or null, or crooked, which is refused.
        let call = || unsafe { jet_message_finish(pointer(handle), at, verdict) };
        if self.past.calls.check("jet_message_finish", faults, &[Code::Ok], call) != Code::Ok {
            return place.check_unchanged("jet_message_finish");
        }
        self.finished(handle, key, verdict, None, &place);
    }

    /// Notes that a message was finished.
    fn finished(
        &mut self,
        handle: usize,
        key: u64,
        verdict: u32,
        reply: Option<&'static [u8]>,
        place: &Place,
    ) {
        // SAFETY: the library has written it.
        let left = unsafe { place.written::<jet_message>() };
        let emptied = (left.key, left.user_header.is_null(), left.user_header_bytes);
        assert_eq!(emptied, (0, true, 0), "the message is emptied");
        let end = self.sessions.get_mut(&handle).expect("it lives");
        let message = end.messages.held.remove(&key).expect("it was held");
        let sent = self.sent.get_mut(&message.id).expect("it was sent");
        (sent.finished, sent.reply) = (Some(verdict), reply);
    }

    pub fn reply(&mut self) {
        let (handle, mut faults) = self.session();
        let (mut place, key, message_faults) = self.message(handle);
        faults.extend(message_faults);
        let verdict = self.input.one_of(VERDICTS);
        let bytes = self.input.one_of(REPLY_BYTES);
        let is_null = self.input.digit(16) == 15;
        let reply = self.piece(bytes);
        if is_null && bytes > 0 {
            faults.push(Code::Argument);
        }
        if bytes > REPLY_BYTES_MAX {
            faults.push(Code::Size);
        }
        let held = self.sessions.get(&handle).and_then(|end| end.messages.held.get(&key));
        if held.is_some_and(|message| message.shown.wants_reply == 0) {
            faults.push(Code::NoReply);
        }
        let at = place.pointer();
        let data = if is_null { std::ptr::null() } else { reply.as_ptr().cast() };
        // SAFETY: the place is as long as the structure, or null, or crooked, which is refused; the reply is
        // as long as it is said to be, or null.
        let call = || unsafe { jet_message_reply(pointer(handle), at, verdict, data, bytes) };
        if self.past.calls.check("jet_message_reply", &faults, &[Code::Ok], call) != Code::Ok {
            return place.check_unchanged("jet_message_reply");
        }
        self.finished(handle, key, verdict, Some(reply), &place);
    }

    pub fn session_flush(&mut self) {
        let (handle, faults) = self.session();
        self.session_flush_at(handle, &faults);
    }

    fn session_flush_at(&mut self, handle: usize, faults: &[Code]) {
        let call = || jet_session_flush(pointer(handle));
        self.past.calls.check("jet_session_flush", faults, &[Code::Ok], call);
    }

    pub fn prepare_sleep(&mut self) {
        let (handle, faults) = self.session();
        let call = || jet_session_prepare_sleep(pointer(handle));
        self.past.calls.check("jet_session_prepare_sleep", &faults, &[Code::Ok, Code::Nothing], call);
    }

    pub fn holds_all(&mut self) {
        let (handle, faults) = self.session();
        let call = || jet_session_holds_all(pointer(handle));
        self.past.calls.check("jet_session_holds_all", &faults, &[Code::Nothing, Code::Held], call);
    }

    pub fn descriptor(&mut self) {
        let (handle, mut faults) = self.session();
        let mut place = Place::new(self.pointer());
        faults.extend(place_faults(&place));
        let at = place.pointer();
        // SAFETY: the place is as long as a number, or null, or crooked, which is refused.
        let call = || unsafe { jet_session_fd(pointer(handle), at) };
        if self.past.calls.check("jet_session_fd", &faults, &[Code::Ok], call) != Code::Ok {
            return place.check_unchanged("jet_session_fd");
        }
        // SAFETY: the library has written it.
        let descriptor = unsafe { place.written::<i32>() };
        let end = self.sessions.get_mut(&handle).expect("it lives");
        assert!(descriptor >= 0);
        assert_eq!(descriptor, *end.descriptor.get_or_insert(descriptor), "the descriptor changed");
    }

    pub fn session_stats(&mut self) {
        let (handle, mut faults) = self.session();
        let (pointer_kind, size) =
            (self.pointer(), self.input.one_of(sized::sizes(size_of::<jet_session_stats>())));
        faults.extend(sized::faults(size, pointer_kind));
        let mut memory = Structure::new(pointer_kind);
        let at = memory.pointer();
        // SAFETY: the memory is as long as the longest structure; a longer one, null and crooked are refused.
        let call = || unsafe { jet_session_stats_get(pointer(handle), at, size) };
        if self.past.calls.check("jet_session_stats_get", &faults, &[Code::Ok], call) != Code::Ok {
            return memory.check_unchanged("jet_session_stats_get");
        }
        let end = &self.sessions[&handle];
        let counted = [end.received, end.slices_taken, end.bytes_taken];
        for (counted, shown) in counted.iter().zip(memory.written::<jet_session_stats>(size)) {
            assert_eq!(counted, shown, "messages, slices and bytes: {counted:?}");
        }
    }

    pub fn session_options_init(&mut self) {
        let pointer = self.pointer();
        let size = self.input.one_of(sized::sizes(size_of::<jet_session_options>()));
        let mut memory = Structure::new(pointer);
        let at = memory.pointer();
        // SAFETY: as for the counters.
        let call = || unsafe { jet_session_options_init_sized(at, size) };
        let faults = sized::faults(size, pointer);
        if self.past.calls.check("jet_session_options_init", &faults, &[Code::Ok], call) != Code::Ok {
            return memory.check_unchanged("jet_session_options_init");
        }
        assert_eq!(memory.written::<jet_session_options>(size)[0], size as u64, "the options' size");
    }

    /// Receives all that there is for a session, gives it back and finishes it.
    pub fn serve(&mut self, handle: usize) {
        while self.receive_at(handle, &[], 0, &mut Place::new(Pointer::Good)) {}
        let keys: Vec<u64> = self.sessions[&handle].messages.held.keys().copied().collect();
        for key in keys {
            let shown = self.sessions[&handle].messages.held[&key].shown;
            let structure = || Place::of(shown, Pointer::Good);
            let code = loop {
                let code =
                    self.next_at(handle, key, &[], 0, &mut structure(), &mut Place::new(Pointer::Good));
                let slices: Vec<u64> = self.sessions[&handle].slices.held.keys().copied().collect();
                for slice in slices {
                    let place = Place::of(self.sessions[&handle].slices.held[&slice].shown, Pointer::Good);
                    self.release_at(handle, slice, &[], place);
                }
                if code != Code::Ok {
                    break code;
                }
            };
            if code != Code::Nothing && code != Code::Held {
                self.finish_at(handle, key, &[], 0, structure());
            }
        }
        let slices: Vec<u64> = self.sessions[&handle].slices.held.keys().copied().collect();
        for slice in slices {
            let place = Place::of(self.sessions[&handle].slices.held[&slice].shown, Pointer::Good);
            self.release_at(handle, slice, &[], place);
        }
        self.session_flush_at(handle, &[]);
    }
}

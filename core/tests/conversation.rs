//! Recorded conversations between hosts, replayed: the receiver must answer the recorded bytes with the
//! recorded bytes.
//!
//! The recordings are in `wire/tests/conversations/`, one file for each version of the wire format. They say
//! what is in each line, and what the applications and the daemon do in between.

use jet_core::{
    Arrival, Commands, Config, CopyFailed, CopyRefused, EscapeCopy, PeerId, Questions, ReadId, Receiver,
    Registration, Remote, SessionEnd, SessionId, SourceId, Standstill, Sums, pool::Run,
};
use jet_escape::EscapeConfig;

use jet_wire::message::hello::{AppName, Hello, Refusal};
use jet_wire::message::{ByeReason, HeaderBytes, Versions, WIRE_VERSION};
use jet_wire::segment::{Delivery, Release, delivery_kind, release_kind};
use std::collections::{BTreeMap, VecDeque};

/// Returns a small configuration, in which the receiver gives as little credit as possible.
fn config() -> Config {
    Config {
        pool_slabs: 64,
        srq_slabs: 16,
        srq_floor_slabs: 8,
        srq_reserve_entries: 2,
        fragment_bytes: 64 << 10,
        reads_max: 2,
        in_flight_bytes: 64 << 10,
        message_bytes_max: 1 << 20,
        peers_max: 1,
        sessions_max: 1,
        messages_max: 64,
        requests_per_peer: 1,
        credit_max: 1,
        session_slots: 128,
        session_messages: 4,
        memory_slabs: 0,
        escape: EscapeConfig { enabled: false, ..EscapeConfig::default() },
        ..Config::default()
    }
}

/// A driver that carries out what the receiver asks for, as far as the bytes matter.
#[derive(Default)]
struct World {
    posted: VecDeque<(u32, u32)>,
    /// Contents of slabs; all other slabs hold zeros.
    slabs: BTreeMap<u32, Vec<u8>>,
    reads: VecDeque<ReadId>,
    delivered: VecDeque<Delivery>,
    said: VecDeque<Vec<u8>>,
    disconnected: bool,
}

impl Commands for World {
    fn post_srq(&mut self, entry: u32, slab: u32) {
        self.slabs.remove(&slab);
        self.posted.push_back((entry, slab));
    }
    fn post_read(&mut self, _: PeerId, read: ReadId, _: Remote, _: u32, runs: &[Run]) {
        for run in runs {
            (run.first..run.first + run.count).for_each(|slab| drop(self.slabs.remove(&slab)));
        }
        self.reads.push_back(read);
    }
    fn send(&mut self, _: PeerId, header: &HeaderBytes) {
        self.said.push_back(header.0.to_vec());
    }
    fn send_reply(&mut self, _: PeerId, header: &HeaderBytes, _: u32, _: u32) {
        self.said.push_back(header.0.to_vec());
    }
    fn take_reply(&mut self, _: SessionId, _: u32, _: u32, _: u32) -> bool {
        true
    }
    fn disconnect(&mut self, _: PeerId, _: ByeReason, _: Option<u64>) {
        self.disconnected = true;
    }
    fn deliver(&mut self, _: SessionId, delivery: &Delivery, _: &[u8]) {
        if delivery.kind == delivery_kind::SLICES {
            self.delivered.push_back(*delivery);
        }
    }
    fn close_session(&mut self, _: SessionId, _: SessionEnd) {
        self.delivered.clear();
    }
    fn report_standstill(&mut self, _: SessionId, _: Option<Standstill>) {}
    fn begin_copy(&mut self, _: &EscapeCopy) -> Result<(), CopyRefused> {
        Err(CopyRefused::NoRoom)
    }
    fn copy_slab(&mut self, _: u32, _: u32, _: u32) -> Result<(), CopyFailed> {
        Err(CopyFailed::Target)
    }
    fn mark(&mut self, _: bool) {}
    fn begin_check(&mut self, _: ReadId, _: u32, _: &[Run]) {}
}

impl Questions for World {
    fn payload(&self, slab: u32, bytes: u32) -> &[u8] {
        let filled = self.slabs.get(&slab).map_or(&[][..], Vec::as_slice);
        &filled[..filled.len().min(bytes as usize)]
    }
    fn relocate(&mut self, _: &EscapeCopy) -> bool {
        false
    }
}

impl Sums for World {
    fn crc32c(&mut self, crc: u32, slab: u32, bytes: u32) -> Option<u32> {
        let mut filled = self.slabs.get(&slab).cloned().unwrap_or_default();
        filled.resize(bytes as usize, 0);
        Some(crc32c::crc32c_append(crc, &filled))
    }
}

/// One conversation: a receiver of its own, one sender and one application.
struct Talk {
    receiver: Receiver,
    world: World,
    peer: Option<PeerId>,
    session: Option<SessionId>,
    now_ns: u64,
}

impl Talk {
    fn new() -> Self {
        let (mut receiver, mut world) = (Receiver::new(config(), 7).unwrap(), World::default());
        receiver.start(0, &mut world);
        let app = AppName::new("disk").unwrap();
        let session = receiver.handle_session_opened(0, Registration::new(app)).unwrap();
        Self { receiver, world, peer: None, session: Some(session), now_ns: 0 }
    }

    /// Carries out a step that is not the receiver's own.
    fn step(&mut self, who: &str, what: &str, bytes: &[u8]) {
        match (who, what) {
            ("sender", "hello") => self.hello(bytes),
            ("sender", "leaves") => {
                let peer = self.peer.take().expect("a sender is connected");
                self.receiver.handle_peer_lost(peer);
            }
            ("sender", _) => self.header(bytes),
            ("nic", _) => {
                let read = self.world.reads.pop_front().expect("a READ is in flight");
                let ok = what == "reads";
                self.receiver.handle_read_done(self.now_ns, read, ok, !ok, &mut self.world);
            }
            ("application", "leaves") => {
                let session = self.session.take().expect("an application is there");
                self.receiver.handle_session_gone(self.now_ns, session, &mut self.world);
            }
            ("application", "consumes") => self.finish(0),
            ("application", "rejects") => self.finish(28),
            ("time", "passes") => {
                self.now_ns += config().heartbeat_ns;
                self.receiver.handle_tick(self.now_ns, &mut self.world);
            }
            ("daemon", "drains") => self.receiver.drain(),
            ("daemon", "parts") => self.receiver.disconnect_all(&mut self.world),
            other => panic!("nobody knows what {other:?} is"),
        }
        self.receiver.flush(self.now_ns, &mut self.world);
        if let Some(peer) = self.peer {
            // The sender's NIC takes whatever it is sent.
            self.world.said.iter().for_each(|_| self.receiver.handle_sent(peer));
            self.receiver.flush(self.now_ns, &mut self.world);
        }
    }

    /// Answers a connection's first words as the daemon does.
    fn hello(&mut self, bytes: &[u8]) {
        let joined = Hello::decode(bytes).map_err(|_| Refusal::Malformed);
        match joined
            .and_then(|hello| self.receiver.handle_hello(self.now_ns, &hello, SourceId(0), &mut self.world))
        {
            Ok(joined) => {
                self.world.said.push_back(joined.welcome.encode().to_vec());
                self.receiver.handle_connected(joined.peer, 1);
                self.peer = Some(joined.peer);
            }
            Err(refusal) => self.world.said.push_back(refusal.encode().to_vec()),
        }
    }

    fn header(&mut self, bytes: &[u8]) {
        let header = HeaderBytes::from_front(bytes).unwrap();
        let payload = &bytes[header.0.len()..];
        let (entry, slab) = self.world.posted.pop_front().expect("an SRQ entry is posted");
        self.world.slabs.insert(slab, payload.to_vec());
        let peer = self.peer.expect("a sender is connected");
        let payload_bytes = u32::try_from(payload.len()).unwrap();
        let arrival = Arrival { peer, entry, header: &header, payload_bytes };
        self.receiver.handle_receive(self.now_ns, arrival, &mut self.world);
    }

    /// Gives back the run that was delivered first, and finishes its message.
    fn finish(&mut self, code: u32) {
        let delivery = self.world.delivered.pop_front().expect("a message is there");
        let release = Release {
            index: delivery.slot,
            generation: delivery.slot_generation(),
            first: 0,
            count: u16::try_from(delivery.bytes.div_ceil(4096).max(1)).unwrap(),
            kind: release_kind::SLICES_AND_FINISH,
            reserved: 0,
            code,
        };
        let session = self.session.expect("an application is there");
        self.receiver.handle_release(self.now_ns, session, release, &mut self.world).unwrap();
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// Holds each conversation of a recording with a receiver. Returns how many headers and first words the
/// receiver said.
fn hold(recording: &str) -> usize {
    let (mut talk, mut said) = (None, 0);
    for (at, line) in recording.lines().enumerate() {
        let parts: Vec<_> = line.split(" | ").collect();
        match parts[0].split_once(' ') {
            _ if line.is_empty() || line.starts_with('#') => {}
            Some(("conversation", _)) => talk = Some(Talk::new()),
            // These words are recorded beside the conversations, for the receiver has no reason to say them
            // in any.
            Some(("words", _)) => return said,
            Some(("receiver", _)) => {
                let talk = talk.as_mut().expect("a conversation was begun");
                let answer = talk.world.said.pop_front().expect("the receiver says something");
                assert_eq!(answer, bytes(parts[2]), "line {}: {} {}", at + 1, parts[0], parts[1]);
                said += 1;
                let over = parts[0].ends_with("bye");
                assert_eq!(talk.world.disconnected, over, "line {}: {}", at + 1, parts[0]);
            }
            Some((who, what)) => {
                let talk: &mut Talk = talk.as_mut().expect("a conversation was begun");
                assert!(talk.world.said.is_empty(), "line {}: more was said", at + 1);
                talk.step(who, what, &bytes(parts.get(2).unwrap_or(&"")));
            }
            None => panic!("line {} is none", at + 1),
        }
    }
    panic!("a recording ends with its words")
}

#[test]
fn a_receiver_answers_the_recorded_bytes_of_version_1_with_the_recorded_bytes() {
    assert_eq!(hold(include_str!("../../wire/tests/conversations/version-1.txt")), 31);
}

#[test]
fn and_those_of_version_2() {
    assert_eq!(hold(include_str!("../../wire/tests/conversations/version-2.txt")), 31);
}

#[test]
fn a_sender_without_a_version_in_common_is_told_what_the_receiver_speaks() {
    let mut talk = Talk::new();
    let versions = Versions::new(WIRE_VERSION + 1, u8::MAX).unwrap();
    let app = AppName::new("disk").unwrap();
    let hello = Hello { versions, features: 0, sender_id: 1, receive_entries: 64, app };
    talk.step("sender", "hello", &hello.encode());
    let refusal = Refusal::decode(&talk.world.said.pop_front().unwrap());
    assert_eq!(refusal, Some(Refusal::Version(Versions::SUPPORTED)));
    // The refused sender took no place: a sender with a common version still finds one.
    talk.step("sender", "hello", &Hello { versions: Versions::SUPPORTED, ..hello }.encode());
    assert!(talk.peer.is_some());
}

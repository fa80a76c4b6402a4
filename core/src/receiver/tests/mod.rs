//! Tests of the receiver with a driver that remembers everything: single scenarios, and a model with random
//! operations.

mod cancel;
mod check;
mod consumers;
mod depth;
mod escape;
mod heartbeats;
mod liveness;
mod memory;
mod model;
mod peer_headers;
mod pieces;
mod poison;
mod quarantine;
mod records;
mod replies;
mod scenarios;
mod shares;
mod standstill;
mod stopped;

use super::*;
use crate::admission::FootprintWindow;
use crate::config::Checksums;
use crate::effects::{
    Commands, CopyFailed, CopyRefused, EscapeCopy, PeerId, ProcessId, Questions, ReadId, ReleaseError,
    Remote, SessionEnd, SessionId, SourceId, Standstill, Sums,
};
use crate::pool::Run;
use crate::registry::Registration;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use jet_escape::{EscapeConfig, Thresholds};
use jet_wire::message::hello::{AppName, Hello, features};
use jet_wire::message::{
    AckStatus, ByeReason, CancelHeader, FromReceiver, HeaderBytes, RequestFields, RequestHeader, SmallFields,
    SmallHeader, Versions, WaitsFor, parse_from_receiver,
};
use jet_wire::segment::{Delivery, Release, delivery_flags, delivery_kind, release_kind};
use memory::Memory;

/// A driver that carries out nothing and remembers everything.
#[derive(Default)]
struct World {
    posted: VecDeque<(u32, u32)>,
    reads: VecDeque<(PeerId, ReadId, Remote, u32, Vec<Run>)>,
    /// The most READs that each peer's connection takes at once.
    reads_max: BTreeMap<u32, u32>,
    deliveries: BTreeMap<u32, VecDeque<(Delivery, Vec<u8>)>>,
    ends: Vec<(u32, u64, AckStatus)>,
    limits: BTreeMap<u32, u64>,
    /// What the peers were told that they wait for, by each heartbeat.
    reasons: Vec<(u32, Option<WaitsFor>)>,
    recalls: Vec<(u32, u64)>,
    byes: Vec<u32>,
    disconnects: Vec<u32>,
    closed: Vec<(u32, SessionEnd)>,
    sent: Vec<u32>,
    /// The most SENDs to one peer at once.
    sends_max: u32,
    checks: Vec<(ReadId, u32)>,
    /// Offset of each READ in its message.
    offsets: BTreeMap<u32, u32>,
    memory: Memory,
    marks: Vec<bool>,
    /// Slabs that cannot be read.
    poisoned: BTreeSet<u32>,
    signals: Vec<(u32, u32)>,
    /// Payload that the SEND arriving now brought into its slab.
    payload: Vec<u8>,
    standstills: Vec<(u32, Option<Standstill>)>,
    /// Contents of the slots for replies, as the application's message number says them.
    reply_slots: BTreeMap<u32, u32>,
    /// Replies that were sent: to whom, the message, its end, what the slot has, and the reply's bytes.
    replies: Vec<(u32, u64, AckStatus, u32, u32)>,
    /// Slots whose SENDs have not completed, with their peers.
    replies_on_the_way: Vec<(u32, u32)>,
    /// Whether replies cannot be read.
    no_reply_cells: bool,
}

impl World {
    fn count_send(&mut self, peer: PeerId) {
        self.sent.push(peer.0);
        let on_the_way = self.sent.iter().filter(|&&to| to == peer.0).count();
        assert!(on_the_way <= self.sends_max as usize, "{on_the_way} SENDs at once to one peer");
    }
}

impl Commands for World {
    fn post_srq(&mut self, entry: u32, slab: u32) {
        self.memory.overwrite(Run { first: slab, count: 1 });
        self.posted.push_back((entry, slab));
    }
    fn post_read(&mut self, peer: PeerId, read: ReadId, remote: Remote, bytes: u32, runs: &[Run]) {
        runs.iter().for_each(|&run| self.memory.overwrite(run));
        self.offsets.insert(read.0, pieces::offset_of(remote, bytes));
        self.reads.push_back((peer, read, remote, bytes, runs.to_vec()));
        let in_flight = self.reads.iter().filter(|read| read.0 == peer).count();
        let most = self.reads_max.get(&peer.0).copied().unwrap_or(u32::MAX);
        assert!(in_flight <= most as usize, "{in_flight} READs at once, the connection takes {most}");
    }
    fn send_reply(&mut self, peer: PeerId, header: &HeaderBytes, slot: u32, bytes: u32) {
        self.count_send(peer);
        let parsed = parse_from_receiver(header.version(), header, bytes as usize);
        let Ok(FromReceiver::Reply(reply)) = parsed else { panic!("{parsed:?}") };
        let content = *self.reply_slots.get(&slot).expect("something was copied into it");
        self.replies.push((peer.0, reply.sequence(), reply.status(), content, bytes));
        self.replies_on_the_way.push((peer.0, slot));
        self.ends.push((peer.0, reply.sequence(), reply.status()));
        let limit = self.limits.entry(peer.0).or_default();
        *limit = (*limit).max(reply.credit_limit.get());
    }
    fn take_reply(&mut self, _: SessionId, message: u32, slot: u32, _: u32) -> bool {
        let on_the_way = self.replies_on_the_way.iter().any(|of| of.1 == slot);
        assert!(!on_the_way, "the NIC still reads slot {slot}");
        self.reply_slots.insert(slot, message);
        !self.no_reply_cells
    }
    fn send(&mut self, peer: PeerId, header: &HeaderBytes) {
        self.count_send(peer);
        match parse_from_receiver(header.version(), header, 0).expect("what the receiver writes can be read")
        {
            FromReceiver::Ack(ack) => {
                for range in ack.ranges() {
                    let sequences = range.first..range.first + u64::from(range.count);
                    self.ends.extend(sequences.map(|sequence| (peer.0, sequence, range.status)));
                }
                let limit = self.limits.entry(peer.0).or_default();
                *limit = (*limit).max(ack.credit_limit.get());
            }
            FromReceiver::Credit(credit) if credit.recall() => {
                self.recalls.push((peer.0, credit.credit_limit.get()))
            }
            FromReceiver::Credit(credit) => {
                let limit = credit.credit_limit.get();
                if self.limits.insert(peer.0, limit).is_some_and(|before| before >= limit) {
                    self.reasons.push((peer.0, credit.waits_for()));
                }
            }
            FromReceiver::Congestion(signal) => self.signals.push((peer.0, signal.window_permille.get())),
            FromReceiver::Bye(_) => self.byes.push(peer.0),
            FromReceiver::Reply(_) => unreachable!("it is sent by another call"),
        }
    }
    fn disconnect(&mut self, peer: PeerId, _: ByeReason, _: Option<u64>) {
        self.disconnects.push(peer.0);
    }
    fn deliver(&mut self, session: SessionId, delivery: &Delivery, user_header: &[u8]) {
        if delivery.kind == delivery_kind::SLICES {
            let count = delivery.bytes.div_ceil(4096).max(1);
            self.memory.deliver(session.0, delivery.slot, Run { first: delivery.slab, count });
        }
        self.deliveries.entry(session.0).or_default().push_back((*delivery, user_header.to_vec()));
    }
    fn close_session(&mut self, session: SessionId, end: SessionEnd) {
        self.memory.close(session.0);
        self.closed.push((session.0, end));
    }
    fn report_standstill(&mut self, session: SessionId, standstill: Option<Standstill>) {
        self.standstills.push((session.0, standstill));
    }
    fn begin_copy(&mut self, copy: &EscapeCopy) -> Result<(), CopyRefused> {
        self.memory.begin_copy(copy)
    }
    fn copy_slab(&mut self, from: u32, to: u32, _bytes: u32) -> Result<(), CopyFailed> {
        if self.poisoned.contains(&from) {
            return Err(CopyFailed::Source);
        }
        self.memory.overwrite(Run { first: to, count: 1 });
        self.memory.copy(Run { first: from, count: 1 }, Run { first: to, count: 1 });
        Ok(())
    }
    fn mark(&mut self, on: bool) {
        self.marks.push(on);
    }
    // Here the checksum of a message is its length, and that of a READ is its offset. So the tests see that
    // all of a message is checked, once and in order.
    fn begin_check(&mut self, read: ReadId, bytes: u32, runs: &[Run]) {
        assert!(bytes > 0 && bytes.div_ceil(4096) == runs.iter().map(|run| run.count).sum::<u32>());
        self.memory.begin_check(read, runs);
        self.checks.push((read, self.offsets[&read.0]));
    }
}

impl Questions for World {
    fn relocate(&mut self, copy: &EscapeCopy) -> bool {
        self.memory.relocate(copy)
    }
    fn payload(&self, _slab: u32, bytes: u32) -> &[u8] {
        &self.payload[..bytes as usize]
    }
}

impl Sums for World {
    fn combine_crc32c(first: u32, second: u32, second_bytes: u32) -> u32 {
        assert_eq!(first, second, "in the order of their bytes");
        first + second_bytes
    }
    fn crc32c(&mut self, crc: u32, slab: u32, bytes: u32) -> Option<u32> {
        (!self.poisoned.contains(&slab)).then_some(crc + bytes)
    }
}

fn config() -> Config {
    Config {
        pool_slabs: 256,
        srq_slabs: 64,
        srq_floor_slabs: 16,
        srq_reserve_entries: 8,
        fragment_bytes: 64 << 10,
        reads_max: 4,
        in_flight_bytes: 256 << 10,
        peer_share_percent: 100,
        peers_max: 8,
        sessions_max: 4,
        messages_max: 128,
        requests_per_peer: 16,
        credit_max: 32,
        session_slots: 128,
        session_messages: 32,
        escape: EscapeConfig {
            thresholds: Thresholds { safe_permille: 300, danger_permille: 100, hysteresis_permille: 20 },
            replace_slabs_max: 32,
            ..EscapeConfig::default()
        },
        memory_slabs: 128,
        session_memory_slabs: 64,
        copies_max: 8,
        ..Config::default()
    }
}

struct Bench {
    receiver: Receiver,
    world: World,
    now_ns: u64,
    /// Number of applications that were let in; each is a process of its own.
    processes: u32,
    /// Whether the senders' messages want replies.
    wants_reply: bool,
    /// Where the next sender comes from.
    source: SourceId,
    /// Pieces that large messages lie in, as far as they have so many slabs.
    pieces: u64,
}

/// Returns the entry that finishes a message.
fn finish(delivery: &Delivery, code: u32) -> Release {
    Release {
        index: delivery.message,
        generation: delivery.message_generation(),
        first: 0,
        count: 0,
        kind: release_kind::FINISH,
        reserved: 0,
        code,
    }
}

fn name(text: &str) -> AppName {
    AppName::new(text).unwrap()
}

impl Bench {
    fn new(config: Config) -> Self {
        let world = World { sends_max: config.sends_per_peer_max(), ..World::default() };
        let mut bench = Self {
            receiver: Receiver::new(config, 1).unwrap(),
            world,
            now_ns: 0,
            processes: 0,
            wants_reply: false,
            source: SourceId(0),
            pieces: 1,
        };
        if config.footprint_follows {
            // The window is always the least that it may become.
            bench.receiver.admission.follow(FootprintWindow::fixed(2 * u64::from(config.fragment_bytes)));
        }
        bench.receiver.start(0, &mut bench.world);
        bench
    }

    fn open(&mut self, app: &str) -> SessionId {
        self.processes += 1;
        let process = Some(ProcessId(self.processes));
        self.open_with(Registration { process, ..Registration::new(name(app)) })
    }

    fn open_with(&mut self, registration: Registration) -> SessionId {
        self.receiver.handle_session_opened(self.now_ns, registration).unwrap()
    }

    fn join(&mut self, app: &str) -> PeerId {
        self.join_as(app, 42, features::CONGESTION | features::CANCEL | features::GATHER)
    }

    /// Lets a sender in that has this identity and these features.
    fn join_as(&mut self, app: &str, sender_id: u64, features: u32) -> PeerId {
        let peer = self.ask_as(app, sender_id, features);
        let reads_max = *self.world.reads_max.entry(peer.0).or_insert(self.receiver.config.reads_max);
        self.receiver.handle_connected(peer, reads_max);
        self.flush();
        peer
    }

    /// Lets a sender in whose connection is not established yet.
    fn ask(&mut self, app: &str) -> PeerId {
        self.ask_as(app, 42, features::CONGESTION)
    }

    fn ask_as(&mut self, app: &str, sender_id: u64, features: u32) -> PeerId {
        let app = name(app);
        let hello = Hello { versions: Versions::SUPPORTED, features, sender_id, receive_entries: 16, app };
        let joined = self.receiver.handle_hello(self.now_ns, &hello, self.source, &mut self.world).unwrap();
        // SENDs on their way to the previous peer at this place were lost with its connection.
        self.world.sent.retain(|&to| to != joined.peer.0);
        self.world.limits.insert(joined.peer.0, joined.welcome.credit_limit);
        self.flush();
        joined.peer
    }

    fn flush(&mut self) {
        self.receiver.flush(self.now_ns, &mut self.world);
    }

    fn arrive(&mut self, peer: PeerId, header: &HeaderBytes, payload: &[u8]) {
        let (entry, _) = self.world.posted.pop_front().expect("an SRQ entry is posted");
        self.world.payload = payload.to_vec();
        let payload_bytes = payload.len().try_into().unwrap();
        let arrival = Arrival { peer, entry, header, payload_bytes };
        self.receiver.handle_receive(self.now_ns, arrival, &mut self.world);
    }

    fn small(&mut self, peer: PeerId, sequence: u64, payload: &[u8]) {
        self.small_crc(peer, sequence, payload, None);
    }

    fn small_crc(&mut self, peer: PeerId, sequence: u64, payload: &[u8], crc32c: Option<u32>) {
        let header = SmallHeader::encode(&SmallFields {
            sequence,
            tag: sequence * 10,
            payload_bytes: payload.len().try_into().unwrap(),
            crc32c,
            redelivered: false,
            wants_reply: self.wants_reply,
            user_header: b"user",
        });
        self.arrive(peer, &header, payload);
    }

    fn request(&mut self, peer: PeerId, sequence: u64, length: u64, crc32c: Option<u32>) {
        self.request_class(peer, sequence, length, 0, crc32c);
    }

    fn request_class(&mut self, peer: PeerId, sequence: u64, length: u64, class: u8, crc32c: Option<u32>) {
        let pieces = pieces::in_pieces(length, self.pieces);
        let header = RequestHeader::encode(&RequestFields {
            sequence,
            tag: sequence * 10,
            length,
            address: 0,
            key: if pieces.is_empty() { pieces::WHOLE } else { 0 },
            class,
            pieces: u8::try_from(pieces.len()).unwrap(),
            crc32c,
            redelivered: false,
            wants_reply: self.wants_reply,
            user_header: b"large user header",
        });
        self.arrive(peer, &header, &pieces::list(&pieces));
    }

    fn cancel(&mut self, peer: PeerId, sequence: u64) {
        self.arrive(peer, &CancelHeader::encode(sequence), &[]);
    }

    fn read_done(&mut self) {
        let (_, read, ..) = self.world.reads.pop_front().expect("a READ is in flight");
        self.receiver.handle_read_done(self.now_ns, read, true, false, &mut self.world);
    }

    /// Ends one of the checks under way.
    fn checked(&mut self, which: usize) {
        let (read, crc) = self.world.checks.remove(which);
        self.world.memory.end_check(read);
        self.receiver.handle_checked(self.now_ns, read, crc, &mut self.world);
    }

    fn delivery(&mut self, session: SessionId) -> Option<(Delivery, Vec<u8>)> {
        self.world.deliveries.get_mut(&session.0)?.pop_front()
    }

    fn release(&mut self, session: SessionId, delivery: &Delivery, finish: bool, code: u32) {
        let count = u16::try_from(delivery.bytes.div_ceil(4096).max(1)).unwrap();
        let kind = if finish { release_kind::SLICES_AND_FINISH } else { release_kind::SLICES };
        let release = Release {
            index: delivery.slot,
            generation: delivery.slot_generation(),
            first: 0,
            count,
            kind,
            reserved: 0,
            code,
        };
        self.world.memory.release(session.0, delivery.slot);
        self.receiver.handle_release(self.now_ns, session, release, &mut self.world).unwrap();
    }

    /// Completes all SENDs to peers.
    fn sends_complete(&mut self) {
        for (peer, slot) in core::mem::take(&mut self.world.replies_on_the_way) {
            self.receiver.handle_reply_sent(PeerId(peer), slot);
        }
        for peer in core::mem::take(&mut self.world.sent) {
            self.receiver.handle_sent(PeerId(peer));
        }
        self.flush();
    }

    /// Finishes a message of which nothing is held, with this code.
    fn finish(&mut self, session: SessionId, delivery: &Delivery, code: u32) {
        let release = finish(delivery, code);
        self.receiver.handle_release(self.now_ns, session, release, &mut self.world).unwrap();
    }

    /// Tells the receiver that these slabs are lost.
    fn lose(&mut self, run: Run) {
        self.receiver.handle_poisoned(run, &mut self.world);
        self.world.memory.lost.extend(run.first..run.first + run.count);
    }

    /// Fails one of the checks under way: a slab of it cannot be read.
    fn check_failed(&mut self, which: usize, slab: u32) {
        let (read, _) = self.world.checks.remove(which);
        self.world.memory.end_check(read);
        self.lose(Run { first: slab, count: 1 });
        self.receiver.handle_check_failed(self.now_ns, read, &mut self.world);
    }

    /// Ends the oldest copy under way.
    fn copied(&mut self, ok: bool) {
        let copy = self.world.memory.finish_copy(ok);
        self.receiver.handle_copied(self.now_ns, copy, ok, &mut self.world);
    }

    /// Lets time pass while nothing else happens.
    fn wait(&mut self, span_ns: u64) {
        self.now_ns += span_ns;
        self.receiver.handle_tick(self.now_ns, &mut self.world);
        self.flush();
    }

    fn whole(&self) -> bool {
        let stats = self.receiver.stats();
        let missing = self.receiver.pool.budget() - stats.free_slabs - stats.posted_slabs;
        let whole = (stats.retired_slabs..=stats.retired_slabs + stats.escape.memory_retired)
            .contains(&missing)
            && stats.messages == 0;
        // Posted slabs stay posted until somebody sends, also those that stand in for a straggler whose slabs
        // came back.
        let posted_escaped = self.world.posted.iter().filter(|(_, slab)| *slab >= stats.pool_slabs).count();
        whole && stats.escape.memory_used as usize == posted_escaped
    }
}

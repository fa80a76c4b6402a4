//! The receiver against a driver that remembers everything.

use super::*;
use crate::effects::{ReadId, Remote, SessionEnd};
use crate::pool::Run;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::{String, ToString};
use jet_wire::message::hello::Hello;
use jet_wire::message::{
    AckStatus, CreditReturn, FromReceiver, HeaderBytes, RequestFields, RequestHeader, SmallFields,
    SmallHeader, parse_from_receiver,
};
use jet_wire::segment::{Delivery, Release, delivery_flags, delivery_kind, release_kind};
use proptest::prelude::*;

/// A driver that carries out nothing and remembers all.
#[derive(Default)]
struct World {
    posted: VecDeque<(u32, u32)>,
    reads: VecDeque<(PeerId, ReadId, Remote, u32, Vec<Run>)>,
    deliveries: BTreeMap<u32, VecDeque<(Delivery, Vec<u8>)>>,
    ends: Vec<(u32, u64, AckStatus)>,
    limits: BTreeMap<u32, u64>,
    recalls: Vec<(u32, u64)>,
    byes: Vec<u32>,
    disconnects: Vec<u32>,
    closed: Vec<(u32, SessionEnd)>,
    sent: Vec<u32>,
    crc: u32,
}

impl Effects for World {
    fn post_srq(&mut self, entry: u32, slab: u32) {
        self.posted.push_back((entry, slab));
    }
    fn post_read(&mut self, peer: PeerId, read: ReadId, remote: Remote, bytes: u32, runs: &[Run]) {
        self.reads.push_back((peer, read, remote, bytes, runs.to_vec()));
    }
    fn send(&mut self, peer: PeerId, header: &HeaderBytes) {
        self.sent.push(peer.0);
        match parse_from_receiver(header, 0).expect("what the receiver writes can be read") {
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
                self.limits.insert(peer.0, credit.credit_limit.get());
            }
            FromReceiver::Congestion(_) => {}
            FromReceiver::Bye(_) => self.byes.push(peer.0),
        }
    }
    fn disconnect(&mut self, peer: PeerId) {
        self.disconnects.push(peer.0);
    }
    fn deliver(&mut self, session: SessionId, delivery: &Delivery, user_header: &[u8]) {
        self.deliveries.entry(session.0).or_default().push_back((*delivery, user_header.to_vec()));
    }
    fn close_session(&mut self, session: SessionId, end: SessionEnd) {
        self.closed.push((session.0, end));
    }
    fn crc32c(&mut self, _crc: u32, _slab: u32, _bytes: u32) -> u32 {
        self.crc
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
        peers_max: 8,
        sessions_max: 4,
        messages_max: 128,
        requests_per_peer: 16,
        credit_max: 32,
        session_slots: 64,
        session_messages: 32,
        ..Config::default()
    }
}

struct Bench {
    receiver: Receiver,
    world: World,
    now_ns: u64,
}

fn name(text: &str) -> AppName {
    AppName::new(text).unwrap()
}

impl Bench {
    fn new(config: Config) -> Self {
        let mut bench =
            Self { receiver: Receiver::new(config, 1).unwrap(), world: World::default(), now_ns: 0 };
        bench.receiver.start(0, &mut bench.world);
        bench
    }

    fn open(&mut self, app: &str) -> SessionId {
        self.receiver.handle_session_opened(name(app), 0).unwrap()
    }

    fn join(&mut self, app: &str) -> PeerId {
        let hello = Hello { features: 0, sender_id: 42, receive_entries: 16, app: name(app) };
        let joined = self.receiver.handle_hello(&hello).unwrap();
        self.world.limits.insert(joined.peer.0, joined.welcome.credit_limit);
        self.flush();
        joined.peer
    }

    fn flush(&mut self) {
        self.receiver.flush(self.now_ns, &mut self.world);
    }

    fn arrive(&mut self, peer: PeerId, header: &HeaderBytes, payload: &[u8]) {
        let (entry, _) = self.world.posted.pop_front().expect("an SRQ entry is posted");
        self.receiver.handle_receive(self.now_ns, Arrival { peer, entry, header, payload }, &mut self.world);
    }

    fn small(&mut self, peer: PeerId, sequence: u64, payload: &[u8]) {
        let header = SmallHeader::encode(&SmallFields {
            sequence,
            tag: sequence * 10,
            payload_bytes: payload.len().try_into().unwrap(),
            crc32c: None,
            redelivered: false,
            user_header: b"user",
        });
        self.arrive(peer, &header, payload);
    }

    fn request(&mut self, peer: PeerId, sequence: u64, length: u64, crc32c: Option<u32>) {
        let header = RequestHeader::encode(&RequestFields {
            sequence,
            tag: sequence * 10,
            length,
            address: 0,
            key: 7,
            class: 0,
            crc32c,
            redelivered: false,
            user_header: b"large user header",
        });
        self.arrive(peer, &header, &[]);
    }

    fn read_done(&mut self) {
        let (_, read, ..) = self.world.reads.pop_front().expect("a READ is in flight");
        self.receiver.handle_read_done(self.now_ns, read, true, false, &mut self.world);
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
        self.receiver.handle_release(self.now_ns, session, release, &mut self.world).unwrap();
    }

    fn whole(&self) -> bool {
        let stats = self.receiver.stats();
        stats.free_slabs + stats.posted_slabs == stats.pool_slabs && stats.messages == 0
    }
}

#[test]
fn a_small_message_is_delivered_released_and_acknowledged() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.small(peer, 1, &[9; 64]);
    let (delivery, user_header) = bench.delivery(session).unwrap();
    assert_eq!((delivery.bytes, delivery.tag, delivery.sequence, delivery.sender), (64, 10, 1, 42));
    assert_eq!(delivery.flags, delivery_flags::FIRST | delivery_flags::LAST);
    assert_eq!(user_header, b"user");
    bench.flush();
    assert!(bench.world.ends.is_empty(), "not consumed yet");
    bench.release(session, &delivery, true, 0);
    bench.flush();
    assert_eq!(bench.world.ends, [(peer.0, 1, AckStatus::Consumed)]);
    assert!(bench.whole());
}

#[test]
fn a_large_message_is_read_in_fragments_and_recycled_slice_by_slice() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.request(peer, 1, 200_000, None);
    bench.flush();
    assert_eq!(bench.world.reads.len(), 4, "three full fragments and a rest, within the window");
    assert_eq!(bench.world.reads.iter().map(|read| read.3).sum::<u32>(), 200_000);
    let addresses: Vec<u64> = bench.world.reads.iter().map(|read| read.2.address).collect();
    assert_eq!(addresses, [0, 65_536, 131_072, 196_608]);
    let before = bench.receiver.stats().free_slabs;
    bench.read_done();
    let (head, user_header) = bench.delivery(session).unwrap();
    assert_eq!((head.offset, head.bytes, head.message_bytes), (0, 65_536, 200_000));
    assert_eq!(user_header, b"large user header");
    bench.release(session, &head, false, 0);
    assert_eq!(
        bench.receiver.stats().free_slabs,
        before + 16,
        "the head is recycled while the tail is on the wire"
    );
    (0..3).for_each(|_| bench.read_done());
    let rest: Vec<Delivery> = (0..3).map(|_| bench.delivery(session).unwrap().0).collect();
    assert_eq!(rest[2].flags, delivery_flags::LAST);
    bench.release(session, &rest[0], false, 0);
    bench.release(session, &rest[2], false, 0);
    bench.flush();
    assert!(bench.world.ends.is_empty());
    bench.release(session, &rest[1], true, 0);
    bench.flush();
    assert_eq!(bench.world.ends, [(peer.0, 1, AckStatus::Consumed)]);
    assert!(bench.whole());
}

#[test]
fn windows_bound_what_is_in_flight() {
    let mut bench = Bench::new(config());
    bench.open("disk");
    let peer = bench.join("disk");
    (1..=6).for_each(|n| bench.request(peer, n, 64 << 10, None));
    bench.flush();
    assert_eq!((bench.world.reads.len(), bench.receiver.stats().waiting), (4, 2), "reads_max");
    assert_eq!(bench.receiver.stats().in_flight_bytes, 256 << 10);
    bench.read_done();
    bench.flush();
    assert_eq!(bench.world.reads.len(), 4);
    let order: Vec<u64> = (0..4).map(|_| bench.world.reads[0].2.address).collect();
    assert_eq!(order.len(), 4);
}

#[test]
fn nobody_registered_and_too_large_and_draining_are_answered() {
    let mut bench = Bench::new(Config { message_bytes_max: 1000, ..config() });
    let peer = bench.join("nobody");
    bench.small(peer, 1, b"x");
    bench.request(peer, 2, 500, None);
    bench.open("nobody");
    bench.request(peer, 3, 1001, None);
    bench.receiver.drain();
    bench.small(peer, 4, b"x");
    bench.flush();
    let statuses: Vec<AckStatus> = bench.world.ends.iter().map(|end| end.2).collect();
    assert_eq!(statuses, [AckStatus::NoApp, AckStatus::NoApp, AckStatus::TooLarge, AckStatus::Draining]);
    assert!(bench.whole() && bench.receiver.is_drained());
    assert!(bench.receiver.handle_session_opened(name("late"), 0).is_err());
}

#[test]
fn a_peer_that_sends_garbage_or_more_than_its_credit_is_expelled_and_nobody_else() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let (good, bad, greedy) = (bench.join("disk"), bench.join("disk"), bench.join("disk"));
    bench.arrive(bad, &HeaderBytes::ZERO, &[]);
    let limit = bench.world.limits[&greedy.0];
    for n in 0..=limit {
        bench.small(greedy, n, b"x");
    }
    bench.small(good, 1, b"good");
    bench.flush();
    assert_eq!(bench.world.disconnects, [bad.0, greedy.0]);
    assert_eq!(bench.receiver.stats().peer_faults, 2);
    bench.receiver.handle_peer_lost(bad, &mut bench.world);
    bench.receiver.handle_peer_lost(greedy, &mut bench.world);
    while let Some((delivery, _)) = bench.delivery(session) {
        bench.release(session, &delivery, true, 0);
    }
    bench.flush();
    assert_eq!(bench.world.ends, [(good.0, 1, AckStatus::Consumed)]);
    assert!(bench.whole());
}

#[test]
fn a_wrong_checksum_is_corrupt_and_never_delivered_whole() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.world.crc = 5;
    bench.request(peer, 1, 4096, Some(5));
    bench.request(peer, 2, 4096, Some(6));
    bench.request(peer, 3, 100_000, Some(6));
    bench.flush();
    (0..4).for_each(|_| bench.read_done());
    let (good, _) = bench.delivery(session).unwrap();
    assert_eq!(good.sequence, 1);
    let (head, _) = bench.delivery(session).unwrap();
    let (withdrawn, _) = bench.delivery(session).unwrap();
    assert_eq!((withdrawn.kind, withdrawn.flags), (delivery_kind::WITHDRAWN, delivery_flags::CORRUPT));
    bench.release(session, &good, true, 0);
    bench.release(session, &head, true, 1);
    bench.flush();
    let ends: Vec<(u64, AckStatus)> = bench.world.ends.iter().map(|end| (end.1, end.2)).collect();
    assert_eq!(ends, [(2, AckStatus::Corrupt), (3, AckStatus::Corrupt), (1, AckStatus::Consumed)]);
    assert!(bench.whole());
}

#[test]
fn a_rejected_message_stops_its_reads_and_its_sender_hears_the_code() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.request(peer, 1, 1 << 20, None);
    bench.flush();
    bench.read_done();
    let (head, _) = bench.delivery(session).unwrap();
    bench.release(session, &head, true, 28);
    bench.flush();
    assert!(bench.world.ends.is_empty(), "its memory is still being read");
    while !bench.world.reads.is_empty() {
        bench.read_done();
    }
    bench.flush();
    assert_eq!(bench.world.ends, [(peer.0, 1, AckStatus::Rejected(28))]);
    assert!(bench.world.reads.is_empty() && bench.whole());
}

#[test]
fn a_dead_application_is_quarantined_and_its_messages_end() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.small(peer, 1, b"held");
    bench.request(peer, 2, 300_000, None);
    bench.flush();
    bench.read_done();
    bench.receiver.handle_session_gone(bench.now_ns, session, &mut bench.world);
    bench.flush();
    assert_eq!(bench.world.ends, [(peer.0, 1, AckStatus::AppGone)], "2 is still being read");
    while !bench.world.reads.is_empty() {
        bench.read_done();
    }
    bench.flush();
    assert_eq!(bench.world.ends[1..], [(peer.0, 2, AckStatus::AppGone)]);
    assert_eq!(bench.receiver.stats().quarantined_slabs, 17, "one small slab and one fragment");
    let again = bench.open("disk");
    assert_ne!(again, session);
    bench.now_ns += 2_000_000_000;
    bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
    bench.flush();
    assert_eq!(bench.receiver.stats().quarantined_slabs, 0);
    assert!(bench.whole());
}

#[test]
fn a_dead_sender_gives_everything_back_and_the_application_hears_of_it() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.request(peer, 1, 400_000, None);
    (2..6).for_each(|n| bench.request(peer, n, 50_000, None));
    bench.flush();
    bench.read_done();
    while let Some((_, read, ..)) = bench.world.reads.pop_front() {
        bench.receiver.handle_read_done(bench.now_ns, read, false, false, &mut bench.world);
    }
    bench.receiver.handle_peer_lost(peer, &mut bench.world);
    bench.flush();
    assert!(bench.world.reads.is_empty());
    while let Some((delivery, _)) = bench.delivery(session) {
        if delivery.kind == delivery_kind::SLICES {
            bench.release(session, &delivery, true, 0);
        }
    }
    assert!(bench.whole(), "{:?}", bench.receiver.stats());
}

#[test]
fn what_is_not_held_cannot_be_released_and_ends_only_its_session() {
    type Spoil = fn(&mut Release);
    let wrong: [(&str, Spoil); 6] = [
        ("unknown kind", |r| r.kind = 9),
        ("does not exist", |r| r.index = 60_000),
        ("does not hold", |r| r.generation ^= 1),
        ("does not hold", |r| r.first = 1),
        ("does not hold", |r| r.count = 64),
        ("does not hold", |r| r.count = 0),
    ];
    for (text, spoil) in wrong {
        let mut bench = Bench::new(config());
        let (bad, good) = (bench.open("bad"), bench.open("good"));
        let (to_bad, to_good) = (bench.join("bad"), bench.join("good"));
        bench.small(to_bad, 1, b"x");
        bench.small(to_good, 1, b"x");
        let (delivery, _) = bench.delivery(bad).unwrap();
        let mut release = Release {
            index: delivery.slot,
            generation: delivery.slot_generation(),
            first: 0,
            count: 1,
            kind: release_kind::SLICES,
            reserved: 0,
            code: 0,
        };
        spoil(&mut release);
        let error = bench.receiver.handle_release(0, bad, release, &mut bench.world).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(bench.world.closed, [(bad.0, SessionEnd::Release(error))]);
        let (delivery, _) = bench.delivery(good).unwrap();
        bench.release(good, &delivery, true, 0);
        bench.flush();
        assert!(bench.world.ends.contains(&(to_good.0, 1, AckStatus::Consumed)));
        assert!(bench.world.ends.contains(&(to_bad.0, 1, AckStatus::AppGone)));
    }
}

#[test]
fn released_twice_or_finished_early_is_a_fault() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.request(peer, 1, 200_000, None);
    bench.flush();
    bench.read_done();
    let (head, _) = bench.delivery(session).unwrap();
    bench.release(session, &head, false, 0);
    let finish = Release {
        index: head.message,
        generation: head.message_generation(),
        first: 0,
        count: 0,
        kind: release_kind::FINISH,
        reserved: 0,
        code: 0,
    };
    let early = bench.receiver.handle_release(0, session, finish, &mut bench.world);
    assert_eq!(early, Err(ReleaseError::Early { message: head.message }));
    assert_eq!(bench.receiver.stats().session_faults, 1);
}

#[test]
fn an_application_without_slots_makes_messages_wait_in_order() {
    let mut bench = Bench::new(Config { session_messages: 2, ..config() });
    let session = bench.open("slow");
    let peer = bench.join("slow");
    (1..=5).for_each(|n| bench.small(peer, n, b"x"));
    let first = bench.delivery(session).unwrap().0;
    let second = bench.delivery(session).unwrap().0;
    assert!(bench.delivery(session).is_none());
    bench.release(session, &second, true, 0);
    assert_eq!(bench.delivery(session).unwrap().0.sequence, 3);
    bench.release(session, &first, true, 0);
    assert_eq!(bench.delivery(session).unwrap().0.sequence, 4);
}

#[test]
fn idle_credit_is_called_back_and_a_busy_sender_gets_more() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let (busy, idle) = (bench.join("disk"), bench.join("disk"));
    let mut sequence = 0;
    for _ in 0..20 {
        while sequence < bench.world.limits[&busy.0] && !bench.world.posted.is_empty() {
            sequence += 1;
            bench.small(busy, sequence, b"x");
        }
        while let Some((delivery, _)) = bench.delivery(session) {
            bench.release(session, &delivery, true, 0);
        }
        bench.flush();
        for peer in core::mem::take(&mut bench.world.sent) {
            bench.receiver.handle_sent(PeerId(peer));
        }
        bench.now_ns += 10_000_000;
        bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
    }
    assert_eq!(bench.receiver.peers[busy.0 as usize].credit_target, 32, "credit follows the rate");
    let (peer, keep) = bench.world.recalls[0];
    assert_eq!(peer, idle.0);
    bench.arrive(idle, &CreditReturn::encode(keep), &[]);
    assert_eq!(bench.receiver.peers[idle.0 as usize].outstanding(), 1);
    assert!(bench.world.byes.is_empty());
}

#[test]
fn a_sender_that_used_its_credit_before_the_recall_came_is_not_forgotten() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    for _ in 0..3 {
        bench.now_ns += 20_000_000;
        bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
    }
    let (_, keep) = bench.world.recalls[0];
    // The recall is still on its way while the sender uses up what it has.
    let limit = bench.world.limits[&peer.0];
    (1..=limit).for_each(|n| bench.small(peer, n, b"x"));
    while let Some((delivery, _)) = bench.delivery(session) {
        bench.release(session, &delivery, true, 0);
    }
    bench.receiver.handle_sent(peer);
    bench.flush();
    assert!(bench.world.limits[&peer.0] > limit, "it gets credit again");
    assert!(keep < limit && bench.world.byes.is_empty());
}

#[test]
fn an_acknowledgement_during_a_recall_gives_nothing_back() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.small(peer, 1, b"x");
    for _ in 0..4 {
        bench.now_ns += 20_000_000;
        bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
    }
    let (_, keep) = bench.world.recalls[0];
    bench.world.limits.insert(peer.0, 0);
    let (delivery, _) = bench.delivery(session).unwrap();
    bench.release(session, &delivery, true, 0);
    bench.flush();
    assert_eq!(bench.world.limits[&peer.0], keep, "the limit told is the recalled one");
    bench.arrive(peer, &CreditReturn::encode(keep), &[]);
    assert!(bench.world.byes.is_empty());
}

#[derive(Clone, Debug)]
enum Op {
    Small(u8, u16),
    Request(u8, u32),
    ReadDone(bool),
    Release(u8, u8),
    Flush,
    Tick,
    Lose(u8),
    Close(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..4u8, 0..4096u16).prop_map(|(peer, bytes)| Op::Small(peer, bytes)),
        4 => (0..4u8, 1..500_000u32).prop_map(|(peer, bytes)| Op::Request(peer, bytes)),
        6 => prop::bool::weighted(0.97).prop_map(Op::ReadDone),
        10 => (0..2u8, 0..20u8).prop_map(|(session, how)| Op::Release(session, how)),
        8 => Just(Op::Flush),
        2 => Just(Op::Tick),
        1 => (0..4u8).prop_map(Op::Lose),
        1 => (0..2u8).prop_map(Op::Close),
    ]
}

/// Everything that the model knows of one sender.
#[derive(Default)]
struct Sender {
    peer: Option<PeerId>,
    sent: u64,
    sequence: u64,
    epoch: u32,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    /// Whatever happens in whatever order: every message of a living sender gets exactly one end, no slab is lost,
    /// and posted entries cover the credit that active senders have.
    #[test]
    fn no_slab_and_no_message_is_lost(ops in prop::collection::vec(op(), 1..400)) {
        let mut bench = Bench::new(config());
        let apps = ["a", "b"];
        let mut sessions: Vec<Option<SessionId>> = apps.iter().map(|app| Some(bench.open(app))).collect();
        let mut senders: Vec<Sender> = (0..4).map(|_| Sender::default()).collect();
        let mut expected: BTreeMap<(u32, u64), u32> = BTreeMap::new();
        let mut held: BTreeMap<u32, Vec<Delivery>> = BTreeMap::new();
        let mut left: BTreeMap<(u32, u32, u16), u64> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Small(n, _) | Op::Request(n, _) => {
                    let app = apps[usize::from(n) % 2];
                    let sender = &mut senders[usize::from(n)];
                    let peer = match sender.peer {
                        Some(peer) => peer,
                        None => {
                            let peer = bench.join(app);
                            sender.peer = Some(peer);
                            sender.sent = 0;
                            peer
                        }
                    };
                    if sender.sent >= bench.world.limits[&peer.0] || bench.world.posted.is_empty() {
                        continue;
                    }
                    sender.sent += 1;
                    sender.sequence += 1;
                    expected.insert((peer.0, sender.sequence + (u64::from(sender.epoch) << 32)), 0);
                    let sequence = sender.sequence + (u64::from(sender.epoch) << 32);
                    match op {
                        Op::Small(_, bytes) => bench.small(peer, sequence, &vec![0; usize::from(bytes)]),
                        Op::Request(_, bytes) => bench.request(peer, sequence, u64::from(bytes), None),
                        _ => unreachable!(),
                    }
                }
                Op::ReadDone(ok) => {
                    let Some((peer, read, ..)) = bench.world.reads.pop_front() else { continue };
                    bench.receiver.handle_read_done(bench.now_ns, read, ok, false, &mut bench.world);
                    if !ok {
                        lose(&mut bench, &mut senders, &mut expected, peer);
                    }
                }
                Op::Release(n, how) => {
                    let Some(session) = sessions[usize::from(n)] else { continue };
                    take_deliveries(&mut bench, session, &mut held, &mut left);
                    let Some(list) = held.get_mut(&session.0).filter(|list| !list.is_empty()) else { continue };
                    let delivery = list.swap_remove(usize::from(how) % list.len());
                    settle(&mut bench, session, &delivery, &mut left, how == 0);
                }
                Op::Flush => bench.flush(),
                Op::Tick => {
                    bench.now_ns += 20_000_000;
                    bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
                    for (peer, keep) in core::mem::take(&mut bench.world.recalls) {
                        let Some(sender) = senders.iter_mut().find(|s| s.peer == Some(PeerId(peer))) else { continue };
                        if bench.world.posted.is_empty() { bench.flush(); }
                        sender.sent += 1;
                        let keep = keep.max(sender.sent);
                        bench.world.limits.insert(peer, keep);
                        bench.arrive(PeerId(peer), &CreditReturn::encode(keep), &[]);
                    }
                }
                Op::Lose(n) => if let Some(peer) = senders[usize::from(n)].peer {
                    lose(&mut bench, &mut senders, &mut expected, peer);
                },
                Op::Close(n) => if let Some(session) = sessions[usize::from(n)].take() {
                    bench.receiver.handle_session_gone(bench.now_ns, session, &mut bench.world);
                    bench.world.deliveries.remove(&session.0);
                    held.remove(&session.0);
                    left.retain(|key, _| key.0 != session.0);
                    sessions[usize::from(n)] = bench.receiver.handle_session_opened(name(apps[usize::from(n)]), 0).ok();
                }
            }
            for peer in core::mem::take(&mut bench.world.sent) {
                bench.receiver.handle_sent(PeerId(peer));
            }
            let stats = bench.receiver.stats();
            let used = stats.posted_slabs + stats.small_held_slabs + stats.read_slabs + stats.quarantined_slabs;
            prop_assert_eq!(stats.free_slabs + used, stats.pool_slabs);
            prop_assert!(stats.in_flight_bytes <= config().in_flight_bytes);
            prop_assert!(bench.receiver.credits + u64::from(stats.small_held_slabs) <= 64, "credit within the SRQ");
            prop_assert!(bench.world.byes.is_empty(), "nobody misbehaved");
        }
        // Liveness: everybody behaves well from here on, and everything comes to its end.
        for _ in 0..2000 {
            bench.flush();
            while !bench.world.reads.is_empty() {
                bench.read_done();
            }
            for session in sessions.iter().flatten() {
                take_deliveries(&mut bench, *session, &mut held, &mut left);
                for delivery in held.remove(&session.0).unwrap_or_default() {
                    settle(&mut bench, *session, &delivery, &mut left, false);
                }
            }
            for peer in core::mem::take(&mut bench.world.sent) {
                bench.receiver.handle_sent(PeerId(peer));
            }
            bench.now_ns += 20_000_000;
            bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
            if bench.whole() { break; }
        }
        bench.flush();
        prop_assert!(bench.whole(), "{:?}", bench.receiver.stats());
        for (peer, sequence, _) in &bench.world.ends {
            if let Some(count) = expected.get_mut(&(*peer, *sequence)) { *count += 1; }
        }
        for (key, count) in expected {
            prop_assert_eq!(count, 1, "message {:?} had {} ends", key, count);
        }
    }
}

fn take_deliveries(
    bench: &mut Bench,
    session: SessionId,
    held: &mut BTreeMap<u32, Vec<Delivery>>,
    left: &mut BTreeMap<(u32, u32, u16), u64>,
) {
    while let Some((delivery, _)) = bench.delivery(session) {
        let key = (session.0, delivery.message, delivery.message_generation());
        if delivery.kind == delivery_kind::WITHDRAWN {
            // As jet-client does: what is finished already needs no second finish.
            if left.remove(&key).is_some() {
                let release = Release {
                    index: delivery.message,
                    generation: delivery.message_generation(),
                    first: 0,
                    count: 0,
                    kind: release_kind::FINISH,
                    reserved: 0,
                    code: 1,
                };
                bench.receiver.handle_release(bench.now_ns, session, release, &mut bench.world).unwrap();
            }
            continue;
        }
        if delivery.flags & delivery_flags::FIRST != 0 {
            left.insert(key, delivery.message_bytes);
        }
        held.entry(session.0).or_default().push(delivery);
    }
}

/// Releases a run, and finishes its message with the last one, or at once with a rejection.
fn settle(
    bench: &mut Bench,
    session: SessionId,
    delivery: &Delivery,
    left: &mut BTreeMap<(u32, u32, u16), u64>,
    reject: bool,
) {
    let key = (session.0, delivery.message, delivery.message_generation());
    let Some(bytes) = left.get_mut(&key) else {
        bench.release(session, delivery, false, 0);
        return;
    };
    *bytes -= u64::from(delivery.bytes);
    let last = *bytes == 0;
    if last || reject {
        left.remove(&key);
    }
    bench.release(session, delivery, last || reject, u32::from(reject && !last));
}

fn lose(bench: &mut Bench, senders: &mut [Sender], expected: &mut BTreeMap<(u32, u64), u32>, peer: PeerId) {
    let gone: Vec<ReadId> =
        bench.world.reads.iter().filter(|read| read.0 == peer).map(|read| read.1).collect();
    bench.world.reads.retain(|read| read.0 != peer);
    for read in gone {
        bench.receiver.handle_read_done(bench.now_ns, read, false, false, &mut bench.world);
    }
    bench.receiver.handle_peer_lost(peer, &mut bench.world);
    expected.retain(|key, _| key.0 != peer.0);
    bench.world.ends.retain(|end| end.0 != peer.0);
    bench.world.recalls.retain(|recall| recall.0 != peer.0);
    bench.world.sent.retain(|&sent| sent != peer.0);
    if let Some(sender) = senders.iter_mut().find(|sender| sender.peer == Some(peer)) {
        sender.peer = None;
        sender.epoch += 1;
    }
}

#[test]
fn numbers_read_as_words() {
    let text: String = OpenError::NameTaken.to_string();
    assert!(text.contains("choose another"));
}

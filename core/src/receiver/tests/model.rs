//! A model test: random operations, then good behaviour. Nothing may be lost and nothing may hang.

use super::*;
use crate::pool::Share;
use alloc::vec;
use jet_wire::message::CreditReturn;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Check {
    None,
    Right,
    Wrong,
}

impl Check {
    /// Returns the checksum that the sender gives: here the checksum of a message is its length.
    fn of(self, bytes: u32) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Right => Some(bytes),
            Self::Wrong => Some(bytes + 1),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Small(u8, u16),
    Request(u8, u32, u8, Check, u8),
    Cancel(u8, u64),
    ReadDone(bool),
    Release(u8, u8),
    Flush,
    Tick,
    Lose(u8),
    Close(u8),
    Pin(u8, u8),
    Copied(bool),
    Checked(u8),
    NoRoom(bool),
    Wait,
    Poison(u32, u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..4u8, 0..4096u16).prop_map(|(peer, bytes)| Op::Small(peer, bytes)),
        4 => (0..4u8, 1..800_000u32, 0..4u8, check(), pieces())
            .prop_map(|(peer, bytes, class, check, pieces)| Op::Request(peer, bytes, class, check, pieces)),
        2 => (0..4u8, 0..8u64).prop_map(|(peer, before)| Op::Cancel(peer, before)),
        6 => prop::bool::weighted(0.97).prop_map(Op::ReadDone),
        10 => (0..2u8, 0..20u8).prop_map(|(session, how)| Op::Release(session, how)),
        8 => Just(Op::Flush),
        2 => Just(Op::Tick),
        1 => (0..4u8).prop_map(Op::Lose),
        1 => (0..2u8).prop_map(Op::Close),
        4 => (0..2u8, 0..20u8).prop_map(|(session, which)| Op::Pin(session, which)),
        6 => prop::bool::weighted(0.9).prop_map(Op::Copied),
        6 => (0..8u8).prop_map(Op::Checked),
        1 => prop::bool::weighted(0.2).prop_map(Op::NoRoom),
        4 => Just(Op::Wait),
        1 => (0..430u32, 1..4u32).prop_map(|(first, count)| Op::Poison(first, count)),
    ]
}

/// The most losses of memory in one case: what is left suffices for a fragment.
const POISONS_MAX: u32 = 8;

fn check() -> impl Strategy<Value = Check> {
    prop_oneof![2 => Just(Check::None), 5 => Just(Check::Right), 1 => Just(Check::Wrong)]
}

/// In how many pieces a message lies.
fn pieces() -> impl Strategy<Value = u8> {
    prop_oneof![3 => Just(1), 1 => 2..17u8]
}

/// The model's state of one sender.
#[derive(Default)]
struct Sender {
    peer: Option<PeerId>,
    sent: u64,
    sequence: u64,
    /// Messages that it may take back.
    cancels: u64,
    epoch: u32,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    /// Checks three things whatever happens in whatever order. Every message of a living sender gets exactly
    /// one end; no slab is lost; and posted entries cover the credit that active senders have.
    #[test]
    fn no_slab_and_no_message_is_lost(
        ops in prop::collection::vec(op(), 1..400),
        ready in prop_oneof![Just(0u32), 1..200u32, Just(1000)],
        takes_memory: bool,
        footprint_follows: bool,
        checksums in prop_oneof![Just(Checksums::Inline), Just(Checksums::Workers), Just(Checksums::Off)],
        reads_max in prop::collection::vec(prop_oneof![1..5u32, Just(100)], 8),
        peer_share_percent in prop_oneof![Just(75u32), Just(100)],
    ) {
        let mut bench = Bench::new(Config { footprint_follows, checksums, peer_share_percent, ..config() });
        bench.world.reads_max = (0u32..).zip(reads_max).collect();
        bench.receiver.handle_escape_memory(ready);
        let apps = ["a", "b"];
        let mut sessions: Vec<Option<SessionId>> = apps
            .iter()
            .map(|app| {
                let registration = Registration { takes_memory, ..Registration::new(name(app)) };
                bench.receiver.handle_session_opened(bench.now_ns, registration).ok()
            })
            .collect();
        let mut senders: Vec<Sender> = (0..4).map(|_| Sender::default()).collect();
        let mut expected: BTreeMap<(u32, u64), u32> = BTreeMap::new();
        let mut held: BTreeMap<u32, Vec<Delivery>> = BTreeMap::new();
        let mut left: BTreeMap<(u32, u32, u16), u64> = BTreeMap::new();
        let mut poisons = 0;
        for op in ops {
            match op {
                Op::Cancel(n, before) => {
                    let sender = &mut senders[usize::from(n)];
                    let Some(peer) = sender.peer else { continue };
                    if sender.cancels == 0 || bench.world.posted.is_empty() {
                        continue;
                    }
                    sender.cancels -= 1;
                    let sequence = sender.sequence.saturating_sub(before) + (u64::from(sender.epoch) << 32);
                    bench.cancel(peer, sequence);
                }
                Op::Small(n, _) | Op::Request(n, ..) => {
                    let app = apps[usize::from(n) % 2];
                    let sender = &mut senders[usize::from(n)];
                    let peer = match sender.peer {
                        Some(peer) => peer,
                        None => {
                            let peer = bench.join(app);
                            sender.peer = Some(peer);
                            (sender.sent, sender.cancels) = (0, 0);
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
                        Op::Request(_, bytes, class, check, pieces) => {
                            sender.cancels += 1;
                            bench.pieces = pieces.into();
                            bench.request_class(peer, sequence, u64::from(bytes), class, check.of(bytes))
                        }
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
                    let Some(list) = held.get_mut(&session.0).filter(|list| !list.is_empty()) else {
                        continue;
                    };
                    let delivery = list.swap_remove(usize::from(how) % list.len());
                    settle(&mut bench, session, &delivery, &mut left, how == 0);
                }
                Op::Flush => bench.flush(),
                Op::Tick => {
                    bench.now_ns += 20_000_000;
                    bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
                    for (peer, keep) in core::mem::take(&mut bench.world.recalls) {
                        let Some(sender) = senders.iter_mut().find(|s| s.peer == Some(PeerId(peer))) else {
                            continue;
                        };
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
                    let app = name(apps[usize::from(n)]);
                    let registration = Registration { takes_memory, ..Registration::new(app) };
                    let opened = bench.receiver.handle_session_opened(bench.now_ns, registration);
                    sessions[usize::from(n)] = opened.ok();
                },
                Op::Pin(..) | Op::Copied(_) | Op::Checked(_) | Op::NoRoom(_) | Op::Wait | Op::Poison(..) => {}
            }
            match op {
                Op::Pin(n, which) => if let Some(session) = sessions[usize::from(n)] {
                    take_deliveries(&mut bench, session, &mut held, &mut left);
                    let list = held.get(&session.0).filter(|list| !list.is_empty());
                    if let Some(list) = list {
                        let slot = list[usize::from(which) % list.len()].slot;
                        bench.world.memory.pinned.insert((session.0, slot));
                    }
                },
                Op::Copied(ok) if bench.world.memory.copying() > 0 => bench.copied(ok),
                Op::Checked(which) if !bench.world.checks.is_empty() => {
                    bench.checked(usize::from(which) % bench.world.checks.len());
                }
                Op::NoRoom(on) => bench.world.memory.no_room = on,
                Op::Wait => bench.now_ns += 1_500_000,
                Op::Poison(first, count) if poisons < POISONS_MAX => {
                    poisons += 1;
                    bench.lose(Run { first, count });
                }
                _ => {}
            }
            for peer in core::mem::take(&mut bench.world.sent) {
                bench.receiver.handle_sent(PeerId(peer));
            }
            let stats = bench.receiver.stats();
            let used =
                stats.posted_slabs + stats.small_held_slabs + stats.read_slabs + stats.quarantined_slabs;
            let budget = bench.receiver.pool.budget();
            let retired = stats.retired_slabs..=stats.retired_slabs + stats.escape.memory_retired;
            prop_assert!(retired.contains(&(budget - stats.free_slabs - used)), "{:?}", stats);
            prop_assert!(budget >= stats.pool_slabs, "the total of usable slabs stays");
            prop_assert!(stats.escape.replaced_now <= config().escape.replace_slabs_max);
            prop_assert!(stats.escape.memory_used <= stats.escape.memory_ready);
            prop_assert!(stats.in_flight_bytes <= config().in_flight_bytes);
            let receiver = &mut bench.receiver;
            let counts = |read: &u32| {
                let read = &receiver.reads[*read];
                read.message != NONE
                    && read.share == Share::Read
                    && receiver.admission.has_counted_footprint(read.message, &mut receiver.messages)
            };
            let counted: Vec<u32> = (0..config().reads_max).filter(counts).collect();
            let counted_bytes: u64 =
                counted.into_iter().map(|read| u64::from(receiver.reads[read].bytes)).sum();
            prop_assert_eq!(counted_bytes, receiver.admission.counted_bytes());
            receiver.admission.check(config().peers_max);
            prop_assert!(bench.receiver.credit.total() + u64::from(stats.small_held_slabs) <= 64, "credit \
                within the SRQ");
            prop_assert!(bench.world.byes.is_empty(), "nobody misbehaved");
        }
        // Liveness: from here on all behave well, and every message must come to its end.
        for _ in 0..2000 {
            bench.flush();
            bench.world.memory.no_room = false;
            while bench.world.memory.copying() > 0 {
                bench.copied(true);
            }
            while !bench.world.reads.is_empty() {
                bench.read_done();
            }
            while let Some(last) = bench.world.checks.len().checked_sub(1) {
                bench.checked(last);
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
            // Like jet-client: a message that is finished already needs no second finish.
            if left.remove(&key).is_some() {
                bench.finish(session, &delivery, 1);
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
    bench.receiver.handle_peer_lost(peer);
    expected.retain(|key, _| key.0 != peer.0);
    bench.world.ends.retain(|end| end.0 != peer.0);
    bench.world.recalls.retain(|recall| recall.0 != peer.0);
    bench.world.sent.retain(|&sent| sent != peer.0);
    if let Some(sender) = senders.iter_mut().find(|sender| sender.peer == Some(peer)) {
        sender.peer = None;
        sender.epoch += 1;
    }
}

//! Scenario tests: one situation each.

use super::*;
use alloc::string::{String, ToString};
use jet_wire::message::CreditReturn;

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
fn an_application_that_takes_one_message_after_the_other_never_waits_for_ever() {
    for (slots, classes) in
        [(1024, [0; 8]), (1024, [3, 2, 2, 1, 0, 0, 0, 0]), (128, [0, 1, 2, 3, 0, 1, 2, 3])]
    {
        takes_one_after_the_other(slots, classes);
    }
}

/// Runs an application that takes one message after the other. Together the messages are larger than the
/// pool, and each is larger than a fragment. A message of a less urgent class began to arrive before the
/// others did.
fn takes_one_after_the_other(slots: u32, classes: [u8; 8]) {
    const BYTES: u64 = 500_000;
    let mut bench = Bench::new(Config { session_slots: slots, ..config() });
    let (app, peer) = (bench.open("disk"), bench.join("disk"));
    // A fast application has a small footprint, so many of its messages are read side by side.
    bench.request(peer, 100, 64 << 10, None);
    bench.flush();
    bench.read_done();
    let (warm, _) = bench.delivery(app).unwrap();
    bench.now_ns += 1000;
    bench.release(app, &warm, true, 0);
    bench.now_ns += 20_000_000;
    bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
    let mut parts: BTreeMap<u32, VecDeque<Delivery>> = BTreeMap::new();
    let mut order = Vec::new();
    let mut sequence = 0;
    for (taken, class) in classes.into_iter().enumerate() {
        while sequence < 8 && (sequence <= taken || class <= classes[0]) {
            bench.request_class(peer, sequence as u64, BYTES, classes[sequence], None);
            bench.flush();
            sequence += 1;
        }
        let mut left = BYTES;
        while left > 0 {
            // Everything that can be read is read; the application looks only at the message that arrived
            // first.
            bench.flush();
            while !bench.world.reads.is_empty() {
                bench.read_done();
                bench.flush();
            }
            while let Some((delivery, _)) = bench.delivery(app) {
                if delivery.flags & delivery_flags::FIRST != 0 {
                    order.push(delivery.message);
                }
                parts.entry(delivery.message).or_default().push_back(delivery);
            }
            let part =
                parts.get_mut(&order[taken]).and_then(VecDeque::pop_front).expect("the next part comes");
            left -= u64::from(part.bytes);
            bench.release(app, &part, left == 0, 0);
        }
    }
    let stats = bench.receiver.stats();
    assert_eq!((stats.ends.consumed, stats.read_slabs, stats.running), (9, 0, 0));
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
    assert!(bench.receiver.handle_session_opened(bench.now_ns, Registration::new(name("late"))).is_err());
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
    bench.receiver.handle_peer_lost(bad);
    bench.receiver.handle_peer_lost(greedy);
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
    bench.request(peer, 1, 4096, Some(4096));
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
    bench.receiver.handle_peer_lost(peer);
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
        assert_eq!(bench.world.closed, [(bad.0, SessionEnd::Release { error, held_slabs: 1 })]);
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
    assert_eq!(bench.receiver.credit.target(busy.0), 32, "credit follows the rate");
    let (peer, keep) = bench.world.recalls[0];
    assert_eq!(peer, idle.0);
    bench.arrive(idle, &CreditReturn::encode(keep), &[]);
    assert_eq!(bench.receiver.credit.outstanding(idle.0), 1);
    assert!(bench.world.byes.is_empty());
}

#[test]
fn senders_that_do_not_answer_a_recall_do_not_starve_the_others() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let quiet: Vec<PeerId> = (0..4).map(|_| bench.join("disk")).collect();
    let mut sent = BTreeMap::new();
    let mut burst = |bench: &mut Bench, peer: PeerId| {
        let sent = sent.entry(peer.0).or_insert(0);
        while *sent < bench.world.limits[&peer.0] && !bench.world.posted.is_empty() {
            *sent += 1;
            bench.small(peer, *sent, b"x");
        }
        while let Some((delivery, _)) = bench.delivery(session) {
            bench.release(session, &delivery, true, 0);
        }
        bench.flush();
        core::mem::take(&mut bench.world.sent)
            .into_iter()
            .for_each(|p| bench.receiver.handle_sent(PeerId(p)));
        *sent
    };
    for _ in 0..6 {
        for &peer in &quiet {
            burst(&mut bench, peer);
        }
    }
    // From here on these senders say nothing, not even to a recall.
    let busy = bench.join("disk");
    let mut last = 0;
    for _ in 0..30 {
        bench.now_ns += 20_000_000;
        bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
        last = burst(&mut bench, busy);
    }
    assert!(last > 100, "the busy one sent only {last}");
    assert_eq!(bench.receiver.stats().credit_lapses, 4, "each quiet one once, and the busy one never");
    // A sender that wakes after all is served as before.
    let before = bench.receiver.credit.arrived(quiet[0].0);
    assert!(burst(&mut bench, quiet[0]) > before && bench.world.byes.is_empty());
}

#[test]
fn a_large_message_is_not_read_before_its_session_has_room_for_it() {
    let mut bench = Bench::new(Config { session_messages: 1, ..config() });
    let session = bench.open("disk");
    let (first, second) = (bench.join("disk"), bench.join("disk"));
    bench.small(first, 1, b"holds the only number");
    bench.request(second, 1, 200_000, None);
    bench.flush();
    let (held, _) = bench.delivery(session).unwrap();
    assert!(bench.world.reads.is_empty(), "it waits, and takes no READ from others");
    bench.release(session, &held, true, 0);
    bench.flush();
    assert!(!bench.world.reads.is_empty(), "its turn has come");
    while let Some((_, read, ..)) = bench.world.reads.pop_front() {
        bench.receiver.handle_read_done(bench.now_ns, read, false, false, &mut bench.world);
    }
    bench.receiver.handle_peer_lost(second);
    assert!(bench.delivery(session).is_none(), "nothing of a message that will never be whole");
    bench.flush();
    assert!(bench.whole(), "{:?}", bench.receiver.stats());
}

#[test]
fn a_number_that_a_rejected_message_gives_back_is_used_at_once() {
    let mut bench = Bench::new(Config { session_messages: 1, ..config() });
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.request(peer, 1, 200_000, None);
    bench.flush();
    bench.read_done();
    let (head, _) = bench.delivery(session).unwrap();
    bench.small(peer, 2, b"waits for the number");
    bench.release(session, &head, true, 5);
    while !bench.world.reads.is_empty() {
        bench.read_done();
    }
    let (small, _) = bench.delivery(session).expect("the last READ's end gave the number back");
    bench.release(session, &small, true, 0);
    bench.flush();
    assert!(bench.whole());
}

#[test]
fn more_busy_senders_than_entries_all_get_their_turn() {
    let mut bench = Bench::new(Config { peers_max: 64, messages_max: 512, ..config() });
    let session = bench.open("disk");
    let peers: Vec<PeerId> = (0..60).map(|_| bench.join("disk")).collect();
    let mut sent = [0u64; 60];
    for _ in 0..100 {
        for (peer, sent) in peers.iter().zip(&mut sent) {
            while *sent < bench.world.limits[&peer.0] && !bench.world.posted.is_empty() {
                *sent += 1;
                bench.small(*peer, *sent, b"x");
            }
        }
        while let Some((delivery, _)) = bench.delivery(session) {
            bench.release(session, &delivery, true, 0);
        }
        bench.flush();
        for peer in core::mem::take(&mut bench.world.sent) {
            bench.receiver.handle_sent(PeerId(peer));
        }
        bench.now_ns += 1_000_000;
        bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
    }
    assert!(bench.world.byes.is_empty());
    let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
    assert!(*least >= 40 && most <= &(least * 3), "unfair: {sent:?}");
}

#[test]
fn who_is_not_connected_yet_is_told_nothing_and_everything_later() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.ask("disk");
    // The NIC takes no SEND before the connection is established. A recall would be lost, and its completion
    // would never arrive.
    for _ in 0..15 {
        bench.wait(20_000_000);
    }
    assert!(bench.world.sent.is_empty(), "{} SENDs to nobody", bench.world.sent.len());
    assert_eq!(bench.receiver.credit.total(), 0, "and it does not keep the others from their credit");
    bench.receiver.handle_connected(peer, 1);
    bench.flush();
    let limit = bench.world.limits[&peer.0];
    (1..=limit).for_each(|n| bench.small(peer, n, b"x"));
    while let Some((delivery, _)) = bench.delivery(session) {
        bench.release(session, &delivery, true, 0);
    }
    bench.flush();
    assert!(bench.world.limits[&peer.0] > limit && bench.world.byes.is_empty(), "it gets more credit");
    assert_eq!(bench.world.ends.len() as u64, limit);
    let sent = core::mem::take(&mut bench.world.sent).len();
    (0..sent).for_each(|_| bench.receiver.handle_sent(peer));
    assert_eq!(bench.receiver.outbox.sends_in_flight(peer.0), 0);
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
    // The recall is still on its way while the sender uses up its credit.
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

#[test]
fn numbers_read_as_words() {
    let text: String = OpenError::NameTaken.to_string();
    assert!(text.contains("choose another"));
}

#[test]
fn a_window_that_follows_the_load_bounds_what_is_read_and_stragglers_are_no_part_of_it() {
    let mut bench = Bench::new(Config { footprint_follows: true, ..config() });
    let (app, _holder) = (bench.open("app"), bench.open("holder"));
    let (sender, other) = (bench.join("app"), bench.join("holder"));
    // A fragment has 64 KiB, and the window is two of them.
    for sequence in 0..4 {
        bench.request(other, sequence, 64 << 10, None);
    }
    bench.flush();
    while !bench.world.reads.is_empty() {
        bench.read_done();
    }
    bench.flush();
    assert_eq!(
        bench.receiver.stats().read_slabs,
        32,
        "no more than two fragments, though four were asked for"
    );
    // One application holds all of the window and gives nothing back. The other waits only until that is
    // known.
    for sequence in 0..4 {
        bench.request(sender, sequence, 64 << 10, None);
    }
    bench.flush();
    bench.now_ns += 50_000_000;
    bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
    bench.flush();
    let mut taken = 0;
    while !bench.world.reads.is_empty() {
        bench.read_done();
        bench.flush();
        while let Some((delivery, _)) = bench.delivery(app) {
            bench.release(app, &delivery, true, 0);
            taken += 1;
        }
        bench.flush();
    }
    assert_eq!(taken, 4);
}

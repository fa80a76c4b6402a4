//! Tests that what Algorithm 1 decides is carried out, and that nothing is lost by it.

use super::*;

const FRAGMENT: u64 = 64 << 10;
const STRAGGLER_NS: u64 = 2_000_001;

fn bench(change: impl FnOnce(&mut Config)) -> Bench {
    let mut config = config();
    change(&mut config);
    let mut bench = Bench::new(config);
    bench.receiver.handle_escape_memory(u32::MAX);
    bench
}

/// Lets the application receive one message of one fragment for each sequence number, and hold them all.
fn hold(bench: &mut Bench, app: SessionId, peer: PeerId, sequences: core::ops::Range<u64>) -> Vec<Delivery> {
    for sequence in sequences {
        bench.request(peer, sequence, FRAGMENT, None);
        settle(bench);
    }
    settle(bench);
    core::iter::from_fn(|| bench.delivery(app).map(|(delivery, _)| delivery)).collect()
}

/// Completes READs and SENDs until nothing is under way.
fn settle(bench: &mut Bench) {
    for _ in 0..200 {
        bench.flush();
        for peer in core::mem::take(&mut bench.world.sent) {
            bench.receiver.handle_sent(PeerId(peer));
        }
        if bench.world.reads.is_empty() {
            return;
        }
        bench.read_done();
    }
    panic!("READs never end");
}

fn release_all(bench: &mut Bench, app: SessionId, deliveries: &[Delivery]) {
    for delivery in deliveries {
        let last = delivery.flags & delivery_flags::LAST != 0;
        bench.release(app, delivery, last, 0);
    }
    bench.flush();
}

#[test]
fn stragglers_are_replaced_and_come_home() {
    let mut bench = bench(|config| config.memory_slabs = 0);
    let (app, peer) = (bench.open("slow"), bench.join("slow"));
    let held = hold(&mut bench, app, peer, 1..13);
    let before = bench.receiver.stats();
    assert_eq!((before.pressure, before.escape.replaced_now), (jet_escape::Pressure::Unsafe, 0));
    bench.wait(STRAGGLER_NS);
    let stats = bench.receiver.stats();
    assert_eq!((stats.escape.replaced_now, stats.escape.memory_used), (32, 32), "as much as MEM_ESC allows");
    assert_eq!(bench.receiver.pool.budget(), 256, "the total of usable slabs stays");
    assert_eq!(stats.free_slabs, before.free_slabs + 32);
    release_all(&mut bench, app, &held);
    bench.wait(20_000_000);
    assert!(bench.whole(), "{:?}", bench.receiver.stats());
    let session = bench.receiver.session_stats(app).unwrap();
    assert_eq!((session.replaced_slabs, session.replaced_total), (0, 32));
}

#[test]
fn what_nobody_looked_at_is_not_held_against_applications() {
    let mut bench = bench(|config| config.memory_slabs = 0);
    let (app, peer) = (bench.open("fair"), bench.join("fair"));
    let held = hold(&mut bench, app, peer, 1..13);
    // The machine stands still for long, and the receiver is called before the application gets to run.
    bench.receiver.handle_stall(10 * STRAGGLER_NS);
    bench.wait(10 * STRAGGLER_NS + STRAGGLER_NS / 2);
    let stats = bench.receiver.stats();
    assert_eq!((stats.escape.replaced_total, stats.escape.stalled_ns), (0, 10 * STRAGGLER_NS));
    // A run that is still held becomes a straggler nevertheless, later by the stall.
    bench.wait(STRAGGLER_NS / 2 + 1);
    assert_eq!(bench.receiver.stats().escape.replaced_now, 32);
    // A run that is delivered after a stall is as old as it is.
    release_all(&mut bench, app, &held);
    // Long enough for the last turn of the pool to be forgotten.
    bench.wait(200_000_000);
    hold(&mut bench, app, peer, 13..25);
    bench.wait(STRAGGLER_NS);
    assert_eq!(bench.receiver.stats().escape.replaced_now, 32);
}

#[test]
fn what_waits_its_turn_in_a_full_pool_is_no_straggler() {
    let mut bench = bench(|config| config.memory_slabs = 0);
    let (app, peer) = (bench.open("steady"), bench.join("steady"));
    let mut held = VecDeque::from(hold(&mut bench, app, peer, 1..13));
    // Each message takes 16 of 256 slabs: 16 messages use the pool once, and each run is held for 12 of them.
    let mut sequences = 13..;
    let mut pass = |bench: &mut Bench, held: &mut VecDeque<Delivery>, times: usize| {
        for sequence in sequences.by_ref().take(times) {
            bench.wait(200_000);
            // A message may lie in several runs.
            while let Some(delivery) = held.pop_front() {
                release_all(bench, app, &[delivery]);
                if delivery.flags & delivery_flags::LAST != 0 {
                    break;
                }
            }
            held.extend(hold(bench, app, peer, sequence..sequence + 1));
        }
        bench.receiver.stats().escape
    };
    // Until the turn of the pool is known, some runs are taken for stragglers, and the reserve is used.
    pass(&mut bench, &mut held, 120);
    let since_ns = bench.now_ns;
    let before = pass(&mut bench, &mut held, 16);
    let turn_ns = bench.now_ns - since_ns;
    assert_eq!(before.straggler_ns, 2 * turn_ns);
    assert!(turn_ns / 16 * 12 > STRAGGLER_NS, "all would be stragglers");
    let after = pass(&mut bench, &mut held, 200);
    assert_eq!((after.replaced_total, after.replaced_now), (before.replaced_total, 0));
    assert_eq!(bench.receiver.stats().pressure, jet_escape::Pressure::Unsafe, "it was under pressure");
    // Now the application does stop.
    bench.wait(turn_ns);
    assert_eq!(bench.receiver.stats().escape.replaced_now, 0);
    bench.wait(turn_ns);
    assert_ne!(bench.receiver.stats().escape.replaced_now, 0);
}

#[test]
fn a_slow_sessions_backlog_is_copied_except_for_what_it_reads() {
    let mut bench = bench(|config| config.escape.replace_slabs_max = 0);
    let (app, peer) = (bench.open("slow"), bench.join("slow"));
    let held = hold(&mut bench, app, peer, 1..13);
    bench.world.memory.pinned.insert((app.0, held[2].slot));
    bench.wait(STRAGGLER_NS);
    while bench.world.memory.copying() > 0 {
        bench.copied(true);
        bench.flush();
    }
    let stats = bench.receiver.stats();
    assert_eq!(
        (stats.escape.copied_total, stats.escape.copied_now),
        (128, 128),
        "all of the memory there is"
    );
    assert!(bench.world.memory.place(app.0, held[0].slot) >= 256, "the oldest goes first");
    assert_eq!(bench.world.memory.place(app.0, held[2].slot), held[2].slab, "what is read stays");
    release_all(&mut bench, app, &held);
    bench.wait(20_000_000);
    assert!(bench.whole(), "{:?}", bench.receiver.stats());
}

#[test]
fn what_is_released_while_it_is_copied_is_used_again_only_afterwards() {
    let mut bench = bench(|config| config.escape.replace_slabs_max = 0);
    let (app, peer) = (bench.open("slow"), bench.join("slow"));
    let held = hold(&mut bench, app, peer, 1..13);
    bench.wait(STRAGGLER_NS);
    assert_eq!(bench.world.memory.copying(), 8, "as many as there may be at once");
    // Some of the free slabs are posted when credit is given.
    let unused = |bench: &Bench| {
        let stats = bench.receiver.stats();
        stats.free_slabs + stats.posted_slabs
    };
    let before = unused(&bench);
    release_all(&mut bench, app, &held[..1]);
    assert_eq!(unused(&bench), before, "the copy still reads it");
    assert!(
        bench.world.ends.contains(&(peer.0, 1, AckStatus::Consumed)),
        "its sender need not wait for that"
    );
    bench.copied(true);
    assert_eq!(unused(&bench), before + 16);
    // A part of another run is pinned: the rest of that run is being read, so it stays.
    bench.world.memory.pinned.insert((app.0, held[1].slot));
    bench.copied(true);
    assert_eq!(bench.world.memory.place(app.0, held[1].slot), held[1].slab);
    release_all(&mut bench, app, &held[1..]);
    while bench.world.memory.copying() > 0 {
        bench.copied(false);
    }
    bench.wait(20_000_000);
    assert!(bench.whole(), "{:?}", bench.receiver.stats());
}

#[test]
fn an_application_that_dies_in_the_middle_of_a_copy_stays_in_quarantine_until_it_is_over() {
    let mut bench = bench(|config| config.escape.replace_slabs_max = 0);
    let (app, peer) = (bench.open("slow"), bench.join("slow"));
    let held = hold(&mut bench, app, peer, 1..13);
    bench.wait(STRAGGLER_NS);
    release_all(&mut bench, app, &held[..1]);
    bench.receiver.handle_session_gone(bench.now_ns, app, &mut bench.world);
    bench.wait(2_000_000_000);
    assert!(bench.receiver.stats().quarantined_slabs > 0, "a copy still reads from it");
    while bench.world.memory.copying() > 0 {
        bench.copied(true);
    }
    bench.wait(20_000_000);
    assert!(bench.whole(), "{:?}", bench.receiver.stats());
    assert!(bench.receiver.session_stats(app).is_none());
}

#[test]
fn an_application_that_pins_everything_and_sleeps_does_not_starve_the_others() {
    let mut bench = bench(|_| {});
    let (slow, slow_peer) = (bench.open("slow"), bench.join("slow"));
    let (good, good_peer) = (bench.open("good"), bench.join("good"));
    for slot in 0..128 {
        bench.world.memory.pinned.insert((slow.0, slot));
    }
    let held = hold(&mut bench, slow, slow_peer, 1..17);
    bench.wait(STRAGGLER_NS);
    assert_eq!(bench.world.memory.copying(), 0);
    assert!(bench.receiver.session_stats(slow).unwrap().suspended, "{:?}", bench.receiver.stats());
    for sequence in 1..100 {
        let got = hold(&mut bench, good, good_peer, sequence..sequence + 1);
        assert!(!got.is_empty(), "message {sequence}");
        release_all(&mut bench, good, &got);
        bench.wait(100_000);
    }
    assert!(!bench.receiver.session_stats(good).unwrap().suspended);
    release_all(&mut bench, slow, &held);
    loop {
        let rest = hold(&mut bench, slow, slow_peer, 0..0);
        if rest.is_empty() {
            break;
        }
        release_all(&mut bench, slow, &rest);
    }
    bench.wait(20_000_000);
    assert!(bench.whole(), "{:?}", bench.receiver.stats());
}

#[test]
fn one_session_leaves_enough_for_another_before_anybody_knows_that_it_is_slow() {
    let mut bench = Bench::new(config());
    let (slow, slow_peer) = (bench.open("slow"), bench.join("slow"));
    let (good, good_peer) = (bench.open("good"), bench.join("good"));
    for slot in 0..128 {
        bench.world.memory.pinned.insert((slow.0, slot));
    }
    // No time passes: nothing is a straggler, and there is no escape memory.
    let held = hold(&mut bench, slow, slow_peer, 1..17);
    assert!(held.len() > 8);
    for sequence in 1..40 {
        let got = hold(&mut bench, good, good_peer, sequence..sequence + 1);
        assert!(!got.is_empty(), "message {sequence}");
        release_all(&mut bench, good, &got);
    }
}

#[test]
fn without_escape_memory_congestion_is_marked_to_the_senders_of_slow_applications() {
    let mut config = config();
    config.escape.thresholds.danger_permille = 200;
    let mut bench = Bench::new(config);
    let (slow, slow_peer) = (bench.open("slow"), bench.join("slow"));
    let (good, good_peer) = (bench.open("good"), bench.join("good"));
    let held = hold(&mut bench, slow, slow_peer, 1..17);
    // Another sender that is busy, too.
    bench.small(good_peer, 1, b"x");
    settle(&mut bench);
    let (small, _) = bench.delivery(good).unwrap();
    bench.release(good, &small, true, 0);
    assert!(bench.world.marks.is_empty());
    bench.wait(STRAGGLER_NS);
    let stats = bench.receiver.stats();
    assert_eq!((stats.pressure, stats.escape.dangers), (jet_escape::Pressure::Danger, 1));
    assert_eq!(bench.world.marks, [true]);
    assert_eq!(bench.world.signals, [(slow_peer.0, 500)], "once, and to nobody else");
    bench.wait(500_000);
    assert_eq!(bench.world.signals.len(), 1, "not again so soon");
    release_all(&mut bench, slow, &held);
    bench.wait(1_000_000);
    assert_eq!(bench.world.marks, [true, false], "restored above the safe line");
}

#[test]
fn switched_off_nothing_is_done() {
    let mut bench = bench(|config| {
        config.escape.enabled = false;
        config.escape.thresholds.danger_permille = 200;
    });
    let (app, peer) = (bench.open("slow"), bench.join("slow"));
    let held = hold(&mut bench, app, peer, 1..17);
    bench.wait(STRAGGLER_NS);
    bench.wait(STRAGGLER_NS);
    let stats = bench.receiver.stats();
    assert_eq!(stats.pressure, jet_escape::Pressure::Danger);
    assert_eq!((stats.escape.memory_used, stats.escape.evaluations), (0, 0));
    assert!(bench.world.marks.is_empty() && bench.world.memory.copying() == 0);
    release_all(&mut bench, app, &held);
}

#[test]
fn two_sessions_that_cross_credit_at_once_are_both_copied() {
    let mut bench = bench(|config| config.escape.replace_slabs_max = 0);
    let apps = ["one", "two"].map(|app| (bench.open(app), bench.join(app)));
    for round in 0..6 {
        for (app, peer) in apps {
            let got = hold(&mut bench, app, peer, round * 2 + 1..round * 2 + 2);
            assert_eq!(got.len(), 1);
        }
    }
    bench.wait(STRAGGLER_NS);
    for _ in 0..8 {
        while bench.world.memory.copying() > 0 {
            bench.copied(true);
        }
        bench.flush();
    }
    for (app, _) in apps {
        let session = bench.receiver.session_stats(app).unwrap();
        assert!(session.copied_slabs >= 32, "{session:?}");
    }
}

#[test]
fn memory_is_taken_instead_of_waiting_by_those_who_may_and_a_high_class_goes_ahead() {
    let mut bench = bench(|_| {});
    let low =
        bench.open_with(Registration { class: 2, takes_memory: true, ..Registration::new(name("low")) });
    let (low_peer, high_peer) = (bench.join("low"), bench.join("high"));
    let high = bench.open("high");
    // The cache is full of what the high class holds.
    let held = hold(&mut bench, high, high_peer, 1..13);
    let got = hold(&mut bench, low, low_peer, 1..4);
    assert_eq!(got.iter().map(|delivery| delivery.slab >= 256).collect::<Vec<_>>(), [true, true, true]);
    let stats = bench.receiver.stats();
    assert_eq!((stats.escape.spilled_now, stats.escape.spilled_total), (48, 48));
    assert_eq!(bench.receiver.session_stats(low).unwrap().memory_slabs, 48);
    // What one session may hold in memory is bounded: the fifth message waits.
    let more = hold(&mut bench, low, low_peer, 4..7);
    assert_eq!((more.len(), bench.receiver.stats().waiting), (1, 2));
    release_all(&mut bench, low, &got);
    release_all(&mut bench, low, &more);
    let rest = hold(&mut bench, low, low_peer, 0..0);
    assert_eq!(rest.len(), 2);
    release_all(&mut bench, low, &rest);
    release_all(&mut bench, high, &held);
    bench.wait(20_000_000);
    assert!(bench.whole(), "{:?}", bench.receiver.stats());
}

#[test]
fn no_class_starves_though_the_high_one_never_ends() {
    let mut bench = bench(|config| config.aging_ns = 1_000_000);
    let low = bench.open_with(Registration { class: 3, ..Registration::new(name("low")) });
    let (low_peer, high_peer) = (bench.join("low"), bench.join("high"));
    let high = bench.open("high");
    let mut sequence = 0;
    for _ in 0..8 {
        sequence += 1;
        bench.request(high_peer, sequence, FRAGMENT, None);
    }
    bench.request_class(low_peer, 1, FRAGMENT, 3, None);
    let mut rounds = 0;
    let got = loop {
        rounds += 1;
        assert!(rounds < 100, "the low class starves");
        bench.flush();
        if !bench.world.reads.is_empty() {
            bench.read_done();
        }
        while let Some((delivery, _)) = bench.delivery(high) {
            bench.release(high, &delivery, true, 0);
            sequence += 1;
            bench.flush();
            bench.request(high_peer, sequence, FRAGMENT, None);
        }
        for peer in core::mem::take(&mut bench.world.sent) {
            bench.receiver.handle_sent(PeerId(peer));
        }
        bench.now_ns += 200_000;
        if let Some((delivery, _)) = bench.delivery(low) {
            break delivery;
        }
    };
    assert!(rounds > 4, "the high class goes first");
    bench.release(low, &got, true, 0);
}

#[test]
fn a_suspended_session_still_gets_what_its_application_waits_for() {
    let mut bench = bench(|_| {});
    let (app, peer) = (bench.open("slow"), bench.join("slow"));
    // The application takes one message after the other: the first is long, the others lie unread behind its
    // beginning.
    bench.request(peer, 1, 40 * FRAGMENT, None);
    for sequence in 2..8 {
        bench.request(peer, sequence, 2 * FRAGMENT, None);
    }
    let mut unread: VecDeque<Delivery> = VecDeque::new();
    let mut first = None;
    let mut arrived = 0;
    for _ in 0..2000 {
        bench.flush();
        if !bench.world.reads.is_empty() {
            bench.read_done();
        }
        while bench.world.memory.copying() > 0 {
            bench.copied(true);
        }
        while let Some((delivery, _)) = bench.delivery(app) {
            let first = *first.get_or_insert(delivery.message);
            if delivery.message == first {
                arrived += u64::from(delivery.bytes);
                let last = arrived == 40 * FRAGMENT;
                bench.release(app, &delivery, last, 0);
            } else {
                unread.push_back(delivery);
            }
        }
        for peer in core::mem::take(&mut bench.world.sent) {
            bench.receiver.handle_sent(PeerId(peer));
        }
        bench.wait(STRAGGLER_NS);
        if arrived == 40 * FRAGMENT {
            return;
        }
    }
    panic!("{arrived} bytes came; {:?} {:?}", bench.receiver.stats(), bench.receiver.session_stats(app));
}

#[test]
fn small_messages_of_a_stopped_application_leave_the_srq_to_the_others() {
    let mut bench = bench(|config| {
        config.session_messages = 128;
        config.messages_max = 512;
    });
    let (stopped, stopped_peer) = (bench.open("stopped"), bench.join("stopped"));
    let (good, good_peer) = (bench.open("good"), bench.join("good"));
    let mut sent = 0;
    let mut sequence = 0;
    for round in 0..400u64 {
        while sent < bench.world.limits[&stopped_peer.0] && !bench.world.posted.is_empty() {
            sent += 1;
            bench.small(stopped_peer, sent, b"never read");
        }
        bench.wait(100_000);
        while bench.world.memory.copying() > 0 {
            bench.copied(true);
        }
        settle(&mut bench);
        if bench.world.limits[&good_peer.0] > sequence && !bench.world.posted.is_empty() {
            sequence += 1;
            bench.small(good_peer, sequence, b"read at once");
            let (delivery, _) = bench.delivery(good).expect("it has slots");
            bench.release(good, &delivery, true, 0);
        }
        settle(&mut bench);
        assert!(round < 100 || sequence > round / 2, "the good one got {sequence} in {round} rounds");
    }
    let escape = bench.receiver.stats().escape;
    assert!(escape.copied_total + escape.replaced_total > 0, "{escape:?}");
    while let Some((delivery, _)) = bench.delivery(stopped) {
        bench.release(stopped, &delivery, true, 0);
        bench.flush();
    }
    bench.wait(20_000_000);
    assert!(bench.whole(), "{:?}", bench.receiver.stats());
}

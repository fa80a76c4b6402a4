//! Memory that cannot be read any more: the message in it ends, its slabs leave, and everybody else goes on.

use super::*;

const FRAGMENT: u64 = 64 << 10;

fn under_pressure(change: impl FnOnce(&mut Config)) -> Bench {
    let mut config = config();
    config.escape.replace_slabs_max = 0;
    change(&mut config);
    let mut bench = Bench::new(config);
    bench.receiver.handle_escape_memory(u32::MAX);
    bench
}

/// READs and SENDs complete at once.
fn settle(bench: &mut Bench) {
    for _ in 0..200 {
        bench.flush();
        for peer in core::mem::take(&mut bench.world.sent) {
            bench.receiver.handle_sent(PeerId(peer));
        }
        if bench.world.reads.is_empty() {
            return;
        }
        while !bench.world.reads.is_empty() {
            bench.read_done();
        }
    }
    panic!("it never settles");
}

/// The application gets so many fragments of one message each, and holds them until they are copied.
fn copying(bench: &mut Bench, app: SessionId, peer: PeerId) -> Vec<Delivery> {
    for sequence in 1..13 {
        bench.request(peer, sequence, FRAGMENT, None);
        settle(bench);
    }
    let held = deliveries(bench, app);
    bench.wait(10_000_000_000);
    assert!(bench.world.memory.copying() > 0, "{:?}", bench.receiver.stats());
    held
}

fn deliveries(bench: &mut Bench, app: SessionId) -> Vec<Delivery> {
    core::iter::from_fn(|| bench.delivery(app).map(|(delivery, _)| delivery)).collect()
}

fn ends(bench: &Bench) -> Vec<(u64, AckStatus)> {
    bench.world.ends.iter().map(|end| (end.1, end.2)).collect()
}

/// What was retired is gone, and everything else is back.
fn assert_whole_without(bench: &mut Bench, retired: u32, memory_retired: u32) {
    bench.wait(20_000_000);
    let stats = bench.receiver.stats();
    assert_eq!((stats.retired_slabs, stats.escape.memory_retired), (retired, memory_retired));
    assert_eq!(stats.free_slabs + stats.posted_slabs + retired, stats.pool_slabs, "{stats:?}");
    assert_eq!((stats.messages, stats.escape.memory_used), (0, 0), "{stats:?}");
    assert_eq!(bench.world.marks.last(), Some(&false).filter(|_| !bench.world.marks.is_empty()));
}

#[test]
fn a_copy_that_cannot_be_read_ends_its_message_and_marks_congestion() {
    let mut bench = under_pressure(|_| {});
    let (app, peer) = (bench.open("slow"), bench.join("slow"));
    let held = copying(&mut bench, app, peer);
    assert_eq!((ends(&bench), bench.world.marks.len()), (vec![], 0));
    // The copy that is over next is that of the oldest.
    let poisoned = held[0].slab + 3;
    bench.receiver.handle_poisoned(Run { first: poisoned, count: 1 });
    bench.copied(false);
    bench.flush();
    assert_eq!(ends(&bench), [(1, AckStatus::Corrupt)], "that message, and no other");
    assert_eq!(bench.world.marks, [true]);
    let told = deliveries(&mut bench, app);
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].kind, told[0].flags), (delivery_kind::WITHDRAWN, delivery_flags::CORRUPT));
    assert_eq!(
        (told[0].message, told[0].message_generation()),
        (held[0].message, held[0].message_generation())
    );
    while bench.world.memory.copying() > 0 {
        bench.copied(true);
    }
    for delivery in &held {
        bench.release(app, delivery, true, 0);
    }
    settle(&mut bench);
    assert_eq!(ends(&bench).len(), 12);
    assert_eq!(bench.receiver.stats().ends.corrupt, 1, "a release afterwards changes no end");
    assert_whole_without(&mut bench, 1, 0);
    // Nothing lies there ever again.
    for sequence in 13..200 {
        bench.request(peer, sequence, FRAGMENT, None);
        settle(&mut bench);
        for delivery in deliveries(&mut bench, app) {
            let slabs = delivery.slab..delivery.slab + delivery.bytes.div_ceil(4096);
            assert!(!slabs.contains(&poisoned), "{sequence}");
            bench.release(app, &delivery, delivery.flags & delivery_flags::LAST != 0, 0);
        }
    }
    settle(&mut bench);
    assert_whole_without(&mut bench, 1, 0);
}

#[test]
fn a_copy_that_cannot_be_written_costs_no_message() {
    let mut bench = under_pressure(|_| {});
    let (app, peer) = (bench.open("slow"), bench.join("slow"));
    let held = copying(&mut bench, app, peer);
    let to = bench.world.memory.oldest_copy().to;
    bench.receiver.handle_poisoned(Run { first: to.first, count: 1 });
    bench.copied(false);
    assert_eq!(bench.world.marks, [true]);
    for _ in 0..200 {
        if bench.world.memory.copying() == 0 {
            break;
        }
        assert_ne!(bench.world.memory.oldest_copy().to.first, to.first);
        bench.copied(true);
        bench.flush();
    }
    for delivery in &held {
        bench.release(app, delivery, true, 0);
    }
    settle(&mut bench);
    assert!(ends(&bench).iter().all(|end| end.1 == AckStatus::Consumed), "{:?}", ends(&bench));
    assert_whole_without(&mut bench, 0, 1);
}

#[test]
fn a_check_that_cannot_read_ends_its_message_whoever_makes_it() {
    for elsewhere in [true, false] {
        let checksums = if elsewhere { Checksums::Workers } else { Checksums::Inline };
        let mut bench = Bench::new(Config { checksums, ..config() });
        let (app, peer) = (bench.open("disk"), bench.join("disk"));
        // Its second READ of three cannot be read.
        bench.request(peer, 1, 160_000, Some(160_000));
        bench.flush();
        let poisoned = bench.world.reads[1].4[0].first;
        bench.world.poisoned.insert(poisoned);
        (0..3).for_each(|_| bench.read_done());
        if elsewhere {
            bench.check_failed(1, poisoned);
            bench.checked(0);
            bench.checked(0);
        } else {
            bench.receiver.handle_poisoned(Run { first: poisoned, count: 1 });
        }
        bench.flush();
        assert_eq!(ends(&bench), [(1, AckStatus::Corrupt)], "elsewhere: {elsewhere}");
        // What was delivered before that was seen is withdrawn.
        for delivery in deliveries(&mut bench, app) {
            match delivery.kind {
                delivery_kind::SLICES => bench.release(app, &delivery, true, 0),
                _ => assert_eq!(delivery.flags, delivery_flags::CORRUPT),
            }
        }
        settle(&mut bench);
        assert_whole_without(&mut bench, 1, 0);
        // The next message goes elsewhere.
        bench.request(peer, 2, 160_000, Some(160_000));
        bench.flush();
        assert!(bench.world.reads.iter().all(|read| {
            read.4.iter().all(|run| !(run.first..run.first + run.count).contains(&poisoned))
        }));
    }
}

#[test]
fn a_small_message_that_cannot_be_read_is_corrupt() {
    let mut bench = Bench::new(Config { checksums: Checksums::Inline, ..config() });
    let (_app, peer) = (bench.open("disk"), bench.join("disk"));
    bench.flush();
    let (_, slab) = bench.world.posted[0];
    bench.world.poisoned.insert(slab);
    bench.small_crc(peer, 1, &[0; 100], Some(100));
    bench.receiver.handle_poisoned(Run { first: slab, count: 1 });
    settle(&mut bench);
    assert_eq!(ends(&bench), [(1, AckStatus::Corrupt)]);
    assert!(bench.world.posted.iter().all(|&(_, posted)| posted != slab), "it is not posted again");
    assert_whole_without(&mut bench, 1, 0);
}

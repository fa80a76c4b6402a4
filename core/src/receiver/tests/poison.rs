//! Tests of memory that cannot be read any more: the messages in it end, whatever a copy, a READ or a check
//! of them reports. Its slabs leave, and all other messages are served.

use super::*;
use alloc::{format, vec};

const FRAGMENT: u64 = 64 << 10;

fn under_pressure(change: impl FnOnce(&mut Config)) -> Bench {
    let mut config = config();
    config.escape.replace_slabs_max = 0;
    change(&mut config);
    let mut bench = Bench::new(config);
    bench.receiver.handle_escape_memory(u32::MAX);
    bench
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
        while !bench.world.reads.is_empty() {
            bench.read_done();
        }
    }
    panic!("it never settles");
}

/// Lets the application receive messages of one fragment each, and hold them until copies are under way.
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

fn slab(first: u32) -> Run {
    Run { first, count: 1 }
}

fn deliveries(bench: &mut Bench, app: SessionId) -> Vec<Delivery> {
    core::iter::from_fn(|| bench.delivery(app).map(|(delivery, _)| delivery)).collect()
}

fn ends(bench: &Bench) -> Vec<(u64, AckStatus)> {
    bench.world.ends.iter().map(|end| (end.1, end.2)).collect()
}

/// Asserts that the retired slabs are gone, and all other slabs are back.
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
    // The next copy that ends is that of the oldest message.
    let poisoned = held[0].slab + 3;
    bench.lose(slab(poisoned));
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
    // Nothing is ever put there again.
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
    bench.lose(slab(to.first));
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
        // The second READ of three cannot be read.
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
            bench.lose(slab(poisoned));
        }
        bench.flush();
        assert_eq!(ends(&bench), [(1, AckStatus::Corrupt)], "elsewhere: {elsewhere}");
        // What was delivered before the loss was seen is withdrawn.
        for delivery in deliveries(&mut bench, app) {
            match delivery.kind {
                delivery_kind::SLICES => bench.release(app, &delivery, true, 0),
                _ => assert_eq!(delivery.flags, delivery_flags::CORRUPT),
            }
        }
        settle(&mut bench);
        assert_whole_without(&mut bench, 1, 0);
        // The next message is read into other slabs.
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
    let (_, poisoned) = bench.world.posted[0];
    bench.world.poisoned.insert(poisoned);
    bench.small_crc(peer, 1, &[0; 100], Some(100));
    bench.lose(slab(poisoned));
    settle(&mut bench);
    assert_eq!(ends(&bench), [(1, AckStatus::Corrupt)]);
    assert!(bench.world.posted.iter().all(|&(_, posted)| posted != poisoned), "it is not posted again");
    assert_whole_without(&mut bench, 1, 0);
}

/// Asserts that the last thing the application was told is that this message was withdrawn as corrupt.
#[track_caller]
fn assert_withdrawn(told: &[Delivery], delivered: &Delivery) {
    let last = told.last().expect("something was told");
    assert_eq!((last.kind, last.flags), (delivery_kind::WITHDRAWN, delivery_flags::CORRUPT));
    let names = |delivery: &Delivery| (delivery.message, delivery.message_generation());
    assert_eq!(names(last), names(delivered));
}

#[test]
fn a_copy_of_what_was_lost_meanwhile_is_not_believed() {
    let mut bench = under_pressure(|_| {});
    let (app, peer) = (bench.open("slow"), bench.join("slow"));
    let held = copying(&mut bench, app, peer);
    // Another reader met the loss, and the worker that copies found zeros there.
    bench.lose(slab(held[0].slab + 3));
    bench.flush();
    assert_eq!(ends(&bench), [(1, AckStatus::Corrupt)], "before the copy is over");
    assert_withdrawn(&deliveries(&mut bench, app), &held[0]);
    bench.copied(true);
    assert_eq!(bench.world.memory.place(app.0, held[0].slot), held[0].slab, "not relocated");
    // The next copy is written to lost memory, and its source is still good.
    let to = bench.world.memory.oldest_copy().to;
    bench.lose(slab(to.first + to.count - 1));
    bench.copied(true);
    assert_eq!(bench.world.memory.place(app.0, held[1].slot), held[1].slab);
    let stats = bench.receiver.stats().escape;
    assert_eq!((stats.copied_total, stats.copies_failed, bench.world.marks.len()), (0, 2, 1));
    while bench.world.memory.copying() > 0 {
        bench.copied(true);
    }
    for delivery in &held {
        bench.release(app, delivery, true, 0);
    }
    settle(&mut bench);
    let stats = bench.receiver.stats();
    assert_eq!((stats.ends.corrupt, stats.ends.consumed), (1, 11));
    assert_whole_without(&mut bench, 1, 1);
}

#[test]
fn what_is_lost_is_not_copied_and_ends_before_there_is_any_pressure() {
    let mut bench = under_pressure(|_| {});
    let (app, peer) = (bench.open("slow"), bench.join("slow"));
    bench.request(peer, 1, FRAGMENT, None);
    settle(&mut bench);
    let first = deliveries(&mut bench, app).remove(0);
    bench.lose(slab(first.slab));
    bench.flush();
    assert_eq!(ends(&bench), [(1, AckStatus::Corrupt)]);
    assert_withdrawn(&deliveries(&mut bench, app), &first);
    for sequence in 2..14 {
        bench.request(peer, sequence, FRAGMENT, None);
        settle(&mut bench);
    }
    let held = deliveries(&mut bench, app);
    bench.wait(10_000_000_000);
    for _ in 0..20 {
        bench.flush();
        while bench.world.memory.copying() > 0 {
            assert_ne!(bench.world.memory.oldest_copy().from.first, first.slab);
            bench.copied(true);
        }
        bench.now_ns += 1_000_000;
    }
    let stats = bench.receiver.stats().escape;
    assert!(stats.copied_total > 0 && stats.copies_failed > 0, "it was offered, and refused: {stats:?}");
    assert_eq!(bench.world.memory.place(app.0, first.slot), first.slab);
    // Memory that holds a copy is lost like any other.
    let copied = held
        .iter()
        .find(|delivery| bench.world.memory.place(app.0, delivery.slot) >= bench.receiver.pool.total());
    let copied = copied.expect("one of them is in memory");
    bench.lose(slab(bench.world.memory.place(app.0, copied.slot) + 1));
    settle(&mut bench);
    assert_eq!(ends(&bench)[1..], [(copied.sequence, AckStatus::Corrupt)]);
    assert_withdrawn(&deliveries(&mut bench, app), copied);
    for delivery in core::iter::once(&first).chain(&held) {
        bench.release(app, delivery, true, 0);
    }
    settle(&mut bench);
    assert_eq!(bench.receiver.stats().ends.consumed, 11);
    assert_whole_without(&mut bench, 1, 1);
}

#[test]
fn what_arrives_in_a_slab_that_was_lost_while_it_was_posted_is_corrupt() {
    // The NIC and the check find what was sent, for the kernel replaced the page for them: the checksum fits.
    for crc in [None, Some(100)] {
        let mut bench = Bench::new(Config { checksums: Checksums::Inline, ..config() });
        let (app, peer) = (bench.open("disk"), bench.join("disk"));
        let (_, lost) = bench.world.posted[0];
        bench.lose(slab(lost));
        bench.small_crc(peer, 1, &[0; 100], crc);
        settle(&mut bench);
        assert_eq!(ends(&bench), [(1, AckStatus::Corrupt)]);
        assert!(deliveries(&mut bench, app).is_empty());
        bench.small_crc(peer, 2, &[0; 100], crc);
        let (delivery, _) = bench.delivery(app).expect("the others go on");
        bench.release(app, &delivery, true, 0);
        settle(&mut bench);
        assert_eq!(ends(&bench)[1..], [(2, AckStatus::Consumed)]);
        assert_whole_without(&mut bench, 1, 0);
    }
}

#[test]
fn a_request_is_corrupt_where_its_user_header_lies_in_a_slab_that_was_lost() {
    for (user_header, in_slab) in [(&[7u8; 65][..], true), (&[7; 64], false)] {
        let mut bench = Bench::new(config());
        let (app, peer) = (bench.open("disk"), bench.join("disk"));
        let (_, lost) = bench.world.posted[0];
        bench.lose(slab(lost));
        let header = RequestHeader::encode(&RequestFields {
            sequence: 1,
            tag: 0,
            length: FRAGMENT,
            address: 0,
            key: super::pieces::WHOLE,
            class: 0,
            pieces: 0,
            crc32c: None,
            redelivered: false,
            wants_reply: false,
            user_header,
        });
        bench.arrive(peer, &header, if in_slab { user_header } else { &[] });
        settle(&mut bench);
        let told = deliveries(&mut bench, app);
        if in_slab {
            assert_eq!((ends(&bench), told.len()), (vec![(1, AckStatus::Corrupt)], 0));
        } else {
            assert_eq!((ends(&bench), told.len()), (vec![], 1), "nothing of it lies there");
            bench.release(app, &told[0], true, 0);
            settle(&mut bench);
        }
        assert_whole_without(&mut bench, 1, 0);
    }
}

#[test]
fn a_read_into_lost_memory_ends_its_message() {
    for checksums in [Checksums::Off, Checksums::Inline, Checksums::Workers] {
        for after_reading in [false, true] {
            let mut bench = Bench::new(Config { checksums, ..config() });
            let (app, peer) = (bench.open("disk"), bench.join("disk"));
            // Five READs, of which four are under way. The second one's memory is lost, while it is under way
            // or when its bytes have arrived.
            bench.request(peer, 1, 5 * FRAGMENT, Some(5 * 65_536));
            bench.flush();
            assert_eq!(bench.world.reads.len(), 4);
            let lost = bench.world.reads[1].4[0].first;
            if after_reading {
                bench.read_done();
                bench.read_done();
            }
            bench.lose(slab(lost));
            for _ in 0..20 {
                while !bench.world.reads.is_empty() {
                    bench.read_done();
                }
                while !bench.world.checks.is_empty() {
                    bench.checked(0);
                }
                bench.flush();
            }
            let seen = format!("{checksums:?}, after reading: {after_reading}");
            assert_eq!(ends(&bench), [(1, AckStatus::Corrupt)], "{seen}");
            let told = deliveries(&mut bench, app);
            // A READ that a worker checks is delivered only when its check is over.
            let delivered = if after_reading && checksums != Checksums::Workers { 2 } else { 0 };
            assert_eq!(told.len(), if delivered > 0 { delivered + 1 } else { 0 }, "{seen}");
            if delivered > 0 {
                assert_withdrawn(&told, &told[0]);
                bench.release(app, &told[0], false, 0);
                bench.release(app, &told[1], true, 1);
            }
            assert!(bench.receiver.stats().read_slabs <= 16, "no further READ was posted: {seen}");
            settle(&mut bench);
            assert_whole_without(&mut bench, 1, 0);
        }
    }
}

#[test]
fn a_small_message_that_waits_for_a_slot_ends_where_its_slab_is_lost() {
    for in_memory in [false, true] {
        let mut bench = under_pressure(|config| {
            config.session_messages = 2;
            config.escape.thresholds.safe_permille = if in_memory { 950 } else { 300 };
        });
        let (app, peer) = (bench.open("slow"), bench.join("slow"));
        bench.request(peer, 1, FRAGMENT, None);
        settle(&mut bench);
        bench.small(peer, 2, b"taken");
        let held = deliveries(&mut bench, app);
        assert_eq!(held.len(), 2);
        bench.small(peer, 3, b"waits");
        bench.small(peer, 4, b"waits too");
        assert_eq!(bench.receiver.stats().escape.copied_now, if in_memory { 2 } else { 0 });
        let records = &bench.receiver.messages;
        let waits = records.indices().find(|&message| records[message].sequence == 3).expect("it is known");
        let MessageState::Backlogged { slab: lost, .. } = records[waits].state else { panic!("it waits") };
        assert_eq!(lost >= bench.receiver.pool.total(), in_memory);
        bench.lose(slab(lost));
        settle(&mut bench);
        assert_eq!(ends(&bench), [(3, AckStatus::Corrupt)]);
        held.iter().for_each(|delivery| bench.release(app, delivery, true, 0));
        let other = deliveries(&mut bench, app);
        assert_eq!(other.iter().map(|told| told.sequence).collect::<Vec<_>>(), [4], "3 was never shown");
        bench.release(app, &other[0], true, 0);
        settle(&mut bench);
        assert_eq!(bench.receiver.stats().ends.consumed, 3);
        let (pool, memory) = if in_memory { (0, 1) } else { (1, 0) };
        assert_whole_without(&mut bench, pool, memory);
    }
}

#[test]
fn what_its_application_finished_or_left_behind_ends_as_it_would() {
    for closed in [false, true] {
        let mut bench = Bench::new(config());
        let (app, peer) = (bench.open("disk"), bench.join("disk"));
        bench.request(peer, 1, FRAGMENT, None);
        settle(&mut bench);
        let held = deliveries(&mut bench, app).remove(0);
        let release = |kind, index, generation, count| Release {
            index,
            generation,
            first: 0,
            count,
            kind,
            reserved: 0,
            code: 0,
        };
        if closed {
            bench.receiver.handle_session_gone(bench.now_ns, app, &mut bench.world);
        } else {
            // The application finished the message and gave its first slab back: none of its bytes lies there
            // any more.
            let first = release(release_kind::SLICES, held.slot, held.slot_generation(), 1);
            let finish = release(release_kind::FINISH, held.message, held.message_generation(), 0);
            bench.world.memory.release(app.0, held.slot);
            for release in [first, finish] {
                bench.receiver.handle_release(bench.now_ns, app, release, &mut bench.world).unwrap();
            }
        }
        bench.lose(Run { first: held.slab, count: 2 });
        bench.flush();
        if closed {
            bench.wait(2_000_000_000);
        } else {
            let rest =
                Release { first: 1, ..release(release_kind::SLICES, held.slot, held.slot_generation(), 15) };
            bench.receiver.handle_release(bench.now_ns, app, rest, &mut bench.world).unwrap();
        }
        settle(&mut bench);
        let end = if closed { AckStatus::AppGone } else { AckStatus::Consumed };
        assert_eq!(ends(&bench), [(1, end)]);
        assert!(deliveries(&mut bench, app).is_empty(), "nothing is withdrawn");
        assert_whole_without(&mut bench, 2, 0);
    }
}

#[test]
fn what_a_dead_application_held_takes_no_message_of_another_with_it() {
    let mut bench = Bench::new(config());
    let (app, peer) = (bench.open("dies"), bench.join("dies"));
    bench.request(peer, 1, FRAGMENT, None);
    settle(&mut bench);
    let held = deliveries(&mut bench, app).remove(0);
    bench.receiver.handle_session_gone(bench.now_ns, app, &mut bench.world);
    settle(&mut bench);
    assert_eq!((ends(&bench), bench.receiver.stats().messages), (vec![(1, AckStatus::AppGone)], 0));
    // The new message has the record that the other one had.
    let (app, peer) = (bench.open("lives"), bench.join("lives"));
    bench.request(peer, 2, FRAGMENT, None);
    settle(&mut bench);
    bench.lose(slab(held.slab));
    let delivery = deliveries(&mut bench, app).remove(0);
    bench.release(app, &delivery, true, 0);
    settle(&mut bench);
    assert_eq!(ends(&bench)[1..], [(2, AckStatus::Consumed)]);
    bench.wait(2_000_000_000);
    assert_whole_without(&mut bench, 1, 0);
}

#[test]
fn a_slab_that_was_given_back_takes_no_message_with_it() {
    let mut bench = Bench::new(config());
    let (app, peer) = (bench.open("disk"), bench.join("disk"));
    bench.request(peer, 1, FRAGMENT, None);
    settle(&mut bench);
    let held = deliveries(&mut bench, app).remove(0);
    bench.world.memory.release(app.0, held.slot);
    for first in [0, 1] {
        let slices = Release {
            index: held.slot,
            generation: held.slot_generation(),
            first,
            count: 1,
            kind: release_kind::SLICES,
            reserved: 0,
            code: 0,
        };
        bench.receiver.handle_release(bench.now_ns, app, slices, &mut bench.world).unwrap();
    }
    bench.lose(Run { first: held.slab, count: 2 });
    settle(&mut bench);
    assert_eq!((ends(&bench), deliveries(&mut bench, app).len()), (vec![], 0));
    // The next slab is still the application's.
    bench.lose(slab(held.slab + 2));
    settle(&mut bench);
    assert_eq!(ends(&bench), [(1, AckStatus::Corrupt)]);
    assert_withdrawn(&deliveries(&mut bench, app), &held);
}

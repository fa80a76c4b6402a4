//! Tests of standstills: applications that keep what they get until nothing more can arrive are told so, and
//! those that only wait are not.

use super::*;
use crate::effects::StandstillStage;
use jet_escape::Pressure;
use jet_wire::segment::HeldLimit;

const SECOND_NS: u64 = 1_000_000_000;

/// Lets `span_ns` pass. Meanwhile READs and copies end, and SENDs complete.
fn pass(bench: &mut Bench, span_ns: u64) {
    for _ in 0..span_ns.div_ceil(50_000_000) {
        bench.wait(50_000_000);
        while !bench.world.reads.is_empty() {
            bench.read_done();
        }
        while bench.world.memory.copying() > 0 {
            bench.copied(true);
        }
        bench.flush();
        for peer in core::mem::take(&mut bench.world.sent) {
            bench.receiver.handle_sent(PeerId(peer));
        }
    }
}

/// Takes what was delivered, pins it and keeps it.
fn collect(bench: &mut Bench, session: SessionId, kept: &mut Vec<Delivery>) {
    while let Some((delivery, _)) = bench.delivery(session) {
        bench.world.memory.pinned.insert((session.0, delivery.slot));
        kept.push(delivery);
    }
}

fn told(bench: &mut Bench, session: SessionId) -> Vec<Option<Standstill>> {
    let (mine, rest) =
        core::mem::take(&mut bench.world.standstills).into_iter().partition(|(of, _)| *of == session.0);
    bench.world.standstills = rest;
    Vec::<(u32, _)>::into_iter(mine).map(|(_, told)| told).collect()
}

/// Sets up an application that keeps all of a message larger than the pool.
fn stand_still(config: Config) -> (Bench, SessionId, Vec<Delivery>) {
    let mut bench = Bench::new(config);
    bench.receiver.handle_escape_memory(u32::MAX);
    let (session, kept) = hoard(&mut bench, "collect");
    (bench, session, kept)
}

/// Opens a session that gets a message larger than the pool, and keeps all that arrives of it.
fn hoard(bench: &mut Bench, app: &str) -> (SessionId, Vec<Delivery>) {
    let session = bench.open(app);
    let peer = bench.join(app);
    bench.request(peer, 1, 4 << 20, None);
    let mut kept = Vec::new();
    for _ in 0..16 {
        pass(bench, 1);
        collect(bench, session, &mut kept);
    }
    (session, kept)
}

#[test]
fn who_keeps_all_of_a_message_larger_than_the_pool_is_told_until_it_gives_something_back() {
    for enabled in [true, false] {
        let escape = EscapeConfig { enabled, ..config().escape };
        let (mut bench, session, mut kept) = stand_still(Config { escape, ..config() });
        let mut all = Vec::new();
        for second in 0..25 {
            pass(&mut bench, SECOND_NS);
            collect(&mut bench, session, &mut kept);
            all.extend(told(&mut bench, session).into_iter().map(|standstill| (second, standstill.unwrap())));
        }
        // The first after a second, and then one every ten seconds.
        let stages: Vec<_> = all.iter().map(|(_, standstill)| standstill.stage).collect();
        assert_eq!(
            stages,
            [StandstillStage::First, StandstillStage::Lasting, StandstillStage::Again],
            "{all:?}"
        );
        assert!(all[0].0 <= 1 && all.windows(2).all(|pair| pair[1].0 - pair[0].0 == 10), "{all:?}");
        assert!(all.iter().all(|(_, standstill)| standstill.limit == HeldLimit::Pool), "{all:?}");
        let stats = bench.receiver.session_stats(session).unwrap();
        let standstill = stats.standstill.expect("the status names it");
        assert_eq!(standstill.limit, HeldLimit::Pool);
        assert!((24 * SECOND_NS..26 * SECOND_NS).contains(&standstill.span_ns), "{standstill:?}");
        // The span that was seen does not shrink by a later stall.
        bench.receiver.handle_stall(SECOND_NS);
        let seen = bench.receiver.session_stats(session).unwrap().standstill.expect("it is as it was");
        assert_eq!(seen.span_ns, standstill.span_ns);
        // The application gives back what it used: more arrives, and the standstill is over.
        let before = stats.delivered_bytes;
        for delivery in kept.drain(..) {
            bench.release(session, &delivery, false, 0);
        }
        pass(&mut bench, SECOND_NS / 10);
        assert_eq!(told(&mut bench, session), [None]);
        let stats = bench.receiver.session_stats(session).unwrap();
        assert!(stats.standstill.is_none() && stats.delivered_bytes > before);
    }
}

/// Found by jet-sim --seed 2026112780003702.
#[test]
fn who_keeps_all_of_a_message_is_told_also_where_the_pool_has_some_room_and_is_in_danger() {
    for enabled in [true, false] {
        let thresholds =
            Thresholds { safe_permille: 500, danger_permille: 400, ..config().escape.thresholds };
        let escape = EscapeConfig { enabled, thresholds, replace_slabs_max: 0, ..config().escape };
        let config = Config { escape, memory_slabs: 0, session_memory_slabs: 0, ..config() };
        let (mut bench, session, mut kept) = stand_still(config);
        pass(&mut bench, 2 * SECOND_NS);
        collect(&mut bench, session, &mut kept);
        assert_eq!(bench.receiver.stats().pressure, Pressure::Danger);
        let told = told(&mut bench, session);
        let first = Some(Standstill { limit: HeldLimit::Pool, stage: StandstillStage::First });
        assert!(told.contains(&first), "{enabled}: {told:?}, {:?}", bench.receiver.stats());
    }
}

#[test]
fn who_keeps_more_messages_than_it_may_is_told_which_limit_that_is() {
    // There are 32 message numbers. One more message waits.
    let mut bench = Bench::new(config());
    let session = bench.open("collect");
    let peers: Vec<PeerId> = (0..2).map(|_| bench.join("collect")).collect();
    let mut kept = Vec::new();
    for sequence in 1..=17 {
        for &peer in &peers {
            if sequence <= bench.world.limits[&peer.0] && !bench.world.posted.is_empty() {
                bench.small(peer, sequence, b"x");
            }
        }
        pass(&mut bench, 1);
        collect(&mut bench, session, &mut kept);
    }
    assert_eq!(kept.len(), 32, "all the numbers that it may have");
    pass(&mut bench, 2 * SECOND_NS);
    let told = told(&mut bench, session);
    assert_eq!(told, [Some(Standstill { limit: HeldLimit::Messages, stage: StandstillStage::First })]);
}

#[test]
fn who_holds_much_and_waits_for_nothing_is_not_told() {
    let mut bench = Bench::new(config());
    let session = bench.open("collect");
    let peer = bench.join("collect");
    bench.request(peer, 1, 512 << 10, None);
    let mut kept = Vec::new();
    for _ in 0..100 {
        pass(&mut bench, 1);
        collect(&mut bench, session, &mut kept);
    }
    let arrived: u32 = kept.iter().map(|delivery| delivery.bytes).sum();
    assert_eq!(arrived, 512 << 10, "all of it came");
    pass(&mut bench, 5 * SECOND_NS);
    assert_eq!(told(&mut bench, session), []);
}

#[test]
fn who_waits_for_a_sender_that_is_slow_is_not_told() {
    let (mut bench, session, mut kept) = stand_still(Config { pool_slabs: 4096, ..config() });
    // The pool has room for all of the message, so all of it arrived. The READ of another message takes its
    // time.
    assert_eq!(kept.iter().map(|delivery| u64::from(delivery.bytes)).sum::<u64>(), 4 << 20);
    let peer = bench.join("collect");
    bench.request(peer, 1, 1 << 20, None);
    bench.flush();
    assert!(!bench.world.reads.is_empty());
    for _ in 0..500 {
        bench.wait(10_000_000);
    }
    collect(&mut bench, session, &mut kept);
    assert_eq!(told(&mut bench, session), []);
}

#[test]
fn who_waits_for_what_another_one_holds_is_not_told() {
    for quarantined in [false, true] {
        let (mut bench, hoarder, _) = stand_still(config());
        if quarantined {
            bench.receiver.handle_session_ended(bench.now_ns, hoarder, &mut bench.world);
        }
        // The first part of the message comes through the reserve; for the rest there is no room.
        let small = bench.open("small");
        let peer = bench.join("small");
        bench.request(peer, 1, 256 << 10, None);
        let mut kept = Vec::new();
        for _ in 0..25 {
            pass(&mut bench, SECOND_NS);
            collect(&mut bench, small, &mut kept);
        }
        let came: u32 = kept.iter().map(|delivery| delivery.bytes).sum();
        assert_eq!(bench.receiver.limit_reached(small.0, 0), Some(HeldLimit::Pool), "{came} bytes came");
        assert_eq!(told(&mut bench, small), [], "{quarantined}");
        assert_eq!(told(&mut bench, hoarder).is_empty(), quarantined);
    }
}

#[test]
fn of_those_that_share_a_full_pool_one_is_told() {
    let mut bench = Bench::new(config());
    bench.receiver.handle_escape_memory(u32::MAX);
    let mut kept = Vec::new();
    let apps = ["a", "b", "c"].map(|app| (bench.open(app), bench.join(app)));
    // A quarter of the pool each, and then more than there is.
    for (sequence, length) in [(1, 256 << 10), (2, 4 << 20)] {
        for (session, peer) in apps {
            bench.request(peer, sequence, length, None);
            for _ in 0..4 {
                pass(&mut bench, 1);
                collect(&mut bench, session, &mut kept);
            }
        }
    }
    let sessions = apps.map(|(session, _)| session);
    let held = |session: &SessionId| bench.receiver.escape.held_in_cache(session.0);
    assert!(sessions.iter().all(|session| held(session) <= 128), "{:?}", sessions.each_ref().map(held));
    for _ in 0..3 {
        pass(&mut bench, SECOND_NS);
    }
    let all: Vec<_> = sessions.map(|session| told(&mut bench, session)).into_iter().flatten().collect();
    assert!(!all.is_empty());
}

#[test]
fn who_releases_now_and_then_is_not_told() {
    let (mut bench, session, mut kept) = stand_still(config());
    for _ in 0..20 {
        let delivery = kept.remove(0);
        bench.release(session, &delivery, false, 0);
        pass(&mut bench, SECOND_NS / 2);
        collect(&mut bench, session, &mut kept);
    }
    assert_eq!(told(&mut bench, session), []);
}

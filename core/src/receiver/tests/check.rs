//! Tests of checksums that workers make.

use super::*;
use jet_wire::message::hello::features;

fn elsewhere() -> Bench {
    Bench::new(Config { checksums: Checksums::Workers, ..config() })
}

/// Lets a message of three fragments arrive; its checks are under way.
fn three_fragments(bench: &mut Bench, peer: PeerId, crc: u32) {
    bench.request(peer, 1, 160_000, Some(crc));
    bench.flush();
    (0..3).for_each(|_| bench.read_done());
    assert_eq!((bench.world.checks.len(), bench.receiver.stats().checks_in_flight), (3, 3));
}

fn ends(bench: &Bench) -> Vec<(u64, AckStatus)> {
    bench.world.ends.iter().map(|end| (end.1, end.2)).collect()
}

#[test]
fn parts_are_delivered_in_their_order_whichever_check_is_over_first() {
    for order in [[0, 0, 0], [2, 1, 0], [1, 0, 0], [2, 0, 0], [0, 1, 0], [1, 1, 0]] {
        let mut bench = elsewhere();
        let session = bench.open("disk");
        let peer = bench.join("disk");
        three_fragments(&mut bench, peer, 160_000);
        assert!(bench.delivery(session).is_none(), "nothing is delivered before its check");
        order.into_iter().for_each(|which| bench.checked(which));
        let parts: Vec<Delivery> =
            core::iter::from_fn(|| bench.delivery(session)).map(|part| part.0).collect();
        assert_eq!(
            parts.iter().map(|part| part.offset).collect::<Vec<_>>(),
            [0, 65_536, 131_072],
            "{order:?}"
        );
        assert_eq!(parts[2].flags & delivery_flags::LAST, delivery_flags::LAST);
        for (part, last) in parts.iter().zip([false, false, true]) {
            bench.release(session, part, last, 0);
        }
        bench.flush();
        assert_eq!(ends(&bench), [(1, AckStatus::Consumed)]);
        assert_eq!(bench.receiver.stats().checked_bytes, 160_000);
        assert!(bench.whole());
    }
}

#[test]
fn the_last_part_is_withheld_where_the_whole_does_not_fit() {
    let mut bench = elsewhere();
    let session = bench.open("disk");
    let peer = bench.join("disk");
    three_fragments(&mut bench, peer, 160_001);
    bench.checked(2);
    bench.checked(1);
    bench.checked(0);
    let parts: Vec<Delivery> = core::iter::from_fn(|| bench.delivery(session)).map(|part| part.0).collect();
    assert_eq!(parts.len(), 3);
    assert_eq!((parts[2].kind, parts[2].flags), (delivery_kind::WITHDRAWN, delivery_flags::CORRUPT));
    bench.release(session, &parts[0], false, 0);
    bench.release(session, &parts[1], true, 1);
    bench.flush();
    assert_eq!(ends(&bench), [(1, AckStatus::Corrupt)]);
    assert!(bench.whole());
}

#[test]
fn what_is_being_checked_keeps_its_slabs_though_its_application_or_its_sender_is_gone() {
    for application in [false, true] {
        let mut bench = elsewhere();
        let session = bench.open("disk");
        let peer = bench.join("disk");
        three_fragments(&mut bench, peer, 160_000);
        if application {
            bench.receiver.handle_session_gone(bench.now_ns, session, &mut bench.world);
        } else {
            bench.receiver.handle_peer_lost(peer);
        }
        bench.flush();
        assert_eq!(bench.receiver.stats().read_slabs, 40, "three are being read by whoever checks them");
        assert!(ends(&bench).is_empty() && !bench.receiver.is_drained());
        (0..3).rev().for_each(|which| bench.checked(which));
        bench.flush();
        assert_eq!(ends(&bench), if application { vec![(1, AckStatus::AppGone)] } else { vec![] });
        assert!(bench.delivery(session).is_none());
        assert_eq!((bench.receiver.stats().read_slabs, bench.receiver.stats().checks_in_flight), (0, 0));
        bench.wait(2_000_000_000);
        assert!(bench.whole());
    }
}

#[test]
fn a_part_that_fails_takes_those_that_are_being_checked_with_it() {
    let mut bench = elsewhere();
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.request(peer, 1, 160_000, Some(160_000));
    bench.flush();
    bench.read_done();
    bench.checked(0);
    bench.read_done();
    let (_, failed, ..) = bench.world.reads.pop_front().unwrap();
    bench.receiver.handle_read_done(bench.now_ns, failed, false, false, &mut bench.world);
    bench.receiver.handle_peer_lost(peer);
    bench.checked(0);
    let (head, _) = bench.delivery(session).unwrap();
    let (withdrawn, _) = bench.delivery(session).unwrap();
    assert_eq!((head.offset, withdrawn.kind, withdrawn.flags), (0, delivery_kind::WITHDRAWN, 0));
    assert!(bench.delivery(session).is_none());
    bench.release(session, &head, true, 1);
    bench.wait(2_000_000_000);
    assert!(bench.whole());
}

#[test]
fn where_nobody_checks_senders_are_told_so_and_a_wrong_checksum_is_delivered() {
    let mut bench = Bench::new(Config { checksums: Checksums::Off, ..config() });
    let session = bench.open("disk");
    let hello = Hello {
        versions: Versions::SUPPORTED,
        features: features::ALL,
        sender_id: 1,
        receive_entries: 16,
        app: name("disk"),
    };
    let joined = bench.receiver.handle_hello(bench.now_ns, &hello, SourceId(0), &mut bench.world).unwrap();
    assert_eq!(joined.welcome.features & features::CRC32C, 0);
    bench.receiver.handle_connected(joined.peer, 1);
    bench.flush();
    bench.request(joined.peer, 1, 4096, Some(1));
    bench.flush();
    bench.read_done();
    let (whole, _) = bench.delivery(session).unwrap();
    bench.release(session, &whole, true, 0);
    bench.flush();
    assert_eq!(ends(&bench), [(1, AckStatus::Consumed)]);
    assert_eq!(bench.receiver.stats().checked_bytes, 0);
}

#[test]
fn what_is_being_checked_counts_as_in_flight_and_not_as_delivered() {
    // The pool is twice what the messages take. A message that counted twice would leave no room for the
    // next.
    let config = Config { checksums: Checksums::Workers, in_flight_bytes: 192 << 10, ..config() };
    let mut bench = Bench::new(config);
    let session = bench.open_with(Registration { takes_memory: true, ..Registration::new(name("disk")) });
    bench.receiver.handle_escape_memory(1000);
    let peer = bench.join("disk");
    (1..=6).for_each(|n| bench.request(peer, n, 65_536, Some(65_536)));
    bench.flush();
    while bench.world.checks.len() < 3 {
        bench.read_done();
    }
    bench.flush();
    let stats = bench.receiver.stats();
    assert_eq!((stats.in_flight_bytes, stats.reads_in_flight, stats.checks_in_flight), (192 << 10, 3, 3));
    assert!(bench.world.reads.is_empty(), "the window is full until a check is over");
    bench.checked(0);
    bench.flush();
    assert_eq!(
        (bench.world.reads.len(), bench.receiver.stats().escape.spilled_total),
        (1, 0),
        "and none goes to memory"
    );
    while !bench.whole() {
        bench.world.reads.front().is_some().then(|| bench.read_done());
        (!bench.world.checks.is_empty()).then(|| bench.checked(0));
        while let Some((part, _)) = bench.delivery(session) {
            bench.release(session, &part, true, 0);
        }
        bench.flush();
    }
    for peer in core::mem::take(&mut bench.world.sent) {
        bench.receiver.handle_sent(PeerId(peer));
    }
    bench.flush();
    assert_eq!(ends(&bench).len(), 6);
    assert_eq!(bench.receiver.stats().in_flight_bytes, 0);
}

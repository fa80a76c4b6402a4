//! Tests of READ depth: one peer has no more READs in flight than its connection takes, and the other peers
//! still get theirs.

use super::*;

/// Lets a sender join whose connection takes `reads_max` READs at once.
fn join_with(bench: &mut Bench, app: &str, reads_max: u32) -> PeerId {
    let peer = bench.ask(app);
    let told = |bench: &Bench| bench.receiver.peer_stats(0, peer).map(|stats| stats.share.reads_max);
    assert_eq!(told(bench), Some(0), "its connection does not stand");
    bench.world.reads_max.insert(peer.0, reads_max);
    bench.receiver.handle_connected(peer, reads_max);
    assert_eq!(told(bench), Some(reads_max));
    bench.flush();
    peer
}

fn in_flight(bench: &Bench, peer: PeerId) -> usize {
    bench.world.reads.iter().filter(|read| read.0 == peer).count()
}

/// Takes every delivery and releases it at once.
fn consume(bench: &mut Bench, session: SessionId) {
    while let Some((delivery, _)) = bench.delivery(session) {
        let last = delivery.offset + u64::from(delivery.bytes) == delivery.message_bytes;
        bench.release(session, &delivery, last, 0);
    }
}

#[test]
fn a_connection_that_takes_one_read_gets_one_after_the_other_until_its_message_is_whole() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = join_with(&mut bench, "disk", 1);
    bench.request(peer, 1, 1 << 20, None);
    bench.flush();
    let mut reads = 0;
    while !bench.world.reads.is_empty() {
        assert_eq!(in_flight(&bench, peer), 1);
        bench.read_done();
        consume(&mut bench, session);
        bench.flush();
        reads += 1;
    }
    assert_eq!(reads, 16);
    assert_eq!(bench.world.ends, [(peer.0, 1, AckStatus::Consumed)]);
}

#[test]
fn what_one_connection_does_not_take_the_others_get() {
    let mut bench = Bench::new(config());
    bench.open("disk");
    let shallow = join_with(&mut bench, "disk", 1);
    let deep = join_with(&mut bench, "disk", 16);
    bench.request(shallow, 1, 256 << 10, None);
    bench.request(deep, 1, 256 << 10, None);
    bench.flush();
    assert_eq!(in_flight(&bench, shallow), 1);
    assert_eq!(in_flight(&bench, deep), 3, "the rest of the four");
}

#[test]
fn a_read_that_ends_makes_room_whether_it_succeeded_or_not() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = join_with(&mut bench, "disk", 2);
    (1..=4).for_each(|sequence| bench.request(peer, sequence, 64 << 10, None));
    bench.flush();
    for _ in 0..4 {
        assert!(in_flight(&bench, peer) <= 2);
        bench.read_done();
        consume(&mut bench, session);
        bench.flush();
    }
    assert_eq!(bench.world.ends.len(), 4);
    // A READ that failed ends its connection. The next connection begins with nothing in flight.
    bench.request(peer, 5, 64 << 10, None);
    bench.flush();
    let (_, read, ..) = bench.world.reads.pop_front().unwrap();
    bench.receiver.handle_read_done(bench.now_ns, read, false, false, &mut bench.world);
    bench.receiver.handle_peer_lost(peer);
    let again = join_with(&mut bench, "disk", 2);
    (1..=3).for_each(|sequence| bench.request(again, sequence, 64 << 10, None));
    bench.flush();
    assert_eq!(in_flight(&bench, again), 2);
}

//! Messages that their senders take back.

use super::*;

const LARGE_BYTES: u64 = 300_000;

/// Takes everything that a session was told since, and gives all slices back. Returns whether a message was
/// withdrawn from it.
fn gives_all_back(bench: &mut Bench, session: SessionId) -> bool {
    let mut withdrawn = false;
    while let Some((delivery, _)) = bench.delivery(session) {
        if delivery.kind == delivery_kind::WITHDRAWN {
            assert_eq!(delivery.flags & delivery_flags::CORRUPT, 0, "nothing is wrong with its bytes");
            bench.finish(session, &delivery, 1);
            withdrawn = true;
        } else {
            bench.release(session, &delivery, false, 0);
        }
    }
    withdrawn
}

impl Bench {
    fn ends_of(&self, sequence: u64) -> Vec<AckStatus> {
        self.world.ends.iter().filter(|end| end.1 == sequence).map(|end| end.2).collect()
    }
}

#[test]
fn a_request_that_waits_is_taken_back_and_those_behind_it_go_on() {
    let mut bench = Bench::new(Config { reads_max: 1, ..config() });
    let session = bench.open("store");
    let peer = bench.join("store");
    for sequence in 1..=3 {
        bench.request(peer, sequence, LARGE_BYTES, None);
    }
    bench.flush();
    bench.cancel(peer, 2);
    bench.flush();
    assert_eq!(bench.world.ends, [(peer.0, 2, AckStatus::Cancelled)]);
    while !bench.world.reads.is_empty() {
        bench.read_done();
        assert!(!gives_all_back(&mut bench, session), "its application never heard of it");
        bench.flush();
    }
    assert_eq!(bench.receiver.stats().delivered_bytes, 2 * LARGE_BYTES);
    assert_eq!(bench.receiver.stats().ends.cancelled, 1);
}

#[test]
fn what_is_being_read_ends_when_its_last_read_is_over() {
    let mut bench = Bench::new(config());
    let session = bench.open("store");
    let peer = bench.join("store");
    bench.request(peer, 1, LARGE_BYTES, None);
    bench.flush();
    bench.read_done();
    let (first, _) = bench.delivery(session).unwrap();
    bench.flush();
    assert!(bench.world.reads.len() > 1, "more is on its way");
    bench.cancel(peer, 1);
    bench.flush();
    let on_their_way = bench.world.reads.len();
    for left in (0..on_their_way).rev() {
        assert_eq!(bench.ends_of(1), [], "the NIC still reads the sender's memory");
        bench.read_done();
        bench.flush();
        assert_eq!(bench.world.reads.len(), left, "no further READ is posted");
    }
    assert_eq!(bench.ends_of(1), [AckStatus::Cancelled]);
    bench.release(session, &first, false, 0);
    assert!(gives_all_back(&mut bench, session), "its application is told that no more will come");
    bench.sends_complete();
    assert!(bench.whole(), "{:?}", bench.receiver.stats());
}

#[test]
fn what_its_application_has_whole_ends_as_the_application_says() {
    let mut bench = Bench::new(config());
    let session = bench.open("store");
    let peer = bench.join("store");
    bench.request(peer, 1, 4096, None);
    bench.flush();
    bench.read_done();
    bench.cancel(peer, 1);
    bench.flush();
    let (delivery, _) = bench.delivery(session).unwrap();
    assert_eq!((bench.ends_of(1), bench.delivery(session)), (vec![], None));
    bench.release(session, &delivery, true, 28);
    bench.flush();
    assert_eq!(bench.ends_of(1), [AckStatus::Rejected(28)]);
    // Once it has its end, it is known no more.
    bench.cancel(peer, 1);
    bench.sends_complete();
    assert_eq!(bench.ends_of(1).len(), 1);
    assert!(bench.whole());
}

#[test]
fn what_is_checked_by_workers_is_taken_back_and_not_delivered() {
    let mut bench = Bench::new(Config { checksums: Checksums::Workers, ..config() });
    let session = bench.open("store");
    let peer = bench.join("store");
    bench.request(peer, 1, 4096, Some(4096));
    bench.flush();
    bench.read_done();
    bench.cancel(peer, 1);
    bench.flush();
    assert_eq!(bench.ends_of(1), [], "a worker still looks at it");
    bench.checked(0);
    bench.flush();
    assert_eq!((bench.ends_of(1), bench.delivery(session)), (vec![AckStatus::Cancelled], None));
    bench.sends_complete();
    assert!(bench.whole());
}

#[test]
fn nobody_takes_back_what_is_not_its_own_or_is_small() {
    let mut bench = Bench::new(config());
    let session = bench.open("store");
    let (peer, other) = (bench.join("store"), bench.join_as("store", 43, features::CANCEL));
    bench.small(peer, 1, b"small");
    bench.request(peer, 2, LARGE_BYTES, None);
    // As many may be named as were requested.
    bench.request(other, 7, 4096, None);
    for sequence in 11..=13 {
        bench.request(peer, sequence, 4096, None);
    }
    for (who, sequence) in [(other, 2), (peer, 1), (peer, 0), (peer, 3), (peer, u64::MAX)] {
        bench.cancel(who, sequence);
    }
    bench.flush();
    assert_eq!((bench.world.ends.len(), bench.world.byes.len()), (0, 0));
    while !bench.world.reads.is_empty() {
        bench.read_done();
        assert!(!gives_all_back(&mut bench, session));
        bench.flush();
    }
}

#[test]
fn who_has_no_credit_takes_back_as_many_messages_as_it_has_requested() {
    let mut bench = Bench::new(config());
    bench.open("store");
    let peer = bench.join("store");
    let requests = bench.world.limits[&peer.0];
    assert!(requests > 1);
    for sequence in 1..=requests {
        bench.request(peer, sequence, LARGE_BYTES, None);
    }
    for _ in 0..requests {
        bench.flush();
        bench.cancel(peer, 1);
        assert_eq!(bench.world.byes, [], "one for each request, whatever it names");
    }
    bench.cancel(peer, 2);
    assert_eq!(bench.world.byes, [peer.0]);
}

#[test]
fn what_may_be_taken_back_does_not_pile_up() {
    let mut bench = Bench::new(Config { requests_per_peer: 4, ..config() });
    bench.open("store");
    let peer = bench.join("store");
    // Each ends at once.
    for sequence in 1..=100 {
        bench.request(peer, sequence, u64::MAX, None);
        bench.flush();
        bench.sends_complete();
    }
    for _ in 0..4 {
        bench.flush();
        bench.cancel(peer, 1);
        assert_eq!(bench.world.byes, []);
    }
    bench.flush();
    bench.cancel(peer, 1);
    assert_eq!(bench.world.byes, [peer.0]);
}

#[test]
fn small_messages_that_waited_behind_it_arrive_when_it_is_taken_back() {
    // One READ of one slab at a time, and 128 slots, of which a message that is arriving keeps 64.
    let mut bench =
        Bench::new(Config { fragment_bytes: 4096, reads_max: 1, session_messages: 128, ..config() });
    let (session, _) = (bench.open("store"), bench.open("other"));
    let (peer, other) = (bench.join("store"), bench.join_as("store", 43, features::CANCEL));
    let third = bench.join_as("other", 44, features::CANCEL);
    bench.request(peer, 1, 800_000, None);
    bench.flush();
    // Its application keeps what arrives. Then the one READ is another peer's.
    for slabs in 1.. {
        assert!(slabs < 100, "the other peer has its turn");
        bench.read_done();
        if slabs == 75 {
            bench.request(third, 1, 100_000, None);
        }
        bench.flush();
        if bench.world.reads.front().is_some_and(|read| read.0 == third) {
            break;
        }
    }
    for sequence in 2..=5 {
        bench.small(other, sequence, b"small");
        bench.flush();
    }
    let arrived = |bench: &mut Bench| {
        let small = |told: &(Delivery, Vec<u8>)| told.0.sequence > 1;
        core::iter::from_fn(|| bench.delivery(session)).filter(small).count()
    };
    assert_eq!(arrived(&mut bench), 0, "they wait, for the slots are kept");
    bench.cancel(peer, 1);
    bench.flush();
    assert_eq!(arrived(&mut bench), 4);
}

#[test]
fn a_reply_that_was_promised_to_what_is_taken_back_is_not_kept() {
    let mut bench = Bench::new(Config { reply_slots: 4, replies_per_peer: 4, ..config() });
    bench.wants_reply = true;
    bench.open("store");
    let peer = bench.join_as("store", 42, features::ALL);
    bench.request(peer, 1, LARGE_BYTES, None);
    assert_eq!(bench.receiver.stats().reply_slots_used, 1);
    bench.cancel(peer, 1);
    bench.flush();
    assert_eq!((bench.ends_of(1), bench.receiver.stats().reply_slots_used), (vec![AckStatus::Cancelled], 0));
}

#[test]
fn who_did_not_say_that_it_takes_messages_back_may_not() {
    let mut bench = Bench::new(config());
    bench.open("store");
    let peer = bench.join_as("store", 42, features::CONGESTION);
    bench.request(peer, 1, LARGE_BYTES, None);
    bench.cancel(peer, 1);
    bench.flush();
    assert_eq!(bench.world.byes, [peer.0]);
}

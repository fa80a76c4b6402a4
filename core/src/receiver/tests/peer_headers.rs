//! Tests of what is sent to a peer, and when: acknowledgements beside READs, credit, and farewells.

use super::*;
use jet_wire::message::hello::Refusal;

const SECOND_NS: u64 = 1_000_000_000;

/// Checks that acknowledgements are sent while a READ takes its time. On an RC queue pair no SEND completes
/// before the READs that were posted earlier.
#[test]
fn acknowledgements_do_not_wait_for_reads() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    bench.request(peer, 1, 64 << 10, None);
    bench.flush();
    assert_eq!(bench.world.reads.len(), 1);
    for sequence in 2..10 {
        bench.small(peer, sequence, b"x");
        let (delivery, _) = bench.delivery(session).unwrap();
        bench.release(session, &delivery, true, 0);
        bench.flush();
        assert_eq!(bench.world.ends.last(), Some(&(peer.0, sequence, AckStatus::Consumed)));
    }
}

#[test]
fn no_more_is_said_at_once_than_a_sender_has_receive_entries_for() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let hello = Hello {
        versions: Versions::SUPPORTED,
        features: 0,
        sender_id: 1,
        receive_entries: 2,
        app: name("disk"),
    };
    let joined = bench.receiver.handle_hello(bench.now_ns, &hello, SourceId(0), &mut bench.world).unwrap();
    bench.receiver.handle_connected(joined.peer, 1);
    bench.flush();
    for sequence in 1..=5 {
        bench.small(joined.peer, sequence, b"x");
        let (delivery, _) = bench.delivery(session).unwrap();
        bench.release(session, &delivery, true, 0);
        bench.flush();
    }
    assert_eq!(bench.world.sent.len(), 2);
    // The ends that waited go together, as soon as one SEND completed.
    bench.receiver.handle_sent(joined.peer);
    bench.flush();
    assert_eq!(bench.world.ends.len(), 5);
}

/// Checks the limit by which a driver sizes a connection's send queue.
#[test]
fn a_farewell_is_said_beside_all_else_that_is_on_the_way_and_nothing_more() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    for sequence in 1..=20 {
        bench.small(peer, sequence, b"x");
        let (delivery, _) = bench.delivery(session).unwrap();
        bench.release(session, &delivery, true, 0);
        bench.flush();
    }
    let config = *bench.receiver.config();
    assert_eq!(bench.world.sent.len(), config.control_sends_max as usize, "none completed");
    bench.receiver.disconnect_all(&mut bench.world);
    bench.receiver.disconnect_all(&mut bench.world);
    assert_eq!(bench.world.byes, [peer.0]);
    assert_eq!(bench.world.sent.len(), config.sends_per_peer_max() as usize);
    bench.flush();
    bench.wait(20 * SECOND_NS);
    assert_eq!(bench.world.sent.len(), 13, "nothing is said after it");
}

#[test]
fn however_small_the_srq_share_who_holds_nothing_is_given_credit() {
    for srq_slabs in 2..=5 {
        let share =
            Config { srq_slabs, srq_floor_slabs: 2, srq_reserve_entries: 1, credit_max: 1, ..config() };
        let mut bench = Bench::new(share);
        let session = bench.open("disk");
        let peer = bench.join("disk");
        for sequence in 1..20 {
            bench.small(peer, sequence, b"x");
            bench.flush();
            let (delivery, _) = bench.delivery(session).unwrap();
            bench.release(session, &delivery, true, 0);
            bench.flush();
            bench.world.sent.drain(..).for_each(|peer| bench.receiver.handle_sent(PeerId(peer)));
            assert_eq!(bench.world.ends.last(), Some(&(peer.0, sequence, AckStatus::Consumed)));
            assert!(bench.world.limits[&peer.0] > sequence, "{srq_slabs} slabs: {sequence} were sent");
        }
    }
}

#[test]
fn peers_that_take_nothing_leave_sends_to_the_others() {
    // Seven of eight take nothing, and could have all that are beyond the first of each.
    let config = Config { sends_max: 8 + 40, ..config() };
    let mut bench = Bench::new(config);
    let session = bench.open("disk");
    let peers: Vec<PeerId> = (0..8).map(|_| bench.join("disk")).collect();
    let (listens, silent) = peers.split_last().unwrap();
    bench.world.sent.clear();
    let mut sequence = 0;
    let mut end_of = |bench: &mut Bench, peer: PeerId| {
        sequence += 1;
        if bench.receiver.credit.arrived(peer.0) < bench.world.limits[&peer.0] {
            bench.small(peer, sequence, &[1]);
            let (delivery, _) = bench.delivery(session).unwrap();
            bench.release(session, &delivery, true, 0);
            bench.flush();
        }
    };
    for _ in 0..20 {
        silent.iter().for_each(|&peer| end_of(&mut bench, peer));
    }
    let under_way = |bench: &Bench, peer: PeerId| bench.receiver.outbox.sends_in_flight(peer.0);
    let of_silent: u32 = silent.iter().map(|&peer| under_way(&bench, peer)).sum();
    assert!(of_silent <= 7 + 40 - 2, "{of_silent}");
    for _ in 0..3 {
        end_of(&mut bench, *listens);
    }
    assert!(under_way(&bench, *listens) >= 2, "it has a share of what is beyond the first");
    // Who went has no SEND under way any more, and the others have them all.
    for &peer in silent {
        bench.receiver.handle_peer_lost(peer);
    }
    bench.flush();
    for _ in 0..11 {
        end_of(&mut bench, *listens);
    }
    assert_eq!(under_way(&bench, *listens), config.control_sends_max);
}

fn hello(app: &str) -> Hello {
    let (versions, app) = (Versions::SUPPORTED, name(app));
    Hello { versions, features: 0, sender_id: 43, receive_entries: 16, app }
}

#[test]
fn where_there_are_as_many_peers_as_there_may_be_the_one_idle_for_longest_makes_room() {
    let mut bench = Bench::new(config());
    bench.open("disk");
    let peers: Vec<PeerId> = (0..bench.receiver.config.peers_max).map(|_| bench.join("disk")).collect();
    let comes = |bench: &mut Bench| {
        bench.receiver.handle_hello(bench.now_ns, &hello("disk"), SourceId(0), &mut bench.world)
    };
    assert_eq!(comes(&mut bench), Err(Refusal::TooManyPeers));
    assert_eq!(bench.world.byes, [0u32; 0], "nobody has been idle for a second");
    // The first has a message without an end, and the second had one a while ago.
    bench.wait(500_000_000);
    bench.small(peers[0], 1, b"x");
    bench.small(peers[1], 1, b"x");
    bench.flush();
    let session = SessionId(0);
    let (first, second) = (bench.delivery(session).unwrap().0, bench.delivery(session).unwrap().0);
    bench.release(session, &second, true, 0);
    bench.wait(1_100_000_000);
    assert_eq!(comes(&mut bench), Err(Refusal::TooManyPeers));
    let [left] = bench.world.byes[..] else { panic!("{:?}", bench.world.byes) };
    assert!(left >= 2, "{left} has, or had, something lately");
    // While that one leaves, the next ones that come have others leave.
    assert_eq!(comes(&mut bench), Err(Refusal::TooManyPeers));
    assert!(
        matches!(bench.world.byes[..], [first, second] if first == left && second >= 2 && second != left)
    );
    bench.receiver.handle_peer_lost(PeerId(left));
    assert_eq!(comes(&mut bench).unwrap().peer, PeerId(left));
    // Nobody is cut off who has something without an end.
    for _ in 0..20 {
        bench.wait(1_000_000_000);
        let _ = comes(&mut bench);
        for bye in core::mem::take(&mut bench.world.byes) {
            assert_ne!(bye, peers[0].0);
        }
    }
    bench.release(session, &first, true, 0);
    bench.flush();
    assert!(bench.world.ends.contains(&(peers[0].0, 1, AckStatus::Consumed)));
    assert_eq!(bench.receiver.stats().peer_faults, 0);
}

#[test]
fn of_many_idle_peers_sixteen_leave_at_once_at_most() {
    let mut bench = Bench::new(Config { peers_max: 64, srq_slabs: 64, ..config() });
    for _ in 0..64 {
        bench.join("disk");
    }
    bench.wait(2_000_000_000);
    for _ in 0..100 {
        let refused =
            bench.receiver.handle_hello(bench.now_ns, &hello("disk"), SourceId(0), &mut bench.world);
        assert_eq!(refused, Err(Refusal::TooManyPeers));
    }
    assert_eq!(bench.world.byes.len(), 16);
}

#[test]
fn where_nobody_is_idle_who_has_most_places_leaves_some_to_others() {
    const PLACES: u32 = 8;
    let mut bench = Bench::new(Config { peers_max: PLACES, srq_slabs: 64, ..config() });
    bench.open("disk");
    let comes = |bench: &mut Bench, source| {
        let joined =
            bench.receiver.handle_hello(bench.now_ns, &hello("disk"), SourceId(source), &mut bench.world);
        joined.map(|joined| {
            bench.receiver.handle_connected(joined.peer, 16);
            joined.peer
        })
    };
    for _ in 0..PLACES {
        // Each has something without an end, so that nobody is idle.
        let peer = comes(&mut bench, 1).unwrap();
        bench.small(peer, 1, b"x");
    }
    for _ in 0..20 {
        bench.wait(100_000_000);
        // Somebody else asks, and those that were sent away come back at once, and are more.
        if let Ok(peer) = comes(&mut bench, 2) {
            bench.small(peer, 1, b"x");
        }
        for peer in core::mem::take(&mut bench.world.disconnects) {
            bench.receiver.handle_peer_lost(PeerId(peer));
        }
        bench.flush();
        for _ in 0..PLACES {
            if let Ok(peer) = comes(&mut bench, 1) {
                bench.small(peer, 1, b"x");
            }
        }
    }
    let has = [1, 2].map(|source| bench.receiver.places.of(SourceId(source)));
    assert_eq!(has, [4, 4], "half of the places each");
    assert_eq!(bench.receiver.stats().peer_faults, 0);
}

#[test]
fn who_has_more_places_than_others_takes_none_of_those_that_are_idle() {
    let mut bench = Bench::new(Config { peers_max: 8, srq_slabs: 64, ..config() });
    bench.open("disk");
    let comes = |bench: &mut Bench, source| {
        bench.receiver.handle_hello(bench.now_ns, &hello("disk"), SourceId(source), &mut bench.world)
    };
    let idle = comes(&mut bench, 1).unwrap().peer;
    bench.receiver.handle_connected(idle, 16);
    bench.wait(500_000_000);
    (0..7).for_each(|_| _ = comes(&mut bench, 2).unwrap());
    bench.wait(1_200_000_000);
    assert_eq!(comes(&mut bench, 2), Err(Refusal::TooManyPeers));
    assert_eq!(bench.world.byes, [0u32; 0]);
    assert_eq!(comes(&mut bench, 3), Err(Refusal::TooManyPeers));
    assert_eq!(bench.world.byes, [idle.0], "it makes room for who has no more than it");
}

//! Tests of heartbeats: a word now and then to peers that wait, with what they wait for.

use super::*;
use jet_wire::message::FIRST_VERSION;
use jet_wire::message::hello::features;

const SECOND_NS: u64 = 1_000_000_000;

/// Returns how many headers were sent to the peer in `seconds` seconds.
fn told(bench: &mut Bench, peer: PeerId, seconds: u64) -> usize {
    let mut told = 0;
    for _ in 0..seconds * 10 {
        bench.wait(SECOND_NS / 10);
        for sent in core::mem::take(&mut bench.world.sent) {
            told += usize::from(sent == peer.0);
            bench.receiver.handle_sent(PeerId(sent));
        }
        assert!(bench.receiver.next_tick_ns().is_some(), "somebody waits: time matters");
    }
    told
}

#[test]
fn who_waits_for_an_end_hears_that_the_receiver_is_there() {
    let mut bench = Bench::new(config());
    bench.open("disk");
    let peer = bench.join("disk");
    // The application does not take its messages.
    bench.small(peer, 1, b"x");
    bench.request(peer, 2, 64 << 10, None);
    bench.flush();
    // Whatever is due about credit was sent by then.
    told(&mut bench, peer, 10);
    let told = told(&mut bench, peer, 60);
    assert!((6..=13).contains(&told), "{told} in 60 s, wanted every 5 to 10 s");
}

#[test]
fn who_waits_for_credit_hears_it_too() {
    let mut bench = Bench::new(config());
    let session = bench.open("disk");
    let peer = bench.join("disk");
    // The application keeps all that it gets, until its sender has no credit left.
    let mut sequence = 0;
    for _ in 0..200 {
        while sequence < bench.world.limits[&peer.0] && !bench.world.posted.is_empty() {
            sequence += 1;
            bench.small(peer, sequence, b"x");
        }
        bench.flush();
        while bench.delivery(session).is_some() {}
    }
    assert_eq!(sequence, bench.world.limits[&peer.0], "no credit is left");
    assert!(told(&mut bench, peer, 60) >= 6);
}

#[test]
fn who_waits_for_nothing_is_left_alone() {
    let mut bench = Bench::new(config());
    bench.open("disk");
    bench.join("disk");
    for _ in 0..100 {
        bench.wait(SECOND_NS / 10);
        for sent in core::mem::take(&mut bench.world.sent) {
            bench.receiver.handle_sent(PeerId(sent));
        }
        for (peer, keep) in core::mem::take(&mut bench.world.recalls) {
            bench.arrive(PeerId(peer), &jet_wire::message::CreditReturn::encode(keep), &[]);
        }
    }
    for _ in 0..600 {
        bench.wait(SECOND_NS / 10);
    }
    assert!(bench.world.sent.is_empty(), "{} words to an idle sender", bench.world.sent.len());
}

/// Lets in a sender that is told what it waits for.
fn join(bench: &mut Bench, app: &str, versions: Versions) -> PeerId {
    let features = features::ALL;
    let hello = Hello { versions, features, sender_id: 7, receive_entries: 16, app: name(app) };
    let joined = bench.receiver.handle_hello(bench.now_ns, &hello, SourceId(0), &mut bench.world).unwrap();
    let is_told = joined.welcome.features & features::WAITS_FOR != 0;
    assert_eq!(is_told, versions.highest() > FIRST_VERSION, "a reason lies in bytes that version 1 refuses");
    bench.world.limits.insert(joined.peer.0, joined.welcome.credit_limit);
    bench.receiver.handle_connected(joined.peer, bench.receiver.config.reads_max);
    bench.flush();
    joined.peer
}

/// A configuration with heartbeats far more often than a READ may stand still.
fn soon_heard() -> Config {
    Config { heartbeat_ns: SECOND_NS / 100, ..config() }
}

/// Returns what each peer is told by all of its heartbeats in a span that is shorter than a READ may take.
fn reasons(bench: &mut Bench) -> BTreeMap<u32, Option<WaitsFor>> {
    bench.world.reasons.clear();
    for _ in 0..50 {
        bench.wait(SECOND_NS / 100);
        for sent in core::mem::take(&mut bench.world.sent) {
            bench.receiver.handle_sent(PeerId(sent));
        }
    }
    let mut reasons = BTreeMap::new();
    for (peer, reason) in bench.world.reasons.drain(..) {
        assert_eq!(*reasons.entry(peer).or_insert(reason), reason, "peer {peer} hears now this, now that");
    }
    reasons
}

#[test]
fn a_heartbeat_says_what_is_waited_for() {
    let mut bench = Bench::new(Config { reads_max: 1, ..soon_heard() });
    let session = bench.open("disk");
    let peers = [(); 2].map(|()| join(&mut bench, "disk", Versions::SUPPORTED));
    for peer in peers {
        bench.request(peer, 1, 64 << 10, None);
    }
    bench.flush();
    assert_eq!(bench.world.reads.len(), 1);
    let first = bench.world.reads[0].0;
    let second = if first == peers[0] { peers[1] } else { peers[0] };
    let told = reasons(&mut bench);
    assert_eq!((told[&first.0], told[&second.0]), (Some(WaitsFor::Reads), Some(WaitsFor::Turn)));
    while !bench.world.reads.is_empty() {
        bench.read_done();
        bench.flush();
    }
    let told = reasons(&mut bench);
    assert_eq!(told[&first.0], Some(WaitsFor::Application));
    assert_eq!(told[&second.0], Some(WaitsFor::Application));
    while let Some((delivery, _)) = bench.delivery(session) {
        bench.release(session, &delivery, true, 0);
        bench.flush();
    }
    assert!(bench.whole());
}

#[test]
fn an_application_that_gave_all_slices_back_and_did_not_finish_is_waited_for() {
    let mut bench = Bench::new(soon_heard());
    let session = bench.open("disk");
    let peer = join(&mut bench, "disk", Versions::SUPPORTED);
    bench.small(peer, 1, b"x");
    bench.flush();
    let (delivery, _) = bench.delivery(session).unwrap();
    bench.release(session, &delivery, false, 0);
    bench.flush();
    assert_eq!(bench.receiver.slots.used(session.0), 0, "nothing is held");
    assert_eq!(reasons(&mut bench)[&peer.0], Some(WaitsFor::Application));
}

#[test]
fn who_waits_for_what_other_applications_hold_is_told_so() {
    // So many applications that the last ones find nothing of the pool.
    let config = Config { sessions_max: 64, peers_max: 80, messages_max: 512, ..soon_heard() };
    let mut bench = Bench::new(config);
    for number in 0..63 {
        let app = alloc::format!("hog{number}");
        bench.open(&app);
        let hog = bench.join(&app);
        for sequence in 1..=4 {
            bench.request(hog, sequence, 64 << 10, None);
        }
        bench.flush();
        while !bench.world.reads.is_empty() {
            bench.read_done();
            bench.flush();
        }
    }
    bench.open("disk");
    let peer = join(&mut bench, "disk", Versions::SUPPORTED);
    bench.request(peer, 1, 64 << 10, None);
    bench.flush();
    assert!(bench.world.reads.is_empty(), "there is room for a READ: {:?}", bench.receiver.stats());
    assert_eq!(reasons(&mut bench)[&peer.0], Some(WaitsFor::Room));
}

#[test]
fn what_others_do_is_no_reason_for_a_small_message_that_is_forgotten() {
    let mut bench = Bench::new(soon_heard());
    let (hog, _) = (bench.open("hog"), bench.open("disk"));
    let peer = join(&mut bench, "disk", Versions::SUPPORTED);
    let of_hog = bench.join("hog");
    bench.receiver.outbox.begin(peer.0);
    bench.small(of_hog, 1, b"x");
    bench.request(of_hog, 2, 64 << 10, None);
    bench.flush();
    assert_eq!(bench.world.reads.len(), 1);
    assert_eq!(reasons(&mut bench)[&peer.0], None);
    bench.read_done();
    bench.flush();
    assert!(bench.delivery(hog).is_some(), "it is held");
    assert_eq!(reasons(&mut bench)[&peer.0], None);
}

#[test]
fn where_nothing_is_seen_that_is_waited_for_no_reason_is_made_up() {
    let mut bench = Bench::new(soon_heard());
    bench.open("disk");
    let peer = join(&mut bench, "disk", Versions::SUPPORTED);
    // As if the message were lost: it has no end, and is in no queue.
    bench.receiver.outbox.begin(peer.0);
    assert_eq!(reasons(&mut bench)[&peer.0], None);
}

#[test]
fn a_sender_that_does_not_understand_it_is_told_no_reason() {
    let mut bench = Bench::new(soon_heard());
    bench.open("disk");
    let old = join(&mut bench, "disk", Versions::FIRST);
    let other = bench.join("disk");
    bench.small(other, 1, b"x");
    // The header of a small message of version 1 is that of version 2.
    bench.receiver.outbox.begin(old.0);
    bench.flush();
    let told = reasons(&mut bench);
    assert_eq!((told[&old.0], told[&other.0]), (None, None));
}

//! Replies: they end their messages, in order, once, and hold up nobody.

use super::*;

fn config_with_replies() -> Config {
    Config { reply_slots: 64, replies_per_peer: 4, ..config() }
}

impl Bench {
    fn with_replies(config: Config) -> Self {
        let mut bench = Self::new(config);
        bench.wants_reply = true;
        bench
    }

    /// Lets a sender in that has memory for replies.
    fn join_for_replies(&mut self, app: &str) -> PeerId {
        self.join_as(app, 42, features::ALL)
    }

    /// Replies to a delivered message, of which all slices were given back.
    fn reply(
        &mut self,
        session: SessionId,
        delivery: &Delivery,
        bytes: u16,
        code: u32,
    ) -> Result<(), ReleaseError> {
        let release = Release { first: bytes, kind: release_kind::REPLY, code, ..finish(delivery, 0) };
        self.receiver.handle_release(self.now_ns, session, release, &mut self.world)
    }

    fn used(&self) -> u32 {
        self.receiver.stats().reply_slots_used
    }
}

#[test]
fn a_message_ends_with_its_reply_once() {
    let mut bench = Bench::with_replies(config_with_replies());
    let session = bench.open("store");
    let peer = bench.join_for_replies("store");
    for (sequence, code, end) in [(1, 0, AckStatus::Consumed), (2, 28, AckStatus::Rejected(28))] {
        bench.small(peer, sequence, b"question");
        let (delivery, _) = bench.delivery(session).unwrap();
        assert_eq!(delivery.flags & delivery_flags::WANTS_REPLY, delivery_flags::WANTS_REPLY);
        assert_eq!(bench.used(), 1, "memory is promised");
        bench.release(session, &delivery, false, 0);
        bench.reply(session, &delivery, 100, code).unwrap();
        bench.flush();
        assert_eq!(bench.world.replies, [(peer.0, sequence, end, delivery.message, 100)]);
        assert_eq!(bench.used(), 1, "the NIC still reads it");
        bench.sends_complete();
        assert_eq!(bench.used(), 0);
        bench.world.replies.clear();
    }
    // What its application ends without a reply has none, and keeps no memory.
    bench.small(peer, 3, b"question");
    let (delivery, _) = bench.delivery(session).unwrap();
    bench.release(session, &delivery, true, 0);
    bench.flush();
    assert_eq!((bench.world.replies.len(), bench.used()), (0, 0));
    assert_eq!(bench.world.ends.last(), Some(&(peer.0, 3, AckStatus::Consumed)));
    bench.sends_complete();
    assert!(bench.whole());
}

#[test]
fn a_large_message_ends_with_its_reply_when_its_last_slice_is_back() {
    let mut bench = Bench::with_replies(config_with_replies());
    let session = bench.open("store");
    let peer = bench.join_for_replies("store");
    bench.request(peer, 1, 5000, None);
    bench.flush();
    bench.read_done();
    let (delivery, _) = bench.delivery(session).unwrap();
    bench.reply(session, &delivery, 4096, 0).unwrap();
    bench.flush();
    assert_eq!(bench.world.replies, [], "it still holds the slices");
    bench.release(session, &delivery, false, 0);
    bench.flush();
    assert_eq!(bench.world.replies, [(peer.0, 1, AckStatus::Consumed, delivery.message, 4096)]);
    bench.sends_complete();
    assert!(bench.whole());
}

/// Name of a case.
const WANTS_NONE: &str = "to what wants none";

type Misdeed = fn(&mut Bench, SessionId, &Delivery) -> Result<(), ReleaseError>;

#[test]
fn what_is_no_reply_ends_the_session_and_its_message_as_one_whose_application_is_gone() {
    let cases: [(&str, Misdeed, AckStatus); 4] = [
        ("too long", |bench, session, delivery| bench.reply(session, delivery, 4097, 0), AckStatus::AppGone),
        (WANTS_NONE, |bench, session, delivery| bench.reply(session, delivery, 1, 0), AckStatus::AppGone),
        (
            "one that cannot be read",
            |bench, session, delivery| {
                bench.world.no_reply_cells = true;
                bench.reply(session, delivery, 1, 0)
            },
            AckStatus::Consumed,
        ),
        (
            "a second one",
            |bench, session, delivery| {
                bench.reply(session, delivery, 1, 0).unwrap();
                bench.reply(session, delivery, 1, 0)
            },
            AckStatus::Consumed,
        ),
    ];
    for (what, case, end) in cases {
        let mut bench = Bench::with_replies(config_with_replies());
        bench.wants_reply = what != WANTS_NONE;
        let session = bench.open("store");
        let peer = bench.join_for_replies("store");
        bench.small(peer, 1, b"question");
        let (delivery, _) = bench.delivery(session).unwrap();
        assert!(case(&mut bench, session, &delivery).is_err(), "{what}");
        assert!(bench.receiver.session_stats(session).is_none(), "{what}");
        bench.flush();
        // What the application had finished before is finished.
        assert_eq!(bench.world.ends, [(peer.0, 1, end)], "{what}");
        bench.sends_complete();
        assert_eq!(bench.used(), 0, "{what}");
    }
}

#[test]
fn a_reply_to_a_sender_that_is_gone_is_nobodys() {
    let mut bench = Bench::with_replies(config_with_replies());
    let session = bench.open("store");
    let peer = bench.join_for_replies("store");
    for sequence in 1..=3 {
        bench.small(peer, sequence, b"question");
    }
    let deliveries: Vec<_> = (0..3).map(|_| bench.delivery(session).unwrap().0).collect();
    // One is on its way, one waits with its record, and one was not given when its sender goes.
    bench.release(session, &deliveries[0], false, 0);
    bench.reply(session, &deliveries[0], 10, 0).unwrap();
    bench.flush();
    bench.release(session, &deliveries[1], false, 0);
    bench.reply(session, &deliveries[1], 10, 0).unwrap();
    assert_eq!(bench.used(), 3);
    bench.world.sent.clear();
    bench.world.replies_on_the_way.clear();
    bench.receiver.handle_peer_lost(peer);
    bench.flush();
    assert_eq!(bench.used(), 0);
    bench.release(session, &deliveries[2], false, 0);
    bench.reply(session, &deliveries[2], 10, 0).expect("its application did not know");
    bench.flush();
    assert_eq!((bench.used(), bench.world.replies.len()), (0, 1));
    assert!(bench.whole());
}

#[test]
fn one_that_takes_no_reply_keeps_its_share_and_no_more() {
    let mut bench = Bench::with_replies(Config { control_sends_max: 2, ..config_with_replies() });
    bench.world.sends_max = 3;
    let session = bench.open("store");
    let (frozen, good) = (bench.join_for_replies("store"), bench.join_for_replies("store"));
    // The frozen one takes nothing: none of the SENDs to it completes.
    let mut delivered = 0;
    for sequence in 1..=8 {
        bench.small(frozen, sequence, b"question");
        if let Some((delivery, _)) = bench.delivery(session) {
            delivered += 1;
            bench.release(session, &delivery, false, 0);
            bench.reply(session, &delivery, 10, 0).unwrap();
        }
        bench.flush();
    }
    assert_eq!((delivered, bench.used()), (4, 4), "the others are refused: a sender has memory for four");
    assert_eq!(bench.receiver.stats().ends.busy, 4);
    for sequence in 1..=20 {
        bench.small(good, sequence, b"question");
        let (delivery, _) = bench.delivery(session).expect("it is served");
        bench.release(session, &delivery, false, 0);
        bench.reply(session, &delivery, 10, 0).unwrap();
        bench.flush();
        let replied = bench.world.replies.last().map(|reply| (reply.0, reply.1));
        assert_eq!(replied, Some((good.0, sequence)), "at once");
        bench.world.sent.retain(|&to| to != good.0);
        let (peer, slot) = bench.world.replies_on_the_way.pop().unwrap();
        bench.receiver.handle_reply_sent(PeerId(peer), slot);
        bench.receiver.handle_sent(good);
    }
}

#[test]
fn who_takes_no_replies_is_asked_for_none() {
    let mut bench = Bench::with_replies(config_with_replies());
    let session = bench.open("store");
    // This one has no memory for replies, whatever its headers say.
    let peer = bench.join("store");
    bench.small(peer, 1, b"question");
    let (delivery, _) = bench.delivery(session).unwrap();
    assert_eq!((delivery.flags & delivery_flags::WANTS_REPLY, bench.used()), (0, 0));
    // A receiver without memory for replies says so.
    let mut bench = Bench::with_replies(config());
    let session = bench.open("store");
    let peer = bench.join_for_replies("store");
    assert!(!bench.receiver.outbox.takes_replies(peer.0));
    bench.small(peer, 1, b"question");
    assert_eq!(bench.delivery(session).unwrap().0.flags & delivery_flags::WANTS_REPLY, 0);
}

#[test]
fn an_application_that_does_not_reply_leaves_memory_to_others() {
    let mut bench = Bench::with_replies(Config { reply_slots: 16, replies_per_peer: 16, ..config() });
    let (hung, good) = (bench.open("hung"), bench.open("good"));
    let senders: Vec<_> = (0..4).map(|_| bench.join_for_replies("hung")).collect();
    for sequence in 1..=8 {
        for &sender in &senders {
            bench.small(sender, sequence, b"question");
            bench.flush();
            bench.sends_complete();
        }
    }
    assert!(
        (3..=8).contains(&bench.used()),
        "it leaves as much, also to its senders' host: {}",
        bench.used()
    );
    let _held: Vec<_> = core::iter::from_fn(|| bench.delivery(hung)).collect();
    let sender = bench.join_for_replies("good");
    for sequence in 1..=20 {
        bench.small(sender, sequence, b"question");
        let (delivery, _) = bench.delivery(good).expect("it is served");
        bench.release(good, &delivery, false, 0);
        bench.reply(good, &delivery, 10, 0).unwrap();
        bench.flush();
        bench.sends_complete();
    }
    assert_eq!(bench.world.replies.len(), 20);
}

/// Room for many senders.
fn config_for_many() -> Config {
    Config { peers_max: 24, srq_slabs: 240, messages_max: 512, credit_max: 8, ..config() }
}

/// Has a sender ask, and the application reply, if there is memory for that.
fn ask(bench: &mut Bench, session: SessionId, peer: PeerId, sequence: u64) {
    bench.small(peer, sequence, b"question");
    if let Some((delivery, _)) = bench.delivery(session) {
        bench.release(session, &delivery, false, 0);
        bench.reply(session, &delivery, 10, 0).unwrap();
    }
    bench.flush();
}

/// Lets senders in, each of a host of its own, until little memory is left for replies: none takes one.
fn use_up(bench: &mut Bench, session: SessionId, peers: u32, each: u64) {
    for _ in 0..peers {
        bench.source.0 += 1;
        let peer = bench.join_for_replies("store");
        (1..=each).for_each(|sequence| ask(bench, session, peer, sequence));
    }
    assert!(bench.receiver.replies.are_wanted(), "{} are used", bench.used());
    assert_eq!(bench.world.disconnects.len(), 0);
}

/// Has a peer take one SEND, if one is under way to it.
fn take_one(bench: &mut Bench, peer: u32) -> bool {
    let Some(at) = bench.world.sent.iter().position(|&to| to == peer) else { return false };
    bench.world.sent.remove(at);
    let on_the_way = &mut bench.world.replies_on_the_way;
    if let Some(at) = on_the_way.iter().position(|of| of.0 == peer) {
        let (_, slot) = on_the_way.remove(at);
        bench.receiver.handle_reply_sent(PeerId(peer), slot);
    }
    bench.receiver.handle_sent(PeerId(peer));
    bench.flush();
    true
}

/// Lets a second go by, and ends the connections that are to end. Returns of whom.
fn second(bench: &mut Bench) -> Vec<u32> {
    bench.wait(1_000_000_000);
    let ending = core::mem::take(&mut bench.world.disconnects);
    for &peer in &ending {
        bench.world.sent.retain(|&to| to != peer);
        bench.world.replies_on_the_way.retain(|of| of.0 != peer);
        bench.receiver.handle_peer_lost(PeerId(peer));
    }
    ending
}

#[test]
fn peers_that_take_nothing_are_disconnected_when_little_memory_is_left() {
    let mut bench = Bench::with_replies(Config { reply_slots: 8, replies_per_peer: 8, ..config() });
    let session = bench.open("store");
    use_up(&mut bench, session, 7, 2);
    // The receiver stood still for most of the time: nobody could have taken anything.
    bench.receiver.handle_stall(100_000_000_000);
    bench.now_ns += 100_000_000_000;
    let ended = [1, 2, 3, 4].map(|_| second(&mut bench).len());
    assert_eq!(ended, [0; 4]);
    let ended: usize = (0..20).map(|_| second(&mut bench).len()).sum();
    bench.flush();
    assert!(ended >= 1 && bench.used() <= 6, "{ended} ended, {} are still used", bench.used());
}

#[test]
fn peers_that_take_each_reply_late_are_disconnected_when_little_memory_is_left() {
    // Each has four under way, and takes one of them every two seconds, so that it always took something not
    // long ago. The first takes all at once, and asks for as much.
    let config = Config { reply_slots: 128, control_sends_max: 4, ..config_for_many() };
    let mut bench = Bench::with_replies(config);
    bench.world.sends_max = 5;
    let session = bench.open("store");
    use_up(&mut bench, session, 24, 6);
    let (mut ended, mut sequence) = (Vec::new(), 6);
    while sequence < 60 && ended.is_empty() {
        sequence += 1;
        while take_one(&mut bench, 0) {}
        for peer in 0..24 {
            take_one(&mut bench, peer);
            ask(&mut bench, session, PeerId(peer), sequence);
        }
        ended.extend(second(&mut bench));
        ended.extend(second(&mut bench));
    }
    assert!(!ended.is_empty() && !ended.contains(&0), "{ended:?}; {} are still used", bench.used());
}

#[test]
fn peers_that_take_nothing_are_disconnected_when_one_of_their_host_finds_no_memory() {
    let mut bench = Bench::with_replies(Config { reply_slots: 64, ..config_for_many() });
    let session = bench.open("store");
    for _ in 0..12 {
        let frozen = bench.join_for_replies("store");
        (1..=7).for_each(|sequence| ask(&mut bench, session, frozen, sequence));
    }
    assert!(bench.used() < 24 && bench.world.disconnects.is_empty(), "{} are used", bench.used());
    let good = bench.join_for_replies("store");
    let (mut ended, mut sequence) = (0, 0);
    while !bench.world.replies.iter().any(|reply| reply.0 == good.0) {
        sequence += 1;
        assert!(sequence < 20, "{ended} ended, and it still waits");
        ask(&mut bench, session, good, sequence);
        while take_one(&mut bench, good.0) {}
        ended += second(&mut bench).len();
    }
    // As many as it took, one after the other.
    assert!((1..=2).contains(&ended), "{ended}");
}

#[test]
fn other_ends_and_replies_take_turns() {
    let mut bench = Bench::with_replies(Config { control_sends_max: 1, ..config_with_replies() });
    bench.world.sends_max = 2;
    let session = bench.open("store");
    let peer = bench.join_for_replies("store");
    for sequence in 1..=8 {
        bench.wants_reply = sequence % 2 == 0;
        bench.small(peer, sequence, b"question");
        let (delivery, _) = bench.delivery(session).unwrap();
        bench.release(session, &delivery, false, 0);
        if bench.wants_reply {
            bench.reply(session, &delivery, 10, 0).unwrap();
        } else {
            let finish = finish(&delivery, 0);
            bench.receiver.handle_release(0, session, finish, &mut bench.world).unwrap();
        }
    }
    bench.flush();
    // Each header with ends makes room for the next one.
    let mut told = Vec::new();
    for _ in 0..8 {
        bench.sends_complete();
        told.push(bench.world.ends.len());
    }
    assert_eq!(bench.world.ends.len(), 8);
    let plain = bench.world.ends.iter().position(|end| end.1 % 2 == 1).unwrap();
    assert!(plain <= 1, "replies do not all go first: {:?}, {told:?}", bench.world.ends);
}

//! Peers that hold others up, as far as they are let: each has its share of READs, bytes, footprint and
//! records.

use super::*;
use crate::stats::ReadsWaitFor;

const FRAGMENT: u64 = 64 << 10;
const MS: u64 = 1_000_000;

mod crowds;
mod hold_ups;
mod numbers;
mod suspended;
mod turns;

/// Peers have shares here, and there is room for several READs.
fn shared() -> Config {
    Config { peer_share_percent: 75, reads_max: 8, in_flight_bytes: 512 << 10, ..config() }
}

impl Bench {
    /// Ends the oldest READ of a peer.
    fn end_read_of(&mut self, peer: PeerId) {
        let at = self.world.reads.iter().position(|read| read.0 == peer).expect("a READ is in flight");
        let (_, read, ..) = self.world.reads.remove(at).unwrap();
        self.receiver.handle_read_done(self.now_ns, read, true, false, &mut self.world);
    }

    /// Has a peer send a request once it has credit for it.
    fn request_with_credit(&mut self, peer: PeerId, sequence: u64, length: u64, class: u8) {
        for _ in 0..10 {
            for peer in core::mem::take(&mut self.world.sent) {
                self.receiver.handle_sent(PeerId(peer));
            }
            self.flush();
            if self.receiver.credit.arrived(peer.0) < self.world.limits[&peer.0]
                && !self.world.posted.is_empty()
            {
                self.request_class(peer, sequence, length, class, None);
                self.flush();
                return;
            }
        }
        panic!("peer {} gets no credit", peer.0);
    }

    /// Has each of these peers request its first message, of one fragment, one after the other.
    fn request_one_each(&mut self, peers: &[PeerId]) {
        for &peer in peers {
            self.request(peer, 1, FRAGMENT, None);
            self.flush();
            self.now_ns += 1;
        }
    }

    fn has_ended(&self, peer: PeerId, sequence: u64) -> bool {
        self.world.ends.contains(&(peer.0, sequence, AckStatus::Consumed))
    }

    fn reads_of(&self, peer: PeerId) -> usize {
        self.world.reads.iter().filter(|read| read.0 == peer).count()
    }

    /// Has an application give back all that was delivered to it; each part is the end of its message where
    /// it is the last one.
    fn consume(&mut self, session: SessionId) {
        while let Some((part, _)) = self.delivery(session) {
            let last = part.flags & delivery_flags::LAST != 0;
            self.release(session, &part, last, 0);
        }
    }

    /// Has a peer deliver messages of one fragment each, quickly. Returns the sequence number after the last.
    fn warm(&mut self, peer: PeerId, session: SessionId, first: u64) -> u64 {
        for sequence in first..first + 20 {
            self.request_with_credit(peer, sequence, FRAGMENT, 0);
            self.now_ns += 50_000;
            self.end_read_of(peer);
            self.consume(session);
            self.flush();
        }
        first + 20
    }
}

#[test]
fn a_sender_that_delivers_nothing_stops_nobody() {
    let mut bench = Bench::new(shared());
    let (slow_app, fast_app) = (bench.open("slow"), bench.open("fast"));
    let (slow, fast) = (bench.join("slow"), bench.join("fast"));
    let _ = slow_app;
    (1..=8).for_each(|n| bench.request_with_credit(slow, n, 1 << 20, 0));
    bench.flush();
    assert_eq!(bench.reads_of(slow), 1, "it has delivered nothing yet");
    let next = bench.warm(fast, fast_app, 1);
    // The fast one has the room that the slow one does not have.
    (next..next + 8).for_each(|n| bench.request_with_credit(fast, n, FRAGMENT, 0));
    bench.flush();
    assert_eq!((bench.reads_of(slow), bench.reads_of(fast)), (1, 6));
}

#[test]
fn a_sender_that_freezes_keeps_no_more_than_its_share() {
    let mut bench = Bench::new(shared());
    let apps = [bench.open("a"), bench.open("b")];
    let [freezes, other] = [bench.join("a"), bench.join("b")];
    let next = bench.warm(freezes, apps[0], 1);
    let other_next = bench.warm(other, apps[1], 1);
    (next..next + 12).for_each(|n| bench.request_with_credit(freezes, n, FRAGMENT, 0));
    bench.flush();
    assert_eq!(bench.reads_of(freezes), 6, "three quarters of 8");
    // It is gone for good, and nobody knows.
    bench.wait(100 * MS);
    for n in other_next..other_next + 20 {
        bench.request_with_credit(other, n, FRAGMENT, 0);
        bench.now_ns += 50_000;
        bench.end_read_of(other);
        bench.consume(apps[1]);
        bench.flush();
    }
    assert_eq!(bench.reads_of(freezes), 6);
}

#[test]
fn peers_take_turns_however_many_messages_each_has() {
    let mut bench = Bench::new(Config { peer_share_percent: 100, ..shared() });
    let (app, peers) = (bench.open("disk"), [bench.join("disk"), bench.join("disk")]);
    // One has 14 messages, the other one.
    (1..=14).for_each(|n| bench.request_with_credit(peers[0], n, 2 * FRAGMENT, 0));
    bench.request(peers[1], 1, 30 * FRAGMENT, None);
    bench.flush();
    assert_eq!((bench.reads_of(peers[0]), bench.reads_of(peers[1])), (8, 0));
    let mut ended = [0u32; 2];
    for _ in 0..30 {
        let (peer, ..) = bench.world.reads[0];
        ended[usize::from(peer == peers[1])] += 1;
        bench.read_done();
        bench.consume(app);
        bench.flush();
    }
    // The first eight were posted before the other one came.
    assert!((10..=12).contains(&ended[1]), "{ended:?}");
}

#[test]
fn a_long_message_of_a_session_that_was_not_measured_holds_up_no_other() {
    let mut bench = Bench::new(shared());
    let (_, urgent_app) = (bench.open("slow"), bench.open("urgent"));
    let (slow, urgent) = (bench.join("slow"), bench.join("urgent"));
    bench.request_class(slow, 1, 1 << 30, 3, None);
    bench.flush();
    bench.request(urgent, 1, 10 * FRAGMENT, None);
    bench.flush();
    assert_eq!((bench.reads_of(slow), bench.reads_of(urgent)), (1, 1));
    let mut reads = 0;
    while bench.reads_of(urgent) > 0 {
        reads += 1;
        bench.now_ns += 50_000;
        bench.end_read_of(urgent);
        bench.consume(urgent_app);
        bench.flush();
    }
    assert_eq!((reads, bench.reads_of(slow)), (10, 1), "all of it, while the other delivers nothing");
    assert_eq!(bench.world.ends, [(urgent.0, 1, AckStatus::Consumed)]);
}

#[test]
fn a_long_message_takes_up_no_more_than_it_has_under_way() {
    // The application of the long message gives back at once, but nothing says so yet: it was not measured.
    let config = Config { peer_share_percent: 100, reads_max: 16, ..shared() };
    let mut bench = Bench::new(config);
    bench.open("long");
    let [long, other] = [bench.join("long"), bench.join("long")];
    bench.request(long, 1, 1 << 30, None);
    bench.flush();
    bench.request(other, 1, FRAGMENT, None);
    bench.flush();
    assert_eq!(bench.receiver.stats().running, 2, "both in one class");
}

#[test]
fn a_class_of_which_nothing_is_read_waits_for_no_room_beside_others() {
    // The first message is taken up whole: it is half of the pool, and could be collected.
    let config = Config { peer_share_percent: 100, pool_slabs: 160, reads_max: 4, ..shared() };
    let mut bench = Bench::new(config);
    bench.open("urgent");
    bench.open("low");
    let [urgent, low] = [bench.join("urgent"), bench.join("low")];
    (1..=2).for_each(|n| bench.request(urgent, n, 5 * FRAGMENT, None));
    bench.flush();
    assert_eq!(bench.receiver.stats().running, 1, "the second one waits for the room of the first");
    bench.request_class(low, 1, 5 * FRAGMENT, 3, None);
    bench.flush();
    bench.now_ns += config.aging_ns + 1;
    // Class 0 was granted nothing for as long, and goes first.
    for _ in 0..2 {
        bench.read_done();
        bench.flush();
    }
    assert_eq!(bench.reads_of(low), 1, "one fragment, once it has waited long enough");
}

#[test]
fn who_holds_everything_for_long_is_disconnected_while_others_wait() {
    let mut bench = Bench::new(Config { reads_max: 4, in_flight_bytes: 256 << 10, ..shared() });
    bench.open("disk");
    let prompt_app = bench.open("prompt");
    let peers: Vec<PeerId> = (0..5).map(|_| bench.join("disk")).collect();
    let prompt = bench.join("prompt");
    let mut next = bench.warm(prompt, prompt_app, 1);
    bench.request_one_each(&peers);
    assert_eq!(bench.world.reads.len(), 2, "five eighths of 4 are for peers that are new");
    let mut wait_beside_prompt = |bench: &mut Bench| {
        bench.request_with_credit(prompt, next, FRAGMENT, 0);
        bench.end_read_of(prompt);
        bench.consume(prompt_app);
        bench.wait(100 * MS);
        next += 1;
    };
    (0..14).for_each(|_| wait_beside_prompt(&mut bench));
    assert!(bench.world.disconnects.is_empty(), "they have time");
    (0..2).for_each(|_| wait_beside_prompt(&mut bench));
    assert_eq!(bench.world.disconnects, [peers[0].0, peers[1].0]);
    let (_, read, ..) = bench.world.reads.pop_front().unwrap();
    bench.receiver.handle_read_done(bench.now_ns, read, false, false, &mut bench.world);
    bench.receiver.handle_peer_lost(peers[0]);
    bench.flush();
    assert_eq!(bench.reads_of(peers[2]), 1, "its place is the next one's");
    assert_eq!(bench.receiver.stats().stalled_peers, 2);
    (0..14).for_each(|_| wait_beside_prompt(&mut bench));
    assert_eq!(bench.world.disconnects.len(), 2, "the next one has as much time");
    (0..2).for_each(|_| wait_beside_prompt(&mut bench));
    assert_eq!(bench.world.disconnects, [peers[0].0, peers[1].0, peers[2].0]);
}

#[test]
fn an_outage_of_the_receivers_network_disconnects_nobody_who_had_everything_in_flight() {
    let mut bench = Bench::new(Config { reads_max: 4, in_flight_bytes: 256 << 10, ..shared() });
    let apps = [bench.open("a"), bench.open("b")];
    let [first, second] = [bench.join("a"), bench.join("b")];
    let next = [bench.warm(first, apps[0], 1), bench.warm(second, apps[1], 1)];
    (0..6).for_each(|n| bench.request_with_credit(first, next[0] + n, FRAGMENT, 0));
    (0..6).for_each(|n| bench.request_with_credit(second, next[1] + n, FRAGMENT, 0));
    assert_eq!((bench.reads_of(first), bench.reads_of(second)), (3, 1));
    // Nothing comes from anybody for 20 s.
    (0..200).for_each(|_| bench.wait(100 * MS));
    // The second one is heard first, and for most of the time that the first one has.
    bench.end_read_of(second);
    bench.consume(apps[1]);
    for _ in 0..38 {
        bench.wait(100 * MS);
        bench.receiver.handle_sent(second);
    }
    assert!(bench.world.disconnects.is_empty(), "{:?}", bench.world.disconnects);
    assert_eq!(bench.receiver.stats().stalled_peers, 0);
    (0..3).for_each(|_| bench.end_read_of(first));
    bench.consume(apps[0]);
    bench.flush();
    assert!(bench.reads_of(first) > 0, "all goes on");
}

/// Two peers that have delivered well take all READs, and deliver nothing any more. Returns them.
fn freeze_with_everything(bench: &mut Bench) -> [PeerId; 2] {
    let app = bench.open("disk");
    let peers = [bench.join("disk"), bench.join("disk")];
    let next = peers.map(|peer| bench.warm(peer, app, 1));
    for (peer, next) in peers.into_iter().zip(next) {
        (0..6).for_each(|n| bench.request_with_credit(peer, next + n, FRAGMENT, 0));
        bench.now_ns += 1;
    }
    assert_eq!(peers.map(|peer| bench.reads_of(peer)), [3, 1]);
    peers
}

#[test]
fn who_has_everything_in_flight_and_is_silent_is_disconnected_though_nobody_can_be_heard() {
    let mut bench = Bench::new(Config { reads_max: 4, in_flight_bytes: 256 << 10, ..shared() });
    let peers = freeze_with_everything(&mut bench);
    (0..299).for_each(|_| bench.wait(100 * MS));
    assert!(bench.world.disconnects.is_empty(), "it may be an outage of the receiver's network");
    (0..2).for_each(|_| bench.wait(100 * MS));
    assert_eq!(bench.world.disconnects, peers.map(|peer| peer.0));
}

#[test]
fn who_has_everything_in_flight_is_disconnected_while_others_are_heard_that_only_wait() {
    // Somebody says hello, requests something, or takes what it is sent.
    for what in 0..3 {
        let limits = Config { reads_max: 4, in_flight_bytes: 256 << 10, ..shared() };
        let mut bench = Bench::new(Config { peers_max: 64, ..limits });
        let peers = freeze_with_everything(&mut bench);
        let waits = bench.join("disk");
        bench.request(waits, 1, FRAGMENT, None);
        for n in 0..45 {
            bench.wait(100 * MS);
            match what {
                0 => drop(bench.join("disk")),
                1 => bench.request_with_credit(waits, 2 + n, FRAGMENT, 0),
                _ => bench.receiver.handle_sent(waits),
            }
        }
        assert_eq!(bench.world.disconnects, peers.map(|peer| peer.0), "{what}");
    }
}

#[test]
fn nobody_is_disconnected_for_being_slow_while_nobody_waits() {
    let mut bench = Bench::new(shared());
    let app = bench.open("disk");
    let peer = bench.join("disk");
    let next = bench.warm(peer, app, 1);
    (next..next + 12).for_each(|n| bench.request_with_credit(peer, n, FRAGMENT, 0));
    assert_eq!(bench.reads_of(peer), 6, "most of what there is");
    for _ in 0..1000 {
        bench.wait(10 * MS);
    }
    assert!(bench.world.disconnects.is_empty(), "its own messages are what waits");
}

/// Has a class 0 that always has something to read, and returns how many of the first READs were of class 3
/// in each of some spans of the aging bound.
fn class_3_beside_class_0(lengths: &[u64]) -> Vec<usize> {
    let config = Config { requests_per_peer: 100, credit_max: 48, messages_max: 400, ..shared() };
    let mut bench = Bench::new(Config { peer_share_percent: 100, reads_max: 4, ..config });
    let apps = [bench.open("urgent"), bench.open("low")];
    let [urgent, low] = [bench.join("urgent"), bench.join("low")];
    bench.request_class(urgent, 1, 1 << 30, 0, None);
    (1u64..).zip(lengths).for_each(|(n, &length)| bench.request_with_credit(low, n, length, 3));
    bench.flush();
    let mut low_reads = Vec::new();
    for _ in 0..5 {
        let begin = bench.now_ns;
        let mut of_low = 0;
        while bench.now_ns <= begin + config.aging_ns {
            bench.now_ns += MS;
            let (peer, ..) = bench.world.reads[0];
            of_low += usize::from(peer == low);
            bench.read_done();
            apps.iter().for_each(|&app| bench.consume(app));
            bench.flush();
        }
        low_reads.push(of_low);
    }
    low_reads
}

#[test]
fn a_low_class_gets_one_fragment_in_each_aging_bound_with_a_backlog_of_short_messages() {
    let reads = class_3_beside_class_0(&[FRAGMENT; 30]);
    assert!(reads[1..].iter().all(|&reads| reads == 1), "{reads:?}");
}

#[test]
fn a_low_class_gets_one_fragment_in_each_aging_bound_with_a_long_message() {
    let reads = class_3_beside_class_0(&[1 << 30]);
    assert!(reads[1..].iter().all(|&reads| reads == 1), "{reads:?}");
}

/// Found by jet-sim --seed 100025.
#[test]
fn a_low_class_ages_while_its_session_is_suspended_for_want_of_room() {
    // Two fragments and the reserve fill the READ share: each READ of the session suspends it.
    let config =
        Config { pool_slabs: 32 + 16, srq_slabs: 16, credit_max: 8, in_flight_bytes: FRAGMENT, ..shared() };
    let mut bench =
        Bench::new(Config { peer_share_percent: 100, memory_slabs: 0, session_memory_slabs: 0, ..config });
    let app = bench.open("both");
    let [urgent, low] = [bench.join("both"), bench.join("both")];
    bench.request_class(urgent, 1, 1 << 30, 0, None);
    bench.flush();
    (1..=10).for_each(|n| bench.request_with_credit(low, n, FRAGMENT, 3));
    let (begin, mut of_low, mut suspensions) = (bench.now_ns, 0, 0);
    while bench.now_ns <= begin + 5 * config.aging_ns {
        bench.now_ns += MS;
        of_low += usize::from(bench.world.reads.front().is_some_and(|read| read.0 == low));
        if !bench.world.reads.is_empty() {
            bench.read_done();
        }
        suspensions += u32::from(bench.receiver.stats().escape.suspended_sessions > 0);
        bench.consume(app);
        bench.flush();
    }
    assert!(suspensions > 0, "what this is about");
    assert!((4..=5).contains(&of_low), "{of_low} READs in five aging bounds");
}

#[test]
fn a_long_message_of_a_low_class_hides_no_others_of_it() {
    let config = Config { peer_share_percent: 100, reads_max: 4, ..shared() };
    let mut bench = Bench::new(config);
    let apps = [bench.open("urgent"), bench.open("low")];
    let [urgent, long, short] = [bench.join("urgent"), bench.join("low"), bench.join("low")];
    bench.request_class(urgent, 1, 1 << 30, 0, None);
    bench.request_class(long, 1, 1 << 30, 3, None);
    bench.flush();
    bench.request_class(short, 1, FRAGMENT, 3, None);
    let begin = bench.now_ns;
    while !bench.world.ends.contains(&(short.0, 1, AckStatus::Consumed)) {
        assert!(bench.now_ns < begin + 4 * config.aging_ns, "it waits for the long one");
        bench.now_ns += MS;
        bench.read_done();
        apps.iter().for_each(|&app| bench.consume(app));
        bench.flush();
    }
}

#[test]
fn one_applications_senders_leave_records_to_the_senders_of_others() {
    let config =
        Config { peers_max: 32, messages_max: 64 + 64, requests_per_peer: 16, credit_max: 20, ..shared() };
    let mut bench = Bench::new(config);
    bench.open("greedy");
    bench.open("modest");
    let peers: Vec<PeerId> = (0..20).map(|_| bench.join("greedy")).collect();
    let modest = bench.join("modest");
    for n in 1..=5 {
        peers.iter().for_each(|&peer| bench.request_with_credit(peer, n, 1 << 20, 0));
    }
    let busy = |bench: &Bench, of: PeerId| {
        bench.world.ends.iter().filter(|end| end.0 == of.0 && end.2 == AckStatus::Busy).count()
    };
    // 64 records are for large messages. They wanted 100, and have half.
    let refused: usize = peers.iter().map(|&peer| busy(&bench, peer)).sum();
    assert_eq!(100 - refused, 32);
    (1..=4).for_each(|n| bench.request_with_credit(modest, n, 1 << 20, 0));
    assert_eq!(busy(&bench, modest), 0);
}

#[test]
fn many_peers_that_are_lost_at_once_leave_nothing_behind_and_their_places_are_free() {
    const PEERS: u32 = 200;
    let config = Config { peers_max: PEERS, messages_max: 64 + 2 * PEERS, srq_slabs: 64, ..shared() };
    let mut bench = Bench::new(config);
    let app = bench.open("disk");
    let peers: Vec<PeerId> = (0..PEERS).map(|_| bench.join("disk")).collect();
    for &peer in &peers {
        bench.request(peer, 1, 1 << 20, None);
        bench.flush();
    }
    let reads: Vec<ReadId> = bench.world.reads.drain(..).map(|read| read.1).collect();
    for read in reads {
        bench.receiver.handle_read_done(bench.now_ns, read, false, false, &mut bench.world);
    }
    peers.iter().for_each(|&peer| bench.receiver.handle_peer_lost(peer));
    peers.iter().for_each(|&peer| bench.receiver.handle_peer_lost(peer));
    // The table of peers is full, and a sender is let in all the same: those that are gone make room.
    let new = bench.join("disk");
    bench.consume(app);
    let stats = bench.receiver.stats();
    assert_eq!((stats.peers, stats.messages, stats.running, stats.waiting), (1, 0, 0, 0));
    assert_eq!(stats.in_flight_bytes, 0);
    bench.world.ends.clear();
    bench.request(new, 9, FRAGMENT, None);
    bench.flush();
    bench.read_done();
    bench.consume(app);
    bench.flush();
    assert_eq!(bench.world.ends, [(new.0, 9, AckStatus::Consumed)]);
}

#[test]
fn what_reads_wait_for_is_told() {
    let waits_for = |bench: &Bench| bench.receiver.stats().reads_wait_for;
    let mut bench = Bench::new(Config { pool_slabs: 192, ..shared() });
    let app = bench.open("disk");
    let peer = bench.join("disk");
    assert_eq!(waits_for(&bench), ReadsWaitFor::Nothing);
    bench.request(peer, 1, 2 * FRAGMENT, None);
    bench.flush();
    assert_eq!(waits_for(&bench), ReadsWaitFor::Senders, "one READ, and nothing has come");
    (0..2).for_each(|_| {
        bench.read_done();
        bench.consume(app);
        bench.flush();
    });
    assert_eq!(waits_for(&bench), ReadsWaitFor::Nothing);
    bench.request(peer, 2, 4 << 20, None);
    for _ in 0..20 {
        bench.flush();
        if !bench.world.reads.is_empty() {
            bench.read_done();
        }
    }
    bench.flush();
    assert_eq!(waits_for(&bench), ReadsWaitFor::Room, "the application gives nothing back");
    let config = Config { peer_share_percent: 100, reads_max: 1, ..shared() };
    let mut bench = Bench::new(config);
    bench.open("disk");
    let peer = bench.join("disk");
    bench.request(peer, 1, 2 * FRAGMENT, None);
    bench.flush();
    assert_eq!(waits_for(&bench), ReadsWaitFor::Window);
}

#[test]
fn the_age_of_a_senders_oldest_read_is_told_though_others_of_it_end() {
    let mut bench = Bench::new(config());
    bench.open("disk");
    let peer = bench.join("disk");
    let age_ns = |bench: &Bench| bench.receiver.peer_stats(bench.now_ns, peer).unwrap().oldest_read_ns;
    assert_eq!(age_ns(&bench), 0);
    for sequence in 1..=2 {
        bench.request(peer, sequence, 64 << 10, None);
        bench.flush();
        bench.wait(5_000_000);
    }
    // The first one's end is late, and the second one was posted meanwhile.
    while bench.world.reads.len() < 2 {
        bench.read_done();
        bench.request(peer, 9 + bench.world.reads.len() as u64, 128 << 10, None);
        bench.flush();
    }
    let before_ns = age_ns(&bench);
    bench.wait(1_000_000);
    assert_eq!(age_ns(&bench), before_ns + 1_000_000);
    let newest = bench.world.reads.pop_back().expect("two are in flight");
    bench.world.reads.push_front(newest);
    bench.read_done();
    assert_eq!(age_ns(&bench), before_ns + 1_000_000, "the older one is still in flight");
}

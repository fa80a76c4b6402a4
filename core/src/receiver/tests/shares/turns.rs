//! Whose turn it is: messages of one peer, peers beside each other, and peers that are not prompt.

use super::*;

impl Bench {
    /// Ends the oldest READ, 50 us later, and has the applications give back what was delivered.
    pub(super) fn read_and_consume(&mut self, apps: &[SessionId]) -> PeerId {
        self.now_ns += 50_000;
        let (peer, ..) = self.world.reads[0];
        self.read_done();
        apps.iter().for_each(|&app| self.consume(app));
        self.flush();
        peer
    }

    /// Has a peer deliver its first message, of one fragment, so that it is slow from then on.
    pub(super) fn deliver_slowly(&mut self, peer: PeerId, app: SessionId) {
        self.request_with_credit(peer, 1, FRAGMENT, 0);
        self.now_ns += 100 * MS;
        self.end_read_of(peer);
        self.consume(app);
    }
}

#[test]
fn a_message_of_another_class_waits_for_none_of_its_own_peer() {
    let mut bench = Bench::new(shared());
    let app = bench.open("disk");
    let peer = bench.join("disk");
    (1..=2).for_each(|n| bench.request_with_credit(peer, n, 1 << 30, 3));
    bench.request_with_credit(peer, 3, FRAGMENT, 0);
    let mut reads = 0;
    while !bench.has_ended(peer, 3) {
        bench.read_and_consume(&[app]);
        reads += 1;
        assert!(reads <= 4, "it is the most urgent one");
    }
}

#[test]
fn a_message_that_waits_is_read_after_those_of_another_class() {
    // The ends of four messages of class 0 are read at once, which is as many as there may be side by side.
    // There is room for another READ meanwhile, so the peer is never out of turn.
    let config = Config { peer_share_percent: 100, in_flight_bytes: 4 * FRAGMENT, ..shared() };
    let mut bench = Bench::new(config);
    let app = bench.open("disk");
    bench.world.reads_max.insert(0, 100);
    let peer = bench.join("disk");
    (1..=4).for_each(|n| bench.request_with_credit(peer, n, FRAGMENT + 4096, 0));
    bench.request_with_credit(peer, 5, FRAGMENT, 1);
    while !bench.world.reads.is_empty() {
        bench.read_and_consume(&[app]);
    }
    assert!((1..=5).all(|n| bench.has_ended(peer, n)), "{:?}", bench.world.ends);
}

#[test]
fn a_low_class_gets_one_fragment_in_each_aging_bound_beside_its_own_peers_urgent_messages() {
    let config = Config { requests_per_peer: 100, credit_max: 48, messages_max: 400, ..shared() };
    let mut bench = Bench::new(config);
    let app = bench.open("disk");
    let peer = bench.join("disk");
    let next = bench.warm(peer, app, 1);
    bench.request_class(peer, next, 1 << 30, 0, None);
    bench.request_class(peer, next + 1, FRAGMENT, 3, None);
    bench.flush();
    // The window is full all the time, so that each READ of class 0 follows the end of another.
    let begin = bench.now_ns;
    while !bench.has_ended(peer, next + 1) {
        bench.now_ns += MS / 4;
        bench.read_and_consume(&[app]);
        assert!(bench.now_ns < begin + 2 * config.aging_ns, "class 3 is never read");
    }
    assert!(bench.now_ns > begin + config.aging_ns);
}

#[test]
fn a_peer_of_which_nothing_is_read_waits_for_no_end_of_others_messages() {
    let mut bench = Bench::new(shared());
    let apps = [bench.open("a"), bench.open("b")];
    let greedy = [(); 3].map(|()| bench.join("a"));
    let modest = bench.join("b");
    let next = greedy.map(|peer| bench.warm(peer, apps[0], 1));
    for n in 0..6 {
        greedy.iter().zip(next).for_each(|(&peer, next)| {
            bench.request_with_credit(peer, next + n, 1 << 30, 0);
        });
    }
    // They have more messages read than there may be at once, and none of them waits for its own READs.
    (0..50).for_each(|_| _ = bench.read_and_consume(&apps));
    bench.request_with_credit(modest, 1, 4 * FRAGMENT, 0);
    let mut reads = 0;
    while !bench.has_ended(modest, 1) {
        bench.read_and_consume(&apps);
        reads += 1;
        assert!(reads < 40, "it gets a turn like the others");
    }
}

/// Found by jet-sim --seed 2026112752203936.
#[test]
fn a_message_of_a_low_class_that_gets_what_others_leave_takes_turns_with_those_that_began_before_it() {
    let mut bench = Bench::new(shared());
    let apps = [bench.open("urgent"), bench.open("low")];
    let urgent = [(); 2].map(|()| bench.join("urgent"));
    let [first, second] = [(); 2].map(|()| bench.join("low"));
    let mut next = 1;
    urgent.iter().for_each(|&peer| next = bench.warm(peer, apps[0], 1));
    [first, second].iter().for_each(|&peer| _ = bench.warm(peer, apps[1], 1));
    // The last READ is not for peers that have others in flight, so there is one for the low class.
    bench.request_with_credit(first, next, 1 << 30, 2);
    urgent.iter().for_each(|&peer| bench.request_with_credit(peer, next, 1 << 30, 0));
    (0..50).for_each(|_| _ = bench.read_and_consume(&apps));
    assert_eq!(bench.reads_of(first), 1, "what this is about");
    bench.request_with_credit(second, next, 1 << 30, 2);
    let peers: Vec<PeerId> = (0..100).map(|_| bench.read_and_consume(&apps)).collect();
    let reads_of = |of: PeerId| peers.iter().filter(|peer| **peer == of).count();
    let (first, second) = (reads_of(first), reads_of(second));
    assert!(second > 0 && first.abs_diff(second) <= 2, "{first} and {second} READs");
}

#[test]
fn short_messages_are_as_many_at_once_as_the_window_has_bytes_for() {
    let config = Config { pool_slabs: 1024, ..shared() };
    let mut bench = Bench::new(Config { requests_per_peer: 30, credit_max: 40, ..config });
    let app = bench.open("disk");
    let peer = bench.join("disk");
    // At 16 MB/s the window is 5 fragments.
    let mut next = 1;
    for n in 1..40 {
        bench.request_with_credit(peer, n, FRAGMENT, 0);
        bench.now_ns += 4 * MS;
        bench.end_read_of(peer);
        bench.consume(app);
        next = n + 1;
    }
    // They come together, while there may be 5 messages side by side.
    (next..next + 8).for_each(|n| bench.request(peer, n, FRAGMENT / 4, None));
    bench.flush();
    assert_eq!(bench.reads_of(peer), 6, "its share of READs, of which each is a message");
}

#[test]
fn a_message_without_room_beside_long_ones_of_its_class_is_read() {
    // Half of the pool is 64 slabs; a message of 70 is long.
    let config = Config { peer_share_percent: 100, pool_slabs: 160, reads_max: 4, ..shared() };
    let mut bench = Bench::new(config);
    let apps = [bench.open("long"), bench.open("short")];
    let [long, short] = [bench.join("long"), bench.join("short")];
    (1..=3).for_each(|n| bench.request(long, n, 1 << 30, None));
    bench.flush();
    bench.request(short, 1, 5 * FRAGMENT, None);
    let mut reads = 0;
    while !bench.has_ended(short, 1) {
        bench.read_and_consume(&apps);
        reads += 1;
        assert!(reads < 30, "it waits for a long one's end");
    }
}

#[test]
fn a_prompt_sender_does_not_hide_that_others_wait() {
    let mut bench = Bench::new(Config { reads_max: 4, in_flight_bytes: 256 << 10, ..shared() });
    let app = bench.open("disk");
    let prompt = bench.join("disk");
    let next = bench.warm(prompt, app, 1);
    let frozen: Vec<PeerId> = (0..4).map(|_| bench.join("disk")).collect();
    frozen.iter().for_each(|&peer| bench.request_with_credit(peer, 1, FRAGMENT, 0));
    assert_eq!(bench.reads_of(frozen[3]), 0);
    for sequence in next..next + 200 {
        bench.request_with_credit(prompt, sequence, FRAGMENT, 0);
        bench.wait(MS / 2);
        bench.end_read_of(prompt);
        bench.consume(app);
        bench.wait(30 * MS);
    }
    assert!(!bench.world.disconnects.is_empty(), "the fourth one waits, and nobody sees it");
    assert!(!bench.world.disconnects.contains(&prompt.0));
}

#[test]
fn a_new_peer_does_not_wait_behind_slow_ones() {
    let config = Config { peers_max: 16, messages_max: 256, ..shared() };
    let mut bench = Bench::new(config);
    let app = bench.open("disk");
    let slow: Vec<PeerId> = (0..10).map(|_| bench.join("disk")).collect();
    slow.iter().for_each(|&peer| bench.deliver_slowly(peer, app));
    slow.iter().for_each(|&peer| bench.request_with_credit(peer, 2, FRAGMENT, 0));
    assert_eq!(bench.world.reads.len(), 5, "five eighths of 8");
    let new: Vec<PeerId> = (0..3).map(|_| bench.join("disk")).collect();
    new.iter().for_each(|&peer| bench.request_with_credit(peer, 1, FRAGMENT, 2));
    assert_eq!(new.iter().map(|&peer| bench.reads_of(peer)).collect::<Vec<_>>(), [1, 0, 0]);
    let urgent = bench.join("disk");
    bench.request_with_credit(urgent, 1, FRAGMENT, 0);
    assert_eq!(bench.reads_of(urgent), 0, "slow and new ones have three quarters");
    bench.now_ns += 100 * MS;
    bench.end_read_of(slow[0]);
    bench.flush();
    assert_eq!(bench.reads_of(urgent), 1, "before slow ones, and before new ones of lower classes");
    bench.end_read_of(slow[1]);
    bench.flush();
    assert_eq!(new.iter().map(|&peer| bench.reads_of(peer)).collect::<Vec<_>>(), [1, 1, 0]);
}

#[test]
fn a_peer_that_is_being_disconnected_is_not_chosen_again() {
    let mut bench = Bench::new(Config { reads_max: 4, in_flight_bytes: 256 << 10, ..shared() });
    bench.open("disk");
    let peers: Vec<PeerId> = (0..4).map(|_| bench.join("disk")).collect();
    bench.request_one_each(&peers);
    // The connection of the first one takes long to end.
    for _ in 0..350 {
        bench.wait(100 * MS);
    }
    assert_eq!(bench.world.disconnects[..2], [peers[0].0, peers[1].0]);
    assert!(bench.receiver.stats().stalled_peers >= 2);
}

#[test]
fn new_peers_do_not_keep_slow_ones_waiting() {
    let config = Config { peers_max: 40, messages_max: 256, ..shared() };
    let mut bench = Bench::new(config);
    let app = bench.open("disk");
    let slow = bench.join("disk");
    bench.deliver_slowly(slow, app);
    // There are always new peers that deliver nothing for a second.
    let new: Vec<PeerId> = (0..30).map(|_| bench.join("disk")).collect();
    new.iter().for_each(|&peer| bench.request_with_credit(peer, 1, FRAGMENT, 0));
    bench.wait(1000 * MS);
    bench.request_with_credit(slow, 2, FRAGMENT, 0);
    bench.end_read_of(new[0]);
    bench.wait(MS);
    assert_eq!(bench.reads_of(slow), 1);
}

#[test]
fn a_message_of_a_low_class_gets_its_turn_among_slow_peers() {
    let config = Config { peers_max: 16, messages_max: 256, ..shared() };
    let mut bench = Bench::new(Config { requests_per_peer: 100, credit_max: 48, ..config });
    let apps = [bench.open("urgent"), bench.open("low")];
    let urgent: Vec<PeerId> = (0..8).map(|_| bench.join("urgent")).collect();
    let [low, stream] = [(); 2].map(|()| bench.join("low"));
    urgent.iter().for_each(|&peer| bench.deliver_slowly(peer, apps[0]));
    bench.deliver_slowly(low, apps[1]);
    let next = bench.warm(stream, apps[1], 1);
    urgent.iter().for_each(|&peer| bench.request_with_credit(peer, 2, 1 << 30, 0));
    bench.request_with_credit(low, 2, FRAGMENT, 3);
    // A prompt sender of the low class goes on meanwhile, which does not help the slow one.
    bench.request_with_credit(stream, next, 1 << 30, 3);
    let mut steps = 0;
    while bench.reads_of(low) == 0 {
        if steps % 50 == 0 {
            let oldest = bench.world.reads.iter().find(|read| urgent.contains(&read.0)).unwrap().0;
            bench.end_read_of(oldest);
        }
        (0..bench.reads_of(stream)).for_each(|_| bench.end_read_of(stream));
        apps.iter().for_each(|&app| bench.consume(app));
        bench.wait(MS);
        steps += 1;
        assert!(steps < 1000, "it never returns");
    }
}

#[test]
fn messages_of_a_low_class_take_up_no_room_of_an_urgent_one() {
    // The messages of class 3 are half of the pool each. One of their READs at a time is in flight, so what
    // they take up is expected, and not there yet.
    let mut bench = Bench::new(Config { peer_share_percent: 100, ..shared() });
    bench.open("low");
    bench.open("urgent");
    bench.world.reads_max = [(0, 1), (1, 1)].into();
    let lows = [bench.join("low"), bench.join("low")];
    let urgent = bench.join("urgent");
    lows.iter().for_each(|&peer| bench.request_class(peer, 1, 8 * FRAGMENT, 3, None));
    bench.flush();
    assert_eq!(bench.receiver.stats().running, 1, "the other one has no room");
    (1..=3).for_each(|n| bench.request(urgent, n, 3 * FRAGMENT, None));
    bench.flush();
    assert_eq!(bench.receiver.stats().running, 4, "all of class 0");
}

#[test]
fn a_short_message_waits_for_no_end_of_its_peers_long_ones() {
    let mut bench = Bench::new(shared());
    let app = bench.open("disk");
    let peer = bench.join("disk");
    (1..=2).for_each(|n| bench.request_with_credit(peer, n, 1 << 30, 0));
    bench.request_with_credit(peer, 3, FRAGMENT, 0);
    for _ in 0..10 {
        bench.now_ns += 60 * MS;
        bench.read_and_consume(&[app]);
    }
    assert!(bench.has_ended(peer, 3), "the peer is slow, and has two messages side by side");
}

#[test]
fn room_that_is_not_enough_for_one_waits_for_it() {
    // 64 slabs are for reading. One application holds 16 of them, and another waits for 16 that it needs.
    let config =
        Config { peer_share_percent: 100, pool_slabs: 96, in_flight_bytes: 4 * FRAGMENT, ..shared() };
    let mut bench = Bench::new(Config { reads_max: 4, ..config });
    let apps = [bench.open("large"), bench.open("small")];
    let [large, small] = [bench.join("large"), bench.join("small")];
    bench.request(large, 1, 10 * FRAGMENT, None);
    bench.flush();
    let mut reads = 0;
    (1..=12).for_each(|n| bench.request_with_credit(small, n, FRAGMENT / 4, 0));
    while !bench.has_ended(large, 1) {
        let (peer, ..) = bench.world.reads[0];
        bench.read_done();
        bench.consume(apps[usize::from(peer == small)]);
        bench.flush();
        reads += 1;
        assert!(reads < 60, "short messages take what it waits for");
    }
}

#[test]
fn the_place_of_a_slow_peer_goes_to_who_has_waited_longest() {
    let config = Config { peers_max: 16, messages_max: 256, ..shared() };
    let mut bench = Bench::new(config);
    let app = bench.open("disk");
    let slow: Vec<PeerId> = (0..6).map(|_| bench.join("disk")).collect();
    slow.iter().for_each(|&peer| bench.deliver_slowly(peer, app));
    slow.iter().for_each(|&peer| bench.request_with_credit(peer, 2, 1 << 30, 0));
    assert_eq!(bench.reads_of(slow[5]), 0);
    for (ends, waits) in [(2, 5), (3, 2), (0, 3), (1, 0)] {
        bench.now_ns += 100 * MS;
        bench.end_read_of(slow[ends]);
        bench.consume(app);
        bench.flush();
        assert_eq!((bench.reads_of(slow[waits]), bench.reads_of(slow[ends])), (1, 0), "{waits}");
    }
}

#[test]
fn senders_that_froze_with_half_of_everything_are_disconnected_while_a_prompt_one_waits() {
    let mut bench = Bench::new(shared());
    let apps = [bench.open("frozen"), bench.open("live")];
    let [frozen, live] = [bench.join("frozen"), bench.join("live")];
    let next = bench.warm(frozen, apps[0], 1);
    let live_next = bench.warm(live, apps[1], 1);
    bench.request_with_credit(frozen, next, 1 << 30, 0);
    bench.request_with_credit(live, live_next, 1 << 30, 0);
    assert_eq!((bench.reads_of(frozen), bench.reads_of(live)), (6, 1), "the last eighth is left");
    let begin_ns = bench.now_ns;
    while bench.world.disconnects.is_empty() {
        bench.end_read_of(live);
        bench.consume(apps[1]);
        bench.wait(10 * MS);
        assert!(bench.now_ns < begin_ns + 5_000 * MS, "it keeps everything");
    }
    assert_eq!(bench.world.disconnects, [frozen.0]);
    assert!(bench.now_ns > begin_ns + 4_000 * MS, "it has time");
}

#[test]
fn messages_of_a_low_class_take_no_places_of_an_urgent_one() {
    let config = Config { peer_share_percent: 100, peers_max: 16, messages_max: 256, ..shared() };
    let mut bench = Bench::new(config);
    let apps = [bench.open("low"), bench.open("urgent")];
    let lows: Vec<PeerId> = (0..8).map(|_| bench.join("low")).collect();
    let urgent = bench.join("urgent");
    lows.iter().for_each(|&peer| bench.request_with_credit(peer, 1, 1 << 30, 3));
    (0..20).for_each(|_| _ = bench.read_and_consume(&apps));
    assert_eq!(bench.receiver.stats().running, 8, "as many as there may be");
    bench.request_with_credit(urgent, 1, 1 << 30, 0);
    (2..=3).for_each(|n| bench.request_with_credit(urgent, n, 4 * FRAGMENT, 0));
    bench.read_and_consume(&apps);
    assert_eq!(bench.receiver.stats().running, 11);
}

#[test]
fn who_was_new_and_is_slow_by_now_does_not_return_as_a_new_one() {
    let config = Config { peers_max: 16, messages_max: 256, pool_slabs: 1024, ..shared() };
    let mut bench = Bench::new(config);
    let app = bench.open("disk");
    let [slow, waits_longest] = [bench.join("disk"), bench.join("disk")];
    [slow, waits_longest].iter().for_each(|&peer| bench.deliver_slowly(peer, app));
    bench.request_with_credit(slow, 2, FRAGMENT, 0);
    let new: Vec<PeerId> = (0..5).map(|_| bench.join("disk")).collect();
    bench.request_one_each(&new);
    assert_eq!(bench.world.reads.len(), 6, "as much as slow and new peers may have");
    // Both wait as new ones. The second one is listed in two classes, and returns for the first of them.
    let [before, changes] = [bench.join("disk"), bench.join("disk")];
    bench.request_with_credit(before, 1, FRAGMENT, 1);
    bench.request_with_credit(changes, 1, 3 * FRAGMENT, 0);
    bench.request_with_credit(changes, 2, FRAGMENT, 1);
    bench.request_with_credit(waits_longest, 2, FRAGMENT, 0);
    bench.end_read_of(new[0]);
    bench.flush();
    assert_eq!((bench.reads_of(changes), bench.reads_of(before)), (1, 0));
    // Its READ takes long, so that it waits as a slow one from then on.
    bench.now_ns += 100 * MS;
    bench.end_read_of(changes);
    bench.flush();
    assert_eq!((bench.reads_of(changes), bench.reads_of(before)), (0, 1));
    bench.end_read_of(new[1]);
    bench.flush();
    assert_eq!((bench.reads_of(changes), bench.reads_of(waits_longest)), (0, 1));
}

/// Has four senders request a message of each of these lengths, and another one three of four fragments.
/// Returns how many messages are read side by side at most.
fn most_running_beside(lengths: &[u64]) -> u32 {
    let config =
        Config { pool_slabs: 2048, peers_max: 16, peer_share_percent: 100, reads_max: 4, ..shared() };
    let mut bench = Bench::new(config);
    let app = bench.open("disk");
    for &length in lengths {
        let peers: Vec<PeerId> = (0..4).map(|_| bench.join("disk")).collect();
        peers.iter().for_each(|&peer| bench.request_with_credit(peer, 1, length, 0));
    }
    let other = bench.join("disk");
    (1..=3).for_each(|n| bench.request_with_credit(other, n, 4 * FRAGMENT, 0));
    let mut most = 0;
    while !bench.has_ended(other, 3) {
        bench.read_and_consume(&[app]);
        most = most.max(bench.receiver.stats().running);
    }
    most
}

#[test]
fn long_messages_take_no_places_of_short_ones() {
    let (long, short) = (1 << 30, 4 * FRAGMENT);
    assert_eq!(most_running_beside(&[long]), 4 + 3);
    assert_eq!(most_running_beside(&[short]), 4 + 1, "short ones do: it waits for their ends");
    assert_eq!(most_running_beside(&[long, short]), 4 + 4 + 1);
}

/// Without the escape, and with room for less than two fragments, an application has one message read.
pub(super) fn one_at_a_time() -> Config {
    let escape = EscapeConfig { enabled: false, ..config().escape };
    let config = Config { pool_slabs: 16 + 24, srq_slabs: 16, credit_max: 16, ..shared() };
    Config { in_flight_bytes: 3 * FRAGMENT / 2, peer_share_percent: 100, escape, ..config }
}

impl Bench {
    /// Has these peers request messages of three fragments, each so many at a time, until so many READs have
    /// ended. Returns the READs of each.
    fn reads_side_by_side(
        &mut self,
        peers: &[PeerId],
        apps: &[SessionId],
        (at_a_time, reads): (u64, usize),
    ) -> Vec<usize> {
        let (mut next, mut got) = (alloc::vec![1; peers.len()], alloc::vec![0; peers.len()]);
        for _ in 0..reads {
            for (&peer, next) in peers.iter().zip(&mut next) {
                while *next <= at_a_time || self.has_ended(peer, *next - at_a_time) {
                    self.request_with_credit(peer, *next, 3 * FRAGMENT, 0);
                    *next += 1;
                }
            }
            let peer = self.read_and_consume(apps);
            got[peers.iter().position(|&other| other == peer).unwrap()] += 1;
        }
        got
    }
}

/// Found by jet-sim --seed 207000396832922.
#[test]
fn senders_to_one_application_are_read_in_turn_where_it_is_read_a_message_at_a_time() {
    let mut bench = Bench::new(one_at_a_time());
    let apps = ["both", "other"].map(|app| bench.open(app));
    let peers = ["both", "both", "other"].map(|app| bench.join(app));
    let got = bench.reads_side_by_side(&peers, &apps, (4, 120));
    assert!(got.iter().all(|&got| got >= 120 / 5), "{got:?} of 120 READs");
}

#[test]
fn however_many_senders_wait_for_their_application_all_are_read_in_turn() {
    // They are more than admission looks at in a turn. With room for two fragments, one message may begin
    // before another has ended. How many they request at a time says how often admission looks meanwhile.
    let config = Config { reads_max: 4, peers_max: 16, messages_max: 256, srq_slabs: 64, ..one_at_a_time() };
    for (room_slabs, at_a_time) in [24, 31, 34].into_iter().flat_map(|room| (1..=6).map(move |n| (room, n))) {
        let mut bench = Bench::new(Config { pool_slabs: 64 + room_slabs, ..config });
        let apps = ["many", "one"].map(|app| bench.open(app));
        let mut peers: Vec<PeerId> = (0..12).map(|_| bench.join("many")).collect();
        peers.push(bench.join("one"));
        let got = bench.reads_side_by_side(&peers, &apps, (at_a_time, 240));
        let case = alloc::format!("{got:?} READs, {room_slabs} slabs, {at_a_time} messages at a time");
        assert!(got[..12].iter().all(|got| (12..=25).contains(got)), "{case}");
        assert!(got[12] >= 240 / 13, "{case}");
    }
}

#[test]
fn however_many_applications_wait_for_their_messages_all_are_read_in_turn() {
    // Of each one stays in front, and they are more than admission looks at beside these.
    let config = Config { reads_max: 2, peers_max: 32, messages_max: 512, srq_slabs: 64, ..one_at_a_time() };
    let config = Config { sessions_max: 8, ..config };
    for (room_slabs, at_a_time) in [24, 34].into_iter().flat_map(|room| (1..=4).map(move |n| (room, n))) {
        let mut bench = Bench::new(Config { pool_slabs: 64 + room_slabs, ..config });
        let names: Vec<_> = (0..8).map(|app| alloc::format!("app-{app}")).collect();
        let apps: Vec<SessionId> = names.iter().map(|app| bench.open(app)).collect();
        let peers: Vec<PeerId> = names.iter().flat_map(|app| [app; 3]).map(|app| bench.join(app)).collect();
        let got = bench.reads_side_by_side(&peers, &apps, (at_a_time, 480));
        let case = alloc::format!("{got:?} READs, {room_slabs} slabs, {at_a_time} messages at a time");
        assert!(got.iter().all(|got| (12..=30).contains(got)), "{case}");
    }
}

/// Returns the longest waits of five senders, in READs of others, where there is room for so many slabs of
/// READs. The first three senders are of one application, of classes 0, 2 and 3. The others are another
/// application's, of class 3, with messages of one READ each.
fn longest_waits(room_slabs: u32) -> [u32; 5] {
    let config = Config { messages_max: 256, pool_slabs: 16 + room_slabs, ..one_at_a_time() };
    let mut bench = Bench::new(config);
    let apps = ["both", "other"].map(|app| bench.open(app));
    let peers = ["both", "both", "both", "other", "other"].map(|app| bench.join(app));
    let classes = [0, 2, 3, 3, 3];
    let lengths = [3 * FRAGMENT, 3 * FRAGMENT, 3 * FRAGMENT, FRAGMENT / 2, FRAGMENT / 2];
    let (mut next, mut waits, mut longest) = ([1; 5], [0; 5], [0; 5]);
    for _ in 0..400 {
        for (at, &peer) in peers.iter().enumerate() {
            while next[at] <= 4 || bench.has_ended(peer, next[at] - 4) {
                bench.request_with_credit(peer, next[at], lengths[at], classes[at]);
                next[at] += 1;
            }
        }
        // Each READ takes longer than a class waits.
        bench.now_ns += 2 * config.aging_ns;
        let peer = bench.read_and_consume(&apps);
        for (at, &other) in peers.iter().enumerate() {
            waits[at] = if peer == other { 0 } else { waits[at] + 1 };
            longest[at] = longest[at].max(waits[at]);
        }
    }
    longest
}

/// Found by jet-sim --seed 212873658719713 and --seed 2026112750080059.
#[test]
fn a_low_class_of_one_application_is_read_where_it_is_read_a_message_at_a_time() {
    // With room for two fragments, one message may begin before another has ended.
    for room_slabs in [24, 32, 40, 48] {
        let longest = longest_waits(room_slabs);
        assert!(longest.iter().all(|&longest| longest <= 40), "{longest:?} READs of others");
    }
}

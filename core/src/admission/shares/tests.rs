use super::*;

const FRAGMENT: u64 = 256 << 10;
const MS: u64 = 1_000_000;

/// Shares with a clock and the READs in flight, oldest first.
struct Bench {
    shares: Shares,
    now_ns: u64,
    all: InFlight,
    posted: Vec<(u32, u64, u64)>,
}

impl Bench {
    fn new(peers: u32) -> Self {
        let mut shares = Shares::new(&Config { peers_max: peers, ..Config::default() });
        (0..peers).for_each(|peer| shares.set_reads_max(peer, 1000));
        Self { shares, now_ns: 1_000 * MS, all: InFlight { reads: 0, bytes: 0 }, posted: Vec::new() }
    }

    fn turn(&mut self, peer: u32, bytes: u64) -> Turn {
        self.shares.turn(peer, bytes, self.now_ns, self.all)
    }

    /// Posts READs to the peer while it may have them; returns how many.
    fn post(&mut self, peer: u32, bytes: u64) -> u32 {
        let mut posted = 0;
        while self.turn(peer, bytes) == Turn::Now {
            self.post_one(peer, bytes);
            posted += 1;
        }
        posted
    }

    /// Posts a READ to the peer.
    fn post_one(&mut self, peer: u32, bytes: u64) {
        self.shares.posted((peer, 0), bytes, self.now_ns);
        self.all.reads += 1;
        self.all.bytes += bytes;
        self.posted.push((peer, bytes, self.now_ns));
    }

    /// Ends the oldest READ of the peer after so long.
    fn end(&mut self, peer: u32, span_ns: u64) {
        self.now_ns += span_ns;
        let oldest = self.posted.iter().position(|read| read.0 == peer).expect("a READ is in flight");
        let (_, bytes, posted_ns) = self.posted.remove(oldest);
        self.shares.ended(peer, bytes, posted_ns, self.now_ns, true);
        self.all.reads -= 1;
        self.all.bytes -= bytes;
    }

    /// Lets time pass with a tick now and then. Another peer delivers meanwhile, if there is one.
    fn pass(&mut self, span_ns: u64, other: Option<u32>) {
        for _ in 0..span_ns / (100 * MS) {
            self.now_ns += 100 * MS;
            if let Some(other) = other {
                assert_eq!(self.turn(other, FRAGMENT), Turn::Now, "there is always room for one more");
                self.shares.posted((other, 0), FRAGMENT, self.now_ns);
                self.shares.ended(other, FRAGMENT, self.now_ns, self.now_ns, true);
            }
            self.shares.tick(self.now_ns);
        }
    }

    fn longest_stalled(&self) -> Option<u32> {
        self.shares.longest_stalled(self.now_ns, |_| true)
    }

    /// Has a peer deliver fragments at a rate for a while, with as much in flight as it may have.
    fn deliver(&mut self, peer: u32, bytes_per_ms: u64, fragments: u32) {
        for _ in 0..fragments {
            self.post(peer, FRAGMENT);
            self.end(peer, FRAGMENT * MS / bytes_per_ms);
        }
        while self.shares.reads(peer) > 0 {
            self.end(peer, FRAGMENT * MS / bytes_per_ms);
        }
    }
}

#[test]
fn a_peer_that_has_delivered_nothing_has_one_read() {
    let mut bench = Bench::new(1);
    assert_eq!(bench.post(0, 4096), 1, "however short");
    assert_eq!(bench.turn(0, 4096), Turn::AfterOwn);
}

#[test]
fn a_window_is_what_the_peer_delivers_in_the_horizon() {
    // 100 KB/s, 10 MB/s, 100 MB/s, 1 GB/s: one fragment, two (a fragment takes longer than the horizon), 7
    // (2 MB), and the peer's share (6 MiB).
    for (bytes_per_ms, reads) in [(100, 1), (10_000, 2), (100_000, 7), (1_000_000, 24)] {
        let mut bench = Bench::new(1);
        bench.deliver(0, bytes_per_ms, 200);
        assert_eq!(bench.post(0, FRAGMENT), reads, "at {bytes_per_ms} B/ms");
    }
}

#[test]
fn a_long_round_trip_is_not_held_against_a_peer() {
    // Each READ takes 50 ms, however many are in flight.
    let mut bench = Bench::new(1);
    let mut reads = Vec::new();
    for _ in 0..6 {
        reads.push(bench.post(0, FRAGMENT));
        bench.now_ns += 50 * MS;
        while bench.shares.reads(0) > 0 {
            bench.end(0, 0);
        }
    }
    assert_eq!(reads[..4], [1, 2, 4, 4], "the window grows; a slow peer has an eighth of the READs");
    assert!(bench.shares.window_bytes(0) > 4 * FRAGMENT);
}

#[test]
fn many_new_peers_leave_three_eighths_to_the_others() {
    let mut bench = Bench::new(42);
    bench.deliver(41, 1_000_000, 50);
    let posted: u32 = (0..40).map(|peer| bench.post(peer, FRAGMENT)).sum();
    assert_eq!(posted, 20, "five eighths of 32 READs");
    assert_eq!(bench.turn(40, FRAGMENT), Turn::AfterSlow);
    assert_eq!(bench.post(41, FRAGMENT), 8, "a prompt peer goes on, up to the last eighth");
    bench.end(3, MS);
    assert_eq!(bench.turn(40, FRAGMENT), Turn::Now);
}

#[test]
fn slow_and_new_peers_leave_each_other_some() {
    let mut bench = Bench::new(42);
    // Each of these delivers a fragment in 100 ms.
    (0..30).for_each(|peer| bench.deliver(peer, 2_621, 1));
    let posted: u32 = (0..30).map(|peer| bench.post(peer, FRAGMENT)).sum();
    assert_eq!(posted, 20, "five eighths of 32 READs");
    assert_eq!(bench.turn(29, FRAGMENT), Turn::AfterSlow);
    let posted: u32 = (30..42).map(|peer| bench.post(peer, FRAGMENT)).sum();
    assert_eq!(posted, 4, "three quarters together");
    assert_eq!(bench.turn(41, FRAGMENT), Turn::AfterSlow);
    let mut unproven = bench.shares.unproven();
    let mut takes = |bench: &Bench, kinds: [Standing; 2]| {
        unproven = bench.shares.unproven();
        kinds.map(|kind| bench.shares.take_of(&mut unproven, kind))
    };
    assert_eq!(takes(&bench, [Standing::New, Standing::Slow]), [false, false]);
    bench.end(0, MS);
    assert_eq!(takes(&bench, [Standing::New, Standing::Slow]), [true, false], "it is the same READ");
    assert_eq!(takes(&bench, [Standing::Slow, Standing::New]), [true, false]);
    // New peers that deliver nothing stay new, and leave slow ones their READs.
    let mut bench = Bench::new(52);
    (30..36).for_each(|peer| bench.deliver(peer, 2_621, 1));
    let new: u32 = (0..30).map(|peer| bench.post(peer, FRAGMENT)).sum();
    bench.now_ns += 3_000 * MS;
    bench.shares.tick(bench.now_ns);
    let slow: u32 = (30..36).map(|peer| bench.post(peer, FRAGMENT)).sum();
    assert_eq!((new, slow), (20, 4));
}

#[test]
fn slow_peers_with_several_reads_each_have_five_eighths_together() {
    let mut bench = Bench::new(8);
    (0..8).for_each(|peer| bench.deliver(peer, 2_621, 1));
    // One more each, as its connection takes it, in turns.
    for reads_max in 1..=4 {
        (0..8).for_each(|peer| bench.shares.set_reads_max(peer, reads_max));
        (0..8).for_each(|peer| _ = bench.post(peer, FRAGMENT / 8));
    }
    assert_eq!(bench.all.reads, 20);
}

#[test]
fn who_needs_more_bytes_than_are_free_comes_next_or_has_a_part_where_slow_ones_have_the_others() {
    let mut bench = Bench::new(4);
    let config =
        Config { in_flight_bytes: 2 * FRAGMENT, reads_max: 8, peer_share_percent: 100, ..Config::default() };
    bench.shares = Shares::new(&Config { peers_max: 4, ..config });
    (0..4).for_each(|peer| bench.shares.set_reads_max(peer, 1000));
    bench.deliver(0, 1_000_000, 50);
    bench.deliver(1, 2_621, 1);
    assert_eq!(bench.post(0, FRAGMENT / 2), 4);
    assert_eq!(bench.turn(2, FRAGMENT), Turn::Next);
    assert_eq!(bench.turn(0, FRAGMENT), Turn::AfterAny, "it has READs");
    (0..4).for_each(|_| bench.end(0, MS));
    assert_eq!(bench.post(1, FRAGMENT / 2), 4);
    assert_eq!(bench.turn(2, FRAGMENT), Turn::AfterAny, "others do not wait for a slow peer");
    bench.now_ns += bench.shares.limits.aging_ns + MS;
    assert_eq!(bench.turn(2, FRAGMENT), Turn::AfterAny, "nothing is free");
    bench.end(1, 0);
    assert_eq!(bench.turn(2, FRAGMENT), Turn::Part(FRAGMENT / 2), "it has waited long");
    bench.shares.posted((2, 0), FRAGMENT / 2, bench.now_ns);
    assert_eq!(bench.turn(2, FRAGMENT), Turn::AfterAny, "its part first");
    bench.shares.ended(2, FRAGMENT / 2, bench.now_ns, bench.now_ns, true);
    assert_eq!(bench.turn(2, FRAGMENT), Turn::Part(FRAGMENT / 2), "and the next one at once");
}

/// With half of the bytes of the default, so that bytes are short before READs are.
#[test]
fn a_chosen_peer_has_its_fragment_though_shorter_reads_could_take_what_is_free_each_time() {
    const SHORT: u64 = 140 << 10;
    let mut bench = Bench::new(42);
    let config = Config { in_flight_bytes: 4 << 20, peers_max: 42, ..Config::default() };
    bench.shares = Shares::new(&config);
    (0..42).for_each(|peer| bench.shares.set_reads_max(peer, 1000));
    bench.deliver(40, 1_000_000, 1);
    (0..40).for_each(|peer| bench.deliver(peer, 1_000_000, 50));
    for peer in 0..40 {
        if bench.turn(peer, SHORT) == Turn::Now {
            bench.post_one(peer, SHORT);
        }
    }
    assert!(bench.all.reads < 31, "bytes are short, not READs");
    assert_eq!(bench.turn(40, FRAGMENT), Turn::AfterSlow);
    bench.shares.choose(40);
    for _ in 0..20 {
        // Those in front of it ask first, as long as nothing is kept.
        match bench.turn(40, FRAGMENT) {
            Turn::Now => return,
            turn => assert_eq!(turn, Turn::Next, "else the next short READ takes what is free"),
        }
        let (peer, ..) = bench.posted[0];
        bench.end(peer, MS);
    }
    panic!("it never has it");
}

#[test]
fn a_prompt_peer_that_freezes_leaves_some_to_new_and_slow_ones() {
    let mut bench = Bench::new(10);
    bench.deliver(0, 1_000_000, 50);
    (1..3).for_each(|peer| bench.deliver(peer, 2_621, 1));
    assert_eq!(bench.post(0, FRAGMENT), 24);
    bench.now_ns += 1_000 * MS;
    bench.shares.tick(bench.now_ns);
    let new: u32 = (3..10).map(|peer| bench.post(peer, FRAGMENT)).sum();
    assert_eq!(new, 4, "it is slow now, with more than slow peers may have");
    assert_eq!(bench.turn(9, FRAGMENT), Turn::AfterSlow);
    assert_eq!(bench.turn(1, FRAGMENT), Turn::AfterSlow, "slow ones wait for its end");
}

#[test]
fn who_waits_for_bytes_does_not_return_for_a_read() {
    let mut bench = Bench::new(30);
    bench.shares = Shares::new(&Config { reads_max: 64, peers_max: 30, ..Config::default() });
    (0..30).for_each(|peer| bench.shares.set_reads_max(peer, 1000));
    let posted: u32 = (0..30).map(|peer| bench.post(peer, FRAGMENT)).sum();
    assert_eq!(posted, 20, "five eighths of 8 MiB");
    let mut unproven = bench.shares.unproven();
    assert!(!bench.shares.take_of(&mut unproven, Standing::New));
    assert!(bench.shares.take_of(&mut unproven, Standing::Slow));
}

#[test]
fn each_kind_has_one_read_however_few_there_are() {
    let mut bench = Bench::new(3);
    bench.shares = Shares::new(&Config { reads_max: 2, peers_max: 3, ..Config::default() });
    (0..3).for_each(|peer| bench.shares.set_reads_max(peer, 1000));
    bench.deliver(0, 2_621, 1);
    assert_eq!([1, 2].map(|peer| bench.post(peer, FRAGMENT)), [1, 0]);
    assert_eq!(bench.post(0, FRAGMENT), 1, "a slow one");
}

#[test]
fn peers_that_have_half_of_everything_and_deliver_nothing_are_told() {
    let mut bench = Bench::new(3);
    (0..2).for_each(|peer| bench.deliver(peer, 1_000_000, 50));
    assert_eq!([0, 1].map(|peer| bench.post(peer, FRAGMENT)), [24, 4]);
    bench.pass(STALL_NS_MAX, Some(2));
    assert!(!bench.shares.are_stalled_for_long(bench.now_ns));
    bench.pass(300 * MS, Some(2));
    assert!(bench.shares.are_stalled_for_long(bench.now_ns));
    (0..13).for_each(|_| bench.end(0, 0));
    (0..4).for_each(|_| bench.end(1, 0));
    bench.pass(STALL_NS_LIMIT + 100 * MS, Some(2));
    assert_eq!(bench.longest_stalled(), Some(0));
    assert!(!bench.shares.are_stalled_for_long(bench.now_ns), "11 of 32 READs");
}

#[test]
fn the_last_eighth_is_for_peers_with_nothing_in_flight() {
    let mut bench = Bench::new(4);
    (0..4).for_each(|peer| bench.deliver(peer, 1_000_000, 50));
    assert_eq!([0, 1, 2, 3].map(|peer| bench.post(peer, FRAGMENT)), [24, 4, 1, 1]);
    assert_eq!(bench.turn(1, FRAGMENT), Turn::AfterAny);
}

#[test]
fn a_peer_that_stops_delivering_gets_nothing_more_until_it_delivers() {
    let mut bench = Bench::new(1);
    bench.deliver(0, 1_000_000, 50);
    bench.shares.posted((0, 0), FRAGMENT, bench.now_ns);
    bench.posted.push((0, FRAGMENT, bench.now_ns));
    (bench.all.reads, bench.all.bytes) = (1, FRAGMENT);
    assert_eq!(bench.turn(0, FRAGMENT), Turn::Now);
    let stall_ns = STALL_NS.max(4 * bench.shares.stats(0, bench.now_ns).usual_ns);
    bench.now_ns += stall_ns;
    assert_eq!(bench.turn(0, FRAGMENT), Turn::Now, "a pause of that length is usual");
    bench.now_ns += 1;
    assert_eq!(bench.turn(0, FRAGMENT), Turn::AfterOwn);
    bench.shares.tick(bench.now_ns);
    assert_eq!(bench.shares.unproven_reads(), 1, "what it has in flight counts as a slow peer's");
    bench.end(0, 0);
    assert_eq!(bench.shares.unproven_reads(), 0);
    assert!(bench.post(0, FRAGMENT) > 1, "one pause costs nothing else");
}

#[test]
fn the_peer_that_stalled_first_is_found_once_it_took_long() {
    let mut bench = Bench::new(3);
    bench.post(0, FRAGMENT);
    bench.now_ns += 1;
    bench.post(1, FRAGMENT);
    bench.pass(SILENT_NS_MAX - 100 * MS, Some(2));
    assert_eq!(bench.longest_stalled(), None);
    bench.pass(300 * MS, Some(2));
    assert_eq!(bench.longest_stalled(), Some(0));
    let is_meant = |peer| peer != 0;
    assert_eq!(bench.shares.longest_stalled(bench.now_ns, is_meant), Some(1), "the first one is leaving");
    bench.end(0, 0);
    assert_eq!(bench.longest_stalled(), Some(1));
}

#[test]
fn a_first_read_has_as_much_time_as_others_where_nobody_has_half_of_everything() {
    let mut bench = Bench::new(2);
    bench.post(0, FRAGMENT);
    bench.pass(STALL_NS_MAX - 100 * MS, Some(1));
    assert!(bench.longest_stalled() == Some(0) && !bench.shares.is_silent(0, bench.now_ns));
    bench.pass(400 * MS, Some(1));
    assert!(bench.shares.is_silent(0, bench.now_ns));
    // Nobody is heard meanwhile.
    bench.post(1, FRAGMENT);
    bench.end(0, 0);
    bench.post(0, FRAGMENT);
    bench.pass(2 * STALL_NS_MAX, None);
    assert!(!bench.shares.is_silent(1, bench.now_ns));
}

#[test]
fn a_silence_of_all_peers_is_no_peers_fault_unless_it_lasts() {
    let mut bench = Bench::new(2);
    bench.deliver(0, 1_000_000, 50);
    bench.post(0, FRAGMENT);
    bench.pass(3_000 * MS, Some(1));
    // The receiver hears nobody for 20 s.
    bench.pass(20_000 * MS, None);
    assert_eq!(bench.longest_stalled(), None);
    // The other one is the first to be heard again. From then on this one has its whole time.
    bench.pass(4_100 * MS, Some(1));
    assert_eq!(bench.longest_stalled(), None, "it has as much time as others need to be heard again");
    bench.pass(100 * MS, Some(1));
    assert_eq!(bench.longest_stalled(), Some(0));
    // After a shorter one it has the rest, less the second after which the silence of all was noticed.
    let mut bench = Bench::new(2);
    bench.deliver(0, 1_000_000, 50);
    let posted = bench.post(0, FRAGMENT);
    bench.pass(2_000 * MS, Some(1));
    bench.pass(3_000 * MS, None);
    bench.pass(1_000 * MS, Some(1));
    assert_eq!(bench.longest_stalled(), None);
    bench.pass(300 * MS, Some(1));
    assert_eq!(bench.longest_stalled(), Some(0));
    (0..posted).for_each(|_| bench.end(0, 0));
    bench.post(0, FRAGMENT);
    bench.pass(STALL_NS_LIMIT, None);
    assert_eq!(bench.longest_stalled(), None);
    bench.pass(100 * MS, None);
    assert_eq!(bench.longest_stalled(), Some(0), "it may be that the silent ones have all READs");
    // Who has delivered nothing yet has less time, whoever is heard.
    let mut bench = Bench::new(2);
    bench.post(0, FRAGMENT);
    bench.pass(SILENT_NS_MAX - 100 * MS, None);
    assert_eq!(bench.longest_stalled(), None);
    bench.pass(200 * MS, None);
    assert_eq!(bench.longest_stalled(), Some(0));
}

#[test]
fn an_honest_slow_peer_is_not_the_one_that_stalled() {
    let mut bench = Bench::new(2);
    bench.deliver(0, 100, 3);
    bench.post(0, FRAGMENT);
    // A fragment takes 2.6 s.
    bench.pass(10_000 * MS, Some(1));
    assert_eq!(bench.longest_stalled(), None);
    bench.pass(1_000 * MS, Some(1));
    assert_eq!(bench.longest_stalled(), Some(0));
    // Four times this one's usual span are 105 s.
    let mut bench = Bench::new(2);
    bench.deliver(0, 10, 3);
    bench.post(0, FRAGMENT);
    bench.pass(STALL_NS_LIMIT, Some(1));
    assert_eq!(bench.longest_stalled(), None);
    bench.pass(100 * MS, Some(1));
    assert_eq!(bench.longest_stalled(), Some(0), "there is a limit");
}

#[test]
fn without_shares_one_peer_may_have_everything() {
    let config = Config { peer_share_percent: 100, peers_max: 1, ..Config::default() };
    let mut bench = Bench::new(1);
    bench.shares = Shares::new(&config);
    bench.shares.set_reads_max(0, 1000);
    assert_eq!(bench.post(0, FRAGMENT), 32);
    assert_eq!(bench.turn(0, FRAGMENT), Turn::AfterAny);
}

mod model {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
        /// Whatever peers do, what slow ones have in flight is what their READs add up to, and the limits
        /// hold that do not depend on time.
        #[test]
        fn counts_are_what_the_reads_add_up_to(
            ops in prop::collection::vec((0..6u32, 1..=64u64, 0..30u64, 0..4u8), 1..300),
        ) {
            let mut bench = Bench::new(6);
            for (peer, slabs, span_ms, what) in ops {
                match what {
                    0 => { bench.post(peer, slabs * 4096); }
                    1 if bench.shares.reads(peer) > 0 => bench.end(peer, span_ms * MS),
                    2 => bench.shares.tick(bench.now_ns),
                    _ => bench.now_ns += span_ms * MS,
                }
                let (mut slow, mut new) = ((0, 0), (0, 0));
                for peer in 0..6 {
                    let own: Vec<_> = bench.posted.iter().filter(|read| read.0 == peer).collect();
                    let bytes: u64 = own.iter().map(|read| read.1).sum();
                    prop_assert_eq!(bench.shares.reads(peer) as usize, own.len());
                    prop_assert_eq!(bench.shares.bytes(peer), bytes);
                    prop_assert!(own.len() <= 24 && bytes <= 6 << 20, "a peer's share");
                    prop_assert_eq!(bench.shares.busy.contains(&peer), !own.is_empty());
                    match bench.shares.peers[peer as usize].standing {
                        Standing::New | Standing::Silent => new = (new.0 + own.len(), new.1 + bytes),
                        Standing::Slow => slow = (slow.0 + own.len(), slow.1 + bytes),
                        Standing::Prompt => {}
                    }
                }
                let unproven = bench.shares.unproven();
                prop_assert_eq!((unproven.slow.reads as usize, unproven.slow.bytes), slow);
                prop_assert_eq!((unproven.new.reads as usize, unproven.new.bytes), new);
                prop_assert!(bench.all.reads <= 32 && bench.all.bytes <= 8 << 20);
            }
        }
    }
}

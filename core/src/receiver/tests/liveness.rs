//! Tests that no application waits for ever: some collect what they get, and some give nothing back beside
//! one that does.

use super::*;

/// A group of senders that send with whatever credit they have, and answer recalls at once.
struct Crowd {
    used: BTreeMap<u32, u64>,
    sequence: u64,
}

impl Crowd {
    fn new() -> Self {
        Self { used: BTreeMap::new(), sequence: 0 }
    }

    /// Returns whether the peer could send one more now, and counts that as sent.
    fn may_send(&mut self, bench: &Bench, peer: PeerId) -> bool {
        let used = self.used.entry(peer.0).or_default();
        let may = *used < bench.world.limits[&peer.0] && !bench.world.posted.is_empty();
        *used += u64::from(may);
        self.sequence += u64::from(may);
        may
    }

    fn small(&mut self, bench: &mut Bench, peer: PeerId) -> bool {
        let may = self.may_send(bench, peer);
        if may {
            bench.small(peer, self.sequence, b"x");
        }
        may
    }

    fn large(&mut self, bench: &mut Bench, peer: PeerId, length: u64) -> bool {
        let may = self.may_send(bench, peer);
        if may {
            bench.request(peer, self.sequence, length, None);
        }
        may
    }

    /// Ends READs and copies, completes SENDs, and answers recalls.
    fn turn(&mut self, bench: &mut Bench) {
        bench.flush();
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
        for (peer, keep) in core::mem::take(&mut bench.world.recalls) {
            if bench.world.posted.is_empty() {
                continue;
            }
            let used = self.used.entry(peer).or_default();
            *used += 1;
            let keep = keep.max(*used);
            bench.world.limits.insert(peer, keep);
            bench.arrive(PeerId(peer), &jet_wire::message::CreditReturn::encode(keep), &[]);
        }
    }
}

fn bench(config: Config) -> Bench {
    let mut bench = Bench::new(config);
    bench.receiver.handle_escape_memory(u32::MAX);
    bench
}

/// Runs an application that takes its messages one after the other. It gives a message's slices back when all
/// of the message arrived; later messages lie unread. `others` senders keep a second application busy.
fn collects(config: Config, messages: usize, length: u64, others: usize) {
    let mut bench = bench(config);
    let mut crowd = Crowd::new();
    let (app, other) = (bench.open("collect"), bench.open("other"));
    let peer = bench.join("collect");
    let others: Vec<PeerId> = (0..others).map(|_| bench.join("other")).collect();
    let (mut unread, mut order, mut taken) =
        (Vec::<Delivery>::new(), VecDeque::new(), Vec::<Delivery>::new());
    let (mut requested, mut done) = (0, 0);
    for _ in 0..5000 {
        while requested < messages && crowd.large(&mut bench, peer, length) {
            requested += 1;
        }
        for &peer in &others {
            (0..16).take_while(|_| crowd.small(&mut bench, peer)).for_each(drop);
        }
        crowd.turn(&mut bench);
        while let Some((delivery, _)) = bench.delivery(other) {
            bench.release(other, &delivery, true, 0);
        }
        while let Some((delivery, _)) = bench.delivery(app) {
            if delivery.flags & delivery_flags::FIRST != 0 {
                order.push_back(delivery.message);
            }
            unread.push(delivery);
        }
        while let Some(&first) = order.front() {
            let (mine, rest) = unread.drain(..).partition(|delivery| delivery.message == first);
            unread = rest;
            taken.extend(Vec::<Delivery>::into_iter(mine));
            taken.iter().for_each(|delivery| {
                bench.world.memory.pinned.insert((app.0, delivery.slot));
            });
            if taken.iter().map(|delivery| u64::from(delivery.bytes)).sum::<u64>() < length {
                break;
            }
            order.pop_front();
            let count = taken.len();
            for (at, delivery) in taken.drain(..).enumerate() {
                bench.release(app, &delivery, at + 1 == count, 0);
            }
            done += 1;
        }
        bench.flush();
        bench.wait(100_000);
        if done == messages {
            return;
        }
    }
    panic!(
        "{done} of {messages} x {length} with {} others: {:?}, session {:?}",
        others.len(),
        bench.receiver.stats(),
        bench.receiver.session_stats(app)
    );
}

fn collect_all_sizes(config: Config) {
    for messages in [12, 32, 64] {
        for mib in [1, 2, 4] {
            for others in [0, 16] {
                collects(config, messages, mib << 20, others);
            }
        }
    }
}

#[test]
fn who_collects_a_message_before_it_reads_it_gets_all_of_it() {
    collect_all_sizes(Config::default());
}

#[test]
fn who_collects_gets_all_of_it_without_escape_too() {
    let config = Config::default();
    collect_all_sizes(Config { escape: EscapeConfig { enabled: false, ..config.escape }, ..config });
}

#[test]
fn who_collects_gets_all_of_it_without_escape_memory_too() {
    let config = Config::default();
    let escape = EscapeConfig { replace_slabs_max: 0, ..config.escape };
    let config = Config { memory_slabs: 0, escape, ..config };
    collects(config, 12, 1 << 20, 0);
    collects(config, 64, 1 << 20, 0);
    collects(config, 32, 1 << 20, 16);
    collects(config, 12, 2 << 20, 0);
    collects(config, 12, 4 << 20, 0);
}

#[test]
fn who_collects_gets_all_of_it_though_it_is_more_than_the_window() {
    collect_all_sizes(Config { footprint_follows: true, ..Config::default() });
}

/// Runs two applications that pin whatever they get and give nothing back, beside a third one that reads and
/// must still be served. One of the two gets large messages until nothing more is granted. Then `hogs`
/// senders send small messages to the other.
fn hogs_leave_a_way(config: Config, hogs: usize, large_first: bool) {
    let mut bench = bench(config);
    let mut crowd = Crowd::new();
    let (hog, large_hog, good) = (bench.open("hog"), bench.open("large"), bench.open("good"));
    for session in [hog, large_hog] {
        let slots = (0..config.session_slots).map(|slot| (session.0, slot));
        bench.world.memory.pinned.extend(slots);
    }
    let sender = bench.join("good");
    if large_first {
        let peer = bench.join("large");
        for _ in 0..200 {
            crowd.large(&mut bench, peer, 1 << 20);
            crowd.turn(&mut bench);
            bench.wait(100_000);
        }
    }
    let hogs: Vec<PeerId> = (0..hogs).map(|_| bench.join("hog")).collect();
    let mut late = 0;
    for round in 0..6000 {
        for &peer in &hogs {
            (0..64).take_while(|_| crowd.small(&mut bench, peer)).for_each(drop);
        }
        if round > 100 {
            crowd.small(&mut bench, sender);
        }
        crowd.turn(&mut bench);
        while let Some((delivery, _)) = bench.delivery(good) {
            bench.release(good, &delivery, true, 0);
            late += u32::from(round > 3000);
        }
        crowd.turn(&mut bench);
        bench.wait(100_000);
    }
    assert!(
        late > 100,
        "{late} late messages beside {} hogs, large first {large_first}: {:?}, hog {:?}",
        hogs.len(),
        bench.receiver.stats(),
        bench.receiver.session_stats(hog)
    );
}

#[test]
fn who_sits_on_small_messages_does_not_stop_others() {
    let config = Config::default();
    for replace_slabs_max in [config.escape.replace_slabs_max, 0] {
        let config = Config { escape: EscapeConfig { replace_slabs_max, ..config.escape }, ..config };
        for hogs in [1, 4, 16, 64] {
            hogs_leave_a_way(config, hogs, false);
            hogs_leave_a_way(config, hogs, true);
        }
        hogs_leave_a_way(Config { footprint_follows: true, ..config }, 4, true);
    }
}

#[test]
fn who_sits_on_a_small_pool_does_not_stop_others() {
    // In slabs: pool, SRQ share, its floor, its reserve, fragment.
    for (pool_slabs, srq_slabs, srq_floor_slabs, srq_reserve_entries, fragment) in [
        (8, 7, 2, 1, 8),
        (8, 4, 2, 1, 4),
        (8, 6, 2, 1, 2),
        (128, 100, 16, 8, 64),
        (128, 64, 16, 8, 64),
        (256, 200, 32, 16, 64),
        (512, 400, 64, 16, 64),
    ] {
        let config = Config {
            pool_slabs,
            srq_slabs,
            srq_floor_slabs,
            srq_reserve_entries,
            fragment_bytes: fragment * 4096,
            in_flight_bytes: u64::from(pool_slabs) * 4096,
            credit_max: srq_slabs.min(256),
            ..Config::default()
        };
        hogs_leave_a_way(config, 1, false);
        hogs_leave_a_way(config, 4, false);
    }
}

/// Runs an application that gives back what it got in any order, and keeps up to `keep` runs for a while.
/// Another application reads at once.
fn shuffles(config: Config, messages: usize, seed: u64, keep: usize) {
    let mut bench = bench(config);
    let mut crowd = Crowd::new();
    let (app, other) = (bench.open("shuffle"), bench.open("other"));
    let peers = [bench.join("shuffle"), bench.join("shuffle")];
    let beside = bench.join("other");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut below = move |bound: usize| random.usize(..bound);
    let mut requested = 0;
    let mut left = BTreeMap::<u32, u64>::new();
    let mut held = Vec::<Delivery>::new();
    for _ in 0..20_000 {
        let ended = bench.world.ends.iter().filter(|end| end.0 != beside.0).count();
        if ended == messages {
            return;
        }
        if bench.receiver.admission.requests(beside.0) < 2 {
            crowd.large(&mut bench, beside, 4097 + below(1 << 18) as u64);
        }
        for peer in peers {
            let may = requested < messages && requested < ended + 100;
            let sent = match below(3) {
                _ if !may => false,
                0 => crowd.small(&mut bench, peer),
                _ => crowd.large(&mut bench, peer, 4097 + below(1 << 18) as u64),
            };
            requested += usize::from(sent);
        }
        crowd.turn(&mut bench);
        while let Some((delivery, _)) = bench.delivery(app) {
            if delivery.flags & delivery_flags::FIRST != 0 {
                left.insert(delivery.message, delivery.message_bytes);
            }
            held.push(delivery);
        }
        while let Some((delivery, _)) = bench.delivery(other) {
            bench.release(other, &delivery, delivery.flags & delivery_flags::LAST != 0, 0);
        }
        let keep = if below(3) == 0 { 0 } else { below(keep + 1) };
        while held.len() > keep {
            let delivery = held.swap_remove(below(held.len()));
            let rest = left.get_mut(&delivery.message).unwrap();
            *rest -= u64::from(delivery.bytes);
            let done = *rest == 0;
            bench.release(app, &delivery, done, 0);
        }
        bench.wait(500_000);
    }
    let ended = bench.world.ends.len();
    panic!(
        "seed {seed}: {ended} ends, of {messages} and others: held {}, {:?}",
        held.len(),
        bench.receiver.stats()
    );
}

#[test]
fn who_gives_back_in_any_order_gets_everything() {
    let smallest = Config {
        pool_slabs: 8,
        srq_slabs: 4,
        srq_floor_slabs: 2,
        srq_reserve_entries: 1,
        fragment_bytes: 8 * 4096,
        in_flight_bytes: 8 * 4096,
        credit_max: 2,
        ..Config::default()
    };
    let escape = EscapeConfig { replace_slabs_max: 0, ..smallest.escape };
    let without_memory = Config { memory_slabs: 0, escape, ..smallest };
    for seed in 1..=8 {
        for config in [smallest, without_memory, super::config(), Config::default()] {
            shuffles(config, 400, seed * 0x9e37_79b9, 60);
            shuffles(Config { footprint_follows: true, ..config }, 400, seed * 0x9e37_79b9, 60);
        }
    }
}

/// Checks that a sender whose session held too much gets credit again once the session has given everything
/// back, though the driver calls only when a call is due, and all others are gone.
#[test]
fn who_was_refused_credit_gets_some_though_nothing_else_happens() {
    // Numbers for all messages, so that none waits for one.
    let mut bench = bench(Config { session_messages: 128, ..config() });
    let mut crowd = Crowd::new();
    let session = bench.open("disk");
    let (waits, fills) = (bench.join("disk"), bench.join("disk"));
    let (mut fillers, mut held) = (BTreeSet::new(), Vec::new());
    // The application keeps what one sender sends, and gives back what the other one sends.
    while !bench.receiver.credit.refused().contains(&waits.0) {
        if crowd.small(&mut bench, fills) {
            fillers.insert(crowd.sequence);
        }
        let sent = crowd.small(&mut bench, waits);
        crowd.turn(&mut bench);
        while let Some((delivery, _)) = bench.delivery(session) {
            if fillers.contains(&delivery.sequence) {
                held.push(delivery);
            } else {
                bench.release(session, &delivery, true, 0);
            }
        }
        crowd.turn(&mut bench);
        assert!(sent || bench.receiver.credit.refused().contains(&waits.0), "{:?}", bench.receiver.stats());
        bench.receiver.credit.retry_refused();
        bench.flush();
    }
    bench.receiver.handle_peer_lost(fills);
    bench.flush();
    held.extend(core::iter::from_fn(|| bench.delivery(session)).map(|(delivery, _)| delivery));
    held.iter().for_each(|delivery| bench.release(session, delivery, true, 0));
    crowd.turn(&mut bench);
    let mut ticks = 0;
    while !crowd.may_send(&bench, waits) {
        ticks += 1;
        assert!(ticks < 100, "ticks give it no credit: {:?}", bench.receiver.stats());
        bench.now_ns = bench.receiver.next_tick_ns().expect("a sender waits, so a tick is due");
        bench.receiver.handle_tick(bench.now_ns, &mut bench.world);
        crowd.turn(&mut bench);
    }
}

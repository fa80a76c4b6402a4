//! Crowds of peers that answer nothing, or nothing any more, beside one that delivers.

use super::*;

/// The paper's sizes, and room for crowds.
fn crowded() -> Config {
    Config { peers_max: 1024, messages_max: 8192, ..Config::default() }
}

/// Lets time pass, and ends what these peers have in flight. Peers that are disconnected are gone at once.
fn pass(bench: &mut Bench, session: SessionId, answer: &[PeerId]) -> Vec<PeerId> {
    bench.wait(10 * MS);
    for peer in core::mem::take(&mut bench.world.sent) {
        bench.receiver.handle_sent(PeerId(peer));
    }
    while let Some(at) = bench.world.reads.iter().position(|read| answer.contains(&read.0)) {
        let (_, read, ..) = bench.world.reads.remove(at).unwrap();
        bench.now_ns += 50_000;
        bench.receiver.handle_read_done(bench.now_ns, read, true, false, &mut bench.world);
        bench.consume(session);
        bench.flush();
    }
    let gone: Vec<PeerId> = core::mem::take(&mut bench.world.disconnects).into_iter().map(PeerId).collect();
    for &peer in &gone {
        while let Some(at) = bench.world.reads.iter().position(|read| read.0 == peer) {
            let (_, read, ..) = bench.world.reads.remove(at).unwrap();
            bench.receiver.handle_read_done(bench.now_ns, read, false, false, &mut bench.world);
        }
        bench.receiver.handle_peer_lost(peer);
    }
    bench.flush();
    gone
}

#[test]
fn a_new_peer_does_not_wait_for_all_that_came_before_it_and_answer_nothing() {
    let mut bench = Bench::new(crowded());
    bench.open("silent");
    let app = bench.open("good");
    let ask = |bench: &mut Bench, count: usize| {
        for _ in 0..count {
            let peer = bench.join("silent");
            bench.request(peer, 1, 256 << 10, None);
            bench.flush();
        }
    };
    ask(&mut bench, 500);
    for comer in 0..5u64 {
        let good = bench.join("good");
        bench.request(good, 1, 256 << 10, None);
        bench.flush();
        let begin_ns = bench.now_ns;
        while !bench.has_ended(good, 1) {
            // Who is cut off comes again at once.
            let gone = pass(&mut bench, app, &[good]).len();
            ask(&mut bench, gone);
            let waited_ns = bench.now_ns - begin_ns;
            assert!(waited_ns < 4_500 * MS, "{comer} waits: {:?}", bench.receiver.stats());
        }
        bench.receiver.handle_peer_lost(good);
    }
}

#[test]
fn the_first_read_of_a_peer_is_a_short_one() {
    let mut bench = Bench::new(crowded());
    let app = bench.open("good");
    let peer = bench.join("good");
    bench.request(peer, 1, 1 << 20, None);
    bench.flush();
    let bytes: Vec<u32> = bench.world.reads.iter().map(|read| read.3).collect();
    assert_eq!(bytes, [64 << 10], "until it has delivered something");
    bench.end_read_of(peer);
    bench.consume(app);
    bench.flush();
    assert_eq!(bench.world.reads[0].3, 256 << 10);
}

#[test]
fn peers_that_deliver_a_little_and_freeze_do_not_stop_one_that_delivers_much() {
    let mut bench = Bench::new(crowded());
    bench.open("frozen");
    let app = bench.open("good");
    let good = bench.join("good");
    let mut sequence = 1;
    let send = |bench: &mut Bench, sequence: &mut u64| {
        bench.request_with_credit(good, *sequence, 256 << 10, 0);
        *sequence += 1;
    };
    for _ in 0..100 {
        send(&mut bench, &mut sequence);
        pass(&mut bench, app, &[good]);
    }
    // Each has shown that it delivers.
    let frozen: Vec<PeerId> = (0..300).map(|_| bench.join("frozen")).collect();
    for &peer in &frozen {
        bench.request_with_credit(peer, 1, 8192, 0);
        bench.now_ns += 50_000;
        bench.end_read_of(peer);
        while let Some((part, _)) = bench.delivery(SessionId(0)) {
            bench.release(SessionId(0), &part, true, 0);
        }
        bench.flush();
    }
    // Many at once, and then a few at a time.
    let (at_once, later) = frozen.split_at(100);
    for some in core::iter::once(at_once).chain(later.chunks(6)) {
        some.iter().for_each(|&peer| bench.request_with_credit(peer, 2, 256 << 10, 0));
        for _ in 0..5 {
            send(&mut bench, &mut sequence);
            let begin_ns = bench.now_ns;
            while !bench.has_ended(good, sequence - 1) {
                pass(&mut bench, app, &[good]);
                let waited_ns = bench.now_ns - begin_ns;
                assert!(waited_ns < 100 * MS, "message {sequence}: {:?}", bench.receiver.stats());
            }
        }
    }
    let reads_of_frozen = bench.world.reads.len();
    assert!(reads_of_frozen >= 16, "{reads_of_frozen}: they had their chance");
}

#[test]
fn a_prompt_peer_that_delivers_little_has_its_turn_once_more_reads_are_free() {
    let mut bench = Bench::new(crowded());
    bench.open("frozen");
    let app = bench.open("good");
    let [much, little] = [bench.join("good"), bench.join("good")];
    let mut sequence = 1;
    for _ in 0..100 {
        bench.request_with_credit(much, sequence, 256 << 10, 0);
        sequence += 1;
        pass(&mut bench, app, &[much]);
    }
    bench.request_with_credit(little, 1, 8192, 0);
    pass(&mut bench, app, &[little]);
    let frozen: Vec<PeerId> = (0..32).map(|_| bench.join("frozen")).collect();
    for &peer in &frozen {
        bench.request_with_credit(peer, 1, 8192, 0);
        bench.now_ns += 50_000;
        bench.end_read_of(peer);
        while let Some((part, _)) = bench.delivery(SessionId(0)) {
            bench.release(SessionId(0), &part, true, 0);
        }
        bench.flush();
    }
    frozen.iter().for_each(|&peer| bench.request_with_credit(peer, 2, 256 << 10, 0));
    assert_eq!(bench.world.reads.len(), 30, "the last sixteenth is left");
    bench.request_with_credit(little, 2, 8192, 0);
    assert_eq!(bench.reads_of(little), 0, "it is for those that deliver much");
    // By now the frozen ones are slow, and have more than slow ones may have. While nothing is delivered,
    // nobody else is among the best.
    (0..9).for_each(|_| bench.wait(10 * MS));
    assert_eq!((bench.world.reads.len(), bench.reads_of(little)), (30, 0));
    // Nor does it matter who came first, for one that is.
    bench.request_with_credit(much, sequence, 256 << 10, 0);
    assert_eq!(bench.reads_of(much), 1);
    bench.end_read_of(much);
    bench.consume(app);
    for &peer in &frozen[..3] {
        bench.end_read_of(peer);
        bench.flush();
    }
    assert_eq!(bench.reads_of(little), 1, "two frozen ones were before it");
}

/// Has senders with one READ each keep all READs in flight, beside one that delivers little. Returns how many
/// of their READs ended before it had one.
fn reads_before_one_that_delivers_little(read_ns: u64) -> usize {
    let config = crowded();
    let mut bench = Bench::new(config);
    let apps = ["good", "little"].map(|app| bench.open(app));
    let little = bench.join("little");
    bench.request_with_credit(little, 1, 8192, 0);
    bench.read_and_consume(&apps);
    let good: Vec<PeerId> = (0..40).map(|_| bench.join("good")).collect();
    let mut next = alloc::vec![1; good.len()];
    for ended in 0..20_000 {
        for (&peer, next) in good.iter().zip(&mut next) {
            if *next == 1 || bench.has_ended(peer, *next - 1) {
                bench.request_with_credit(peer, *next, 256 << 10, 0);
                *next += 1;
            }
        }
        if ended == 1_000 {
            assert_eq!(bench.world.reads.len(), 32, "what this is about");
            bench.request_with_credit(little, 2, 8192, 0);
        }
        if bench.reads_of(little) > 0 {
            return ended - 1_000;
        }
        bench.now_ns += read_ns;
        bench.read_and_consume(&apps);
        if ended % 100 == 0 {
            bench.wait(0);
        }
    }
    panic!("it never has one")
}

/// Found by jet-sim --seed 2026112750101113.
#[test]
fn a_prompt_peer_that_delivers_little_has_its_turn_beside_many_that_deliver_much() {
    let config = crowded();
    for read_ns in [50_000, 1_000_000] {
        let bound = config.aging_ns / read_ns + 40;
        let waited = reads_before_one_that_delivers_little(read_ns);
        assert!(waited as u64 <= bound, "{waited} READs of {read_ns} ns each");
    }
}

//! Senders that froze while others wait: who is disconnected for that, and who is not.

use super::suspended::tight;
use super::turns::one_at_a_time;
use super::*;
use alloc::vec;
use alloc::vec::Vec;

/// Found by jet-sim --seed 800000305.
#[test]
fn a_sender_that_froze_does_not_keep_what_is_for_others_of_its_kind() {
    // There is room for three fragments, and for one of new peers, or of slow ones.
    let config = Config { in_flight_bytes: 3 * FRAGMENT, ..shared() };
    for delivers_slowly in [false, true] {
        let mut bench = Bench::new(config);
        let apps = ["frozen", "other"].map(|app| bench.open(app));
        let [frozen, other] = ["frozen", "other"].map(|app| bench.join(app));
        if delivers_slowly {
            bench.deliver_slowly(frozen, apps[0]);
            bench.deliver_slowly(other, apps[1]);
        }
        bench.request_with_credit(frozen, 2, FRAGMENT, 0);
        bench.wait(60_000 * MS);
        assert!(bench.world.disconnects.is_empty(), "nobody waits for it");
        bench.request_with_credit(other, 2, FRAGMENT, 0);
        assert_eq!((bench.reads_of(frozen), bench.reads_of(other)), (1, 0), "what this is about");
        bench.wait(1000 * MS);
        assert_eq!(bench.world.disconnects, [frozen.0], "delivers slowly: {delivers_slowly}");
    }
}

#[test]
fn a_sender_that_froze_stays_while_others_of_its_kind_have_their_turns() {
    let mut bench = Bench::new(Config { peers_max: 16, messages_max: 256, ..shared() });
    let app = bench.open("disk");
    let peers = [(); 7].map(|()| bench.join("disk"));
    peers.iter().for_each(|&peer| bench.deliver_slowly(peer, app));
    let (frozen, slow) = peers.split_at(3);
    frozen.iter().for_each(|&peer| bench.request_with_credit(peer, 2, 1 << 30, 0));
    slow.iter().for_each(|&peer| bench.request_with_credit(peer, 2, 1 << 30, 0));
    assert_eq!(bench.world.reads.len(), 5, "what slow peers may have");
    for _ in 0..300 {
        bench.wait(100 * MS);
        let &(peer, ..) = bench.world.reads.iter().find(|read| slow.contains(&read.0)).unwrap();
        bench.end_read_of(peer);
        bench.consume(app);
        bench.flush();
    }
    assert!(bench.world.disconnects.is_empty(), "{:?}", bench.world.disconnects);
}

/// Found by jet-sim --seed 930000251.
#[test]
fn a_sender_that_froze_does_not_keep_the_room_that_a_fragment_needs() {
    // There is room for one fragment, and the frozen one has a quarter of it.
    let mut bench = Bench::new(Config { in_flight_bytes: FRAGMENT, ..shared() });
    let apps = ["frozen", "other"].map(|app| bench.open(app));
    let [frozen, other] = ["frozen", "other"].map(|app| bench.join(app));
    let next = bench.warm(other, apps[1], 1);
    bench.deliver_slowly(frozen, apps[0]);
    bench.request_with_credit(frozen, 2, FRAGMENT / 4, 0);
    bench.wait(60_000 * MS);
    assert!(bench.world.disconnects.is_empty(), "nobody waits for it");
    bench.request_with_credit(other, next, FRAGMENT, 0);
    assert_eq!((bench.reads_of(frozen), bench.reads_of(other)), (1, 0), "what this is about");
    bench.wait(1000 * MS);
    assert_eq!(bench.world.disconnects, [frozen.0]);
}

/// Has one of two senders to an application freeze within a message. `asks`: the other one waits for room.
/// Returns who is disconnected within so many seconds, in which another application's sender goes on.
fn disconnected_beside_a_frozen_one(config: Config, asks: bool, seconds: u64) -> Vec<u32> {
    let mut bench = Bench::new(config);
    let apps = ["disk", "other"].map(|app| bench.open(app));
    bench.world.reads_max.insert(0, 1);
    let [frozen, beside, other] = ["disk", "disk", "other"].map(|app| bench.join(app));
    let mut next = bench.warm(other, apps[1], 1);
    bench.request_with_credit(frozen, 1, 3 * FRAGMENT, 0);
    bench.end_read_of(frozen);
    bench.consume(apps[0]);
    bench.flush();
    if asks {
        bench.request_with_credit(beside, 1, 3 * FRAGMENT, 0);
    }
    assert_eq!((bench.reads_of(frozen), bench.reads_of(beside)), (1, 0), "what this is about");
    let begin_ns = bench.now_ns;
    while bench.now_ns < begin_ns + seconds * 1000 * MS && bench.world.disconnects.is_empty() {
        bench.request_with_credit(other, next, FRAGMENT / 4, 0);
        bench.end_read_of(other);
        apps.iter().for_each(|&app| bench.consume(app));
        bench.wait(50 * MS);
        next += 1;
    }
    bench.world.disconnects.clone()
}

/// Found by jet-sim --seed 31012107 and --seed 5000427.
#[test]
fn a_sender_that_froze_does_not_hold_up_others_of_its_application_for_ever() {
    let suspended = Config { in_flight_bytes: 3 * FRAGMENT, ..tight() };
    let passed_over = Config { in_flight_bytes: 5 * FRAGMENT / 2, ..one_at_a_time() };
    for config in [suspended, passed_over] {
        assert_eq!(disconnected_beside_a_frozen_one(config, true, 5), [0]);
        assert_eq!(disconnected_beside_a_frozen_one(config, true, 1), [0; 0], "it has time");
        assert_eq!(disconnected_beside_a_frozen_one(config, false, 60), [0; 0], "nobody waits for it");
    }
}

/// Two senders of an application that collects have begun messages, which are all that it may have. One of
/// them froze. Another sender has used up its credit.
fn collecting_of_a_frozen_one() -> (Bench, [SessionId; 2], [PeerId; 4]) {
    let mut bench = Bench::new(Config { session_messages: 2, ..shared() });
    let apps = ["disk", "other"].map(|app| bench.open(app));
    bench.world.reads_max = [(0, 1), (1, 1)].into();
    let peers = ["disk", "disk", "disk", "other"].map(|app| bench.join(app));
    let [frozen, goes_on, beside, _] = peers;
    bench.request_with_credit(goes_on, 1, 5 * FRAGMENT, 0);
    bench.request_with_credit(frozen, 1, 5 * FRAGMENT, 0);
    bench.end_read_of(goes_on);
    // There is no message number for this one.
    bench.request_with_credit(beside, 1, FRAGMENT, 0);
    bench.flush();
    assert!(bench.receiver.withholds_credit(apps[0].0), "what this is about");
    let mut sequence = 1;
    while bench.receiver.credit.outstanding(beside.0) > 0 {
        sequence += 1;
        bench.small(beside, sequence, b"small");
        bench.flush();
    }
    (bench, apps, peers)
}

/// Found by jet-sim --seed 920003670.
#[test]
fn a_sender_that_froze_within_a_collected_message_does_not_keep_credit_from_others() {
    // What happens beside: nothing; another message of the application goes on for six seconds; the
    // application gives something back every two seconds.
    for (goes, gives, leaves_after) in [(false, false, 12), (true, false, 15), (false, true, 99)] {
        let (mut bench, apps, [frozen, goes_on, _, other]) = collecting_of_a_frozen_one();
        let mut next = bench.warm(other, apps[1], 1);
        if !goes {
            // Its message is whole, and lies there.
            (0..4).for_each(|_| _ = (bench.end_read_of(goes_on), bench.flush()));
        }
        let mut held: VecDeque<_> = core::iter::from_fn(|| bench.delivery(apps[0])).collect();
        let mut halves = 0;
        while bench.world.disconnects.is_empty() && halves < 20 {
            halves += 1;
            for _ in 0..10 {
                bench.request_with_credit(other, next, FRAGMENT, 0);
                bench.end_read_of(other);
                bench.consume(apps[1]);
                bench.wait(50 * MS);
                next += 1;
            }
            if goes && halves % 3 == 0 && halves <= 12 {
                bench.end_read_of(goes_on);
            }
            if gives && halves % 4 == 0 {
                let (run, _) = held.pop_front().unwrap();
                bench.release(apps[0], &run, false, 0);
            }
        }
        let expected = if leaves_after < 20 { vec![frozen.0] } else { Vec::new() };
        assert_eq!((bench.world.disconnects.clone(), halves), (expected, halves), "{goes} {gives}");
        assert!(halves <= leaves_after && halves >= leaves_after.min(20) - 4, "{halves}: {goes} {gives}");
    }
}

//! Sessions without a message number left: what has begun to arrive goes on as it would, and what has not
//! begun waits for a number.

use super::*;
use alloc::vec::Vec;

/// Returns the READs of each sender, in their order, of an application with two message numbers. Both are
/// taken: by a message of class 3, which began first, and by one of class 0. A third sender asks for another,
/// before (`asks`) they go on.
fn reads_without_a_number(asks: bool) -> Vec<u32> {
    let mut bench = Bench::new(Config { session_messages: 2, reads_max: 1, ..shared() });
    let app = bench.open("disk");
    let [low, urgent, third] = [(); 3].map(|()| bench.join("disk"));
    for (peer, class) in [(low, 3), (urgent, 0)] {
        bench.request_class(peer, 1, 8 * FRAGMENT, class, None);
        bench.flush();
        while bench.reads_of(peer) == 0 {
            assert_eq!(bench.read_and_consume(&[app]), low, "what this is about");
        }
    }
    if asks {
        bench.request_class(third, 1, FRAGMENT, 0, None);
        bench.flush();
    }
    (0..8).map(|_| bench.read_and_consume(&[app]).0).collect()
}

/// Found by jet-sim --seed 2026112710003600.
#[test]
fn what_has_begun_goes_on_by_its_class_while_others_wait_for_a_number() {
    let usual = reads_without_a_number(false);
    assert!(usual[..6].iter().all(|peer| *peer == 1), "what is urgent comes first: {usual:?}");
    assert_eq!(reads_without_a_number(true)[..7], usual[..7]);
}

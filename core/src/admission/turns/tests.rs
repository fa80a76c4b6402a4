use super::*;
use alloc::vec::Vec;

/// Runs turns of peers with messages of these sizes, and returns how many bytes each had read.
fn run(sizes: &[u32], fragment_bytes: u32, grants: u32) -> Vec<u64> {
    let peers = u32::try_from(sizes.len()).unwrap();
    let mut messages = Messages::new(64);
    let mut queue = ClassQueue::new(peers);
    for peer in 0..peers {
        for _ in 0..4 {
            let message = messages.add().unwrap();
            messages[message].peer = peer;
            queue.push_running(message, &mut messages);
        }
        queue.offer(peer, false);
    }
    let mut read = vec![0; sizes.len()];
    for _ in 0..grants {
        let peer = loop {
            let peer = queue.next_turn(|_| false).unwrap();
            if queue.may_use(Place::FRONT, sizes[peer as usize], fragment_bytes) {
                break peer;
            }
        };
        // The message stays: there is always more of it.
        let message = queue.first_running(peer).unwrap();
        queue.take_running(message, &mut messages);
        queue.push_running(message, &mut messages);
        queue.used(peer, sizes[peer as usize], 0, 1);
        read[peer as usize] += u64::from(sizes[peer as usize]);
    }
    read
}

#[test]
fn turns_are_of_equal_bytes_whatever_the_sizes() {
    for sizes in [[1000, 1000, 1000], [1000, 100, 10], [700, 1000, 300]] {
        let read = run(&sizes, 1000, 3000);
        let (least, most) = (read.iter().min().unwrap(), read.iter().max().unwrap());
        assert!(most - least <= 2000, "{sizes:?}: {read:?}");
    }
}

#[test]
fn who_has_nothing_to_read_saves_nothing_up() {
    let mut messages = Messages::new(4);
    let mut queue = ClassQueue::new(1);
    let message = messages.add().unwrap();
    messages[message].peer = 0;
    queue.push_running(message, &mut messages);
    queue.offer(0, false);
    queue.peers[0].deficit_bytes = 500;
    queue.take_running(message, &mut messages);
    queue.used(0, 10, 5, 1);
    assert_eq!((queue.peers[0].deficit_bytes, queue.since_ns), (0, 5));
}

#[test]
fn a_class_waits_since_it_has_something_to_read_or_was_granted_something() {
    let mut messages = Messages::new(4);
    let mut queue = ClassQueue::new(2);
    for peer in [0, 1] {
        let message = messages.add().unwrap();
        messages[message].peer = peer;
        queue.wait_from(100 + u64::from(peer));
        queue.push_waiting(message, &mut messages);
        queue.offer(peer, true);
    }
    assert_eq!(queue.since_ns, 100, "since the first one came");
    queue.used(0, 10, 200, 1);
    assert_eq!(queue.since_ns, 200);
    assert!(queue.has_head(|_| false));
    assert!(!queue.has_head(|_| true), "all its peers are out of turn");
    queue.offer(1, true);
    assert!(queue.has_head(|_| false), "a peer came back");
    assert_eq!(queue.since_ns, 200, "its messages have waited all the time");
    (0..2).for_each(|peer| _ = queue.pop_waiting(peer, &messages));
    queue.wait_from(300);
    assert_eq!(queue.since_ns, 300, "nothing waited meanwhile");
}

#[test]
fn a_peer_of_which_nothing_is_read_goes_first() {
    let mut messages = Messages::new(4);
    let mut queue = ClassQueue::new(3);
    for peer in 0..3 {
        let message = messages.add().unwrap();
        messages[message].peer = peer;
        queue.push_waiting(message, &mut messages);
        queue.offer(peer, peer == 2);
    }
    assert_eq!(queue.next_admission(|_| false, |peer| peer == 2), Some(2));
    assert_eq!(queue.next_admission(|peer| peer == 2, |peer| peer == 2), Some(0), "it is out of turn");
    queue.offer(2, true);
    assert_eq!(queue.next_admission(|_| false, |_| false), Some(0), "it is no newcomer any more");
}

/// Returns a queue in which peers take turns, in this order, each with one message that is being read.
/// `sessions`: the session that each of them sends to.
fn taking_turns(sessions: &[u32]) -> (ClassQueue, Messages) {
    let peers = u32::try_from(sessions.len()).unwrap();
    let (mut messages, mut queue) = (Messages::new(8), ClassQueue::new(peers));
    for (peer, session) in (0..peers).zip(sessions) {
        let message = messages.add().unwrap();
        (messages[message].peer, messages[message].session) = (peer, *session);
        queue.push_waiting(message, &mut messages);
        queue.pop_waiting(peer, &messages);
        queue.push_running(message, &mut messages);
        queue.offer(peer, false);
    }
    queue.since_ns = 1000;
    (queue, messages)
}

fn next_turns(queue: &mut ClassQueue) -> Vec<u32> {
    core::iter::from_fn(|| queue.turns.pop()).collect()
}

#[test]
fn who_cannot_use_its_turn_keeps_it_and_those_behind_it_go_on() {
    let (mut queue, _) = taking_turns(&[0, 0, 0]);
    let mut place = Place::FRONT;
    assert!(!queue.may_use(place, 4096, 4096), "its turn begins when it comes again");
    assert_eq!(queue.turn_at(place, |_| false), Some(1));
    place = queue.keep_turn(place);
    assert_eq!(queue.turn_at(place, |_| false), Some(2));
    assert!(!queue.may_use(place, 4096, 4096));
    assert!(queue.turn_at(place, |_| false) == Some(0) && queue.may_use(place, 4096, 4096));
    assert_eq!(queue.turn_at(place, |peer| peer == 0), Some(2), "who is out of turn is dropped");
    assert_eq!(next_turns(&mut queue), [1, 2]);
}

#[test]
fn those_that_cannot_use_their_turns_go_behind_the_others_where_they_are_many() {
    let (mut queue, _) = taking_turns(&[0, 5, 0, 0]);
    let place = (0..3).fold(Place::FRONT, |place, _| queue.keep_turn(place));
    queue.move_behind_others(place, |peer, session| (peer, session) == (1, 5));
    assert_eq!(next_turns(&mut queue), [1, 3, 0, 2], "one of them stays");
}

#[test]
fn who_is_given_a_turn_is_next_and_its_class_has_waited_for_it() {
    let (mut queue, _) = taking_turns(&[0, 0, 1]);
    queue.give_turn(2, 4096, 300);
    assert_eq!(queue.next_turn(|_| false), Some(2));
    assert!(queue.may_use(Place::FRONT, 4096, 4096));
    assert_eq!(queue.since_ns, 300);
    queue.give_turn(1, 4096, 700);
    assert_eq!(queue.since_ns, 300, "it has waited for another one");
}

#[test]
fn who_is_put_before_its_session_is_behind_others() {
    let (mut queue, _) = taking_turns(&[1, 0, 0, 0]);
    queue.put_before_its_session(3, 4096);
    let second = queue.keep_turn(Place::FRONT);
    assert!(queue.turn_at(second, |_| false) == Some(3) && queue.may_use(second, 4096, 4096));
    assert_eq!(next_turns(&mut queue), [0, 3, 1, 2]);
    let (mut queue, _) = taking_turns(&[1, 0, 2]);
    queue.put_before_its_session(2, 4096);
    assert_eq!(next_turns(&mut queue), [0, 1, 2], "nobody of its session is before it");
}

#[test]
fn a_peer_begins_without_the_reads_of_its_predecessor() {
    let (mut queue, _) = taking_turns(&[0]);
    queue.used(0, 4096, 1, 7);
    assert_eq!(queue.last_read(0), 7);
    queue.join(9, 0);
    assert_eq!((queue.last_read(0), queue.read_ns(0)), (0, 9), "who comes anew was not read longest ago");
}

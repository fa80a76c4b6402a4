//! Several sessions that share a name: each sender's messages go to one of them, in their order.

use super::*;
use crate::effects::UserId;
use crate::receiver::OpenError;
use alloc::string::ToString;

impl Bench {
    /// Opens a session of a process of its own that shares its name.
    fn open_shared(&mut self, app: &str) -> SessionId {
        self.processes += 1;
        let process = Some(ProcessId(self.processes));
        self.open_with(Registration { process, ..shared(app, 1) })
    }

    /// Lets a sender in that has this identity.
    fn join_sender(&mut self, app: &str, sender_id: u64) -> PeerId {
        self.join_as(app, sender_id, features::CONGESTION)
    }

    fn session_of(&self, peer: PeerId) -> Option<SessionId> {
        self.receiver.peer_stats(self.now_ns, peer).unwrap().session
    }

    /// Lets a tick pass.
    fn tick(&mut self) {
        self.wait(self.receiver.config.tick_ns);
    }
}

fn shared(app: &str, user: u32) -> Registration {
    Registration { user: Some(UserId(user)), shares_name: true, ..Registration::new(name(app)) }
}

#[test]
fn a_name_is_shared_by_sessions_of_one_user_that_all_say_so() {
    let mut bench = Bench::new(config());
    bench.open_shared("store");
    bench.open_shared("store");
    let mut open = |registration| bench.receiver.handle_session_opened(0, registration);
    assert_eq!(open(Registration::new(name("store"))), Err(OpenError::NameTaken), "it does not share");
    assert_eq!(open(shared("store", 2)), Err(OpenError::NameOfOtherUser));
    assert!(OpenError::NameOfOtherUser.to_string().contains("another user"));
    let own = open(Registration::new(name("own"))).unwrap();
    assert_eq!(open(shared("own", 1)), Err(OpenError::NameTaken), "the other one does not share");
    assert_eq!(bench.receiver.session_stats(own).map(|stats| stats.shares_name), Some(false));
}

#[test]
fn senders_are_spread_over_the_consumers_of_a_name_and_each_stays_with_one() {
    let mut bench = Bench::new(config());
    let sessions = [bench.open_shared("store"), bench.open_shared("store"), bench.open_shared("store")];
    let peers: Vec<_> = (1..=6).map(|identity| bench.join_sender("store", identity)).collect();
    for session in sessions {
        assert_eq!(bench.receiver.session_stats(session).unwrap().senders, 2);
    }
    for round in 1..=3 {
        for &peer in &peers {
            bench.small(peer, round, b"small");
            let session = bench.session_of(peer).unwrap();
            let (delivery, _) = bench.delivery(session).expect("it comes to the sender's session");
            bench.release(session, &delivery, true, 0);
            bench.flush();
            bench.tick();
        }
    }
    assert!(bench.world.deliveries.values().all(VecDeque::is_empty), "nothing came to another one");
}

#[test]
fn a_sender_moves_to_a_new_consumer_when_its_messages_have_their_ends() {
    let mut bench = Bench::new(config());
    let first = bench.open_shared("store");
    let peers = [bench.join_sender("store", 1), bench.join_sender("store", 2)];
    for peer in peers {
        bench.small(peer, 1, b"before");
    }
    let second = bench.open_shared("store");
    bench.tick();
    // Both have a message that the first consumer holds, so both stay for now; one of them is to move.
    assert!(peers.iter().all(|&peer| bench.session_of(peer) == Some(first)));
    let senders = |bench: &Bench, session| bench.receiver.session_stats(session).unwrap().senders;
    assert_eq!((senders(&bench, first), senders(&bench, second)), (1, 1));
    let moving = *peers.iter().find(|peer| bench.receiver.registry.is_moving(peer.0)).unwrap();
    // It uses up its credit, and gets no more.
    let limit = bench.world.limits[&moving.0];
    for sequence in 2..=limit {
        bench.small(moving, sequence, b"before");
        bench.flush();
        bench.tick();
    }
    assert_eq!(bench.world.limits[&moving.0], limit, "no further credit");
    assert_eq!(bench.session_of(moving), Some(first));
    // The first consumer finishes all but the last message.
    let mut held: Vec<_> =
        core::iter::from_fn(|| bench.delivery(first)).map(|(delivery, _)| delivery).collect();
    let last = held.pop().unwrap();
    for delivery in held {
        bench.release(first, &delivery, true, 0);
        bench.flush();
    }
    assert_eq!(bench.session_of(moving), Some(first), "one message has no end yet");
    bench.release(first, &last, true, 0);
    bench.flush();
    assert_eq!(bench.session_of(moving), Some(second));
    assert!(bench.world.limits[&moving.0] > limit, "it has credit again");
    bench.small(moving, limit + 1, b"after");
    assert!(bench.delivery(first).is_none());
    assert_eq!(bench.delivery(second).unwrap().0.sequence, limit + 1);
}

#[test]
fn senders_that_wait_for_nothing_move_at_once() {
    let mut bench = Bench::new(config());
    let first = bench.open_shared("store");
    let peers: Vec<_> = (1..=4).map(|identity| bench.join_sender("store", identity)).collect();
    // When nobody has sent anything for long, nothing changes with time.
    while bench.receiver.next_tick_ns().is_some() {
        bench.tick();
    }
    let second = bench.open_shared("store");
    assert!(bench.receiver.next_tick_ns().is_some(), "a tick is due");
    bench.tick();
    let of = |session| peers.iter().filter(|&&peer| bench.session_of(peer) == Some(session)).count();
    assert_eq!((of(first), of(second)), (2, 2));
}

#[test]
fn a_move_that_is_not_over_soon_is_given_up_for_long() {
    use crate::registry::{MOVE_NS, STAYS_NS};
    let mut bench = Bench::new(config());
    let first = bench.open_shared("store");
    let peers = [bench.join_sender("store", 1), bench.join_sender("store", 2)];
    for peer in peers {
        bench.small(peer, 1, b"held until more is there");
    }
    bench.open_shared("store");
    bench.tick();
    let moving = |bench: &Bench| peers.iter().copied().find(|peer| bench.receiver.registry.is_moving(peer.0));
    let chosen = moving(&bench).expect("one is to move");
    let limit = bench.world.limits[&chosen.0];
    for sequence in 2..=limit {
        bench.small(chosen, sequence, b"held until more is there");
    }
    bench.wait(MOVE_NS);
    assert_eq!(moving(&bench), None);
    assert!(bench.world.limits[&chosen.0] > limit, "it has credit again");
    assert_eq!(bench.session_of(chosen), Some(first));
    // The other one is tried once, too, and then neither for long.
    bench.wait(1_000_000_000);
    assert_eq!(moving(&bench), peers.into_iter().find(|&peer| peer != chosen));
    bench.wait(MOVE_NS);
    for _ in 0..8 {
        bench.wait(1_000_000_000);
        assert_eq!(moving(&bench), None);
    }
    bench.wait(STAYS_NS);
    assert!(moving(&bench).is_some());
}

#[test]
fn no_tick_is_due_for_a_name_that_is_shared_no_more() {
    let mut bench = Bench::new(config());
    bench.open_shared("store");
    let second = bench.open_shared("store");
    bench.receiver.handle_session_gone(bench.now_ns, second, &mut bench.world);
    bench.wait(2 * bench.receiver.config.quarantine_ns);
    bench.tick();
    assert_eq!(bench.receiver.next_tick_ns(), None);
}

#[test]
fn the_senders_of_a_consumer_that_is_gone_go_to_the_others() {
    let mut bench = Bench::new(config());
    let sessions = [bench.open_shared("store"), bench.open_shared("store")];
    let peers: Vec<_> = (1..=4).map(|identity| bench.join_sender("store", identity)).collect();
    for &peer in &peers {
        bench.small(peer, 1, b"held");
    }
    let (stays, goes) = (sessions[0], sessions[1]);
    let of_goes: Vec<_> =
        peers.iter().copied().filter(|&peer| bench.session_of(peer) == Some(goes)).collect();
    assert_eq!(of_goes.len(), 2);
    bench.receiver.handle_session_gone(bench.now_ns, goes, &mut bench.world);
    bench.flush();
    for &peer in &of_goes {
        assert_eq!(bench.session_of(peer), Some(stays));
        bench.small(peer, 2, b"again");
    }
    let came: Vec<_> = core::iter::from_fn(|| bench.delivery(stays)).map(|(delivery, _)| delivery).collect();
    assert_eq!(came.iter().filter(|delivery| delivery.sequence == 2).count(), 2);
    // The last one takes them all along, and the next one gets them.
    bench.receiver.handle_session_gone(bench.now_ns, stays, &mut bench.world);
    assert!(peers.iter().all(|&peer| bench.session_of(peer).is_none()));
    let next = bench.open_shared("store");
    assert!(peers.iter().all(|&peer| bench.session_of(peer) == Some(next)));
}

#[test]
fn a_move_is_given_up_when_the_session_that_it_leads_to_is_gone() {
    let mut bench = Bench::new(config());
    let first = bench.open_shared("store");
    let peers = [bench.join_sender("store", 1), bench.join_sender("store", 2)];
    for peer in peers {
        bench.small(peer, 1, b"held");
    }
    let second = bench.open_shared("store");
    bench.tick();
    assert!(peers.iter().any(|peer| bench.receiver.registry.is_moving(peer.0)));
    let moving = *peers.iter().find(|peer| bench.receiver.registry.is_moving(peer.0)).unwrap();
    let limit = bench.world.limits[&moving.0];
    for sequence in 2..=limit {
        bench.small(moving, sequence, b"held");
    }
    bench.tick();
    assert_eq!(bench.world.limits[&moving.0], limit, "no further credit");
    bench.receiver.handle_session_gone(bench.now_ns, second, &mut bench.world);
    bench.flush();
    assert!(bench.world.limits[&moving.0] > limit, "it has credit again, though nothing of it has ended");
    assert!(!peers.iter().any(|peer| bench.receiver.registry.is_moving(peer.0)));
    while let Some((delivery, _)) = bench.delivery(first) {
        bench.release(first, &delivery, true, 0);
    }
    bench.flush();
    assert!(peers.iter().all(|&peer| bench.session_of(peer) == Some(first)));
}

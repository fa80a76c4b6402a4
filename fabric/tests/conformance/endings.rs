//! Cases about the end of a connection with work in flight: at its user's wish, by a lost peer, by a killed
//! process.

use crate::harness::*;
use jet_fabric::address::Address;
use jet_fabric::nic::{
    Completion, DisconnectReason, Event, Payload, PostError, PrivateData, Qp, Sge, Status,
};
use jet_fabric::soft::SoftOptions;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Puts SENDs and as many READs as the connection may have in flight at both ends, and polls neither end.
fn load(world: &mut World, ours: Qp, theirs: Qp) {
    for (end, qp) in [(CLIENT, ours), (SERVER, theirs)] {
        let (address, key) = world.ends[1 - end].source_address(0);
        for number in 0..8 {
            let area = world.ends[end].read_area(number * 100_000, 100_000);
            if number < world.ends[end].depth(qp) {
                world.ends[end].try_read(qp, address, key, &[area]).unwrap();
            }
            world.ends[end].send(qp, number as u64, Payload::Inline(&source_bytes(0, 4000)));
        }
    }
}

fn ended_well(world: &mut World, what: &str, ends: &[(usize, Qp)]) {
    let ends = ends.to_vec();
    world.until(what, |all| ends.iter().all(|(end, qp)| all[*end].ended.contains_key(qp)));
    for (end, qp) in ends {
        assert_eq!(world.ends[end].in_flight_on(qp), 0, "{what}");
    }
}

pub fn a_disconnect_flushes_what_is_in_flight(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (bystander, _) = world.connect();
    for (round, by) in [CLIENT, SERVER, CLIENT, SERVER].into_iter().enumerate() {
        let (ours, theirs) = world.connect();
        let qp = if by == CLIENT { ours } else { theirs };
        load(&mut world, ours, theirs);
        // From a state in which nothing has moved to one in which most has.
        for _ in 0..round * 2 {
            world.step();
        }
        world.ends[by].nic().disconnect(qp);
        world.ends[by].nic().disconnect(qp);
        let late = world.ends[by].try_send(qp, &header(1), Payload::None);
        assert_eq!(late, Err(PostError::Stale), "a QP that was asked to end takes nothing more");
        ended_well(&mut world, "both ends' end", &[(CLIENT, ours), (SERVER, theirs)]);
        let local = world.ends[by].ended[&qp];
        assert_eq!(local, DisconnectReason::Local);
        let other = if by == CLIENT { (SERVER, theirs) } else { (CLIENT, ours) };
        let reason = world.ends[other.0].ended[&other.1];
        let unheard = went_unheard(Some(reason), Some(local));
        assert!(reason == DisconnectReason::Peer || unheard, "{reason:?}");
        for (at, end) in world.ends.iter_mut().enumerate() {
            let may_be = |done: &Completion| {
                matches!(done.status, Status::Success | Status::Flushed)
                    || (unheard && (at, done.qp) == other && done.status == UNACKNOWLEDGED)
            };
            let wrong = end.completions.iter().find(|done| !may_be(done));
            assert_eq!(wrong, None, "{}", end.name);
            end.completions.clear();
            end.events.clear();
        }
    }
    world.client().send(bystander, 1, Payload::None);
    world.settle();
}

pub fn both_ends_may_disconnect_at_once(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    for _ in 0..4 {
        let (ours, theirs) = world.connect();
        load(&mut world, ours, theirs);
        world.client().nic().disconnect(ours);
        world.server().nic().disconnect(theirs);
        ended_well(&mut world, "both ends' end", &[(CLIENT, ours), (SERVER, theirs)]);
        world.ends.iter_mut().for_each(|end| end.events.clear());
    }
}

pub fn a_farewell_arrives_before_the_end(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    for number in 0..10 {
        let (ours, theirs) = world.connect();
        world.server().send(theirs, number, Payload::Inline(b"farewell"));
        world.server().nic().disconnect(theirs);
        ended_well(&mut world, "both ends' end", &[(CLIENT, ours), (SERVER, theirs)]);
        let last = world.client().received.pop().expect("the farewell");
        assert_eq!((last.qp, number_of(&last), &last.payload[..]), (ours, number, &b"farewell"[..]));
        world.ends.iter_mut().for_each(|end| end.events.clear());
    }
    assert!(world.server().completions.iter().all(|done| done.status == Status::Success));
}

pub fn an_end_without_an_entry_for_the_farewell_ends_all_the_same(fabric: &dyn Fabric) {
    let options = SoftOptions { farewell: std::time::Duration::from_millis(50), ..small_options() };
    let mut world = World::with(fabric, options, 0);
    let (ours, theirs) = world.connect();
    for number in 0..4 {
        world.server().send(theirs, number, Payload::None);
    }
    world.server().nic().disconnect(theirs);
    ended_well(&mut world, "both ends' end", &[(CLIENT, ours), (SERVER, theirs)]);
    assert!(world.server().completions.iter().all(|done| done.status == Status::Flushed));
}

pub fn a_lost_peer_flushes_what_is_in_flight(fabric: &dyn Fabric) {
    for lost in [CLIENT, SERVER] {
        let mut world = World::new(fabric);
        let pairs: Vec<_> = (0..4).map(|_| world.connect()).collect();
        pairs.iter().for_each(|(ours, theirs)| load(&mut world, *ours, *theirs));
        for _ in 0..3 {
            world.step();
        }
        world.ends[lost].drop_nic();
        let left = 1 - lost;
        let qp = |pair: &(Qp, Qp)| if left == CLIENT { pair.0 } else { pair.1 };
        let ends: Vec<_> = pairs.iter().map(|pair| (left, qp(pair))).collect();
        ended_well(&mut world, "the end of every connection", &ends);
        for (end, qp) in ends {
            let reason = world.ends[end].ended[&qp];
            assert!(
                matches!(reason, DisconnectReason::Peer | DisconnectReason::Transport(_)),
                "a peer that went is not {reason:?}"
            );
        }
    }
}

/// Checks that who has left a connection may use its memory again: no READ takes the new bytes for those that
/// were asked for.
pub fn a_read_succeeds_only_with_bytes_from_before_its_peer_left(fabric: &dyn Fabric) {
    const BYTES: usize = 100_000;
    for drops in [false, true] {
        for steps in [0, 1, 3, 6] {
            let mut world = World::new(fabric);
            let (ours, theirs) = world.connect();
            let (address, key) = world.client().source_address(0);
            let count = world.server().depth(theirs).min(8);
            let area = |world: &mut World, number: usize| world.server().read_area(number * BYTES, BYTES);
            let ids: Vec<_> = (0..count)
                .map(|number| {
                    let area = area(&mut world, number);
                    world.server().try_read(theirs, address, key, &[area]).unwrap()
                })
                .collect();
            for _ in 0..steps {
                world.server().step();
            }
            if drops {
                world.ends[CLIENT].drop_nic();
            } else {
                world.client().nic().disconnect(ours);
                world.until("the client's end", |ends| ends[CLIENT].ended.contains_key(&ours));
            }
            world.ends[CLIENT].overwrite_source();
            ended_well(&mut world, "the server's end", &[(SERVER, theirs)]);
            for (number, id) in ids.into_iter().enumerate() {
                match world.server().status(id) {
                    Some(Status::Success) => {
                        let bytes = world.server().area_bytes(number * BYTES, BYTES);
                        assert!(bytes == source_bytes(0, BYTES), "READ {number} after {steps} steps");
                    }
                    Some(Status::Flushed) => {}
                    status => assert_eq!(status, Some(UNACKNOWLEDGED), "READ {number}"),
                }
            }
        }
    }
}

pub fn a_peer_lost_before_the_answer_ends_the_request(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let address = world.address.clone();
    let nothing = PrivateData::new(&[]).unwrap();
    world.client().nic().connect(&address, &nothing).unwrap();
    world.until("a request", |ends| !ends[SERVER].events.is_empty());
    let Some(Event::ConnectRequest { qp, .. }) = world.server().events.pop_front() else {
        panic!("no request")
    };
    world.ends[CLIENT].drop_nic();
    // Whether the accept fails or not, the QP ends once.
    let accepted = world.server().nic().accept(qp, &nothing);
    assert!(matches!(accepted, Ok(()) | Err(PostError::Stale)));
    world.until("its end", |ends| ends[SERVER].ended.contains_key(&qp));
}

const CHILD: &str = "JET_CONFORMANCE_CHILD";

/// Guard that kills the child process where a check fails early.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the child's part: connects, reports where its source lies, and sends until it is killed.
fn send_until_killed(fabric: &dyn Fabric, address: &str) {
    let mut end = End::new(fabric, "child", small_options(), 64);
    let address: Address = address.parse().unwrap();
    let qp = end.nic().connect(&address, &PrivateData::new(&[]).unwrap()).unwrap();
    let mut ends = [end];
    until(&mut ends, "the connection", |ends| !ends[0].events.is_empty());
    let mut number = 0;
    let (at, key) = ends[0].source_address(0);
    let mut payload = at.to_le_bytes().to_vec();
    payload.extend(key.to_le_bytes());
    let give_up = Instant::now() + 2 * deadline();
    while Instant::now() < give_up && ends[0].ended.is_empty() {
        while ends[0].try_send(qp, &header(number), Payload::Inline(&payload)).is_ok() {
            number += 1;
        }
        ends[0].step();
    }
}

pub fn a_killed_peer_flushes_what_is_in_flight(fabric: &dyn Fabric) {
    if let Ok(address) = std::env::var(CHILD) {
        return send_until_killed(fabric, &address);
    }
    let mut world = World::new(fabric);
    let (bystander, _) = world.connect();
    let name = format!("{}_processes::a_killed_peer_flushes_what_is_in_flight", fabric.name());
    for enough in [1, 100, 1000] {
        world.server().received.clear();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &name, "--test-threads=1", "--include-ignored"])
            .env(CHILD, world.address.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut child = Killed(child);
        world.until("the child's request", |ends| !ends[SERVER].events.is_empty());
        let Some(Event::ConnectRequest { qp, .. }) = world.server().events.pop_front() else {
            panic!("no request")
        };
        world.server().nic().accept(qp, &PrivateData::new(&[]).unwrap()).unwrap();
        world.until("the child's messages", |ends| ends[SERVER].received.len() >= enough);
        let payload = world.server().received[0].payload.clone();
        let address = u64::from_le_bytes(payload[..8].try_into().unwrap());
        let key = u32::from_le_bytes(payload[8..].try_into().unwrap());
        let most = world.server().nic().limits().scatter_max.min(16) as usize;
        let scatter: Vec<Sge> =
            (0..most).map(|slab| world.server().read_area(slab * 2 * SLAB, SLAB)).collect();
        world.until("the connection", |ends| !ends[SERVER].events.is_empty());
        for _ in 0..world.server().depth(qp).min(16) {
            world.server().try_read(qp, address, key, &scatter).unwrap();
        }
        world.server().step();
        child.0.kill().unwrap();
        world.until("its end", |ends| ends[SERVER].ended.contains_key(&qp));
        child.0.wait().unwrap();
        let numbers: Vec<_> = world.server().received.iter().map(number_of).collect();
        assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "messages came out of order");
        world.client().send(bystander, 0, Payload::None);
        // A SEND may complete at its sender before the server's user has polled it, so each round counts
        // anew.
        world.until("the bystander's SEND", |ends| {
            ends.iter().all(End::idle) && ends[SERVER].received.len() == numbers.len() + 1
        });
        world.server().events.clear();
    }
}

//! Cases about when SENDs complete. On a device they complete after the READs that were posted before them.
//! On a software NIC without a profile they complete when the peer has taken them.

use crate::harness::*;
use jet_fabric::nic::{Payload, PostError, Qp, Work};
use std::time::Instant;

/// Checks the order of one connection's completions: no SEND before earlier SENDs or READs, no READ before
/// earlier READs. Ids count up with an end's posts.
fn as_on_a_device(end: &End, qp: Qp) -> usize {
    let of_qp: Vec<_> = end.completions.iter().filter(|done| done.qp == qp).map(|done| done.work).collect();
    for (at, work) in of_qp.iter().enumerate() {
        let is_late = |later: &Work| match (work, later) {
            (Work::Send { id }, Work::Send { id: other } | Work::Read { id: other })
            | (Work::Read { id }, Work::Read { id: other }) => other < id,
            _ => false,
        };
        assert!(!of_qp[at..].iter().any(is_late), "{}: {work:?} too early of {of_qp:?}", end.name);
    }
    of_qp.len()
}

/// Covers a receiver that reads from the peer to which it sends: its SENDs wait for the READs.
pub fn a_send_completes_after_the_reads_before_it(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (ours, theirs) = world.connect();
    let (address, key) = world.client().source_address(0);
    let area = world.server().read_area(0, READ_AREA);
    for round in 1..=5 {
        world.server().try_read(theirs, address, key, &[area]).unwrap();
        world.server().send(theirs, round, Payload::None);
        world.client().send(ours, round, Payload::None);
        let arrived = usize::try_from(round).unwrap();
        world.until("the SEND to arrive", |ends| ends[CLIENT].received.len() == arrived);
        world.settle();
        assert_eq!(as_on_a_device(&world.ends[SERVER], theirs), 2 * arrived);
    }
}

pub fn no_send_completes_before_what_was_posted_before_it(fabric: &dyn Fabric) {
    let mut numbers = fastrand::Rng::with_seed(18);
    let mut world = World::new(fabric);
    let qps: Vec<_> = (0..3).map(|_| world.connect()).collect();
    let (mut number, mut posted) = (0, 0);
    let give_up = Instant::now() + deadline();
    while posted < 300 {
        assert!(Instant::now() < give_up, "{posted} found room");
        number += 1;
        let (_, theirs) = qps[numbers.usize(..qps.len())];
        let (address, key) = world.client().source_address(0);
        let bytes = 1 + numbers.usize(..200_000);
        let area = world.server().read_area(0, bytes);
        let done = if numbers.usize(..3) == 0 {
            world.server().try_read(theirs, address, key, &[area])
        } else {
            world.server().try_send(theirs, &header(number), Payload::Inline(&source_bytes(0, bytes % 300)))
        };
        match done {
            Ok(_) => posted += 1,
            Err(PostError::QueueFull) => {}
            Err(error) => panic!("{error}"),
        }
        let end = numbers.usize(..2);
        world.ends[end].step();
    }
    world.settle();
    let completed: usize = qps.iter().map(|(_, theirs)| as_on_a_device(&world.ends[SERVER], *theirs)).sum();
    assert_eq!(completed, posted);
}

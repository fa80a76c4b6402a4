//! The order of completions on a device: one for SENDs and READs, that of the posts. A software NIC without a profile has no
//! such order: its SENDs complete when they were taken.

use crate::harness::*;
use jet_fabric::nic::{Payload, PostError, Qp, Work};
use std::time::Instant;

/// Ids count up with the posts of an end: what completed on one of its connections must, too.
fn in_the_order_of_posts(end: &End, qp: Qp) -> usize {
    let of_qp: Vec<_> = end.completions.iter().filter(|done| done.qp == qp).map(|done| done.work).collect();
    let ids: Vec<u64> = of_qp
        .iter()
        .map(|work| match work {
            Work::Send { id } | Work::Read { id } => *id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(ids.is_sorted(), "{}: {of_qp:?}", end.name);
    ids.len()
}

/// What this does to a receiver that reads from whom it sends to: its SENDs wait for READ time.
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
        assert_eq!(in_the_order_of_posts(&world.ends[SERVER], theirs), 2 * arrived);
    }
}

pub fn completions_come_in_the_order_of_posts(fabric: &dyn Fabric) {
    let mut numbers = Numbers::new(18);
    let mut world = World::new(fabric);
    let qps: Vec<_> = (0..3).map(|_| world.connect()).collect();
    let (mut number, mut posted) = (0, 0);
    let give_up = Instant::now() + deadline();
    while posted < 300 {
        assert!(Instant::now() < give_up, "{posted} found room");
        number += 1;
        let (_, theirs) = qps[numbers.below(qps.len())];
        let (address, key) = world.client().source_address(0);
        let bytes = 1 + numbers.below(200_000);
        let area = world.server().read_area(0, bytes);
        let done = if numbers.below(3) == 0 {
            world.server().try_read(theirs, address, key, &[area])
        } else {
            world.server().try_send(theirs, &header(number), Payload::Inline(&source_bytes(0, bytes % 300)))
        };
        match done {
            Ok(_) => posted += 1,
            Err(PostError::QueueFull) => {}
            Err(error) => panic!("{error}"),
        }
        let end = numbers.below(2);
        world.ends[end].step();
    }
    world.settle();
    let completed: usize =
        qps.iter().map(|(_, theirs)| in_the_order_of_posts(&world.ends[SERVER], *theirs)).sum();
    assert_eq!(completed, posted);
}

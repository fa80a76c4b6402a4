//! Cases about SENDs: their order, their bytes, and what happens when there is no room.

use crate::harness::*;
use jet_fabric::nic::{Payload, PostError, Qp, SrqEntry, Status, Work};
use jet_fabric::soft::SoftOptions;

/// Posts a SEND, polling while the queue is full.
fn send_when_possible(world: &mut World, from: usize, qp: Qp, number: u64, payload: Payload<'_>) {
    let mut posted = false;
    world.until("room for a SEND", |ends| {
        match ends[from].try_send(qp, &header(number), payload) {
            Ok(_) => posted = true,
            Err(PostError::QueueFull) => {}
            Err(error) => panic!("SEND {number}: {error}"),
        }
        posted
    });
}

pub fn sends_of_every_size_arrive_in_order(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (ours, _) = world.connect();
    let sizes: Vec<usize> = (0..=64).chain([127, 128, 129, 511, 512, 1000, 2047, 2048, 4095, 4096]).collect();
    let mut expected = Vec::new();
    for (number, &bytes) in sizes.iter().chain(sizes.iter().rev()).enumerate() {
        let payload = source_bytes(number * 3, bytes);
        for registered in [false, true] {
            let area = world.client().source_area(number * 3, bytes);
            let payload = if registered { Payload::Registered(area) } else { Payload::Inline(&payload) };
            send_when_possible(&mut world, CLIENT, ours, expected.len() as u64 / 2, payload);
            expected.push(source_bytes(number * 3, bytes));
        }
        if bytes == 0 {
            send_when_possible(&mut world, CLIENT, ours, 0, Payload::None);
            expected.push(Vec::new());
        }
    }
    world.until("all SENDs", |ends| ends[SERVER].received.len() == expected.len() && ends[CLIENT].idle());
    for (received, payload) in world.server().received.iter().zip(&expected) {
        number_of(received);
        assert!(
            received.payload == *payload,
            "{} bytes came, {} went",
            received.payload.len(),
            payload.len()
        );
    }
    assert!(world.client().completions.iter().all(|done| done.status == Status::Success));
    let counters = world.server().nic().counters();
    assert_eq!(counters.receives, expected.len() as u64);
    assert_eq!(world.client().nic().counters().sends, expected.len() as u64);
}

pub fn many_qps_share_one_srq(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let qps: Vec<_> = (0..16).map(|_| world.connect()).collect();
    for number in 0..60u64 {
        for (client, server) in &qps {
            send_when_possible(&mut world, CLIENT, *client, number, Payload::Inline(b"to the server"));
            send_when_possible(&mut world, SERVER, *server, number, Payload::None);
        }
    }
    world.until("all SENDs", |ends| ends.iter().all(|end| end.received.len() == 16 * 60 && end.idle()));
    for (client, server) in qps {
        for (end, qp) in [(CLIENT, client), (SERVER, server)] {
            let of_qp = world.ends[end].received.iter().filter(|received| received.qp == qp);
            assert_eq!(of_qp.map(number_of).collect::<Vec<_>>(), (0..60).collect::<Vec<_>>());
        }
    }
}

pub fn without_an_srq_entry_only_that_qp_waits(fabric: &dyn Fabric) {
    let mut world = World::with(fabric, small_options(), 0);
    // A second server, which has entries.
    let place = tempfile::tempdir().unwrap();
    let mut other = End::new(fabric, "other", small_options(), 16);
    let other_address = other.nic().listen(&fabric.address(&place)).unwrap();
    world.ends.push(other);
    let (waiting, _) = world.connect();
    let (going, _) = connect(&mut world.ends, CLIENT, 2, &other_address);
    // As many as a connection may have under way.
    let waits = 20.min(world.client().nic().limits().sends_per_qp_max);
    for number in 0..waits {
        world.client().send(waiting, number.into(), Payload::Inline(&source_bytes(0, 100)));
        // A NIC may show SENDs of one doorbell together.
        world.client().nic().flush();
    }
    for number in 0..50 {
        world.client().send(going, number, Payload::Inline(&source_bytes(0, 100)));
        world.until("the other QP to go on", |ends| ends[2].received.len() as u64 == number + 1);
    }
    assert_eq!(world.client().in_flight_on(waiting), waits as usize, "no SEND is taken without an entry");
    assert!(world.server().received.is_empty());
    // Entries are posted one by one, and one message arrives for each.
    world.server().repost = false;
    let slab = world.server().read_area(0, SLAB);
    let header_place = world.server().entry(0).header;
    for number in 0..waits {
        let entry = SrqEntry { id: number, header: header_place, payload: Some(slab) };
        world.server().post_other_entry(entry).unwrap();
        world.until("one message", |ends| ends[SERVER].nic().counters().receives > u64::from(number));
        world.until("its completion", |ends| {
            ends[SERVER].step();
            ends[CLIENT].in_flight_on(waiting) < (waits - number) as usize
        });
    }
    world.settle();
    let rnr = |world: &mut World, end: usize| world.ends[end].nic().counters().rnr;
    assert!(rnr(&mut world, SERVER) + rnr(&mut world, CLIENT) > 0, "waiting for an entry is counted");
    assert!(world.client().completions.iter().all(|done| done.status == Status::Success));
}

pub fn more_than_the_limits_is_refused(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (ours, _) = world.connect();
    let limits = world.client().nic().limits();
    let long = vec![0; limits.inline_bytes_max as usize + 1];
    let refused = world.client().try_send(ours, &header(1), Payload::Inline(&long));
    assert_eq!(refused, Err(PostError::Limit));
    let long = world.client().source_area(0, SLAB + 1);
    let refused = world.client().try_send(ours, &header(1), Payload::Registered(long));
    assert_eq!(refused, Err(PostError::Limit));
    let one = world.client().read_area(0, 1);
    let scatter = vec![one; limits.scatter_max as usize + 1];
    assert_eq!(world.client().try_read(ours, 0, 1, &scatter), Err(PostError::Limit));
    let nobody = Qp { index: limits.qps_max + 7, generation: 1 };
    assert_eq!(world.client().try_send(nobody, &header(1), Payload::None), Err(PostError::Stale));
    world.client().send(ours, 1, Payload::None);
    world.until("a good SEND", |ends| ends[SERVER].received.len() == 1);
}

pub fn a_full_queue_says_so_and_works_again(fabric: &dyn Fabric) {
    let options = SoftOptions { srq_entries_max: 40, reads_max: 8, completions: 256, ..small_options() };
    let mut world = World::with(fabric, options, 0);
    let (ours, theirs) = world.connect();
    // SENDs, which the server does not take.
    let mut posted = 0u64;
    while world.client().try_send(ours, &header(posted), Payload::None).is_ok() {
        posted += 1;
        assert!(posted <= 4096, "SENDs are unbounded");
    }
    assert!(posted > 0);
    assert_eq!(world.client().try_send(ours, &header(posted), Payload::None), Err(PostError::QueueFull));
    // READs; this end does not poll.
    let (address, key) = world.client().source_address(0);
    let area = world.server().read_area(0, 64);
    let mut reads = 0;
    while world.server().try_read(theirs, address, key, &[area]).is_ok() {
        reads += 1;
        assert!(reads <= 8, "READs are unbounded");
    }
    assert_eq!(world.server().try_read(theirs, address, key, &[area]), Err(PostError::QueueFull));
    assert!(reads > 0);
    // SRQ entries.
    let header_place = world.server().entry(0).header;
    let entry = |id| SrqEntry { id, header: header_place, payload: None };
    for id in 0..40 {
        world.server().post_other_entry(entry(id)).unwrap();
    }
    assert_eq!(world.server().post_other_entry(entry(40)), Err(PostError::QueueFull));
    // All queues work again after polling.
    world.server().repost = false;
    let (mut id, mut before) = (40, 0);
    world.until("all SENDs and READs", |ends| {
        while before < ends[SERVER].received.len() {
            before += 1;
            id += 1;
            ends[SERVER].post_other_entry(entry(id)).unwrap();
        }
        ends.iter().all(End::idle)
    });
    world.until("the last", |ends| ends[SERVER].received.len() as u64 == posted);
    world.client().send(ours, posted, Payload::None);
    world.server().try_read(theirs, address, key, &[area]).unwrap();
    world.settle();
}

pub fn a_send_that_does_not_fit_its_entry_ends_the_connection(fabric: &dyn Fabric) {
    let mut world = World::with(fabric, small_options(), 0);
    let (ours, theirs) = world.connect();
    let (bystander, _) = world.connect();
    world.server().repost = false;
    let header_place = world.server().entry(0).header;
    for id in 0..4 {
        world.server().post_other_entry(SrqEntry { id, header: header_place, payload: None }).unwrap();
    }
    let id = world.client().send(ours, 1, Payload::Inline(b"no slab for this"));
    world.until("both ends' end", |ends| {
        ends[CLIENT].ended.contains_key(&ours) && ends[SERVER].ended.contains_key(&theirs)
    });
    let status = world.client().status(id);
    // The message about the error can be lost. Then the connection's end is noticed, or nothing is
    // acknowledged any more.
    let unheard = [Some(Status::Flushed), Some(UNACKNOWLEDGED)];
    assert!(
        status == Some(Status::Length) || (packets_are_lost() && unheard.contains(&status)),
        "{status:?}"
    );
    assert!(world.server().received.is_empty());
    world.client().send(bystander, 2, Payload::None);
    world.until("the bystander's SEND", |ends| ends[SERVER].received.len() == 1);
}

pub fn a_poll_of_one_loses_nothing(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (ours, theirs) = world.connect();
    world.ends.iter_mut().for_each(|end| end.poll_max = 1);
    let (address, key) = world.client().source_address(0);
    let mut reads = 0;
    for number in 0..3000u64 {
        let bytes = usize::try_from(number % 200).unwrap();
        send_when_possible(&mut world, CLIENT, ours, number, Payload::Inline(&source_bytes(0, bytes)));
        if number % 10 == 0 {
            send_when_possible(&mut world, SERVER, theirs, number / 10, Payload::None);
            let area = world.server().read_area(0, 100);
            reads += usize::from(world.server().try_read(theirs, address, key, &[area]).is_ok());
        }
    }
    world.until("all of them", |ends| {
        ends.iter().all(End::idle)
            && ends[SERVER].received.len() == 3000
            && ends[CLIENT].received.len() == 300
    });
    assert!(world.server().received.iter().map(number_of).eq(0..3000));
    assert!(world.client().received.iter().map(number_of).eq(0..300));
    let done = &world.server().completions;
    let read = done.iter().filter(|done| matches!(done.work, Work::Read { .. })).count();
    assert_eq!(read, reads);
    assert!(done.iter().all(|done| done.status == Status::Success));
}

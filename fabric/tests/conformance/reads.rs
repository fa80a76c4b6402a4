//! Cases about READs: where their bytes go, their order, and what they must not touch.

use crate::harness::*;
use jet_fabric::limits::{DeviceAttributes, Profile};
use jet_fabric::nic::{
    DisconnectReason, Event, MemoryKey, Payload, PostError, PrivateData, Qp, Sge, SrqEntry, Status,
};
use jet_fabric::soft::SoftOptions;

/// Reads from the client's source at `from` into stretches (offset in the READ area, bytes), and checks every
/// byte.
fn read_and_check(world: &mut World, qp: Qp, from: usize, stretches: &[(usize, usize)]) {
    world.server().clear_area();
    let (address, key) = world.client().source_address(from as u64);
    let scatter: Vec<_> =
        stretches.iter().map(|&(offset, bytes)| world.server().read_area(offset, bytes)).collect();
    let id = world.server().try_read(qp, address, key, &scatter).unwrap();
    world.until("the READ", |ends| ends[SERVER].status(id).is_some());
    assert_eq!(world.server().status(id), Some(Status::Success));
    let mut expected = vec![UNTOUCHED; READ_AREA];
    let mut at = from;
    for &(offset, bytes) in stretches {
        expected[offset..offset + bytes].copy_from_slice(&source_bytes(at, bytes));
        at += bytes;
    }
    assert!(world.server().area_bytes(0, READ_AREA) == expected, "from {from} into {stretches:?}");
}

pub fn reads_fill_exactly_their_stretches(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (_, qp) = world.connect();
    read_and_check(&mut world, qp, 0, &[(0, 1)]);
    read_and_check(&mut world, qp, SOURCE_BYTES - 1, &[(4095, 1)]);
    read_and_check(&mut world, qp, 12_345, &[(8192, 100_000)]);
    read_and_check(&mut world, qp, 4096, &[(0, 256 << 10)]);
    read_and_check(&mut world, qp, 0, &[(4096, SOURCE_BYTES - 8192)]);
    // A fragment in slabs that are not in order.
    let most = world.server().nic().limits().scatter_max.min(64) as usize;
    let slabs: Vec<_> = (0..most).map(|slab| (((slab * 37) % 64) * 2 * SLAB, SLAB)).collect();
    read_and_check(&mut world, qp, 8192, &slabs);
    // Stretches of odd lengths.
    let odd: Vec<_> =
        (0..most.min(7)).map(|stretch| (stretch * 10_000 + stretch, stretch * 977 + 1)).collect();
    read_and_check(&mut world, qp, 777, &odd);
    assert_eq!(world.server().nic().counters().reads, 7);
}

pub fn reads_complete_in_order(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (ours, qp) = world.connect();
    let (address, key) = world.client().source_address(0);
    let count = world.server().depth(qp).min(16);
    let sizes: Vec<usize> = (0..count).map(|number| [1, 65_536, 4096, 30_000][number % 4]).collect();
    let mut ids = Vec::new();
    for round in 0..4 {
        for (number, &bytes) in sizes.iter().enumerate() {
            let area = world.server().read_area(number * 65_536, bytes);
            let from = (number * 1000 + round * 17) as u64;
            ids.push(world.server().try_read(qp, address + from, key, &[area]).unwrap());
            world.client().send(ours, 1, Payload::Inline(b"beside the READs"));
        }
        // The harness checks the order of every completion.
        world.settle();
        for (number, &bytes) in sizes.iter().enumerate() {
            let read = world.server().area_bytes(number * 65_536, bytes);
            assert!(
                read == source_bytes(number * 1000 + round * 17, bytes),
                "READ {number} of round {round}"
            );
        }
    }
    assert!(ids.iter().all(|id| world.server().status(*id) == Some(Status::Success)));
}

/// READs beyond what both ends agreed on are refused with an error, until one completes.
pub fn reads_beyond_the_connections_depth_are_refused_until_one_is_done(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (_, qp) = world.connect();
    let limits = world.server().nic().limits();
    let depth = world.server().depth(qp);
    assert!(depth >= 1 && depth <= limits.reads_per_qp_max as usize, "{depth} of {limits:?}");
    let (address, key) = world.client().source_address(0);
    let area = world.server().read_area(0, 4096);
    for round in 1..=3 {
        for number in 0..depth {
            let posted = world.server().try_read(qp, address, key, &[area]);
            assert!(posted.is_ok(), "READ {number} of {depth}: {posted:?}");
        }
        assert_eq!(world.server().try_read(qp, address, key, &[area]), Err(PostError::QueueFull));
        world.settle();
        assert_eq!(world.server().nic().counters().reads, (round * depth) as u64);
    }
}

/// A connection has the lesser of the READs that one end's device makes and the other end's device answers.
pub fn a_connection_has_the_lesser_depth_of_both_ends(fabric: &dyn Fabric) {
    let makes =
        |reads: i32| DeviceAttributes { max_qp_init_rd_atom: reads, ..*Profile::CONNECTX_6.attributes() };
    let answers =
        |reads: i32| DeviceAttributes { max_qp_rd_atom: reads, ..*Profile::CONNECTX_6.attributes() };
    let on =
        |attributes| SoftOptions { profile: Some(Profile::new("another", attributes)), ..small_options() };
    for (made, answered) in [(1, 1), (1, 4), (4, 1), (3, 2), (2, 3), (8, 8)] {
        let mut world = World::with_each(fabric, [on(makes(made)), on(answers(answered))], 16);
        let (_, theirs) = world.connect();
        let lesser = usize::try_from(made.min(answered)).unwrap();
        // A real device may make fewer itself.
        let most = world.server().nic().limits().reads_per_qp_max as usize;
        let depth = world.server().depth(theirs);
        assert_eq!(depth, lesser.min(most), "one makes {made}, the other answers {answered}");
        let (address, key) = world.client().source_address(0);
        let area = world.server().read_area(0, 64);
        for _ in 0..depth {
            world.server().try_read(theirs, address, key, &[area]).unwrap();
        }
        assert_eq!(world.server().try_read(theirs, address, key, &[area]), Err(PostError::QueueFull));
        world.settle();
    }
}

/// A READ to a peer that answers none would wait for ever, so such a peer is refused.
pub fn a_peer_that_answers_no_read_is_refused(fabric: &dyn Fabric) {
    let none = SoftOptions { reads_answered_per_qp_max: 0, ..small_options() };
    let mut world = World::with_each(fabric, [small_options(), none], 16);
    let (address, nothing) = (world.address.clone(), PrivateData::new(&[]).unwrap());
    let ours = world.client().nic().connect(&address, &nothing).unwrap();
    world.until("a request", |ends| !ends[SERVER].events.is_empty());
    let Some(Event::ConnectRequest { qp, .. }) = world.server().events.pop_front() else {
        panic!("no request")
    };
    assert_eq!(world.server().nic().accept(qp, &nothing), Err(PostError::Stale));
    world.until("both ends' end", |ends| {
        let client = &ends[CLIENT];
        // To RDMA CM, an end before the answer is a refusal; it has no other message for that.
        let is_ours = |event: &Event| matches!(event, Event::Rejected { qp, .. } if *qp == ours);
        let client_knows = client.ended.contains_key(&ours) || client.events.iter().any(is_ours);
        ends[SERVER].ended.contains_key(&qp) && client_knows
    });
    assert_eq!(world.server().ended[&qp], DisconnectReason::Protocol);
    assert_eq!(world.server().nic().counters().protocol_errors, 1);
    // In the other direction it does not matter: an end that only sends may ask a peer that answers no READ.
    let mut world = World::with_each(fabric, [none, small_options()], 16);
    let (ours, _) = world.connect();
    let area = world.client().read_area(0, 64);
    assert_eq!(world.client().depth(ours), 0);
    assert_eq!(world.client().try_read(ours, 0, 1, &[area]), Err(PostError::Limit), "nothing to wait for");
    world.client().send(ours, 1, Payload::None);
    world.until("its SEND", |ends| ends[SERVER].received.len() == 1);
}

pub fn both_ends_read_from_each_other(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (ours, theirs) = world.connect();
    for round in 0..8 {
        for (from, to, qp) in [(CLIENT, SERVER, theirs), (SERVER, CLIENT, ours)] {
            let (address, key) = world.ends[from].source_address(round);
            let area = world.ends[to].read_area(0, 200_000);
            world.ends[to].try_read(qp, address, key, &[area]).unwrap();
        }
        world.settle();
        for end in &world.ends {
            let from = usize::try_from(round).unwrap();
            assert!(end.area_bytes(0, 200_000) == source_bytes(from, 200_000), "{}", end.name);
        }
    }
}

/// Checks that a READ fails with `RemoteAccess`, changes nothing, and ends its own QP but no other.
fn check_refused(world: &mut World, what: &str, address: u64, key: u32, bytes: usize) {
    let (ours, theirs) = world.connect();
    let (_, bystander) = world.connect();
    world.server().clear_area();
    let area = world.server().read_area(4096, bytes);
    let id = world.server().try_read(theirs, address, key, &[area]).unwrap();
    world.until(what, |ends| {
        ends[SERVER].ended.contains_key(&theirs) && ends[CLIENT].ended.contains_key(&ours)
    });
    let (status, reason) = (world.server().status(id), world.server().ended[&theirs]);
    // Where packets are lost, the refusal may be lost, too, and a QP that has failed does not answer again.
    if !(packets_are_lost()
        && matches!((status, reason), (Some(Status::Other(_)), DisconnectReason::Transport(_))))
    {
        assert_eq!(status, Some(Status::RemoteAccess), "{what}");
        assert_eq!(reason, DisconnectReason::WorkRequest(Status::RemoteAccess), "{what}");
    }
    let area = world.server().area_bytes(0, READ_AREA);
    assert!(area.iter().all(|byte| *byte == UNTOUCHED), "{what} wrote something");
    world.server().send(bystander, 1, Payload::None);
    world.settle();
    assert!(!world.server().ended.contains_key(&bystander), "{what} took another QP");
    world.ends.iter_mut().for_each(|end| end.events.clear());
}

pub fn reads_beyond_what_is_allowed_change_nothing(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (address, key) = world.client().source_address(0);
    let bytes = SOURCE_BYTES as u64;
    check_refused(&mut world, "an unknown key", address, key ^ 0x55aa_55aa, 64);
    check_refused(&mut world, "key 0", address, 0, 64);
    check_refused(&mut world, "a READ over the end", address + bytes - 63, key, 64);
    check_refused(&mut world, "a READ behind the end", address + bytes, key, 1);
    check_refused(&mut world, "a READ that wraps", u64::MAX - 3, key, 64);
    let pool = world.client().slab_key;
    let pool_address = world.client().nic().remote_address(pool, 0);
    check_refused(&mut world, "memory for local use", pool_address, pool.0, 64);
    world.client().nic().deregister(MemoryKey(key));
    check_refused(&mut world, "a deregistered key", address, key, 64);
}

pub fn a_key_deregistered_after_use_is_refused(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (_, qp) = world.connect();
    read_and_check(&mut world, qp, 100, &[(0, 5000)]);
    let (address, key) = world.client().source_address(0);
    world.client().nic().deregister(MemoryKey(key));
    check_refused(&mut world, "a key that was good before", address, key, 64);
    assert!(!world.server().ended.contains_key(&qp), "the first QP read nothing wrong");
}

/// Checks that a request was refused at once, or completed with the error. Either way nothing moved and the
/// QP stays usable.
fn check_local(world: &mut World, what: &str, posted: Result<u64, PostError>) {
    match posted {
        Err(PostError::LocalProtection) => {}
        Err(error) => panic!("{what}: {error}"),
        Ok(id) => {
            world.until(what, |ends| ends[SERVER].status(id).is_some());
            assert_eq!(world.server().status(id), Some(Status::LocalProtection), "{what}");
        }
    }
    assert!(world.server().ended.is_empty(), "{what} took the QP");
}

pub fn local_memory_is_protected(fabric: &dyn Fabric) {
    // The SRQ has room for more.
    let mut world = World::with(fabric, small_options(), 32);
    let (_, qp) = world.connect();
    let (address, key) = world.client().source_address(0);
    let good = world.server().read_area(0, 64);
    let end = u64::from(world.server().entries) * SLAB as u64 + READ_AREA as u64;
    let bad = [
        ("an unknown key", Sge { key: MemoryKey(good.key.0 ^ 0x0f0f_0f0f), ..good }),
        ("over the end", Sge { offset: end - 63, ..good }),
        ("behind the end", Sge { offset: end, ..good }),
        ("an offset that wraps", Sge { offset: u64::MAX, ..good }),
    ];
    for (what, sge) in bad {
        let scatter = [good, sge];
        let most = scatter.len().min(world.server().nic().limits().scatter_max as usize);
        let posted = world.server().try_read(qp, address, key, &scatter[2 - most..]);
        check_local(&mut world, what, posted);
        let posted = world.server().try_send(qp, &header(1), Payload::Registered(sge));
        check_local(&mut world, what, posted);
        let before = world.server().completions.len();
        let header = world.server().entry(0).header;
        match world.server().post_other_entry(SrqEntry { id: 1000, header, payload: Some(sge) }) {
            Err(PostError::LocalProtection) => {}
            Err(error) => panic!("{what}: {error}"),
            Ok(()) => {
                world.server().repost = false;
                world.until(what, |ends| ends[SERVER].completions.len() > before);
                let done = *world.server().completions.last().unwrap();
                assert_eq!(done.status, Status::LocalProtection, "{what}");
            }
        }
    }
    assert!(world.client().received.is_empty());
    assert!(world.server().area_bytes(0, READ_AREA).iter().all(|byte| *byte == UNTOUCHED));
    read_and_check(&mut world, qp, 5, &[(64, 5000)]);
}

//! Cases about connections: made, refused, impossible, many.

use crate::harness::*;
use jet_fabric::address::Address;
use jet_fabric::nic::{ConnectError, Event, ListenError, PRIVATE_DATA_MAX, Payload, PostError, PrivateData};
use jet_fabric::soft::SoftOptions;

pub fn private_data_travels_both_ways(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let address = world.address.clone();
    let mut sources = Vec::new();
    for bytes in [0, 1, PRIVATE_DATA_MAX] {
        let said = PrivateData::new(&source_bytes(0, bytes)).unwrap();
        let answered = PrivateData::new(&source_bytes(99, bytes)).unwrap();
        let ours = world.client().nic().connect(&address, &said).unwrap();
        world.until("a request", |ends| !ends[SERVER].events.is_empty());
        let event = world.server().events.pop_front();
        let Some(Event::ConnectRequest { qp, source, private_data }) = event else { panic!("{event:?}") };
        sources.push(source.number());
        assert!(says(&private_data, said.as_slice()), "{private_data:?}");
        world.server().nic().accept(qp, &answered).unwrap();
        world.until("the answer", |ends| ends.iter().all(|end| !end.events.is_empty()));
        let event = world.client().events.pop_front();
        let Some(Event::Connected { qp: of, private_data, .. }) = event else { panic!("{event:?}") };
        assert!(of == ours && says(&private_data, answered.as_slice()), "{private_data:?}");
        let event = world.server().events.pop_front();
        let Some(Event::Connected { qp: of, private_data, .. }) = event else { panic!("{event:?}") };
        assert!(of == qp && says(&private_data, &[]), "{private_data:?}");
    }
    // All come from one host, or process, which is known.
    assert!(sources.iter().all(|source| *source == sources[0] && *source != u128::MAX), "{sources:?}");
}

pub fn a_rejected_connection_is_stale_at_both_ends(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let address = world.address.clone();
    let nothing = PrivateData::new(&[]).unwrap();
    let reason = PrivateData::new(b"too many").unwrap();
    let ours = world.client().nic().connect(&address, &nothing).unwrap();
    assert_eq!(world.client().try_send(ours, &header(1), Payload::None), Err(PostError::Stale), "too early");
    world.until("a request", |ends| !ends[SERVER].events.is_empty());
    let Some(Event::ConnectRequest { qp: theirs, .. }) = world.server().events.pop_front() else {
        panic!("no request")
    };
    world.server().nic().reject(theirs, &reason);
    world.until("the refusal", |ends| !ends[CLIENT].events.is_empty());
    let event = world.client().events.pop_front();
    let Some(Event::Rejected { qp, private_data, .. }) = event else { panic!("{event:?}") };
    assert!(qp == ours && says(&private_data, reason.as_slice()), "{private_data:?}");
    assert_eq!(world.client().try_send(ours, &header(1), Payload::None), Err(PostError::Stale));
    assert_eq!(world.server().try_send(theirs, &header(1), Payload::None), Err(PostError::Stale));
    assert_eq!(world.server().nic().accept(theirs, &nothing), Err(PostError::Stale));
    // The next connection works like the first, and no further event of the refused one comes.
    let (after, _) = world.connect();
    assert_ne!(after, ours);
    assert!(world.ends.iter().all(|end| end.events.is_empty() && end.ended.is_empty()));
}

fn fails_to_connect(world: &mut World, address: &Address) {
    let nothing = PrivateData::new(&[]).unwrap();
    match world.client().nic().connect(address, &nothing) {
        Err(ConnectError::System { .. }) => {}
        Err(other) => panic!("{other}"),
        Ok(qp) => {
            world.until("the failure", |ends| !ends[CLIENT].events.is_empty());
            let event = world.client().events.pop_front();
            assert!(matches!(event, Some(Event::Disconnected { qp: of, .. }) if of == qp), "{event:?}");
        }
    }
}

pub fn nobody_listens(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let (ours, theirs) = world.connect();
    let address = world.address.clone();
    world.server().nic().stop_listening();
    fails_to_connect(&mut world, &address);
    // Existing connections stay.
    world.client().send(ours, 1, Payload::None);
    world.server().send(theirs, 2, Payload::None);
    world.until("both SENDs", |ends| ends.iter().all(|end| end.received.len() == 1));
    let address = fabric.foreign_address();
    let nothing = PrivateData::new(&[]).unwrap();
    let wrong = world.client().nic().connect(&address, &nothing);
    assert!(matches!(wrong, Err(ConnectError::WrongFabric { .. })));
    let wrong = world.client().nic().listen(&address);
    assert!(matches!(wrong, Err(ListenError::WrongFabric { .. })));
}

pub fn an_address_in_use_is_refused(fabric: &dyn Fabric) {
    let mut world = World::new(fabric);
    let address = world.address.clone();
    let taken = world.client().nic().listen(&address);
    assert!(matches!(taken, Err(ListenError::InUse { .. })), "{taken:?}");
    world.connect();
}

pub fn connections_beyond_the_table_are_refused(fabric: &dyn Fabric) {
    let options = SoftOptions { qps_max: 2, ..small_options() };
    let mut world = World::with(fabric, options, 8);
    let (first, _) = world.connect();
    world.connect();
    let address = world.address.clone();
    let nothing = PrivateData::new(&[]).unwrap();
    let third = world.client().nic().connect(&address, &nothing);
    assert!(matches!(third, Err(ConnectError::TooMany { max: 2 })), "{third:?}");
    world.client().nic().disconnect(first);
    world.until("the end of one", |ends| ends.iter().all(|end| end.ended.len() == 1));
    world.ends.iter_mut().for_each(|end| end.events.clear());
    let (again, _) = world.connect();
    assert_ne!(again, first, "a handle is never given out twice");
    assert_eq!(world.client().try_send(first, &header(1), Payload::None), Err(PostError::Stale));
}

pub fn two_hundred_connections_of_which_eight_talk(fabric: &dyn Fabric) {
    raise_descriptor_limit();
    let options = SoftOptions { qps_max: 256, ..small_options() };
    let mut world = World::with(fabric, options, 64);
    // Or as many as the device has.
    let connected = 200.min(world.client().nic().limits().qps_max as usize);
    let apart = connected / 8;
    let qps: Vec<_> = (0..connected).map(|_| world.connect()).collect();
    for round in 0..20u64 {
        for (client, server) in qps.iter().step_by(apart).take(8) {
            world.client().send(*client, round, Payload::Inline(&source_bytes(7, 512)));
            world.server().send(*server, round, Payload::None);
        }
        world.settle();
    }
    world.until("all messages", |ends| ends.iter().all(|end| end.received.len() == 160));
    for end in &mut world.ends {
        for of in 0..8 {
            let qp = qps[of * apart];
            let qp = if end.name == "client" { qp.0 } else { qp.1 };
            let numbers: Vec<_> = end.received.iter().filter(|one| one.qp == qp).map(number_of).collect();
            assert_eq!(numbers, (0..20).collect::<Vec<_>>());
        }
    }
    world.ends[CLIENT].drop_nic();
    world.until("all ends", |ends| ends[SERVER].ended.len() == connected);
}

/// Raises the limit of descriptors, since both ends of hundreds of connections are in this process.
pub fn raise_descriptor_limit() {
    let resource = rustix::process::Resource::Nofile;
    let limit = rustix::process::getrlimit(resource);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(resource, raised).unwrap();
}

//! Cases about a thousand connections that begin at once, send at once, and end at once with as much work
//! under way as they can have.

use crate::connections::raise_descriptor_limit;
use crate::harness::*;
use jet_fabric::nic::{Event, Payload, PrivateData, Qp, Status, Work};
use jet_fabric::soft::SoftOptions;

const COUNT: usize = 1000;
/// SENDs and READs of one connection, as a daemon has them.
const SENDS: u32 = 13;
const READS: u32 = 16;
/// READs of all connections together.
const READS_OF_ALL: u32 = 32;
/// SRQ entries: as many as SENDs arrive at once.
const ENTRIES: u32 = 1000;

fn options() -> SoftOptions {
    let (qps_max, reads_max) = (1024, READS_OF_ALL);
    SoftOptions {
        qps_max,
        srq_entries_max: ENTRIES,
        reads_max,
        reads_per_qp_max: READS,
        completions: ENTRIES + reads_max + qps_max * SENDS,
        ..small_options()
    }
}

/// Connects: all ask before one is answered. Returns the client's QPs and the server's.
fn come(world: &mut World) -> (Vec<Qp>, Vec<Qp>) {
    let (address, nothing) = (world.address.clone(), PrivateData::new(&[]).unwrap());
    let ours = (0..COUNT).map(|_| world.client().nic().connect(&address, &nothing).unwrap()).collect();
    world.until("a thousand requests", |ends| ends[SERVER].events.len() == COUNT);
    let requests = std::mem::take(&mut world.server().events);
    let accept = |event| {
        let Event::ConnectRequest { qp, .. } = event else { panic!("{event:?}") };
        world.server().nic().accept(qp, &nothing).unwrap();
        qp
    };
    let theirs = requests.into_iter().map(accept).collect();
    world.until("a thousand connections", |ends| ends.iter().all(|end| end.events.len() == COUNT));
    let is_connected = |event: &Event| matches!(event, Event::Connected { .. });
    assert!(world.ends.iter().all(|end| end.events.iter().all(is_connected)));
    world.ends.iter_mut().for_each(|end| end.events.clear());
    (ours, theirs)
}

/// Posts as much as one connection may have under way, and returns how much that was.
fn fill(end: &mut End, qp: Qp, (address, key): (u64, u32)) -> usize {
    let limits = end.nic().limits();
    let area = end.read_area(0, 64);
    let mut posted = 0;
    for number in 0..limits.sends_per_qp_max.min(SENDS) {
        posted += usize::from(end.try_send(qp, &header(number.into()), Payload::None).is_ok());
    }
    for _ in 0..limits.reads_per_qp_max.min(READS) {
        posted += usize::from(end.try_read(qp, address, key, &[area]).is_ok());
    }
    posted
}

/// Runs the case. Returns how much was under way when the connections ended, and how much of that was
/// flushed.
fn come_send_and_go_at_once(fabric: &dyn Fabric) -> (usize, usize) {
    raise_descriptor_limit();
    let mut world = World::with(fabric, options(), ENTRIES);
    let (ours, theirs) = come(&mut world);
    // One entry for each SEND, and the server does not poll before all were sent.
    for qp in &ours {
        world.client().send(*qp, 0, Payload::None);
    }
    world.client().nic().flush();
    world.until("a thousand messages", |ends| ends[SERVER].received.len() == COUNT && ends[CLIENT].idle());
    let of = world.client().source_address(0);
    world.ends[CLIENT].drop_nic();
    // The server does not know yet that the client is gone. So all this work is under way when it notices a
    // thousand ends at once.
    let posted: usize = theirs.iter().map(|qp| fill(&mut world.ends[SERVER], *qp, of)).sum();
    assert!(posted > 0);
    world.server().nic().flush();
    world.server().completions.clear();
    world.until("a thousand ends", |ends| ends[SERVER].ended.len() == COUNT);
    let server = world.server();
    assert_eq!(server.completions.len(), posted, "each comes back once");
    // On one host, memory of a peer that is gone can still be read.
    let is_read = |work| matches!(work, Work::Read { .. });
    let wrong = server.completions.iter().find(|done| match done.status {
        Status::Success => !is_read(done.work),
        status => ![Status::Flushed, UNACKNOWLEDGED].contains(&status),
    });
    assert_eq!(wrong, None);
    let flushed = server.completions.iter().filter(|done| done.status != Status::Success).count();
    let lost = server.nic().counters().drains_given_up;
    assert_eq!(lost, 0, "connections whose work did not come back");
    assert!(
        server.events.iter().all(|event| matches!(event, Event::Disconnected { .. })),
        "no device is gone"
    );
    // The next connection works like the first.
    server.events.clear();
    server.received.clear();
    world.ends[CLIENT] = End::new(fabric, "client", small_options(), 64);
    let (after, _) = world.connect();
    world.client().send(after, 7, Payload::Inline(b"and me"));
    world.until("one more message", |ends| ends[SERVER].received.len() == 1);
    world.settle();
    (posted, flushed)
}

/// The case on verbs, with a daemon's sizes: a few connections then share a completion queue, which just
/// holds what they can have under way.
#[cfg(feature = "verbs")]
mod rdma {
    use super::*;
    use crate::fabrics::Rdma;
    use jet_fabric::address::Address;
    use jet_fabric::nic::Nic;
    use jet_fabric::verbs::{VerbsNic, VerbsOptions};
    use std::time::Duration;

    struct Daemons;

    impl Fabric for Daemons {
        fn name(&self) -> &'static str {
            "crowds::rdma"
        }

        fn nic(&self, end: &str, options: SoftOptions) -> Box<dyn Nic> {
            let options = VerbsOptions {
                sends_per_qp_max: SENDS,
                // A thousand connections are slow on an emulated processor, and nothing is sent again
                // meanwhile (17 s). Where packets are lost, the same packet may be lost three times, which
                // must fit into the time (4 s each).
                handshake: 2 * deadline(),
                ack_timeout: if packets_are_lost() { 20 } else { 22 },
                drain: Duration::from_secs(10),
                ..Rdma::options(end, &options)
            };
            Box::new(VerbsNic::new(options).unwrap_or_else(|error| panic!("{error}")))
        }

        fn address(&self, place: &tempfile::TempDir) -> Address {
            Rdma.address(place)
        }
    }

    #[test]
    #[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
    fn a_thousand_connections_come_send_and_go_at_once() {
        let everything = COUNT * SENDS as usize + READS_OF_ALL as usize;
        assert_eq!(come_send_and_go_at_once(&Daemons), (everything, everything));
    }
}

/// The case on software NICs.
mod soft {
    use super::*;
    use crate::fabrics::{Shm, Tcp};

    #[test]
    fn a_thousand_connections_come_send_and_go_at_once_over_shm() {
        come_send_and_go_at_once(&Shm);
    }

    #[test]
    fn a_thousand_connections_come_send_and_go_at_once_over_tcp() {
        come_send_and_go_at_once(&Tcp);
    }
}

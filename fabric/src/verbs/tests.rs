//! Tests of a NIC on verbs that need a look at its private state.
//!
//! Events that soft-RoCE never raises (that a device failed, for one) are injected, by the file from which
//! the library reads events.

use super::connection_manager::CmEvent;
use super::{VerbsNic, VerbsOptions, set_up};
use crate::address::Address;
use crate::nic::{Completion, Event, Nic, PostError, PrivateData, Qp, ReadRequest};
use rdma_sys::{ibv_access_flags, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr, ibv_query_qp};
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Library's number for the event that the device failed for good.
const DEVICE_FATAL: u32 = 8;
/// Time after which a test fails; long enough for a machine that compiles meanwhile.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

fn address() -> Address {
    let ip: std::net::IpAddr = std::env::var("JET_RDMA_ADDRESS")
        .expect("JET_RDMA_ADDRESS names a device")
        .parse()
        .expect("JET_RDMA_ADDRESS is an address");
    Address::Rdma(std::net::SocketAddr::new(ip, 0).to_string())
}

/// Returns options for a few connections.
fn options() -> VerbsOptions {
    let Address::Rdma(text) = address() else { unreachable!("of RDMA") };
    let on_device = VerbsOptions::reaching(&text).expect("an address");
    VerbsOptions { qps_max: 8, srq_entries_max: 64, reads_max: 8, ..on_device }
}

fn nic() -> VerbsNic {
    VerbsNic::new(options()).expect("a NIC")
}

/// Polls both NICs until `check` returns something.
fn until<T>(
    nics: &mut [VerbsNic; 2],
    what: &str,
    mut check: impl FnMut(&mut [VerbsNic; 2]) -> Option<T>,
) -> T {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        for nic in nics.iter_mut() {
            nic.poll(0, &mut [Completion::UNUSED; 16]);
        }
        if let Some(found) = check(nics) {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {WAIT_LIMIT:?} for {what}");
    }
}

/// Makes two NICs, and connects the second to the first. Returns the NICs, and each one's handle of the
/// connection.
fn connected(of_server: VerbsOptions, of_client: VerbsOptions) -> ([VerbsNic; 2], [Qp; 2]) {
    let mut nics = [of_server, of_client].map(|options| VerbsNic::new(options).expect("a NIC"));
    let words = PrivateData::new(b"hello").unwrap();
    let address = nics[0].listen(&address()).expect("it listens");
    let ours = nics[1].connect(&address, &words).expect("it begins");
    let request = until(&mut nics, "a request", |nics| nics[0].poll_event(0));
    let Event::ConnectRequest { qp: theirs, .. } = request else { panic!("{request:?}") };
    nics[0].accept(theirs, &words).expect("accepted");
    for (at, qp) in [(0, theirs), (1, ours)] {
        let event = until(&mut nics, "the connection", |nics| nics[at].poll_event(0));
        let Event::Connected { qp: of, reads_max, .. } = event else { panic!("{event:?}") };
        let of_connection = nics[at].connections.get_mut(qp).expect("it stands").reads_max;
        assert_eq!((of, reads_max), (qp, of_connection));
    }
    (nics, [theirs, ours])
}

/// Returns the attributes that the device reports for a connection's QP.
fn attributes(nic: &mut VerbsNic, qp: Qp) -> ibv_qp_attr {
    let pair = nic.connections.get_mut(qp).expect("it stands").pair.as_ref().expect("a QP");
    let mask = ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS
        | ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC
        | ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
        | ibv_qp_attr_mask::IBV_QP_AV
        | ibv_qp_attr_mask::IBV_QP_TIMEOUT
        | ibv_qp_attr_mask::IBV_QP_RETRY_CNT;
    // SAFETY: the QP lives; zeros are a value of both structures, which the call fills.
    unsafe {
        let (mut found, mut made): (ibv_qp_attr, ibv_qp_init_attr) = (std::mem::zeroed(), std::mem::zeroed());
        assert_eq!(ibv_query_qp(pair.as_ptr(), &mut found, mask.0.cast_signed(), &mut made), 0);
        found
    }
}

#[test]
#[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
fn who_answers_no_reads_has_none_asked_of_it() {
    let of_server = VerbsOptions { reads_answered_per_qp_max: 0, ..options() };
    let (mut nics, [theirs, ours]) = connected(of_server, options());
    let request = ReadRequest { id: 1, address: 0, key: 0, scatter: &[] };
    assert_eq!(nics[1].post_read(ours, request), Err(PostError::Limit));
    assert_eq!(nics[0].connections.get_mut(theirs).unwrap().reads_max, 8);
    let read = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    let (server, client) = (attributes(&mut nics[0], theirs), attributes(&mut nics[1], ours));
    assert_eq!((server.max_dest_rd_atomic, client.max_rd_atomic), (0, 0));
    assert_eq!(server.qp_access_flags & read, 0, "the QP would answer");
    assert_eq!((server.max_rd_atomic, client.max_dest_rd_atomic), (8, 8));
    assert_eq!(client.qp_access_flags & read, read);
}

#[test]
#[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
fn who_makes_no_reads_asks_for_none() {
    let of_client = VerbsOptions { reads_per_qp_max: 0, ..options() };
    let (mut nics, [theirs, ours]) = connected(options(), of_client);
    assert_eq!(nics[1].connections.get_mut(ours).unwrap().reads_max, 0);
    let (server, client) = (attributes(&mut nics[0], theirs), attributes(&mut nics[1], ours));
    assert_eq!((server.max_dest_rd_atomic, client.max_rd_atomic), (0, 0));
    assert_eq!((server.max_rd_atomic, client.max_dest_rd_atomic), (8, 8));
}

#[test]
#[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
fn each_end_sets_its_own_type_of_service() {
    let of_server = VerbsOptions { tos: Some(0x28), ..options() };
    let of_client = VerbsOptions { tos: Some(0x68), ..options() };
    let (mut nics, [theirs, ours]) = connected(of_server, of_client.clone());
    fn class(nic: &mut VerbsNic, qp: Qp) -> u8 {
        attributes(nic, qp).ah_attr.grh.traffic_class
    }
    assert_eq!((class(&mut nics[0], theirs), class(&mut nics[1], ours)), (0x28, 0x68));
    // Without a type of service of its own, the accepting end takes that of the asking end.
    let (mut nics, [theirs, ours]) = connected(options(), of_client);
    assert_eq!((class(&mut nics[0], theirs), class(&mut nics[1], ours)), (0x68, 0x68));
}

#[test]
#[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
fn each_end_sets_its_own_retries() {
    // Neither value is the default, nor what RDMA CM would have.
    let of_server = VerbsOptions { ack_timeout: 13, retry: 4, ..options() };
    let of_client = VerbsOptions { ack_timeout: 18, retry: 2, ..options() };
    let (mut nics, [theirs, ours]) = connected(of_server, of_client);
    fn retries(nic: &mut VerbsNic, qp: Qp) -> (u8, u8) {
        let of_qp = attributes(nic, qp);
        (of_qp.timeout, of_qp.retry_cnt)
    }
    assert_eq!((retries(&mut nics[0], theirs), retries(&mut nics[1], ours)), ((13, 4), (18, 2)));
}

/// Guard of an injected device event, for the element with that number or address.
///
/// The device's own events no longer arrive. When the guard is dropped, the injected ones do not either.
struct Injected {
    _writing: OwnedFd,
}

fn inject_event(nic: &mut VerbsNic, kind: u32, element: u64) -> Injected {
    let (reading, writing) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
    let mut words = [0u8; 16];
    words[..8].copy_from_slice(&element.to_ne_bytes());
    words[8..12].copy_from_slice(&kind.to_ne_bytes());
    rustix::io::write(&writing, &words).unwrap();
    let context = nic.device.context();
    // SAFETY: both are open; the number stays the library's.
    let result = unsafe { libc::dup2(reading.as_raw_fd(), context.async_fd().as_raw_fd()) };
    assert_eq!(result, context.async_fd().as_raw_fd());
    nic.readiness.watch(context.async_fd()).unwrap();
    nic.check_events();
    Injected { _writing: writing }
}

#[test]
#[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
fn a_device_that_failed_is_there_again_when_it_is_opened_at_the_same_place() {
    let mut last = std::ptr::null_mut();
    for _ in 0..64 {
        let mut nic = nic();
        let place = nic.device.context().as_ptr();
        nic.check_events();
        assert_eq!(nic.poll_event(0), None, "a device that was just opened");
        nic.listen(&address()).expect("it listens");
        let _injected = inject_event(&mut nic, DEVICE_FATAL, 0);
        assert_eq!(nic.poll_event(0), Some(Event::Gone));
        if place == last {
            return;
        }
        last = place;
    }
    panic!("no device was opened where one had been before: nothing was seen");
}

#[test]
#[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
fn an_interface_that_moved_is_looked_at_soon_though_the_next_look_is_far() {
    const HOUR: Duration = Duration::from_secs(3600);
    let mut nic = VerbsNic::new(VerbsOptions { survey_every: HOUR, ..options() }).expect("a NIC");
    nic.listen(&address()).expect("it listens");
    let is_far = |nic: &VerbsNic| nic.surveying.next().is_some_and(|next| next > Instant::now() + HOUR / 2);
    assert!(is_far(&nic));
    // Only bonded interfaces move, so RDMA CM's event is injected.
    nic.handle(0, CmEvent::AddressMoved);
    assert!(!is_far(&nic), "nobody heard it");
    let deadline = Instant::now() + WAIT_LIMIT;
    while !is_far(&nic) {
        nic.check_events();
        assert!(Instant::now() < deadline, "no check in {WAIT_LIMIT:?}");
    }
    let listening = nic.watch().status().listening;
    assert!(listening.len() == 1 && listening[0].is_there && listening[0].problem.is_none(), "{listening:?}");
}

/// Time for each handshake of a crowd, whose last connection is set up after all the others: on an emulated
/// processor that may take longer than the default.
const HANDSHAKE: Duration = WAIT_LIMIT;

/// Many connections of one NIC with another NIC, which is polled elsewhere.
struct Crowd {
    nic: VerbsNic,
    stands: u32,
    ended: u32,
}

impl Crowd {
    fn new(size: u32) -> Self {
        let options = VerbsOptions { qps_max: size, handshake: HANDSHAKE, ..options() };
        let nic = VerbsNic::new(options).expect("a NIC");
        Self { nic, stands: 0, ended: 0 }
    }

    /// Begins all connections at once, and waits until all are ready.
    fn come(&mut self, size: u32, address: &Address) {
        let words = PrivateData::new(b"hello").unwrap();
        for _ in 0..size {
            self.nic.connect(address, &words).expect("a place in the table");
        }
        let deadline = Instant::now() + WAIT_LIMIT;
        while self.stands < size {
            self.turn();
            assert_eq!(self.ended, 0, "a connection was refused, or lost");
            assert!(Instant::now() < deadline, "{} of {size} stand after {WAIT_LIMIT:?}", self.stands);
        }
    }

    fn turn(&mut self) {
        self.nic.poll(0, &mut [Completion::UNUSED; 16]);
        while let Some(event) = self.nic.poll_event(0) {
            match event {
                Event::Connected { .. } => self.stands += 1,
                Event::Disconnected { .. } => self.ended += 1,
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
#[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
fn a_thousand_come_at_once_and_go_at_once_and_none_of_their_calls_is_where_others_are_polled() {
    const SIZE: u32 = 1000;
    let of_server =
        VerbsOptions { qps_max: SIZE + 24, set_up_thread: true, handshake: HANDSHAKE, ..options() };
    let mut server = VerbsNic::new(of_server).expect("a NIC");
    let address = server.listen(&address()).expect("it listens");
    let words = PrivateData::new(b"welcome").unwrap();
    let crowd = std::thread::spawn(move || {
        let mut crowd = Crowd::new(SIZE);
        crowd.come(SIZE, &address);
        // The connections end without a message, as in a process that exits.
        drop(crowd);
    });
    let deadline = Instant::now() + 2 * WAIT_LIMIT;
    let before = set_up::SLOW_CALLS.get();
    let (mut asked, mut stood, mut ended) = (0, 0, 0);
    while ended < SIZE {
        server.poll(0, &mut [Completion::UNUSED; 16]);
        while let Some(event) = server.poll_event(0) {
            match event {
                Event::ConnectRequest { qp, .. } => {
                    asked += 1;
                    server.accept(qp, &words).expect("accepted");
                }
                Event::Connected { .. } => stood += 1,
                Event::Disconnected { .. } => ended += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(Instant::now() < deadline, "{asked} asked, {stood} stood and {ended} ended of {SIZE}");
    }
    assert_eq!((asked, stood), (SIZE, SIZE));
    assert_eq!(set_up::SLOW_CALLS.get(), before, "calls of set-up where the others are polled");
    crowd.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert!(!server.connections.any(), "places that did not come back");
}

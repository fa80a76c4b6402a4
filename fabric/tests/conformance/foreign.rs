//! Cases with another user of RDMA CM in the process, on the same device and in the context that librdmacm
//! shares out. The NIC must not touch this user's objects, nor take its events.

use crate::fabrics::Rdma;
use crate::harness::{CLIENT, End, SERVER, World, deadline, until};
use jet_fabric::nic::Payload;
use rdma_sys::{
    ibv_access_flags, ibv_ack_async_event, ibv_async_event, ibv_context, ibv_cq, ibv_create_cq,
    ibv_create_srq, ibv_dereg_mr, ibv_destroy_cq, ibv_destroy_srq, ibv_get_async_event, ibv_modify_srq,
    ibv_mr, ibv_post_send, ibv_post_srq_recv, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_type, ibv_recv_wr,
    ibv_reg_mr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_attr, ibv_srq_attr_mask,
    ibv_srq_init_attr, ibv_wr_opcode, rdma_accept, rdma_ack_cm_event, rdma_bind_addr, rdma_cm_event_type,
    rdma_cm_id, rdma_conn_param, rdma_connect, rdma_create_event_channel, rdma_create_id, rdma_create_qp,
    rdma_destroy_event_channel, rdma_destroy_id, rdma_destroy_qp, rdma_event_channel, rdma_get_cm_event,
    rdma_get_src_port, rdma_listen, rdma_port_space, rdma_resolve_addr, rdma_resolve_route,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fcntl_getfl;
use rustix::pipe::{PipeFlags, pipe_with};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::time::Duration;

const CQ_ERR: u32 = 0;
const SRQ_LIMIT: u32 = 15;
const LAST_WQE: u32 = 16;
/// SRQ entries at first, and the number below which the device reports that few are left.
const ENTRIES: usize = 4;
const FEW: u32 = 3;

/// Memory that an object's context points to. Only the object's owner may write it.
struct Canary(Box<[u64; 64]>);

impl Canary {
    fn word(at: usize) -> u64 {
        (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn new() -> Self {
        Self(Box::new(std::array::from_fn(Self::word)))
    }

    fn pointer(&self) -> *mut libc::c_void {
        self.0.as_ptr().cast_mut().cast()
    }

    fn check(&self, of: &str) {
        for at in 0..self.0.len() {
            // SAFETY: within the array. Other code might have written it, so it is read each time.
            let found = unsafe { self.0.as_ptr().add(at).read_volatile() };
            assert_eq!(found, Self::word(at), "somebody wrote through the context of another's {of}");
        }
    }
}

fn is_readable(fd: BorrowedFd<'_>, wait: Duration) -> bool {
    let wait = Timespec::try_from(wait).expect("short");
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&wait)).expect("poll") > 0
}

/// Connection of the other user from the device to itself, made by librdmacm alone.
struct Foreign {
    channel: *mut rdma_event_channel,
    listener: *mut rdma_cm_id,
    asker: *mut rdma_cm_id,
    taker: *mut rdma_cm_id,
    srq: *mut ibv_srq,
    cqs: [*mut ibv_cq; 2],
    memory: Box<[u8; 4096]>,
    mr: *mut ibv_mr,
    of_srq: Canary,
    of_cq: Canary,
    of_qp: Canary,
}

fn socket_address(ip: Ipv4Addr, port_be: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::sa_family_t::try_from(libc::AF_INET).expect("a small number"),
        sin_port: port_be,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
        sin_zero: [0; 8],
    }
}

fn parameters() -> rdma_conn_param {
    rdma_conn_param {
        private_data: null(),
        private_data_len: 0,
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: 1,
        retry_count: 6,
        rnr_retry_count: 7,
        srq: 1,
        qp_num: 0,
    }
}

impl Foreign {
    fn connect(ip: IpAddr) -> Self {
        let IpAddr::V4(ip) = ip else { panic!("JET_RDMA_ADDRESS is to be of IPv4 here") };
        let (of_srq, of_cq, of_qp) = (Canary::new(), Canary::new(), Canary::new());
        let qp_attributes = |cq, srq| ibv_qp_init_attr {
            qp_context: of_qp.pointer(),
            send_cq: cq,
            recv_cq: cq,
            srq,
            cap: ibv_qp_cap {
                max_send_wr: 8,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: ibv_qp_type::IBV_QPT_RC,
            sq_sig_all: 1,
        };
        let mut memory = Box::new([0u8; 4096]);
        // SAFETY: the library's calls in their order; what they point to lives as long as they do.
        unsafe {
            let channel = rdma_create_event_channel();
            assert!(!channel.is_null(), "{}", std::io::Error::last_os_error());
            let new_id = || {
                let mut id = null_mut();
                let space = rdma_port_space::RDMA_PS_TCP;
                assert_eq!(rdma_create_id(channel, &mut id, null_mut(), space), 0);
                id
            };
            let listener = new_id();
            let mut own = socket_address(ip, 0);
            assert_eq!(rdma_bind_addr(listener, (&raw mut own).cast()), 0);
            assert_eq!(rdma_listen(listener, 1), 0);
            let asker = new_id();
            let mut to = socket_address(ip, rdma_get_src_port(listener));
            assert_eq!(rdma_resolve_addr(asker, null_mut(), (&raw mut to).cast(), 2000), 0);
            next(channel, rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED);
            assert_eq!(rdma_resolve_route(asker, 2000), 0);
            next(channel, rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED);
            // Room for one completion: the second overruns the queue.
            let small = ibv_create_cq((*asker).verbs, 1, of_cq.pointer(), null_mut(), 0);
            assert!(!small.is_null());
            assert_eq!(rdma_create_qp(asker, null_mut(), &mut qp_attributes(small, null_mut())), 0);
            assert_eq!(rdma_connect(asker, &mut parameters()), 0);
            let taker = next(channel, rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST);
            let mut srq_attributes = ibv_srq_init_attr {
                srq_context: of_srq.pointer(),
                attr: ibv_srq_attr { max_wr: 16, max_sge: 1, srq_limit: 0 },
            };
            let srq = ibv_create_srq((*taker).pd, &mut srq_attributes);
            let cq = ibv_create_cq((*taker).verbs, 64, of_cq.pointer(), null_mut(), 0);
            assert!(!srq.is_null() && !cq.is_null());
            assert_eq!(rdma_create_qp(taker, null_mut(), &mut qp_attributes(cq, srq)), 0);
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0.cast_signed();
            let mr = ibv_reg_mr((*taker).pd, memory.as_mut_ptr().cast(), memory.len(), access);
            assert!(!mr.is_null());
            let foreign = Self {
                channel,
                listener,
                asker,
                taker,
                srq,
                cqs: [small, cq],
                memory,
                mr,
                of_srq,
                of_cq,
                of_qp,
            };
            (0..ENTRIES).for_each(|_| foreign.post_entry());
            let mut limit = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: FEW };
            assert_eq!(ibv_modify_srq(srq, &mut limit, ibv_srq_attr_mask::IBV_SRQ_LIMIT.0.cast_signed()), 0);
            assert_eq!(rdma_accept(taker, &mut parameters()), 0);
            next(channel, rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED);
            next(channel, rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED);
            foreign
        }
    }

    fn stretch(&self) -> ibv_sge {
        // SAFETY: the registration lives.
        ibv_sge { addr: self.memory.as_ptr() as u64, length: 64, lkey: unsafe { (*self.mr).lkey } }
    }

    fn post_entry(&self) {
        let mut sge = self.stretch();
        let mut wr = ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        // SAFETY: the queue lives, and copies the request.
        assert_eq!(unsafe { ibv_post_srq_recv(self.srq, &mut wr, &mut null_mut()) }, 0);
    }

    fn send(&self) {
        let mut sge = self.stretch();
        // SAFETY: zeros are a value of the request; the QP lives, and copies it.
        unsafe {
            let mut wr: ibv_send_wr = std::mem::zeroed();
            wr.sg_list = &raw mut sge;
            wr.num_sge = 1;
            wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
            wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
            assert_eq!(ibv_post_send((*self.asker).qp, &mut wr, &mut null_mut()), 0);
        }
    }

    fn context(&self) -> *mut ibv_context {
        // SAFETY: the identifier lives.
        unsafe { (*self.asker).verbs }
    }

    fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open as long as an identifier is bound to its device.
        unsafe { BorrowedFd::borrow_raw((*self.context()).async_fd) }
    }

    /// Takes the next event, which must be there already, and returns its kind.
    fn take_event(&self) -> u32 {
        assert!(is_readable(self.async_fd(), Duration::ZERO), "somebody else took the event");
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the structure is the library's; its kind is read as a number, whatever that is.
        unsafe {
            assert_eq!(ibv_get_async_event(self.context(), event.as_mut_ptr()), 0);
            let kind = (&raw const (*event.as_ptr()).event_type).cast::<u32>().read();
            ibv_ack_async_event(event.as_mut_ptr());
            kind
        }
    }

    fn check_canaries(&self) {
        self.of_srq.check("SRQ");
        self.of_cq.check("completion queue");
        self.of_qp.check("QP");
    }
}

/// Takes the next event of a channel, which must be of this kind, and returns its identifier.
///
/// # Safety
/// The channel lives.
unsafe fn next(channel: *mut rdma_event_channel, kind: rdma_cm_event_type::Type) -> *mut rdma_cm_id {
    // SAFETY: the channel lives, as the caller guarantees; an event is acknowledged once, after what matters
    // of it was copied.
    unsafe {
        assert!(is_readable(BorrowedFd::borrow_raw((*channel).fd), deadline()), "no event {kind} came");
        let mut event = null_mut();
        assert_eq!(rdma_get_cm_event(channel, &mut event), 0);
        let (found, id) = ((*event).event, (*event).id);
        rdma_ack_cm_event(event);
        assert_eq!(found, kind);
        id
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // If the events were taken by other code, destroying their objects may wait for ever.
            return;
        }
        // SAFETY: each is the other user's, and destroyed after what uses it; all events were acknowledged.
        unsafe {
            for id in [self.asker, self.taker] {
                rdma_destroy_qp(id);
            }
            ibv_dereg_mr(self.mr);
            ibv_destroy_srq(self.srq);
            for cq in self.cqs {
                ibv_destroy_cq(cq);
            }
            for id in [self.asker, self.taker, self.listener] {
                rdma_destroy_id(id);
            }
            rdma_destroy_event_channel(self.channel);
        }
    }
}

/// Makes both NICs look at all their event sources: each falls asleep, is woken by a message, and looks
/// again.
fn look_everywhere(world: &mut World, qps: [jet_fabric::Qp; 2]) {
    for (sleeper, waker) in [(SERVER, CLIENT), (CLIENT, SERVER)] {
        world.settle();
        until(&mut world.ends, "the sleeper may sleep", |ends| ends[sleeper].arm());
        world.ends[waker].send(qps[waker], 1, Payload::None);
        until(&mut world.ends[waker..=waker], "the message is taken", |ends| ends[0].idle());
        let sleeping: &mut End = &mut world.ends[sleeper];
        assert!(is_readable(sleeping.nic().wait_fd(), deadline()), "the sleeper is not woken");
        sleeping.arm();
    }
}

#[test]
#[ignore = "needs an RDMA device, named by JET_RDMA_ADDRESS: docs/rdma.md"]
fn other_users_of_rdma_cm_keep_what_is_theirs() {
    let ip = std::env::var("JET_RDMA_ADDRESS").expect("JET_RDMA_ADDRESS").parse().expect("an address");
    let foreign = Foreign::connect(ip);
    let flags = fcntl_getfl(foreign.async_fd()).unwrap();
    let mut world = World::new(&Rdma);
    let (ours, theirs) = world.connect();
    let qps = [theirs, ours];
    look_everywhere(&mut world, qps);

    // The second completion overruns a queue, and leaves few SRQ entries.
    foreign.send();
    foreign.send();
    assert!(is_readable(foreign.async_fd(), deadline()), "the device says nothing");
    look_everywhere(&mut world, qps);
    foreign.check_canaries();
    let first = foreign.take_event();
    // The second event may arrive later.
    assert!(is_readable(foreign.async_fd(), deadline()), "the second event did not come");
    look_everywhere(&mut world, qps);
    let mut kinds = [first, foreign.take_event()];
    kinds.sort_unstable();
    assert_eq!(kinds, [CQ_ERR, SRQ_LIMIT]);
    foreign.check_canaries();

    // An event that soft-RoCE never raises is injected: a QP of the other user takes no SRQ entry any more.
    let (reading, writing) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
    let mut words = [0u8; 16];
    // SAFETY: the identifier lives.
    words[..8].copy_from_slice(&(unsafe { (*foreign.taker).qp } as u64).to_ne_bytes());
    words[8..12].copy_from_slice(&LAST_WQE.to_ne_bytes());
    rustix::io::write(&writing, &words).unwrap();
    let kept = exchange(foreign.async_fd(), reading.as_fd());
    look_everywhere(&mut world, qps);
    let mut left = [0u8; 32];
    let bytes = rustix::io::read(&reading, &mut left).expect("somebody else took the event");
    assert_eq!(&left[..bytes], words);
    exchange(foreign.async_fd(), kept.as_fd());
    foreign.check_canaries();

    assert_eq!(fcntl_getfl(foreign.async_fd()).unwrap(), flags, "somebody changed their descriptor");
}

/// Makes a descriptor refer to the file of another, and returns one for the file that it referred to.
fn exchange(fd: BorrowedFd<'_>, with: BorrowedFd<'_>) -> OwnedFd {
    let kept = fd.try_clone_to_owned().unwrap();
    // SAFETY: both are open; the number stays the library's.
    let result = unsafe { libc::dup2(with.as_raw_fd(), fd.as_raw_fd()) };
    assert_eq!(result, fd.as_raw_fd());
    kept
}

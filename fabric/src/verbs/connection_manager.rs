//! RDMA CM: its event channel, its identifiers, and their QPs.

use super::device::RawAddress;
use super::error::VerbsError;
use super::regions::Domain;
use super::shared_receive_queue::SharedReceiveQueue;
use crate::nic::{PRIVATE_DATA_MAX, PrivateData};
use rdma_sys::{
    ibv_context, ibv_cq, ibv_event_type, ibv_modify_qp, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_state, ibv_qp_type, rdma_accept, rdma_ack_cm_event, rdma_bind_addr,
    rdma_cm_event, rdma_cm_event_type as kind, rdma_cm_id, rdma_conn_param, rdma_connect,
    rdma_create_event_channel, rdma_create_id, rdma_create_qp, rdma_destroy_event_channel, rdma_destroy_id,
    rdma_destroy_qp, rdma_disconnect, rdma_event_channel, rdma_get_cm_event, rdma_get_src_port, rdma_listen,
    rdma_notify, rdma_port_space, rdma_reject, rdma_resolve_addr, rdma_resolve_route, rdma_set_option,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Connection requests that wait for this process.
const BACKLOG: i32 = 1024;
/// What InfiniBand's CM says of a request that the other end's user refused.
const REJECTED_BY_USER: i32 = 28;
/// The level and the name of RDMA CM's option for the acknowledgements' timeout.
const OPTION_ID: i32 = 0;
const OPTION_ID_ACK_TIMEOUT: i32 = 3;

/// Where events of identifiers arrive. Does not block.
#[derive(Debug)]
pub(super) struct EventChannel {
    channel: *mut rdma_event_channel,
}

impl EventChannel {
    pub fn new() -> Result<Self, VerbsError> {
        // SAFETY: no arguments.
        let channel = unsafe { rdma_create_event_channel() };
        if channel.is_null() {
            return Err(VerbsError::verb(
                "rdma_create_event_channel",
                "load rdma_ucm (modprobe rdma_ucm); /dev/infiniband/rdma_cm must be readable and writable",
            ));
        }
        let this = Self { channel };
        let flags = fcntl_getfl(this.fd()).map_err(io::Error::from)?;
        fcntl_setfl(this.fd(), flags | OFlags::NONBLOCK).map_err(io::Error::from)?;
        Ok(this)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and so its descriptor, lives as long as this.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: ours; every identifier holds an `Rc` of this.
        unsafe { rdma_destroy_event_channel(self.channel) };
    }
}

/// What happened to an identifier.
#[derive(Debug)]
pub(super) enum CmEvent {
    /// A peer asks; the identifier is new.
    Request {
        id: ConnectionId,
        private_data: PrivateData,
        /// READs that the peer answers, and makes.
        reads: (u8, u8),
    },
    AddressResolved,
    RouteResolved,
    Established {
        private_data: PrivateData,
        /// READs that the peer answers, as an accepting one says; 0 where it asked.
        answered: u8,
    },
    /// Refused by the other end's user, who said so.
    Rejected {
        private_data: PrivateData,
    },
    /// It did not come about; an errno.
    Failed(i32),
    Disconnected,
    /// The device that the identifier is bound to leaves.
    DeviceRemoved {
        context: *mut ibv_context,
    },
    /// Nothing that concerns a connection here.
    Other,
}

/// An identifier and, once made, its QP. Both are destroyed when dropped.
#[derive(Debug)]
pub(super) struct ConnectionId {
    id: *mut rdma_cm_id,
    has_qp: bool,
    channel: Rc<EventChannel>,
    /// Kept for the QP.
    _domain: Option<Rc<Domain>>,
}

/// What a QP is made of.
pub(super) struct QpParts<'a> {
    pub domain: &'a Rc<Domain>,
    /// Where what it posts completes, and where what arrives does; both must live longer.
    pub send_completions: *mut ibv_cq,
    pub receive_completions: *mut ibv_cq,
    pub receives: &'a SharedReceiveQueue,
    /// Told of its events; must live longer.
    pub events: &'a AtomicU32,
    pub send_entries: u32,
    pub send_sges: u32,
    /// Bytes that it is to send inline; if it cannot, half of it, or none.
    pub inline: u32,
}

/// What a connection agrees on.
pub(super) struct Terms {
    pub private_data: PrivateData,
    /// READs that this end answers, and makes.
    pub reads: (u8, u8),
    pub retry: u8,
    pub rnr_retry: u8,
}

impl Terms {
    fn raw(&self) -> rdma_conn_param {
        let data = self.private_data.as_slice();
        rdma_conn_param {
            private_data: data.as_ptr().cast(),
            private_data_len: u8::try_from(data.len()).expect("at most PRIVATE_DATA_MAX"),
            responder_resources: self.reads.0,
            initiator_depth: self.reads.1,
            flow_control: 1,
            retry_count: self.retry,
            rnr_retry_count: self.rnr_retry,
            srq: 1,
            qp_num: 0,
        }
    }
}

fn checked(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What an identifier carries is a pointer's worth of the user's choice.
fn to_pointer(place: u64) -> *mut libc::c_void {
    const { assert!(usize::BITS == u64::BITS, "a connection's place needs 64 bits") };
    std::ptr::without_provenance_mut(usize::try_from(place).expect("as wide"))
}

fn milliseconds(span: Duration) -> i32 {
    i32::try_from(span.as_millis()).unwrap_or(i32::MAX)
}

impl ConnectionId {
    pub fn new(channel: &Rc<EventChannel>, place: u64) -> io::Result<Self> {
        let mut id = std::ptr::null_mut();
        let context = to_pointer(place);
        // SAFETY: the channel lives as long as the identifier: it holds it.
        checked(unsafe { rdma_create_id(channel.channel, &mut id, context, rdma_port_space::RDMA_PS_TCP) })?;
        Ok(Self { id, has_qp: false, channel: Rc::clone(channel), _domain: None })
    }

    /// One that hears of what becomes of a device, by an address of it.
    pub fn bound_to(channel: &Rc<EventChannel>, address: IpAddr) -> io::Result<Self> {
        let id = Self::new(channel, 0)?;
        let mut raw = RawAddress::new(SocketAddr::new(address, 0));
        // SAFETY: the address is copied by the call.
        checked(unsafe { rdma_bind_addr(id.id, raw.as_mut_ptr()) })?;
        Ok(id)
    }

    /// Whose it is from now on.
    pub fn set_place(&mut self, place: u64) {
        // SAFETY: the identifier is ours; the library does not look at this field.
        unsafe { (*self.id).context = to_pointer(place) };
    }

    /// The device's context, once it is known.
    pub fn context(&self) -> *mut ibv_context {
        // SAFETY: the identifier lives.
        unsafe { (*self.id).verbs }
    }

    pub fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let mut raw = RawAddress::new(address);
        // SAFETY: the address is copied by the call.
        unsafe {
            checked(rdma_bind_addr(self.id, raw.as_mut_ptr()))?;
            checked(rdma_listen(self.id, BACKLOG))?;
            Ok(SocketAddr::new(address.ip(), u16::from_be(rdma_get_src_port(self.id))))
        }
    }

    pub fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let mut from = from.map(RawAddress::new);
        let mut to = RawAddress::new(to);
        let from = from.as_mut().map_or(std::ptr::null_mut(), RawAddress::as_mut_ptr);
        // SAFETY: both addresses are copied by the call.
        checked(unsafe { rdma_resolve_addr(self.id, from, to.as_mut_ptr(), milliseconds(timeout)) })
    }

    pub fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        // SAFETY: the identifier lives.
        checked(unsafe { rdma_resolve_route(self.id, milliseconds(timeout)) })
    }

    /// Makes the QP; returns its number and how many bytes it sends inline.
    pub fn create_qp(&mut self, parts: &QpParts<'_>) -> io::Result<(u32, u32)> {
        let mut last = io::Error::from(io::ErrorKind::InvalidInput);
        for inline in [parts.inline, parts.inline / 2, 0] {
            let mut attributes = ibv_qp_init_attr {
                qp_context: std::ptr::from_ref(parts.events).cast_mut().cast(),
                send_cq: parts.send_completions,
                recv_cq: parts.receive_completions,
                srq: parts.receives.as_ptr(),
                cap: ibv_qp_cap {
                    max_send_wr: parts.send_entries,
                    max_recv_wr: 0,
                    max_send_sge: parts.send_sges,
                    max_recv_sge: 0,
                    max_inline_data: inline,
                },
                qp_type: ibv_qp_type::IBV_QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: the parts outlive the QP: the domain is kept here, the NIC drops its queues after its connections.
            match checked(unsafe { rdma_create_qp(self.id, parts.domain.as_ptr(), &mut attributes) }) {
                Ok(()) => {
                    self.has_qp = true;
                    self._domain = Some(Rc::clone(parts.domain));
                    // SAFETY: the QP was just made.
                    let number = unsafe { (*(*self.id).qp).qp_num };
                    return Ok((number, attributes.cap.max_inline_data));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The QP; null before it is made.
    #[inline]
    pub fn qp(&self) -> *mut ibv_qp {
        // SAFETY: the identifier lives.
        unsafe { (*self.id).qp }
    }

    pub fn connect(&self, terms: &Terms) -> io::Result<()> {
        let mut raw = terms.raw();
        // SAFETY: the private data is copied by the call.
        checked(unsafe { rdma_connect(self.id, &mut raw) })
    }

    pub fn accept(&self, terms: &Terms) -> io::Result<()> {
        let mut raw = terms.raw();
        // SAFETY: as above.
        checked(unsafe { rdma_accept(self.id, &mut raw) })
    }

    pub fn reject(&self, private_data: &PrivateData) {
        let data = private_data.as_slice();
        let bytes = u8::try_from(data.len()).expect("at most PRIVATE_DATA_MAX");
        // SAFETY: as above. Where it fails the peer is gone already.
        unsafe { rdma_reject(self.id, data.as_ptr().cast(), bytes) };
    }

    /// How long a peer of this connection is to wait when it found no SRQ entry. RDMA CM has no word for it, so it is set
    /// once the QP can receive.
    pub fn set_rnr_timer(&self, timer: u8) -> io::Result<()> {
        // SAFETY: the QP lives; every bit pattern is a value of the structure, of which two fields are read.
        let errno = unsafe {
            let mut attributes: ibv_qp_attr = std::mem::zeroed();
            attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
            attributes.min_rnr_timer = timer;
            let mask = ibv_qp_attr_mask::IBV_QP_STATE.0 | ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0;
            ibv_modify_qp(self.qp(), &mut attributes, mask.cast_signed())
        };
        if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
    }

    /// How long its packets' acknowledgements may take. Before it asks or accepts.
    pub fn set_ack_timeout(&self, timeout: u8) {
        let mut timeout = timeout;
        // SAFETY: the value is copied by the call. Kernels before 5.1 do not know the option and keep their own.
        unsafe {
            rdma_set_option(self.id, OPTION_ID, OPTION_ID_ACK_TIMEOUT, (&raw mut timeout).cast(), 1);
        }
    }

    /// Its first message came before the answer to its answer: it stands all the same.
    pub fn notify_established(&self) {
        // SAFETY: the identifier lives.
        unsafe { rdma_notify(self.id, ibv_event_type::IBV_EVENT_COMM_EST) };
    }

    /// Takes the QP to the error state, so that all its work comes back, and tells the peer.
    pub fn hang_up(&self) {
        if !self.has_qp {
            return;
        }
        // SAFETY: the QP lives; every bit pattern is a value of the structure, of which one field is read.
        unsafe {
            let mut attributes: ibv_qp_attr = std::mem::zeroed();
            attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
            // Where either fails the device or the connection is gone already.
            ibv_modify_qp(self.qp(), &mut attributes, ibv_qp_attr_mask::IBV_QP_STATE.0.cast_signed());
            rdma_disconnect(self.id);
        }
    }

    pub fn destroy_qp(&mut self) {
        if std::mem::take(&mut self.has_qp) {
            // SAFETY: the QP is ours, and no call is under way with it.
            unsafe { rdma_destroy_qp(self.id) };
        }
    }
}

impl Drop for ConnectionId {
    fn drop(&mut self) {
        self.destroy_qp();
        // SAFETY: ours; its events are acknowledged as they are taken, so this does not wait.
        unsafe { rdma_destroy_id(self.id) };
        let _ = &self.channel;
    }
}

/// The next event, and whose it is.
pub(super) fn next_event(channel: &Rc<EventChannel>) -> Option<(u64, CmEvent)> {
    let mut raw: *mut rdma_cm_event = std::ptr::null_mut();
    // SAFETY: an event that was taken stays valid until it is acknowledged, once, after what matters of it was copied.
    unsafe {
        if rdma_get_cm_event(channel.channel, &mut raw) != 0 {
            return None;
        }
        let event = &*raw;
        let place = (*event.id).context.addr() as u64;
        let private_data = private_data(event);
        let decoded = match event.event {
            kind::RDMA_CM_EVENT_CONNECT_REQUEST => {
                let conn = event.param.conn;
                let id =
                    ConnectionId { id: event.id, has_qp: false, channel: Rc::clone(channel), _domain: None };
                CmEvent::Request { id, private_data, reads: (conn.initiator_depth, conn.responder_resources) }
            }
            kind::RDMA_CM_EVENT_ADDR_RESOLVED => CmEvent::AddressResolved,
            kind::RDMA_CM_EVENT_ROUTE_RESOLVED => CmEvent::RouteResolved,
            kind::RDMA_CM_EVENT_ESTABLISHED => {
                CmEvent::Established { private_data, answered: event.param.conn.initiator_depth }
            }
            kind::RDMA_CM_EVENT_REJECTED if event.status == REJECTED_BY_USER => {
                CmEvent::Rejected { private_data }
            }
            kind::RDMA_CM_EVENT_REJECTED => CmEvent::Failed(libc::ECONNREFUSED),
            kind::RDMA_CM_EVENT_ADDR_ERROR
            | kind::RDMA_CM_EVENT_ROUTE_ERROR
            | kind::RDMA_CM_EVENT_CONNECT_ERROR
            | kind::RDMA_CM_EVENT_UNREACHABLE => {
                let errno = event.status.checked_abs().filter(|errno| *errno > 0);
                CmEvent::Failed(errno.unwrap_or(libc::EHOSTUNREACH))
            }
            kind::RDMA_CM_EVENT_DISCONNECTED => CmEvent::Disconnected,
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL => CmEvent::DeviceRemoved { context: (*event.id).verbs },
            _ => CmEvent::Other,
        };
        rdma_ack_cm_event(raw);
        Some((place, decoded))
    }
}

/// What the other end said; RDMA CM pads it with zeros, and so does this.
///
/// # Safety
/// The event was taken and not acknowledged.
unsafe fn private_data(event: &rdma_cm_event) -> PrivateData {
    let carries = matches!(
        event.event,
        kind::RDMA_CM_EVENT_CONNECT_REQUEST
            | kind::RDMA_CM_EVENT_ESTABLISHED
            | kind::RDMA_CM_EVENT_REJECTED
            | kind::RDMA_CM_EVENT_CONNECT_RESPONSE
    );
    // SAFETY: these events carry the parameters of a connection, whose data is as long as it says.
    let data = unsafe {
        let conn = event.param.conn;
        if carries && !conn.private_data.is_null() {
            std::slice::from_raw_parts(conn.private_data.cast::<u8>(), usize::from(conn.private_data_len))
        } else {
            &[]
        }
    };
    PrivateData::new(&data[..data.len().min(PRIVATE_DATA_MAX)]).expect("cut to what fits")
}
